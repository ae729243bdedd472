//! A lake on AWS, as the command line uses it: it opens jobs, has them planned by the state machine, and watches what the
//! functions make of them. What is only asked goes by the engine.

mod follow;
mod machine;

use crate::client::S3Objects;
use crate::cloud::Cloud;
use crate::lake::follow::Follow;
use crate::lake::machine::StateMachine;
use crate::retry::Settings;
use crate::services::Services;
use crate::settings::CloudSettings;
use std::path::Path;
use timelake_engine::open::{self, Earlier};
use timelake_engine::plan::PlanLimits;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_engine::tries::change_job;
use timelake_engine::upkeep::{self, Collected, GcOptions};
use timelake_engine::{Engine, fanin, jobs};
use timelake_model::ledger::{JobRecord, State};
use timelake_model::manifest::RunManifest;
use timelake_model::request::RunOptions;
use timelake_model::{BackfillRequest, Result};

/// Where a lake is, by its section of `timelake.toml`.
#[derive(Debug, Clone)]
pub struct LakeSettings {
    pub cloud: CloudSettings,
    pub state_machine_arn: String,
    pub region: String,
    /// Of all services; AWS's own when not given.
    pub endpoint_url: Option<String>,
}

pub struct CloudLake {
    cloud: Cloud,
    engine: Engine,
    machine: StateMachine,
}

/// A job that is under way without this process.
#[derive(Debug, Clone)]
pub struct Submitted {
    pub job: JobRecord,
    /// It was published before, and nothing is to be done.
    pub already_published: bool,
    /// Of the state machine, if the job has no plan yet.
    pub execution: Option<String>,
    stage_only: bool,
    /// Functions may have published it before.
    resumed: bool,
}

impl CloudLake {
    pub async fn open(settings: LakeSettings) -> Result<CloudLake> {
        let requests = crate::client::settings_of_environment();
        CloudLake::open_with(settings, requests).await
    }

    pub async fn open_with(settings: LakeSettings, requests: Settings) -> Result<CloudLake> {
        let requests = Settings { region: Some(settings.region), endpoint_url: settings.endpoint_url, ..requests };
        let services = Services::connect(&requests).await?;
        let machine = StateMachine::new(services.step_functions(), settings.state_machine_arn, requests.clone());
        let cloud = Cloud::open_with(settings.cloud, requests).await?;
        Ok(CloudLake { engine: cloud.engine(), cloud, machine })
    }

    /// What it is asked about jobs and tables goes by this alone.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its sources, tables and files of jobs.
    pub fn objects(&self) -> &S3Objects {
        &self.cloud.objects
    }

    /// What the planner sizes units for.
    pub fn limits(&self) -> PlanLimits {
        PlanLimits::of_functions(self.cloud.settings.writer_memory_bytes())
    }

    /// Opens the request's job and has it go on, from wherever it stands. What is wrong with the request, its table or
    /// an earlier job is told at once.
    pub async fn submit(&self, request: &BackfillRequest, earlier: &Earlier, progress: &dyn Progress) -> Result<Submitted> {
        // There is no current folder: sources are addresses.
        let opened = open::open(&self.engine, request, earlier, Path::new("/")).await;
        let opened = jobs::hinted(&self.engine, &request.table, opened).await?;
        let mut job = opened.job;
        if opened.already_published {
            return Ok(Submitted { job, already_published: true, execution: None, stage_only: false, resumed: false });
        }
        if opened.resumed {
            progress.note(&format!("job {} goes on (it was {})", job.job, job.state));
            job = self.with_run(job, &request.run).await?;
        }
        Ok(Submitted { resumed: opened.resumed, ..self.go_on(job, request).await? })
    }

    /// Goes on with a job that stands on HOLD, or whose planning was given up; follows any other.
    pub async fn resume(&self, job: &str) -> Result<Submitted> {
        let job = jobs::find(&self.engine, job).await?;
        let request = job.request.clone();
        self.go_on(job, &request).await
    }

