//! Snapshots: a manifest list on top of a parent's, and the summary that goes with it.
//!
//! Must never happen: a snapshot without a parent beside the first one of a table (it would reset the table's
//! sequence numbers and break every later commit), or a manifest of the parent left out (rows would vanish).

use crate::commits::{Commit, main_reference};
use crate::errors::{at_file, from_iceberg};
use iceberg::spec::{FormatVersion, MAIN_BRANCH, ManifestFile, ManifestListWriter, Operation, Snapshot, SnapshotRef, Summary};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use std::collections::HashMap;
use timelake_model::{Error, Reason, Result};

/// What a snapshot adds to its parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added {
    pub files: u64,
    pub rows: u64,
    pub bytes: u64,
    /// Partitions that get files.
    pub partitions: u64,
}

/// An append, ready to be listed.
#[derive(Debug, Clone)]
pub struct Append<'a> {
    pub snapshot_id: i64,
    /// Our manifests; their entries and sequence numbers are unassigned.
    pub manifests: Vec<ManifestFile>,
    pub added: Added,
    /// Further entries of the snapshot's summary.
    pub properties: &'a [(String, String)],
    /// The clock's time in milliseconds. The snapshot's time is just after the table's last change when that is later.
    pub now_ms: i64,
    /// Where the manifest list goes.
    pub list_path: String,
}

/// A path for a manifest list, named as Iceberg names them. `attempt` makes it unique.
pub fn list_path(location: &str, snapshot_id: i64, attempt: &str) -> String {
    format!("{}/metadata/snap-{snapshot_id}-0-{attempt}.avro", location.trim_end_matches('/'))
}

/// Writes the manifest list of a snapshot that holds the parent's manifests and ours, and returns the snapshot.
pub async fn append_snapshot(table: &Table, parent: &SnapshotRef, append: Append<'_>) -> Result<Snapshot> {
    let mut manifests = manifests_of(table, parent).await?;
    manifests.extend(append.manifests);
    let summary = append_summary(append.added, Some(parent.summary()), append.properties);
    write_snapshot(table, Some(parent), append.snapshot_id, manifests, summary, append.now_ms, append.list_path).await
}

