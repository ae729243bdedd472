//! For tests only: the contract suite that every ledger passes, a ledger in memory, a clock that stands still, a
//! store that fails on purpose. Depends on the engine's ports and the nouns, never on an adapter.

pub mod clock;
pub mod faults;
pub mod ledger_suite;
pub mod memory_ledger;

pub use clock::ManualClock;
pub use faults::{FaultPoint, FaultyJobStore};
pub use memory_ledger::MemoryLedger;
