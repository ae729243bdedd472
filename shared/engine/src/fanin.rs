//! Fan-in where units are worked off by others: who says that the last one has ended, and who says it again.
//!
//! Messages and counters are hints. Whoever gets a message looks into the ledger, and what was lost is said again.

use crate::Engine;
use crate::advance::Life;
use crate::ports::Signals;
use crate::refresh;
use crate::rounds::{latest_units, release, resend_sent, round_key};
use crate::store::load_plan;
use timelake_model::Result;
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, RoundKey, State, UnitState};
use timelake_model::messages::{CloseMessage, Signal, ValidateMessage};

async fn close(signals: &dyn Signals, key: &RoundKey) -> Result<()> {
    signals.signal(&Signal::Close(CloseMessage { key: key.clone() })).await
}

/// Says that a group is staged.
pub async fn validate(signals: &dyn Signals, group: &GroupRecord) -> Result<()> {
    let (job, generation, round, group) = (group.job.clone(), group.generation, group.round, group.group.clone());
    signals.signal(&Signal::Validate(ValidateMessage { job, generation, group, round })).await
}

/// Says that a round is over, if none of its units is left.
pub async fn close_if_last(engine: &Engine, signals: &dyn Signals, key: &RoundKey) -> Result<()> {
    let counters = engine.jobs.counters(key).await?;
    match !counters.is_empty() && counters.iter().all(|c| c.remaining == 0) {
        true => close(signals, key).await,
        false => Ok(()),
    }
}

/// Units of a round have ended: it may be over, or there is room for further messages.
pub async fn counted(engine: &Engine, signals: &dyn Signals, key: &RoundKey) -> Result<()> {
    close_if_last(engine, signals, key).await?;
    if key.phase == Phase::Write { release(engine, key).await } else { Ok(()) }
}

/// Do attempts at the round's units still count?
pub async fn is_open(engine: &Engine, key: &RoundKey) -> Result<bool> {
    Ok(engine.jobs.counters(key).await?.iter().any(|c| c.open))
}

/// Says once more what a job waits for: after it was opened (nobody closes a round without units), and when messages were
/// lost. `resend`: units that are pending get their messages again, too.
pub async fn nudge(engine: &Engine, signals: &dyn Signals, job: &JobRecord, resend: bool) -> Result<()> {
    if matches!(job.state, State::Planning | State::Landing) {
        return landing(engine, signals, job, resend).await;
    }
    for group in engine.jobs.groups(&job.job, job.generation).await? {
        match group.state {
            State::Writing => writing(engine, signals, &group, resend).await?,
            State::Staged | State::Validating if !job.request.run.stage_only => validate(signals, &group).await?,
            State::Published => published(engine, job, &group).await?,
            _ => {}
        }
    }
    Ok(())
}

/// Goes on with a job on HOLD: those of its groups that `may` go on are tried again, from where each stood.
pub async fn resume(
    engine: &Engine,
    signals: &dyn Signals,
    job: &JobRecord,
    mut may: impl AsyncFnMut(&GroupRecord) -> Result<bool>,
) -> Result<()> {
    let Some(stored) = load_plan(engine, &job.job, job.generation).await? else { return Ok(()) };
    let life = Life { engine, job, stored: &stored, resume: true, stage_only: job.request.run.stage_only };
    for group in engine.jobs.groups(&job.job, job.generation).await? {
        if group.state == State::Hold && may(&group).await? {
            let now = crate::tries::change_group(engine, &group, |_| false).await?; // it may have been counted that it was tried
            life.unhold(&now).await?;
        }
    }
    crate::tries::settle_job(engine, &job.job, job.generation).await?;
    let job = engine.jobs.job(&job.job).await?.unwrap_or_else(|| job.clone());
    nudge(engine, signals, &job, true).await
}

async fn landing(engine: &Engine, signals: &dyn Signals, job: &JobRecord, resend: bool) -> Result<()> {
    let units = crate::land::units(engine, job).await?;
    let Some(last) = units.iter().max_by_key(|u| u.key.round) else { return Ok(()) };
    if units.iter().all(|u| u.state != UnitState::Pending) {
        return close(signals, &last.key).await;
    }
    if resend {
        crate::land::resend(engine, job).await?;
    }
    Ok(())
}

async fn writing(engine: &Engine, signals: &dyn Signals, group: &GroupRecord, resend: bool) -> Result<()> {
    if latest_units(engine, group).await?.iter().all(|u| u.state != UnitState::Pending) {
        return close(signals, &round_key(group, group.round)).await;
    }
    match resend {
        true => resend_sent(engine, group).await,
        false => release(engine, &round_key(group, group.round)).await,
    }
}

/// A published group whose refresh was never opened, or not to the end.
async fn published(engine: &Engine, job: &JobRecord, group: &GroupRecord) -> Result<()> {
    if refresh::close(engine, group).await? {
        return crate::tries::settle_job(engine, &job.job, job.generation).await;
    }
    match load_plan(engine, &job.job, job.generation).await? {
        Some(stored) => refresh::open(engine, job, &stored, group).await.map(|_| ()),
        None => Ok(()),
    }
}
