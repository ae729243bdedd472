//! Processes of ours: the command, resume, cancel, a worker, gc. The decisions are the engine's; what is here is what a
//! process has around them: its lock on the job, its source, its workers.

use super::catalog::TABLE;
use super::desk::{Desk, runtime};
use super::invariants;
use super::ports::{engine, queue, running_elsewhere};
use super::scene::row_bytes;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use timelake_engine::advance::{self, Hands, Life};
use timelake_engine::inventory::{self, Effort, OpenTable, Taken};
use timelake_engine::open::{self, Earlier};
use timelake_engine::plan::PlanLimits;
use timelake_engine::ports::UnitQueue;
use timelake_engine::progress::{Silent, StopFlag};
use timelake_engine::store::{self, StoredPlan};
use timelake_engine::validate::{self, ReadBack};
use timelake_engine::work::{Workers, Writing, is_over, work};
use timelake_engine::{Engine, cancel, gc, layouts, report, rounds};
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, State};
use timelake_model::time::IsoDuration;
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{BackfillRequest, Error, JobId, Kind, Reason, Result, SourceObject, UnitReceipt};
use timelake_source::{BoundObjects, SourceSpec};

/// Times a request is opened again because another process ran its job meanwhile.
const OPEN_TRIES: u32 = 5;
/// gc leaves alone what was touched since: longer than any stall of an attempt.
const GRACE: &str = "PT10M";
const LIMITS: PlanLimits = PlanLimits { memory_bytes: 0, threads: 1, workers: 1 };

/// What a process does.
#[derive(Debug, Clone)]
pub enum Order {
    /// The command: the job of a request, as far as it goes.
    Command {
        request: Box<BackfillRequest>,
        again: bool,
    },
    Resume {
        job: JobId,
    },
    Cancel {
        job: JobId,
    },
    Worker,
    Gc,
}

pub struct Process {
    desk: Desk,
    engine: Engine,
    queue: Arc<dyn UnitQueue>,
    stop: StopFlag,
}

/// Runs a future on this thread. All ports answer at once; streams let others go first now and then.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

impl Process {
    pub fn new(desk: Desk, stop: StopFlag) -> Process {
        Process { engine: engine(&desk), queue: queue(&desk), desk, stop }
    }

    /// Runs to the end of the process; says how it ended.
    pub fn run(&self, order: &Order) -> Result<State> {
        let _inside = runtime().enter();
        timelake_engine::planted::plant(self.desk.planted.and_then(super::Planted::in_engine));
        let ended = now(self.act(order));
        let mut state = self.desk.world.lock();
        match &ended {
            Ok(stands) => state.say(self.desk.id, &format!("ends: {stands}")),
            Err(e) => state.say(self.desk.id, &format!("ends with an error: {e}")),
        }
        if let Err(e) = &ended
            && e.kind == Kind::Internal
        {
            let what = format!("{} ends with {e}", state.name(self.desk.id));
            state.broken(9, what);
        }
        ended
    }

    async fn act(&self, order: &Order) -> Result<State> {
        match order {
            Order::Command { request, again } => self.command(request, *again).await,
            Order::Resume { job } => self.resume(job).await,
            Order::Cancel { job } => self.cancel(job).await,
            Order::Worker => self.worker().await,
            Order::Gc => self.gc().await,
        }
    }

    async fn job(&self, job: &JobId) -> Result<JobRecord> {
        self.engine.jobs.job(job).await?.ok_or_else(|| Error::internal(format!("job {job} is gone from the ledger")))
    }

    /// The lock that ends with the process.
    fn lock(&self, job: &JobId) -> Result<()> {
        let mut state = self.desk.world.lock();
        match state.locks.get(job) {
            Some(holder) if *holder != self.desk.id && state.is_alive(*holder) => Err(running_elsewhere(job)),
            _ => {
                state.locks.insert(job.clone(), self.desk.id);
                Ok(())
            }
        }
    }

