//! A pinned text file, opened.

use super::bytes::{Compression, decompressed};
use super::decode::TextStream;
use super::faults::read_error;
use super::records::Records;
use crate::file::open_pinned;
use crate::remote::{RemoteStream, Sources};
use encoding_rs::Encoding;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use timelake_model::{Result, SourceObject};

/// The delimiter until one is found.
const FIRST_DELIMITER: u8 = b',';

pub(crate) struct OpenText {
    pub records: Records,
    pub compression: Compression,
    /// Bytes of the file read so far.
    read: Arc<AtomicU64>,
}

struct Counted {
    file: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl OpenText {
    /// Opens the pinned object at its start.
    pub fn open(object: &SourceObject, sources: &Sources, encoding: Option<&'static Encoding>) -> Result<OpenText> {
        let file: Box<dyn Read + Send> = match sources.remote(&object.uri)? {
            Some(store) => Box::new(RemoteStream::new(store.clone(), object.clone())),
            // Bytes appended while it is read are of another version.
            None => Box::new(open_pinned(object)?.take(object.size)),
        };
        let read = Arc::new(AtomicU64::new(0));
        let raw = Box::new(Counted { file, read: read.clone() });
        let (content, compression) = decompressed(raw).map_err(|error| read_error(object, Compression::None, 1, &error))?;
        let stream = TextStream::open(content, encoding, &object.shown)?;
        Ok(OpenText { records: Records::new(stream, FIRST_DELIMITER), compression, read })
    }

    /// Bytes of the file that the records so far are from, about: of what is read ahead, its share.
    pub fn bytes_read(&self) -> u64 {
        let (passed, decoded) = self.records.passed();
        let share = u128::from(self.read.load(Ordering::Relaxed)) * u128::from(passed) / u128::from(decoded.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
