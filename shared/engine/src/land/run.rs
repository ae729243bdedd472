//! Rows in memory → one run: a Parquet file in the table's columns and types, sorted so that units read little of it.
//!
//! Rows are ordered by chunk, then by what units may split series by (the table's bucket, the slice column's text);
//! rows equal in these stay in source order, and so do rows of one identity and time. Each row group says exactly
//! what it holds. What must never happen: a row left out, or a bound that a row lies outside of.

use crate::write::{Column, FileSink, UnitRows, buckets_of, cell_text, internal, storage_error};
use arrow::array::{Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use hashbrown::HashMap;
use iceberg::io::FileIO;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use timelake_model::inventory::{BucketBounds, RowGroupInfo, SeriesBounds, TableState};
use timelake_model::time::Period;
use timelake_model::{Error, Result, TimestampUs};
use timelake_source::place_column;
use tokio::runtime::Handle;

/// Rows of a row group, unless rows are wide: a unit decodes at most this much that is not its own at each end.
const MAX_ROW_GROUP_ROWS: usize = 1 << 17;
const MIN_ROW_GROUP_ROWS: usize = 1 << 9;
/// Memory of the rows of a row group, which is encoded in memory.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Rows of a run whose series is noted.
const SERIES_SAMPLE: usize = 2_000;
/// Rows gathered and encoded at a time.
const BATCH_ROWS: usize = 1 << 15;
const BATCH_BYTES: usize = 8 << 20;

/// What a run is made for.
pub struct RunTarget<'a> {
    pub state: &'a TableState,
    /// Arrow types of the table's columns.
    pub types: &'a [DataType],
    pub file_io: &'a FileIO,
    pub runtime: &'a Handle,
    pub path: &'a str,
    /// Name of the source file, for people who look into the run.
    pub source: &'a str,
}

/// Row groups of a written run, and its size.
pub struct WrittenRun {
    pub row_groups: Vec<RowGroupInfo>,
    pub bytes: u64,
    /// Texts of the slice column, evenly spaced over the rows.
    pub series_sample: Vec<String>,
}

/// Writes all rows; they are gone from memory then.
pub fn write(target: &RunTarget, mut rows: UnitRows) -> Result<WrittenRun> {
    let order = Order::new(target.state, &rows)?;
    let places = rows.listed_places();
    if places.len() != rows.len() {
        return Err(Error::internal("rows to land without their places"));
    }
    let row_bytes = rows.bytes() / rows.len().max(1);
    let most_rows = (ROW_GROUP_BYTES / row_bytes.max(1)).clamp(MIN_ROW_GROUP_ROWS, MAX_ROW_GROUP_ROWS);
    let payload: Vec<(usize, Column)> =
        std::mem::take(&mut rows.payload).into_iter().map(|p| Ok((p.column, Column::new(p)?))).collect::<Result<_>>()?;
    let columns = Columns::new(target, &rows, &order, payload, places)?;
    let encoding = |e: parquet::errors::ParquetError| match &e {
        parquet::errors::ParquetError::External(cause) => storage_error(target.path, cause.as_ref()),
        other => Error::internal(format!("encoding {}: {other}", target.path)),
    };
    let sink = FileSink::open(target.file_io, target.path, target.runtime)?;
    let mut writer = ArrowWriter::try_new(sink, columns.schema.clone(), Some(properties(target)?)).map_err(encoding)?;
    let mut row_groups = Vec::new();
    let batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(MIN_ROW_GROUP_ROWS, BATCH_ROWS);
    for range in order.row_groups(most_rows) {
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        for start in (range.start..range.end).step_by(batch_rows) {
            let end = (start + batch_rows).min(range.end);
            let times: Vec<i64> = order.rows[start..end].iter().map(|row| rows.times[*row as usize]).collect();
            (low, high) = times.iter().fold((low, high), |(low, high), time| (low.min(*time), high.max(*time)));
            writer.write(&columns.batch(start..end, times)?).map_err(encoding)?;
        }
        writer.flush().map_err(encoding)?;
        row_groups.push(order.describe(target.state, range, (low, high)));
    }
    writer.finish().map_err(encoding)?;
    let bytes = writer.inner_mut().close()?;
    Ok(WrittenRun { row_groups, bytes, series_sample: order.sample() })
}

