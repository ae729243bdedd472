//! The embedded lake's commands, each one function: what the command line calls.

use crate::job_lock::JobLock;
use crate::objects::read_error;
use crate::presence::Presence;
use crate::recorder::Recorder;
use crate::runner::{Run, Runner};
use crate::stores::ObjectsByScheme;
use crate::{LocalObjects, SqliteCatalog, SqliteLedger, SystemClock};
use crate::{lake_folder, landing};
use iceberg::io::{FileIOBuilder, StorageFactory};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::gc::Litter;
use timelake_engine::inventory::OpenTable;
use timelake_engine::open::{self, Earlier};
use timelake_engine::ports::ObjectStore;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_engine::upkeep::{self, Collected, GcOptions};
use timelake_engine::{Engine, gc, inventory, jobs, store};
use timelake_model::ledger::{JobRecord, State};
use timelake_model::manifest::RunManifest;
use timelake_model::{BackfillRequest, Error, JobId, Reason, Result, SourceObject, WritePlan};
use timelake_source::remote::{RemoteStore, Sources};

/// Times a request is opened again because another process ran its job meanwhile.
const OPEN_TRIES: u32 = 5;
/// How long a process may take to notice that its job was given up.
const LET_GO_LIMIT: Duration = Duration::from_secs(10);
const LET_GO_POLL: Duration = Duration::from_millis(100);

pub struct Lake {
    pub(crate) root: PathBuf,
    pub(crate) jobs: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) ledger: Arc<SqliteLedger>,
}

/// A store outside the lake's folder, as each of its users needs it.
pub struct RemoteObjects {
    /// Of its URIs.
    pub scheme: &'static str,
    pub objects: Arc<dyn ObjectStore>,
    pub sources: Arc<dyn RemoteStore>,
    /// Of table files, local ones as well.
    pub storage: Arc<dyn StorageFactory>,
}

