//! What the iceberg crate lacks: schemas and partition specs from text, metrics of data files, manifests written
//! apart from a commit, snapshots on branches, publish onto a moved `main`, what is live in a window of a snapshot,
//! and existing rows of a list of files.
//!
//! Everything works on an `iceberg::table::Table` as it was loaded. Functions that change a table return
//! requirements and updates; the caller commits them through its catalog. Nothing here moves a table by itself.

mod clock;
pub mod commits;
pub mod deletes;
pub mod errors;
mod keys;
pub mod live;
pub mod manifest;
pub mod metrics;
pub mod partition;
pub mod pointer;
pub mod read;
pub mod referenced;
pub mod schema;
pub mod snapshot;
pub mod values;

pub use commits::{Commit, Publish, drop_branch, open_branches, publish, refs, stage};
pub use deletes::{applies, live_rows};
pub use errors::is_missing_file;
pub use keys::{Keys, read_keys};
pub use live::{Difference, FileContent, LiveFile, difference, live_files, partitioned_equality_delete};
pub use manifest::{manifest_file, merge_manifests, read_data_files, write_manifest};
pub use metrics::{MetricsModes, Written, data_file, parquet_schema, writer_schema};
pub use partition::{Partitioner, fields};
pub use read::read_rows;
pub use referenced::referenced;
pub use schema::{columns, sorts_by_contract, with_current_schema};
pub use snapshot::{Added, Append, append_snapshot, empty_append, list_path, manifests_of, version_1_refused};
