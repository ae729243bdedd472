//! What the engine needs from the world, named for the need. Adapters live in `local` (SQLite, a folder) and
//! later `aws`. Only adapters read the clock, the environment or the network; the engine only sees these traits.

use async_trait::async_trait;
use bytes::Bytes;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use std::ops::Range;
use std::time::Duration;
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, PlanRecord, RoundKey, UnitMessage, UnitRecord};
use timelake_model::messages::Signal;
use timelake_model::{AttemptId, Error, GroupName, JobId, Receipt, Result, TimestampUs};

/// Time, and the two things that must differ from run to run.
pub trait Clock: Send + Sync {
    fn now(&self) -> TimestampUs;
    /// A random number: ids of attempts and snapshots, jitter. Never part of a data file.
    fn random(&self) -> u64;
    /// Blocks the calling task; the catalog retry loop is the only user.
    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'_, ()>;
}

/// Answer of a commit. `Unknown` means the swap may or may not have happened: reload and look.
#[derive(Debug)]
pub enum CommitOutcome {
    /// The table as committed.
    Done(Box<Table>),
    /// Another commit came first, or a requirement does not hold; nothing changed.
    Conflict(String),
    Unknown(String),
}

/// An Iceberg catalog: one metadata pointer per table, moved by compare-and-swap.
#[async_trait]
pub trait TableCatalog: Send + Sync {
    /// `not_found`/`table_not_found` when there is none.
    async fn load(&self, table: &TableIdent) -> Result<Table>;
    /// Applies `updates` to `base` if the table still is at `base` and all requirements hold for it.
    /// Never retries by itself.
    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome>;
    /// Registers a new table (and its namespace). `conflict`/`table_exists` when there is one.
    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table>;
    /// Where a new table's files go.
    fn default_location(&self, table: &TableIdent) -> String;
    async fn list(&self) -> Result<Vec<TableIdent>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    pub uri: String,
    pub size: u64,
    /// mtime in nanoseconds or etag: what a pinned read compares.
    pub fingerprint: String,
    /// When it was last written, by the store's clock.
    pub modified: TimestampUs,
}

/// What table FileIO lacks. Used for the job folder, for source objects and for making files durable.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    async fn stat(&self, uri: &str) -> Result<ObjectMeta>;
    /// Objects below a prefix, by uri, ascending.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>>;
    /// `conflict`/`source_changed` when the object is no longer the pinned one.
    async fn read_range(&self, pinned: &ObjectMeta, range: Range<u64>) -> Result<Bytes>;
    async fn read(&self, uri: &str) -> Result<Bytes>;
    /// Returns false (and leaves the object alone) when it exists.
    async fn put_if_absent(&self, uri: &str, bytes: Bytes) -> Result<bool>;
    async fn put(&self, uri: &str, bytes: Bytes) -> Result<()>;
    /// Returns when the objects survive a power loss.
    async fn make_durable(&self, uris: &[String]) -> Result<()>;
    /// No error when it is gone already.
    async fn delete(&self, uri: &str) -> Result<()>;
}

/// How an attempt ends.
#[derive(Debug, Clone, PartialEq)]
pub enum UnitEnd {
    Done(Box<Receipt>),
    Failed(Error),
}

impl UnitEnd {
    /// A receipt ends the unit, round and attempt it is of.
    pub fn check(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<()> {
        let UnitEnd::Done(receipt) = self else { return Ok(()) };
        let of = receipt.of();
        match of == (unit, key.round, attempt) {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "unit {unit} of round {} is ended by attempt {attempt} with the receipt of unit {}, round {}, attempt {}",
                key.round, of.0, of.1, of.2
            ))),
        }
    }
}

/// Answer of [`JobStore::end_unit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOutcome {
    /// This call made the transition.
    Won,
    /// The unit was already ended, by this attempt or another.
    AlreadyEnded { win: Option<AttemptId> },
    /// The counter of that generation and round is closed: the attempt is a late one of an older life.
    Fenced,
}

/// The ledger. Each method is one atomic transaction; after an unclear answer the same call is repeated.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Writes the job if absent; returns what is stored.
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord>;
    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>>;
    /// Newest first. `table_uuid` narrows.
    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>>;
    /// Replaces the record if the stored one still has `expected_generation` and `job.version`, storing version + 1.
    /// Returns what is stored then, or `None` when someone else changed it.
    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>>;

    /// Writes the group if absent; returns what is stored.
    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord>;
    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>>;
    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>>;
    /// Replaces the group if the stored version is `group.version`, storing version + 1. Returns the stored
    /// record (with its new version) or `None` when someone else changed it.
    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>>;

    /// Writes the plan of a round if absent; returns what is stored.
    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord>;
    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>>;
    /// Writes units (PENDING) and counters, each only if absent. Unit `u` belongs to the counter with shard
    /// `position of u in the plan's units mod shards`; a counter without units is not written.
    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()>;
    /// Moves the cursor forward (never back).
    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()>;
    /// Closes the counters of a round: later ends of its units are `Fenced`.
    async fn close_round(&self, key: &RoundKey) -> Result<()>;

    /// Records an attempt before its first upload. False: the unit is no longer PENDING or its round is closed.
    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool>;
    /// PENDING → DONE with `win = attempt` and counter − 1, or → FAILED with counter − 1 and failed + 1,
    /// as one transaction that needs an open counter.
    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome>;
    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>>;
    /// Units of a group and phase in all rounds, by (unit, round).
    async fn units(&self, job: &JobId, generation: u32, phase: timelake_model::ledger::Phase, group: &GroupName)
    -> Result<Vec<UnitRecord>>;
}

/// A message in somebody's hands until the lease ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub id: i64,
    pub message: UnitMessage,
    /// Deliveries so far, this one included.
    pub tries: u32,
}

/// Where units are announced to workers. At least once: a message may come twice, late, or after its unit is done.
#[async_trait]
pub trait UnitSender: Send + Sync {
    /// A queue may drop a message that is waiting or held already.
    async fn send(&self, messages: &[UnitMessage]) -> Result<()>;
    /// Messages of a generation of a job (or of all generations) are of no use any more. A queue that can look for them
    /// removes them; of another, those who get them find their round closed.
    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()>;
}

/// A queue from which workers take unit messages by themselves.
#[async_trait]
pub trait UnitQueue: UnitSender {
    /// Takes the oldest message that nobody holds (of this job, when given). A lease that ends later than any lease can
    /// is one of a clock that was ahead: it is over.
    async fn claim(&self, job: Option<&JobId>, owner: &str, lease: Duration) -> Result<Option<Claim>>;
    async fn extend(&self, claim: &Claim, lease: Duration) -> Result<bool>;
    async fn ack(&self, claim: &Claim) -> Result<()>;
    /// Gives it back, visible after `delay`.
    async fn release(&self, claim: &Claim, delay: Duration) -> Result<()>;
    /// Messages waiting or held, of this job.
    async fn depth(&self, job: &JobId) -> Result<u64>;
}

/// What the parts of a run tell each other where each is a process of its own. A signal is a hint, as a message is.
#[async_trait]
pub trait Signals: Send + Sync {
    async fn signal(&self, signal: &Signal) -> Result<()>;
}

/// Deliveries after which a unit's message is given up and the unit becomes FAILED.
pub const MAX_DELIVERIES: u32 = 5;
