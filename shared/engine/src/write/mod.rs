//! write: WorkUnit → UnitReceipt. Reads the unit's row groups, sorts, removes duplicates and rows whose key
//! the table already has, writes the rest in the final layout, and one manifest.
//!
//! Writers make no choices: everything is in the plan. They never delete files; an attempt that loses leaves
//! its files to `gc`. The same unit gives the same bytes.

mod errors;
mod existing;
mod gather;
mod keys;
mod layout;
mod order;
mod partitions;
mod rows;
mod sink;
mod slice;
mod spread;

use errors::{BadRow, ErrorBook};
pub use errors::{fatal_error, merge as merge_errors};
pub use gather::{Gatherer, Reading, RejectedRow};
pub(crate) use keys::internal;
pub use keys::{KeyColumn, Tuples};
use order::Ordered;
pub use order::{Sorted, sort};
pub use rows::{Column, KeyLayout, UnitRows, cell_text};
pub use sink::{FileSink, storage_error};
pub(crate) use slice::buckets_of;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use futures::StreamExt;
use iceberg::table::Table;
use spread::Tally;
use std::collections::{BTreeMap, BTreeSet};
use timelake_model::inventory::{ExistingFile, LiveRows, TableState};
use timelake_model::plan::{WorkUnit, WritePlan, touches};
use timelake_model::receipt::{SeriesRows, UnitReceipt};
use timelake_model::request::{Ambiguous, Mode, OnSourceConflict, RowOptions};
use timelake_model::{AttemptId, Error, Reason, Result, TimestampUs};
use timelake_source::Position;
use tokio::runtime::Handle;

/// One attempt at a unit.
pub struct UnitTask<'a> {
    pub reading: Reading<'a>,
    pub plan: &'a WritePlan,
    pub unit: &'a WorkUnit,
    pub round: u32,
    pub attempt: &'a AttemptId,
    /// The table as the plan knows it.
    pub table: &'a Table,
    /// Snapshot whose rows win, and those of its files that may hold rows of the plan's window.
    pub base_snapshot: i64,
    pub existing: &'a LiveRows,
    pub runtime: &'a Handle,
    /// Shown each batch that is written, in file order.
    pub stored: &'a dyn Fn(&RecordBatch),
}

/// Start of the names of an attempt's files: job, unit, round and attempt.
pub fn file_prefix(plan: &WritePlan, unit: u32, round: u32, attempt: &AttemptId) -> String {
    format!("{}-g{}-u{unit:05}-r{round}-{attempt}", plan.job, plan.generation)
}

/// Runs the attempt on the calling thread (a blocking one: `runtime` serves its I/O).
pub fn write_unit(task: &UnitTask) -> Result<UnitReceipt> {
    let metadata = task.table.metadata();
    let state = &task.reading.inventory.table;
    let spec = crate::layouts::spec_of(metadata, state, task.unit.layout)?;
    let plain_types = row_types(task.table, state)?;
    let mut rows = rows::UnitRows::new(state, &plain_types)?;
    rows.expect_rows(task.unit.estimated_rows);
    let mut gathered = gather::gather(&task.reading, task.unit, &mut rows)?;
    rows.seal()?;

    let (ordered, series) = order_rows(task, &mut rows, &mut gathered)?;
    let (chunk_rows, time) = spread::by_chunk(&ordered, task.plan.period);
    gathered.counts.rows_written = ordered.rows.len() as u64;

    let (_, target_file_bytes) = state.files_of(task.unit.layout);
    let prefix = file_prefix(task.plan, task.unit.index, task.round, task.attempt);
    let target = layout::Target {
        table: task.table,
        state,
        row_bytes: task.plan.row_bytes,
        target_file_bytes,
        spec,
        file_prefix: &prefix,
        runtime: task.runtime,
        check_stop: task.reading.check_stop,
        stored: task.stored,
    };
    let (data_files, files): (Vec<_>, Vec<_>) =
        layout::write(&target, rows, ordered)?.into_iter().map(|f| (f.data_file, f.written)).unzip();

    let mut manifests = Vec::new();
    if !data_files.is_empty() {
        let path = format!("{}/metadata/{prefix}.avro", metadata.location().trim_end_matches('/'));
        let schema = metadata.current_schema().clone();
        manifests.push(task.runtime.block_on(timelake_table::write_manifest(task.table.file_io(), schema, spec, path, data_files))?);
    }
    gathered.counts.rows_added_files = files.iter().map(|f| f.rows).sum();
    let mut column_sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut key_hash = 0u64;
    for file in &files {
        key_hash = key_hash.wrapping_add(file.key_hash);
        for (column, sum) in &file.column_sums {
            let known = column_sums.entry(column.clone()).or_default();
            *known = known.wrapping_add(*sum);
        }
    }
    Ok(UnitReceipt {
        unit: task.unit.index,
        round: task.round,
        attempt: task.attempt.clone(),
        base_snapshot: task.base_snapshot,
        counts: gathered.counts,
        files,
        manifests,
        taken: gathered.taken,
        left: gathered.left,
        errors: gathered.errors.into_errors(),
        bad_rows: gathered.bad_rows,
        warnings: vec![],
        time: time.map(|(low, high)| (TimestampUs(low), TimestampUs(high))),
        column_sums,
        key_hash,
        chunk_rows,
        series,
    })
}

