//! What was found before anything is decided: the source's objects and the table's state.

use crate::contract::TableContract;
use crate::land::Landed;
use crate::layout::Layout;
use crate::time::{Period, TimestampUs, Window};
use crate::types::Column;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A file of the source, pinned by size and fingerprint: a later read of other bytes is `source_changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceObject {
    /// Absolute path or URI.
    pub uri: String,
    /// As typed or as matched: what messages and reports show.
    pub shown: String,
    pub size: u64,
    /// mtime in nanoseconds, or an etag.
    pub fingerprint: String,
    /// Columns from `name=value` folders, decoded; `None` is the default-partition word (NULL).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hive: BTreeMap<String, Option<String>>,
}

/// One row group (or one landed run's) as the plan sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowGroupInfo {
    pub rows: u64,
    /// Smallest and largest instant, both inclusive, after conversion to UTC; naive columns widened by the
    /// zone's offsets. `None`: no row has a usable time.
    pub time: Option<(TimestampUs, TimestampUs)>,
    /// Rows per chunk ordinal where they were counted; empty = spread evenly over `time`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub per_chunk: BTreeMap<i64, u64>,
    /// Which series it holds, where that is known; `None` = it may hold any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesBounds>,
}

/// Bounds of the series of a row group, all inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesBounds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<BucketBounds>,
    /// Text of the slice column, compared by bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(String, String)>,
}

/// Partition buckets of a column, both bounds inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketBounds {
    pub column: String,
    pub modulus: u32,
    pub low: u32,
    pub high: u32,
}

/// A source object with its footer read and its columns bound: a file of the source, or a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryObject {
    #[serde(flatten)]
    pub object: SourceObject,
    pub rows: u64,
    pub row_groups: Vec<RowGroupInfo>,
    /// Mapped target columns this file does not have (they become NULL).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_columns: Vec<String>,
    /// Positions of rows are physical lines, not data rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
    /// Of a run: the landed source it is a piece of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_of: Option<u32>,
}

/// How a partition field is made from a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionField {
    pub column: String,
    /// Iceberg's text of the transform: `day`, `bucket[16]`, `identity` ...
    pub transform: String,
    pub name: String,
}

/// A live data file of the table that may hold rows of the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistingFile {
    pub path: String,
    pub bytes: u64,
    pub rows: u64,
    pub spec_id: i32,
    /// Bounds of the time column, inclusive; `None` = unknown, may overlap anything.
    pub time: Option<(TimestampUs, TimestampUs)>,
    /// Data sequence number: equality deletes hide older rows only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: i64,
    /// Its partition, as a number that is the same for the deletes stored beside it; 0 where there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub partition: u32,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A file of row-level deletes in force, which hides rows of some of the data files stored beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteFile {
    pub path: String,
    pub bytes: u64,
    pub rows: u64,
    pub spec_id: i32,
    pub sequence: i64,
    /// `None`: it reaches all partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    pub hides: Hides,
}

/// Which rows a delete file hides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hides {
    /// Rows by their place in a data file: of this one, or of any.
    Positions { of: Option<String> },
    /// Rows that equal one of its rows in these columns (field ids); `time` bounds those where the time is among them.
    Equal { columns: Vec<i32>, time: Option<(TimestampUs, TimestampUs)> },
}

/// Data files that may hold rows of a window, and the deletes in force on them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRows {
    #[serde(rename = "existing")]
    pub files: Vec<ExistingFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<DeleteFile>,
}

/// The table as the plan saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableState {
    pub name: String,
    pub uuid: String,
    pub location: String,
    pub format_version: u8,
    /// Head of `main`; the plan is made against it.
    pub snapshot_id: i64,
    pub schema_id: i32,
    pub spec_id: i32,
    pub sort_order_id: i32,
    pub columns: Vec<Column>,
    pub contract: TableContract,
    pub partition: Vec<PartitionField>,
    pub target_file_bytes: u64,
    /// How older rows are laid out, youngest first; before the first limit of these all rows are in the table's spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layouts: Vec<Layout>,
    #[serde(flatten)]
    pub existing: LiveRows,
}

impl TableState {
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
    /// Calendar period of the finest partition on the time column; `Month` when there is none.
    pub fn period(&self) -> Period {
        self.time_partition().unwrap_or(Period::Month)
    }
    pub fn time_partition(&self) -> Option<Period> {
        self.partition
            .iter()
            .filter(|f| f.column == self.contract.time_column)
            .filter_map(|f| match f.transform.as_str() {
                "hour" => Some(Period::Hour),
                "day" => Some(Period::Day),
                "month" => Some(Period::Month),
                "year" => Some(Period::Year),
                _ => None,
            })
            .min()
    }
    /// Columns by which units may split series: in both keys, or rows of one identity could land in two units.
    fn splitting_columns(&self) -> impl Iterator<Item = &String> {
        let dedup = self.contract.dedup_key.as_ref();
        self.contract.series_key.iter().filter(move |c| dedup.is_none_or(|k| k.contains(c)))
    }
    /// The first such column; `None`: units are split by time alone.
    pub fn slice_column(&self) -> Option<&String> {
        self.splitting_columns().next()
    }
    /// The window in parts of one layout each, oldest first. `None` = the table's own spec.
    pub fn by_layout(&self, window: &Window) -> Vec<(Window, Option<u32>)> {
        let mut parts = Vec::new();
        let mut end = None;
        for i in 0..=self.layouts.len() {
            let start = self.layouts.get(i).map(|l| l.before);
            let part = window.intersect(&Window { start, end });
            if !part.is_empty() {
                parts.push((part, i.checked_sub(1).map(|layout| layout as u32)));
            }
            end = start;
        }
        parts.reverse();
        parts
    }
    pub fn layout(&self, layout: Option<u32>) -> Option<&Layout> {
        self.layouts.get(layout? as usize)
    }
    /// Spec and size of the files of a unit in this layout.
    pub fn files_of(&self, layout: Option<u32>) -> (i32, u64) {
        self.layout(layout).map_or((self.spec_id, self.target_file_bytes), |l| (l.spec_id, l.target_file_bytes))
    }
    /// Column and modulus of the bucket partition that splits series, if there is a usable one.
    pub fn bucket_partition(&self, layout: Option<u32>) -> Option<(String, u32)> {
        let partition = self.layout(layout).map_or(&self.partition, |l| &l.partition);
        partition.iter().filter(|f| self.splitting_columns().any(|c| *c == f.column)).find_map(|f| {
            let n = f.transform.strip_prefix("bucket[")?.strip_suffix(']')?.parse().ok()?;
            Some((f.column.clone(), n))
        })
    }
}

/// Everything the plan is made from. The plan reads nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub table: TableState,
    pub objects: Vec<InventoryObject>,
    /// Sorted sample of the slice column's text, for splitting by series; empty when not needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series_sample: Vec<String>,
    /// Bytes of one row in memory while a unit is written.
    pub row_bytes: u64,
    /// Times of loadable rows: inside min/max. Rows outside are `rejected`.
    pub times: Window,
    /// `--start`, `--end`. Rows outside are `outside_range`.
    pub range: Window,
    /// Rows before this are beyond the table's retention; `None` = no retention, or overridden.
    pub retention_start: Option<TimestampUs>,
    /// What the user should know about how the source is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Beyond retention is counted (`--clip-retention`) instead of an error.
    pub clip_retention: bool,
    /// Chunks (ordinals of the table's period) that the table has rows in, under `--only-missing`: left out.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub skipped_chunks: BTreeSet<i64>,
    /// Columns of the source files that have no name of a column of the table.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unused_columns: BTreeSet<String>,
    /// Set when the objects are runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landed: Option<Landed>,
}

impl Inventory {
    /// Index of the source file that an object is, or is a run of. The order of these is source order.
    pub fn source_of(&self, object: u32) -> u32 {
        self.objects.get(object as usize).and_then(|o| o.run_of).unwrap_or(object)
    }
    /// A source file and whether its rows are named by line.
    pub fn source(&self, source: u32) -> Option<(&SourceObject, bool)> {
        match &self.landed {
            Some(landed) => landed.sources.get(source as usize).map(|s| (&s.object, s.text)),
            None => self.objects.get(source as usize).map(|o| (&o.object, o.text)),
        }
    }
    /// All source files, in order.
    pub fn sources(&self) -> Vec<&SourceObject> {
        match &self.landed {
            Some(landed) => landed.sources.iter().map(|s| &s.object).collect(),
            None => self.objects.iter().map(|o| &o.object).collect(),
        }
    }
    /// Are all rows of a row group in chunks that are left out?
    pub fn is_skipped(&self, row_group: &RowGroupInfo) -> bool {
        let Some((low, high)) = row_group.time.filter(|_| !self.skipped_chunks.is_empty()) else { return false };
        if !row_group.per_chunk.is_empty() {
            return row_group.per_chunk.keys().all(|ordinal| self.skipped_chunks.contains(ordinal));
        }
        let period = self.table.period();
        let (first, last) = (period.ordinal(low.0), period.ordinal(high.0));
        self.skipped_chunks.range(first..=last).count() as i64 == last - first + 1
    }
    /// What is loaded: inside min/max, inside the range, inside retention.
    pub fn window(&self) -> Window {
        self.times.intersect(&self.range).intersect(&Window { start: self.retention_start, end: None })
    }
}
