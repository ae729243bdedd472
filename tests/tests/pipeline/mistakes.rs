//! Mistakes that would load wrong rows without a word: each is an error, or is said.

use crate::sensors::*;
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use serde_json::{Value, json};
use std::sync::Arc;
use timelake_tests::{Lab, write_parquet};

/// Three rows with a column of another name than the table's.
fn write_other_name(lab: &Lab, file: &str, name: &'static str) {
    let ts: Int64Array = (0..3).map(|i| Some(1_714_521_600_000_000 + i * 60_000_000)).collect();
    let ts = cast(&ts, &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
    let columns: Vec<(&'static str, ArrayRef)> = vec![
        ("ts", ts),
        ("device_id", Arc::new(StringArray::from(vec!["a", "a", "a"]))),
        (name, Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))),
    ];
    write_parquet(&lab.path(file), columns, 100);
}

#[test]
fn columns_that_no_file_has_are_said_and_nothing_but_keys_is_refused() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_other_name(&lab, "in/a.parquet", "val");
    let error = lab.backfill_outcome("--from in").error(2);
    assert_eq!(error["reason"], json!("column_not_found"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("--map value="), "{error}");
    lab.assert_rows(&[]);
    let manifest = lab.backfill("--from in --map value=val");
    let warnings = manifest["warnings"].to_string();
    assert!(warnings.contains("no file has a column for quality"), "{warnings}");

    let waived = Lab::new();
    waived.create_sensor_table("");
    write_other_name(&waived, "in/a.parquet", "val");
    let manifest = waived.backfill("--from in --map value=,quality=");
    assert_eq!((&manifest["rows_written"], &manifest["warnings"]), (&json!(3), &json!([])), "{manifest}");
}

#[test]
fn hive_folders_count_however_the_path_is_typed() {
    for from in [
        "--from hv",
        "--from 'hv/site=*'",
        "--from hv/site=north --from hv/site=south",
        "--from hv/site=north/a.parquet --from hv/site=south/b.parquet",
    ] {
        let lab = Lab::new();
        lab.timelake(&[
            "table",
            "create",
            "iot.sensor",
            "--columns",
            "ts:timestamptz,device_id:string,site:string,val:double",
            "--time-column",
            "ts",
            "--series-key",
            "site,device_id",
        ])
        .success();
        write_other_name(&lab, "hv/site=north/a.parquet", "val");
        write_other_name(&lab, "hv/site=south/b.parquet", "val");
        let manifest = lab.backfill(&format!("{from} --hive"));
        assert_eq!(manifest["rows_written"], json!(6), "{from}: {manifest}");
        let sites: Vec<Value> = lab.rows("duckdb").iter().map(|r| r["site"].clone()).collect();
        assert_eq!(sites.iter().filter(|s| **s == json!("north")).count(), 3, "{from}: {sites:?}");
    }
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_other_name(&lab, "in/a.parquet", "value");
    let error = lab.backfill_outcome("--from in --hive").error(2);
    assert_eq!((&error["reason"], &error["option"]), (&json!("invalid_option"), &json!("--hive")), "{error}");
}

#[test]
fn the_same_source_in_another_spelling_is_the_same_job() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    let job = job_of(&lab.backfill("--from in"));
    let absolute = lab.path("in").display().to_string();
    for from in ["in/", "./in", "in/../in", &absolute] {
        let again = lab.backfill(&format!("--from {from}"));
        assert_eq!((&again["already_published"], &again["job"]), (&json!(true), &json!(job)), "{from}: {again}");
    }
}

#[test]
fn new_gives_up_the_older_job_of_a_source_that_changed() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    let older = job_of(&lab.backfill("--from in --stage-only"));
    write_readings(&lab, "in/b.parquet", &readings(2..=3, &["d2"]));
    let error = lab.backfill_outcome("--from in").error(4);
    assert_eq!((&error["reason"], &error["job"]), (&json!("older_job_unfinished"), &json!(older)), "{error}");
    let manifest = lab.backfill("--from in --new");
    assert_eq!((&manifest["published"], &manifest["rows_written"]), (&json!(true), &json!(4 * 48)), "{manifest}");
    assert_eq!(lab.job("report", &older).json()["state"], json!("CANCELLED"));
    assert_eq!(locks(&lab.inspect()), Vec::<String>::new());
}

#[test]
fn a_lake_that_was_copied_or_moved_is_refused() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    let copied = lab.path("copy");
    let status = std::process::Command::new("cp").arg("-r").arg(lab.lake()).arg(&copied).status().unwrap();
    assert!(status.success());
    let before = lab.inspect()["metadata_location"].clone();
    let copied = copied.display().to_string();
    let error = lab.timelake(&["backfill", "iot.sensor", "--from", "in", "--lake", &copied, "--json"]).error(4);
    assert_eq!(error["reason"], json!("table_changed"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("copied"), "{error}");
    assert_eq!(lab.inspect()["metadata_location"], before, "the original is untouched");
}

#[test]
fn a_request_that_cannot_be_read_leaves_no_job() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    for options in ["--map tss=ts", "--tz Europe/Berlim", "--set quality=high"] {
        let outcome = lab.backfill_outcome(&format!("--from in {options}"));
        assert!(matches!(outcome.code, Some(2 | 3)), "{options}: {:?}", outcome.code);
    }
    std::fs::write(lab.path("in/data.json"), "{}\n").unwrap();
    assert_eq!(lab.backfill_outcome("--from in/data.json").error(2)["reason"], json!("unsupported_format"));
    assert_eq!(lab.timelake(&["backfill", "list", "--json"]).json()["jobs"], json!([]));
}