/// Arrow types of the table's columns that rows have.
pub fn row_types(table: &Table, state: &TableState) -> Result<Vec<DataType>> {
    let schema = timelake_table::writer_schema(table.metadata().current_schema())?;
    let of = |name: &str| schema.field_with_name(name).map(|f| f.data_type().clone()).map_err(internal);
    state.columns.iter().map(|c| of(&c.name)).collect()
}

/// Rows in final order: duplicates, conflicts and keys that exist are gone, and counted. And how the rows spread
/// over their series.
fn order_rows(task: &UnitTask, rows: &mut rows::UnitRows, gathered: &mut gather::Gathered) -> Result<(Ordered, SeriesRows)> {
    let inventory = task.reading.inventory;
    let codes = rows.identity.intern(&rows.codes);
    let ranks = rows.identity.ranks(&rows.keys);
    let mut sorted = if rows.unique {
        order::Sorted::scatter(&codes, &ranks, &rows.times, None)
    } else {
        order::sort(&codes, &ranks, &rows.times, None)
    };
    let taken = sorted.segments.clone();

    let policy = task.reading.options.on_source_conflict;
    let version = match (&task.reading.options.version_column, policy) {
        (Some(name), OnSourceConflict::Newest) => {
            let column = inventory.table.columns.iter().position(|c| c.name == *name);
            rows.payload.iter().position(|p| Some(p.column) == column)
        }
        _ => None,
    };
    let shown = |source: u32, number: u64| {
        let (file, text) = inventory.source(source).map_or((String::new(), false), |(file, text)| (file.shown.clone(), text));
        (file, if text { Position::Line(number) } else { Position::Row(number) })
    };
    let truncated = inventory.landed.as_ref().map_or(0, |l| l.counts.precision_truncated) + gathered.counts.precision_truncated;
    let hint = conflict_hint(task.reading.options, truncated);
    if rows.unique {
        order::Dedup { rows, policy, version, shown: &shown, hint: &hint }.run(
            &mut sorted,
            &mut gathered.counts,
            &mut gathered.errors,
            &codes,
        )?;
    }

    let files: Vec<ExistingFile> = task.existing.files.iter().filter(|f| touches(&task.unit.window, f.time)).cloned().collect();
    let stays = if files.is_empty() || sorted.rows.is_empty() {
        None
    } else {
        Some(meet_existing(task, rows, &sorted, &ranks, &files, &mut gathered.counts)?)
    };
    if let Some(stays) = stays.as_ref().filter(|_| task.reading.options.mode == Mode::Fail) {
        for (_, row) in sorted.rows.iter().filter(|(_, row)| !stays[*row as usize]) {
            let (source, number) = rows.place(*row);
            exists_already(&mut gathered.errors, source, number, &rows.key_text(*row, codes[*row as usize])?, &shown);
        }
    }
    drop(codes);

    if let Some(stays) = &stays {
        sorted.retain(stays);
    }
    if rows.same_key {
        let left = sorted.segments.windows(2).zip(taken.windows(2));
        // By rank.
        let tallies: Vec<Tally> = left.map(|(left, taken)| Tally { rows: taken[1] - taken[0], written: left[1] - left[0] }).collect();
        let tallies: Vec<Tally> = ranks.iter().map(|rank| tallies[*rank as usize]).collect();
        let spread = spread::by_series(&rows.keys, &rows.identity, &tallies, &ranks)?;
        // Both are known by the order now.
        (rows.times, rows.codes) = (vec![], vec![]);
        return Ok((Ordered::new(sorted, &ranks), spread));
    }
    let survivors: Vec<u32> = sorted.rows.iter().map(|(_, row)| *row).collect();
    drop(sorted);
    let codes = rows.series.intern(&rows.codes);
    let ranks = rows.series.ranks(&rows.keys);
    let mut tallies = vec![Tally::default(); ranks.len()];
    codes.iter().for_each(|code| tallies[*code as usize].rows += 1);
    survivors.iter().for_each(|row| tallies[codes[*row as usize] as usize].written += 1);
    let sorted = order::sort(&codes, &ranks, &rows.times, Some(&survivors));
    let spread = spread::by_series(&rows.keys, &rows.series, &tallies, &ranks)?;
    rows.times = vec![];
    Ok((Ordered::new(sorted, &ranks), spread))
}

