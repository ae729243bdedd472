//! Overlap, decided again: what happened on `main` since the units looked, and which units must look again.
//!
//! Only what touches the window counts, and only overlapping ranges are read. Added data files are compared
//! key by key with the rows staged in their time range. A rewrite that kept its rows (compaction) changes
//! nothing. Anything else stops the job with the reason.

use crate::hash::key_hash;
use crate::inventory::{delete_files_refused, existing_file, time_field};
use crate::store::StoredPlan;
use crate::write::{KeyColumn, KeyLayout, Tuples};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use futures::StreamExt;
use hashbrown::HashSet;
use iceberg::table::Table;
use std::collections::BTreeSet;
use timelake_model::inventory::{ExistingFile, TableState};
use timelake_model::request::Mode;
use timelake_model::{Error, Reason, Result, TimestampUs, UnitReceipt, Window};

/// Keys of arrived rows held in memory; with more, every touched unit is derived again.
const MAX_KEYS: usize = 4_000_000;

/// What the check says.
#[derive(Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Nothing that concerns the staged rows.
    Clear,
    /// Arrived rows have keys that these units staged.
    Again(Vec<u32>),
}

/// Checks everything between two heads of `main`. Errors are reasons to hold.
pub async fn check(table: &Table, stored: &StoredPlan, mode: Mode, receipts: &[UnitReceipt], from: i64, to: i64) -> Result<Overlap> {
    // What is only appended meets no row, whatever others do to theirs.
    if from == to || mode == Mode::Append {
        return Ok(Overlap::Clear);
    }
    let state = &stored.inventory.table;
    let time = time_field(table, &state.contract)?;
    let window = &stored.plan.window;
    let Some(changes) = timelake_table::changes(table, from, to, time).await? else {
        return Err(held(&state.name, "main was set back, or the snapshot that this job last looked at has expired".into()));
    };
    let mut arrived: Vec<ExistingFile> = Vec::new();
    // Files removed whose rows have not come back yet: some writers compact in two snapshots.
    let mut missing: Option<Missing> = None;
    for change in &changes {
        let touching =
            |files: &[timelake_table::LiveFile]| files.iter().filter(|f| f.overlaps(window)).map(existing_file).collect::<Vec<_>>();
        if let Some(delete) = change.delete_files.iter().chain(&change.removed_delete_files).find(|f| f.overlaps(window)) {
            return Err(delete_files_refused(&state.name, delete));
        }
        let (added, removed) = (touching(&change.added), touching(&change.removed));
        if removed.is_empty() && missing.is_none() {
            arrived.extend(added);
            continue;
        }
        // All files of the change, not only those that touch the window: rows move between files.
        let all = |files: &[timelake_table::LiveFile]| files.iter().map(existing_file).collect::<Vec<_>>();
        let after = timelake_table::content_hash(table, &all(&change.added)).await?;
        if removed.is_empty() {
            match &missing {
                Some(m) if (m.rows, m.hash) == after => missing = None,
                _ => arrived.extend(added),
            }
            continue;
        }
        let before = timelake_table::content_hash(table, &all(&change.removed)).await?;
        if before == after {
            continue;
        }
        if missing.is_some() || after.0 > 0 {
            return Err(held(
                &state.name,
                format!("snapshot {} removed or changed rows in the window ({} → {} rows)", change.snapshot_id, before.0, after.0),
            ));
        }
        missing = Some(Missing { snapshot: change.snapshot_id, rows: before.0, hash: before.1 });
    }
    if let Some(Missing { snapshot, rows, .. }) = missing {
        return Err(held(&state.name, format!("snapshot {snapshot} removed {rows} rows in the window")));
    }
    if arrived.is_empty() {
        return Ok(Overlap::Clear);
    }
    let touched: Vec<&UnitReceipt> =
        receipts.iter().filter(|r| !r.files.is_empty() && arrived.iter().any(|f| touches(f, r.time))).collect();
    if touched.is_empty() {
        return Ok(Overlap::Clear);
    }
    let Some(keys) = keys_of(table, state, &arrived, window).await? else {
        return Ok(Overlap::Again(touched.iter().map(|r| r.unit).collect()));
    };
    let mut again = BTreeSet::new();
    for receipt in touched {
        if clashes(table, state, receipt, &keys).await? {
            again.insert(receipt.unit);
        }
    }
    Ok(if again.is_empty() { Overlap::Clear } else { Overlap::Again(again.into_iter().collect()) })
}

