//! Final layout: rows in sort order, cut into partitions, each partition's rows into files.
//!
//! A partition gets one file; more only when the target size is reached, and then at a change of series, so
//! that the files hold disjoint ranges of series.

use super::keys::internal;
use super::order::Ordered;
use super::partitions::{Front, Partition, Slice, partition};
use super::rows::{Column, UnitRows};
use super::sink::FileSink;
use crate::hash::{column_sum, key_hash, nan_count};
use arrow::array::{Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch, TimestampMicrosecondArray, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use iceberg::spec::{DataFile, PartitionSpec, Struct};
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
/// Memory of these rows: they are a copy.
const MAX_CHUNK_BYTES: u64 = 16 << 20;
/// Rows of a row group, unless rows are wide.
const MAX_ROW_GROUP_ROWS: u64 = 1 << 20;
/// Decoded bytes of a row group.
const MAX_ROW_GROUP_BYTES: u64 = 128 << 20;
/// Encoded bytes of a row group, which are in memory until it ends: long texts do not become smaller.
const MAX_ENCODED_BYTES: usize = 64 << 20;
/// A further file of a partition is only begun for at least this much.
const MIN_FILE_BYTES: u64 = 64 << 20;
const DEFAULT_ZSTD_LEVEL: i32 = 3;
/// Files of no more rows are not compressed with zstd: each column would take a compressor of its own to write and another to
/// read, which costs more than all else about it, and saves some hundred bytes beside the footer.
const TINY_FILE_ROWS: usize = 256;

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

/// Writes the ordered rows into files.
pub fn write(target: &Target, mut rows: UnitRows, ordered: Ordered) -> Result<Vec<FileOut>> {
    if ordered.rows.is_empty() {
        return Ok(vec![]);
    }
    let payload: Vec<(usize, Column)> =
        std::mem::take(&mut rows.payload).into_iter().map(|p| Ok((p.column, Column::new(p)?))).collect::<Result<_>>()?;
    let metadata = target.table.metadata();
    let partitioner = Partitioner::new(target.spec, metadata.current_schema())?;
    let partitions = partition(&partitioner, target.state, &rows, &payload, &ordered)?;
    let writer = Writer::new(target, &partitioner, &rows, &payload)?;
    let mut out = Vec::new();
    for Partition { values, runs } in partitions {
        let mut front = Front::new(&ordered, &runs);
        while front.rows_left() > 0 {
            writer.file(&values, &mut front, &mut out)?;
        }
    }
    Ok(out)
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
    /// For files of few rows.
    tiny: ArrowWriterOptions,
    modes: MetricsModes,
    /// Values of key columns by code, and their checksums.
    key_values: Vec<(ArrayRef, Vec<u64>)>,
    /// Per key column that is a part of the series: its code by that of the series.
    series_codes: Vec<Option<Vec<u32>>>,
    /// Of each row; empty where the series is the identity.
    identities: Cow<'a, [u32]>,
    identity_hashes: Vec<u64>,
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
        let options = ArrowWriterOptions::new().with_skip_arrow_metadata(true).with_parquet_schema(parquet_schema);
        let key_values = rows
            .keys
            .iter()
            .map(|k| {
                let values = k.values()?;
                let sums = (0..values.len()).map(|i| column_sum(&values.slice(i, 1))).collect::<Result<Vec<_>>>()?;
                Ok((values, sums))
            })
            .collect::<Result<_>>()?;
        let identities = if rows.same_key { Cow::Borrowed(&[][..]) } else { rows.identity.lookup(&rows.codes) };
        Ok(Writer {
            target,
            partitioner,
            rows,
            payload,
            outs,
            schema: Arc::new(Schema::new(fields)),
            tiny: options.clone().with_properties(uncompressed(properties.clone())),
            options: options.with_properties(properties),
            modes: MetricsModes::from_properties(metadata.properties(), iceberg_schema, metadata.default_sort_order())?,
            key_values,
            series_codes: (0..rows.keys.len()).map(|key| rows.ordering().codes_of(key, &rows.keys)).collect(),
            identities,
            identity_hashes: rows.identity.hashes(&rows.keys),
        })
    }

    /// Writes one file of the partition's next rows.
    fn file(&self, values: &Struct, front: &mut Front, out: &mut Vec<FileOut>) -> Result<()> {
        let folder = self.partitioner.path(values);
        let location = self.target.table.metadata().location().trim_end_matches('/');
        let slash = if folder.is_empty() { "" } else { "/" };
        let path = format!("{location}/data/{folder}{slash}{}-{:03}.parquet", self.target.file_prefix, out.len());
        let sink = FileSink::open(self.target.table.file_io(), &path, self.target.runtime)?;
        let options = if front.rows_left() > TINY_FILE_ROWS { &self.options } else { &self.tiny };
        let mut writer = ArrowWriter::try_new_with_options(sink, self.schema.clone(), options.clone()).map_err(write_error(&path))?;
        let mut sums = Sums::new(self);
        // A row takes about an eighth of its memory in the file; a tenth of the target between two looks.
        let tenth = self.target.target_file_bytes / 10 / (self.target.row_bytes / 8).max(1);
        let chunk_rows = tenth.min(MAX_CHUNK_BYTES / self.target.row_bytes.max(1)).clamp(MIN_CHUNK_ROWS, MAX_CHUNK_ROWS) as usize;
        let (mut written, mut full) = (0, false);
        let mut slice = Slice::default();
        while front.rows_left() > 0 {
            (self.target.check_stop)()?;
            // The target is reached: the file ends with its series.
            front.take(chunk_rows, full, &mut slice);
            if slice.rows.is_empty() {
                break;
            }
            let batch = self.batch(&mut slice, &mut sums)?;
            writer.write(&batch).map_err(write_error(&path))?;
            if writer.in_progress_size() >= MAX_ENCODED_BYTES {
                writer.flush().map_err(write_error(&path))?;
            }
            (self.target.stored)(&batch);
            written += batch.num_rows();
            let bytes = (writer.bytes_written() + writer.in_progress_size()) as u64;
            let rest = bytes / written as u64 * front.rows_left() as u64;
            full = full || (bytes >= self.target.target_file_bytes && rest >= MIN_FILE_BYTES.min(self.target.target_file_bytes));
        }
        let footer = writer.finish().map_err(write_error(&path))?;
        let bytes = writer.inner_mut().close()?;
        let metadata = self.target.table.metadata();
        let rows = written as u64;
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
                rows,
                spec_id: self.target.spec.spec_id(),
                partition: self.partitioner.texts(values),
                key_hash: sums.key_hash,
                column_sums: sums.columns,
            },
        });
        Ok(())
    }

    fn batch(&self, slice: &mut Slice, sums: &mut Sums) -> Result<RecordBatch> {
        let state = self.target.state;
        sums.key_hash = sums.key_hash.wrapping_add(self.key_hash(slice));
        let times = std::mem::take(&mut slice.times);
        let rows = &slice.rows;
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.outs.len());
        let time: ArrayRef = Arc::new(TimestampMicrosecondArray::from(times).with_timezone("+00:00"));
        for (out, field) in self.outs.iter().zip(self.schema.fields()) {
            columns.push(match out {
                Out::Time => {
                    sums.add(&state.contract.time_column, column_sum(&time)?);
                    time.clone()
                }
                Out::Key(key) => {
                    let codes = self.key_codes(*key, slice);
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

    fn key_hash(&self, slice: &Slice) -> u64 {
        let hashes = &self.identity_hashes;
        let mut sum = 0u64;
        if self.rows.same_key {
            for (code, range) in slice.series() {
                let identity = hashes[code as usize];
                sum = slice.times[range].iter().fold(sum, |sum, time| sum.wrapping_add(key_hash(identity, *time)));
            }
            return sum;
        }
        for (row, time) in slice.rows.iter().zip(&slice.times) {
            sum = sum.wrapping_add(key_hash(hashes[self.identities[*row as usize] as usize], *time));
        }
        sum
    }

    /// Codes of a key column: known by the series where it is a part of it.
    fn key_codes(&self, key: usize, slice: &Slice) -> Vec<i32> {
        match &self.series_codes[key] {
            Some(of_series) => {
                let mut codes = Vec::with_capacity(slice.rows.len());
                for (code, range) in slice.series() {
                    codes.resize(range.end, of_series[code as usize] as i32);
                }
                codes
            }
            None => slice.rows.iter().map(|row| self.rows.codes[key][*row as usize] as i32).collect(),
        }
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

/// The same without zstd, which is the only codec that is dear to set up.
fn uncompressed(properties: WriterProperties) -> WriterProperties {
    match properties.compression(&ColumnPath::from(Vec::new())) {
        Compression::ZSTD(_) => properties.into_builder().set_compression(Compression::UNCOMPRESSED).build(),
        _ => properties,
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
