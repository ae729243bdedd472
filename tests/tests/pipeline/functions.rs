//! The functions, on local ports: every event of `events/` is replayed, and whole jobs go from message to message.

use crate::minutes::{Minutes, assert_loaded, assert_tidy};
use crate::sensors::*;
use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timelake_engine::Engine;
use timelake_engine::ports::{Claim, JobStore, Signals, UnitQueue};
use timelake_engine::progress::StopFlag;
use timelake_functions::{Mail, Ports, Tally};
use timelake_local::{LocalObjects, SqliteCatalog, SqliteLedger, SystemClock};
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, State};
use timelake_model::messages::Signal;
use timelake_model::{JobId, Reason, Result};
use timelake_tests::{Lab, workspace};

/// The job that the events name.
const JOB_OF_EVENTS: &str = "iot-sensor-000000000000";
const LEASE: Duration = Duration::from_secs(60);
/// Messages of a test at most.
const MOST_MESSAGES: u32 = 500;

/// What was said, and not yet heard.
#[derive(Default)]
struct Said {
    messages: Mutex<Vec<Signal>>,
    /// Words to lose.
    deaf: Mutex<bool>,
}

impl Said {
    fn say(&self, message: Signal) {
        if !*self.deaf.lock().unwrap() {
            self.messages.lock().unwrap().push(message);
        }
    }
    fn take(&self) -> Option<Signal> {
        let mut messages = self.messages.lock().unwrap();
        if messages.is_empty() { None } else { Some(messages.remove(0)) }
    }
}

#[async_trait::async_trait]
impl Signals for Said {
    async fn signal(&self, signal: &Signal) -> Result<()> {
        self.say(signal.clone());
        Ok(())
    }
}

#[async_trait::async_trait]
impl Mail for Said {
    async fn delay(&self, _: &SqsMessage, _: Duration) -> Result<()> {
        Ok(())
    }
    async fn idle(&self) -> Result<bool> {
        Ok(true)
    }
}

/// A lake in a folder, worked on by functions.
struct World {
    lab: Lab,
    ledger: Arc<SqliteLedger>,
    said: Arc<Said>,
    ports: Ports,
    stop: StopFlag,
}

impl World {
    fn new(lab: Lab) -> World {
        let (lake, clock) = (lab.lake(), Arc::new(SystemClock));
        let ledger = Arc::new(SqliteLedger::open(&lake.join("ledger.db"), clock.clone()).unwrap());
        let engine = Engine {
            catalog: Arc::new(SqliteCatalog::open(&lake.join("catalog.db"), &lake.join("warehouse"), false).unwrap()),
            jobs: ledger.clone(),
            queue: ledger.clone(),
            objects: Arc::new(LocalObjects::new(&lake)),
            sources: Default::default(),
            clock,
            jobs_root: lake.join("jobs").display().to_string(),
        };
        let said = Arc::new(Said::default());
        let (mail, tally) = (said.clone(), Tally::default());
        let ports = Ports { engine, signals: said.clone(), mail, tally, writer_memory_bytes: 512 << 20, memory_bytes: 512 << 20 };
        World { lab, ledger, said, ports, stop: StopFlag::default() }
    }

    fn event(&self, path: &str, job: &str) -> Value {
        let text = std::fs::read_to_string(workspace().join("events").join(path)).unwrap_or_else(|e| panic!("events/{path}: {e}"));
        let source = self.lab.path("export").display().to_string();
        serde_json::from_str(&text.replace(JOB_OF_EVENTS, job).replace("s3://timelake-example/export", &source)).unwrap()
    }

