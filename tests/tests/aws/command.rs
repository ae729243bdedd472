//! `--lake aws:NAME`: the command against the emulator, and the functions beside it.

use crate::installed::{Installed, PASS};
use arrow::array::{Float64Array, StringArray, TimestampMicrosecondArray};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use timelake_model::{Error, Reason};
use timelake_tests::write_parquet;

pub const LOAD: &str = "backfill iot.sensor --from s3://exports/plant/";
const LIMIT: u32 = 600;

/// Readings as Parquet, one an hour.
pub fn write_readings(file: &Path, rows: i64) {
    let start = timelake_model::TimestampUs::parse_bound("2024-03-01", "", false).unwrap().0;
    let times = TimestampMicrosecondArray::from_iter_values((0..rows).map(|n| start + n * 3_600_000_000)).with_timezone("+00:00");
    let devices: StringArray = (0..rows).map(|_| Some("d1")).collect();
    let values = Float64Array::from_iter_values((0..rows).map(|n| n as f64));
    write_parquet(file, vec![("ts", Arc::new(times)), ("device_id", Arc::new(devices)), ("value", Arc::new(values))], 1_000);
}

/// Until the ledger says so.
pub async fn wait_for(installed: &Installed, job: &str, state: &str) {
    for _ in 0..LIMIT {
        let id = timelake_model::JobId(job.into());
        let now = installed.functions.engine.jobs.job(&id).await.unwrap();
        if now.as_ref().is_some_and(|now| now.state.to_string() == state) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{job} does not become {state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_followed_to_its_end_and_told_as_in_a_folder() {
    let installed = Installed::with_days(PASS, 3).await;
    let run = installed.timelake(&format!("{LOAD} --json")).manifest();
    assert_eq!((&run["state"], &run["rows_written"], &run["published"]), (&json!("REFRESHED"), &json!(72), &json!(true)), "{run}");
    assert_eq!(installed.rows(), 72);
    // The same command again finds it done; the id may be cut.
    let job = run["job"].as_str().unwrap();
    let again = installed.timelake(&format!("{LOAD} --detach --json")).manifest();
    assert_eq!((&again["already_published"], &again["job"]), (&json!(true), &run["job"]));
    let report = installed.json(&format!("backfill report {}", &job[..job.len() - 4]));
    assert_eq!((&report["rows_written"], &report["key_hash"]), (&run["rows_written"], &run["key_hash"]));
    let list = installed.json("backfill list iot.sensor");
    assert_eq!((&list["jobs"][0]["job"], &list["jobs"][0]["state"]), (&run["job"], &json!("REFRESHED")));
    let status = installed.json(&format!("backfill status {job}"));
    assert!(status["units"].as_array().unwrap().iter().all(|u| u["state"] == "DONE"), "{status}");
    assert_eq!(installed.json("backfill locks")["locks"], json!([]));
    assert_eq!(installed.executions().await, [format!("{job}-g1")]);
    let page = installed.timelake(&format!("backfill report {job} --html -")).success();
    assert!(page.stdout.contains("<html"), "{page}");
    // What landing left behind goes.
    let runs = |collected: serde_json::Value| collected["items"].as_array().unwrap().iter().filter(|i| i["kind"] == "runs").count();
    assert_eq!(runs(installed.json("backfill gc --older-than PT0S --dry-run")), 1);
    assert_eq!(runs(installed.json("backfill gc --older-than PT0S")), 1);
    assert_eq!(runs(installed.json("backfill gc --older-than PT0S")), 0);
    let contract = installed.json("table contract iot.sensor --retention P50Y");
    assert_eq!(contract["contract"]["retention"], "P50Y", "{contract}");
    assert_eq!(installed.json("table list")["tables"].as_array().unwrap().len(), 2, "the table and its feed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_at_once() {
    let installed = Installed::with_days(PASS, 1).await;
    std::fs::write(installed.lab.path("a.csv"), "ts,device_id,value\n").unwrap();
    for (words, code, option, hint) in [
        ("backfill iot.sensor --from a.csv", 2, "--from", "upload"),
        ("backfill iot.sensor --from /tmp", 2, "--from", "upload"),
        (&format!("{LOAD} --threads 2"), 2, "--threads", "functions"),
        (&format!("{LOAD} --work-dir x"), 2, "--work-dir", "functions"),
        (&format!("{LOAD} --memory 1GB --dry-run"), 2, "--memory", "functions"),
        (&format!("{LOAD} --prices own.json"), 2, "--prices", "--dry-run"),
        ("backfill iot.sensor --from a.csv --dry-run", 2, "--from", "upload"),
        ("backfill iot.sensor --from a.csv --max-cost 1", 2, "--from", "upload"),
        ("backfill iot.sensor --from nothing://exports/ --dry-run", 2, "--from", "S3"),
        ("worker", 2, "--lake", "functions"),
        ("--lake aws:plnt backfill list", 2, "--lake", "did you mean plant?"),
    ] {
        let error = installed.timelake(&format!("{words} --json")).error(code);
        assert_eq!(error["option"], option, "{words}: {error}");
        assert!(error["hint"].as_str().unwrap().contains(hint), "{words}: {error}");
    }
    for dry in ["", "--dry-run"] {
        let unknown = installed.timelake(&format!("backfill iot.sensr --from s3://exports/plant/ {dry} --json")).error(2);
        assert!(unknown["hint"].as_str().unwrap().contains("iot.sensor"), "{unknown}");
    }
    assert_eq!(installed.timelake("backfill status nothing --json").error(2)["reason"], "job_not_found");
    assert!(installed.executions().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_without_the_command() {
    let installed = Installed::with_days(PASS, 2).await;
    installed.sleeps(&["work"]);
    let detached = installed.json(&format!("{LOAD} --detach"));
    let job = detached["job"].as_str().unwrap().to_string();
    assert_eq!((&detached["gen"], &detached["state"]), (&json!(1), &json!("PLANNING")), "{detached}");
    wait_for(&installed, &job, "LANDING").await;
    // Watched, and left alone.
    let words = timelake_tests::split_words(&format!("{LOAD} --json -v"));
    let watching = installed.lab.start(&words);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let left = tokio::task::block_in_place(|| {
        watching.interrupt();
        watching.wait()
    });
    assert!(left.error(130)["message"].as_str().unwrap().contains("goes on without this command"), "{left}");
    assert!(left.stderr.contains("goes on (it was LANDING)"), "{left}");
    installed.sleeps(&[]);
    wait_for(&installed, &job, "REFRESHED").await;
    assert_eq!(installed.rows(), 48);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_hold_is_resumed() {
    let installed = Installed::new(PASS).await;
    installed.create_table();
    // Parquet is read as it is: the first units are those that write.
    let file = "a.parquet";
    write_readings(&installed.lab.path(file), 48);
    installed.emulated.emulator.put_file("exports", "plant/a.parquet", &installed.lab.path(file));
    installed.sleeps(&["work"]);
    let words = timelake_tests::split_words(&format!("{LOAD} --json"));
    let watching = installed.lab.start(&words);
    installed.give_up_a_unit().await;
    installed.sleeps(&[]);
    let held = tokio::task::block_in_place(|| watching.wait());
    assert_eq!((held.code, &held.json()["state"]), (Some(5), &json!("HOLD")), "{held}");
    let job = held.json()["job"].as_str().unwrap().to_string();
    let resumed = installed.timelake(&format!("backfill resume {job} --json")).manifest();
    assert_eq!((&resumed["state"], &resumed["rows_written"]), (&json!("REFRESHED"), &json!(48)), "{resumed}");
    assert_eq!(installed.rows(), 48);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_is_told_to_who_follows_it_and_starts_anew() {
    let installed = Installed::with_days(PASS, 1).await;
    installed.sleeps(&["work"]);
    let job = installed.json(&format!("{LOAD} --detach"))["job"].as_str().unwrap().to_string();
    wait_for(&installed, &job, "LANDING").await;
    let words = timelake_tests::split_words(&format!("{LOAD} --json"));
    let watching = installed.lab.start(&words);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(installed.json(&format!("backfill cancel {job}"))["state"], "CANCELLED");
    let told = tokio::task::block_in_place(|| watching.wait());
    assert_eq!(told.error(4)["reason"], "cancelled", "{told}");
    installed.sleeps(&[]);
    let anew = installed.timelake(&format!("{LOAD} --json")).manifest();
    assert_eq!((&anew["gen"], &anew["state"], installed.rows()), (&json!(2), &json!("REFRESHED"), json!(24)), "{anew}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_job_is_validated_and_published() {
    let installed = Installed::with_days(PASS, 2).await;
    let staged = installed.timelake(&format!("{LOAD} --stage-only --json")).manifest();
    assert_eq!((&staged["state"], &staged["published"]), (&json!("STAGED"), &json!(false)), "{staged}");
    assert_eq!(installed.rows(), 0);
    let job = staged["job"].as_str().unwrap();
    let locks = installed.json("backfill locks iot.sensor");
    assert_eq!((&locks["locks"][0]["job"], &locks["locks"][0]["state"]), (&staged["job"], &json!("STAGED")));
    let verdict = installed.json(&format!("backfill validate {job} --verify full"));
    assert_eq!(verdict["verdict"], "approved", "{verdict}");
    let published = installed.timelake(&format!("backfill publish {job} --json")).manifest();
    assert_eq!((&published["state"], installed.rows()), (&json!("REFRESHED"), json!(48)), "{published}");
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_that_failed_is_told_and_tried_again() {
    let said = Error::unavailable(Reason::CatalogUnavailable, "the catalog is away").hint("wait");
    let cause = serde_json::to_string(&json!({"errorType": "unavailable", "errorMessage": serde_json::to_string(&said).unwrap()})).unwrap();
    let fails = json!({"StartAt": "No", "States": {"No": {"Type": "Fail", "Error": "unavailable", "Cause": cause}}}).to_string();
    let installed = Installed::with_days(&fails, 1).await;
    installed.sleeps(&["planner"]);
    let told = installed.timelake(&format!("{LOAD} --json")).error(5);
    assert_eq!((&told["reason"], &told["message"]), (&json!("catalog_unavailable"), &json!("the catalog is away")), "{told}");
    let job = told["job"].as_str().unwrap();
    installed.redefine(PASS).await;
    installed.sleeps(&[]);
    let run = installed.timelake(&format!("{LOAD} --json")).manifest();
    assert_eq!((&run["state"], &run["job"]), (&json!("REFRESHED"), &json!(job)), "{run}");
    assert_eq!(installed.executions().await, [format!("{job}-g1"), format!("{job}-g1-1")]);
}
