//! The embedded lake's commands, each one function: what the command line calls.

use crate::job_lock::JobLock;
use crate::objects::read_error;
use crate::presence::Presence;
use crate::recorder::Recorder;
use crate::runner::{Run, Runner, cancelled};
use crate::stores::ObjectsByScheme;
use crate::{LocalObjects, SqliteCatalog, SqliteLedger, SystemClock};
use crate::{lake_folder, landing};
use iceberg::io::{FileIOBuilder, StorageFactory};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::inventory::OpenTable;
use timelake_engine::open::{self, Earlier};
use timelake_engine::ports::ObjectStore;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_engine::tables::{self, ContractChange, CreateTable, TableInfo, TableSummary};
use timelake_engine::{Engine, cancel, gc, inventory, land, report, rounds, store, validate};
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitState};
use timelake_model::manifest::RunManifest;
use timelake_model::similar::nearest;
use timelake_model::timeline::Timeline;
use timelake_model::verdict::Verdict;
use timelake_model::{BackfillRequest, Counts, Error, JobId, Reason, Result, SourceObject, TimestampUs, Window};
use timelake_source::remote::{RemoteStore, Sources};

pub use timelake_engine::open::Earlier as BackfillOptions;

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

/// A line of `backfill list`.
#[derive(Debug, Clone, Serialize)]
pub struct JobSummary {
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub table: String,
    pub state: State,
    pub window: Window,
    pub units: u64,
    pub units_done: u64,
    pub rows_written: u64,
    pub created: TimestampUs,
    pub updated: TimestampUs,
}

