//! What every ledger must do, whatever it is made of. Each case is an async function of a [`Fixture`]; the macro
//! [`ledger_suite!`](crate::ledger_suite!) makes them tests of one store, so that a test's name says which store failed:
//!
//! ```ignore
//! timelake_testkit::ledger_suite!(memory, memory_queue, new_memory_fixture);
//! ```

mod concurrency;
mod queue;
mod records;
mod rounds;
mod units;

pub use concurrency::*;
pub use queue::*;
pub use records::*;
pub use rounds::*;
pub use units::*;

use crate::clock::{ManualClock, START};
use std::any::Any;
use std::sync::Arc;
use timelake_engine::ports::{JobStore, UnitEnd, UnitQueue};
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, State, UnitMessage, UnitRecord};
use timelake_model::receipt::{SeriesRows, WrittenFile};
use timelake_model::{AttemptId, BackfillRequest, Counts, Error, GroupName, JobId, Reason, Receipt, TimestampUs, UnitReceipt, Window};

/// A new, empty store, and a queue of its jobs.
pub struct Fixture {
    pub ledger: Arc<dyn JobStore>,
    /// Another way to the same store: a second connection where the store has such.
    pub second: Arc<dyn JobStore>,
    pub queue: Arc<dyn UnitQueue>,
    pub second_queue: Arc<dyn UnitQueue>,
    /// The clock that all were opened with.
    pub clock: Arc<ManualClock>,
    /// What must live as long as the store (a folder).
    pub keep: Box<dyn Any + Send + Sync>,
}

impl Fixture {
    /// A store that is the queue of its jobs too, opened twice.
    pub fn of<T: JobStore + UnitQueue + 'static>(ledger: Arc<T>, second: Arc<T>, clock: Arc<ManualClock>) -> Fixture {
        Fixture { ledger: ledger.clone(), second: second.clone(), queue: ledger, second_queue: second, clock, keep: Box::new(()) }
    }
}

/// Makes all cases tests of the store that `$fixture: fn() -> Fixture` makes, in a module named `$store`; those of its
/// queue, in a module named `$queue`, where the store has one.
#[macro_export]
macro_rules! ledger_suite {
    ($store:ident, $queue:ident, $fixture:path) => {
        $crate::ledger_suite!($store, $fixture);
        $crate::ledger_suite!(@tests $queue, $fixture,
            messages_come_oldest_first_and_by_job
            a_lease_that_ends_is_a_redelivery
            an_extended_lease_holds
            a_lease_of_a_clock_that_was_ahead_is_over
            messages_that_nobody_holds_wait_for_no_clock
            a_message_that_is_there_is_not_sent_again
            an_acknowledged_message_is_gone
            a_released_message_comes_after_its_delay
            a_lost_claim_changes_nothing
            purge_removes_a_generation_or_all
        );
    };
    ($store:ident, $fixture:path) => {
        $crate::ledger_suite!(@tests $store, $fixture,
            a_job_is_written_only_if_absent
            jobs_are_listed_newest_first_and_by_table
            a_job_changes_only_from_the_expected_generation
            a_group_is_written_only_if_absent
            a_group_changes_only_from_the_stored_version
            groups_of_jobs_and_generations_are_apart
            a_plan_is_written_only_if_absent
            the_cursor_never_goes_back
            records_need_the_record_they_belong_to
            two_planners_open_a_round_once
            a_round_opens_only_as_its_plan_is_stored
            units_share_counters_by_their_position
            a_counter_without_units_is_not_written
            a_round_closed_before_it_is_opened_stays_closed
            late_attempts_of_closed_rounds_are_fenced
            what_ended_before_the_round_was_closed_stays_ended
            attempts_are_recorded_once_and_only_while_pending
            a_duplicate_end_changes_nothing
            one_of_two_attempts_wins
            failed_units_are_counted
            a_receipt_of_another_unit_is_refused
            units_come_back_as_written_by_unit_and_round
            an_unclear_answer_is_settled_by_repeating
            threads_end_every_unit_exactly_once
        );
    };
    (@tests $store:ident, $fixture:path, $($case:ident)*) => {
        mod $store {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 8)]
                async fn $case() {
                    $crate::ledger_suite::$case(&$fixture()).await;
                }
            )*
        }
    };
}

/// The job of that name; the suite's records belong to job `a` unless told.
pub fn job_id(name: &str) -> JobId {
    JobId(format!("iot-{name}"))
}

