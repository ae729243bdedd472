//! What SQLite's errors mean for the user of a lake, for both of its databases; and how a database is opened where
//! nothing may be written.
//!
//! SQLite often says no more than "disk I/O error" or "unable to open database file". Then the file system itself is
//! asked, by writing a small file beside the database. Never: the database file opened other than by SQLite (closing it
//! would drop the locks that this process holds on it), or anything written to a file that is not ours.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, Error as SqliteError, ErrorCode as Code, OpenFlags};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use timelake_model::{Error, Reason};

/// How long a reader waits for another process.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
/// What a path may not hold as it is in an address of SQLite.
const IN_ADDRESS: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#').add(b' ');
/// The write-ahead index grows by 32 KiB at a time: with less than this free, SQLite cannot go on.
const PROBE_BYTES: usize = 64 << 10;
/// `SQLITE_READONLY_DBMOVED`: another file has the name now, or none.
const DATABASE_MOVED: i32 = 1032;

/// A database of the lake, as errors speak of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Role {
    /// `ledger`, `catalog`
    pub name: &'static str,
    pub busy: Reason,
    pub damaged: Reason,
    pub unavailable: Reason,
    pub restore: &'static str,
}

pub(crate) const LEDGER: Role = Role {
    name: "ledger",
    busy: Reason::LedgerBusy,
    damaged: Reason::LedgerDamaged,
    unavailable: Reason::StorageUnavailable,
    restore: "nothing was changed: restore ledger.db (with its -wal file) from a backup; published tables do not depend on it",
};

pub(crate) const CATALOG: Role = Role {
    name: "catalog",
    busy: Reason::CatalogUnavailable,
    damaged: Reason::CatalogDamaged,
    unavailable: Reason::CatalogUnavailable,
    restore: "nothing was changed: restore catalog.db (with its -journal file) from a backup; the tables' own files are whole",
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Another process holds it.
    Busy,
    Damaged,
    DiskFull,
    /// Permissions, or a file system that is mounted read-only.
    Denied,
    Unavailable,
    /// A rule of our own tables does not hold.
    Constraint,
    Defect,
}

impl Role {
    /// Which remedy an error of SQLite calls for.
    pub fn error(&self, path: &Path, error: SqliteError) -> Error {
        let (cause, system) = cause_of(path, &error);
        let (name, file) = (self.name, path.display());
        let detail = system.map_or_else(|| error.to_string(), |system| format!("{error}, {system}"));
        let database = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match cause {
            Cause::Busy => {
                Error::unavailable(self.busy, format!("the {name} {file} is locked by another process for too long: {detail}")).hint(format!(
                    "see which process has {database} open (fuser or lsof names it), end it or wait, then run the same command again"
                ))
            }
            Cause::Damaged => return self.damaged_error(path, detail),
            Cause::DiskFull => Error::unavailable(Reason::DiskFull, format!("the {name} {file} cannot grow: {detail}"))
                .hint("free some space, then run the same command again: what is done is kept"),
            Cause::Denied => Error::unavailable(Reason::AccessDenied, format!("the {name} {file} may not be written: {detail}"))
                .hint(format!("give this user the right to write to the lake's folder and to {database}, then run the same command again")),
            Cause::Unavailable => Error::unavailable(self.unavailable, format!("the {name} {file} cannot be opened, read or written: {detail}"))
                .hint("check the disk, the lake's folder and the limit on open files, then run the same command again"),
            Cause::Constraint => Error::internal(format!(
                "a record of the {name} {file} goes against its rules (it was written before the record it belongs to, or counts below zero): {detail}"
            )),
            Cause::Defect => Error::internal(format!("the {name} {file}: {detail}")),
        }
        .at(|p| p.file = Some(file.to_string()))
    }

    pub fn damaged_error(&self, path: &Path, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.damaged, format!("the {} {} cannot be read: {what}", self.name, path.display()))
            .hint(self.restore)
            .at(|p| p.file = Some(path.display().to_string()))
    }
}

pub(crate) fn is_busy(error: &SqliteError) -> bool {
    matches!(error.sqlite_error_code(), Some(Code::DatabaseBusy | Code::DatabaseLocked))
}

