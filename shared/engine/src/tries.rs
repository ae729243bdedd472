//! The try rule of every commit: a refused or unclear commit is tried again from a fresh load, with jitter,
//! a bounded number of times. What the commit was for is looked up in the loaded table, so that a commit
//! whose answer was lost is found done.

use crate::Engine;
use std::time::Duration;
use timelake_model::{Error, Reason, Result};

/// Live writers that commit all the time must not starve us: the iceberg crate's four tries are too few.
pub const MAX_TRIES: u32 = 20;
const FIRST_PAUSE_MS: u64 = 20;
const MAX_PAUSE_MS: u64 = 2_000;

pub struct Tries<'a> {
    engine: &'a Engine,
    what: String,
    made: u32,
}

impl<'a> Tries<'a> {
    pub fn new(engine: &'a Engine, what: impl Into<String>) -> Self {
        Tries { engine, what: what.into(), made: 0 }
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
        let pause = ceiling / 2 + self.engine.clock.random() % (ceiling / 2 + 1);
        self.engine.clock.sleep(Duration::from_millis(pause)).await;
        Ok(())
    }
}

/// A snapshot id that the table does not use yet.
pub fn new_snapshot_id(engine: &Engine, table: &iceberg::table::Table) -> i64 {
    loop {
        let id = (engine.clock.random() >> 1) as i64;
        if id > 0 && table.metadata().snapshot_by_id(id).is_none() {
            return id;
        }
    }
}

/// Changes a group by compare-and-swap: `change` is applied to the stored record and repeated when somebody
/// else was faster. `change` returns false when there is nothing to do any more.
pub async fn change_group(
    engine: &Engine,
    group: &timelake_model::ledger::GroupRecord,
    mut change: impl FnMut(&mut timelake_model::ledger::GroupRecord) -> bool,
) -> Result<timelake_model::ledger::GroupRecord> {
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

/// Writes the job's state from its groups' states.
pub async fn settle_job(
    engine: &Engine,
    job: &timelake_model::JobId,
    generation: u32,
) -> Result<Option<timelake_model::ledger::JobRecord>> {
    let groups = engine.jobs.groups(job, generation).await?;
    let Some(mut record) = engine.jobs.job(job).await? else { return Ok(None) };
    if record.generation != generation {
        return Ok(Some(record));
    }
    record.state = timelake_model::ledger::job_state(groups.iter().map(|g| g.state));
    record.error = groups.iter().find_map(|g| g.error.clone());
    record.updated = engine.clock.now();
    engine.jobs.update_job(generation, &record).await?;
    Ok(Some(record))
}
