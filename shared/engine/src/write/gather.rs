//! Reads row groups (or a source that is landed) and keeps the rows that are taken: converted, keyed, counted.
//!
//! A row is classified in one order, the same for every unit that reads it: no usable time or time outside
//! min/max → rejected; outside the range or retention, or in a chunk that is left out → counted; these by the row group's owner only. Then
//! the unit whose time range and series it falls in takes it, and only that unit judges its other values.

use super::errors::{BadRow, ErrorBook};
use super::rows::{Places, UnitRows, compose};
use super::slice::Slice;
use crate::land::Folds;
use arrow::array::{AsArray, BooleanBufferBuilder};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Int64Type;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use timelake_model::inventory::Inventory;
use timelake_model::plan::WorkUnit;
use timelake_model::receipt::RowGroupRows;
use timelake_model::request::{OnBadRow, OnOutOfRange, RowOptions, TimeUnit};
use timelake_model::time::Period;
use timelake_model::{Counts, Error, Reason, Result, TimestampUs, Window};
use timelake_source::{BoundObjects, CellFault, ConvertedColumn, Position, SourceBatch, SourceSpec, TimeColumn};

/// Numbers below this are no times of our days in whatever unit: they need not be explained by another one.
const START_OF_2000_US: i64 = 946_684_800_000_000;

/// What reading needs to know, besides the unit.
pub struct Reading<'a> {
    pub inventory: &'a Inventory,
    pub options: &'a RowOptions,
    pub spec: &'a Arc<SourceSpec>,
    pub bound: &'a BoundObjects,
    /// Which pass of a repeated hour a row is of, where that was inferred.
    pub folds: Option<&'a Folds>,
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
    /// Rows left out by `--on-bad-row`.
    pub bad_rows: u64,
    /// These rows, of the batches read since it was last emptied; only with `--on-bad-row quarantine`.
    pub rejected: Vec<RejectedRow>,
}

/// A row left out, as the user finds it in `rejected.ndjson`: its first fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RejectedRow {
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    pub reason: Reason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

pub fn gather(reading: &Reading, unit: &WorkUnit, rows: &mut UnitRows) -> Result<Gathered> {
    let mut gatherer = Gatherer::new(reading, unit, rows)?;
    for input in &unit.inputs {
        let missing = || Error::internal(format!("source object {} was not opened", input.object));
        let bound = reading.bound.get(&input.object).ok_or_else(missing)?;
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
    Ok(gatherer.finish())
}

pub struct Gatherer<'a> {
    reading: &'a Reading<'a>,
    unit: &'a WorkUnit,
    slice: Slice,
    pub out: Gathered,
    taken: BTreeMap<(u32, u32), u64>,
    left: BTreeMap<(u32, u32), u64>,
    /// Rows of the batch at hand that `--on-bad-row` leaves out.
    left_out: Vec<RejectedRow>,
    time_index: usize,
    /// What any unit of the plan loads.
    load: Window,
    /// The table's period, when some of its chunks are left out.
    skipping: Option<Period>,
}

/// A batch and where it is from.
struct At<'a> {
    object: u32,
    /// Index of the source file, for source order.
    source: u32,
    file: &'a str,
    row_group: u32,
}

impl<'a> Gatherer<'a> {
    pub fn new(reading: &'a Reading<'a>, unit: &'a WorkUnit, rows: &UnitRows) -> Result<Self> {
        let table = &reading.inventory.table;
        let time_index =
            table.columns.iter().position(|c| c.name == table.contract.time_column).ok_or_else(|| Error::internal("no time column"))?;
        Ok(Gatherer {
            reading,
            unit,
            slice: Slice::new(&unit.series, table, rows)?,
            out: Gathered::default(),
            taken: BTreeMap::new(),
            left: BTreeMap::new(),
            left_out: vec![],
            time_index,
            load: reading.inventory.window(),
            skipping: (!reading.inventory.skipped_chunks.is_empty()).then(|| table.period()),
        })
    }

    pub fn finish(mut self) -> Gathered {
        let flat = |map: BTreeMap<(u32, u32), u64>| {
            map.into_iter().map(|((object, row_group), rows)| RowGroupRows { object, row_group, rows }).collect()
        };
        self.out.taken = flat(self.taken);
        self.out.left = flat(self.left);
        self.out
    }

