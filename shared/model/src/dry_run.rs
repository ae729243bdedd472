//! What `backfill --dry-run` says: what the run would do, and each figure with what it rests on.

use crate::cost::CostEstimate;
use crate::error::Error;
use crate::ids::JobId;
use crate::ledger::State;
use crate::time::{Period, TimestampUs, Window};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The run's own number, as long as source and table stay as they are.
    Exact,
    Estimated,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure<T> {
    pub value: T,
    pub basis: Basis,
}

impl<T> Figure<T> {
    pub fn exact(value: T) -> Figure<T> {
        Figure { value, basis: Basis::Exact }
    }
    pub fn estimated(value: T) -> Figure<T> {
        Figure { value, basis: Basis::Estimated }
    }
    pub fn is_exact(&self) -> bool {
        self.basis == Basis::Exact
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DryRun {
    /// The id that the job would have.
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub table: String,
    /// How the job would stand after the run.
    pub state: State,
    pub already_published: bool,
    /// Rows read of each file; `None`: all.
    pub sample: Option<u64>,
    /// Why the run would end without a published or staged job.
    pub error: Option<Error>,
    /// Half-open, in UTC.
    pub window: Window,
    /// Instants of the rows that would be written, both inclusive.
    pub time_range: Option<Figure<(TimestampUs, TimestampUs)>>,
    pub source: SourceFigures,
    /// The counts of the run manifest, by their names there.
    pub rows: BTreeMap<String, Figure<u64>>,
    /// Of `chunks`.
    pub period: Option<Period>,
    /// In time order.
    pub chunks: Vec<ChunkFigures>,
    /// Existing rows of files that span several chunks: in none of them.
    pub existing_across_chunks: Figure<u64>,
    /// Of the rows that would be written.
    pub columns: Vec<ColumnFigures>,
    /// As they would be stored, in the order of `columns`.
    pub first_rows: Vec<Vec<String>>,
    pub bad_rows: Vec<BadRows>,
    pub overlap: OverlapFigures,
    pub plan: PlanFigures,
    pub written: WrittenFigures,
    pub memory: MemoryFigures,
    pub duration: DurationFigures,
    /// On AWS. `None`: nothing would be done.
    pub cost: Option<CostEstimate>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceFigures {
    pub files: Figure<u64>,
    pub bytes: Figure<u64>,
    pub rows: Figure<u64>,
    /// Rows that were read to say all this.
    pub rows_seen: Figure<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChunkFigures {
    /// `2024-05`
    pub chunk: String,
    pub start: TimestampUs,
    pub written: Figure<u64>,
    /// `None`: the mode does not look.
    pub existing: Option<Figure<u64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnFigures {
    pub column: String,
    #[serde(rename = "type")]
    pub column_type: String,
    /// As texts; `None`: all are NULL (or NaN).
    pub min: Option<Figure<String>>,
    pub max: Option<Figure<String>>,
    pub nulls: Figure<u64>,
}

/// Bad rows of one reason and column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BadRows {
    pub reason: String,
    /// The source's name.
    pub column: Option<String>,
    pub count: Figure<u64>,
    /// `--on-bad-row` leaves them out; else they stop the run.
    pub left_out: bool,
    /// The first in source order: `file:row value`.
    pub places: Vec<String>,
    /// Different values, the first ones: texts in a numeric column.
    pub distinct: Vec<String>,
    /// Of the first.
    pub message: String,
}

/// What of the table lies where the rows would go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OverlapFigures {
    /// Rows whose key the table has. `None`: the mode does not look at keys.
    pub keys: Option<Figure<u64>>,
    /// Of these, with other values than the table's row.
    pub keys_different: Option<Figure<u64>>,
    /// Files of the table with rows in the window, and all their rows. `None`: not looked at, because the run ends before.
    pub files: Option<Figure<u64>>,
    pub rows: Option<Figure<u64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanFigures {
    pub units: Figure<u64>,
    pub unit_rows_limit: Figure<u64>,
    pub read_amplification: Figure<f64>,
    /// The source is read once into sorted temporary files first, of this size.
    pub landed_bytes: Option<Figure<u64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenFigures {
    pub files: Figure<u64>,
    pub partitions: Figure<u64>,
    pub bytes: Figure<u64>,
    pub smallest_file_bytes: Figure<u64>,
    pub largest_file_bytes: Figure<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// What the plan keeps to: `--memory`, or of a function what a unit may take.
    pub limit_bytes: Figure<u64>,
    pub peak_bytes: Option<Figure<u64>>,
}

/// From the time that this dry run took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DurationFigures {
    pub seconds: Figure<f64>,
    pub at_least_seconds: Figure<f64>,
    pub at_most_seconds: Figure<f64>,
    /// Units of the real run that are done at a time.
    pub threads: u64,
}
