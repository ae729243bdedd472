//! The verbs of a backfill, one module per arrow. No AWS, no SQLite, no clock: the world is behind [`ports`].
//!
//! `request → inventory → plan → write → stage → validate → publish`: each verb is one function whose output
//! is the next one's input, and repeating any of them is safe.

pub mod advance;
pub mod boundary;
pub mod cancel;
pub mod dry_run;
pub mod evolution;
pub mod fanin;
pub mod gc;
pub mod hash;
pub mod identity;
pub mod inventory;
pub mod jobs;
pub mod land;
pub mod layouts;
pub mod locks;
pub mod open;
pub mod overlap;
pub mod plan;
pub mod planted;
pub mod ports;
pub mod progress;
pub mod publish;
pub mod refresh;
pub mod report;
pub mod rounds;
pub mod stage;
pub mod store;
pub mod tables;
pub mod tries;
pub mod upkeep;
pub mod validate;
pub mod work;
pub mod write;

use ports::{Clock, JobStore, ObjectStore, TableCatalog, UnitSender};
use std::sync::Arc;
use timelake_source::Sources;

/// The engine's view of the world, built once by an adapter.
#[derive(Clone)]
pub struct Engine {
    pub catalog: Arc<dyn TableCatalog>,
    pub jobs: Arc<dyn JobStore>,
    pub queue: Arc<dyn UnitSender>,
    pub objects: Arc<dyn ObjectStore>,
    /// Where source objects and runs are read from.
    pub sources: Sources,
    pub clock: Arc<dyn Clock>,
    /// Folder (or prefix) of the job files.
    pub jobs_root: String,
}
