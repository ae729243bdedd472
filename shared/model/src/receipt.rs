//! What a finished attempt at a unit produced. The finalizer works from receipts alone.

use crate::counts::Counts;
use crate::error::Error;
use crate::ids::AttemptId;
use crate::land::LandReceipt;
use crate::refresh::RefreshReceipt;
use crate::time::TimestampUs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a finished attempt produced, whatever the phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receipt {
    Write(UnitReceipt),
    Land(LandReceipt),
    Refresh(RefreshReceipt),
}

impl Receipt {
    /// Unit, round and attempt.
    pub fn of(&self) -> (u32, u32, &AttemptId) {
        match self {
            Receipt::Write(r) => (r.unit, r.round, &r.attempt),
            Receipt::Land(r) => (r.unit, r.round, &r.attempt),
            Receipt::Refresh(r) => (r.unit, r.round, &r.attempt),
        }
    }
    /// Rows and bytes of what was written.
    pub fn size(&self) -> (u64, u64) {
        match self {
            Receipt::Write(r) => (r.counts.rows_written, r.files.iter().map(|f| f.bytes).sum()),
            Receipt::Land(r) => (r.rows_in_runs(), r.runs.iter().map(|run| run.file.size).sum()),
            Receipt::Refresh(r) => (r.range.rows, 0),
        }
    }
    pub fn into_written(self) -> Option<UnitReceipt> {
        match self {
            Receipt::Write(receipt) => Some(receipt),
            Receipt::Land(_) | Receipt::Refresh(_) => None,
        }
    }
    pub fn into_landed(self) -> Option<LandReceipt> {
        match self {
            Receipt::Write(_) | Receipt::Refresh(_) => None,
            Receipt::Land(receipt) => Some(receipt),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnitReceipt {
    pub unit: u32,
    pub round: u32,
    pub attempt: AttemptId,
    /// Snapshot whose rows were looked at for keys that exist.
    pub base_snapshot: i64,
    pub counts: Counts,
    pub files: Vec<WrittenFile>,
    /// At most one; none when the unit writes no row.
    pub manifests: Vec<ManifestRef>,
    /// Rows of each read row group that this unit took (wrote, collapsed, lost, or rejected).
    pub taken: Vec<RowGroupRows>,
    /// Rows of each owned row group that no unit takes.
    pub left: Vec<RowGroupRows>,
    /// Bad rows and conflicts, by reason and column; first in source order first.
    pub errors: Vec<RowErrors>,
    /// Rows left out by `--on-bad-row`.
    #[serde(default)]
    pub bad_rows: u64,
    pub warnings: Vec<String>,
    /// Instants of the written rows, both inclusive.
    pub time: Option<(TimestampUs, TimestampUs)>,
    /// Wrapping sum of each column's canonical 64-bit values over the written rows.
    pub column_sums: BTreeMap<String, u64>,
    /// Wrapping sum of the key hashes of the written rows: independent of order.
    pub key_hash: u64,
    /// Written rows by ordinal of the plan's period.
    #[serde(default)]
    pub chunk_rows: BTreeMap<i64, u64>,
    #[serde(default)]
    pub series: SeriesRows,
}

/// How a unit's rows spread over its series: the usual number, and the few series that are far from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesRows {
    /// Series with rows in the unit.
    pub series: u64,
    /// Rows of a series, as many have more as have fewer.
    pub median_rows: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<SeriesOutlier>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesOutlier {
    pub kind: OutlierKind,
    /// Values of the series key.
    pub series: Vec<String>,
    /// Rows the unit took: written, or dropped as duplicate, conflict or existing.
    pub rows: u64,
    pub rows_written: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutlierKind {
    /// Far more rows than the median.
    MoreRows,
    /// Far fewer.
    FewerRows,
    /// A far larger share of its rows was not written than of the unit's.
    MoreDropped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowGroupRows {
    pub object: u32,
    pub row_group: u32,
    pub rows: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    pub path: String,
    pub bytes: u64,
    pub rows: u64,
    pub spec_id: i32,
    /// Partition values in the order of the spec, as Iceberg's human text; `None` = null.
    pub partition: Vec<Option<String>>,
    pub key_hash: u64,
    pub column_sums: BTreeMap<String, u64>,
}

/// Errors with the same reason and column: the first one in source order, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowErrors {
    pub first: Error,
    /// Object index and data row of the first, for ordering over units.
    pub object: u32,
    pub row: u64,
    pub count: u64,
    /// `file:row value` of the first five in source order.
    pub places: Vec<String>,
    /// Object and row of each of `places`, and of each of `first.place.distinct`: they order what several units saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub place_rows: Vec<(u32, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distinct_rows: Vec<(u32, u64)>,
    /// Dropped by the user's policy: told, but no reason to reject.
    #[serde(default)]
    pub skipped: bool,
}

/// A manifest as a few fields: the manifest list entry is made from it without reading the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRef {
    pub path: String,
    pub bytes: i64,
    pub spec_id: i32,
    pub added_files: u32,
    pub added_rows: u64,
    pub added_bytes: u64,
    pub partitions: Vec<FieldSummaryRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldSummaryRef {
    pub contains_null: bool,
    pub contains_nan: Option<bool>,
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
}
