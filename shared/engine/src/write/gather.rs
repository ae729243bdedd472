//! Reads a unit's row groups and keeps its rows: converted, keyed, counted.
//!
//! A row is classified in one order, the same for every unit that reads it: no usable time or time outside
//! min/max → rejected; outside the range or retention → counted; these by the row group's owner only. Then
//! the unit whose time range and series it falls in takes it, and only that unit judges its other values.

use super::errors::{BadRow, ErrorBook};
use super::keys::internal;
use super::rows::{UnitRows, cell_text, compose};
use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Int32Type;
use iceberg::spec::Transform;
use iceberg::transform::create_transform_function;
use std::collections::BTreeMap;
use std::sync::Arc;
use timelake_model::inventory::Inventory;
use timelake_model::plan::{SeriesSlice, WorkUnit};
use timelake_model::receipt::RowGroupRows;
use timelake_model::request::{OnBadRow, OnOutOfRange, RowOptions};
use timelake_model::{Counts, Error, Reason, Result, TimestampUs};
use timelake_source::{BoundObject, CellFault, Position, SourceBatch, SourceSpec};

/// What reading needs to know, besides the unit.
pub struct Reading<'a> {
    pub inventory: &'a Inventory,
    pub options: &'a RowOptions,
    pub spec: &'a Arc<SourceSpec>,
    pub bound: &'a [BoundObject],
    /// Asked once per batch.
    pub check_stop: &'a (dyn Fn() -> Result<()> + Sync),
    /// Told after each batch of a row group that the unit owns.
    pub advance: &'a (dyn Fn(u64) + Sync),
}

/// What reading gives, besides the rows.
#[derive(Default)]
pub struct Gathered {
    pub counts: Counts,
    pub taken: Vec<RowGroupRows>,
    pub left: Vec<RowGroupRows>,
    pub errors: ErrorBook,
}

pub fn gather(reading: &Reading, unit: &WorkUnit, rows: &mut UnitRows) -> Result<Gathered> {
    let table = &reading.inventory.table;
    let time_index =
        table.columns.iter().position(|c| c.name == table.contract.time_column).ok_or_else(|| Error::internal("no time column"))?;
    let mut gatherer = Gatherer {
        reading,
        unit,
        slice: Slice::new(&unit.series, reading, rows)?,
        out: Gathered::default(),
        taken: BTreeMap::new(),
        left: BTreeMap::new(),
        time_index,
        load: reading.inventory.window(),
    };
    for input in &unit.inputs {
        let bound = &reading.bound[input.object as usize];
        let owned: &[u32] = unit.owns.iter().find(|o| o.object == input.object).map_or(&[], |o| &o.row_groups);
        for batch in timelake_source::read(bound, &input.row_groups)? {
            (reading.check_stop)()?;
            let mut batch = batch?;
            let owns = owned.contains(&batch.row_group);
            gatherer.batch(input.object, &mut batch, owns, rows)?;
            if owns {
                (reading.advance)(batch.rows() as u64);
            }
        }
    }
    let flat = |map: BTreeMap<(u32, u32), u64>| {
        map.into_iter().map(|((object, row_group), rows)| RowGroupRows { object, row_group, rows }).collect()
    };
    gatherer.out.taken = flat(gatherer.taken);
    gatherer.out.left = flat(gatherer.left);
    Ok(gatherer.out)
}

struct Gatherer<'a> {
    reading: &'a Reading<'a>,
    unit: &'a WorkUnit,
    slice: Slice,
    out: Gathered,
    taken: BTreeMap<(u32, u32), u64>,
    left: BTreeMap<(u32, u32), u64>,
    time_index: usize,
    /// What any unit of the plan loads.
    load: timelake_model::Window,
}

