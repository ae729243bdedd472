//! Runs a job in this process, from wherever it stands to where it stops: the embedded fan-out and fan-in.

use crate::landing;
use crate::presence::Presence;
use std::sync::Arc;
use std::time::Instant;
use timelake_engine::boundary::{Boundary, reached};
use timelake_engine::inventory::{self, Effort, OpenTable, Taken};
use timelake_engine::plan::{self, PlanLimits};
use timelake_engine::progress::{Progress, Step, StopFlag};
use timelake_engine::publish::{self, Published};
use timelake_engine::rounds::{self, Again};
use timelake_engine::store::{self, StoredPlan};
use timelake_engine::tries::{change_group, change_job, settle_job};
use timelake_engine::validate::{self, Effort as Validation};
use timelake_engine::work::{Attempts, Landing, Workers, Writing, work};
use timelake_engine::{Engine, cancel, land, layouts, report, stage};
use timelake_model::inventory::SourceObject;
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitRecord, UnitState};
use timelake_model::manifest::{RunManifest, StepTime};
use timelake_model::request::RunOptions;
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Error, Kind, LandPlan, LandReceipt, Reason, Result, UnitReceipt};
use timelake_source::{BoundObject, SourceSpec};
use tokio::runtime::Handle;

/// How far, and how.
pub struct Run<'a> {
    pub stage_only: bool,
    /// The user asked to go on: a HOLD is tried again.
    pub resume: bool,
    pub options: &'a RunOptions,
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
    bound: Option<Vec<BoundObject>>,
}

impl<'a> Runner<'a> {
    pub fn new(engine: &'a Engine, presence: &'a Presence, progress: &'a dyn Progress, stop: &'a StopFlag) -> Self {
        Runner { engine, presence, progress, stop, steps: vec![], checks: vec![] }
    }

