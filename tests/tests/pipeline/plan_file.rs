//! `report JOB --plan FILE` and `--plan FILE`: a load that is divided as another one.

use crate::sensors::job_of;
use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use serde_json::{Value, json};
use std::sync::Arc;
use timelake_tests::{Lab, write_parquet};

const MAY: i64 = 1_714_521_600_000_000;
const SMALL: &str = "--threads 1 --memory 32MiB";

/// A table by month, and a source whose month is more than a small memory holds.
fn lab(days: std::ops::Range<i64>) -> Lab {
    let lab = Lab::new();
    let columns = "ts:timestamptz,device_id:string,note:string";
    let words = ["table", "create", "iot.sensor", "--columns", columns, "--time-column", "ts", "--series-key", "device_id"];
    lab.timelake(&[&words[..], &["--partition", "month(ts)"]].concat()).success();
    let rows: Vec<(i64, String)> =
        days.flat_map(|day| (0..10_000).map(move |i| (day * 1_440 + i / 30, format!("d{:03}", i % 30)))).collect();
    let ts: Int64Array = rows.iter().map(|(minute, _)| Some(MAY + minute * 60_000_000)).collect();
    let ts = cast(&ts, &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
    let note = "x".repeat(2_500);
    let text = |f: &dyn Fn(&(i64, String)) -> String| Arc::new(rows.iter().map(|r| Some(f(r))).collect::<StringArray>()) as ArrayRef;
    let columns = vec![("ts", ts), ("device_id", text(&|r| r.1.clone())), ("note", text(&|r| format!("{} {} {note}", r.1, r.0)))];
    write_parquet(&lab.path("in/a.parquet"), columns, 1_000);
    lab
}

/// The data files' bytes, in an order of their own.
fn files(lab: &Lab) -> Vec<Vec<u8>> {
    let bytes = |file: &Value| std::fs::read(file["path"].as_str().unwrap().trim_start_matches("file://")).unwrap();
    let mut files: Vec<_> = lab.inspect()["files"].as_array().unwrap().iter().map(bytes).collect();
    files.sort();
    files
}

#[test]
fn a_load_is_divided_as_another_and_its_files_are_the_same() {
    let first = lab(0..2);
    let loaded = first.backfill(&format!("--from in {SMALL}"));
    let units = loaded["plan"]["units"].as_u64().unwrap();
    assert!(units > 1, "{}", loaded["plan"]);
    let written = first.timelake(&["backfill", "report", &job_of(&loaded), "--plan", "plan.json", "--json"]).success().json();
    assert_eq!(written, json!({"plan": "plan.json"}));

    // By itself a load in more memory is divided otherwise.
    let by_itself = lab(0..2);
    assert!(by_itself.backfill("--from in --threads 2")["plan"]["units"].as_u64() < Some(units));
    assert_ne!(files(&by_itself), files(&first));

    let second = lab(0..2);
    second.copy_in(&first.path("plan.json"), "plan.json");
    let report = second.backfill("--from in --threads 2 --plan plan.json");
    assert_eq!((&report["plan"]["units"], &report["rows_written"]), (&json!(units), &loaded["rows_written"]), "{report}");
    assert_eq!(files(&second), files(&first));
    for engine in ["pyiceberg", "duckdb"] {
        assert_eq!(second.rows(engine).len() as u64, report["rows_written"].as_u64().unwrap(), "{engine}");
    }

    // The plan itself is the same but for what is of its lake.
    let printed = second.timelake(&["backfill", "report", &job_of(&report), "--plan", "-"]).success();
    let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
    let given: Value = serde_json::from_str(&std::fs::read_to_string(second.path("plan.json")).unwrap()).unwrap();
    assert_eq!(printed["groups"], given["groups"]);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_and_nothing_is_loaded() {
    let first = lab(0..1);
    let job = job_of(&first.backfill(&format!("--from in {SMALL}")));
    first.timelake(&["backfill", "report", &job, "--plan", "plan.json"]).success();
    let refused = |lab: &Lab, words: &str| {
        lab.copy_in(&first.path("plan.json"), "plan.json");
        let error = lab.backfill_outcome(&format!("--from in {words} --plan plan.json")).error(2);
        assert_eq!((&error["reason"], &error["option"]), (&json!("invalid_option"), &json!("--plan")), "{error}");
        assert_eq!(lab.inspect()["files"], json!([]));
        error["message"].as_str().unwrap().to_string()
    };
    // Of another month, and of a part of it.
    let june = lab(31..32);
    assert!(refused(&june, SMALL).contains("it is for [2024-05-01T00:00:00Z, 2024-06-01T00:00:00Z)"), "{}", refused(&june, SMALL));
    assert!(refused(&lab(0..1), "--end 2024-05-01T03:00Z").contains("and this is"));
    // What was refused is not in the way.
    assert_eq!(june.backfill("--from in")["rows_written"], json!(10_000));

    // Units for more memory than there is.
    let large = lab(0..2);
    let job = job_of(&large.backfill("--from in"));
    large.timelake(&["backfill", "report", &job, "--plan", "large.json"]).success();
    let small = lab(0..2);
    small.copy_in(&large.path("large.json"), "large.json");
    let error = small.backfill_outcome(&format!("--from in {SMALL} --plan large.json")).error(2);
    assert!(error["message"].as_str().unwrap().contains("are room for"), "{error}");

    std::fs::write(small.path("none.json"), "{\"version\": 1}").unwrap();
    let error = small.backfill_outcome("--from in --plan none.json").error(2);
    assert!(error["message"].as_str().unwrap().contains("none.json is not a plan"), "{error}");
}

#[test]
fn a_job_goes_on_with_the_plan_that_it_has() {
    let first = lab(0..1);
    let job = job_of(&first.backfill(&format!("--from in {SMALL}")));
    first.timelake(&["backfill", "report", &job, "--plan", "plan.json"]).success();
    let other = lab(0..1);
    other.copy_in(&first.path("plan.json"), "plan.json");
    let staged = other.backfill("--from in --stage-only");
    let error = other.backfill_outcome("--from in --plan plan.json").error(4);
    assert!(error["message"].as_str().unwrap().contains("it has a plan already"), "{error}");
    other.job("cancel", &job_of(&staged)).success();
    let units = other.backfill("--from in --plan plan.json")["plan"]["units"].as_u64();
    assert!(units > staged["plan"]["units"].as_u64(), "{units:?}");
    other.timelake(&["backfill", "report", &job_of(&staged), "--plan", "again.json"]).success();
}
