//! A bound text file → batches in source order.
//!
//! What cannot be a row is told with the batch around it; what stops reading comes after the last good batch.

use super::bind::TextContent;
use super::columns::TextColumn;
use super::dialect::Dialect;
use super::faults::{field_count, record_error, stop_error};
use super::open::OpenText;
use super::records::{Record, Step};
use crate::batch::{BadRecord, SourceBatch};
use crate::bind::{BoundObject, Content};
use crate::cell::Position;
use crate::listing::verify_pin;
use crate::zone::ZoneConverter;
use std::sync::{Arc, Mutex};
use timelake_model::{Error, Result};

/// Rows of a batch, at most: their texts and what they become fit in a core's cache together.
const TEXT_BATCH_ROWS: usize = 1 << 14;
/// Text of a batch, about.
const BATCH_BYTES: usize = 8 << 20;
/// Bad records of a batch, at most: each has an error of its own.
const BATCH_BAD_RECORDS: usize = 4_096;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(crate) struct TextReader {
    bound: BoundObject,
    /// `None`: the file is empty or was read to its end.
    open: Option<OpenText>,
    nulls: Vec<Vec<u8>>,
    /// Per leaf, if it is wanted.
    columns: Vec<Option<TextColumn>>,
    /// Good rows given so far.
    rows: u64,
    /// Bytes of the file that batches so far are from.
    bytes: u64,
    /// Told once the batch before it is given.
    held: Option<Error>,
    zone: Option<Arc<Mutex<ZoneConverter>>>,
}

/// A batch being made.
struct Growing {
    columns: Vec<Option<TextColumn>>,
    lines: Vec<u64>,
    bad_records: Vec<BadRecord>,
    repeated_headers: u64,
}

impl TextReader {
    pub fn open(bound: &BoundObject, wanted: Vec<bool>) -> Result<TextReader> {
        let spec = &bound.inner.spec;
        let content = text(bound)?;
        let open = match &content.dialect {
            None => None,
            Some(dialect) => Some(open_data(bound, dialect)?),
        };
        let column = |(leaf, wanted): (_, bool)| wanted.then(|| TextColumn::new(leaf));
        Ok(TextReader {
            bound: bound.clone(),
            open,
            columns: content.leaves.iter().zip(wanted).map(column).collect(),
            nulls: spec.text().nulls.iter().map(|text| text.as_bytes().to_vec()).collect(),
            rows: 0,
            bytes: 0,
            held: None,
            zone: spec.zone().map(|zone| Arc::new(Mutex::new(ZoneConverter::new(zone)))),
        })
    }

