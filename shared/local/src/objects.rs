//! Objects in a local folder: the job folders, source files, and making table files durable.
//!
//! A URI is a path or `file://` and a path, never percent-decoded: partition values are percent-encoded in file
//! names, and Iceberg's own file access takes them as they are. What must never happen: a reader that sees half an
//! object (objects are written beside their name and then moved or linked to it), an object that is reported as
//! written and is gone after a power loss.

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use timelake_engine::ports::{ObjectMeta, ObjectStore};
use timelake_model::{Error, Reason, Result, TimestampUs};

const SCHEME: &str = "file://";
const SYNCS_AT_A_TIME: usize = 8;
/// Files with this ending are half-written objects of a process that may have died; nobody lists or reads them.
const TEMPORARY: &str = ".timelake-tmp";

/// Reads and writes local files. `root` is the lake's folder: above it nothing is made durable.
#[derive(Debug, Clone)]
pub struct LocalObjects {
    root: PathBuf,
}

impl LocalObjects {
    pub fn new(root: impl Into<PathBuf>) -> LocalObjects {
        LocalObjects { root: absolute(root.into()) }
    }
}

/// A lake given as `./lake` holds tables whose locations are absolute. Fails only where no file can be reached either.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Which way an object takes its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Replace,
    IfAbsent,
}

#[async_trait]
impl ObjectStore for LocalObjects {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        let uri = uri.to_string();
        blocking(move || {
            let path = path_of(&uri)?;
            let metadata = fs::metadata(&path).map_err(|e| read_error(&path, e))?;
            if !metadata.is_file() {
                return Err(not_a_file(&path));
            }
            meta_of(uri, &path, &metadata)
        })
        .await
    }

    /// `prefix` names a folder (or one file); none of that name is an empty list.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let prefix = prefix.to_string();
        blocking(move || list(&prefix)).await
    }

    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let pinned = pinned.clone();
        blocking(move || read_range(&pinned, range)).await
    }

    async fn read(&self, uri: &str) -> Result<Bytes> {
        let path = path_of(uri)?;
        blocking(move || fs::read(&path).map(Bytes::from).map_err(|e| read_error(&path, e))).await
    }

    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        let path = path_of(uri)?;
        blocking(move || write(&path, &bytes, Place::IfAbsent)).await
    }

    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        let path = path_of(uri)?;
        blocking(move || write(&path, &bytes, Place::Replace).map(|_| ())).await
    }

    /// Syncs the files, then each of their folders once, up to the lake's folder (only the file's own folder when
    /// it lies elsewhere).
    async fn make_durable(&self, uris: &[String]) -> Result<()> {
        let (root, paths) = (self.root.clone(), uris.iter().map(|uri| path_of(uri).map(absolute)).collect::<Result<Vec<_>>>()?);
        blocking(move || {
            sync(&paths)?;
            sync(&folders_of(&paths, &root).into_iter().collect::<Vec<_>>())
        })
        .await
    }

    async fn delete(&self, uri: &str) -> Result<()> {
        let path = path_of(uri)?;
        blocking(move || match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(write_error(&path, e)),
            _ => Ok(()),
        })
        .await
    }
}

/// Disk calls block, so they leave the threads that run tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(e) => Err(Error::internal(format!("a file operation ended in a panic or was dropped: {e}"))),
    }
}

fn path_of(uri: &str) -> Result<PathBuf> {
    let path = uri.strip_prefix(SCHEME).unwrap_or(uri);
    // "s3://..." would otherwise be taken for a relative path.
    if path.is_empty() || path.contains("://") {
        return Err(Error::invalid(Reason::PathNotFound, format!("{uri} does not name a local file"))
            .hint("give a path, or file:// and an absolute path")
            .at(|p| p.file = Some(uri.into())));
    }
    Ok(PathBuf::from(path))
}

fn meta_of(uri: String, path: &Path, metadata: &Metadata) -> Result<ObjectMeta> {
    let modified = metadata.modified().map_err(|e| read_error(path, e))?;
    // Files can be older than 1970.
    let fingerprint = match modified.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos().to_string(),
        Err(before) => format!("-{}", before.duration().as_nanos()),
    };
    Ok(ObjectMeta { uri, size: metadata.len(), fingerprint, modified: timestamp(modified) })
}

