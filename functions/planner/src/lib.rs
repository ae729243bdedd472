//! The planner: takes a request as far as messages in the queue; says how a job stands; goes on with a landed source.
//!
//! Every step is stored once and looked up first, so that a planner that was cut off is simply called again, and two at
//! once end at the same plan.

use aws_lambda_events::event::sqs::SqsEvent;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use timelake_engine::advance::{self, Life};
use timelake_engine::inventory::{self, Effort, OpenTable, Taken};
use timelake_engine::open::{self, Earlier};
use timelake_engine::progress::StopFlag;
use timelake_engine::{fanin, land, layouts, report, store};
use timelake_functions::{Ports, batch, decode};
use timelake_model::ledger::{JobRecord, Phase, State, UnitState};
use timelake_model::messages::{CloseMessage, Signal};
use timelake_model::request::OnBadRow;
use timelake_model::{BackfillRequest, Error, Inventory, JobId, LandPlan, LandReceipt, Reason, Result, SourceObject};

/// Memory for the list of rows that were left out.
const MOST_REJECTED_BYTES: usize = 256 << 20;

/// What the planner is asked for: by the state machine, by hand.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Action {
    Plan {
        request: Box<BackfillRequest>,
        #[serde(default)]
        options: Earlier,
        /// Who asks: asking twice for another load of a published job makes one.
        execution: Option<String>,
    },
    Status {
        job: JobId,
    },
}

/// A job and, once it stands still, its run manifest without the long lists.
#[derive(Debug, Serialize)]
struct Status {
    job: JobId,
    #[serde(rename = "gen")]
    generation: u32,
    state: State,
    report: Option<Value>,
}

/// An action, or close messages of landed sources.
pub async fn handle(ports: &Ports, event: Value, stop: &StopFlag) -> Result<Value> {
    if event.get("Records").is_some() {
        let event: SqsEvent = parsed(event)?;
        return json(
            &batch(&ports.tally, event, async |message| match decode(message)? {
                Signal::Close(close) => landed(ports, &close, stop).await,
                Signal::Validate(_) => Ok(()), // is the finalizer's
            })
            .await,
        );
    }
    match parsed(event)? {
        Action::Plan { request, options, execution } => {
            let job = plan(ports, &request, &Earlier { execution, ..options }, stop).await?;
            json(&status(ports, &job).await?)
        }
        Action::Status { job } => json(&status(ports, &job).await?),
    }
}

async fn plan(ports: &Ports, request: &BackfillRequest, options: &Earlier, stop: &StopFlag) -> Result<JobId> {
    // There is no current folder: sources are addresses.
    let opened = open::open(&ports.engine, request, options, Path::new("/")).await?;
    if !opened.already_published {
        go_on(ports, &opened.job, &opened.table, &opened.objects, stop).await?;
    }
    Ok(opened.job.job)
}

/// From wherever the job's planning stands.
async fn go_on(ports: &Ports, job: &JobRecord, table: &OpenTable, objects: &[SourceObject], stop: &StopFlag) -> Result<()> {
    let engine = &ports.engine;
    if let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? {
        return opened(ports, job, &stored).await;
    }
    let outcome = match store::load_land_plan(engine, &job.job, job.generation).await? {
        Some(plan) => begin_landing(ports, job, plan, stop).await,
        None => inventory(ports, job, table, objects, stop).await,
    };
    if let Err(error) = &outcome {
        advance::give_up_planning(engine, job, error).await?;
    }
    outcome
}

async fn inventory(ports: &Ports, job: &JobRecord, table: &OpenTable, objects: &[SourceObject], stop: &StopFlag) -> Result<()> {
    let engine = &ports.engine;
    let runs_folder = store::runs_uri(engine, &job.job, job.generation);
    let check_stop = || stop.check();
    let effort =
        Effort { limits: ports.limits(), threads: 1, sources: &engine.sources, runs_folder: &runs_folder, check_stop: &check_stop };
    let table = layouts::with_specs(engine, table).await?;
    let spec = inventory::spec(&job.request.rows, &table)?;
    let taken = inventory::take(&table, job, objects, &spec, &effort).await?;
    match taken {
        Taken::Direct { inventory, .. } => store_plan(ports, job, *inventory).await,
        Taken::ToLand { plan, .. } => begin_landing(ports, job, *plan, stop).await,
    }
}

async fn begin_landing(ports: &Ports, job: &JobRecord, plan: LandPlan, stop: &StopFlag) -> Result<()> {
    let (plan, pending) = land::begin(&ports.engine, job, plan).await?;
    if pending.is_empty() { of_runs(ports, job, &plan, stop).await } else { Ok(()) }
}

