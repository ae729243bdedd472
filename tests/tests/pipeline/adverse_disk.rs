//! A disk that is full or may not be written, and output that nobody takes: the exit code, the reason, the file and what
//! to do are said, nothing half-made is left, and the same command goes on when the fault is gone.

use crate::minutes::assert_tidy;
use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use timelake_tests::{Faults, Lab, Outcome, split_words};

const EACCES: i32 = 13;
const EROFS: i32 = 30;
const EIO: i32 = 5;
/// A unit that is tried again as often as it may takes longer.
const AT_ONCE: Duration = Duration::from_secs(4);
const LOAD: &str = "backfill iot.sensor --from in --json";

fn load() -> Vec<String> {
    split_words(LOAD)
}

/// A table, and text (which is landed) to load.
pub fn text_lab() -> (Lab, Vec<Value>) {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let rows = readings(1..=3, &["a", "b"]);
    let line = |r: &Value| format!("{},{},{},0\n", r["ts"].as_str().unwrap(), r["device_id"].as_str().unwrap(), r["value"]);
    let text: String = rows.iter().map(line).collect();
    std::fs::create_dir_all(lab.path("in")).unwrap();
    std::fs::write(lab.path("in/a.csv"), format!("ts,device_id,value,quality\n{text}")).unwrap();
    (lab, rows)
}

/// The same command, without the fault: the right table, and nothing left over.
#[track_caller]
pub fn assert_goes_on(lab: &Lab, rows: &[Value]) {
    let done = lab.timelake(&load()).manifest();
    let report = lab.job("report", &job_of(&done)).manifest();
    assert_eq!((&report["state"], &report["rows_written"]), (&json!("PUBLISHED"), &json!(rows.len())), "{report}");
    lab.assert_rows(rows);
    assert_tidy(lab, 1);
    assert_eq!(temporary_files(&lab.lake()), Vec::<String>::new());
    let manifest = lab.lake().join("jobs").join(job_of(&done)).join("manifest.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    assert_eq!(kept["rows_written"], json!(rows.len()), "the run manifest is kept");
}

/// Files that a lake at rest does not have.
fn temporary_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            found.extend(temporary_files(&entry.path()));
        } else if [".part", ".tmp", "-probe-", "-journal", "-wal", "-shm", "run-"].iter().any(|word| name.contains(word)) {
            found.push(name);
        }
    }
    found
}

