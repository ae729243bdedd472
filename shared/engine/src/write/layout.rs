//! Final layout: rows in sort order, cut into partitions, each partition's rows into files.
//!
//! A partition gets one file; more only when the target size is reached, and then at a change of series, so
//! that the files hold disjoint ranges of series.

use super::keys::internal;
use super::rows::{Column, UnitRows};
use super::sink::FileSink;
use crate::hash::{column_sum, key_hash, nan_count};
use arrow::array::{Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch, TimestampMicrosecondArray, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use hashbrown::HashMap;
use iceberg::spec::{DataFile, Literal, PartitionSpec, Struct};
use iceberg::table::Table;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use timelake_model::inventory::TableState;
use timelake_model::receipt::WrittenFile;
use timelake_model::{ColumnType, Error, Result};
use timelake_table::{MetricsModes, Partitioner, Written};

/// Rows gathered and encoded at a time; fewer when the target file is small, since the size is looked at in between.
const MAX_CHUNK_ROWS: u64 = 1 << 16;
const MIN_CHUNK_ROWS: u64 = 1 << 10;
/// Rows of a row group, unless rows are wide.
const MAX_ROW_GROUP_ROWS: u64 = 1 << 20;
/// Decoded bytes of a row group.
const MAX_ROW_GROUP_BYTES: u64 = 128 << 20;
/// A further file of a partition is only begun for at least this much.
const MIN_FILE_BYTES: u64 = 64 << 20;
const DEFAULT_ZSTD_LEVEL: i32 = 3;

/// What a unit's files are made for.
pub struct Target<'a> {
    pub table: &'a Table,
    pub state: &'a TableState,
    pub row_bytes: u64,
    pub target_file_bytes: u64,
    pub spec: &'a PartitionSpec,
    /// First part of file names: job, unit and attempt.
    pub file_prefix: &'a str,
    pub runtime: &'a tokio::runtime::Handle,
    pub check_stop: &'a (dyn Fn() -> Result<()> + Sync),
    pub stored: &'a dyn Fn(&RecordBatch),
}

/// A written file: for the manifest, and for the receipt.
pub struct FileOut {
    pub data_file: DataFile,
    pub written: WrittenFile,
}

/// Writes the rows `order` (row numbers in final sort order) into files.
pub fn write(target: &Target, mut rows: UnitRows, order: Vec<u32>) -> Result<Vec<FileOut>> {
    if order.is_empty() {
        return Ok(vec![]);
    }
    let payload: Vec<(usize, Column)> =
        std::mem::take(&mut rows.payload).into_iter().map(|p| Ok((p.column, Column::new(p)?))).collect::<Result<_>>()?;
    let metadata = target.table.metadata();
    let partitioner = Partitioner::new(target.spec, metadata.current_schema())?;
    let partitions = partition(&partitioner, target.state, &rows, &payload, order)?;
    let writer = Writer::new(target, &partitioner, &rows, &payload)?;
    let mut out = Vec::new();
    for (values, rows_of) in partitions {
        writer.partition(&values, &rows_of, &mut out)?;
    }
    Ok(out)
}

