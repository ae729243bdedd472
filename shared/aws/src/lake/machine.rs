//! The state machine that plans a job: started by the command, which then only watches the ledger.

use crate::errors::Failure;
use crate::retry::{Settings, tried};
use aws_sdk_sfn::Client;
use aws_sdk_sfn::types::ExecutionStatus;
use serde_json::{Value, json};
use timelake_model::ledger::JobRecord;
use timelake_model::{BackfillRequest, Error, Reason, Result};

/// Executions of one life of a job: a further one when planning was given up and the command comes again.
const MOST_EXECUTIONS: u32 = 100;
/// As Step Functions bounds it.
const LONGEST_NAME: usize = 80;
const ALREADY_EXISTS: &str = "ExecutionAlreadyExists";
const DOES_NOT_EXIST: &str = "ExecutionDoesNotExist";

pub(super) struct StateMachine {
    client: Client,
    arn: String,
    settings: Settings,
}

/// How an execution stands.
pub(super) enum Stands {
    Running,
    /// It has told its end to the ledger.
    Succeeded,
    Failed(Error),
}

impl StateMachine {
    pub fn new(client: Client, arn: String, settings: Settings) -> StateMachine {
        StateMachine { client, arn, settings }
    }

    /// Starts an execution for this life of the job, unless one runs. The name follows from the life, so two commands at
    /// once start one.
    pub async fn start(&self, job: &JobRecord, request: &BackfillRequest) -> Result<String> {
        let input = json!({ "request": request, "options": {} }).to_string();
        for number in 0..MOST_EXECUTIONS {
            let name = name(job.job.as_str(), job.generation, number);
            let call = || async {
                let start = self.client.start_execution().state_machine_arn(&self.arn).name(&name).input(&input);
                start.send().await.map_err(Failure::from)
            };
            match tried(&self.settings, call).await.0 {
                Ok(started) => {
                    // The same name with the same input is answered with the execution that runs.
                    return Ok(started.execution_arn);
                }
                Err(failure) if failure.has_code(ALREADY_EXISTS) => {
                    let arn = self.execution(&name);
                    if let Stands::Running = self.stands(&arn).await? {
                        return Ok(arn);
                    }
                }
                Err(failure) => return Err(self.told(failure, "started")),
            }
        }
        Err(Error::unavailable(Reason::StorageUnavailable, format!("planning job {} was started {MOST_EXECUTIONS} times already", job.job))
            .hint("look into the planner's log; cancel the job, then run its command again"))
    }

    pub async fn stands(&self, execution: &str) -> Result<Stands> {
        let call = || async { self.client.describe_execution().execution_arn(execution).send().await.map_err(Failure::from) };
        let told = match tried(&self.settings, call).await.0 {
            // One that was started just now may not be known everywhere.
            Err(failure) if failure.has_code(DOES_NOT_EXIST) => return Ok(Stands::Running),
            outcome => outcome.map_err(|failure| self.told(failure, "asked"))?,
        };
        Ok(match told.status() {
            ExecutionStatus::Succeeded => Stands::Succeeded,
            ExecutionStatus::Failed | ExecutionStatus::TimedOut | ExecutionStatus::Aborted => {
                let status = told.status().as_str().to_string();
                Stands::Failed(failed(told.error().unwrap_or(&status), told.cause().unwrap_or_default(), execution))
            }
            _ => Stands::Running,
        })
    }

    fn execution(&self, name: &str) -> String {
        format!("{}:{name}", self.arn.replacen(":stateMachine:", ":execution:", 1))
    }

    fn told(&self, failure: Failure, what: &str) -> Error {
        failure.told_of(&format!("the state machine {}", self.arn), what, Reason::StorageUnavailable)
    }
}

fn name(job: &str, generation: u32, number: u32) -> String {
    let again = if number == 0 { String::new() } else { format!("-{number}") };
    let life = format!("-g{generation}{again}");
    // Ids are ASCII, and their last part is what tells them apart.
    let cut = (job.len() + life.len()).saturating_sub(LONGEST_NAME);
    format!("{}{life}", job.get(cut..).unwrap_or(job))
}

/// What the planner said, if it said anything: its own error, as it would have told the command.
fn failed(error: &str, cause: &str, execution: &str) -> Error {
    let said: Option<Value> = serde_json::from_str(cause).ok();
    let text = said.as_ref().and_then(|said| said.get("errorMessage")).and_then(Value::as_str);
    let its_own = |text: &str| serde_json::from_str::<Error>(text).ok();
    if let Some(planners) = text.and_then(its_own).or_else(|| its_own(cause)) {
        return planners;
    }
    let told = text.unwrap_or(cause);
    let colon = if told.is_empty() { "" } else { ": " };
    Error::unavailable(Reason::StorageUnavailable, format!("planning ended before there was a plan: {error}{colon}{told}"))
        .hint(format!("look at the execution {execution} and the planner's log, then run the same command again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_named_by_the_life_of_its_job() {
        assert_eq!(name("iot-sensor-0a1b2c3d4e5f", 2, 0), "iot-sensor-0a1b2c3d4e5f-g2");
        assert_eq!(name("iot-sensor-0a1b2c3d4e5f", 2, 3), "iot-sensor-0a1b2c3d4e5f-g2-3");
        let long = format!("{}-0a1b2c3d4e5f", "a".repeat(90));
        assert_eq!(name(&long, 2, 0).len(), LONGEST_NAME);
        assert!(name(&long, 2, 0).ends_with("a-0a1b2c3d4e5f-g2"));
    }

    #[test]
    fn what_the_planner_said_is_told_as_its_own_word() {
        let said = Error::conflict(Reason::WindowLocked, "locked").hint("wait");
        let text = serde_json::to_string(&said).unwrap();
        let cause = json!({ "errorType": "conflict", "errorMessage": text }).to_string();
        assert_eq!(failed("conflict", &cause, "x"), said);
        assert_eq!(failed("conflict", &text, "x"), said);
        let other = failed("Sandbox.Timedout", &json!({ "errorMessage": "after 900 seconds" }).to_string(), "arn:x");
        assert_eq!(other.message, "planning ended before there was a plan: Sandbox.Timedout: after 900 seconds");
        assert!(other.hint.is_some_and(|hint| hint.contains("arn:x")));
        assert_eq!((other.reason, failed("ABORTED", "", "x").message.ends_with("plan: ABORTED")), (Reason::StorageUnavailable, true));
    }
}
