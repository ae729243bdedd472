//! Sources that are no local files: what is asked of the store that holds them, and reading them in pieces.
//!
//! Every read of a remote object is pinned by the store itself, so there is no looking before and after.
//! Must never hold more of an object than the limits below.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::{Error, Reason, Result, SourceObject};

/// A row group's columns up to this size are fetched side by side before they are decoded; larger ones in blocks.
const ROW_GROUP_BYTES: u64 = 32 << 20;
/// Bytes of one request.
const REQUEST_BYTES: u64 = 8 << 20;
/// Bytes between two wanted ranges that are fetched with them: cheaper than another request.
const GAP_BYTES: u64 = 256 << 10;
/// Smallest read: footers and page headers come in a few bytes each.
const LEAST_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: Range<u64> = (256 << 10)..(4 << 20);
/// Blocks of a text file grow up to this; from a quarter of it on, the next one is fetched meanwhile.
const STREAM_BYTES: u64 = 4 << 20;

/// A read that was started; the call waits for its bytes.
pub type Pending = Box<dyn FnOnce() -> Result<Bytes> + Send + Sync>;

/// An object as a listing names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteObject {
    pub uri: String,
    pub size: u64,
    pub fingerprint: String,
}

/// A store of objects that are named by URI and pinned by fingerprint.
pub trait RemoteStore: Debug + Send + Sync {
    fn find(&self, uri: &str) -> Result<Option<RemoteObject>>;
    /// Objects whose URI starts with `prefix`, by URI, ascending; the first `limit` of them.
    fn list(&self, prefix: &str, limit: usize) -> Result<Vec<RemoteObject>>;
    /// Starts reading a range: exactly these bytes of the pinned object, or `conflict`/`source_changed`.
    fn fetch(&self, object: &SourceObject, range: Range<u64>) -> Pending;
}

/// Where objects are read from: local files, and stores by the scheme of their URIs.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    remote: Vec<(&'static str, Arc<dyn RemoteStore>)>,
    /// Local files are somebody else's.
    remote_only: bool,
}

impl Sources {
    pub fn local() -> Sources {
        Sources::default()
    }
    /// No local files: who reads runs on another machine than who names the files.
    pub fn remote_only() -> Sources {
        Sources { remote_only: true, ..Sources::default() }
    }
    pub fn with(mut self, scheme: &'static str, store: Arc<dyn RemoteStore>) -> Sources {
        self.remote.push((scheme, store));
        self
    }
    /// The store of a URI; `None`: it is a local path.
    pub(crate) fn remote(&self, uri: &str) -> Result<Option<&Arc<dyn RemoteStore>>> {
        let Some(scheme) = scheme(uri) else { return self.local_path(uri) };
        match self.remote.iter().find(|(name, _)| *name == scheme) {
            Some((_, store)) => Ok(Some(store)),
            None => Err(Error::invalid(Reason::NotYetSupported, format!("{uri}: sources of {scheme}:// cannot be read"))
                .hint("copy the files to a local folder or to S3 and name that")
                .at(|place| place.option = Some("--from".into()))),
        }
    }
}

impl Sources {
    fn local_path(&self, path: &str) -> Result<Option<&Arc<dyn RemoteStore>>> {
        if !self.remote_only {
            return Ok(None);
        }
        Err(Error::invalid(Reason::InvalidOption, format!("{path} is a local path, and a lake on AWS reads only what is on S3"))
            .hint("upload the files (aws s3 cp --recursive FOLDER s3://BUCKET/PREFIX) and name that: --from s3://BUCKET/PREFIX")
            .at(|place| {
                place.option = Some("--from".into());
                place.value = Some(path.into());
            }))
    }
}

/// `s3` of `s3://bucket/key`.
pub fn scheme(uri: &str) -> Option<&str> {
    let (scheme, _) = uri.split_once("://")?;
    (!scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(scheme)
}

/// A pinned object that is read at offsets, with what of it is held in memory.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    store: Arc<dyn RemoteStore>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Oldest first.
    pieces: VecDeque<(u64, Bytes)>,
    /// Beyond this many pieces the oldest goes.
    most: usize,
    /// Ranges that are read from front to back, and how much of one at a time.
    spans: Vec<Range<u64>>,
    block: u64,
}

