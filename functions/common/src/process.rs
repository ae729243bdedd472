//! The process of a function: opens AWS once, then answers calls until Lambda ends it.

use crate::telemetry::{Call, Tally, Telemetry};
use crate::{Mail, Ports};
use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsMessage;
use lambda_runtime::{Diagnostic, LambdaEvent, run, service_fn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use timelake_aws::{Cloud, CloudSettings, SqsQueues};
use timelake_engine::progress::StopFlag;
use timelake_model::{Error, Result};
use tracing::Instrument;

/// Time that a function keeps for putting its work away before it would be cut off.
const LAST_SECONDS: Duration = Duration::from_secs(20);

/// Answers the calls of the function `name`.
pub async fn serve<E, A>(name: &'static str, handle: impl AsyncFn(&Ports, E, &StopFlag) -> Result<A>) -> Result<(), lambda_runtime::Error>
where
    E: DeserializeOwned,
    A: Serialize,
{
    let settings = CloudSettings::from_env().map_err(Failure)?;
    let telemetry = Telemetry::start(name, &settings.name);
    let ports = open(settings).await.map_err(Failure)?;
    let (ports, handle, telemetry) = (&ports, &handle, &telemetry);
    run(service_fn(|event: LambdaEvent<E>| async move {
        let LambdaEvent { payload, context } = event;
        let deadline = stop_before(ports, context.deadline);
        let call = Call::begin(&context.request_id);
        // Boxed: futures of a whole job's road, one in another, are deeper than the compiler looks.
        let answer = Box::pin(handle(ports, payload, &deadline.flag)).instrument(call.span()).await;
        telemetry.ended(ports.engine.clock.now(), &call, ports.tally.take(), &answer);
        answer.map_err(Failure)
    }))
    .await
}

async fn open(settings: CloudSettings) -> Result<Ports> {
    let cloud = Cloud::open(settings).await?;
    Ok(Ports {
        engine: cloud.engine(),
        signals: cloud.queues.clone(),
        mail: Arc::new(Queues(cloud.queues.clone())),
        tally: Tally::default(),
        writer_memory_bytes: cloud.settings.writer_memory_bytes(),
        memory_bytes: cloud.settings.memory_bytes(),
    })
}

/// The queues that call functions.
struct Queues(Arc<SqsQueues>);

#[async_trait]
impl Mail for Queues {
    async fn delay(&self, message: &SqsMessage, pause: Duration) -> Result<()> {
        match (&message.event_source_arn, &message.receipt_handle) {
            (Some(queue), Some(handle)) => self.0.hide(queue, handle, pause).await,
            _ => Err(Error::internal("a message of no queue")),
        }
    }
    async fn idle(&self) -> Result<bool> {
        Ok(self.0.waiting().await? == 0)
    }
}

/// A flag that goes up shortly before Lambda would cut the function off.
struct Deadline {
    flag: StopFlag,
    timer: tokio::task::JoinHandle<()>,
}

fn stop_before(ports: &Ports, deadline_ms: u64) -> Deadline {
    let now_ms = u64::try_from(ports.engine.clock.now().0 / 1_000).unwrap_or(0);
    let flag = StopFlag::default();
    let stop = flag.clone();
    let timer = tokio::spawn(async move {
        let Some(left) = time_left(now_ms, deadline_ms) else { return };
        tokio::time::sleep(left).await;
        stop.stop();
    });
    Deadline { flag, timer }
}

/// Lambda begins no call that has no time. `cargo lambda watch` does: its deadline is 600,000 ms after 1970, so one that is
/// over when the call begins is none.
fn time_left(now_ms: u64, deadline_ms: u64) -> Option<Duration> {
    let left = deadline_ms.checked_sub(now_ms)?;
    Some(Duration::from_millis(left).saturating_sub(LAST_SECONDS))
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// An error as Lambda tells it to its caller: a state machine decides by the kind whether to try again.
#[derive(Debug)]
struct Failure(Error);

impl From<Failure> for Diagnostic {
    fn from(Failure(error): Failure) -> Diagnostic {
        let text = serde_json::to_string(&error).unwrap_or_else(|_| error.message.clone());
        Diagnostic { error_type: error.kind.to_string(), error_message: text }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_stops_before_the_deadline_and_goes_on_where_there_is_none() {
        let now = 1_700_000_000_000;
        assert_eq!(time_left(now, now + 900_000), Some(Duration::from_secs(880)));
        assert_eq!(time_left(now, now + 5_000), Some(Duration::ZERO));
        assert_eq!(time_left(now, 600_000), None);
    }
}
