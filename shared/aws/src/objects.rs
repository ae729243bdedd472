//! S3 as the engine's store of objects.

use crate::address::Address;
use crate::client::S3Objects;
use crate::requests::Pin;
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use timelake_engine::ports::{ObjectMeta, ObjectStore};
use timelake_model::{Error, Reason, Result};

#[async_trait]
impl ObjectStore for S3Objects {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        let (shared, address) = (self.shared.clone(), Address::of_object(uri)?);
        self.run(async move {
            let missing = || {
                Error::not_found(Reason::PathNotFound, format!("{} does not exist", address.uri))
                    .hint("check bucket and key")
                    .at(|place| place.file = Some(address.uri.clone()))
            };
            shared.look(&address).await?.ok_or_else(missing)
        })
        .await
    }

    /// `prefix` names a folder (or one object), as with files: `a/b` is no prefix of `a/bc`.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let (shared, address) = (self.shared.clone(), Address::parse(prefix)?);
        self.run(async move {
            let mut found = shared.list(&address, usize::MAX).await?;
            let folder = format!("{}/", address.uri.trim_end_matches('/'));
            found.retain(|object| (object.uri == address.uri || object.uri.starts_with(&folder)) && !object.uri.ends_with('/'));
            Ok(found)
        })
        .await
    }

    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let (shared, address) = (self.shared.clone(), Address::of_object(&pinned.uri)?);
        let pin = Pin { etag: pinned.fingerprint.clone(), size: pinned.size, shown: pinned.uri.clone() };
        self.run(async move { shared.read_range(&address, &pin, range).await }).await
    }

    async fn read(&self, uri: &str) -> Result<Bytes> {
        let (shared, address) = (self.shared.clone(), Address::of_object(uri)?);
        self.run(async move { shared.read_all(&address).await }).await
    }

    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        let (shared, address) = (self.shared.clone(), Address::of_object(uri)?);
        self.run(async move { shared.put(&address, bytes, true).await }).await
    }

    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        let (shared, address) = (self.shared.clone(), Address::of_object(uri)?);
        self.run(async move { shared.put(&address, bytes, false).await.map(|_| ()) }).await
    }

    /// An object is durable once S3 said it is written.
    async fn make_durable(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    async fn delete(&self, uri: &str) -> Result<()> {
        let (shared, address) = (self.shared.clone(), Address::of_object(uri)?);
        self.run(async move { shared.delete(&address).await }).await
    }
}
