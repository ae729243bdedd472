use super::*;
use crate::ledger::SqliteLedger;
use std::time::Instant;
use timelake_engine::ports::JobStore;
use timelake_model::Kind;
use timelake_testkit::ManualClock;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::default())
}
fn open(path: &Path) -> Result<SqliteLedger> {
    SqliteLedger::open_waiting(path, clock(), Duration::from_millis(50))
}
fn refused(path: &Path) -> Error {
    match open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

#[test]
fn a_file_is_made_once_and_opened_again_with_its_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    for _ in 0..2 {
        let ledger = open(&path).unwrap();
        let connection = ledger.database.connection();
        let text =
            |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
        use rusqlite::types::Value::{Integer, Text};
        assert_eq!(text("journal_mode"), Text("wal".into()));
        assert_eq!(text("synchronous"), Integer(2));
        assert_eq!(text("foreign_keys"), Integer(1));
        assert_eq!(text("user_version"), Integer(SCHEMA_VERSION));
    }
}

#[test]
fn many_first_openers_make_one_ledger() {
    for _ in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    SqliteLedger::open(&path, clock()).map(|_| ()).unwrap()
                });
            }
        });
        open(&path).unwrap();
    }
}

#[test]
fn a_newer_ledger_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    drop(open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    let error = refused(&path);
    assert_eq!((error.kind, error.reason), (Kind::Invalid, Reason::LedgerTooNew));
    assert!(error.message.contains("version 2") && error.hint.is_some(), "{error:?}");
}

#[test]
fn another_database_is_no_ledger_and_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE iceberg_tables (a)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = refused(&path);
    assert_eq!((error.kind, error.reason), (Kind::Corrupt, Reason::LedgerDamaged));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn damage_is_said_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    let error = refused(&path);
    assert_eq!((error.kind, error.reason), (Kind::Corrupt, Reason::LedgerDamaged));
    assert_eq!(error.place.file.as_deref(), path.to_str());

    // A page that is found damaged later, and a record that is no longer JSON.
    std::fs::remove_file(&path).unwrap();
    let ledger = open(&path).unwrap();
    ledger.database.connection().execute_batch("INSERT INTO jobs VALUES ('j', 1, 't', 0, '{\"job\": 5')").unwrap();
    let error = ledger.jobs(None).await.unwrap_err();
    assert_eq!((error.kind, error.reason, error.place.file.as_deref()), (Kind::Corrupt, Reason::LedgerDamaged, path.to_str()));
    drop(ledger);
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 8192, "closing moves the log into the file");
    bytes[4096..].fill(0xab);
    std::fs::write(&path, bytes).unwrap();
    let ledger = open(&path).unwrap();
    let error = ledger.jobs(None).await.unwrap_err();
    assert_eq!((error.kind, error.reason), (Kind::Corrupt, Reason::LedgerDamaged), "{error:?}");
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_is_unavailable_and_readers_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let ledger = open(&path).unwrap();
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let key = serde_json::from_value(serde_json::json!({"job": "j", "gen": 1, "phase": "write", "group": "all", "round": 0})).unwrap();
    let started = Instant::now();
    let error = ledger.close_round(&key).await.unwrap_err();
    assert_eq!((error.kind, error.reason, error.exit_code()), (Kind::Unavailable, Reason::LedgerBusy, 5));
    assert!(started.elapsed() >= Duration::from_millis(50) * BUSY_TRIES, "each try waits");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(ledger.jobs(None).await.unwrap(), []);
    holder.execute_batch("ROLLBACK").unwrap();
    ledger.close_round(&key).await.unwrap();
}

#[test]
fn a_folder_that_is_not_there_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(&folder.path().join("absent/ledger.db"));
    assert_eq!((error.kind, error.reason), (Kind::Unavailable, Reason::StorageUnavailable));
    assert!(error.hint.is_some());
}

/// A failure inside a transaction leaves nothing of it.
#[tokio::test]
async fn a_failed_transaction_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder.path().join("ledger.db")).unwrap();
    let outcome: Result<()> = ledger
        .database
        .write(|t| {
            t.execute("INSERT INTO jobs VALUES ('j', 1, 't', 0, '{}')", [])?;
            Err(Error::internal("after the first statement").into())
        })
        .await;
    assert!(outcome.is_err());
    let rows: i64 = ledger.database.connection().query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}
