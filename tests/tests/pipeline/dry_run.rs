//! A dry run says what the run will do, to the row, and changes nothing: each is followed by the run itself.

use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use timelake_tests::{CLASSES, Lab, Outcome, split_words};

/// Everything in a lake: names, bytes, and what is asked of folders.
fn contents(lake: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![lake.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(lake).unwrap().display().to_string();
            if path.is_dir() {
                found.insert(format!("{name}/"), vec![]);
                open.push(path);
            } else if !name.ends_with("-shm") {
                // Left out: the index of a log, which whoever reads the log makes anew.
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Runs it dry, and sees that neither the lake nor the temporary folder has changed. Sources are in `in`.
#[track_caller]
fn dry(lab: &Lab, arguments: &str) -> Outcome {
    let temporary = lab.path("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let before = contents(&lab.lake());
    let mut words = split_words(&format!("backfill iot.sensor {arguments} --dry-run"));
    words.push("--json".into());
    let mut command = lab.command(&words);
    command.env("TMPDIR", &temporary);
    let outcome = lab.run(command).wait();
    let after = contents(&lab.lake());
    let changed: Vec<&String> = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    assert_eq!(changed, Vec::<&String>::new(), "the lake has changed\n{outcome}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "temporary files are left\n{outcome}");
    outcome
}

#[track_caller]
fn exact(figure: &Value) -> &Value {
    assert_eq!(figure["basis"], json!("exact"), "{figure}");
    &figure["value"]
}

/// Where retention ends depends on the moment of the run, to the microsecond: the day is enough.
fn without_now(value: &Value) -> Value {
    let mut text = value.to_string();
    let is_moment = |part: &str| part.len() == 17 && part.as_bytes()[9] == b'.' && part.ends_with('Z') && !part.ends_with(".000000Z");
    let starts: Vec<usize> = text.match_indices('T').map(|(at, _)| at).collect();
    for at in starts.into_iter().rev() {
        if text.get(at..at + 17).is_some_and(is_moment) {
            text.replace_range(at..at + 17, "");
        }
    }
    serde_json::from_str(&text).unwrap()
}

/// Runs it dry and then in earnest, and compares every exact figure with the manifest of the run. Returns both.
#[track_caller]
fn twice(lab: &Lab, arguments: &str) -> (Value, Value) {
    let rehearsed = dry(lab, arguments);
    let run = lab.backfill_outcome(arguments);
    let (report, manifest) = (rehearsed.json(), run.json());
    assert_eq!(rehearsed.code, run.code, "the exit codes differ\n{rehearsed}\n{run}");
    let same = |what: &str, told: &Value, found: &Value| assert_eq!(told, found, "{what}\n{rehearsed}\n{run}");
    for name in ["job", "gen", "state", "window", "warnings"] {
        same(name, &without_now(&report[name]), &without_now(&manifest[name]));
    }
    for field in ["kind", "reason", "message", "file", "line", "row", "count", "distinct"] {
        same(field, &without_now(&report["error"][field]), &without_now(&manifest["error"][field]));
    }
    for (name, figure) in report["rows"].as_object().unwrap() {
        same(name, exact(figure), &manifest[name]);
    }
    let sum: u64 = CLASSES.iter().map(|name| report["rows"][name]["value"].as_u64().unwrap()).sum();
    same("rows_read", &report["rows"]["rows_read"]["value"], &json!(sum));
    if manifest["time_range"].is_array() {
        same("time_range", exact(&report["time_range"]), &manifest["time_range"]);
    }
    for name in ["files", "bytes", "rows"] {
        same(name, exact(&report["source"][name]), &manifest["source"][name]);
    }
    for name in ["files", "bytes", "partitions", "smallest_file_bytes", "largest_file_bytes"] {
        same(name, exact(&report["written"][name]), &manifest["written"][name]);
    }
    for name in ["units", "unit_rows_limit", "read_amplification"] {
        same(name, exact(&report["plan"][name]), &manifest["plan"][name]);
    }
    let chunks = manifest["chunks"].as_array().unwrap();
    assert_eq!(report["chunks"].as_array().unwrap().len(), chunks.len(), "{rehearsed}\n{run}");
    for (told, found) in report["chunks"].as_array().unwrap().iter().zip(chunks) {
        same("chunk", &told["chunk"], &found["chunk"]);
        same("written", exact(&told["written"]), &found["written"]);
        same("existing", told["existing"].get("value").unwrap_or(&Value::Null), &found["existing"]);
    }
    let bad: Vec<Value> =
        report["bad_rows"].as_array().unwrap().iter().map(|b| json!([b["reason"], exact(&b["count"]), b["places"]])).collect();
    let found = manifest["errors"].as_array().unwrap().iter();
    same("bad rows", &json!(bad), &json!(found.map(|e| json!([e["first"]["reason"], e["count"], e["places"]])).collect::<Vec<_>>()));
    for estimated in [&report["duration"]["seconds"], &report["duration"]["at_least_seconds"], &report["duration"]["at_most_seconds"]] {
        assert_eq!(estimated["basis"], json!("estimated"), "{rehearsed}");
    }
    (report, manifest)
}

fn lab_with(options: &str) -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table(options);
    lab
}

/// Text that is good and bad, over two files.
fn write_bad_text(lab: &Lab) {
    std::fs::create_dir_all(lab.path("in")).unwrap();
    let lines = |day: u32, values: &[&str]| {
        let line = |(i, value): (usize, &&str)| format!("2024-05-{day:02}T00:{i:02}:00Z,a,{value},0\n");
        format!("ts,device_id,value,quality\n{}", values.iter().enumerate().map(line).collect::<String>())
    };
    std::fs::write(lab.path("in/a.csv"), lines(1, &["1", "n/a", "2.5", "", "n/a"])).unwrap();
    std::fs::write(lab.path("in/b.csv"), lines(2, &["off", "7", "8"])).unwrap();
}

#[test]
fn a_merge_is_told_as_it_will_be() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=3, &["a", "b"]);
    write_grouped_readings(&lab, "in/one.parquet", &[&rows[..], &rows[..7]].concat(), 50);
    lab.append(&[rows[3].clone(), reading(2, 0, "a", -1.0), reading(2, 7, "z", 0.0), reading(9, 0, "a", 0.0)]);
    let (report, _) = twice(&lab, "--from in");
    assert_eq!(report["error"], Value::Null);
    assert_eq!((exact(&report["overlap"]["keys"]), exact(&report["overlap"]["keys_different"])), (&json!(2), &json!(1)), "{report}");
    assert_eq!(exact(&report["rows"]["duplicates_collapsed"]), &json!(7));
    assert!(exact(&report["overlap"]["files"]).as_u64().unwrap() >= 2, "{report}");
    assert!(report["command"].as_str().unwrap().starts_with("timelake backfill iot.sensor --from in"), "{report}");
    // What the rows are, as the readers see them afterwards.
    let columns: Vec<Value> = report["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| json!([c["column"], c["type"], c["min"]["value"], c["max"]["value"], c["nulls"]["value"]]))
        .collect();
    assert_eq!(
        json!(columns),
        json!([
            ["ts", "timestamptz", "2024-05-01T00:00:00Z", "2024-05-03T23:30:00Z", 0],
            ["device_id", "string", "a", "b", 0],
            ["value", "double", "1.0", "103.734375", 0],
            ["quality", "int", "0", "0", 0],
        ])
    );
    assert_eq!(report["first_rows"].as_array().unwrap().len(), 5, "{report}");
    assert_eq!(report["first_rows"][0], json!(["2024-05-01T00:00:00Z", "a", "1.0", "0"]));
    lab.assert_rows(
        &[&rows[..], &[reading(2, 7, "z", 0.0), reading(9, 0, "a", 0.0)]]
            .concat()
            .into_iter()
            .map(|mut row| {
                if (&row["ts"], &row["device_id"]) == (&json!("2024-05-02T00:00:00.000000Z"), &json!("a")) {
                    row["value"] = json!(-1.0);
                }
                row
            })
            .collect::<Vec<_>>(),
    );
    // Published: the same words, nothing to do.
    let again = dry(&lab, "--from in");
    assert_eq!((again.code, &again.json()["already_published"], &again.json()["cost"]), (Some(0), &json!(true), &Value::Null), "{again}");
    let text = |dry: &str| lab.timelake(&split_words(&format!("backfill iot.sensor --from in{dry}"))).stdout;
    assert_eq!(text(" --dry-run"), text(""));
    twice(&lab, "--from in --again");
}

#[test]
fn text_with_bad_rows_is_told_as_it_will_be() {
    let lab = lab_with("--partition month(ts)");
    write_bad_text(&lab);
    let refused = twice(&lab, "--from in").0;
    assert_eq!(refused["error"]["reason"], json!("bad_number"), "{refused}");
    assert_eq!(refused["bad_rows"][0]["distinct"], json!(["n/a", "off"]), "{refused}");
    let (left_out, _) = twice(&lab, "--from in --on-bad-row skip --max-bad-rows 2");
    assert_eq!(left_out["error"]["reason"], json!("too_many_bad_rows"), "{left_out}");
    let (loaded, _) = twice(&lab, "--from in --on-bad-row quarantine --max-bad-rows 3");
    assert_eq!((exact(&loaded["rows"]["rejected"]), exact(&loaded["rows"]["rows_written"])), (&json!(3), &json!(5)), "{loaded}");
    assert_eq!(loaded["columns"][2]["nulls"], json!({"value": 1, "basis": "exact"}), "{loaded}");
    assert!(exact(&loaded["plan"]["landed_bytes"]).as_u64().unwrap() > 0, "{loaded}");
}

#[test]
fn other_modes_are_told_as_they_will_be() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=3, &["a"]);
    write_text_readings(&lab, "in", &rows, 50);
    lab.append(&rows[..5]);
    let (failed, _) = twice(&lab, "--from in --mode fail");
    assert_eq!((&failed["error"]["reason"], exact(&failed["overlap"]["keys"])), (&json!("overlaps_existing"), &json!(5)), "{failed}");
    let (appended, _) = twice(&lab, "--from in --mode append --allow-duplicates --stage-only");
    assert_eq!((&appended["state"], &appended["overlap"]["keys"]), (&json!("STAGED"), &Value::Null), "{appended}");
    assert_eq!(exact(&appended["overlap"]["rows"]), &json!(5), "{appended}");
    // Another job, whose window that one holds: refused alike, and what it would do beside is told.
    write_readings(&lab, "in2/one.parquet", &readings(3..=4, &["b"]));
    let rehearsed = dry(&lab, "--from in2");
    let refused = lab.backfill_outcome("--from in2");
    let (told, found) = (rehearsed.error(4), refused.error(4));
    assert_eq!((&told["reason"], &told["message"]), (&json!("window_locked"), &found["message"]), "{rehearsed}\n{refused}");
    assert_eq!(exact(&rehearsed.json()["rows"]["rows_written"]), &json!(96), "{rehearsed}");
    twice(&lab, "--from in2 --allow-overlap");
    // A staged job goes on; it is told as a whole.
    let staged = dry(&lab, "--from in --mode append --allow-duplicates").success();
    assert_eq!(exact(&staged.json()["rows"]["rows_written"]), &json!(rows.len()), "{staged}");
}

#[test]
fn windows_chunks_and_retention_are_told_as_they_will_be() {
    let lab = lab_with("--partition day(ts) --retention P1Y");
    let rows: Vec<Value> = [800, 500, 300, 200, 100, 50].map(days_ago).to_vec();
    write_readings(&lab, "in/one.parquet", &rows);
    lab.append(&[days_ago(200)]);
    let bounds = format!("--from in --start {} --end {}", &rows[1]["ts"].as_str().unwrap()[..10], &rows[4]["ts"].as_str().unwrap()[..10]);
    assert_eq!(twice(&lab, &bounds).0["error"]["reason"], json!("beyond_retention"));
    twice(&lab, &format!("{bounds} --clip-retention --only-missing"));
    twice(&lab, &format!("{bounds} --override-retention"));
}

#[test]
fn what_cannot_run_fails_alike() {
    let lab = lab_with("--partition day(ts)");
    write_readings(&lab, "in/one.parquet", &readings(1..=1, &["a"]));
    std::fs::create_dir_all(lab.path("broken")).unwrap();
    let whole = std::fs::read(lab.path("in/one.parquet")).unwrap();
    std::fs::write(lab.path("broken/one.parquet"), &whole[..whole.len() / 2]).unwrap();
    for arguments in ["--from nowhere", "--from in --map value=vlue", "--from broken", "--from in --start 2024-06-01 --end 2024-05-01"] {
        let (rehearsed, run) = (dry(&lab, arguments), lab.backfill_outcome(arguments));
        assert_eq!((rehearsed.code, &rehearsed.json()["error"]), (run.code, &run.json()["error"]), "{rehearsed}\n{run}");
    }
    let mut words = split_words("backfill iot.other --from in --dry-run --json");
    assert_eq!(lab.timelake(&words).error(2)["reason"], json!("table_not_found"));
    words[1] = "iot.sensor".into();
    words.extend(split_words("--lake nowhere"));
    lab.timelake(&words).error(2);
    assert!(!lab.path("nowhere").exists());
}

#[test]
fn a_job_that_runs_elsewhere_and_one_that_is_stopped() {
    let lab = lab_with("--partition day(ts)");
    write_readings(&lab, "in/one.parquet", &readings(1..=2, &["a"]));
    let running = lab.start_held(&split_words("backfill iot.sensor --from in --json"), "plan-stored");
    let mut words = split_words("backfill iot.sensor --from in --dry-run --json");
    assert_eq!(lab.timelake(&words).error(6)["reason"], json!("job_running_elsewhere"));
    lab.release("plan-stored");
    running.wait().manifest();
    // One that was killed left its log beside the ledger, and goes on.
    write_readings(&lab, "killed/one.parquet", &readings(5..=6, &["a"]));
    lab.start_failing(&split_words("backfill iot.sensor --from killed --json"), "kill:files-written:1").wait();
    assert!(lab.path("lake/ledger.db-wal").exists());
    let (report, _) = twice(&lab, "--from killed");
    assert_eq!(exact(&report["rows"]["rows_written"]), &json!(96), "{report}");
    // Stopped in the middle: nothing is left.
    write_readings(&lab, "in2/one.parquet", &readings(3..=4, &["a"]));
    std::fs::create_dir_all(lab.path("tmp")).unwrap();
    let before = contents(&lab.lake());
    words[3] = "in2".into();
    words.extend(split_words("--work-dir tmp"));
    let held = lab.start_held(&words, "files-written");
    assert_eq!(std::fs::read_dir(lab.path("tmp")).unwrap().count(), 1);
    held.interrupt();
    lab.release("files-written");
    let stopped = held.wait();
    assert_eq!(stopped.error(130)["message"], json!("the dry run stopped as asked; nothing was changed"), "{stopped}");
    assert_eq!(std::fs::read_dir(lab.path("tmp")).unwrap().count(), 0);
    assert_eq!(before, contents(&lab.lake()));
}

#[test]
fn a_sample_is_a_quick_look() {
    let lab = lab_with("--partition day(ts)");
    let rows = readings(1..=20, &["a", "b"]);
    write_text_readings(&lab, "in", &rows, 480);
    let sampled = dry(&lab, "--from in --sample 48").success().json();
    assert_eq!(exact(&sampled["source"]["rows_seen"]), &json!(48 * 4), "{sampled}");
    let all = &sampled["source"]["rows"];
    assert_eq!(all["basis"], json!("estimated"));
    let off = (all["value"].as_f64().unwrap() / rows.len() as f64 - 1.0).abs();
    assert!(off < 0.1, "{all} of {} rows", rows.len());
    let written = &sampled["rows"]["rows_written"];
    assert_eq!((written["basis"].as_str(), &written["value"]), (Some("estimated"), &all["value"]), "{sampled}");
    // Footers tell the rows of Parquet; what is not seen does not fail.
    let mut parquet = rows.clone();
    parquet[900]["quality"] = json!(1);
    parquet.push(parquet[900].clone());
    parquet.last_mut().unwrap()["quality"] = json!(2);
    write_grouped_readings(&lab, "in2/one.parquet", &parquet, 100);
    let sampled = dry(&lab, "--from in2 --sample 130").success().json();
    assert_eq!(
        (&sampled["source"]["rows_seen"]["value"], &sampled["source"]["rows"]["value"]),
        (&json!(130), &json!(rows.len() + 1)),
        "{sampled}"
    );
    assert_eq!(dry(&lab, "--from in2").error(3)["reason"], json!("in_source_conflict"));
}

#[test]
fn a_job_above_its_limit_is_refused_before_it_begins() {
    let lab = lab_with("--partition day(ts)");
    write_readings(&lab, "in/one.parquet", &readings(1..=2, &["a"]));
    let cost = dry(&lab, "--from in --max-cost 5").success().json()["cost"].clone();
    let total = cost["total_x86"].as_f64().unwrap();
    assert!(total > 0.0 && cost["total_arm64"].as_f64().unwrap() < total, "{cost}");
    assert_eq!(cost["services"].as_array().unwrap().len(), 5, "{cost}");
    assert_eq!(dry(&lab, "--from in --max-cost 0.00001").error(2)["reason"], json!("cost_above_limit"));
    let before = contents(&lab.lake());
    let refused = lab.backfill_outcome("--from in --max-cost 0.00001");
    assert_eq!((&refused.error(2)["reason"], &refused.error(2)["option"]), (&json!("cost_above_limit"), &json!("--max-cost")), "{refused}");
    assert_eq!(before, contents(&lab.lake()));
    for amount in ["-1", "-0", "inf"] {
        let refused = lab.backfill_outcome(&format!("--from in --max-cost {amount}"));
        assert_eq!(
            (&refused.error(2)["reason"], &refused.error(2)["option"]),
            (&json!("invalid_option"), &json!("--max-cost")),
            "{refused}"
        );
    }
    // Prices of one's own, dated; a wrong field is named.
    let shipped = std::fs::read_to_string(timelake_tests::workspace().join("shared/model/prices/us-east-1.json")).unwrap();
    std::fs::write(lab.path("own.json"), shipped.replace("2026-12-01", "2027-01-01").replace("0.0000166667", "1")).unwrap();
    let own = dry(&lab, "--from in --prices own.json").success().json()["cost"].clone();
    assert_eq!(own["prices_as_of"], json!("2027-01-01"));
    assert!(own["total_x86"].as_f64().unwrap() > 1.0, "{own}");
    lab.backfill_outcome("--from in --prices own.json --max-cost 1").error(2);
    std::fs::write(lab.path("own.json"), shipped.replace("gb_month", "gb_moth")).unwrap();
    let wrong = dry(&lab, "--from in --prices own.json");
    assert!(wrong.error(2)["message"].as_str().unwrap().contains("unknown field `gb_moth`"), "{wrong}");
    assert_eq!(lab.backfill_outcome("--from in --prices own.json").error(2)["option"], json!("--prices"));
    assert_eq!(lab.backfill("--from in --max-cost 5")["rows_written"], json!(96));
}
