//! What the parts of a run on AWS tell each other by queues, beside the units themselves. A message is a hint: its
//! receiver looks into the ledger and does only what that calls for, so it may come twice, late or not at all.

use crate::ids::{GroupName, JobId};
use crate::ledger::{Phase, RoundKey};
use serde::{Deserialize, Serialize};

/// To whoever goes on after a round of units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Signal {
    Close(CloseMessage),
    Validate(ValidateMessage),
}

/// All counters of a round are at 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseMessage {
    pub key: RoundKey,
}

/// A group's round is staged and to be validated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidateMessage {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub group: GroupName,
    pub round: u32,
}

impl Signal {
    pub fn job(&self) -> &JobId {
        match self {
            Signal::Close(close) => &close.key.job,
            Signal::Validate(validate) => &validate.job,
        }
    }
    /// Of the round it is about.
    pub fn phase(&self) -> Phase {
        match self {
            Signal::Close(close) => close.key.phase,
            Signal::Validate(_) => Phase::Write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_form() {
        let (job, group) = (JobId("iot-a".into()), GroupName("2024-05".into()));
        let key = RoundKey { job: job.clone(), generation: 1, phase: Phase::Land, group: group.clone(), round: 2 };
        for (signal, json) in [
            (
                Signal::Close(CloseMessage { key }),
                r#"{"message":"close","key":{"job":"iot-a","gen":1,"phase":"land","group":"2024-05","round":2}}"#,
            ),
            (
                Signal::Validate(ValidateMessage { job, generation: 1, group, round: 2 }),
                r#"{"message":"validate","job":"iot-a","gen":1,"group":"2024-05","round":2}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&signal).unwrap(), json);
            assert_eq!(serde_json::from_str::<Signal>(json).unwrap(), signal);
            assert_eq!(signal.job().as_str(), "iot-a");
        }
    }
}
