//! What the user asks for. `RowOptions` decide the rows and are part of the job's id; `RunOptions` only
//! decide how the work is done.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// `parquet` or `csv`; found by name and content when not given.
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
    /// strftime pattern of times that are text, or `excel` for serial days.
    pub ts_format: Option<String>,
    pub ambiguous: Ambiguous,
    pub nonexistent: Nonexistent,
    /// Window bounds as typed.
    pub start: Option<String>,
    pub end: Option<String>,
    pub min_ts: Option<String>,
    pub max_ts: Option<String>,
    pub on_out_of_range: OnOutOfRange,
    pub on_bad_row: OnBadRow,
    /// More rows left out by `on_bad_row` than this reject the job.
    pub max_bad_rows: Option<u64>,
    pub on_source_conflict: OnSourceConflict,
    pub mode: Mode,
    /// `append` although rows have an identity: rows that exist are there twice then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_duplicates: bool,
    /// Chunks in which the table has rows are left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_missing: bool,
    /// For `newest`: the column whose larger value wins.
    pub version_column: Option<String>,
    pub override_retention: bool,
    pub clip_retention: bool,
    pub text: TextOptions,
}

/// How text sources are read. Everything is as typed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextOptions {
    /// One character, or `\t`. `None`: a `sep=` line, else the one by which the header has the mapped columns.
    pub delimiter: Option<String>,
    /// Decimal separator of numbers: `.` when not given.
    pub decimal: Option<String>,
    /// Separator of digit groups; none when not given.
    pub thousands: Option<String>,
    /// Name of the encoding by the WHATWG standard (`windows-1252`, `utf-16le` ...). `None`: a byte order mark, else UTF-8.
    pub encoding: Option<String>,
    /// Texts that mean NULL in columns that are no key.
    pub null: Vec<String>,
    /// `COL=N`: the number that means NULL in a table column.
    pub null_number: Vec<String>,
    /// Table column that takes the text where a number was expected.
    pub bad_text_to: Option<String>,
    /// Physical line of the header, 1 = first.
    pub header_line: Option<u64>,
    /// Lines passed over after the header: units, types.
    pub skip_after_header: u64,
    /// Names of the columns of files without a header.
    pub columns: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    pub threads: usize,
    /// Bound on the memory of one process, in bytes.
    pub memory_bytes: u64,
    pub verify_full: bool,
    pub stage_only: bool,
    /// Folder of the landed runs; the job's folder when not given.
    pub work_dir: Option<String>,
    /// Landed runs stay after publishing.
    pub keep_runs: bool,
    /// Load although an unfinished job's window overlaps: what both load is settled when the second one publishes.
    pub allow_overlap: bool,
    /// Where units are worked off by others: so many are announced and not ended, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
}

pub const DEFAULT_MEMORY_BYTES: u64 = 1_000_000_000;

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            threads: 1,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            verify_full: false,
            stage_only: false,
            work_dir: None,
            keep_runs: false,
            allow_overlap: false,
            max_in_flight: None,
        }
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
choice!(/// A local time that happens twice. `Infer`: per series in source order, where the local clock goes back exactly once.
    Ambiguous { Error, Infer, Earlier, Later } default Error);
choice!(/// A local time that the clock skips. `Shift` moves it forward by the gap.
    Nonexistent { Error, Skip, Shift } default Error);
choice!(/// A time outside min/max.
    OnOutOfRange { Error, Skip } default Error);
choice!(/// A row with a value that does not fit. `Skip` drops and counts it, `Quarantine` lists it as well.
    OnBadRow { Error, Skip, Quarantine } default Error);
choice!(/// One key with different payloads inside the source.
    OnSourceConflict { Error, First, Last, Newest } default Error);
choice!(/// What happens when backfilled rows meet existing rows.
    Mode { /// The existing row wins, whole row.
        Merge,
        /// Existing rows are not looked at.
        Append,
        /// A key that exists stops the job.
        Fail } default Merge);

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
