//! The embedded lake: a folder with `catalog.db` (Iceberg's tables), `ledger.db` (jobs and the unit queue),
//! `warehouse/` and `jobs/<job>/`.

pub mod catalog;
pub mod clock;
mod dry_run;
mod job_lock;
mod lake;
mod lake_folder;
mod landing;
pub mod ledger;
pub mod objects;
mod presence;
mod queue;
mod recorder;
mod runner;
mod schema;
mod scratch;
mod sqlite;
mod stores;
mod worker;

pub use catalog::SqliteCatalog;
pub use clock::SystemClock;
pub use dry_run::{DryRunOptions, Original, Rehearsed, dry_run};
pub use lake::{Lake, RemoteObjects};
pub use ledger::SqliteLedger;
pub use objects::LocalObjects;
pub use worker::{Worked, WorkerOptions};
