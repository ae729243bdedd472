//! Several processes on one lake: workers that join, the same command twice, jobs side by side, overlaps, cancel.

use crate::minutes::{Minutes, assert_loaded, assert_tidy};
use crate::sensors::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use timelake_tests::{Lab, Running, split_words};

const SEVERAL_UNITS: &str = "--threads 1 --memory 40MB";

fn words(text: &str) -> Vec<String> {
    split_words(text)
}

fn lab_with(source: Minutes) -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    source.write(&lab, "in");
    lab
}

#[test]
fn a_worker_joins_a_running_job() {
    let source = Minutes { first_day: 1, days: 4, devices: 140 };
    let lab = lab_with(source);
    // Only the claims differ: the job's own process holds each unit for long, so there is something left to take.
    let slow = "delay:attempt-begun:1500";
    let job = lab.start_failing(&words(&format!("backfill iot.sensor --from in {SEVERAL_UNITS} --json")), slow);
    let worker = lab.start(&words("worker --wait PT5S --threads 1 --json"));
    let manifest = job.wait().manifest();
    let worked = worker.wait().success().json();
    assert!(worked["units"].as_u64().unwrap() > 0 && worked["rows"].as_u64().unwrap() > 0, "{worked}");
    assert_eq!(worked["jobs"], json!([job_of(&manifest)]));
    assert_loaded(&lab, &[source], &[], 1);
}

#[test]
fn a_worker_lands_text_too() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let rows = readings(1..=4, &["a", "b"]);
    write_text_readings(&lab, "in", &rows, 40);
    let job = lab.start_failing(&words("backfill iot.sensor --from in --threads 1 --json"), "delay:runs-written:300");
    let worked = lab.timelake(&words("worker --wait PT5S --threads 1 --json")).success().json();
    job.wait().manifest();
    assert!(worked["units"].as_u64().unwrap() > 1, "{worked}");
    lab.assert_rows(&rows);
    assert_tidy(&lab, 1);
}

/// A worker that stands still keeps its claim, and no process is gone: only the lease frees its unit. What it hands in
/// later changes nothing.
#[test]
fn a_worker_that_stands_still_is_overtaken() {
    let source = Minutes { first_day: 1, days: 4, devices: 140 };
    for (boundary, most) in [("unit-ended", Duration::from_secs(15)), ("files-durable", Duration::from_secs(90))] {
        let lab = lab_with(source);
        let load = words(&format!("backfill iot.sensor --from in {SEVERAL_UNITS} --json"));
        // The job waits with its first unit until the worker has one.
        let job = lab.start_held(&load, "attempt-begun");
        let worker = lab.start_held(&words("worker --wait PT1S --threads 1 --json"), boundary);
        let start = Instant::now();
        lab.release("attempt-begun");
        let manifest = job.wait().manifest();
        assert!(start.elapsed() < most, "{boundary}: {:?}", start.elapsed());
        assert_eq!(manifest["rows_written"], json!(source.rows()), "{boundary}: {manifest}");
        // With a unit that is not done, the lease was waited for.
        assert!(boundary == "unit-ended" || start.elapsed() > Duration::from_secs(20), "{boundary}: {:?}", start.elapsed());
        lab.release(boundary);
        worker.wait().success();
        assert_loaded(&lab, &[source], &[], 1);
    }
}

#[test]
fn a_worker_without_work_says_so_and_ends() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    let worked = lab.timelake(&words("worker --wait PT0S --json")).success().json();
    assert_eq!((&worked["units"], &worked["jobs"]), (&json!(0), &json!([])));
}

