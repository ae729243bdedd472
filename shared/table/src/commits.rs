//! The commits of a job: open its branches, stage on one, publish, drop. Each is a list of requirements and one of
//! updates, to be committed as a whole.
//!
//! Must never happen: a branch that stage or publish makes by themselves (it is the fence against an older life of
//! the job), staged snapshots that stay after publish (other tools' expiry would delete the published files with
//! them), or a snapshot removed that another ref still needs.

use crate::clock::{behind_by_ms, moved};
use crate::errors::from_iceberg;
use iceberg::spec::{MAIN_BRANCH, Snapshot, SnapshotReference, SnapshotRetention, TableMetadata};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use timelake_model::{Error, Reason, Result};

/// Requirements and updates of one commit.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    pub requirements: Vec<TableRequirement>,
    pub updates: Vec<TableUpdate>,
}

/// All branches and tags of a table, by name.
pub fn refs(metadata: &TableMetadata) -> Result<BTreeMap<String, SnapshotReference>> {
    // The crate shows refs only by name; its JSON form has them all.
    #[derive(Deserialize)]
    struct Refs {
        #[serde(default)]
        refs: BTreeMap<String, SnapshotReference>,
    }
    let json = serde_json::to_vec(metadata).map_err(|e| Error::internal(format!("table metadata has no JSON form: {e}")))?;
    let parsed: Refs = serde_json::from_slice(&json).map_err(|e| Error::internal(format!("table metadata has no refs: {e}")))?;
    Ok(parsed.refs)
}

/// `main` moved to a snapshot, with the retention it had.
pub(crate) fn main_reference(current: Option<&SnapshotReference>, snapshot_id: i64) -> SnapshotReference {
    let retention = match current {
        Some(reference) if reference.is_branch() => reference.retention.clone(),
        _ => SnapshotRetention::branch(None, None, None),
    };
    SnapshotReference::new(snapshot_id, retention)
}

/// A staging branch outlives every expiry by age: only its job removes it.
fn branch_reference(snapshot_id: i64) -> SnapshotReference {
    SnapshotReference::new(snapshot_id, SnapshotRetention::branch(None, None, Some(i64::MAX)))
}

fn uuid_matches(table: &Table) -> TableRequirement {
    TableRequirement::UuidMatch { uuid: table.metadata().uuid() }
}
fn ref_at(name: &str, snapshot_id: Option<i64>) -> TableRequirement {
    TableRequirement::RefSnapshotIdMatch { r#ref: name.into(), snapshot_id }
}

/// Creates the branches of a job at a snapshot `main` had, without a new snapshot, and sets its lock property.
/// Whether another lock overlaps is decided by the caller from the same `table`; requiring its `main` makes the
/// answer hold for the commit.
pub fn open_branches(table: &Table, branches: &[String], at_snapshot: i64, lock: (String, String)) -> Result<Commit> {
    let metadata = table.metadata();
    if metadata.snapshot_by_id(at_snapshot).is_none() {
        return Err(Error::conflict(
            Reason::TableChanged,
            format!("snapshot {at_snapshot} of {}, which the plan was made against, has expired", table.identifier()),
        )
        .hint("run the command again: it makes a new plan")
        .at(|p| p.table = Some(table.identifier().to_string())));
    }
    let mut commit = Commit {
        requirements: vec![uuid_matches(table), ref_at(MAIN_BRANCH, metadata.current_snapshot_id())],
        updates: Vec::with_capacity(branches.len() + 1),
    };
    for branch in branches {
        commit.requirements.push(ref_at(branch, None));
        commit.updates.push(TableUpdate::SetSnapshotRef { ref_name: branch.clone(), reference: branch_reference(at_snapshot) });
    }
    commit.updates.push(TableUpdate::SetProperties { updates: HashMap::from([lock]) });
    Ok(commit)
}

/// Moves a branch from exactly `branch_at` to a new snapshot.
pub fn stage(table: &Table, branch: &str, branch_at: i64, snapshot: Snapshot) -> Commit {
    let reference = branch_reference(snapshot.snapshot_id());
    Commit {
        requirements: vec![uuid_matches(table), ref_at(branch, Some(branch_at))],
        updates: vec![TableUpdate::AddSnapshot { snapshot }, TableUpdate::SetSnapshotRef { ref_name: branch.into(), reference }],
    }
}

/// What publish moves, and from where.
#[derive(Debug, Clone)]
pub struct Publish<'a> {
    /// Head of `main` that the overlap check read; the parent of `snapshot`.
    pub main_at: i64,
    pub branch: &'a str,
    /// The validated snapshot.
    pub branch_at: i64,
    /// The new head of `main`.
    pub snapshot: Snapshot,
    pub tag: &'a str,
    /// How long the tag keeps the files.
    pub max_ref_age_ms: i64,
    /// Every snapshot this group ever staged.
    pub staged_to_remove: &'a [i64],
    /// Lock property, given by the last group.
    pub remove_lock: Option<String>,
}

