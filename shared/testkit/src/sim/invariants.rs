//! What must hold: after every swap of the catalog and every removal of a file, and when the seed has ended.
//!
//! `main` is read here by a reader of its own: manifests as the iceberg crate parses them, rows and deletes by plain Parquet.

use super::files::{Live, rows_after_deletes};
use super::model::{Intent, Life, difference};
use super::storage::get;
use super::world::{ActorId, State};
use iceberg::spec::{FormatVersion, Manifest, ManifestList, SnapshotRef, TableMetadata};
use std::collections::BTreeSet;
use timelake_model::ids::{LOCK_PREFIX, published_by, published_tag};
use timelake_model::ledger::{RoundKey, UnitRecord};
use timelake_model::{Counts, Receipt};

/// The catalog swapped its pointer.
pub fn swapped(state: &mut State, actor: ActorId, before: Option<&TableMetadata>, intent: Option<Intent>) {
    if let Err((invariant, what)) = after_swap(state, actor, before, intent) {
        state.broken(invariant, what);
    }
}

type Checked = Result<(), (u32, String)>;

fn after_swap(state: &mut State, actor: ActorId, before: Option<&TableMetadata>, intent: Option<Intent>) -> Checked {
    let Some(after) = state.catalog.metadata.clone() else { return Ok(()) };
    let (from, to) = (before.and_then(|m| m.current_snapshot_id()), after.current_snapshot_id());
    let Some(to) = to else { return Ok(()) };
    if from == Some(to) {
        return reads(state, &after);
    }
    let rewinds = matches!(intent, Some(Intent::Rewind(_)));
    let parent = after.snapshot_by_id(to).and_then(|s| s.parent_snapshot_id());
    if !rewinds && parent != from {
        return Err((
            5,
            format!("main is moved to a snapshot that does not stand on the one before: a commit of {} undoes others", state.name(actor)),
        ));
    }
    match (published(before, &after), intent) {
        (Some(life), None) => publish(state, life)?,
        (None, Some(intent)) => state.model.apply(intent).map_err(|what| (6, what))?,
        (None, None) if from.is_none() => {}
        _ => return Err((6, format!("main is moved by {}, which does not publish", state.name(actor)))),
    }
    state.model.moved_to(to);
    reads(state, &after)
}

/// The group whose tag came.
fn published(before: Option<&TableMetadata>, after: &TableMetadata) -> Option<Life> {
    let tags = |m: &TableMetadata| timelake_table::refs(m).unwrap_or_default().into_keys().collect::<BTreeSet<_>>();
    let known = before.map(tags).unwrap_or_default();
    tags(after).iter().filter(|name| !known.contains(*name)).find_map(|name| published_by(name))
}

fn publish(state: &mut State, life: Life) -> Checked {
    let request = state.ledger.job(&life.0).map(|j| j.request);
    let load = state.loads.iter().find(|load| request.as_ref().is_some_and(|r| r.rows.from == load.request.rows.from)).cloned();
    let load = load.ok_or((6, format!("{} is published and in no ledger", life.0)))?;
    state.count("publish");
    state.model.publish(life, &load.rows, load.request.rows.mode)
}

/// `main` reads, and holds what the model says.
fn reads(state: &mut State, metadata: &TableMetadata) -> Checked {
    let Some(head) = metadata.current_snapshot() else { return Ok(()) };
    let (live, named) = named_by(state, head)?;
    let bytes = |path: &str| get(state, path);
    let found = rows_after_deletes(&live, bytes).map_err(|e| (4, format!("main does not read: {e}")))?;
    state.main_files = named;
    match difference(&state.model.rows, &found) {
        Some(what) => Err((1, what)),
        None => Ok(()),
    }
}

/// Live files of a snapshot, and the paths of all that it needs.
pub fn named_by(state: &State, snapshot: &SnapshotRef) -> Result<(Vec<Live>, BTreeSet<String>), (u32, String)> {
    let missing = |what: &str, path: &str| (4, format!("main names {what} {path}, which does not exist"));
    let mut named = BTreeSet::from([snapshot.manifest_list().to_string()]);
    let bytes = get(state, snapshot.manifest_list()).map_err(|_| missing("the manifest list", snapshot.manifest_list()))?;
    let list = ManifestList::parse_with_version(&bytes, FormatVersion::V2).map_err(|e| (4, e.to_string()))?;
    let mut live = Vec::new();
    for manifest in list.entries() {
        let path = &manifest.manifest_path;
        let bytes = get(state, path).map_err(|_| missing("the manifest", path))?;
        named.insert(path.clone());
        let read = Manifest::parse_avro(&bytes).map_err(|e| (4, e.to_string()))?;
        for entry in read.entries().iter().filter(|e| e.is_alive()) {
            if !state.objects.contains_key(entry.file_path()) {
                return Err(missing("the file", entry.file_path()));
            }
            named.insert(entry.file_path().to_string());
            live.push(Live { entry: entry.clone(), sequence: entry.sequence_number().unwrap_or(manifest.sequence_number) });
        }
    }
    Ok((live, named))
}