/// What is behind an error, and the system's own words where SQLite has none.
pub(crate) fn cause_of(path: &Path, error: &SqliteError) -> (Cause, Option<String>) {
    let cause = match error.sqlite_error_code() {
        Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::FileLockingProtocolFailed) => Cause::Busy,
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => Cause::Damaged,
        Some(Code::DiskFull) => Cause::DiskFull,
        Some(Code::ReadOnly) if error.sqlite_error().is_some_and(|e| e.extended_code == DATABASE_MOVED) => {
            return (Cause::Unavailable, Some("it was moved or removed while it was in use".into()));
        }
        Some(Code::ReadOnly | Code::PermissionDenied) => Cause::Denied,
        Some(Code::CannotOpen | Code::SystemIoFailure) => return asked(path),
        Some(Code::ConstraintViolation) => Cause::Constraint,
        // Its tables are not ours: somebody else changed them.
        Some(Code::Unknown) if ["no such table", "no such column", "has no column"].iter().any(|w| error.to_string().contains(w)) => {
            Cause::Damaged
        }
        None if matches!(error, SqliteError::InvalidColumnType(..) | SqliteError::IntegralValueOutOfRange(..)) => Cause::Damaged,
        _ => Cause::Defect,
    };
    (cause, None)
}

fn asked(path: &Path) -> (Cause, Option<String>) {
    match probe(path) {
        Ok(()) => (Cause::Unavailable, None),
        Err(e) => match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Cause::DiskFull, Some(e.to_string())),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (Cause::Denied, Some(e.to_string())),
            _ => (Cause::Unavailable, Some(e.to_string())),
        },
    }
}

/// Can something be written beside the database?
fn probe(path: &Path) -> io::Result<()> {
    let beside = sibling(path, &format!("-probe-{}", uuid::Uuid::new_v4().simple()));
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(&beside).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let _ = std::fs::remove_file(&beside); // ours alone; where it cannot be removed it could not be made either
    written
}

/// `ledger.db` → `ledger.db-wal`
pub(crate) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// A database without content: what a process that was killed while it made the file leaves behind, or a lost one.
pub(crate) fn is_absent_or_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.len() == 0)
}

/// Does the file itself begin as a database does? A log beside it must not hide that it does not: SQLite would put its
/// pages over the damage, and write them into the file. Errors of other kinds are left to those who open it. To be asked
/// before this process has the database open: closing the file again drops the locks that the process has on it.
pub(crate) fn check_header(role: &Role, path: &Path) -> timelake_model::Result<()> {
    if is_absent_or_empty(path) {
        return Ok(());
    }
    match immutable(path).and_then(|c| c.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))) {
        Err(e) if e.sqlite_error_code() == Some(Code::NotADatabase) => Err(role.damaged_error(path, e)),
        _ => Ok(()),
    }
}

/// Opens the file alone, without its log and without locks.
fn immutable(path: &Path) -> rusqlite::Result<Connection> {
    let text = path.to_string_lossy();
    let address = format!("file:{}?immutable=1", utf8_percent_encode(&text, IN_ADDRESS));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(address, flags)
}

/// How often a database is read that another process changes meanwhile.
const UNCHANGED_TRIES: u32 = 20;
const UNCHANGED_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// Lets `read` have a database as its last commit left it, and leaves nothing beside it: no index of a log that was not
/// there. `read` may be called again.
pub(crate) fn open_unchanged<T>(path: &Path, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let has_log = || ["-wal", "-journal"].iter().any(|ending| !is_absent_or_empty(&sibling(path, ending)));
    let stamp = || std::fs::metadata(path).and_then(|found| Ok((found.modified()?, found.len()))).ok();
    for _ in 0..UNCHANGED_TRIES {
        if has_log() {
            break;
        }
        let before = stamp();
        let found = immutable(path).and_then(|connection| read(&connection));
        // Without locks, a commit of another process can come in between.
        if !has_log() && stamp() == before {
            return found;
        }
        std::thread::sleep(UNCHANGED_PAUSE);
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    read(&connection)
}

/// Opens a database with a write-ahead log where nothing may be written. `None`: there is a log that only somebody who
/// may write can merge.
pub(crate) fn open_read_only(path: &Path) -> rusqlite::Result<Option<Connection>> {
    let readable = |c: &Connection| c.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0)).map(|_| ());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // A process that writes now, or was killed, left its log and the index of it: with both SQLite can read.
    if let Ok(connection) = Connection::open_with_flags(path, flags)
        && readable(&connection).is_ok()
    {
        return Ok(Some(connection));
    }
    if !is_absent_or_empty(&sibling(path, "-wal")) {
        return Ok(None);
    }
    let connection = immutable(path)?;
    readable(&connection)?;
    Ok(Some(connection))
}
