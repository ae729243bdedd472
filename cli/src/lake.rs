//! The lake of a command: a folder, or on AWS. What is only asked of a lake goes by its engine; here is what the two do in
//! ways of their own.

use crate::args::LoadArgs;
use crate::config;
use crate::resolve::option_error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timelake_aws::{CloudLake, LakeSettings, S3Objects, WarehouseStorageFactory};
use timelake_engine::Engine;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_engine::upkeep::{Collected, GcOptions};
use timelake_local::{DryRunOptions, Original, Rehearsed, RemoteObjects, dry_run};
use timelake_model::manifest::RunManifest;
use timelake_model::request::RunOptions;
use timelake_model::{BackfillRequest, Error, Reason, Result};

/// Start of the name of a lake on AWS.
const ON_AWS: &str = "aws:";

/// What `--lake` says.
pub enum Place {
    Folder(PathBuf),
    Aws(Box<LakeSettings>),
}

pub enum Lake {
    Folder(timelake_local::Lake),
    Aws(Box<CloudLake>),
}

impl Place {
    pub fn of(lake: &Path) -> Result<Place> {
        match lake.to_str().and_then(|text| text.strip_prefix(ON_AWS)) {
            Some("") => {
                Err(option_error("--lake", Some(ON_AWS), "the lake on AWS has no name".into()).hint("write aws:NAME, as in timelake.toml"))
            }
            Some(name) => Ok(Place::Aws(Box::new(config::lake(name)?))),
            None => Ok(Place::Folder(lake.to_path_buf())),
        }
    }

    /// The folder of a lake that has one; `what` needs it.
    pub fn folder(&self, what: &str, hint: &str) -> Result<&Path> {
        match self {
            Place::Folder(folder) => Ok(folder),
            Place::Aws(_) => {
                Err(Error::invalid(Reason::NotYetSupported, format!("{what} is for lakes in a folder, and this one is on AWS"))
                    .hint(hint)
                    .at(|p| p.option = Some("--lake".into())))
            }
        }
    }

    /// Opens the lake. `create` makes a folder when it is absent; new tables go to the warehouse, if one is named.
    pub async fn open(&self, create: bool, warehouse: Option<&str>) -> Result<Lake> {
        match self {
            Place::Folder(folder) => timelake_local::Lake::open(folder, create, remote(), warehouse).map(Lake::Folder),
            Place::Aws(settings) => {
                let mut settings = settings.as_ref().clone();
                if let Some(warehouse) = warehouse {
                    settings.cloud.warehouse = warehouse.trim_end_matches('/').to_string();
                }
                Ok(Lake::Aws(Box::new(CloudLake::open(settings).await?)))
            }
        }
    }

    /// What was typed for a load and means nothing here is an error: it would not do what was asked for.
    pub fn check(&self, load: &LoadArgs) -> Result<()> {
        const NOBODY_ELSE: &str = "a lake in a folder has no one else who would run the job; leave it out";
        const OF_FUNCTIONS: &str = "the plan is the planner's, the memory that of the functions (terraform: functions = { writer = { memory_mb = ... } }); leave it out";
        const OF_A_DRY_RUN: &str = "threads and temporary files are those of the functions; it goes with --dry-run or --max-cost";
        let here = load.dry_run || load.max_cost.is_some();
        let options: &[(&str, bool, &str)] = match self {
            Place::Folder(_) => &[("--detach", load.detach, NOBODY_ELSE)],
            Place::Aws(_) => &[
                ("--threads", load.threads.is_some() && !here, OF_A_DRY_RUN),
                ("--work-dir", load.work_dir.is_some() && !here, OF_A_DRY_RUN),
                ("--memory", load.memory.is_some(), OF_FUNCTIONS),
                ("--plan", load.plan.is_some(), OF_FUNCTIONS),
                ("--detach", load.detach && load.dry_run, "a dry run starts nothing that would go on by itself; leave it out"),
            ],
        };
        match options.iter().find(|(_, typed, _)| *typed) {
            Some((option, _, hint)) => Err(option_error(option, None, format!("{option} has no effect on this lake")).hint(*hint)),
            None => Ok(()),
        }
    }

    /// What of a request is of this machine, or of another lake it was saved for, is left out of a real run on AWS.
    pub fn fit(&self, request: BackfillRequest) -> BackfillRequest {
        match self {
            Place::Folder(_) => request,
            Place::Aws(_) => BackfillRequest { run: RunOptions { work_dir: None, threads: 1, ..request.run }, ..request },
        }
    }

