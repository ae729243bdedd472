//! `ledger.db` as a database: opens or creates the file, keeps its schema version, runs transactions and turns
//! SQLite's errors into ours.
//!
//! Several processes have the file open at once. So every change is one IMMEDIATE transaction (a transaction that
//! starts as a reader and then writes can fail half-way with BUSY), every commit is synced before it is answered,
//! and waiting for another process has a limit. Never: a change outside a transaction, a query that takes the time
//! from SQLite, a statement on a file that is not a ledger.

use crate::sqlite::{Cause, LEDGER, cause_of, check_header, is_absent_or_empty, is_busy, open_read_only};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use timelake_engine::ports::Clock;
use timelake_model::{Error, Reason, Result};

/// Version of the tables below, in `user_version`.
pub(crate) const SCHEMA_VERSION: i64 = 1;
/// "TmLk": tells a ledger from any other SQLite file (`application_id`).
const APPLICATION_ID: i64 = 0x546d_4c6b;
/// How long one transaction waits for another process.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Transactions tried, each with its own wait, before the ledger counts as locked.
const BUSY_TRIES: u32 = 3;
const BUSY_PAUSE_MS: u64 = 50;
const STATEMENT_CACHE: usize = 64;

/// One table per kind of key. What conditions and counts look at has columns, the rest of a record is JSON.
const CREATE: &str = "
CREATE TABLE jobs (
    job TEXT NOT NULL PRIMARY KEY,
    generation INTEGER NOT NULL,
    table_uuid TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX jobs_of_table ON jobs (table_uuid, created_us);
CREATE TABLE groups (
    job TEXT NOT NULL REFERENCES jobs,
    generation INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (job, generation, group_name)
) STRICT;
CREATE TABLE plans (
    job TEXT NOT NULL REFERENCES jobs,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    group_name TEXT NOT NULL,
    round INTEGER NOT NULL,
    plan_hash TEXT NOT NULL,
    units TEXT NOT NULL,
    shards INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    PRIMARY KEY (job, generation, phase, group_name, round)
) STRICT;
CREATE TABLE counters (
    job TEXT NOT NULL,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    group_name TEXT NOT NULL,
    round INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    open INTEGER NOT NULL,
    remaining INTEGER NOT NULL CHECK (remaining >= 0),
    failed INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    PRIMARY KEY (job, generation, phase, group_name, round, shard),
    FOREIGN KEY (job, generation, phase, group_name, round) REFERENCES plans
) STRICT;
CREATE TABLE units (
    job TEXT NOT NULL,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    group_name TEXT NOT NULL,
    unit INTEGER NOT NULL,
    round INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('PENDING', 'DONE', 'FAILED')),
    base INTEGER NOT NULL,
    win TEXT,
    attempts TEXT NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    receipt TEXT,
    error TEXT,
    PRIMARY KEY (job, generation, phase, group_name, unit, round),
    FOREIGN KEY (job, generation, phase, group_name, round, shard) REFERENCES counters
) STRICT;
CREATE TABLE queue (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    group_name TEXT NOT NULL,
    round INTEGER NOT NULL,
    unit INTEGER NOT NULL,
    owner TEXT,
    lease_until_us INTEGER NOT NULL,
    tries INTEGER NOT NULL
) STRICT;
CREATE INDEX queue_of_job ON queue (job);
";

/// What goes wrong inside a transaction: SQLite's error, to be judged (busy or not), or one of ours.
pub(crate) enum Fault {
    Sqlite(rusqlite::Error),
    Ours(Error),
}
impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}
impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Ours(error)
    }
}
impl Fault {
    fn is_busy(&self) -> bool {
        matches!(self, Fault::Sqlite(error) if is_busy(error))
    }
}

pub(crate) struct Database {
    path: PathBuf,
    connection: Mutex<Connection>,
    clock: Arc<dyn Clock>,
}

