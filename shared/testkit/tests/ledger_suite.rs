//! The ledger in memory against the contract of every ledger.

use std::sync::Arc;
use timelake_testkit::ledger_suite::Fixture;
use timelake_testkit::{ManualClock, MemoryLedger};

fn fixture() -> Fixture {
    let clock = Arc::new(ManualClock::default());
    let ledger = Arc::new(MemoryLedger::new(clock.clone()));
    Fixture::of(ledger.clone(), ledger, clock)
}

timelake_testkit::ledger_suite!(memory, memory_queue, fixture);
