//! What jobs leave behind goes, and nothing else: losers' files, runs, branches, locks, tags, jobs that were replaced.

use crate::minutes::assert_tidy;
use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use timelake_tests::{Lab, split_words};

fn lab(options: &str) -> (Lab, Vec<Value>) {
    let lab = Lab::new();
    lab.create_sensor_table(&format!("--partition day(ts) {options}"));
    let rows = readings(1..=3, &["a", "b"]);
    write_readings(&lab, "in/one.parquet", &rows);
    (lab, rows)
}

fn kill_at(lab: &Lab, words: &str, boundary: &str) {
    kill_at_nth(lab, words, boundary, 1);
}

fn kill_at_nth(lab: &Lab, words: &str, boundary: &str, nth: u32) {
    let outcome = lab.start_failing(&split_words(words), &format!("kill:{boundary}:{nth}")).wait();
    assert_eq!(outcome.code, None, "{boundary} was not reached\n{outcome}");
}

/// `backfill gc`: kinds and names of what is removed.
#[track_caller]
fn gc(lab: &Lab, options: &str) -> BTreeSet<(String, String)> {
    let words = split_words(&format!("backfill gc {options} --json"));
    let collected = lab.timelake(&words).success().json();
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_else(|| panic!("no {field} in {item}")).to_string();
    collected["items"].as_array().unwrap().iter().map(|i| (text(i, "kind"), text(i, "name"))).collect()
}

/// All files of the table's folder.
fn files(lab: &Lab) -> BTreeSet<PathBuf> {
    let mut out = BTreeSet::new();
    let mut folders = vec![lab.path("lake/warehouse")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => drop(out.insert(path)),
            }
        }
    }
    out
}

fn paths(items: &BTreeSet<(String, String)>) -> BTreeSet<PathBuf> {
    let files = items.iter().filter(|(kind, _)| kind == "file");
    files.map(|(_, name)| PathBuf::from(name.strip_prefix("file://").unwrap_or(name))).collect()
}

const NOW: &str = "--older-than PT0S";
const LOAD: &str = "backfill iot.sensor --from in --json";

#[test]
fn files_of_an_attempt_that_lost() {
    let (lab, rows) = lab("");
    kill_at(&lab, LOAD, "files-durable");
    let lost: BTreeSet<PathBuf> = files(&lab).into_iter().filter(|p| p.extension().is_some_and(|e| e == "parquet")).collect();
    assert!(!lost.is_empty());
    lab.timelake(&split_words(LOAD)).manifest();
    // Foreign files, even beside ours and with a name like ours, are none of its business.
    let folder = lost.first().unwrap().parent().unwrap().to_path_buf();
    for name in ["mine.parquet", "iot-sensor-0123456789ab-g1-u00000-r0-00ff00ff00ff-000.parquet"] {
        std::fs::write(folder.join(name), "x").unwrap();
    }
    let before = files(&lab);

    assert_eq!(gc(&lab, ""), BTreeSet::new(), "younger than the grace period");
    let listed = gc(&lab, &format!("{NOW} --dry-run"));
    assert!(paths(&listed).is_superset(&lost), "{listed:?}");
    assert_eq!(files(&lab), before, "a dry run removes nothing");
    let removed = gc(&lab, NOW);
    assert_eq!(removed, listed);
    assert_eq!(before.difference(&files(&lab)).cloned().collect::<BTreeSet<_>>(), paths(&removed));
    assert_eq!(gc(&lab, NOW), BTreeSet::new());
    lab.assert_rows(&rows);
    assert_tidy(&lab, 1);
    assert_eq!(lab.backfill("--from in")["already_published"], json!(true));
}

#[test]
fn everything_of_a_job_that_was_cancelled() {
    let (lab, rows) = lab("");
    let empty = files(&lab);
    let job = job_of(&lab.backfill("--from in --stage-only"));
    assert_eq!(gc(&lab, NOW), BTreeSet::new(), "a staged job may still be published");
    lab.job("cancel", &job).success();
    let removed = gc(&lab, NOW);
    assert!(paths(&removed).iter().any(|p| p.extension().is_some_and(|e| e == "parquet")), "{removed:?}");
    // Metadata files belong to the table's history; of ours nothing is left.
    let left: Vec<PathBuf> = files(&lab).difference(&empty).filter(|p| !p.to_string_lossy().ends_with(".metadata.json")).cloned().collect();
    let main: Vec<&PathBuf> = left.iter().filter(|p| p.to_string_lossy().contains(&job)).collect();
    assert_eq!(main, Vec::<&PathBuf>::new());
    lab.assert_rows(&[]);
    assert_eq!(lab.backfill("--from in")["gen"], json!(2));
    let removed = gc(&lab, NOW);
    assert!(removed.iter().all(|(_, name)| name.contains("/metadata/snap-")), "only the list of the staged snapshot: {removed:?}");
    lab.assert_rows(&rows);
    assert_tidy(&lab, 1);
}

