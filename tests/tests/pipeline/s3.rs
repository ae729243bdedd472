//! Sources and tables on S3, through the command: the same rows as from files, judged by PyIceberg reading S3 itself.

use crate::sensors::{job_of, readings, write_grouped_readings, write_readings};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use timelake_tests::{Asked, Emulator, Fault, Lab, Proxy, assert_same_rows};

const BUCKET: &str = "plant";
const DEVICES: [&str; 3] = ["a", "b", "c"];

fn emulator() -> Emulator {
    let emulator = Emulator::start();
    emulator.make_bucket(BUCKET);
    emulator
}

fn lab(emulator: &Emulator) -> Lab {
    Lab::new().on_s3(&emulator.endpoint(), &emulator.endpoint())
}

fn through(proxy: &Proxy, emulator: &Emulator) -> Lab {
    Lab::new().on_s3(&proxy.endpoint(), &emulator.endpoint())
}

const ON_S3: &str = "--warehouse s3://plant/lake/ --partition month(ts)";

/// Readings as Parquet objects below `export/`, one a day.
fn export(lab: &Lab, emulator: &Emulator, days: std::ops::RangeInclusive<u32>) -> Vec<Value> {
    for day in days.clone() {
        let file = format!("export/day={day:02}/part-0.parquet");
        write_grouped_readings(lab, &file, &readings(day..=day, &DEVICES), 50);
        emulator.put_file(BUCKET, &file, &lab.path(&file));
    }
    readings(days, &DEVICES)
}

