//! A file of the table, written in parts through the table's FileIO from synchronous code.

use bytes::Bytes;
use iceberg::io::{FileIO, FileWrite};
use std::io;
use timelake_model::{Error, Reason, Result};
use tokio::runtime::Handle;

/// Bytes handed over at a time.
const PART_BYTES: usize = 8 << 20;

pub struct FileSink {
    runtime: Handle,
    writer: Box<dyn FileWrite>,
    buffer: Vec<u8>,
    bytes: u64,
    path: String,
}

impl FileSink {
    pub fn open(file_io: &FileIO, path: &str, runtime: &Handle) -> Result<FileSink> {
        let output = file_io.new_output(path).map_err(|e| storage_error(path, &e))?;
        let writer = runtime.block_on(output.writer()).map_err(|e| storage_error(path, &e))?;
        Ok(FileSink { runtime: runtime.clone(), writer, buffer: Vec::new(), bytes: 0, path: path.to_string() })
    }

    fn hand_over(&mut self) -> iceberg::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let part = Bytes::from(std::mem::take(&mut self.buffer));
        self.runtime.block_on(self.writer.write(part))
    }

    /// Ends the file; returns its size.
    pub fn close(&mut self) -> Result<u64> {
        self.hand_over().map_err(|e| storage_error(&self.path, &e))?;
        self.runtime.block_on(self.writer.close()).map_err(|e| storage_error(&self.path, &e))?;
        Ok(self.bytes)
    }
}

impl io::Write for FileSink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        self.bytes += data.len() as u64;
        if self.buffer.len() >= PART_BYTES {
            self.hand_over().map_err(io::Error::other)?;
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Storage that does not take a file: run again; a full disk and missing rights are said by name.
pub fn storage_error(path: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    if let Some(ours) = timelake_table::errors::carried(error) {
        return ours.clone();
    }
    let detail = timelake_table::errors::full_text(error);
    let path = path.trim_start_matches("file://");
    let message = format!("{path}: {detail}");
    timelake_table::errors::system_fault(&detail, &message)
        .unwrap_or_else(|| {
            Error::unavailable(Reason::StorageUnavailable, message)
                .hint("check the folder's permissions and the disk, then run the same command")
        })
        .at(|p| p.file = Some(path.to_string()))
}