/// Partition values and their rows in sort order; partitions by path, so that files come in one order.
fn partition(
    partitioner: &Partitioner,
    state: &TableState,
    rows: &UnitRows,
    payload: &[(usize, Column)],
    order: Vec<u32>,
) -> Result<Vec<(Struct, Vec<u32>)>> {
    if partitioner.is_empty() {
        return Ok(vec![(Struct::empty(), order)]);
    }
    let fields: Vec<FieldIds> = partitioner
        .sources()
        .enumerate()
        .map(|(i, source)| FieldIds::new(partitioner, i, source, state, rows, payload))
        .collect::<Result<_>>()?;
    let mut ids: HashMap<Box<[u32]>, u32> = HashMap::new();
    let mut found: Vec<(Struct, u32)> = Vec::new();
    let mut tuple = vec![0u32; fields.len()];
    let mut last: Option<u32> = None;
    let mut of_row: Vec<u32> = Vec::with_capacity(order.len());
    for row in &order {
        let mut same = last.is_some();
        for (slot, field) in tuple.iter_mut().zip(&fields) {
            let id = field.id(*row, rows);
            same &= *slot == id;
            *slot = id;
        }
        let partition = match (same, last) {
            (true, Some(partition)) => partition,
            _ => match ids.get(&tuple[..]) {
                Some(partition) => *partition,
                None => {
                    let partition = found.len() as u32;
                    let values = Struct::from_iter(fields.iter().zip(&tuple).map(|(f, id)| f.literals[*id as usize].clone()));
                    found.push((values, 0));
                    ids.insert(tuple.clone().into(), partition);
                    partition
                }
            },
        };
        found[partition as usize].1 += 1;
        last = Some(partition);
        of_row.push(partition);
    }
    if let [(values, _)] = &found[..] {
        return Ok(vec![(values.clone(), order)]);
    }
    let mut lists: Vec<Vec<u32>> = found.iter().map(|(_, n)| Vec::with_capacity(*n as usize)).collect();
    for (row, partition) in order.iter().zip(of_row) {
        lists[partition as usize].push(*row);
    }
    let mut out: Vec<(Struct, Vec<u32>)> = found.into_iter().map(|(v, _)| v).zip(lists).collect();
    out.sort_by_cached_key(|(values, _)| partitioner.path(values));
    Ok(out)
}

/// One partition field's values as small numbers.
struct FieldIds {
    literals: Vec<Option<Literal>>,
    from: IdsFrom,
}
enum IdsFrom {
    /// By the code of a key column.
    Key(usize, Vec<u32>),
    /// By row.
    Rows(Vec<u32>),
}

impl FieldIds {
    fn new(
        partitioner: &Partitioner,
        field: usize,
        source: &str,
        state: &TableState,
        rows: &UnitRows,
        payload: &[(usize, Column)],
    ) -> Result<Self> {
        let column = state.columns.iter().position(|c| c.name == source).ok_or_else(|| Error::internal(format!("no column {source}")))?;
        let number = |values: Vec<Option<Literal>>| {
            let mut known: HashMap<Option<Literal>, u32> = HashMap::new();
            let mut literals = Vec::new();
            let ids: Vec<u32> = values
                .into_iter()
                .map(|v| {
                    *known.entry(v).or_insert_with_key(|v| {
                        literals.push(v.clone());
                        literals.len() as u32 - 1
                    })
                })
                .collect();
            (literals, ids)
        };
        if let Some(key) = rows.key_columns.iter().position(|c| *c == column) {
            let (literals, ids) = number(partitioner.values(field, &rows.keys[key].values()?)?);
            return Ok(FieldIds { literals, from: IdsFrom::Key(key, ids) });
        }
        if source == state.contract.time_column {
            if let Some(period) = partitioner.period(field) {
                return Self::by_period(partitioner, field, period, rows);
            }
            let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(rows.times.clone()).with_timezone("+00:00"));
            let (literals, ids) = number(partitioner.values(field, &times)?);
            return Ok(FieldIds { literals, from: IdsFrom::Rows(ids) });
        }
        let (_, found) = payload.iter().find(|(c, _)| *c == column).ok_or_else(|| Error::internal(format!("no values of {source}")))?;
        let (literals, ids) = number(partitioner.values(field, &found.whole()?)?);
        Ok(FieldIds { literals, from: IdsFrom::Rows(ids) })
    }

    /// Calendar periods: one transform per period instead of one per row.
    fn by_period(partitioner: &Partitioner, field: usize, period: timelake_model::time::Period, rows: &UnitRows) -> Result<Self> {
        let mut known: HashMap<i64, u32> = HashMap::new();
        let mut starts: Vec<i64> = Vec::new();
        let (mut low, mut high, mut id) = (i64::MAX, i64::MIN, 0u32);
        let ids = rows
            .times
            .iter()
            .map(|t| {
                if !(low <= *t && *t < high) {
                    let ordinal = period.ordinal(*t);
                    (low, high) = (period.start(ordinal), period.start(ordinal + 1));
                    id = *known.entry(ordinal).or_insert_with(|| {
                        starts.push(low);
                        starts.len() as u32 - 1
                    });
                }
                id
            })
            .collect();
        let starts: ArrayRef = Arc::new(TimestampMicrosecondArray::from(starts).with_timezone("+00:00"));
        Ok(FieldIds { literals: partitioner.values(field, &starts)?, from: IdsFrom::Rows(ids) })
    }

    fn id(&self, row: u32, rows: &UnitRows) -> u32 {
        match &self.from {
            IdsFrom::Key(key, ids) => ids[rows.codes[*key][row as usize] as usize],
            IdsFrom::Rows(ids) => ids[row as usize],
        }
    }
}

