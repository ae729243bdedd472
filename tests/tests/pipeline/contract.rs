//! Tables as other tools make them, the contract, and the command's own tables.

use crate::sensors::*;
use serde_json::{Value, json};
use timelake_tests::Lab;

fn table_of_pyiceberg(format_version: u32) -> Lab {
    let lab = Lab::new();
    lab.reader(json!({
        "command": "create_table", "format_version": format_version,
        "columns": [
            {"name": "ts", "type": "timestamptz", "required": true}, {"name": "device_id", "type": "string", "required": true},
            {"name": "value", "type": "double"}, {"name": "quality", "type": "int"},
        ],
        "partition": [{"source": "ts", "transform": "day", "name": "ts_day"}, {"source": "device_id", "transform": "bucket[4]", "name": "device_bucket"}],
    }));
    lab
}

#[test]
fn a_table_of_pyiceberg_takes_a_contract_and_a_backfill() {
    let lab = table_of_pyiceberg(2);
    let live = readings(2..=2, &["d1"]);
    lab.append(&live);
    let history = readings(1..=2, &["d1", "d2"]);
    write_readings(&lab, "in/a.parquet", &history);

    let error = lab.backfill_outcome("--from in").error(2);
    assert_eq!(error["reason"], json!("missing_contract"), "{error}");
    assert!(error["hint"].as_str().is_some_and(|h| h.contains("table contract")), "{error}");

    lab.timelake(&["table", "contract", "iot.sensor", "--time-column", "ts", "--series-key", "device_id"]).success();
    let table = lab.inspect();
    assert_eq!(table["properties"]["timelake.time-column"], json!("ts"));
    assert_eq!(table["properties"]["timelake.series-key"], json!("device_id"));
    let contract = lab.timelake(&["table", "contract", "iot.sensor", "--json"]).success().json();
    assert!(contract.to_string().contains("device_id"), "{contract}");

    let manifest = lab.backfill("--from in");
    // The live rows of 2 May are those of the history: kept, and not different.
    assert_eq!((&manifest["kept_existing"], &manifest["kept_existing_different"]), (&json!(48), &json!(0)), "{manifest}");
    lab.assert_rows(&history);
    lab.append(&readings(3..=3, &["d1"]));
    lab.assert_rows(&[history, readings(3..=3, &["d1"])].concat());
}

#[test]
fn a_table_of_pyiceberg_without_any_snapshot() {
    let lab = table_of_pyiceberg(2);
    lab.timelake(&["table", "contract", "iot.sensor", "--time-column", "ts", "--series-key", "device_id"]).success();
    let history = readings(1..=2, &["d1", "d2"]);
    write_readings(&lab, "in/a.parquet", &history);
    lab.backfill("--from in");
    lab.assert_rows(&history);
    // A live writer goes on, with sequence numbers that only grow.
    lab.append(&readings(3..=3, &["d7"]));
    lab.assert_rows(&[history, readings(3..=3, &["d7"])].concat());
    let sequences: Vec<u64> = lab.inspect()["snapshots"].as_array().unwrap().iter().map(|s| s["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
}

#[test]
fn a_contract_that_does_not_fit_is_refused() {
    let lab = table_of_pyiceberg(2);
    for (time, series) in [("device_id", "device_id"), ("ts", "nothing"), ("ts", "value"), ("ts", "ts")] {
        let outcome = lab.timelake(&["table", "contract", "iot.sensor", "--time-column", time, "--series-key", series, "--json"]);
        let error = outcome.error(2);
        assert_eq!(error["reason"], json!("invalid_contract"), "{error}");
    }
    assert_eq!(lab.inspect()["properties"].get("timelake.time-column"), None);
}

#[test]
fn version_3_tables_are_appended_to_or_refused_with_a_clear_message() {
    let lab = table_of_pyiceberg(3);
    let history = readings(1..=2, &["d1"]);
    write_readings(&lab, "in/a.parquet", &history);
    let contract = lab.timelake(&["table", "contract", "iot.sensor", "--time-column", "ts", "--series-key", "device_id", "--json"]);
    let outcome = if contract.code == Some(0) { lab.backfill_outcome("--from in") } else { contract };
    if outcome.code == Some(0) {
        lab.assert_rows(&history);
        return;
    }
    let error = outcome.error(2);
    assert!([json!("unsupported_table"), json!("not_yet_supported")].contains(&error["reason"]), "{error}");
    assert!(error["message"].as_str().is_some_and(|m| m.contains('3')), "the message names the version: {error}");
    assert!(error["hint"].is_string(), "{error}");
    assert_eq!(lab.inspect()["current_snapshot"], Value::Null);
}

#[test]
fn a_created_table_has_required_keys_a_sort_order_and_a_first_snapshot() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition 'month(ts),bucket(4,device_id)' --retention P2Y");
    let table = lab.inspect();
    assert_eq!(table["format_version"], json!(2));
    let required: Vec<(&str, bool)> =
        table["schema"].as_array().unwrap().iter().map(|c| (c["name"].as_str().unwrap(), c["required"].as_bool().unwrap())).collect();
    assert_eq!(required, [("ts", true), ("device_id", true), ("value", false), ("quality", false)]);
    let transforms: Vec<&str> = table["partition"].as_array().unwrap().iter().map(|p| p["transform"].as_str().unwrap()).collect();
    assert_eq!(transforms, ["month", "bucket[4]"]);
    let sort: Vec<&str> = table["sort"].as_array().unwrap().iter().map(|s| s["column"].as_str().unwrap()).collect();
    assert_eq!(sort, ["device_id", "ts"]);
    assert_eq!(table["properties"]["timelake.retention"], json!("P2Y"));
    // So that no staged snapshot is ever without a parent.
    assert!(table["current_snapshot"].is_i64(), "{table}");
    lab.assert_rows(&[]);
    let twice = lab.timelake(&[
        "table",
        "create",
        "iot.sensor",
        "--columns",
        "ts:timestamptz,d:string",
        "--time-column",
        "ts",
        "--series-key",
        "d",
        "--json",
    ]);
    assert_eq!(twice.error(twice.code.unwrap_or(0))["reason"], json!("table_exists"));
    let shown = lab.timelake(&["table", "show", "iot.sensor"]).success().stdout;
    for word in ["ts", "device_id", "month", "P2Y"] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
}

#[test]
fn what_is_not_there_is_said_and_nothing_is_made() {
    let lab = Lab::new();
    let no_lake = lab.backfill_outcome("--from in").error(2);
    assert!(no_lake["hint"].is_string(), "{no_lake}");
    assert!(!lab.lake().exists(), "a backfill must not make a lake");
    lab.create_sensor_table("");
    let no_table = lab.timelake(&["backfill", "iot.other", "--from", "in", "--json"]).error(2);
    assert_eq!(no_table["reason"], json!("table_not_found"), "{no_table}");
    let no_path = lab.backfill_outcome("--from nowhere/a.parquet").error(2);
    assert!([json!("path_not_found"), json!("no_input_files")].contains(&no_path["reason"]), "{no_path}");
    write_readings(&lab, "in/a.parquet", &readings(1..=1, &["d1"]));
    let no_column = lab.backfill_outcome("--from in --map value=valeu").error(2);
    assert_eq!((&no_column["reason"], &no_column["column"]), (&json!("column_not_found"), &json!("valeu")), "{no_column}");
    let no_zone = lab.backfill_outcome("--from in --tz Europe/Berln").error(2);
    assert_eq!(no_zone["reason"], json!("unknown_time_zone"), "{no_zone}");
    lab.assert_rows(&[]);
}
