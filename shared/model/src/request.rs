//! What the user asks for. `RowOptions` decide the rows and are part of the job's id; `RunOptions` only
//! decide how the work is done.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackfillRequest {
    /// `namespace.table`
    pub table: String,
    pub rows: RowOptions,
    #[serde(default)]
    pub run: RunOptions,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RowOptions {
    /// Files, folders, globs, in order.
    pub from: Vec<String>,
    /// `parquet`; found by content when not given.
    pub format: Option<String>,
    /// `dst=src` as typed, escapes kept, split at commas. `col=` leaves a column out.
    pub map: Vec<String>,
    /// `col=value` as typed.
    pub set: Vec<String>,
    /// Take columns from `name=value` folders of the path.
    pub hive: bool,
    /// IANA zone or fixed offset of naive times.
    pub tz: Option<String>,
    pub ts_unit: Option<TimeUnit>,
    pub ambiguous: Ambiguous,
    pub nonexistent: Nonexistent,
    /// Window bounds as typed.
    pub start: Option<String>,
    pub end: Option<String>,
    pub min_ts: Option<String>,
    pub max_ts: Option<String>,
    pub on_out_of_range: OnOutOfRange,
    pub on_bad_row: OnBadRow,
    pub on_source_conflict: OnSourceConflict,
    pub mode: Mode,
    /// For `newest`: the column whose larger value wins.
    pub version_column: Option<String>,
    pub override_retention: bool,
    pub clip_retention: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    pub threads: usize,
    /// Bound on the memory of one process, in bytes.
    pub memory_bytes: u64,
    pub verify_full: bool,
    pub stage_only: bool,
}

pub const DEFAULT_MEMORY_BYTES: u64 = 1_000_000_000;

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions { threads: 1, memory_bytes: DEFAULT_MEMORY_BYTES, verify_full: false, stage_only: false }
    }
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),* } default $default:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),* }
        impl Default for $name { fn default() -> Self { $name::$default } }
    };
}
choice!(/// A local time that happens twice.
    Ambiguous { Error, Earlier, Later } default Error);
choice!(/// A local time that the clock skips. `Shift` moves it forward by the gap.
    Nonexistent { Error, Skip, Shift } default Error);
choice!(/// A time outside min/max.
    OnOutOfRange { Error, Skip } default Error);
choice!(/// A row with a value that does not fit. `Skip` drops and counts it.
    OnBadRow { Error, Skip } default Error);
choice!(/// One key with different payloads inside the source.
    OnSourceConflict { Error, First, Last, Newest } default Error);
choice!(/// What happens when backfilled rows meet existing rows.
    Mode { /// The existing row wins, whole row.
        Merge } default Merge);

/// Unit of times stored as plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeUnit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ms")]
    Millis,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "ns")]
    Nanos,
}
