//! validate: StagedSnapshot → Verdict. Everything that is about to become visible is looked at again, from
//! the storage, against what the units said and what the plan promised.
//!
//! Approved says what it rests on. Rejected lists findings; nothing of the group is published then.

mod files;

use crate::Engine;
use crate::evolution::{as_planned, still_fits};
use crate::inventory::table_ident;
use crate::progress::{Progress, StopFlag};
use crate::stage::{added, branch_moved};
use crate::store::StoredPlan;
use crate::write::merge_errors;
use iceberg::spec::ManifestFile;
use iceberg::table::Table;
use std::collections::{BTreeMap, BTreeSet};
use timelake_model::ids::branch_name;
use timelake_model::ledger::{GroupRecord, JobRecord};
use timelake_model::receipt::RowErrors;
use timelake_model::request::RowOptions;
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Counts, Error, Reason, Result, UnitReceipt};

/// What of the staged files is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    /// They were not kept: a dry run.
    Nothing,
    Keys,
    Everything,
}

impl ReadBack {
    pub fn of(full: bool) -> ReadBack {
        if full { ReadBack::Everything } else { ReadBack::Keys }
    }
}

/// How thorough, and with what.
pub struct Effort<'a> {
    pub read_back: ReadBack,
    pub threads: usize,
    pub progress: &'a dyn Progress,
    pub stop: &'a StopFlag,
}

/// Bad rows that the user did not ask to skip: reasons to publish nothing.
pub fn fatal_errors(receipts: &[UnitReceipt]) -> Vec<RowErrors> {
    all_errors(receipts).into_iter().filter(|e| !e.skipped).collect()
}

/// Why nothing can be loaded, if that is so: the first bad row in source order, or too many that were left out.
pub fn bad_rows(rows: &RowOptions, errors: &[RowErrors], left_out: u64) -> Option<Error> {
    if let Some(first) = errors.iter().find(|e| !e.skipped) {
        return Some(first.first.clone());
    }
    let limit = rows.max_bad_rows.filter(|limit| left_out > *limit)?;
    let example = errors.first().map_or(String::new(), |e| format!("; the first is {}", e.first.message));
    let mut error = Error::invalid(Reason::TooManyBadRows, format!("{left_out} bad rows are left out, more than {limit}{example}"))
        .hint("mend the source, or allow more with --max-bad-rows");
    if let Some(first) = errors.first() {
        error.place = first.first.place.clone();
    }
    Some(error.at(|p| {
        p.count = Some(left_out);
        p.limit = Some(limit);
    }))
}

/// Bad rows of all units, left out or not.
pub fn all_errors(receipts: &[UnitReceipt]) -> Vec<RowErrors> {
    merge_errors(receipts.iter().flat_map(|r| r.errors.clone()))
}

/// Totals of a group (all groups, in a job of one), with the row groups that only the plan counted.
pub fn totals(stored: &StoredPlan, receipts: &[UnitReceipt]) -> Counts {
    let mut counts = Counts::default();
    for receipt in receipts {
        counts.add(&receipt.counts);
    }
    if let Some(landed) = &stored.inventory.landed {
        counts.add(&landed.counts);
    }
    for pruned in &stored.plan.pruned {
        counts.rows_read += pruned.rows;
        match pruned.outside {
            timelake_model::plan::Outside::Range => counts.outside_range += pruned.rows,
            timelake_model::plan::Outside::Retention => counts.outside_retention += pruned.rows,
            timelake_model::plan::Outside::SkippedChunk => counts.skipped_chunk += pruned.rows,
        }
    }
    counts
}

