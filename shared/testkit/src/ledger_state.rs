//! What the in-memory ledger and queue hold, and every transition of them as a plain function of one state.
//!
//! A state can be cloned and compared by its text, so that a search over all interleavings can keep many of them;
//! [`MemoryLedger`](crate::MemoryLedger) puts a lock around one. Maps are ordered: the same calls give the same state.
//!
//! Must never happen: a transition that reads a clock or a random number. The time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use timelake_engine::ports::{Claim, EndOutcome, UnitEnd};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitMessage, UnitRecord, UnitState};
use timelake_model::{AttemptId, Error, GroupName, JobId, Result};

/// All records of a ledger and all messages of its queue.
#[derive(Debug, Clone, Default)]
pub struct LedgerState {
    pub(crate) jobs: BTreeMap<JobId, JobRecord>,
    pub(crate) groups: BTreeMap<(JobId, u32, GroupName), GroupRecord>,
    pub(crate) plans: BTreeMap<RoundKey, StoredPlan>,
    pub(crate) counters: BTreeMap<(RoundKey, u32), CounterRecord>,
    /// Shared between clones until one of them changes: receipts are large.
    pub(crate) units: BTreeMap<(RoundKey, u32), Arc<StoredUnit>>,
    pub(crate) queue: BTreeMap<i64, StoredMessage>,
    pub(crate) last_message: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredPlan {
    pub(crate) plan: PlanRecord,
    pub(crate) closed: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredUnit {
    pub(crate) unit: UnitRecord,
    pub(crate) shard: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredMessage {
    pub(crate) message: UnitMessage,
    pub(crate) owned: bool,
    pub(crate) lease_until_us: i64,
    pub(crate) tries: u32,
}

fn without_parent(what: &str) -> Error {
    Error::internal(format!("{what} is written before the record it belongs to"))
}

/// The job store.
impl LedgerState {
    pub fn put_job(&mut self, job: &JobRecord) -> JobRecord {
        self.jobs.entry(job.job.clone()).or_insert_with(|| job.clone()).clone()
    }

    pub fn job(&self, job: &JobId) -> Option<JobRecord> {
        self.jobs.get(job).cloned()
    }

    pub fn jobs(&self, table_uuid: Option<&str>) -> Vec<JobRecord> {
        let mut jobs: Vec<_> = self.jobs.values().filter(|j| table_uuid.is_none_or(|uuid| j.table_uuid == uuid)).cloned().collect();
        jobs.sort_by_key(|j| std::cmp::Reverse(j.created));
        jobs
    }

    pub fn update_job(&mut self, expected_generation: u32, job: &JobRecord) -> Option<JobRecord> {
        match self.jobs.get_mut(&job.job) {
            Some(stored) if stored.generation == expected_generation && stored.version == job.version => {
                *stored = JobRecord { version: job.version + 1, ..job.clone() };
                Some(stored.clone())
            }
            _ => None,
        }
    }

    pub fn put_group(&mut self, group: &GroupRecord) -> Result<GroupRecord> {
        if !self.jobs.contains_key(&group.job) {
            return Err(without_parent("a group"));
        }
        let key = (group.job.clone(), group.generation, group.group.clone());
        Ok(self.groups.entry(key).or_insert_with(|| group.clone()).clone())
    }

    pub fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Option<GroupRecord> {
        self.groups.get(&(job.clone(), generation, group.clone())).cloned()
    }

    pub fn groups(&self, job: &JobId, generation: u32) -> Vec<GroupRecord> {
        self.groups.values().filter(|g| g.job == *job && g.generation == generation).cloned().collect()
    }

    pub fn update_group(&mut self, group: &GroupRecord) -> Option<GroupRecord> {
        match self.groups.get_mut(&(group.job.clone(), group.generation, group.group.clone())) {
            Some(stored) if stored.version == group.version => {
                *stored = GroupRecord { version: group.version + 1, ..group.clone() };
                Some(stored.clone())
            }
            _ => None,
        }
    }

    pub fn put_plan(&mut self, plan: &PlanRecord) -> Result<PlanRecord> {
        if !self.jobs.contains_key(&plan.key.job) {
            return Err(without_parent("a plan"));
        }
        let new = || StoredPlan { plan: plan.clone(), closed: false };
        Ok(self.plans.entry(plan.key.clone()).or_insert_with(new).plan.clone())
    }

    pub fn plan(&self, key: &RoundKey) -> Option<PlanRecord> {
        self.plans.get(key).map(|stored| stored.plan.clone())
    }

    pub fn open_round(&mut self, plan: &PlanRecord, base: i64) -> Result<()> {
        let Some(StoredPlan { plan: stored, closed }) = self.plans.get(&plan.key) else { return Err(without_parent("a round")) };
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
            self.units.entry((plan.key.clone(), *unit)).or_insert_with(|| {
                Arc::new(StoredUnit {
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
                })
            });
        }
        for (shard, remaining) in totals {
            let counter = CounterRecord { key: plan.key.clone(), shard, open, remaining, failed: 0, rows: 0 };
            self.counters.entry((plan.key.clone(), shard)).or_insert(counter);
        }
        Ok(())
    }

    pub fn advance_cursor(&mut self, key: &RoundKey, cursor: u32) {
        if let Some(stored) = self.plans.get_mut(key) {
            stored.plan.cursor = stored.plan.cursor.max(cursor);
        }
    }

    pub fn close_round(&mut self, key: &RoundKey) {
        if let Some(stored) = self.plans.get_mut(key) {
            stored.closed = true;
        }
        self.counters.values_mut().filter(|counter| counter.key == *key).for_each(|counter| counter.open = false);
    }

    pub fn begin_attempt(&mut self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> bool {
        let Some(stored) = self.units.get_mut(&(key.clone(), unit)) else { return false };
        let open = self.counters.get(&(key.clone(), stored.shard)).is_some_and(|counter| counter.open);
        if stored.unit.state != UnitState::Pending || !open {
            return false;
        }
        if !stored.unit.attempts.contains(attempt) {
            Arc::make_mut(stored).unit.attempts.push(attempt.clone());
        }
        true
    }

    pub fn end_unit(&mut self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        if let UnitEnd::Done(receipt) = end
            && receipt.of() != (unit, key.round, attempt)
        {
            return Err(Error::internal(format!("unit {unit} is ended with the receipt of another unit or attempt")));
        }
        let Some(stored) = self.units.get_mut(&(key.clone(), unit)) else { return Ok(EndOutcome::Fenced) };
        if stored.unit.state != UnitState::Pending {
            return Ok(EndOutcome::AlreadyEnded { win: stored.unit.win.clone() });
        }
        let Some(counter) = self.counters.get_mut(&(key.clone(), stored.shard)).filter(|counter| counter.open) else {
            return Ok(EndOutcome::Fenced);
        };
        counter.remaining = counter.remaining.checked_sub(1).ok_or_else(|| Error::internal("a counter goes below zero"))?;
        let unit = &mut Arc::make_mut(stored).unit;
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

    pub fn counters(&self, key: &RoundKey) -> Vec<CounterRecord> {
        self.counters.values().filter(|counter| counter.key == *key).cloned().collect()
    }

    pub fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Vec<UnitRecord> {
        let of_group = |k: &RoundKey| (&k.job, k.generation, k.phase, &k.group) == (job, generation, phase, group);
        let mut units: Vec<_> = self.units.values().map(|stored| &stored.unit).filter(|unit| of_group(&unit.key)).cloned().collect();
        units.sort_by_key(|unit| (unit.unit, unit.key.round));
        units
    }
}

/// The queue.
impl LedgerState {
    pub fn send(&mut self, messages: &[UnitMessage]) {
        for message in messages {
            if self.queue.values().any(|known| known.message == *message) {
                continue;
            }
            self.last_message += 1;
            let stored = StoredMessage { message: message.clone(), owned: false, lease_until_us: i64::MIN, tries: 0 };
            self.queue.insert(self.last_message, stored);
        }
    }

    /// A lease that ends after `latest_us` is one of a clock that was ahead: it is over.
    pub fn claim(&mut self, job: Option<&JobId>, now_us: i64, until_us: i64, latest_us: i64) -> Option<Claim> {
        let free = |until_us: i64| until_us <= now_us || until_us > latest_us;
        let visible = |m: &StoredMessage| free(m.lease_until_us) && job.is_none_or(|job| m.message.key.job == *job);
        let (id, stored) = self.queue.iter_mut().find(|(_, message)| visible(message))?;
        stored.owned = true;
        stored.lease_until_us = until_us;
        stored.tries += 1;
        Some(Claim { id: *id, message: stored.message.clone(), tries: stored.tries })
    }

    /// The message while this claim holds it.
    fn held(&mut self, claim: &Claim) -> Option<&mut StoredMessage> {
        self.queue.get_mut(&claim.id).filter(|m| m.owned && m.tries == claim.tries)
    }

    pub fn extend(&mut self, claim: &Claim, until_us: i64) -> bool {
        self.held(claim).map(|message| message.lease_until_us = until_us).is_some()
    }

    pub fn ack(&mut self, claim: &Claim) {
        if self.held(claim).is_some() {
            self.queue.remove(&claim.id);
        }
    }

    pub fn release(&mut self, claim: &Claim, until_us: i64) {
        if let Some(message) = self.held(claim) {
            message.owned = false;
            message.lease_until_us = until_us;
        }
    }

    pub fn purge(&mut self, job: &JobId, generation: Option<u32>) {
        let goes = |m: &StoredMessage| m.message.key.job == *job && generation.is_none_or(|g| m.message.key.generation == g);
        self.queue.retain(|_, message| !goes(message));
    }

    pub fn depth(&self, job: &JobId) -> u64 {
        self.queue.values().filter(|m| m.message.key.job == *job).count() as u64
    }

    /// Messages that somebody holds.
    pub fn held_messages(&self, now_us: i64) -> Vec<i64> {
        self.queue.iter().filter(|(_, m)| m.owned && m.lease_until_us > now_us).map(|(id, _)| *id).collect()
    }

    /// The lease of a message (or of all) ends: it can be claimed again, and its holder does not know.
    pub fn end_leases(&mut self, message: Option<i64>) {
        for (_, m) in self.queue.iter_mut().filter(|(id, _)| message.is_none_or(|one| one == **id)) {
            m.lease_until_us = 0;
        }
    }
}
