//! The write plan: an immutable list of units in publish groups. All decisions are here; writers make none.

use crate::ids::{GroupName, JobId};
use crate::time::{Period, TimestampUs, Window};
use serde::{Deserialize, Serialize};

pub const PLAN_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritePlan {
    pub version: u32,
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub table_uuid: String,
    /// Of the inventory's JSON: what the plan was made from is what units work from.
    pub inventory_hash: String,
    /// `main` when the plan was made; existing rows are read from it, the branch starts on it.
    pub base_snapshot: i64,
    pub schema_id: i32,
    pub spec_id: i32,
    pub sort_order_id: i32,
    pub target_file_bytes: u64,
    pub period: Period,
    /// What is loaded. The units' time ranges and series slices cover it exactly, without overlap.
    pub window: Window,
    pub groups: Vec<PublishGroup>,
    /// Row groups that no unit reads: wholly outside the window, counted from the footer.
    pub pruned: Vec<PrunedRowGroup>,
    /// Rows in row groups read by units, counted once per unit, over the rows in the source: 1.0 = read once.
    pub read_amplification_permille: u64,
    pub row_bytes: u64,
    /// Rows a unit may hold in memory.
    pub unit_rows_limit: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishGroup {
    pub name: GroupName,
    pub window: Window,
    pub units: Vec<WorkUnit>,
}

/// A time range and a set of series, with its inputs. One queue message, one manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkUnit {
    /// Index in the group, 0-based; the unit's name in the ledger.
    pub index: u32,
    /// Half-open; limits are limits of chunks (or of the window).
    pub window: Window,
    pub series: SeriesSlice,
    /// Row groups to read, by object in source order.
    pub inputs: Vec<UnitInput>,
    /// Row groups whose rows that no unit takes are counted here. Each row group of the plan has one owner.
    pub owns: Vec<UnitInput>,
    pub estimated_rows: u64,
    /// The layout of the table (an index) in which its files are written; `None` = the table's own spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitInput {
    /// Index into the inventory's objects.
    pub object: u32,
    /// Ascending.
    pub row_groups: Vec<u32>,
}

/// Which series of the time range: all, or some partition buckets, or a range, or a range inside a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesSlice {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<BucketSet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<SeriesRange>,
}

/// Partition buckets of one key column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSet {
    pub column: String,
    pub modulus: u32,
    pub buckets: Vec<u32>,
}

/// Half-open range of a key column's text form, compared by bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesRange {
    pub column: String,
    pub from: Option<String>,
    pub to: Option<String>,
}

impl SeriesSlice {
    pub const ALL: SeriesSlice = SeriesSlice { buckets: None, range: None };
    pub fn is_all(&self) -> bool {
        *self == SeriesSlice::ALL
    }
    /// Rows without a series (NULL in the key) belong to exactly one slice of a time range: this one?
    pub fn takes_unkeyed(&self) -> bool {
        self.buckets.as_ref().is_none_or(|b| b.buckets.contains(&0)) && self.range.as_ref().is_none_or(|r| r.from.is_none())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outside {
    Range,
    Retention,
    /// In chunks that the table has rows in, under `--only-missing`.
    SkippedChunk,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedRowGroup {
    pub object: u32,
    pub row_group: u32,
    pub rows: u64,
    pub outside: Outside,
}

impl WritePlan {
    pub fn units(&self) -> impl Iterator<Item = (&PublishGroup, &WorkUnit)> {
        self.groups.iter().flat_map(|g| g.units.iter().map(move |u| (g, u)))
    }
    pub fn group(&self, name: &GroupName) -> Option<&PublishGroup> {
        self.groups.iter().find(|g| g.name == *name)
    }
}

/// Do two ranges, both ends included, have an instant in common? One that is not known may have.
pub fn meet(a: Option<(TimestampUs, TimestampUs)>, b: Option<(TimestampUs, TimestampUs)>) -> bool {
    a.zip(b).is_none_or(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
}

/// Half-open range helper shared by plan and writers: does `[low, high]` (inclusive) touch the window?
pub fn touches(window: &Window, time: Option<(TimestampUs, TimestampUs)>) -> bool {
    time.is_none_or(|(low, high)| low.0 < window.high() && high.0 >= window.low())
}
