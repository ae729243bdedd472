//! Runs a job in this process, from wherever it stands to where it stops: the embedded fan-out and fan-in.

use crate::landing;
use crate::presence::Presence;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;
use timelake_engine::advance::{self, Hands, Life};
use timelake_engine::boundary::{Boundary, reached};
use timelake_engine::inventory::{self, Effort, OpenTable, Taken};
use timelake_engine::jobs::{self, cancelled};
use timelake_engine::plan::{self, PlanLimits};
use timelake_engine::progress::{Progress, Step, StopFlag};
use timelake_engine::rounds;
use timelake_engine::store::{self, StoredPlan};
use timelake_engine::validate::{self, Effort as Validation, ReadBack};
use timelake_engine::work::{Attempts, Landing, Workers, Writing, work};
use timelake_engine::{Engine, land, layouts, report};
use timelake_model::inventory::SourceObject;
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitRecord, UnitState};
use timelake_model::manifest::{RunManifest, StepTime};
use timelake_model::request::RunOptions;
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Error, LandPlan, LandReceipt, Reason, Result, UnitReceipt, WritePlan};
use timelake_source::{BoundObjects, SourceSpec};
use tokio::runtime::Handle;

/// How far, and how.
pub struct Run<'a> {
    pub stage_only: bool,
    /// The user asked to go on: a HOLD is tried again.
    pub resume: bool,
    pub options: &'a RunOptions,
    /// What units are sized for.
    pub limits: PlanLimits,
    /// Units that are done at a time.
    pub threads: usize,
    pub read_back: ReadBack,
    /// Of each file only so many rows are read.
    pub first_rows: Option<u64>,
    /// The work is divided as this plan does.
    pub other_plan: Option<&'a WritePlan>,
}

impl<'a> Run<'a> {
    pub fn new(options: &'a RunOptions, stage_only: bool, resume: bool) -> Run<'a> {
        // A unit's memory is planned for as many threads; more would break the bound.
        let limits = PlanLimits::new(options.memory_bytes, options.threads);
        let (threads, read_back) = (limits.threads as usize, ReadBack::of(options.verify_full));
        Run { stage_only, resume, options, limits, threads, read_back, first_rows: None, other_plan: None }
    }
}

pub struct Runner<'a> {
    engine: &'a Engine,
    presence: &'a Presence,
    progress: &'a dyn Progress,
    stop: &'a StopFlag,
    steps: Vec<StepTime>,
    checks: Vec<Check>,
}

enum Planned {
    Ready(Box<JobRecord>, Box<StoredPlan>),
    /// Landing found that nothing can be loaded.
    Rejected(Box<JobRecord>),
}

/// The source as this process reads it; opened when units are to be written.
struct Source {
    spec: Arc<SourceSpec>,
    bound: Option<BoundObjects>,
}

/// A process that does the units of its job itself.
struct AtWork<'a, 'r> {
    runner: &'a mut Runner<'r>,
    job: &'a JobRecord,
    stored: &'a StoredPlan,
    source: Source,
    run: &'a Run<'a>,
}

impl<'a> Runner<'a> {
    pub fn new(engine: &'a Engine, presence: &'a Presence, progress: &'a dyn Progress, stop: &'a StopFlag) -> Self {
        Runner { engine, presence, progress, stop, steps: vec![], checks: vec![] }
    }

    /// Runs the job; the manifest says how it stands then. The caller holds the job's lock.
    pub async fn run(mut self, job: JobRecord, table: OpenTable, objects: Option<Vec<SourceObject>>, run: &Run<'_>) -> Result<RunManifest> {
        self.presence.sweep().await?;
        let generation = job.generation;
        let mut spec = inventory::spec(&job.request.rows, &table)?;
        if let Some(rows) = run.first_rows {
            spec = Arc::new(spec.with_first_rows(rows));
        }
        let mut source = Source { spec, bound: None };
        let job = match self.planned(job, &table, objects, &mut source, run).await? {
            Planned::Rejected(job) => *job,
            Planned::Ready(job, stored) => {
                let life = Life { engine: self.engine, job: &job, stored: &stored, resume: run.resume, stage_only: run.stage_only };
                life.open().await?;
                life.go_on(&mut AtWork { runner: &mut self, job: &job, stored: &stored, source, run }).await?;
                self.engine.jobs.job(&job.job).await?.ok_or_else(|| Error::internal("the job is gone from the ledger"))?
            }
        };
        if job.generation != generation {
            return Err(cancelled(&job)); // and started anew by another process
        }
        if job.state.is_final() && !run.options.keep_runs {
            landing::remove_runs(self.engine, &job).await?;
            reached(Boundary::RunsRemoved);
        }
        if job.state == State::Cancelled {
            return Err(cancelled(&job));
        }
        let mut manifest = report::manifest(self.engine, &job).await?;
        manifest.steps = self.steps;
        manifest.checks = self.checks;
        manifest.peak_memory_bytes = peak_memory_bytes();
        report::store(self.engine, &manifest).await?;
        Ok(manifest)
    }

