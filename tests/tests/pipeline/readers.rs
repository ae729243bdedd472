//! The harness itself: a table made by PyIceberg alone is read rightly by both readers, and a wrong one is found out.

use crate::sensors::*;
use serde_json::{Value, json};
use timelake_tests::{Lab, Reader};

fn pyiceberg_table() -> Lab {
    let lab = Lab::new();
    lab.reader(json!({
        "command": "create_table",
        "columns": [
            {"name": "ts", "type": "timestamptz", "required": true}, {"name": "device_id", "type": "string", "required": true},
            {"name": "value", "type": "double"}, {"name": "quality", "type": "int"},
        ],
        "partition": [{"source": "ts", "transform": "day", "name": "ts_day"}],
    }));
    lab
}

#[test]
fn both_readers_agree_on_a_table_of_pyiceberg() {
    let lab = pyiceberg_table();
    lab.assert_rows(&[]);
    let mut rows = readings(1..=2, &["d1"]);
    rows[0]["value"] = json!("NaN");
    rows[1]["value"] = json!("-0.0");
    rows[2]["value"] = Value::Null;
    rows[3]["value"] = json!("-Infinity");
    lab.append(&rows);
    lab.assert_rows(&rows);
    let table = lab.inspect();
    let mut days: Vec<&str> = table["files"].as_array().unwrap().iter().map(|f| f["partition"]["ts_day"].as_str().unwrap()).collect();
    days.sort();
    assert_eq!(days, ["2024-05-01", "2024-05-02"]);
    for command in [json!({"command": "compact"}), json!({"command": "compact", "commits": 2})] {
        lab.reader(command);
        lab.assert_rows(&rows);
    }
    lab.reader(json!({"command": "delete", "filter": [{"column": "ts", "op": "eq", "value": rows[5]["ts"]}]}));
    rows.remove(5);
    lab.assert_rows(&rows);
    for engine in ["pyiceberg", "duckdb"] {
        let summary = lab.reader(
            json!({"command": "summary", "engine": engine, "filter": [{"column": "ts", "op": "ge", "value": "2024-05-02T00:00:00Z"}]}),
        );
        assert_eq!((&summary["rows"], &summary["keys"]), (&json!(48), &json!(48)), "{engine}");
    }
}

#[test]
#[should_panic(expected = "missing")]
fn a_lost_row_is_seen() {
    let lab = pyiceberg_table();
    lab.append(&readings(1..=1, &["d1"])[1..]);
    lab.assert_rows(&readings(1..=1, &["d1"]));
}

#[test]
fn a_wrong_request_is_an_error_and_the_reader_goes_on() {
    let lab = pyiceberg_table();
    let request = json!({"command": "read", "engine": "duckdb", "lake": lab.lake(), "table": "iot.nothing"});
    let error = Reader::shared().try_ask(&request).unwrap_err();
    assert!(error.contains("NoSuchTable"), "{error}");
    assert_eq!(lab.reader(json!({"command": "tables"})), json!(["iot.sensor"]));
}