/// A file is gone.
pub fn removed(state: &mut State, path: &str) {
    if state.main_files.contains(path) {
        state.broken(4, format!("{path} is deleted, and main names it"));
    }
    let units = || state.ledger.units.values().map(|stored| &stored.unit);
    let counts = |unit: &UnitRecord| {
        let RoundKey { job, generation, group, round, .. } = &unit.key;
        let of_same = |key: &RoundKey| (&key.job, key.generation, &key.group) == (job, *generation, group);
        let again = units().any(|u| u.unit == unit.unit && of_same(&u.key) && u.key.round > *round);
        // Once published, others may have written its rows anew before the ledger says so.
        let published = state.model.published.contains_key(&(job.clone(), *generation, group.clone()));
        !again && !published && state.ledger.group(job, *generation, group).is_some_and(|g| !g.state.is_final())
    };
    let unit = units().find(|u| u.receipt.iter().flat_map(files_of).any(|file| file == path) && counts(u));
    if let Some(unit) = unit {
        let what = format!("{path} is deleted, and unit {} of {}, which wrote it, is not published yet", unit.unit, unit.key.job);
        state.broken(12, what);
    }
}

fn files_of(receipt: &Receipt) -> Vec<&str> {
    match receipt {
        Receipt::Write(r) => r.files.iter().map(|f| f.path.as_str()).chain(r.manifests.iter().map(|m| m.path.as_str())).collect(),
        Receipt::Land(r) => r.runs.iter().map(|run| run.file.uri.as_str()).collect(),
        Receipt::Refresh(_) => vec![],
    }
}

/// A unit is DONE with this receipt.
pub fn unit_done(state: &mut State, receipt: &Receipt) {
    if let Some(path) = files_of(receipt).into_iter().find(|path| !state.objects.contains_key(*path)) {
        state.broken(12, format!("a unit is DONE with {path}, which does not exist"));
    }
}

/// The seed has ended: every job is over, says what is true, and left nothing.
pub fn at_end(state: &mut State) {
    if let Err((invariant, what)) = ended(state) {
        state.broken(invariant, what);
    }
}

fn ended(state: &State) -> Checked {
    let Some(metadata) = &state.catalog.metadata else { return Ok(()) };
    let refs = timelake_table::refs(metadata).map_err(|e| (4, e.to_string()))?;
    for job in state.ledger.jobs(None) {
        if !job.state.is_final() {
            return Err((8, format!("{} ends as {}", job.job, job.state)));
        }
        for generation in 1..=job.generation {
            for group in state.ledger.groups(&job.job, generation) {
                let life = (group.job.clone(), generation, group.group.clone());
                let tag = published_tag(&job.job, generation, &group.group);
                let on_main = state.model.published.contains_key(&life);
                let says = group.state.is_published() && group.committed;
                if on_main != says || on_main != refs.contains_key(&tag) {
                    return Err((
                        11,
                        format!("generation {generation} of {} is {} in the ledger; published: {on_main}", job.job, group.state),
                    ));
                }
                if let Some(staged) = group.staged.iter().find(|id| metadata.snapshot_by_id(**id).is_some()) {
                    return Err((10, format!("{} is {} and its staged snapshot {staged} is left", job.job, group.state)));
                }
            }
        }
    }
    if let Some(branch) = refs.keys().find(|name| name.starts_with("backfill/")) {
        return Err((10, format!("branch {branch} is left")));
    }
    match metadata.properties().keys().find(|name| name.starts_with(LOCK_PREFIX)) {
        Some(lock) => Err((10, format!("{lock} is left"))),
        None => Ok(()),
    }
}

/// The counts of a published job: conserved, and as many rows as came to `main`.
pub fn counted(state: &mut State, life: &Life, rows_read: u64, counts: &Counts) {
    let c = counts;
    let sum = c.rejected
        + c.outside_range
        + c.outside_retention
        + c.skipped_chunk
        + c.duplicates_collapsed
        + c.in_source_conflicts
        + c.kept_existing
        + c.rows_written;
    if c.rows_read != sum || c.rows_read != rows_read {
        state.broken(7, format!("{} counts {} of {rows_read} rows, which end in {sum}", life.0, c.rows_read));
    }
    let written = state.model.published.get(life).copied().unwrap_or(0);
    if c.rows_written != written {
        state.broken(7, format!("{} says it wrote {} rows; {written} came to main", life.0, c.rows_written));
    }
}
