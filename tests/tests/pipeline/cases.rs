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
    case_001_dst_fall_back_in_order = "001-dst-fall-back-in-order",
    case_002_dst_fall_back_single = "002-dst-fall-back-single",
    case_004_standard_time_all_year = "004-standard-time-all-year",
    case_005_pg_timestamptz_text = "005-pg-timestamptz-text",
    case_006_aware_and_naive_mixed = "006-aware-and-naive-mixed",
    case_008_ignition_sqlt_data = "008-ignition-sqlt-data",
    case_009_ns_to_us_collision = "009-ns-to-us-collision",
    case_011_leap_second = "011-leap-second",
    case_013_excel_serial_dates = "013-excel-serial-dates",
    case_014_clock_reset_and_future = "014-clock-reset-and-future",
    case_015_pg_infinity = "015-pg-infinity",
    case_017_etc_gmt_sign = "017-etc-gmt-sign",
    case_019_hour_24 = "019-hour-24",
    case_021_utf8_bom = "021-utf8-bom",
    case_022_decimal_comma = "022-decimal-comma",
    case_024_nul_bytes = "024-nul-bytes",
    case_025_uci_household = "025-uci-household",
    case_026_day_month_order = "026-day-month-order",
    case_027_quoted_newline = "027-quoted-newline",
    case_029_header_again = "029-header-again",
    case_030_pi_system_states = "030-pi-system-states",
    case_032_ragged_rows = "032-ragged-rows",
    case_033_sep_line_and_units = "033-sep-line-and-units",
    case_035_late_type_change = "035-late-type-change",
    case_036_number_forms = "036-number-forms",
    case_038_sentinel_numbers = "038-sentinel-numbers",
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
    case_081_identical_duplicates_parquet = "081-identical-duplicates-parquet",
    case_082_conflict_inside_source = "082-conflict-inside-source",
    case_082_conflict_inside_source_parquet = "082-conflict-inside-source-parquet",
    case_083_existing_row_wins = "083-existing-row-wins",
    case_083_existing_row_wins_parquet = "083-existing-row-wins-parquet",
    case_084_same_job_twice = "084-same-job-twice",
    case_084_same_job_twice_parquet = "084-same-job-twice-parquet",
    case_088_unordered_overlapping_files = "088-unordered-overlapping-files",
    case_088_unordered_overlapping_files_parquet = "088-unordered-overlapping-files-parquet",
    case_089_live_row_arrives_while_staging = "089-live-row-arrives-while-staging",
    case_089_live_row_arrives_while_staging_parquet = "089-live-row-arrives-while-staging-parquet",
    case_091_truncated_parquet = "091-truncated-parquet",
    case_093_gzip_bomb = "093-gzip-bomb",
    case_095_ten_megabyte_line = "095-ten-megabyte-line",
    case_096_invalid_utf8 = "096-invalid-utf8",
    case_097_empty_inputs = "097-empty-inputs",
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

/// Where a case allows several answers: the one that is given here, by index.
const CHOICES: &[(&str, &str, usize)] = &[
    ("011-leap-second", "default", 0),
    ("019-hour-24", "default", 0),
    ("029-header-again", "default", 0),
    ("082-conflict-inside-source", "default", 0),
    ("096-invalid-utf8", "not-mapped", 1),
    ("097-empty-inputs", "zero-among-good", 0),
];

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

    fn expectation<'a>(&self, variant: &'a Value) -> &'a Value {
        let Some(answers) = variant.get("expect_any") else { return &variant["expect"] };
        let name = variant["name"].as_str().unwrap();
        let choice = CHOICES.iter().find(|(id, of, _)| *id == self.id() && *of == name);
        let (.., index) = choice.unwrap_or_else(|| panic!("{} {name}: no answer is chosen", self.id()));
        &answers[*index]
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
        let expect = self.expectation(variant);
        if expect["ok"] == json!(true) {
            let manifest = match self.id() {
                id if id.starts_with("084") => return three_runs(&lab, &arguments, expect),
                id if id.starts_with("089") => publish_after_a_live_row(&lab, &arguments),
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
            self.hint(&outcome, variant);
            assert_nothing_published(&lab, &before, &rows);
        }
    }

    /// The words of a hint that a user needs to go on.
    fn hint(&self, outcome: &Outcome, variant: &Value) {
        let name = variant["name"].as_str().unwrap();
        let words: &[&str] = match (self.id(), name) {
            ("004-standard-time-all-year", _) => &["--tz +10:00"],
            ("009-ns-to-us-collision", _) => &["microsecond"],
            ("013-excel-serial-dates", _) => &["2024-01-01", "--ts-format excel"],
            ("017-etc-gmt-sign", "posix-like") => &["+05:00"],
            ("017-etc-gmt-sign", "typo") => &["Europe/Berlin"],
            ("026-day-month-order", "default") => &["--ts-format"],
            ("096-invalid-utf8", _) => &["--encoding"],
            _ => &[],
        };
        let hint = outcome.error(outcome.code.unwrap())["hint"].as_str().unwrap_or_default().to_string();
        assert!(words.iter().all(|word| hint.contains(word)), "{words:?} in {hint}");
        if self.id() == "093-gzip-bomb" {
            let manifest: Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert!(manifest["peak_memory_bytes"].as_u64().unwrap() < 256 << 20, "{manifest}");
        }
    }

    /// The checks that `expected.json` says in words.
    fn also(&self, lab: &Lab, expect: &Value) {
        match (self.id(), expect["also"].as_str()) {
            ("054-nan-and-negative-zero", Some(_)) => statistics_without_nan(lab),
            ("088-unordered-overlapping-files", Some(_)) => utc_days_and_sorted_files(lab),
            // Thread counts: the test of splitting. A file that is quoted or not is one split.
            ("027-quoted-newline", Some(_)) => {}
            ("038-sentinel-numbers", Some(words)) => assert!(words.contains("dry run"), "{words}"),
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
        match field.as_str() {
            "count_at_least" => assert!(object["count"].as_u64() >= value.as_u64(), "{field} in {object}"),
            "limit" => assert!(object["limit"].as_u64().is_some(), "{field} in {object}"),
            _ => assert_eq!(&object[field], value, "{field} in {object}"),
        }
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

    let input = if lab.path("input.csv").exists() { "input.csv" } else { "input.parquet" };
    let copy = input.replace("input", "copy");
    std::fs::copy(lab.path(input), lab.path(&copy)).unwrap();
    let third = lab.backfill(&arguments.replace(input, &copy));
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
