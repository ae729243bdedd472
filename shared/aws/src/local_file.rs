//! A local file as a table's storage writes it: not synced when it ends. Whoever wrote files makes them durable together
//! (`ObjectStore::make_durable`) before anything refers to them; a sync of each by itself would only be a wait more.

use async_trait::async_trait;
use bytes::Bytes;
use iceberg::io::FileWrite;
use iceberg::{Error, ErrorKind, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct LocalFile {
    /// `None` once it is closed.
    file: Option<File>,
}

impl LocalFile {
    /// Its folders are made. `path` may be a `file:` URI.
    pub fn create(path: &str) -> Result<LocalFile> {
        let path = path.strip_prefix("file://").or_else(|| path.strip_prefix("file:")).unwrap_or(path);
        let failed = |what: &str, e: std::io::Error| Error::new(ErrorKind::Unexpected, format!("{what} {path}: {e}"));
        // Most folders are there: one call instead of one for each.
        let file = match File::create(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
                fs::create_dir_all(folder).map_err(|e| failed("making the folder of", e))?;
                File::create(path)
            }
            created => created,
        };
        Ok(LocalFile { file: Some(file.map_err(|e| failed("creating", e))?) })
    }
}

#[async_trait]
impl FileWrite for LocalFile {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let file = self.file.as_mut().ok_or_else(|| Error::new(ErrorKind::DataInvalid, "a closed file is written to"))?;
        file.write_all(&bytes).map_err(|e| Error::new(ErrorKind::Unexpected, format!("writing: {e}")))
    }

    async fn close(&mut self) -> Result<()> {
        self.file.take().map(|_| ()).ok_or_else(|| Error::new(ErrorKind::DataInvalid, "a file is closed twice"))
    }
}