fn timestamp(time: SystemTime) -> TimestampUs {
    let micros = |d: std::time::Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
    TimestampUs(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    })
}

fn list(prefix: &str) -> Result<Vec<ObjectMeta>> {
    let folder = path_of(prefix)?;
    let scheme = if prefix.starts_with(SCHEME) { SCHEME } else { "" };
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(&folder).follow_links(true) {
        let (entry, metadata) = match entry.and_then(|entry| entry.metadata().map(|metadata| (entry, metadata))) {
            Ok(pair) => pair,
            Err(e) => {
                let path = e.path().unwrap_or(&folder).to_path_buf();
                let error = e.into_io_error().unwrap_or_else(|| io::Error::other("the folder links to itself"));
                if error.kind() == ErrorKind::NotFound {
                    continue; // no such folder, or a file that was removed meanwhile
                }
                return Err(read_error(&path, error));
            }
        };
        let path = entry.path();
        if !metadata.is_file() || path.as_os_str().to_string_lossy().ends_with(TEMPORARY) {
            continue;
        }
        let text = path.to_str().ok_or_else(|| {
            Error::invalid(Reason::PathNotReadable, format!("the name of {} is not UTF-8", path.display()))
                .hint("rename the file")
                .at(|p| p.file = Some(path.display().to_string()))
        })?;
        found.push(meta_of(format!("{scheme}{text}"), path, &metadata)?);
    }
    found.sort_by(|a, b| a.uri.cmp(&b.uri)); // by whole URIs; a walk is sorted by each name
    Ok(found)
}

fn read_range(pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
    let path = path_of(&pinned.uri)?;
    let mut file = File::open(&path).map_err(|e| read_error(&path, e))?;
    let check = |file: &File| {
        let found = meta_of(pinned.uri.clone(), &path, &file.metadata().map_err(|e| read_error(&path, e))?)?;
        if found == *pinned { Ok(()) } else { Err(changed(&path, pinned, &found)) }
    };
    check(&file)?;
    if range.start > range.end || range.end > pinned.size {
        return Err(Error::internal(format!("bytes {range:?} of {}, which has {} bytes", path.display(), pinned.size)));
    }
    let length =
        usize::try_from(range.end - range.start).map_err(|_| Error::internal(format!("bytes {range:?} do not fit into memory")))?;
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes)).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => changed(&path, pinned, &ObjectMeta { size: range.start, ..pinned.clone() }),
        _ => read_error(&path, e),
    })?;
    check(&file)?; // it may have been written to while it was read
    Ok(Bytes::from(bytes))
}

/// Writes the object beside its place, syncs it, gives it its name, syncs the folder. False: the name is taken.
fn write(path: &Path, bytes: &[u8], place: Place) -> Result<bool> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(not_a_file(path)) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    create_folders(folder)?;
    let temporary = folder.join(format!(".{}.{}{TEMPORARY}", name.to_string_lossy(), uuid::Uuid::new_v4().simple()));
    let written = OpenOptions::new().write(true).create_new(true).open(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| match place {
        Place::Replace => fs::rename(&temporary, path).map(|()| true),
        Place::IfAbsent => match fs::hard_link(&temporary, path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            linked => linked.map(|()| true),
        },
    });
    if place == Place::IfAbsent || placed.is_err() {
        // Only our own half-written file; when this fails too it stays behind under a name that nobody lists.
        let _ = fs::remove_file(&temporary);
    }
    let placed = placed.map_err(|e| write_error(path, e))?;
    // Also when the name was taken: its writer may not have come as far as this line.
    sync_folder(folder)?;
    Ok(placed)
}

/// Creates what is missing and syncs the folders that got a new entry.
fn create_folders(folder: &Path) -> Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|f| !f.as_os_str().is_empty() && !f.exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|e| write_error(folder, e))?;
    for created in missing {
        if let Some(parent) = created.parent() {
            sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| write_error(folder, e))
}