/// A table column of the batches to write.
enum Out {
    Time,
    /// Key position; written as a dictionary where the type is text.
    Key(usize),
    Payload(usize),
    /// A nested column, which the source cannot give.
    Null(DataType),
}

struct Writer<'a> {
    target: &'a Target<'a>,
    partitioner: &'a Partitioner,
    rows: &'a UnitRows,
    payload: &'a [(usize, Column)],
    outs: Vec<Out>,
    schema: SchemaRef,
    options: ArrowWriterOptions,
    modes: MetricsModes,
    /// Values of key columns by code, and their checksums.
    key_values: Vec<(ArrayRef, Vec<u64>)>,
    identities: Cow<'a, [u32]>,
    identity_hashes: Vec<u64>,
    series: Cow<'a, [u32]>,
}

impl<'a> Writer<'a> {
    fn new(target: &'a Target, partitioner: &'a Partitioner, rows: &'a UnitRows, payload: &'a [(usize, Column)]) -> Result<Self> {
        let metadata = target.table.metadata();
        let iceberg_schema = metadata.current_schema();
        let plain = timelake_table::writer_schema(iceberg_schema)?;
        let state = target.state;
        let (mut outs, mut fields) = (Vec::new(), Vec::new());
        for field in plain.fields() {
            let column = state.columns.iter().position(|c| c.name == *field.name());
            let (out, data_type) = match column {
                Some(c) if state.columns[c].name == state.contract.time_column => (Out::Time, field.data_type().clone()),
                Some(c) => match (rows.key_columns.iter().position(|k| *k == c), payload.iter().position(|(p, _)| *p == c)) {
                    (Some(key), _) if *field.data_type() == DataType::Utf8 => {
                        (Out::Key(key), DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)))
                    }
                    (Some(key), _) => (Out::Key(key), field.data_type().clone()),
                    (_, Some(p)) => (Out::Payload(p), field.data_type().clone()),
                    _ => return Err(Error::internal(format!("column {} is neither key nor payload", field.name()))),
                },
                None => (Out::Null(field.data_type().clone()), field.data_type().clone()),
            };
            outs.push(out);
            fields.push(Field::new(field.name(), data_type, field.is_nullable()).with_metadata(field.metadata().clone()));
        }
        let parquet_schema = timelake_table::parquet_schema(iceberg_schema)?;
        let properties = properties(target, &parquet_schema)?;
        let options =
            ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true).with_parquet_schema(parquet_schema);
        let key_values = rows
            .keys
            .iter()
            .map(|k| {
                let values = k.values()?;
                let sums = (0..values.len()).map(|i| column_sum(&values.slice(i, 1))).collect::<Result<Vec<_>>>()?;
                Ok((values, sums))
            })
            .collect::<Result<_>>()?;
        let (identities, series) = (rows.identity.lookup(&rows.codes), rows.series_codes());
        Ok(Writer {
            target,
            partitioner,
            rows,
            payload,
            outs,
            schema: Arc::new(Schema::new(fields)),
            options,
            modes: MetricsModes::from_properties(metadata.properties(), iceberg_schema, metadata.default_sort_order())?,
            key_values,
            identities,
            identity_hashes: rows.identity.hashes(&rows.keys),
            series,
        })
    }

    /// Writes one partition's rows.
    fn partition(&self, values: &Struct, rows: &[u32], out: &mut Vec<FileOut>) -> Result<()> {
        let mut at = 0;
        while at < rows.len() {
            at += self.file(values, &rows[at..], out)?;
        }
        Ok(())
    }

    /// Writes one file from the front of `rows`; returns how many rows it holds.
    fn file(&self, values: &Struct, rows: &[u32], out: &mut Vec<FileOut>) -> Result<usize> {
        let folder = self.partitioner.path(values);
        let location = self.target.table.metadata().location().trim_end_matches('/');
        let slash = if folder.is_empty() { "" } else { "/" };
        let path = format!("{location}/data/{folder}{slash}{}-{:03}.parquet", self.target.file_prefix, out.len());
        let sink = FileSink::open(self.target.table.file_io(), &path, self.target.runtime)?;
        let mut writer = ArrowWriter::try_new_with_options(sink, self.schema.clone(), self.options.clone()).map_err(write_error(&path))?;
        let mut sums = Sums::new(self);
        // A row takes about an eighth of its memory in the file; a tenth of the target between two looks.
        let tenth = self.target.target_file_bytes / 10 / (self.target.row_bytes / 8).max(1);
        let chunk_rows = tenth.clamp(MIN_CHUNK_ROWS, MAX_CHUNK_ROWS) as usize;
        let (mut at, mut full) = (0, false);
        while at < rows.len() {
            (self.target.check_stop)()?;
            let mut end = (at + chunk_rows).min(rows.len());
            if full {
                // The target is reached: the file ends with its series.
                let series = |row: u32| self.series[row as usize];
                match (at..end).find(|i| series(rows[*i]) != series(rows[*i - 1])) {
                    Some(change) if change == at => break,
                    Some(change) => end = change,
                    None => {}
                }
            }
            let batch = self.batch(&rows[at..end], &mut sums)?;
            writer.write(&batch).map_err(write_error(&path))?;
            (self.target.stored)(&batch);
            at = end;
            let bytes = (writer.bytes_written() + writer.in_progress_size()) as u64;
            let rest = bytes / at as u64 * (rows.len() - at) as u64;
            full = full || (bytes >= self.target.target_file_bytes && rest >= MIN_FILE_BYTES.min(self.target.target_file_bytes));
        }
        let footer = writer.finish().map_err(write_error(&path))?;
        let bytes = writer.inner_mut().close()?;
        let metadata = self.target.table.metadata();
        let written = Written {
            path: path.clone(),
            bytes,
            spec_id: self.target.spec.spec_id(),
            partition: values.clone(),
            sort_order_id: self.target.state.sort_order_id,
            nan_counts: sums.nans,
        };
        let data_file = timelake_table::data_file(metadata.current_schema(), &footer, written, &self.modes)?;
        out.push(FileOut {
            data_file,
            written: WrittenFile {
                path,
                bytes,
                rows: at as u64,
                spec_id: self.target.spec.spec_id(),
                partition: self.partitioner.texts(values),
                key_hash: sums.key_hash,
                column_sums: sums.columns,
            },
        });
        Ok(at)
    }

    fn batch(&self, rows: &[u32], sums: &mut Sums) -> Result<RecordBatch> {
        let state = self.target.state;
        for row in rows {
            let identity = self.identity_hashes[self.identities[*row as usize] as usize];
            sums.key_hash = sums.key_hash.wrapping_add(key_hash(identity, self.rows.times[*row as usize]));
        }
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.outs.len());
        for (out, field) in self.outs.iter().zip(self.schema.fields()) {
            columns.push(match out {
                Out::Time => {
                    let times: Vec<i64> = rows.iter().map(|r| self.rows.times[*r as usize]).collect();
                    let array: ArrayRef = Arc::new(TimestampMicrosecondArray::from(times).with_timezone("+00:00"));
                    sums.add(&state.contract.time_column, column_sum(&array)?);
                    array
                }
                Out::Key(key) => {
                    let codes: Vec<i32> = rows.iter().map(|r| self.rows.codes[*key][*r as usize] as i32).collect();
                    let (values, checks) = &self.key_values[*key];
                    sums.add(field.name(), codes.iter().fold(0u64, |s, c| s.wrapping_add(checks[*c as usize])));
                    match field.data_type() {
                        DataType::Dictionary(..) => {
                            Arc::new(DictionaryArray::try_new(Int32Array::from(codes), values.clone()).map_err(internal)?)
                        }
                        _ => take(values, &Int32Array::from(codes), None).map_err(internal)?,
                    }
                }
                Out::Payload(p) => {
                    let array = self.payload[*p].1.take(rows)?;
                    sums.add(field.name(), column_sum(&array)?);
                    let id = state.columns[self.payload[*p].0].id;
                    if matches!(state.columns[self.payload[*p].0].column_type, ColumnType::Float | ColumnType::Double) {
                        *sums.nans.entry(id).or_default() += nan_count(&array);
                    }
                    array
                }
                Out::Null(data_type) => new_null_array(data_type, rows.len()),
            });
        }
        RecordBatch::try_new(self.schema.clone(), columns).map_err(internal)
    }
}

