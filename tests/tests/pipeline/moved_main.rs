//! Publishing onto a `main` that a live writer moved between staging and publishing.

use crate::sensors::*;
use serde_json::{Value, json};
use timelake_tests::{Lab, Outcome};

const FROM: &str = "--from in/history.parquet";

/// A table with live rows of d1 on 4 May, and a staged job with 1 to 3 May of d1 and d2, and 4 May of d2.
struct Staged {
    lab: Lab,
    job: String,
    live: Vec<Value>,
    history: Vec<Value>,
}

impl Staged {
    fn new() -> Staged {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts)");
        let live = readings(4..=4, &["d1"]);
        lab.append(&live[..20]);
        lab.append(&live[20..]);
        let mut history = readings(1..=3, &["d1", "d2"]);
        history.extend(readings(4..=4, &["d2"]));
        write_readings(&lab, "in/history.parquet", &history);
        let manifest = lab.backfill(&format!("{FROM} --stage-only"));
        assert_eq!((&manifest["state"], &manifest["published"]), (&json!("STAGED"), &json!(false)), "{manifest}");
        Staged { job: job_of(&manifest), lab, live, history }
    }
    fn publish(&self) -> Outcome {
        self.lab.job("publish", &self.job)
    }
    fn all_rows(&self) -> Vec<Value> {
        self.live.iter().chain(&self.history).cloned().collect()
    }
    /// Publishes, checks what is left behind and the rows.
    #[track_caller]
    fn published_with(&self, rows: &[Value]) -> Value {
        let before = self.lab.inspect();
        let staged = before["refs"][format!("backfill/{}", self.job)]["snapshot"].clone();
        let manifest = self.publish().manifest();
        assert_eq!((&manifest["state"], &manifest["published"]), (&json!("PUBLISHED"), &json!(true)), "{manifest}");
        // The staged snapshot goes away with the publish, so it does not count as one that was there.
        let mut kept = before.clone();
        kept["snapshots"].as_array_mut().unwrap().retain(|s| s["id"] != staged);
        assert_published(&self.lab, &self.job, 1, &kept);
        let after = self.lab.inspect();
        assert!(after["snapshots"].as_array().unwrap().iter().all(|s| s["id"] != staged), "the staged snapshot is still there");
        self.lab.assert_rows(rows);
        manifest
    }
}

#[test]
fn a_staged_job_is_a_branch_and_a_lock_and_main_is_as_it_was() {
    let s = Staged::new();
    let table = s.lab.inspect();
    let branch = format!("backfill/{}", s.job);
    assert_eq!(table["refs"][&branch]["type"], json!("branch"), "{}", table["refs"]);
    assert_ne!(table["refs"][&branch]["snapshot"], table["current_snapshot"]);
    assert_eq!(locks(&table), [format!("timelake.lock.{}", s.job)]);
    s.lab.assert_rows(&s.live);
    let on_branch = s.lab.reader(json!({"command": "read", "engine": "pyiceberg", "ref": branch}));
    assert_eq!(on_branch.as_array().unwrap().len(), s.live.len() + s.history.len());
    let verdict = s.lab.job("validate", &s.job).success().json();
    assert_eq!(verdict["verdict"], json!("approved"), "{verdict}");
    assert!(verdict["checks"].as_array().is_some_and(|c| !c.is_empty()), "{verdict}");
    let full = s.lab.timelake(&["backfill", "validate", &s.job, "--verify", "full", "--json"]).success().json();
    assert_eq!(full["verdict"], json!("approved"), "{full}");
    s.lab.assert_rows(&s.live);
}

#[test]
fn onto_an_unmoved_main() {
    let s = Staged::new();
    let manifest = s.published_with(&s.all_rows());
    assert_eq!(manifest["rows_written"], json!(s.history.len()));
    assert_eq!(manifest["kept_existing"], json!(0));
}

