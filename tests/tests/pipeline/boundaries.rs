//! Killed right after every named step, the same command (or the command that goes on with the job) ends as if nothing
//! had been. A boundary that no scenario reaches is a failure, so the list in the engine and this one stay together.

use crate::minutes::{Minutes, assert_tidy};
use crate::sensors::*;
use serde_json::{Value, json};
use timelake_engine::boundary::Boundary;
use timelake_tests::{Lab, Outcome, split_words};

const SIGKILLED: Option<i32> = None;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scenario {
    /// Parquet into a table that has no snapshot yet.
    Direct,
    /// Several units; the second passing is cut.
    Units,
    /// Text with bad rows, which are listed.
    Landed,
    /// Staged; then `main` gets a row with a key of the job, and one without.
    Moved,
    /// Staged; then `main` gets a row of another key.
    MovedAside,
    /// Staged, then cancelled.
    Cancelled,
    /// Cancelled before it had a plan.
    CancelledEarly,
    /// Loaded again after it was cancelled.
    Again,
    /// Older rows go into a coarser partition spec, which the table does not have yet.
    ByAge,
    /// What lost attempts left is removed.
    Collected,
}
use Scenario::*;

/// Where each boundary is reached. No boundary without a scenario.
fn scenario(boundary: Boundary) -> Scenario {
    use Boundary::*;
    match boundary {
        MainStarted | JobStored | InventoryStored | PlanStored | GroupsStored | BranchesCommitted | GroupWriting | RoundStored
        | UnitsStored | MessagesSent | NextSnapshotStored | StagedListWritten | StageCommitted | GroupStaged | Validated
        | ManifestsMerged | PublishCommitted | GroupPublished | JobSettled | ManifestStored => Direct,
        AttemptBegun | FilesWritten | FilesDurable | UnitEnded | MessageAcknowledged => Units,
        LandPlanStored | JobLanding | LandRoundStored | LandUnitsStored | LandMessagesSent | RunsWritten | RunsDurable | RejectedListed
        | RunsRemoved => Landed,
        BaseStored | NextRoundOpened | RoundClosed | GroupInNextRound => Moved,
        HeadChecked => MovedAside,
        CancelRequested | BranchDropped | RoundsClosed | GroupStoodDown | MessagesPurged => Cancelled,
        JobMarkedCancelled => CancelledEarly,
        GenerationStored => Again,
        SpecsAdded => ByAge,
        TagsDropped | FileRemoved => Collected,
    }
}

/// Kills the command the `nth` time it comes to the boundary; that it never does is a failure.
#[track_caller]
fn kill_at(lab: &Lab, words: &str, boundary: Boundary, nth: u32) {
    let outcome = lab.start_failing(&split_words(words), &format!("kill:{}:{nth}", boundary.name())).wait();
    assert_eq!(outcome.code, SIGKILLED, "{boundary:?} was not reached a {nth}th time\n{outcome}");
}

fn run(lab: &Lab, words: &str) -> Outcome {
    lab.timelake(&split_words(words))
}

const LOAD: &str = "backfill iot.sensor --from in --json";

/// A table as another tool makes it, without a snapshot.
fn foreign_table(lab: &Lab) {
    let column = |name: &str, kind: &str| json!({"name": name, "type": kind});
    lab.reader(json!({
        "command": "create_table",
        "columns": [column("ts", "timestamptz"), column("device_id", "string"), column("value", "double"), column("quality", "int")],
        "partition": [{"source": "ts", "transform": "day", "name": "ts_day"}],
        "properties": {"timelake.time-column": "ts", "timelake.series-key": "device_id"},
    }));
}

/// The numbers that must not depend on a crash.
#[track_caller]
fn assert_same(manifest: &Value, undisturbed: &Value) {
    for field in
        ["rows_read", "rows_written", "duplicates_collapsed", "rejected", "kept_existing", "key_hash", "column_sums", "time_range", "state"]
    {
        assert_eq!(manifest[field], undisturbed[field], "{field} in {manifest}");
    }
}

/// The last run's manifest: of the command itself, or of the report when it found the job published.
fn finished(lab: &Lab, words: &str) -> Value {
    let manifest = run(lab, words).manifest();
    match manifest["already_published"] == json!(true) {
        true => lab.job("report", &job_of(&manifest)).manifest(),
        false => manifest,
    }
}

