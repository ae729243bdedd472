//! The refresher: tells the feed of a table what a publish changed, one chunk per message.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use timelake_engine::fanin;
use timelake_engine::progress::StopFlag;
use timelake_engine::refresh::Refreshing;
use timelake_engine::work::{Attempted, Workers, attempt};
use timelake_functions::{Cloud, Unwatched, again, batch, decode, deliveries};
use timelake_model::Result;
use timelake_model::ledger::UnitMessage;
use tokio::runtime::Handle;

pub async fn handle(cloud: &Cloud, event: SqsEvent, stop: &StopFlag) -> SqsBatchResponse {
    batch(event, async |message| take(cloud, message, stop).await).await
}

async fn take(cloud: &Cloud, message: &SqsMessage, stop: &StopFlag) -> Result<()> {
    let unit: UnitMessage = decode(message)?;
    let engine = &cloud.engine;
    if let Some(job) = engine.jobs.job(&unit.key.job).await?.filter(|job| job.generation == unit.key.generation) {
        let idle = || Ok(());
        let workers = Workers::new(engine, &job, &Unwatched, stop, &idle);
        let (phase, runtime) = (Refreshing { workers: &workers }, Handle::current());
        let made = tokio::task::block_in_place(|| attempt(&workers, &phase, &unit, deliveries(message), &|| Ok(true), &runtime))?;
        match made {
            Attempted::Ended | Attempted::Stale | Attempted::Lost => {}
            Attempted::Again(pause) => return Err(again(cloud, message, pause).await),
            Attempted::Stopped(error) => return Err(error),
        }
    }
    fanin::close_if_last(engine, cloud.signals.as_ref(), &unit.key).await
}
