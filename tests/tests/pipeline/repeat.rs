//! Whatever is repeated, killed or stopped: no row twice, no row lost.

use crate::sensors::*;
use serde_json::{Value, json};
use std::time::Duration;
use timelake_tests::{Lab, Outcome};

const FROM: &str = "--from in";
const DEVICES: usize = 40;
const FILES: u32 = 14;
/// What a big run loads: readings, and as many deliveries again for one file in seven.
const ROWS: u64 = FILES as u64 * 1_440 * DEVICES as u64 / 5;

/// Two weeks of five-minute readings of 40 devices, one file per day, some delivered twice; a unit per few days.
fn big_lab() -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts),bucket(2,device_id)");
    let devices: Vec<String> = (0..DEVICES).map(|d| format!("site-{}/sensor-{d:03}", d % 4)).collect();
    for day in 1..=FILES {
        let mut rows = Vec::new();
        for minute in (0..1_440).step_by(5) {
            rows.extend(devices.iter().enumerate().map(|(i, d)| reading(day, minute, d, (i as u32 + minute + day) as f64)));
        }
        write_readings(&lab, &format!("in/day-{day:02}.parquet"), &rows);
        if day % 7 == 0 {
            write_readings(&lab, &format!("in/day-{day:02}-again.parquet"), &rows);
        }
    }
    lab
}

fn value_sum() -> f64 {
    let mut sum = 0u64;
    for day in 1..=u64::from(FILES) {
        for minute in (0..1_440u64).step_by(5) {
            sum += (0..DEVICES as u64).map(|i| i + minute + day).sum::<u64>();
        }
    }
    sum as f64
}

#[track_caller]
fn assert_complete(lab: &Lab) {
    for engine in ["pyiceberg", "duckdb"] {
        let found = lab.reader(json!({"command": "summary", "engine": engine}));
        assert_eq!((&found["rows"], &found["keys"]), (&json!(ROWS), &json!(ROWS)), "{engine}: {found}");
        assert_eq!(found["value_sum"].as_f64(), Some(value_sum()), "{engine}");
    }
    let table = lab.inspect();
    let tags: Vec<String> = ref_names(&table).into_iter().filter(|r| r.starts_with("timelake/published/")).collect();
    assert_eq!(tags.len(), 1, "published exactly once: {tags:?}");
    assert!(!ref_names(&table).iter().any(|r| r.starts_with("backfill/")), "{}", table["refs"]);
    assert_eq!(locks(&table), Vec::<String>::new());
    let paths: std::collections::BTreeSet<&str> = table["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths.len(), table["files"].as_array().unwrap().len(), "a file is listed twice");
}

#[track_caller]
fn assert_already_published(lab: &Lab, arguments: &str) {
    let before = lab.inspect();
    let again = lab.backfill(arguments);
    assert_eq!(
        (&again["already_published"], &again["published"], &again["rows_written"]),
        (&json!(true), &json!(false), &json!(0)),
        "{again}"
    );
    assert_eq!(lab.inspect()["metadata_location"], before["metadata_location"]);
}

#[test]
fn the_same_command_twice_changes_nothing() {
    let lab = big_lab();
    let first = lab.backfill(FROM);
    assert_eq!(first["rows_written"], json!(ROWS), "{first}");
    assert_eq!(first["duplicates_collapsed"], json!(ROWS / u64::from(FILES) * 2), "{first}");
    assert_complete(&lab);
    assert_already_published(&lab, FROM);
    // Only options that do not decide the rows differ: still the same job.
    assert_already_published(&lab, "--from in --threads 2 --memory 500MB");
    assert_complete(&lab);
}

#[test]
fn two_at_once_load_once() {
    let lab = big_lab();
    let (one, two) = (lab.start_backfill(FROM), lab.start_backfill(FROM));
    let outcomes = [one.wait(), two.wait()];
    for outcome in &outcomes {
        assert!(matches!(outcome.code, Some(0) | Some(6)), "{outcome}");
        if outcome.code == Some(6) {
            assert_eq!(outcome.error(6)["reason"], json!("job_running_elsewhere"));
        }
    }
    assert!(outcomes.iter().any(|o| o.code == Some(0)), "one of the two does the work");
    assert_complete(&lab);
    assert_already_published(&lab, FROM);
}

#[test]
fn two_different_jobs_at_once_both_get_in() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let (early, late) = (readings(1..=5, &["d1", "d2"]), readings(10..=15, &["d1", "d2"]));
    write_readings(&lab, "early/a.parquet", &early);
    write_readings(&lab, "late/a.parquet", &late);
    let window = |from: &str, to: &str, folder: &str| format!("--from {folder} --start {from} --end {to}");
    let runs =
        [lab.start_backfill(&window("2024-05-01", "2024-05-06", "early")), lab.start_backfill(&window("2024-05-10", "2024-05-16", "late"))];
    for run in runs {
        let manifest = run.wait().manifest();
        assert_eq!(manifest["published"], json!(true), "{manifest}");
    }
    lab.assert_rows(&[early, late].concat());
}

