//! What a dry run tells: from the manifest of a run that changed nothing, and what was seen of its rows. Decides nothing
//! about rows: every figure is one of the run's own, or made of such by a stated estimate.

mod seen;

pub use seen::{Seen, Watch};

use crate::plan::PlanLimits;
use std::collections::BTreeMap;
use timelake_model::cost::{PhaseWork, Prices, estimate};
use timelake_model::dry_run::{
    BadRows, Basis, ChunkFigures, ColumnFigures, DryRun, DurationFigures, Figure, MemoryFigures, OverlapFigures, PlanFigures,
    SourceFigures, WrittenFigures,
};
use timelake_model::inventory::ExistingFile;
use timelake_model::ledger::State;
use timelake_model::manifest::RunManifest;
use timelake_model::request::{Mode, RowOptions};
use timelake_model::{Column, Counts, Error, Reason, Result};

/// The real run also writes its files to a disk or store and reads their keys back: so much more than the dry run's time
/// is expected, and at most.
const REAL_OVER_DRY: f64 = 1.2;
const REAL_OVER_DRY_AT_MOST: f64 = 2.0;
/// Of a unit that was landed or written here, what does not grow with its rows.
const UNIT_SECONDS: f64 = 0.01;
/// To make a file durable and to name it in a manifest, which the dry run leaves out.
const FILE_SECONDS: f64 = 0.004;
/// Scaled up from a sample, the time may be off by so much in either direction.
const SAMPLE_ERROR: f64 = 2.5;

/// What a dry run knows at its end.
pub struct Facts<'a> {
    pub manifest: &'a RunManifest,
    /// Why the run ended, where the manifest does not say it.
    pub error: Option<Error>,
    pub seen: &'a Seen,
    pub columns: &'a [Column],
    /// Files of the table in the window; `None`: not looked at.
    pub existing: Option<&'a [ExistingFile]>,
    pub rows: &'a RowOptions,
    /// What the plan's units are sized for.
    pub limits: PlanLimits,
    /// Units that were done at a time.
    pub threads: u64,
    /// The real run is done by functions, as many at a time as the limits say; else as this one was.
    pub by_functions: bool,
    /// Rows read of each file at most.
    pub sample: Option<u64>,
    /// Rows of the whole source, as far as the sample tells.
    pub source_rows: u64,
    /// The real run lands its source first.
    pub lands: bool,
    pub prices: &'a Prices,
}

/// From what was seen of the source to all of it.
struct Scale {
    factor: f64,
    basis: Basis,
}

impl Scale {
    fn of(&self, value: u64) -> Figure<u64> {
        let value = if self.factor == 1.0 { value } else { (value as f64 * self.factor).round() as u64 };
        Figure { value, basis: self.basis }
    }
    fn same<T>(&self, value: T) -> Figure<T> {
        Figure { value, basis: self.basis }
    }
}