/// Rows that a snapshot removed and that a later one may bring back.
struct Missing {
    snapshot: i64,
    rows: u64,
    hash: u64,
}

fn touches(file: &ExistingFile, time: Option<(TimestampUs, TimestampUs)>) -> bool {
    match (file.time, time) {
        (Some(a), Some(b)) => a.0 <= b.1 && b.0 <= a.1,
        _ => true,
    }
}

fn held(table: &str, what: String) -> Error {
    Error::conflict(Reason::TableChanged, format!("{table} changed under this job: {what}"))
        .hint("look at what changed the table; then cancel the job and run its command again, which makes a new plan")
        .at(|p| p.table = Some(table.into()))
}

/// Hashes of the keys of some batches' rows, as units hash theirs.
struct KeyReader {
    columns: Vec<String>,
    keys: Vec<KeyColumn>,
    identity: Tuples,
}

impl KeyReader {
    fn new(table: &Table, state: &TableState) -> Result<Self> {
        let layout = KeyLayout::new(state)?;
        let arrow = timelake_table::writer_schema(table.metadata().current_schema())?;
        let names: Vec<String> = layout.key_columns.iter().map(|c| state.columns[*c].name.clone()).collect();
        let keys = names
            .iter()
            .map(|n| arrow.field_with_name(n).map_err(|e| Error::internal(e.to_string())).and_then(|f| KeyColumn::new(f.data_type())))
            .collect::<Result<_>>()?;
        let columns = std::iter::once(state.contract.time_column.clone()).chain(names).collect();
        Ok(KeyReader { columns, keys, identity: Tuples::new(layout.identity) })
    }

    fn hashes(&mut self, batch: &RecordBatch) -> Result<Vec<(i64, u64)>> {
        let time = batch
            .column(0)
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal("the time column is no timestamp"))?;
        let mut codes = vec![vec![]; self.keys.len()];
        for (i, key) in self.keys.iter_mut().enumerate() {
            if batch.column(i + 1).null_count() > 0 {
                return self.with_nulls(batch);
            }
            key.intern(batch.column(i + 1), &mut codes[i])?;
        }
        let identities = self.identity.intern(&codes).into_owned();
        let hashes = self.identity.hashes(&self.keys);
        Ok(identities.iter().zip(time.values()).map(|(i, t)| (*t, key_hash(hashes[*i as usize], *t))).collect())
    }

    /// Others may write rows without a key; they have no identity and clash with nothing.
    fn with_nulls(&mut self, batch: &RecordBatch) -> Result<Vec<(i64, u64)>> {
        let mut keep = arrow::buffer::BooleanBuffer::new_set(batch.num_rows());
        for column in batch.columns() {
            if let Some(nulls) = arrow::array::Array::logical_nulls(column) {
                keep = &keep & nulls.inner();
            }
        }
        let filtered = arrow::compute::filter_record_batch(batch, &arrow::array::BooleanArray::new(keep, None))
            .map_err(|e| Error::internal(e.to_string()))?;
        if filtered.num_rows() == 0 { Ok(vec![]) } else { self.hashes(&filtered) }
    }
}

/// Key hashes of the arrived rows in the window; `None` when there are too many to hold.
async fn keys_of(table: &Table, state: &TableState, files: &[ExistingFile], window: &Window) -> Result<Option<HashSet<u64>>> {
    let mut reader = KeyReader::new(table, state)?;
    let mut out = HashSet::new();
    let mut rows = timelake_table::read_rows(table, files, &reader.columns, window).await?;
    while let Some(batch) = rows.next().await {
        out.extend(reader.hashes(&batch?)?.into_iter().map(|(_, hash)| hash));
        if out.len() > MAX_KEYS {
            return Ok(None);
        }
    }
    Ok(Some(out))
}

/// Has the unit staged a row with one of these keys?
async fn clashes(table: &Table, state: &TableState, receipt: &UnitReceipt, keys: &HashSet<u64>) -> Result<bool> {
    let files: Vec<ExistingFile> = receipt
        .files
        .iter()
        .map(|f| ExistingFile { path: f.path.clone(), bytes: f.bytes, rows: f.rows, spec_id: f.spec_id, time: receipt.time })
        .collect();
    let mut reader = KeyReader::new(table, state)?;
    let mut rows = timelake_table::read_rows(table, &files, &reader.columns, &Window::ALL).await?;
    while let Some(batch) = rows.next().await {
        if reader.hashes(&batch?)?.iter().any(|(_, hash)| keys.contains(hash)) {
            return Ok(true);
        }
    }
    Ok(false)
}
