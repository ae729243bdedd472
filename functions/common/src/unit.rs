//! Messages of units: one attempt each, and the word that a round is over.

use crate::{Ports, decode};
use aws_lambda_events::event::sqs::SqsMessage;
use timelake_engine::fanin;
use timelake_engine::progress::StopFlag;
use timelake_engine::work::{Attempted, Attempts, Workers, attempt};
use timelake_model::ledger::{Phase, UnitMessage};
use timelake_model::{Error, Reason, Result};
use tokio::runtime::Handle;

/// How a function works off the units of a phase.
pub type Phases = for<'a> fn(&'a Ports, &'a Workers<'a>, Phase) -> Box<dyn Attempts + 'a>;

/// Makes one attempt at the unit of a message. An error: the message is to come again.
pub async fn work_off(ports: &Ports, message: &SqsMessage, stop: &StopFlag, phases: Phases) -> Result<()> {
    let unit: UnitMessage = decode(message)?;
    let (engine, key) = (&ports.engine, &unit.key);
    if let Some(job) = engine.jobs.job(&key.job).await?.filter(|job| job.generation == key.generation) {
        let idle = || Ok(());
        let workers = Workers::new(engine, &job, &ports.tally, stop, &idle);
        let runtime = Handle::current();
        // The message is held for longer than the function may run; what can be lost is the unit itself.
        let keep = || runtime.block_on(fanin::is_open(engine, key));
        let phase = phases(ports, &workers, key.phase);
        let (generation, group, round) = (key.generation, &key.group, key.round);
        let span = tracing::info_span!("unit", job = %key.job, generation, phase = %key.phase, group = %group, round, unit = unit.unit);
        let _entered = span.enter();
        match tokio::task::block_in_place(|| attempt(&workers, phase.as_ref(), &unit, deliveries(message), &keep, &runtime))? {
            Attempted::Ended => ports.tally.unit(),
            Attempted::Stale | Attempted::Lost => {}
            Attempted::Again(pause) => {
                if let Err(error) = ports.mail.delay(message, pause).await {
                    tracing::warn!(kind = %error.kind, "the pause of a message cannot be set");
                }
                return Err(Error::unavailable(Reason::StorageUnavailable, "a fault that may pass"));
            }
            Attempted::Stopped(error) => return Err(error),
        }
    }
    // Also after a message that says nothing new: whoever ended the last unit may have died before it could say so.
    fanin::close_if_last(engine, ports.signals.as_ref(), key).await
}

/// Deliveries of a message so far, this one included.
fn deliveries(message: &SqsMessage) -> u32 {
    message.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok()).unwrap_or(1)
}
