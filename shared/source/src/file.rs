//! A source file as the Parquet decoder reads it, and what its errors mean for the user.

use crate::listing::verify_pin;
use crate::remote::{RemoteFile, Sources};
use bytes::{Buf, Bytes};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::{Error, Reason, Result, SourceObject};

const MAGIC_LENGTH: u64 = 4;
/// Magic, footer length, magic.
const SMALLEST_FILE: u64 = 12;
const PAGE_HEADER_BUFFER: usize = 4_096;

/// An open object of known size. Every read says its own offset, so columns can be read side by side.
#[derive(Debug)]
pub(crate) struct SourceFile {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    object: SourceObject,
    bytes: Held,
    /// The first read that failed: the decoder keeps only the text of an error.
    failed: Mutex<Option<Error>>,
}

#[derive(Debug)]
enum Held {
    Local(File),
    Remote(RemoteFile),
}

impl SourceFile {
    /// Opens the pinned object.
    pub fn open(object: &SourceObject, sources: &Sources) -> Result<SourceFile> {
        let bytes = match sources.remote(&object.uri)? {
            Some(store) => Held::Remote(RemoteFile::new(store.clone())),
            None => Held::Local(open_pinned(object)?),
        };
        Ok(SourceFile { opened: Arc::new(Opened { object: object.clone(), bytes, failed: Mutex::default() }) })
    }

    pub fn object(&self) -> &SourceObject {
        &self.opened.object
    }

    /// Says which ranges are read next.
    pub fn prepare(&self, ranges: Vec<Range<u64>>) -> Result<()> {
        match &self.opened.bytes {
            Held::Local(_) => Ok(()),
            Held::Remote(remote) => remote.prepare(self.object(), ranges),
        }
    }

    /// The first bytes, at most `most`.
    pub fn head(&self, most: u64) -> Result<Bytes> {
        let length = most.min(self.object().size) as usize;
        self.get_bytes(0, length).map_err(|error| decode_error(self, None, None, &error))
    }
}

impl Opened {
    fn failed(&self, error: Error) -> io::Error {
        let told = io::Error::other(error.message.clone());
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        told
    }

    /// A disk that fails is no damaged file.
    fn disk_failed(&self, error: io::Error) -> io::Error {
        if error.raw_os_error().is_none() {
            return error;
        }
        let object = &self.object;
        self.failed(
            Error::unavailable(Reason::SourceUnavailable, format!("{} cannot be read: {error}", object.shown))
                .hint("check the disk or mount, then run the command again")
                .at(|place| place.file = Some(object.shown.clone())),
        )
    }

    /// Reads some bytes; none at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.bytes {
            Held::Local(file) => file.read_at(buffer, offset).map_err(|error| self.disk_failed(error)),
            Held::Remote(remote) => {
                let end = self.object.size.min(offset.saturating_add(buffer.len() as u64));
                if offset >= end {
                    return Ok(0);
                }
                let mut bytes = remote.read(&self.object, offset..end).map_err(|error| self.failed(error))?;
                let count = bytes.len();
                bytes.copy_to_slice(&mut buffer[..count]);
                Ok(count)
            }
        }
    }
}

/// Opens a file, which must still be the pinned one.
pub(crate) fn open_pinned(object: &SourceObject) -> Result<File> {
    verify_pin(object)?;
    File::open(&object.uri).map_err(|error| {
        if is_out_of_files(&error) {
            return Error::unavailable(Reason::SourceUnavailable, format!("{} cannot be opened: {error}", object.shown))
                .hint("raise the limit on open files (ulimit -n), or take fewer --threads, then run the same command again")
                .at(|place| place.file = Some(object.shown.clone()));
        }
        Error::invalid(Reason::PathNotReadable, format!("{} cannot be opened: {error}", object.shown))
            .hint("check its permissions")
            .at(|place| place.file = Some(object.shown.clone()))
    })
}

/// Too many open files, in this process or in all: nothing is wrong with the file.
fn is_out_of_files(error: &io::Error) -> bool {
    const IN_PROCESS: i32 = 24;
    const IN_SYSTEM: i32 = 23;
    matches!(error.raw_os_error(), Some(IN_PROCESS | IN_SYSTEM))
}

impl Length for SourceFile {
    fn len(&self) -> u64 {
        self.object().size
    }
}

impl ChunkReader for SourceFile {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::with_capacity(PAGE_HEADER_BUFFER, At { opened: self.opened.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        // A damaged footer may ask for more than there is; do not allocate for it.
        let end = start.checked_add(length as u64).filter(|end| *end <= self.len());
        let Some(end) = end else {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} lie beyond the end of the file")));
        };
        let opened = &self.opened;
        match &opened.bytes {
            Held::Local(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start).map_err(|error| opened.disk_failed(error))?;
                Ok(bytes.into())
            }
            Held::Remote(_) if length == 0 => Ok(Bytes::new()),
            Held::Remote(remote) => Ok(remote.read(&opened.object, start..end).map_err(|error| opened.failed(error))?),
        }
    }
}