    /// What the function answers; an error of a handler that is called directly is `{"error": kind}`.
    async fn handle(&self, function: &str, event: Value) -> Value {
        let sqs = |event: &Value| serde_json::from_value::<SqsEvent>(event.clone()).unwrap();
        let told = |response: SqsBatchResponse| serde_json::to_value(response).unwrap();
        let direct = |answer: Result<Value>| answer.unwrap_or_else(|e| json!({"error": e.reason.to_string()}));
        match function {
            "planner" => direct(timelake_planner::handle(&self.ports, event, &self.stop).await),
            "sweeper" => direct(timelake_sweeper::handle(&self.ports, event, &self.stop).await),
            "writer" => told(timelake_writer::handle(&self.ports, sqs(&event), &self.stop).await),
            "finalizer" => told(timelake_finalizer::handle(&self.ports, sqs(&event), &self.stop).await),
            "refresher" => told(timelake_refresher::handle(&self.ports, sqs(&event), &self.stop).await),
            other => panic!("there is no function {other}"),
        }
    }

    async fn deliver(&self, function: &str, body: &Value, tries: u32) -> Value {
        let mut event = self.event("writer/unit.json", JOB_OF_EVENTS);
        event["Records"][0]["body"] = json!(body.to_string());
        event["Records"][0]["attributes"]["ApproximateReceiveCount"] = json!(tries.to_string());
        self.handle(function, event).await
    }

    /// One message of a unit goes to its function; `None`: none waits.
    async fn one_unit(&self) -> Option<(Claim, bool)> {
        let claim = self.ledger.claim(None, "a function", LEASE).await.unwrap()?;
        let function = if claim.message.key.phase == Phase::Refresh { "refresher" } else { "writer" };
        let answer = self.deliver(function, &serde_json::to_value(&claim.message).unwrap(), claim.tries).await;
        let failed = answer["batchItemFailures"] != json!([]);
        match failed {
            true => self.ledger.release(&claim, Duration::ZERO).await.unwrap(),
            false => self.ledger.ack(&claim).await.unwrap(),
        }
        Some((claim, failed))
    }

    /// Everything that was said and sent is heard, until nothing is left.
    async fn run(&self) {
        for _ in 0..MOST_MESSAGES {
            if let Some(message) = self.said.take() {
                let body = serde_json::to_value(&message).unwrap();
                let function = hearer(&message);
                let answer = self.deliver(function, &body, 1).await;
                assert_eq!(answer["batchItemFailures"], json!([]), "{function}: {body}");
            } else if self.one_unit().await.is_none() {
                return;
            }
        }
        panic!("messages without an end");
    }

    async fn submit(&self) -> JobId {
        let answer = self.handle("planner", self.event("planner/backfill.json", JOB_OF_EVENTS)).await;
        JobId(answer["job"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string())
    }

    async fn job(&self, job: &JobId) -> JobRecord {
        self.ledger.job(job).await.unwrap().unwrap()
    }

    fn feed(&self) -> Vec<Value> {
        let answer = self.lab.reader(json!({"command": "read", "engine": "pyiceberg", "table": "iot.sensor_changes"}));
        answer.as_array().unwrap().clone()
    }
}

/// Whose queue a signal goes to.
fn hearer(signal: &Signal) -> &'static str {
    if signal.phase() == Phase::Land { "planner" } else { "finalizer" }
}

