//! The ledger on DynamoDB: jobs, groups, plans, counters and units in one table (`pk` and `sk`, strings). Takes records,
//! gives back what is stored; decides nothing.
//!
//! Every read is consistent, every write has a condition, and what must change together is one transaction. Opening a
//! round writes its counters and the word that its plan is open, and no unit: **a unit of an open plan that has no item
//! is PENDING**; its item comes with its first attempt. So a round of 20,000 units is opened at once, by one
//! transaction of at most 17 items, or not at all.
//!
//! What must never happen: a unit that ends twice, a counter that moves without its unit, a record that is written over
//! when it should only be written if absent, a counter that is opened in a round that was closed.

mod documents;
mod items;
mod rounds;
mod table;
mod units;

pub use items::round_of_counter;

use crate::ledger::documents::Documents;
use crate::ledger::items::{ALL_JOBS, JOB_PREFIX, damaged, group_key, groups_prefix, job_key, listed_job, listed_key, record, to_json};
use crate::ledger::rounds::Opened;
use crate::ledger::table::{Item, Key, Table, Write, Written, number, text, values_of};
use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use timelake_engine::ports::{EndOutcome, JobStore, ObjectStore, UnitEnd};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitRecord};
use timelake_model::{AttemptId, Error, GroupName, JobId, Result};

/// Jobs in a DynamoDB table; what is too long for an item lies in the jobs' folders.
pub struct DynamoLedger {
    table: Table,
    documents: Documents,
    /// Rounds that are open: what is read of them here never changes.
    opened: Mutex<HashMap<RoundKey, Arc<Opened>>>,
}

impl DynamoLedger {
    /// `jobs_root`: the folder of the jobs in `objects`. The table must exist, with `pk` and `sk`.
    pub fn new(client: Client, table: impl Into<String>, objects: Arc<dyn ObjectStore>, jobs_root: &str) -> DynamoLedger {
        DynamoLedger { table: Table::new(client, table.into()), documents: Documents::new(objects, jobs_root), opened: Mutex::default() }
    }

    async fn record<T: serde::de::DeserializeOwned>(&self, key: &Key) -> Result<Option<T>> {
        self.table.get(key).await?.as_ref().map(record).transpose()
    }

    /// A record that others belong to.
    async fn need_job(&self, job: &JobId, what: &str) -> Result<()> {
        match self.table.get(&job_key(job)).await? {
            Some(_) => Ok(()),
            None => Err(Error::internal(format!("{what} is written before its job {job}"))),
        }
    }

    /// Replaces a record of this version. Each write leaves a mark, so that after an unclear answer it is known again.
    async fn replace(&self, key: Key, record: String, next: Stored<'_>, expected: Stored<'_>) -> Result<bool> {
        let mark = mark();
        let item = stored(&key, record, &next, &mark);
        let Stored { generation, version, table_uuid } = expected;
        let condition = "#generation = :generation AND #version = :version AND #table_uuid = :table_uuid";
        let values = values_of([(":generation", number(generation)), (":version", number(version)), (":table_uuid", text(table_uuid))]);
        match self.table.write(Write::Put { item, condition: condition.into(), values }).await? {
            Written::Done => Ok(true),
            Written::Refused { unclear: false } => Ok(false),
            Written::Refused { unclear: true } => {
                let now = self.table.get(&key).await?;
                Ok(now.is_some_and(|item| items::optional_string(&item, "mark").is_ok_and(|found| found.as_ref() == Some(&mark))))
            }
        }
    }
}

/// What changes of a record are conditional on.
struct Stored<'a> {
    generation: u32,
    version: u64,
    /// Empty for a group.
    table_uuid: &'a str,
}

fn stored(key: &Key, record: String, stored: &Stored, mark: &str) -> Item {
    let mut item = key.item();
    item.extend(values_of([
        ("record", text(record)),
        ("generation", number(stored.generation)),
        ("version", number(stored.version)),
        ("table_uuid", text(stored.table_uuid)),
        ("mark", text(mark)),
    ]));
    item
}

fn mark() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn of_job(job: &JobRecord) -> Stored<'_> {
    Stored { generation: job.generation, version: job.version, table_uuid: &job.table_uuid }
}
fn of_group(group: &GroupRecord) -> Stored<'static> {
    Stored { generation: group.generation, version: group.version, table_uuid: "" }
}

fn vanished(what: &str) -> Error {
    damaged(format!("the {what} just written is not in it"))
}

#[async_trait]
impl JobStore for DynamoLedger {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        let key = job_key(&job.job);
        let lists = [ALL_JOBS.to_string(), items::table_partition(&job.table_uuid)];
        let mut writes = vec![Write::put_if_absent(stored(&key, to_json(job)?, &of_job(job), &mark()))];
        writes.extend(lists.iter().map(|list| Write::put(listed_key(list, &job.job).item())));
        match self.table.transact(writes).await? {
            Written::Done => Ok(job.clone()),
            Written::Refused { .. } => self.record(&key).await?.ok_or_else(|| vanished("job")),
        }
    }

    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        self.record(&job_key(job)).await
    }

    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        let list = table_uuid.map_or_else(|| ALL_JOBS.to_string(), items::table_partition);
        let listed = self.table.query(&list, JOB_PREFIX).await?;
        let keys = listed.iter().map(|item| Ok(job_key(&listed_job(item)?))).collect::<Result<Vec<Key>>>()?;
        let found = self.table.get_all(&keys).await?;
        let mut jobs = found.iter().map(record).collect::<Result<Vec<JobRecord>>>()?;
        jobs.sort_by(|a, b| (Reverse(a.created), &a.job).cmp(&(Reverse(b.created), &b.job)));
        Ok(jobs)
    }

    /// A job never changes its table, so its places in the lists stay.
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        let next = JobRecord { version: job.version + 1, ..job.clone() };
        let expected = Stored { generation: expected_generation, ..of_job(job) };
        Ok(self.replace(job_key(&job.job), to_json(&next)?, of_job(&next), expected).await?.then_some(next))
    }

    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.need_job(&group.job, "a group").await?;
        let key = group_key(&group.job, group.generation, &group.group);
        match self.table.write(Write::put_if_absent(stored(&key, to_json(group)?, &of_group(group), &mark()))).await? {
            Written::Done => Ok(group.clone()),
            Written::Refused { .. } => self.record(&key).await?.ok_or_else(|| vanished("group")),
        }
    }

    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        self.record(&group_key(job, generation, group)).await
    }

    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        let found = self.table.query(&items::partition(job), &groups_prefix(generation)).await?;
        found.iter().map(record).collect()
    }

    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        let next = GroupRecord { version: group.version + 1, ..group.clone() };
        let key = group_key(&group.job, group.generation, &group.group);
        Ok(self.replace(key, to_json(&next)?, of_group(&next), of_group(group)).await?.then_some(next))
    }

    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        self.need_job(&plan.key.job, "a plan").await?;
        rounds::put_plan(self, plan).await
    }

    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        Ok(rounds::plan(self, key).await?.map(|round| round.plan))
    }

    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        rounds::open(self, plan, base).await
    }

    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        rounds::advance_cursor(self, key, cursor).await
    }

    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        rounds::close(self, key).await
    }

    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        units::begin(self, key, unit, attempt).await
    }

    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        units::end(self, key, unit, attempt, end).await
    }

    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        rounds::counters(self, key).await
    }

    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        units::all(self, job, generation, phase, group).await
    }
}
