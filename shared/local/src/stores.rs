//! One store of objects over two: local files, and a remote store by the scheme of its URIs.

use crate::LocalObjects;
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use timelake_engine::ports::{ObjectMeta, ObjectStore};
use timelake_model::Result;
use timelake_source::remote::scheme;

pub(crate) struct ObjectsByScheme {
    local: LocalObjects,
    scheme: &'static str,
    remote: Arc<dyn ObjectStore>,
}

impl ObjectsByScheme {
    pub fn new(local: LocalObjects, scheme: &'static str, remote: Arc<dyn ObjectStore>) -> ObjectsByScheme {
        ObjectsByScheme { local, scheme, remote }
    }

    /// URIs of an unknown scheme are refused by the local store.
    fn of(&self, uri: &str) -> &dyn ObjectStore {
        if scheme(uri) == Some(self.scheme) { self.remote.as_ref() } else { &self.local }
    }
}

#[async_trait]
impl ObjectStore for ObjectsByScheme {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        self.of(uri).stat(uri).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.of(prefix).list(prefix).await
    }
    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        self.of(&pinned.uri).read_range(pinned, range).await
    }
    async fn read(&self, uri: &str) -> Result<Bytes> {
        self.of(uri).read(uri).await
    }
    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        self.of(uri).put_if_absent(uri, bytes).await
    }
    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        self.of(uri).put(uri, bytes).await
    }
    async fn make_durable(&self, uris: &[String]) -> Result<()> {
        let (remote, local): (Vec<String>, Vec<String>) = uris.iter().cloned().partition(|uri| scheme(uri) == Some(self.scheme));
        self.remote.make_durable(&remote).await?;
        self.local.make_durable(&local).await
    }
    async fn delete(&self, uri: &str) -> Result<()> {
        self.of(uri).delete(uri).await
    }
}
