//! What a run tells while it works, and how it is asked to stop.

use arrow::array::RecordBatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use timelake_model::{Error, Reason, Result};

/// The arrows of the road that a user waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Inventory,
    Land,
    Plan,
    Write,
    Stage,
    Validate,
    Publish,
    Refresh,
}

impl Step {
    pub const ALL: [Step; 8] =
        [Step::Inventory, Step::Land, Step::Plan, Step::Write, Step::Stage, Step::Validate, Step::Publish, Step::Refresh];
    pub fn name(self) -> &'static str {
        match self {
            Step::Inventory => "inventory",
            Step::Land => "land",
            Step::Plan => "plan",
            Step::Write => "write",
            Step::Stage => "stage",
            Step::Validate => "validate",
            Step::Publish => "publish",
            Step::Refresh => "refresh",
        }
    }
}

/// Called from any thread; must be quick.
pub trait Progress: Send + Sync {
    /// A step starts. `rows`: what it will go through, when known (for rate and ETA).
    fn begin(&self, step: Step, rows: Option<u64>);
    /// Rows gone through since the last call.
    fn advance(&self, step: Step, rows: u64);
    /// How many rows the step will go through, as far as that can be told by now.
    fn foresee(&self, _step: Step, _rows: u64) {}
    fn end(&self, step: Step);
    /// Rows as they go into the table, unit by unit and in the order of its files.
    fn stored(&self, _unit: u32, _rows: &RecordBatch) {}
    /// Something a user should read: a decision, a retry, a warning.
    fn note(&self, text: &str);
}

/// Says nothing.
pub struct Silent;
impl Progress for Silent {
    fn begin(&self, _: Step, _: Option<u64>) {}
    fn advance(&self, _: Step, _: u64) {}
    fn end(&self, _: Step) {}
    fn note(&self, _: &str) {}
}

/// Set by Ctrl-C or SIGTERM; long loops ask it once per batch.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
    /// An `interrupted` error once set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(
                Error::unavailable(Reason::Interrupted, "stopped as asked; what is done is kept").hint("run the same command to go on")
            );
        }
        Ok(())
    }
}