/// The one commit that makes a group's rows visible.
pub fn publish(table: &Table, publish: Publish<'_>) -> Result<Commit> {
    let metadata = table.metadata();
    let refs = refs(metadata)?;
    let snapshot_id = publish.snapshot.snapshot_id();
    if publish.snapshot.parent_snapshot_id() != Some(publish.main_at) {
        return Err(Error::internal("a snapshot is published only onto its parent"));
    }
    let requirements = vec![
        uuid_matches(table),
        TableRequirement::CurrentSchemaIdMatch { current_schema_id: metadata.current_schema_id() },
        TableRequirement::DefaultSpecIdMatch { default_spec_id: metadata.default_partition_spec_id() },
        ref_at(MAIN_BRANCH, Some(publish.main_at)),
        ref_at(publish.branch, Some(publish.branch_at)),
        ref_at(publish.tag, None),
    ];
    let tag = SnapshotReference::new(snapshot_id, SnapshotRetention::Tag { max_ref_age_ms: Some(publish.max_ref_age_ms) });
    let mut updates = vec![
        TableUpdate::AddSnapshot { snapshot: publish.snapshot },
        TableUpdate::SetSnapshotRef { ref_name: MAIN_BRANCH.into(), reference: main_reference(refs.get(MAIN_BRANCH), snapshot_id) },
        TableUpdate::SetSnapshotRef { ref_name: publish.tag.into(), reference: tag },
        TableUpdate::RemoveSnapshotRef { ref_name: publish.branch.into() },
    ];
    updates.extend(removals(metadata, &refs, publish.branch, publish.staged_to_remove, publish.remove_lock));
    Ok(Commit { requirements, updates })
}

/// Removes a branch and what was staged on it: cancel, nothing to publish, a new generation.
pub fn drop_branch(table: &Table, branch: &str, branch_at: i64, staged_to_remove: &[i64], remove_lock: Option<String>) -> Result<Commit> {
    let refs = refs(table.metadata())?;
    let mut updates = vec![TableUpdate::RemoveSnapshotRef { ref_name: branch.into() }];
    updates.extend(removals(table.metadata(), &refs, branch, staged_to_remove, remove_lock));
    Ok(Commit { requirements: vec![uuid_matches(table), ref_at(branch, Some(branch_at))], updates })
}

/// Staged snapshots that are still there and that no other ref points at (removing an id that is gone fails in
/// some catalogs), then the lock.
fn removals(
    metadata: &TableMetadata,
    refs: &BTreeMap<String, SnapshotReference>,
    branch: &str,
    staged: &[i64],
    lock: Option<String>,
) -> Vec<TableUpdate> {
    let mut snapshot_ids: Vec<i64> = staged
        .iter()
        .copied()
        .filter(|id| metadata.snapshot_by_id(*id).is_some())
        .filter(|id| refs.iter().all(|(name, r)| r.snapshot_id != *id || name == branch))
        .collect();
    snapshot_ids.sort_unstable();
    snapshot_ids.dedup();
    let mut updates = Vec::new();
    if !snapshot_ids.is_empty() {
        updates.push(TableUpdate::RemoveSnapshots { snapshot_ids });
    }
    if let Some(property) = lock.filter(|p| metadata.properties().contains_key(p)) {
        updates.push(TableUpdate::RemoveProperties { removals: vec![property] });
    }
    updates
}

/// A commit's updates applied to a table's metadata: what a catalog without a server of its own writes.
/// A sequence number that another commit took meanwhile is a conflict, whatever the crate calls it. The table's time never
/// goes back, whatever `now_ms`, the machine's clock, says.
pub fn apply(table: &Table, requirements: &[TableRequirement], updates: Vec<TableUpdate>, now_ms: i64) -> Result<TableMetadata> {
    let metadata = table.metadata();
    for requirement in requirements {
        requirement.check(Some(metadata)).map_err(|e| Error::conflict(Reason::CommitConflict, e.message().to_string()))?;
    }
    // A snapshot brings its own time, which is after the last change; all else is dated by the crate, by the clock.
    let dated = updates.iter().any(|u| matches!(u, TableUpdate::AddSnapshot { .. }));
    let behind_ms = if dated { 0 } else { behind_by_ms(metadata, now_ms) };
    let mut builder = moved(metadata, -behind_ms)?.into_builder(table.metadata_location().map(String::from));
    for update in updates {
        builder = update.apply(builder).map_err(refused)?;
    }
    moved(&builder.build().map_err(refused)?.metadata, behind_ms)
}

/// Words of the crate's refusals that mean another commit came first.
const OVERTAKEN: [&str; 4] =
    ["older than last sequence number", "Snapshot already exists", "to unknown snapshot", "behind table next-row-id"];
/// Words that mean the clock was set back by more than a minute while this commit was made.
const CLOCK_BEHIND: [&str; 2] = ["Invalid update timestamp", "Invalid snapshot timestamp"];

fn refused(error: iceberg::Error) -> Error {
    let text = error.message();
    if OVERTAKEN.iter().any(|part| text.contains(part)) {
        return Error::conflict(Reason::CommitConflict, text.to_string());
    }
    if CLOCK_BEHIND.iter().any(|part| text.contains(part)) {
        let message = format!("the clock of this machine was set back just now: {text}");
        return Error::unavailable(Reason::CatalogUnavailable, message).hint("run the same command again");
    }
    from_iceberg(error, "changing the table's metadata")
}
