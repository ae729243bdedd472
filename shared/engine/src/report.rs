//! The run manifest of a job, from the ledger, the plan and the receipts.

mod spread;

use crate::boundary::{Boundary, reached};
use crate::rounds::latest_units;
use crate::store::{StoredPlan, load_base, load_land_plan, load_plan, manifest_uri};
use crate::validate::totals;
use crate::write::{merge_errors, partitions};
use crate::{Engine, land};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use timelake_model::ids::{branch_name, published_tag};
use timelake_model::inventory::ExistingFile;
use timelake_model::ledger::{GroupRecord, JobRecord, UnitRecord, UnitState};
use timelake_model::manifest::{GroupSummary, PlanSummary, RepeatedHour, RunManifest, SourceSummary, WrittenSummary};
use timelake_model::receipt::RowErrors;
use timelake_model::request::Mode;
use timelake_model::time::Window;
use timelake_model::{Counts, Error, LandPlan, LandReceipt, Reason, Result, TimestampUs, UnitReceipt};

/// Makes the manifest as things stand. `published` says whether the job moved `main`; a run that finds the
/// job published before sets `already_published` itself.
pub async fn manifest(engine: &Engine, job: &JobRecord) -> Result<RunManifest> {
    // A damaged job folder must not hide what the ledger knows.
    let (stored, damage) = match load_plan(engine, &job.job, job.generation).await {
        Ok(stored) => (stored, None),
        Err(e) if e.reason == Reason::LedgerDamaged => (None, Some(e)),
        Err(e) => return Err(e),
    };
    let groups = engine.jobs.groups(&job.job, job.generation).await?;
    let mut units: Vec<UnitRecord> = Vec::new();
    let mut summaries = Vec::new();
    for group in &groups {
        let of_group = latest_units(engine, group).await?;
        let count = |state| of_group.iter().filter(|u| u.state == state).count() as u64;
        let planned = stored.as_ref().and_then(|s| s.plan.group(&group.group)).map_or(0, |g| g.units.len() as u64);
        summaries.push(GroupSummary {
            group: group.group.to_string(),
            state: group.state,
            round: group.round,
            units: planned,
            units_done: count(UnitState::Done),
            units_failed: count(UnitState::Failed),
            rederived: group.rederived,
            branch: (!group.state.is_final()).then(|| branch_name(&job.job, job.generation, &group.group)),
            published_snapshot: group.published_snapshot,
            tag: group.published_snapshot.map(|_| published_tag(&job.job, job.generation, &group.group)),
        });
        units.extend(of_group);
    }
    let receipts: Vec<UnitReceipt> = units.into_iter().filter_map(|u| u.receipt?.into_written()).collect();
    // Before there is a plan, what landing found is all there is to tell.
    let landed = if stored.is_none() { land::finished(engine, job).await? } else { vec![] };
    let is_landed = stored.as_ref().is_none_or(|s| s.inventory.landed.is_some());
    let land_plan = if is_landed { load_land_plan(engine, &job.job, job.generation).await.unwrap_or(None) } else { None };
    let committed = groups.iter().any(|g| g.committed);
    let counts = stored.as_ref().map_or_else(|| land::totals(&landed), |s| totals(s, &receipts));
    let earlier = stored.as_ref().and_then(|s| s.inventory.landed.as_ref()).map_or_else(|| land::errors(&landed), |l| l.errors.clone());
    let errors = merge_errors(earlier.into_iter().chain(receipts.iter().flat_map(|r| r.errors.clone())));
    let time_range = receipts.iter().filter_map(|r| r.time).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let mut column_sums: BTreeMap<String, u64> = BTreeMap::new();
    for (column, sum) in receipts.iter().flat_map(|r| &r.column_sums) {
        let known = column_sums.entry(column.clone()).or_default();
        *known = known.wrapping_add(*sum);
    }
    let existing = match &stored {
        Some(stored) => existing_files(engine, job, stored, &groups).await,
        None => None,
    };
    let period = stored.as_ref().map(|s| s.plan.period);
    let (chunks, existing_across_chunks) = period.map(|p| spread::chunks(p, existing.as_deref(), &receipts)).unwrap_or_default();
    let key_hash = receipts.iter().fold(0u64, |all, r| all.wrapping_add(r.key_hash));
    Ok(RunManifest {
        job: job.job.clone(),
        generation: job.generation,
        table: job.table.clone(),
        state: job.state,
        published: committed,
        already_published: false,
        warnings: warnings(stored.as_ref(), &receipts, &counts, &errors),
        counts,
        files_missing_column: stored.as_ref().map(missing_columns).unwrap_or_default(),
        rollup_ranges: if committed { changed_ranges(stored.as_ref(), &receipts) } else { vec![] },
        chunks,
        existing_across_chunks,
        series_outliers: stored.as_ref().map(|s| spread::outliers(&s.plan, &receipts)).unwrap_or_default(),
        window: stored.as_ref().map_or(job.window, |s| s.plan.window),
        time_range,
        as_of: job.as_of,
        repeated_hours: land_plan.as_ref().map(|plan| repeated_hours(plan, job)).unwrap_or_default(),
        source: stored.as_ref().map(source).or_else(|| land_plan.as_ref().map(|plan| source_to_land(plan, &landed))).unwrap_or_default(),
        written: written(&receipts),
        plan: stored.as_ref().map(plan).unwrap_or_default(),
        groups: summaries,
        checks: vec![],
        errors,
        column_sums: column_sums.into_iter().map(|(c, s)| (c, format!("{s:016x}"))).collect(),
        key_hash: format!("{key_hash:016x}"),
        error: job.error.clone().or_else(|| groups.iter().find_map(|g| g.error.clone())).or(damage),
        steps: vec![],
        peak_memory_bytes: None,
    })
}

