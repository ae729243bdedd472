//! One split → runs. The split is read in order, once; rows are judged as a unit judges them; what is loaded is
//! buffered up to a bound and written as a run.
//!
//! What must never happen: more rows in memory than the plan gave room for, a row that is neither in a run nor
//! counted, a run that is deleted here (losers are left to `gc`).

use super::run::{RunTarget, write};
use crate::write::{FileSink, Gatherer, Reading, RejectedRow, UnitRows, fatal_error, row_types, storage_error};
use iceberg::table::Table;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use timelake_model::inventory::SourceObject;
use timelake_model::land::{LandPlan, LandReceipt, Run};
use timelake_model::plan::{SeriesSlice, WorkUnit};
use timelake_model::request::OnBadRow;
use timelake_model::{AttemptId, Error, Kind, Reason, Result};
use tokio::runtime::Handle;

/// Texts of the slice column that a receipt names.
const SERIES_SAMPLE: usize = 10_000;
/// What a row takes besides its columns while it is sorted: sort key, row number.
const SORT_BYTES_PER_ROW: usize = 24;
/// After as many rows, how many there will be is told by how much of the file they took: columns that grow by doubling
/// would be copied, and touch twice the memory.
const MEASURED_ROWS: usize = 1 << 17;

/// One attempt at a split.
pub struct LandTask<'a> {
    /// Its inventory is the plan's.
    pub reading: Reading<'a>,
    pub plan: &'a LandPlan,
    pub unit: u32,
    pub round: u32,
    pub attempt: &'a AttemptId,
    pub table: &'a Table,
    /// Folder of the runs.
    pub folder: &'a str,
    /// Most bytes of rows in memory.
    pub buffer_bytes: usize,
    /// Set once any split has a row that stops the job: the others need not write runs any more.
    pub doomed: &'a AtomicBool,
    pub runtime: &'a Handle,
    /// Told after each batch: its rows, and the bytes of the source they are from.
    pub landed: &'a (dyn Fn(u64, u64) + Sync),
    /// Size and fingerprint of a written run.
    pub stat: &'a (dyn Fn(&str) -> Result<SourceObject> + Sync),
}

pub fn land(task: &LandTask) -> Result<LandReceipt> {
    let bound = task.reading.bound.get(&task.unit).ok_or_else(|| Error::internal(format!("no split {}", task.unit)))?;
    let state = &task.plan.inventory.table;
    let types = row_types(task.table, state)?;
    let everything = WorkUnit {
        index: task.unit,
        window: task.plan.inventory.window(),
        series: SeriesSlice::ALL,
        inputs: vec![],
        owns: vec![],
        estimated_rows: 0,
        layout: None,
    };
    let empty = |expected: u64| -> Result<UnitRows> {
        let mut rows = UnitRows::new(state, &types)?;
        rows.lists_places = true;
        rows.expect_rows(expected);
        Ok(rows)
    };
    let mut lander = Lander { task, types: &types, runs: vec![], kept: 0, bytes: 0, sample: BTreeSet::new(), dropped: false };
    let mut rows = empty(0)?;
    let mut gatherer = Gatherer::new(&task.reading, &everything, &rows)?;
    let mut rejected = Rejected::new(task)?;
    let (mut parsed, mut source_bytes, mut measured) = (0, 0, false);
    for batch in timelake_source::read(bound, &bound.all_row_groups())? {
        (task.reading.check_stop)()?;
        let mut batch = match batch {
            Ok(batch) => batch,
            // What the file holds is at fault: told as its rows are, the first in source order first.
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Corrupt) => {
                fatal_error(&mut gatherer.out.errors, task.unit, e);
                break;
            }
            Err(e) => return Err(e),
        };
        parsed += batch.rows() as u64 + batch.bad_records.len() as u64;
        gatherer.batch(task.unit, &mut batch, true, &mut rows)?;
        (task.landed)(batch.rows() as u64, batch.source_bytes);
        source_bytes += batch.source_bytes;
        if !measured && rows.len() >= MEASURED_ROWS {
            measured = true;
            let row_bytes = rows.bytes() / rows.len() + SORT_BYTES_PER_ROW;
            let in_split = (rows.len() as u64).saturating_mul(bound.object().size) / source_bytes.max(1);
            rows.expect_rows(in_split.min((task.buffer_bytes / row_bytes) as u64));
        }
        rejected.write(&mut gatherer.out.rejected)?;
        if gatherer.out.errors.any_fatal() {
            task.doomed.store(true, Ordering::Relaxed);
        }
        let doomed = task.doomed.load(Ordering::Relaxed);
        if doomed || rows.bytes() + rows.len() * SORT_BYTES_PER_ROW >= task.buffer_bytes {
            let expected = rows.len() as u64;
            lander.take(std::mem::replace(&mut rows, UnitRows::new(state, &types)?), doomed)?;
            rows = empty(expected)?;
        }
    }
    let doomed = gatherer.out.errors.any_fatal() || task.doomed.load(Ordering::Relaxed);
    lander.take(rows, doomed)?;

    let mut gathered = gatherer.finish();
    gathered.counts.rows_read = gathered.counts.rows_read.saturating_sub(lander.kept);
    let receipt = LandReceipt {
        unit: task.unit,
        round: task.round,
        attempt: task.attempt.clone(),
        rows_parsed: parsed,
        counts: gathered.counts,
        row_bytes: (lander.bytes as u64).checked_div(lander.kept).unwrap_or(0),
        series_sample: sample(lander.sample),
        runs: lander.runs,
        errors: gathered.errors.into_errors(),
        bad_rows: gathered.bad_rows,
        rejected: rejected.close()?,
    };
    let ended = receipt.counts.accounted();
    if receipt.counts.rows_read != ended || parsed != ended + lander.kept || (!lander.dropped && lander.kept != receipt.rows_in_runs()) {
        return Err(Error::new(
            Kind::Internal,
            Reason::CountsDisagree,
            format!(
                "{}: {parsed} rows were read, {ended} ended in landing and {} are in runs",
                bound.object().shown,
                receipt.rows_in_runs()
            ),
        ));
    }
    Ok(receipt)
}

