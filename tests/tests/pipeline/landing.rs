//! Landing cut short at any moment, given up, run into a source that changed: the same command again ends as if
//! nothing had been, and what landing leaves behind is removed when it is not needed any more.

use crate::sensors::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use timelake_tests::{Lab, Running};

const FILES: usize = 4;
const ROWS_PER_FILE: usize = 350_000;
const DEVICES: usize = 50;
const FROM: &str = "--from in --threads 1";

/// Text that takes a while to land; minutes of May and June 2024.
fn slow_lab() -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table("--partition month(ts)");
    std::fs::create_dir_all(lab.path("in")).unwrap();
    for file in 0..FILES {
        let mut text = String::from("ts,device_id,value,quality\n");
        for row in 0..ROWS_PER_FILE {
            let index = file * ROWS_PER_FILE + row;
            let minute = index / DEVICES;
            let time = timelake_model::TimestampUs((28_575_360 + minute as i64) * 60_000_000).short();
            text.push_str(&format!("{time},d{:02},{}.25,0\n", index % DEVICES, index % 1_000));
        }
        std::fs::write(lab.path(&format!("in/{file}.csv")), text).unwrap();
    }
    lab
}

fn value_sum() -> f64 {
    (0..FILES * ROWS_PER_FILE).map(|index| (index % 1_000) as f64 + 0.25).sum()
}

#[track_caller]
fn assert_complete(lab: &Lab) {
    let rows = FILES * ROWS_PER_FILE;
    for engine in ["pyiceberg", "duckdb"] {
        let found = lab.reader(json!({"command": "summary", "engine": engine}));
        assert_eq!((&found["rows"], &found["keys"]), (&json!(rows), &json!(rows)), "{engine}: {found}");
        assert_eq!(found["value_sum"].as_f64(), Some(value_sum()), "{engine}");
    }
}

/// All files below a folder whose name begins as those of runs do.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(runs_in(&path));
        } else if entry.file_name().to_string_lossy().starts_with("run-") {
            found.push(path);
        }
    }
    found
}

fn state_of(lab: &Lab) -> Option<(String, String)> {
    let listed = lab.timelake(&["backfill", "list", "--json"]).success().json();
    let job = listed["jobs"].as_array()?.first()?.clone();
    Some((job["job"].as_str()?.to_string(), job["state"].as_str()?.to_string()))
}

