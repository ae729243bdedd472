//! The engine's ports as calls on a [`Desk`], and the planted faults.
//!
//! Not steps, because nobody else can tell when they happen: time (it stands still), random numbers, making files
//! durable.

use super::catalog::{Committed, Loaded, canonical};
use super::desk::{Desk, answer};
use super::space::{Call, Effect, FilesState, digest};
use super::tell::Tell;
use crate::clock::START;
use crate::ledger_state::LedgerState;
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use iceberg::spec::{MAIN_BRANCH, TableMetadata};
use iceberg::table::Table;
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::Engine;
use timelake_engine::ports::{
    Claim, Clock, CommitOutcome, EndOutcome, JobStore, ObjectMeta, ObjectStore, TableCatalog, UnitEnd, UnitQueue, UnitSender,
};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitMessage, UnitRecord};
use timelake_model::{AttemptId, Error, GroupName, JobId, Reason, Receipt, Result, TimestampUs};

/// Faults that the search must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The store counts an end down although the unit is no longer PENDING.
    DecrementWithoutCondition,
    /// An attempt that does not know how its end went removes its files.
    FilesDeletedOnUnclearAnswer,
    /// A commit that moves `main` does not require the staging branch.
    PublishWithoutBranchRequirement,
}

/// All ports of one actor.
pub struct Ports {
    desk: Arc<Desk>,
    fault: Option<Fault>,
}

/// An engine whose world is behind the desk.
pub fn engine(desk: Arc<Desk>, fault: Option<Fault>) -> Engine {
    let ports = Arc::new(Ports { desk, fault });
    Engine {
        catalog: ports.clone(),
        jobs: ports.clone(),
        queue: ports.clone(),
        objects: ports.clone(),
        sources: Default::default(),
        clock: ports,
        jobs_root: "memory://jobs".into(),
    }
}

/// Where its workers take their units from.
pub fn queue(desk: Arc<Desk>, fault: Option<Fault>) -> Arc<dyn UnitQueue> {
    Arc::new(Ports { desk, fault })
}

fn lost<T>() -> Result<T> {
    Err(Error::unavailable(Reason::LedgerBusy, "the answer is lost"))
}

fn shown(name: &str, arguments: &impl Tell) -> String {
    format!("{name}({})", arguments.tell())
}

