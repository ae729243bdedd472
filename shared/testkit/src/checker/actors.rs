//! Who acts in a model: each is the engine's own code, in the order in which the command (or a function) calls it.
//!
//! The decisions between the verbs are the engine's ([`advance`]); only the hands are others: units read no sources, and
//! validation reads no data files, for there are none.

use super::desk::Desk;
use super::scene::{Fails, Scene, Writing, ident, job, now};
use iceberg::spec::{MAIN_BRANCH, SnapshotReference, SnapshotRetention};
use iceberg::{TableRequirement, TableUpdate};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use timelake_engine::advance::{self, Hands};
use timelake_engine::evolution;
use timelake_engine::ports::{CommitOutcome, UnitQueue};
use timelake_engine::progress::{Silent, StopFlag};
use timelake_engine::rounds;
use timelake_engine::store::{self, StoredPlan};
use timelake_engine::tries::new_snapshot_id;
use timelake_engine::work::{Workers, work};
use timelake_engine::{Engine, cancel, open, validate};
use timelake_model::ledger::{GroupRecord, JobRecord, State};
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Error, Kind, Reason, Result, UnitReceipt};
use timelake_table::{Added, Append};
use tokio::runtime::Handle;

/// What an actor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A worker process of the job's first generation.
    Worker {
        may_fail: bool,
    },
    /// A worker whose first attempt fails: for what comes before a model.
    FailingWorker,
    /// Opens the first generation and goes no further.
    Planner,
    /// Stages the first generation's units that are DONE and goes no further.
    Stager,
    /// Takes the first generation from units that are DONE to the end: the receiver of a close message.
    Finalizer,
    /// The command again, or `resume`: whatever is to be done with the job as it stands.
    Runner {
        resume: bool,
    },
    /// The command on a cancelled or rejected job: the next generation, to its end.
    Replanner,
    Cancel,
    /// Somebody else appends a file outside the job's window.
    LiveWriter,
}

/// What actors are made of.
pub struct Cast {
    pub engine: Engine,
    pub queue: Arc<dyn UnitQueue>,
    pub desk: Arc<Desk>,
    pub runtime: Handle,
    pub scene: Scene,
    /// The plan of the first generation. It was stored before the model starts and never changes.
    pub plan: Arc<StoredPlan>,
}

fn job_gone() -> Error {
    Error::internal("the job is gone from the ledger")
}

impl Cast {
    /// Runs an actor to its end (or to where the desk stops it). The text says how it ended.
    pub fn run(&self, role: Role) -> Result<String> {
        let _inside = self.runtime.enter();
        let told = |state: State| format!("job {state}");
        match role {
            Role::Worker { may_fail } => self.worker(if may_fail { Fails::ByChance } else { Fails::Never }),
            Role::FailingWorker => self.worker(Fails::Unit(0)),
            Role::Planner => now(self.planner()).map(told),
            Role::Stager => now(self.finalizer(true)).map(told),
            Role::Finalizer => now(self.finalizer(false)).map(told),
            Role::Runner { resume } => now(self.runner(resume)).map(told),
            Role::Replanner => now(self.replanner()).map(told),
            Role::Cancel => now(self.cancel()).map(told),
            Role::LiveWriter => now(self.live_writer()),
        }
    }

    fn worker(&self, fails: Fails) -> Result<String> {
        let writing = Writing { desk: &self.desk, scene: &self.scene, base_snapshot: self.plan.plan.base_snapshot, fails };
        self.work(&self.scene.record, &writing).map(|()| "no messages left".into())
    }

    fn work(&self, job: &JobRecord, writing: &Writing<'_>) -> Result<()> {
        let stop = StopFlag::default();
        let workers = Workers::new(&self.engine, job, &Silent, &stop, &|| Ok(()));
        work(&workers, self.queue.as_ref(), writing, "worker", &self.runtime)
    }