impl Lake {
    /// Opens a lake. `create`: makes the folder and its databases when absent; else an absent lake is `not_found`.
    /// `warehouse`: where new tables go, if not into the lake's folder.
    pub fn open(root: &Path, create: bool, remote: RemoteObjects, warehouse: Option<&str>) -> Result<Lake> {
        lake_folder::check(root, create)?;
        lake_folder::make(root, create)?;
        let root = root.canonicalize().map_err(|e| read_error(root, e))?;
        let jobs = root.join("jobs");
        let clock = Arc::new(SystemClock);
        let ledger = Arc::new(SqliteLedger::open_knowing(&root.join("ledger.db"), clock.clone(), &lake_folder::jobs(&jobs))?);
        let catalog = SqliteCatalog::open(&root.join("catalog.db"), &root.join("warehouse"), create)?;
        let catalog = catalog.with_file_io(FileIOBuilder::new(remote.storage).build());
        let catalog = match warehouse {
            Some(prefix) => catalog.with_warehouse(prefix),
            None => catalog,
        };
        let engine = Engine {
            catalog: Arc::new(catalog),
            jobs: ledger.clone(),
            queue: ledger.clone(),
            objects: Arc::new(ObjectsByScheme::new(LocalObjects::new(&root), remote.scheme, remote.objects)),
            sources: Sources::local().with(remote.scheme, remote.sources),
            clock,
            jobs_root: jobs.display().to_string(),
        };
        Ok(Lake { root, jobs, engine, ledger })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
    /// What it is asked about jobs and tables goes by this alone.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Says to other processes that this one is at work here, until it is dropped.
    pub(crate) fn announce(&self) -> Result<Presence> {
        Presence::announce(&self.root.join("processes"), self.ledger.clone(), self.engine.clock.clone())
    }

    /// The whole road for one request; continues an unfinished job of the same request.
    /// Relative sources are taken from the current folder. `other_plan`: the work is divided as it does.
    pub async fn backfill(
        &self,
        request: &BackfillRequest,
        options: &Earlier,
        other_plan: Option<&WritePlan>,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<RunManifest> {
        let current = std::env::current_dir()
            .map_err(|e| Error::unavailable(Reason::StorageUnavailable, format!("the current folder cannot be read: {e}")))?;
        let mut opened = jobs::hinted(&self.engine, &request.table, open::open(&self.engine, request, options, &current).await).await?;
        let mut tries = 0;
        let (opened, _lock) = loop {
            if opened.already_published {
                return self.nothing_to_do(&opened.job).await;
            }
            let lock = self.lock(&opened.job, progress, stop).await?;
            // Until the lock was ours, another process may have run the job, to its end or to another generation.
            let now = self.engine.jobs.job(&opened.job.job).await?;
            if now.as_ref().is_some_and(|now| (now.generation, now.version) == (opened.job.generation, opened.job.version)) {
                break (opened, lock);
            }
            drop(lock);
            if now.is_some_and(|now| now.state == State::Cancelled && now.generation == opened.job.generation) {
                return Err(jobs::cancelled(&opened.job));
            }
            tries += 1;
            if tries == OPEN_TRIES {
                let id = &opened.job.job;
                return Err(Error::unavailable(Reason::CommitConflict, format!("job {id} is changed by other processes all the time"))
                    .hint(format!("look what they do: timelake backfill status {id}"))
                    .at(|p| p.job = Some(id.to_string())));
            }
            opened = open::open(&self.engine, request, &Earlier::default(), &current).await?;
        };
        // Only tidies up: what hinders it must not hinder the load.
        if let Err(e) = gc::expired_tags(&self.engine, &opened.table.table, false).await {
            tracing::warn!(error = %e, "tags whose undo window is over cannot be removed");
        }
        if opened.resumed {
            progress.note(&format!("job {} goes on (it was {})", opened.job.job, opened.job.state));
        }
        let run = Run { other_plan, ..Run::new(&request.run, request.run.stage_only, opened.resumed) };
        self.run(opened.job, opened.table, Some(opened.objects), &run, progress, stop).await
    }

    /// Runs a job as far as it goes; the caller holds its lock.
    async fn run(
        &self,
        job: JobRecord,
        table: OpenTable,
        objects: Option<Vec<SourceObject>>,
        run: &Run<'_>,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<RunManifest> {
        let presence = self.announce()?;
        let id = job.job.clone();
        let recorder = Recorder::new(progress, self.engine.clock.now(), job.generation);
        let ran = Runner::new(&self.engine, &presence, &recorder, stop).run(job, table, objects, run).await;
        // Only told: what hinders it must not hinder the load.
        if let Err(e) = store::add_run(&self.engine, &id, recorder.run(&ran)).await {
            tracing::warn!(error = %e, "the times of this run's steps cannot be kept");
        }
        // The run may have found its commit done by a run before it, and `main` moved back since.
        if let Ok(manifest) = &ran
            && run.resume
            && manifest.state.is_published()
        {
            jobs::still_published(&self.engine, &id).await?;
        }
        self.with_what_is_kept(&id, ran).await
    }

    /// Takes the job's lock. A new life of a job waits a little for the process of the one before, which finds out by
    /// itself that it was given up.
    async fn lock(&self, job: &JobRecord, progress: &dyn Progress, stop: &StopFlag) -> Result<JobLock> {
        let mut waited = Duration::ZERO;
        loop {
            let taken = JobLock::take(&self.jobs, &job.job);
            let starts = job.generation > 1 && matches!(job.state, State::Planning);
            match taken {
                Err(e) if e.reason == Reason::JobRunningElsewhere && starts && waited < LET_GO_LIMIT => {
                    stop.check()?;
                    if waited.is_zero() {
                        progress.note(&format!("{}; waiting for it to stop, as the job was given up", e.message));
                    }
                    self.engine.clock.sleep(LET_GO_POLL).await;
                    waited += LET_GO_POLL;
                }
                outcome => return outcome,
            }
        }
    }

    /// An interrupted run says what of it is done, which is not what it has read: units that were cut off are read again.
    async fn with_what_is_kept(&self, job: &JobId, ran: Result<RunManifest>) -> Result<RunManifest> {
        let error = match ran {
            Err(e) if e.reason == Reason::Interrupted => e,
            other => return other,
        };
        let message = match jobs::done_so_far(&self.engine, job).await {
            None => return Err(error),
            Some(done) if done.is_empty() => format!("job {job} stopped as asked, before anything was written"),
            Some(done) => format!("job {job} stopped as asked; {done}"),
        };
        Err(Error { message, ..error }.at(|p| p.job = Some(job.to_string())))
    }

    async fn nothing_to_do(&self, job: &JobRecord) -> Result<RunManifest> {
        // A run that was killed right after publishing left them.
        if !job.request.run.keep_runs && !self.is_running(&job.job) {
            landing::remove_runs(&self.engine, job).await?;
        }
        jobs::nothing_to_do(&self.engine, job).await
    }

    /// Goes on with a job that stands on HOLD or was interrupted.
    pub async fn resume(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let job = jobs::find(&self.engine, job).await?;
        self.go_on(job, None, progress, stop).await
    }

    /// Publishes a staged job.
    pub async fn publish(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let job = jobs::to_publish(&self.engine, job).await?;
        self.go_on(job, Some(false), progress, stop).await
    }

    async fn go_on(&self, job: JobRecord, stage_only: Option<bool>, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        if job.state.is_published() {
            return self.nothing_to_do(&job).await;
        }
        if job.state.is_final() {
            return Err(jobs::starts_anew(&job));
        }
        let _lock = JobLock::take(&self.jobs, &job.job)?;
        let table = inventory::open_table(&self.engine, &job.table).await?;
        let options = job.request.run.clone();
        let run = Run::new(&options, stage_only.unwrap_or(options.stage_only), true);
        self.run(job, table, None, &run, progress, stop).await
    }

    pub async fn cancel(&self, job: &str) -> Result<RunManifest> {
        let job = jobs::cancel(&self.engine, job).await?;
        // A process that still runs the job finds out by itself and removes them.
        if job.state == State::Cancelled && !self.is_running(&job.job) {
            landing::remove_runs(&self.engine, &job).await?;
        }
        jobs::manifest(&self.engine, &job).await
    }

    /// Removes what jobs left behind and nobody needs any more.
    pub async fn gc(&self, options: &GcOptions) -> Result<Collected> {
        let collected = upkeep::collect(&self.engine, options, &|job: &JobId| self.is_running(job)).await?;
        for runs in collected.items.iter().filter(|item| item.kind == Litter::Runs && !collected.dry_run) {
            landing::remove_folder(&runs.name); // its files are gone
        }
        Ok(collected)
    }

    /// Does any process run the job right now?
    pub(crate) fn is_running(&self, job: &JobId) -> bool {
        JobLock::is_held(&self.jobs, job)
    }
}
