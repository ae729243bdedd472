//! The written files themselves: the same bytes from the same rows, one file per partition until it is full,
//! and what a unit's memory bound must not change.

use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use timelake_tests::Lab;

const FROM: &str = "--from in";

/// Three weeks of 30 devices in files that each hold all days: badly clustered in time, every reading twice.
fn scattered_lab(partition: &str) -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table(&format!("--partition {partition}"));
    for file in 0..3u32 {
        let mut rows = Vec::new();
        for minute in (0..1_440).step_by(30) {
            for day in 1..=21 {
                for device in (0..30u32).filter(|d| d % 3 == file || (d + 1) % 3 == file) {
                    rows.push(reading(day, minute, &format!("d{device:03}"), f64::from(day * 10_000 + minute * 10 + device)));
                }
            }
        }
        write_grouped_readings(&lab, &format!("in/{file}.parquet"), &rows, 5_000);
    }
    lab
}

const ROWS: u64 = 21 * 48 * 30;

/// Bytes of all data files by partition folder and position in it.
fn file_bytes(lab: &Lab) -> BTreeMap<String, Vec<u8>> {
    let mut files: Vec<String> =
        lab.inspect()["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap().to_string()).collect();
    files.sort();
    let mut out = BTreeMap::new();
    for path in files {
        let path = path.trim_start_matches("file://");
        let (folder, name) = path.rsplit_once('/').unwrap();
        let folder = folder.rsplit_once("/data/").unwrap().1;
        let number = name.rsplit_once('-').unwrap().1;
        assert!(out.insert(format!("{folder}/{number}-{}", out.len()), std::fs::read(path).unwrap()).is_none());
    }
    out
}

#[test]
fn the_same_rows_are_the_same_bytes_whatever_the_threads() {
    let mut first: Option<BTreeMap<String, Vec<u8>>> = None;
    for options in ["--threads 1", "--threads 3", "--threads 2 --memory 500MB"] {
        let lab = scattered_lab("day(ts),bucket(2,device_id)");
        let manifest = lab.backfill(&format!("{FROM} {options}"));
        assert_eq!((&manifest["rows_written"], &manifest["duplicates_collapsed"]), (&json!(ROWS), &json!(ROWS)), "{options}");
        let files: Vec<Vec<u8>> = file_bytes(&lab).into_values().collect();
        assert_eq!(files.len(), 42, "one file per partition");
        let found: BTreeMap<String, Vec<u8>> = files.into_iter().enumerate().map(|(i, b)| (i.to_string(), b)).collect();
        match &first {
            None => first = Some(found),
            Some(first) => assert!(*first == found, "{options} gives other bytes"),
        }
    }
}

#[test]
fn a_partition_over_the_target_size_becomes_files_of_disjoint_series() {
    let lab = scattered_lab("month(ts)");
    lab.reader(json!({"command": "set_property", "properties": {"write.target-file-size-bytes": "60000"}}));
    let manifest = lab.backfill(FROM);
    assert_eq!(manifest["rows_written"], json!(ROWS));
    let inspected = lab.inspect();
    let files: Vec<&Value> = inspected["files"].as_array().unwrap().iter().filter(|f| f["rows"] != json!(0)).collect();
    assert!(files.len() > 1, "{} files", files.len());
    let mut ranges: Vec<(String, String)> = files
        .iter()
        .map(|f| {
            let rows = lab.parquet(f)["rows"].as_array().unwrap().clone();
            let devices: Vec<&str> = rows.iter().map(|r| r["device_id"].as_str().unwrap()).collect();
            (devices.iter().min().unwrap().to_string(), devices.iter().max().unwrap().to_string())
        })
        .collect();
    ranges.sort();
    assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "series in two files: {ranges:?}");
    let smallest = files.iter().map(|f| f["bytes"].as_u64().unwrap()).min().unwrap();
    assert!(smallest > 20_000, "a small file of {smallest} bytes");
}

