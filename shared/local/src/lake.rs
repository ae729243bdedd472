//! The embedded lake's commands, each one function. What the command line calls.

use serde::Serialize;
use std::path::{Path, PathBuf};
use timelake_engine::progress::{Progress, StopFlag};
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitState};
use timelake_model::manifest::RunManifest;
use timelake_model::verdict::Verdict;
use timelake_model::{BackfillRequest, Error, JobId, Result, TimestampUs, Window};

pub struct Lake {
    root: PathBuf,
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

impl Lake {
    /// Opens a lake. `create`: makes the folder and its databases when absent; else an absent lake is `not_found`.
    pub fn open(root: &Path, create: bool) -> Result<Lake> {
        let _ = create;
        Ok(Lake { root: root.to_path_buf() })
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The whole road for one request; continues an unfinished job of the same request.
    /// Relative sources are taken from the current folder.
    pub async fn backfill(
        &self,
        request: &BackfillRequest,
        options: &BackfillOptions,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<RunManifest> {
        let _ = (request, options, progress, stop);
        todo!()
    }
    /// Goes on with a job that stands on HOLD or was interrupted.
    pub async fn resume(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let _ = (job, progress, stop);
        todo!()
    }
    /// Publishes a staged job.
    pub async fn publish(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let _ = (job, progress, stop);
        todo!()
    }
    /// Validates what is staged and says what was checked; publishes nothing.
    pub async fn validate(&self, job: &str, full: bool, progress: &dyn Progress, stop: &StopFlag) -> Result<Verdict> {
        let _ = (job, full, progress, stop);
        todo!()
    }
    pub async fn cancel(&self, job: &str) -> Result<RunManifest> {
        let _ = job;
        todo!()
    }
    pub async fn report(&self, job: &str) -> Result<RunManifest> {
        let _ = job;
        todo!()
    }
    pub async fn list(&self, table: Option<&str>) -> Result<Vec<JobSummary>> {
        let _ = table;
        todo!()
    }
    pub async fn status(&self, job: &str) -> Result<JobStatus> {
        let _ = job;
        todo!()
    }
}

/// How to treat an earlier job of the same or an older source.
#[derive(Debug, Clone, Default)]
pub struct BackfillOptions {
    /// Load again although the job is published: a new generation.
    pub again: bool,
    /// Start although an unfinished job of an older version of this source exists.
    pub new: bool,
}
