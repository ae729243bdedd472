//! A file that is written in parts: one request if it stays small, else a multipart upload.
//!
//! Must never happen: an object that is visible before its writer closed it, more parts in memory than the limit, an
//! upload that goes on costing money after an error (it is aborted; after a kill the bucket's lifecycle rule has to).

use crate::address::Address;
use crate::client::{S3Objects, Started};
use crate::errors::Failure;
use async_trait::async_trait;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::{Bytes, BytesMut};
use iceberg::io::FileWrite;
use std::collections::VecDeque;
use timelake_model::{Error, Result};

/// S3 wants 5 MiB at least (but for the last part), and takes 10,000 parts.
const PART_BYTES: usize = 8 << 20;
const PARTS_OF_ONE_SIZE: i32 = 1_000;
const LARGE_PART_BYTES: usize = 64 << 20;
const MOST_PARTS: i32 = 10_000;
/// Parts on their way while the next one is filled.
const PARTS_AHEAD: usize = 2;

pub(crate) struct Upload {
    objects: S3Objects,
    address: Address,
    buffer: BytesMut,
    /// Of a multipart upload.
    id: Option<String>,
    next_part: i32,
    under_way: VecDeque<Started<CompletedPart>>,
    done: Vec<CompletedPart>,
    size: u64,
    closed: bool,
}

impl Upload {
    pub fn new(objects: S3Objects, address: Address) -> Upload {
        Upload {
            objects,
            address,
            buffer: BytesMut::new(),
            id: None,
            next_part: 1,
            under_way: VecDeque::new(),
            done: Vec::new(),
            size: 0,
            closed: false,
        }
    }

    fn part_bytes(&self) -> usize {
        if self.next_part <= PARTS_OF_ONE_SIZE { PART_BYTES } else { LARGE_PART_BYTES }
    }

    async fn push(&mut self, bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        self.buffer.extend_from_slice(&bytes);
        while self.buffer.len() >= self.part_bytes() {
            let part = self.buffer.split_to(self.part_bytes()).freeze();
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, part: Bytes) -> Result<()> {
        if self.next_part > MOST_PARTS {
            return Err(Error::internal(format!("{} needs more than {MOST_PARTS} parts", self.address.uri)));
        }
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let id = self.begin().await?;
                self.id.insert(id).clone()
            }
        };
        while self.under_way.len() >= PARTS_AHEAD {
            self.await_one().await?;
        }
        let (shared, address, number) = (self.objects.shared.clone(), self.address.clone(), self.next_part);
        self.under_way.push_back(self.objects.start(async move {
            let client = shared.client().await?;
            let request = || async {
                let request = client.upload_part().bucket(&address.bucket).key(&address.key).upload_id(&id).part_number(number);
                Ok(request.body(ByteStream::from(part.clone())).send().await?)
            };
            let sent = shared.tried(request).await.0.map_err(|failure: Failure| failure.told(&address, "written"))?;
            let part = CompletedPart::builder().part_number(number).set_e_tag(sent.e_tag).set_checksum_crc32(sent.checksum_crc32);
            Ok(part.build())
        })?);
        self.next_part += 1;
        Ok(())
    }

    async fn await_one(&mut self) -> Result<()> {
        if let Some(started) = self.under_way.pop_front() {
            self.done.push(started.wait().await?);
        }
        Ok(())
    }

    async fn begin(&self) -> Result<String> {
        let (shared, address) = (self.objects.shared.clone(), self.address.clone());
        let begun = self.objects.run(async move {
            let client = shared.client().await?;
            let algorithm = shared.checksums().await?.then_some(ChecksumAlgorithm::Crc32);
            let request = || async {
                let request = client.create_multipart_upload().bucket(&address.bucket).key(&address.key);
                Ok(request.set_checksum_algorithm(algorithm.clone()).send().await?)
            };
            let begun = shared.tried(request).await.0.map_err(|failure: Failure| failure.told(&address, "written"))?;
            begun.upload_id.ok_or_else(|| Error::internal(format!("the store gave the upload of {} no id", address.uri)))
        });
        begun.await
    }

    async fn finish(&mut self) -> Result<()> {
        let rest = self.buffer.split().freeze();
        if self.id.is_none() {
            let (shared, address) = (self.objects.shared.clone(), self.address.clone());
            self.objects.run(async move { shared.put(&address, rest, false).await }).await?;
            self.closed = true;
            return Ok(());
        }
        if !rest.is_empty() {
            self.send(rest).await?;
        }
        while !self.under_way.is_empty() {
            self.await_one().await?;
        }
        let parts = CompletedMultipartUpload::builder().set_parts(Some(self.done.clone())).build();
        let (shared, address, size) = (self.objects.shared.clone(), self.address.clone(), self.size);
        let id = self.id.clone().unwrap_or_default();
        let completed = self.objects.run(async move {
            let client = shared.client().await?;
            let request = || async {
                let request = client.complete_multipart_upload().bucket(&address.bucket).key(&address.key).upload_id(&id);
                request.multipart_upload(parts.clone()).send().await?;
                Ok(())
            };
            match shared.tried(request).await {
                (Ok(()), _) => Ok(()),
                // An earlier try may have completed it; names of files are never used twice.
                (Err(failure), true) if failure.is(404) => match shared.look(&address).await? {
                    Some(found) if found.size == size => Ok(()),
                    _ => Err(failure.told(&address, "written")),
                },
                (Err(failure), _) => Err(failure.told(&address, "written")),
            }
        });
        completed.await?;
        self.closed = true;
        Ok(())
    }
}

#[async_trait]
impl FileWrite for Upload {
    async fn write(&mut self, bytes: Bytes) -> iceberg::Result<()> {
        if self.closed {
            return Err(iceberg::Error::new(iceberg::ErrorKind::DataInvalid, format!("{} is closed already", self.address.uri)));
        }
        self.push(bytes).await.map_err(crate::storage::carried)
    }

    async fn close(&mut self) -> iceberg::Result<()> {
        if self.closed {
            return Err(iceberg::Error::new(iceberg::ErrorKind::DataInvalid, format!("{} is closed already", self.address.uri)));
        }
        self.finish().await.map_err(crate::storage::carried)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let Some(id) = self.id.take() else { return };
        self.under_way.clear(); // ends them
        let (shared, address) = (self.objects.shared.clone(), self.address.clone());
        // Waited for: the process may be about to end.
        let aborted = self.objects.run_blocking(async move {
            let client = shared.client().await?;
            let request = client.abort_multipart_upload().bucket(&address.bucket).key(&address.key).upload_id(&id).send();
            request.await.map(|_| ()).map_err(|error| Failure::from(error).told(&address, "given up"))
        });
        if let Err(error) = aborted {
            tracing::warn!(%error, "a part of an upload may stay in the bucket until its lifecycle rule removes it");
        }
    }
}