/// Do all rows of the source end in exactly one place?
pub fn conservation(stored: &StoredPlan, receipts: &[UnitReceipt]) -> Result<Check, Error> {
    let disagree = |what: String| {
        Error::conflict(Reason::CountsDisagree, what)
            .hint("this is a defect: nothing was published; please report it with the job's folder")
    };
    let counts = totals(stored, receipts);
    let mut seen: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for part in receipts.iter().flat_map(|r| r.taken.iter().chain(&r.left)) {
        *seen.entry((part.object, part.row_group)).or_default() += part.rows;
    }
    for pruned in &stored.plan.pruned {
        *seen.entry((pruned.object, pruned.row_group)).or_default() += pruned.rows;
    }
    if let Some(landed) = &stored.inventory.landed {
        let parsed: u64 = landed.sources.iter().map(|s| s.rows).sum();
        let in_runs: u64 = stored.inventory.objects.iter().map(|o| o.rows).sum();
        if parsed != landed.counts.rows_read + in_runs {
            return Err(disagree(format!("{parsed} rows were landed, {} ended there and {in_runs} are in runs", landed.counts.rows_read)));
        }
    }
    let mut groups = 0;
    for (o, object) in stored.inventory.objects.iter().enumerate() {
        for (g, info) in object.row_groups.iter().enumerate() {
            let found = seen.get(&(o as u32, g as u32)).copied().unwrap_or(0);
            if found < info.rows {
                // No unit takes a row whose time its row group's statistics exclude.
                return Err(Error::corrupt(
                    Reason::CorruptParquet,
                    format!("{}: {} rows of row group {g} have times outside what its statistics say: the file is damaged or was written wrongly", object.object.shown, info.rows - found),
                )
                .hint("write the file again from its source; nothing was published")
                .at(|p| p.file = Some(object.object.shown.clone())));
            }
            if found != info.rows {
                return Err(disagree(format!(
                    "row group {g} of {} has {} rows, {found} are accounted for",
                    object.object.shown, info.rows
                )));
            }
            groups += 1;
        }
    }
    counts.check().map_err(disagree)?;
    Ok(Check { name: "conservation".into(), detail: format!("{} rows of {groups} row groups each counted once", counts.rows_read) })
}

/// Looks at a staged group.
pub async fn validate(
    engine: &Engine,
    job: &JobRecord,
    stored: &StoredPlan,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
    effort: &Effort<'_>,
) -> Result<Verdict> {
    let fatal = fatal_errors(receipts);
    if !fatal.is_empty() {
        return Ok(Verdict::Rejected { findings: fatal.into_iter().map(|e| e.first).collect() });
    }
    let mut checks = Vec::new();
    match conservation(stored, receipts) {
        Ok(check) => checks.push(check),
        Err(finding) => return Ok(Verdict::Rejected { findings: vec![finding] }),
    }
    let table = engine.catalog.load(&table_ident(&job.table)?).await?;
    still_fits(&table, stored)?;
    let table = as_planned(&table, stored.plan.schema_id)?;
    let ours = match staged_manifests(&table, job, group, receipts).await? {
        Ok((check, ours)) => {
            checks.push(check);
            ours
        }
        Err(finding) => return Ok(Verdict::Rejected { findings: vec![finding] }),
    };
    let entries = match entries(&table, receipts, &ours).await? {
        Ok((check, entries)) => {
            checks.push(check);
            entries
        }
        Err(finding) => return Ok(Verdict::Rejected { findings: vec![finding] }),
    };
    if effort.read_back == ReadBack::Nothing {
        return Ok(Verdict::Approved { checks });
    }
    let runtime = tokio::runtime::Handle::current();
    let checked = files::check(&table, stored, &group.group, receipts, &entries, effort, &runtime)?;
    match checked {
        Ok(mut more) => {
            checks.append(&mut more);
            Ok(Verdict::Approved { checks })
        }
        Err(findings) => Ok(Verdict::Rejected { findings }),
    }
}

pub(crate) fn wrong(path: &str, what: impl std::fmt::Display) -> Error {
    Error::conflict(Reason::StagedFileWrong, format!("staged file {path}: {what}"))
        .hint("nothing was published; cancel the job and run its command again, and look at the storage if it happens again")
        .at(|p| p.file = Some(path.to_string()))
}

