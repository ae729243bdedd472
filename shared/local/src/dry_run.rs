//! `backfill --dry-run`: the whole road, on a copy of the lake in a temporary folder, and a report of what it came to.
//! The run's own code decides everything, so what it counts is what the real run will count. Of a lake that is no folder
//! the copy has the one table, and what the ledger knows of its jobs.

use crate::job_lock::JobLock;
use crate::lake::{Lake, RemoteObjects};
use crate::presence::Presence;
use crate::runner::{Run, Runner};
use crate::scratch::{ScratchObjects, ScratchStorageFactory, Written, copy_databases, make_folder};
use crate::stores::ObjectsByScheme;
use crate::{LocalObjects, SqliteCatalog, SqliteLedger, SystemClock, lake_folder, landing};
use iceberg::io::FileIOBuilder;
use iceberg::table::Table;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use timelake_engine::dry_run::{Facts, Seen, Watch};
use timelake_engine::jobs::{self, needs_new_plan};
use timelake_engine::open::{self, Earlier, Opened};
use timelake_engine::plan::PlanLimits;
use timelake_engine::ports::JobStore;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_engine::validate::ReadBack;
use timelake_engine::{Engine, cancel, dry_run, inventory, report, store};
use timelake_model::cost::Prices;
use timelake_model::dry_run::DryRun;
use timelake_model::inventory::ExistingFile;
use timelake_model::ledger::{JobRecord, State};
use timelake_model::manifest::RunManifest;
use timelake_model::request::{Ambiguous, OnBadRow, RunOptions};
use timelake_model::{BackfillRequest, Column, Counts, Error, LandPlan, Reason, Result, TimestampUs};
use timelake_source::Sources;

#[derive(Debug, Clone)]
pub struct DryRunOptions {
    pub earlier: Earlier,
    /// Rows read of each file; `None`: all.
    pub sample: Option<u64>,
    pub prices: Prices,
}

/// What a dry run came to.
#[derive(Debug, Clone)]
pub struct Rehearsed {
    pub report: DryRun,
    /// The run's own manifest.
    pub manifest: RunManifest,
    /// Of a job that is published already: since when.
    pub published: Option<TimestampUs>,
}

/// The lake that a dry run stands for. `remote` holds what of its tables and sources is in no folder.
pub enum Original<'a> {
    Folder {
        root: &'a Path,
        remote: RemoteObjects,
    },
    /// Its jobs are done by functions, and their units sized for these limits.
    Elsewhere {
        engine: &'a Engine,
        limits: PlanLimits,
        remote: RemoteObjects,
    },
}

/// A copy of a lake, and the one it stands for.
struct Copy {
    lake: Lake,
    /// The lake itself, as far as it is asked: what may be a source, how a published job ended.
    original: Engine,
    /// Folder in which processes that run its jobs hold their locks.
    locks: Option<PathBuf>,
    /// Where sources without an address start.
    current: PathBuf,
    /// Of the functions that would do the units.
    functions: Option<PlanLimits>,
    _folder: TempDir,
}

impl Copy {
    async fn make(original: Original<'_>, request: &BackfillRequest) -> Result<Copy> {
        match original {
            Original::Folder { root, remote } => Copy::of_folder(root, remote, request),
            Original::Elsewhere { engine, limits, remote } => Copy::of_table(engine, limits, remote, request).await,
        }
    }

    fn of_folder(root: &Path, remote: RemoteObjects, request: &BackfillRequest) -> Result<Copy> {
        lake_folder::check(root, false)?;
        let (folder, scratch) = scratch_folder(request)?;
        let root = root.canonicalize().map_err(|e| crate::objects::read_error(root, e))?;
        let lake = copy(&root, &scratch, remote).map_err(|e| told_of(e, &scratch, &root))?;
        let current = std::env::current_dir()
            .map_err(|e| Error::unavailable(Reason::StorageUnavailable, format!("the current folder cannot be read: {e}")))?;
        let jobs = root.join("jobs");
        // A job's plan is where it ran.
        let original = Engine { jobs_root: jobs.display().to_string(), ..lake.engine.clone() };
        Ok(Copy { lake, original, locks: Some(jobs), current, functions: None, _folder: folder })
    }

