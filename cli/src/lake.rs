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
use timelake_local::RemoteObjects;
use timelake_model::manifest::RunManifest;
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
        let (options, hint): (&[(&str, bool)], _) = match self {
            Place::Folder(_) => (&[("--detach", load.detach)], "a lake in a folder has no one else who would run the job; leave it out"),
            Place::Aws(_) => {
                let rehearsal = [("--dry-run", load.dry_run), ("--max-cost", load.max_cost.is_some()), ("--prices", load.prices.is_some())];
                if let Some((option, _)) = rehearsal.iter().find(|(_, typed)| *typed) {
                    return Err(Error::invalid(
                        Reason::NotYetSupported,
                        format!("{option} is for lakes in a folder, and this one is on AWS"),
                    )
                    .hint("--stage-only stops before anything is published; backfill cancel removes what was staged")
                    .at(|p| p.option = Some((*option).into())));
                }
                let typed = [
                    ("--threads", load.threads.is_some()),
                    ("--memory", load.memory.is_some()),
                    ("--work-dir", load.work_dir.is_some()),
                    ("--plan", load.plan.is_some()),
                ];
                (&typed.clone(), "memory, threads, temporary files and the plan are those of the functions; leave it out")
            }
        };
        match options.iter().find(|(_, typed)| *typed) {
            Some((option, _)) => Err(option_error(option, None, format!("{option} has no effect on this lake")).hint(hint)),
            None => Ok(()),
        }
    }

    /// A saved request may be of another lake: what of it means nothing here is left out.
    pub fn fit(&self, request: &mut BackfillRequest) {
        if let Place::Aws(_) = self {
            request.run.work_dir = None;
            request.run.threads = 1;
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
    let s3 = S3Objects::new();
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
        let folder = Place::Folder("lake".into());
        assert!(folder.check(&load("--threads 2 --memory 1GB --dry-run")).is_ok());
        assert_eq!(folder.check(&load("--detach")).unwrap_err().place.option.as_deref(), Some("--detach"));
        assert!(folder.folder("worker", "").is_ok());
    }

    #[test]
    fn a_lake_on_aws_has_a_name() {
        assert!(Place::of(Path::new("aws:")).is_err());
        assert!(matches!(Place::of(Path::new("./aws:plant")), Ok(Place::Folder(_))));
    }
}
