//! A job with a stored plan of many units, on AWS as the functions see it. The units have no input: what is measured is
//! what they ask of queues and ledger.

use crate::requests::Requests;
use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsMessage;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use timelake_aws::{Cloud, CloudSettings, DynamoLedger, Services, Settings, SqsQueues};
use timelake_bench::{Days, TABLE};
use timelake_engine::Engine;
use timelake_engine::inventory;
use timelake_engine::store::{StoredPlan, store_plan};
use timelake_functions::{Mail, Ports, Tally};
use timelake_model::ledger::{JobRecord, Phase, RoundKey};
use timelake_model::{Error, GroupName, Result};

const MEMORY_BYTES: u64 = 1 << 30;

pub struct World {
    pub ports: Ports,
    pub queues: Arc<SqsQueues>,
    /// As the functions' event sources use it.
    pub sqs: aws_sdk_sqs::Client,
    pub work_url: String,
    pub close_url: String,
    pub requests: Requests,
    pub job: JobRecord,
    pub stored: StoredPlan,
}

impl World {
    /// The environment says where everything is, as it does to functions.
    pub async fn open(units: u32) -> Result<World> {
        let cloud = Cloud::open(CloudSettings::from_env()?).await?;
        let (requests, services) = (Requests::default(), Services::connect(&Settings::default()).await?);
        let dynamodb = services.dynamodb().config().to_builder().interceptor(requests.clone()).build();
        let sqs = services.sqs().config().to_builder().interceptor(requests.clone()).build();
        let (dynamodb, sqs) = (aws_sdk_dynamodb::Client::from_conf(dynamodb), aws_sdk_sqs::Client::from_conf(sqs));
        let settings = &cloud.settings;
        let ledger = DynamoLedger::new(dynamodb, &settings.ledger_table, Arc::new(cloud.objects.clone()), &settings.jobs);
        let queues = Arc::new(SqsQueues::new(sqs.clone(), settings.queues.clone()));
        let engine = Engine { jobs: Arc::new(ledger), queue: queues.clone(), ..cloud.engine() };

        timelake_bench::create_table(&engine, "day(ts)").await?;
        let table = inventory::open_table(&engine, TABLE).await?;
        let job = engine.jobs.put_job(&timelake_bench::job(table.table.metadata().uuid().to_string())).await?;
        let days = Days { first: 0, units, rows_per_unit: 1 };
        let stored = store_plan(&engine, timelake_bench::inventory(&table)?, |inventory| days.plan(inventory, &job), &job.job, 1).await?;
        requests.take(); // what was asked so far is not measured

        let url = |url: &Option<String>| url.clone().ok_or_else(|| Error::internal("the address of a queue is not set"));
        let (work_url, close_url) = (url(&settings.queues.work)?, url(&settings.queues.close)?);
        let (signals, mail, tally) = (queues.clone(), Arc::new(NoMail), Tally::default());
        let ports = Ports { engine, signals, mail, tally, writer_memory_bytes: MEMORY_BYTES, memory_bytes: MEMORY_BYTES };
        Ok(World { ports, queues, sqs, work_url, close_url, requests, job, stored })
    }

    /// The only round.
    pub fn round(&self) -> RoundKey {
        RoundKey { job: self.job.job.clone(), generation: 1, phase: Phase::Write, group: GroupName::all(), round: 0 }
    }
}

/// Nothing here fails in a way that would put a message off.
struct NoMail;

#[async_trait]
impl Mail for NoMail {
    async fn delay(&self, _: &SqsMessage, _: Duration) -> Result<()> {
        Ok(())
    }
    async fn idle(&self) -> Result<bool> {
        Ok(false)
    }
}

/// Messages as an event source hands them to its function.
pub fn event(messages: &[aws_sdk_sqs::types::Message]) -> aws_lambda_events::event::sqs::SqsEvent {
    let records = messages.iter().map(|message| {
        let mut record = SqsMessage::default();
        record.message_id = message.message_id.clone();
        record.receipt_handle = message.receipt_handle.clone();
        record.body = message.body.clone();
        let attributes = message.attributes.iter().flatten();
        record.attributes = attributes.map(|(name, value)| (name.as_str().to_string(), value.clone())).collect::<HashMap<_, _>>();
        record
    });
    let mut event = aws_lambda_events::event::sqs::SqsEvent::default();
    event.records = records.collect();
    event
}