    async fn command(&self, request: &BackfillRequest, again: bool) -> Result<State> {
        let mut earlier = Earlier { again, ..Earlier::default() };
        for _ in 0..OPEN_TRIES {
            let opened = open::open(&self.engine, request, &earlier, Path::new("/")).await?;
            if opened.already_published {
                return Ok(opened.job.state);
            }
            self.lock(&opened.job.job)?;
            // Until the lock was ours, another process may have run the job, to its end or to another generation.
            let now = self.engine.jobs.job(&opened.job.job).await?;
            if now.as_ref().is_some_and(|now| (now.generation, now.version) == (opened.job.generation, opened.job.version)) {
                let stage_only = request.run.stage_only;
                return self.go(opened.job, opened.table, Some(opened.objects), opened.resumed, stage_only).await;
            }
            self.desk.world.lock().locks.remove(&opened.job.job);
            if let Some(now) = now.filter(|now| now.state == State::Cancelled && now.generation == opened.job.generation) {
                return Ok(now.state);
            }
            earlier = Earlier::default();
        }
        Err(Error::unavailable(Reason::CommitConflict, "the job is changed by other processes all the time"))
    }

    async fn resume(&self, job: &JobId) -> Result<State> {
        let job = self.job(job).await?;
        if job.state.is_final() {
            return Ok(job.state);
        }
        self.lock(&job.job)?;
        let table = inventory::open_table(&self.engine, &job.table).await?;
        self.go(job, table, None, true, false).await
    }

    async fn go(
        &self,
        job: JobRecord,
        table: OpenTable,
        objects: Option<Vec<SourceObject>>,
        resume: bool,
        stage_only: bool,
    ) -> Result<State> {
        let engine = &self.engine;
        let spec = inventory::spec(&job.request.rows, &table)?;
        let stored = match store::load_plan(engine, &job.job, job.generation).await? {
            Some(stored) => stored,
            None => {
                let Some(objects) = objects else {
                    return Err(Error::conflict(Reason::WrongState, "the job was stopped before it had a plan"));
                };
                match self.plan(&job, &table, &objects, &spec).await {
                    Ok(stored) => stored,
                    Err(e) => {
                        advance::give_up_planning(engine, &job, &e).await?;
                        return Err(e);
                    }
                }
            }
        };
        let life = Life { engine, job: &job, stored: &stored, resume, stage_only };
        life.open().await?;
        life.go_on(&mut AtWork { process: self, job: &job, stored: &stored, spec, bound: None }).await?;
        let now = self.job(&job.job).await?;
        if now.state.is_published() && now.generation == job.generation {
            self.count(&now).await?;
        }
        Ok(now.state)
    }

    async fn plan(&self, job: &JobRecord, table: &OpenTable, objects: &[SourceObject], spec: &Arc<SourceSpec>) -> Result<StoredPlan> {
        let table = layouts::with_specs(&self.engine, table).await?;
        let check_stop = || self.stop.check();
        let effort = Effort { limits: LIMITS, threads: 1, sources: &self.engine.sources, runs_folder: "", check_stop: &check_stop };
        let Taken::Direct { mut inventory, .. } = inventory::take(&table, job, objects, spec, &effort).await? else {
            return Err(Error::internal("the source would be landed"));
        };
        inventory.row_bytes = row_bytes();
        advance::store_plan(&self.engine, job, *inventory, LIMITS, None).await
    }

    /// The manifest of a published job tells what became of its rows.
    async fn count(&self, job: &JobRecord) -> Result<()> {
        let manifest = report::manifest(&self.engine, job).await?;
        let mut state = self.desk.world.lock();
        let read = state.loads.iter().find(|l| l.request.rows.from == job.request.rows.from).map(|l| l.rows_read);
        for group in &manifest.groups {
            let life = (job.job.clone(), job.generation, timelake_model::GroupName(group.group.clone()));
            invariants::counted(&mut state, &life, read.unwrap_or(0), &manifest.counts);
        }
        Ok(())
    }

    async fn cancel(&self, job: &JobId) -> Result<State> {
        let job = self.job(job).await?;
        if job.state.is_published() {
            return Ok(job.state);
        }
        if job.state.is_final() {
            cancel::sweep(&self.engine, &job).await?;
            return Ok(job.state);
        }
        cancel::cancel(&self.engine, &job.job).await.map(|job| job.state)
    }

