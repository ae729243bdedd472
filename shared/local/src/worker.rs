//! `timelake worker`: joins running jobs from another process. Claims their units through the ledger, does them, and
//! leaves all decisions (plan, stage, publish) to the process that runs the job.

use crate::lake::Lake;
use crate::presence::Presence;
use crate::runner::{idle, run_workers};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use timelake_engine::inventory::{self, Effort};
use timelake_engine::plan::{PROCESS_BYTES, PlanLimits, WORKER_BYTES};
use timelake_engine::ports::UnitQueue;
use timelake_engine::progress::{Progress, Step, StopFlag};
use timelake_engine::work::{Attempts, Held, Landing, Workers, Writing, is_over};
use timelake_engine::{jobs, store};
use timelake_model::ledger::{JobRecord, Phase, RoundKey, State};
use timelake_model::plan::WritePlan;
use timelake_model::{AttemptId, Error, Kind, Reason, Receipt, Result};
use tokio::runtime::Handle;

/// How often the ledger is asked for jobs that have units.
const POLL: Duration = Duration::from_millis(200);

pub struct WorkerOptions {
    /// Only this job, by its id or the beginning of it.
    pub job: Option<String>,
    pub threads: usize,
    pub memory_bytes: u64,
    /// How long to wait for units while nobody runs a job.
    pub wait: Duration,
}

/// What a worker did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Worked {
    pub units: u64,
    pub rows: u64,
    pub jobs: Vec<String>,
    pub seconds: f64,
}

/// Counts what the phase does in this process.
struct Counted<'a> {
    inner: &'a dyn Attempts,
    units: AtomicU64,
    rows: AtomicU64,
}

impl Attempts for Counted<'_> {
    fn phase(&self) -> Phase {
        self.inner.phase()
    }
    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        let receipt = self.inner.attempt(key, unit, attempt, held, runtime)?;
        let rows = match &receipt {
            Receipt::Write(r) => r.counts.rows_written,
            Receipt::Land(r) => r.rows_parsed,
            Receipt::Refresh(_) => 0,
        };
        self.units.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(receipt)
    }
}

impl Lake {
    /// Works while any job runs, and for `wait` longer; then says what it did.
    pub async fn work(&self, options: &WorkerOptions, progress: &dyn Progress, stop: &StopFlag) -> Result<Worked> {
        let presence = self.announce()?;
        presence.sweep().await?;
        let only = match &options.job {
            Some(text) => Some(jobs::find(&self.engine, text).await?.job),
            None => None,
        };
        let start = Instant::now();
        let mut idle_since = Instant::now();
        let mut worked = Worked::default();
        let mut too_large = BTreeSet::new();
        loop {
            stop.check()?;
            let jobs = self.engine.jobs.jobs(None).await?;
            let open: Vec<JobRecord> =
                jobs.into_iter().filter(|j| !j.state.is_final() && only.as_ref().is_none_or(|id| *id == j.job)).collect();
            let mut any = false;
            for job in &open {
                if too_large.contains(&job.job) {
                    continue;
                }
                let phase = if job.state == State::Landing { Phase::Land } else { Phase::Write };
                if self.ledger.depth(&job.job).await? == 0 || is_over(&self.engine, job, phase).await? {
                    continue;
                }
                match self.help(job, options, &presence, progress, stop, &mut worked).await {
                    Ok(helped) => any |= helped,
                    // Others may be small enough.
                    Err(e) if e.reason == Reason::InvalidOption && only.is_none() => {
                        progress.note(&format!("job {} is left to others: {e}", job.job));
                        too_large.insert(job.job.clone());
                    }
                    Err(e) => return Err(e),
                }
            }
            if any || open.iter().any(|j| self.is_running(&j.job)) {
                idle_since = Instant::now();
            }
            if idle_since.elapsed() >= options.wait {
                break;
            }
            presence.look().await?;
            self.engine.clock.sleep(POLL).await;
        }
        worked.seconds = start.elapsed().as_secs_f64();
        Ok(worked)
    }

