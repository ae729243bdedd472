//! Messages between those who work on a job: what follows when the last unit of a round has ended.

use crate::ids::{GroupName, JobId};
use crate::ledger::RoundKey;
use serde::{Deserialize, Serialize};

/// The last unit of a round has ended. A hint: whoever gets it looks into the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Close {
    #[serde(flatten)]
    pub key: RoundKey,
}

/// A group is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validate {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub group: GroupName,
    /// Publish it although its job is to stay staged: the user said so meanwhile.
    #[serde(default)]
    pub publish: bool,
}

/// A message of the finalizer's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToFinalizer {
    Close(Close),
    Validate(Validate),
}
