//! When a job's steps ran, and how fast: `jobs/<job>/timeline.json`. Of bounded size, whatever the job's.

use crate::time::TimestampUs;
use serde::{Deserialize, Serialize};

/// The runs of a job, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    pub runs: Vec<RunTimeline>,
}

/// One process that ran the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunTimeline {
    pub started: TimestampUs,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub seconds: f64,
    /// The job's state then, or the reason why the run ended.
    pub outcome: String,
    pub spans: Vec<StepSpan>,
}

/// A step from its begin to its end; a step of a later round is a span of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSpan {
    pub step: String,
    /// Since the start of the run.
    pub start_seconds: f64,
    pub seconds: f64,
    /// Gone through.
    pub rows: u64,
    /// Seconds since the start of the run, and rows gone through by then.
    pub samples: Vec<(f64, u64)>,
}
