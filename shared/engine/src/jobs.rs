//! What is asked about jobs and told of them, whoever runs them and wherever their lake is: from the ledger and the
//! job's folder alone.

use crate::inventory::open_table;
use crate::progress::{Progress, Step, StopFlag};
use crate::tables::show_table;
use crate::{Engine, cancel, land, open, report, rounds, store, tables, validate};
use serde::Serialize;
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitRecord, UnitState};
use timelake_model::manifest::RunManifest;
use timelake_model::plan::WorkUnit;
use timelake_model::similar::nearest;
use timelake_model::verdict::Verdict;
use timelake_model::{Counts, Error, JobId, Reason, Result, TimestampUs, Window, WritePlan};

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

/// The job whose id is, or uniquely starts with, `text`.
pub async fn find(engine: &Engine, text: &str) -> Result<JobRecord> {
    if text.is_empty() {
        return Err(
            Error::invalid(Reason::InvalidOption, "the job's id is empty").hint("timelake backfill list shows the jobs of this lake")
        );
    }
    let jobs = engine.jobs.jobs(None).await?;
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
        _ => Err(Error::invalid(Reason::JobAmbiguous, format!("{} jobs start with {text}", found.len())).hint("write more of the id").at(
            |p| {
                p.job = Some(text.into());
                p.candidates = found.iter().take(10).map(|j| j.job.to_string()).collect();
            },
        )),
    }
}

pub async fn list(engine: &Engine, table: Option<&str>) -> Result<Vec<JobSummary>> {
    let mut out = Vec::new();
    for job in engine.jobs.jobs(None).await?.into_iter().filter(|j| table.is_none_or(|t| t == j.table)) {
        let m = report::manifest(engine, &job).await?;
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
        hinted(engine, name, show_table(engine.catalog.as_ref(), name).await).await?;
    }
    Ok(out)
}

/// An error about a table gets the names that were probably meant.
pub async fn hinted<T>(engine: &Engine, table: &str, result: Result<T>) -> Result<T> {
    match result {
        Err(e) => Err(tables::with_hints(engine.catalog.as_ref(), table, e).await),
        done => done,
    }
}

pub async fn status(engine: &Engine, job: &str) -> Result<JobStatus> {
    let job = find(engine, job).await?;
    let groups = engine.jobs.groups(&job.job, job.generation).await?;
    // What the ledger knows is shown whatever happened to the job's folder.
    let (stored, damage) = match store::load_plan(engine, &job.job, job.generation).await {
        Err(e) if e.reason == Reason::LedgerDamaged => (None, Some(e)),
        other => (other?, None),
    };
    let splits = land::units(engine, &job).await?;
    let mut units: Vec<UnitStatus> = splits.into_iter().map(|split| unit_status(split, None)).collect();
    for group in &groups {
        let planned = stored.as_ref().and_then(|s| s.plan.group(&group.group));
        for unit in rounds::latest_units(engine, group).await? {
            let plan = planned.and_then(|g| g.units.iter().find(|u| u.index == unit.unit));
            units.push(UnitStatus { estimated_rows: plan.map_or(0, |u| u.estimated_rows), ..unit_status(unit, plan) });
        }
    }
    let error = job.error.as_ref().or_else(|| groups.iter().find_map(|g| g.error.as_ref())).or(damage.as_ref());
    let next = next_step(&job, error);
    Ok(JobStatus { job, groups, units, next })
}

fn unit_status(unit: UnitRecord, plan: Option<&WorkUnit>) -> UnitStatus {
    UnitStatus {
        group: unit.key.group.to_string(),
        unit: unit.unit,
        round: unit.key.round,
        state: unit.state,
        window: plan.map_or(Window::ALL, |u| u.window),
        estimated_rows: unit.rows,
        rows: unit.rows,
        bytes: unit.bytes,
        attempts: unit.attempts.len() as u32,
        error: unit.error,
    }
}

/// The manifest from the ledger, with what only the run itself knew (step times, checks).
pub async fn manifest(engine: &Engine, job: &JobRecord) -> Result<RunManifest> {
    let mut manifest = report::manifest(engine, job).await?;
    if let Some(stored) = report::kept(engine, job).await {
        if job.state.is_published() && manifest.error.as_ref().is_some_and(|e| e.reason == Reason::LedgerDamaged) {
            return Ok(stored); // the plan is damaged, by which the counts would have been told
        }
        manifest.checks = stored.checks;
        manifest.steps = stored.steps;
        manifest.peak_memory_bytes = stored.peak_memory_bytes;
    }
    Ok(manifest)
}

/// The manifest of a run that found everything published: it read and wrote nothing.
pub async fn nothing_to_do(engine: &Engine, job: &JobRecord) -> Result<RunManifest> {
    let mut manifest = report::manifest(engine, job).await?;
    if manifest.error.is_none() {
        report::store_if_absent(engine, &manifest).await?;
    }
    manifest.published = false;
    manifest.already_published = true;
    manifest.counts = Counts::default();
    (manifest.rollup_ranges, manifest.chunks, manifest.series_outliers) = (vec![], vec![], vec![]);
    Ok(manifest)
}