    /// Takes the unit's rows of one batch. `owns`: counts those that no unit takes.
    pub fn batch(&mut self, object: u32, batch: &mut SourceBatch, owns: bool, rows: &mut UnitRows) -> Result<()> {
        let inventory = self.reading.inventory;
        let file = inventory.objects.get(object as usize).map_or("", |o| o.object.shown.as_str());
        let at = At { object, source: inventory.source_of(object), file, row_group: batch.row_group };
        self.take(&at, batch, owns, rows)?;
        // Columns are judged one after the other; the list is in source order, each row once.
        let mut left_out = std::mem::take(&mut self.left_out);
        left_out.sort_by_key(|r| r.line.or(r.row));
        left_out.dedup_by_key(|r| r.line.or(r.row));
        self.out.bad_rows += left_out.len() as u64;
        if self.reading.options.on_bad_row == OnBadRow::Quarantine {
            self.out.rejected.append(&mut left_out);
        }
        Ok(())
    }

    fn take(&mut self, at: &At, batch: &mut SourceBatch, owns: bool, rows: &mut UnitRows) -> Result<()> {
        let len = batch.rows();
        if owns {
            self.bad_records(at, batch)?;
        }
        let mut times = batch.times()?;
        self.resolve_folds(at, batch, &mut times, rows)?;

        // Rows without a usable time.
        let mut timed: Option<BooleanBufferBuilder> = None;
        for fault in &times.faults {
            let bits = timed.get_or_insert_with(|| all_set(len));
            bits.set_bit(fault.row as usize, false);
        }
        let timed = timed.map(|mut b| b.finish());
        if owns {
            self.count_left(at, batch, &times.us, timed.as_ref(), std::mem::take(&mut times.faults))?;
        }

        // The unit's time range.
        let window = self.unit.window;
        let (low, high) = (window.low(), window.high());
        let in_time = match &timed {
            None if all_between(&times.us, low, high) => None,
            None => Some(BooleanBuffer::collect_bool(len, |i| low <= times.us[i] && times.us[i] < high)),
            Some(ok) => Some(BooleanBuffer::collect_bool(len, |i| ok.value(i) && low <= times.us[i] && times.us[i] < high)),
        };
        let in_time = match self.skipping {
            None => in_time,
            Some(_) => {
                Some(BooleanBuffer::collect_bool(len, |i| in_time.as_ref().is_none_or(|m| m.value(i)) && !self.is_skipped(times.us[i])))
            }
        };
        if len == 0 || window.is_empty() || in_time.as_ref().is_some_and(|m| m.count_set_bits() == 0) {
            return Ok(());
        }

        // Keys: rows without one go to the slice that takes unkeyed rows; then the slice.
        let mut taken = in_time;
        let mut rejected = 0u64;
        let mut keys = rows.key_arrays(batch, taken.as_ref())?;
        let faults = faults_of(&mut keys);
        if !faults.is_empty() {
            let ours = self.unit.series.takes_unkeyed();
            let bad = self.reject(at, batch, taken.as_ref(), faults, ours)?;
            rejected += if ours { bad.len() as u64 } else { 0 };
            taken = Some(without(taken.as_ref(), len, &bad));
            keys = rows.key_arrays(batch, taken.as_ref())?;
        }
        if !self.unit.series.is_all() {
            let mask = self.slice.mask(&keys)?;
            if mask.count_set_bits() < mask.len() {
                taken = Some(compose(taken.as_ref(), len, &mask));
                keys = rows.key_arrays(batch, taken.as_ref())?;
            }
        }

        // Payload: a bad cell rejects its row, and the row's other cells with it.
        let mut payload = rows.payload_arrays(batch, taken.as_ref())?;
        let faults = faults_of(&mut payload);
        if !faults.is_empty() {
            let bad = self.reject(at, batch, taken.as_ref(), faults, true)?;
            rejected += bad.len() as u64;
            taken = Some(without(taken.as_ref(), len, &bad));
            keys = rows.key_arrays(batch, taken.as_ref())?;
            payload = rows.payload_arrays(batch, taken.as_ref())?;
        }

        let kept = taken.as_ref().map_or(len, BooleanBuffer::count_set_bits);
        self.out.counts.rejected += rejected;
        self.out.counts.rows_read += rejected + kept as u64;
        *self.taken.entry((at.object, at.row_group)).or_default() += rejected + kept as u64;
        if kept == 0 {
            return Ok(());
        }
        if rows.len() + kept > u32::MAX as usize {
            return Err(Error::internal("a unit of more than 2^32 rows"));
        }
        self.count_notes(&times, taken.as_ref(), &payload);
        let start = rows.len();
        let places = self.places(at, batch, taken.as_ref(), rows)?;
        rows.begin_piece(at.source, places);
        match &taken {
            None => rows.times.extend_from_slice(&times.us),
            Some(mask) => rows.times.extend(mask.set_indices().map(|i| times.us[i])),
        }
        for (i, (_, column)) in keys.into_iter().enumerate() {
            rows.keys[i].intern(&column.array, &mut rows.codes[i])?;
        }
        for (slot, (_, column)) in rows.payload.iter_mut().zip(payload) {
            slot.push(column.array, start)?;
        }
        Ok(())
    }

