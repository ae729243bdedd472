//! The finalizer: what follows when the last unit of a round has ended, and validation and publishing.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use std::future::Future;
use timelake_engine::advance::{Hands, Life};
use timelake_engine::progress::StopFlag;
use timelake_engine::validate::{self, Effort, ReadBack};
use timelake_engine::{fanin, refresh, report, store, tries};
use timelake_functions::{Ports, batch, decode};
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, RoundKey, State};
use timelake_model::messages::{CloseMessage, Signal, ValidateMessage};
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Error, GroupName, JobId, Reason, Result, UnitReceipt};

/// Files that are read back at a time.
const THREADS: usize = 2;

pub async fn handle(ports: &Ports, event: SqsEvent, stop: &StopFlag) -> SqsBatchResponse {
    batch(&ports.tally, event, async |message| match decode(message)? {
        Signal::Close(close) if close.key.phase == Phase::Refresh => refreshed(ports, &close).await,
        Signal::Close(close) => written(ports, &close, stop).await,
        Signal::Validate(validate) => validated(ports, &validate, stop).await,
    })
    .await
}

/// The last unit of a round is written: the group is staged, and validation is asked for.
async fn written(ports: &Ports, close: &CloseMessage, stop: &StopFlag) -> Result<()> {
    let Some(stands) = Stands::load(ports, life(&close.key)).await? else { return Ok(()) };
    let group = match stands.group.state {
        State::Writing => stands.go_on(ports, Turn::Stage, stop).await?,
        // This message came before, and may have died with what it was to do next.
        _ => stands.group.clone(),
    };
    match group.state {
        State::Staged => fanin::validate(ports.signals.as_ref(), &group).await,
        State::Published => stands.published(ports, &group).await,
        _ => stands.told(ports).await,
    }
}

/// The group is validated and, unless it is to stay staged, published.
async fn validated(ports: &Ports, message: &ValidateMessage, stop: &StopFlag) -> Result<()> {
    let Some(stands) = Stands::load(ports, (&message.job, message.generation, &message.group)).await? else { return Ok(()) };
    let group = match stands.group.state {
        State::Staged | State::Validating => stands.go_on(ports, Turn::Publish, stop).await?,
        _ => stands.group.clone(),
    };
    match group.state {
        State::Published => stands.published(ports, &group).await,
        _ => stands.told(ports).await,
    }
}

/// The feed knows all changed chunks.
async fn refreshed(ports: &Ports, close: &CloseMessage) -> Result<()> {
    let Some(stands) = Stands::load(ports, life(&close.key)).await? else { return Ok(()) };
    refresh::close(&ports.engine, &stands.group).await?;
    stands.told(ports).await
}

/// How far one message takes a group: validation may take as long as a function may run, so it has a message of its own.
#[derive(Clone, Copy)]
enum Turn {
    Stage,
    Publish,
}

fn life(key: &RoundKey) -> (&JobId, u32, &GroupName) {
    (&key.job, key.generation, &key.group)
}

/// A group in the current life of its job.
struct Stands {
    job: JobRecord,
    group: GroupRecord,
    stored: store::StoredPlan,
}

impl Stands {
    /// `None`: the message is of an older life.
    async fn load(ports: &Ports, key: (&JobId, u32, &GroupName)) -> Result<Option<Stands>> {
        let (engine, (job, generation, group)) = (&ports.engine, key);
        let Some(job) = engine.jobs.job(job).await?.filter(|j| j.generation == generation) else { return Ok(None) };
        let Some(group) = engine.jobs.group(&job.job, generation, group).await? else { return Ok(None) };
        let stored = store::load_plan(engine, &job.job, generation).await?;
        let stored = stored.ok_or_else(|| Error::corrupt(Reason::LedgerDamaged, format!("the plan of job {} is gone", job.job)))?;
        Ok(Some(Stands { job, group, stored }))
    }

    /// Takes the group as far as the turn goes; what it is then.
    async fn go_on(&self, ports: &Ports, turn: Turn, stop: &StopFlag) -> Result<GroupRecord> {
        let engine = &ports.engine;
        let stage_only = self.job.request.run.stage_only;
        let life = Life { engine, job: &self.job, stored: &self.stored, resume: false, stage_only };
        let mut hands = Finalizing { ports, stands: self, turn, stop };
        life.go_on_with(&mut hands, self.group.clone()).await?;
        tries::change_group(engine, &self.group, |_| false).await
    }

    /// What was published is told to the feed, and the run manifest is kept.
    async fn published(&self, ports: &Ports, group: &GroupRecord) -> Result<()> {
        let engine = &ports.engine;
        refresh::open(engine, &self.job, &self.stored, group).await?;
        self.told(ports).await
    }

    /// The job's state follows from its groups'; once it is over, or validated and to stay staged, its run manifest is kept.
    async fn told(&self, ports: &Ports) -> Result<()> {
        let (engine, id) = (&ports.engine, &self.job.job);
        tries::settle_job(engine, id, self.job.generation).await?;
        match engine.jobs.job(id).await?.filter(|job| job.state.is_final() || job.state == State::Staged) {
            Some(job) => report::keep(engine, &job).await,
            None => Ok(()),
        }
    }
}

/// The hands of a function: units are written by others.
struct Finalizing<'a> {
    ports: &'a Ports,
    stands: &'a Stands,
    turn: Turn,
    stop: &'a StopFlag,
}

impl Hands for Finalizing<'_> {
    fn turn(&mut self, group: &GroupRecord) -> Result<bool> {
        self.stop.check()?;
        Ok(match self.turn {
            Turn::Stage => group.state == State::Writing,
            Turn::Publish => matches!(group.state, State::Staged | State::Validating),
        })
    }

    async fn write(&mut self, _: &GroupRecord) -> Result<bool> {
        Ok(false)
    }

    async fn validate(&mut self, group: &GroupRecord, receipts: &[UnitReceipt]) -> Result<Verdict> {
        let Stands { job, stored, .. } = self.stands;
        let effort =
            Effort { read_back: ReadBack::of(job.request.run.verify_full), threads: THREADS, progress: &self.ports.tally, stop: self.stop };
        validate::validate(&self.ports.engine, job, stored, group, receipts, &effort).await
    }

    async fn stage<T>(&mut self, stage: impl Future<Output = Result<T>>) -> Result<T> {
        stage.await
    }

    async fn publish<T>(&mut self, publish: impl Future<Output = Result<T>>) -> Result<T> {
        publish.await
    }

    fn approved(&mut self, checks: Vec<Check>) {
        tracing::info!(checks = checks.len(), "approved");
    }

    fn note(&mut self, text: &str) {
        tracing::info!("{text}");
    }
}
