//! Overlap, decided again: what changed on `main` since the units looked, and which units must look again.
//!
//! Two states are compared, not the steps between them: the rows of the window that were live when the units looked, and
//! those that are live now. So it does not matter what the commits are called, whether the snapshots between have
//! expired, or whether `main` was set back. Only files that differ are read, and of them the keys. A rewrite that kept
//! its rows (a compaction, also one that applied deletes) changes nothing.
//!
//! Must never happen: a key that is live twice after publishing, or a row that lost to one that is gone.

use crate::hash::key_hash;
use crate::planted;
use crate::store::StoredPlan;
use crate::write::{KeyColumn, KeyLayout, Tuples};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use futures::StreamExt;
use hashbrown::{HashMap, HashSet};
use iceberg::table::Table;
use std::collections::BTreeSet;
use timelake_model::inventory::{ExistingFile, LiveRows, TableState};
use timelake_model::ledger::GroupRecord;
use timelake_model::plan::{meet, touches};
use timelake_model::{Error, Reason, Result, UnitReceipt, Window};

/// Keys held in memory; with more, every unit that may be concerned is derived again.
const MAX_KEYS: usize = 4_000_000;

/// The units whose rows may differ if they were derived from what is live now.
pub async fn check(
    table: &Table,
    stored: &StoredPlan,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
    before: &LiveRows,
    now: &LiveRows,
) -> Result<Vec<u32>> {
    let (gone, come) = planted::seen(changed(before, now), changed(now, before));
    // Units that an arrived key may hit, and units in which a row may have lost to one that is gone.
    let staged: Vec<&UnitReceipt> = receipts.iter().filter(|r| !r.files.is_empty() && come.iter().any(|f| meet(f.time, r.time))).collect();
    let losers = losers(stored, group, receipts, &gone);
    if staged.is_empty() && losers.is_empty() {
        return Ok(vec![]);
    }
    let all = || losers.iter().map(|l| l.unit).chain(staged.iter().map(|r| r.unit)).collect::<BTreeSet<u32>>().into_iter().collect();
    let Some(keys) = difference(table, stored, (&gone, before), (&come, now)).await? else { return Ok(all()) };
    let mut again: BTreeSet<u32> = losers.iter().filter(|l| keys.gone_in(l.window)).map(|l| l.unit).collect();
    if !keys.come.is_empty() {
        for receipt in staged {
            if !again.contains(&receipt.unit) && clashes(table, &stored.inventory.table, receipt, &keys.come).await? {
                again.insert(receipt.unit);
            }
        }
    }
    Ok(again.into_iter().collect())
}

/// Files of one state that the other does not have, or has with other deletes or another sequence number.
fn changed(of: &LiveRows, other: &LiveRows) -> Vec<ExistingFile> {
    let files: HashMap<&str, &ExistingFile> = other.files.iter().map(|f| (f.path.as_str(), f)).collect();
    let paths = |rows: &LiveRows| rows.deletes.iter().map(|d| d.path.clone()).collect::<HashSet<String>>();
    let (mine, theirs) = (paths(of), paths(other));
    let only_mine: Vec<_> = of.deletes.iter().filter(|d| !theirs.contains(&d.path)).collect();
    let only_theirs: Vec<_> = other.deletes.iter().filter(|d| !mine.contains(&d.path)).collect();
    let differs = |file: &&ExistingFile| match files.get(file.path.as_str()) {
        None => true,
        Some(same) => {
            same.sequence != file.sequence
                || only_mine.iter().any(|d| timelake_table::applies(d, file))
                || only_theirs.iter().any(|d| timelake_table::applies(d, same))
        }
    };
    of.files.iter().filter(differs).cloned().collect()
}

/// A unit in which rows lost, and its part of the window.
struct Loser {
    unit: u32,
    window: Window,
}