/// Keeps the run manifest of a job that nobody runs to its end in one go.
pub async fn keep(engine: &Engine, job: &JobRecord) -> Result<()> {
    store(engine, &manifest(engine, job).await?).await
}

/// Puts the run manifest where its readers look for it.
pub async fn store(engine: &Engine, manifest: &RunManifest) -> Result<()> {
    engine.objects.put(&manifest_uri(engine, &manifest.job), bytes(manifest)?).await?;
    reached(Boundary::ManifestStored);
    Ok(())
}

/// The same where none is: a run that was cut off right after publishing, or had no room left for it, did not store it.
pub async fn store_if_absent(engine: &Engine, manifest: &RunManifest) -> Result<()> {
    let uri = manifest_uri(engine, &manifest.job);
    match engine.objects.stat(&uri).await {
        Err(e) if e.reason == Reason::PathNotFound => engine.objects.put_if_absent(&uri, bytes(manifest)?).await.map(|_| ()),
        _ => Ok(()),
    }
}

/// What was stored of this life of the job, if it can be read.
pub async fn kept(engine: &Engine, job: &JobRecord) -> Option<RunManifest> {
    let bytes = engine.objects.read(&manifest_uri(engine, &job.job)).await.ok()?;
    serde_json::from_slice::<RunManifest>(&bytes).ok().filter(|stored| stored.generation == job.generation)
}

fn bytes(manifest: &RunManifest) -> Result<Bytes> {
    serde_json::to_vec_pretty(manifest).map(Bytes::from).map_err(|e| Error::internal(e.to_string()))
}

/// The files that the units looked at last. `None`: they look at none.
async fn existing_files(engine: &Engine, job: &JobRecord, stored: &StoredPlan, groups: &[GroupRecord]) -> Option<Vec<ExistingFile>> {
    if job.request.rows.mode == Mode::Append {
        return None;
    }
    let mut files: BTreeMap<String, ExistingFile> = BTreeMap::new();
    for group in groups {
        // A damaged base must not hide the rest: the plan's is nearly as good for a report.
        let base = load_base(engine, stored, &group.group, group.round).await.map(|base| base.existing.files);
        let existing = base.unwrap_or_else(|_| stored.inventory.table.existing.files.clone());
        files.extend(existing.into_iter().map(|file| (file.path.clone(), file)));
    }
    Some(files.into_values().collect())
}

fn missing_columns(stored: &StoredPlan) -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |columns: &[String], shown: &str| {
        for column in columns {
            out.entry(column.clone()).or_default().push(shown.to_string());
        }
    };
    match &stored.inventory.landed {
        Some(landed) => landed.sources.iter().for_each(|s| add(&s.missing_columns, &s.object.shown)),
        None => stored.inventory.objects.iter().for_each(|o| add(&o.missing_columns, &o.object.shown)),
    }
    out
}

