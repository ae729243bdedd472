//! What validation says about a staged group.

use crate::error::Error;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    Approved { checks: Vec<Check> },
    Rejected { findings: Vec<Error> },
}

/// A check that was made and what it covered: approval says what it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub detail: String,
}