/// Runs are read once or twice: quick compression, no statistics but the time's bounds, which are in the receipt.
fn properties(target: &RunTarget) -> Result<WriterProperties> {
    let contract = &target.state.contract;
    let delta = [contract.time_column.clone(), place_column(&target.state.columns)];
    let columns = || target.state.columns.iter().zip(target.types);
    let texts = columns().filter(|(_, types)| matches!(types, DataType::Utf8 | DataType::LargeUtf8));
    let floats = columns().filter(|(_, types)| matches!(types, DataType::Float32 | DataType::Float64));
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("timelake version ", env!("CARGO_PKG_VERSION")).to_string())
        .set_compression(Compression::LZ4_RAW)
        // Numbers are read once: looking each up in a dictionary takes longer than it saves.
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(MAX_ROW_GROUP_ROWS * 2))
        .set_key_value_metadata(Some(vec![KeyValue::new("timelake.source".to_string(), target.source.to_string())]));
    // Packed deltas and floats hardly get smaller.
    for (column, _) in floats {
        builder = builder.set_column_compression(ColumnPath::from(vec![column.name.clone()]), Compression::UNCOMPRESSED);
    }
    for name in delta {
        let path = ColumnPath::from(vec![name]);
        builder = builder.set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED);
        builder = builder.set_column_compression(path, Compression::UNCOMPRESSED);
    }
    for (column, _) in texts {
        builder = builder.set_column_dictionary_enabled(ColumnPath::from(vec![column.name.clone()]), true);
    }
    Ok(builder.build())
}

/// A row's class: rows of one class stay in source order.
#[derive(Clone)]
struct Class {
    bucket: Option<u32>,
    text: Option<String>,
    /// Of the slice column.
    code: u32,
}

/// The classes of some rows.
#[derive(Default)]
struct Classes {
    by_rank: Vec<Class>,
    /// The rank of each row's class; empty when units split by time alone.
    of_row: Vec<u32>,
    /// The slice column, where rows of one class have the same code in it.
    of_code: Option<usize>,
}

struct Order {
    /// Row numbers in the order of the run.
    rows: Vec<u32>,
    /// Neighbours of one chunk and class, in the order of the run.
    groups: Vec<Group>,
    /// By rank.
    classes: Vec<Class>,
    /// Position of the key column that has one code in each class.
    of_code: Option<usize>,
}

struct Group {
    /// Ordinal of the chunk.
    chunk: i64,
    class: u32,
    rows: Range<usize>,
}

impl Order {
    fn new(state: &TableState, rows: &UnitRows) -> Result<Order> {
        let Classes { by_rank: classes, of_row: class_of, of_code } = classes(state, rows)?;
        let (chunks, chunk_of) = chunks(state.period(), &rows.times);
        let in_chunk = classes.len().max(1);
        let cell = |row: usize| u64::from(chunk_of[row]) * in_chunk as u64 + u64::from(class_of.get(row).copied().unwrap_or(0));
        let (cells, cell_of) = ranked(rows.len(), (chunks.len() * in_chunk) as u64, cell);
        // Stable, so that ties stay in source order.
        let mut ends = vec![0u32; cells.len() + 1];
        cell_of.iter().for_each(|cell| ends[*cell as usize + 1] += 1);
        for i in 1..ends.len() {
            ends[i] += ends[i - 1];
        }
        let mut order = vec![0u32; rows.len()];
        for (row, cell) in cell_of.iter().enumerate() {
            let slot = &mut ends[*cell as usize];
            order[*slot as usize] = row as u32;
            *slot += 1;
        }
        let mut groups: Vec<Group> = Vec::new();
        for (cell, end) in cells.into_iter().zip(ends) {
            let range = groups.last().map_or(0, |group| group.rows.end)..end as usize;
            if !range.is_empty() {
                let (chunk, class) = (cell / in_chunk as u64, cell % in_chunk as u64);
                groups.push(Group { chunk: chunks[chunk as usize], class: class as u32, rows: range });
            }
        }
        Ok(Order { rows: order, groups, classes, of_code })
    }

