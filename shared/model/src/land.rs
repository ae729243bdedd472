//! Landing: sources that cannot be read in pieces (text, badly clustered files) are first read once, in order,
//! into runs, which the plan then reads as it reads any columnar source.

use crate::counts::Counts;
use crate::ids::{AttemptId, JobId};
use crate::inventory::{Inventory, RowGroupInfo, SourceObject};
use crate::receipt::RowErrors;
use serde::{Deserialize, Serialize};

pub const LAND_PLAN_VERSION: u32 = 1;

/// What is landed and how. Unit `i` of the phase lands object `i` of the inventory: a split is a whole object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandPlan {
    pub version: u32,
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    /// Where the runs are written.
    pub folder: String,
    /// The source's objects, without row groups, and the table as it was then.
    pub inventory: Inventory,
    /// Under `--ambiguous infer`: where the clock of each series goes back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<SeriesFold>,
}

/// How one series went through one repeated hour: from its order in the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesFold {
    /// The series key's values as texts.
    pub series: Vec<String>,
    /// First local microsecond that is repeated.
    pub fold_us: i64,
    /// Source object and position of the first row of the second pass.
    pub second_pass: (u32, u64),
    /// The series is written newest first: what comes first is the later pass.
    #[serde(default)]
    pub descending: bool,
    /// Told by one source object's own order, for its rows; else by all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_in: Option<u32>,
}

/// What an attempt at a split produced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LandReceipt {
    pub unit: u32,
    pub round: u32,
    pub attempt: AttemptId,
    /// Rows of the split, wherever they went.
    pub rows_parsed: u64,
    /// Rows that ended here: rejected, or outside what is loaded. `rows_parsed` less these are in the runs.
    pub counts: Counts,
    /// In source order.
    pub runs: Vec<Run>,
    /// Bad rows by reason and column.
    pub errors: Vec<RowErrors>,
    /// Rows left out by `--on-bad-row`.
    pub bad_rows: u64,
    /// File of those rows, when they are to be listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    /// Bytes of one row in memory.
    pub row_bytes: u64,
    /// Sorted sample of the slice column's text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series_sample: Vec<String>,
}

/// A landed piece of a source: a Parquet file in the table's columns and types, with each row's place in its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub file: SourceObject,
    pub row_groups: Vec<RowGroupInfo>,
}

impl LandReceipt {
    pub fn rows_in_runs(&self) -> u64 {
        self.runs.iter().flat_map(|r| &r.row_groups).map(|g| g.rows).sum()
    }
}

/// The landed sources, as the inventory of the runs remembers them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    /// In source order.
    pub sources: Vec<LandedSource>,
    /// Rows that ended in landing, and notes.
    pub counts: Counts,
    /// Rows left out in landing, as the user asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<RowErrors>,
    pub bad_rows: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandedSource {
    #[serde(flatten)]
    pub object: SourceObject,
    pub rows: u64,
    /// Positions of rows are physical lines, not data rows.
    pub text: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_columns: Vec<String>,
}