fn source(stored: &StoredPlan) -> SourceSummary {
    let (objects, sources) = (&stored.inventory.objects, stored.inventory.sources());
    SourceSummary {
        files: sources.len() as u64,
        bytes: sources.iter().map(|o| o.size).sum(),
        rows: match &stored.inventory.landed {
            Some(landed) => landed.sources.iter().map(|s| s.rows).sum(),
            None => objects.iter().map(|o| o.rows).sum(),
        },
        landed_bytes: stored.inventory.landed.as_ref().map_or(0, |_| objects.iter().map(|o| o.object.size).sum()),
        row_groups: objects.iter().map(|o| o.row_groups.len() as u64).sum(),
        row_groups_pruned: stored.plan.pruned.len() as u64,
    }
}

fn source_to_land(plan: &LandPlan, receipts: &[LandReceipt]) -> SourceSummary {
    let sources = plan.inventory.sources();
    SourceSummary {
        files: sources.len() as u64,
        bytes: sources.iter().map(|o| o.size).sum(),
        rows: receipts.iter().map(|r| r.rows_parsed).sum(),
        ..Default::default()
    }
}

/// Each repeated hour once, with the series that its order told apart.
fn repeated_hours(plan: &LandPlan, job: &JobRecord) -> Vec<RepeatedHour> {
    let mut series: BTreeMap<i64, BTreeSet<&Vec<String>>> = BTreeMap::new();
    for fold in &plan.folds {
        series.entry(fold.fold_us).or_default().insert(&fold.series);
    }
    let local = |us: i64| TimestampUs(us).short().trim_end_matches('Z').to_string();
    let zone = job.request.rows.tz.clone().unwrap_or_default();
    series.into_iter().map(|(us, of)| RepeatedHour { local: local(us), zone: zone.clone(), series: of.len() as u64 }).collect()
}

fn plan(stored: &StoredPlan) -> PlanSummary {
    PlanSummary {
        units: stored.plan.units().count() as u64,
        hash: stored.hash.clone(),
        base_snapshot: Some(stored.plan.base_snapshot),
        read_amplification: stored.plan.read_amplification_permille as f64 / 1000.0,
        unit_rows_limit: stored.plan.unit_rows_limit,
        period: Some(stored.plan.period),
    }
}

fn written(receipts: &[UnitReceipt]) -> WrittenSummary {
    let sizes = || receipts.iter().flat_map(|r| &r.files).map(|f| f.bytes);
    WrittenSummary {
        files: sizes().count() as u64,
        bytes: sizes().sum(),
        partitions: partitions(receipts),
        smallest_file_bytes: sizes().min().unwrap_or(0),
        largest_file_bytes: sizes().max().unwrap_or(0),
    }
}

/// Chunks that got rows, neighbours joined: what rollups over the table must recompute.
fn changed_ranges(stored: Option<&StoredPlan>, receipts: &[UnitReceipt]) -> Vec<Window> {
    let Some(stored) = stored else { return vec![] };
    let period = stored.plan.period;
    let mut ranges: Vec<(TimestampUs, TimestampUs)> = receipts
        .iter()
        .filter_map(|r| r.time)
        .map(|(low, high)| (TimestampUs(period.start(period.ordinal(low.0))), TimestampUs(period.start(period.ordinal(high.0) + 1))))
        .collect();
    ranges.sort();
    let mut out: Vec<Window> = Vec::new();
    for (low, high) in ranges {
        match out.last_mut() {
            Some(last) if last.end >= Some(low) => last.end = last.end.max(Some(high)),
            _ => out.push(Window { start: Some(low), end: Some(high) }),
        }
    }
    out
}

/// What a user should know, from the source and from the rows.
fn warnings(stored: Option<&StoredPlan>, receipts: &[UnitReceipt], counts: &Counts, errors: &[RowErrors]) -> Vec<String> {
    let mut out = stored.map(|s| s.inventory.warnings.clone()).unwrap_or_default();
    let files = stored.map_or(0, |s| s.inventory.sources().len());
    for (column, without) in stored.map(missing_columns).unwrap_or_default() {
        out.push(format!("{column} is not in {} of {files} files ({} ...): NULL there", without.len(), without[0]));
    }
    if counts.precision_truncated > 0 {
        out.push(format!("{} times had digits below a microsecond, which were cut", counts.precision_truncated));
    }
    for error in errors.iter().filter(|e| e.skipped) {
        let column = error.first.place.column.as_ref().map_or(String::new(), |c| format!(" in {c}"));
        out.push(format!(
            "{} row{} left out: {}{column}, first {}",
            error.count,
            if error.count == 1 { "" } else { "s" },
            error.first.reason,
            error.places.first().map_or("", String::as_str)
        ));
    }
    out.extend(receipts.iter().flat_map(|r| r.warnings.clone()));
    out
}
