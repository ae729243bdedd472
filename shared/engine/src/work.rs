//! A worker: claims unit messages, runs attempts, ends units. Plain threads; several run at once.

use crate::Engine;
use crate::inventory::table_ident;
use crate::ports::{Claim, EndOutcome, MAX_DELIVERIES, UnitEnd};
use crate::progress::{Progress, Step, StopFlag};
use crate::store::{RoundBase, StoredPlan, load_base};
use crate::write::{Reading, UnitTask, write_unit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timelake_model::ledger::{JobRecord, RoundKey};
use timelake_model::{AttemptId, Error, GroupName, Kind, Reason, Result, UnitReceipt};
use timelake_source::{BoundObject, SourceSpec};
use tokio::runtime::Handle;

/// How long a claim is held; units are planned to take less than a third of it.
const LEASE: Duration = Duration::from_secs(600);
/// First pause after a fault that may pass; doubles with each delivery.
const FIRST_BACKOFF_MS: u64 = 200;
/// Pause while all messages are held by others.
const IDLE_PAUSE: Duration = Duration::from_millis(20);
/// Times the end of a unit is reported again when the ledger does not answer.
const END_TRIES: u32 = 5;

/// What the workers of a job share.
pub struct JobContext<'a> {
    pub engine: &'a Engine,
    pub job: &'a JobRecord,
    pub stored: &'a StoredPlan,
    pub spec: &'a Arc<SourceSpec>,
    pub bound: &'a [BoundObject],
    pub progress: &'a dyn Progress,
    pub stop: &'a StopFlag,
    bases: Mutex<HashMap<(GroupName, u32), Arc<RoundBase>>>,
    given_up: AtomicBool,
}

impl<'a> JobContext<'a> {
    pub fn new(
        engine: &'a Engine,
        job: &'a JobRecord,
        stored: &'a StoredPlan,
        spec: &'a Arc<SourceSpec>,
        bound: &'a [BoundObject],
        progress: &'a dyn Progress,
        stop: &'a StopFlag,
    ) -> Self {
        JobContext { engine, job, stored, spec, bound, progress, stop, bases: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    /// A worker cannot go on: the others end after their unit instead of waiting for what it holds.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    async fn base(&self, key: &RoundKey) -> Result<Arc<RoundBase>> {
        let at = (key.group.clone(), key.round);
        if let Some(base) = self.bases.lock().map_err(|_| Error::internal("a worker panicked"))?.get(&at) {
            return Ok(base.clone());
        }
        let base = Arc::new(load_base(self.engine, self.stored, &key.group, key.round).await?);
        self.bases.lock().map_err(|_| Error::internal("a worker panicked"))?.insert(at, base.clone());
        Ok(base)
    }
}

/// Works until no message of the job is left (or the job is stopped). Returns an error only when going on
/// makes no sense; faults of a unit end that unit.
pub fn work(context: &JobContext, owner: &str, runtime: &Handle) -> Result<()> {
    let engine = context.engine;
    loop {
        context.stop.check()?;
        if context.given_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        let Some(claim) = runtime.block_on(engine.queue.claim(Some(&context.job.job), owner, LEASE))? else {
            if runtime.block_on(engine.queue.depth(&context.job.job))? == 0 {
                return Ok(());
            }
            // Messages are held by others or wait after a fault.
            runtime.block_on(async { engine.clock.sleep(IDLE_PAUSE).await });
            continue;
        };
        one(context, &claim, runtime)?;
    }
}

fn one(context: &JobContext, claim: &Claim, runtime: &Handle) -> Result<()> {
    let engine = context.engine;
    let (key, unit) = (&claim.message.key, claim.message.unit);
    if key.generation != context.job.generation {
        return runtime.block_on(engine.queue.ack(claim)); // a message of an older life
    }
    let attempt = AttemptId(format!("{:012x}", engine.clock.random() & 0xffff_ffff_ffff));
    if !runtime.block_on(engine.jobs.begin_attempt(key, unit, &attempt))? {
        return runtime.block_on(engine.queue.ack(claim));
    }
    let end = match attempt_unit(context, key, unit, &attempt, runtime) {
        Ok(receipt) => UnitEnd::Done(Box::new(receipt)),
        Err(e) if e.reason == Reason::Interrupted => {
            runtime.block_on(engine.queue.release(claim, Duration::ZERO))?;
            return Err(e);
        }
        Err(e) if e.kind == Kind::Unavailable && claim.tries < MAX_DELIVERIES => {
            context.progress.note(&format!("unit {unit}: {e}; trying again ({} of {MAX_DELIVERIES})", claim.tries + 1));
            let backoff = Duration::from_millis(FIRST_BACKOFF_MS << claim.tries.min(8));
            return runtime.block_on(engine.queue.release(claim, backoff));
        }
        Err(e) => UnitEnd::Failed(e),
    };
    runtime.block_on(end_unit(engine, key, unit, &attempt, &end))?;
    runtime.block_on(engine.queue.ack(claim))
}

/// The transition, repeated until its answer is clear; `win` tells who made it.
async fn end_unit(engine: &Engine, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
    let mut tries = 0;
    loop {
        match engine.jobs.end_unit(key, unit, attempt, end).await {
            Ok(outcome) => return Ok(outcome),
            Err(e) if e.kind == Kind::Unavailable && tries < END_TRIES => {
                tries += 1;
                engine.clock.sleep(Duration::from_millis(FIRST_BACKOFF_MS << tries)).await;
            }
            Err(e) => return Err(e),
        }
    }
}

fn attempt_unit(context: &JobContext, key: &RoundKey, unit: u32, attempt: &AttemptId, runtime: &Handle) -> Result<UnitReceipt> {
    let engine = context.engine;
    let group = crate::rounds::planned(context.stored, &key.group)?;
    let unit = group.units.iter().find(|u| u.index == unit).ok_or_else(|| Error::internal(format!("the plan has no unit {unit}")))?;
    let base = runtime.block_on(context.base(key))?;
    let table = runtime.block_on(engine.catalog.load(&table_ident(&context.job.table)?))?;
    let check_stop = || context.stop.check();
    let first_round = key.round == 0;
    let advance = |rows: u64| {
        if first_round {
            context.progress.advance(Step::Write, rows)
        }
    };
    let task = UnitTask {
        reading: Reading {
            inventory: &context.stored.inventory,
            options: &context.job.request.rows,
            spec: context.spec,
            bound: context.bound,
            check_stop: &check_stop,
            advance: &advance,
        },
        plan: &context.stored.plan,
        unit,
        round: key.round,
        attempt,
        table: &table,
        base_snapshot: base.snapshot,
        existing: &base.existing,
        runtime,
    };
    let receipt = write_unit(&task)?;
    // The ledger must never know files that a power loss can take back.
    let files: Vec<String> = receipt.files.iter().map(|f| f.path.clone()).chain(receipt.manifests.iter().map(|m| m.path.clone())).collect();
    runtime.block_on(engine.objects.make_durable(&files))?;
    Ok(receipt)
}
