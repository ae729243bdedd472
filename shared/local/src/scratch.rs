//! A lake in a temporary folder that stands for another one: databases like its own, and its table files to read. What
//! is written goes to the temporary folder; of data files only the size is kept. So a job can run its whole road, and
//! the lake that is stood for does not change.
//!
//! Must never happen: a byte written to, a lock taken in, or a file removed from the lake that is stood for, or its store.

use crate::catalog::local_path;
use crate::objects::write_error;
use crate::sqlite::{CATALOG, LEDGER, Role, check_header, is_absent_or_empty, open_unchanged};
use crate::stores::ObjectsByScheme;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use iceberg::io::{
    FileMetadata, FileRead, FileWrite, InputFile, LocalFsStorage, LocalFsStorageFactory, OutputFile, Storage, StorageConfig, StorageFactory,
};
use iceberg::{Error as IcebergError, ErrorKind, Result as IcebergResult};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;
use timelake_engine::ports::{ObjectMeta, ObjectStore};
use timelake_model::{Error, Result};

const FOLDER_PREFIX: &str = "timelake-dry-run-";
/// Data files: written, counted, not kept.
const DATA_FILE: &str = ".parquet";

/// Makes the folder; it is removed when this is dropped, however the run ended.
pub(crate) fn make_folder(work_dir: Option<&Path>) -> Result<TempDir> {
    let parent = work_dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
    tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(&parent).map_err(|e| {
        let error = write_error(&parent, e);
        let hint = format!("{}; or name a folder for temporary files with --work-dir", error.hint.as_deref().unwrap_or("check the folder"));
        error.hint(hint)
    })
}

/// Copies both databases of a lake as they stand.
pub(crate) fn copy_databases(lake: &Path, scratch: &Path) -> Result<()> {
    for (role, name) in [(&CATALOG, "catalog.db"), (&LEDGER, "ledger.db")] {
        copy_database(role, &lake.join(name), &scratch.join(name))?;
    }
    Ok(())
}

fn copy_database(role: &Role, from: &Path, to: &Path) -> Result<()> {
    check_header(role, from)?;
    if is_absent_or_empty(from) {
        return Ok(()); // whoever opens the copy says what that means
    }
    let copied = open_unchanged(from, |connection| connection.execute("VACUUM INTO ?1", [to.to_string_lossy()]).map(|_| ()));
    copied.map_err(|e| role.error(from, e))
}

/// Where table files are that a run wrote.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    folder: PathBuf,
    next: Arc<AtomicU64>,
    files: Arc<Mutex<HashMap<String, Kept>>>,
}

#[derive(Debug, Clone)]
enum Kept {
    File(String),
    Size(u64),
}

