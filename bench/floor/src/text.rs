//! Gzip CSV of workload B → columns, the plain way: the `csv` crate's byte records, times cut at fixed places, numbers
//! by the standard library. What does not have exactly that form is an error: the floor reads its own workload only.

use crate::{BATCH_ROWS, Encoder, Result, UTC};
use arrow::array::{ArrayRef, Float64Builder, Int32Builder, StringBuilder, TimestampMicrosecondBuilder};
use csv::{ByteRecord, ReaderBuilder};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

const HEADER: [&str; 4] = ["timestamp", "tag_name", "value", "quality"];
const COMPRESSED_BUFFER: usize = 128 * 1024;
const TEXT_BUFFER: usize = 128 * 1024;
/// Longer than any number of the workload.
const NUMBER_BYTES: usize = 32;

pub fn copy(source: &Path, target: &Path) -> Result<usize> {
    let content = MultiGzDecoder::new(BufReader::with_capacity(COMPRESSED_BUFFER, File::open(source)?));
    let mut reader = ReaderBuilder::new().delimiter(b';').buffer_capacity(TEXT_BUFFER).from_reader(content);
    if *reader.headers()? != HEADER[..] {
        return Err("not a file of workload B".into());
    }
    let mut encoder = Encoder::create(target)?;
    let (mut record, mut columns) = (ByteRecord::new(), Columns::new());
    while reader.read_byte_record(&mut record)? {
        columns.push(&record).ok_or_else(|| format!("record {:?} is not of workload B", record))?;
        if columns.rows == BATCH_ROWS {
            encoder.write(columns.take())?;
        }
    }
    if columns.rows > 0 {
        encoder.write(columns.take())?;
    }
    encoder.finish()
}

struct Columns {
    times: TimestampMicrosecondBuilder,
    names: StringBuilder,
    values: Float64Builder,
    qualities: Int32Builder,
    rows: usize,
}

impl Columns {
    fn new() -> Self {
        Columns {
            times: TimestampMicrosecondBuilder::with_capacity(BATCH_ROWS).with_timezone(UTC),
            names: StringBuilder::with_capacity(BATCH_ROWS, BATCH_ROWS * NUMBER_BYTES),
            values: Float64Builder::with_capacity(BATCH_ROWS),
            qualities: Int32Builder::with_capacity(BATCH_ROWS),
            rows: 0,
        }
    }
    fn push(&mut self, record: &ByteRecord) -> Option<()> {
        self.times.append_value(micros(record.get(0)?)?);
        self.names.append_value(str::from_utf8(record.get(1)?).ok()?);
        self.values.append_value(number(record.get(2)?)?);
        self.qualities.append_value(str::from_utf8(record.get(3)?).ok()?.parse().ok()?);
        self.rows += 1;
        Some(())
    }
    fn take(&mut self) -> Vec<ArrayRef> {
        self.rows = 0;
        vec![
            Arc::new(self.times.finish()),
            Arc::new(self.names.finish()),
            Arc::new(self.values.finish()),
            Arc::new(self.qualities.finish()),
        ]
    }
}

/// A decimal comma becomes a point.
fn number(text: &[u8]) -> Option<f64> {
    let mut buffer = [0; NUMBER_BYTES];
    let copy = buffer.get_mut(..text.len())?;
    copy.copy_from_slice(text);
    if let Some(comma) = copy.iter().position(|byte| *byte == b',') {
        copy[comma] = b'.';
    }
    str::from_utf8(copy).ok()?.parse().ok()
}

/// `YYYY-MM-DD HH:MM:SS.ffffff` as microseconds since 1970, as if it were UTC.
fn micros(text: &[u8]) -> Option<i64> {
    let text: &[u8; 26] = text.try_into().ok()?;
    let digits = |start: usize, end: usize| {
        text[start..end].iter().try_fold(0i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    };
    if [text[4], text[7], text[10], text[13], text[16], text[19]] != *b"-- ::." {
        return None;
    }
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let seconds = digits(11, 13)? * 3600 + digits(14, 16)? * 60 + digits(17, 19)?;
    Some((days(year, month, day) * 86_400 + seconds) * 1_000_000 + digits(20, 26)?)
}

/// Days since 1970-01-01 in the Gregorian calendar. Years begin in March here, so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers() {
        assert_eq!(micros(b"1970-01-01 00:00:00.000000"), Some(0));
        assert_eq!(micros(b"2024-02-29 23:59:59.123000"), Some(1_709_251_199_123_000));
        assert_eq!(micros(b"2024-03-01 00:00:00.000001"), Some(1_709_251_200_000_001));
        assert_eq!(micros(b"2024-03-01T00:00:00.000001"), None);
        assert_eq!(micros(b"2024-03-01 00:00:00"), None);
        assert_eq!(number(b"-20,25"), Some(-20.25));
        assert_eq!(number(b"20"), Some(20.0));
        assert_eq!(number(b"a"), None);
    }
}
