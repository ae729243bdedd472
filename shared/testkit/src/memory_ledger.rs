//! The ledger and the queue in memory: for tests of the engine, with the same answers as the real stores (both run
//! `ledger_suite`). Deterministic: maps are ordered, the time is the clock's, one lock makes each call atomic.

use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use timelake_engine::ports::{Claim, Clock, EndOutcome, JobStore, UnitEnd, UnitQueue};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitMessage, UnitRecord, UnitState};
use timelake_model::{AttemptId, Error, GroupName, JobId, Result};

pub struct MemoryLedger {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<JobId, JobRecord>,
    groups: BTreeMap<(JobId, u32, GroupName), GroupRecord>,
    plans: BTreeMap<RoundKey, StoredPlan>,
    counters: BTreeMap<(RoundKey, u32), CounterRecord>,
    units: BTreeMap<(RoundKey, u32), StoredUnit>,
    queue: BTreeMap<i64, StoredMessage>,
    last_message: i64,
}

struct StoredPlan {
    plan: PlanRecord,
    closed: bool,
}

struct StoredUnit {
    unit: UnitRecord,
    shard: u32,
}

struct StoredMessage {
    message: UnitMessage,
    owned: bool,
    lease_until_us: i64,
    tries: u32,
}

impl MemoryLedger {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        MemoryLedger { clock, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn later_us(&self, after: Duration) -> i64 {
        self.clock.now().0.saturating_add(i64::try_from(after.as_micros()).unwrap_or(i64::MAX))
    }
}

fn without_parent(what: &str) -> Error {
    Error::internal(format!("{what} is written before the record it belongs to"))
}

impl State {
    /// The message while this claim holds it.
    fn held(&mut self, claim: &Claim) -> Option<&mut StoredMessage> {
        self.queue.get_mut(&claim.id).filter(|m| m.owned && m.tries == claim.tries)
    }
}

#[async_trait]
impl JobStore for MemoryLedger {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        Ok(self.state().jobs.entry(job.job.clone()).or_insert_with(|| job.clone()).clone())
    }

    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        Ok(self.state().jobs.get(job).cloned())
    }

    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        let mut jobs: Vec<_> = self.state().jobs.values().filter(|j| table_uuid.is_none_or(|uuid| j.table_uuid == uuid)).cloned().collect();
        jobs.sort_by_key(|j| std::cmp::Reverse(j.created));
        Ok(jobs)
    }

    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        match self.state().jobs.get_mut(&job.job) {
            Some(stored) if stored.generation == expected_generation && stored.version == job.version => {
                *stored = JobRecord { version: job.version + 1, ..job.clone() };
                Ok(Some(stored.clone()))
            }
            _ => Ok(None),
        }
    }

    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        let mut state = self.state();
        if !state.jobs.contains_key(&group.job) {
            return Err(without_parent("a group"));
        }
        let key = (group.job.clone(), group.generation, group.group.clone());
        Ok(state.groups.entry(key).or_insert_with(|| group.clone()).clone())
    }

    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        Ok(self.state().groups.get(&(job.clone(), generation, group.clone())).cloned())
    }

    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        Ok(self.state().groups.values().filter(|g| g.job == *job && g.generation == generation).cloned().collect())
    }

    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        match self.state().groups.get_mut(&(group.job.clone(), group.generation, group.group.clone())) {
            Some(stored) if stored.version == group.version => {
                *stored = GroupRecord { version: group.version + 1, ..group.clone() };
                Ok(Some(stored.clone()))
            }
            _ => Ok(None),
        }
    }

    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        let mut state = self.state();
        if !state.jobs.contains_key(&plan.key.job) {
            return Err(without_parent("a plan"));
        }
        let new = || StoredPlan { plan: plan.clone(), closed: false };
        Ok(state.plans.entry(plan.key.clone()).or_insert_with(new).plan.clone())
    }

    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        Ok(self.state().plans.get(key).map(|stored| stored.plan.clone()))
    }

    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        let mut state = self.state();
        let Some(StoredPlan { plan: stored, closed }) = state.plans.get(&plan.key) else { return Err(without_parent("a round")) };
        if (&stored.plan_hash, &stored.units, stored.shards) != (&plan.plan_hash, &plan.units, plan.shards) || plan.shards == 0 {
            return Err(Error::internal("a round is opened with another plan than the stored one"));
        }
        if plan.units.iter().collect::<BTreeSet<_>>().len() != plan.units.len() {
            return Err(Error::internal("a plan names a unit twice"));
        }
        let open = !closed;
        let mut totals = BTreeMap::<u32, u32>::new();
        for (position, unit) in plan.units.iter().enumerate() {
            let shard = position as u32 % plan.shards;
            *totals.entry(shard).or_default() += 1;
            state.units.entry((plan.key.clone(), *unit)).or_insert_with(|| StoredUnit {
                shard,
                unit: UnitRecord {
                    key: plan.key.clone(),
                    unit: *unit,
                    state: UnitState::Pending,
                    base,
                    win: None,
                    attempts: vec![],
                    rows: 0,
                    bytes: 0,
                    receipt: None,
                    error: None,
                },
            });
        }
        for (shard, remaining) in totals {
            let counter = CounterRecord { key: plan.key.clone(), shard, open, remaining, failed: 0, rows: 0 };
            state.counters.entry((plan.key.clone(), shard)).or_insert(counter);
        }
        Ok(())
    }

    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        if let Some(stored) = self.state().plans.get_mut(key) {
            stored.plan.cursor = stored.plan.cursor.max(cursor);
        }
        Ok(())
    }

    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        let mut state = self.state();
        if let Some(stored) = state.plans.get_mut(key) {
            stored.closed = true;
        }
        state.counters.values_mut().filter(|counter| counter.key == *key).for_each(|counter| counter.open = false);
        Ok(())
    }

    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        let mut state = self.state();
        let State { units, counters, .. } = &mut *state;
        let Some(StoredUnit { unit, shard }) = units.get_mut(&(key.clone(), unit)) else { return Ok(false) };
        let open = counters.get(&(key.clone(), *shard)).is_some_and(|counter| counter.open);
        if unit.state != UnitState::Pending || !open {
            return Ok(false);
        }
        if !unit.attempts.contains(attempt) {
            unit.attempts.push(attempt.clone());
        }
        Ok(true)
    }

    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        if let UnitEnd::Done(receipt) = end
            && receipt.of() != (unit, key.round, attempt)
        {
            return Err(Error::internal(format!("unit {unit} is ended with the receipt of another unit or attempt")));
        }
        let mut state = self.state();
        let State { units, counters, .. } = &mut *state;
        let Some(StoredUnit { unit, shard }) = units.get_mut(&(key.clone(), unit)) else { return Ok(EndOutcome::Fenced) };
        if unit.state != UnitState::Pending {
            return Ok(EndOutcome::AlreadyEnded { win: unit.win.clone() });
        }
        let Some(counter) = counters.get_mut(&(key.clone(), *shard)).filter(|counter| counter.open) else {
            return Ok(EndOutcome::Fenced);
        };
        counter.remaining = counter.remaining.checked_sub(1).ok_or_else(|| Error::internal("a counter goes below zero"))?;
        unit.win = Some(attempt.clone());
        match end {
            UnitEnd::Done(receipt) => {
                unit.state = UnitState::Done;
                (unit.rows, unit.bytes) = receipt.size();
                unit.receipt = Some((**receipt).clone());
                counter.rows += unit.rows;
            }
            UnitEnd::Failed(error) => {
                unit.state = UnitState::Failed;
                unit.error = Some(error.clone());
                counter.failed += 1;
            }
        }
        Ok(EndOutcome::Won)
    }

    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        Ok(self.state().counters.values().filter(|counter| counter.key == *key).cloned().collect())
    }

    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        let state = self.state();
        let of_group = |k: &RoundKey| (&k.job, k.generation, k.phase, &k.group) == (job, generation, phase, group);
        let mut units: Vec<_> = state.units.values().map(|stored| &stored.unit).filter(|unit| of_group(&unit.key)).cloned().collect();
        units.sort_by_key(|unit| (unit.unit, unit.key.round));
        Ok(units)
    }
}

