//! `timelake.layout`: older rows in a coarser partition spec of the same table, which is never the default.

use crate::minutes::assert_tidy;
use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use timelake_tests::Lab;

const BY_AGE: &str =
    r#"[{"older-than":"P90D","partition":"month(ts)"},{"older-than":"P2Y","partition":"year(ts)","target-file-size-bytes":1000000}]"#;

/// Readings of some days, two a day, of two devices.
fn of_days(days_ago: impl Iterator<Item = i64>) -> Vec<Value> {
    let now = chrono::Utc::now();
    let at = |days: i64, hour: u32| (now - chrono::Duration::days(days)).format(&format!("%Y-%m-%dT{hour:02}:00:00.000000Z")).to_string();
    days_ago
        .flat_map(|days| [1, 13].map(|hour| (at(days, hour), days)))
        .flat_map(|(ts, days)| ["a", "b"].map(|device| json!({"ts": ts, "device_id": device, "value": days as f64, "quality": 0})))
        .collect()
}

fn create(lab: &Lab, layout: &str) {
    let mut words = timelake_tests::split_words(
        "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,quality:int --time-column ts --series-key device_id --partition day(ts) --layout",
    );
    words.push(layout.into());
    lab.timelake(&words).success();
}

/// Number of files and rows by the partition's fields.
fn by_fields(table: &Value) -> BTreeMap<String, (usize, i64)> {
    let mut out: BTreeMap<String, (usize, i64)> = BTreeMap::new();
    for file in table["files"].as_array().unwrap() {
        let fields: Vec<&str> = file["partition"].as_object().unwrap().keys().map(String::as_str).collect();
        let known = out.entry(fields.join(",")).or_default();
        *known = (known.0 + 1, known.1 + file["rows"].as_i64().unwrap());
    }
    out
}

fn specs(table: &Value) -> BTreeSet<i64> {
    table["files"].as_array().unwrap().iter().map(|f| f["spec"].as_i64().unwrap()).collect()
}

#[test]
fn rows_go_where_their_age_says_and_every_reader_finds_them() {
    let lab = Lab::new();
    create(&lab, BY_AGE);
    let rows = of_days((1..20).chain((130..200).step_by(3)).chain((1_200..1_500).step_by(10)));
    // Live rows, by the table's own spec, one of them with a key of the job.
    let live = vec![{
        let mut row = rows[rows.len() - 1].clone();
        row["value"] = json!(-1.0);
        row
    }];
    lab.append(&live);
    write_readings(&lab, "in/one.parquet", &rows);
    let manifest = lab.backfill("--from in --verify full");
    assert_eq!((&manifest["kept_existing"], &manifest["rows_written"]), (&json!(1), &json!(rows.len() - 1)), "{manifest}");
    let expected: Vec<Value> = rows[..rows.len() - 1].iter().cloned().chain(live).collect();
    lab.assert_rows(&expected);

    let table = assert_tidy(&lab, 1);
    assert_eq!(table["partition"], json!([{"name": "ts_day", "transform": "day"}]), "the default stays");
    let found = by_fields(&table);
    let months: BTreeSet<&str> = rows[76..76 + 24 * 4].iter().map(|r| &r["ts"].as_str().unwrap()[..7]).collect();
    let years: BTreeSet<&str> = rows[76 + 24 * 4..].iter().map(|r| &r["ts"].as_str().unwrap()[..4]).collect();
    assert_eq!(found["ts_day"].0, 19 + 1, "a file a day, and the live row's: {found:?}");
    assert_eq!(found["ts_month"], (months.len(), 24 * 4), "{found:?}");
    assert_eq!(found["ts_year"], (years.len(), 30 * 4 - 1), "{found:?}");
    assert_eq!(specs(&table).len(), 3);

    // Readers prune each spec by its own values.
    for day in [5, 19, 130, 163, 1_200, 1_490] {
        let day = of_days([day].into_iter()).remove(0)["ts"].as_str().unwrap()[..10].to_string();
        let bounds = json!([
            {"column": "ts", "op": "ge", "value": format!("{day}T00:00:00.000000Z")},
            {"column": "ts", "op": "lt", "value": format!("{day}T23:59:59.000000Z")},
        ]);
        for engine in ["pyiceberg", "duckdb"] {
            let found = lab.reader(json!({"command": "read", "engine": engine, "filter": bounds}));
            let wanted: Vec<Value> = expected.iter().filter(|r| r["ts"].as_str().unwrap().starts_with(&day)).cloned().collect();
            timelake_tests::assert_same_rows(found.as_array().unwrap(), &wanted, engine);
        }
    }

    // The specs are there now; a further job uses them, and text is landed into the same places.
    let line = |r: &Value| format!("{},c,{},0\n", r["ts"].as_str().unwrap(), r["value"]);
    let more: Vec<&Value> = rows.iter().filter(|r| r["device_id"] == json!("a")).collect();
    std::fs::create_dir_all(lab.path("text")).unwrap();
    std::fs::write(lab.path("text/one.csv"), format!("ts,device_id,value,quality\n{}", more.iter().map(|r| line(r)).collect::<String>()))
        .unwrap();
    lab.backfill("--from text");
    let all = expected.into_iter().chain(more.into_iter().map(|r| {
        let mut row = r.clone();
        row["device_id"] = json!("c");
        row
    }));
    lab.assert_rows(&all.collect::<Vec<_>>());
    assert_eq!(specs(&assert_tidy(&lab, 2)), specs(&table));
}

#[test]
fn a_layout_that_cannot_be_is_refused_and_one_can_be_taken_off() {
    let lab = Lab::new();
    create(&lab, "[]");
    let contract = |layout: &str| lab.timelake(&["table", "contract", "iot.sensor", "--layout", layout, "--json"]);
    for layout in [
        "P90D",
        r#"[{"older-than":"P90D","partition":"hour(ts)"}]"#,
        r#"[{"older-than":"P90D","partition":"bucket(4,device_id)"}]"#,
        r#"[{"older-than":"P90D","partition":"month(time)"}]"#,
        r#"[{"older-than":"P90D","partition":"year(ts)"},{"older-than":"P2Y","partition":"month(ts)"}]"#,
    ] {
        let refused = contract(layout).error(2);
        assert_eq!(refused["reason"], json!("invalid_contract"), "{layout}: {refused}");
    }
    contract(BY_AGE).success();
    assert_eq!(lab.timelake(&["table", "show", "iot.sensor", "--json"]).json()["contract"]["layout"][0]["older-than"], json!("P90D"));
    contract("none").success();
    let rows = of_days((130..135).chain(1..3));
    write_readings(&lab, "in/one.parquet", &rows);
    lab.backfill("--from in");
    assert_eq!(specs(&assert_tidy(&lab, 1)).len(), 1);
    lab.assert_rows(&rows);
}
