//! A worker: claims unit messages, runs attempts, ends units. Plain threads; several run at once.

use crate::Engine;
use crate::inventory::table_ident;
use crate::land::{self, Folds, LandTask};
use crate::ports::{Claim, EndOutcome, MAX_DELIVERIES, UnitEnd};
use crate::progress::{Progress, Step, StopFlag};
use crate::store::{RoundBase, StoredPlan, load_base};
use crate::write::{Reading, UnitTask, write_unit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timelake_model::inventory::SourceObject;
use timelake_model::ledger::{JobRecord, RoundKey};
use timelake_model::{AttemptId, Error, GroupName, Kind, LandPlan, Reason, Receipt, Result};
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

/// What one phase does with a unit; called from several threads.
pub trait Attempts: Sync {
    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, runtime: &Handle) -> Result<Receipt>;
}

/// What the workers of a job share.
pub struct Workers<'a> {
    pub engine: &'a Engine,
    pub job: &'a JobRecord,
    pub progress: &'a dyn Progress,
    pub stop: &'a StopFlag,
    given_up: AtomicBool,
}

impl<'a> Workers<'a> {
    pub fn new(engine: &'a Engine, job: &'a JobRecord, progress: &'a dyn Progress, stop: &'a StopFlag) -> Self {
        Workers { engine, job, progress, stop, given_up: AtomicBool::new(false) }
    }

    /// A worker cannot go on: the others end after their unit instead of waiting for what it holds.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }
}

/// Writes the units of a plan.
pub struct Writing<'a> {
    pub workers: &'a Workers<'a>,
    pub stored: &'a StoredPlan,
    pub spec: &'a Arc<SourceSpec>,
    pub bound: &'a [BoundObject],
    bases: Mutex<HashMap<(GroupName, u32), Arc<RoundBase>>>,
}

impl<'a> Writing<'a> {
    pub fn new(workers: &'a Workers<'a>, stored: &'a StoredPlan, spec: &'a Arc<SourceSpec>, bound: &'a [BoundObject]) -> Self {
        Writing { workers, stored, spec, bound, bases: Mutex::default() }
    }

    async fn base(&self, key: &RoundKey) -> Result<Arc<RoundBase>> {
        let at = (key.group.clone(), key.round);
        if let Some(base) = self.bases.lock().map_err(|_| Error::internal("a worker panicked"))?.get(&at) {
            return Ok(base.clone());
        }
        let base = Arc::new(load_base(self.workers.engine, self.stored, &key.group, key.round).await?);
        self.bases.lock().map_err(|_| Error::internal("a worker panicked"))?.insert(at, base.clone());
        Ok(base)
    }
}

