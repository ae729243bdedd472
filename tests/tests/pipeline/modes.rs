//! How rows meet the table: the modes, chunks that are left out, windows and retention.

use crate::sensors::*;
use serde_json::{Value, json};
use timelake_tests::Lab;

fn lab_with(options: &str) -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table(options);
    lab
}

/// Each row as often as it is listed, whatever the reader.
#[track_caller]
fn assert_all(lab: &Lab, parts: &[&[Value]]) {
    lab.assert_rows(&parts.concat());
}

#[track_caller]
fn assert_nothing_left(lab: &Lab) {
    let table = lab.inspect();
    assert!(!ref_names(&table).iter().any(|r| r.starts_with("backfill/")), "{}", table["refs"]);
    assert_eq!(locks(&table), Vec::<String>::new());
}

#[test]
fn append_loads_rows_without_identity_as_they_are() {
    let lab = lab_with("--partition day(ts) --dedup-key none");
    let rows = readings(1..=3, &["a", "b"]);
    let twice = [&rows[..], &rows[..20]].concat();
    write_readings(&lab, "in/one.parquet", &twice);

    // A merge could not tell which rows exist, and conflicts have no meaning.
    for (arguments, option) in [
        ("--from in", "--mode"),
        ("--from in --mode fail", "--mode"),
        ("--from in --mode append --on-source-conflict last", "--on-source-conflict"),
    ] {
        let refused = lab.backfill_outcome(arguments).error(2);
        assert_eq!((&refused["reason"], &refused["option"]), (&json!("invalid_option"), &json!(option)), "{refused}");
    }
    let loaded = lab.backfill("--from in --mode append --verify full");
    assert_eq!((&loaded["rows_written"], &loaded["duplicates_collapsed"]), (&json!(twice.len()), &json!(0)), "{loaded}");
    assert_all(&lab, &[&twice]);
    // The job is what keeps them from coming twice; other files are other rows.
    let again = lab.backfill("--from in --mode append");
    assert_eq!((&again["already_published"], &again["rows_written"]), (&json!(true), &json!(0)));
    write_readings(&lab, "in2/one.parquet", &rows[..10]);
    assert_eq!(lab.backfill("--from in2 --mode append")["rows_written"], json!(10));
    assert_all(&lab, &[&twice, &rows[..10]]);
    assert_nothing_left(&lab);
}

#[test]
fn append_of_rows_with_identity_wants_to_be_told() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=2, &["a"]);
    write_readings(&lab, "in/one.parquet", &[&rows[..], &rows[..5]].concat());
    lab.append(&rows[..30]);
    let refused = lab.backfill_outcome("--from in --mode append").error(2);
    assert_eq!(refused["option"], json!("--mode"), "{refused}");
    assert!(refused["hint"].as_str().unwrap().contains("--allow-duplicates"), "{refused}");
    assert_eq!(lab.backfill_outcome("--from in --allow-duplicates").error(2)["option"], json!("--allow-duplicates"));
    // Inside the source rows still have one identity each; only the table is not looked at.
    let loaded = lab.backfill("--from in --mode append --allow-duplicates");
    assert_eq!(
        (&loaded["rows_written"], &loaded["duplicates_collapsed"], &loaded["kept_existing"]),
        (&json!(rows.len()), &json!(5), &json!(0)),
        "{loaded}"
    );
    assert_all(&lab, &[&rows, &rows[..30]]);
}

#[test]
fn appended_rows_are_published_whatever_happens_to_others() {
    let lab = lab_with("--partition day(ts) --dedup-key none");
    let rows = readings(1..=2, &["a"]);
    write_readings(&lab, "in/one.parquet", &rows);
    let staged = lab.backfill("--from in --mode append --stage-only");
    lab.append(&rows[..7]);
    lab.reader(json!({"command": "delete", "filter": [{"column": "ts", "op": "lt", "value": "2024-05-01T01:00:00Z"}]}));
    lab.job("publish", &job_of(&staged)).manifest();
    assert_all(&lab, &[&rows, &rows[2..7]]);
}

#[test]
fn fail_lists_the_keys_that_exist_and_loads_nothing() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=3, &["a", "b"]);
    write_readings(&lab, "in/one.parquet", &rows);
    let existing: Vec<Value> = rows.iter().step_by(10).cloned().collect();
    lab.append(&existing);
    let failed = lab.backfill_outcome("--from in --mode fail");
    let manifest = failed.json();
    assert_eq!(failed.code, Some(4), "{failed}");
    assert_eq!(manifest["state"], json!("REJECTED"), "{manifest}");
    let error = &manifest["error"];
    assert_eq!((&error["kind"], &error["reason"]), (&json!("conflict"), &json!("overlaps_existing")), "{error}");
    assert_eq!((&error["file"], &error["row"]), (&json!("in/one.parquet"), &json!(1)), "{error}");
    assert_eq!(error["count"], json!(existing.len()), "{error}");
    assert_eq!(error["distinct"].as_array().unwrap().len(), 20, "the first keys are listed: {error}");
    assert!(error["distinct"][1].as_str().unwrap().contains("2024-05-01T02:30:00Z"), "{error}");
    assert_all(&lab, &[&existing]);
    assert_nothing_left(&lab);
    // Nothing blocks what comes next.
    assert_eq!(lab.backfill("--from in")["kept_existing"], json!(existing.len()));
    assert_all(&lab, &[&rows]);
}