#[test]
fn a_round_that_was_cut_again() {
    let (lab, rows) = lab("");
    let job = job_of(&lab.backfill("--from in --stage-only"));
    lab.append(&[reading(2, 30, "a", -1.0)]);
    let manifest = lab.job("publish", &job).manifest();
    assert_eq!(manifest["kept_existing"], json!(1), "{manifest}");
    let before = files(&lab);
    let removed = gc(&lab, NOW);
    assert!(!removed.is_empty(), "the first round's file of that day, its manifest and its staged list");
    assert_eq!(before.difference(&files(&lab)).cloned().collect::<BTreeSet<_>>(), paths(&removed));
    let live = reading(2, 30, "a", -1.0);
    let ours = rows.iter().filter(|r| !(r["ts"] == live["ts"] && r["device_id"] == live["device_id"])).cloned();
    lab.assert_rows(&ours.chain([live.clone()]).collect::<Vec<_>>());
    assert_tidy(&lab, 1);
}

#[test]
fn a_branch_and_a_lock_that_came_back() {
    let (lab, rows) = lab("");
    lab.append(&rows[..1]);
    let job = job_of(&lab.backfill("--from in --stage-only"));
    let property = format!("timelake.lock.{job}");
    let staged = lab.inspect();
    let lock = staged["properties"][&property].clone();
    let branch = ref_names(&staged).into_iter().find(|name| name.contains(&job)).expect("its branch");
    lab.job("cancel", &job).success();
    // As a process that was suspended while it opened the job would bring them back.
    lab.reader(json!({"command": "create_branch", "name": branch}));
    lab.reader(json!({"command": "set_property", "properties": {&property: lock}}));
    let other = "backfill/iot-sensor-0123456789ab";
    lab.reader(json!({"command": "create_branch", "name": other}));
    let removed = gc(&lab, NOW);
    let refs: BTreeSet<(&str, &str)> = removed.iter().map(|(k, n)| (k.as_str(), n.as_str())).filter(|(k, _)| *k != "file").collect();
    assert_eq!(refs, BTreeSet::from([("branch", branch.as_str()), ("lock", property.as_str())]));
    let table = lab.inspect();
    assert_eq!(locks(&table), Vec::<String>::new());
    assert_eq!(ref_names(&table), [other, "main"], "a branch of a job that the ledger does not list stays");
}

#[test]
fn tags_whose_undo_window_is_over() {
    let (lab, rows) = lab("--undo PT0S");
    let job = job_of(&lab.backfill("--from in"));
    let tag = ("tag".to_string(), format!("timelake/published/{job}/1/all"));
    assert!(ref_names(&lab.inspect()).contains(&tag.1));
    assert_eq!(gc(&lab, ""), BTreeSet::from([tag]), "a tag has its own grace period");
    lab.assert_rows(&rows);
    assert_tidy(&lab, 0);
    // What the tag told is in the ledger.
    assert_eq!(lab.backfill("--from in")["already_published"], json!(true));
}

#[test]
fn temporary_files_of_jobs_that_are_over() {
    let (lab, rows) = lab("");
    write_text_readings(&lab, "text", &rows, 1_000);
    const LOAD: &str = "backfill iot.sensor --from text --json";
    kill_at(&lab, LOAD, "runs-durable");
    assert_eq!(gc(&lab, NOW), BTreeSet::new(), "the job goes on with them");
    // The first time it was WRITING.
    kill_at_nth(&lab, LOAD, "job-settled", 2);
    let removed = gc(&lab, NOW);
    assert!(removed.iter().any(|(kind, _)| kind == "runs"), "{removed:?}");
    lab.assert_rows(&rows);
    assert_eq!(lab.timelake(&split_words(LOAD)).manifest()["already_published"], json!(true));

    // Kept ones are kept for somebody.
    let (lab, rows) = self::lab("");
    write_text_readings(&lab, "text", &rows, 1_000);
    let kept = lab.backfill("--from text --keep-runs");
    assert!(!gc(&lab, NOW).iter().any(|(kind, _)| kind == "runs"), "{kept}");
}

#[test]
fn a_job_whose_source_changed_before_it_had_a_plan() {
    let (lab, rows) = lab("");
    write_text_readings(&lab, "text", &rows, 1_000);
    const LOAD: &str = "backfill iot.sensor --from text --json";
    kill_at(&lab, LOAD, "runs-written");
    let old = lab.timelake(&split_words("backfill list --json")).json()["jobs"][0]["job"].clone();
    write_text_readings(&lab, "text", &rows[..100], 1_000);
    lab.timelake(&split_words(LOAD)).manifest();
    let removed = gc(&lab, NOW);
    assert!(removed.contains(&("job".to_string(), old.as_str().unwrap().to_string())), "{removed:?}");
    assert_eq!(lab.job("status", old.as_str().unwrap()).success().json()["job"]["state"], json!("CANCELLED"));
    lab.assert_rows(&rows[..100]);
}

#[test]
fn a_running_job_is_left_alone() {
    for boundary in ["files-durable", "unit-ended", "staged-list-written", "stage-committed", "manifests-merged"] {
        let (lab, rows) = lab("");
        let running = lab.start_held(&split_words(LOAD), boundary);
        assert_eq!(gc(&lab, NOW), BTreeSet::new(), "{boundary}");
        lab.release(boundary);
        running.wait().manifest();
        lab.assert_rows(&rows);
        assert_tidy(&lab, 1);
    }
}