/// Disks take several at once; one after the other, each file waits for a turn of its own.
fn sync(paths: &[PathBuf]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            File::open(path).and_then(|file| file.sync_all()).map_err(|e| write_error(path, e))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let syncing: Vec<_> = (0..SYNCS_AT_A_TIME.min(paths.len())).map(|_| scope.spawn(run)).collect();
        syncing.into_iter().try_for_each(|s| s.join().unwrap_or_else(|_| Err(Error::internal("a file operation ended in a panic"))))
    })
}

/// The folders of the files, each once, from each file's own up to `root`.
fn folders_of(paths: &[PathBuf], root: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for path in paths {
        let inside = path.starts_with(root);
        for folder in path.ancestors().skip(1).take_while(|f| !f.as_os_str().is_empty() && (!inside || f.starts_with(root))) {
            // Known means its parents are, too.
            if !folders.insert(folder.to_path_buf()) || !inside {
                break;
            }
        }
    }
    folders
}

fn changed(path: &Path, pinned: &ObjectMeta, found: &ObjectMeta) -> Error {
    Error::conflict(
        Reason::SourceChanged,
        format!(
            "{} has changed since the job was planned: {} bytes, modified {} ns, then {} bytes, {} ns",
            path.display(),
            found.size,
            found.fingerprint,
            pinned.size,
            pinned.fingerprint
        ),
    )
    .hint("put the file back as it was, or start the backfill again: the changed source is a new job")
    .at(|p| p.file = Some(path.display().to_string()))
}

fn not_a_file(path: &Path) -> Error {
    Error::invalid(Reason::PathNotReadable, format!("{} is not a file", path.display())).at(|p| p.file = Some(path.display().to_string()))
}

pub(crate) fn read_error(path: &Path, error: io::Error) -> Error {
    let shown = path.display().to_string();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Error::not_found(Reason::PathNotFound, format!("{shown} does not exist")).hint("check the path")
        }
        ErrorKind::PermissionDenied => Error::invalid(Reason::PathNotReadable, format!("{shown} may not be read: {error}"))
            .hint("give this user the right to read the file and to enter its folders"),
        ErrorKind::IsADirectory => return not_a_file(path),
        _ => Error::unavailable(Reason::StorageUnavailable, format!("{shown} cannot be read: {error}"))
            .hint("check the disk, then run the same command again"),
    }
    .at(|p| p.file = Some(shown))
}