    /// Runs the job; the manifest says how it stands then. The caller holds the job's lock.
    pub async fn run(mut self, job: JobRecord, table: OpenTable, objects: Option<Vec<SourceObject>>, run: &Run<'_>) -> Result<RunManifest> {
        self.presence.sweep().await?;
        let generation = job.generation;
        let spec = inventory::spec(&job.request.rows, &table)?;
        let mut source = Source { spec, bound: None };
        let job = match self.planned(job, &table, objects, &mut source, run).await? {
            Planned::Rejected(job) => *job,
            Planned::Ready(job, stored) => {
                self.publish_groups(&job, &stored, &mut source, run).await?;
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
        let bytes = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::internal(e.to_string()))?;
        self.engine.objects.put(&store::manifest_uri(self.engine, &job.job), bytes.into()).await?;
        reached(Boundary::ManifestStored);
        Ok(manifest)
    }

    async fn publish_groups(&mut self, job: &JobRecord, stored: &StoredPlan, source: &mut Source, run: &Run<'_>) -> Result<()> {
        if let Err(e) = rounds::open_generation(self.engine, job, stored).await {
            if e.kind == Kind::Conflict {
                // Nothing is written yet: a later run of the command makes a new plan.
                for group in self.engine.jobs.groups(&job.job, job.generation).await?.iter().filter(|g| g.state == State::Planning) {
                    cancel::stand_down(self.engine, job, group, State::Rejected, Some(e.clone())).await?;
                }
                settle_job(self.engine, &job.job, job.generation).await?;
            }
            return Err(e);
        }
        for group in self.engine.jobs.groups(&job.job, job.generation).await? {
            let outcome = self.group(job, stored, source, group, run).await;
            settle_job(self.engine, &job.job, job.generation).await?;
            outcome?;
        }
        Ok(())
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
                self.give_up_planning(&job, &e).await?;
                let now = engine.jobs.job(&job.job).await?;
                if now.is_some_and(|now| now.state.is_final()) {
                    landing::remove_runs(engine, &job).await?;
                }
                return Err(e);
            }
        };
        let window = stored.plan.window;
        let changed = change_job(engine, &job.job, job.generation, |j| {
            let changes = j.window != window && !j.state.is_final();
            j.window = window;
            changes
        })
        .await?;
        // Another generation: `open_generation` finds out and stands this one down.
        Ok(Planned::Ready(Box::new(changed.unwrap_or(job)), Box::new(stored)))
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
        let limits = PlanLimits::new(run.options.memory_bytes, run.options.threads);
        let runs_folder = landing::runs_folder(engine, job, run.options)?;
        let effort = Effort { limits, runs_folder: &runs_folder, check_stop: &check_stop };
        let spec = source.spec.clone();
        let table = &layouts::with_specs(engine, table).await?;
        let taken = match to_land {
            Some(plan) => Taken::ToLand { plan: Box::new(plan), bound: vec![] },
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
        let stored = self
            .timed(Step::Plan, None, async {
                store::store_plan(
                    engine,
                    found,
                    |inventory| {
                        let plan = plan::plan(inventory, &job.job, job.generation, limits)?;
                        plan::check(&plan, inventory)?;
                        Ok(plan)
                    },
                    &job.job,
                    job.generation,
                )
                .await
            })
            .await?;
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
        bound: Vec<BoundObject>,
        spec: &Arc<SourceSpec>,
        effort: &Effort<'_>,
    ) -> Result<Option<(LandPlan, Vec<LandReceipt>)>> {
        let engine = self.engine;
        let ours = plan.clone();
        let plan = store::store_land_plan(engine, plan).await?;
        change_job(engine, &job.job, job.generation, |j| {
            let changes = j.state == State::Planning;
            if changes {
                j.state = State::Landing;
            }
            changes
        })
        .await?;
        reached(Boundary::JobLanding);
        let pending = land::open(engine, job, &plan).await?;
        if !pending.is_empty() {
            landing::check_space(&plan, &pending)?;
            let bound = match bound.is_empty() || plan != ours {
                true => inventory::reopen(&plan.inventory, spec, effort)?,
                false => bound,
            };
            let idle = idle(self.presence);
            let workers = Workers::new(engine, job, self.progress, self.stop, &idle);
            let buffer = effort.limits.buffer_bytes() as usize;
            let bytes = pending.iter().filter_map(|i| plan.inventory.objects.get(*i as usize)).map(|o| o.object.size).sum();
            let landing = Landing::new(&workers, &plan, spec, &bound, buffer, bytes);
            let count = (effort.limits.threads as usize).min(pending.len());
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
        let bad_rows = receipts.iter().map(|r| r.bad_rows).sum();
        let Some(error) = validate::bad_rows(&job.request.rows, &land::errors(&receipts), bad_rows) else {
            return Ok(Some((plan, receipts)));
        };
        self.reject(job, &error).await?;
        Ok(None)
    }

    /// A request that cannot be planned leaves no unfinished job behind.
    async fn give_up_planning(&self, job: &JobRecord, error: &Error) -> Result<()> {
        // A damaged job folder can still be restored.
        if matches!(error.kind, Kind::Unavailable | Kind::Internal) || error.reason == Reason::LedgerDamaged {
            return Ok(());
        }
        self.reject(job, error).await
    }

    /// The job ends before it has groups.
    async fn reject(&self, job: &JobRecord, error: &Error) -> Result<()> {
        change_job(self.engine, &job.job, job.generation, |j| {
            let changes = !j.state.is_final();
            if changes {
                j.state = State::Rejected;
                j.error = Some(error.clone());
            }
            changes
        })
        .await
        .map(|_| ())
    }

    /// Takes one group as far as it goes.
    async fn group(&mut self, job: &JobRecord, stored: &StoredPlan, source: &mut Source, group: GroupRecord, run: &Run<'_>) -> Result<()> {
        let mut group = group;
        if run.resume && group.state == State::Hold {
            group = self.unhold(stored, &group).await?;
        }
        loop {
            // Another process may have cancelled it meanwhile.
            group = change_group(self.engine, &group, |_| false).await?;
            if group.cancel_requested && !group.state.is_final() {
                group = cancel::stand_down(self.engine, job, &group, State::Cancelled, None).await?;
            }
            let outcome = match group.state {
                State::Writing => self.write_and_stage(job, stored, source, &group, run).await,
                State::Staged | State::Validating => match self.validate_and_publish(job, stored, &group, run).await {
                    Ok(None) => return Ok(()), // staged, as asked
                    Ok(Some(group)) => Ok(group),
                    Err(e) => Err(e),
                },
                _ => return Ok(()),
            };
            group = match outcome {
                Ok(group) => group,
                Err(e) if e.kind == Kind::Conflict => {
                    let now = change_group(self.engine, &group, |_| false).await?;
                    if !now.cancel_requested {
                        self.hold(&group, e).await?;
                        return Ok(());
                    }
                    now
                }
                Err(e) => return Err(e),
            };
        }
    }

    async fn hold(&self, group: &GroupRecord, error: Error) -> Result<GroupRecord> {
        change_group(self.engine, group, |g| {
            let changes = !g.state.is_final();
            if changes {
                g.state = State::Hold;
                g.error = Some(error.clone());
            }
            changes
        })
        .await
    }

    /// Failed units are written again in a new round; everything else is tried from where it stood.
    async fn unhold(&self, stored: &StoredPlan, group: &GroupRecord) -> Result<GroupRecord> {
        let units = rounds::latest_units(self.engine, group).await?;
        let failed: Vec<u32> = units.iter().filter(|u| u.state == UnitState::Failed).map(|u| u.unit).collect();
        if !failed.is_empty() {
            return rounds::next_round(self.engine, stored, group, failed, Again::Resumed).await;
        }
        change_group(self.engine, group, |g| {
            let changes = g.state == State::Hold;
            if changes {
                g.rederived = 0; // the user says that the reason is gone
                g.state = if g.staged_round == Some(g.round) { State::Staged } else { State::Writing };
                g.error = None;
            }
            changes
        })
        .await
    }

    async fn write_and_stage(
        &mut self,
        job: &JobRecord,
        stored: &StoredPlan,
        source: &mut Source,
        group: &GroupRecord,
        run: &Run<'_>,
    ) -> Result<GroupRecord> {
        let pending = rounds::resend_pending(self.engine, group).await?;
        if pending > 0 {
            self.write(job, stored, source, group, run).await?;
        }
        let units = rounds::latest_units(self.engine, group).await?;
        if units.iter().any(|u| u.state == UnitState::Pending) {
            self.stop.check()?;
            let now = change_group(self.engine, group, |_| false).await?;
            if now.cancel_requested || now.state.is_final() {
                return Ok(now);
            }
            return Err(Error::internal("the queue is empty and units are not done"));
        }
        if let Some(error) = first_failure(stored, &units) {
            if matches!(error.kind, Kind::Invalid | Kind::Corrupt) {
                return cancel::stand_down(self.engine, job, group, State::Rejected, Some(error)).await;
            }
            return self.hold(group, error).await;
        }
        let receipts = receipts(units);
        let bad_rows = receipts.iter().map(|r| r.bad_rows).sum();
        if let Some(bad) = validate::bad_rows(&job.request.rows, &validate::all_errors(&receipts), bad_rows) {
            return cancel::stand_down(self.engine, job, group, State::Rejected, Some(bad)).await;
        }
        if receipts.iter().all(|r| r.files.is_empty()) {
            if let Err(finding) = validate::conservation(stored, &receipts).map(|check| self.checks.push(check)) {
                return cancel::stand_down(self.engine, job, group, State::Rejected, Some(finding)).await;
            }
            return publish::publish_nothing(self.engine, job, group).await;
        }
        let engine = self.engine;
        self.timed(Step::Stage, None, stage::stage(engine, job, stored, group, &receipts)).await
    }

    async fn write(&mut self, job: &JobRecord, stored: &StoredPlan, source: &mut Source, group: &GroupRecord, run: &Run<'_>) -> Result<()> {
        let threads = PlanLimits::new(run.options.memory_bytes, run.options.threads).threads as usize;
        if source.bound.is_none() {
            let stop = self.stop;
            let check_stop = move || stop.check();
            let limits = PlanLimits::new(run.options.memory_bytes, run.options.threads);
            let effort = Effort { limits, runs_folder: "", check_stop: &check_stop };
            source.bound = Some(tokio::task::block_in_place(|| inventory::reopen(&stored.inventory, &source.spec, &effort))?);
        }
        let bound = source.bound.as_deref().unwrap_or_default();
        let spec = match stored.inventory.landed {
            Some(_) => inventory::run_spec(&stored.inventory)?,
            None => source.spec.clone(),
        };
        let idle = idle(self.presence);
        let workers = Workers::new(self.engine, job, self.progress, self.stop, &idle);
        let writing = Writing::new(&workers, stored, &spec, bound);
        let rows = rows_to_read(stored, &rounds::latest_units(self.engine, group).await?);
        // A unit's memory was planned for this many threads; more would break the bound.
        let count = threads.min(stored.plan.units().count());
        self.timed(Step::Write, Some(rows), async { run_workers(self.presence, &workers, &writing, count) }).await
    }

    /// `None`: it stays staged, as asked.
    async fn validate_and_publish(
        &mut self,
        job: &JobRecord,
        stored: &StoredPlan,
        group: &GroupRecord,
        run: &Run<'_>,
    ) -> Result<Option<GroupRecord>> {
        let engine = self.engine;
        let receipts = receipts(rounds::latest_units(engine, group).await?);
        if let Some(done) = publish::found_published(engine, job, group, &receipts).await? {
            return Ok(Some(done));
        }
        let validation =
            Validation { full: run.options.verify_full, threads: run.options.threads, progress: self.progress, stop: self.stop };
        let rows = receipts.iter().map(|r| r.counts.rows_written).sum();
        let verdict =
            self.timed(Step::Validate, Some(rows), validate::validate(engine, job, stored, group, &receipts, &validation)).await?;
        reached(Boundary::Validated);
        match verdict {
            Verdict::Approved { checks } => self.checks = checks,
            Verdict::Rejected { findings } => {
                let first = findings.into_iter().next().unwrap_or_else(|| Error::internal("rejected without a finding"));
                return cancel::stand_down(engine, job, group, State::Rejected, Some(first)).await.map(Some);
            }
        }
        if run.stage_only {
            return Ok(None);
        }
        match self.timed(Step::Publish, None, publish::publish(engine, job, stored, group, &receipts)).await? {
            Published::Done(group) => Ok(Some(group)),
            Published::Cancelled(group) => cancel::stand_down(engine, job, &group, State::Cancelled, None).await.map(Some),
            Published::Again { units, base } => {
                self.progress.note(&format!("main got rows with keys of this job: {} of {} units look again", units.len(), receipts.len()));
                rounds::next_round(engine, stored, group, units, Again::MainMoved(base)).await.map(Some)
            }
        }
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
                        let result = work(workers, phase, &presence.owner(i), runtime);
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

fn receipts(units: Vec<UnitRecord>) -> Vec<UnitReceipt> {
    units.into_iter().filter_map(|u| u.receipt?.into_written()).collect()
}

/// The first failure in source order, whatever the order the units failed in.
fn first_failure(stored: &StoredPlan, units: &[UnitRecord]) -> Option<Error> {
    let objects = &stored.inventory.objects;
    let position = |e: &Error| {
        let object = e.place.file.as_ref().and_then(|f| objects.iter().position(|o| o.object.shown == *f || o.object.uri == *f));
        (object.unwrap_or(usize::MAX), e.place.row.unwrap_or(0))
    };
    units.iter().filter(|u| u.state == UnitState::Failed).filter_map(|u| u.error.clone()).min_by_key(position)
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

pub(crate) fn cancelled(job: &JobRecord) -> Error {
    Error::conflict(Reason::Cancelled, format!("job {} was cancelled while it ran; nothing of it is published", job.job))
        .hint("run its command again to start over")
        .at(|p| p.job = Some(job.job.to_string()))
}
