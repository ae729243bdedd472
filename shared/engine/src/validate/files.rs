//! Every staged file is opened again from the storage: footer, partition values, unit limits, order,
//! uniqueness, key hash and bounds; with `--verify full` the checksum of every column.

use super::{Effort, ReadBack, wrong};
use crate::hash::{column_sum, key_hash};
use crate::progress::Step;
use crate::store::StoredPlan;
use crate::write::{KeyColumn, KeyLayout, Tuples};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, Scalar};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef, TimestampMicrosecondType};
use bytes::Bytes;
use hashbrown::HashSet;
use iceberg::io::{FileIO, FileRead};
use iceberg::spec::{DataFile, PrimitiveLiteral};
use iceberg::table::Table;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{self, AtomicUsize};
use std::sync::{Arc, Mutex};
use timelake_model::inventory::TableState;
use timelake_model::plan::WorkUnit;
use timelake_model::receipt::WrittenFile;
use timelake_model::verdict::Check;
use timelake_model::{Error, GroupName, Result, UnitReceipt, Window};
use timelake_table::Partitioner;
use tokio::runtime::Handle;

const BATCH_ROWS: usize = 1 << 16;
const READ_PART_BYTES: u64 = 256 << 10;
/// Findings kept; one is enough to reject.
const MAX_FINDINGS: usize = 20;

/// Checks all files on several threads. The inner result is the verdict; the outer error is a fault of the
/// check itself (storage away, interrupted).
pub fn check(
    table: &Table,
    stored: &StoredPlan,
    group: &GroupName,
    receipts: &[UnitReceipt],
    entries: &BTreeMap<String, DataFile>,
    effort: &Effort,
    runtime: &Handle,
) -> Result<Result<Vec<Check>, Vec<Error>>> {
    let units = &crate::rounds::planned(stored, group)?.units;
    let mut work: Vec<(&WorkUnit, &WrittenFile, &DataFile)> = Vec::new();
    for receipt in receipts {
        let unit = units.iter().find(|u| u.index == receipt.unit).ok_or_else(|| Error::internal("a receipt of no unit"))?;
        for file in &receipt.files {
            work.push((unit, file, entries.get(&file.path).ok_or_else(|| Error::internal("a file without entry"))?));
        }
    }
    let checker = Checker::new(table, &stored.inventory.table, effort, runtime)?;
    let next = AtomicUsize::new(0);
    let findings: Mutex<Vec<Error>> = Mutex::default();
    let fault: Mutex<Option<Error>> = Mutex::default();
    let run = || {
        while let Some((unit, file, entry)) = work.get(next.fetch_add(1, atomic::Ordering::Relaxed)) {
            match checker.file(unit, file, entry) {
                Ok(None) => {}
                Ok(Some(finding)) => {
                    if let Ok(mut list) = findings.lock() {
                        list.push(finding);
                    }
                }
                Err(e) => {
                    next.store(work.len(), atomic::Ordering::Relaxed);
                    if let Ok(mut slot) = fault.lock() {
                        slot.get_or_insert(e);
                    }
                }
            }
        }
    };
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            for _ in 0..effort.threads.max(1).min(work.len()) {
                scope.spawn(run);
            }
        })
    });
    if let Some(e) = fault.into_inner().map_err(|_| poisoned())? {
        return Err(e);
    }
    let mut findings = findings.into_inner().map_err(|_| poisoned())?;
    if !findings.is_empty() {
        findings.sort_by(|a, b| a.message.cmp(&b.message));
        findings.truncate(MAX_FINDINGS);
        return Ok(Err(findings));
    }
    let rows: u64 = work.iter().map(|(_, f, _)| f.rows).sum();
    let what = if effort.read_back == ReadBack::Everything {
        "order, uniqueness, partition values, key hash, bounds and the sum of every column"
    } else {
        "order, uniqueness, partition values, key hash and bounds"
    };
    Ok(Ok(vec![Check { name: "files".into(), detail: format!("{} files, {rows} rows read back: {what}", work.len()) }]))
}

fn poisoned() -> Error {
    Error::internal("a check panicked")
}

