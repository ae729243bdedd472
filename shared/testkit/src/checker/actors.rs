//! Who acts in a model: each is the engine's own code, in the order in which the command (or a function) calls it.
//!
//! The embedded runner is not linked here (it is an adapter), so [`Life::go_on`] repeats its decisions between the
//! verbs; validation reads no data files, for there are none, and looks at the same things otherwise.

use super::desk::Desk;
use super::scene::{Fails, Scene, TABLE, Writing, ident, job, now};
use iceberg::spec::{MAIN_BRANCH, SnapshotReference, SnapshotRetention};
use iceberg::{TableRequirement, TableUpdate};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use timelake_engine::ports::CommitOutcome;
use timelake_engine::progress::{Silent, StopFlag};
use timelake_engine::publish::{self, Published};
use timelake_engine::rounds::{self, Again};
use timelake_engine::store::{self, StoredPlan};
use timelake_engine::tries::{change_group, change_job, new_snapshot_id, settle_job};
use timelake_engine::work::{Workers, work};
use timelake_engine::{Engine, cancel, open, stage, validate};
use timelake_model::ids::branch_name;
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitRecord, UnitState};
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
        work(&workers, writing, "worker", &self.runtime)
    }

    fn first_life(&self) -> Life<'_> {
        Life { cast: self, job: self.scene.record.clone(), stored: self.plan.clone(), works: false, resume: false, stage_only: false }
    }

    async fn planner(&self) -> Result<State> {
        self.first_life().open().await?;
        self.state().await
    }

    async fn finalizer(&self, stage_only: bool) -> Result<State> {
        Life { stage_only, ..self.first_life() }.groups().await?;
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
        let window = stored.plan.window;
        let changed = change_job(&self.engine, &job.job, job.generation, |j| {
            let changes = j.window != window && !j.state.is_final();
            j.window = window;
            changes
        })
        .await?;
        let life = Life { cast: self, job: changed.unwrap_or(job), stored, works: true, resume, stage_only: false };
        life.forget("open", &());
        life.open().await?;
        life.forget("opened", &());
        life.groups().await?;
        self.state().await
    }

    async fn replanner(&self) -> Result<State> {
        let job = self.engine.jobs.job(&job()).await?.ok_or_else(job_gone)?;
        if !matches!(job.state, State::Rejected | State::Cancelled) {
            return Ok(job.state); // it runs, or it is published: nothing to start anew
        }
        let next = open::next_generation(&self.engine, &job, &job.request).await?;
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

    async fn open(&self) -> Result<()> {
        let (engine, job) = (self.engine(), &self.job);
        let Err(e) = rounds::open_generation(engine, job, &self.stored).await else { return Ok(()) };
        if e.kind == Kind::Conflict {
            for group in engine.jobs.groups(&job.job, job.generation).await?.iter().filter(|g| g.state == State::Planning) {
                cancel::stand_down(engine, job, group, State::Rejected, Some(e.clone())).await?;
            }
            settle_job(engine, &job.job, job.generation).await?;
        }
        Err(e)
    }

    async fn groups(&self) -> Result<()> {
        for group in self.engine().jobs.groups(&self.job.job, self.job.generation).await? {
            let outcome = self.group(group).await;
            self.forget("settle", &outcome);
            settle_job(self.engine(), &self.job.job, self.job.generation).await?;
            outcome?;
        }
        Ok(())
    }

    async fn group(&self, group: GroupRecord) -> Result<()> {
        let (engine, job) = (self.engine(), &self.job);
        let mut group = group;
        if self.resume && group.state == State::Hold {
            group = self.unhold(&group).await?;
        }
        loop {
            self.forget("group", &());
            group = change_group(engine, &group, |_| false).await?;
            if group.cancel_requested && !group.state.is_final() {
                group = cancel::stand_down(engine, job, &group, State::Cancelled, None).await?;
            }
            let outcome = match group.state {
                State::Writing => match self.write_and_stage(&group).await {
                    Ok(None) => return Ok(()), // not all units are done: another close message comes
                    Ok(Some(group)) => Ok(group),
                    Err(e) => Err(e),
                },
                State::Staged | State::Validating if !self.stage_only => self.validate_and_publish(&group).await,
                _ => return Ok(()),
            };
            group = match outcome {
                Ok(group) => group,
                Err(e) if e.kind == Kind::Conflict => {
                    let now = change_group(engine, &group, |_| false).await?;
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
        change_group(self.engine(), group, |g| {
            let changes = !g.state.is_final();
            if changes {
                g.state = State::Hold;
                g.error = Some(error.clone());
            }
            changes
        })
        .await
    }

    async fn unhold(&self, group: &GroupRecord) -> Result<GroupRecord> {
        let engine = self.engine();
        let units = rounds::latest_units(engine, group).await?;
        let failed: Vec<u32> = units.iter().filter(|u| u.state == UnitState::Failed).map(|u| u.unit).collect();
        if !failed.is_empty() {
            return rounds::next_round(engine, &self.stored, group, failed, Again::Resumed).await;
        }
        change_group(engine, group, |g| {
            let changes = g.state == State::Hold;
            if changes {
                g.rederived = 0;
                g.state = if g.staged_round == Some(g.round) { State::Staged } else { State::Writing };
                g.error = None;
            }
            changes
        })
        .await
    }

    /// `None`: units are pending, and others work on them.
    async fn write_and_stage(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        let engine = self.engine();
        if self.works && rounds::resend_pending(engine, group).await? > 0 {
            let base_snapshot = self.stored.plan.base_snapshot;
            let writing = Writing { desk: &self.cast.desk, scene: &self.cast.scene, base_snapshot, fails: Fails::Never };
            self.forget("work", &group);
            self.cast.work(&self.job, &writing)?;
            self.forget("worked", &group);
        }
        let units = rounds::latest_units(engine, group).await?;
        if units.iter().any(|u| u.state == UnitState::Pending) {
            if !self.works {
                return Ok(None);
            }
            let now = change_group(engine, group, |_| false).await?;
            if now.cancel_requested || now.state.is_final() {
                return Ok(Some(now));
            }
            return Err(Error::internal("the queue is empty and units are not done"));
        }
        if let Some(error) = units.iter().find(|u| u.state == UnitState::Failed).and_then(|u| u.error.clone()) {
            return self.hold(group, error).await.map(Some);
        }
        self.forget("stage", &(group, &units));
        stage::stage(engine, &self.job, &self.stored, group, &receipts(units)).await.map(Some)
    }

    async fn validate_and_publish(&self, group: &GroupRecord) -> Result<GroupRecord> {
        let (engine, job) = (self.engine(), &self.job);
        let receipts = receipts(rounds::latest_units(engine, group).await?);
        if let Some(done) = publish::found_published(engine, job, group, &receipts).await? {
            return Ok(done);
        }
        if let Err(finding) = self.validate(group, &receipts).await? {
            return cancel::stand_down(engine, job, group, State::Rejected, Some(finding)).await;
        }
        self.forget("publish", &(group, &receipts));
        match publish::publish(engine, job, &self.stored, group, &receipts).await? {
            Published::Done(group) => Ok(group),
            Published::Cancelled(group) => cancel::stand_down(engine, job, &group, State::Cancelled, None).await,
            Published::Again { units, base } => rounds::next_round(engine, &self.stored, group, units, Again::MainMoved(base)).await,
        }
    }

    /// What validation looks at besides the data files. The inner error is a finding.
    async fn validate(&self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<std::result::Result<(), Error>> {
        if let Err(finding) = validate::conservation(&self.stored, receipts) {
            return Ok(Err(finding));
        }
        let table = self.engine().catalog.load(&ident()).await?;
        publish::still_the_table(&table, &self.stored, TABLE)?;
        let branch = branch_name(&self.job.job, self.job.generation, &group.group);
        let staged = group.branch_snapshot.ok_or_else(|| Error::internal("validate before stage"))?;
        let at = timelake_table::refs(table.metadata())?.get(&branch).map(|r| r.snapshot_id);
        if at != Some(staged) {
            return Err(stage::branch_moved(&branch, at, staged));
        }
        let snapshot = table.metadata().snapshot_by_id(staged).ok_or_else(|| Error::internal("the staged snapshot is gone"))?;
        let manifests = timelake_table::manifests_of(&table, snapshot).await?;
        let ours: BTreeSet<&str> = manifests.iter().filter(|m| m.added_snapshot_id == staged).map(|m| m.manifest_path.as_str()).collect();
        let expected: BTreeSet<&str> = receipts.iter().flat_map(|r| &r.manifests).map(|m| m.path.as_str()).collect();
        if ours != expected {
            return Ok(Err(Error::conflict(Reason::StagedFileWrong, "the staged snapshot does not list the units' manifests")));
        }
        Ok(Ok(()))
    }
}

fn receipts(units: Vec<UnitRecord>) -> Vec<UnitReceipt> {
    units.into_iter().filter_map(|u| u.receipt?.into_written()).collect()
}
