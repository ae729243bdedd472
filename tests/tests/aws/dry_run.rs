//! `--dry-run` and `--max-cost` on a lake on AWS: this machine tells what functions will do, and changes nothing there.

use crate::command::{LOAD, wait_for, write_readings};
use crate::installed::{Installed, PASS, WRITER_MB};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use timelake_tests::{CLASSES, Outcome};

const PAUSE: Duration = Duration::from_millis(300);
const ALL: [&str; 5] = ["planner", "work", "land-close", "close", "refresh"];

/// As it is when no function is in the middle of something any more.
async fn at_rest(installed: &Installed) -> BTreeMap<String, String> {
    installed.sleeps(&ALL);
    let mut before = installed.contents().await;
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = installed.contents().await;
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Runs it while all functions sleep, and sees that neither the lake nor the folder of temporary files has changed.
async fn dry(installed: &Installed, words: &str) -> Outcome {
    let temporary = installed.lab.path("tmp");
    let before = at_rest(installed).await;
    let outcome = installed.timelake(&format!("{words} --work-dir tmp --json"));
    let after = installed.contents().await;
    let changed: Vec<&String> = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    assert_eq!(changed, Vec::<&String>::new(), "the lake has changed\n{outcome}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "temporary files are left\n{outcome}");
    outcome
}

fn exact(figure: &Value) -> &Value {
    assert_eq!(figure["basis"], json!("exact"), "{figure}");
    &figure["value"]
}

/// What was told is what was done.
fn agree(told: &Value, run: &Value) {
    let same = |name: &str, told: &Value, found: &Value| assert_eq!(told, found, "{name}\n{told:#}\n{run:#}");
    for name in ["job", "gen", "table", "state", "window", "warnings", "error"] {
        same(name, &told[name], &run[name]);
    }
    for name in CLASSES {
        same(name, exact(&told["rows"][name]), &run[name]);
    }
    for name in ["files", "bytes", "rows"] {
        same(name, exact(&told["source"][name]), &run["source"][name]);
    }
    for name in ["units", "unit_rows_limit", "read_amplification"] {
        same(name, exact(&told["plan"][name]), &run["plan"][name]);
    }
    for name in ["files", "bytes", "partitions", "smallest_file_bytes", "largest_file_bytes"] {
        same(name, exact(&told["written"][name]), &run["written"][name]);
    }
    assert!(told["cost"]["total_x86"].as_f64().unwrap() > 0.0, "{told:#}");
    same("memory", exact(&told["memory"]["limit_bytes"]), &json!((WRITER_MB << 20) * 70 / 100));
    same("peak", &told["memory"]["peak_bytes"], &Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_what_functions_will_do_and_changes_nothing() {
    let installed = Installed::with_days(PASS, 3).await;
    // Rows that are there, and another job of the table.
    installed.timelake("backfill iot.sensor --from s3://exports/plant/01.csv --json").manifest();
    let told = dry(&installed, &format!("{LOAD} --dry-run --threads 2")).await.success().json();
    assert_eq!((exact(&told["overlap"]["keys"]), exact(&told["rows"]["rows_written"])), (&json!(24), &json!(48)), "{told:#}");
    assert_eq!(told["command"], json!(format!("timelake {LOAD}")));
    installed.sleeps(&[]);
    let run = installed.timelake(&format!("{LOAD} --json")).manifest();
    agree(&told, &run);
    assert_eq!(exact(&told["plan"]["landed_bytes"]), &run["source"]["landed_bytes"]);
    let again = dry(&installed, &format!("{LOAD} --dry-run")).await.success().json();
    assert_eq!((&again["already_published"], &again["job"], &again["cost"]), (&json!(true), &run["job"], &Value::Null), "{again:#}");
    let once_more = dry(&installed, &format!("{LOAD} --dry-run --again")).await.success().json();
    assert_eq!((&once_more["gen"], exact(&once_more["rows"]["kept_existing"])), (&json!(2), &json!(72)), "{once_more:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_above_its_limit_is_refused_before_anything_is_there() {
    let installed = Installed::with_days(PASS, 2).await;
    let sampled = dry(&installed, &format!("{LOAD} --dry-run --sample 12")).await.success().json();
    assert_eq!((&sampled["source"]["rows_seen"]["value"], &sampled["rows"]["rows_written"]["basis"]), (&json!(24), &json!("estimated")));
    for words in ["--max-cost 0.0000001", "--max-cost 0.0000001 --dry-run"] {
        let refused = dry(&installed, &format!("{LOAD} {words}")).await;
        assert_eq!(
            (&refused.error(2)["reason"], &refused.error(2)["option"]),
            (&json!("cost_above_limit"), &json!("--max-cost")),
            "{refused}"
        );
    }
    // What would fail is not begun.
    installed.emulated.emulator.put_text("exports", "bad/a.csv", "ts,device_id,value\n2024-03-01T00:00:00Z,d1,n/a\n");
    let bad = dry(&installed, "backfill iot.sensor --from s3://exports/bad/ --max-cost 5").await;
    assert_eq!(bad.error(3)["reason"], json!("bad_number"), "{bad}");
    installed.sleeps(&[]);
    let run = installed.timelake(&format!("{LOAD} --max-cost 5 --json")).manifest();
    assert_eq!((&run["state"], &run["rows_written"]), (&json!("REFRESHED"), &json!(48)), "{run}");
    assert_eq!(installed.executions().await, [format!("{}-g1", run["job"].as_str().unwrap())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_way_is_told_as_a_whole_and_holds_its_window() {
    let installed = Installed::new(PASS).await;
    installed.create_table();
    // Parquet is read as it is: the first units are those that write.
    write_readings(&installed.lab.path("a.parquet"), 48);
    installed.emulated.emulator.put_file("exports", "plant/a.parquet", &installed.lab.path("a.parquet"));
    let foreseen = dry(&installed, &format!("{LOAD} --dry-run")).await.success().json();
    installed.sleeps(&["work"]);
    let job = installed.json(&format!("{LOAD} --detach"))["job"].as_str().unwrap().to_string();
    wait_for(&installed, &job, "WRITING").await;
    let told = dry(&installed, &format!("{LOAD} --dry-run")).await.success();
    assert!(told.stderr.contains(&format!("job {job} is unfinished (WRITING): the run goes on with it")), "{told}");
    for part in ["job", "gen", "rows", "plan", "written"] {
        assert_eq!(told.json()[part], foreseen[part], "{told}");
    }
    write_readings(&installed.lab.path("b.parquet"), 24);
    installed.emulated.emulator.put_file("exports", "other/b.parquet", &installed.lab.path("b.parquet"));
    let beside = dry(&installed, "backfill iot.sensor --from s3://exports/other/ --dry-run").await;
    assert_eq!(
        (&beside.error(4)["reason"], exact(&beside.json()["rows"]["rows_written"])),
        (&json!("window_locked"), &json!(24)),
        "{beside}"
    );
    installed.sleeps(&[]);
    wait_for(&installed, &job, "REFRESHED").await;
    let run = installed.json(&format!("backfill report {job}"));
    agree(&foreseen, &run);
}