/// Generation 1 of a job, created `age_s` seconds before the clock starts.
pub fn job_record(name: &str, table_uuid: &str, age_s: i64) -> JobRecord {
    let created = TimestampUs(START.0 - age_s * 1_000_000);
    JobRecord {
        job: job_id(name),
        generation: 1,
        table: "iot.sensor".into(),
        table_uuid: table_uuid.into(),
        request_hash: format!("hash of {name}"),
        request: BackfillRequest { table: "iot.sensor".into(), rows: Default::default(), run: Default::default() },
        opened_by: None,
        as_of: created,
        window: Window { start: Some(TimestampUs(-1)), end: None },
        state: State::Writing,
        error: None,
        created,
        updated: created,
        version: 0,
    }
}

pub fn group_record(name: &str, generation: u32, group: &str) -> GroupRecord {
    GroupRecord::new(job_id(name), generation, GroupName(group.into()), 77)
}

pub fn round_key(generation: u32, round: u32) -> RoundKey {
    RoundKey { job: job_id("a"), generation, phase: Phase::Write, group: GroupName("2024-05".into()), round }
}

pub fn plan_record(key: &RoundKey, units: impl IntoIterator<Item = u32>, shards: u32) -> PlanRecord {
    PlanRecord { key: key.clone(), plan_hash: "plan".into(), units: units.into_iter().collect(), shards, cursor: 0 }
}

pub fn attempt(name: &str) -> AttemptId {
    AttemptId(name.into())
}

/// Rows are `10 + unit`, bytes 1000 in each of two files.
pub fn done(key: &RoundKey, unit: u32, attempt: &AttemptId) -> UnitEnd {
    let sums = [("value".to_string(), u64::MAX - u64::from(unit))];
    let file = |n: u32| WrittenFile {
        path: format!("data/{unit}-{n}.parquet"),
        bytes: 1000,
        rows: 5,
        spec_id: 0,
        partition: vec![Some("2024-05-01".into()), None],
        key_hash: u64::MAX,
        column_sums: sums.clone().into(),
    };
    UnitEnd::Done(Box::new(Receipt::Write(UnitReceipt {
        unit,
        round: key.round,
        attempt: attempt.clone(),
        base_snapshot: 77,
        counts: Counts { rows_read: 10 + u64::from(unit), rows_written: 10 + u64::from(unit), ..Default::default() },
        files: vec![file(0), file(1)],
        manifests: vec![],
        taken: vec![],
        left: vec![],
        errors: vec![],
        bad_rows: 0,
        warnings: vec!["quoted \"text\", with ' and \u{0}".into()],
        time: Some((TimestampUs(-5), TimestampUs(i64::MAX))),
        column_sums: sums.into(),
        key_hash: 1 << 63,
        chunk_rows: [(-1, 4), (i64::MAX, 6)].into(),
        series: SeriesRows::default(),
    })))
}

pub fn failed(message: &str) -> UnitEnd {
    UnitEnd::Failed(Error::unavailable(Reason::DiskFull, message).hint("free some space").at(|p| p.limit = Some(5)))
}

pub fn message(key: &RoundKey, unit: u32) -> UnitMessage {
    UnitMessage { key: key.clone(), unit }
}

impl Fixture {
    /// Job `a` with an open round of these units; rounds of one job can be opened one after the other.
    pub async fn open_round(&self, key: &RoundKey, units: impl IntoIterator<Item = u32>, shards: u32) -> PlanRecord {
        self.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
        let plan = self.ledger.put_plan(&plan_record(key, units, shards)).await.unwrap();
        self.ledger.open_round(&plan, 77).await.unwrap();
        plan
    }

    /// (remaining, failed, rows) over the counters of a round.
    pub async fn totals(&self, key: &RoundKey) -> (u32, u32, u64) {
        let counters = self.second.counters(key).await.unwrap();
        counters.iter().fold((0, 0, 0), |(remaining, failed, rows), c| (remaining + c.remaining, failed + c.failed, rows + c.rows))
    }

    pub async fn unit(&self, key: &RoundKey, unit: u32) -> UnitRecord {
        let units = self.second.units(&key.job, key.generation, key.phase, &key.group).await.unwrap();
        units.into_iter().find(|u| u.unit == unit && u.key == *key).unwrap()
    }
}
