//! The engine's ports over the world: the in-memory ledger and queue, the catalog, the objects.

use super::Planted;
use super::desk::Desk;
use super::model::Life;
use super::storage::{get, meta, put, short};
use super::world::State;
use super::{invariants, storage};
use crate::checker::tell::Tell;
use async_trait::async_trait;
use bytes::Bytes;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::Engine;
use timelake_engine::ports::{
    Claim, CommitOutcome, EndOutcome, JobStore, ObjectMeta, ObjectStore, TableCatalog, UnitEnd, UnitQueue, UnitSender,
};
use timelake_model::ledger::{
    CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, State as Stands, UnitMessage, UnitRecord,
};
use timelake_model::{AttemptId, Error, GroupName, JobId, Reason, Receipt, Result};
use timelake_source::Sources;

pub const SCHEME: &str = "mem";

struct Ports(Desk);

/// The engine as this actor drives it.
pub fn engine(desk: &Desk) -> Engine {
    let ports = Arc::new(Ports(desk.clone()));
    Engine {
        catalog: ports.clone(),
        jobs: ports.clone(),
        queue: ports.clone(),
        objects: ports,
        sources: Sources::local().with(SCHEME, Arc::new(storage::SourceStore(desk.clone()))),
        clock: Arc::new(desk.clone()),
        jobs_root: "mem://jobs".into(),
    }
}

/// Where its workers take their units from.
pub fn queue(desk: &Desk) -> Arc<dyn UnitQueue> {
    Arc::new(Ports(desk.clone()))
}

impl Ports {
    fn ledger<T: Tell>(
        &self,
        name: &'static str,
        told: impl FnOnce() -> String,
        effect: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        self.0.call(name, told, |answer: &T| answer.tell(), effect)
    }

    fn delete_files(&self, paths: &[String]) {
        for path in paths {
            let effect = |state: &mut State| {
                state.objects.remove(path);
                invariants::removed(state, path);
                Ok(())
            };
            let _ = self.ledger("delete_file", || short(path), effect);
        }
    }
}

fn of(job: &JobId, rest: impl Tell) -> String {
    format!("{job} {}", rest.tell())
}

fn life(group: &GroupRecord) -> Life {
    (group.job.clone(), group.generation, group.group.clone())
}

#[async_trait]
impl JobStore for Ports {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        self.ledger("put_job", || of(&job.job, job.clone()), |s| Ok(s.ledger.put_job(job)))
    }
    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        self.ledger("job", || job.to_string(), |s| Ok(s.ledger.job(job)))
    }
    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        self.ledger("jobs", String::new, |s| Ok(s.ledger.jobs(table_uuid)))
    }
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        self.ledger("update_job", || of(&job.job, job.clone()), |s| Ok(s.ledger.update_job(expected_generation, job)))
    }
    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.ledger("put_group", || of(&group.job, group.clone()), |s| s.ledger.put_group(group))
    }
    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        self.ledger("group", || of(job, generation), |s| Ok(s.ledger.group(job, generation, group)))
    }
    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        self.ledger("groups", || of(job, generation), |s| Ok(s.ledger.groups(job, generation)))
    }
    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        self.ledger(
            "update_group",
            || of(&group.job, group.clone()),
            |s| {
                let stored = s.ledger.update_group(group);
                if stored.is_some() && matches!(group.state, Stands::Cancelled | Stands::Rejected) {
                    s.model.given_up.insert(life(group));
                }
                Ok(stored)
            },
        )
    }
    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        self.ledger("put_plan", || of(&plan.key.job, plan.clone()), |s| s.ledger.put_plan(plan))
    }
    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        self.ledger("plan", || of(&key.job, key.clone()), |s| Ok(s.ledger.plan(key)))
    }
    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        self.ledger("open_round", || of(&plan.key.job, plan.clone()), |s| s.ledger.open_round(plan, base))
    }
    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        self.ledger(
            "advance_cursor",
            || of(&key.job, (key.clone(), cursor)),
            |s| {
                s.ledger.advance_cursor(key, cursor);
                Ok(())
            },
        )
    }
    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        self.ledger(
            "close_round",
            || of(&key.job, key.clone()),
            |s| {
                s.ledger.close_round(key);
                Ok(())
            },
        )
    }
    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        let told = || of(&key.job, (key.clone(), format!("unit {unit}"), attempt.clone()));
        self.ledger("begin_attempt", told, |s| Ok(s.ledger.begin_attempt(key, unit, attempt)))
    }
    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        let told = || of(&key.job, (key.clone(), format!("unit {unit}"), attempt.clone(), end.clone()));
        let outcome = self.ledger("end_unit", told, |s| {
            let outcome = s.ledger.end_unit(key, unit, attempt, end);
            if let (Ok(EndOutcome::Won), UnitEnd::Done(receipt)) = (&outcome, end) {
                invariants::unit_done(s, receipt);
            }
            outcome
        });
        if let (Err(_), UnitEnd::Done(receipt), Some(Planted::AttemptDeletesFiles)) = (&outcome, end, self.0.planted)
            && let Receipt::Write(receipt) = &**receipt
        {
            self.delete_files(&receipt.files.iter().map(|f| f.path.clone()).collect::<Vec<_>>());
        }
        outcome
    }
    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        self.ledger("counters", || of(&key.job, key.clone()), |s| Ok(s.ledger.counters(key)))
    }
    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        self.ledger("units", || of(job, generation), |s| Ok(s.ledger.units(job, generation, phase, group)))
    }
}

