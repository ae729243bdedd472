//! Gives a job up: `main` stays as it was, branch, staged snapshots and lock go. If a group was published
//! before the branch could be removed, it stays published, and cancel says so.

use crate::Engine;
use crate::publish::drop_branch;
use crate::rounds::round_key;
use crate::tries::{change_group, settle_job};
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
    if group.state.is_final() {
        return Ok(group);
    }
    let published = drop_branch(engine, job, &group).await?;
    for round in 0..=group.round {
        engine.jobs.close_round(&round_key(&group, round)).await?;
    }
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
}

/// Cancels all groups of the job's current generation.
pub async fn cancel(engine: &Engine, job: &JobId) -> Result<JobRecord> {
    let Some(record) = engine.jobs.job(job).await? else {
        return Err(Error::internal(format!("job {job} is gone from the ledger")));
    };
    engine.queue.purge(job, None).await?;
    let groups = engine.jobs.groups(job, record.generation).await?;
    for group in &groups {
        stand_down(engine, &record, group, State::Cancelled, None).await?;
    }
    if groups.is_empty() {
        // Planning had not come to the ledger's groups: there is no branch either.
        let mut record = record;
        record.state = State::Cancelled;
        record.updated = engine.clock.now();
        engine.jobs.update_job(record.generation, &record).await?;
        return Ok(record);
    }
    settle_job(engine, job, record.generation).await?.ok_or_else(|| Error::internal(format!("job {job} is gone from the ledger")))
}