struct Checker<'a> {
    table: &'a Table,
    state: &'a TableState,
    layout: KeyLayout,
    /// By spec.
    partitioners: BTreeMap<i32, Partitioner>,
    effort: &'a Effort<'a>,
    runtime: &'a Handle,
    /// What is read, in the file's order: keys as dictionaries.
    schema: SchemaRef,
    names: Vec<String>,
}

impl<'a> Checker<'a> {
    fn new(table: &'a Table, state: &'a TableState, effort: &'a Effort, runtime: &'a Handle) -> Result<Self> {
        let metadata = table.metadata();
        let layout = KeyLayout::new(state)?;
        let mut partitioners = BTreeMap::new();
        let ids = [state.spec_id].into_iter().chain(state.layouts.iter().map(|l| l.spec_id));
        for spec in ids.filter_map(|id| metadata.partition_spec_by_id(id)) {
            partitioners.insert(spec.spec_id(), Partitioner::new(spec, metadata.current_schema())?);
        }
        let plain = timelake_table::writer_schema(metadata.current_schema())?;
        let keys: Vec<&str> = layout.key_columns.iter().map(|c| state.columns[*c].name.as_str()).collect();
        let fields: Vec<Field> = plain
            .fields()
            .iter()
            .map(|f| match (keys.contains(&f.name().as_str()), f.data_type()) {
                (true, DataType::Utf8) => {
                    Field::new(f.name(), DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), f.is_nullable())
                }
                _ => Field::new(f.name(), f.data_type().clone(), f.is_nullable()),
            })
            .collect();
        let wanted = |name: &str| {
            let partitions = || partitioners.values().any(|p| p.sources().any(|s| s == name));
            effort.read_back == ReadBack::Everything || name == state.contract.time_column || keys.contains(&name) || partitions()
        };
        let names = state.columns.iter().map(|c| c.name.clone()).filter(|n| wanted(n)).collect();
        Ok(Checker { table, state, layout, partitioners, effort, runtime, schema: Arc::new(Schema::new(fields)), names })
    }

    fn partitioner(&self, written: &WrittenFile) -> Result<&Partitioner> {
        self.partitioners.get(&written.spec_id).ok_or_else(|| Error::internal(format!("no partition spec {}", written.spec_id)))
    }

    /// `Some` is a finding.
    fn file(&self, unit: &WorkUnit, written: &WrittenFile, entry: &DataFile) -> Result<Option<Error>> {
        let unread = |e: iceberg::Error| match timelake_table::is_missing_file(&e) {
            true => Ok(Some(wrong(&written.path, "it is gone"))),
            false => Err(crate::write::storage_error(&written.path, &e)),
        };
        let failed = Arc::new(Mutex::new(None));
        let chunks = match FileChunks::open(self.table.file_io(), &written.path, written.bytes, self.runtime, &failed) {
            Ok(chunks) => chunks,
            Err(e) => return unread(e),
        };
        // A storage that does not answer is no wrong file.
        let finding = |what: String| match failed.lock().ok().and_then(|mut failed| failed.take()) {
            Some(e) => unread(e),
            None => Ok(Some(wrong(&written.path, what))),
        };
        let options = ArrowReaderOptions::new().with_schema(self.schema.clone()).with_skip_arrow_metadata(true);
        let builder = match ParquetRecordBatchReaderBuilder::try_new_with_options(chunks, options) {
            Ok(builder) => builder,
            Err(e) => return finding(format!("its footer does not read: {e}")),
        };
        let rows = builder.metadata().file_metadata().num_rows() as u64;
        if rows != written.rows {
            return finding(format!("its footer says {rows} rows, the unit wrote {}", written.rows));
        }
        let (spec_id, _) = self.state.files_of(unit.layout);
        if written.spec_id != spec_id {
            return finding(format!("it is written in partition spec {}, its unit in {spec_id}", written.spec_id));
        }
        if self.partitioner(written)?.texts(entry.partition()) != written.partition {
            return finding("its manifest has other partition values than the unit wrote".into());
        }
        let mask = ProjectionMask::roots(
            builder.parquet_schema(),
            self.schema.fields().iter().enumerate().filter(|(_, f)| self.names.contains(f.name())).map(|(i, _)| i).collect::<Vec<_>>(),
        );
        let reader = match builder.with_projection(mask).with_batch_size(BATCH_ROWS).build() {
            Ok(reader) => reader,
            Err(e) => return finding(format!("it does not read: {e}")),
        };
        let mut scan = Scan::new(self)?;
        for batch in reader {
            self.effort.stop.check()?;
            let batch = match batch {
                Ok(batch) => batch,
                Err(e) => return finding(format!("it does not read: {e}")),
            };
            if let Some(what) = scan.batch(&batch, unit, written)? {
                return finding(what);
            }
            self.effort.progress.advance(Step::Validate, batch.num_rows() as u64);
        }
        Ok(scan.finish(written, entry)?.map(|what| wrong(&written.path, what)))
    }
}

