//! Single requests: read a range, look, list, write, delete. Each is tried again by the same rule.
//!
//! Must never happen: bytes of two versions of an object in one answer. A read pins the version with its first answer
//! at the latest, and every further request carries the etag.

use crate::address::Address;
use crate::client::Shared;
use crate::errors::Failure;
use crate::retry::Tries;
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::time::Instant;
use timelake_engine::ports::ObjectMeta;
use timelake_model::{Error, Kind, Reason, Result, TimestampUs};

/// Room that is made for an answer before its bytes come.
const MOST_CAPACITY: u64 = 64 << 20;

/// What an object must still be.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    pub etag: String,
    pub size: u64,
    /// As messages name it.
    pub shown: String,
}

impl Shared {
    /// A range of the pinned object.
    pub async fn read_range(&self, address: &Address, pin: &Pin, range: Range<u64>) -> Result<Bytes> {
        if range.start > range.end || range.end > pin.size {
            return Err(Error::internal(format!("bytes {range:?} of {}, which has {} bytes", address.uri, pin.size)));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut reading = Reading { etag: Some(pin.etag.clone()), range: Some(range), bytes: BytesMut::new() };
        match self.read(address, &mut reading).await {
            Ok(()) => Ok(reading.bytes.freeze()),
            Err(failure) if failure.is_precondition() || failure.is_missing() => Err(self.changed(address, pin).await),
            Err(failure) => Err(failure.told(address, "read")),
        }
    }

    /// All of an object, whatever it is now.
    pub async fn read_all(&self, address: &Address) -> Result<Bytes> {
        let mut reading = Reading { etag: None, range: None, bytes: BytesMut::new() };
        match self.read(address, &mut reading).await {
            Ok(()) => Ok(reading.bytes.freeze()),
            // It was replaced while it was read.
            Err(failure) if failure.is_precondition() => {
                let text = "it changes while it is read";
                Err(Failure { text: text.into(), ..failure }.told(address, "read"))
            }
            Err(failure) => Err(failure.told(address, "read")),
        }
    }

    async fn read(&self, address: &Address, reading: &mut Reading) -> Result<(), Failure> {
        let client = self.client().await.map_err(|e| Failure { is_transient: false, ..Failure::of_connection(e.message) })?;
        let mut tries = Tries::new(&self.settings);
        loop {
            let had = reading.bytes.len();
            let failure = match self.permits.acquire().await {
                Err(_) => Failure::of_connection("the client is closed"),
                Ok(_permit) => {
                    let request = client
                        .get_object()
                        .bucket(&address.bucket)
                        .key(&address.key)
                        .set_range(reading.header())
                        .set_if_match(reading.etag.as_ref().map(|etag| quoted(etag)))
                        .send();
                    match request.await {
                        Err(error) => Failure::from(error),
                        Ok(answer) => match self.take(answer, reading).await {
                            Ok(()) => return Ok(()),
                            Err(failure) => failure,
                        },
                    }
                }
            };
            if reading.bytes.len() > had {
                tries.progressed();
            }
            tries.after(failure).await?;
        }
    }

    /// Takes the bytes of an answer as far as they come.
    async fn take(&self, answer: GetObjectOutput, reading: &mut Reading) -> Result<(), Failure> {
        let wrong = |text: &str| Failure { is_transient: false, ..Failure::of_connection(text) };
        let from = reading.start() + reading.bytes.len() as u64;
        let length = answer.content_length().and_then(|length| u64::try_from(length).ok());
        let length = length.ok_or_else(|| wrong("the answer has no length"))?;
        let asked_for_part = reading.header().is_some();
        match (asked_for_part, answer.content_range().and_then(first_byte)) {
            (true, Some(first)) if first == from => {}
            (false, None) => {}
            _ => return Err(wrong("the answer is of another range than was asked for")),
        }
        if let Some(etag) = answer.e_tag().map(unquoted) {
            if reading.etag.as_ref().is_some_and(|known| *known != etag) {
                return Err(Failure { status: Some(412), ..wrong("the object is another one") });
            }
            reading.etag = Some(etag);
        }
        let end = reading.range.get_or_insert(0..length).end;
        if from + length != end {
            return Err(wrong("the answer has another length than was asked for"));
        }
        reading.bytes.reserve(length.min(MOST_CAPACITY) as usize);
        let mut body = answer.body;
        let mut window = (Instant::now(), 0);
        loop {
            let left = self.settings.pace_window.saturating_sub(window.0.elapsed());
            match tokio::time::timeout(left, body.next()).await {
                Ok(Some(Ok(bytes))) => {
                    if reading.bytes.len() as u64 + bytes.len() as u64 > end - reading.start() {
                        return Err(wrong("the answer has more bytes than it said"));
                    }
                    window.1 += bytes.len() as u64;
                    reading.bytes.extend_from_slice(&bytes);
                }
                Ok(Some(Err(error))) => return Err(Failure::of_connection(format!("the answer broke off: {error}"))),
                Ok(None) if reading.start() + reading.bytes.len() as u64 == end => return Ok(()),
                Ok(None) => return Err(Failure::of_connection("the answer ended early")),
                Err(_) => {}
            }
            if window.0.elapsed() >= self.settings.pace_window {
                if window.1 < self.settings.least_bytes {
                    return Err(Failure::of_connection("the answer came too slowly"));
                }
                window = (Instant::now(), 0);
            }
        }
    }

    async fn changed(&self, address: &Address, pin: &Pin) -> Error {
        let shown = &pin.shown;
        let how = match self.look(address).await {
            Ok(Some(now)) if now.fingerprint == pin.etag => "another version was read in between".to_string(),
            Ok(Some(now)) => {
                format!("etag {} with {} bytes, now {} with {} bytes", pin.etag, pin.size, now.fingerprint, now.size)
            }
            Ok(None) => format!("etag {} is gone, there is no such object", pin.etag),
            Err(error) if error.kind == Kind::NotFound => "its bucket is gone".to_string(),
            Err(error) => return error,
        };
        Error::conflict(Reason::SourceChanged, format!("{shown} changed since it was planned: {how}"))
            .hint("let the source come to rest, then run the command again: a changed source is a new job")
            .at(|place| place.file = Some(shown.clone()))
    }

    /// Size and etag; `None`: there is no such object.
    pub async fn look(&self, address: &Address) -> Result<Option<ObjectMeta>> {
        let client = self.client().await?;
        let request = || async { Ok(client.head_object().bucket(&address.bucket).key(&address.key).send().await?) };
        match self.tried(request).await.0 {
            Ok(found) => {
                let size = found.content_length().unwrap_or_default();
                Ok(Some(meta(address.uri.clone(), size, found.e_tag(), found.last_modified())?))
            }
            Err(failure) if failure.is_missing() => Ok(None),
            Err(failure) => Err(failure.told(address, "looked at")),
        }
    }

    /// Objects whose key starts with the address's, by key; the first `limit` of them.
    pub async fn list(&self, address: &Address, limit: usize) -> Result<Vec<ObjectMeta>> {
        let client = self.client().await?;
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        while found.len() < limit {
            let page = i32::try_from(limit - found.len()).unwrap_or(i32::MAX).min(1_000);
            let request = || async {
                let request = client.list_objects_v2().bucket(&address.bucket).prefix(&address.key).max_keys(page);
                Ok(request.set_continuation_token(next.clone()).send().await?)
            };
            let answer = self.tried(request).await.0.map_err(|failure| failure.told(address, "listed"))?;
            for object in answer.contents() {
                let Some(key) = object.key() else { continue };
                found.push(meta(address.with_key(key), object.size().unwrap_or_default(), object.e_tag(), object.last_modified())?);
            }
            let token = answer.next_continuation_token().map(str::to_string);
            if answer.is_truncated() != Some(true) {
                break;
            }
            if token.is_none() || token == next {
                return Err(Error::unavailable(Reason::StorageUnavailable, format!("the listing of {} does not go on", address.uri))
                    .at(|place| place.file = Some(address.uri.clone())));
            }
            next = token;
        }
        found.sort_by(|a, b| a.uri.cmp(&b.uri)); // already so, by S3's order of keys
        Ok(found)
    }

    /// Writes an object at once. False: `if_absent`, and there is one that is not ours.
    pub async fn put(&self, address: &Address, bytes: Bytes, if_absent: bool) -> Result<bool> {
        let client = self.client().await?;
        let request = || async {
            let request = client.put_object().bucket(&address.bucket).key(&address.key).body(ByteStream::from(bytes.clone()));
            request.set_if_none_match(if_absent.then(|| "*".to_string())).send().await?;
            Ok(())
        };
        match self.tried(request).await {
            (Ok(()), _) => Ok(true),
            // An earlier try of ours may have put it there.
            (Err(failure), true) if failure.is_precondition() => Ok(self.read_all(address).await? == bytes),
            (Err(failure), false) if failure.is_precondition() => Ok(false),
            (Err(failure), _) => Err(failure.told(address, "written")),
        }
    }

    pub async fn delete(&self, address: &Address) -> Result<()> {
        let client = self.client().await?;
        let request = || async {
            client.delete_object().bucket(&address.bucket).key(&address.key).send().await?;
            Ok(())
        };
        match self.tried(request).await.0 {
            Err(failure) if !failure.is_missing() => Err(failure.told(address, "deleted")),
            _ => Ok(()),
        }
    }
}

/// What was read so far.
struct Reading {
    etag: Option<String>,
    /// `None`: all of it, until the first answer says how much that is.
    range: Option<Range<u64>>,
    bytes: BytesMut,
}

impl Reading {
    fn start(&self) -> u64 {
        self.range.as_ref().map_or(0, |range| range.start)
    }
    /// Asks for what is missing.
    fn header(&self) -> Option<String> {
        let range = self.range.as_ref()?;
        Some(format!("bytes={}-{}", range.start + self.bytes.len() as u64, range.end - 1))
    }
}

fn meta(uri: String, size: i64, etag: Option<&str>, modified: Option<&DateTime>) -> Result<ObjectMeta> {
    let incomplete = || {
        Error::unavailable(Reason::StorageUnavailable, format!("{uri}: the store says neither etag nor size"))
            .at(|place| place.file = Some(uri.clone()))
    };
    let size = u64::try_from(size).map_err(|_| incomplete())?;
    let fingerprint = unquoted(etag.ok_or_else(incomplete)?);
    // A header tells whole seconds, a listing may tell more.
    let modified = TimestampUs(modified.map_or(0, DateTime::secs).saturating_mul(1_000_000));
    Ok(ObjectMeta { uri, size, fingerprint, modified })
}

fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_string()
}
fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

/// Of `bytes 5-9/100`.
fn first_byte(content_range: &str) -> Option<u64> {
    content_range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}