fn boundaries(of: Scenario) -> Vec<Boundary> {
    let found: Vec<Boundary> = Boundary::ALL.iter().copied().filter(|b| scenario(*b) == of).collect();
    assert!(!found.is_empty());
    found
}

#[test]
fn parquet_into_a_table_without_a_snapshot() {
    let rows = readings(1..=3, &["a", "b"]);
    let twice = [&rows[..], &rows[..50]].concat();
    let new = || {
        let lab = Lab::new();
        foreign_table(&lab);
        write_readings(&lab, "in/one.parquet", &twice);
        // The lake's ledger.
        run(&lab, "table list").success();
        lab
    };
    let lab = new();
    let undisturbed = lab.start_failing(&split_words(LOAD), "trace:trace").wait().manifest();
    assert_eq!((&undisturbed["rows_written"], &undisturbed["duplicates_collapsed"]), (&json!(rows.len()), &json!(50)));
    let trace = lab.trace("trace");
    for boundary in boundaries(Direct) {
        let times = trace.iter().filter(|(name, _)| name == boundary.name()).count();
        assert!(times > 0, "{boundary:?} is not reached");
        for nth in 1..=times {
            let lab = new();
            kill_at(&lab, LOAD, boundary, nth as u32);
            assert_same(&finished(&lab, LOAD), &undisturbed);
            lab.assert_rows(&rows);
            assert_tidy(&lab, 1);
        }
    }
}

#[test]
fn in_the_middle_of_units() {
    let source = Minutes { first_day: 1, days: 4, devices: 140 };
    const FEW_ROWS_AT_A_TIME: &str = "backfill iot.sensor --from in --json --threads 1 --memory 40MB";
    let new = || {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts)");
        source.write(&lab, "in");
        lab
    };
    let undisturbed = finished(&new(), FEW_ROWS_AT_A_TIME);
    assert!(undisturbed["plan"]["units"].as_u64().unwrap() > 2, "{undisturbed}");
    for boundary in boundaries(Units) {
        let lab = new();
        kill_at(&lab, FEW_ROWS_AT_A_TIME, boundary, 2);
        assert_same(&finished(&lab, FEW_ROWS_AT_A_TIME), &undisturbed);
        crate::minutes::assert_loaded(&lab, &[source], &[], 1);
    }
}

#[test]
fn text_with_rows_that_are_left_out() {
    const QUARANTINE: &str = "backfill iot.sensor --from in --on-bad-row quarantine --json";
    let rows = readings(1..=2, &["a"]);
    let new = || {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts)");
        std::fs::create_dir_all(lab.path("in")).unwrap();
        for (file, part) in rows.chunks(50).enumerate() {
            let lines: String = part.iter().map(|r| format!("{},a,{},0\n", r["ts"].as_str().unwrap(), r["value"])).collect();
            std::fs::write(lab.path(&format!("in/{file}.csv")), format!("ts,device_id,value,quality\n{lines}2024-05-09,a,x,0\n")).unwrap();
        }
        lab
    };
    let listed = |lab: &Lab, manifest: &Value| {
        std::fs::read_to_string(lab.path(&format!("lake/jobs/{}/rejected.ndjson", job_of(manifest)))).unwrap()
    };
    let lab = new();
    let undisturbed = finished(&lab, QUARANTINE);
    assert_eq!((&undisturbed["rejected"], &undisturbed["rows_written"]), (&json!(2), &json!(rows.len())));
    let rejected = listed(&lab, &undisturbed);
    assert_eq!(rejected.lines().count(), 2);
    for boundary in boundaries(Landed) {
        let lab = new();
        kill_at(&lab, QUARANTINE, boundary, 1);
        let manifest = finished(&lab, QUARANTINE);
        assert_same(&manifest, &undisturbed);
        assert_eq!(listed(&lab, &manifest), rejected);
        lab.assert_rows(&rows);
        assert_tidy(&lab, 1);
        assert!(!lab.path(&format!("lake/jobs/{}/g1/runs", job_of(&manifest))).exists(), "{boundary:?}: runs are left");
    }
}

/// A staged job, and its rows.
fn staged() -> (Lab, String, Vec<Value>) {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let rows = readings(1..=3, &["a"]);
    write_readings(&lab, "in/one.parquet", &rows);
    let job = job_of(&lab.backfill("--from in --stage-only"));
    (lab, job, rows)
}