/// The staged snapshot must be its parent's files and ours, nothing else: no other partition changes.
pub async fn staged_manifests(
    table: &Table,
    job: &JobRecord,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
) -> Result<Result<(Check, Vec<ManifestFile>), Error>> {
    let branch = branch_name(&job.job, job.generation, &group.group);
    let staged = group.branch_snapshot.ok_or_else(|| Error::internal("validate before stage"))?;
    let metadata = table.metadata();
    let at = timelake_table::refs(metadata)?.get(&branch).map(|r| r.snapshot_id);
    if at != Some(staged) {
        return Err(branch_moved(&branch, at, staged));
    }
    let snapshot = metadata.snapshot_by_id(staged).ok_or_else(|| Error::internal("the staged snapshot is not in the metadata"))?;
    let all = timelake_table::manifests_of(table, snapshot).await?;
    let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| m.added_snapshot_id == staged);
    let expected: BTreeSet<&str> = receipts.iter().flat_map(|r| &r.manifests).map(|m| m.path.as_str()).collect();
    let found: BTreeSet<&str> = ours.iter().map(|m| m.manifest_path.as_str()).collect();
    if found != expected {
        return Ok(Err(wrong(snapshot.manifest_list(), "it does not list exactly the units' manifests")));
    }
    let carried = others.len();
    if let Some(parent) = snapshot.parent_snapshot_id().and_then(|p| metadata.snapshot_by_id(p)) {
        let before: BTreeSet<String> = timelake_table::manifests_of(table, parent).await?.into_iter().map(|m| m.manifest_path).collect();
        let after: BTreeSet<String> = others.into_iter().map(|m| m.manifest_path).collect();
        if before != after {
            return Ok(Err(wrong(snapshot.manifest_list(), "files of other partitions changed")));
        }
    }
    let detail = format!("{} manifests added, {carried} of the table unchanged", ours.len());
    Ok(Ok((Check { name: "snapshot".into(), detail }, ours)))
}

/// Manifest entries by path, compared with the receipts.
async fn entries(
    table: &Table,
    receipts: &[UnitReceipt],
    ours: &[ManifestFile],
) -> Result<Result<(Check, BTreeMap<String, iceberg::spec::DataFile>), Error>> {
    let location = format!("{}/", table.metadata().location().trim_end_matches('/'));
    let mut entries = BTreeMap::new();
    for manifest in receipts.iter().flat_map(|r| &r.manifests) {
        for file in timelake_table::read_data_files(table, manifest).await? {
            entries.insert(file.file_path().to_string(), file);
        }
    }
    let expected = added(receipts);
    for written in receipts.iter().flat_map(|r| &r.files) {
        let Some(entry) = entries.get(&written.path) else { return Ok(Err(wrong(&written.path, "no manifest lists it"))) };
        if (entry.record_count(), entry.file_size_in_bytes()) != (written.rows, written.bytes) {
            return Ok(Err(wrong(
                &written.path,
                format!(
                    "its manifest says {} rows and {} bytes, the unit wrote {} and {}",
                    entry.record_count(),
                    entry.file_size_in_bytes(),
                    written.rows,
                    written.bytes
                ),
            )));
        }
        if !written.path.starts_with(&location) {
            return Ok(Err(wrong(&written.path, "it is outside the table's folder")));
        }
    }
    let rows: u64 = entries.values().map(|e| e.record_count()).sum();
    let listed: u64 = ours.iter().map(|m| m.added_rows_count.unwrap_or(0)).sum();
    if entries.len() as u64 != expected.files || rows != expected.rows || listed != rows {
        return Ok(Err(wrong(
            &location,
            format!("manifests list {} files and {rows} rows, units wrote {} and {}", entries.len(), expected.files, expected.rows),
        )));
    }
    Ok(Ok((
        Check { name: "manifests".into(), detail: format!("{} files, {} rows as the units wrote them", expected.files, expected.rows) },
        entries,
    )))
}
