//! request → job: finds the job that the request is, or makes it.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::cancel::{cancel, sweep};
use crate::identity::{job_id, request_hash};
use crate::inventory::{OpenTable, check_request, open_table, spec};
use crate::tables::start_main;
use crate::tries::settle_job;
use serde::{Deserialize, Serialize};
use std::path::Path;
use timelake_model::ids::published_by;
use timelake_model::inventory::SourceObject;
use timelake_model::ledger::{JobRecord, State};
use timelake_model::{BackfillRequest, Error, JobId, Reason, Result, Window};

/// How to treat an earlier job of the same or an older source.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Earlier {
    /// Load again although the job is published: a new generation.
    pub again: bool,
    /// Give up an unfinished job of an older version of this source, and start.
    pub new: bool,
    /// Who asks, where the same question may come twice: only the first one loads a published job again.
    #[serde(skip)]
    pub execution: Option<String>,
}

pub struct Opened {
    pub job: JobRecord,
    pub table: OpenTable,
    pub objects: Vec<SourceObject>,
    /// The job was published before and nothing is to be done.
    pub already_published: bool,
    /// The job is not new: it goes on.
    pub resumed: bool,
}

/// Opens the request's job. Writes at most the job's record, and the first snapshot of an empty table.
pub async fn open(engine: &Engine, request: &BackfillRequest, earlier: &Earlier, current_dir: &Path) -> Result<Opened> {
    let mut table = open_table(engine, &request.table).await?;
    check_request(request, &table)?;
    let source = spec(&request.rows, &table)?; // a request that cannot be read makes no job
    let objects = timelake_source::list(&request.rows.from, &engine.sources, current_dir, request.rows.hive, source.format())?;
    if request.rows.hive && objects.iter().all(|o| o.hive.is_empty()) {
        let shown = objects.first().map_or("", |o| o.shown.as_str());
        return Err(Error::invalid(Reason::InvalidOption, format!("--hive: no folder on the way to {shown} is called name=value"))
            .hint("leave --hive out, or name a folder above the name=value folders with --from")
            .at(|p| p.option = Some("--hive".into())));
    }
    if table.table.metadata().current_snapshot().is_none() {
        // The one commit to `main` besides publish: staging needs a parent, or the table's sequence numbers restart.
        start_main(engine.catalog.as_ref(), engine.clock.as_ref(), table.table).await?;
        reached(Boundary::MainStarted);
        table = open_table(engine, &request.table).await?;
    }
    let uuid = table.table.metadata().uuid().to_string();
    let hash = request_hash(&uuid, request, current_dir)?;
    let id = job_id(&request.table, &hash, &objects)?;
    let opened =
        |job: JobRecord, table, already_published, resumed| Ok(Opened { job, table, objects: objects.clone(), already_published, resumed });
    if let Some(job) = engine.jobs.job(&id).await? {
        return match job.state {
            State::Published | State::Refreshed
                if !earlier.again || (earlier.execution.is_some() && job.opened_by == earlier.execution) =>
            {
                still_published(engine, &table, &job).await?;
                opened(job, table, true, false)
            }
            State::Published | State::Refreshed | State::Rejected | State::Cancelled | State::RolledBack => {
                let next = next_generation(engine, &job, request, earlier.execution.clone()).await?;
                opened(next, table, false, false)
            }
            _ => opened(job, table, false, true),
        };
    }
    // A job that only planned wrote nothing and holds nothing.
    let jobs = engine.jobs.jobs(Some(&uuid)).await?;
    for older in
        jobs.iter().filter(|j| j.request_hash == hash && !j.state.is_final() && !matches!(j.state, State::Planning | State::Landing))
    {
        if !earlier.new {
            return Err(Error::conflict(
                Reason::OlderJobUnfinished,
                format!("job {} of the same request is {}, and the source has changed since", older.job, older.state),
            )
            .hint("--new gives it up and starts anew with the source as it is now")
            .at(|p| p.job = Some(older.job.to_string())));
        }
        cancel(engine, &older.job).await?;
    }
    let now = engine.clock.now();
    let record = JobRecord {
        generation: 1 + lives_before(&table, &id)?,
        job: id,
        table: request.table.clone(),
        table_uuid: uuid,
        request_hash: hash,
        request: request.clone(),
        opened_by: earlier.execution.clone(),
        as_of: now,
        window: Window::ALL,
        state: State::Planning,
        error: None,
        created: now,
        updated: now,
        version: 0,
    };
    let job = engine.jobs.put_job(&record).await?;
    reached(Boundary::JobStored);
    opened(job, table, false, false)
}

/// The last life of the job that its table remembers and the ledger does not, because it was lost; else 0. The tag of
/// that life must not be taken for one of this life.
fn lives_before(open: &OpenTable, job: &JobId) -> Result<u32> {
    let refs = timelake_table::refs(open.table.metadata())?;
    let lives = refs.keys().filter_map(|name| published_by(name)).filter(|(of, ..)| of == job);
    Ok(lives.map(|(_, generation, _)| generation).max().unwrap_or(0))
}

/// `main` still stands on what the job published, or that is too long ago to tell.
pub async fn still_published(engine: &Engine, open: &OpenTable, job: &JobRecord) -> Result<()> {
    let groups = engine.jobs.groups(&job.job, job.generation).await?;
    let metadata = open.table.metadata();
    for published in groups.iter().filter_map(|g| g.published_snapshot) {
        let mut at = metadata.current_snapshot();
        while let Some(snapshot) = at {
            if snapshot.snapshot_id() == published {
                break;
            }
            // Sequence numbers grow along the chain: past the published one it cannot come any more.
            let known = metadata.snapshot_by_id(published).map(|s| s.sequence_number());
            if known.is_some_and(|sequence| snapshot.sequence_number() <= sequence) {
                return Err(Error::conflict(
                    Reason::MainSetBack,
                    format!("job {} was published, but main was set back to before it", job.job),
                )
                .hint("--again loads it once more")
                .at(|p| p.job = Some(job.job.to_string())));
            }
            at = snapshot.parent_snapshot_id().and_then(|p| metadata.snapshot_by_id(p));
        }
    }
    Ok(())
}

/// The next life of a job that is over; whoever comes second gets what the first one made. The old life is fenced first: a
/// cancel that died half way may have left a run that still writes.
pub async fn next_generation(engine: &Engine, job: &JobRecord, request: &BackfillRequest, opened_by: Option<String>) -> Result<JobRecord> {
    let gone = || Error::internal(format!("job {} is gone from the ledger", job.job));
    let mut job = job.clone();
    if !job.state.is_published() {
        sweep(engine, &job).await?;
        settle_job(engine, &job.job, job.generation).await?;
        let settled = engine.jobs.job(&job.job).await?.ok_or_else(gone)?;
        if settled.generation != job.generation || settled.state.is_published() {
            return Ok(settled); // somebody was faster: with the next life, or with publishing this one
        }
        job = settled;
    }
    let now = engine.clock.now();
    let next = JobRecord {
        generation: job.generation + 1,
        request: request.clone(),
        opened_by,
        as_of: now,
        state: State::Planning,
        error: None,
        updated: now,
        ..job.clone()
    };
    if let Some(stored) = engine.jobs.update_job(job.generation, &next).await? {
        reached(Boundary::GenerationStored);
        return Ok(stored);
    }
    engine.jobs.job(&job.job).await?.ok_or_else(gone)
}