pub fn report(facts: &Facts) -> Result<DryRun> {
    let m = facts.manifest;
    let scale = match facts.sample {
        None => Scale { factor: 1.0, basis: Basis::Exact },
        Some(_) => Scale { factor: facts.source_rows.max(m.source.rows) as f64 / m.source.rows.max(1) as f64, basis: Basis::Estimated },
    };
    let phases = work(facts, &scale);
    // A run that ends before it has a plan is no job to pay for.
    let cost = (!m.already_published && phases[1].units > 0).then(|| estimate(facts.prices, &phases));
    Ok(DryRun {
        job: m.job.clone(),
        generation: m.generation,
        table: m.table.clone(),
        state: match m.state {
            // Nothing of a run that ends with an error is published.
            _ if facts.error.is_some() => State::Rejected,
            State::Published if facts.by_functions && !m.already_published => State::Refreshed,
            state => state,
        },
        already_published: m.already_published,
        sample: facts.sample,
        error: facts.error.clone().or_else(|| m.error.clone()),
        window: m.window,
        time_range: m.time_range.map(|range| scale.same(range)),
        source: SourceFigures {
            files: Figure::exact(m.source.files),
            bytes: Figure::exact(m.source.bytes),
            rows: if facts.sample.is_some() {
                Figure::estimated(facts.source_rows.max(m.source.rows))
            } else {
                Figure::exact(m.source.rows)
            },
            rows_seen: Figure::exact(m.source.rows),
        },
        rows: counts(&m.counts, &scale)?,
        period: m.plan.period,
        chunks: m
            .chunks
            .iter()
            .map(|chunk| ChunkFigures {
                chunk: chunk.chunk.clone(),
                start: chunk.start,
                written: scale.of(chunk.written),
                existing: chunk.existing.map(Figure::exact),
            })
            .collect(),
        existing_across_chunks: Figure::exact(m.existing_across_chunks),
        columns: columns(facts, &scale)?,
        first_rows: facts.seen.first_rows(),
        bad_rows: bad_rows(m, &scale),
        overlap: overlap(facts, &scale),
        plan: PlanFigures {
            units: if facts.sample.is_some() { Figure::estimated(phases[1].units) } else { Figure::exact(m.plan.units) },
            unit_rows_limit: scale.same(m.plan.unit_rows_limit),
            read_amplification: scale.same(m.plan.read_amplification),
            landed_bytes: facts.lands.then(|| scale.of(m.source.landed_bytes)),
        },
        written: WrittenFigures {
            files: scale.same(m.written.files),
            partitions: scale.same(m.written.partitions),
            bytes: scale.of(m.written.bytes),
            smallest_file_bytes: scale.of(m.written.smallest_file_bytes),
            largest_file_bytes: scale.of(m.written.largest_file_bytes),
        },
        memory: MemoryFigures {
            limit_bytes: Figure::exact(facts.limits.memory_bytes),
            // That of this process says nothing of a function's.
            peak_bytes: m.peak_memory_bytes.filter(|_| !facts.by_functions).map(Figure::estimated),
        },
        duration: time(facts, &scale, &phases),
        cost,
        warnings: m.warnings.clone(),
    })
}

/// The manifest's counts under the names they have there.
fn counts(counts: &Counts, scale: &Scale) -> Result<BTreeMap<String, Figure<u64>>> {
    let value = serde_json::to_value(counts).map_err(|e| Error::internal(e.to_string()))?;
    let fields = value.as_object().into_iter().flatten();
    Ok(fields.filter_map(|(name, count)| Some((name.clone(), scale.of(count.as_u64()?)))).collect())
}

/// In the table's order; columns of no row are left out.
fn columns(facts: &Facts, scale: &Scale) -> Result<Vec<ColumnFigures>> {
    let seen = facts.seen.columns.iter();
    seen.map(|column| {
        let column_type = facts.columns.iter().find(|c| c.name == column.name).map_or("nested".into(), |c| c.column_type.to_string());
        let (min, max) = column.range()?.map(|(low, high)| (scale.same(low), scale.same(high))).unzip();
        Ok(ColumnFigures { column: column.name.clone(), column_type, min, max, nulls: scale.of(column.nulls) })
    })
    .collect()
}

fn bad_rows(m: &RunManifest, scale: &Scale) -> Vec<BadRows> {
    let one = |errors: &timelake_model::receipt::RowErrors| BadRows {
        reason: errors.first.reason.to_string(),
        column: errors.first.place.column.clone(),
        count: scale.of(errors.count),
        left_out: errors.skipped,
        places: errors.places.clone(),
        distinct: match &errors.first.place.distinct[..] {
            [] => errors.first.place.value.iter().cloned().collect(),
            several => several.to_vec(),
        },
        message: errors.first.message.clone(),
    };
    m.errors.iter().map(one).collect()
}

fn overlap(facts: &Facts, scale: &Scale) -> OverlapFigures {
    let m = facts.manifest;
    let files = facts.existing.map(|files| Figure::exact(files.len() as u64));
    let rows = facts.existing.map(|files| Figure::exact(files.iter().map(|f| f.rows).sum()));
    let (keys, keys_different) = match facts.rows.mode {
        Mode::Append => (None, None),
        // A job that is rejected before its units are written looked at no key.
        _ if m.groups.is_empty() => (None, None),
        Mode::Merge => (Some(scale.of(m.counts.kept_existing)), Some(scale.of(m.counts.kept_existing_different))),
        Mode::Fail => {
            let found = m.errors.iter().filter(|e| e.first.reason == Reason::OverlapsExisting).map(|e| e.count).sum();
            (Some(scale.of(found)), None)
        }
    };
    OverlapFigures { keys, keys_different, files, rows }
}