    /// Says what the request would do, and changes nothing.
    pub async fn rehearse(
        &self,
        request: &BackfillRequest,
        options: &DryRunOptions,
        progress: &dyn Progress,
        stop: &StopFlag,
    ) -> Result<Rehearsed> {
        match self {
            Place::Folder(root) => dry_run(Original::Folder { root, remote: remote() }, request, options, progress, stop).await,
            Place::Aws(settings) => {
                let lake = CloudLake::open(settings.as_ref().clone()).await?;
                let remote = of_s3(lake.objects().clone());
                let original = Original::Elsewhere { engine: lake.engine(), limits: lake.limits(), remote };
                dry_run(original, request, options, progress, stop).await
            }
        }
    }
}

impl Lake {
    pub fn engine(&self) -> &Engine {
        match self {
            Lake::Folder(lake) => lake.engine(),
            Lake::Aws(lake) => lake.engine(),
        }
    }

    pub async fn resume(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        match self {
            Lake::Folder(lake) => lake.resume(job, progress, stop).await,
            Lake::Aws(lake) => lake.follow(&lake.resume(job).await?, progress, stop).await,
        }
    }

    pub async fn publish(&self, job: &str, progress: &dyn Progress, stop: &StopFlag) -> Result<RunManifest> {
        match self {
            Lake::Folder(lake) => lake.publish(job, progress, stop).await,
            Lake::Aws(lake) => lake.follow(&lake.publish(job).await?, progress, stop).await,
        }
    }

    pub async fn cancel(&self, job: &str) -> Result<RunManifest> {
        match self {
            Lake::Folder(lake) => lake.cancel(job).await,
            Lake::Aws(lake) => lake.cancel(job).await,
        }
    }

    pub async fn gc(&self, options: &GcOptions) -> Result<Collected> {
        match self {
            Lake::Folder(lake) => lake.gc(options).await,
            Lake::Aws(lake) => lake.gc(options).await,
        }
    }
}

/// Sources and tables on S3, of a lake in a folder.
pub fn remote() -> RemoteObjects {
    of_s3(S3Objects::new())
}

fn of_s3(s3: S3Objects) -> RemoteObjects {
    RemoteObjects {
        scheme: timelake_aws::SCHEME,
        objects: Arc::new(s3.clone()),
        sources: Arc::new(s3.clone()),
        storage: Arc::new(WarehouseStorageFactory::new(s3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn options_that_mean_nothing_on_a_lake_are_refused() {
        let load = |words: &str| {
            let words = ["timelake", "backfill", "iot.s", "--from", "s3://b/x"].into_iter().chain(words.split_whitespace());
            let Command::Backfill(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
            args.load
        };
        let refused = |place: &Place, words: &str| place.check(&load(words)).err().and_then(|e| e.place.option);
        let folder = Place::Folder("lake".into());
        assert_eq!(refused(&folder, "--threads 2 --memory 1GB --work-dir w --dry-run --max-cost 1"), None);
        assert_eq!(refused(&folder, "--detach").as_deref(), Some("--detach"));
        assert!(folder.folder("worker", "").is_ok());
        let aws = on_aws();
        for words in ["", "--detach --max-cost 1", "--dry-run --sample 9 --threads 2 --work-dir w", "--max-cost 1 --threads 2 --work-dir w"]
        {
            assert_eq!(refused(&aws, words), None, "{words}");
        }
        for (words, option) in [
            ("--threads 2", "--threads"),
            ("--work-dir w", "--work-dir"),
            ("--memory 1GB", "--memory"),
            ("--memory 1GB --dry-run", "--memory"),
            ("--detach --dry-run", "--detach"),
        ] {
            assert_eq!(refused(&aws, words).as_deref(), Some(option), "{words}");
        }
        assert_eq!(aws.folder("worker", "").unwrap_err().place.option.as_deref(), Some("--lake"));
    }

    #[test]
    fn a_run_on_aws_has_nothing_of_this_machine() {
        let run = RunOptions { threads: 7, work_dir: Some("w".into()), keep_runs: true, ..RunOptions::default() };
        let request = BackfillRequest { table: "iot.s".into(), rows: Default::default(), run };
        assert_eq!(Place::Folder("lake".into()).fit(request.clone()), request);
        assert_eq!(on_aws().fit(request).run, RunOptions { keep_runs: true, ..RunOptions::default() });
    }

    fn on_aws() -> Place {
        let needed = ["TIMELAKE_BUCKET", "TIMELAKE_LEDGER_TABLE"];
        let cloud = timelake_aws::CloudSettings::from(|name| needed.contains(&name).then(|| "plant".into())).unwrap();
        let state_machine_arn = "arn:aws:states:eu-central-1:1:stateMachine:plant".into();
        Place::Aws(Box::new(LakeSettings { cloud, state_machine_arn, region: "eu-central-1".into(), endpoint_url: None }))
    }

    #[test]
    fn a_lake_on_aws_has_a_name() {
        assert!(Place::of(Path::new("aws:")).is_err());
        assert!(matches!(Place::of(Path::new("./aws:plant")), Ok(Place::Folder(_))));
    }
}
