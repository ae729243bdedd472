//! merge: an incoming row whose key is in the table loses, as a whole row.
//!
//! Existing rows stream through; nothing of them is kept. Each is looked up by key code and time among the
//! unit's rows, which are sorted by just that. Of most files no row meets one of ours, so their keys are read first,
//! and the other columns only of files where a key meets.

use super::keys::{UNKNOWN, internal};
use super::order::{Sorted, Timed};
use super::rows::UnitRows;
use crate::hash::cells_equal;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use std::collections::BTreeSet;
use timelake_model::inventory::{ExistingFile, TableState};
use timelake_model::time::MICROS_PER_DAY;
use timelake_model::{Counts, Error, Result};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Free,
    /// Lost to an existing row with the same values.
    Same,
    /// Lost to an existing row with other values.
    Different,
}

/// Which of the unit's rows lost.
pub struct Existing<'a> {
    rows: &'a UnitRows,
    sorted: &'a Sorted,
    /// Rank of each identity code.
    ranks: &'a [u32],
    fates: Vec<Fate>,
    /// Days (UTC) that the unit has rows in.
    days: BTreeSet<i64>,
}

/// Columns to read of existing rows: the time, the key columns, the payload, in this order.
pub fn columns(rows: &UnitRows, table: &TableState) -> Vec<String> {
    let mut out = key_columns(rows, table);
    out.extend(rows.payload.iter().map(|p| table.columns[p.column].name.clone()));
    out
}

/// The first of [`columns`]: the time and the key columns.
pub fn key_columns(rows: &UnitRows, table: &TableState) -> Vec<String> {
    let keys = rows.key_columns.iter().map(|c| table.columns[*c].name.clone());
    std::iter::once(table.contract.time_column.clone()).chain(keys).collect()
}

impl<'a> Existing<'a> {
    /// `sorted`: the unit's rows by (identity, time), one per key.
    pub fn new(rows: &'a UnitRows, sorted: &'a Sorted, ranks: &'a [u32]) -> Self {
        let mut days = BTreeSet::new();
        let mut last = None;
        for (time, _) in &sorted.rows {
            let day = time.div_euclid(MICROS_PER_DAY);
            if last.replace(day) != Some(day) {
                days.insert(day);
            }
        }
        Existing { rows, sorted, ranks, fates: vec![Fate::Free; rows.len()], days }
    }

    /// Has the unit a row in a day of the file's?
    pub fn may_meet(&self, file: &ExistingFile) -> bool {
        let (low, high) = days_of(file);
        self.days.range(low..=high).next().is_some()
    }

    /// Does one of these rows of the file, given by [`key_columns`], have a key of the unit's?
    pub fn meets(&self, file: &ExistingFile, columns: &[ArrayRef]) -> Result<bool> {
        let mut met = false;
        let (first, last) = days_of(file);
        let within = (first.saturating_mul(MICROS_PER_DAY), last.saturating_mul(MICROS_PER_DAY).saturating_add(MICROS_PER_DAY - 1));
        self.each_met(columns, within, |_, _, _| met = true)?;
        Ok(met)
    }

    /// Looks at a batch of existing rows with [`columns`].
    pub fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        let keys = self.rows.keys.len();
        let (of_keys, others) = batch.columns().split_at(1 + keys);
        let payload = others.iter().map(plain).collect::<Result<Vec<_>>>()?;
        let mut fates = std::mem::take(&mut self.fates);
        self.each_met(of_keys, (i64::MIN, i64::MAX), |i, row, codes| {
            let fate = &mut fates[row as usize];
            if *fate != Fate::Same {
                let same_keys = codes.iter().zip(&self.rows.codes).all(|(theirs, ours)| theirs[i] == ours[row as usize]);
                let mut same = same_keys;
                for (p, theirs) in payload.iter().enumerate() {
                    let (ours, at) = self.rows.payload_cell(p, row);
                    same = same && cells_equal(theirs, i, ours, at);
                }
                *fate = if same { Fate::Same } else { Fate::Different };
            }
        })?;
        self.fates = fates;
        Ok(())
    }

    /// Calls `met(their position, our row, their codes by key column)` for each of these rows whose key the unit has. Their times
    /// are known to be `within` these, the last one included.
    fn each_met(&self, columns: &[ArrayRef], within: (i64, i64), mut met: impl FnMut(usize, u32, &[Vec<u32>])) -> Result<()> {
        let time = plain(&columns[0])?;
        let time = time
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal("the time column of existing rows is no timestamp"))?;
        let times = time.values();
        let codes = self.rows.keys.iter().zip(&columns[1..]).map(|(key, column)| key.lookup(column)).collect::<Result<Vec<_>>>()?;
        let identities = self.rows.identity.lookup(&codes);
        // Rows of a table are mostly in order: neighbours of one identity are looked at together.
        let mut start = 0;
        for run in identities.chunk_by(|a, b| a == b) {
            let range = start..start + run.len();
            start = range.end;
            if run[0] == UNKNOWN {
                continue;
            }
            let rank = self.ranks[run[0] as usize] as usize;
            let segment = &self.sorted.rows[self.sorted.segments[rank] as usize..self.sorted.segments[rank + 1] as usize];
            // Most series have none in the time of a file: then its rows need not be looked at.
            let segment = between(segment, within);
            if segment.is_empty() {
                continue;
            }
            let limits = times[range.clone()].iter().fold((i64::MAX, i64::MIN), |(low, high), t| (low.min(*t), high.max(*t)));
            let segment = between(segment, limits);
            if segment.is_empty() {
                continue;
            }
            for i in range {
                if let Ok(found) = segment.binary_search_by_key(&times[i], |(t, _)| *t)
                    && time.is_valid(i)
                {
                    met(i, segment[found].1, &codes);
                }
            }
        }
        Ok(())
    }

    /// Counts the losers; returns which rows stay.
    pub fn finish(self, counts: &mut Counts) -> Vec<bool> {
        for fate in &self.fates {
            counts.kept_existing += u64::from(*fate != Fate::Free);
            counts.kept_existing_different += u64::from(*fate == Fate::Different);
        }
        self.fates.into_iter().map(|f| f == Fate::Free).collect()
    }
}

/// The first and the last day (UTC) that the file may have rows in.
fn days_of(file: &ExistingFile) -> (i64, i64) {
    let bounds = file.time.filter(|(low, high)| low <= high);
    bounds.map_or((i64::MIN, i64::MAX), |(low, high)| (low.0.div_euclid(MICROS_PER_DAY), high.0.div_euclid(MICROS_PER_DAY)))
}

/// Rows in order of time that lie in a range whose end is included.
fn between(rows: &[Timed], (low, high): (i64, i64)) -> &[Timed] {
    let from = rows.partition_point(|(time, _)| *time < low);
    &rows[from..from + rows[from..].partition_point(|(time, _)| *time <= high)]
}

/// Readers may give dictionary or run-end encoded columns (partition constants); cells are compared plain.
fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        arrow::datatypes::DataType::Dictionary(_, value) => arrow::compute::cast(array, value).map_err(internal)?,
        arrow::datatypes::DataType::RunEndEncoded(_, value) => arrow::compute::cast(array, value.data_type()).map_err(internal)?,
        _ => array.clone(),
    })
}
