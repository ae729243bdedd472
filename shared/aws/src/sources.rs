//! S3 as a store of source objects.

use crate::address::Address;
use crate::client::S3Objects;
use crate::requests::Pin;
use std::ops::Range;
use timelake_engine::ports::ObjectMeta;
use timelake_model::{Reason, Result, SourceObject};
use timelake_source::remote::{Pending, RemoteObject, RemoteStore};

impl RemoteStore for S3Objects {
    fn find(&self, uri: &str) -> Result<Option<RemoteObject>> {
        let address = Address::parse(uri)?;
        if address.key.is_empty() {
            return Ok(None);
        }
        let shared = self.shared.clone();
        Ok(self.run_blocking(async move { shared.look(&address).await })?.map(found))
    }

    fn list(&self, prefix: &str, limit: usize) -> Result<Vec<RemoteObject>> {
        let (shared, address) = (self.shared.clone(), Address::parse(prefix)?);
        Ok(self.run_blocking(async move { shared.list(&address, limit).await })?.into_iter().map(found).collect())
    }

    fn fetch(&self, object: &SourceObject, range: Range<u64>) -> Pending {
        let pin = Pin { etag: object.fingerprint.clone(), size: object.size, shown: object.shown.clone() };
        let shared = self.shared.clone();
        let address = Address::of_object(&object.uri);
        let started = self.start(async move { shared.read_range(&address?, &pin, range).await });
        Box::new(move || {
            started?.wait_blocking().map_err(|mut error| {
                // Told as what it is: of the source, not of the table.
                if error.reason == Reason::StorageUnavailable {
                    error.reason = Reason::SourceUnavailable;
                }
                error
            })
        })
    }
}

fn found(object: ObjectMeta) -> RemoteObject {
    RemoteObject { uri: object.uri, size: object.size, fingerprint: object.fingerprint }
}