/// Reads from an offset on.
pub(crate) struct At {
    opened: Arc<Opened>,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.opened.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Runs decoder code. A panic in it, which only a damaged file provokes, becomes an error like any other.
pub(crate) fn decoding<T>(run: impl FnOnce() -> ParquetResult<T>) -> ParquetResult<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(ParquetError::General(format!("the decoder gave up: {text}")))
    })
}

/// Reads and checks the footer.
pub(crate) fn read_footer(file: &SourceFile) -> Result<ParquetMetaData> {
    let object = file.object();
    let in_file = |error: Error, hint: &str| error.hint(hint).at(|place| place.file = Some(object.shown.clone()));
    let incomplete = |why: &str| {
        in_file(
            Error::corrupt(Reason::NotACompleteParquetFile, format!("{} is not a complete Parquet file: {why}", object.shown)),
            "copy or export the file again, or leave it out of --from",
        )
    };
    if object.size < SMALLEST_FILE {
        return Err(incomplete(if object.size == 0 { "it is empty (0 bytes)" } else { "it is too short" }));
    }
    let read = |start| file.get_bytes(start, MAGIC_LENGTH as usize).map_err(|error| decode_error(file, None, None, &error));
    let (first, last) = (read(0)?, read(object.size - MAGIC_LENGTH)?);
    match (first.as_ref(), last.as_ref()) {
        (b"PAR1", b"PAR1") => {}
        (_, b"PARE") | (b"PARE", _) => {
            return Err(in_file(
                Error::invalid(Reason::UnsupportedFormat, format!("{} has an encrypted footer", object.shown)),
                "write the file without encryption",
            ));
        }
        (b"PAR1", _) => return Err(incomplete("its end is missing")),
        _ => return Err(incomplete("it does not start as one")),
    }
    // Footer length, little-endian, then the magic.
    let length = file.get_bytes(object.size - 8, 4).map_err(|error| decode_error(file, None, None, &error))?;
    let length = length.iter().rev().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
    if length + SMALLEST_FILE > object.size {
        return Err(incomplete("its footer is longer than the file"));
    }
    let footer = decoding(|| ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip).parse_and_finish(file));
    let metadata = footer.map_err(|error| decode_error(file, None, None, &error))?;
    let rows: Option<i64> = metadata
        .row_groups()
        .iter()
        .try_fold(0_i64, |sum, group| if group.num_rows() < 0 { None } else { sum.checked_add(group.num_rows()) });
    match rows {
        Some(rows) if rows == metadata.file_metadata().num_rows() => Ok(metadata),
        _ => Err(corrupt(object, None, None, "the rows of its row groups and of the file do not agree")),
    }
}

pub(crate) fn corrupt(object: &SourceObject, row_group: Option<u32>, column: Option<&str>, why: &str) -> Error {
    fault_of_bytes(object, Reason::CorruptParquet, row_group, column, why)
}

fn fault_of_bytes(object: &SourceObject, reason: Reason, row_group: Option<u32>, column: Option<&str>, why: &str) -> Error {
    let mut place = object.shown.clone();
    if let Some(group) = row_group {
        place += &format!(", row group {group}");
    }
    if let Some(column) = column {
        place += &format!(", column {column}");
    }
    let hint = match reason {
        Reason::InvalidUtf8 => "write the column as UTF-8, or map it to a binary column",
        _ => "the file is damaged: copy or export it again, or leave it out of --from",
    };
    Error::corrupt(reason, format!("{place}: {why}")).hint(hint).at(|place| {
        place.file = Some(object.shown.clone());
        place.column = column.map(str::to_string);
    })
}

/// What an error of the decoder means: a changed file, a failed read, a checksum, damaged text, damage.
pub(crate) fn decode_error(file: &SourceFile, row_group: Option<u32>, column: Option<&str>, error: &ParquetError) -> Error {
    let object = file.object();
    if let Err(changed) = verify_pin(object) {
        return changed;
    }
    if let Some(failed) = file.opened.failed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
        return failed;
    }
    let text = error.to_string();
    let reason = if text.contains("CRC checksum") {
        Reason::PageChecksumMismatch
    } else if text.to_lowercase().contains("utf-8") || text.to_lowercase().contains("utf8") {
        Reason::InvalidUtf8
    } else {
        Reason::CorruptParquet
    };
    let why = match reason {
        Reason::PageChecksumMismatch => "the checksum of a page does not fit its bytes".to_string(),
        Reason::InvalidUtf8 => "a text is not UTF-8".to_string(),
        _ => text,
    };
    fault_of_bytes(object, reason, row_group, column, &why)
}