fn sensor_lab(rows: &[Value], text: bool) -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    match text {
        true => write_text_readings(&lab, "export", rows, 40),
        false => {
            std::fs::create_dir_all(lab.path("export")).unwrap();
            write_readings(&lab, "export/a.parquet", rows);
        }
    }
    lab
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_answered() {
    let world = World::new(sensor_lab(&readings(1..=2, &["d1"]), false));
    // As they stand the events name a job that does not exist: old news, which no queue should send again.
    let mut events = 0;
    for function in ["planner", "writer", "finalizer", "refresher", "sweeper"] {
        for file in std::fs::read_dir(workspace().join("events").join(function)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let answer = world.handle(function, world.event(&format!("{function}/{name}"), JOB_OF_EVENTS)).await;
            match name.as_str() {
                "backfill.json" => assert_eq!(answer["state"], "WRITING", "{answer}"),
                "status.json" => assert_eq!(answer["error"], "job_not_found", "{answer}"),
                "schedule.json" | "collect.json" | "counter.json" => assert!(answer.get("error").is_none(), "{answer}"),
                _ => assert_eq!(answer["batchItemFailures"], json!([]), "{function}/{name}: {answer}"),
            }
            events += 1;
        }
    }
    assert!(events >= 13);
    let strange = world.handle("planner", json!({"action": "dance"})).await;
    assert_eq!(strange["error"], "invalid_option", "{strange}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_from_message_to_message_and_its_feed_knows_what_changed() {
    for text in [false, true] {
        let rows = readings(1..=3, &["d1", "d2"]);
        let world = World::new(sensor_lab(&rows, text));
        let job = world.submit().await;
        world.run().await;
        assert_eq!(world.job(&job).await.state, State::Refreshed, "text: {text}");
        world.lab.assert_rows(&rows);
        let feed = world.feed();
        let days: BTreeSet<&str> = feed.iter().map(|r| r["range_start"].as_str().unwrap()).collect();
        assert_eq!((feed.len(), days.len()), (3, 3), "{feed:?}");
        assert!(feed.iter().all(|r| r["rows"] == 96 && r["job"] == job.as_str() && r["generation"] == 1), "{feed:?}");
        let status = world.handle("planner", world.event("planner/status.json", job.as_str())).await;
        assert_eq!((&status["state"], &status["report"]["rows_written"]), (&json!("REFRESHED"), &json!(288)), "{status}");
        // The same request again finds it done.
        let again = world.handle("planner", world.event("planner/backfill.json", JOB_OF_EVENTS)).await;
        assert_eq!((&again["state"], &again["gen"], &again["job"]), (&json!("REFRESHED"), &json!(1), &json!(job)), "{again}");
    }
}

/// Every message comes twice, and planners, finalizers and refreshers are called once more.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_come_twice_change_nothing() {
    let rows = readings(1..=3, &["d1", "d2"]);
    let world = World::new(sensor_lab(&rows, false));
    let job = world.submit().await;
    assert_eq!(world.submit().await, job);
    let mut heard = Vec::new();
    for _ in 0..MOST_MESSAGES {
        if let Some(message) = world.said.take() {
            let body = serde_json::to_value(&message).unwrap();
            for _ in 0..2 {
                let answer = world.deliver("finalizer", &body, 1).await;
                assert_eq!(answer["batchItemFailures"], json!([]), "{body}");
            }
            heard.push(body);
            continue;
        }
        let Some(claim) = world.ledger.claim(None, "a function", LEASE).await.unwrap() else { break };
        let function = if claim.message.key.phase == Phase::Refresh { "refresher" } else { "writer" };
        let body = serde_json::to_value(&claim.message).unwrap();
        for tries in 1..=2 {
            let answer = world.deliver(function, &body, tries).await;
            assert_eq!(answer["batchItemFailures"], json!([]), "{function}: {body}");
        }
        world.ledger.ack(&claim).await.unwrap();
    }
    assert_eq!(world.job(&job).await.state, State::Refreshed);
    world.lab.assert_rows(&rows);
    assert_eq!(world.feed().len(), 3);
    for body in heard {
        world.deliver("finalizer", &body, 1).await;
    }
    assert_eq!((world.job(&job).await.state, world.feed().len()), (State::Refreshed, 3));
}

