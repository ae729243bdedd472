//! The verbs of a backfill, one module per arrow. No AWS, no SQLite, no clock: the world is behind [`ports`].

pub mod ports;
pub mod progress;
