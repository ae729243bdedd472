//! For tests only: the contract suites that every ledger, every catalog and every store of objects passes, a ledger in memory, a clock
//! that stands still, a store that fails on purpose, a model checker over the engine's transitions, a seeded simulator of
//! the whole engine. Depends on the engine and what is below it, never on an adapter.

pub mod catalog_suite;
pub mod checker;
pub mod clock;
pub mod faults;
pub mod ledger_state;
pub mod ledger_suite;
pub mod memory_ledger;
pub mod object_suite;
pub mod sim;

pub use clock::ManualClock;
pub use faults::{FaultPoint, FaultyJobStore};
pub use ledger_state::LedgerState;
pub use memory_ledger::MemoryLedger;