/// Whoever ends the last unit, stages or publishes dies before it can say so, each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_said_the_sweeper_finds() {
    let rows = readings(1..=2, &["d1"]);
    for text in [false, true] {
        let world = World::new(sensor_lab(&rows, text));
        let job = world.submit().await;
        for _ in 0..20 {
            *world.said.deaf.lock().unwrap() = true;
            while world.one_unit().await.is_some() {}
            *world.said.deaf.lock().unwrap() = false;
            if world.job(&job).await.state == State::Refreshed {
                break;
            }
            let swept = world.handle("sweeper", world.event("sweeper/schedule.json", JOB_OF_EVENTS)).await;
            assert_eq!(swept["jobs"], 1, "{swept}");
            let said: Vec<Signal> = std::iter::from_fn(|| world.said.take()).collect();
            *world.said.deaf.lock().unwrap() = true;
            for message in said {
                world.deliver(hearer(&message), &serde_json::to_value(&message).unwrap(), 1).await;
            }
        }
        assert_eq!(world.job(&job).await.state, State::Refreshed, "text: {text}");
        world.lab.assert_rows(&rows);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_was_given_up_holds_the_job_until_it_is_tried_again() {
    let rows = readings(1..=2, &["d1"]);
    let world = World::new(sensor_lab(&rows, false));
    let job = world.submit().await;
    let claim = world.ledger.claim(None, "a function", LEASE).await.unwrap().unwrap();
    // Its writer was cut off five times.
    world.ledger.begin_attempt(&claim.message.key, claim.message.unit, &timelake_model::AttemptId("000000000001".into())).await.unwrap();
    world.ledger.ack(&claim).await.unwrap();
    let letter = serde_json::to_value(&claim.message).unwrap();
    world.deliver("sweeper", &letter, 6).await;
    world.run().await;
    let held = world.job(&job).await;
    assert_eq!(held.state, State::Hold, "{:?}", held.error);
    world.lab.assert_rows(&[]);
    // A service that was away: the sweeper tries again by itself.
    world.handle("sweeper", world.event("sweeper/schedule.json", JOB_OF_EVENTS)).await;
    world.run().await;
    assert_eq!(world.job(&job).await.state, State::Refreshed);
    world.lab.assert_rows(&rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_reject_the_job_and_nothing_of_it_is_visible() {
    for text in [false, true] {
        let mut rows = readings(1..=2, &["d1"]);
        rows[7]["ts"] = json!("1969-01-01T00:00:00.000000Z");
        let world = World::new(sensor_lab(&rows, text));
        let job = world.submit().await;
        world.run().await;
        let ended = world.job(&job).await;
        assert_eq!(ended.state, State::Rejected, "text: {text}: {:?}", ended.error);
        world.lab.assert_rows(&[]);
        let status = world.handle("planner", world.event("planner/status.json", job.as_str())).await;
        assert!(status["report"]["error"]["file"].is_string(), "{status}");
    }
}

/// The reason is the source's, not that of a queue which gave up.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changed_holds_the_job_and_says_so() {
    let rows = readings(1..=2, &["d1"]);
    let world = World::new(sensor_lab(&rows, false));
    let job = world.submit().await;
    write_readings(&world.lab, "export/a.parquet", &rows[..rows.len() - 1]);
    world.run().await;
    let held = world.job(&job).await;
    assert_eq!((held.state, held.error.map(|e| e.reason)), (State::Hold, Some(Reason::SourceChanged)));
    world.lab.assert_rows(&[]);
}

/// Four days that make three units or more.
const DAYS: Minutes = Minutes { first_day: 1, days: 4, devices: 300 };

fn days_lab() -> Lab {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    DAYS.write(&lab, "export");
    lab
}

impl World {
    async fn group(&self, job: &JobId) -> GroupRecord {
        self.ledger.groups(job, 1).await.unwrap().remove(0)
    }
    async fn sweep(&self) {
        let swept = self.handle("sweeper", self.event("sweeper/schedule.json", JOB_OF_EVENTS)).await;
        assert!(swept["jobs"].is_number(), "{swept}");
    }
    fn snapshots(&self) -> Vec<i64> {
        self.lab.inspect()["snapshots"].as_array().unwrap().iter().map(|s| s["id"].as_i64().unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_units_are_announced_than_the_request_allows() {
    let world = World::new(days_lab());
    let mut request = world.event("planner/backfill.json", JOB_OF_EVENTS);
    request["request"]["run"]["max_in_flight"] = json!(1);
    let job = JobId(world.handle("planner", request).await["job"].as_str().unwrap().to_string());
    let mut written = 0;
    while world.ledger.depth(&job).await.unwrap() > 0 && world.group(&job).await.state == State::Writing {
        assert_eq!(world.ledger.depth(&job).await.unwrap(), 1);
        world.one_unit().await.unwrap();
        written += 1;
        // One unit is over: the ledger's stream says so, or the next sweep finds it.
        match written % 2 {
            0 => world.sweep().await,
            _ => assert_eq!(world.handle("sweeper", world.event("sweeper/counter.json", job.as_str())).await, Value::Null),
        }
    }
    assert!(written >= 3, "{written} units");
    world.run().await;
    assert_eq!(world.job(&job).await.state, State::Refreshed);
    assert_loaded(&world.lab, &[DAYS], &[], 1);
}

/// Cleaners remove what no snapshot names: units of a job on HOLD are named by its branch, and by nothing once it is over.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_of_a_job_on_hold_is_kept_on_its_branch() {
    for (is_known, is_mended) in [(true, true), (false, true), (true, false), (false, false)] {
        let world = World::new(days_lab());
        let job = world.submit().await;
        let (changed, other) = (world.lab.path("export/day-04.parquet"), world.lab.path("day-04.saved"));
        std::fs::rename(&changed, &other).unwrap();
        std::fs::copy(world.lab.path("export/day-03.parquet"), &changed).unwrap();
        world.run().await;
        let before = world.group(&job).await;
        assert_eq!((before.state, before.error.map(|e| e.reason), before.kept), (State::Hold, Some(Reason::SourceChanged), None));
        let snapshots = world.snapshots();
        world.sweep().await;
        let kept = world.group(&job).await;
        assert!(kept.kept.is_some_and(|kept| kept.units >= 1 && kept.round == 0), "{kept:?}");
        let staged = kept.branch_snapshot.filter(|id| kept.staged == [*id] && !snapshots.contains(id)).unwrap();
        assert_eq!(world.snapshots().len(), snapshots.len() + 1);
        world.sweep().await;
        assert_eq!((world.snapshots().len(), world.group(&job).await.state), (snapshots.len() + 1, State::Hold));
        if !is_known {
            // Whoever committed it died before the ledger knew.
            let unknown =
                GroupRecord { branch_snapshot: before.branch_snapshot, next_kept: Some(staged), staged: vec![], kept: None, ..kept };
            world.ledger.update_group(&unknown).await.unwrap().unwrap();
        }
        if is_mended {
            std::fs::rename(&other, &changed).unwrap();
            world.lab.timelake(&["backfill", "resume", job.as_str()]).success();
            assert_loaded(&world.lab, &[DAYS], &[], 1);
        } else {
            world.lab.timelake(&["backfill", "cancel", job.as_str()]).success();
            assert_tidy(&world.lab, 0);
        }
        assert!(!world.snapshots().contains(&staged), "known: {is_known}, mended: {is_mended}");
    }
}

/// A state machine that asks once more does not load once more.
#[tokio::test(flavor = "multi_thread")]
async fn one_execution_loads_a_published_job_again_once() {
    let rows = readings(1..=2, &["d1"]);
    let world = World::new(sensor_lab(&rows, false));
    let job = world.submit().await;
    world.run().await;
    let mut request = world.event("planner/backfill.json", JOB_OF_EVENTS);
    request["options"] = json!({ "again": true });
    for (execution, generation) in [("one", 2), ("one", 2), ("two", 3), ("two", 3)] {
        request["execution"] = json!(execution);
        let answer = world.handle("planner", request.clone()).await;
        assert_eq!((&answer["job"], &answer["gen"]), (&json!(job), &json!(generation)), "{answer}");
        world.run().await;
        assert_eq!(world.job(&job).await.state, State::Refreshed);
    }
    world.lab.assert_rows(&rows);
}

/// What functions write is what the command writes, byte by byte.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_those_of_the_command() {
    let rows = readings(1..=3, &["d1", "d2"]);
    let world = World::new(sensor_lab(&rows, false));
    world.submit().await;
    world.run().await;
    let other = sensor_lab(&rows, false);
    other.backfill("--from export --threads 1 --memory 512MB");
    let files = |lab: &Lab| {
        let hash = |f: &Value| {
            (f["partition"]["ts_day"].clone(), std::fs::read(f["path"].as_str().unwrap().trim_start_matches("file://")).unwrap())
        };
        let mut files: Vec<_> = lab.inspect()["files"].as_array().unwrap().iter().map(hash).collect();
        files.sort_by_key(|(day, _)| day.to_string());
        files
    };
    assert_eq!(files(&world.lab), files(&other));
}