#[test]
fn killed_at_any_moment_then_the_same_command() {
    let lab = big_lab();
    let mut killed = 0;
    for delay_ms in [3, 40, 90, 15, 160, 60, 250, 120, 400, 30, 600] {
        let mut run = lab.start_backfill(FROM);
        std::thread::sleep(Duration::from_millis(delay_ms));
        if run.is_running() {
            killed += 1;
            run.kill();
        } else {
            run.wait().manifest();
        }
    }
    assert!(killed > 0, "every run was over before it could be killed");
    let last = lab.backfill(FROM);
    assert_eq!(last["state"], json!("PUBLISHED"), "{last}");
    assert_complete(&lab);
    assert_already_published(&lab, FROM);
}

#[test]
fn killed_at_seeded_moments_in_fresh_lakes() {
    // The whole of a run is somewhere between start and end: cut it at every eighth.
    let lab = big_lab();
    let start = std::time::Instant::now();
    lab.backfill(FROM);
    let whole = start.elapsed();
    for eighth in 1..8 {
        let lab = big_lab();
        let run = lab.start_backfill(FROM);
        std::thread::sleep(whole * eighth / 8);
        run.kill();
        let manifest = lab.backfill(FROM);
        assert_eq!(manifest["state"], json!("PUBLISHED"), "cut at {eighth}/8: {manifest}");
        assert_complete(&lab);
    }
}

#[test]
fn interrupted_then_resumed() {
    let words = timelake_tests::split_words(&format!("backfill iot.sensor {FROM} --json"));
    for boundary in ["inventory-stored", "messages-sent", "unit-ended", "group-staged"] {
        let lab = big_lab();
        let run = lab.start_held(&words, boundary);
        run.interrupt();
        lab.release(boundary);
        let outcome = run.wait();
        let error = outcome.error(130);
        assert_eq!(error["reason"], json!("interrupted"), "{boundary}: {error}");
        assert!(error["hint"].is_string(), "{error}");
        let manifest = lab.backfill(FROM);
        assert_eq!(manifest["state"], json!("PUBLISHED"), "{boundary}: {manifest}");
        assert_complete(&lab);
    }
}

fn staged() -> (Lab, String, Vec<Value>) {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let rows = readings(1..=3, &["d1"]);
    write_readings(&lab, "in/a.parquet", &rows);
    let manifest = lab.backfill("--from in --stage-only");
    (lab, job_of(&manifest), rows)
}

#[test]
fn the_same_command_publishes_a_staged_job() {
    let (lab, job, rows) = staged();
    let manifest = lab.backfill(FROM);
    assert_eq!((job_of(&manifest), &manifest["published"]), (job, &json!(true)), "{manifest}");
    lab.assert_rows(&rows);
    assert_already_published(&lab, FROM);
}

#[test]
fn cancelled_then_loaded_again_as_a_new_generation() {
    let (lab, job, rows) = staged();
    let cancelled = lab.job("cancel", &job).success().json();
    assert_eq!(cancelled["state"], json!("CANCELLED"), "{cancelled}");
    let table = lab.inspect();
    assert_eq!(ref_names(&table), ["main"]);
    assert_eq!(locks(&table), Vec::<String>::new());
    lab.assert_rows(&[]);
    let refused: Outcome = lab.job("publish", &job);
    assert!(matches!(refused.code, Some(2) | Some(4)), "a cancelled job is not published\n{refused}");
    lab.assert_rows(&[]);

    let manifest = lab.backfill(FROM);
    assert_eq!((job_of(&manifest), &manifest["gen"]), (job.clone(), &json!(2)), "{manifest}");
    lab.assert_rows(&rows);
    assert!(lab.inspect()["refs"][format!("timelake/published/{job}/2/all")].is_object());
    let late = lab.job("cancel", &job);
    assert_ne!(late.code, Some(1), "{late}");
    lab.assert_rows(&rows);
}