    /// Has a staged job published.
    pub async fn publish(&self, job: &str) -> Result<Submitted> {
        let job = jobs::to_publish(&self.engine, job).await?;
        let run = RunOptions { stage_only: false, ..job.request.run.clone() };
        let job = self.with_run(job, &run).await?;
        let request = job.request.clone();
        self.go_on(job, &request).await
    }

    async fn go_on(&self, job: JobRecord, request: &BackfillRequest) -> Result<Submitted> {
        let (engine, signals) = (&self.engine, self.cloud.queues.as_ref());
        let submitted =
            |job, execution| Submitted { job, already_published: false, execution, stage_only: request.run.stage_only, resumed: true };
        match job.state {
            // What remains of it is only to be waited for.
            State::Refreshed => Ok(Submitted { already_published: true, ..submitted(job, None) }),
            State::Rejected | State::Cancelled | State::RolledBack => Err(jobs::starts_anew(&job)),
            State::Planning | State::Landing => {
                // Why it was given up the last time is no word on this time.
                let job = self.changed(job, |j| j.error.take().is_some()).await?;
                let execution = self.machine.start(&job, request).await?;
                Ok(submitted(job, Some(execution)))
            }
            State::Hold => {
                fanin::resume(engine, signals, &job, async |_| Ok(true)).await?;
                Ok(submitted(self.now(job).await?, None))
            }
            State::Writing | State::Staged | State::Validating | State::Published => {
                // Units whose messages were lost are found by the sweeper: it knows whether queues are empty.
                fanin::nudge(engine, signals, &job, false).await?;
                Ok(submitted(job, None))
            }
        }
    }

    /// What the last command said of a job's publishing counts.
    async fn with_run(&self, job: JobRecord, run: &RunOptions) -> Result<JobRecord> {
        self.changed(job, |j| {
            let known = &mut j.request.run;
            let said = (run.stage_only, run.verify_full, run.max_in_flight);
            let changes = (known.stage_only, known.verify_full, known.max_in_flight) != said;
            (known.stage_only, known.verify_full, known.max_in_flight) = said;
            changes
        })
        .await
    }

    async fn changed(&self, job: JobRecord, change: impl FnMut(&mut JobRecord) -> bool) -> Result<JobRecord> {
        change_job(&self.engine, &job.job, job.generation, change).await?.ok_or_else(|| jobs::cancelled(&job))
    }

    async fn now(&self, job: JobRecord) -> Result<JobRecord> {
        self.changed(job, |_| false).await
    }

    /// Watches a job until it is over; how it ended.
    pub async fn follow(&self, submitted: &Submitted, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        let Submitted { job, execution, stage_only, .. } = submitted;
        if submitted.already_published {
            return jobs::nothing_to_do(&self.engine, job).await;
        }
        let execution = execution.as_deref();
        let follow = Follow { engine: &self.engine, machine: &self.machine, execution, stage_only: *stage_only, progress, stop };
        let ended = follow.to_its_end(&job.job, job.generation).await?;
        if ended.state == State::Cancelled {
            return Err(jobs::cancelled(&ended));
        }
        if submitted.resumed && ended.state.is_published() {
            jobs::still_published(&self.engine, &ended.job).await?;
        }
        jobs::manifest(&self.engine, &ended).await
    }

    /// Runs of the job stay until `gc`: a writer that is still at one finds out by itself.
    pub async fn cancel(&self, job: &str) -> Result<RunManifest> {
        let job = jobs::cancel(&self.engine, job).await?;
        jobs::manifest(&self.engine, &job).await
    }

    /// Removes what jobs left behind. Whether a function is at work does not show; late ones find their round closed, and
    /// the grace period keeps what they are writing.
    pub async fn gc(&self, options: &GcOptions) -> Result<Collected> {
        upkeep::collect(&self.engine, options, &|_| false).await
    }
}