    /// The groups that have rows in the range, and which.
    fn groups_in(&self, range: Range<usize>) -> impl Iterator<Item = (&Group, usize)> {
        let first = self.groups.partition_point(|group| group.rows.end <= range.start);
        let groups = self.groups[first..].iter().take_while(move |group| group.rows.start < range.end);
        groups.map(move |group| (group, group.rows.end.min(range.end) - group.rows.start.max(range.start)))
    }

    /// Texts of some of the rows, evenly spaced.
    fn sample(&self) -> Vec<String> {
        let step = (self.rows.len() / SERIES_SAMPLE).max(1);
        let has_one = |group: &&Group| group.rows.start.next_multiple_of(step) < group.rows.end;
        let sampled = self.groups.iter().filter(has_one);
        let mut texts: Vec<String> = sampled.filter_map(|group| self.classes.get(group.class as usize)?.text.clone()).collect();
        texts.sort_unstable();
        texts.dedup();
        texts
    }

    /// A row group ends at a change of chunk once it is half as large as it may be, so that small chunks do not make
    /// small ones.
    fn row_groups(&self, most_rows: usize) -> Vec<Range<usize>> {
        let mut out = Vec::new();
        let mut start = 0;
        for (group, next) in self.groups.iter().zip(self.groups.iter().map(Some).skip(1).chain([None])) {
            let end = group.rows.end;
            while end - start >= most_rows {
                out.push(start..start + most_rows);
                start += most_rows;
            }
            let changes = next.is_some_and(|next| next.chunk != group.chunk) && end - start >= most_rows / 2;
            if end > start && (changes || next.is_none()) {
                out.push(start..end);
                start = end;
            }
        }
        out
    }

    /// `times`: the first and the last.
    fn describe(&self, state: &TableState, range: Range<usize>, times: (i64, i64)) -> RowGroupInfo {
        let time = (!range.is_empty()).then_some((TimestampUs(times.0), TimestampUs(times.1)));
        let groups = || self.groups_in(range.clone());
        let mut per_chunk: BTreeMap<i64, u64> = BTreeMap::new();
        for (group, rows) in groups() {
            *per_chunk.entry(group.chunk).or_default() += rows as u64;
        }
        let classes = || groups().filter_map(|(group, _)| self.classes.get(group.class as usize));
        let buckets = || classes().filter_map(|c| c.bucket);
        let bounds = buckets().min().zip(buckets().max()).zip(state.bucket_partition(None));
        let buckets = bounds.map(|((low, high), (column, modulus))| BucketBounds { column, modulus, low, high });
        let texts = || classes().filter_map(|c| c.text.as_ref());
        let text = texts().min().zip(texts().max()).map(|(low, high)| (low.clone(), high.clone()));
        let series = state.slice_column().map(|_| SeriesBounds { buckets, range: text });
        RowGroupInfo { rows: range.len() as u64, time, per_chunk, series }
    }
}

/// The cells in order, and the rank of each row's. `cells`: above all of them.
fn ranked(rows: usize, cells: u64, cell: impl Fn(usize) -> u64) -> (Vec<u64>, Vec<u32>) {
    if cells <= rows as u64 {
        return ((0..cells).collect(), (0..rows).map(|row| cell(row) as u32).collect());
    }
    // Most of them are empty.
    let mut known: HashMap<u64, u32> = HashMap::new();
    let mut found: Vec<u64> = Vec::new();
    let mut of_row: Vec<u32> = Vec::with_capacity(rows);
    for row in 0..rows {
        of_row.push(*known.entry(cell(row)).or_insert_with_key(|cell| {
            found.push(*cell);
            found.len() as u32 - 1
        }));
    }
    let mut order: Vec<u32> = (0..found.len() as u32).collect();
    order.sort_unstable_by_key(|id| found[*id as usize]);
    let mut ranks = vec![0u32; order.len()];
    order.iter().enumerate().for_each(|(rank, id)| ranks[*id as usize] = rank as u32);
    of_row.iter_mut().for_each(|id| *id = ranks[*id as usize]);
    (order.into_iter().map(|id| found[id as usize]).collect(), of_row)
}

