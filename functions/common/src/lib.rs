//! What the functions share: the world as they see it, batches of messages, logs.
//!
//! A handler takes [`Ports`] and an event and never asks where it runs: tests replay events on local ports.

mod batch;
mod process;
mod telemetry;
mod unit;

pub use batch::{batch, decode};
pub use process::serve;
pub use telemetry::{Counts, Tally};
pub use unit::{Phases, work_off};

use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsMessage;
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::Engine;
use timelake_engine::plan::PlanLimits;
use timelake_engine::ports::Signals;
use timelake_model::Result;

/// Everything a handler works with.
pub struct Ports {
    pub engine: Engine,
    pub signals: Arc<dyn Signals>,
    pub mail: Arc<dyn Mail>,
    /// What is done in a call.
    pub tally: Tally,
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

impl Ports {
    /// What the units of a plan are sized for.
    pub fn limits(&self) -> PlanLimits {
        PlanLimits::of_functions(self.writer_memory_bytes)
    }
}