pub(crate) fn write_error(path: &Path, error: io::Error) -> Error {
    let shown = path.display().to_string();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::unavailable(Reason::DiskFull, format!("no space is left to write {shown}: {error}"))
                .hint("free some space, then run the same command again; what is done is kept")
        }
        ErrorKind::NotFound => Error::not_found(Reason::PathNotFound, format!("{shown} does not exist")).hint("check the path"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            Error::unavailable(Reason::AccessDenied, format!("{shown} may not be written: {error}")).hint(
                "give this user the right to write there (or mount it for writing), then run the same command again; what is done is kept",
            )
        }
        ErrorKind::Unsupported => Error::unavailable(Reason::StorageUnavailable, format!("{shown} cannot be written: {error}"))
            .hint("the file system cannot do what a lake needs (hard links, syncing folders): put the lake on a local disk"),
        _ => Error::unavailable(Reason::StorageUnavailable, format!("{shown} cannot be written: {error}"))
            .hint("check the disk, then run the same command again"),
    }
    .at(|p| p.file = Some(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn uri(folder: &tempfile::TempDir, name: &str) -> String {
        folder.path().join(name).to_str().unwrap().to_string()
    }
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_folder_is_a_store_of_objects() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalObjects::new(folder.path());
        timelake_testkit::object_suite::run(std::sync::Arc::new(store.clone()), &uri(&folder, "o")).await;
        let plan = uri(&folder, "o/puts/g1/plan.json");
        assert_eq!(store.read(&format!("file://{plan}")).await.unwrap(), "three");
        assert_eq!(names(&folder.path().join("o/puts/g1")), ["plan.json"], "no temporary file stays");
    }

    #[tokio::test]
    async fn a_list_is_sorted_by_uri_and_hides_temporary_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalObjects::new(folder.path());
        for name in ["a/z", "a-b/x", "a%2Fb", "c"] {
            store.put(&uri(&folder, name), Bytes::from_static(b"x")).await.unwrap();
        }
        fs::write(folder.path().join(format!(".c.1{TEMPORARY}")), "half").unwrap();
        let root = format!("file://{}", folder.path().display());
        let listed: Vec<String> = store.list(&root).await.unwrap().into_iter().map(|o| o.uri).collect();
        assert_eq!(listed, ["a%2Fb", "a-b/x", "a/z", "c"].map(|name| format!("{root}/{name}")));
        assert_eq!(store.list(&uri(&folder, "a")).await.unwrap().len(), 1, "a folder, not the start of a name");
        assert_eq!(store.list(&uri(&folder, "absent")).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_pinned_read_refuses_other_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalObjects::new(folder.path());
        let source = uri(&folder, "a.parquet");
        store.put(&source, Bytes::from_static(b"0123456789")).await.unwrap();
        let pinned = store.stat(&source).await.unwrap();
        assert_eq!((pinned.size, store.read_range(&pinned, 2..5).await.unwrap().as_ref()), (10, b"234".as_slice()));
        assert_eq!(store.read_range(&pinned, 10..10).await.unwrap().len(), 0);
        assert_eq!(store.read_range(&pinned, 5..11).await.unwrap_err().reason, Reason::Internal);
        let file = File::options().write(true).open(&source).unwrap();
        file.set_modified(UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap(); // same size, other time
        let error = store.read_range(&pinned, 2..5).await.unwrap_err();
        assert_eq!((error.reason, error.place.file.as_deref()), (Reason::SourceChanged, Some(source.as_str())));
    }

    #[tokio::test]
    async fn errors_say_the_path_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalObjects::new(folder.path());
        let absent = uri(&folder, "absent");
        store.delete(&absent).await.unwrap();
        for error in [
            store.stat(&absent).await.unwrap_err(),
            store.read(&absent).await.unwrap_err(),
            store.make_durable(std::slice::from_ref(&absent)).await.unwrap_err(),
        ] {
            assert_eq!((error.reason, error.place.file.as_deref()), (Reason::PathNotFound, Some(absent.as_str())));
        }
        assert_eq!(store.stat(folder.path().to_str().unwrap()).await.unwrap_err().reason, Reason::PathNotReadable);
        assert_eq!(store.read("s3://bucket/key").await.unwrap_err().reason, Reason::PathNotFound);
        for (kind, reason) in [
            (ErrorKind::StorageFull, Reason::DiskFull),
            (ErrorKind::PermissionDenied, Reason::AccessDenied),
            (ErrorKind::ReadOnlyFilesystem, Reason::AccessDenied),
            (ErrorKind::Other, Reason::StorageUnavailable),
        ] {
            let error = write_error(Path::new("/lake/x"), kind.into());
            assert_eq!((error.exit_code(), error.reason, error.hint.is_some()), (5, reason, true));
        }
        assert_eq!(read_error(Path::new("/a"), ErrorKind::PermissionDenied.into()).reason, Reason::PathNotReadable);
        // The superuser may write everywhere, so what is asked is only that a refusal leaves nothing behind.
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        if let Err(error) = store.put(closed.join("x").to_str().unwrap(), Bytes::new()).await {
            assert_eq!((error.reason, names(&closed).len()), (Reason::AccessDenied, 0));
        }
    }

    #[tokio::test]
    async fn durable_means_each_folder_up_to_the_lake_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalObjects::new(folder.path());
        let files = [uri(&folder, "w/t/a"), uri(&folder, "w/t/b")];
        for file in &files {
            fs::create_dir_all(folder.path().join("w/t")).unwrap();
            fs::write(file, "x").unwrap();
        }
        store.make_durable(&files).await.unwrap();
        let expected = ["/lake", "/lake/w", "/lake/w/t", "/other/o"].map(PathBuf::from);
        let paths = ["/lake/w/t/a", "/lake/w/t/b", "/lake/w/c", "/other/o/x"].map(PathBuf::from);
        assert_eq!(folders_of(&paths, Path::new("/lake")).into_iter().collect::<Vec<_>>(), expected);
    }
}