    /// At most `most_rows` rows, bad ones among them.
    pub fn next_batch(&mut self, most_rows: u64) -> Result<Option<SourceBatch>> {
        if let Some(error) = self.held.take() {
            self.open = None;
            return Err(error);
        }
        let bound = self.bound.clone();
        let (content, object) = (text(&bound)?, bound.object());
        let (Some(open), Some(dialect)) = (&mut self.open, &content.dialect) else { return Ok(None) };
        let mut growing = Growing {
            columns: std::mem::take(&mut self.columns),
            lines: Vec::with_capacity(TEXT_BATCH_ROWS),
            bad_records: Vec::new(),
            repeated_headers: 0,
        };
        let mut ended = false;
        let mut scratch = Vec::new();
        while growing.has_room() && growing.rows() < most_rows {
            match open.records.next() {
                Ok(Step::Record(record)) => growing.record(open, record, &bound, content, dialect, &self.nulls, &mut scratch),
                Ok(Step::Bad { line, fault }) => growing.bad(line, record_error(object, &dialect.names, line, &fault)),
                Ok(Step::End) => {
                    ended = true;
                    break;
                }
                Err(stop) => {
                    self.held = Some(stop_error(object, open.compression, &dialect.names, stop));
                    break;
                }
            }
        }
        let read = open.bytes_read();
        if ended {
            self.open = None;
            verify_pin(object)?;
        }
        if growing.is_empty() {
            return match self.held.take() {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        let source_bytes = read.saturating_sub(self.bytes);
        self.bytes = read.max(self.bytes);
        self.finish(growing, source_bytes).map(Some)
    }

    fn finish(&mut self, growing: Growing, source_bytes: u64) -> Result<SourceBatch> {
        let (mut arrays, mut nulled) = (Vec::new(), Vec::new());
        let mut columns = growing.columns;
        for column in &mut columns {
            let (array, rows) = column.as_mut().map(TextColumn::take).transpose()?.unzip();
            arrays.push(array);
            nulled.push(rows.unwrap_or_default());
        }
        self.columns = columns;
        let rows = growing.lines.len();
        let first_row = self.rows;
        self.rows += rows as u64;
        Ok(SourceBatch {
            row_group: 0,
            first_row,
            rows,
            arrays,
            nulled,
            lines: Some(growing.lines),
            bad_records: growing.bad_records,
            repeated_headers: growing.repeated_headers,
            source_bytes,
            bound: self.bound.clone(),
            zone: self.zone.clone(),
        })
    }
}

fn text(bound: &BoundObject) -> Result<&TextContent> {
    match &bound.inner.content {
        Content::Text(content) => Ok(content),
        Content::Parquet(_) => Err(Error::internal(format!("{} is not a text file", bound.object().shown))),
    }
}

/// Opens the file where its data begin.
fn open_data(bound: &BoundObject, dialect: &Dialect) -> Result<OpenText> {
    let object = bound.object();
    let mut open = OpenText::open(object, &bound.inner.sources, bound.inner.spec.text().encoding)?;
    open.records.set_delimiter(dialect.delimiter);
    while open.records.line() < dialect.first_line {
        if !open.records.skip_line().map_err(|stop| stop_error(object, open.compression, &dialect.names, stop))? {
            break;
        }
    }
    Ok(open)
}

impl Growing {
    fn has_room(&self) -> bool {
        let bytes = || self.columns.iter().flatten().map(TextColumn::bytes).sum::<usize>();
        self.lines.len() < TEXT_BATCH_ROWS
            && self.bad_records.len() < BATCH_BAD_RECORDS
            // Rarely looked at: a record has a limit of its own.
            && (!self.lines.len().is_multiple_of(8) || bytes() < BATCH_BYTES)
    }

    fn rows(&self) -> u64 {
        (self.lines.len() + self.bad_records.len()) as u64
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.bad_records.is_empty() && self.repeated_headers == 0
    }

    fn bad(&mut self, line: u64, error: Error) {
        self.bad_records.push(BadRecord { position: Position::Line(line), reason: error.reason, error });
    }

    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn record(
        &mut self,
        open: &OpenText,
        record: Record,
        bound: &BoundObject,
        content: &TextContent,
        dialect: &Dialect,
        nulls: &[Vec<u8>],
        scratch: &mut Vec<u8>,
    ) {
        let (records, fields) = (&open.records, open.records.fields());
        let expected = dialect.names.len();
        if let Some(header) = &dialect.header {
            let bytes = records.bytes(record);
            // Files glued together bring their headers along, with their byte order marks.
            if bytes == header.as_slice() || bytes.strip_prefix(BYTE_ORDER_MARK) == Some(header.as_slice()) {
                self.repeated_headers += 1;
                return;
            }
        }
        if fields.len() != expected {
            if records.is_white(record) {
                return;
            }
            let last_is_empty = fields.last().is_some_and(|field| records.raw(*field).is_empty());
            self.bad(record.line, field_count(bound.object(), record.line, expected, fields.len(), last_is_empty));
            return;
        }
        self.lines.push(record.line);
        for (leaf, column) in content.leaves.iter().zip(&mut self.columns) {
            let (Some(column), Some(field)) = (column, fields.get(leaf.field)) else { continue };
            let text = records.text(*field, scratch);
            if text.is_empty() && (!field.quoted || leaf.quoted_empty_is_null) {
                column.push_null();
            } else if leaf.has_nulls && means_null(text, nulls) {
                column.push_nulled();
            } else {
                column.push(text);
            }
        }
    }
}

/// Equal to a text of `--null`, as it is or without the white space around it.
fn means_null(text: &[u8], nulls: &[Vec<u8>]) -> bool {
    if nulls.iter().any(|null| null == text) {
        return true;
    }
    let may_be_white = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_whitespace() || !byte.is_ascii());
    if !may_be_white(text.first()) && !may_be_white(text.last()) {
        return false;
    }
    std::str::from_utf8(text).is_ok_and(|text| nulls.iter().any(|null| null == text.trim().as_bytes()))
}