/// Exit code 5 with this reason; file and remedy are said. Returns the file.
#[track_caller]
fn refused(outcome: &Outcome, reason: &str, remedy: &str) -> String {
    let error = outcome.error(5);
    assert_eq!((&error["kind"], &error["reason"]), (&json!("unavailable"), &json!(reason)), "{outcome}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains(remedy)), "{outcome}");
    let file = error["file"].as_str().unwrap_or_else(|| panic!("no file is named\n{outcome}"));
    let message = error["message"].as_str().unwrap();
    let path = Path::new(file);
    let named = [Some(path), path.parent()].into_iter().flatten().any(|p| message.contains(p.to_str().unwrap()));
    assert!(path.is_absolute() && named, "the message does not name {file}\n{outcome}");
    file.to_string()
}

/// What a run writes, in its order: a part of the paths, and how many bytes of it still find room.
const STEPS: [(&str, u64); 12] = [
    ("/ledger.db", 90_000),
    ("/running.lock", 0),
    ("land.json", 100),
    ("/runs/run-", 500),
    ("inventory.json", 100),
    ("plan.json", 100),
    ("/catalog.db", 0),
    ("/data/", 2_500),
    ("/metadata/iot-sensor-", 100), // the unit's manifest
    ("/metadata/snap-", 100),
    ("-pub-", 0),
    ("manifest.json", 100),
];

#[test]
fn a_disk_that_is_full_at_each_step() {
    for (files, room) in STEPS {
        println!("{files}");
        let (lab, rows) = text_lab();
        let start = Instant::now();
        let full = lab.timelake_under(&Faults::disk_full(files, room), &load());
        assert!(start.elapsed() < AT_ONCE, "trying again by itself only makes the user wait: {:?}", start.elapsed());
        let file = refused(&full, "disk_full", "free some space");
        assert!(file.contains(files), "{files}: {full}");
        if files != "manifest.json" {
            lab.assert_rows(&[]);
        }
        assert_goes_on(&lab, &rows);
    }
}

#[test]
fn a_disk_that_fills_up_at_any_moment() {
    const MOMENTS: u64 = 20;
    const FILES: &str = "/jobs/:/warehouse/:/catalog.db"; // the ledger takes more than all of them
    let (lab, _) = text_lab();
    lab.timelake_under(&Faults::measured(FILES, &lab.path("added")), &load()).manifest();
    let all: u64 = std::fs::read_to_string(lab.path("added")).unwrap().trim().parse().unwrap();
    let mut full_at = BTreeSet::new();
    for moment in 0..MOMENTS {
        let (lab, rows) = text_lab();
        let room = all * moment / MOMENTS;
        let full = lab.timelake_under(&Faults::disk_full(FILES, room), &load());
        let file = refused(&full, "disk_full", "free some space");
        full_at.insert(file.rsplit(['.', '/']).next().unwrap().to_string());
        assert_goes_on(&lab, &rows);
    }
    assert!(["avro", "db", "json", "parquet"].iter().all(|kind| full_at.contains(*kind)), "{full_at:?}");
}

#[test]
fn a_full_disk_for_temporary_files_names_the_option() {
    let (lab, rows) = text_lab();
    let words = split_words(&format!("{LOAD} --work-dir {}", lab.path("tmp").display()));
    std::fs::create_dir(lab.path("tmp")).unwrap();
    let denied = lab.timelake_under(&Faults::refused("/tmp/iot-sensor-", EACCES), &words);
    refused(&denied, "access_denied", "--work-dir");
    lab.timelake_under(&Faults::disk_full("/tmp/iot-sensor-", 100), &words).error(5);
    assert_goes_on(&lab, &rows);
    assert_eq!(std::fs::read_dir(lab.path("tmp")).unwrap().count(), 0);
}

#[test]
fn files_and_folders_that_may_not_be_written() {
    for (at, (files, _)) in STEPS.into_iter().chain([("/processes", 0), ("/jobs/", 0), ("/warehouse/", 0)]).enumerate() {
        let (lab, rows) = text_lab();
        let errno = if at % 2 == 0 { EACCES } else { EROFS };
        let denied = lab.timelake_under(&Faults::refused(files, errno), &load());
        let file = refused(&denied, "access_denied", "give this user the right");
        assert!(file.contains(files) || file.contains(files.trim_end_matches('/')), "{files}: {denied}");
        assert_goes_on(&lab, &rows);
    }
}

#[test]
fn a_disk_that_fails() {
    for (files, _) in STEPS {
        println!("{files}");
        let (lab, rows) = text_lab();
        let failed = lab.timelake_under(&Faults::only("write,sync", files, EIO), &load());
        let error = failed.error(5);
        let reason = if files == "/catalog.db" { "catalog_unavailable" } else { "storage_unavailable" };
        assert_eq!(error["reason"], json!(reason), "{files}: {failed}");
        assert!(error["hint"].as_str().unwrap().contains("run the same command again"), "{failed}");
        // Its unit failed as often as it may, so the job waits for somebody to say that the disk is mended.
        lab.assert_rows(&if files == "manifest.json" { rows.clone() } else { vec![] });
        assert_goes_on(&lab, &rows);
    }
}

#[test]
fn a_lake_that_may_only_be_read_is_read() {
    let (lab, rows) = text_lab();
    let read_only = || Faults::refused("/lake", EROFS);
    let asked = |words: &str| lab.timelake_under(&read_only(), &split_words(words));
    // No job was ever here.
    assert_eq!(asked("backfill list --json").success().json()["jobs"], json!([]));
    refused(&asked(LOAD), "access_denied", "give this user the right");
    // A process that was killed left changes beside the ledger: they are read as well.
    assert_eq!(lab.start_failing(&load(), "kill:units-stored:1").wait().code, None);
    assert_eq!(asked("backfill list --json").success().json()["jobs"].as_array().unwrap().len(), 1);
    let job = job_of(&lab.timelake(&load()).manifest());
    for words in ["table list", "table show iot.sensor", "backfill list"] {
        asked(&format!("{words} --json")).success();
    }
    for verb in ["status", "report"] {
        let shown = asked(&format!("backfill {verb} {job} --json")).success();
        assert!(shown.stdout.contains("PUBLISHED"), "{shown}");
    }
    refused(
        &asked("table create iot.other --columns ts:timestamptz,d:string --time-column ts --series-key d --json"),
        "access_denied",
        "the right",
    );
    lab.assert_rows(&rows);
    assert_goes_on(&lab, &rows);
}

/// A command whose answer, or whose messages, go to a device that is always full.
fn to_a_full_device(lab: &Lab, words: &str, stdout: bool, stderr: bool) -> Outcome {
    let full = || File::create("/dev/full").expect("/dev/full");
    let mut command = lab.command(&split_words(words));
    if stdout {
        command.stdout(full());
    }
    if stderr {
        command.stderr(full());
    }
    lab.run(command).wait()
}

#[test]
fn an_answer_that_cannot_be_written() {
    let (lab, rows) = text_lab();
    let lost = to_a_full_device(&lab, LOAD, true, false);
    assert_eq!(lost.code, Some(5), "{lost}");
    assert!(
        lost.stderr.contains("error[disk_full]: cannot write the answer to stdout") && lost.stderr.contains("the work itself is done"),
        "{lost}"
    );
    lab.assert_rows(&rows);
    assert_goes_on(&lab, &rows);
    // What went wrong is said all the same, and its exit code is kept.
    let failed = to_a_full_device(&lab, "backfill iot.sensor --from nowhere --json", true, false);
    assert_eq!(failed.code, Some(2), "{failed}");
    assert!(failed.stderr.contains("\"path_not_found\""), "{failed}");
    assert_eq!(to_a_full_device(&lab, "backfill iot.sensor --nonsense --json", true, false).code, Some(2));
}

#[test]
fn messages_that_cannot_be_written() {
    let (lab, rows) = text_lab();
    assert_eq!(to_a_full_device(&lab, "backfill iot.sensor --from in -v -v", true, true).code, Some(5));
    assert_goes_on(&lab, &rows);
    let (lab, rows) = text_lab();
    to_a_full_device(&lab, LOAD, false, true).manifest();
    assert_goes_on(&lab, &rows);
    assert_eq!(to_a_full_device(&lab, "backfill iot.sensor --from nowhere", false, true).code, Some(2));
}
