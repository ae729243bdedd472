//! The writer: lands splits and writes units, one message at a time.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use std::collections::BTreeSet;
use timelake_engine::inventory::{self, Effort};
use timelake_engine::plan::PlanLimits;
use timelake_engine::progress::StopFlag;
use timelake_engine::work::{Attempted, Attempts, Landing, Workers, Writing, attempt};
use timelake_engine::{fanin, store};
use timelake_functions::{Cloud, Unwatched, again, batch, decode, deliveries};
use timelake_model::ledger::{JobRecord, Phase, UnitMessage};
use timelake_model::{Error, Reason, Result};
use tokio::runtime::Handle;

pub async fn handle(cloud: &Cloud, event: SqsEvent, stop: &StopFlag) -> SqsBatchResponse {
    batch(event, async |message| take(cloud, message, stop).await).await
}

async fn take(cloud: &Cloud, message: &SqsMessage, stop: &StopFlag) -> Result<()> {
    let unit: UnitMessage = decode(message)?;
    let engine = &cloud.engine;
    let job = engine.jobs.job(&unit.key.job).await?.filter(|job| job.generation == unit.key.generation);
    if let Some(job) = job {
        match write(cloud, &job, &unit, deliveries(message), stop).await? {
            Attempted::Ended | Attempted::Stale | Attempted::Lost => {}
            Attempted::Again(pause) => {
                return Err(again(cloud, message, pause).await);
            }
            Attempted::Stopped(error) => return Err(error),
        }
    }
    // Also after a message that says nothing new: whoever ended the last unit may have died before it could say so.
    fanin::close_if_last(engine, cloud.signals.as_ref(), &unit.key).await
}

async fn write(cloud: &Cloud, job: &JobRecord, unit: &UnitMessage, deliveries: u32, stop: &StopFlag) -> Result<Attempted> {
    let engine = &cloud.engine;
    // Units are sized for this memory by the plan.
    let limits = PlanLimits::new(cloud.memory_bytes, 1);
    let check_stop = || stop.check();
    let effort = Effort { limits, sources: &engine.sources, runs_folder: "", check_stop: &check_stop };
    let idle = || Ok(());
    let workers = Workers::new(engine, job, &Unwatched, stop, &idle);
    let table = inventory::open_table(engine, &job.table).await?;
    let spec = inventory::spec(&job.request.rows, &table)?;
    let gone = || Error::corrupt(Reason::LedgerDamaged, format!("the plan of job {} is gone", job.job));
    if unit.key.phase == Phase::Land {
        let Some(plan) = store::load_land_plan(engine, &job.job, job.generation).await? else { return Err(gone()) };
        let bound = tokio::task::block_in_place(|| inventory::reopen(&plan.inventory, Some(&BTreeSet::from([unit.unit])), &spec, &effort))?;
        let landing = Landing::new(&workers, &plan, &spec, &bound, cloud.limits().buffer_bytes() as usize, 0);
        return made(&workers, &landing, unit, deliveries);
    }
    let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? else { return Err(gone()) };
    let inputs = stored.plan.group(&unit.key.group).into_iter().flat_map(|g| &g.units).find(|u| u.index == unit.unit);
    let objects: BTreeSet<u32> = inputs.into_iter().flat_map(|u| u.inputs.iter().map(|i| i.object)).collect();
    let spec = match stored.inventory.landed {
        Some(_) => inventory::run_spec(&stored.inventory)?,
        None => spec,
    };
    let bound = tokio::task::block_in_place(|| inventory::reopen(&stored.inventory, Some(&objects), &spec, &effort))?;
    let writing = Writing::new(&workers, &stored, &spec, &bound);
    made(&workers, &writing, unit, deliveries)
}

fn made(workers: &Workers, phase: &dyn Attempts, unit: &UnitMessage, deliveries: u32) -> Result<Attempted> {
    let runtime = Handle::current();
    // The message is held for longer than the function may run; what can be lost is the unit itself.
    let keep = || runtime.block_on(fanin::is_open(workers.engine, &unit.key));
    tokio::task::block_in_place(|| attempt(workers, phase, unit, deliveries, &keep, &runtime))
}
