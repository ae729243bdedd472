//! What the functions share: the world as they see it, batches of messages, logs.
//!
//! A handler takes [`Cloud`] and an event and never asks where it runs: tests replay events on local ports.

mod batch;

pub use batch::{again, batch, decode, deliveries};

use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsMessage;
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::Engine;
use timelake_engine::plan::PlanLimits;
use timelake_engine::ports::Signals;
use timelake_engine::progress::{Progress, Step, StopFlag};
use timelake_model::Result;

/// Share of a writer's memory that a plan may count on: the rest is the runtime, clients and what the allocator keeps.
const PLANNED_MEMORY_PERCENT: u64 = 70;
/// Time that a function keeps for putting its work away before it would be cut off.
const LAST_SECONDS: Duration = Duration::from_secs(20);

/// Everything a handler works with.
pub struct Cloud {
    pub engine: Engine,
    pub signals: Arc<dyn Signals>,
    pub mail: Arc<dyn Mail>,
    /// Memory of a writer.
    pub writer_memory_bytes: u64,
    /// Memory of this function.
    pub memory_bytes: u64,
}

/// What functions ask of the queues that call them.
#[async_trait]
pub trait Mail: Send + Sync {
    /// The message comes again after so long, not when the queue would send it.
    async fn delay(&self, message: &SqsMessage, pause: Duration) -> Result<()>;
    /// Neither waits a message, nor is one worked on, as far as the queues know.
    async fn idle(&self) -> Result<bool>;
}

impl Cloud {
    /// What the units of a plan are sized for: a function works at one at a time.
    pub fn limits(&self) -> PlanLimits {
        PlanLimits::new(self.writer_memory_bytes * PLANNED_MEMORY_PERCENT / 100, 1)
    }
}

/// A flag that goes up shortly before the function would be cut off: it has so long `left`.
pub fn stop_within(left: Duration) -> StopFlag {
    let stop = StopFlag::default();
    let flag = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(left.saturating_sub(LAST_SECONDS)).await;
        flag.stop();
    });
    stop
}

/// Nobody watches a function; what a person should know goes to the log.
pub struct Unwatched;

impl Progress for Unwatched {
    fn begin(&self, _: Step, _: Option<u64>) {}
    fn advance(&self, _: Step, _: u64) {}
    fn end(&self, _: Step) {}
    fn note(&self, text: &str) {
        tracing::info!("{text}");
    }
}