fn csv(rows: &[Value]) -> String {
    let mut text = "Time;Tag;Value;Quality\n".to_string();
    for row in rows {
        text += &format!("{};{};{};{}\n", row["ts"].as_str().unwrap(), row["device_id"].as_str().unwrap(), row["value"], row["quality"]);
    }
    text
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

const CSV: &str = "--map ts=Time,device_id=Tag,value=Value,quality=Quality";

#[track_caller]
fn assert_rows(lab: &Lab, expected: &[Value]) {
    assert_same_rows(&lab.rows("pyiceberg"), expected, "pyiceberg");
}

fn objects(emulator: &Emulator, prefix: &str) -> Vec<String> {
    emulator.list(BUCKET, prefix)["objects"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn a_prefix_a_key_and_a_pattern_load_into_a_table_on_s3() {
    let emulator = emulator();
    let lab = lab(&emulator);
    let rows = export(&lab, &emulator, 1..=4);
    for other in ["export/_SUCCESS", "export/notes.txt", "export/day=01/", "exporting/x.parquet"] {
        emulator.put_text(BUCKET, other, "");
    }
    lab.create_sensor_table(ON_S3);
    let one = lab.backfill("--from s3://plant/export/day=02/part-0.parquet");
    assert_eq!((one["rows_written"].as_u64(), one["source"]["files"].as_u64().unwrap_or(1)), (Some(144), 1), "{one}");
    let some = lab.backfill("--from 's3://plant/export/day=0[23]/*.parquet'");
    assert_eq!((some["rows_written"].as_u64(), some["kept_existing"].as_u64()), (Some(144), Some(144)));
    let all = lab.backfill("--from s3://plant/export");
    assert_eq!((all["rows_written"].as_u64(), all["kept_existing"].as_u64()), (Some(288), Some(288)));
    assert_rows(&lab, &rows);

    let again = lab.backfill("--from s3://plant/export/");
    assert_eq!(again["already_published"], json!(true), "{again}");
    let table = lab.inspect();
    assert_eq!(table["location"], json!("s3://plant/lake/iot/sensor"));
    assert!(table["files"].as_array().unwrap().iter().all(|f| f["path"].as_str().unwrap().starts_with("s3://plant/lake/iot/sensor/data/")));
    assert_eq!(std::fs::read_dir(lab.lake().join("warehouse")).unwrap().count(), 0, "nothing of the table is in the lake's folder");
    lab.append(&[crate::sensors::reading(9, 0, "a", 9.0)]);
    assert_eq!(lab.rows("pyiceberg").len(), rows.len() + 1, "a live writer goes on");
}

#[test]
fn text_is_landed_from_s3_and_tables_in_the_folder_take_it_too() {
    let emulator = emulator();
    let lab = lab(&emulator);
    let (one, two) = (readings(1..=3, &DEVICES), readings(4..=6, &DEVICES));
    emulator.put_text(BUCKET, "text/a.csv", &csv(&one));
    std::fs::write(lab.path("b.csv.gz"), gzip(&csv(&two))).unwrap();
    emulator.put_file(BUCKET, "text/b.csv.gz", &lab.path("b.csv.gz"));
    lab.create_sensor_table("");
    let manifest = lab.backfill(&format!("--from s3://plant/text/ {CSV}"));
    assert_eq!(manifest["rows_written"].as_u64(), Some((one.len() + two.len()) as u64));
    lab.assert_rows(&[one, two].concat());
}

#[test]
fn hive_folders_of_keys_are_columns() {
    let emulator = emulator();
    let lab = lab(&emulator);
    for device in ["a", "b%20c"] {
        let rows = readings(1..=1, &["x"]);
        write_readings(&lab, "one.parquet", &rows);
        emulator.put_file(BUCKET, &format!("hive/device={device}/one.parquet"), &lab.path("one.parquet"));
    }
    lab.create_sensor_table(ON_S3);
    let manifest = lab.backfill("--from s3://plant/hive --hive --map device_id=device");
    assert_eq!(manifest["rows_written"].as_u64(), Some(96));
    let devices: std::collections::BTreeSet<String> =
        lab.rows("pyiceberg").iter().map(|row| row["device_id"].as_str().unwrap().to_string()).collect();
    assert_eq!(devices.into_iter().collect::<Vec<_>>(), ["a", "b c"]);
}

#[test]
fn what_is_not_there_is_said() {
    let emulator = emulator();
    let lab = lab(&emulator);
    lab.create_sensor_table("");
    let refused = |from: &str| {
        let outcome = lab.backfill_outcome(&format!("--from {from}"));
        outcome.error(outcome.code.unwrap())["reason"].as_str().unwrap().to_string()
    };
    export(&lab, &emulator, 1..=1);
    assert_eq!(refused("s3://plant/none/"), "path_not_found");
    assert_eq!(refused("s3://plant/exp"), "path_not_found");
    assert_eq!(refused("s3://nowhere/x.parquet"), "path_not_found");
    assert_eq!(refused("'s3://plant/export/*.csv'"), "no_input_files");
    assert_eq!(refused("s3://"), "path_not_found");
    assert_eq!(refused("gs://plant/x"), "not_yet_supported");
    emulator.put_text(BUCKET, "odd/cut.parquet", "PAR1 and no more");
    assert_eq!(refused("s3://plant/odd/"), "not_a_complete_parquet_file");
}

#[test]
fn the_data_of_a_table_on_s3_is_no_source() {
    let emulator = emulator();
    let lab = lab(&emulator);
    export(&lab, &emulator, 1..=2);
    lab.create_sensor_table(ON_S3);
    lab.backfill("--from s3://plant/export");
    for from in ["s3://plant/lake", "s3://plant/lake/iot/sensor", "s3://plant/lake/iot/sensor/data", "'s3://plant/lake/**/*.parquet'"] {
        let error = lab.backfill_outcome(&format!("--from {from}")).error(2);
        assert_eq!(error["reason"], json!("iceberg_folder"), "{from}: {error}");
    }
}

#[test]
fn a_source_that_changes_after_the_plan_is_held_with_both_etags() {
    let emulator = emulator();
    let lab = lab(&emulator);
    export(&lab, &emulator, 1..=2);
    lab.create_sensor_table(ON_S3);
    let words = ["backfill", "iot.sensor", "--from", "s3://plant/export", "--json"];
    lab.start_failing(&words, "kill:plan-stored:1").wait();
    write_grouped_readings(&lab, "new.parquet", &readings(2..=2, &["z"]), 50);
    let etag = emulator.put_file(BUCKET, "export/day=02/part-0.parquet", &lab.path("new.parquet"));
    let job = lab.timelake(&["backfill", "list", "--json"]).json()["jobs"][0]["job"].as_str().unwrap().to_string();
    let outcome = lab.job("resume", &job);
    assert_eq!(outcome.code, Some(4), "{outcome}");
    let told = outcome.json();
    assert_eq!(told["error"]["reason"], json!("source_changed"), "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains(&etag), "{told}");
    assert_eq!(lab.rows("pyiceberg").len(), 0);
}

#[test]
fn a_killed_run_goes_on_and_no_row_is_lost_or_twice() {
    let emulator = emulator();
    let lab = lab(&emulator);
    let rows = export(&lab, &emulator, 1..=6);
    lab.create_sensor_table(ON_S3);
    let words = ["backfill", "iot.sensor", "--from", "s3://plant/export", "--json"];
    for boundary in ["files-durable", "unit-ended", "stage-committed", "manifests-merged", "publish-committed"] {
        lab.start_failing(&words, &format!("kill:{boundary}:1")).wait();
    }
    let manifest = lab.timelake(&words).manifest();
    assert_eq!(manifest["state"], json!("PUBLISHED"), "{manifest}");
    assert_rows(&lab, &rows);
    let collected = lab.timelake(&["backfill", "gc", "--older-than", "PT0S", "--json"]).success().json();
    assert_rows(&lab, &rows);
    let data = objects(&emulator, "lake/iot/sensor/data/");
    assert_eq!(data.len(), lab.inspect()["files"].as_array().unwrap().len(), "{data:?} after {collected}");
}

#[test]
fn a_cancelled_job_and_gc_leave_no_objects() {
    let emulator = emulator();
    let lab = lab(&emulator);
    export(&lab, &emulator, 1..=2);
    lab.create_sensor_table(ON_S3);
    let staged = lab.backfill("--from s3://plant/export --stage-only");
    lab.job("cancel", &job_of(&staged)).success();
    assert!(!objects(&emulator, "lake/iot/sensor/data/").is_empty());
    lab.timelake(&["backfill", "gc", "--older-than", "PT0S", "--json"]).success();
    assert_eq!(objects(&emulator, "lake/iot/sensor/data/"), Vec::<String>::new());
}

#[test]
fn a_copied_lake_does_not_write_to_the_tables_of_the_first() {
    let emulator = emulator();
    let lab = lab(&emulator);
    export(&lab, &emulator, 1..=1);
    lab.create_sensor_table(ON_S3);
    std::fs::create_dir(lab.path("copy")).unwrap();
    for file in ["catalog.db", "ledger.db"] {
        std::fs::copy(lab.lake().join(file), lab.path("copy").join(file)).unwrap();
    }
    let error = lab.timelake(&["backfill", "iot.sensor", "--from", "s3://plant/export", "--lake", "copy", "--json"]).error(4);
    assert_eq!(error["reason"], json!("table_changed"), "{error}");
}

/// One of `n` requests is spoiled, each kind by turns; never twice in a row, so that the command's patience is enough.
fn spoil(n: u64) -> impl Fn(&Asked) -> Fault {
    move |asked| {
        let faults = [Fault::Refused, Fault::Cut, Fault::Failed, Fault::Lost];
        if asked.number % n == 0 { faults[(asked.number / n) as usize % faults.len()] } else { Fault::None }
    }
}

#[test]
fn every_fourth_answer_spoiled_costs_time_and_no_row() {
    let emulator = emulator();
    let proxy = Proxy::start(emulator.port(), spoil(4));
    let lab = through(&proxy, &emulator);
    let mut rows = export(&lab, &emulator, 1..=6);
    let text = readings(7..=9, &DEVICES);
    emulator.put_text(BUCKET, "text/a.csv", &csv(&text));
    lab.create_sensor_table(ON_S3);
    let from_parquet = lab.backfill("--from s3://plant/export --threads 2");
    let from_text = lab.backfill(&format!("--from s3://plant/text/ {CSV}"));
    assert_eq!((from_parquet["rows_written"].as_u64(), from_text["rows_written"].as_u64()), (Some(864), Some(432)));
    rows.extend(text);
    assert_rows(&lab, &rows);
    for fault in [Fault::Refused, Fault::Cut, Fault::Failed, Fault::Lost] {
        assert!(proxy.count(fault) >= 3, "{fault:?}: {}", proxy.count(fault));
    }
    lab.timelake(&["backfill", "gc", "--older-than", "PT0S", "--json"]).success();
    assert_rows(&lab, &rows);
}

#[test]
fn a_long_text_whose_blocks_break_off_is_read_once() {
    let emulator = emulator();
    let proxy = Proxy::start(emulator.port(), |asked| match asked.number % 2 {
        0 if asked.method == "GET" => Fault::Cut,
        _ => Fault::None,
    });
    let lab = through(&proxy, &emulator);
    let devices: Vec<String> = (0..300).map(|n| format!("device-{n:03}")).collect();
    let rows = readings(1..=10, &devices.iter().map(String::as_str).collect::<Vec<_>>());
    let text = csv(&rows);
    assert!(text.len() > 6 << 20, "{} bytes are too few blocks", text.len());
    std::fs::write(lab.path("a.csv"), &text).unwrap();
    emulator.put_file(BUCKET, "long/a.csv", &lab.path("a.csv"));
    lab.create_sensor_table("");
    let manifest = lab.backfill(&format!("--from s3://plant/long/ {CSV}"));
    assert_eq!(manifest["rows_read"], json!(rows.len()), "{manifest}");
    assert!(proxy.count(Fault::Cut) > 3);
    let summary = lab.reader(json!({"command": "summary", "engine": "pyiceberg"}));
    let sum: f64 = rows.iter().map(|row| row["value"].as_f64().unwrap()).sum();
    assert_eq!((&summary["rows"], &summary["keys"]), (&json!(rows.len()), &json!(rows.len())));
    assert_eq!(summary["value_sum"].as_f64(), Some(sum)); // 64ths: exact in any order
}

#[test]
fn a_store_that_stays_away_ends_the_run_and_the_same_command_finishes() {
    let emulator = emulator();
    let is_away = AtomicBool::new(false);
    // From the first data file on, nothing is answered any more.
    let proxy = Proxy::start(emulator.port(), move |asked| {
        if asked.method == "PUT" && asked.path.contains("/data/") {
            is_away.store(true, Ordering::Relaxed);
        }
        if is_away.load(Ordering::Relaxed) { Fault::Refused } else { Fault::None }
    });
    let lab = through(&proxy, &emulator).with_variables(&[("AWS_MAX_ATTEMPTS", "3")]);
    let rows = export(&lab, &emulator, 1..=3);
    lab.create_sensor_table(ON_S3);
    let outcome = lab.backfill_outcome("--from s3://plant/export");
    assert_eq!(outcome.code, Some(5), "{outcome}");
    assert!(outcome.stdout.contains("storage_unavailable"), "{outcome}");
    assert_eq!(lab.rows("pyiceberg").len(), 0);
    drop(proxy);
    let lab = lab.on_s3(&emulator.endpoint(), &emulator.endpoint());
    let manifest = lab.backfill("--from s3://plant/export");
    assert_eq!(manifest["state"], json!("PUBLISHED"), "{manifest}");
    assert_rows(&lab, &rows);
}

#[test]
fn a_store_that_fails_while_staged_rows_are_read_back_rejects_nothing() {
    let emulator = emulator();
    let proxy = Proxy::start(emulator.port(), |asked| {
        let reads_back = asked.method == "GET" && asked.path.contains("/lake/iot/sensor/data/");
        if reads_back { Fault::Failed } else { Fault::None }
    });
    let lab = through(&proxy, &emulator).with_variables(&[("AWS_MAX_ATTEMPTS", "2")]);
    let rows = export(&lab, &emulator, 1..=2);
    lab.create_sensor_table(ON_S3);
    let outcome = lab.backfill_outcome("--from s3://plant/export");
    assert_eq!(outcome.code, Some(5), "{outcome}");
    assert_eq!(lab.rows("pyiceberg").len(), 0);
    drop(proxy);
    let lab = lab.on_s3(&emulator.endpoint(), &emulator.endpoint());
    let manifest = lab.backfill("--from s3://plant/export");
    assert_eq!((manifest["state"].as_str(), manifest["generation"].as_u64().unwrap_or(1)), (Some("PUBLISHED"), 1), "{manifest}");
    assert_rows(&lab, &rows);
}

#[test]
fn refused_credentials_are_said_with_a_hint_and_without_secrets() {
    let emulator = emulator();
    let lab = lab(&emulator).with_variables(&[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", ""), ("HOME", "/nonexistent")]);
    lab.create_sensor_table("");
    let error = lab.backfill_outcome("--from s3://plant/export").error(5);
    assert_eq!(error["reason"], json!("access_denied"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("AWS_PROFILE"), "{error}");
    let guarded = Emulator::start_guarded();
    let lab = self::lab(&guarded).with_variables(&[("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN")]);
    lab.create_sensor_table("");
    let error = lab.backfill_outcome("--from s3://plant/export").error(5);
    assert_eq!((&error["reason"], &error["file"]), (&json!("access_denied"), &json!("s3://plant/export")), "{error}");
}

#[test]
fn a_dry_run_writes_nothing_to_the_store() {
    let emulator = emulator();
    let lab = lab(&emulator);
    export(&lab, &emulator, 1..=3);
    emulator.put_text(BUCKET, "texts/b.csv", &csv(&readings(4..=5, &DEVICES)));
    lab.create_sensor_table(ON_S3);
    for (from, code) in [("s3://plant/export/".to_string(), 0), (format!("s3://plant/texts/ {CSV}"), 0), ("s3://plant/absent/".into(), 2)] {
        let before = emulator.list(BUCKET, "");
        let told = lab.backfill_outcome(&format!("--from {from} --dry-run"));
        assert_eq!(told.code, Some(code), "{told}");
        assert_eq!(emulator.list(BUCKET, ""), before, "{told}");
        let done = lab.backfill_outcome(&format!("--from {from}"));
        assert_eq!(done.code, Some(code), "{done}");
        if code == 0 {
            let (told, done) = (told.json(), done.json());
            assert_eq!(told["rows"]["rows_written"]["value"], done["rows_written"], "{told}");
            assert_eq!(told["written"]["bytes"]["value"], done["written"]["bytes"], "{told}");
        }
    }
}