    /// Joins whatever job has units.
    async fn worker(&self) -> Result<State> {
        const LOOKS: u32 = 40;
        const POLL: std::time::Duration = std::time::Duration::from_millis(200);
        for _ in 0..LOOKS {
            for job in self.engine.jobs.jobs(None).await?.into_iter().filter(|j| !j.state.is_final()) {
                if self.queue.depth(&job.job).await? == 0 || is_over(&self.engine, &job, Phase::Write).await? {
                    continue;
                }
                let Some(stored) = store::load_plan(&self.engine, &job.job, job.generation).await? else { continue };
                let table = inventory::open_table(&self.engine, &job.table).await?;
                let spec = inventory::spec(&job.request.rows, &table)?;
                self.write(&job, &stored, &spec, &self.bound(&stored, &spec)?)?;
            }
            self.engine.clock.sleep(POLL).await;
        }
        Ok(State::Writing)
    }

    fn bound(&self, stored: &StoredPlan, spec: &Arc<SourceSpec>) -> Result<BoundObjects> {
        let check_stop = || self.stop.check();
        let effort = Effort { limits: LIMITS, threads: 1, sources: &self.engine.sources, runs_folder: "", check_stop: &check_stop };
        inventory::reopen(&stored.inventory, None, spec, &effort)
    }

    fn write(&self, job: &JobRecord, stored: &StoredPlan, spec: &Arc<SourceSpec>, bound: &BoundObjects) -> Result<()> {
        let idle = || {
            // What processes held that are gone is given back at once.
            let mut state = self.desk.world.lock();
            let gone: Vec<i64> = state.claims.iter().filter(|(_, holder)| !state.is_alive(**holder)).map(|(id, _)| *id).collect();
            for id in gone {
                state.claims.remove(&id);
                state.ledger.end_leases(Some(id));
            }
            Ok(())
        };
        let workers = Workers::new(&self.engine, job, &Silent, &self.stop, &idle);
        let writing = Writing::new(&workers, stored, spec, bound);
        work(&workers, self.queue.as_ref(), &writing, "worker", runtime().handle())
    }

    async fn gc(&self) -> Result<State> {
        let is_running = |job: &JobId| {
            let state = self.desk.world.lock();
            state.locks.get(job).is_some_and(|holder| state.is_alive(*holder))
        };
        let before = IsoDuration::parse(GRACE)?.before(self.engine.clock.now());
        let sweep = gc::Sweep { before, dry_run: false, is_running: &is_running };
        gc::tables(&self.engine, &sweep).await?;
        Ok(State::Planning)
    }
}

/// A process that does the units of its job itself.
struct AtWork<'a> {
    process: &'a Process,
    job: &'a JobRecord,
    stored: &'a StoredPlan,
    spec: Arc<SourceSpec>,
    bound: Option<BoundObjects>,
}

impl Hands for AtWork<'_> {
    fn turn(&mut self, _: &GroupRecord) -> Result<bool> {
        self.process.stop.check().map(|()| true)
    }
    async fn write(&mut self, group: &GroupRecord) -> Result<bool> {
        if rounds::resend_pending(&self.process.engine, group).await? == 0 {
            return Ok(true);
        }
        let bound = match self.bound.take() {
            Some(bound) => bound,
            None => self.process.bound(self.stored, &self.spec)?,
        };
        self.process.write(self.job, self.stored, &self.spec, &bound)?;
        self.bound = Some(bound);
        self.process.stop.check()?;
        Ok(true)
    }
    async fn validate(&mut self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<Verdict> {
        let read_back = ReadBack::of(self.job.request.run.verify_full);
        let effort = validate::Effort { read_back, threads: 1, progress: &Silent, stop: &self.process.stop };
        validate::validate(&self.process.engine, self.job, self.stored, group, receipts, &effort).await
    }
    async fn stage<T>(&mut self, stage: impl Future<Output = Result<T>>) -> Result<T> {
        stage.await
    }
    async fn publish<T>(&mut self, publish: impl Future<Output = Result<T>>) -> Result<T> {
        publish.await
    }
    fn approved(&mut self, _: Vec<Check>) {}
    fn note(&mut self, text: &str) {
        self.process.desk.say(text);
    }
}

/// Makes the table.
pub fn make_table(desk: &Desk) -> Result<()> {
    let _inside = runtime().enter();
    let engine = engine(desk);
    now(timelake_engine::tables::create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &super::scene::create_table()))?;
    now(inventory::open_table(&engine, TABLE)).map(|_| ())
}