#[test]
fn four_workers_and_one_is_killed_every_second() {
    const KILLS: usize = 12;
    let source = Minutes { first_day: 1, days: 12, devices: 140 };
    let lab = lab_with(source);
    let slow = "delay:attempt-begun:800,delay:files-written:800,delay:unit-ended:800";
    let load = words(&format!("backfill iot.sensor --from in {SEVERAL_UNITS} --json"));
    let join = words("worker --wait PT60S --threads 1 --json");
    let start = |place: usize| lab.start_failing(if place == 0 { &load } else { &join }, slow);
    let mut processes: Vec<Running> = (0..4).map(start).collect();
    let mut killed = 0;
    for turn in 0..KILLS {
        std::thread::sleep(Duration::from_secs(1));
        // The process that runs the job is one of the four.
        let place = turn % processes.len();
        if !processes[0].is_running() {
            break;
        }
        // First the old one: until it is gone it has the job's lock.
        killed += usize::from(processes.remove(place).kill().code.is_none());
        processes.insert(place, start(place));
    }
    println!("{killed} of {KILLS} killed while the job ran");
    assert!(killed >= 8, "only {killed} were killed before the job was over");
    let job = processes.remove(0).wait();
    drop(processes);
    // The last of them may have been killed after it had published.
    let outcome = if job.code.is_none() { lab.timelake(&load) } else { job };
    let manifest = outcome.manifest();
    assert_eq!(lab.job("report", &job_of(&manifest)).manifest()["rows_written"], json!(source.rows()), "{manifest}");
    assert_loaded(&lab, &[source], &[], 1);
}

#[test]
fn the_same_command_twice_at_once_is_one_job() {
    let rows = readings(1..=3, &["a", "b"]);
    for round in 0..6 {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts)");
        write_readings(&lab, "in/one.parquet", &rows);
        // From the same moment to a run that is well on its way.
        let first = lab.start_failing(&words("backfill iot.sensor --from in --json"), "delay:all:10");
        std::thread::sleep(Duration::from_millis(round * 60));
        let second = lab.start(&words("backfill iot.sensor --from in --json"));
        let (first, second) = (first.wait(), second.wait());
        let mut published = 0;
        for outcome in [first, second] {
            if outcome.code == Some(0) {
                published += usize::from(outcome.manifest()["published"] == json!(true));
            } else {
                let refused = outcome.error(6);
                assert_eq!(refused["reason"], json!("job_running_elsewhere"), "{refused}");
                assert!(refused["message"].as_str().unwrap().contains("is run by process "), "{refused}");
            }
        }
        assert_eq!(published, 1, "round {round}");
        assert_eq!(lab.timelake(&words("backfill list --json")).json()["jobs"].as_array().unwrap().len(), 1);
        lab.assert_rows(&rows);
        assert_tidy(&lab, 1);
    }
}

#[test]
fn ten_jobs_on_disjoint_windows_at_once() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let parts: Vec<Minutes> = (0..10).map(|i| Minutes { first_day: 1 + 2 * i, days: 2, devices: 4 }).collect();
    for (i, part) in parts.iter().enumerate() {
        part.write(&lab, &format!("in-{i}"));
    }
    let start = |i| lab.start(&words(&format!("backfill iot.sensor --from in-{i} --threads 1 --json")));
    let running: Vec<Running> = (0..parts.len()).map(start).collect();
    for job in running {
        assert_eq!(job.wait().manifest()["state"], json!("PUBLISHED"));
    }
    assert_loaded(&lab, &parts, &[], parts.len());
}

#[test]
fn a_window_that_overlaps_an_unfinished_one_is_refused_unless_asked_for() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let (first, second) = (readings(1..=3, &["a"]), readings(3..=5, &["b"]));
    write_readings(&lab, "first/one.parquet", &first);
    write_readings(&lab, "second/one.parquet", &second);
    assert_eq!(lab.timelake(&words("backfill locks --json")).success().json()["locks"], json!([]));
    let staged = job_of(&lab.backfill("--from first --stage-only"));

    // What a compactor sees is in the table's own metadata.
    let property = lab.inspect()["properties"][format!("timelake.lock.{staged}")].clone();
    let lock: Value = serde_json::from_str(property.as_str().unwrap()).unwrap();
    let window = json!({"start": "2024-05-01T00:00:00.000000Z", "end": "2024-05-04T00:00:00.000000Z"});
    assert_eq!(lock, json!({"gen": 1, "window": window}));
    let listed = lab.timelake(&words("backfill locks iot.sensor --json")).success().json();
    assert_eq!((&listed["locks"][0]["job"], &listed["locks"][0]["state"]), (&json!(staged), &json!("STAGED")), "{listed}");
    assert_eq!(listed["locks"][0]["window"], window);

    let refused = lab.backfill_outcome("--from second").error(4);
    assert_eq!((&refused["reason"], &refused["job"]), (&json!("window_locked"), &json!(staged)), "{refused}");
    for way_out in [format!("publish {staged}"), format!("cancel {staged}"), "--allow-overlap".into()] {
        assert!(refused["hint"].as_str().unwrap().contains(&way_out), "{refused}");
    }
    lab.assert_rows(&[]);

    assert_eq!(lab.backfill("--from second --allow-overlap")["rows_written"], json!(second.len()));
    assert_eq!(lab.job("publish", &staged).manifest()["rows_written"], json!(first.len()));
    lab.assert_rows(&[&first[..], &second[..]].concat());
    assert_tidy(&lab, 2);
}