    async fn timed<T>(&mut self, step: Step, rows: Option<u64>, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.progress.begin(step, rows);
        let start = Instant::now();
        let result = future.await;
        self.progress.end(step);
        let seconds = start.elapsed().as_secs_f64();
        match self.steps.iter_mut().find(|s| s.step == step.name()) {
            Some(known) => known.seconds += seconds,
            None => self.steps.push(StepTime { step: step.name().into(), seconds }),
        }
        result
    }

    /// The job's plan: stored, or made now; landing comes before it where the source needs that.
    async fn planned(
        &mut self,
        job: JobRecord,
        table: &OpenTable,
        objects: Option<Vec<SourceObject>>,
        source: &mut Source,
        run: &Run<'_>,
    ) -> Result<Planned> {
        let engine = self.engine;
        if let Some(stored) = store::load_plan(engine, &job.job, job.generation).await? {
            if run.other_plan.is_some_and(|other| !plan::is_divided_as(&stored.plan, other)) {
                return Err(jobs::has_another_plan(&job));
            }
            return Ok(Planned::Ready(Box::new(job), Box::new(stored)));
        }
        let to_land = store::load_land_plan(engine, &job.job, job.generation).await?;
        if to_land.is_none() && objects.is_none() {
            return Err(Error::conflict(Reason::WrongState, format!("job {} was stopped before it had a plan", job.job))
                .hint("run its command again"));
        }
        let made = self.plan_source(&job, table, objects.unwrap_or_default(), to_land, source, run).await;
        let stored = match made {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                let job = engine.jobs.job(&job.job).await?.ok_or_else(|| Error::internal("the job is gone from the ledger"))?;
                return Ok(Planned::Rejected(Box::new(job)));
            }
            Err(e) => {
                advance::give_up_planning(engine, &job, &e).await?;
                let now = engine.jobs.job(&job.job).await?;
                if now.is_some_and(|now| now.state.is_final()) {
                    landing::remove_runs(engine, &job).await?;
                }
                return Err(e);
            }
        };
        Ok(Planned::Ready(Box::new(job), Box::new(stored)))
    }

    /// `None`: landing found that nothing can be loaded, and the job is REJECTED.
    async fn plan_source(
        &mut self,
        job: &JobRecord,
        table: &OpenTable,
        objects: Vec<SourceObject>,
        to_land: Option<LandPlan>,
        source: &mut Source,
        run: &Run<'_>,
    ) -> Result<Option<StoredPlan>> {
        let engine = self.engine;
        let stop = self.stop;
        let check_stop = move || stop.check();
        let Run { limits, threads, .. } = *run;
        let runs_folder = landing::runs_folder(engine, job, run.options)?;
        let effort = Effort { limits, threads, sources: &engine.sources, runs_folder: &runs_folder, check_stop: &check_stop };
        let spec = source.spec.clone();
        let table = &layouts::with_specs(engine, table).await?;
        let taken = match to_land {
            Some(plan) => Taken::ToLand { plan: Box::new(plan), bound: BoundObjects::new() },
            None => self.timed(Step::Inventory, None, inventory::take(table, job, &objects, &spec, &effort)).await?,
        };
        let (found, bound) = match taken {
            Taken::Direct { inventory, bound } => (*inventory, bound),
            Taken::ToLand { plan, bound } => {
                let Some((plan, receipts)) = self.land(job, *plan, bound, &spec, &effort).await? else { return Ok(None) };
                // The table may have got rows meanwhile.
                let table = layouts::with_specs(engine, &inventory::open_table(engine, &job.table).await?).await?;
                inventory::of_runs(&table, job, &plan, &receipts, &effort).await?
            }
        };
        let planned: Vec<SourceObject> = found.objects.iter().map(|o| o.object.clone()).collect();
        let stored = self.timed(Step::Plan, None, advance::store_plan(engine, job, found, limits, run.other_plan)).await?;
        // The bound objects are those of this inventory only if nobody else stored one first.
        let same = stored.inventory.objects.iter().map(|o| &o.object).eq(planned.iter());
        source.bound = same.then_some(bound);
        Ok(Some(stored))
    }

    /// Lands the source. `None`: it holds rows that stop the job, which is REJECTED.
    async fn land(
        &mut self,
        job: &JobRecord,
        plan: LandPlan,
        bound: BoundObjects,
        spec: &Arc<SourceSpec>,
        effort: &Effort<'_>,
    ) -> Result<Option<(LandPlan, Vec<LandReceipt>)>> {
        let engine = self.engine;
        let ours = plan.clone();
        let (plan, pending) = land::begin(engine, job, plan).await?;
        if !pending.is_empty() {
            if spec.first_rows().is_none() {
                landing::check_space(&plan, &pending)?;
            }
            let bound = match bound.is_empty() || plan != ours {
                true => inventory::reopen(&plan.inventory, None, spec, effort)?,
                false => bound,
            };
            let idle = idle(self.presence);
            let workers = Workers::new(engine, job, self.progress, self.stop, &idle);
            let buffer = effort.limits.buffer_bytes() as usize;
            let bytes = pending.iter().filter_map(|i| plan.inventory.objects.get(*i as usize)).map(|o| o.object.size).sum();
            let landing = Landing::new(&workers, &plan, spec, &bound, buffer, bytes);
            let count = effort.threads.min(pending.len());
            self.timed(Step::Land, None, async { run_workers(self.presence, &workers, &landing, count) }).await?;
        }
        // Another process may have cancelled it meanwhile: then splits are left, and none of them is waited for.
        let now = engine.jobs.job(&job.job).await?.ok_or_else(|| Error::internal("the job is gone from the ledger"))?;
        if now.generation != job.generation {
            return Err(cancelled(job));
        }
        if now.state.is_final() {
            return Ok(None);
        }
        let receipts = land::receipts(engine, job, &plan).await?;
        landing::list_rejected(engine, job, &receipts).await?;
        reached(Boundary::RejectedListed);
        Ok(land::judge(engine, job, &receipts).await?.then_some((plan, receipts)))
    }
}