impl Gatherer<'_> {
    fn batch(&mut self, object: u32, batch: &mut SourceBatch, owns: bool, rows: &mut UnitRows) -> Result<()> {
        let len = batch.rows();
        let times = batch.times()?;
        let group = (object, batch.row_group);
        let first_row = batch.first_row;

        // Rows without a usable time.
        let mut timed: Option<BooleanBufferBuilder> = None;
        for fault in &times.faults {
            let bits = timed.get_or_insert_with(|| all_set(len));
            bits.set_bit(fault.row as usize, false);
        }
        let timed = timed.map(|mut b| b.finish());
        if owns {
            self.count_left(group, first_row, &times.us, timed.as_ref(), times.faults)?;
        }

        // The unit's time range.
        let window = self.unit.window;
        let (low, high) = (window.low(), window.high());
        let in_time = match &timed {
            None if times.us.iter().all(|t| low <= *t && *t < high) => None,
            None => Some(BooleanBuffer::collect_bool(len, |i| low <= times.us[i] && times.us[i] < high)),
            Some(ok) => Some(BooleanBuffer::collect_bool(len, |i| ok.value(i) && low <= times.us[i] && times.us[i] < high)),
        };
        if window.is_empty() || in_time.as_ref().is_some_and(|m| m.count_set_bits() == 0) {
            return Ok(());
        }

        // Keys: rows without one go to the slice that takes unkeyed rows; then the slice.
        let mut taken = in_time;
        let mut rejected = 0u64;
        let mut keys = self.key_arrays(batch, taken.as_ref(), rows)?;
        let faults: Vec<(usize, CellFault)> = keys
            .iter_mut()
            .flat_map(|(c, column)| std::mem::take(&mut column.faults).into_iter().map(|f| (*c, f)).collect::<Vec<_>>())
            .collect();
        if !faults.is_empty() {
            let bad = self.reject(object, first_row, taken.as_ref(), faults, self.unit.series.takes_unkeyed())?;
            rejected += if self.unit.series.takes_unkeyed() { bad.len() as u64 } else { 0 };
            taken = Some(without(taken.as_ref(), len, &bad));
            keys = self.key_arrays(batch, taken.as_ref(), rows)?;
        }
        if !self.unit.series.is_all() {
            let mask = self.slice.mask(&keys)?;
            if mask.count_set_bits() < mask.len() {
                taken = Some(compose(taken.as_ref(), len, &mask));
                keys = self.key_arrays(batch, taken.as_ref(), rows)?;
            }
        }

        // Payload: a bad cell rejects its row, and the row's other cells with it.
        let mut payload = self.payload_arrays(batch, taken.as_ref(), rows)?;
        let faults: Vec<(usize, CellFault)> = payload
            .iter_mut()
            .flat_map(|(c, column)| std::mem::take(&mut column.faults).into_iter().map(|f| (*c, f)).collect::<Vec<_>>())
            .collect();
        if !faults.is_empty() {
            let bad = self.reject(object, first_row, taken.as_ref(), faults, true)?;
            rejected += bad.len() as u64;
            taken = Some(without(taken.as_ref(), len, &bad));
            keys = self.key_arrays(batch, taken.as_ref(), rows)?;
            payload = self.payload_arrays(batch, taken.as_ref(), rows)?;
        }

        let kept = taken.as_ref().map_or(len, BooleanBuffer::count_set_bits);
        self.out.counts.rejected += rejected;
        self.out.counts.rows_read += rejected + kept as u64;
        *self.taken.entry(group).or_default() += rejected + kept as u64;
        if kept == 0 {
            return Ok(());
        }
        if let Some(lost_digits) = &times.truncated {
            self.out.counts.precision_truncated += match &taken {
                None => lost_digits.count_set_bits(),
                Some(mask) => (mask & lost_digits).count_set_bits(),
            } as u64;
        }
        if rows.len() + kept > u32::MAX as usize {
            return Err(Error::internal("a unit of more than 2^32 rows"));
        }
        let start = rows.len();
        rows.begin_piece(object, first_row, taken.clone());
        match &taken {
            None => rows.times.extend_from_slice(&times.us),
            Some(mask) => rows.times.extend(mask.set_indices().map(|i| times.us[i])),
        }
        for (i, (_, column)) in keys.into_iter().enumerate() {
            rows.keys[i].intern(&column.array, &mut rows.codes[i])?;
        }
        for (slot, (_, column)) in rows.payload.iter_mut().zip(payload) {
            self.out.counts.precision_truncated += column.truncated;
            slot.push(column.array, start)?;
        }
        Ok(())
    }

    fn key_arrays(
        &self,
        batch: &mut SourceBatch,
        keep: Option<&BooleanBuffer>,
        rows: &UnitRows,
    ) -> Result<Vec<(usize, timelake_source::ConvertedColumn)>> {
        rows.key_columns.iter().map(|c| Ok((*c, batch.column(*c, keep)?))).collect()
    }
    fn payload_arrays(
        &self,
        batch: &mut SourceBatch,
        keep: Option<&BooleanBuffer>,
        rows: &UnitRows,
    ) -> Result<Vec<(usize, timelake_source::ConvertedColumn)>> {
        rows.payload.iter().map(|p| Ok((p.column, batch.column(p.column, keep)?))).collect()
    }

    /// Counts the rows of an owned row group that no unit takes.
    fn count_left(
        &mut self,
        group: (u32, u32),
        first_row: u64,
        us: &[i64],
        timed: Option<&BooleanBuffer>,
        faults: Vec<CellFault>,
    ) -> Result<()> {
        let mut left = faults.len() as u64;
        self.out.counts.rejected += left;
        for fault in faults {
            let row = first_row + u64::from(fault.row) + 1;
            self.note(group.0, row, self.time_index, fault);
        }
        let (times, range) = (self.reading.inventory.times, self.reading.inventory.range);
        for (i, t) in us.iter().enumerate() {
            if self.load.contains(*t) || timed.is_some_and(|m| !m.value(i)) {
                continue;
            }
            left += 1;
            let row = first_row + i as u64 + 1;
            if !times.contains(*t) {
                self.out.counts.rejected += 1;
                self.out_of_times(group.0, row, *t);
            } else if !range.contains(*t) {
                self.out.counts.outside_range += 1;
            } else if self.reading.inventory.clip_retention {
                self.out.counts.outside_retention += 1;
            } else {
                self.out.counts.rejected += 1;
                self.beyond_retention(group.0, row, *t);
            }
        }
        if left > 0 {
            *self.left.entry(group).or_default() += left;
            self.out.counts.rows_read += left;
        }
        Ok(())
    }

    fn out_of_times(&mut self, object: u32, row: u64, us: i64) {
        let times = self.reading.inventory.times;
        let skipped = self.reading.options.on_out_of_range == OnOutOfRange::Skip;
        let value = TimestampUs(us).short();
        self.note_row(Reason::TimestampOutOfRange, object, row, &value, skipped, |file| {
            Error::invalid(Reason::TimestampOutOfRange, format!("{file} row {row}: {value} is outside {times}"))
                .hint("a clock was wrong, or widen --min-ts, --max-ts; --on-out-of-range skip leaves such rows out")
        });
    }

    fn beyond_retention(&mut self, object: u32, row: u64, us: i64) {
        let value = TimestampUs(us).short();
        let start = self.reading.inventory.retention_start.map_or(String::new(), |t| t.short());
        self.note_row(Reason::BeyondRetention, object, row, &value, false, |file| {
            Error::invalid(
                Reason::BeyondRetention,
                format!("{file} row {row}: {value} is before {start}, where the table's retention ends"),
            )
            .hint("--clip-retention leaves such rows out, --override-retention loads them")
        });
    }

    fn note_row(&mut self, reason: Reason, object: u32, row: u64, value: &str, skipped: bool, make: impl FnOnce(&str) -> Error) {
        let file = &self.reading.inventory.objects[object as usize].object.shown;
        let column = self.reading.spec.source_name(self.time_index);
        self.out.errors.add(BadRow { reason, column: &column, object, row, value: Some(value), skipped }, || {
            make(file).at(|p| {
                p.file = Some(file.clone());
                p.row = Some(row);
                p.column = Some(column.clone());
                p.value = Some(value.to_string());
            })
        });
    }

    fn note(&mut self, object: u32, row: u64, target: usize, fault: CellFault) {
        let found = &self.reading.inventory.objects[object as usize].object;
        let column = self.reading.spec.source_name(target);
        let skipped = fault.skipped || self.reading.options.on_bad_row == OnBadRow::Skip;
        let (reason, value) = (fault.reason, fault.value.clone());
        let spec = self.reading.spec;
        self.out.errors.add(BadRow { reason, column: &column, object, row, value: value.as_deref(), skipped }, || {
            fault.into_error(found, spec, target, Position::Row(row))
        });
    }

    /// Rows (indexes in the batch) that faults reject, each once; noted when they are ours to tell.
    fn reject(
        &mut self,
        object: u32,
        first_row: u64,
        kept: Option<&BooleanBuffer>,
        faults: Vec<(usize, CellFault)>,
        tell: bool,
    ) -> Result<Vec<usize>> {
        let in_batch: Vec<usize> = match kept {
            None => vec![],
            Some(mask) => mask.set_indices().collect(),
        };
        let mut bad = Vec::new();
        for (target, fault) in faults {
            let row = if kept.is_some() { in_batch[fault.row as usize] } else { fault.row as usize };
            bad.push(row);
            if tell {
                self.note(object, first_row + row as u64 + 1, target, fault);
            }
        }
        bad.sort_unstable();
        bad.dedup();
        Ok(bad)
    }
}

