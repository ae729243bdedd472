//! A worker: claims unit messages, runs attempts, ends units. Plain threads; several run at once, in one process or
//! in several.
//!
//! A claim is a lease that the attempt keeps while it works. An attempt that lost its lease (it stood still for too
//! long, or the job was cancelled) stops; if it does not notice, the ledger lets only one attempt win.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::evolution;
use crate::inventory::table_ident;
use crate::land::{self, Folds, LandTask};
use crate::ports::{Claim, EndOutcome, MAX_DELIVERIES, UnitEnd, UnitQueue};
use crate::progress::{Progress, Step, StopFlag};
use crate::store::{RoundBase, StoredPlan, load_base};
use crate::write::{Reading, UnitTask, write_unit};
use arrow::array::RecordBatch;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timelake_model::inventory::SourceObject;
use timelake_model::ledger::{JobRecord, Phase, RoundKey, UnitMessage};
use timelake_model::{AttemptId, Error, GroupName, Kind, LandPlan, Reason, Receipt, Result};
use timelake_source::{BoundObjects, SourceSpec};
use tokio::runtime::Handle;

/// How long a claim is held without a word from its attempt.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often an attempt says that it is at work, and notices that its claim is gone.
const BEAT_US: i64 = 2_000_000;
/// First pause after a fault that may pass; doubles with each delivery.
const FIRST_BACKOFF_MS: u64 = 200;
/// Pauses while all messages are held by others: the first, doubling up to the longest.
const FIRST_IDLE_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_IDLE_PAUSE: Duration = Duration::from_millis(250);
/// Times the end of a unit is reported again when the ledger does not answer.
const END_TRIES: u32 = 5;

/// What one phase does with a unit; called from several threads. Calls `held.check()` once per batch.
pub trait Attempts: Sync {
    fn phase(&self) -> Phase;
    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt>;
}

/// An attempt while it works: it says so now and then, and hears whether its unit is still its own.
pub struct Held<'a> {
    engine: &'a Engine,
    stop: &'a StopFlag,
    unit: u32,
    /// Holds the claim for longer; `false` when it is gone.
    keep: &'a (dyn Fn() -> Result<bool> + Sync),
    last_beat_us: AtomicI64,
    lost: AtomicBool,
}

impl<'a> Held<'a> {
    fn new(context: &Workers<'a>, unit: u32, keep: &'a (dyn Fn() -> Result<bool> + Sync)) -> Self {
        let now = context.engine.clock.now().0;
        Held { engine: context.engine, stop: context.stop, unit, keep, last_beat_us: AtomicI64::new(now), lost: AtomicBool::new(false) }
    }

    /// An error once the attempt must stop: the user asked for it, or the claim is gone.
    pub fn check(&self) -> Result<()> {
        self.stop.check()?;
        let now = self.engine.clock.now().0;
        let last = self.last_beat_us.load(Ordering::Relaxed);
        // A clock that was set back must not silence the beat.
        if (last..last + BEAT_US).contains(&now) {
            return if self.lost.load(Ordering::Relaxed) { Err(self.given_up()) } else { Ok(()) };
        }
        self.last_beat_us.store(now, Ordering::Relaxed);
        // A ledger that does not answer is no reason to throw work away: who wins is decided at the end.
        if let Ok(false) = (self.keep)() {
            self.lost.store(true, Ordering::Relaxed);
            return Err(self.given_up());
        }
        Ok(())
    }

    fn given_up(&self) -> Error {
        Error::unavailable(Reason::Interrupted, format!("unit {} was taken over or given up", self.unit))
    }
}

/// What the workers of a job share.
pub struct Workers<'a> {
    pub engine: &'a Engine,
    pub job: &'a JobRecord,
    pub progress: &'a dyn Progress,
    pub stop: &'a StopFlag,
    /// Asked while there is nothing to do; hands back what processes held that are gone.
    pub idle: &'a (dyn Fn() -> Result<()> + Sync),
    given_up: AtomicBool,
}