#[test]
fn fail_loads_when_no_key_exists_and_looks_again_before_it_publishes() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=3, &["a"]);
    let others = readings(1..=3, &["c"]);
    write_readings(&lab, "in/one.parquet", &rows);
    lab.append(&others);
    let staged = lab.backfill("--from in --mode fail --stage-only");
    let late = &rows[40..42];
    lab.append(late);
    let outcome = lab.job("publish", &job_of(&staged));
    assert_eq!(outcome.code, Some(4), "{outcome}");
    assert_eq!(outcome.json()["error"]["reason"], json!("overlaps_existing"), "{outcome}");
    assert_eq!(outcome.json()["error"]["count"], json!(2), "{outcome}");
    assert_all(&lab, &[&others, late]);
    assert_nothing_left(&lab);

    write_readings(&lab, "in2/one.parquet", &readings(5..=6, &["a"]));
    let loaded = lab.backfill("--from in2 --mode fail");
    assert_eq!(loaded["rows_written"], json!(96), "{loaded}");
    assert_all(&lab, &[&others, late, &readings(5..=6, &["a"])]);
}

#[test]
fn only_missing_leaves_out_days_that_have_rows() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=5, &["a", "b"]);
    // Small row groups: some lie wholly in days that are left out, some go over midnight.
    write_grouped_readings(&lab, "in/one.parquet", &rows, 37);
    let live = [reading(2, 3, "z", 1.0), reading(4, 1_439, "z", 1.0)];
    lab.append(&live);
    let loaded = lab.backfill("--from in --only-missing");
    assert_eq!((&loaded["skipped_chunk"], &loaded["rows_written"]), (&json!(192), &json!(288)), "{loaded}");
    let expected: Vec<Value> = [readings(1..=1, &["a", "b"]), readings(3..=3, &["a", "b"]), readings(5..=5, &["a", "b"])].concat();
    assert_all(&lab, &[&expected, &live]);
    // Now every day has rows.
    write_grouped_readings(&lab, "in2/one.parquet", &readings(1..=5, &["c"]), 37);
    let none = lab.backfill("--from in2 --only-missing");
    assert_eq!((&none["skipped_chunk"], &none["rows_written"], &none["published"]), (&json!(240), &json!(0), &json!(false)), "{none}");
    assert_nothing_left(&lab);
}

/// Files without partitions: which months have rows is read from their times, not guessed from bounds.
#[test]
fn only_missing_reads_the_times_of_files_over_several_chunks() {
    let lab = lab_with("--partition none");
    let at = |month: u32, day: u32| json!({"ts": format!("2024-{month:02}-{day:02}T00:00:00.000000Z"), "device_id": "a", "value": 1.0, "quality": 0});
    let live = [at(1, 31), at(5, 1)];
    lab.append(&live);
    let rows: Vec<Value> = (1..=6).flat_map(|month| (2..=20).map(move |day| at(month, day))).collect();
    let csv: String = rows.iter().map(|r| format!("{},a,1.0,0\n", r["ts"].as_str().unwrap())).collect();
    std::fs::create_dir_all(lab.path("in")).unwrap();
    std::fs::write(lab.path("in/one.csv"), format!("ts,device_id,value,quality\n{csv}")).unwrap();
    let loaded = lab.backfill("--from in --only-missing");
    assert_eq!((&loaded["skipped_chunk"], &loaded["rows_written"]), (&json!(38), &json!(76)), "{loaded}");
    let expected: Vec<Value> = rows.into_iter().filter(|r| !["2024-01", "2024-05"].contains(&&r["ts"].as_str().unwrap()[..7])).collect();
    assert_all(&lab, &[&expected, &live]);
}

#[test]
fn a_window_and_retention_are_counted_apart() {
    let lab = lab_with("--partition day(ts) --retention P1Y");
    let rows: Vec<Value> = [800, 500, 300, 200, 100, 50].map(days_ago).to_vec();
    write_readings(&lab, "in/one.parquet", &rows);
    let bounds = format!("--from in --start {} --end {}", &rows[1]["ts"].as_str().unwrap()[..10], &rows[4]["ts"].as_str().unwrap()[..10]);
    let refused = lab.backfill_outcome(&bounds);
    assert_eq!(refused.code, Some(3), "{refused}");
    assert_eq!(refused.json()["error"]["reason"], json!("beyond_retention"), "{refused}");
    let clipped = lab.backfill(&format!("{bounds} --clip-retention"));
    assert_eq!(
        (&clipped["outside_range"], &clipped["outside_retention"], &clipped["rows_written"]),
        (&json!(3), &json!(1), &json!(2)),
        "{clipped}"
    );
    assert_all(&lab, &[&rows[2..4]]);
    let all = lab.backfill(&format!("{bounds} --override-retention"));
    assert_eq!((&all["outside_range"], &all["kept_existing"], &all["rows_written"]), (&json!(3), &json!(2), &json!(1)), "{all}");
    assert_all(&lab, &[&rows[1..4]]);
}