fn losers(stored: &StoredPlan, group: &GroupRecord, receipts: &[UnitReceipt], gone: &[ExistingFile]) -> Vec<Loser> {
    let lost: HashSet<u32> = receipts.iter().filter(|r| r.counts.kept_existing > 0).map(|r| r.unit).collect();
    let units = stored.plan.group(&group.group).into_iter().flat_map(|g| &g.units);
    units
        .filter(|u| lost.contains(&u.index) && gone.iter().any(|f| touches(&u.window, f.time)))
        .map(|u| Loser { unit: u.index, window: u.window })
        .collect()
}

/// Keys that are live in one state only.
#[derive(Default)]
struct Difference {
    come: HashSet<u64>,
    /// Times of keys that are gone, sorted.
    gone: Vec<i64>,
}

impl Difference {
    fn gone_in(&self, window: Window) -> bool {
        let first = self.gone.partition_point(|t| *t < window.low());
        self.gone.get(first).is_some_and(|t| *t < window.high())
    }
}

/// Compares the keys of files by both states; `None` when they differ and are too many to hold, or cannot be read.
async fn difference(
    table: &Table,
    stored: &StoredPlan,
    (gone, before): (&[ExistingFile], &LiveRows),
    (come, now): (&[ExistingFile], &LiveRows),
) -> Result<Option<Difference>> {
    let (state, window) = (&stored.inventory.table, &stored.plan.window);
    // Sums of both sides: equal ones are the same keys, however many there are.
    let mut balance = (0u64, 0u64);
    let mut overflows = false;
    // Keys that are live now, and whether they were before.
    let mut keys: HashMap<u64, bool> = HashMap::new();
    each_key(table, state, come, now, window, |_, hash| {
        balance = (balance.0.wrapping_add(1), balance.1.wrapping_add(hash));
        overflows |= keys.len() >= MAX_KEYS;
        if !overflows {
            keys.insert(hash, false);
        }
    })
    .await?;
    let mut times = Vec::new();
    let read = each_key(table, state, gone, before, window, |time, hash| {
        balance = (balance.0.wrapping_sub(1), balance.1.wrapping_sub(hash));
        match keys.get_mut(&hash) {
            Some(was_there) => *was_there = true,
            None if times.len() < MAX_KEYS => times.push(time),
            None => overflows = true,
        }
    })
    .await;
    match read {
        // Files of a state that is gone were cleaned up: which keys they had cannot be told any more.
        Err(e) if e.reason == Reason::TableChanged => return Ok(None),
        read => read?,
    }
    if balance == (0, 0) {
        return Ok(Some(Difference::default()));
    }
    times.sort_unstable();
    let come = keys.into_iter().filter(|(_, was_there)| !was_there).map(|(hash, _)| hash).collect();
    Ok((!overflows).then_some(Difference { come, gone: times }))
}

/// Calls with the time and the hash of the key of each live row of the files in the window.
async fn each_key(
    table: &Table,
    state: &TableState,
    files: &[ExistingFile],
    rows: &LiveRows,
    window: &Window,
    mut key: impl FnMut(i64, u64),
) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mut reader = KeyReader::new(table, state)?;
    let mut batches = timelake_table::read_rows(table, files, &rows.deletes, &reader.columns, window).await?;
    while let Some(batch) = batches.next().await {
        reader.hashes(&batch?)?.into_iter().for_each(|(time, hash)| key(time, hash));
    }
    Ok(())
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

/// Has the unit staged a row with one of these keys?
async fn clashes(table: &Table, state: &TableState, receipt: &UnitReceipt, keys: &HashSet<u64>) -> Result<bool> {
    let file = |f: &timelake_model::receipt::WrittenFile| ExistingFile {
        path: f.path.clone(),
        bytes: f.bytes,
        rows: f.rows,
        spec_id: f.spec_id,
        time: receipt.time,
        sequence: 0,
        partition: 0,
    };
    let files: Vec<ExistingFile> = receipt.files.iter().map(file).collect();
    let mut reader = KeyReader::new(table, state)?;
    let mut rows = timelake_table::read_rows(table, &files, &[], &reader.columns, &Window::ALL).await?;
    while let Some(batch) = rows.next().await {
        if reader.hashes(&batch?)?.iter().any(|(_, hash)| keys.contains(hash)) {
            return Ok(true);
        }
    }
    Ok(false)
}