#[test]
fn main_moved_before_publish() {
    for (of, with_clash) in [(Moved, true), (MovedAside, false)] {
        for boundary in boundaries(of) {
            let (lab, job, rows) = staged();
            let mut live = vec![reading(2, 7, "other", 1.0)];
            if with_clash {
                live.push(reading(2, 30, "a", -1.0));
            }
            lab.append(&live);
            let publish = format!("backfill publish {job} --json");
            kill_at(&lab, &publish, boundary, 1);
            let manifest = finished(&lab, &publish);
            assert_eq!(manifest["state"], json!("PUBLISHED"), "{boundary:?}: {manifest}");
            assert_eq!(manifest["kept_existing"], json!(u32::from(with_clash)), "{boundary:?}: {manifest}");
            let kept = rows.iter().filter(|r| !(with_clash && r["ts"] == live[1]["ts"])).cloned();
            lab.assert_rows(&live.iter().cloned().chain(kept).collect::<Vec<_>>());
            assert_tidy(&lab, 1);
        }
    }
}

#[test]
fn cancelled() {
    for boundary in boundaries(Cancelled).into_iter().chain(boundaries(CancelledEarly)).chain(boundaries(Again)) {
        let (lab, job, rows) = match scenario(boundary) {
            CancelledEarly => {
                let lab = Lab::new();
                lab.create_sensor_table("--partition day(ts)");
                let rows = readings(1..=3, &["a"]);
                write_readings(&lab, "in/one.parquet", &rows);
                kill_at(&lab, LOAD, Boundary::InventoryStored, 1);
                let listed = run(&lab, "backfill list --json").success().json();
                (lab, listed["jobs"][0]["job"].as_str().unwrap().to_string(), rows)
            }
            _ => staged(),
        };
        let cancel = format!("backfill cancel {job} --json");
        if scenario(boundary) == Again {
            run(&lab, &cancel).success();
            kill_at(&lab, LOAD, boundary, 1);
        } else {
            kill_at(&lab, &cancel, boundary, 1);
            let state = run(&lab, &cancel).success().json()["state"].clone();
            assert_eq!(state, json!("CANCELLED"), "{boundary:?}");
            lab.assert_rows(&[]);
            assert_tidy(&lab, 0);
        }
        // Nothing blocks the next life of the job.
        let manifest = run(&lab, LOAD).manifest();
        assert_eq!((&manifest["state"], &manifest["gen"]), (&json!("PUBLISHED"), &json!(2)), "{boundary:?}: {manifest}");
        lab.assert_rows(&rows);
        assert_tidy(&lab, 1);
    }
}

#[test]
fn specs_of_a_layout_are_added_once() {
    let rows = readings(1..=3, &["a"]);
    for boundary in boundaries(ByAge) {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts) --layout '[{\"older-than\":\"P90D\",\"partition\":\"month(ts)\"}]'");
        write_readings(&lab, "in/one.parquet", &rows);
        kill_at(&lab, LOAD, boundary, 1);
        lab.assert_rows(&[]);
        assert_eq!(run(&lab, LOAD).manifest()["rows_written"], json!(rows.len()));
        lab.assert_rows(&rows);
        let table = assert_tidy(&lab, 1);
        assert_eq!(table["specs"].as_array().unwrap().len(), 2, "{}", table["specs"]);
        assert_eq!(table["files"][0]["partition"], json!({"ts_month": "2024-05"}));
    }
}

#[test]
fn while_litter_is_collected() {
    for boundary in boundaries(Collected) {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts) --undo PT0S");
        let rows = readings(1..=3, &["a"]);
        write_readings(&lab, "in/one.parquet", &rows);
        kill_at(&lab, LOAD, Boundary::FilesDurable, 1);
        run(&lab, LOAD).manifest();
        kill_at(&lab, "backfill gc --older-than PT0S", boundary, 1);
        run(&lab, "backfill gc --older-than PT0S").success();
        let left = run(&lab, "backfill gc --older-than PT0S --json").success().json();
        assert_eq!(left["items"], json!([]), "{boundary:?}");
        lab.assert_rows(&rows);
        assert_tidy(&lab, 0);
    }
}
