//! Real public Parquet files: each loads with the right values, or fails cleanly and publishes nothing.
//! Most have no time and no series: constants stand in for them, and the value is in the key where it can be.

use serde_json::{Value, json};
use timelake_tests::{Lab, Outcome, workspace};

const CONSTANTS: &str = "--set ts=2024-01-01T00:00:00Z --set device_id=sample";
const TIME: &str = "2024-01-01T00:00:00.000000Z";

/// A table with `columns` beside ts and device_id, keyed by `key`, and the outcome of loading the sample into it.
fn load(file: &str, columns: &str, key: &str, options: &str) -> (Lab, Outcome) {
    let lab = Lab::new();
    let sample = format!("parquet-testing__{file}");
    lab.copy_in(&workspace().join("tests/samples").join(&sample), &sample);
    let columns = format!("ts:timestamptz,device_id:string,{columns}");
    lab.timelake(&[
        "table",
        "create",
        "iot.sensor",
        "--columns",
        &columns,
        "--time-column",
        "ts",
        "--series-key",
        "device_id",
        "--dedup-key",
        key,
    ])
    .success();
    let outcome = lab.backfill_outcome(&format!("--from {sample} {options}"));
    (lab, outcome)
}

#[track_caller]
fn assert_clean_failure(lab: &Lab, outcome: &Outcome, reasons: &[&str]) {
    let error = outcome.error(3);
    assert!(reasons.contains(&error["reason"].as_str().unwrap()), "{error}");
    assert!(error["file"].as_str().is_some_and(|f| f.contains("parquet-testing__")), "it names the file: {error}");
    lab.assert_rows(&[]);
}

fn row(value: Value) -> Value {
    json!({"ts": TIME, "device_id": "sample", "value": value})
}

#[test]
fn two_gzip_members_in_one_page_are_513_rows() {
    let (lab, outcome) =
        load("concatenated_gzip_members.parquet", "value:long", "device_id,ts,value", &format!("{CONSTANTS} --map value=long_col"));
    assert_eq!(outcome.manifest()["rows_written"], json!(513));
    lab.assert_rows(&(1..=513).map(|v| row(json!(v))).collect::<Vec<_>>());
}

#[test]
fn decimals_stored_as_int64() {
    let (lab, outcome) = load("int64_decimal.parquet", "value:decimal(10,2)", "device_id,ts,value", CONSTANTS);
    assert_eq!(outcome.manifest()["rows_written"], json!(24));
    lab.assert_rows(&(1..=24).map(|v| row(json!(format!("{v}.00")))).collect::<Vec<_>>());
}

#[test]
fn rows_are_not_pruned_by_statistics_that_are_nan() {
    let options = format!("{CONSTANTS} --map value=x --on-source-conflict");
    for (policy, kept) in [("first", json!(1.0)), ("last", json!("NaN"))] {
        let (lab, outcome) = load("nan_in_stats.parquet", "value:double", "device_id,ts", &format!("{options} {policy}"));
        let manifest = outcome.manifest();
        assert_eq!((&manifest["rows_read"], &manifest["in_source_conflicts"]), (&json!(2), &json!(1)), "{manifest}");
        lab.assert_rows(&[row(kept)]);
    }
}

#[test]
fn an_empty_page_of_version_2_is_one_null() {
    let (lab, outcome) = load("datapage_v2_empty_datapage.snappy.parquet", "value:float", "device_id,ts", CONSTANTS);
    assert_eq!(outcome.manifest()["rows_written"], json!(1));
    lab.assert_rows(&[row(Value::Null)]);
}

/// The far years and the null are what the file is for: wrapped to 1816 or 2147 they would look like good rows.
#[test]
fn int96_of_spark_does_not_wrap() {
    let options = "--set device_id=sample --set value=1 --map ts=a";
    let (lab, outcome) = load("int96_from_spark.parquet", "value:double", "device_id,ts", options);
    assert_clean_failure(&lab, &outcome, &["timestamp_out_of_range", "missing_timestamp", "null_in_key"]);

    let (lab, outcome) =
        load("int96_from_spark.parquet", "value:double", "device_id,ts", &format!("{options} --on-bad-row skip --on-out-of-range skip"));
    let manifest = outcome.manifest();
    assert_eq!((&manifest["rows_read"], &manifest["rejected"], &manifest["rows_written"]), (&json!(6), &json!(3), &json!(3)), "{manifest}");
    let at = |ts: &str| json!({"ts": ts, "device_id": "sample", "value": 1.0});
    lab.assert_rows(&[at("2024-01-01T20:34:56.123456Z"), at("2024-01-01T01:00:00.000000Z"), at("2024-12-30T23:00:00.000000Z")]);
}

#[test]
fn a_malformed_dictionary_reads_whole_or_fails_cleanly() {
    let options = format!("{CONSTANTS} --map 'nation=nation_key,region=region_key,name=name,note=comment_col'");
    let columns = "nation:int,region:int,name:string,note:string";
    let (lab, outcome) = load("nation.dict-malformed.parquet", columns, "device_id,ts,nation", &options);
    if outcome.code != Some(0) {
        return assert_clean_failure(&lab, &outcome, &["corrupt_parquet", "unsupported_type", "not_a_complete_parquet_file"]);
    }
    assert_eq!(outcome.manifest()["rows_written"], json!(25));
    let rows = lab.rows("pyiceberg");
    let mut nations: Vec<i64> = rows.iter().map(|r| r["nation"].as_i64().unwrap()).collect();
    nations.sort();
    assert_eq!(nations, (0..25).collect::<Vec<i64>>());
    let first = rows.iter().find(|r| r["nation"] == json!(0)).unwrap();
    assert_eq!((&first["name"], &first["note"]), (&json!("ALGERIA"), &json!(" haggle. carefully final deposits detect slyly agai")));
}

#[test]
fn an_invalid_column_type_is_a_clean_error() {
    let (lab, outcome) = load("PARQUET-1481.parquet", "value:double", "device_id,ts", &format!("{CONSTANTS} --set value=1"));
    assert_clean_failure(&lab, &outcome, &["corrupt_parquet", "not_a_complete_parquet_file", "unsupported_type"]);
}

#[test]
fn a_fuzzed_page_is_a_clean_error() {
    let columns = "flag:boolean,tiny:int,small:int,number:double,text:string,at:timestamp,bytes:binary,amount:decimal(7,3),day:date";
    let mapping =
        "flag=boolean,tiny=int8,small=uint16,number=float64,text=string,at=timestamp_us_no_tz,bytes=binary,amount=decimal128,day=date32";
    let (lab, outcome) =
        load("ARROW-GH-41321.parquet", columns, "device_id,ts", &format!("{CONSTANTS} --on-source-conflict first --map '{mapping}'"));
    if outcome.code == Some(0) {
        // The broken page may lie in a column that was not asked for: then the rest is whole.
        assert_eq!(outcome.manifest()["rows_read"], json!(5));
        return;
    }
    assert_clean_failure(
        &lab,
        &outcome,
        &["corrupt_parquet", "not_a_complete_parquet_file", "bad_value", "number_out_of_range", "invalid_utf8"],
    );
}
