//! Catalog, ledger and a job's files locked, damaged or lost: said by name, nothing is changed, nothing new is put in
//! their place, and when they are back (or given up, as the hint says) all goes on.

use crate::adverse_disk::{assert_goes_on, text_lab};
use crate::minutes::assert_tidy;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use timelake_tests::{Faults, Lab, Outcome, split_words};

const LOAD: &str = "backfill iot.sensor --from in --json";
const CREATE: &str = "table create iot.other --columns ts:timestamptz,d:string --time-column ts --series-key d --json";

fn words(text: &str) -> Vec<String> {
    split_words(text)
}

fn killed_at(lab: &Lab, boundary: &str) {
    let killed = lab.start_failing(&words(LOAD), &format!("kill:{boundary}:1")).wait();
    assert_eq!(killed.code, None, "{boundary}: {killed}");
}

#[track_caller]
fn said(outcome: &Outcome, code: i32, reason: &str, file: &str, remedy: &str) -> Value {
    let error = outcome.error(code);
    assert_eq!(error["reason"], json!(reason), "{outcome}");
    assert!(error["file"].as_str().is_some_and(|f| f.contains(file)), "{outcome}");
    assert!(error["message"].as_str().is_some_and(|m| m.contains(file)), "{outcome}");
    assert!(error["hint"].as_str().is_some_and(|h| h.contains(remedy)), "{outcome}");
    error
}

#[test]
fn locked_by_another_process_for_too_long() {
    for (database, reason) in [("catalog.db", "catalog_unavailable"), ("ledger.db", "ledger_busy")] {
        let (lab, rows) = text_lab();
        lab.timelake(&words("backfill list")).success(); // the ledger is made
        lab.reader(json!({"command": "hold", "database": database}));
        let refused = lab.timelake_under(&Faults::hasty(200), &words(LOAD));
        said(&refused, 5, reason, database, "lsof");
        if database == "ledger.db" {
            lab.timelake(&words("backfill list --json")).success(); // whoever reads does not wait
        }
        lab.reader(json!({"command": "let_go", "database": database}));
        assert_goes_on(&lab, &rows);
    }
}

#[test]
fn locked_for_a_while_is_waited_for() {
    for database in ["catalog.db", "ledger.db"] {
        let (lab, rows) = text_lab();
        lab.timelake(&words("backfill list")).success();
        lab.reader(json!({"command": "hold", "database": database}));
        let mut running = lab.start(&words(LOAD));
        std::thread::sleep(Duration::from_secs(2));
        assert!(running.is_running(), "{database}: it did not wait");
        lab.reader(json!({"command": "let_go", "database": database}));
        running.wait().manifest();
        assert_goes_on(&lab, &rows);
    }
}

/// What can become of a file.
fn damages(whole: &[u8], other: Vec<u8>) -> Vec<(&'static str, Option<Vec<u8>>)> {
    const PAGE: usize = 4096;
    let damaged = |from: usize, to: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[from..to].fill(byte);
        Some(bytes)
    };
    vec![
        ("gone", None),
        ("empty", Some(vec![])),
        ("another file", Some(b"not what it was\n".to_vec())),
        ("a damaged header", damaged(0, 100, b'x')),
        ("zeros", damaged(0, whole.len(), 0)),
        ("only its header", Some(whole[..100].to_vec())),
        ("half of it", Some(whole[..whole.len() / 2 / PAGE * PAGE].to_vec())),
        ("damaged pages", damaged(PAGE, whole.len(), 0xa5)),
        ("another database", Some(other)),
    ]
}

#[test]
fn damaged_or_lost_databases_are_left_as_they_are() {
    for (database, reason, other) in [("catalog.db", "catalog_damaged", "ledger.db"), ("ledger.db", "ledger_damaged", "catalog.db")] {
        for boundary in ["units-stored", "manifest-stored"] {
            let (lab, rows) = text_lab();
            killed_at(&lab, boundary);
            lab.timelake(&words("backfill list")).success(); // merges the ledger's log
            let path = lab.lake().join(database);
            let whole = std::fs::read(&path).unwrap();
            for (damage, bytes) in damages(&whole, std::fs::read(lab.lake().join(other)).unwrap()) {
                match &bytes {
                    Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                    None => std::fs::remove_file(&path).unwrap(),
                }
                let before = names(&lab);
                for command in [LOAD, CREATE, "table list --json"] {
                    println!("{database} is {damage}, a job at {boundary}: {command}");
                    said(&lab.timelake(&words(command)), 4, reason, database, "restore");
                    assert_eq!(std::fs::read(&path).ok(), bytes, "it was changed");
                    assert_eq!(names(&lab), before);
                }
                std::fs::write(&path, &whole).unwrap();
            }
            assert_goes_on(&lab, &rows);
        }
    }
}