fn all_set(len: usize) -> BooleanBufferBuilder {
    let mut bits = BooleanBufferBuilder::new(len);
    bits.append_n(len, true);
    bits
}

fn without(kept: Option<&BooleanBuffer>, len: usize, bad: &[usize]) -> BooleanBuffer {
    let mut bits = match kept {
        None => all_set(len),
        Some(mask) => {
            let mut bits = BooleanBufferBuilder::new(len);
            bits.append_buffer(mask);
            bits
        }
    };
    for row in bad {
        bits.set_bit(*row, false);
    }
    bits.finish()
}

/// Which series a unit takes, decided once per distinct value of one key column.
struct Slice {
    buckets: Option<(usize, u32, Vec<u32>)>,
    range: Option<(usize, Option<String>, Option<String>)>,
}

impl Slice {
    fn new(series: &SeriesSlice, reading: &Reading, rows: &UnitRows) -> Result<Self> {
        let position = |name: &String| {
            rows.key_columns
                .iter()
                .position(|c| reading.inventory.table.columns[*c].name == *name)
                .ok_or_else(|| Error::internal(format!("{name} is no key column")))
        };
        Ok(Slice {
            buckets: series.buckets.as_ref().map(|b| position(&b.column).map(|p| (p, b.modulus, b.buckets.clone()))).transpose()?,
            range: series.range.as_ref().map(|r| position(&r.column).map(|p| (p, r.from.clone(), r.to.clone()))).transpose()?,
        })
    }