/// Cancelled at any moment: `main` is as it was, nothing is left in the table, the running process ends by itself and
/// says so, and the next job of the same window is not held up.
#[test]
fn cancel_at_any_moment() {
    let source = Minutes { first_day: 1, days: 2, devices: 70 };
    let rows = readings(1..=2, &["other"]);
    let at = [
        "job-stored",
        "inventory-stored",
        "groups-stored",
        "branches-committed",
        "units-stored",
        "attempt-begun",
        "files-durable",
        "unit-ended",
        "staged-list-written",
        "stage-committed",
        "validated",
        "manifests-merged",
    ];
    for boundary in at {
        let lab = lab_with(source);
        lab.append(&rows);
        let main = lab.inspect()["current_snapshot"].clone();
        let load = words(&format!("backfill iot.sensor --from in {SEVERAL_UNITS} --json"));
        let running = lab.start_held(&load, boundary);
        let job = lab.timelake(&words("backfill list --json")).success().json()["jobs"][0]["job"].as_str().unwrap().to_string();
        assert_eq!(lab.job("cancel", &job).success().json()["state"], json!("CANCELLED"), "{boundary}");
        lab.release(boundary);
        let ended = running.wait();
        let refused = ended.error(4);
        assert_eq!(refused["reason"], json!("cancelled"), "{boundary}: {refused}");
        assert_eq!(lab.inspect()["current_snapshot"], main, "{boundary}");
        lab.assert_rows(&rows);
        assert_tidy(&lab, 0);
        let manifest = lab.backfill("--from in");
        assert_eq!((&manifest["gen"], &manifest["rows_written"]), (&json!(2), &json!(source.rows())), "{boundary}: {manifest}");
        assert_tidy(&lab, 1);
    }
}

#[test]
fn cancel_while_files_are_landed() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let rows = readings(1..=2, &["a"]);
    write_text_readings(&lab, "in", &rows, 20);
    for boundary in ["land-plan-stored", "job-landing", "land-messages-sent", "runs-written"] {
        let running = lab.start_held(&words("backfill iot.sensor --from in --threads 1 --json"), boundary);
        let job = lab.timelake(&words("backfill list --json")).success().json()["jobs"][0]["job"].as_str().unwrap().to_string();
        assert_eq!(lab.job("cancel", &job).success().json()["state"], json!("CANCELLED"), "{boundary}");
        lab.release(boundary);
        assert_eq!(running.wait().error(4)["reason"], json!("cancelled"), "{boundary}");
        assert_tidy(&lab, 0);
        let folder = lab.path(&format!("lake/jobs/{job}"));
        let runs: Vec<_> = walk(&folder).into_iter().filter(|p| p.extension().is_some_and(|e| e == "parquet")).collect();
        assert_eq!(runs, Vec::<std::path::PathBuf>::new(), "{boundary}: runs are left");
    }
    assert_eq!(lab.backfill("--from in")["rows_written"], json!(rows.len()));
    lab.assert_rows(&rows);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => out.extend(walk(&path)),
            path => out.push(path),
        }
    }
    out
}