impl Ports {
    /// One transaction of the ledger.
    fn ledger<A, T>(&self, name: &'static str, arguments: A, effect: fn(&mut LedgerState, &A) -> T) -> T
    where
        A: Debug + Tell + Send + Sync + 'static,
        T: Debug + Tell + Clone + Send + Sync + 'static,
    {
        self.ledger_call(name, arguments, effect, None)
    }

    fn ledger_call<A, T>(&self, name: &'static str, arguments: A, effect: fn(&mut LedgerState, &A) -> T, lost: Option<T>) -> T
    where
        A: Debug + Tell + Send + Sync + 'static,
        T: Debug + Tell + Clone + Send + Sync + 'static,
    {
        self.desk.step(name, || Call {
            key: digest(&(name, &arguments)),
            shown: shown(name, &arguments),
            lost: lost.map(|value| answer(name, value, "the answer is lost".into())),
            quiet: false,
            effect: Effect::Ledger(Box::new(move |ledger| {
                let value = effect(ledger, &arguments);
                let shown = value.tell();
                answer(name, value, shown)
            })),
        })
    }

    fn files<A, T>(&self, name: &'static str, arguments: A, quiet: bool, effect: fn(&mut FilesState, &A) -> T) -> T
    where
        A: Debug + Tell + Send + Sync + 'static,
        T: Debug + Tell + Clone + Send + Sync + 'static,
    {
        files_call(&self.desk, name, arguments, quiet, effect)
    }
}

fn files_call<A, T>(desk: &Desk, name: &'static str, arguments: A, quiet: bool, effect: fn(&mut FilesState, &A) -> T) -> T
where
    A: Debug + Tell + Send + Sync + 'static,
    T: Debug + Tell + Clone + Send + Sync + 'static,
{
    desk.step(name, || Call {
        key: digest(&(name, &arguments)),
        shown: shown(name, &arguments),
        lost: None,
        quiet,
        effect: Effect::Files(Box::new(move |files| {
            let value = effect(files, &arguments);
            let shown = value.tell();
            answer(name, value, shown)
        })),
    })
}

/// An attempt's data file appears.
pub fn write_file(desk: &Desk, path: String) {
    files_call(desk, "write_file", (path,), true, |files, (path,)| {
        files.data.insert(path.clone());
    });
}

/// Chance decides whether an attempt goes well; the first way is the usual one.
pub fn chance(desk: &Desk, what: String) -> bool {
    desk.step("chance", || {
        let ways = [true, false].map(|well| answer("chance", well, if well { "goes well" } else { "fails" }.into()));
        Call { key: digest(&("chance", &what)), shown: what, lost: None, quiet: false, effect: Effect::Choice(ways.into()) }
    })
}

#[async_trait]
impl JobStore for Ports {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        Ok(self.ledger("put_job", (job.clone(),), |l, (job,)| l.put_job(job)))
    }
    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        Ok(self.ledger("job", (job.clone(),), |l, (job,)| l.job(job)))
    }
    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        Ok(self.ledger("jobs", (table_uuid.map(String::from),), |l, (uuid,)| l.jobs(uuid.as_deref())))
    }
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        Ok(self.ledger("update_job", (expected_generation, job.clone()), |l, (generation, job)| l.update_job(*generation, job)))
    }
    // Versions of groups are left out: a read and the compare-and-swap after it are one step of the search.
    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.ledger("put_group", (group.clone(),), |l, (group,)| l.put_group(group))
    }
    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        let arguments = (job.clone(), generation, group.clone());
        Ok(self.ledger("group", arguments, |l, (job, generation, group)| l.group(job, *generation, group)))
    }
    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        Ok(self.ledger("groups", (job.clone(), generation), |l, (job, generation)| l.groups(job, *generation)))
    }
    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        Ok(self.ledger("update_group", (group.clone(),), |l, (group,)| {
            l.update_group(group)?;
            l.groups.values_mut().for_each(|g| g.version = 0);
            Some(group.clone())
        }))
    }
    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        self.ledger("put_plan", (plan.clone(),), |l, (plan,)| l.put_plan(plan))
    }
    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        Ok(self.ledger("plan", (key.clone(),), |l, (key,)| l.plan(key)))
    }
    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        self.ledger("open_round", (plan.clone(), base), |l, (plan, base)| l.open_round(plan, *base))
    }
    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        self.ledger("advance_cursor", (key.clone(), cursor), |l, (key, cursor)| l.advance_cursor(key, *cursor));
        Ok(())
    }
    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        self.ledger("close_round", (key.clone(),), |l, (key,)| l.close_round(key));
        Ok(())
    }
    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        let arguments = (key.clone(), unit, attempt.clone());
        Ok(self.ledger("begin_attempt", arguments, |l, (key, unit, attempt)| l.begin_attempt(key, *unit, attempt)))
    }
    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        let arguments = (key.clone(), unit, attempt.clone(), end.clone());
        let effect: fn(&mut LedgerState, &(RoundKey, u32, AttemptId, UnitEnd)) -> Result<EndOutcome> =
            if self.fault == Some(Fault::DecrementWithoutCondition) {
                |l, (key, unit, attempt, end)| {
                    let outcome = l.end_unit(key, *unit, attempt, end);
                    if matches!(outcome, Ok(EndOutcome::AlreadyEnded { .. })) {
                        let counters = l.counters.values_mut().filter(|c| c.key == *key && c.open);
                        counters.for_each(|c| c.remaining = c.remaining.saturating_sub(1));
                    }
                    outcome
                }
            } else {
                |l, (key, unit, attempt, end)| l.end_unit(key, *unit, attempt, end)
            };
        let outcome = self.ledger_call("end_unit", arguments, effect, Some(lost()));
        if let (Err(_), UnitEnd::Done(receipt), true) = (&outcome, end, self.fault == Some(Fault::FilesDeletedOnUnclearAnswer))
            && let Receipt::Write(receipt) = &**receipt
        {
            let paths: Vec<String> = receipt.files.iter().map(|f| f.path.clone()).collect();
            self.files("delete_files", (paths,), false, |files, (paths,)| files.data.retain(|path| !paths.contains(path)));
        }
        outcome
    }
    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        Ok(self.ledger("counters", (key.clone(),), |l, (key,)| l.counters(key)))
    }
    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        let arguments = (job.clone(), generation, phase, group.clone());
        Ok(self.ledger("units", arguments, |l, (job, generation, phase, group)| l.units(job, *generation, *phase, group)))
    }
}

/// The time stands still; a lease ends when the search says so.
const HELD_UNTIL_US: i64 = i64::MAX;

#[async_trait]
impl UnitSender for Ports {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        self.ledger("send", (messages.to_vec(),), |l, (messages,)| l.send(messages));
        Ok(())
    }
    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()> {
        self.ledger("purge", (job.clone(), generation), |l, (job, generation)| l.purge(job, *generation));
        Ok(())
    }
}

#[async_trait]
impl UnitQueue for Ports {
    async fn claim(&self, job: Option<&JobId>, _owner: &str, _lease: Duration) -> Result<Option<Claim>> {
        Ok(self.ledger("claim", (job.cloned(),), |l, (job,)| l.claim(job.as_ref(), START.0, HELD_UNTIL_US, HELD_UNTIL_US)))
    }
    async fn extend(&self, claim: &Claim, _lease: Duration) -> Result<bool> {
        Ok(self.ledger("extend", (claim.clone(),), |l, (claim,)| l.extend(claim, HELD_UNTIL_US)))
    }
    async fn ack(&self, claim: &Claim) -> Result<()> {
        self.ledger("ack", (claim.clone(),), |l, (claim,)| l.ack(claim));
        Ok(())
    }
    async fn release(&self, claim: &Claim, _delay: Duration) -> Result<()> {
        self.ledger("release", (claim.clone(),), |l, (claim,)| l.release(claim, i64::MIN));
        Ok(())
    }
    async fn depth(&self, job: &JobId) -> Result<u64> {
        Ok(self.ledger("depth", (job.clone(),), |l, (job,)| l.depth(job)))
    }
}