    async fn of_table(engine: &Engine, limits: PlanLimits, remote: RemoteObjects, request: &BackfillRequest) -> Result<Copy> {
        let name = &request.table;
        let table = jobs::hinted(engine, name, engine.catalog.load(&inventory::table_ident(name)?).await).await?;
        let (folder, scratch) = scratch_folder(request)?;
        let lake = stand_in(engine, &table, &scratch, remote).await?;
        // There is no current folder: sources are addresses.
        let current = PathBuf::from("/");
        Ok(Copy { lake, original: engine.clone(), locks: None, current, functions: Some(limits), _folder: folder })
    }
}

/// The temporary folder, and its path as it is.
fn scratch_folder(request: &BackfillRequest) -> Result<(TempDir, PathBuf)> {
    let work_dir = request.run.work_dir.as_deref().map(landing::work_dir).transpose()?;
    let folder = make_folder(work_dir.as_deref())?;
    let scratch = folder.path().canonicalize().map_err(|e| crate::objects::read_error(folder.path(), e))?;
    Ok((folder, scratch))
}

fn copy(root: &Path, scratch: &Path, remote: RemoteObjects) -> Result<Lake> {
    copy_databases(root, scratch)?;
    let known = lake_folder::jobs(&root.join("jobs"));
    let ledger = SqliteLedger::open_knowing(&scratch.join("ledger.db"), Arc::new(SystemClock), &known)?;
    let catalog = SqliteCatalog::open(&scratch.join("catalog.db"), &root.join("warehouse"), false)?;
    Ok(lake_in(scratch, catalog.standing_for(Some(root)), ledger, remote))
}

/// A lake with the table as it is now, and the table's jobs as they stand: what decides how the next one is opened.
async fn stand_in(original: &Engine, table: &Table, scratch: &Path, remote: RemoteObjects) -> Result<Lake> {
    let catalog = SqliteCatalog::open(&scratch.join("catalog.db"), &scratch.join("warehouse"), true)?.standing_for(None);
    let location = table.metadata_location_result().map_err(|e| Error::internal(e.to_string()))?;
    catalog.register(table.identifier(), location).await?;
    let ledger = SqliteLedger::open(&scratch.join("ledger.db"), Arc::new(SystemClock))?;
    for job in original.jobs.jobs(Some(&table.metadata().uuid().to_string())).await? {
        ledger.put_job(&job).await?;
        for group in original.jobs.groups(&job.job, job.generation).await? {
            ledger.put_group(&group).await?;
        }
    }
    Ok(lake_in(scratch, catalog, ledger, remote))
}

/// The lake of a temporary folder: what is written goes there, the rest is read where it is.
fn lake_in(scratch: &Path, catalog: SqliteCatalog, ledger: SqliteLedger, remote: RemoteObjects) -> Lake {
    let written = Written::new(scratch);
    let storage = ScratchStorageFactory::new(remote.storage, written.clone());
    let real = ObjectsByScheme::new(LocalObjects::new(scratch), remote.scheme, remote.objects);
    let (jobs, ledger) = (scratch.join("jobs"), Arc::new(ledger));
    let engine = Engine {
        catalog: Arc::new(catalog.with_file_io(FileIOBuilder::new(Arc::new(storage)).build())),
        jobs: ledger.clone(),
        queue: ledger.clone(),
        objects: Arc::new(ScratchObjects { real, written }),
        sources: Sources::local().with(remote.scheme, remote.sources),
        clock: Arc::new(SystemClock),
        jobs_root: jobs.display().to_string(),
    };
    Lake { root: scratch.to_path_buf(), jobs, engine, ledger }
}

/// A fault of a copy is one of the lake.
fn told_of(error: Error, scratch: &Path, root: &Path) -> Error {
    let (scratch, root) = (scratch.display().to_string(), root.display().to_string());
    let told = |text: String| text.replace(&scratch, &root);
    let mut error = Error { message: told(error.message.clone()), hint: error.hint.clone().map(told), ..error };
    error.place.file = error.place.file.take().map(told);
    error
}

