//! A pinned text file, opened.

use super::bytes::{Compression, decompressed};
use super::decode::TextStream;
use super::faults::read_error;
use super::records::Records;
use crate::file::open_pinned;
use encoding_rs::Encoding;
use std::fs::File;
use std::io::{self, Read, Take};
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
    file: Take<File>,
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
    /// Opens the pinned file at its start.
    pub fn open(object: &SourceObject, encoding: Option<&'static Encoding>) -> Result<OpenText> {
        let file = open_pinned(object)?;
        // Bytes appended while it is read are of another version.
        let read = Arc::new(AtomicU64::new(0));
        let raw = Box::new(Counted { file: file.take(object.size), read: read.clone() });
        let (content, compression) = decompressed(raw).map_err(|error| read_error(object, Compression::None, 1, &error))?;
        let stream = TextStream::open(content, encoding, &object.shown)?;
        Ok(OpenText { records: Records::new(stream, FIRST_DELIMITER), compression, read })
    }

    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}
