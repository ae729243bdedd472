//! The ledger's records: the truth about jobs, groups, plans, counters and units. A store keeps them; the
//! engine decides every transition.

use crate::error::Error;
use crate::ids::{AttemptId, GroupName, JobId};
use crate::receipt::Receipt;
use crate::request::BackfillRequest;
use crate::time::{TimestampUs, Window};
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a group, and of a job (see [`job_state`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    // in order of advance
    Planning,
    Landing,
    Writing,
    Staged,
    Validating,
    Published,
    Refreshed,
    // standing still
    Hold,
    Rejected,
    Cancelled,
    #[serde(rename = "ROLLED_BACK")]
    RolledBack,
}

impl State {
    pub const ALL: &'static [State] = &[
        State::Planning,
        State::Landing,
        State::Writing,
        State::Staged,
        State::Validating,
        State::Published,
        State::Refreshed,
        State::Hold,
        State::Rejected,
        State::Cancelled,
        State::RolledBack,
    ];
    pub fn parse(text: &str) -> Option<State> {
        State::ALL.iter().copied().find(|s| s.to_string() == text)
    }
    /// Nothing more happens to the group by itself, and its window is free.
    pub fn is_final(self) -> bool {
        matches!(self, State::Published | State::Refreshed | State::Rejected | State::Cancelled | State::RolledBack)
    }
    pub fn is_published(self) -> bool {
        matches!(self, State::Published | State::Refreshed)
    }
}
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Planning => "PLANNING",
            State::Landing => "LANDING",
            State::Writing => "WRITING",
            State::Staged => "STAGED",
            State::Validating => "VALIDATING",
            State::Published => "PUBLISHED",
            State::Refreshed => "REFRESHED",
            State::Hold => "HOLD",
            State::Rejected => "REJECTED",
            State::Cancelled => "CANCELLED",
            State::RolledBack => "ROLLED_BACK",
        })
    }
}

/// The job's state: the first of HOLD, REJECTED, CANCELLED, ROLLED_BACK that any group has, else the least advanced.
pub fn job_state(groups: impl IntoIterator<Item = State>) -> State {
    let groups: Vec<State> = groups.into_iter().collect();
    for standing in [State::Hold, State::Rejected, State::Cancelled, State::RolledBack] {
        if groups.contains(&standing) {
            return standing;
        }
    }
    groups.into_iter().min().unwrap_or(State::Planning)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Land,
    Write,
    Refresh,
}
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Land => "land",
            Phase::Write => "write",
            Phase::Refresh => "refresh",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub table: String,
    pub table_uuid: String,
    /// Hash of the request without fingerprints: finds the job of an older version of the same source.
    pub request_hash: String,
    pub request: BackfillRequest,
    /// What opened this life of the job, where one question may be asked twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    pub as_of: TimestampUs,
    pub window: Window,
    pub state: State,
    /// Why the job stands still.
    pub error: Option<Error>,
    pub created: TimestampUs,
    pub updated: TimestampUs,
    /// Grows with each change; the store's compare-and-swap.
    #[serde(default)]
    pub version: u64,
}

pub const MAX_REDERIVED: u32 = 5;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub group: GroupName,
    pub state: State,
    /// Highest round opened.
    pub round: u32,
    /// The branch's snapshot as last written by us.
    pub branch_snapshot: Option<i64>,
    /// Id chosen for the snapshot about to be committed to the branch: an unclear commit is recognised by it.
    pub next_snapshot: Option<i64>,
    /// Round whose receipts the branch's snapshot holds.
    #[serde(default)]
    pub staged_round: Option<u32>,
    /// Staged snapshots that publish or cancel must remove.
    #[serde(default)]
    pub staged: Vec<i64>,
    /// What of the group was put on the branch before it was staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// As `next_snapshot`, for such a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_kept: Option<i64>,
    /// `main` snapshot up to which the overlap check is done.
    pub checked_snapshot: Option<i64>,
    pub cancel_requested: bool,
    /// Rounds opened because `main` moved; at most [`MAX_REDERIVED`].
    pub rederived: u32,
    pub auto_resumed: u32,
    pub published_snapshot: Option<i64>,
    /// False when the group changed nothing and so committed nothing.
    pub committed: bool,
    pub error: Option<Error>,
    /// Grows with each change; the store's compare-and-swap.
    pub version: u64,
}

/// A part of a group's receipts that a snapshot on its branch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub round: u32,
    pub units: u32,
    pub at: TimestampUs,
}

impl GroupRecord {
    pub fn new(job: JobId, generation: u32, group: GroupName, base: i64) -> Self {
        GroupRecord {
            job,
            generation,
            group,
            state: State::Planning,
            round: 0,
            branch_snapshot: None,
            next_snapshot: None,
            staged_round: None,
            staged: vec![],
            kept: None,
            next_kept: None,
            checked_snapshot: Some(base),
            cancel_requested: false,
            rederived: 0,
            auto_resumed: 0,
            published_snapshot: None,
            committed: false,
            error: None,
            version: 0,
        }
    }
}

/// Names one batch of units: a phase and round of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoundKey {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub phase: Phase,
    pub group: GroupName,
    pub round: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    pub key: RoundKey,
    pub plan_hash: String,
    /// Units of the group's plan that this round writes.
    pub units: Vec<u32>,
    /// Number of counters: `min(16, ceil(units / 1000))`, at least 1.
    pub shards: u32,
    /// Units whose message was sent.
    pub cursor: u32,
}

impl PlanRecord {
    pub fn shards_for(units: usize) -> u32 {
        units.div_ceil(1000).clamp(1, 16) as u32
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRecord {
    pub key: RoundKey,
    pub shard: u32,
    pub open: bool,
    pub remaining: u32,
    pub failed: u32,
    pub rows: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum UnitState {
    Pending,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnitRecord {
    pub key: RoundKey,
    pub unit: u32,
    pub state: UnitState,
    /// Snapshot whose rows the attempt must look at.
    pub base: i64,
    /// The attempt that finished it.
    pub win: Option<AttemptId>,
    pub attempts: Vec<AttemptId>,
    pub rows: u64,
    pub bytes: u64,
    /// Set when DONE.
    pub receipt: Option<Receipt>,
    /// Set when FAILED.
    pub error: Option<Error>,
}

/// A queue message: one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitMessage {
    pub key: RoundKey,
    pub unit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_job_is_as_far_as_its_slowest_group_unless_one_stands_still() {
        use State::*;
        assert_eq!(job_state([Published, Writing, Staged]), Writing);
        assert_eq!(job_state([Published, Cancelled, Hold]), Hold);
        assert_eq!(job_state([]), Planning);
        for s in State::ALL {
            assert_eq!(State::parse(&s.to_string()), Some(*s));
            assert_eq!(serde_json::to_value(s).unwrap(), s.to_string());
        }
    }
    #[test]
    fn shards_grow_with_the_units() {
        assert_eq!([0, 1, 1000, 1001, 20_000, 1_000_000].map(PlanRecord::shards_for), [1, 1, 1, 2, 16, 16]);
    }
}
