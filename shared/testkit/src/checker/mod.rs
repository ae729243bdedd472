//! A small model checker over the engine's real transition code.
//!
//! Takes a [`Model`]: a prepared world and a few actors, each a real function of the engine (a worker, a planner, the
//! chain stage → validate → publish, cancel, the next generation). Gives a [`Report`]: every interleaving of their
//! port calls was explored, with crashes, lost answers, lost leases and failing attempts up to the model's
//! [`Budget`], or the shortest schedule that breaks an invariant.
//!
//! How it works. Each call of a port is one atomic step. An actor is a deterministic function of the answers it got
//! ([`desk`]), so nothing is suspended: what it does next is learnt by running it again with those answers, once per
//! distinct history. States of the ledger, of the catalog (real table metadata, changed by the real requirements and
//! updates) and of the files are kept once each ([`space`]), and so is what a call does to them. A node of the
//! search is therefore a handful of numbers, and visited nodes are compared exactly.
//!
//! What makes it small. Actors say what they still know ([`desk::Desk::forget`]), and histories that differ only before
//! that are one. A read and the compare-and-swap right after it are one step. Calls that nobody else can notice happen at
//! once.
//!
//! What is bounded: the actors of a model, its units, and the budget on one path. What stands still: time. A lease ends
//! when the search says so, pauses take no time. What is left out: landing, reading sources and data files (attempts
//! write a name and a real manifest), and the overlap with rows that somebody else wrote into the window.
//!
//! Must never happen: an actor whose next call depends on anything but its answers. The replay refuses it.

mod actors;
mod catalog;
mod desk;
mod invariants;
mod model;
mod ports;
mod scene;
mod search;
mod space;
pub(crate) mod tell;

pub use actors::Role;
pub use catalog::Swap;
pub use invariants::SENT_FOR_NOTHING;
pub use model::{Model, Prepared};
pub use ports::Fault;
pub use search::{Actor, Budget, Report, Starts, Violation};
