//! The sweeper: finds what got lost. Messages that never came, units that were given up, what the last writer could not say
//! any more, files of attempts that lost.

use aws_lambda_events::event::dynamodb::Event as StreamEvent;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use serde::Deserialize;
use serde_dynamo::AttributeValue;
use serde_json::{Value, json};
use std::time::Duration;
use timelake_aws::round_of_counter;
use timelake_engine::ports::UnitEnd;
use timelake_engine::progress::StopFlag;
use timelake_engine::stage::Staging;
use timelake_engine::upkeep::{self, Collected, GcOptions};
use timelake_engine::{Engine, fanin, rounds, store, tries};
use timelake_functions::{Ports, batch, decode};
use timelake_model::ledger::{GroupRecord, JobRecord, RoundKey, State, UnitMessage};
use timelake_model::messages::Signal;
use timelake_model::time::IsoDuration;
use timelake_model::{AttemptId, Error, JobId, Kind, Reason, Result, UnitReceipt};

/// Times that units which failed for want of a service are tried again without being asked.
const MAX_AUTO_RESUMED: u32 = 3;

/// How often what is written goes to the branch. Cleaners take files that no snapshot has named for three days.
const KEPT_EVERY: Duration = Duration::from_secs(20 * 3_600);

/// How long what nobody needs stays, should somebody need it after all.
const GRACE: &str = "P7D";

/// A message that failed five times.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Letter {
    Signal(Signal),
    Unit(UnitMessage),
}

/// The two schedules, dead letters, or changes of the ledger's counters.
pub async fn handle(ports: &Ports, event: Value, stop: &StopFlag) -> Result<Value> {
    match event.pointer("/Records/0/eventSource").and_then(Value::as_str) {
        Some("aws:sqs") => {
            let event: SqsEvent = parsed(event)?;
            json_of(&batch(&ports.tally, event, async |message| dead(ports, message).await).await)
        }
        Some("aws:dynamodb") => {
            counted(ports, parsed(event)?).await?;
            Ok(Value::Null)
        }
        _ if event.get("action").and_then(Value::as_str) == Some("collect") => json_of(&collect(ports).await?),
        _ => {
            let swept = sweep(ports, stop).await?;
            Ok(json!({ "jobs": swept }))
        }
    }
}

/// A unit whose message was given up FAILED; a group whose message was given up is on HOLD.
async fn dead(ports: &Ports, message: &SqsMessage) -> Result<()> {
    let engine = &ports.engine;
    match decode(message)? {
        Letter::Unit(unit) => {
            let why = Error::unavailable(Reason::StorageUnavailable, format!("unit {} was tried five times without an answer", unit.unit))
                .hint("look into the writer's log, then resume the job");
            let attempt = AttemptId(format!("{:012x}", engine.clock.random() & 0xffff_ffff_ffff));
            engine.jobs.end_unit(&unit.key, unit.unit, &attempt, &UnitEnd::Failed(why)).await?;
            fanin::close_if_last(engine, ports.signals.as_ref(), &unit.key).await
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

/// Counters that went down.
async fn counted(ports: &Ports, event: StreamEvent) -> Result<()> {
    let mut rounds: Vec<RoundKey> = Vec::new();
    for record in event.records {
        let text = |name: &str| match record.change.keys.get(name) {
            Some(AttributeValue::S(text)) => Some(text.as_str()),
            _ => None,
        };
        // Many records of a batch are of one round, which is looked at once.
        rounds.extend(text("pk").zip(text("sk")).and_then(|(pk, sk)| round_of_counter(pk, sk)).filter(|key| !rounds.contains(key)));
    }
    for key in rounds {
        fanin::counted(&ports.engine, ports.signals.as_ref(), &key).await?;
    }
    Ok(())
}

/// Looks at every job that is not over.
async fn sweep(ports: &Ports, stop: &StopFlag) -> Result<u32> {
    let engine = &ports.engine;
    // While messages wait or are worked on, none is missing that would be noticed.
    let idle = ports.mail.idle().await?;
    let mut swept = 0;
    for job in engine.jobs.jobs(None).await?.iter().filter(|j| !j.state.is_final() || j.state == State::Published) {
        stop.check()?;
        // One job that cannot be looked after must not hide the others.
        let looked = match job.state {
            State::Hold => resume(ports, job).await,
            _ => fanin::nudge(engine, ports.signals.as_ref(), job, idle).await,
        };
        let kept = keep(ports, job).await;
        match looked.and(kept) {
            Ok(()) => swept += 1,
            Err(error) => tracing::warn!(job = %job.job, kind = %error.kind, reason = %error.reason, "a job cannot be looked after"),
        }
    }
    Ok(swept)
}

/// What jobs left behind and nobody has touched for a week. Jobs are over or their window is: no writer works that long.
async fn collect(ports: &Ports) -> Result<Collected> {
    let options = GcOptions { older_than: IsoDuration::parse(GRACE)?, dry_run: false };
    let collected = upkeep::collect(&ports.engine, &options, &|_| false).await?;
    tracing::info!(things = collected.items.len(), bytes = collected.bytes, "collected");
    // A function's answer has room for 6 MB.
    Ok(Collected { items: vec![], ..collected })
}

/// What is written and not staged is put on the branch: of a group on HOLD at once, else once a day.
async fn keep(ports: &Ports, job: &JobRecord) -> Result<()> {
    let engine = &ports.engine;
    for group in engine.jobs.groups(&job.job, job.generation).await? {
        let since = group.kept.map_or(job.as_of, |kept| kept.at);
        let is_old = engine.clock.now().0 - since.0 >= KEPT_EVERY.as_micros() as i64;
        if group.staged_round == Some(group.round) || !(group.state == State::Hold || (group.state == State::Writing && is_old)) {
            continue;
        }
        let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? else { return Ok(()) };
        let units = rounds::latest_units(engine, &group).await?;
        let receipts: Vec<UnitReceipt> = units.into_iter().filter_map(|u| u.receipt?.into_written()).collect();
        let kept = group.kept.filter(|kept| kept.round == group.round).map_or(0, |kept| kept.units as usize);
        if receipts.len() > kept && receipts.iter().any(|r| !r.files.is_empty()) {
            Staging { engine, job, stored: &stored, group: &group, receipts: &receipts }.keep().await?;
        }
    }
    Ok(())
}

/// Groups that are on HOLD because a service was away go on by themselves, a few times.
async fn resume(ports: &Ports, job: &JobRecord) -> Result<()> {
    let engine = &ports.engine;
    fanin::resume(engine, ports.signals.as_ref(), job, async |group| {
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
