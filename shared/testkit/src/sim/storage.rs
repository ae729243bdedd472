//! Table files and source objects in memory, as an actor reads and writes them.

use super::desk::Desk;
use super::world::{Object, State};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use iceberg::io::{FileMetadata, FileRead, FileWrite, InputFile, OutputFile, Storage, StorageConfig, StorageFactory};
use iceberg::{Error as IcebergError, ErrorKind, Result as IcebergResult};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use timelake_engine::ports::ObjectMeta;
use timelake_model::{Error, Reason, Result, SourceObject};
use timelake_source::remote::{Pending, RemoteObject, RemoteStore};

pub fn gone(uri: &str) -> Error {
    Error::not_found(Reason::PathNotFound, format!("there is no {uri}")).at(|p| p.file = Some(uri.into()))
}

/// The last part of a path: the rest is the same for all.
pub fn short(uri: &str) -> String {
    uri.rsplit('/').next().unwrap_or_default().to_string()
}

pub fn meta(uri: &str, object: &Object) -> ObjectMeta {
    let fingerprint = format!("{}-{}", object.modified.0, object.bytes.len());
    ObjectMeta { uri: uri.into(), size: object.bytes.len() as u64, fingerprint, modified: object.modified }
}

pub fn put(state: &mut State, uri: &str, bytes: Bytes) {
    let modified = state.now();
    state.objects.insert(uri.into(), Object { bytes, modified });
}

pub fn get(state: &State, uri: &str) -> Result<Bytes> {
    state.objects.get(uri).map(|o| o.bytes.clone()).ok_or_else(|| gone(uri))
}

/// Ours inside one of the crate's, as storages of ours tell it.
fn carried(error: Error) -> IcebergError {
    IcebergError::new(ErrorKind::Unexpected, error.message.clone()).with_source(error)
}

/// An actor's storage of table files. One that was sent elsewhere has no world.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Files {
    #[serde(skip)]
    desk: Option<Desk>,
}

impl Files {
    pub fn new(desk: Desk) -> Files {
        Files { desk: Some(desk) }
    }
    fn desk(&self) -> IcebergResult<&Desk> {
        self.desk.as_ref().ok_or_else(|| IcebergError::new(ErrorKind::Unexpected, "a storage without a world"))
    }
    fn read_bytes(&self, path: &str) -> IcebergResult<Bytes> {
        let shown = |bytes: &Bytes| format!("{} bytes", bytes.len());
        self.desk()?.call("read_file", || short(path), shown, |state| get(state, path)).map_err(carried)
    }
}

#[typetag::serde(name = "TimelakeSimulated")]
impl StorageFactory for Files {
    fn build(&self, _: &StorageConfig) -> IcebergResult<Arc<dyn Storage>> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
#[typetag::serde(name = "TimelakeSimulated")]
impl Storage for Files {
    async fn exists(&self, path: &str) -> IcebergResult<bool> {
        Ok(self.desk()?.world.lock().objects.contains_key(path))
    }
    async fn metadata(&self, path: &str) -> IcebergResult<FileMetadata> {
        let size = get(&self.desk()?.world.lock(), path).map_err(carried)?.len() as u64;
        Ok(FileMetadata { size })
    }
    async fn read(&self, path: &str) -> IcebergResult<Bytes> {
        self.read_bytes(path)
    }
    async fn reader(&self, path: &str) -> IcebergResult<Box<dyn FileRead>> {
        Ok(Box::new(Reading { files: self.clone(), path: path.into() }))
    }
    async fn write(&self, path: &str, bytes: Bytes) -> IcebergResult<()> {
        let size = bytes.len();
        let told = || format!("{}, {size} bytes", short(path));
        let effect = |state: &mut State| {
            put(state, path, bytes);
            Ok(())
        };
        self.desk()?.call("write_file", told, |()| "done".into(), effect).map_err(carried)
    }
    async fn writer(&self, path: &str) -> IcebergResult<Box<dyn FileWrite>> {
        Ok(Box::new(Writing { files: self.clone(), path: path.into(), bytes: vec![] }))
    }
    async fn delete(&self, path: &str) -> IcebergResult<()> {
        let effect = |state: &mut State| {
            state.objects.remove(path);
            super::invariants::removed(state, path);
            Ok(())
        };
        self.desk()?.call("delete_file", || short(path), |()| "done".into(), effect).map_err(carried)
    }
    async fn delete_prefix(&self, path: &str) -> IcebergResult<()> {
        Err(IcebergError::new(ErrorKind::FeatureUnsupported, format!("nobody deletes all below {path}")))
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

struct Reading {
    files: Files,
    path: String,
}

#[async_trait]
impl FileRead for Reading {
    async fn read(&self, range: Range<u64>) -> IcebergResult<Bytes> {
        let bytes = self.files.read_bytes(&self.path)?;
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }
}

/// A file is there when it is closed, and not before.
struct Writing {
    files: Files,
    path: String,
    bytes: Vec<u8>,
}

#[async_trait]
impl FileWrite for Writing {
    async fn write(&mut self, bytes: Bytes) -> IcebergResult<()> {
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }
    async fn close(&mut self) -> IcebergResult<()> {
        self.files.write(&self.path, std::mem::take(&mut self.bytes).into()).await
    }
}

/// Source objects; they never change.
#[derive(Debug)]
pub struct SourceStore(pub Desk);

impl SourceStore {
    fn found(&self, matches: impl Fn(&str) -> bool) -> Vec<RemoteObject> {
        let state = self.0.world.lock();
        let of = |(uri, object): (&String, &Object)| {
            let ObjectMeta { uri, size, fingerprint, .. } = meta(uri, object);
            RemoteObject { uri, size, fingerprint }
        };
        state.objects.iter().filter(|(uri, _)| matches(uri)).map(of).collect()
    }
}

impl RemoteStore for SourceStore {
    fn find(&self, uri: &str) -> Result<Option<RemoteObject>> {
        Ok(self.found(|found| found == uri).pop())
    }
    fn list(&self, prefix: &str, limit: usize) -> Result<Vec<RemoteObject>> {
        Ok(self.found(|found| found.starts_with(prefix)).into_iter().take(limit).collect())
    }
    fn fetch(&self, object: &SourceObject, range: Range<u64>) -> Pending {
        let (desk, uri) = (self.0.clone(), object.uri.clone());
        Box::new(move || {
            let shown = |bytes: &Bytes| format!("{} bytes", bytes.len());
            let effect = |state: &mut State| Ok(get(state, &uri)?.slice(range.start as usize..range.end as usize));
            desk.call("read_source", || short(&uri), shown, effect)
        })
    }
}