#[test]
fn live_rows_in_the_window_without_a_clash_stay() {
    let s = Staged::new();
    let arrived = readings(2..=2, &["d9"]);
    s.lab.append(&arrived);
    let rows = [s.all_rows(), arrived].concat();
    let manifest = s.published_with(&rows);
    assert_eq!((&manifest["rows_written"], &manifest["kept_existing"]), (&json!(s.history.len()), &json!(0)), "{manifest}");
}

#[test]
fn live_rows_with_the_same_keys_win() {
    let s = Staged::new();
    // Two keys of the job with another value, one with the same value, and one free key, in two commits.
    let arrived = [
        reading(2, 0, "d1", -1.0),
        reading(2, 30, "d1", -2.0),
        s.history.iter().find(|r| **r == reading(3, 60, "d2", 3.0 + 2.0 / 64.0 + 100.0)).expect("a row of the job").clone(),
        reading(2, 1, "d1", -3.0),
    ];
    s.lab.append(&arrived[..2]);
    s.lab.append(&arrived[2..]);
    let mut rows = s.all_rows();
    rows.retain(|r| !arrived.iter().any(|a| a["ts"] == r["ts"] && a["device_id"] == r["device_id"]));
    rows.extend(arrived.iter().cloned());
    let manifest = s.published_with(&rows);
    assert_eq!(manifest["rows_written"], json!(s.history.len() - 3), "{manifest}");
    assert_eq!((&manifest["kept_existing"], &manifest["kept_existing_different"]), (&json!(3), &json!(2)), "{manifest}");
    assert!(manifest["groups"][0]["rederived"].as_u64().unwrap() >= 1, "{manifest}");
}

#[test]
fn every_row_of_the_job_loses() {
    let s = Staged::new();
    let mut arrived = s.history.clone();
    arrived.iter_mut().for_each(|r| r["value"] = json!(-5.0));
    s.lab.append(&arrived);
    let before = s.lab.inspect();
    let manifest = s.publish().manifest();
    assert_eq!((&manifest["published"], &manifest["rows_written"]), (&json!(false), &json!(0)), "{manifest}");
    assert_eq!(manifest["kept_existing_different"], json!(s.history.len()), "{manifest}");
    let after = s.lab.inspect();
    assert_eq!(after["current_snapshot"], before["current_snapshot"], "nothing to publish, no commit on main");
    assert_eq!(ref_names(&after), ["main"]);
    assert_eq!(locks(&after), Vec::<String>::new());
    s.lab.assert_rows(&[s.live.clone(), arrived].concat());
}

#[test]
fn live_rows_outside_the_window() {
    let s = Staged::new();
    let arrived = readings(20..=20, &["d1", "d2"]);
    s.lab.append(&arrived);
    s.published_with(&[s.all_rows(), arrived].concat());
}

#[test]
fn a_compaction_in_one_commit_keeps_the_job_publishable() {
    let s = Staged::new();
    s.lab.reader(json!({"command": "compact"}));
    s.published_with(&s.all_rows());
}

#[test]
fn a_compaction_in_two_commits_keeps_the_job_publishable() {
    let s = Staged::new();
    s.lab.reader(json!({"command": "compact", "commits": 2}));
    s.published_with(&s.all_rows());
}

#[test]
fn a_compaction_and_a_clash_together() {
    let s = Staged::new();
    let arrived = reading(3, 0, "d2", -7.0);
    s.lab.append(std::slice::from_ref(&arrived));
    s.lab.reader(json!({"command": "compact"}));
    let mut rows = s.all_rows();
    rows.retain(|r| !(r["ts"] == arrived["ts"] && r["device_id"] == arrived["device_id"]));
    rows.push(arrived);
    let manifest = s.published_with(&rows);
    assert_eq!(manifest["kept_existing"], json!(1), "{manifest}");
}

