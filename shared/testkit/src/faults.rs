//! A job store that fails: each call, told apart by its name and arguments, fails the first times it is made, before
//! its effect (nothing happened) or after it (it happened, the answer was lost). What uses the ledger rightly ends
//! in the same state with it as without.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use timelake_engine::ports::{EndOutcome, JobStore, UnitEnd};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitRecord};
use timelake_model::{AttemptId, Error, GroupName, JobId, Reason, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// The call fails and nothing happened.
    BeforeEffect,
    /// The call happened and its answer is lost.
    AfterEffect,
}

/// Wraps a store. The injected error is `unavailable`.
pub struct FaultyJobStore {
    inner: Arc<dyn JobStore>,
    failures: u32,
    point: FaultPoint,
    tries: Mutex<BTreeMap<String, u32>>,
}

impl FaultyJobStore {
    /// The first `failures` tries of each call fail at `point`.
    pub fn new(inner: Arc<dyn JobStore>, failures: u32, point: FaultPoint) -> Self {
        FaultyJobStore { inner, failures, point, tries: Mutex::default() }
    }

    /// Failures injected so far.
    pub fn injected(&self) -> u32 {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).values().map(|tries| (*tries).min(self.failures)).sum()
    }

    async fn call<T>(&self, name: &str, arguments: impl Debug, effect: impl Future<Output = Result<T>>) -> Result<T> {
        let call = format!("{name} {arguments:?}");
        let fails = {
            let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
            let tries = tries.entry(call).or_default();
            *tries += 1;
            *tries <= self.failures
        };
        if fails && self.point == FaultPoint::BeforeEffect {
            return Err(Error::unavailable(Reason::LedgerBusy, format!("injected before {name}")));
        }
        let answer = effect.await;
        if fails {
            return Err(Error::unavailable(Reason::LedgerBusy, format!("injected after {name}")));
        }
        answer
    }
}

#[async_trait]
impl JobStore for FaultyJobStore {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        self.call("put_job", job, self.inner.put_job(job)).await
    }
    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        self.call("job", job, self.inner.job(job)).await
    }
    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        self.call("jobs", table_uuid, self.inner.jobs(table_uuid)).await
    }
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        self.call("update_job", (expected_generation, job), self.inner.update_job(expected_generation, job)).await
    }
    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.call("put_group", group, self.inner.put_group(group)).await
    }
    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        self.call("group", (job, generation, group), self.inner.group(job, generation, group)).await
    }
    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        self.call("groups", (job, generation), self.inner.groups(job, generation)).await
    }
    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        self.call("update_group", group, self.inner.update_group(group)).await
    }
    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        self.call("put_plan", plan, self.inner.put_plan(plan)).await
    }
    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        self.call("plan", key, self.inner.plan(key)).await
    }
    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        self.call("open_round", (plan, base), self.inner.open_round(plan, base)).await
    }
    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        self.call("advance_cursor", (key, cursor), self.inner.advance_cursor(key, cursor)).await
    }
    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        self.call("close_round", key, self.inner.close_round(key)).await
    }
    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        self.call("begin_attempt", (key, unit, attempt), self.inner.begin_attempt(key, unit, attempt)).await
    }
    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        self.call("end_unit", (key, unit, attempt), self.inner.end_unit(key, unit, attempt, end)).await
    }
    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        self.call("counters", key, self.inner.counters(key)).await
    }
    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        self.call("units", (job, generation, phase, group), self.inner.units(job, generation, phase, group)).await
    }
}