    fn first_life(&self) -> Life<'_> {
        Life { cast: self, job: self.scene.record.clone(), stored: self.plan.clone(), works: false, resume: false, stage_only: false }
    }

    async fn planner(&self) -> Result<State> {
        self.first_life().open().await?;
        self.state().await
    }

    async fn finalizer(&self, stage_only: bool) -> Result<State> {
        Life { stage_only, ..self.first_life() }.go_on().await?;
        self.state().await
    }

    async fn state(&self) -> Result<State> {
        self.desk.forget(&"state");
        Ok(self.engine.jobs.job(&job()).await?.ok_or_else(job_gone)?.state)
    }

    /// The job as it stands, to its end.
    pub async fn runner(&self, resume: bool) -> Result<State> {
        let job = self.engine.jobs.job(&job()).await?.ok_or_else(job_gone)?;
        if job.state.is_final() {
            return Ok(job.state);
        }
        self.live(job, resume).await
    }

    async fn live(&self, job: JobRecord, resume: bool) -> Result<State> {
        let stored = match job.generation {
            1 => self.plan.clone(),
            generation => Arc::new(match store::load_plan(&self.engine, &job.job, generation).await? {
                Some(stored) => stored,
                None => self.scene.store_plan(&self.engine, generation).await?,
            }),
        };
        let life = Life { cast: self, job, stored, works: true, resume, stage_only: false };
        life.forget("open", &());
        life.open().await?;
        life.forget("opened", &());
        life.go_on().await?;
        self.state().await
    }

    async fn replanner(&self) -> Result<State> {
        let job = self.engine.jobs.job(&job()).await?.ok_or_else(job_gone)?;
        if !matches!(job.state, State::Rejected | State::Cancelled) {
            return Ok(job.state); // it runs, or it is published: nothing to start anew
        }
        let next = open::next_generation(&self.engine, &job, &job.request, None).await?;
        self.live(next, false).await
    }

    /// As the command cancels: a job that is over is swept.
    pub async fn cancel(&self) -> Result<State> {
        let job = self.engine.jobs.job(&job()).await?.ok_or_else(job_gone)?;
        if job.state.is_published() {
            return Ok(job.state);
        }
        if job.state.is_final() {
            cancel::sweep(&self.engine, &job).await?;
            return Ok(job.state);
        }
        self.desk.forget(&"cancel");
        Ok(cancel::cancel(&self.engine, &job.job).await?.state)
    }

    /// What an operator does with a job that nobody runs: resumes it, and when it stands still, gives it up.
    pub async fn bring_to_an_end(&self) -> Result<State> {
        const TIMES: u32 = 3;
        for _ in 0..TIMES {
            match self.runner(true).await {
                Ok(state) if state.is_final() => break,
                Ok(_) => {}
                // What resume says then is to cancel.
                Err(e) if e.kind == Kind::Conflict => break,
                Err(e) => return Err(e),
            }
        }
        self.cancel().await
    }

    async fn live_writer(&self) -> Result<String> {
        const FAR_DAY: i64 = 100;
        const TRIES: u32 = 10;
        let (path, manifest) = self.scene.manifest("live", FAR_DAY).await?;
        super::ports::write_file(&self.desk, path);
        for _ in 0..TRIES {
            let table = self.engine.catalog.load(&ident()).await?;
            let metadata = table.metadata();
            let head = metadata.current_snapshot().ok_or_else(|| Error::internal("main is empty"))?;
            let id = new_snapshot_id(self.engine.clock.as_ref(), &table);
            let append = Append {
                snapshot_id: id,
                manifests: vec![timelake_table::manifest_file(&manifest, id)],
                added: Added { files: 1, rows: manifest.added_rows, bytes: manifest.added_bytes, partitions: 1 },
                properties: &[],
                now_ms: 0,
                list_path: timelake_table::list_path(metadata.location(), id, &format!("live-{:016x}", self.engine.clock.random())),
            };
            let snapshot = timelake_table::append_snapshot(&table, head, append).await?;
            let requirements =
                vec![TableRequirement::RefSnapshotIdMatch { r#ref: MAIN_BRANCH.into(), snapshot_id: Some(head.snapshot_id()) }];
            let reference = SnapshotReference::new(id, SnapshotRetention::branch(None, None, None));
            let updates =
                vec![TableUpdate::AddSnapshot { snapshot }, TableUpdate::SetSnapshotRef { ref_name: MAIN_BRANCH.into(), reference }];
            match self.engine.catalog.commit(&table, requirements, updates).await? {
                CommitOutcome::Done(_) => return Ok("appended".into()),
                CommitOutcome::Unknown(_) => return Ok("does not know".into()),
                CommitOutcome::Conflict(_) => {}
            }
        }
        Err(Error::unavailable(Reason::CommitConflict, "the live writer was refused too often"))
    }
}

/// One generation in the hands of one process.
struct Life<'a> {
    cast: &'a Cast,
    job: JobRecord,
    stored: Arc<StoredPlan>,
    /// It works off units as well.
    works: bool,
    resume: bool,
    stage_only: bool,
}