impl<'a> Workers<'a> {
    pub fn new(
        engine: &'a Engine,
        job: &'a JobRecord,
        progress: &'a dyn Progress,
        stop: &'a StopFlag,
        idle: &'a (dyn Fn() -> Result<()> + Sync),
    ) -> Self {
        Workers { engine, job, progress, stop, idle, given_up: AtomicBool::new(false) }
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
    pub bound: &'a BoundObjects,
    bases: Mutex<HashMap<(GroupName, u32), Arc<RoundBase>>>,
}

impl<'a> Writing<'a> {
    pub fn new(workers: &'a Workers<'a>, stored: &'a StoredPlan, spec: &'a Arc<SourceSpec>, bound: &'a BoundObjects) -> Self {
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
    pub bound: &'a BoundObjects,
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
        bound: &'a BoundObjects,
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

/// Works until no message of the job is left, the job is stopped, in its next phase or in its next life. Returns an error
/// only when going on makes no sense; faults of a unit end that unit.
pub fn work(context: &Workers, queue: &dyn UnitQueue, phase: &dyn Attempts, owner: &str, runtime: &Handle) -> Result<()> {
    let engine = context.engine;
    let mut pause = FIRST_IDLE_PAUSE;
    loop {
        context.stop.check()?;
        if context.given_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        let Some(claim) = runtime.block_on(queue.claim(Some(&context.job.job), owner, LEASE))? else {
            if runtime.block_on(queue.depth(&context.job.job))? == 0 {
                return Ok(());
            }
            // Messages are held by others or wait after a fault. Those of units that ended say nothing any more: whoever
            // has them may be stopped, or was killed before it could put them away.
            if runtime.block_on(is_over(engine, context.job, phase.phase()))? {
                return Ok(());
            }
            (context.idle)()?;
            runtime.block_on(async { engine.clock.sleep(pause).await });
            pause = (pause * 2).min(LONGEST_IDLE_PAUSE);
            continue;
        };
        pause = FIRST_IDLE_PAUSE;
        let RoundKey { generation, phase: of, .. } = &claim.message.key;
        if (*generation, *of) > (context.job.generation, phase.phase()) {
            runtime.block_on(queue.release(&claim, Duration::ZERO))?;
            return Ok(()); // whoever opened the next phase, or the job's next life, has what it takes
        }
        one(context, queue, phase, &claim, runtime)?;
    }
}

/// Have all units of the phase ended, as far as it is opened? The counters of its rounds say so.
pub async fn is_over(engine: &Engine, job: &JobRecord, phase: Phase) -> Result<bool> {
    let groups = match phase {
        Phase::Land => vec![GroupName::land()],
        _ => engine.jobs.groups(&job.job, job.generation).await?.into_iter().map(|g| g.group).collect(),
    };
    for group in groups {
        for round in 0.. {
            let key = RoundKey { job: job.job.clone(), generation: job.generation, phase, group: group.clone(), round };
            let counters = engine.jobs.counters(&key).await?;
            if counters.is_empty() {
                break;
            }
            if counters.iter().any(|c| c.open && c.remaining > 0) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn one(context: &Workers, queue: &dyn UnitQueue, phase: &dyn Attempts, claim: &Claim, runtime: &Handle) -> Result<()> {
    let keep = || runtime.block_on(queue.extend(claim, LEASE));
    match attempt(context, phase, &claim.message, claim.tries, &keep, runtime) {
        Ok(Attempted::Ended | Attempted::Stale) => {
            runtime.block_on(queue.ack(claim))?;
            reached(Boundary::MessageAcknowledged);
            Ok(())
        }
        Ok(Attempted::Lost) => Ok(()),
        Ok(Attempted::Again(pause)) => runtime.block_on(queue.release(claim, pause)),
        Ok(Attempted::Stopped(e)) => {
            runtime.block_on(queue.release(claim, Duration::ZERO))?;
            Err(e)
        }
        Err(e) => Err(e),
    }
}

/// How an attempt at a unit ended.
pub enum Attempted {
    /// The unit is DONE or FAILED: by this attempt, or by another that was faster.
    Ended,
    /// Nothing was to be done: the message is of an older life, of a phase that is over, or its unit has ended.
    Stale,
    /// The unit was taken over or given up meanwhile.
    Lost,
    /// A fault that may pass; the unit stays PENDING.
    Again(Duration),
    /// It was stopped, or cannot go on without a person; the unit stays PENDING, and no other would fare better.
    Stopped(Error),
}

/// Makes one attempt at the unit of a message that was delivered so many times, and ends the unit with it.
pub fn attempt(
    context: &Workers,
    phase: &dyn Attempts,
    message: &UnitMessage,
    tries: u32,
    keep: &(dyn Fn() -> Result<bool> + Sync),
    runtime: &Handle,
) -> Result<Attempted> {
    let engine = context.engine;
    let (key, unit) = (&message.key, message.unit);
    if key.generation != context.job.generation || key.phase != phase.phase() {
        return Ok(Attempted::Stale);
    }
    let attempt = AttemptId(format!("{:012x}", engine.clock.random() & 0xffff_ffff_ffff));
    if !runtime.block_on(engine.jobs.begin_attempt(key, unit, &attempt))? {
        return Ok(Attempted::Stale);
    }
    reached(Boundary::AttemptBegun);
    let held = Held::new(context, unit, keep);
    let end = match phase.attempt(key, unit, &attempt, &held, runtime) {
        Ok(receipt) => UnitEnd::Done(Box::new(receipt)),
        Err(_) if held.lost.load(Ordering::Relaxed) => return Ok(Attempted::Lost),
        Err(e) if e.reason == Reason::Interrupted || e.needs_a_hand() => return Ok(Attempted::Stopped(e)),
        Err(e) if e.kind == Kind::Unavailable && tries < MAX_DELIVERIES => {
            context.progress.note(&format!("unit {unit}: {e}; trying again ({} of {MAX_DELIVERIES})", tries + 1));
            return Ok(Attempted::Again(Duration::from_millis(FIRST_BACKOFF_MS << tries.min(8))));
        }
        Err(e) => UnitEnd::Failed(e),
    };
    runtime.block_on(end_unit(engine, key, unit, &attempt, &end))?;
    reached(Boundary::UnitEnded);
    Ok(Attempted::Ended)
}

/// The transition, repeated until its answer is clear; `win` tells who made it.
async fn end_unit(engine: &Engine, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
    let mut tries = 0;
    loop {
        match engine.jobs.end_unit(key, unit, attempt, end).await {
            Ok(outcome) => return Ok(outcome),
            Err(e) if e.kind == Kind::Unavailable && !e.needs_a_hand() && tries < END_TRIES => {
                tries += 1;
                engine.clock.sleep(Duration::from_millis(FIRST_BACKOFF_MS << tries)).await;
            }
            Err(e) => return Err(e),
        }
    }
}

impl Attempts for Writing<'_> {
    fn phase(&self) -> Phase {
        Phase::Write
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        let Workers { engine, job, progress, .. } = self.workers;
        let group = crate::rounds::planned(self.stored, &key.group)?;
        let unit = group.units.iter().find(|u| u.index == unit).ok_or_else(|| Error::internal(format!("the plan has no unit {unit}")))?;
        let base = runtime.block_on(self.base(key))?;
        let table = runtime.block_on(async {
            let table = engine.catalog.load(&table_ident(&job.table)?).await?;
            evolution::fits(&table, &self.stored.plan, &self.stored.inventory)?;
            evolution::as_planned(&table, self.stored.plan.schema_id)
        })?;
        let check_stop = || held.check();
        let first_round = key.round == 0;
        let advance = |rows: u64| {
            if first_round {
                progress.advance(Step::Write, rows)
            }
        };
        let stored = |rows: &RecordBatch| progress.stored(unit.index, rows);
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
            stored: &stored,
        };
        let receipt = write_unit(&task)?;
        reached(Boundary::FilesWritten);
        // The ledger must never know files that a power loss can take back.
        let files: Vec<String> =
            receipt.files.iter().map(|f| f.path.clone()).chain(receipt.manifests.iter().map(|m| m.path.clone())).collect();
        runtime.block_on(engine.objects.make_durable(&files))?;
        reached(Boundary::FilesDurable);
        Ok(Receipt::Write(receipt))
    }
}

impl Attempts for Landing<'_> {
    fn phase(&self) -> Phase {
        Phase::Land
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        let Workers { engine, job, progress, .. } = self.workers;
        // What changed in the table meanwhile is judged when the source is landed.
        let table = runtime.block_on(async {
            let table = engine.catalog.load(&table_ident(&job.table)?).await?;
            evolution::as_planned(&table, self.plan.inventory.table.schema_id)
        })?;
        let check_stop = || held.check();
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
        reached(Boundary::RunsWritten);
        let files: Vec<String> = receipt.runs.iter().map(|r| r.file.uri.clone()).chain(receipt.rejected.clone()).collect();
        runtime.block_on(engine.objects.make_durable(&files))?;
        reached(Boundary::RunsDurable);
        Ok(Receipt::Land(receipt))
    }
}
