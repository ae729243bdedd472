//! Gives a job up: `main` stays as it was, branch, staged snapshots and lock go. If a group was published
//! before the branch could be removed, it stays published, and cancel says so.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::publish::drop_branch;
use crate::rounds::round_key;
use crate::tries::{change_group, change_job, settle_job};
use timelake_model::ledger::{GroupRecord, JobRecord, State};
use timelake_model::{Error, JobId, Result};

/// Sets one group standing still (CANCELLED, REJECTED): the wish first, then the branch, then the state.
pub async fn stand_down(engine: &Engine, job: &JobRecord, group: &GroupRecord, to: State, error: Option<Error>) -> Result<GroupRecord> {
    let group = change_group(engine, group, |g| {
        let changes = !g.cancel_requested && !g.state.is_final();
        g.cancel_requested |= changes;
        changes
    })
    .await?;
    reached(Boundary::CancelRequested);
    if group.state.is_final() {
        return Ok(group);
    }
    let published = drop_branch(engine, job, &group).await?;
    // A round that was being opened may be one ahead of the group.
    for round in 0..=group.round + 1 {
        engine.jobs.close_round(&round_key(&group, round)).await?;
    }
    reached(Boundary::RoundsClosed);
    change_group(engine, &group, |g| {
        if g.state.is_final() {
            return false;
        }
        match published {
            Some(snapshot) => {
                g.state = State::Published;
                g.published_snapshot = Some(snapshot);
                g.committed = true;
                g.error = None;
            }
            None => {
                g.state = to;
                g.error = error.clone();
            }
        }
        true
    })
    .await
    .inspect(|_| reached(Boundary::GroupStoodDown))
}

/// Cancels the job's current generation. Safe against a run that is just opening its groups: the job says
/// CANCELLED before the groups are looked at, and a run looks at the job after it wrote its groups.
pub async fn cancel(engine: &Engine, job: &JobId) -> Result<JobRecord> {
    let gone = || Error::internal(format!("job {job} is gone from the ledger"));
    let record = engine.jobs.job(job).await?.ok_or_else(gone)?;
    // The word before the deed: a run that finds its queue empty must find out why.
    if engine.jobs.groups(job, record.generation).await?.is_empty() {
        change_job(engine, job, record.generation, |j| {
            let changes = !j.state.is_final();
            if changes {
                j.state = State::Cancelled;
            }
            changes
        })
        .await?;
        reached(Boundary::JobMarkedCancelled);
    }
    for group in engine.jobs.groups(job, record.generation).await? {
        stand_down(engine, &record, &group, State::Cancelled, None).await?;
    }
    settle_job(engine, job, record.generation).await?;
    engine.queue.purge(job, Some(record.generation)).await?;
    reached(Boundary::MessagesPurged);
    engine.jobs.job(job).await?.ok_or_else(gone)
}

/// Removes what a job that ended unpublished may have left: its branches and its lock in the table, its messages. A
/// cancel that died half way may also have left groups that still stand open.
pub async fn sweep(engine: &Engine, job: &JobRecord) -> Result<()> {
    for group in engine.jobs.groups(&job.job, job.generation).await?.iter().filter(|g| !g.state.is_published()) {
        let group = stand_down(engine, job, group, State::Cancelled, None).await?;
        drop_branch(engine, job, &group).await?; // one that came after the group stood down
    }
    engine.queue.purge(&job.job, Some(job.generation)).await
}