impl Written {
    pub fn new(folder: &Path) -> Written {
        Written { folder: folder.to_path_buf(), ..Written::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files of the temporary folder itself: landed runs.
    fn is_inside(&self, path: &str) -> bool {
        local_path(path).starts_with(&self.folder)
    }

    fn find(&self, path: &str) -> Option<Kept> {
        self.lock().get(&key(path)).cloned()
    }

    fn new_file(&self) -> String {
        self.folder.join(format!("file-{}", self.next.fetch_add(1, Ordering::Relaxed))).display().to_string()
    }
}

/// `file:///abs`, `file:/abs` and `/abs` are the same file.
fn key(path: &str) -> String {
    match timelake_source::remote::scheme(path) {
        Some(scheme) if scheme != "file" => path.to_string(),
        _ => local_path(path).display().to_string(),
    }
}

/// Makes the storage of table files over the one of the lake that is stood for. A copy that was sent to another process
/// would be the one of local files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ScratchStorageFactory {
    #[serde(skip, default = "local_factory")]
    real: Arc<dyn StorageFactory>,
    #[serde(skip)]
    written: Written,
}

fn local_factory() -> Arc<dyn StorageFactory> {
    Arc::new(LocalFsStorageFactory)
}
fn local_storage() -> Arc<dyn Storage> {
    Arc::new(LocalFsStorage::new())
}

impl ScratchStorageFactory {
    pub fn new(real: Arc<dyn StorageFactory>, written: Written) -> ScratchStorageFactory {
        ScratchStorageFactory { real, written }
    }
}

#[typetag::serde(name = "TimelakeScratch")]
impl StorageFactory for ScratchStorageFactory {
    fn build(&self, config: &StorageConfig) -> IcebergResult<Arc<dyn Storage>> {
        Ok(Arc::new(ScratchStorage { real: self.real.build(config)?, written: self.written.clone() }))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ScratchStorage {
    #[serde(skip, default = "local_storage")]
    real: Arc<dyn Storage>,
    #[serde(skip)]
    written: Written,
}

impl ScratchStorage {
    /// Where a file is to be read; `None`: it was not kept.
    fn place(&self, path: &str) -> Option<String> {
        match self.written.find(path) {
            None => Some(path.to_string()),
            Some(Kept::File(file)) => Some(file),
            Some(Kept::Size(_)) => None,
        }
    }

    fn kept(&self, path: &str) -> IcebergResult<String> {
        self.place(path).ok_or_else(|| {
            let error = Error::internal(format!("a dry run keeps no data files, and {path} is to be read"));
            IcebergError::new(ErrorKind::Unexpected, error.message.clone()).with_source(error)
        })
    }
}

#[async_trait]
#[typetag::serde(name = "TimelakeScratch")]
impl Storage for ScratchStorage {
    async fn exists(&self, path: &str) -> IcebergResult<bool> {
        match self.place(path) {
            Some(place) => self.real.exists(&place).await,
            None => Ok(true),
        }
    }

    async fn metadata(&self, path: &str) -> IcebergResult<FileMetadata> {
        if let Some(Kept::Size(size)) = self.written.find(path) {
            return Ok(FileMetadata { size });
        }
        self.real.metadata(&self.kept(path)?).await
    }

    async fn read(&self, path: &str) -> IcebergResult<Bytes> {
        self.real.read(&self.kept(path)?).await
    }

    async fn reader(&self, path: &str) -> IcebergResult<Box<dyn FileRead>> {
        self.real.reader(&self.kept(path)?).await
    }

    async fn write(&self, path: &str, bytes: Bytes) -> IcebergResult<()> {
        let mut writer = self.writer(path).await?;
        writer.write(bytes).await?;
        writer.close().await
    }

    async fn writer(&self, path: &str) -> IcebergResult<Box<dyn FileWrite>> {
        if self.written.is_inside(path) {
            return self.real.writer(path).await;
        }
        if path.ends_with(DATA_FILE) {
            return Ok(Box::new(Counting { path: key(path), bytes: 0, written: self.written.clone() }));
        }
        let file = self.written.new_file();
        let writer = self.real.writer(&file).await?;
        self.written.lock().insert(key(path), Kept::File(file));
        Ok(writer)
    }

    async fn delete(&self, path: &str) -> IcebergResult<()> {
        if self.written.is_inside(path) {
            return self.real.delete(path).await;
        }
        self.written.lock().remove(&key(path));
        Ok(())
    }

    async fn delete_prefix(&self, path: &str) -> IcebergResult<()> {
        if self.written.is_inside(path) {
            return self.real.delete_prefix(path).await;
        }
        self.written.lock().retain(|file, _| !file.starts_with(&key(path)));
        Ok(())
    }

    async fn delete_stream(&self, mut paths: BoxStream<'static, String>) -> IcebergResult<()> {
        while let Some(path) = paths.next().await {
            self.delete(&path).await?;
        }
        Ok(())
    }

    fn new_input(&self, path: &str) -> IcebergResult<InputFile> {
        Ok(InputFile::new(Arc::new(self.clone()), path.to_string()))
    }

    fn new_output(&self, path: &str) -> IcebergResult<OutputFile> {
        Ok(OutputFile::new(Arc::new(self.clone()), path.to_string()))
    }
}

/// A data file that is only measured.
struct Counting {
    path: String,
    bytes: u64,
    written: Written,
}

#[async_trait]
impl FileWrite for Counting {
    async fn write(&mut self, bytes: Bytes) -> IcebergResult<()> {
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    async fn close(&mut self) -> IcebergResult<()> {
        self.written.lock().insert(self.path.clone(), Kept::Size(self.bytes));
        Ok(())
    }
}

/// Reads everywhere, writes only in the temporary folder.
pub(crate) struct ScratchObjects {
    pub real: ObjectsByScheme,
    pub written: Written,
}

impl ScratchObjects {
    fn inside(&self, uri: &str) -> Result<&ObjectsByScheme> {
        if self.written.is_inside(uri) {
            return Ok(&self.real);
        }
        Err(Error::internal(format!("a dry run was about to change {uri}")))
    }
}

#[async_trait]
impl ObjectStore for ScratchObjects {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        self.real.stat(uri).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.real.list(prefix).await
    }
    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        self.real.read_range(pinned, range).await
    }
    async fn read(&self, uri: &str) -> Result<Bytes> {
        self.real.read(uri).await
    }
    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        self.inside(uri)?.put_if_absent(uri, bytes).await
    }
    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        self.inside(uri)?.put(uri, bytes).await
    }
    /// Nothing here is to outlive the run.
    async fn make_durable(&self, _: &[String]) -> Result<()> {
        Ok(())
    }
    async fn delete(&self, uri: &str) -> Result<()> {
        self.inside(uri)?.delete(uri).await
    }
}
