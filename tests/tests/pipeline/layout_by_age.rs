//! `timelake.layout`: older rows in a coarser partition spec of the same table, which is never the default.

use crate::minutes::assert_tidy;
use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use timelake_tests::{Faults, Lab, Outcome, split_words};

const BY_MONTH: &str = r#"[{"older-than":"P90D","partition":"month(ts)"}]"#;
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
    lab.create_sensor_table(&format!("--partition day(ts) --layout '{layout}'"));
}

fn set_layout(lab: &Lab, layout: &str) -> Outcome {
    lab.timelake(&["table", "contract", "iot.sensor", "--layout", layout, "--json"])
}

/// A table whose rows of May 2024 are by day, and which has a layout by month since.
fn by_day_then_month(rows: &[Value]) -> Lab {
    let lab = Lab::new();
    create(&lab, "[]");
    write_readings(&lab, "first/one.parquet", rows);
    lab.backfill("--from first");
    set_layout(&lab, BY_MONTH).success();
    lab
}

/// Every reader finds as many rows by each filter as there are.
fn assert_found(lab: &Lab, filters: &[(Vec<Value>, usize)]) {
    let asked: Vec<&Vec<Value>> = filters.iter().map(|(filter, _)| filter).collect();
    let expected: Vec<usize> = filters.iter().map(|(_, rows)| *rows).collect();
    for engine in ["pyiceberg", "duckdb"] {
        let found = lab.reader(json!({"command": "probe", "engine": engine, "filters": asked}));
        assert_eq!(found, json!(expected), "{engine}: {asked:?}");
    }
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
    let contract = |layout: &str| set_layout(&lab, layout);
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
    // One that another tool wrote and nobody understands can be replaced.
    lab.reader(json!({"command": "set_property", "properties": {"timelake.layout": "by month"}}));
    assert_eq!(lab.backfill_outcome("--from in").error(2)["reason"], json!("invalid_contract"));
    contract(BY_AGE).success();
    assert_eq!(lab.timelake(&["table", "show", "iot.sensor", "--json"]).json()["contract"]["layout"][0]["older-than"], json!("P90D"));
    contract("none").success();
    let rows = of_days((130..135).chain(1..3));
    write_readings(&lab, "in/one.parquet", &rows);
    lab.backfill("--from in");
    assert_eq!(specs(&assert_tidy(&lab, 1)).len(), 1);
    lab.assert_rows(&rows);
}

