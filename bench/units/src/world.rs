//! A job with a stored plan of many units, on AWS as the functions see it. The units have no input: what is measured is
//! what they ask of queues and ledger.

use crate::requests::Requests;
use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsMessage;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use timelake_aws::{Cloud, CloudSettings, DynamoLedger, Services, Settings, SqsQueues};
use timelake_engine::inventory::{self, OpenTable};
use timelake_engine::store::{StoredPlan, store_plan};
use timelake_engine::{Engine, identity, tables};
use timelake_functions::{Mail, Ports, Tally};
use timelake_model::ledger::{JobRecord, Phase, RoundKey, State};
use timelake_model::plan::{PLAN_VERSION, PublishGroup, SeriesSlice};
use timelake_model::time::{MICROS_PER_DAY, Period};
use timelake_model::{BackfillRequest, Error, GroupName, Inventory, JobId, Result, TimestampUs, Window, WorkUnit, WritePlan};

const TABLE: &str = "iot.sensor";
const COLUMNS: &str = "ts:timestamptz,device_id:string,value:double,quality:int";
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

        let create = tables::CreateTable {
            name: TABLE.into(),
            columns: COLUMNS.into(),
            time_column: "ts".into(),
            series_key: vec!["device_id".into()],
            partition: Some("day(ts)".into()),
            ..Default::default()
        };
        tables::create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &create).await?;
        let table = inventory::open_table(&engine, TABLE).await?;
        let job = engine.jobs.put_job(&job(&table, units)).await?;
        let stored = store_plan(&engine, inventory(&table)?, |inventory| plan(inventory, &job, units), &job.job, 1).await?;
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

fn job(table: &OpenTable, units: u32) -> JobRecord {
    JobRecord {
        job: JobId("iot-sensor-1".into()),
        generation: 1,
        table: TABLE.into(),
        table_uuid: table.table.metadata().uuid().to_string(),
        request_hash: "request".into(),
        request: BackfillRequest { table: TABLE.into(), rows: Default::default(), run: Default::default() },
        opened_by: None,
        as_of: TimestampUs(0),
        window: window(units),
        state: State::Planning,
        error: None,
        created: TimestampUs(0),
        updated: TimestampUs(0),
        version: 0,
    }
}

fn inventory(table: &OpenTable) -> Result<Inventory> {
    Ok(Inventory {
        table: inventory::table_state(table, TABLE, TimestampUs(0))?,
        objects: vec![],
        series_sample: vec![],
        row_bytes: 1,
        times: Window::ALL,
        range: Window::ALL,
        retention_start: None,
        warnings: vec![],
        clip_retention: false,
        skipped_chunks: BTreeSet::new(),
        unused_columns: Default::default(),
        landed: None,
    })
}

fn window(units: u32) -> Window {
    Window::new(0, i64::from(units) * MICROS_PER_DAY)
}

/// A unit for each day.
fn plan(inventory: &Inventory, job: &JobRecord, units: u32) -> Result<WritePlan> {
    let day = |unit: u32| Window::new(i64::from(unit) * MICROS_PER_DAY, i64::from(unit + 1) * MICROS_PER_DAY);
    let unit = |unit: u32| WorkUnit {
        index: unit,
        window: day(unit),
        series: SeriesSlice::ALL,
        inputs: vec![],
        owns: vec![],
        estimated_rows: 1,
        layout: None,
    };
    Ok(WritePlan {
        version: PLAN_VERSION,
        job: job.job.clone(),
        generation: 1,
        table_uuid: inventory.table.uuid.clone(),
        inventory_hash: identity::json_hash(inventory)?,
        base_snapshot: inventory.table.snapshot_id,
        schema_id: inventory.table.schema_id,
        spec_id: inventory.table.spec_id,
        sort_order_id: inventory.table.sort_order_id,
        target_file_bytes: inventory.table.target_file_bytes,
        period: Period::Day,
        window: window(units),
        groups: vec![PublishGroup { name: GroupName::all(), window: window(units), units: (0..units).map(unit).collect() }],
        pruned: vec![],
        read_amplification_permille: 1_000,
        row_bytes: 1,
        unit_rows_limit: 1,
    })
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