#[test]
fn a_partition_over_a_units_memory_is_cut_by_series_and_loses_nothing() {
    // Rows for a unit: 32 MiB per worker at least, 60 % of it for rows; wide texts make rows large.
    let lab = Lab::new();
    lab.timelake(&[
        "table",
        "create",
        "iot.sensor",
        "--columns",
        "ts:timestamptz,device_id:string,note:string",
        "--time-column",
        "ts",
        "--series-key",
        "device_id",
        "--partition",
        "month(ts)",
    ])
    .success();
    let note = "x".repeat(3_000);
    let mut rows = Vec::new();
    for minute in 0..400u32 {
        for device in 0..30 {
            rows.push((minute, format!("d{device:03}")));
        }
    }
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::{DataType, TimeUnit};
    let ts: Int64Array = rows.iter().map(|(m, _)| Some(1_714_521_600_000_000 + i64::from(*m) * 60_000_000)).collect();
    let ts = arrow::compute::cast(&ts, &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
    let devices: StringArray = rows.iter().map(|(_, d)| Some(d.as_str())).collect();
    let notes: StringArray = rows.iter().map(|(m, d)| Some(format!("{d} {m} {note}"))).collect();
    let columns: Vec<(&'static str, ArrayRef)> =
        vec![("ts", ts), ("device_id", std::sync::Arc::new(devices)), ("note", std::sync::Arc::new(notes))];
    timelake_tests::write_parquet(&lab.path("in/wide.parquet"), columns, 1_000);

    let manifest = lab.backfill(&format!("{FROM} --threads 1 --memory 32MiB --verify full"));
    assert_eq!(manifest["rows_written"], json!(rows.len()));
    assert!(manifest["plan"]["units"].as_u64().unwrap() > 1, "{}", manifest["plan"]);
    let inspected = lab.inspect();
    let files: Vec<&Value> = inspected["files"].as_array().unwrap().iter().filter(|f| f["rows"] != json!(0)).collect();
    let mut ranges: Vec<(String, String)> = files
        .iter()
        .map(|f| (f["lower"]["device_id"].as_str().unwrap().to_string(), f["upper"]["device_id"].as_str().unwrap().to_string()))
        .collect();
    ranges.sort();
    assert!(ranges.len() > 1 && ranges.windows(2).all(|w| w[0].1 < w[1].0), "series in two files: {ranges:?}");
    for engine in ["pyiceberg", "duckdb"] {
        assert_eq!(lab.rows(engine).len(), rows.len(), "{engine}");
    }
}

#[test]
fn validate_full_finds_a_staged_file_that_was_changed() {
    let lab = scattered_lab("day(ts)");
    let staged = lab.backfill(&format!("{FROM} --stage-only"));
    let job = job_of(&staged);
    let approved = lab.job("validate", &job).success().json();
    assert_eq!(approved["verdict"], json!("approved"), "{approved}");

    // Another file of the same size in its place: the counts in the footer agree, the values do not.
    let refs = lab.inspect_ref(&format!("backfill/{job}"));
    let path = refs["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["path"].as_str().unwrap().trim_start_matches("file://").to_string())
        .min()
        .unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    let outcome = lab.timelake(&["backfill", "validate", &job, "--verify", "full", "--json"]);
    let verdict = outcome.json();
    assert_eq!((outcome.code, &verdict["verdict"]), (Some(4), &json!("rejected")), "{verdict}");
    assert_eq!(verdict["findings"][0]["reason"], json!("staged_file_wrong"), "{verdict}");
    assert!(verdict["findings"][0]["file"].as_str().is_some_and(|f| f.ends_with(path.rsplit('/').next().unwrap())), "{verdict}");
    lab.assert_rows(&[]);
}

#[test]
fn overlapping_windows_of_two_jobs_are_refused_and_named() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    write_readings(&lab, "a/a.parquet", &readings(1..=3, &["d1"]));
    write_readings(&lab, "b/b.parquet", &readings(3..=5, &["d2"]));
    write_readings(&lab, "c/c.parquet", &readings(6..=7, &["d3"]));
    let first = job_of(&lab.backfill("--from a --stage-only"));
    let error = lab.backfill_outcome("--from b").error(4);
    assert_eq!((&error["reason"], &error["job"]), (&json!("window_locked"), &json!(first)), "{error}");
    let third = lab.backfill("--from c");
    assert_eq!(third["published"], json!(true), "another window is free: {third}");
    lab.job("publish", &first).success();
    let second = lab.backfill("--from b");
    assert_eq!(second["rows_written"], json!(3 * 48), "the refused command works once the window is free: {second}");
    assert_eq!(locks(&lab.inspect()), Vec::<String>::new());
}

#[test]
fn a_job_that_is_cancelled_by_another_process_while_it_runs_ends_as_cancelled() {
    let lab = scattered_lab("day(ts),bucket(8,device_id)");
    let mut running = lab.start_backfill(&format!("{FROM} --threads 1"));
    let job = loop {
        let jobs = lab.timelake(&["backfill", "list", "--json"]).json();
        let writing = jobs["jobs"].as_array().into_iter().flatten().find(|j| j["state"] == json!("WRITING"));
        if let Some(job) = writing {
            break job["job"].as_str().unwrap().to_string();
        }
        if !running.is_running() {
            return; // too fast to be caught: the other outcome, published, is what the other tests look at
        }
    };
    let cancelled = lab.job("cancel", &job).json();
    let ran = running.wait();
    let table = lab.inspect();
    assert!(!ref_names(&table).iter().any(|r| r.starts_with("backfill/")), "{}", table["refs"]);
    assert_eq!(locks(&table), Vec::<String>::new());
    match cancelled["state"].as_str() {
        Some("CANCELLED") => {
            assert_eq!(ran.error(4)["reason"], json!("cancelled"));
            lab.assert_rows(&[]);
        }
        Some("PUBLISHED") => assert_eq!(ran.json()["published"], json!(true)),
        other => panic!("{other:?}"),
    }
    let again = lab.backfill(FROM);
    assert!(again["state"] == json!("PUBLISHED"), "{again}");
}