#[async_trait]
impl UnitSender for Ports {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        self.ledger(
            "send",
            || messages.to_vec().tell(),
            |s| {
                s.ledger.send(messages);
                Ok(())
            },
        )
    }
    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()> {
        self.ledger(
            "purge",
            || of(job, generation),
            |s| {
                s.ledger.purge(job, generation);
                Ok(())
            },
        )
    }
}

#[async_trait]
impl UnitQueue for Ports {
    async fn claim(&self, job: Option<&JobId>, _owner: &str, lease: Duration) -> Result<Option<Claim>> {
        self.ledger(
            "claim",
            || job.map_or("any".into(), JobId::to_string),
            |s| {
                // A queue delivers at least once: a message that somebody holds may come a second time.
                if !s.calm && s.profile.twice_in > 0 && s.dice.once_in(s.profile.twice_in) {
                    let held = s.ledger.held_messages(s.now_us);
                    if let Some(message) = held.first() {
                        s.ledger.end_leases(Some(*message));
                        s.count("delivered twice");
                    }
                }
                let (until_us, latest_us) = (s.later_us(lease), s.later_us(lease * 2));
                let claim = s.ledger.claim(job, s.now_us, until_us, latest_us);
                if let Some(claim) = &claim {
                    s.claims.insert(claim.id, self.0.id);
                }
                Ok(claim)
            },
        )
    }
    async fn extend(&self, claim: &Claim, lease: Duration) -> Result<bool> {
        self.ledger(
            "extend",
            || claim.tell(),
            |s| {
                let until_us = s.later_us(lease);
                Ok(s.ledger.extend(claim, until_us))
            },
        )
    }
    async fn ack(&self, claim: &Claim) -> Result<()> {
        self.ledger(
            "ack",
            || claim.tell(),
            |s| {
                s.ledger.ack(claim);
                Ok(())
            },
        )
    }
    async fn release(&self, claim: &Claim, delay: Duration) -> Result<()> {
        self.ledger(
            "release",
            || claim.tell(),
            |s| {
                let until_us = if delay.is_zero() { i64::MIN } else { s.later_us(delay) };
                s.ledger.release(claim, until_us);
                Ok(())
            },
        )
    }
    async fn depth(&self, job: &JobId) -> Result<u64> {
        self.ledger("depth", || job.to_string(), |s| Ok(s.ledger.depth(job)))
    }
}

#[async_trait]
impl TableCatalog for Ports {
    async fn load(&self, table: &TableIdent) -> Result<Table> {
        self.0.load(table)
    }
    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome> {
        self.0.commit(base, requirements, updates, None)
    }
    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table> {
        self.0.call(
            "create",
            String::new,
            |()| "done".into(),
            |s| {
                let now_ms = s.now_ms();
                s.catalog.create(metadata, now_ms);
                Ok(())
            },
        )?;
        self.0.load(table)
    }
    fn default_location(&self, _: &TableIdent) -> String {
        super::catalog::LOCATION.into()
    }
    async fn list(&self) -> Result<Vec<TableIdent>> {
        Ok(vec![super::catalog::ident()])
    }
}

fn told_meta(meta: &ObjectMeta) -> String {
    format!("{} bytes", meta.size)
}

#[async_trait]
impl ObjectStore for Ports {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        self.0.call("stat", || short(uri), told_meta, |s| s.objects.get(uri).map(|o| meta(uri, o)).ok_or_else(|| storage::gone(uri)))
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let folder = format!("{prefix}/");
        self.0.call(
            "list",
            || short(prefix),
            |found: &Vec<_>| format!("{} objects", found.len()),
            |s| Ok(s.objects.iter().filter(|(uri, _)| uri.starts_with(&folder)).map(|(uri, o)| meta(uri, o)).collect()),
        )
    }
    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let uri = &pinned.uri;
        self.0.call(
            "read_range",
            || short(uri),
            |bytes: &Bytes| bytes.tell(),
            |s| Ok(get(s, uri)?.slice(range.start as usize..range.end as usize)),
        )
    }
    async fn read(&self, uri: &str) -> Result<Bytes> {
        self.0.call("read", || short(uri), |bytes: &Bytes| bytes.tell(), |s| get(s, uri))
    }
    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        self.0.call(
            "put_if_absent",
            || short(uri),
            |absent: &bool| absent.to_string(),
            |s| {
                let absent = !s.objects.contains_key(uri);
                if absent {
                    put(s, uri, bytes);
                }
                Ok(absent)
            },
        )
    }
    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        self.0.call(
            "put",
            || short(uri),
            |()| "done".into(),
            |s| {
                put(s, uri, bytes);
                Ok(())
            },
        )
    }
    async fn make_durable(&self, uris: &[String]) -> Result<()> {
        self.0.call(
            "make_durable",
            || format!("{} files", uris.len()),
            |()| "done".into(),
            |s| match uris.iter().find(|uri| !s.objects.contains_key(*uri)) {
                Some(uri) => Err(storage::gone(uri)),
                None => Ok(()),
            },
        )
    }
    async fn delete(&self, uri: &str) -> Result<()> {
        self.0.call(
            "delete",
            || short(uri),
            |()| "done".into(),
            |s| {
                s.objects.remove(uri);
                invariants::removed(s, uri);
                Ok(())
            },
        )
    }
}

/// A process that is taken for another one, or for none.
pub fn running_elsewhere(job: &JobId) -> Error {
    Error::conflict(Reason::JobRunningElsewhere, format!("another process runs job {job}"))
}