/// The last split of a job is landed.
async fn landed(ports: &Ports, message: &CloseMessage, stop: &StopFlag) -> Result<()> {
    let (engine, key) = (&ports.engine, &message.key);
    let job = engine.jobs.job(&key.job).await?;
    let Some(job) = job.filter(|j| key.phase == Phase::Land && j.generation == key.generation && !j.state.is_final()) else {
        return Ok(());
    };
    let Some(plan) = store::load_land_plan(engine, &job.job, job.generation).await? else { return Ok(()) };
    if land::units(engine, &job).await?.iter().any(|u| u.state == UnitState::Pending) {
        return Ok(()); // whoever lands the last one says so again
    }
    let outcome = of_runs(ports, &job, &plan, stop).await;
    match outcome {
        // Told by the job; the message has done its work.
        Err(error) if !advance::may_pass(&error) => advance::give_up_planning(engine, &job, &error).await,
        outcome => outcome,
    }
}

async fn of_runs(ports: &Ports, job: &JobRecord, plan: &LandPlan, stop: &StopFlag) -> Result<()> {
    let engine = &ports.engine;
    if let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? {
        return opened(ports, job, &stored).await;
    }
    let receipts = land::receipts(engine, job, plan).await?;
    list_rejected(ports, job, &receipts).await?;
    if !land::judge(engine, job, &receipts).await? {
        return Ok(());
    }
    let check_stop = || stop.check();
    let effort =
        Effort { limits: ports.limits(), threads: 1, sources: &engine.sources, runs_folder: &plan.folder, check_stop: &check_stop };
    let table = layouts::with_specs(engine, &inventory::open_table(engine, &job.table).await?).await?;
    let (found, _) = inventory::of_runs(&table, job, plan, &receipts, &effort).await?;
    store_plan(ports, job, found).await
}

async fn store_plan(ports: &Ports, job: &JobRecord, found: Inventory) -> Result<()> {
    let stored = advance::store_plan(&ports.engine, job, found, ports.limits(), None).await?;
    opened(ports, job, &stored).await
}

/// Joins the splits' lists of rows that were left out, in source order.
async fn list_rejected(ports: &Ports, job: &JobRecord, receipts: &[LandReceipt]) -> Result<()> {
    if job.request.rows.on_bad_row != OnBadRow::Quarantine {
        return Ok(());
    }
    let objects = &ports.engine.objects;
    let mut all = Vec::new();
    for part in receipts.iter().filter_map(|r| r.rejected.as_ref()) {
        let bytes = objects.read(part).await?;
        if all.len() + bytes.len() > MOST_REJECTED_BYTES {
            return Err(Error::invalid(Reason::TooManyBadRows, "the rows that were left out are more than can be listed")
                .hint("mend the source, or set a limit: --max-bad-rows"));
        }
        all.extend_from_slice(&bytes);
    }
    objects.put(&store::rejected_uri(&ports.engine, &job.job), all.into()).await
}

/// Branches, units and messages are there; a group without pending units is closed by hand.
async fn opened(ports: &Ports, job: &JobRecord, stored: &store::StoredPlan) -> Result<()> {
    let engine = &ports.engine;
    Life { engine, job, stored, resume: false, stage_only: job.request.run.stage_only }.open().await?;
    fanin::nudge(engine, ports.signals.as_ref(), job, false).await
}

async fn status(ports: &Ports, job: &JobId) -> Result<Status> {
    let engine = &ports.engine;
    let job = engine.jobs.job(job).await?.ok_or_else(|| Error::not_found(Reason::JobNotFound, format!("there is no job {job}")))?;
    let stands = job.state.is_final() || matches!(job.state, State::Hold | State::Staged);
    let report = match stands {
        true => Some(short(json(&report::manifest(engine, &job).await?)?)),
        false => None,
    };
    Ok(Status { job: job.job, generation: job.generation, state: job.state, report })
}

/// A state machine's answer has room for 256 KB: lists that grow with the job are left to `report`.
fn short(mut manifest: Value) -> Value {
    const LONG: [&str; 7] = ["chunks", "series_outliers", "rollup_ranges", "column_sums", "errors", "files_missing_column", "warnings"];
    /// Entries of a list that are told.
    const MOST: usize = 20;
    if let Some(object) = manifest.as_object_mut() {
        for name in LONG {
            match object.get_mut(name) {
                Some(Value::Array(list)) => list.truncate(MOST),
                Some(Value::Object(map)) if map.len() > MOST => map.clear(),
                _ => {}
            }
        }
    }
    manifest
}

fn parsed<T: serde::de::DeserializeOwned>(event: Value) -> Result<T> {
    serde_json::from_value(event).map_err(|e| {
        Error::invalid(Reason::InvalidOption, format!("this is no event of the planner: {e}"))
            .hint(r#"send {"action": "plan", "request": {...}} as timelake backfill --save-request writes it, or {"action": "status", "job": "..."}"#)
    })
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::internal(e.to_string()))
}