    /// Does units of a job until none is left. False: it has none that could be done now.
    async fn help(
        &self,
        job: &JobRecord,
        options: &WorkerOptions,
        presence: &Presence,
        progress: &dyn Progress,
        stop: &StopFlag,
        worked: &mut Worked,
    ) -> Result<bool> {
        let engine = &self.engine;
        let idle = idle(presence);
        let workers = Workers::new(engine, job, progress, stop, &idle);
        let table = match inventory::open_table(engine, &job.table).await {
            Ok(table) => table,
            Err(e) if e.kind == Kind::NotFound => return Ok(false), // whoever runs the job finds out and says so
            Err(e) => return Err(e),
        };
        let spec = inventory::spec(&job.request.rows, &table)?;
        let check_stop = || stop.check();
        let limits = PlanLimits::new(options.memory_bytes, options.threads);
        let effort =
            Effort { limits, threads: limits.threads as usize, sources: &engine.sources, runs_folder: "", check_stop: &check_stop };
        let joins = |step: Step| {
            progress.note(&format!("job {} ({}): joining", job.job, job.table));
            progress.begin(step, None);
        };
        let done = |counted: Counted, step: Step, worked: &mut Worked| {
            progress.end(step);
            let units = counted.units.into_inner();
            worked.units += units;
            worked.rows += counted.rows.into_inner();
            if units > 0 && !worked.jobs.contains(&job.job.to_string()) {
                worked.jobs.push(job.job.to_string());
            }
        };
        if job.state == State::Landing {
            let Some(plan) = store::load_land_plan(engine, &job.job, job.generation).await? else { return Ok(false) };
            let bound = tokio::task::block_in_place(|| inventory::reopen(&plan.inventory, None, &spec, &effort))?;
            let bytes = plan.inventory.objects.iter().map(|o| o.object.size).sum();
            let landing = Landing::new(&workers, &plan, &spec, &bound, limits.buffer_bytes() as usize, bytes);
            let counted = Counted { inner: &landing, units: AtomicU64::new(0), rows: AtomicU64::new(0) };
            joins(Step::Land);
            let outcome = run_workers(presence, &workers, &counted, effort.threads);
            done(counted, Step::Land, worked);
            return outcome.map(|()| true);
        }
        let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? else { return Ok(false) };
        let threads = writing_threads(&stored.plan, options)?;
        let bound = tokio::task::block_in_place(|| inventory::reopen(&stored.inventory, None, &spec, &effort))?;
        let spec = match stored.inventory.landed {
            Some(_) => inventory::run_spec(&stored.inventory)?,
            None => Arc::clone(&spec),
        };
        let writing = Writing::new(&workers, &stored, &spec, &bound);
        let counted = Counted { inner: &writing, units: AtomicU64::new(0), rows: AtomicU64::new(0) };
        joins(Step::Write);
        let outcome = run_workers(presence, &workers, &counted, threads);
        done(counted, Step::Write, worked);
        outcome.map(|()| true)
    }
}

/// Units were planned for the memory of the job's process; this one takes as many at once as it has room for.
fn writing_threads(plan: &WritePlan, options: &WorkerOptions) -> Result<usize> {
    let rows = plan.unit_rows_limit.min(plan.units().map(|(_, u)| u.estimated_rows).max().unwrap_or(0));
    let unit = (rows * plan.row_bytes * 5 / 3).max(WORKER_BYTES);
    let room = options.memory_bytes.saturating_sub(PROCESS_BYTES) / unit;
    // A job's own process writes with one worker, whatever it has: with as much as that, so does this one.
    if room == 0 && unit > WORKER_BYTES {
        let mb = |bytes: u64| bytes.div_ceil(1_000_000);
        return Err(Error::invalid(
            Reason::InvalidOption,
            format!(
                "a unit of job {} takes up to {} MB, this worker has {} MB",
                plan.job,
                mb(unit + PROCESS_BYTES),
                mb(options.memory_bytes)
            ),
        )
        .hint(format!("give it more: --memory {}MB", mb(unit + PROCESS_BYTES)))
        .at(|p| p.option = Some("--memory".into())));
    }
    Ok(options.threads.min(room as usize).max(1))
}
