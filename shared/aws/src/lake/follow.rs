//! Watches a job that functions run, by the ledger alone, until it is over.

use super::machine::{Stands, StateMachine};
use std::time::Duration;
use timelake_engine::progress::{Progress, Step, StopFlag};
use timelake_engine::rounds::round_key;
use timelake_engine::{Engine, jobs, land, report, store};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, State};
use timelake_model::{Error, JobId, Reason, Result};

/// Between two looks: from the first on, growing while nothing changes.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How soon a watching person is answered.
const SLICE: Duration = Duration::from_millis(100);

/// What is watched, and how.
pub(super) struct Follow<'a> {
    pub engine: &'a Engine,
    pub machine: &'a StateMachine,
    /// Of this life, if it is being planned.
    pub execution: Option<&'a str>,
    /// The job is over when it is staged and validated.
    pub stage_only: bool,
    pub progress: &'a dyn Progress,
    pub stop: &'a StopFlag,
}

/// What a look into the ledger found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    step: Step,
    /// Rounds of all groups: a new one starts the step again.
    round: u32,
    rows: u64,
}

impl Follow<'_> {
    /// The job as it stands when it is over.
    pub async fn to_its_end(&self, job: &JobId, generation: u32) -> Result<JobRecord> {
        let mut shown: Option<Seen> = None;
        let ended = self.watch(job, generation, &mut shown).await;
        if let Some(seen) = shown {
            self.progress.end(seen.step);
        }
        ended
    }

    async fn watch(&self, id: &JobId, generation: u32, shown: &mut Option<Seen>) -> Result<JobRecord> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.check_stop(id).await?;
            let job = self.load(id, generation).await?;
            let groups = self.engine.jobs.groups(id, generation).await?;
            if self.is_over(&job, &groups).await? {
                return Ok(job);
            }
            let seen = self.look(&job, &groups).await?;
            let changed = self.show(shown, seen, &job, &groups).await?;
            self.check_planning(&job).await?;
            pause = if changed { FIRST_PAUSE } else { (pause * 3 / 2).min(LONGEST_PAUSE) };
            self.wait(id, pause).await?;
        }
    }

    async fn load(&self, id: &JobId, generation: u32) -> Result<JobRecord> {
        let job = self.engine.jobs.job(id).await?.ok_or_else(|| Error::internal(format!("job {id} is gone from the ledger")))?;
        if job.generation != generation {
            return Err(jobs::cancelled(&job)); // and started anew
        }
        Ok(job)
    }

    async fn is_over(&self, job: &JobRecord, groups: &[GroupRecord]) -> Result<bool> {
        Ok(match job.state {
            State::Refreshed | State::Hold | State::Rejected | State::Cancelled | State::RolledBack => true,
            // Its rows are on main; that its feed does not know is tried again by the sweeper.
            State::Published => groups.iter().any(|g| g.state == State::Published && g.error.is_some()),
            // Whoever validated it keeps its manifest.
            State::Staged if self.stage_only => report::kept(self.engine, job).await.is_some_and(|kept| {
                let round = |group: &GroupRecord| kept.groups.iter().any(|k| k.group == group.group.0 && k.round == group.round);
                kept.state == State::Staged && groups.iter().all(round)
            }),
            _ => false,
        })
    }

    async fn look(&self, job: &JobRecord, groups: &[GroupRecord]) -> Result<Seen> {
        let seen = |step, round, counters: &[CounterRecord]| Seen { step, round, rows: counters.iter().map(|c| c.rows).sum() };
        Ok(match job.state {
            State::Planning => seen(Step::Plan, 0, &[]),
            State::Landing => match land::newest_round(self.engine, job).await? {
                Some(key) => seen(Step::Land, key.round, &self.engine.jobs.counters(&key).await?),
                None => seen(Step::Land, 0, &[]),
            },
            State::Writing => {
                let mut counters = Vec::new();
                for group in groups.iter().filter(|g| g.state == State::Writing) {
                    counters.extend(self.engine.jobs.counters(&round_key(group, group.round)).await?);
                }
                let done = !counters.is_empty() && counters.iter().all(|c| c.remaining == 0);
                let step = if done { Step::Stage } else { Step::Write };
                Seen { rows: if done { 0 } else { counters.iter().map(|c| c.rows).sum() }, ..seen(step, rounds_of(groups), &[]) }
            }
            State::Published => seen(Step::Refresh, 0, &[]),
            _ => seen(Step::Validate, rounds_of(groups), &[]),
        })
    }

    /// Tells the difference to what was shown before; whether there is one.
    async fn show(&self, shown: &mut Option<Seen>, seen: Seen, job: &JobRecord, groups: &[GroupRecord]) -> Result<bool> {
        let same = shown.filter(|before| (before.step, before.round) == (seen.step, seen.round));
        let Some(before) = same else {
            if let Some(before) = shown.take() {
                self.progress.end(before.step);
            }
            let total = if seen.step == Step::Write { self.rows_to_write(job, groups).await? } else { None };
            self.progress.begin(seen.step, total);
            self.progress.advance(seen.step, seen.rows);
            *shown = Some(seen);
            return Ok(true);
        };
        let more = seen.rows.saturating_sub(before.rows);
        if more > 0 {
            self.progress.advance(seen.step, more);
            *shown = Some(seen);
        }
        Ok(more > 0)
    }

    /// By the plan, which is read once a round.
    async fn rows_to_write(&self, job: &JobRecord, groups: &[GroupRecord]) -> Result<Option<u64>> {
        let Some(stored) = store::load_plan(self.engine, &job.job, job.generation).await? else { return Ok(None) };
        let mut rows = 0;
        for group in groups.iter().filter(|g| g.state == State::Writing) {
            let Some(round) = self.engine.jobs.plan(&round_key(group, group.round)).await? else { return Ok(None) };
            let planned = stored.plan.group(&group.group).into_iter().flat_map(|g| &g.units);
            rows += planned.filter(|u| round.units.binary_search(&u.index).is_ok()).map(|u| u.estimated_rows).sum::<u64>();
        }
        Ok(Some(rows))
    }

    /// Without a plan nobody but the state machine goes on with the job.
    async fn check_planning(&self, job: &JobRecord) -> Result<()> {
        if !matches!(job.state, State::Planning | State::Landing) {
            return Ok(());
        }
        if let Some(error) = &job.error {
            return Err(error.clone());
        }
        let Some(execution) = self.execution.filter(|_| job.state == State::Planning) else { return Ok(()) };
        let Stands::Failed(error) = self.machine.stands(execution).await? else { return Ok(()) };
        // It may have told the ledger just before.
        match self.load(&job.job, job.generation).await?.state {
            State::Planning => Err(error.at(|p| p.job = Some(job.job.to_string()))),
            _ => Ok(()),
        }
    }

    async fn wait(&self, job: &JobId, pause: Duration) -> Result<()> {
        let mut waited = Duration::ZERO;
        while waited < pause {
            self.check_stop(job).await?;
            self.engine.clock.sleep(SLICE).await;
            waited += SLICE;
        }
        Ok(())
    }

    async fn check_stop(&self, job: &JobId) -> Result<()> {
        if !self.stop.is_set() {
            return Ok(());
        }
        let done = jobs::done_so_far(self.engine, job).await.filter(|done| !done.is_empty());
        let done = done.map_or(String::new(), |done| format!("; so far {done}"));
        Err(Error::unavailable(Reason::Interrupted, format!("job {job} goes on without this command{done}"))
            .hint("the same command follows it again; timelake backfill cancel gives it up")
            .at(|p| p.job = Some(job.to_string())))
    }
}

fn rounds_of(groups: &[GroupRecord]) -> u32 {
    groups.iter().map(|g| g.round).sum()
}