impl Life<'_> {
    fn engine(&self) -> &Engine {
        &self.cast.engine
    }

    /// What this life is, it knows to its end.
    fn forget(&self, at: &str, known: &impl Debug) {
        self.cast.desk.forget(&(at, self.job.generation, &self.stored.hash, known));
    }

    fn life(&self) -> advance::Life<'_> {
        let Life { job, stored, resume, stage_only, .. } = self;
        advance::Life { engine: self.engine(), job, stored, resume: *resume, stage_only: *stage_only }
    }

    async fn open(&self) -> Result<()> {
        self.life().open().await
    }

    async fn go_on(&self) -> Result<()> {
        self.life().go_on(&mut AtWork { life: self, validated: None }).await
    }

    /// What validation looks at besides the data files: its findings.
    async fn validate(&self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<Vec<Error>> {
        if let Err(finding) = validate::conservation(&self.stored, receipts) {
            return Ok(vec![finding]);
        }
        let table = self.engine().catalog.load(&ident()).await?;
        evolution::still_fits(&table, &self.stored)?;
        Ok(validate::staged_manifests(&table, &self.job, group, receipts).await?.err().into_iter().collect())
    }
}

/// As the engine sees it: work without sources, validation without data files.
struct AtWork<'a> {
    life: &'a Life<'a>,
    /// What is known when it publishes.
    validated: Option<(GroupRecord, Vec<UnitReceipt>)>,
}

impl Hands for AtWork<'_> {
    fn turn(&mut self, group: &GroupRecord) -> Result<bool> {
        self.life.forget("turn", group);
        Ok(true)
    }

    async fn write(&mut self, group: &GroupRecord) -> Result<bool> {
        let life = self.life;
        if life.works && rounds::resend_pending(life.engine(), group).await? > 0 {
            let base_snapshot = life.stored.plan.base_snapshot;
            let writing = Writing { desk: &life.cast.desk, scene: &life.cast.scene, base_snapshot, fails: Fails::Never };
            life.forget("work", &group);
            life.cast.work(&life.job, &writing)?;
        }
        life.forget("worked", &group);
        Ok(life.works)
    }

    async fn validate(&mut self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<Verdict> {
        let findings = self.life.validate(group, receipts).await?;
        self.validated = Some((group.clone(), receipts.to_vec()));
        Ok(if findings.is_empty() { Verdict::Approved { checks: vec![] } } else { Verdict::Rejected { findings } })
    }

    async fn stage<T>(&mut self, stage: impl Future<Output = Result<T>>) -> Result<T> {
        stage.await
    }

    async fn publish<T>(&mut self, publish: impl Future<Output = Result<T>>) -> Result<T> {
        self.life.forget("publish", &self.validated);
        publish.await
    }

    fn ended(&mut self, outcome: &Result<()>) {
        self.life.forget("ended", outcome);
    }

    fn approved(&mut self, _checks: Vec<Check>) {}

    fn note(&mut self, _text: &str) {}
}
