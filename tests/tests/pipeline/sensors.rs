//! Sensor readings as rows and as Parquet inputs, and what a published job must leave behind.

use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use serde_json::{Value, json};
use std::sync::Arc;
use timelake_tests::{Lab, write_parquet};

const ROW_GROUP_ROWS: usize = 1_000;
pub const UNDO_MS: u64 = 14 * 86_400_000;

/// A reading of 2024-05-`day`, at minute `minute` of the day.
pub fn reading(day: u32, minute: u32, device: &str, value: f64) -> Value {
    json!({
        "ts": format!("2024-05-{day:02}T{:02}:{:02}:00.000000Z", minute / 60, minute % 60),
        "device_id": device, "value": value, "quality": 0,
    })
}

/// Half-hourly readings of `days` days of May 2024 for some devices.
pub fn readings(days: std::ops::RangeInclusive<u32>, devices: &[&str]) -> Vec<Value> {
    let mut rows = Vec::new();
    for day in days {
        for slot in 0..48 {
            for (i, device) in devices.iter().enumerate() {
                rows.push(reading(day, slot * 30, device, f64::from(day) + f64::from(slot) / 64.0 + i as f64 * 100.0));
            }
        }
    }
    rows
}

/// Writes readings as a Parquet input whose columns are named as the table's.
pub fn write_readings(lab: &Lab, file: &str, rows: &[Value]) {
    write_grouped_readings(lab, file, rows, ROW_GROUP_ROWS);
}

/// The same in row groups of `row_group_rows`.
pub fn write_grouped_readings(lab: &Lab, file: &str, rows: &[Value], row_group_rows: usize) {
    let text = |name: &'static str| rows.iter().map(move |r| r[name].as_str()).collect::<StringArray>();
    let instants = cast(&text("ts"), &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
    let values: Float64Array = rows.iter().map(|r| r["value"].as_f64().or_else(|| r["value"].as_str()?.parse().ok())).collect();
    let quality: Int32Array = rows.iter().map(|r| r["quality"].as_i64().map(|q| q as i32)).collect();
    let columns: Vec<(&'static str, ArrayRef)> =
        vec![("ts", instants), ("device_id", Arc::new(text("device_id"))), ("value", Arc::new(values)), ("quality", Arc::new(quality))];
    write_parquet(&lab.path(file), columns, row_group_rows);
}

/// The same as text, `file_rows` rows in each file of a folder.
pub fn write_text_readings(lab: &Lab, folder: &str, rows: &[Value], file_rows: usize) {
    std::fs::create_dir_all(lab.path(folder)).unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_string();
    let line = |r: &Value| format!("{},{},{},{}\n", text(r, "ts"), text(r, "device_id"), r["value"], r["quality"]);
    for (file, part) in rows.chunks(file_rows).enumerate() {
        let lines: String = part.iter().map(line).collect();
        std::fs::write(lab.path(&format!("{folder}/{file:03}.csv")), format!("ts,device_id,value,quality\n{lines}")).unwrap();
    }
}

pub fn job_of(manifest: &Value) -> String {
    manifest["job"].as_str().expect("a job").to_string()
}

pub fn ref_names(table: &Value) -> Vec<String> {
    table["refs"].as_object().unwrap().keys().cloned().collect()
}

pub fn locks(table: &Value) -> Vec<String> {
    table["properties"].as_object().unwrap().keys().filter(|p| p.starts_with("timelake.lock.")).cloned().collect()
}

/// Published: tagged with the undo window, no branch, no lock, exactly one snapshot more than `before` holds.
#[track_caller]
pub fn assert_published(lab: &Lab, job: &str, generation: u32, before: &Value) {
    let after = lab.inspect();
    let tag = format!("timelake/published/{job}/{generation}/all");
    let reference = &after["refs"][&tag];
    assert_eq!(reference["type"], json!("tag"), "{tag} in {}", after["refs"]);
    assert_eq!(reference["snapshot"], after["current_snapshot"], "the tag is on the published snapshot");
    assert_eq!(reference["max_ref_age_ms"], json!(UNDO_MS), "{reference}");
    assert!(!ref_names(&after).iter().any(|r| r.starts_with("backfill/")), "a branch is left: {}", after["refs"]);
    assert_eq!(locks(&after), Vec::<String>::new());

    let ids = |table: &Value| table["snapshots"].as_array().unwrap().iter().map(|s| s["id"].as_i64().unwrap()).collect::<Vec<_>>();
    let (old, new) = (ids(before), ids(&after));
    let added: Vec<i64> = new.iter().copied().filter(|id| !old.contains(id)).collect();
    assert_eq!(added, [after["current_snapshot"].as_i64().unwrap()], "publish adds one snapshot and leaves no staged one");
    let published = after["snapshots"].as_array().unwrap().iter().find(|s| s["id"] == after["current_snapshot"]).unwrap();
    assert_eq!(published["parent"], before["current_snapshot"], "published onto the head");
    assert_eq!(published["summary"]["operation"], json!("append"), "{published}");
    assert!(published["summary"]["source-snapshot-id"].is_string(), "{published}");
    assert_totals(&after, published);
    for file in after["files"].as_array().unwrap() {
        assert_eq!(file["exists"], json!(true), "{file}");
    }
}

/// The totals of the summary are those of the live files as PyIceberg lists them.
#[track_caller]
fn assert_totals(table: &Value, snapshot: &Value) {
    let files = table["files"].as_array().unwrap();
    let sum = |field: &str| files.iter().map(|f| f[field].as_u64().unwrap()).sum::<u64>().to_string();
    assert_eq!(snapshot["summary"]["total-data-files"], json!(files.len().to_string()));
    assert_eq!(snapshot["summary"]["total-records"], json!(sum("rows")));
    assert_eq!(snapshot["summary"]["total-files-size"], json!(sum("bytes")));
}

/// A reading of the first moment of a day before today.
pub fn days_ago(days: i64) -> Value {
    let at = chrono::Utc::now() - chrono::Duration::days(days);
    json!({"ts": at.format("%Y-%m-%dT00:00:00.000000Z").to_string(), "device_id": "a", "value": days, "quality": 0})
}
