//! A lake on the emulator as terraform would install it, but for Lambda: the functions' handlers are called in this process,
//! with what their queues and the state machine would hand them.

use crate::{Cloud as Emulated, REGION, hurried, ledger};
use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use timelake_aws::{Cloud as Opened, CloudSettings};
use timelake_engine::ports::ObjectStore;
use timelake_engine::progress::StopFlag;
use timelake_functions::{Mail, Ports, Tally};
use timelake_model::Result;
use timelake_tests::{Emulator, Lab, Outcome};
use tokio::runtime::Handle;

const POLL: Duration = Duration::from_millis(50);
pub const WRITER_MB: u64 = 512;
/// Ends at once: planning is done by the handler that is called here.
pub const PASS: &str = r#"{"StartAt": "Done", "States": {"Done": {"Type": "Wait", "Seconds": 2, "End": true}}}"#;

struct Silence;

#[async_trait::async_trait]
impl Mail for Silence {
    async fn delay(&self, _: &aws_lambda_events::event::sqs::SqsMessage, _: Duration) -> Result<()> {
        Ok(())
    }
    async fn idle(&self) -> Result<bool> {
        Ok(true)
    }
}

pub struct Installed {
    pub lab: Lab,
    pub emulated: Emulated,
    pub functions: Arc<Ports>,
    sqs: aws_sdk_sqs::Client,
    sfn: aws_sdk_sfn::Client,
    machine: String,
    queues: Vec<(&'static str, String)>,
    /// Functions that are not called: their messages wait.
    asleep: Arc<Mutex<BTreeSet<&'static str>>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Installed {
    /// `machine`: what the state machine does besides.
    /// With a table and a source of so many days.
    pub async fn with_days(machine: &str, days: u32) -> Installed {
        let installed = Installed::new(machine).await;
        installed.create_table();
        installed.put_source(days);
        installed
    }

    pub async fn new(machine: &str) -> Installed {
        let emulated = Emulated::with_ledger().await;
        emulated.emulator.make_bucket("exports");
        let endpoint = emulated.emulator.endpoint();
        let services = emulated.services(endpoint.clone()).await;
        let (sqs, sfn) = (services.sqs(), services.step_functions());
        let mut queues = Vec::new();
        for name in ["work", "land-close", "close", "refresh"] {
            queues.push((name, sqs.create_queue().queue_name(name).send().await.unwrap().queue_url.unwrap()));
        }
        let made = sfn.create_state_machine().name("plant-backfill").definition(machine).role_arn("arn:aws:iam::000000000000:role/plant");
        let machine = made.send().await.unwrap().state_machine_arn;
        let url = |name: &str| queues.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        let settings = CloudSettings::from(|name| {
            Some(match name {
                "TIMELAKE_LEDGER_TABLE" => ledger::TABLE.to_string(),
                "TIMELAKE_BUCKET" => ledger::BUCKET.to_string(),
                "TIMELAKE_WORK_QUEUE_URL" => url("work"),
                "TIMELAKE_LAND_CLOSE_QUEUE_URL" => url("land-close"),
                "TIMELAKE_CLOSE_QUEUE_URL" => url("close"),
                "TIMELAKE_REFRESH_QUEUE_URL" => url("refresh"),
                _ => return None,
            })
        });
        let settings = settings.unwrap();
        let lab = lab(&emulated.emulator);
        let toml = format!(
            "[lakes.plant]\nregion = \"{REGION}\"\nendpoint_url = \"{endpoint}\"\nledger_table = \"{}\"\nwarehouse = \"{}\"\njobs = \"{}\"\n\
             work_queue_url = \"{}\"\nland_close_queue_url = \"{}\"\nclose_queue_url = \"{}\"\nrefresh_queue_url = \"{}\"\n\
             state_machine_arn = \"{machine}\"\nwriter_memory_mb = {WRITER_MB}\n",
            settings.ledger_table,
            settings.warehouse,
            settings.jobs,
            url("work"),
            url("land-close"),
            url("close"),
            url("refresh")
        );
        std::fs::write(lab.path("timelake.toml"), toml).unwrap();
        let cloud = Opened::open_with(settings, hurried(endpoint)).await.unwrap();
        let functions = Ports {
            tally: Tally::default(),
            engine: cloud.engine(),
            signals: cloud.queues.clone(),
            mail: Arc::new(Silence),
            writer_memory_bytes: WRITER_MB << 20,
            memory_bytes: WRITER_MB << 20,
        };
        let mut installed = Installed {
            lab,
            emulated,
            functions: Arc::new(functions),
            sqs,
            sfn,
            machine,
            queues,
            asleep: Arc::default(),
            over: Arc::default(),
            threads: vec![],
        };
        installed.run();
        installed
    }

    /// Functions are called as their messages come, until the test ends.
    fn run(&mut self) {
        for (queue, url) in self.queues.clone() {
            let (sqs, functions) = (self.sqs.clone(), self.functions.clone());
            self.repeat(queue, async move || {
                let Some((handle, event)) = receive(&sqs, &url).await else { return };
                if call(&functions, queue, event).await["batchItemFailures"] == json!([]) {
                    sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap();
                }
            });
        }
        let (sfn, machine, functions) = (self.sfn.clone(), self.machine.clone(), self.functions.clone());
        let mut planned = HashSet::new();
        self.repeat("planner", async move || {
            let Ok(listed) = sfn.list_executions().state_machine_arn(&machine).send().await else { return };
            for execution in listed.executions() {
                if planned.insert(execution.execution_arn.clone()) {
                    let told = sfn.describe_execution().execution_arn(&execution.execution_arn).send().await.unwrap();
                    let mut event: Value = serde_json::from_str(told.input().unwrap()).unwrap();
                    event["action"] = json!("plan");
                    // What it cannot plan it writes into the ledger.
                    let _ = timelake_planner::handle(&functions, event, &StopFlag::default()).await;
                }
            }
        });
    }

    /// On a thread of its own, as a function is a process of its own.
    fn repeat(&mut self, name: &'static str, mut turn: impl AsyncFnMut() + Send + 'static) {
        let (asleep, over, runtime) = (self.asleep.clone(), self.over.clone(), Handle::current());
        self.threads.push(std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(POLL);
                if !asleep.lock().unwrap().contains(name) {
                    runtime.block_on(turn());
                }
            }
        }));
    }

    pub fn sleeps(&self, functions: &[&'static str]) {
        *self.asleep.lock().unwrap() = functions.iter().copied().collect();
    }

    /// A unit is given up, as after five deliveries.
    pub async fn give_up_a_unit(&self) {
        let url = &self.queues[0].1;
        for _ in 0..200 {
            if let Some((handle, event)) = receive(&self.sqs, url).await {
                self.sqs.delete_message().queue_url(url).receipt_handle(handle).send().await.unwrap();
                let answer = timelake_sweeper::handle(&self.functions, event, &StopFlag::default()).await.unwrap();
                assert_eq!(answer["batchItemFailures"], json!([]));
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("no unit came");
    }

    pub async fn redefine(&self, machine: &str) {
        self.sfn.update_state_machine().state_machine_arn(&self.machine).definition(machine).send().await.unwrap();
    }

    pub async fn executions(&self) -> Vec<String> {
        let listed = self.sfn.list_executions().state_machine_arn(&self.machine).send().await.unwrap();
        let mut names: Vec<String> = listed.executions().iter().map(|e| e.name.clone()).collect();
        names.sort();
        names
    }

    /// All that a command could change, by name: items of the ledger, objects, tables of Glue, messages, executions.
    /// Functions must sleep.
    pub async fn contents(&self) -> BTreeMap<String, String> {
        let services = self.emulated.services(self.emulated.emulator.endpoint()).await;
        let mut found = BTreeMap::from([("executions".to_string(), self.executions().await.join(" "))]);
        let items = services.dynamodb().scan().table_name(ledger::TABLE).consistent_read(true).send().await.unwrap();
        assert!(items.last_evaluated_key.is_none(), "more than a page");
        for item in items.items() {
            found.insert(format!("item {:?} {:?}", item["pk"], item["sk"]), format!("{:?}", item.iter().collect::<BTreeMap<_, _>>()));
        }
        for bucket in [ledger::BUCKET, "exports"] {
            for object in self.emulated.objects().list(&format!("s3://{bucket}/")).await.unwrap() {
                found.insert(object.uri, format!("{} {}", object.fingerprint, object.modified.0));
            }
        }
        for table in services.glue().get_tables().database_name("iot").send().await.unwrap().table_list() {
            let location = table.parameters.as_ref().and_then(|p| p.get("metadata_location"));
            found.insert(format!("table {}", table.name), format!("{:?} {location:?}", table.version_id));
        }
        for (name, url) in &self.queues {
            let counts = [QueueAttributeName::ApproximateNumberOfMessages, QueueAttributeName::ApproximateNumberOfMessagesNotVisible];
            let asked = self.sqs.get_queue_attributes().queue_url(url).set_attribute_names(Some(counts.to_vec()));
            let told = asked.send().await.unwrap().attributes.unwrap();
            found.insert(format!("queue {name}"), counts.map(|count| told[&count].clone()).join(" "));
        }
        found
    }

    /// The command, to its end.
    pub fn timelake(&self, words: &str) -> Outcome {
        let words = timelake_tests::split_words(words);
        tokio::task::block_in_place(|| self.lab.timelake(&words))
    }
    pub fn json(&self, words: &str) -> Value {
        self.timelake(&format!("{words} --json")).success().json()
    }
    pub fn create_table(&self) {
        self.timelake(
            "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double --time-column ts --series-key device_id --partition day(ts)",
        )
        .success();
    }
    /// So many days, each a file of text, each with 24 readings.
    pub fn put_source(&self, days: u32) {
        for day in 1..=days {
            let rows: String = (0..24).map(|hour| format!("2024-03-{day:02}T{hour:02}:00:00Z,d1,{hour}.5\n")).collect();
            self.emulated.emulator.put_text("exports", &format!("plant/{day:02}.csv"), &format!("ts,device_id,value\n{rows}"));
        }
    }
    /// Rows of the table's head.
    pub fn rows(&self) -> Value {
        let tables = self.json("table list")["tables"].clone();
        tables.as_array().unwrap().iter().find(|t| t["name"] == "iot.sensor").unwrap()["rows"].clone()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // While they end they need the emulator and the runtime.
        for thread in self.threads.drain(..) {
            let _ = tokio::task::block_in_place(|| thread.join());
        }
    }
}

/// A folder to run the command in. What the section says needs nothing of the environment but credentials.
fn lab(emulator: &Emulator) -> Lab {
    let lab = Lab::new().on_s3("", &emulator.endpoint());
    lab.with_variables(&[("TIMELAKE_LAKE", "aws:plant"), ("AWS_REGION", "")])
}

async fn receive(sqs: &aws_sdk_sqs::Client, url: &str) -> Option<(String, Value)> {
    let got = sqs.receive_message().queue_url(url).max_number_of_messages(1).send().await.ok()?;
    let message = got.messages().first()?;
    let handle = message.receipt_handle.clone()?;
    let record = json!({
        "messageId": message.message_id, "receiptHandle": handle, "body": message.body, "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {}, "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:q", "awsRegion": REGION,
    });
    Some((handle, json!({ "Records": [record] })))
}

async fn call(functions: &Ports, queue: &str, event: Value) -> Value {
    let stop = StopFlag::default();
    if queue == "land-close" {
        return timelake_planner::handle(functions, event, &stop).await.unwrap();
    }
    let event = serde_json::from_value(event).unwrap();
    let answer = match queue {
        "work" => timelake_writer::handle(functions, event, &stop).await,
        "close" => timelake_finalizer::handle(functions, event, &stop).await,
        _ => timelake_refresher::handle(functions, event, &stop).await,
    };
    serde_json::to_value(answer).unwrap()
}