struct Lander<'a> {
    task: &'a LandTask<'a>,
    types: &'a [arrow::datatypes::DataType],
    runs: Vec<Run>,
    /// Rows that are loaded, and the memory they took.
    kept: u64,
    bytes: usize,
    sample: BTreeSet<String>,
    /// Rows were not written, because the job is rejected anyway.
    dropped: bool,
}

impl Lander<'_> {
    fn take(&mut self, rows: UnitRows, doomed: bool) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.kept += rows.len() as u64;
        self.bytes += rows.bytes();
        if doomed {
            self.dropped = true;
            return Ok(());
        }
        let task = self.task;
        let state = &task.plan.inventory.table;
        let path = format!(
            "{}/run-u{:05}-r{}-{}-{:04}.parquet",
            task.folder.trim_end_matches('/'),
            task.unit,
            task.round,
            task.attempt,
            self.runs.len()
        );
        let source = task.plan.inventory.objects.get(task.unit as usize).map_or("", |o| o.object.shown.as_str());
        let target = RunTarget { state, types: self.types, file_io: task.table.file_io(), runtime: task.runtime, path: &path, source };
        let written = write(&target, rows)?;
        self.sample.extend(written.series_sample);
        let file = (task.stat)(&path)?;
        if file.size != written.bytes {
            return Err(Error::unavailable(
                Reason::StorageUnavailable,
                format!("{path} has {} bytes, {} were written", file.size, written.bytes),
            )
            .hint("something else wrote to the file, or the disk lost a part: run the same command again")
            .at(|p| p.file = Some(path.clone())));
        }
        self.runs.push(Run { file, row_groups: written.row_groups });
        Ok(())
    }
}

fn sample(texts: BTreeSet<String>) -> Vec<String> {
    let all: Vec<String> = texts.into_iter().collect();
    if all.len() <= SERIES_SAMPLE {
        return all;
    }
    (0..SERIES_SAMPLE).map(|i| all[i * all.len() / SERIES_SAMPLE].clone()).collect()
}

/// The rows that `--on-bad-row quarantine` lists, one JSON object a line, in source order.
struct Rejected {
    open: Option<(String, FileSink)>,
}

impl Rejected {
    fn new(task: &LandTask) -> Result<Self> {
        let mut rejected = Rejected { open: None };
        if task.reading.options.on_bad_row == OnBadRow::Quarantine {
            let path = format!("{}/rejected-u{:05}-r{}-{}.ndjson", task.folder.trim_end_matches('/'), task.unit, task.round, task.attempt);
            let sink = FileSink::open(task.table.file_io(), &path, task.runtime)?;
            rejected.open = Some((path, sink));
        }
        Ok(rejected)
    }

    fn write(&mut self, rows: &mut Vec<RejectedRow>) -> Result<()> {
        let Some((path, sink)) = &mut self.open else { return Ok(()) };
        for row in rows.drain(..) {
            let mut line = serde_json::to_vec(&row).map_err(|e| Error::internal(e.to_string()))?;
            line.push(b'\n');
            sink.write_all(&line).map_err(|e| storage_error(path, &e))?;
        }
        Ok(())
    }

    fn close(self) -> Result<Option<String>> {
        let Some((path, mut sink)) = self.open else { return Ok(None) };
        sink.close()?;
        Ok(Some(path))
    }
}
