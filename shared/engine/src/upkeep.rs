//! `backfill gc`: everything that jobs leave behind and nobody needs any more, in the ledger, in job folders, in tables.

use crate::gc::{self, Item, Litter, Sweep};
use crate::{Engine, cancel, store};
use serde::Serialize;
use timelake_model::ledger::{JobRecord, State};
use timelake_model::time::IsoDuration;
use timelake_model::{JobId, Result};

pub struct GcOptions {
    /// The grace period: what was touched since stays.
    pub older_than: IsoDuration,
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Serialize)]
pub struct Collected {
    pub dry_run: bool,
    pub bytes: u64,
    pub items: Vec<Item>,
}

/// Removes what jobs left behind. Jobs that a process is running right now are left alone.
pub async fn collect(engine: &Engine, options: &GcOptions, is_running: &(dyn Fn(&JobId) -> bool + Sync)) -> Result<Collected> {
    let before = options.older_than.before(engine.clock.now());
    let sweep = Sweep { before, dry_run: options.dry_run, is_running };
    let mut items = replaced_jobs(engine, &sweep).await?;
    items.extend(old_runs(engine, &sweep).await?);
    items.extend(gc::tables(engine, &sweep).await?);
    items.sort();
    Ok(Collected { dry_run: options.dry_run, bytes: items.iter().map(|i| i.bytes).sum(), items })
}

/// Jobs that stopped before they had a plan and whose source has changed since: the newer job of the same request
/// does their work, and nothing else ends them.
async fn replaced_jobs(engine: &Engine, sweep: &Sweep<'_>) -> Result<Vec<Item>> {
    let jobs = engine.jobs.jobs(None).await?;
    let mut items = Vec::new();
    for job in jobs.iter().filter(|j| matches!(j.state, State::Planning | State::Landing) && j.updated < sweep.before) {
        let newer = jobs.iter().any(|j| j.request_hash == job.request_hash && j.job != job.job && j.created > job.created);
        if !newer || (sweep.is_running)(&job.job) {
            continue;
        }
        if !sweep.dry_run {
            cancel::cancel(engine, &job.job).await?;
        }
        items.push(Item {
            kind: Litter::Job,
            table: job.table.clone(),
            job: job.job.to_string(),
            name: job.job.to_string(),
            bytes: 0,
            why: "a newer job of the same request took its place",
        });
    }
    Ok(items)
}

/// Runs of jobs that are over; the jobs of the step before count as such.
async fn old_runs(engine: &Engine, sweep: &Sweep<'_>) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for job in engine.jobs.jobs(None).await? {
        for generation in 1..=job.generation {
            if !is_over(&job, generation) || job.request.run.keep_runs && job.state.is_published() || (sweep.is_running)(&job.job) {
                continue;
            }
            // A damaged job folder holds no runs that anybody could find.
            let Ok(Some(plan)) = store::load_land_plan(engine, &job.job, generation).await else { continue };
            let files = engine.objects.list(&plan.folder).await?;
            if files.is_empty() || files.iter().any(|f| f.modified >= sweep.before) {
                continue;
            }
            if !sweep.dry_run {
                for file in &files {
                    engine.objects.delete(&file.uri).await?;
                }
            }
            items.push(Item {
                kind: Litter::Runs,
                table: job.table.clone(),
                job: job.job.to_string(),
                name: plan.folder,
                bytes: files.iter().map(|f| f.size).sum(),
                why: "its job is over",
            });
        }
    }
    Ok(items)
}

fn is_over(job: &JobRecord, generation: u32) -> bool {
    generation < job.generation || job.state.is_final()
}
