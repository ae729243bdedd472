//! Every case of `tests/cases`, each variant in a fresh lake, judged by both readers.

use serde_json::{Value, json};
use std::path::PathBuf;
use timelake_tests::{Lab, Outcome, split_words, workspace};

macro_rules! cases {
    ($($name:ident = $folder:literal),* $(,)?) => {
        $(#[test] fn $name() { run_case($folder); })*
        const KNOWN: &[&str] = &[$($folder),*];
    };
}
cases! {
    case_041_int96_utc = "041-int96-utc",
    case_042_naive_and_utc_int64 = "042-naive-and-utc-int64",
    case_043_nanoseconds = "043-nanoseconds",
    case_045_column_added = "045-column-added",
    case_046_int_to_double_drift = "046-int-to-double-drift",
    case_048_decimal_scale_drift = "048-decimal-scale-drift",
    case_049_nested_struct = "049-nested-struct",
    case_051_zero_row_file = "051-zero-row-file",
    case_052_hive_folders = "052-hive-folders",
    case_054_nan_and_negative_zero = "054-nan-and-negative-zero",
    case_081_identical_duplicates = "081-identical-duplicates",
    case_082_conflict_inside_source = "082-conflict-inside-source",
    case_083_existing_row_wins = "083-existing-row-wins",
    case_084_same_job_twice = "084-same-job-twice",
    case_088_unordered_overlapping_files = "088-unordered-overlapping-files",
    case_089_live_row_arrives_while_staging = "089-live-row-arrives-while-staging",
    case_091_truncated_parquet = "091-truncated-parquet",
    case_100_corrupt_page = "100-corrupt-page",
}

#[test]
fn every_case_folder_has_a_test() {
    let mut folders: Vec<String> = std::fs::read_dir(cases_folder())
        .unwrap()
        .filter_map(|e| e.ok().filter(|e| e.path().is_dir()).map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect();
    folders.sort();
    assert_eq!(folders, KNOWN);
}

fn cases_folder() -> PathBuf {
    workspace().join("tests/cases")
}

struct Case {
    folder: PathBuf,
    expected: Value,
}

fn run_case(folder: &str) {
    let folder = cases_folder().join(folder);
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let case = Case { folder, expected: serde_json::from_str(&text).unwrap() };
    for variant in list(&case.expected["variants"]) {
        println!("variant {}", variant["name"]);
        case.run(variant);
    }
}

impl Case {
    fn id(&self) -> &str {
        self.expected["id"].as_str().unwrap()
    }

    /// A lake with the case's table, its existing rows, and its inputs beside it.
    fn lab(&self) -> Lab {
        let lab = Lab::new();
        for input in texts(&self.expected["inputs"]) {
            lab.copy_in(&self.folder.join(input), input);
        }
        let columns: Vec<String> =
            self.expected["table"].as_object().unwrap().iter().map(|(name, kind)| format!("{name}:{}", kind.as_str().unwrap())).collect();
        let key = texts(&self.expected["key"]);
        let series: Vec<&str> = key.iter().copied().filter(|c| *c != "ts").collect();
        let mut words = split_words("table create iot.sensor --time-column ts --partition day(ts),bucket(4,device_id)");
        words.extend(["--columns".into(), columns.join(","), "--series-key".into(), series.join(","), "--dedup-key".into(), key.join(",")]);
        lab.timelake(&words).success();
        let existing = list(&self.expected["existing"]);
        if !existing.is_empty() {
            lab.append(existing);
        }
        lab
    }

    fn arguments(&self, variant: &Value) -> String {
        let arguments = variant["args"].as_str().unwrap();
        if arguments.contains("--from") {
            return arguments.to_string();
        }
        let from: Vec<String> = texts(&self.expected["inputs"]).iter().map(|i| format!("--from '{i}'")).collect();
        format!("{} {arguments}", from.join(" "))
    }

    fn run(&self, variant: &Value) {
        let lab = self.lab();
        let arguments = self.arguments(variant);
        let expect = &variant["expect"];
        if expect["ok"] == json!(true) {
            let manifest = match self.id() {
                "084-same-job-twice" => return three_runs(&lab, &arguments, expect),
                "089-live-row-arrives-while-staging" => publish_after_a_live_row(&lab, &arguments),
                _ => lab.backfill(&arguments),
            };
            assert!(self.expected.get("steps").is_none() || self.id().starts_with("089"), "the steps of {} are not written out", self.id());
            assert_report(&manifest, &expect["report"]);
            lab.assert_rows(list(&expect["rows"]));
            self.also(&lab, expect);
        } else {
            let (before, rows) = (lab.inspect(), lab.rows("pyiceberg"));
            let outcome = lab.backfill_outcome(&arguments);
            assert_error(&outcome, &expect["error"]);
            assert_nothing_published(&lab, &before, &rows);
        }
    }

    /// The checks that `expected.json` says in words.
    fn also(&self, lab: &Lab, expect: &Value) {
        match (self.id(), expect["also"].as_str()) {
            ("054-nan-and-negative-zero", Some(_)) => statistics_without_nan(lab),
            ("088-unordered-overlapping-files", Some(_)) => utc_days_and_sorted_files(lab),
            (_, None) => {}
            (id, Some(words)) => panic!("{id}: not written out: {words}"),
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
fn texts(value: &Value) -> Vec<&str> {
    list(value).iter().map(|v| v.as_str().unwrap()).collect()
}

/// The manifest has each number; a text is contained in one of the texts of a list.
#[track_caller]
fn assert_report(manifest: &Value, report: &Value) {
    for (field, expected) in report.as_object().into_iter().flatten() {
        let found = &manifest[field];
        match (found, expected) {
            (Value::Array(lines), Value::String(text)) => {
                assert!(lines.iter().any(|l| l.as_str().is_some_and(|l| l.contains(text))), "{field}: no line with {text:?} in {found}")
            }
            _ => assert_eq!(found, expected, "{field} in {manifest}"),
        }
    }
}

/// The error object has the reason, every named field, the exit code of its reason, and says how to mend it.
#[track_caller]
fn assert_error(outcome: &Outcome, expected: &Value) {
    let code = outcome.code.unwrap_or_else(|| panic!("ended by a signal\n{outcome}"));
    assert_ne!(code, 0, "{outcome}");
    let object = outcome.error(code);
    let error: timelake_model::Error = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{e} in {object}"));
    assert_eq!(code, i32::from(error.exit_code()), "exit code of {object}");
    assert_eq!(object["reason"], expected["kind"], "{object}");
    for (field, value) in expected["must_name"].as_object().into_iter().flatten() {
        assert_eq!(&object[field], value, "{field} in {object}");
    }
    assert!(error.hint.is_some_and(|h| !h.is_empty()), "no hint in {object}");
}

#[track_caller]
fn assert_nothing_published(lab: &Lab, before: &Value, rows: &[Value]) {
    let after = lab.inspect();
    assert_eq!(after["files"], before["files"], "files of main");
    assert_eq!(after["current_snapshot"], before["current_snapshot"], "main");
    let tags: Vec<&String> = after["refs"].as_object().unwrap().keys().filter(|r| r.starts_with("timelake/")).collect();
    assert!(tags.is_empty(), "{tags:?}");
    lab.assert_rows(rows);
}

fn three_runs(lab: &Lab, arguments: &str, expect: &Value) {
    let first = lab.backfill(arguments);
    assert_eq!((&first["published"], &first["rows_written"]), (&json!(true), &json!(3)), "{first}");
    lab.assert_rows(list(&expect["rows"]));
    let published = lab.inspect();

    let second = lab.backfill(arguments);
    assert_report(&second, &expect["report"]["second_run"]);
    assert_eq!(second["job"], first["job"]);
    assert_eq!(lab.inspect()["metadata_location"], published["metadata_location"], "the second run committed something");

    std::fs::copy(lab.path("input.parquet"), lab.path("copy.parquet")).unwrap();
    let third = lab.backfill(&arguments.replace("input.parquet", "copy.parquet"));
    assert_report(&third, &expect["report"]["third_run"]);
    assert_ne!(third["job"], first["job"]);
    let after = lab.inspect();
    for unchanged in ["current_snapshot", "files", "snapshots", "refs", "properties"] {
        assert_eq!(after[unchanged], published[unchanged], "{unchanged} after the third run");
    }
    lab.assert_rows(list(&expect["rows"]));
}

fn publish_after_a_live_row(lab: &Lab, arguments: &str) -> Value {
    let staged = lab.backfill(&format!("{arguments} --stage-only"));
    assert_eq!((&staged["state"], &staged["published"]), (&json!("STAGED"), &json!(false)), "{staged}");
    lab.assert_rows(&[]);
    lab.append(&[json!({"ts": "2024-05-01T00:10:00.000000Z", "device_id": "d1", "value": 99.0})]);
    lab.job("publish", staged["job"].as_str().unwrap()).manifest()
}

fn statistics_without_nan(lab: &Lab) {
    let inspected = lab.inspect();
    let files: Vec<&Value> = list(&inspected["files"]).iter().filter(|f| f["rows"] != json!(0)).collect();
    let nan_count: u64 = files.iter().map(|f| f["nan_counts"]["value"].as_u64().expect("a NaN count for value")).sum();
    assert_eq!(nan_count, 1, "{files:?}");
    for file in files {
        let (lower, upper) = (&file["lower"]["value"], &file["upper"]["value"]);
        assert!(*lower != json!("NaN") && *upper != json!("NaN"), "{file}");
        assert!(*lower == json!("-0.0") || lower.as_f64().is_some_and(|l| l < 0.0), "the lower bound hides -0.0: {file}");
        assert_eq!(*upper, json!("Infinity"), "{file}");
        for group in list(&lab.parquet(file)["row_groups"]) {
            let value = &group["columns"]["value"];
            assert!(value["min"] != json!("NaN") && value["max"] != json!("NaN"), "{value}");
        }
    }
}

fn utc_days_and_sorted_files(lab: &Lab) {
    let inspected = lab.inspect();
    let mut rows_per_day = std::collections::BTreeMap::<String, u64>::new();
    for file in list(&inspected["files"]) {
        let day = file["partition"]["ts_day"].as_str().expect("a day partition").to_string();
        *rows_per_day.entry(day.clone()).or_default() += file["rows"].as_u64().unwrap();
        let read = lab.parquet(file);
        let keys: Vec<(String, String)> = list(&read["rows"])
            .iter()
            .map(|r| (r["device_id"].as_str().unwrap().to_string(), r["ts"].as_str().unwrap().to_string()))
            .collect();
        assert!(keys.is_sorted(), "not sorted by (device_id, ts): {keys:?}");
        assert!(keys.iter().all(|(_, ts)| ts.starts_with(&day)), "rows of another day in {day}: {keys:?}");
        assert_eq!(file["sort_order"], inspected["sort_order_id"], "{file}");
    }
    assert_eq!(rows_per_day, [("2024-05-01".to_string(), 5), ("2024-05-02".into(), 1)].into());
}