/// Says what `backfill` would do with this request, and changes nothing. Errors are those of the run itself.
pub async fn dry_run(
    original: Original<'_>,
    request: &BackfillRequest,
    options: &DryRunOptions,
    progress: &dyn Progress,
    stop: &StopFlag,
) -> Result<Rehearsed> {
    let copy = Copy::make(original, request).await?;
    // Temporary files are in the copy already.
    let mut inside = request.clone();
    inside.run.work_dir = None;
    let ended = copy.rehearse(&inside, options, progress, stop).await;
    ended.map_err(|e| match e.reason {
        Reason::Interrupted => Error { message: "the dry run stopped as asked; nothing was changed".into(), ..e }.hint("run it again"),
        _ => e,
    })
}

impl Copy {
    async fn rehearse(
        &self,
        request: &BackfillRequest,
        options: &DryRunOptions,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<Rehearsed> {
        let engine = &self.lake.engine;
        let opened = jobs::hinted(&self.original, &request.table, self.open(request, &options.earlier).await).await?;
        if opened.already_published {
            return self.nothing_to_do(&opened, request, options).await;
        }
        if let Some(locks) = &self.locks {
            JobLock::check_free(locks, &opened.job.job)?;
        }
        let generation = opened.job.generation; // starting over in the copy is no new life
        let opened = match opened.resumed {
            false => opened,
            true => self.anew(opened, request, progress).await?,
        };
        let watch = Watch::new(progress);
        let (mut job, objects) = (opened.job, opened.objects);
        let mut told = None;
        let ran = loop {
            let table = inventory::open_table(engine, &job.table).await?;
            let run = self.run(&job.request.run, options);
            let presence = Presence::announce(&self.lake.root.join("processes"), self.lake.ledger.clone(), engine.clock.clone())?;
            let runner = Runner::new(engine, &presence, &watch, stop);
            match runner.run(job.clone(), table, Some(objects.clone()), &run).await {
                // How the run would end; but what it would do beside the other job can still be told.
                Err(e) if e.reason == Reason::WindowLocked && !job.request.run.allow_overlap => {
                    told = Some(e);
                    job = self.beside(&job, request).await?;
                }
                ended => break ended,
            }
        };
        let manifest = match ran {
            Ok(manifest) => manifest,
            Err(e) if e.reason == Reason::Interrupted => return Err(e),
            Err(e) => {
                // What was found until then, if anything was.
                let record = engine.jobs.job(&job.job).await?;
                let found = match &record {
                    Some(record) => report::manifest(engine, record).await.ok().filter(|m| m.source.rows > 0),
                    None => None,
                };
                let Some(manifest) = found else { return Err(told.unwrap_or(e)) };
                told.get_or_insert(e);
                manifest
            }
        };
        let mut done = self.reported(manifest, told, watch, request, options).await?;
        done.report.generation = generation;
        Ok(done)
    }

    /// Opens the request in the copy. What may be a source is as in the lake itself; runs are read in the copy only.
    async fn open(&self, request: &BackfillRequest, earlier: &Earlier) -> Result<Opened> {
        let engine = Engine { sources: self.original.sources.clone(), ..self.lake.engine.clone() };
        open::open(&engine, request, earlier, &self.current).await
    }

    /// Units are those of the real run, whoever does them there.
    fn run<'a>(&self, run: &'a RunOptions, options: &DryRunOptions) -> Run<'a> {
        let run = Run { read_back: ReadBack::Nothing, first_rows: options.sample, ..Run::new(run, run.stage_only, true) };
        match self.functions {
            Some(limits) => Run { limits, threads: run.options.threads, ..run },
            None => run,
        }
    }

    /// The same job, which loads beside the one that holds its window.
    async fn beside(&self, job: &JobRecord, request: &BackfillRequest) -> Result<JobRecord> {
        let mut request = request.clone();
        request.run.allow_overlap = true;
        let engine = &self.lake.engine;
        let now = engine.jobs.job(&job.job).await?.ok_or_else(|| Error::internal("the job is gone from the copied ledger"))?;
        if now.state.is_final() {
            return open::next_generation(engine, &now, &request, None).await;
        }
        Ok(JobRecord { request, ..now })
    }

    /// A job that goes on is told as a whole: in the copy it starts over.
    async fn anew(&self, opened: Opened, request: &BackfillRequest, progress: &dyn Progress) -> Result<Opened> {
        let engine = &self.lake.engine;
        let job = &opened.job;
        let groups = engine.jobs.groups(&job.job, job.generation).await?;
        let held = job.error.clone().or_else(|| groups.iter().find_map(|g| g.error.clone()));
        if let Some(error) = held.filter(|e| job.state == State::Hold && needs_new_plan(e)) {
            return Err(error);
        }
        progress
            .note(&format!("job {} is unfinished ({}): the run goes on with it; what is told here is the whole job", job.job, job.state));
        cancel::cancel(engine, &job.job).await?;
        self.open(request, &Earlier::default()).await
    }

    /// The job is published: the run would say so and do nothing.
    async fn nothing_to_do(&self, opened: &Opened, request: &BackfillRequest, options: &DryRunOptions) -> Result<Rehearsed> {
        let mut manifest = report::manifest(&self.original, &opened.job).await?;
        manifest.published = false;
        manifest.already_published = true;
        manifest.counts = Counts::default();
        (manifest.rollup_ranges, manifest.chunks, manifest.series_outliers, manifest.errors) = (vec![], vec![], vec![], vec![]);
        (manifest.written, manifest.plan, manifest.time_range) = (Default::default(), Default::default(), None);
        manifest.error = None; // one that came after publishing does not end this run
        let run = self.run(&request.run, options);
        let facts = Facts {
            manifest: &manifest,
            error: None,
            seen: &Seen::default(),
            columns: &[],
            existing: None,
            rows: &request.rows,
            limits: run.limits,
            threads: run.threads as u64,
            by_functions: self.functions.is_some(),
            sample: options.sample,
            source_rows: manifest.source.rows,
            lands: false,
            prices: &options.prices,
        };
        Ok(Rehearsed { report: dry_run::report(&facts)?, published: Some(opened.job.updated), manifest })
    }

    async fn reported(
        &self,
        manifest: RunManifest,
        error: Option<Error>,
        watch: Watch<'_>,
        request: &BackfillRequest,
        options: &DryRunOptions,
    ) -> Result<Rehearsed> {
        let engine = &self.lake.engine;
        let landed = store::load_land_plan(engine, &manifest.job, manifest.generation).await?;
        let foreseen = watch.foreseen_rows();
        let seen = watch.into_seen()?;
        let existing = self.existing(&manifest).await?;
        let run = self.run(&request.run, options);
        let facts = Facts {
            error,
            seen: &seen,
            columns: &self.columns(&manifest).await?,
            existing: existing.as_deref(),
            rows: &request.rows,
            limits: run.limits,
            threads: run.threads as u64,
            by_functions: self.functions.is_some(),
            sample: options.sample,
            source_rows: source_rows(landed.as_ref(), foreseen).unwrap_or(manifest.source.rows),
            lands: landed.as_ref().is_some_and(|plan| options.sample.is_none() || is_landed_whole(plan, request)),
            prices: &options.prices,
            manifest: &manifest,
        };
        Ok(Rehearsed { report: dry_run::report(&facts)?, published: None, manifest })
    }

    async fn columns(&self, manifest: &RunManifest) -> Result<Vec<Column>> {
        let table = inventory::open_table(&self.lake.engine, &manifest.table).await?.table;
        timelake_table::columns(table.metadata().current_schema())
    }

    /// The table's files in the job's window, before the job. `None`: it did not come so far as to have one.
    async fn existing(&self, manifest: &RunManifest) -> Result<Option<Vec<ExistingFile>>> {
        let Some(base) = manifest.plan.base_snapshot else { return Ok(None) };
        let open = inventory::open_table(&self.lake.engine, &manifest.table).await?;
        match inventory::existing_rows(&open.table, base, &open.contract, &manifest.window).await {
            Ok(existing) => Ok(Some(existing.files)),
            // Where it matters, the run has said so.
            Err(e) if e.reason == Reason::DeleteFilesInWindow => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Rows of the whole source: what footers say, else what landing foresees from the bytes it went through.
fn source_rows(landed: Option<&LandPlan>, foreseen: u64) -> Option<u64> {
    let objects = &landed?.inventory.objects;
    Some(if objects.iter().any(|o| o.text) { foreseen } else { objects.iter().map(|o| o.rows).sum() })
}

/// Would the run land its source for another reason than that only a sample is read?
fn is_landed_whole(plan: &LandPlan, request: &BackfillRequest) -> bool {
    let rows = &request.rows;
    rows.ambiguous == Ambiguous::Infer || rows.on_bad_row == OnBadRow::Quarantine || plan.inventory.objects.iter().any(|o| o.text)
}