/// Ordinals of the chunks in order, and which of them each row is in.
fn chunks(period: Period, times: &[i64]) -> (Vec<i64>, Vec<u32>) {
    let mut known: BTreeMap<i64, u32> = BTreeMap::new();
    let (mut low, mut high, mut id) = (i64::MAX, i64::MIN, 0);
    let mut of_row = Vec::with_capacity(times.len());
    for time in times {
        if !(low <= *time && *time < high) {
            let ordinal = period.ordinal(*time);
            (low, high) = (period.start(ordinal), period.start(ordinal + 1));
            let next = known.len() as u32;
            id = *known.entry(ordinal).or_insert(next);
        }
        of_row.push(id);
    }
    let mut ranks = vec![0u32; known.len()];
    known.values().enumerate().for_each(|(rank, id)| ranks[*id as usize] = rank as u32);
    of_row.iter_mut().for_each(|id| *id = ranks[*id as usize]);
    (known.into_keys().collect(), of_row)
}

fn classes(state: &TableState, rows: &UnitRows) -> Result<Classes> {
    let key_of = |name: &String| {
        let column = state.columns.iter().position(|c| c.name == *name);
        rows.key_columns.iter().position(|k| Some(*k) == column)
    };
    let Some(slice) = state.slice_column().and_then(key_of) else { return Ok(Classes::default()) };
    let bucket = state.bucket_partition(None).and_then(|(name, modulus)| key_of(&name).map(|key| (key, modulus)));
    let values = rows.keys[slice].values()?;
    let texts = (0..values.len()).map(|i| cell_text(&values, i)).collect::<Result<Vec<_>>>()?;
    let buckets = match bucket {
        Some((key, modulus)) => buckets_of(&rows.keys[key].values()?, modulus)?,
        None => vec![],
    };
    // Pairs of codes: of the slice column and of the bucket's.
    let (found, mut of_row) = match bucket {
        Some((key, _)) if key != slice => pairs(&rows.codes[slice], &rows.codes[key]),
        _ => ((0..texts.len() as u32).map(|code| (code, code)).collect(), rows.codes[slice].clone()),
    };
    let class = |id: usize| {
        let (code, of_bucket) = found[id];
        Class { bucket: buckets.get(of_bucket as usize).copied().flatten(), text: texts.get(code as usize).cloned(), code }
    };
    let found: Vec<Class> = (0..found.len()).map(class).collect();
    let mut order: Vec<u32> = (0..found.len() as u32).collect();
    // Equal classes from different codes (two values of one text) must rank equal, or source order is lost.
    order.sort_by_cached_key(|id| (found[*id as usize].bucket, found[*id as usize].text.clone()));
    let mut ranks = vec![0u32; found.len()];
    let mut by_rank: Vec<Class> = Vec::new();
    let mut of_code = Some(slice);
    for id in order {
        let class = &found[id as usize];
        match by_rank.last() {
            Some(last) if (last.bucket, &last.text) == (class.bucket, &class.text) => of_code = of_code.filter(|_| last.code == class.code),
            _ => by_rank.push(class.clone()),
        }
        ranks[id as usize] = by_rank.len() as u32 - 1;
    }
    of_row.iter_mut().for_each(|id| *id = ranks[*id as usize]);
    Ok(Classes { by_rank, of_row, of_code })
}

/// Distinct pairs as they come, and which each row has.
fn pairs(first: &[u32], second: &[u32]) -> (Vec<(u32, u32)>, Vec<u32>) {
    let mut known: HashMap<(u32, u32), u32> = HashMap::new();
    let mut found = Vec::new();
    let of_row = first.iter().copied().zip(second.iter().copied()).map(|pair| {
        *known.entry(pair).or_insert_with(|| {
            found.push(pair);
            found.len() as u32 - 1
        })
    });
    let of_row = of_row.collect();
    (found, of_row)
}