impl RemoteFile {
    pub fn new(store: Arc<dyn RemoteStore>) -> RemoteFile {
        // The start and the end of a file are looked at by turns.
        RemoteFile { store, held: Mutex::new(Held { most: 2, ..Held::default() }) }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `range` lies within the object.
    pub fn read(&self, object: &SourceObject, range: Range<u64>) -> Result<Bytes> {
        let fetched = {
            let held = self.held();
            if let Some(bytes) = held.pieces.iter().find_map(|(start, bytes)| part(*start, bytes, &range)) {
                return Ok(bytes);
            }
            match held.spans.iter().find(|span| span.contains(&range.start)) {
                Some(span) => range.start..range.end.max((range.start + held.block).min(span.end)),
                None => {
                    // Footers are read backwards.
                    let start = range.start.min(object.size.saturating_sub(LEAST_BYTES));
                    start..range.end.max((start + LEAST_BYTES).min(object.size))
                }
            }
        };
        let bytes = self.store.fetch(object, fetched.clone())()?;
        let wanted = part(fetched.start, &bytes, &range).ok_or_else(|| short(object, &fetched))?;
        let mut held = self.held();
        held.pieces.push_back((fetched.start, bytes));
        if held.pieces.len() > held.most {
            held.pieces.pop_front();
        }
        Ok(wanted)
    }

    /// Says which ranges are read next, each from front to back.
    pub fn prepare(&self, object: &SourceObject, mut ranges: Vec<Range<u64>>) -> Result<()> {
        ranges.retain(|range| range.start < range.end && range.end <= object.size); // others are told when they are read
        ranges.sort_by_key(|range| range.start);
        let columns = ranges.len().max(1);
        let block = (ROW_GROUP_BYTES / columns as u64).clamp(BLOCK_BYTES.start, BLOCK_BYTES.end);
        *self.held() = Held { pieces: VecDeque::new(), most: columns + 1, spans: ranges.clone(), block };
        let joined = join(ranges);
        if joined.iter().map(|range| range.end - range.start).sum::<u64>() > ROW_GROUP_BYTES {
            return Ok(());
        }
        // All are started before the first is waited for.
        let started: Vec<(Range<u64>, Vec<Pending>)> =
            joined.into_iter().map(|range| (range.clone(), cut(range).map(|piece| self.store.fetch(object, piece)).collect())).collect();
        let mut pieces = VecDeque::new();
        for (range, pending) in started {
            let bytes = together(range.clone(), pending)?;
            if bytes.len() as u64 != range.end - range.start {
                return Err(short(object, &range));
            }
            pieces.push_back((range.start, bytes));
        }
        let mut held = self.held();
        held.most += pieces.len();
        held.pieces = pieces;
        Ok(())
    }
}

/// `range` of bytes that start at `start`, if they have all of it.
fn part(start: u64, bytes: &Bytes, range: &Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
    let to = from.checked_add(usize::try_from(range.end - range.start).ok()?)?;
    (to <= bytes.len()).then(|| bytes.slice(from..to))
}

fn short(object: &SourceObject, range: &Range<u64>) -> Error {
    Error::internal(format!("the store gave fewer bytes of {} than {range:?}", object.shown))
}

fn join(sorted: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + GAP_BYTES => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

fn cut(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(REQUEST_BYTES as usize).map(move |start| start..end.min(start + REQUEST_BYTES))
}

fn together(range: Range<u64>, mut pending: Vec<Pending>) -> Result<Bytes> {
    if pending.len() == 1
        && let Some(only) = pending.pop()
    {
        return only();
    }
    let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
    for piece in pending {
        all.extend_from_slice(&piece()?);
    }
    Ok(all.freeze())
}

/// A pinned object from front to back. Blocks of their own requests, not one long answer: a store drops connections
/// whose reader takes its time.
pub(crate) struct RemoteStream {
    store: Arc<dyn RemoteStore>,
    object: SourceObject,
    block: Bytes,
    /// Where the next request starts, and its size.
    next: u64,
    size: u64,
    ahead: Option<Pending>,
}

impl RemoteStream {
    pub fn new(store: Arc<dyn RemoteStore>, object: SourceObject) -> RemoteStream {
        RemoteStream { store, object, block: Bytes::new(), next: 0, size: LEAST_BYTES, ahead: None }
    }

    fn request(&mut self) -> Option<Pending> {
        let range = self.next..self.object.size.min(self.next + self.size);
        if range.is_empty() {
            return None;
        }
        self.next = range.end;
        self.size = (self.size * 4).min(STREAM_BYTES);
        Some(self.store.fetch(&self.object, range))
    }
}

impl Read for RemoteStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.block.is_empty() {
            let Some(pending) = self.ahead.take().or_else(|| self.request()) else { return Ok(0) };
            // Whoever only wants the header should not fetch megabytes.
            if self.size == STREAM_BYTES {
                self.ahead = self.request();
            }
            self.block = pending().map_err(io::Error::other)?;
        }
        let count = buffer.len().min(self.block.len());
        buffer[..count].copy_from_slice(&self.block.split_to(count));
        Ok(count)
    }
}