/// What is known of a file after some of its batches.
struct Scan<'a> {
    checker: &'a Checker<'a>,
    keys: Vec<KeyColumn>,
    series: Tuples,
    identity: Tuples,
    last: Option<(u32, i64)>,
    seen: HashSet<u64>,
    rows: u64,
    key_hash: u64,
    times: (i64, i64),
    sums: BTreeMap<String, u64>,
}

impl<'a> Scan<'a> {
    fn new(checker: &'a Checker) -> Result<Self> {
        let key_type = |c: &usize| match checker.schema.field_with_name(&checker.state.columns[*c].name).map(|f| f.data_type()) {
            Ok(DataType::Dictionary(_, value)) => KeyColumn::new(value),
            Ok(plain) => KeyColumn::new(plain),
            Err(e) => Err(Error::internal(e.to_string())),
        };
        Ok(Scan {
            keys: checker.layout.key_columns.iter().map(key_type).collect::<Result<_>>()?,
            series: Tuples::new(checker.layout.series.clone()),
            identity: Tuples::new(checker.layout.identity.clone()),
            checker,
            last: None,
            seen: HashSet::new(),
            rows: 0,
            key_hash: 0,
            times: (i64::MAX, i64::MIN),
            sums: BTreeMap::new(),
        })
    }