#[test]
fn pruning_finds_every_row_at_the_edges_of_partitions() {
    let lab = Lab::new();
    // The buckets differ, so their fields need names of their own.
    let layout = r#"[{"older-than":"P90D","partition":"month(ts),bucket(2,device_id),quality"}]"#;
    lab.create_sensor_table(&format!("--partition 'day(ts),bucket(4,device_id)' --layout '{layout}'"));
    let times =
        ["2024-04-30T23:59:59.999999Z", "2024-05-01T00:00:00.000000Z", "2024-05-31T23:59:59.999999Z", "2024-06-01T00:00:00.000000Z"];
    let devices: Vec<String> = (0..8).map(|i| format!("d{i}")).collect();
    let row = |ts: &str, device: &str, quality: usize| json!({"ts": ts, "device_id": device, "value": 1.0, "quality": quality});
    let old: Vec<Value> = times.iter().flat_map(|ts| devices.iter().enumerate().map(move |(i, device)| row(ts, device, i % 3))).collect();
    // Of the same days and devices, but as the live writer lays them out.
    let live: Vec<Value> =
        devices.iter().flat_map(|d| [row("2024-05-01T00:00:00.000001Z", d, 0), row("2024-05-31T12:00:00.000000Z", d, 1)]).collect();
    lab.append(&live);
    write_readings(&lab, "in/one.parquet", &old);
    lab.backfill("--from in --verify full");
    let all = [old, live].concat();
    lab.assert_rows(&all);
    let table = assert_tidy(&lab, 1);
    assert_eq!(specs(&table).len(), 2);
    let names: Vec<&str> = table["specs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|s| s["fields"].as_array().unwrap())
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ts_day", "device_id_bucket", "ts_month", "device_id_bucket_2", "quality"]);

    let count = |is: &dyn Fn(&Value) -> bool| all.iter().filter(|r| is(r)).count();
    let term = |column: &str, op: &str, value: Value| json!({"column": column, "op": op, "value": value});
    let mut filters = vec![];
    let edges = times.iter().copied().chain(["2024-05-01T00:00:00.000001Z", "2024-05-01T00:00:00.000002Z", "2024-07-01T00:00:00.000000Z"]);
    for edge in edges {
        let ts = |r: &Value| r["ts"].as_str().unwrap().to_string();
        filters.push((vec![term("ts", "ge", json!(edge))], count(&|r| ts(r).as_str() >= edge)));
        filters.push((vec![term("ts", "lt", json!(edge))], count(&|r| ts(r).as_str() < edge)));
        filters.push((vec![term("ts", "eq", json!(edge))], count(&|r| ts(r) == edge)));
        for device in ["d1", "d6", "none"] {
            let filter = vec![term("ts", "ge", json!(edge)), term("device_id", "eq", json!(device))];
            filters.push((filter, count(&|r| ts(r).as_str() >= edge && r["device_id"] == json!(device))));
        }
    }
    for device in &devices {
        filters.push((vec![term("device_id", "eq", json!(device))], count(&|r| r["device_id"] == json!(device))));
    }
    for quality in 0..4 {
        filters.push((vec![term("quality", "eq", json!(quality))], count(&|r| r["quality"] == json!(quality))));
        let filter = vec![term("quality", "ge", json!(quality)), term("ts", "lt", json!(times[2]))];
        filters.push((filter, count(&|r| r["quality"].as_u64() >= Some(quality) && r["ts"].as_str() < Some(times[2]))));
    }
    assert_found(&lab, &filters);
}

#[test]
fn rows_are_found_in_files_of_every_spec() {
    let first = readings(1..=2, &["a"]);
    let lab = by_day_then_month(&first);
    // The same rows and more: of these days, and of days that have none.
    let more = readings(1..=4, &["a", "b"]);
    write_readings(&lab, "more/one.parquet", &more);
    let refused = lab.backfill_outcome("--from more --mode fail");
    assert_eq!((refused.code, refused.json()["error"]["reason"].as_str()), (Some(4), Some("overlaps_existing")), "{refused}");
    let manifest = lab.backfill("--from more");
    assert_eq!(
        (&manifest["kept_existing"], &manifest["rows_written"]),
        (&json!(first.len()), &json!(more.len() - first.len())),
        "{manifest}"
    );
    lab.assert_rows(&more);
    let found = by_fields(&assert_tidy(&lab, 2));
    assert_eq!(found, [("ts_day".into(), (2, 96)), ("ts_month".into(), (1, 288))].into());

    // Found in the file of the month, too, by a job that would write days.
    set_layout(&lab, "none").success();
    let most = readings(4..=6, &["b"]);
    write_readings(&lab, "most/one.parquet", &most);
    // Days that have rows are left out, though a file of the month could hold any of them.
    let manifest = lab.backfill("--from most --only-missing");
    assert_eq!((&manifest["skipped_chunk"], &manifest["rows_written"]), (&json!(48), &json!(96)), "{manifest}");
    let manifest = lab.backfill("--from most");
    assert_eq!(manifest["kept_existing"], json!(most.len()), "{manifest}");
    lab.assert_rows(&[more, most[48..].to_vec()].concat());
    assert_eq!(by_fields(&lab.inspect())["ts_day"].0, 2 + 2);
}

#[test]
fn main_moves_under_a_staged_job_of_another_spec() {
    let first = readings(1..=2, &["a"]);
    let lab = by_day_then_month(&first);
    let second = readings(1..=4, &["b"]);
    write_readings(&lab, "second/one.parquet", &second);
    lab.backfill("--from second");
    let third = readings(1..=5, &["c"]);
    write_readings(&lab, "third/one.parquet", &third);
    let job = job_of(&lab.backfill("--from third --stage-only"));
    // A compactor moves the rows of the month into days, and a live row has a key of the job.
    lab.reader(json!({"command": "compact"}));
    let live = vec![reading(3, 30, "c", -1.0), reading(3, 31, "c", -1.0)];
    lab.append(&live);
    let manifest = lab.job("publish", &job).manifest();
    assert_eq!((&manifest["state"], &manifest["kept_existing"]), (&json!("PUBLISHED"), &json!(1)), "{manifest}");
    let kept = third.iter().filter(|r| r["ts"] != live[0]["ts"]).cloned();
    lab.assert_rows(&first.into_iter().chain(second).chain(kept).chain(live.clone()).collect::<Vec<_>>());
    let found = by_fields(&assert_tidy(&lab, 3));
    assert_eq!(found["ts_month"], (1, third.len() as i64 - 1), "{found:?}");

    // What a job leaves behind in folders of the layout goes, too.
    write_readings(&lab, "fourth/one.parquet", &readings(1..=5, &["d"]));
    let job = job_of(&lab.backfill("--from fourth --stage-only"));
    lab.job("cancel", &job).success();
    let removed = lab.timelake(&["backfill", "gc", "--older-than", "PT0S", "--json"]).success().json()["items"].to_string();
    assert!(removed.contains("ts_month=2024-05"), "{removed}");
    assert_tidy(&lab, 3);
}

#[test]
fn the_age_is_that_of_the_day_the_job_was_made() {
    const DAY: i64 = 86_400;
    const LOAD: &str = "backfill iot.sensor --from in --json";
    let rows = of_days([60, 200].into_iter());
    let counts = |lab: &Lab| by_fields(&lab.inspect()).into_iter().map(|(fields, (_, rows))| (fields, rows)).collect::<Vec<_>>();
    for boundary in ["job-stored", "plan-stored", "files-written", "stage-committed"] {
        let lab = Lab::new();
        create(&lab, BY_MONTH);
        write_readings(&lab, "in/one.parquet", &rows);
        let killed = lab.start_failing(&split_words(LOAD), &format!("kill:{boundary}:1")).wait();
        assert_eq!(killed.code, None, "{killed}");
        lab.timelake_under(&Faults::clock(90 * DAY), &split_words(LOAD)).manifest();
        lab.assert_rows(&rows);
        assert_eq!(counts(&lab), [("ts_day".into(), 4), ("ts_month".into(), 4)], "{boundary}");
    }
    // A later job finds all of it old; what is there stays where it is.
    let lab = Lab::new();
    create(&lab, BY_MONTH);
    write_readings(&lab, "in/one.parquet", &rows);
    lab.backfill("--from in");
    let more = of_days([60, 61, 200].into_iter());
    write_readings(&lab, "more/one.parquet", &more);
    let words = split_words("backfill iot.sensor --from more --json");
    let manifest = lab.timelake_under(&Faults::clock(90 * DAY), &words).manifest();
    assert_eq!((&manifest["kept_existing"], &manifest["rows_written"]), (&json!(8), &json!(4)));
    lab.assert_rows(&more);
    assert_eq!(counts(&lab), [("ts_day".into(), 4), ("ts_month".into(), 8)]);
}

#[test]
fn jobs_side_by_side_add_a_spec_once_and_use_what_others_added() {
    let lab = Lab::new();
    create(&lab, BY_MONTH);
    let (a, b) = (readings(1..=3, &["a"]), readings(11..=13, &["b"]));
    write_readings(&lab, "a/one.parquet", &a);
    write_readings(&lab, "b/one.parquet", &b);
    let start = |from: &str| {
        let words = split_words(&format!("backfill iot.sensor --from {from} --json"));
        lab.start_failing(&words, &format!("trace:trace-{from},wait:job-stored:go"))
    };
    let running = [start("a"), start("b")];
    for from in ["a", "b"] {
        lab.wait_for_boundary(&format!("trace-{from}"), "job-stored");
    }
    std::fs::write(lab.path("go"), "").unwrap();
    for running in running {
        running.wait().manifest();
    }
    lab.assert_rows(&[a, b].concat());
    let table = assert_tidy(&lab, 2);
    assert_eq!((table["specs"].as_array().unwrap().len(), specs(&table).len()), (2, 1), "{}", table["specs"]);

    // Somebody else has it under other names.
    let lab = Lab::new();
    create(&lab, BY_AGE);
    let spec = lab.reader(json!({"command": "add_spec", "partition": [{"source": "ts", "transform": "year", "name": "jahr"}]}));
    let rows = readings(1..=3, &["a"]);
    write_readings(&lab, "in/one.parquet", &rows);
    lab.timelake_under(&Faults::clock(5 * 365 * 86_400), &split_words("backfill iot.sensor --from in --json")).manifest();
    lab.assert_rows(&rows);
    let table = assert_tidy(&lab, 1);
    assert_eq!(table["files"][0]["partition"], json!({"jahr": "2024"}));
    assert_eq!((table["specs"].as_array().unwrap().len(), specs(&table)), (3, [spec.as_i64().unwrap()].into()), "{}", table["specs"]);
}

#[test]
fn a_spec_that_was_removed_meanwhile_holds_the_job() {
    for boundary in ["messages-sent", "group-staged"] {
        let lab = Lab::new();
        create(&lab, BY_MONTH);
        let rows = readings(1..=3, &["a"]);
        write_readings(&lab, "in/one.parquet", &rows);
        let killed = lab.start_failing(&split_words("backfill iot.sensor --from in --json"), &format!("kill:{boundary}:1")).wait();
        assert_eq!(killed.code, None, "{killed}");
        lab.reader(json!({"command": "drop_specs"}));
        // Another spec got its id.
        lab.reader(json!({"command": "add_spec", "partition": [{"source": "ts", "transform": "year", "name": "ts_year"}]}));
        let held = lab.backfill_outcome("--from in");
        assert_eq!((held.code, held.json()["error"]["reason"].as_str()), (Some(4), Some("table_changed")), "{boundary}: {held}");
        lab.assert_rows(&[]);
        let job = job_of(&held.json());
        lab.job("cancel", &job).success();
        lab.backfill("--from in");
        lab.assert_rows(&rows);
        assert_eq!(lab.inspect()["files"][0]["partition"], json!({"ts_month": "2024-05"}));
    }
}

#[test]
fn equality_deletes_in_partitions_are_refused() {
    let delete = |lab: &Lab, row: &Value| lab.reader(json!({"command": "equality_delete", "rows": [row], "columns": ["ts", "device_id"]}));
    let live = readings(20..=20, &["live"]);
    let rows = readings(1..=3, &["a"]);
    let new = |partition: &str| {
        let lab = Lab::new();
        lab.create_sensor_table(&format!("--partition {partition} --layout '{BY_MONTH}'"));
        lab.append(&live);
        write_readings(&lab, "in/one.parquet", &rows);
        lab
    };
    let lab = new("day(ts)");
    let file = delete(&lab, &live[0])[0].as_str().unwrap().to_string();
    let before = lab.inspect();
    for refused in [lab.backfill_outcome("--from in"), set_layout(&lab, BY_AGE)] {
        let error = refused.error(4);
        assert_eq!(error["reason"], json!("delete_files_in_window"), "{error}");
        assert!(error["message"].as_str().unwrap().contains(&file), "{error}");
        assert!(error["hint"].as_str().unwrap().contains("--layout none"), "{error}");
    }
    let after = lab.inspect();
    for field in ["current_snapshot", "specs", "refs", "properties", "files"] {
        assert_eq!(after[field], before[field], "nothing is written");
    }
    // All in the table's own spec: the deletes are of another day.
    set_layout(&lab, "none").success();
    lab.backfill("--from in");
    let left = |engine: &str| lab.reader(json!({"command": "read", "engine": engine}));
    let expected = [&live[1..], &rows].concat();
    timelake_tests::assert_same_rows(left("duckdb").as_array().unwrap(), &expected, "duckdb");

    // They come while a job is staged.
    let lab = new("day(ts)");
    let job = job_of(&lab.backfill("--from in --stage-only"));
    delete(&lab, &live[0]);
    let held = lab.job("publish", &job).error(4);
    assert_eq!(held["reason"], json!("delete_files_in_window"), "{held}");
    assert!(held["hint"].as_str().unwrap().contains("cancel"), "{held}");
    assert_eq!(lab.job("report", &job).success().json()["state"], json!("HOLD"));
    lab.job("cancel", &job).success();

    // Those of no partition reach the files of every spec that are older than they are, and no newer ones.
    let lab = new("none");
    lab.backfill("--from in");
    delete(&lab, &live[0]);
    delete(&lab, &rows[0]);
    let more = readings(10..=11, &["a"]);
    write_readings(&lab, "more/one.parquet", &more);
    lab.backfill("--from more --start 2024-05-10 --end 2024-05-12");
    write_readings(&lab, "back/one.parquet", &rows[..1]);
    lab.backfill("--from back --mode append --allow-duplicates");
    assert_eq!(by_fields(&lab.inspect())["ts_month"].1, (rows.len() + more.len() + 1) as i64);
    let found = lab.reader(json!({"command": "read", "engine": "duckdb"}));
    timelake_tests::assert_same_rows(found.as_array().unwrap(), &[&live[1..], &rows, &more].concat(), "duckdb");
}