/// Under `--mode fail` a key that the table has stops the job.
fn exists_already(errors: &mut ErrorBook, source: u32, row: u64, key: &str, shown: &dyn Fn(u32, u64) -> (String, Position)) {
    let reason = Reason::OverlapsExisting;
    errors.add(BadRow { reason, column: "", object: source, row, value: Some(key), skipped: false }, || {
        let (file, here) = shown(source, row);
        Error::conflict(reason, format!("{file} {here}: the table has a row with the key {key}"))
            .hint("--mode merge keeps the table's rows and loads the others; --only-missing leaves out chunks that have rows")
            .at(|p| {
                p.file = Some(file);
                here.mark(p);
                p.key = Some(key.to_string());
            })
    });
}

/// Two rows of one key can be of our own making: then that is the thing to look at first.
fn conflict_hint(options: &RowOptions, truncated: u64) -> String {
    let mut hint = String::from("choose which one counts: --on-source-conflict first, last or newest");
    if matches!(options.ambiguous, Ambiguous::Earlier | Ambiguous::Later) {
        hint.push_str("; in the hour that the clock repeats, --ambiguous gives both passes the same times, so rows of one pass would be lost: load that hour from a source with offsets");
    }
    if truncated > 0 {
        hint.push_str("; times that differ only below a microsecond become equal");
    }
    hint
}

fn meet_existing(
    task: &UnitTask,
    rows: &rows::UnitRows,
    sorted: &order::Sorted,
    ranks: &[u32],
    files: &[ExistingFile],
    counts: &mut timelake_model::Counts,
) -> Result<Vec<bool>> {
    let table = &task.reading.inventory.table;
    let (keys, columns) = (existing::key_columns(rows, table), existing::columns(rows, table));
    let mut existing = existing::Existing::new(rows, sorted, ranks);
    // Rows that deletes hide count here as well: at worst a file is read for nothing.
    let mut met = Vec::new();
    for file in files {
        (task.reading.check_stop)()?;
        if existing.may_meet(file) && task.runtime.block_on(holds_a_key(task.table, file, &keys, &existing))? {
            met.push(file.clone());
        }
    }
    if !met.is_empty() {
        let deletes = &task.existing.deletes;
        let stream = task.runtime.block_on(timelake_table::read_rows(task.table, &met, deletes, &columns, &task.unit.window))?;
        let mut stream = std::pin::pin!(stream);
        while let Some(batch) = task.runtime.block_on(stream.next()) {
            (task.reading.check_stop)()?;
            existing.batch(&batch?)?;
        }
    }
    Ok(existing.finish(counts))
}

/// Reads a file's keys until one of them is the unit's. Also true where they do not read by themselves: then whoever reads
/// all columns says what there is to say.
async fn holds_a_key(table: &Table, file: &ExistingFile, columns: &[String], existing: &existing::Existing<'_>) -> Result<bool> {
    let Some(mut keys) = timelake_table::read_keys(table, file, columns).await? else { return Ok(true) };
    while let Some(batch) = keys.next().await {
        let Some(batch) = batch else { return Ok(true) };
        if existing.meets(file, &batch)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Distinct partitions of some receipts' files.
pub fn partitions<'a>(receipts: impl IntoIterator<Item = &'a UnitReceipt>) -> u64 {
    receipts.into_iter().flat_map(|r| &r.files).map(|f| (f.spec_id, &f.partition)).collect::<BTreeSet<_>>().len() as u64
}
