//! What is done after publishing: which ranges changed.

use crate::ids::AttemptId;
use crate::time::TimestampUs;
use serde::{Deserialize, Serialize};

/// A chunk that got rows: `[start, end)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    pub start: TimestampUs,
    pub end: TimestampUs,
    pub rows: u64,
}

/// The units of a published group's refresh, by their index: newest chunk first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshPlan {
    /// The published snapshot.
    pub snapshot: i64,
    pub published_at: TimestampUs,
    pub ranges: Vec<ChangedRange>,
}

/// The feed knows of the range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshReceipt {
    pub unit: u32,
    pub round: u32,
    pub attempt: AttemptId,
    pub range: ChangedRange,
}