/// The dedup key does not hold the series key: rows of one identity are in several series, and however the work is
/// cut, one of them stays.
#[test]
fn a_dedup_key_without_the_series_key_holds_for_every_memory() {
    let mut expected: Option<Vec<String>> = None;
    for options in ["--memory 1GB", "--memory 20MB --threads 1", "--memory 20MB --threads 3"] {
        let lab = Lab::new();
        lab.timelake(&[
            "table",
            "create",
            "iot.sensor",
            "--columns",
            "ts:timestamptz,device_id:string,line:string,note:string",
            "--time-column",
            "ts",
            "--series-key",
            "line",
            "--dedup-key",
            "device_id,ts",
            "--partition",
            "month(ts)",
        ])
        .success();
        let rows: Vec<(i64, String, String)> =
            (0..16_000i64).map(|i| (i % 500, format!("d{}", i % 7), format!("line-{:03}", (i * 31) % 60))).collect();
        let note = "y".repeat(2_000);
        let ts: Int64Array = rows.iter().map(|(m, ..)| Some(1_714_521_600_000_000 + m * 60_000_000)).collect();
        let ts = cast(&ts, &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
        let text =
            |f: &dyn Fn(&(i64, String, String)) -> String| Arc::new(rows.iter().map(|r| Some(f(r))).collect::<StringArray>()) as ArrayRef;
        let columns = vec![
            ("ts", ts),
            ("device_id", text(&|r| r.1.clone())),
            ("line", text(&|r| r.2.clone())),
            ("note", text(&|r| format!("{} {note}", r.2))),
        ];
        write_parquet(&lab.path("in/a.parquet"), columns, 500);
        let manifest = lab.backfill(&format!("--from in --on-source-conflict first --verify full {options}"));
        let keys: std::collections::BTreeSet<(i64, &str)> = rows.iter().map(|(m, d, _)| (*m, d.as_str())).collect();
        assert_eq!(manifest["rows_written"], json!(keys.len()), "{options}: {}", manifest["plan"]);
        if options.contains("20MB") {
            assert!(manifest["plan"]["units"].as_u64() > Some(1), "{options}: {}", manifest["plan"]);
        }
        let found = timelake_tests::sorted_texts(&lab.rows("pyiceberg"));
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{options}");
    }
}

#[test]
fn a_row_can_be_identified_by_its_time_alone() {
    let lab = Lab::new();
    lab.timelake(&[
        "table",
        "create",
        "iot.sensor",
        "--columns",
        "ts:timestamptz,device_id:string,value:double,quality:int",
        "--time-column",
        "ts",
        "--series-key",
        "device_id",
        "--dedup-key",
        "ts",
    ])
    .success();
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1", "d2"]));
    let manifest = lab.backfill("--from in --on-source-conflict first");
    assert_eq!((&manifest["rows_written"], &manifest["in_source_conflicts"]), (&json!(96), &json!(96)), "{manifest}");
}

/// A crash while a further round is opened must not let the old round's rows through.
#[test]
fn a_round_that_could_not_be_opened_is_opened_again() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    let job = job_of(&lab.backfill("--from in --stage-only"));
    lab.append(&[reading(1, 30, "d1", -1.0), reading(2, 60, "d1", -2.0)]);
    for table in ["plans", "counters", "units"] {
        lab.reader(json!({"command": "ledger_sql", "sql": format!("CREATE TRIGGER boom BEFORE INSERT ON {table} BEGIN SELECT RAISE(FAIL, 'no'); END")}));
        assert_ne!(lab.job("publish", &job).code, Some(0), "{table}");
        lab.reader(json!({"command": "ledger_sql", "sql": "DROP TRIGGER boom"}));
    }
    let manifest = lab.backfill("--from in");
    assert_eq!(
        (&manifest["rows_written"], &manifest["kept_existing"], &manifest["published"]),
        (&json!(94), &json!(2), &json!(true)),
        "{manifest}"
    );
    let mut expected = readings(1..=2, &["d1"]);
    expected
        .retain(|r| *r != reading(1, 30, "d1", r["value"].as_f64().unwrap()) && *r != reading(2, 60, "d1", r["value"].as_f64().unwrap()));
    expected.extend([reading(1, 30, "d1", -1.0), reading(2, 60, "d1", -2.0)]);
    lab.assert_rows(&expected);
}

#[test]
fn thousands_of_tiny_files_take_the_memory_of_their_rows() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    for file in 0..1_500u32 {
        write_readings(
            &lab,
            &format!("in/{file:05}.parquet"),
            &[reading(1 + file % 28, file % 1_440, &format!("d{}", file / 28), f64::from(file))],
        );
    }
    let manifest = lab.backfill("--from in --memory 200MB");
    assert_eq!(manifest["rows_written"], json!(1_500));
    let peak = manifest["peak_memory_bytes"].as_u64().unwrap();
    assert!(peak < 200_000_000, "{peak} bytes");
}

#[test]
fn a_damaged_plan_is_said_and_the_job_can_be_given_up() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    write_readings(&lab, "in/a.parquet", &readings(1..=2, &["d1"]));
    let job = job_of(&lab.backfill("--from in --stage-only"));
    let plan = lab.lake().join("jobs").join(&job).join("g1/inventory.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("\"clip_retention\": false", "\"clip_retention\": true")).unwrap();
    let outcome = lab.job("publish", &job);
    assert_ne!(outcome.code, Some(0));
    assert_eq!(outcome.json()["error"]["reason"], json!("ledger_damaged"), "{}", outcome.json());
    lab.job("cancel", &job).success();
    assert_eq!(lab.timelake(&["backfill", "cancel", "", "--json"]).error(2)["reason"], json!("invalid_option"));
    assert_eq!(lab.backfill("--from in")["rows_written"], json!(96));
}
