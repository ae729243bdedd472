//! The nouns of a backfill: what is asked for, what was found, what is planned, what was written,
//! what was decided. Values only: serde and chrono, no I/O, no Arrow, no clock.
//!
//! The data flows one way, each type is made by one step and read by the next:
//! `BackfillRequest → Inventory → [LandPlan → LandReceipt →] WritePlan → UnitReceipt → StagedSnapshot → Verdict → PublishedSnapshot`.

pub mod contract;
pub mod cost;
pub mod counts;
pub mod dry_run;
pub mod error;
pub mod ids;
pub mod inventory;
pub mod land;
pub mod layout;
pub mod ledger;
pub mod manifest;
pub mod messages;
pub mod plan;
pub mod receipt;
pub mod request;
pub mod similar;
pub mod time;
pub mod timeline;
pub mod types;
pub mod verdict;

pub use contract::TableContract;
pub use counts::Counts;
pub use error::{Error, Kind, Place, Reason, Result};
pub use ids::{AttemptId, GroupName, JobId};
pub use inventory::{Inventory, SourceObject};
pub use land::{LandPlan, LandReceipt};
pub use plan::{WorkUnit, WritePlan};
pub use receipt::{Receipt, UnitReceipt};
pub use request::BackfillRequest;
pub use time::{TimestampUs, Window};
pub use types::{Column, ColumnType};