/// What a store said, if this is such an error.
pub(crate) fn told(error: &io::Error) -> Option<Error> {
    error.get_ref()?.downcast_ref::<Error>().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One object; writes down what is asked of it.
    #[derive(Debug)]
    struct Store {
        bytes: Bytes,
        asked: Mutex<Vec<Range<u64>>>,
    }

    impl RemoteStore for Store {
        fn find(&self, _: &str) -> Result<Option<RemoteObject>> {
            Ok(None)
        }
        fn list(&self, _: &str, _: usize) -> Result<Vec<RemoteObject>> {
            Ok(vec![])
        }
        fn fetch(&self, _: &SourceObject, range: Range<u64>) -> Pending {
            self.asked.lock().unwrap().push(range.clone());
            let bytes = self.bytes.slice(range.start as usize..range.end as usize);
            Box::new(move || Ok(bytes))
        }
    }

    fn object(size: usize) -> (Arc<Store>, SourceObject) {
        let bytes: Bytes = (0..size).map(|at| (at * 7 % 251) as u8).collect();
        let uri = "s3://b/k".to_string();
        let object = SourceObject { shown: uri.clone(), uri, size: size as u64, fingerprint: "e".into(), hive: Default::default() };
        (Arc::new(Store { bytes, asked: Mutex::default() }), object)
    }

    #[test]
    fn a_stream_has_all_bytes_once_and_starts_small() {
        let (store, object) = object(9_500_001);
        let mut out = Vec::new();
        RemoteStream::new(store.clone(), object).read_to_end(&mut out).unwrap();
        assert!(out == store.bytes);
        let asked = store.asked.lock().unwrap();
        assert_eq!(asked[0], 0..LEAST_BYTES);
        assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(asked.iter().all(|range| range.end - range.start <= STREAM_BYTES));
    }

    #[test]
    fn near_columns_come_in_one_request_and_are_read_without_another() {
        let (store, object) = object(3_000_000);
        let file = RemoteFile::new(store.clone());
        file.prepare(&object, vec![1_000_000..2_500_000, 100..200, 300..1_000]).unwrap();
        assert_eq!(*store.asked.lock().unwrap(), [100..1_000, 1_000_000..2_500_000]);
        for range in [100..110, 300..1_000, 2_000_000..2_500_000] {
            assert_eq!(file.read(&object, range.clone()).unwrap(), store.bytes[range.start as usize..range.end as usize]);
        }
        assert_eq!(store.asked.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_large_row_group_is_read_in_blocks_within_each_column() {
        let (store, object) = object(40 << 20);
        let file = RemoteFile::new(store.clone());
        let columns = [0..(20 << 20), (20 << 20)..(39 << 20)];
        file.prepare(&object, columns.to_vec()).unwrap();
        assert!(store.asked.lock().unwrap().is_empty());
        for step in 0..19 {
            for column in &columns {
                let start = column.start + (step << 20);
                let range = start..start + (1 << 20);
                assert_eq!(file.read(&object, range.clone()).unwrap(), store.bytes[range.start as usize..range.end as usize]);
            }
        }
        let asked = store.asked.lock().unwrap();
        assert_eq!(asked.len(), 10, "{asked:?}");
        assert!(asked.iter().all(|range| columns.iter().any(|c| c.start <= range.start && range.end <= c.end)), "{asked:?}");
        assert!(file.held().pieces.len() <= 3);
    }
}
