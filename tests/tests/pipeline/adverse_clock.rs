//! A clock that was set back, between two commands or while one runs: the job comes to its end, leases of dead processes
//! hold nobody up, and no time of the table ever goes back.

use crate::adverse_disk::{assert_goes_on, text_lab};
use crate::sensors::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use timelake_tests::{Faults, Lab, split_words};

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;
const LOAD: &str = "backfill iot.sensor --from in --json";
/// No lease is waited for: they end later than this.
const SOON: Duration = Duration::from_secs(15);

/// Times of the table's logs never go back, and none is after its last change.
#[track_caller]
fn assert_times(lab: &Lab) {
    let table = lab.inspect();
    let times = |list: &Value| list.as_array().unwrap().iter().map(|t| t.as_i64().unwrap()).collect::<Vec<_>>();
    let snapshots: Vec<i64> = table["snapshots"].as_array().unwrap().iter().map(|s| s["time_ms"].as_i64().unwrap()).collect();
    let (history, metadata) = (times(&table["times_ms"]["history"]), times(&table["times_ms"]["metadata"]));
    let last = table["times_ms"]["last_updated"].as_i64().unwrap();
    for log in [&history, &metadata, &snapshots] {
        assert!(log.is_sorted() && log.iter().all(|time| *time <= last), "a time goes back: {log:?}, last change {last}");
    }
    assert!(!history.is_empty() && metadata.len() > 2, "{table}");
}

#[test]
fn set_back_while_a_job_runs() {
    // The file whose writing comes just before the commit in question: branches, staging, publishing, and between them.
    let moments = ["/land.json", "/plan.json", "/data/", "/metadata/snap-", "-pub-", "/catalog.db-journal", "/manifest.json"];
    for back in [HOUR, YEAR] {
        for moment in moments {
            let (lab, rows) = text_lab();
            let start = Instant::now();
            let done = lab.timelake_under(&Faults::clock_from(moment, -back), &split_words(LOAD)).manifest();
            assert_eq!(done["state"], json!("PUBLISHED"), "{moment}: {done}");
            assert!(start.elapsed() < SOON, "{moment}, {back} s back: {:?}", start.elapsed());
            assert_times(&lab);
            assert_goes_on(&lab, &rows);
        }
    }
}

#[test]
fn set_back_between_two_commands() {
    for back in [40, HOUR, YEAR] {
        let (lab, rows) = text_lab();
        let job = job_of(&lab.timelake(&split_words(&format!("{LOAD} --stage-only"))).manifest());
        let published = lab.timelake_under(&Faults::clock(-back), &split_words(&format!("backfill publish {job} --json"))).manifest();
        assert_eq!(published["state"], json!("PUBLISHED"));
        assert_times(&lab);
        // The clock did go back: the ledger says when the job was changed.
        let listed = lab.timelake(&split_words("backfill list --json")).success().json()["jobs"][0].clone();
        assert!(listed["updated"].as_str() < listed["created"].as_str(), "{listed}");

        let later = readings(10..=10, &["c"]);
        write_readings(&lab, "later/one.parquet", &later);
        lab.timelake_under(&Faults::clock(-back), &split_words("backfill iot.sensor --from later --json")).manifest();
        lab.timelake_under(&Faults::clock(-back), &split_words("table contract iot.sensor --retention P30Y --json")).success();
        assert_times(&lab);
        lab.assert_rows(&[rows, later].concat());
    }
}

#[test]
fn set_back_after_a_process_was_killed() {
    for boundary in ["branches-committed", "messages-sent", "attempt-begun", "unit-ended", "stage-committed", "publish-committed"] {
        for back in [40, YEAR] {
            let (lab, rows) = text_lab();
            let killed = lab.start_failing(&split_words(LOAD), &format!("kill:{boundary}:1")).wait();
            assert_eq!(killed.code, None, "{boundary}: {killed}");
            let start = Instant::now();
            let done = lab.timelake_under(&Faults::clock(-back), &split_words(LOAD)).manifest();
            assert_eq!(done["state"], json!("PUBLISHED"), "{boundary}: {done}");
            assert!(start.elapsed() < SOON, "{boundary}, {back} s back: {:?}", start.elapsed());
            assert_times(&lab);
            assert_goes_on(&lab, &rows);
        }
    }
}

#[test]
fn set_back_before_a_cancel() {
    let (lab, rows) = text_lab();
    let job = job_of(&lab.timelake(&split_words(&format!("{LOAD} --stage-only"))).manifest());
    lab.timelake_under(&Faults::clock(-YEAR), &split_words(&format!("backfill cancel {job} --json"))).success();
    lab.assert_rows(&[]);
    assert_times(&lab);
    lab.timelake_under(&Faults::clock(-YEAR), &split_words(LOAD)).manifest();
    assert_goes_on(&lab, &rows);
}
