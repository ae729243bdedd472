//! The SQLite ledger against the contract of every ledger, over two connections to one file; and over processes of
//! which one is killed.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use timelake_engine::ports::{Clock, EndOutcome, JobStore, UnitQueue, UnitSender};
use timelake_local::{SqliteLedger, SystemClock};
use timelake_model::AttemptId;
use timelake_model::ledger::UnitState;
use timelake_testkit::ManualClock;
use timelake_testkit::ledger_suite::{Fixture, done, job_record, message, plan_record, round_key};

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let open = || Arc::new(SqliteLedger::open(&folder.path().join("ledger.db"), clock.clone()).unwrap());
    let (ledger, second) = (open(), open());
    Fixture { keep: Box::new(folder), ..Fixture::of(ledger, second, clock) }
}

timelake_testkit::ledger_suite!(sqlite, sqlite_queue, fixture);

const LEDGER_VARIABLE: &str = "TIMELAKE_TEST_LEDGER";
const UNITS: u32 = 150;
const LEASE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn open(path: &Path) -> SqliteLedger {
    SqliteLedger::open(path, Arc::new(SystemClock)).unwrap()
}

fn start_worker(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["worker_process", "--exact", "--ignored", "--nocapture"])
        .env(LEDGER_VARIABLE, path)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn processes_share_a_ledger_and_one_may_be_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let (ledger, key) = (open(&path), round_key(1, 0));
    ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let plan = ledger.put_plan(&plan_record(&key, 0..UNITS, 2)).await.unwrap();
    ledger.open_round(&plan, 77).await.unwrap();
    ledger.send(&(0..UNITS).map(|unit| message(&key, unit)).collect::<Vec<_>>()).await.unwrap();
    let remaining = async || ledger.counters(&key).await.unwrap().iter().map(|c| c.remaining).sum::<u32>();

    let started = Instant::now();
    let mut killed = start_worker(&path);
    while remaining().await > UNITS - 20 {
        assert!(started.elapsed() < PATIENCE, "the first worker does nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    killed.kill().unwrap(); // SIGKILL in the middle of its work
    killed.wait().unwrap();
    assert!(remaining().await > 0, "it was killed before the end");
    for mut worker in [start_worker(&path), start_worker(&path)] {
        assert!(worker.wait().unwrap().success());
    }

    assert_eq!((remaining().await, ledger.depth(&key.job).await.unwrap()), (0, 0));
    let units = ledger.units(&key.job, 1, key.phase, &key.group).await.unwrap();
    assert_eq!(units.len(), UNITS as usize);
    for unit in &units {
        assert_eq!(unit.state, UnitState::Done);
        assert!(unit.attempts.contains(unit.win.as_ref().unwrap()), "unit {}", unit.unit);
    }
    let rows: u64 = ledger.counters(&key).await.unwrap().iter().map(|c| c.rows).sum();
    assert_eq!(rows, units.iter().map(|u| u.rows).sum::<u64>());
}

#[tokio::test]
#[ignore = "the other side of processes_share_a_ledger_and_one_may_be_killed"]
async fn worker_process() {
    let Some(path) = std::env::var_os(LEDGER_VARIABLE) else { return };
    let (ledger, key, started) = (open(Path::new(&path)), round_key(1, 0), Instant::now());
    while started.elapsed() < PATIENCE {
        let Some(claim) = ledger.claim(Some(&key.job), "worker", LEASE).await.unwrap() else {
            if ledger.depth(&key.job).await.unwrap() == 0 {
                return;
            }
            tokio::time::sleep(LEASE / 10).await; // what a killed worker held
            continue;
        };
        let (unit, attempt) = (claim.message.unit, AttemptId(format!("{:016x}", SystemClock.random())));
        if ledger.begin_attempt(&key, unit, &attempt).await.unwrap() {
            let outcome = ledger.end_unit(&key, unit, &attempt, &done(&key, unit, &attempt)).await.unwrap();
            assert_ne!(outcome, EndOutcome::Fenced);
        }
        ledger.ack(&claim).await.unwrap();
    }
    panic!("the queue does not get empty");
}
