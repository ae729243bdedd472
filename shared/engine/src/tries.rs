//! The try rule of every commit: a refused or unclear commit is tried again from a fresh load, with jitter,
//! a bounded number of times. What the commit was for is looked up in the loaded table, so that a commit
//! whose answer was lost is found done.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::ports::Clock;
use std::time::Duration;
use timelake_model::ledger::{GroupRecord, JobRecord, State, job_state};
use timelake_model::{Error, JobId, Reason, Result};

/// Live writers that commit all the time must not starve us: the iceberg crate's four tries are too few.
pub const MAX_TRIES: u32 = 20;
const FIRST_PAUSE_MS: u64 = 20;
const MAX_PAUSE_MS: u64 = 2_000;

pub struct Tries<'a> {
    clock: &'a dyn Clock,
    what: String,
    made: u32,
}

impl<'a> Tries<'a> {
    pub fn new(clock: &'a dyn Clock, what: impl Into<String>) -> Self {
        Tries { clock, what: what.into(), made: 0 }
    }

    /// Waits before the next try, or gives up.
    pub async fn again(&mut self, why: &str) -> Result<()> {
        self.made += 1;
        if self.made >= MAX_TRIES {
            return Err(Error::unavailable(
                Reason::CommitConflict,
                format!("{} was refused {MAX_TRIES} times, last because {why}", self.what),
            )
            .hint("other writers commit to this table without a pause; run the same command again"));
        }
        tracing::debug!(what = self.what, made = self.made, why, "trying a commit again");
        let ceiling = (FIRST_PAUSE_MS << self.made.min(10)).min(MAX_PAUSE_MS);
        let pause = ceiling / 2 + self.clock.random() % (ceiling / 2 + 1);
        self.clock.sleep(Duration::from_millis(pause)).await;
        Ok(())
    }
}

/// A snapshot id that the table does not use yet.
pub fn new_snapshot_id(clock: &dyn Clock, table: &iceberg::table::Table) -> i64 {
    loop {
        let id = (clock.random() >> 1) as i64;
        if id > 0 && table.metadata().snapshot_by_id(id).is_none() {
            return id;
        }
    }
}

/// Changes a group by compare-and-swap: `change` is applied to the stored record and repeated when somebody
/// else was faster. `change` returns false when there is nothing to do any more.
pub async fn change_group(engine: &Engine, group: &GroupRecord, mut change: impl FnMut(&mut GroupRecord) -> bool) -> Result<GroupRecord> {
    for _ in 0..MAX_TRIES {
        let mut now = engine
            .jobs
            .group(&group.job, group.generation, &group.group)
            .await?
            .ok_or_else(|| Error::internal(format!("group {} of job {} is gone from the ledger", group.group, group.job)))?;
        if !change(&mut now) {
            return Ok(now);
        }
        if let Some(stored) = engine.jobs.update_group(&now).await? {
            return Ok(stored);
        }
    }
    Err(Error::unavailable(Reason::CommitConflict, format!("group {} of job {} is changed by others all the time", group.group, group.job)))
}

/// Changes a job by compare-and-swap, as [`change_group`] does a group. `None`: it has another generation by now.
pub async fn change_job(
    engine: &Engine,
    job: &JobId,
    generation: u32,
    mut change: impl FnMut(&mut JobRecord) -> bool,
) -> Result<Option<JobRecord>> {
    for _ in 0..MAX_TRIES {
        let mut now = engine.jobs.job(job).await?.ok_or_else(|| Error::internal(format!("job {job} is gone from the ledger")))?;
        if now.generation != generation {
            return Ok(None);
        }
        if !change(&mut now) {
            return Ok(Some(now));
        }
        now.updated = engine.clock.now();
        if let Some(stored) = engine.jobs.update_job(generation, &now).await? {
            return Ok(Some(stored));
        }
    }
    Err(changed_all_the_time(job))
}

/// Writes the job's state from its groups' states, and looks again after it wrote: whoever read the groups earlier and
/// writes the job later has the last word, so it must be a true one.
pub async fn settle_job(engine: &Engine, job: &JobId, generation: u32) -> Result<()> {
    for _ in 0..MAX_TRIES {
        let now = engine.jobs.job(job).await?.ok_or_else(|| Error::internal(format!("job {job} is gone from the ledger")))?;
        let groups = engine.jobs.groups(job, generation).await?;
        if groups.is_empty() {
            return Ok(());
        }
        let state = job_state(groups.iter().map(|g| g.state));
        let error = groups.iter().find_map(|g| g.error.clone());
        // A cancel's word stands until the run that is just writing its groups has looked at the job.
        let told = now.state == State::Cancelled && state == State::Planning;
        if told || now.generation != generation || (now.state == state && now.error == error) {
            reached(Boundary::JobSettled);
            return Ok(());
        }
        engine.jobs.update_job(generation, &JobRecord { state, error, updated: engine.clock.now(), ..now }).await?;
    }
    Err(changed_all_the_time(job))
}

fn changed_all_the_time(job: &JobId) -> Error {
    Error::unavailable(Reason::CommitConflict, format!("job {job} is changed by others all the time"))
}