#[test]
fn deleted_live_rows_that_the_job_did_not_meet_do_not_matter() {
    let s = Staged::new();
    // Copy-on-write: one row of a file goes, the rest of the file is rewritten.
    let gone = s.live[0].clone();
    s.lab.reader(json!({"command": "delete", "filter": [{"column": "ts", "op": "eq", "value": gone["ts"]}]}));
    let rows: Vec<Value> = s.all_rows().into_iter().filter(|r| r["ts"] != gone["ts"] || r["device_id"] != gone["device_id"]).collect();
    let manifest = s.publish().manifest();
    assert_eq!(manifest["groups"][0]["rederived"], json!(0), "{manifest}");
    s.lab.assert_rows(&rows);
}

#[test]
fn a_changed_property_does_not_disturb() {
    let s = Staged::new();
    s.lab.reader(json!({"command": "set_property", "properties": {"owner": "plant-7"}}));
    s.published_with(&s.all_rows());
    assert_eq!(s.lab.inspect()["properties"]["owner"], json!("plant-7"));
}

#[test]
fn a_removed_branch_is_not_made_again() {
    let s = Staged::new();
    s.lab.reader(json!({"command": "remove_branch", "name": format!("backfill/{}", s.job)}));
    let error = s.publish().error(4);
    assert!(error["hint"].is_string(), "{error}");
    s.lab.assert_rows(&s.live);
    assert_eq!(ref_names(&s.lab.inspect()), ["main"]);
}

#[test]
fn publishing_twice_says_so_and_changes_nothing() {
    let s = Staged::new();
    s.published_with(&s.all_rows());
    let before = s.lab.inspect();
    let again = s.publish().manifest();
    assert_eq!((&again["published"], &again["already_published"]), (&json!(false), &json!(true)), "{again}");
    assert_eq!(s.lab.inspect()["metadata_location"], before["metadata_location"]);
}

#[test]
fn an_overlapping_unfinished_window_is_refused() {
    let s = Staged::new();
    write_readings(&s.lab, "in/other.parquet", &readings(3..=6, &["d5"]));
    let error = s.lab.backfill_outcome("--from in/other.parquet").error(4);
    assert_eq!(error["reason"], json!("window_locked"), "{error}");
    s.lab.assert_rows(&s.live);
    // Once the first is published, the second goes in.
    s.published_with(&s.all_rows());
    s.lab.backfill("--from in/other.parquet");
    s.lab.assert_rows(&[s.all_rows(), readings(3..=6, &["d5"])].concat());
}

#[test]
fn live_rows_arrive_all_the_time_while_the_job_runs() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let history = readings(1..=10, &["d1", "d2", "d3"]);
    write_readings(&lab, "in/history.parquet", &history);
    let mut running = lab.start_backfill(FROM);
    let mut arrived = Vec::new();
    for minute in 0..40 {
        if !running.is_running() {
            break;
        }
        // Every second one has a key of the job.
        let row = reading(5, minute * 15, "d1", -f64::from(minute) - 1.0);
        lab.append(std::slice::from_ref(&row));
        arrived.push(row);
    }
    let outcome = running.wait();
    // Live writers may be quicker than every retry; then the job stands on HOLD and is published when they pause.
    let manifest = if outcome.code == Some(4) { lab.backfill(FROM) } else { outcome.manifest() };
    assert_eq!(manifest["published"], json!(true), "{manifest}");
    let read = lab.rows("pyiceberg");
    let key = |r: &Value| (r["device_id"].to_string(), r["ts"].to_string());
    let mut keys: Vec<_> = read.iter().map(key).collect();
    keys.sort();
    let count = keys.len();
    keys.dedup();
    // A live writer that appends after the publish may bring a key again: only those may be there twice.
    let arrived_keys: Vec<_> = arrived.iter().map(key).collect();
    let mut all: Vec<_> = history.iter().map(key).chain(arrived_keys.clone()).collect();
    all.sort();
    all.dedup();
    assert_eq!(keys, all, "no key is lost");
    assert!(count - keys.len() <= arrived.len());
    assert_eq!(
        count as u64,
        manifest["rows_written"].as_u64().unwrap() + arrived.len() as u64,
        "rows of main = rows of the job + live rows"
    );
    assert_eq!(lab.rows("duckdb").len(), count);
}
