//! merge: an incoming row whose key is in the table loses, as a whole row.
//!
//! Existing rows stream through; nothing of them is kept. Each is looked up by key code and time among the
//! unit's rows, which are sorted by just that.

use super::keys::{UNKNOWN, internal};
use super::order::Sorted;
use super::rows::UnitRows;
use crate::hash::cells_equal;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use timelake_model::inventory::TableState;
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
}

/// Columns to read of existing rows: the time, the key columns, the payload, in this order.
pub fn columns(rows: &UnitRows, table: &TableState) -> Vec<String> {
    let mut out = vec![table.contract.time_column.clone()];
    let wanted = rows.key_columns.iter().copied().chain(rows.payload.iter().map(|p| p.column));
    out.extend(wanted.map(|c| table.columns[c].name.clone()));
    out
}

impl<'a> Existing<'a> {
    /// `sorted`: the unit's rows by (identity, time), one per key.
    pub fn new(rows: &'a UnitRows, sorted: &'a Sorted, ranks: &'a [u32]) -> Self {
        Existing { rows, sorted, ranks, fates: vec![Fate::Free; rows.len()] }
    }

    /// Looks at a batch of existing rows with [`columns`].
    pub fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        let time = plain(batch.column(0))?;
        let time = time
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal("the time column of existing rows is no timestamp"))?;
        let keys = self.rows.keys.len();
        let codes = (0..keys).map(|k| self.rows.keys[k].lookup(batch.column(1 + k))).collect::<Result<Vec<_>>>()?;
        let identities = self.rows.identity.lookup(&codes);
        let payload = (0..self.rows.payload.len()).map(|p| plain(batch.column(1 + keys + p))).collect::<Result<Vec<_>>>()?;
        for (i, identity) in identities.iter().copied().enumerate() {
            if identity == UNKNOWN || time.is_null(i) {
                continue;
            }
            let rank = self.ranks[identity as usize] as usize;
            let segment = &self.sorted.rows[self.sorted.segments[rank] as usize..self.sorted.segments[rank + 1] as usize];
            let Ok(found) = segment.binary_search_by_key(&time.value(i), |(t, _)| *t) else { continue };
            let row = segment[found].1;
            let fate = &mut self.fates[row as usize];
            if *fate != Fate::Same {
                let same_keys = codes.iter().zip(&self.rows.codes).all(|(theirs, ours)| theirs[i] == ours[row as usize]);
                let same = same_keys
                    && payload.iter().enumerate().all(|(p, theirs)| {
                        let (ours, at) = self.rows.payload_cell(p, row);
                        cells_equal(theirs, i, ours, at)
                    });
                *fate = if same { Fate::Same } else { Fate::Different };
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

/// Readers may give dictionary or run-end encoded columns (partition constants); cells are compared plain.
fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        arrow::datatypes::DataType::Dictionary(_, value) => arrow::compute::cast(array, value).map_err(internal)?,
        arrow::datatypes::DataType::RunEndEncoded(_, value) => arrow::compute::cast(array, value.data_type()).map_err(internal)?,
        _ => array.clone(),
    })
}