enum From {
    Time,
    Key(usize, ArrayRef),
    Payload(Column),
    Place,
}

struct Columns<'a> {
    rows: &'a UnitRows,
    order: &'a Order,
    places: Vec<u64>,
    from: Vec<From>,
    schema: SchemaRef,
}

impl<'a> Columns<'a> {
    fn new(target: &RunTarget, rows: &'a UnitRows, order: &'a Order, payload: Vec<(usize, Column)>, places: Vec<u64>) -> Result<Self> {
        let mut payload: BTreeMap<usize, Column> = payload.into_iter().collect();
        let (mut from, mut fields) = (Vec::new(), Vec::new());
        for (index, column) in target.state.columns.iter().enumerate() {
            let mut data_type = target.types.get(index).cloned().ok_or_else(|| Error::internal("a column without a type"))?;
            from.push(if column.name == target.state.contract.time_column {
                From::Time
            } else if let Some(key) = rows.key_columns.iter().position(|k| *k == index) {
                let values = rows.keys[key].values()?;
                if data_type == DataType::Utf8 {
                    data_type = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
                }
                From::Key(key, values)
            } else {
                From::Payload(payload.remove(&index).ok_or_else(|| Error::internal(format!("no values of {}", column.name)))?)
            });
            fields.push(Field::new(&column.name, data_type, true));
        }
        from.push(From::Place);
        fields.push(Field::new(place_column(&target.state.columns), DataType::Int64, false));
        Ok(Columns { rows, order, places, from, schema: Arc::new(Schema::new(fields)) })
    }

    /// The rows at some positions of the order, whose times are these.
    fn batch(&self, range: Range<usize>, times: Vec<i64>) -> Result<RecordBatch> {
        let rows = &self.order.rows[range.clone()];
        let time: ArrayRef = Arc::new(TimestampMicrosecondArray::from(times).with_timezone("+00:00"));
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.from.len());
        for (from, field) in self.from.iter().zip(self.schema.fields()) {
            columns.push(match from {
                From::Time => time.clone(),
                From::Key(key, values) => {
                    let codes = Int32Array::from(self.codes(*key, range.clone()));
                    match field.data_type() {
                        DataType::Dictionary(..) => Arc::new(DictionaryArray::try_new(codes, values.clone()).map_err(internal)?),
                        _ => take(values, &codes, None).map_err(internal)?,
                    }
                }
                From::Payload(column) => column.take(rows)?,
                From::Place => Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| self.places[*r as usize] as i64))),
            });
        }
        RecordBatch::try_new(self.schema.clone(), columns).map_err(internal)
    }
    fn codes(&self, key: usize, range: Range<usize>) -> Vec<i32> {
        if self.order.of_code != Some(key) {
            return self.order.rows[range].iter().map(|row| self.rows.codes[key][*row as usize] as i32).collect();
        }
        let mut codes = Vec::with_capacity(range.len());
        for (group, rows) in self.order.groups_in(range) {
            codes.resize(codes.len() + rows, self.order.classes[group.class as usize].code as i32);
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_rank_alike_whether_most_of_them_are_empty_or_not() {
        let cells = [7u64, 2, 7, 0, 2];
        let by_row = |of: (Vec<u64>, Vec<u32>)| of.1.iter().map(|rank| of.0[*rank as usize]).collect::<Vec<_>>();
        let many: Vec<u64> = cells.iter().copied().cycle().take(10).collect();
        assert_eq!(by_row(ranked(10, 8, |row| many[row])), many);
        let (found, of_row) = ranked(5, 8, |row| cells[row]);
        assert_eq!((&found[..], &of_row[..]), (&[0, 2, 7][..], &[2, 1, 2, 0, 1][..]));
    }

    #[test]
    fn pairs_are_numbered_as_they_come() {
        assert_eq!(pairs(&[1, 0, 1, 1], &[5, 5, 6, 5]), (vec![(1, 5), (0, 5), (1, 6)], vec![0, 1, 2, 0]));
    }
}
