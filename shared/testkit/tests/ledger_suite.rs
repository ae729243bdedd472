//! The ledger in memory against the contract of every ledger.

use std::sync::Arc;
use timelake_testkit::ledger_suite::Fixture;
use timelake_testkit::{ManualClock, MemoryLedger};

fn fixture() -> Fixture {
    let clock = Arc::new(ManualClock::default());
    let ledger = Arc::new(MemoryLedger::new(clock.clone()));
    Fixture { ledger: ledger.clone(), second: ledger, clock, keep: Box::new(()) }
}

timelake_testkit::ledger_suite!(memory, fixture);