    /// What was done to the values of taken rows.
    fn count_notes(&mut self, times: &TimeColumn, taken: Option<&BooleanBuffer>, payload: &[(usize, ConvertedColumn)]) {
        let counts = &mut self.out.counts;
        if let Some(lost_digits) = &times.truncated {
            counts.precision_truncated += match taken {
                None => lost_digits.count_set_bits(),
                Some(mask) => (mask & lost_digits).count_set_bits(),
            } as u64;
        }
        let is_taken = |row: &&u32| taken.is_none_or(|mask| mask.value(**row as usize));
        counts.leap_seconds += times.leap_seconds.iter().filter(is_taken).count() as u64;
        for (column, converted) in payload {
            counts.precision_truncated += converted.truncated;
            counts.leap_seconds += converted.leap_seconds;
            if converted.nulled > 0 {
                let name = self.reading.inventory.table.columns[*column].name.clone();
                *counts.nulled.entry(name).or_default() += converted.nulled;
            }
        }
    }

    /// Where the taken rows are in their source.
    fn places(&self, at: &At, batch: &mut SourceBatch, taken: Option<&BooleanBuffer>, rows: &UnitRows) -> Result<Places> {
        let is_run = self.reading.inventory.objects.get(at.object as usize).is_some_and(|o| o.run_of.is_some());
        if is_run {
            let column = batch.column(self.reading.inventory.table.columns.len(), taken)?;
            let numbers = column.array.as_primitive_opt::<Int64Type>().ok_or_else(|| Error::internal("a run without places"))?;
            return Ok(Places::Listed(numbers.values().iter().map(|n| *n as u64).collect()));
        }
        if rows.lists_places {
            let number = |row: usize| batch.position(row).number();
            return Ok(Places::Listed(match taken {
                None => (0..batch.rows()).map(number).collect(),
                Some(mask) => mask.set_indices().map(number).collect(),
            }));
        }
        Ok(Places::Counted { first_row: batch.first_row, taken: taken.cloned() })
    }

    /// Records that are no rows: they end here.
    fn bad_records(&mut self, at: &At, batch: &SourceBatch) -> Result<()> {
        self.out.counts.repeated_headers += batch.repeated_headers;
        for bad in &batch.bad_records {
            self.out.counts.rows_read += 1;
            self.out.counts.rejected += 1;
            *self.left.entry((at.object, at.row_group)).or_default() += 1;
            let error = bad.error.clone();
            let column = error.place.column.clone().unwrap_or_default();
            let value = error.place.value.clone();
            let skipped = self.reading.options.on_bad_row != OnBadRow::Error;
            self.leave_out(at, bad.position, bad.reason, Some(&column), value.as_deref(), skipped);
            let number = bad.position.number();
            let bad = BadRow { reason: bad.reason, column: &column, object: at.source, row: number, value: value.as_deref(), skipped };
            self.out.errors.add(bad, || error);
        }
        Ok(())
    }