/// Lands the splits of a landing plan.
pub struct Landing<'a> {
    pub workers: &'a Workers<'a>,
    pub plan: &'a LandPlan,
    pub spec: &'a Arc<SourceSpec>,
    pub bound: &'a [BoundObject],
    pub buffer_bytes: usize,
    folds: Folds,
    doomed: AtomicBool,
    /// Bytes of the splits that are landed in this run; rows and bytes so far.
    source_bytes: u64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> Landing<'a> {
    pub fn new(
        workers: &'a Workers<'a>,
        plan: &'a LandPlan,
        spec: &'a Arc<SourceSpec>,
        bound: &'a [BoundObject],
        buffer_bytes: usize,
        source_bytes: u64,
    ) -> Self {
        Landing {
            workers,
            plan,
            spec,
            bound,
            buffer_bytes,
            folds: Folds::new(&plan.folds),
            doomed: AtomicBool::new(false),
            source_bytes,
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// Works until no message of the job is left (or the job is stopped). Returns an error only when going on
/// makes no sense; faults of a unit end that unit.
pub fn work(context: &Workers, phase: &dyn Attempts, owner: &str, runtime: &Handle) -> Result<()> {
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
        one(context, phase, &claim, runtime)?;
    }
}

fn one(context: &Workers, phase: &dyn Attempts, claim: &Claim, runtime: &Handle) -> Result<()> {
    let engine = context.engine;
    let (key, unit) = (&claim.message.key, claim.message.unit);
    if key.generation != context.job.generation {
        return runtime.block_on(engine.queue.ack(claim)); // a message of an older life
    }
    let attempt = AttemptId(format!("{:012x}", engine.clock.random() & 0xffff_ffff_ffff));
    if !runtime.block_on(engine.jobs.begin_attempt(key, unit, &attempt))? {
        return runtime.block_on(engine.queue.ack(claim));
    }
    let end = match phase.attempt(key, unit, &attempt, runtime) {
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

impl Attempts for Writing<'_> {
    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, runtime: &Handle) -> Result<Receipt> {
        let Workers { engine, job, progress, stop, .. } = self.workers;
        let group = crate::rounds::planned(self.stored, &key.group)?;
        let unit = group.units.iter().find(|u| u.index == unit).ok_or_else(|| Error::internal(format!("the plan has no unit {unit}")))?;
        let base = runtime.block_on(self.base(key))?;
        let table = runtime.block_on(engine.catalog.load(&table_ident(&job.table)?))?;
        let check_stop = || stop.check();
        let first_round = key.round == 0;
        let advance = |rows: u64| {
            if first_round {
                progress.advance(Step::Write, rows)
            }
        };
        let task = UnitTask {
            reading: Reading {
                inventory: &self.stored.inventory,
                options: &job.request.rows,
                spec: self.spec,
                bound: self.bound,
                folds: None,
                check_stop: &check_stop,
                advance: &advance,
            },
            plan: &self.stored.plan,
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
        let files: Vec<String> =
            receipt.files.iter().map(|f| f.path.clone()).chain(receipt.manifests.iter().map(|m| m.path.clone())).collect();
        runtime.block_on(engine.objects.make_durable(&files))?;
        Ok(Receipt::Write(receipt))
    }
}

impl Attempts for Landing<'_> {
    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, runtime: &Handle) -> Result<Receipt> {
        let Workers { engine, job, progress, stop, .. } = self.workers;
        let table = runtime.block_on(engine.catalog.load(&table_ident(&job.table)?))?;
        let check_stop = || stop.check();
        let landed = |rows: u64, bytes: u64| {
            let rows_so_far = self.rows.fetch_add(rows, Ordering::Relaxed) + rows;
            let bytes_so_far = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress.advance(Step::Land, rows);
            if bytes_so_far > 0 {
                let all = u128::from(rows_so_far) * u128::from(self.source_bytes) / u128::from(bytes_so_far);
                progress.foresee(Step::Land, u64::try_from(all).unwrap_or(u64::MAX));
            }
        };
        let stat = |path: &str| {
            let found = runtime.block_on(engine.objects.stat(path))?;
            let shown = found.uri.clone();
            Ok(SourceObject { uri: found.uri, shown, size: found.size, fingerprint: found.fingerprint, hive: Default::default() })
        };
        let task = LandTask {
            reading: Reading {
                inventory: &self.plan.inventory,
                options: &job.request.rows,
                spec: self.spec,
                bound: self.bound,
                folds: Some(&self.folds),
                check_stop: &check_stop,
                advance: &|_| {},
            },
            plan: self.plan,
            unit,
            round: key.round,
            attempt,
            table: &table,
            folder: &self.plan.folder,
            buffer_bytes: self.buffer_bytes,
            doomed: &self.doomed,
            runtime,
            landed: &landed,
            stat: &stat,
        };
        let receipt = land::land(&task)?;
        let files: Vec<String> = receipt.runs.iter().map(|r| r.file.uri.clone()).chain(receipt.rejected.clone()).collect();
        runtime.block_on(engine.objects.make_durable(&files))?;
        Ok(Receipt::Land(receipt))
    }
}