/// A command that is landing, and its job.
fn landing(lab: &Lab, options: &str) -> (Running, String) {
    let mut run = lab.start_backfill(options);
    let started = Instant::now();
    loop {
        if let Some((job, state)) = state_of(lab)
            && state == "LANDING"
        {
            return (run, job);
        }
        assert!(run.is_running() && started.elapsed() < Duration::from_secs(60), "it never was seen landing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn same_numbers(manifest: &Value, undisturbed: &Value) {
    for field in ["rows_read", "rows_written", "duplicates_collapsed", "rejected", "key_hash", "column_sums", "time_range", "state"] {
        assert_eq!(manifest[field], undisturbed[field], "{field}");
    }
}

#[test]
fn killed_while_landing_then_the_same_command() {
    let whole_lab = slow_lab();
    let started = Instant::now();
    let undisturbed = whole_lab.backfill(FROM);
    let whole = started.elapsed();
    assert_complete(&whole_lab);
    assert_eq!(runs_in(&whole_lab.lake()), Vec::<PathBuf>::new(), "runs are removed after publishing");

    let lab = slow_lab();
    let mut states = Vec::new();
    for tenth in [1, 2, 3, 1, 4, 5, 2, 6] {
        let run = lab.start_backfill(FROM);
        std::thread::sleep(whole * tenth / 10);
        run.kill();
        states.extend(state_of(&lab).map(|(_, state)| state));
    }
    assert!(states.iter().any(|state| state == "LANDING"), "{states:?}");
    let manifest = lab.backfill(FROM);
    if manifest["already_published"] != json!(true) {
        same_numbers(&manifest, &undisturbed);
    }
    assert_complete(&lab);
    assert_eq!(runs_in(&lab.lake()), Vec::<PathBuf>::new(), "losers of landing are removed too");
}

#[test]
fn interrupted_while_landing_is_said_and_goes_on() {
    let lab = slow_lab();
    let (run, job) = landing(&lab, FROM);
    run.interrupt();
    let error = run.wait().error(130);
    assert_eq!(error["reason"], json!("interrupted"), "{error}");
    assert_eq!(state_of(&lab), Some((job.clone(), "LANDING".into())));

    let status = lab.job("status", &job).success().json();
    assert_eq!(status["job"]["state"], json!("LANDING"), "{status}");
    assert!(status["next"].as_str().is_some_and(|next| !next.is_empty()), "{status}");
    let report = lab.job("report", &job).success().json();
    assert_eq!((&report["state"], &report["job"], &report["published"]), (&json!("LANDING"), &json!(job), &json!(false)), "{report}");
    for verb in ["status", "report"] {
        let text = lab.timelake(&["backfill", verb, &job]).success().stdout;
        assert!(text.contains(&job) && text.contains("LANDING"), "{verb}: {text}");
    }
    let refused = lab.job("publish", &job);
    assert_ne!(refused.code, Some(1), "{refused}");
    lab.job("resume", &job).success();
    assert_complete(&lab);
}

#[test]
fn cancelled_while_landing() {
    let lab = slow_lab();
    let (mut run, job) = landing(&lab, FROM);
    let cancelled = lab.job("cancel", &job);
    if cancelled.code == Some(6) {
        // Another process has it: it must be stopped first.
        assert!(run.is_running(), "{cancelled}");
        run.kill();
        let cancelled = lab.job("cancel", &job).success().json();
        assert_eq!(cancelled["state"], json!("CANCELLED"), "{cancelled}");
    } else {
        assert_eq!(cancelled.success().json()["state"], json!("CANCELLED"));
        let outcome = run.wait();
        assert_ne!(outcome.code, Some(0), "{outcome}");
        assert_ne!(outcome.code, Some(1), "{outcome}");
    }
    let table = lab.inspect();
    assert_eq!(locks(&table), Vec::<String>::new());
    assert!(!ref_names(&table).iter().any(|name| name.starts_with("backfill/")), "{}", table["refs"]);
    assert_eq!(lab.reader(json!({"command": "summary", "engine": "pyiceberg"}))["rows"], json!(0));
    assert_eq!(runs_in(&lab.lake()), Vec::<PathBuf>::new(), "a job that was given up needs no runs");
    let manifest = lab.backfill(FROM);
    assert_eq!((&manifest["gen"], &manifest["job"]), (&json!(2), &json!(job)), "{manifest}");
    assert_complete(&lab);
}

#[test]
fn a_source_that_changes_while_or_after_it_lands() {
    // It grows while it is read.
    let lab = slow_lab();
    let (run, _) = landing(&lab, FROM);
    let last = lab.path(&format!("in/{}.csv", FILES - 1));
    let mut text = std::fs::read_to_string(&last).unwrap();
    let original = text.clone();
    text.push_str("2024-05-01T00:00:00Z,late,1,0\n");
    std::fs::write(&last, &text).unwrap();
    let error = run.wait().error(4);
    assert_eq!(error["reason"], json!("source_changed"), "{error}");
    assert!(error["file"].as_str().is_some_and(|file| file.ends_with("3.csv")), "{error}");
    assert_eq!(lab.reader(json!({"command": "summary", "engine": "pyiceberg"}))["rows"], json!(0));
    // Nothing was written, so nothing has to be given up: the same command loads the source as it is now.
    let (older, state) = state_of(&lab).unwrap();
    assert_eq!(state, "REJECTED");
    assert_eq!(runs_in(&lab.lake()), Vec::<PathBuf>::new(), "a job that is over needs no runs");
    std::fs::write(&last, original).unwrap();
    let manifest = lab.backfill(FROM);
    assert_ne!(manifest["job"], json!(older));
    assert_complete(&lab);

    // Replaced between landing and going on: of the same size, which only its time tells.
    let lab = slow_lab();
    let (run, job) = landing(&lab, FROM);
    run.kill();
    let text = std::fs::read_to_string(lab.path("in/0.csv")).unwrap().replacen("999.25", "111.25", 1);
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(lab.path("in/0.csv"), text).unwrap();
    let error = lab.job("resume", &job).error(4);
    assert_eq!(error["reason"], json!("source_changed"), "{error}");
    assert_eq!(lab.reader(json!({"command": "summary", "engine": "pyiceberg"}))["rows"], json!(0));
    assert_ne!(lab.backfill(FROM)["job"], json!(job));
    let found = lab.reader(json!({"command": "summary", "engine": "duckdb"}));
    assert_eq!(found["value_sum"].as_f64(), Some(value_sum() - 888.0), "{found}");
}

#[test]
fn runs_that_are_gone_or_damaged_are_noticed() {
    let lab = slow_lab();
    let (run, job) = landing(&lab, FROM);
    while runs_in(&lab.lake()).len() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    run.kill();
    for run in runs_in(&lab.lake()) {
        std::fs::remove_file(run).unwrap();
    }
    let outcome = lab.backfill_outcome(FROM);
    if outcome.code != Some(0) {
        let error = outcome.error(4);
        assert_eq!((&error["reason"], &error["hint"].is_string()), (&json!("source_changed"), &true), "{error}");
        assert_eq!(lab.reader(json!({"command": "summary", "engine": "pyiceberg"}))["rows"], json!(0));
        let manifest = lab.backfill(FROM);
        assert_eq!((&manifest["job"], &manifest["gen"]), (&json!(job), &json!(2)), "{manifest}");
    }
    assert_complete(&lab);
}

#[test]
fn runs_are_where_they_are_asked_for_and_go_when_they_should() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let csv = "ts,device_id,value,quality\n2024-05-01T00:00:00Z,a,1,0\n2024-05-02T00:00:00Z,a,2,0\n";
    for name in ["kept", "away", "staged"] {
        std::fs::write(lab.path(&format!("{name}.csv")), csv.replace(",a,", &format!(",{name},"))).unwrap();
    }
    let manifest = lab.backfill("--from kept.csv --keep-runs");
    assert!(manifest["source"]["landed_bytes"].as_u64() > Some(0), "{manifest}");
    let kept = runs_in(&lab.lake());
    assert_eq!(kept.len(), 1, "{kept:?}");

    std::fs::create_dir(lab.path("scratch")).unwrap();
    lab.backfill("--from away.csv --work-dir scratch --stage-only");
    assert_eq!(runs_in(&lab.path("scratch")).len(), 1);
    assert_eq!(runs_in(&lab.lake()), kept);
    lab.backfill("--from away.csv --work-dir scratch");
    assert_eq!(runs_in(&lab.path("scratch")), Vec::<PathBuf>::new());

    // Staged: a live row makes it read its runs again before it publishes.
    let job = job_of(&lab.backfill("--from staged.csv --stage-only"));
    lab.append(&[json!({"ts": "2024-05-01T00:00:00.000000Z", "device_id": "staged", "value": 9.0, "quality": 7})]);
    let manifest = lab.job("publish", &job).manifest();
    assert_eq!(
        (&manifest["rows_written"], &manifest["kept_existing"], &manifest["published"]),
        (&json!(1), &json!(1), &json!(true)),
        "{manifest}"
    );
    assert_eq!(runs_in(&lab.lake()), kept, "runs go with the publishing");
    let row = |day: u32, device: &str, value: f64, quality: i64| json!({"ts": format!("2024-05-{day:02}T00:00:00.000000Z"), "device_id": device, "value": value, "quality": quality});
    lab.assert_rows(&[
        row(1, "kept", 1.0, 0),
        row(2, "kept", 2.0, 0),
        row(1, "away", 1.0, 0),
        row(2, "away", 2.0, 0),
        row(1, "staged", 9.0, 7),
        row(2, "staged", 2.0, 0),
    ]);

    let error = lab.backfill_outcome("--from kept.csv --work-dir nowhere/at/all --again");
    assert!(matches!(error.code, Some(0 | 2 | 5)), "{error}");
}

#[test]
fn quarantined_rows_are_listed_as_they_were_read() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    let csv = "ts,device_id,value,quality\n\
        2024-05-01T00:00:00Z,a,1,0\n\
        2024-05-01T00:01:00Z,a,\"zwei\nZeilen\",0\n\
        2024-05-01T00:02:00Z,a\n\
        2024-05-01T00:03:00Z,,3,0\n\
        gestern,a,4,0\n\
        2024-05-01T00:05:00Z,a,5,300000000000\n";
    std::fs::write(lab.path("rows.csv"), csv).unwrap();
    let manifest = lab.backfill("--from rows.csv --on-bad-row quarantine --max-bad-rows 5");
    assert_eq!((&manifest["rejected"], &manifest["rows_written"]), (&json!(5), &json!(1)), "{manifest}");
    let text = std::fs::read_to_string(lab.lake().join("jobs").join(job_of(&manifest)).join("rejected.ndjson")).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, u64, &str)> =
        rows.iter().map(|r| (r["file"].as_str().unwrap(), r["line"].as_u64().unwrap(), r["reason"].as_str().unwrap())).collect();
    assert_eq!(
        told,
        [
            ("rows.csv", 3, "bad_number"),
            ("rows.csv", 5, "field_count"),
            ("rows.csv", 6, "null_in_key"),
            ("rows.csv", 7, "bad_timestamp"),
            ("rows.csv", 8, "number_out_of_range"),
        ]
    );
    assert_eq!((&rows[0]["value"], &rows[0]["column"]), (&json!("zwei\nZeilen"), &json!("value")), "{}", rows[0]);

    let error = lab.backfill_outcome("--from rows.csv --on-bad-row quarantine --max-bad-rows 4").error(3);
    assert_eq!((&error["reason"], &error["limit"]), (&json!("too_many_bad_rows"), &json!(4)), "{error}");
}