#[test]
fn a_log_is_not_put_over_a_ledger_that_is_damaged() {
    let (lab, rows) = text_lab();
    killed_at(&lab, "units-stored");
    let path = lab.lake().join("ledger.db");
    let whole = std::fs::read(&path).unwrap();
    assert!(lab.lake().join("ledger.db-wal").exists());
    for bytes in [b"not what it was\n".to_vec(), vec![0; whole.len()]] {
        std::fs::write(&path, &bytes).unwrap();
        said(&lab.timelake(&words(LOAD)), 4, "ledger_damaged", "ledger.db", "restore");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    std::fs::write(&path, &whole).unwrap();
    assert_goes_on(&lab, &rows);
}

/// What lies in the lake's folder.
fn names(lab: &Lab) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(lab.lake()).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Without a backup: the job's folder is moved out of the lake, as the hint says.
#[test]
fn a_ledger_that_is_lost_for_good() {
    for boundary in ["plan-stored", "units-stored", "stage-committed", "publish-committed", "manifest-stored"] {
        let (lab, rows) = text_lab();
        killed_at(&lab, boundary);
        for ending in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(lab.lake().join(format!("ledger.db{ending}")));
        }
        let error = said(&lab.timelake(&words(LOAD)), 4, "ledger_damaged", "ledger.db", "move jobs/");
        let job = error["job"].as_str().unwrap().to_string();
        std::fs::rename(lab.lake().join("jobs").join(&job), lab.path("moved")).unwrap();
        let mut outcome = lab.timelake(&words(LOAD));
        if boundary == "stage-committed" {
            // The branch holds what the ledger does not know of: that is given up by name.
            let error = outcome.error(4);
            assert_eq!(error["reason"], json!("branch_moved"), "{outcome}");
            lab.job("cancel", &job);
            outcome = lab.timelake(&words(LOAD));
        }
        let published = ["publish-committed", "manifest-stored"].contains(&boundary);
        let manifest = outcome.manifest();
        assert_eq!(manifest["kept_existing"], json!(if published { rows.len() } else { 0 }), "{boundary}: {manifest}");
        lab.assert_rows(&rows);
        assert_tidy(&lab, 1);
        assert_eq!(lab.timelake(&words(LOAD)).manifest()["already_published"], json!(true));
    }
}

/// The only file of this name in the folders of jobs.
fn job_file(lab: &Lab, name: &str) -> PathBuf {
    let jobs = std::fs::read_dir(lab.lake().join("jobs")).unwrap().flatten();
    let found: Vec<PathBuf> = jobs.map(|job| job.path().join("g1").join(name)).filter(|path| path.exists()).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0].clone()
}

#[test]
fn a_damaged_file_of_a_job() {
    for (name, boundary) in [
        ("land.json", "land-messages-sent"),
        ("inventory.json", "inventory-stored"),
        ("inventory.json", "units-stored"),
        ("plan.json", "plan-stored"),
        ("plan.json", "group-staged"),
    ] {
        let (lab, rows) = text_lab();
        killed_at(&lab, boundary);
        let path = job_file(&lab, name);
        let whole = std::fs::read(&path).unwrap();
        let before = lab.inspect();
        for bytes in [&b""[..], &whole[..whole.len() / 2], b"{}", &vec![0xff; whole.len()]] {
            std::fs::write(&path, bytes).unwrap();
            said(&lab.timelake(&words(LOAD)), 4, "ledger_damaged", name, "timelake backfill cancel");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "it was changed");
        }
        assert_eq!(lab.inspect()["metadata_location"], before["metadata_location"], "{boundary}: the table was changed");
        // What looks still works; restored, the job goes on.
        let job = path.ancestors().nth(2).unwrap().file_name().unwrap().to_string_lossy().into_owned();
        lab.timelake(&words("backfill list --json")).success();
        let status = lab.job("status", &job).success().json();
        assert!(
            status["next"].as_str().is_some_and(|next| next.contains("cancel")) || name == "land.json" || boundary == "inventory-stored",
            "{status}"
        );
        if boundary == "units-stored" {
            std::fs::write(&path, &whole).unwrap();
        } else {
            lab.job("cancel", &job).success();
            assert_eq!(lab.timelake(&words(LOAD)).manifest()["gen"], json!(2));
        }
        assert_goes_on(&lab, &rows);
    }
}

#[test]
fn a_damaged_file_of_a_published_job_hinders_nobody() {
    let (lab, rows) = text_lab();
    lab.timelake(&words(LOAD)).manifest();
    for name in ["land.json", "inventory.json", "plan.json"] {
        std::fs::write(job_file(&lab, name), "").unwrap();
    }
    assert_goes_on(&lab, &rows);
    lab.timelake(&words("backfill gc --older-than PT0S --json")).success();
    lab.assert_rows(&rows);
}
