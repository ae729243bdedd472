//! The embedded lake: a folder with `catalog.db` (Iceberg's tables), `ledger.db` (jobs and the unit queue),
//! `warehouse/` and `jobs/<job>/`.

mod lake;

pub use lake::{BackfillOptions, JobStatus, JobSummary, Lake, UnitStatus};