impl Hands for AtWork<'_, '_> {
    fn turn(&mut self, _group: &GroupRecord) -> Result<bool> {
        self.runner.stop.check().map(|()| true)
    }

    async fn write(&mut self, group: &GroupRecord) -> Result<bool> {
        let AtWork { job, stored, run: &Run { limits, threads, .. }, .. } = *self;
        let Runner { engine, presence, progress, stop, .. } = *self.runner;
        if rounds::resend_pending(engine, group).await? == 0 {
            return Ok(true);
        }
        if self.source.bound.is_none() {
            let check_stop = move || stop.check();
            let effort = Effort { limits, threads, sources: &engine.sources, runs_folder: "", check_stop: &check_stop };
            let bound = tokio::task::block_in_place(|| inventory::reopen(&stored.inventory, None, &self.source.spec, &effort))?;
            self.source.bound = Some(bound);
        }
        let Some(bound) = &self.source.bound else { return Err(Error::internal("the source is not open")) };
        let spec = match stored.inventory.landed {
            Some(_) => inventory::run_spec(&stored.inventory)?,
            None => self.source.spec.clone(),
        };
        let idle = idle(presence);
        let workers = Workers::new(engine, job, progress, stop, &idle);
        let writing = Writing::new(&workers, stored, &spec, bound);
        let rows = rows_to_read(stored, &rounds::latest_units(engine, group).await?);
        let count = threads.min(stored.plan.units().count());
        self.runner.timed(Step::Write, Some(rows), async { run_workers(presence, &workers, &writing, count) }).await?;
        stop.check()?;
        Ok(true)
    }

    async fn validate(&mut self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<Verdict> {
        let AtWork { job, stored, run, .. } = *self;
        let Runner { engine, progress, stop, .. } = *self.runner;
        let effort = Validation { read_back: run.read_back, threads: run.options.threads, progress, stop };
        let rows = receipts.iter().map(|r| r.counts.rows_written).sum();
        self.runner.timed(Step::Validate, Some(rows), validate::validate(engine, job, stored, group, receipts, &effort)).await
    }

    async fn stage<T>(&mut self, stage: impl Future<Output = Result<T>>) -> Result<T> {
        self.runner.timed(Step::Stage, None, stage).await
    }

    async fn publish<T>(&mut self, publish: impl Future<Output = Result<T>>) -> Result<T> {
        self.runner.timed(Step::Publish, None, publish).await
    }

    fn approved(&mut self, checks: Vec<Check>) {
        self.runner.checks = checks;
    }

    fn note(&mut self, text: &str) {
        self.runner.progress.note(text);
    }
}

/// What workers do while others hold all messages.
pub(crate) fn idle(presence: &Presence) -> impl Fn() -> Result<()> + Sync + '_ {
    let runtime = Handle::current();
    move || runtime.block_on(presence.look())
}

/// Some threads work off the messages of a phase; the first error ends them all.
pub(crate) fn run_workers(presence: &Presence, workers: &Workers, phase: &dyn Attempts, count: usize) -> Result<()> {
    let runtime = Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let runtime = &runtime;
            let handles: Vec<_> = (0..count.max(1))
                .map(|i| {
                    scope.spawn(move || {
                        let result = work(workers, presence.queue(), phase, &presence.owner(i), runtime);
                        if result.is_err() {
                            workers.give_up();
                        }
                        result
                    })
                })
                .collect();
            let mut first = Ok(());
            for handle in handles {
                let result = handle.join().unwrap_or_else(|_| Err(Error::internal("a worker panicked")));
                first = first.and(result);
            }
            first
        })
    })
}

/// Rows of the row groups that pending units own: each is counted once.
fn rows_to_read(stored: &StoredPlan, units: &[UnitRecord]) -> u64 {
    let pending = |index: u32| units.iter().any(|u| u.unit == index && u.state == UnitState::Pending);
    let owned = stored.plan.units().filter(|(_, u)| pending(u.index)).flat_map(|(_, u)| &u.owns);
    owned.flat_map(|i| i.row_groups.iter().map(|g| stored.inventory.objects[i.object as usize].row_groups[*g as usize].rows)).sum()
}

/// The most memory this process ever had, where the system says it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
}