    fn mask(&self, keys: &[(usize, timelake_source::ConvertedColumn)]) -> Result<BooleanBuffer> {
        let len = keys.first().map_or(0, |(_, c)| c.array.len());
        let mut mask = BooleanBuffer::new_set(len);
        if let Some((position, modulus, buckets)) = &self.buckets {
            let inside = |values: &ArrayRef| -> Result<Vec<bool>> {
                let function = create_transform_function(&Transform::Bucket(*modulus)).map_err(internal)?;
                let found = function.transform(values.clone()).map_err(internal)?;
                let found = found.as_primitive_opt::<Int32Type>().ok_or_else(|| Error::internal("buckets are numbers"))?;
                Ok(found.iter().map(|b| b.is_some_and(|b| buckets.contains(&(b as u32)))).collect())
            };
            mask = &mask & &per_value(&keys[*position].1.array, inside)?;
        }
        if let Some((position, from, to)) = &self.range {
            let inside = |values: &ArrayRef| -> Result<Vec<bool>> {
                (0..values.len())
                    .map(|i| {
                        let text = cell_text(values, i)?;
                        Ok(from.as_ref().is_none_or(|f| text.as_bytes() >= f.as_bytes())
                            && to.as_ref().is_none_or(|t| text.as_bytes() < t.as_bytes()))
                    })
                    .collect()
            };
            mask = &mask & &per_value(&keys[*position].1.array, inside)?;
        }
        Ok(mask)
    }
}

/// Applies a test to the values of an array: once per dictionary value where there is a dictionary.
fn per_value(array: &ArrayRef, test: impl Fn(&ArrayRef) -> Result<Vec<bool>>) -> Result<BooleanBuffer> {
    match array.as_dictionary_opt::<Int32Type>() {
        Some(d) => {
            let values = test(d.values())?;
            let keys = d.keys().values();
            Ok(BooleanBuffer::collect_bool(keys.len(), |i| values[keys[i] as usize]))
        }
        None => {
            let values = test(array)?;
            Ok(BooleanBuffer::collect_bool(values.len(), |i| values[i]))
        }
    }
}