    fn column<'b>(&self, batch: &'b RecordBatch, name: &str) -> Result<&'b ArrayRef> {
        batch.column_by_name(name).ok_or_else(|| Error::internal(format!("column {name} was not read")))
    }

    /// `Some` says what is wrong.
    fn batch(&mut self, batch: &RecordBatch, unit: &WorkUnit, written: &WrittenFile) -> Result<Option<String>> {
        let state = self.checker.state;
        let time = self.column(batch, &state.contract.time_column)?;
        let times =
            time.as_primitive_opt::<TimestampMicrosecondType>().ok_or_else(|| Error::internal("the time column is no timestamp"))?;
        if times.null_count() > 0 {
            return Ok(Some("it has rows without a time".into()));
        }
        let times = times.values();
        let mut codes = vec![vec![]; self.keys.len()];
        for (i, c) in self.checker.layout.key_columns.iter().enumerate() {
            let column = self.column(batch, &state.columns[*c].name)?;
            if column.null_count() > 0 {
                return Ok(Some(format!("it has rows without {}", state.columns[*c].name)));
            }
            self.keys[i].intern(column, &mut codes[i])?;
        }
        let identities = self.identity.intern(&codes).into_owned();
        let hashes = self.identity.hashes(&self.keys);
        let series = if self.checker.layout.same_key { identities.clone() } else { self.series.intern(&codes).into_owned() };
        let tuples = if self.checker.layout.same_key { &self.identity } else { &self.series };
        if let Some(at) = first_outside(times, unit.window) {
            return Ok(Some(format!("row {} is outside its unit's time range", self.rows + at as u64 + 1)));
        }
        let (unique, same_key) = (self.checker.layout.unique, self.checker.layout.same_key);
        // One series after the other: what is the same for all its rows is looked at once.
        let mut start = 0;
        while start < times.len() {
            let code = series[start];
            let end = start + series[start..].iter().take_while(|other| **other == code).count();
            let order = self.last.map(|(last, before)| match last == code {
                true => before.cmp(&times[start]),
                false => tuples.compare(&self.keys, last, code),
            });
            let rank = |order: &Ordering| order.is_gt() || (order.is_eq() && unique && same_key);
            let inner = times[start..end].windows(2).map(|pair| pair[0].cmp(&pair[1])).position(|order| rank(&order));
            let wrong = order.filter(rank).map(|_| start).or(inner.map(|at| start + at + 1));
            if let Some(at) = wrong {
                let repeats = at > start && times[at - 1] == times[at] || at == start && order == Some(Ordering::Equal);
                let what = if repeats { "has the key of the row before" } else { "is out of order" };
                return Ok(Some(format!("row {} {what}", self.rows + at as u64 + 1)));
            }
            self.last = Some((code, times[end - 1]));
            start = end;
        }
        for (i, time) in times.iter().enumerate() {
            let hash = key_hash(hashes[identities[i] as usize], *time);
            self.key_hash = self.key_hash.wrapping_add(hash);
            if unique && !same_key && !self.seen.insert(hash) {
                return Ok(Some(format!("row {} has a key that is already there", self.rows + i as u64 + 1)));
            }
        }
        let limits = times.iter().fold(self.times, |(low, high), time| (low.min(*time), high.max(*time)));
        self.times = limits;
        self.rows += batch.num_rows() as u64;
        if let Some(what) = self.partition(batch, written)? {
            return Ok(Some(what));
        }
        if self.checker.effort.read_back == ReadBack::Everything {
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let plain = match field.data_type() {
                    DataType::Dictionary(_, value) => arrow::compute::cast(column, value).map_err(|e| Error::internal(e.to_string()))?,
                    _ => column.clone(),
                };
                let sum = self.sums.entry(field.name().clone()).or_default();
                *sum = sum.wrapping_add(column_sum(&plain)?);
            }
        }
        Ok(None)
    }

    /// Each row must be in the file's partition: a wrong value hides rows from readers.
    fn partition(&self, batch: &RecordBatch, written: &WrittenFile) -> Result<Option<String>> {
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let partitioner = self.checker.partitioner(written)?;
        let mut first = Vec::new();
        for (i, source) in partitioner.sources().enumerate() {
            let column = self.column(batch, source)?;
            if !one_value(partitioner, i, column)? {
                return Ok(Some(format!("its rows have several values of partition column {source}")));
            }
            first.extend(partitioner.values(i, &plain_row(column)?)?);
        }
        let texts = partitioner.texts(&iceberg::spec::Struct::from_iter(first));
        Ok((texts != written.partition).then(|| format!("its rows belong to partition {texts:?}, it is in {:?}", written.partition)))
    }

    fn finish(self, written: &WrittenFile, entry: &DataFile) -> Result<Option<String>> {
        if (self.rows, self.key_hash) != (written.rows, written.key_hash) {
            return Ok(Some(format!(
                "it has {} rows with key hash {:016x}, the unit wrote {} with {:016x}",
                self.rows, self.key_hash, written.rows, written.key_hash
            )));
        }
        if self.checker.effort.read_back == ReadBack::Everything && self.sums != written.column_sums {
            let column = written.column_sums.iter().find(|(c, sum)| self.sums.get(*c) != Some(sum)).map_or("?", |(c, _)| c);
            return Ok(Some(format!("column {column} holds other values than the unit wrote")));
        }
        let state = self.checker.state;
        let Some(time) = state.column(&state.contract.time_column) else { return Ok(None) };
        let bound = |d: Option<&iceberg::spec::Datum>| match d.map(|d| d.literal().clone()) {
            Some(PrimitiveLiteral::Long(us)) => Some(us),
            _ => None,
        };
        let (low, high) = (bound(entry.lower_bounds().get(&time.id)), bound(entry.upper_bounds().get(&time.id)));
        if low.is_some_and(|l| l > self.times.0) || high.is_some_and(|h| h < self.times.1) {
            return Ok(Some("the bounds of its time column exclude some of its rows".into()));
        }
        Ok(None)
    }
}