    /// Rows of a repeated hour get the instant that the order of their series tells, or a fault.
    fn resolve_folds(&mut self, at: &At, batch: &mut SourceBatch, times: &mut TimeColumn, rows: &UnitRows) -> Result<()> {
        if times.folds.is_empty() {
            return Ok(());
        }
        let folds = std::mem::take(&mut times.folds);
        let mut mask = BooleanBufferBuilder::new(batch.rows());
        mask.append_n(batch.rows(), false);
        folds.iter().for_each(|fold| mask.set_bit(fold.row as usize, true));
        let series = crate::land::series_texts(&rows.key_arrays(batch, Some(&mask.finish()))?, rows)?;
        let mut us = times.us.to_vec();
        for (fold, series) in folds.iter().zip(&series) {
            let Some(series) = series else { continue }; // its key is at fault, which is told instead
            let position = batch.position(fold.row as usize).number();
            match self.reading.folds.and_then(|known| known.instant(series, fold, (at.source, position))) {
                Some(instant) => us[fold.row as usize] = instant,
                None => times.faults.push(fold.unclear()),
            }
        }
        times.us = us.into();
        times.faults.sort_by_key(|fault| fault.row);
        Ok(())
    }

    /// Counts the rows of an owned row group that no unit takes.
    fn count_left(
        &mut self,
        at: &At,
        batch: &SourceBatch,
        us: &[i64],
        timed: Option<&BooleanBuffer>,
        faults: Vec<CellFault>,
    ) -> Result<()> {
        let mut left = faults.len() as u64;
        self.out.counts.rejected += left;
        for fault in faults {
            let position = batch.position(fault.row as usize);
            self.note(at, position, self.time_index, fault);
        }
        let (times, range) = (self.reading.inventory.times, self.reading.inventory.range);
        let all_load = self.skipping.is_none() && all_between(us, self.load.low(), self.load.high());
        let us = if all_load { &[] } else { us };
        for (i, t) in us.iter().enumerate() {
            let loads = self.load.contains(*t);
            if loads && self.skipping.is_none() || timed.is_some_and(|m| !m.value(i)) {
                continue;
            }
            if loads && !self.is_skipped(*t) {
                continue;
            }
            left += 1;
            if loads {
                self.out.counts.skipped_chunk += 1;
            } else if !times.contains(*t) {
                self.out.counts.rejected += 1;
                self.out_of_times(at, batch, i, *t);
            } else if !range.contains(*t) {
                self.out.counts.outside_range += 1;
            } else if self.reading.inventory.clip_retention {
                self.out.counts.outside_retention += 1;
            } else {
                self.out.counts.rejected += 1;
                self.beyond_retention(at, batch, i, *t);
            }
        }
        if left > 0 {
            *self.left.entry((at.object, at.row_group)).or_default() += left;
            self.out.counts.rows_read += left;
        }
        Ok(())
    }

    /// Is the time in a chunk that is left out?
    fn is_skipped(&self, us: i64) -> bool {
        self.skipping.is_some_and(|period| self.reading.inventory.skipped_chunks.contains(&period.ordinal(us)))
    }

    fn out_of_times(&mut self, at: &At, batch: &SourceBatch, row: usize, us: i64) {
        let times = self.reading.inventory.times;
        let skipped = self.reading.options.on_out_of_range == OnOutOfRange::Skip;
        let unit = self.reading.options.ts_unit.and_then(|given| other_unit(given, us, &times));
        self.note_time(Reason::TimestampOutOfRange, at, batch, (row, us), skipped, |place| {
            let hint = "a clock was wrong, or widen --min-ts, --max-ts; --on-out-of-range skip leaves such rows out";
            Error::invalid(Reason::TimestampOutOfRange, format!("{place} is outside {times}")).hint(match unit {
                Some(unit) => format!("it would be a time with --ts-unit {unit}; else {hint}"),
                None => hint.to_string(),
            })
        });
    }

    fn beyond_retention(&mut self, at: &At, batch: &SourceBatch, row: usize, us: i64) {
        let start = self.reading.inventory.retention_start.map_or(String::new(), |t| t.short());
        self.note_time(Reason::BeyondRetention, at, batch, (row, us), false, |place| {
            Error::invalid(Reason::BeyondRetention, format!("{place} is before {start}, where the table's retention ends"))
                .hint("--clip-retention leaves such rows out, --override-retention loads them")
        });
    }

