//! The storage of table files, for Iceberg's `FileIO`: `s3://` through our client, everything else a local file.

use crate::address::{Address, is_s3};
use crate::client::S3Objects;
use crate::local_file::LocalFile;
use crate::multipart::Upload;
use crate::requests::Pin;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use iceberg::io::{FileMetadata, FileRead, FileWrite, InputFile, LocalFsStorage, OutputFile, Storage, StorageConfig, StorageFactory};
use iceberg::{Error as IcebergError, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use timelake_engine::ports::ObjectStore;
use timelake_model::{Error, Kind, Reason};
use tokio::sync::OnceCell;

/// Makes the storage of a table's `FileIO`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WarehouseStorageFactory {
    /// A copy that was sent to another process has a client of its own.
    #[serde(skip)]
    objects: S3Objects,
}

impl WarehouseStorageFactory {
    pub fn new(objects: S3Objects) -> WarehouseStorageFactory {
        WarehouseStorageFactory { objects }
    }
}

#[typetag::serde(name = "TimelakeWarehouse")]
impl StorageFactory for WarehouseStorageFactory {
    fn build(&self, _: &StorageConfig) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(WarehouseStorage { local: LocalFsStorage::new(), objects: self.objects.clone() }))
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WarehouseStorage {
    local: LocalFsStorage,
    #[serde(skip)]
    objects: S3Objects,
}

/// Our error inside one of the crate's: found again by whoever tells the user.
pub(crate) fn carried(error: Error) -> IcebergError {
    let kind = if error.kind == Kind::Conflict { ErrorKind::PreconditionFailed } else { ErrorKind::Unexpected };
    IcebergError::new(kind, error.message.clone()).with_source(error)
}

#[async_trait]
#[typetag::serde(name = "TimelakeWarehouse")]
impl Storage for WarehouseStorage {
    async fn exists(&self, path: &str) -> Result<bool> {
        if !is_s3(path) {
            return self.local.exists(path).await;
        }
        match self.objects.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == Kind::NotFound => Ok(false),
            Err(error) => Err(carried(error)),
        }
    }

    async fn metadata(&self, path: &str) -> Result<FileMetadata> {
        if !is_s3(path) {
            return self.local.metadata(path).await;
        }
        Ok(FileMetadata { size: self.objects.stat(path).await.map_err(carried)?.size })
    }

    async fn read(&self, path: &str) -> Result<Bytes> {
        if !is_s3(path) {
            return self.local.read(path).await;
        }
        self.objects.read(path).await.map_err(carried)
    }

    async fn reader(&self, path: &str) -> Result<Box<dyn FileRead>> {
        if !is_s3(path) {
            return self.local.reader(path).await;
        }
        let address = Address::of_object(path).map_err(carried)?;
        Ok(Box::new(PinnedRead { objects: self.objects.clone(), address, pin: OnceCell::new(), blocks: Mutex::default() }))
    }

    async fn write(&self, path: &str, bytes: Bytes) -> Result<()> {
        if !is_s3(path) {
            return self.local.write(path, bytes).await;
        }
        self.objects.put(path, bytes).await.map_err(carried)
    }

    async fn writer(&self, path: &str) -> Result<Box<dyn FileWrite>> {
        if !is_s3(path) {
            return Ok(Box::new(LocalFile::create(path)?));
        }
        let address = Address::of_object(path).map_err(carried)?;
        Ok(Box::new(Upload::new(self.objects.clone(), address)))
    }

    async fn delete(&self, path: &str) -> Result<()> {
        if !is_s3(path) {
            return self.local.delete(path).await;
        }
        self.objects.delete(path).await.map_err(carried)
    }

    async fn delete_prefix(&self, path: &str) -> Result<()> {
        if !is_s3(path) {
            return self.local.delete_prefix(path).await;
        }
        for object in self.objects.list(path).await.map_err(carried)? {
            self.objects.delete(&object.uri).await.map_err(carried)?;
        }
        Ok(())
    }

    async fn delete_stream(&self, mut paths: BoxStream<'static, String>) -> Result<()> {
        while let Some(path) = paths.next().await {
            self.delete(&path).await?;
        }
        Ok(())
    }

    fn new_input(&self, path: &str) -> Result<InputFile> {
        if !is_s3(path) {
            return self.local.new_input(path);
        }
        Ok(InputFile::new(Arc::new(self.clone()), path.to_string()))
    }

    fn new_output(&self, path: &str) -> Result<OutputFile> {
        Ok(OutputFile::new(Arc::new(self.clone()), path.to_string()))
    }
}

/// Pages of Parquet are read one by one, their headers apart: so much is fetched at once.
const BLOCK_BYTES: u64 = 512 << 10;
/// Blocks held: columns are read side by side.
const MOST_BLOCKS: usize = 16;

/// An object as it was at the first read.
struct PinnedRead {
    objects: S3Objects,
    address: Address,
    pin: OnceCell<Pin>,
    /// With their offsets, the oldest first.
    blocks: Mutex<VecDeque<(u64, Bytes)>>,
}

impl PinnedRead {
    fn held(&self, range: &Range<u64>) -> Option<Bytes> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(range.start.checked_sub(*start)?).ok()?;
            let to = from + usize::try_from(range.end.checked_sub(range.start)?).ok()?;
            (to <= bytes.len()).then(|| bytes.slice(from..to))
        })
    }

    async fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let look = || async {
            let found = self.objects.stat(&self.address.uri).await?;
            Ok(Pin { etag: found.fingerprint, size: found.size, shown: found.uri })
        };
        let pin = self.pin.get_or_try_init(look).await.map_err(carried)?.clone();
        if range.end > pin.size {
            let text = format!("bytes {range:?} of {}, which has {} bytes", self.address.uri, pin.size);
            return Err(IcebergError::new(ErrorKind::DataInvalid, text));
        }
        let (shared, address, size) = (self.objects.shared.clone(), self.address.clone(), pin.size);
        let block = range.start..range.end.max(size.min(range.start + BLOCK_BYTES));
        let is_small = range.end.saturating_sub(range.start) < BLOCK_BYTES;
        let asked = if is_small { block } else { range.clone() };
        let start = asked.start;
        let bytes = self.objects.run(async move { shared.read_range(&address, &pin, asked).await }).await.map_err(of_table)?;
        if !is_small {
            return Ok(bytes);
        }
        {
            let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            blocks.push_back((start, bytes));
            if blocks.len() > MOST_BLOCKS {
                blocks.pop_front();
            }
        }
        self.held(&range).ok_or_else(|| carried(Error::internal(format!("bytes {range:?} of {} are not there", self.address.uri))))
    }
}

/// A file of a table does not change: it was cleaned up, or something else writes there.
fn of_table(error: Error) -> IcebergError {
    carried(match error.reason {
        Reason::SourceChanged => Error::conflict(Reason::TableChanged, error.message)
            .hint("files of the table were removed or replaced meanwhile; run the command again: it reads the table anew"),
        _ => error,
    })
}

#[async_trait]
impl FileRead for PinnedRead {
    async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        match self.held(&range) {
            Some(bytes) => Ok(bytes),
            None => self.fetch(range).await,
        }
    }
}
