//! The run manifest: what `backfill --json`, `report --json` and `jobs/<job>/manifest.json` say.

use crate::counts::Counts;
use crate::error::Error;
use crate::ids::JobId;
use crate::ledger::State;
use crate::receipt::{RowErrors, SeriesOutlier};
use crate::time::{Period, TimestampUs, Window};
use crate::verdict::Check;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub table: String,
    pub state: State,
    /// This run moved `main`.
    pub published: bool,
    /// The job was already published before this run, which changed nothing.
    pub already_published: bool,
    #[serde(flatten)]
    pub counts: Counts,
    /// Column to the files that lack it.
    pub files_missing_column: BTreeMap<String, Vec<String>>,
    /// Under `--ambiguous infer`: the hours that the clock repeats, and for how many series their order told the passes apart.
    #[serde(default)]
    pub repeated_hours: Vec<RepeatedHour>,
    /// Changed ranges whose rollups are stale.
    pub rollup_ranges: Vec<Window>,
    /// Rows by chunk, in time order: chunks with existing or written rows.
    #[serde(default)]
    pub chunks: Vec<ChunkRows>,
    /// Rows of existing files that span chunks: in none of `chunks`.
    #[serde(default)]
    pub existing_across_chunks: u64,
    /// Series that stand out among those of the same unit, the farthest first.
    #[serde(default)]
    pub series_outliers: Vec<SeriesSummary>,
    pub warnings: Vec<String>,
    pub window: Window,
    /// Instants of the written rows, both inclusive.
    pub time_range: Option<(TimestampUs, TimestampUs)>,
    pub as_of: TimestampUs,
    pub source: SourceSummary,
    pub written: WrittenSummary,
    pub plan: PlanSummary,
    pub groups: Vec<GroupSummary>,
    pub checks: Vec<Check>,
    /// Bad rows by reason and column.
    pub errors: Vec<RowErrors>,
    /// Wrapping sum of each column's canonical 64-bit values, as text (JSON numbers end at 2^53).
    pub column_sums: BTreeMap<String, String>,
    pub key_hash: String,
    /// Why the job stands still.
    pub error: Option<Error>,
    /// Where the time of this run went.
    pub steps: Vec<StepTime>,
    pub peak_memory_bytes: Option<u64>,
}

/// A calendar period of the table's partitions (a month where there are none).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRows {
    /// `2024-05`
    pub chunk: String,
    pub start: TimestampUs,
    /// Rows of the files in the job's window when it last looked; `None`: it does not look (`append`).
    pub existing: Option<u64>,
    pub written: u64,
}

/// A series where it is farthest from the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesSummary {
    #[serde(flatten)]
    pub outlier: SeriesOutlier,
    /// Time range of the unit.
    pub window: Window,
    /// Rows of the other series there.
    pub median_rows: u64,
    /// Units in which it stands out like this.
    pub units: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatedHour {
    /// First local time that the clock shows twice, `2024-10-27T02:00:00`.
    pub local: String,
    pub zone: String,
    pub series: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSummary {
    pub files: u64,
    pub bytes: u64,
    /// Rows of the files. A job that is rejected while its source is landed counts in `rows_read` only what ended there.
    #[serde(default)]
    pub rows: u64,
    pub row_groups: u64,
    pub row_groups_pruned: u64,
    /// Of the runs, when the source was landed first.
    #[serde(default)]
    pub landed_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenSummary {
    pub files: u64,
    pub bytes: u64,
    pub partitions: u64,
    pub smallest_file_bytes: u64,
    pub largest_file_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    pub units: u64,
    pub hash: String,
    pub base_snapshot: Option<i64>,
    /// Rows decoded by units over rows in the source; 1.0 = every row group is read once.
    pub read_amplification: f64,
    pub unit_rows_limit: u64,
    /// Of the chunks.
    #[serde(default)]
    pub period: Option<Period>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    pub group: String,
    pub state: State,
    pub round: u32,
    pub units: u64,
    pub units_done: u64,
    pub units_failed: u64,
    pub rederived: u32,
    pub branch: Option<String>,
    pub published_snapshot: Option<i64>,
    pub tag: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    pub step: String,
    pub seconds: f64,
}
