//! The ledger and the queue in memory: for tests of the engine, with the same answers as the real stores (both run
//! `ledger_suite`). Deterministic: the time is the clock's, one lock makes each call of [`LedgerState`] atomic.

use crate::ledger_state::LedgerState;
use async_trait::async_trait;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use timelake_engine::ports::{Claim, Clock, EndOutcome, JobStore, UnitEnd, UnitQueue, UnitSender};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitMessage, UnitRecord};
use timelake_model::{AttemptId, GroupName, JobId, Result};

pub struct MemoryLedger {
    clock: Arc<dyn Clock>,
    state: Mutex<LedgerState>,
}

impl MemoryLedger {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        MemoryLedger { clock, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn later_us(&self, after: Duration) -> i64 {
        self.clock.now().0.saturating_add(i64::try_from(after.as_micros()).unwrap_or(i64::MAX))
    }
}

#[async_trait]
impl JobStore for MemoryLedger {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        Ok(self.state().put_job(job))
    }
    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        Ok(self.state().job(job))
    }
    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        Ok(self.state().jobs(table_uuid))
    }
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        Ok(self.state().update_job(expected_generation, job))
    }
    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.state().put_group(group)
    }
    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        Ok(self.state().group(job, generation, group))
    }
    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        Ok(self.state().groups(job, generation))
    }
    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        Ok(self.state().update_group(group))
    }
    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        self.state().put_plan(plan)
    }
    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        Ok(self.state().plan(key))
    }
    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        self.state().open_round(plan, base)
    }
    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        self.state().advance_cursor(key, cursor);
        Ok(())
    }
    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        self.state().close_round(key);
        Ok(())
    }
    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        Ok(self.state().begin_attempt(key, unit, attempt))
    }
    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        self.state().end_unit(key, unit, attempt, end)
    }
    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        Ok(self.state().counters(key))
    }
    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        Ok(self.state().units(job, generation, phase, group))
    }
}

#[async_trait]
impl UnitSender for MemoryLedger {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        self.state().send(messages);
        Ok(())
    }
    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()> {
        self.state().purge(job, generation);
        Ok(())
    }
}

#[async_trait]
impl UnitQueue for MemoryLedger {
    async fn claim(&self, job: Option<&JobId>, _owner: &str, lease: Duration) -> Result<Option<Claim>> {
        let (now_us, until_us) = (self.clock.now().0, self.later_us(lease));
        Ok(self.state().claim(job, now_us, until_us, self.later_us(lease.saturating_mul(2))))
    }
    async fn extend(&self, claim: &Claim, lease: Duration) -> Result<bool> {
        let until_us = self.later_us(lease);
        Ok(self.state().extend(claim, until_us))
    }
    async fn ack(&self, claim: &Claim) -> Result<()> {
        self.state().ack(claim);
        Ok(())
    }
    async fn release(&self, claim: &Claim, delay: Duration) -> Result<()> {
        let until_us = if delay.is_zero() { i64::MIN } else { self.later_us(delay) };
        self.state().release(claim, until_us);
        Ok(())
    }
    async fn depth(&self, job: &JobId) -> Result<u64> {
        Ok(self.state().depth(job))
    }
}