#[async_trait]
impl UnitQueue for MemoryLedger {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        let mut state = self.state();
        for message in messages {
            if state.queue.values().any(|known| known.message == *message) {
                continue;
            }
            state.last_message += 1;
            let id = state.last_message;
            state.queue.insert(id, StoredMessage { message: message.clone(), owned: false, lease_until_us: i64::MIN, tries: 0 });
        }
        Ok(())
    }

    async fn claim(&self, job: Option<&JobId>, _owner: &str, lease: Duration) -> Result<Option<Claim>> {
        let (now_us, until_us) = (self.clock.now().0, self.later_us(lease));
        let mut state = self.state();
        // A lease that ends later than any can is one of a clock that was ahead.
        let latest_us = self.later_us(lease.saturating_mul(2));
        let free = |until_us: i64| until_us <= now_us || until_us > latest_us;
        let visible = |m: &StoredMessage| free(m.lease_until_us) && job.is_none_or(|job| m.message.key.job == *job);
        let Some((id, stored)) = state.queue.iter_mut().find(|(_, message)| visible(message)) else { return Ok(None) };
        stored.owned = true;
        stored.lease_until_us = until_us;
        stored.tries += 1;
        Ok(Some(Claim { id: *id, message: stored.message.clone(), tries: stored.tries }))
    }

    async fn extend(&self, claim: &Claim, lease: Duration) -> Result<bool> {
        let until_us = self.later_us(lease);
        Ok(self.state().held(claim).map(|message| message.lease_until_us = until_us).is_some())
    }

    async fn ack(&self, claim: &Claim) -> Result<()> {
        let mut state = self.state();
        if state.held(claim).is_some() {
            state.queue.remove(&claim.id);
        }
        Ok(())
    }

    async fn release(&self, claim: &Claim, delay: Duration) -> Result<()> {
        let until_us = if delay.is_zero() { i64::MIN } else { self.later_us(delay) };
        if let Some(message) = self.state().held(claim) {
            message.owned = false;
            message.lease_until_us = until_us;
        }
        Ok(())
    }

    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()> {
        let goes = |m: &StoredMessage| m.message.key.job == *job && generation.is_none_or(|g| m.message.key.generation == g);
        self.state().queue.retain(|_, message| !goes(message));
        Ok(())
    }

    async fn depth(&self, job: &JobId) -> Result<u64> {
        Ok(self.state().queue.values().filter(|m| m.message.key.job == *job).count() as u64)
    }
}