/// The first snapshot of a table that has none: no files, on `main`.
pub async fn empty_append(table: &Table, snapshot_id: i64, now_ms: i64, list_path: String) -> Result<Commit> {
    let metadata = table.metadata();
    if metadata.current_snapshot().is_some() {
        return Err(Error::conflict(Reason::TableChanged, format!("{} already has a snapshot", table.identifier())));
    }
    let summary = append_summary(Added::default(), None, &[]);
    let snapshot = write_snapshot(table, None, snapshot_id, Vec::new(), summary, now_ms, list_path).await?;
    Ok(Commit {
        requirements: vec![
            TableRequirement::UuidMatch { uuid: metadata.uuid() },
            TableRequirement::RefSnapshotIdMatch { r#ref: MAIN_BRANCH.into(), snapshot_id: None },
        ],
        updates: vec![
            TableUpdate::AddSnapshot { snapshot },
            TableUpdate::SetSnapshotRef { ref_name: MAIN_BRANCH.into(), reference: main_reference(None, snapshot_id) },
        ],
    })
}

/// All manifests of a snapshot.
pub async fn manifests_of(table: &Table, snapshot: &SnapshotRef) -> Result<Vec<ManifestFile>> {
    let what = format!("reading the manifest list {}", snapshot.manifest_list());
    let list = table.manifest_list_reader(snapshot).load().await.map_err(|e| at_file(e, &what, snapshot.manifest_list()))?;
    Ok(list.consume_entries().into_iter().collect())
}

async fn write_snapshot(
    table: &Table,
    parent: Option<&SnapshotRef>,
    snapshot_id: i64,
    manifests: Vec<ManifestFile>,
    summary: Summary,
    now_ms: i64,
    list_path: String,
) -> Result<Snapshot> {
    let metadata = table.metadata();
    let what = format!("writing the manifest list {list_path}");
    let parent_id = parent.map(|p| p.snapshot_id());
    let sequence_number = metadata.next_sequence_number();
    let output = table.file_io().new_output(&list_path).map_err(|e| from_iceberg(e, &what))?;
    let file = output.writer().await.map_err(|e| at_file(e, &what, &list_path))?;
    let first_row_id = metadata.next_row_id();
    let mut list = match metadata.format_version() {
        FormatVersion::V1 => return Err(version_1_refused(&table.identifier().to_string())),
        FormatVersion::V2 => ManifestListWriter::v2(file, snapshot_id, parent_id, sequence_number),
        FormatVersion::V3 => ManifestListWriter::v3(file, snapshot_id, parent_id, sequence_number, Some(first_row_id)),
    };
    list.add_manifests(manifests.into_iter()).map_err(|e| at_file(e, &what, &list_path))?;
    let next_row_id = list.next_row_id();
    list.close().await.map_err(|e| at_file(e, &what, &list_path))?;
    let builder = Snapshot::builder()
        .with_snapshot_id(snapshot_id)
        .with_parent_snapshot_id(parent_id)
        .with_sequence_number(sequence_number)
        .with_timestamp_ms(now_ms.max(metadata.last_updated_ms().saturating_add(1)))
        .with_manifest_list(list_path)
        .with_summary(summary)
        .with_schema_id(metadata.current_schema_id());
    Ok(match next_row_id {
        Some(next) => builder.with_row_range(first_row_id, next.saturating_sub(first_row_id)).build(),
        None => builder.build(),
    })
}

/// The refusal of format version 1.
pub fn version_1_refused(table: &str) -> Error {
    Error::invalid(Reason::UnsupportedTable, format!("{table} has format version 1, which has no branches of its own sequence"))
        .hint("upgrade the table first: set the property format-version to 2 (this keeps all data)")
        .at(|p| p.table = Some(table.into()))
}

/// Counts of an append and the totals after it. A total that the parent does not state is left out, not guessed.
fn append_summary(added: Added, parent: Option<&Summary>, properties: &[(String, String)]) -> Summary {
    let mut out: HashMap<String, String> = properties.iter().cloned().collect();
    for (name, value) in [
        ("added-data-files", added.files),
        ("added-records", added.rows),
        ("added-files-size", added.bytes),
        ("changed-partition-count", added.partitions),
    ] {
        if value > 0 {
            out.insert(name.into(), value.to_string());
        }
    }
    for (name, more) in [
        ("total-data-files", added.files),
        ("total-records", added.rows),
        ("total-files-size", added.bytes),
        ("total-delete-files", 0),
        ("total-position-deletes", 0),
        ("total-equality-deletes", 0),
    ] {
        let before: Option<u64> = match parent {
            None => Some(0),
            Some(summary) => summary.additional_properties.get(name).and_then(|v| v.parse().ok()),
        };
        if let Some(before) = before {
            out.insert(name.into(), before.saturating_add(more).to_string());
        }
    }
    Summary { operation: Operation::Append, additional_properties: out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_follow_the_parent_and_are_never_guessed() {
        let added = Added { files: 2, rows: 10, bytes: 300, partitions: 1 };
        let first = append_summary(added, None, &[("timelake.job".into(), "j".into())]);
        let get = |s: &Summary, k: &str| s.additional_properties.get(k).cloned();
        assert_eq!(get(&first, "total-records"), Some("10".into()));
        assert_eq!(get(&first, "total-delete-files"), Some("0".into()));
        assert_eq!(get(&first, "timelake.job"), Some("j".into()));
        let second = append_summary(added, Some(&first), &[]);
        assert_eq!((get(&second, "total-records"), get(&second, "total-files-size")), (Some("20".into()), Some("600".into())));
        let silent = Summary { operation: Operation::Append, additional_properties: HashMap::new() };
        assert_eq!(get(&append_summary(added, Some(&silent), &[]), "total-records"), None);
    }
}
