//! Unpublished windows: table properties `timelake.lock.<job>`, readable from table metadata alone.
//!
//! A lock is set by the commit that makes a job's branches and removed by the one that removes the last of them. Who
//! rewrites files (a compactor) leaves out what lies in a locked window; a second job on it is refused.

use crate::Engine;
use crate::inventory::table_ident;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use timelake_model::ids::{LOCK_PREFIX, lock_property};
use timelake_model::ledger::State;
use timelake_model::{JobId, Reason, Result, TimestampUs, Window};

/// Value of the property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    #[serde(rename = "gen")]
    pub generation: u32,
    pub window: Window,
}

/// A locked window, with what the ledger knows of its job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockedWindow {
    pub table: String,
    pub job: JobId,
    #[serde(rename = "gen")]
    pub generation: u32,
    pub window: Window,
    /// The table property that holds it.
    pub property: String,
    /// `None`: the ledger at hand has no such job.
    pub state: Option<State>,
    /// When the job was last changed.
    pub updated: Option<TimestampUs>,
}

fn locks(properties: &HashMap<String, String>) -> Vec<(String, Lock)> {
    let mut locks: Vec<_> = properties
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(LOCK_PREFIX)?.to_string(), serde_json::from_str::<Lock>(value).ok()?)))
        .collect();
    locks.sort_by(|a, b| a.0.cmp(&b.0));
    locks
}

/// The lock that a property holds.
pub fn lock_of(properties: &HashMap<String, String>, property: &str) -> Option<Lock> {
    serde_json::from_str(properties.get(property)?).ok()
}

/// The first lock of another job whose window overlaps.
pub fn overlapping_lock(properties: &HashMap<String, String>, own: &str, window: &Window) -> Option<(String, Lock)> {
    locks(properties).into_iter().find(|(job, lock)| lock_property(&JobId(job.clone())) != own && lock.window.overlaps(window))
}

/// Locked windows of a table (of all tables without one), by table and job.
pub async fn list(engine: &Engine, table: Option<&str>) -> Result<Vec<LockedWindow>> {
    let tables = match table {
        Some(name) => vec![table_ident(name)?],
        None => engine.catalog.list().await?,
    };
    let mut out = Vec::new();
    for ident in tables {
        let loaded = match engine.catalog.load(&ident).await {
            Ok(loaded) => loaded,
            Err(e) if table.is_none() && e.reason == Reason::TableNotFound => continue, // dropped meanwhile
            Err(e) => return Err(e),
        };
        for (job, lock) in locks(loaded.metadata().properties()) {
            let job = JobId(job);
            let known = engine.jobs.job(&job).await?;
            out.push(LockedWindow {
                table: ident.to_string(),
                property: lock_property(&job),
                generation: lock.generation,
                window: lock.window,
                state: known.as_ref().map(|j| j.state),
                updated: known.map(|j| j.updated),
                job,
            });
        }
    }
    Ok(out)
}