fn first_outside(times: &[i64], window: Window) -> Option<usize> {
    let (low, high) = (window.low(), window.high());
    if times.iter().fold(true, |all, time| all & (low <= *time) & (*time < high)) {
        return None;
    }
    times.iter().position(|time| !window.contains(*time))
}

/// Do all rows have one value of a partition field? Periods are looked at by the first and last time, dictionaries by
/// the values that occur.
fn one_value(partitioner: &Partitioner, field: usize, column: &ArrayRef) -> Result<bool> {
    let times = column.as_primitive_opt::<TimestampMicrosecondType>().filter(|times| times.null_count() == 0);
    if let (Some(period), Some(times)) = (partitioner.period(field), times) {
        let (low, high) = (arrow::compute::min(times), arrow::compute::max(times));
        return Ok(low.map(|t| period.ordinal(t)) == high.map(|t| period.ordinal(t)));
    }
    let occurring = match column.as_dictionary_opt::<Int32Type>().filter(|d| d.null_count() == 0) {
        Some(dictionary) => {
            let mut occurs = vec![false; dictionary.values().len()];
            dictionary.keys().values().iter().for_each(|key| occurs[*key as usize] = true);
            arrow::compute::filter(dictionary.values(), &BooleanArray::from(occurs)).map_err(|e| Error::internal(e.to_string()))?
        }
        None => column.clone(),
    };
    let values = partitioner.transform(field, &occurring)?;
    let one = Scalar::new(values.slice(0, 1));
    let same = not_distinct(&values, &one).map_err(|e| Error::internal(e.to_string()))?;
    Ok(same.true_count() == same.len())
}

/// The first row of a column, without dictionary.
fn plain_row(column: &ArrayRef) -> Result<ArrayRef> {
    let one = column.slice(0, 1);
    match one.data_type() {
        DataType::Dictionary(_, value) => arrow::compute::cast(&one, value).map_err(|e| Error::internal(e.to_string())),
        _ => Ok(one),
    }
}

/// A file of the table for the synchronous Parquet reader.
struct FileChunks {
    file: PartReader,
    bytes: u64,
}

/// Keeps the first read that failed: the Parquet reader keeps only its text.
#[derive(Clone)]
struct PartReader {
    reader: Arc<dyn FileRead>,
    runtime: Handle,
    failed: Arc<Mutex<Option<iceberg::Error>>>,
}

impl PartReader {
    fn read(&self, range: std::ops::Range<u64>) -> std::io::Result<Bytes> {
        self.runtime.block_on(self.reader.read(range)).map_err(|e| {
            let text = e.to_string();
            // Fewer bytes than were asked for: that is the file's fault. Of a disk the text has the number of its error.
            let is_too_short = e.kind() == iceberg::ErrorKind::DataInvalid && !text.contains("os error");
            if !is_too_short && let Ok(mut failed) = self.failed.lock() {
                failed.get_or_insert(e);
            }
            std::io::Error::other(text)
        })
    }
}

impl FileChunks {
    fn open(
        file_io: &FileIO,
        path: &str,
        bytes: u64,
        runtime: &Handle,
        failed: &Arc<Mutex<Option<iceberg::Error>>>,
    ) -> Result<FileChunks, iceberg::Error> {
        let reader = runtime.block_on(file_io.new_input(path)?.reader())?;
        Ok(FileChunks { file: PartReader { reader: reader.into(), runtime: runtime.clone(), failed: failed.clone() }, bytes })
    }
}

impl Length for FileChunks {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for FileChunks {
    type T = FromHere;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(FromHere { file: self.file.clone(), at: start, end: self.bytes, part: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        Ok(self.file.read(start..start + length as u64)?)
    }
}

/// Reads on from an offset, a part at a time.
struct FromHere {
    file: PartReader,
    at: u64,
    end: u64,
    part: Bytes,
}

impl Read for FromHere {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.part.is_empty() && self.at < self.end {
            let end = (self.at + READ_PART_BYTES).min(self.end);
            self.part = self.file.read(self.at..end)?;
            self.at = end;
        }
        let n = out.len().min(self.part.len());
        out[..n].copy_from_slice(&self.part.split_to(n));
        Ok(n)
    }
}