#[test]
fn again_loads_a_published_job_once_more_and_existing_rows_win() {
    let (lab, job, rows) = staged();
    lab.job("publish", &job).manifest();
    let again = lab.backfill("--from in --again");
    assert_eq!((&again["gen"], &again["already_published"], &again["rows_written"]), (&json!(2), &json!(false), &json!(0)), "{again}");
    assert_eq!(again["kept_existing"], json!(rows.len()), "{again}");
    lab.assert_rows(&rows);
}

#[test]
fn a_changed_source_is_a_new_job() {
    let (lab, job, rows) = staged();
    let more = readings(1..=4, &["d1"]);
    write_readings(&lab, "in/a.parquet", &more);
    let stopped = lab.backfill_outcome(FROM);
    let error = stopped.error(4);
    assert_eq!(error["reason"], json!("older_job_unfinished"), "{error}");
    assert!(error.to_string().contains(&job), "it names the older job: {error}");
    lab.job("cancel", &job).success();
    let manifest = lab.backfill(FROM);
    assert_ne!(job_of(&manifest), job);
    lab.assert_rows(&more);
    assert!(rows.len() < more.len());
}

#[test]
fn main_set_back_is_found_out() {
    let (lab, job, rows) = staged();
    lab.job("publish", &job).manifest();
    let before = lab.inspect()["history"][0].clone();
    lab.append(&readings(9..=9, &["d9"]));
    lab.reader(json!({"command": "set_main", "snapshot": before}));
    lab.assert_rows(&[]);
    let error = lab.backfill_outcome(FROM).error(4);
    assert_eq!(error["reason"], json!("main_set_back"), "{error}");
    assert!(error["hint"].as_str().is_some_and(|h| h.contains("--again")), "{error}");
    lab.backfill("--from in --again");
    lab.assert_rows(&rows);
}

/// Also by a run that learns only then that one before it had published.
#[test]
fn main_set_back_after_a_publish_that_was_killed_is_found_out() {
    let (lab, job, rows) = staged();
    let before = lab.inspect()["history"][0].clone();
    let words = ["backfill", "publish", job.as_str(), "--json"];
    assert_eq!(lab.start_failing(&words, "kill:publish-committed:1").wait().code, None);
    assert_eq!(lab.job("status", &job).success().json()["job"]["state"], "STAGED");
    lab.assert_rows(&rows);
    lab.append(&readings(9..=9, &["d9"]));
    lab.reader(json!({"command": "set_main", "snapshot": before}));
    for _ in 0..2 {
        let error = lab.backfill_outcome(FROM).error(4);
        assert_eq!(error["reason"], json!("main_set_back"), "{error}");
        assert_eq!(lab.job("status", &job).success().json()["job"]["state"], "PUBLISHED");
    }
    lab.assert_rows(&[]);
    lab.backfill("--from in --again");
    lab.assert_rows(&rows);
}

#[test]
fn list_status_and_report_tell_of_a_job() {
    let (lab, job, rows) = staged();
    let listed = lab.timelake(&["backfill", "list", "--json"]).success().stdout;
    assert!(listed.contains(&job) && listed.contains("STAGED"), "{listed}");
    let status = lab.job("status", &job).success().json();
    assert!(status["next"].as_str().is_some_and(|n| n.contains("publish")), "{status}");
    let published = lab.job("publish", &job).manifest();
    let report = lab.job("report", &job).success().json();
    for field in ["job", "gen", "state", "rows_read", "rows_written", "key_hash", "column_sums", "window"] {
        assert_eq!(report[field], published[field], "{field}");
    }
    let stored: Value = serde_json::from_slice(&std::fs::read(lab.path(&format!("lake/jobs/{job}/manifest.json"))).unwrap()).unwrap();
    assert_eq!(stored["rows_written"], json!(rows.len()));
    let text = lab.timelake(&["backfill", "report", &job]).success().stdout;
    assert!(text.contains(&job) && text.contains("PUBLISHED"), "{text}");
    let unknown = lab.job("status", "no-such-job").error(2);
    assert_eq!(unknown["reason"], json!("job_not_found"), "{unknown}");
}
