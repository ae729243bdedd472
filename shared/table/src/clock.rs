//! A clock that is behind the table's last change: it was set back, or another writer's is ahead.
//!
//! The iceberg crate dates a commit without a snapshot by the machine's clock, and refuses a date more than a minute
//! before the last one (within the minute it lets a table's time run backwards). But a job must come to its end whatever
//! the clock does. So all times of the table are moved back behind the clock before such a commit is applied, and moved
//! forth again after it; the commit gets the first millisecond after the last change.
//!
//! Must never happen: a time in the metadata that is before one it had, or another change of a time.

use iceberg::spec::TableMetadata;
use serde_json::Value;
use timelake_model::{Error, Result};

/// How far (in milliseconds) the table's times must be moved so that its last change is before `now_ms`; 0: they are.
pub(crate) fn behind_by_ms(metadata: &TableMetadata, now_ms: i64) -> i64 {
    metadata.last_updated_ms().saturating_add(1).saturating_sub(now_ms).max(0)
}

/// The same metadata with all its times moved.
pub(crate) fn moved(metadata: &TableMetadata, by_ms: i64) -> Result<TableMetadata> {
    if by_ms == 0 {
        return Ok(metadata.clone());
    }
    let failed = |e: serde_json::Error| Error::internal(format!("table metadata whose times are moved does not read: {e}"));
    let mut json = serde_json::to_value(metadata).map_err(failed)?;
    shift(&mut json["last-updated-ms"], by_ms);
    for list in ["snapshots", "snapshot-log", "metadata-log"] {
        for entry in json.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            shift(&mut entry["timestamp-ms"], by_ms);
        }
    }
    serde_json::from_value(json).map_err(failed)
}

fn shift(time: &mut Value, by_ms: i64) {
    if let Some(ms) = time.as_i64() {
        *time = Value::from(ms.saturating_add(by_ms));
    }
}