/// Checksums of a file.
struct Sums {
    key_hash: u64,
    columns: BTreeMap<String, u64>,
    nans: std::collections::HashMap<i32, u64>,
}

impl Sums {
    fn new(writer: &Writer) -> Self {
        let floats = writer.target.state.columns.iter().filter(|c| matches!(c.column_type, ColumnType::Float | ColumnType::Double));
        Sums { key_hash: 0, columns: BTreeMap::new(), nans: floats.map(|c| (c.id, 0)).collect() }
    }
    fn add(&mut self, column: &str, sum: u64) {
        match self.columns.get_mut(column) {
            Some(known) => *known = known.wrapping_add(sum),
            None => {
                self.columns.insert(column.to_string(), sum);
            }
        }
    }
}

fn write_error(path: &str) -> impl Fn(parquet::errors::ParquetError) -> Error + '_ {
    move |e| match &e {
        parquet::errors::ParquetError::External(cause) => super::sink::storage_error(path, cause.as_ref()),
        other => Error::internal(format!("encoding {path}: {other}")),
    }
}

/// Parquet properties: what the table says, else zstd level 3; nothing that depends on when or where.
fn properties(target: &Target, schema: &parquet::schema::types::SchemaDescriptor) -> Result<WriterProperties> {
    let table = target.table.metadata();
    let level = table.properties().get("write.parquet.compression-level").and_then(|l| l.parse().ok()).unwrap_or(DEFAULT_ZSTD_LEVEL);
    let zstd = || ZstdLevel::try_new(level).map(Compression::ZSTD).map_err(internal);
    let compression = match table.properties().get("write.parquet.compression-codec").map(String::as_str) {
        Some("snappy") => Compression::SNAPPY,
        Some("uncompressed" | "none") => Compression::UNCOMPRESSED,
        Some("lz4") => Compression::LZ4_RAW,
        _ => zstd()?,
    };
    let rows = (MAX_ROW_GROUP_BYTES / target.row_bytes.max(1)).clamp(64 * 1024, MAX_ROW_GROUP_ROWS);
    let leaf = |name: &str| schema.columns().iter().position(|c| c.path().parts() == [name.to_string()]);
    let contract = &target.state.contract;
    let sorting: Vec<SortingColumn> = contract
        .series_key
        .iter()
        .chain([&contract.time_column])
        .filter_map(|c| leaf(c))
        .map(|i| SortingColumn { column_idx: i as i32, descending: false, nulls_first: true })
        .collect();
    let time = ColumnPath::from(contract.time_column.as_str());
    Ok(WriterProperties::builder()
        .set_created_by(concat!("timelake version ", env!("CARGO_PKG_VERSION")).to_string())
        .set_compression(compression)
        .set_max_row_group_row_count(Some(rows as usize))
        .set_sorting_columns(Some(sorting))
        // Sorted times differ by little: deltas are a tenth of a dictionary's size.
        .set_column_encoding(time.clone(), Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(time, false)
        .build())
}