/// A `main_set_back` error if `main` no longer stands on what the job published.
pub async fn still_published(engine: &Engine, job: &JobId) -> Result<()> {
    let Some(job) = engine.jobs.job(job).await? else { return Ok(()) };
    open::still_published(engine, &open_table(engine, &job.table).await?, &job).await
}

/// Validates what is staged and says what was checked; publishes nothing.
pub async fn validate(engine: &Engine, job: &str, full: bool, progress: &dyn Progress, stop: &StopFlag) -> Result<Verdict> {
    let job = find(engine, job).await?;
    let groups = engine.jobs.groups(&job.job, job.generation).await?;
    let stored = store::load_plan(engine, &job.job, job.generation).await?;
    let (Some(group), Some(stored)) = (groups.iter().find(|g| matches!(g.state, State::Staged | State::Validating | State::Hold)), stored)
    else {
        return Err(wrong_state(&job, "nothing of it is staged"));
    };
    let receipts = rounds::latest_units(engine, group).await?.into_iter().filter_map(|u| u.receipt?.into_written()).collect::<Vec<_>>();
    let effort = validate::Effort { read_back: validate::ReadBack::of(full), threads: job.request.run.threads, progress, stop };
    progress.begin(Step::Validate, Some(receipts.iter().map(|r| r.counts.rows_written).sum()));
    let verdict = validate::validate(engine, &job, &stored, group, &receipts, &effort).await;
    progress.end(Step::Validate);
    verdict
}

/// Gives a job up; one that is published stays so. How it stands then.
pub async fn cancel(engine: &Engine, job: &str) -> Result<JobRecord> {
    let job = find(engine, job).await?;
    if job.state.is_published() {
        return Ok(job);
    }
    if job.state.is_final() {
        cancel::sweep(engine, &job).await?;
        return Ok(job);
    }
    cancel::cancel(engine, &job.job).await
}

/// The job that `backfill publish` is to publish.
pub async fn to_publish(engine: &Engine, job: &str) -> Result<JobRecord> {
    let job = find(engine, job).await?;
    if matches!(job.state, State::Cancelled | State::Rejected) {
        return Err(starts_anew(&job));
    }
    // A publish that was interrupted while it looked again at what had changed on `main` goes on.
    let groups = engine.jobs.groups(&job.job, job.generation).await?;
    if !groups.iter().any(|g| g.staged_round.is_some()) && !matches!(job.state, State::Hold | State::Published | State::Refreshed) {
        return Err(wrong_state(&job, "it is not staged").hint(format!("timelake backfill resume {}", job.job)));
    }
    Ok(job)
}

/// A run that was asked to stop, or a command that was: what of the job is done.
pub async fn done_so_far(engine: &Engine, job: &JobId) -> Option<String> {
    // What cannot be counted any more does not hide why the run ended.
    let record = engine.jobs.job(job).await.ok()??;
    let kept = report::manifest(engine, &record).await.ok()?;
    let (units, done) = kept.groups.iter().fold((0, 0), |(units, done), g| (units + g.units, done + g.units_done));
    let splits = land::units(engine, &record).await.unwrap_or_default();
    Some(match units {
        0 if !splits.is_empty() => {
            let landed = splits.iter().filter(|u| u.state == UnitState::Done).count();
            format!("{landed} of {} files of the source are landed and kept", splits.len())
        }
        0 => String::new(),
        _ => format!("{done} of {units} units are kept, with {} rows written", grouped(kept.counts.rows_written)),
    })
}

/// `14,000,000`
fn grouped(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", grouped(n / 1000), n % 1000) }
}

pub fn wrong_state(job: &JobRecord, what: &str) -> Error {
    Error::conflict(Reason::WrongState, format!("job {} is {}: {what}", job.job, job.state)).at(|p| p.job = Some(job.job.to_string()))
}

/// A job whose branch is gone cannot go on; its command starts it anew.
pub fn starts_anew(job: &JobRecord) -> Error {
    wrong_state(job, "its branch is gone, so there is nothing to go on with").hint("run its command again: it starts over")
}

/// Somebody else gave the job up while this command ran or watched it.
pub fn cancelled(job: &JobRecord) -> Error {
    Error::conflict(Reason::Cancelled, format!("job {} was cancelled while it ran; nothing of it is published", job.job))
        .hint("run its command again to start over")
        .at(|p| p.job = Some(job.job.to_string()))
}

/// The job's plan, which another load may be divided by.
pub async fn plan(engine: &Engine, job: &JobRecord) -> Result<WritePlan> {
    match store::load_plan(engine, &job.job, job.generation).await? {
        Some(stored) => Ok(stored.plan),
        None => Err(wrong_state(job, "it has no plan").hint(format!("timelake backfill status {} shows how far it is", job.job))),
    }
}

/// The job goes on with the plan that it has; the one that was asked for is not that one.
pub fn has_another_plan(job: &JobRecord) -> Error {
    wrong_state(job, "it has a plan already, and not the one of --plan")
        .hint(format!("leave --plan out; or give the job up (timelake backfill cancel {}) and run its command again", job.job))
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
