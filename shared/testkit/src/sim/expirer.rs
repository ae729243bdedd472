//! Expires old snapshots as Iceberg's Java tools do it, and deletes files as they do: not by what is reachable, but by what
//! the removed snapshots did. What a removed snapshot on the way to `main` deleted goes; and so goes what one beside that
//! way added, unless `main` took it over under its name (`source-snapshot-id`). That is why a staged snapshot must not be
//! left in a table whose `main` names the staged files.
//!
//! That rule fails by itself once snapshots in the middle of the way to `main` are gone: an older one that a branch kept is
//! then taken for one beside it. Such tables are cleaned by what is reachable, as later versions do.

use super::catalog::ident;
use super::desk::Desk;
use super::files::{head, wrong};
use iceberg::TableUpdate;
use iceberg::spec::{Manifest, ManifestFile, ManifestStatus, TableMetadata};
use iceberg::table::Table;
use std::collections::BTreeSet;
use timelake_engine::ports::CommitOutcome;
use timelake_model::Result;

/// Younger snapshots stay.
const KEPT_MS: [u64; 3] = [0, 500, 20_000];

pub async fn expire(desk: &Desk) -> Result<()> {
    let table = desk.load(&ident())?;
    let kept_ms = {
        let mut state = desk.world.lock();
        let kept_ms = *state.dice.pick(&KEPT_MS);
        state.now_ms() - kept_ms as i64
    };
    let expired = expired(&table, kept_ms)?;
    if expired.is_empty() {
        return Ok(());
    }
    let snapshot_ids: Vec<i64> = expired.iter().copied().collect();
    // No requirement but the pointer's: what is removed is referred to by nothing.
    let refs = timelake_table::refs(table.metadata())?;
    let requirements = refs.iter().map(|(name, r)| super::files::at(name, Some(r.snapshot_id))).collect();
    let committed = desk.commit(&table, requirements, vec![TableUpdate::RemoveSnapshots { snapshot_ids }], None)?;
    let CommitOutcome::Done(after) = committed else { return Ok(()) };
    for path in to_delete(&table, &after, &expired).await? {
        table.file_io().delete(&path).await.map_err(wrong)?;
    }
    Ok(())
}

fn ancestors(metadata: &TableMetadata, of: i64) -> Vec<i64> {
    let mut out = Vec::new();
    let mut at = metadata.snapshot_by_id(of);
    while let Some(snapshot) = at {
        out.push(snapshot.snapshot_id());
        at = snapshot.parent_snapshot_id().and_then(|p| metadata.snapshot_by_id(p));
    }
    out
}

/// Snapshots before a time that no ref is at; of other branches than `main` all ancestors stay.
fn expired(table: &Table, before_ms: i64) -> Result<BTreeSet<i64>> {
    let metadata = table.metadata();
    let mut kept: BTreeSet<i64> = BTreeSet::new();
    for (name, reference) in timelake_table::refs(metadata)? {
        kept.insert(reference.snapshot_id);
        if name != iceberg::spec::MAIN_BRANCH && reference.is_branch() {
            kept.extend(ancestors(metadata, reference.snapshot_id));
        }
    }
    let old = metadata.snapshots().filter(|s| s.timestamp_ms() < before_ms).map(|s| s.snapshot_id());
    Ok(old.filter(|id| !kept.contains(id)).collect())
}

async fn manifests(table: &Table, id: i64) -> Result<(String, Vec<ManifestFile>)> {
    let snapshot = table.metadata().snapshot_by_id(id).ok_or_else(|| wrong("a snapshot is gone"))?;
    let list = table.manifest_list_reader(snapshot).load().await.map_err(wrong)?;
    Ok((snapshot.manifest_list().to_string(), list.entries().to_vec()))
}

async fn to_delete(before: &Table, after: &Table, expired: &BTreeSet<i64>) -> Result<Vec<String>> {
    let metadata = before.metadata();
    let way = ancestors(metadata, head(before)?);
    let first = way.last().and_then(|id| metadata.snapshot_by_id(*id));
    if first.is_some_and(|s| s.parent_snapshot_id().is_some()) {
        return unreachable(before, after, expired).await;
    }
    let on_main: BTreeSet<i64> = way.into_iter().collect();
    let source = |id: i64| {
        let summary = metadata.snapshot_by_id(id)?.summary();
        summary.additional_properties.get("source-snapshot-id")?.parse::<i64>().ok()
    };
    let picked: BTreeSet<i64> = on_main.iter().filter_map(|id| source(*id)).collect();
    let mut kept: BTreeSet<String> = BTreeSet::new();
    let mut left: Vec<i64> = after.metadata().snapshots().map(|s| s.snapshot_id()).collect();
    left.sort_unstable();
    let mut scanned: Vec<(ManifestFile, ManifestStatus)> = Vec::new();
    for id in left {
        for manifest in manifests(after, id).await?.1 {
            let of_main = on_main.contains(&manifest.added_snapshot_id);
            if expired.contains(&manifest.added_snapshot_id) && of_main && manifest.has_deleted_files() {
                scanned.push((manifest.clone(), ManifestStatus::Deleted));
            }
            kept.insert(manifest.manifest_path);
        }
    }
    let mut out = BTreeSet::new();
    for id in expired.iter().copied() {
        if picked.contains(&id) || source(id).is_some_and(|from| on_main.contains(&from) || picked.contains(&from)) {
            continue; // what it did is part of `main`
        }
        let (list, of_snapshot) = manifests(before, id).await?;
        out.insert(list);
        for manifest in of_snapshot.into_iter().filter(|m| !kept.contains(&m.manifest_path)) {
            let of_main = on_main.contains(&manifest.added_snapshot_id);
            if of_main && manifest.has_deleted_files() {
                scanned.push((manifest.clone(), ManifestStatus::Deleted));
            } else if !of_main && expired.contains(&manifest.added_snapshot_id) && manifest.has_added_files() {
                scanned.push((manifest.clone(), ManifestStatus::Added));
            }
            out.insert(manifest.manifest_path);
        }
    }
    for (manifest, status) in scanned {
        let input = before.file_io().new_input(&manifest.manifest_path).map_err(wrong)?;
        let read = Manifest::parse_avro(&input.read().await.map_err(wrong)?).map_err(wrong)?;
        let paths = read.entries().iter().filter(|e| e.status() == status).map(|e| e.file_path().to_string());
        out.extend(paths);
    }
    Ok(out.into_iter().collect())
}

/// What only expired snapshots name.
async fn unreachable(before: &Table, after: &Table, expired: &BTreeSet<i64>) -> Result<Vec<String>> {
    let mut left: Vec<i64> = after.metadata().snapshots().map(|s| s.snapshot_id()).collect();
    left.sort_unstable();
    let kept = reachable(after, left).await?;
    let gone = reachable(before, expired.iter().copied()).await?;
    Ok(gone.difference(&kept).cloned().collect())
}

async fn reachable(table: &Table, ids: impl IntoIterator<Item = i64>) -> Result<BTreeSet<String>> {
    let mut out = BTreeSet::new();
    for id in ids {
        let (list, of_snapshot) = manifests(table, id).await?;
        out.insert(list);
        for manifest in of_snapshot.into_iter().filter(|m| !out.contains(&m.manifest_path)).collect::<Vec<_>>() {
            let read = manifest.load_manifest(table.file_io()).await.map_err(wrong)?;
            out.extend(read.entries().iter().filter(|e| e.is_alive()).map(|e| e.file_path().to_string()));
            out.insert(manifest.manifest_path);
        }
    }
    Ok(out)
}