/// `backfill status JOB`.
#[derive(Debug, Clone, Serialize)]
pub struct JobStatus {
    pub job: JobRecord,
    pub groups: Vec<GroupRecord>,
    pub units: Vec<UnitStatus>,
    /// What to do next, in words.
    pub next: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct UnitStatus {
    pub group: String,
    pub unit: u32,
    pub round: u32,
    pub state: UnitState,
    pub window: Window,
    pub estimated_rows: u64,
    pub rows: u64,
    pub bytes: u64,
    pub attempts: u32,
    pub error: Option<Error>,
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

    /// Says to other processes that this one is at work here, until it is dropped.
    pub(crate) fn announce(&self) -> Result<Presence> {
        Presence::announce(&self.root.join("processes"), self.ledger.clone(), self.engine.clock.clone())
    }

    /// The whole road for one request; continues an unfinished job of the same request.
    /// Relative sources are taken from the current folder.
    pub async fn backfill(
        &self,
        request: &BackfillRequest,
        options: &Earlier,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<RunManifest> {
        let current = std::env::current_dir()
            .map_err(|e| Error::unavailable(Reason::StorageUnavailable, format!("the current folder cannot be read: {e}")))?;
        let mut opened = self.hinted(&request.table, open::open(&self.engine, request, options, &current).await).await?;
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
                return Err(cancelled(&opened.job));
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
        let run = Run::new(&request.run, request.run.stage_only, opened.resumed);
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
        // What cannot be counted any more does not hide why the run ended.
        let Ok(Some(record)) = self.engine.jobs.job(job).await else { return Err(error) };
        let Ok(kept) = report::manifest(&self.engine, &record).await else { return Err(error) };
        let (units, done) = kept.groups.iter().fold((0, 0), |(units, done), g| (units + g.units, done + g.units_done));
        let splits = land::units(&self.engine, &record).await.unwrap_or_default();
        let message = match units {
            0 if !splits.is_empty() => {
                let landed = splits.iter().filter(|u| u.state == UnitState::Done).count();
                format!("job {job} stopped as asked; {landed} of {} files of the source are landed and kept", splits.len())
            }
            0 => format!("job {job} stopped as asked, before anything was written"),
            _ => format!(
                "job {job} stopped as asked; {done} of {units} units are kept, with {} rows written",
                grouped(kept.counts.rows_written)
            ),
        };
        Err(Error { message, ..error }.at(|p| p.job = Some(job.to_string())))
    }

    /// The manifest of a run that found everything published: it read and wrote nothing.
    async fn nothing_to_do(&self, job: &JobRecord) -> Result<RunManifest> {
        // A run that was killed right after publishing left them.
        if !job.request.run.keep_runs && !self.is_running(&job.job) {
            landing::remove_runs(&self.engine, job).await?;
        }
        let mut manifest = report::manifest(&self.engine, job).await?;
        if manifest.error.is_none() {
            self.keep_manifest(&manifest).await?;
        }
        manifest.published = false;
        manifest.already_published = true;
        manifest.counts = Counts::default();
        (manifest.rollup_ranges, manifest.chunks, manifest.series_outliers) = (vec![], vec![], vec![]);
        Ok(manifest)
    }

    /// A run that was cut off right after publishing, or had no room left for it, did not store its manifest.
    async fn keep_manifest(&self, manifest: &RunManifest) -> Result<()> {
        let uri = store::manifest_uri(&self.engine, &manifest.job);
        match self.engine.objects.stat(&uri).await {
            Err(e) if e.reason == Reason::PathNotFound => {
                let bytes = serde_json::to_vec_pretty(manifest).map_err(|e| Error::internal(e.to_string()))?;
                self.engine.objects.put_if_absent(&uri, bytes.into()).await.map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Goes on with a job that stands on HOLD or was interrupted.
    pub async fn resume(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let job = self.job(job).await?;
        self.go_on(job, None, progress, stop).await
    }

    /// Publishes a staged job.
    pub async fn publish(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let job = self.job(job).await?;
        if matches!(job.state, State::Cancelled | State::Rejected) {
            return Err(starts_anew(&job));
        }
        // A publish that was interrupted while it looked again at what had changed on `main` goes on.
        let groups = self.engine.jobs.groups(&job.job, job.generation).await?;
        if !groups.iter().any(|g| g.staged_round.is_some()) && !matches!(job.state, State::Hold | State::Published | State::Refreshed) {
            return Err(wrong_state(&job, "it is not staged").hint(format!("timelake backfill resume {}", job.job)));
        }
        self.go_on(job, Some(false), progress, stop).await
    }

    async fn go_on(&self, job: JobRecord, stage_only: Option<bool>, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        if job.state.is_published() {
            return self.nothing_to_do(&job).await;
        }
        if job.state.is_final() {
            return Err(starts_anew(&job));
        }
        let _lock = JobLock::take(&self.jobs, &job.job)?;
        let table = inventory::open_table(&self.engine, &job.table).await?;
        let options = job.request.run.clone();
        let run = Run::new(&options, stage_only.unwrap_or(options.stage_only), true);
        self.run(job, table, None, &run, progress, stop).await
    }

    /// Validates what is staged and says what was checked; publishes nothing.
    pub async fn validate(&self, job: &str, full: bool, progress: &dyn Progress, stop: &StopFlag) -> Result<Verdict> {
        let job = self.job(job).await?;
        let groups = self.engine.jobs.groups(&job.job, job.generation).await?;
        let stored = store::load_plan(&self.engine, &job.job, job.generation).await?;
        let (Some(group), Some(stored)) =
            (groups.iter().find(|g| matches!(g.state, State::Staged | State::Validating | State::Hold)), stored)
        else {
            return Err(wrong_state(&job, "nothing of it is staged"));
        };
        let receipts =
            rounds::latest_units(&self.engine, group).await?.into_iter().filter_map(|u| u.receipt?.into_written()).collect::<Vec<_>>();
        let effort = validate::Effort { read_back: validate::ReadBack::of(full), threads: job.request.run.threads, progress, stop };
        progress.begin(timelake_engine::progress::Step::Validate, Some(receipts.iter().map(|r| r.counts.rows_written).sum()));
        let verdict = validate::validate(&self.engine, &job, &stored, group, &receipts, &effort).await;
        progress.end(timelake_engine::progress::Step::Validate);
        verdict
    }

    pub async fn cancel(&self, job: &str) -> Result<RunManifest> {
        let job = self.job(job).await?;
        let job = if job.state.is_published() {
            job
        } else if job.state.is_final() {
            cancel::sweep(&self.engine, &job).await?;
            job
        } else {
            cancel::cancel(&self.engine, &job.job).await?
        };
        // A process that still runs the job finds out by itself and removes them.
        if job.state == State::Cancelled && !self.is_running(&job.job) {
            landing::remove_runs(&self.engine, &job).await?;
        }
        self.manifest_of(&job).await
    }

    pub async fn report(&self, job: &str) -> Result<RunManifest> {
        let job = self.job(job).await?;
        self.manifest_of(&job).await
    }

    /// The ledger's record of a job: its request, and when it was last changed.
    pub async fn record(&self, job: &str) -> Result<JobRecord> {
        self.job(job).await
    }

    /// When the job's runs worked, and how fast.
    pub async fn timeline(&self, job: &str) -> Result<Timeline> {
        store::load_timeline(&self.engine, &self.job(job).await?.job).await
    }

    /// The manifest from the ledger, with what only the run itself knew (step times, checks).
    async fn manifest_of(&self, job: &JobRecord) -> Result<RunManifest> {
        let mut manifest = report::manifest(&self.engine, job).await?;
        if let Ok(bytes) = self.engine.objects.read(&store::manifest_uri(&self.engine, &job.job)).await
            && let Ok(stored) = serde_json::from_slice::<RunManifest>(&bytes)
            && stored.generation == manifest.generation
        {
            if job.state.is_published() && manifest.error.as_ref().is_some_and(|e| e.reason == Reason::LedgerDamaged) {
                return Ok(stored); // the plan is damaged, by which the counts would have been told
            }
            manifest.checks = stored.checks;
            manifest.steps = stored.steps;
            manifest.peak_memory_bytes = stored.peak_memory_bytes;
        }
        Ok(manifest)
    }

    pub async fn list(&self, table: Option<&str>) -> Result<Vec<JobSummary>> {
        let mut out = Vec::new();
        for job in self.engine.jobs.jobs(None).await?.into_iter().filter(|j| table.is_none_or(|t| t == j.table)) {
            let m = report::manifest(&self.engine, &job).await?;
            out.push(JobSummary {
                units: m.groups.iter().map(|g| g.units).sum(),
                units_done: m.groups.iter().map(|g| g.units_done).sum(),
                rows_written: m.counts.rows_written,
                window: m.window,
                job: job.job,
                generation: job.generation,
                table: job.table,
                state: job.state,
                created: job.created,
                updated: job.updated,
            });
        }
        if let Some(name) = table.filter(|_| out.is_empty()) {
            // No jobs, or no such table: only one of them is an answer. Jobs of a table that is gone are listed.
            self.show_table(name).await?;
        }
        Ok(out)
    }

    pub async fn status(&self, job: &str) -> Result<JobStatus> {
        let job = self.job(job).await?;
        let groups = self.engine.jobs.groups(&job.job, job.generation).await?;
        // What the ledger knows is shown whatever happened to the job's folder.
        let (stored, damage) = match store::load_plan(&self.engine, &job.job, job.generation).await {
            Err(e) if e.reason == Reason::LedgerDamaged => (None, Some(e)),
            other => (other?, None),
        };
        let mut units = Vec::new();
        for split in land::units(&self.engine, &job).await? {
            units.push(UnitStatus {
                group: split.key.group.to_string(),
                unit: split.unit,
                round: split.key.round,
                state: split.state,
                window: Window::ALL,
                estimated_rows: split.rows,
                rows: split.rows,
                bytes: split.bytes,
                attempts: split.attempts.len() as u32,
                error: split.error,
            });
        }
        for group in &groups {
            let planned = stored.as_ref().and_then(|s| s.plan.group(&group.group));
            for unit in rounds::latest_units(&self.engine, group).await? {
                let plan = planned.and_then(|g| g.units.iter().find(|u| u.index == unit.unit));
                units.push(UnitStatus {
                    group: group.group.to_string(),
                    unit: unit.unit,
                    round: unit.key.round,
                    state: unit.state,
                    window: plan.map_or(Window::ALL, |u| u.window),
                    estimated_rows: plan.map_or(0, |u| u.estimated_rows),
                    rows: unit.rows,
                    bytes: unit.bytes,
                    attempts: unit.attempts.len() as u32,
                    error: unit.error,
                });
            }
        }
        let error = job.error.as_ref().or_else(|| groups.iter().find_map(|g| g.error.as_ref())).or(damage.as_ref());
        let next = next_step(&job, error);
        Ok(JobStatus { job, groups, units, next })
    }

    pub async fn create_table(&self, table: &CreateTable) -> Result<TableInfo> {
        tables::create_table(self.engine.catalog.as_ref(), self.engine.clock.as_ref(), table).await
    }
    pub async fn show_table(&self, name: &str) -> Result<TableInfo> {
        self.hinted(name, tables::show_table(self.engine.catalog.as_ref(), name).await).await
    }
    pub async fn list_tables(&self) -> Result<Vec<TableSummary>> {
        tables::list_tables(self.engine.catalog.as_ref()).await
    }
    pub async fn set_contract(&self, name: &str, change: &ContractChange) -> Result<TableInfo> {
        self.hinted(name, tables::set_contract(self.engine.catalog.as_ref(), self.engine.clock.as_ref(), name, change).await).await
    }

    pub(crate) async fn hinted<T>(&self, table: &str, result: Result<T>) -> Result<T> {
        match result {
            Err(e) => Err(tables::with_hints(self.engine.catalog.as_ref(), table, e).await),
            done => done,
        }
    }

    /// The job whose id is, or uniquely starts with, `text`.
    pub(crate) async fn job(&self, text: &str) -> Result<JobRecord> {
        if text.is_empty() {
            return Err(
                Error::invalid(Reason::InvalidOption, "the job's id is empty").hint("timelake backfill list shows the jobs of this lake")
            );
        }
        let jobs = self.engine.jobs.jobs(None).await?;
        if let Some(job) = jobs.iter().find(|j| j.job.as_str() == text) {
            return Ok(job.clone());
        }
        let found: Vec<&JobRecord> = jobs.iter().filter(|j| j.job.as_str().starts_with(text)).collect();
        match found[..] {
            [job] => Ok(job.clone()),
            [] => Err(Error::not_found(Reason::JobNotFound, format!("there is no job {text}"))
                .hint(match nearest(text, jobs.iter().map(|j| j.job.as_str())) {
                    Some(meant) => format!("did you mean {meant}? timelake backfill list shows the jobs of this lake"),
                    None => "timelake backfill list shows the jobs of this lake".into(),
                })
                .at(|p| p.job = Some(text.into()))),
            _ => Err(Error::invalid(Reason::JobAmbiguous, format!("{} jobs start with {text}", found.len()))
                .hint("write more of the id")
                .at(|p| {
                    p.job = Some(text.into());
                    p.candidates = found.iter().take(10).map(|j| j.job.to_string()).collect();
                })),
        }
    }
}

fn wrong_state(job: &JobRecord, what: &str) -> Error {
    Error::conflict(Reason::WrongState, format!("job {} is {}: {what}", job.job, job.state)).at(|p| p.job = Some(job.job.to_string()))
}

/// `14,000,000`
fn grouped(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", grouped(n / 1000), n % 1000) }
}

/// A job whose branch is gone cannot go on; its command starts it anew.
fn starts_anew(job: &JobRecord) -> Error {
    wrong_state(job, "its branch is gone, so there is nothing to go on with").hint("run its command again: it starts over")
}

/// A job that stands on this error cannot go on with the plan it has: only a cancel frees its window for a new one.
pub fn needs_new_plan(error: &Error) -> bool {
    match error.reason {
        Reason::MainSetBack | Reason::BranchMoved | Reason::SourceChanged => true,
        Reason::TableChanged => error.hint.as_ref().is_none_or(|hint| hint.contains("cancel")),
        _ => false,
    }
}

/// For `--json`; texts for people say the same with the command's own options.
fn next_step(job: &JobRecord, error: Option<&Error>) -> String {
    let id = &job.job;
    match job.state {
        _ if !job.state.is_final() && error.is_some_and(|e| e.reason == Reason::LedgerDamaged) => {
            format!("timelake backfill cancel {id}; then run its command again, which starts it over")
        }
        State::Planning | State::Landing | State::Writing => format!("goes on with its command, or: timelake backfill resume {id}"),
        State::Staged | State::Validating => format!("timelake backfill publish {id}"),
        State::Published | State::Refreshed => "nothing: its rows are on main".into(),
        State::Hold if error.is_some_and(needs_new_plan) => {
            format!("timelake backfill cancel {id}; then run its command again, which makes a new plan")
        }
        State::Hold => format!("mend the reason, then: timelake backfill resume {id}; or give it up: timelake backfill cancel {id}"),
        State::Rejected => "nothing was published; mend the source or the options and run its command again".into(),
        State::Cancelled | State::RolledBack => "nothing; its command starts over".into(),
    }
}