/// Seconds that steps took, by name.
fn seconds_of(m: &RunManifest, names: &[&str]) -> f64 {
    m.steps.iter().filter(|s| names.contains(&s.step.as_str())).map(|s| s.seconds).sum()
}

/// Seconds of a step over the whole source.
fn step_seconds(facts: &Facts, scale: &Scale, step: &str, units: u64) -> f64 {
    let seconds = seconds_of(facts.manifest, &[step]);
    if facts.sample.is_none() {
        return seconds;
    }
    let around = (units.div_ceil(facts.threads.min(units).max(1)) as f64 * UNIT_SECONDS).min(seconds * 0.8);
    around + (seconds - around) * scale.factor
}

fn time(facts: &Facts, scale: &Scale, phases: &[PhaseWork; 2]) -> DurationFigures {
    let m = facts.manifest;
    let stays: f64 = m.steps.iter().map(|s| s.seconds).sum::<f64>() - seconds_of(m, &["land", "write"]);
    let at_a_time = |phase: &PhaseWork| facts.limits.workers.min(phase.units).max(1);
    let working: f64 = if facts.by_functions {
        phases.iter().filter(|phase| phase.units > 0).map(|phase| phase.call_seconds() / at_a_time(phase) as f64).sum()
    } else {
        let land = if facts.lands { step_seconds(facts, scale, "land", m.source.files) } else { 0.0 };
        let files = m.written.files as f64 * FILE_SECONDS / facts.threads.max(1) as f64;
        land + step_seconds(facts, scale, "write", m.plan.units) + files
    };
    let dry = stays + working;
    let expected = dry * REAL_OVER_DRY;
    let (low, high) = match facts.sample {
        None => (dry, dry * REAL_OVER_DRY_AT_MOST),
        Some(_) => (expected / SAMPLE_ERROR, expected * SAMPLE_ERROR),
    };
    DurationFigures {
        seconds: Figure::estimated(expected),
        at_least_seconds: Figure::estimated(low),
        at_most_seconds: Figure::estimated(high),
        threads: if facts.by_functions { phases.iter().map(at_a_time).max().unwrap_or(1) } else { facts.threads },
    }
}

/// The work of both phases, landing and writing.
fn work(facts: &Facts, scale: &Scale) -> [PhaseWork; 2] {
    let m = facts.manifest;
    let scaled = |n: u64| scale.of(n).value;
    let thread_seconds = |step: &str, units: u64| step_seconds(facts, scale, step, units) * facts.threads.min(units).max(1) as f64;
    // A sample's units are fewer, but not smaller than they may be.
    let units = if facts.sample.is_some() && m.plan.units > 0 {
        m.plan.units.max(facts.source_rows.div_ceil(m.plan.unit_rows_limit.max(1)))
    } else {
        m.plan.units
    };
    let read_by_units = if facts.lands { scaled(m.source.landed_bytes) } else { m.source.bytes };
    let land = PhaseWork {
        units: if facts.lands { m.source.files } else { 0 },
        thread_seconds: thread_seconds("land", m.source.files),
        bytes_read: m.source.bytes,
        files_read: m.source.files,
        row_groups_read: 0,
        bytes_written: scaled(m.source.landed_bytes),
        files_written: m.source.files,
    };
    let write = PhaseWork {
        units,
        thread_seconds: thread_seconds("write", m.plan.units),
        bytes_read: (read_by_units as f64 * m.plan.read_amplification.max(1.0)) as u64,
        files_read: m.source.files,
        row_groups_read: (m.source.row_groups as f64 * m.plan.read_amplification.max(1.0)) as u64,
        bytes_written: scaled(m.written.bytes),
        files_written: m.written.files,
    };
    [land, write]
}