impl Database {
    /// Opens the file, or creates it with its tables when absent and nothing says that there was one: `jobs` are those
    /// whose folders are there. Where nothing may be written it is opened for reading.
    pub(crate) fn open(path: &Path, clock: Arc<dyn Clock>, busy_timeout: Duration, jobs: &[String]) -> Result<Database> {
        check_header(&LEDGER, path)?;
        if let Some(job) = jobs.first().filter(|_| is_absent_or_empty(path)) {
            return Err(lost(path, "it is gone or empty", job));
        }
        let connection = match open_to_write(path, clock.as_ref(), busy_timeout, jobs) {
            Ok(connection) => connection,
            Err(Fault::Sqlite(error)) if cause_of(path, &error).0 == Cause::Denied => open_to_read(path, error, busy_timeout, jobs)?,
            Err(fault) => return Err(to_error(path, fault)),
        };
        Ok(Database { path: path.to_path_buf(), connection: Mutex::new(connection), clock })
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Runs `work` as one IMMEDIATE transaction: all of it is committed and synced, or nothing happened. `work` may
    /// run again when another process holds the file.
    pub(crate) async fn write<T: Send>(&self, work: impl FnMut(&Transaction) -> Result<T, Fault> + Send) -> Result<T> {
        self.transact(TransactionBehavior::Immediate, work).await
    }

    /// Runs `work` on one consistent view of the last commit; it must only read. Readers never wait for writers.
    pub(crate) async fn read<T: Send>(&self, work: impl FnMut(&Transaction) -> Result<T, Fault> + Send) -> Result<T> {
        self.transact(TransactionBehavior::Deferred, work).await
    }

    async fn transact<T: Send>(
        &self,
        behavior: TransactionBehavior,
        mut work: impl FnMut(&Transaction) -> Result<T, Fault> + Send,
    ) -> Result<T> {
        for _ in 1..BUSY_TRIES {
            match self.transact_once(behavior, &mut work) {
                Err(fault) if fault.is_busy() => {}
                outcome => return outcome.map_err(|fault| to_error(&self.path, fault)),
            }
            let pause = Duration::from_millis(BUSY_PAUSE_MS + self.clock.random() % BUSY_PAUSE_MS);
            self.clock.sleep(pause).await;
        }
        self.transact_once(behavior, &mut work).map_err(|fault| to_error(&self.path, fault))
    }

    fn transact_once<T>(&self, behavior: TransactionBehavior, work: &mut impl FnMut(&Transaction) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(behavior)?; // rolls back when dropped
        let value = work(&transaction)?;
        transaction.commit()?;
        Ok(value)
    }

    /// A panic in another thread has rolled its transaction back on the way out, so the connection is good.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_to_write(path: &Path, clock: &dyn Clock, busy_timeout: Duration, jobs: &[String]) -> Result<Connection, Fault> {
    // Without SQLITE_OPEN_URI: a folder may be called "file:x?mode=memory".
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    let mut tries = 1;
    // Two first openers can meet in the switch to WAL, where SQLite does not wait.
    while let Err(fault) = prepare(&mut connection, path, busy_timeout, jobs) {
        if !fault.is_busy() || tries == BUSY_TRIES {
            return Err(fault);
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(BUSY_PAUSE_MS + clock.random() % BUSY_PAUSE_MS));
    }
    Ok(connection)
}

/// The ledger of a lake that may not be written: what reads works, what writes is refused by SQLite.
fn open_to_read(path: &Path, denied: rusqlite::Error, busy_timeout: Duration, jobs: &[String]) -> Result<Connection> {
    let fail = |fault: Fault| to_error(path, fault);
    if is_absent_or_empty(path) {
        // No job ever ran here: an empty ledger says the same.
        let connection = Connection::open_in_memory().map_err(|e| fail(e.into()))?;
        connection.execute_batch(CREATE).and_then(|()| connection.pragma_update(None, "query_only", true)).map_err(|e| fail(e.into()))?;
        return Ok(connection);
    }
    let Some(mut connection) = open_read_only(path).map_err(|_| fail(denied.into()))? else {
        return Err(Error::unavailable(
            Reason::AccessDenied,
            format!("the ledger {} may not be written, and a process that was killed left changes beside it", path.display()),
        )
        .hint("let a user who may write to the lake run any command once, for example: timelake backfill list")
        .at(|p| p.file = Some(path.display().to_string())));
    };
    check_content(&mut connection, path, busy_timeout, jobs).map_err(fail)?;
    Ok(connection)
}

fn prepare(connection: &mut Connection, path: &Path, busy_timeout: Duration, jobs: &[String]) -> Result<(), Fault> {
    // Before anything is changed in a file that may not be ours.
    let new = check_content(connection, path, busy_timeout, jobs)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Error::unavailable(
            Reason::StorageUnavailable,
            format!("the ledger {} cannot keep a write-ahead log (journal mode {mode})", path.display()),
        )
        .hint("put the lake on a local disk")
        .into());
    }
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")?;
    if !new {
        return Ok(()); // readers do not wait for a writer
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_new(&transaction, path)? {
        transaction.execute_batch(CREATE)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Is it new, or a ledger that knows all jobs whose folders are there? In one transaction: each look for itself could see
/// another state of a file that another process is just making.
fn check_content(connection: &mut Connection, path: &Path, busy_timeout: Duration, jobs: &[String]) -> Result<bool, Fault> {
    connection.busy_timeout(busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    // Where there is no folder for temporary files, none is needed.
    connection.execute_batch("PRAGMA temp_store = MEMORY")?;
    let transaction = connection.transaction()?;
    let new = is_new(&transaction, path)?;
    for job in jobs {
        let known = !new && transaction.prepare_cached("SELECT 1 FROM jobs WHERE job = ?")?.exists([job])?;
        if !known {
            return Err(lost(path, "it is older than the lake", job).into());
        }
    }
    Ok(new)
}

/// A job's record is written before its folder is made: a folder without a record means that records are lost.
fn lost(path: &Path, what: &str, job: &str) -> Error {
    Error::corrupt(Reason::LedgerDamaged, format!("the ledger {} does not know job {job}, whose folder is there: {what}", path.display()))
        .hint(format!(
            "restore ledger.db with its -wal file; if they are lost, move jobs/{job} out of the lake and run that job's command again, \
             which starts it over (rows that it published are not loaded twice)"
        ))
        .at(|p| {
            p.file = Some(path.display().to_string());
            p.job = Some(job.into());
        })
}

/// True for an empty file, false for a ledger of this version; an error for anything else.
fn is_new(connection: &Connection, path: &Path) -> Result<bool, Fault> {
    let number = |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    match (application, version) {
        (0, 0) if tables == 0 => Ok(true),
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(false),
        (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => Err(Error::invalid(
            Reason::LedgerTooNew,
            format!("the ledger {} has version {newer}, this program knows version {SCHEMA_VERSION}", path.display()),
        )
        .hint("use the newer version of timelake that wrote it")
        .at(|p| p.file = Some(path.display().to_string()))
        .into()),
        _ => Err(LEDGER.damaged_error(path, "it is an SQLite file, but not a ledger").into()),
    }
}

/// Says which remedy an error calls for.
fn to_error(path: &Path, fault: Fault) -> Error {
    match fault {
        Fault::Ours(error) if error.reason == Reason::LedgerDamaged && error.place.file.is_none() => {
            LEDGER.damaged_error(path, error.message)
        }
        Fault::Ours(error) => error,
        Fault::Sqlite(error) => LEDGER.error(path, error),
    }
}

/// Parses a JSON column; what does not parse is a damaged ledger.
pub(crate) fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text)
        .map_err(|e| Fault::Ours(Error::corrupt(Reason::LedgerDamaged, format!("a {} in it: {e}", std::any::type_name::<T>()))))
}

pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("a record of the ledger cannot be written: {e}")))
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