    fn note_time(
        &mut self,
        reason: Reason,
        at: &At,
        batch: &SourceBatch,
        (row, us): (usize, i64),
        skipped: bool,
        make: impl FnOnce(&str) -> Error,
    ) {
        let column = self.reading.spec.source_name(self.time_index);
        let position = batch.position(row);
        let value = batch.time_text(row).unwrap_or_else(|| TimestampUs(us).short());
        let bad = BadRow { reason, column: &column, object: at.source, row: position.number(), value: Some(&value), skipped };
        self.out.errors.add(bad, || {
            make(&format!("{}, {position}, column {column}: {value}", at.file)).at(|p| {
                p.file = Some(at.file.to_string());
                position.mark(p);
                p.column = Some(column.clone());
                p.value = Some(value.clone());
            })
        });
    }

    fn note(&mut self, at: &At, position: Position, target: usize, fault: CellFault) {
        let column = self.reading.spec.source_name(target);
        let options = self.reading.options;
        // Times out of range have their own option.
        let by_policy = match fault.reason {
            Reason::TimestampOutOfRange => options.on_out_of_range == OnOutOfRange::Skip,
            _ => options.on_bad_row != OnBadRow::Error,
        };
        let skipped = fault.skipped || by_policy;
        let (reason, value) = (fault.reason, fault.value.clone());
        if !fault.skipped && reason != Reason::TimestampOutOfRange {
            self.leave_out(at, position, reason, Some(&column), value.as_deref(), skipped);
        }
        let spec = self.reading.spec;
        let Some(found) = self.reading.inventory.objects.get(at.object as usize) else { return };
        let bad = BadRow { reason, column: &column, object: at.source, row: position.number(), value: value.as_deref(), skipped };
        self.out.errors.add(bad, || fault.into_error(&found.object, spec, target, position));
    }

    /// A row that `--on-bad-row` leaves out.
    fn leave_out(&mut self, at: &At, position: Position, reason: Reason, column: Option<&str>, value: Option<&str>, skipped: bool) {
        if !skipped {
            return;
        }
        let mut row = RejectedRow {
            file: at.file.to_string(),
            line: None,
            row: None,
            reason,
            column: column.filter(|c| !c.is_empty()).map(str::to_string),
            value: value.map(str::to_string),
        };
        match position {
            Position::Line(line) => row.line = Some(line),
            Position::Row(number) => row.row = Some(number),
        }
        self.left_out.push(row);
    }

    /// Rows (indexes in the batch) that faults reject, each once; noted when they are ours to tell.
    fn reject(
        &mut self,
        at: &At,
        batch: &SourceBatch,
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
                self.note(at, batch.position(row), target, fault);
            }
        }
        bad.sort_unstable();
        bad.dedup();
        Ok(bad)
    }
}

/// `low` is in, `high` is not. Without a way out at the first that is not: so it takes many at a time.
fn all_between(us: &[i64], low: i64, high: i64) -> bool {
    us.iter().fold(true, |all, t| all & (low <= *t) & (*t < high))
}

fn faults_of(columns: &mut [(usize, ConvertedColumn)]) -> Vec<(usize, CellFault)> {
    columns.iter_mut().flat_map(|(target, column)| std::mem::take(&mut column.faults).into_iter().map(|f| (*target, f))).collect()
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

/// The unit in which a number that was read in another one is a time of our days.
fn other_unit(given: TimeUnit, us: i64, times: &Window) -> Option<&'static str> {
    let nanos = |unit: TimeUnit| match unit {
        TimeUnit::Seconds => 1_000_000_000_i128,
        TimeUnit::Millis => 1_000_000,
        TimeUnit::Micros => 1_000,
        TimeUnit::Nanos => 1,
    };
    let units = [(TimeUnit::Seconds, "s"), (TimeUnit::Millis, "ms"), (TimeUnit::Micros, "us"), (TimeUnit::Nanos, "ns")];
    units.into_iter().filter(|(unit, _)| *unit != given).find_map(|(unit, name)| {
        let read = i64::try_from(i128::from(us) * nanos(unit) / nanos(given)).ok()?;
        (read >= START_OF_2000_US && times.contains(read)).then_some(name)
    })
}
