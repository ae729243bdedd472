//! The sweeper: finds what got lost. Messages that never came, units that were given up, what the last writer could not say
//! any more, files of attempts that lost.

use aws_lambda_events::event::dynamodb::Event as StreamEvent;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use serde::Deserialize;
use serde_dynamo::AttributeValue;
use serde_json::{Value, json};
use timelake_engine::ports::UnitEnd;
use timelake_engine::progress::StopFlag;
use timelake_engine::{Engine, fanin, tries};
use timelake_functions::{Cloud, batch, decode};
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, RoundKey, State, UnitMessage};
use timelake_model::messages::Signal;
use timelake_model::{AttemptId, Error, GroupName, JobId, Kind, Reason, Result};

/// Times that units which failed for want of a service are tried again without being asked.
const MAX_AUTO_RESUMED: u32 = 3;

/// A message that failed five times.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Letter {
    Signal(Signal),
    Unit(UnitMessage),
}

/// The schedule, dead letters, or changes of the ledger's counters.
pub async fn handle(cloud: &Cloud, event: Value, stop: &StopFlag) -> Result<Value> {
    match event.pointer("/Records/0/eventSource").and_then(Value::as_str) {
        Some("aws:sqs") => {
            let event: SqsEvent = parsed(event)?;
            json_of(&batch(event, async |message| dead(cloud, message).await).await)
        }
        Some("aws:dynamodb") => {
            counted(cloud, parsed(event)?).await?;
            Ok(Value::Null)
        }
        _ => {
            let swept = sweep(cloud, stop).await?;
            Ok(json!({ "jobs": swept }))
        }
    }
}

/// A unit whose message was given up FAILED; a group whose message was given up is on HOLD.
async fn dead(cloud: &Cloud, message: &SqsMessage) -> Result<()> {
    let engine = &cloud.engine;
    match decode(message)? {
        Letter::Unit(unit) => {
            let why = Error::unavailable(Reason::StorageUnavailable, format!("unit {} was tried five times without an answer", unit.unit))
                .hint("look into the writer's log, then resume the job");
            let attempt = AttemptId(format!("{:012x}", engine.clock.random() & 0xffff_ffff_ffff));
            engine.jobs.end_unit(&unit.key, unit.unit, &attempt, &UnitEnd::Failed(why)).await?;
            fanin::close_if_last(engine, cloud.signals.as_ref(), &unit.key).await
        }
        Letter::Signal(letter) => {
            let (job, generation, group) = match &letter {
                Signal::Close(close) => (&close.key.job, close.key.generation, &close.key.group),
                Signal::Validate(validate) => (&validate.job, validate.generation, &validate.group),
            };
            let why = Error::unavailable(Reason::StorageUnavailable, "the finalizer did not come to an end in five tries")
                .hint("look into its log, then resume the job");
            match engine.jobs.group(job, generation, group).await? {
                Some(group) => hold(engine, &group, why).await,
                None => lost_planning(engine, job, generation, why).await,
            }
        }
    }
}

async fn hold(engine: &Engine, group: &GroupRecord, why: Error) -> Result<()> {
    tries::change_group(engine, group, |g| {
        let changes = matches!(g.state, State::Writing | State::Staged | State::Validating);
        if changes {
            g.state = State::Hold;
            g.error = Some(why.clone());
        }
        changes
    })
    .await?;
    tries::settle_job(engine, &group.job, group.generation).await
}

/// A landed source that the planner could not go on with: the job says why, and its request plans it again.
async fn lost_planning(engine: &Engine, job: &JobId, generation: u32, why: Error) -> Result<()> {
    if engine.jobs.job(job).await?.is_none() {
        return Ok(()); // of a ledger that is no more
    }
    tries::change_job(engine, job, generation, |j| {
        let changes = !j.state.is_final() && j.error.is_none();
        if changes {
            j.error = Some(why.clone());
        }
        changes
    })
    .await
    .map(|_| ())
}

/// Counters that went down to nothing.
async fn counted(cloud: &Cloud, event: StreamEvent) -> Result<()> {
    for record in event.records {
        let text = |name: &str| record.change.keys.get(name).and_then(text_of);
        if let Some(key) = text("pk").zip(text("sk")).and_then(|(pk, sk)| round_of(&pk, &sk)) {
            fanin::close_if_last(&cloud.engine, cloud.signals.as_ref(), &key).await?;
        }
    }
    Ok(())
}

/// A number or text of a stream record's key.
fn text_of(value: &AttributeValue) -> Option<String> {
    match value {
        AttributeValue::S(text) => Some(text.clone()),
        _ => None,
    }
}

/// The round of a counter's key: `J#<job>#<shard>`, `CTR#<gen>#<phase>#<group>#<round>`.
fn round_of(pk: &str, sk: &str) -> Option<RoundKey> {
    let (job, _shard) = pk.strip_prefix("J#")?.rsplit_once('#')?;
    let [generation, phase, group, round] = sk.strip_prefix("CTR#")?.split('#').collect::<Vec<_>>().try_into().ok()?;
    Some(RoundKey {
        job: JobId(job.into()),
        generation: generation.parse().ok()?,
        phase: [Phase::Land, Phase::Write, Phase::Refresh].into_iter().find(|p| p.to_string() == phase)?,
        group: GroupName(group.into()),
        round: round.parse().ok()?,
    })
}

/// Looks at every job that is not over.
async fn sweep(cloud: &Cloud, stop: &StopFlag) -> Result<u32> {
    let engine = &cloud.engine;
    // While messages wait or are worked on, none is missing that would be noticed.
    let idle = cloud.mail.idle().await?;
    let mut swept = 0;
    for job in engine.jobs.jobs(None).await?.iter().filter(|j| !j.state.is_final() || j.state == State::Published) {
        stop.check()?;
        // One job that cannot be looked after must not hide the others.
        let looked = match job.state {
            State::Hold => resume(cloud, job).await,
            _ => fanin::nudge(engine, cloud.signals.as_ref(), job, idle).await,
        };
        match looked {
            Ok(()) => swept += 1,
            Err(error) => tracing::warn!(job = %job.job, kind = ?error.kind, reason = ?error.reason, "a job cannot be looked after"),
        }
    }
    Ok(swept)
}

/// Groups that are on HOLD because a service was away go on by themselves, a few times.
async fn resume(cloud: &Cloud, job: &JobRecord) -> Result<()> {
    let engine = &cloud.engine;
    fanin::resume(engine, cloud.signals.as_ref(), job, async |group| {
        let passes = group.error.as_ref().is_some_and(|e| e.kind == Kind::Unavailable && !e.needs_a_hand());
        if !passes {
            return Ok(false);
        }
        let mut counted = false;
        tries::change_group(engine, group, |g| {
            counted = g.state == State::Hold && g.auto_resumed < MAX_AUTO_RESUMED;
            g.auto_resumed += u32::from(counted);
            counted
        })
        .await?;
        Ok(counted)
    })
    .await
}

fn parsed<T: serde::de::DeserializeOwned>(event: Value) -> Result<T> {
    serde_json::from_value(event).map_err(|e| Error::invalid(Reason::InvalidOption, format!("this is no event of the sweeper: {e}")))
}

fn json_of(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::internal(e.to_string()))
}