#[async_trait]
impl TableCatalog for Ports {
    async fn load(&self, table: &TableIdent) -> Result<Table> {
        let table = table.clone();
        let loaded: Loaded = self.desk.step("load", || Call {
            key: digest(&("load", &table)),
            shown: "load".into(),
            lost: None,
            quiet: false,
            effect: Effect::Catalog(Box::new(move |catalog| {
                let loaded = catalog.load(&table);
                let shown = loaded.tell();
                answer("load", loaded, shown)
            })),
        });
        loaded.0
    }

    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome> {
        let base = base.clone();
        let publishes = updates.iter().any(|u| matches!(u, TableUpdate::SetSnapshotRef { ref_name, .. } if ref_name == MAIN_BRANCH));
        let dropped = self.fault == Some(Fault::PublishWithoutBranchRequirement) && publishes;
        let to_main = |r: &TableRequirement| !matches!(r, TableRequirement::RefSnapshotIdMatch { r#ref, .. } if r#ref != MAIN_BRANCH);
        let requirements: Vec<_> = requirements.into_iter().filter(|r| !dropped || to_main(r)).collect();
        let committed: Committed = self.desk.step("commit", || {
            let text = |value: serde_json::Result<serde_json::Value>| canonical(value.expect("commits have a JSON form"));
            let lost = Committed::Unknown("the answer is lost".into());
            Call {
                key: digest(&(
                    "commit",
                    base.metadata_location(),
                    text(serde_json::to_value(&requirements)),
                    text(serde_json::to_value(&updates)),
                )),
                shown: super::tell::updates(&updates),
                lost: Some(answer("commit", lost, "the answer is lost".into())),
                quiet: false,
                effect: Effect::Catalog(Box::new(move |catalog| {
                    let committed = catalog.commit(&base, &requirements, &updates);
                    let shown = committed.tell();
                    answer("commit", committed, shown)
                })),
            }
        });
        match committed {
            Committed::Done(loaded) => Ok(CommitOutcome::Done(Box::new(loaded.0?))),
            Committed::Conflict(why) => Ok(CommitOutcome::Conflict(why)),
            Committed::Unknown(why) => Ok(CommitOutcome::Unknown(why)),
            Committed::Failed(error) => Err(error),
        }
    }

    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table> {
        let table = table.clone();
        let loaded: Loaded = self.desk.step("create", || Call {
            key: digest(&("create", &table, metadata.uuid())),
            shown: "create".into(),
            lost: None,
            quiet: false,
            effect: Effect::Catalog(Box::new(move |catalog| {
                let loaded = catalog.create(&table, metadata.clone());
                let shown = loaded.tell();
                answer("create", loaded, shown)
            })),
        });
        loaded.0
    }

    fn default_location(&self, table: &TableIdent) -> String {
        format!("memory://lake/{}", table.name())
    }

    async fn list(&self) -> Result<Vec<TableIdent>> {
        Err(Error::internal("no actor lists tables"))
    }
}

fn gone(uri: &str) -> Error {
    Error::not_found(Reason::PathNotFound, format!("there is no {uri}"))
}

#[async_trait]
impl ObjectStore for Ports {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta> {
        Err(gone(uri))
    }
    async fn list(&self, _prefix: &str) -> Result<Vec<ObjectMeta>> {
        Err(Error::internal("no actor lists objects"))
    }
    async fn read_range(&self, pinned: &ObjectMeta, _range: Range<u64>) -> Result<Bytes> {
        Err(gone(&pinned.uri))
    }
    async fn read(&self, uri: &str) -> Result<Bytes> {
        let found = self.files("read", (uri.to_string(),), false, |files, (uri,)| files.objects.get(uri).cloned());
        found.ok_or_else(|| gone(uri))
    }
    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        Ok(self.files("put_if_absent", (uri.to_string(), bytes), false, |files, (uri, bytes)| {
            let absent = !files.objects.contains_key(uri);
            if absent {
                files.objects.insert(uri.clone(), bytes.clone());
            }
            absent
        }))
    }
    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()> {
        self.files("put", (uri.to_string(), bytes), false, |files, (uri, bytes)| {
            files.objects.insert(uri.clone(), bytes.clone());
        });
        Ok(())
    }
    async fn make_durable(&self, _uris: &[String]) -> Result<()> {
        Ok(())
    }
    async fn delete(&self, _uri: &str) -> Result<()> {
        Err(Error::internal("writers never delete"))
    }
}

impl Clock for Ports {
    fn now(&self) -> TimestampUs {
        self.desk.now()
    }
    fn random(&self) -> u64 {
        self.desk.random()
    }
    fn sleep(&self, _duration: Duration) -> BoxFuture<'_, ()> {
        self.desk.leases_end();
        Box::pin(std::future::ready(()))
    }
}
