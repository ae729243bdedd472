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
    let columns = Columns::new(target, &rows, payload, places)?;
    let encoding = |e: parquet::errors::ParquetError| match &e {
        parquet::errors::ParquetError::External(cause) => storage_error(target.path, cause.as_ref()),
        other => Error::internal(format!("encoding {}: {other}", target.path)),
    };
    let sink = FileSink::open(target.file_io, target.path, target.runtime)?;
    let mut writer = ArrowWriter::try_new(sink, columns.schema.clone(), Some(properties(target)?)).map_err(encoding)?;
    let mut row_groups = Vec::new();
    let batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(MIN_ROW_GROUP_ROWS, BATCH_ROWS);
    for range in order.row_groups(most_rows) {
        for start in (range.start..range.end).step_by(batch_rows) {
            let end = (start + batch_rows).min(range.end);
            writer.write(&columns.batch(&order.rows[start..end])?).map_err(encoding)?;
        }
        writer.flush().map_err(encoding)?;
        row_groups.push(order.describe(&rows, target.state, range));
    }
    writer.finish().map_err(encoding)?;
    let bytes = writer.inner_mut().close()?;
    Ok(WrittenRun { row_groups, bytes, series_sample: order.sample() })
}

/// Runs are read once or twice: quick compression, no statistics but the time's bounds, which are in the receipt.
fn properties(target: &RunTarget) -> Result<WriterProperties> {
    let contract = &target.state.contract;
    let delta = [contract.time_column.clone(), place_column(&target.state.columns)];
    let is_text = |types: &DataType| matches!(types, DataType::Utf8 | DataType::LargeUtf8);
    let texts = target.state.columns.iter().zip(target.types).filter(|(_, types)| is_text(types));
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("timelake version ", env!("CARGO_PKG_VERSION")).to_string())
        .set_compression(Compression::LZ4_RAW)
        // Numbers are read once: looking each up in a dictionary takes longer than it saves.
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(MAX_ROW_GROUP_ROWS * 2))
        .set_key_value_metadata(Some(vec![KeyValue::new("timelake.source".to_string(), target.source.to_string())]));
    for name in delta {
        builder = builder.set_column_encoding(ColumnPath::from(vec![name]), Encoding::DELTA_BINARY_PACKED);
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
}

struct Order {
    /// Row numbers in the order of the run.
    rows: Vec<u32>,
    /// Neighbours of one chunk and class, in the order of the run.
    groups: Vec<Group>,
    /// By rank.
    classes: Vec<Class>,
}

struct Group {
    /// Ordinal of the chunk.
    chunk: i64,
    class: u32,
    rows: Range<usize>,
}

impl Order {
    fn new(state: &TableState, rows: &UnitRows) -> Result<Order> {
        let (classes, class_of) = classes(state, rows)?;
        let (chunks, chunk_of) = chunks(state.period(), &rows.times);
        let class = |row: u32| class_of.get(row as usize).copied().unwrap_or(0);
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        // The last key first: both sorts are stable, so that ties stay in source order.
        if classes.len() > 1 {
            order = counting_sort(&order, class, classes.len());
        }
        if chunks.len() > 1 {
            order = counting_sort(&order, |row| chunk_of[row as usize], chunks.len());
        }
        let mut groups: Vec<Group> = Vec::new();
        for (at, row) in order.iter().enumerate() {
            let (chunk, class) = (chunks[chunk_of[*row as usize] as usize], class(*row));
            match groups.last_mut() {
                Some(group) if (group.chunk, group.class) == (chunk, class) => group.rows.end = at + 1,
                _ => groups.push(Group { chunk, class, rows: at..at + 1 }),
            }
        }
        Ok(Order { rows: order, groups, classes })
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

    fn describe(&self, rows: &UnitRows, state: &TableState, range: Range<usize>) -> RowGroupInfo {
        let times = || self.rows[range.clone()].iter().map(|row| rows.times[*row as usize]);
        let time = times().min().zip(times().max()).map(|(low, high)| (TimestampUs(low), TimestampUs(high)));
        let first = self.groups.partition_point(|group| group.rows.end <= range.start);
        let groups = || self.groups[first..].iter().take_while(|group| group.rows.start < range.end);
        let mut per_chunk: BTreeMap<i64, u64> = BTreeMap::new();
        for group in groups() {
            let (start, end) = (group.rows.start.max(range.start), group.rows.end.min(range.end));
            *per_chunk.entry(group.chunk).or_default() += (end - start) as u64;
        }
        let classes = || groups().filter_map(|group| self.classes.get(group.class as usize));
        let buckets = || classes().filter_map(|c| c.bucket);
        let bounds = buckets().min().zip(buckets().max()).zip(state.bucket_partition(None));
        let buckets = bounds.map(|((low, high), (column, modulus))| BucketBounds { column, modulus, low, high });
        let texts = || classes().filter_map(|c| c.text.as_ref());
        let text = texts().min().zip(texts().max()).map(|(low, high)| (low.clone(), high.clone()));
        let series = state.slice_column().map(|_| SeriesBounds { buckets, range: text });
        RowGroupInfo { rows: range.len() as u64, time, per_chunk, series }
    }
}

/// Stable; `key` is below `keys`.
fn counting_sort(rows: &[u32], key: impl Fn(u32) -> u32, keys: usize) -> Vec<u32> {
    let mut slots = vec![0u32; keys + 1];
    rows.iter().for_each(|row| slots[key(*row) as usize + 1] += 1);
    for i in 1..slots.len() {
        slots[i] += slots[i - 1];
    }
    let mut out = vec![0u32; rows.len()];
    for row in rows {
        let slot = &mut slots[key(*row) as usize];
        out[*slot as usize] = *row;
        *slot += 1;
    }
    out
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

/// The classes in order, and the rank of each row's class; none when units split by time alone.
fn classes(state: &TableState, rows: &UnitRows) -> Result<(Vec<Class>, Vec<u32>)> {
    let key_of = |name: &String| {
        let column = state.columns.iter().position(|c| c.name == *name);
        rows.key_columns.iter().position(|k| Some(*k) == column)
    };
    let Some(slice) = state.slice_column().and_then(key_of) else { return Ok((vec![], vec![])) };
    let bucket = state.bucket_partition(None).and_then(|(name, modulus)| key_of(&name).map(|key| (key, modulus)));
    let values = rows.keys[slice].values()?;
    let texts = (0..values.len()).map(|i| cell_text(&values, i)).collect::<Result<Vec<_>>>()?;
    let buckets = match bucket {
        Some((key, modulus)) => buckets_of(&rows.keys[key].values()?, modulus)?,
        None => vec![],
    };
    // Distinct pairs of codes as they come, then their ranks.
    let mut known: HashMap<(u32, u32), u32> = HashMap::new();
    let mut found: Vec<Class> = Vec::new();
    let mut last: Option<((u32, u32), u32)> = None;
    let mut of_row = Vec::with_capacity(rows.len());
    for row in 0..rows.len() {
        let pair = (rows.codes[slice][row], bucket.map_or(0, |(key, _)| rows.codes[key][row]));
        let id = match last {
            Some((same, id)) if same == pair => id,
            _ => *known.entry(pair).or_insert_with(|| {
                let bucket = bucket.and_then(|_| buckets.get(pair.1 as usize).copied().flatten());
                found.push(Class { bucket, text: texts.get(pair.0 as usize).cloned() });
                found.len() as u32 - 1
            }),
        };
        last = Some((pair, id));
        of_row.push(id);
    }
    let mut order: Vec<u32> = (0..found.len() as u32).collect();
    // Equal classes from different codes (two values of one text) must rank equal, or source order is lost.
    let key = |id: &u32| (found[*id as usize].bucket, found[*id as usize].text.clone());
    order.sort_by_cached_key(key);
    let mut ranks = vec![0u32; found.len()];
    let mut classes: Vec<Class> = Vec::new();
    for id in order {
        let class = &found[id as usize];
        if classes.last().is_none_or(|c| (c.bucket, &c.text) != (class.bucket, &class.text)) {
            classes.push(class.clone());
        }
        ranks[id as usize] = classes.len() as u32 - 1;
    }
    for id in &mut of_row {
        *id = ranks[*id as usize];
    }
    Ok((classes, of_row))
}

enum From {
    Time,
    Key(usize, ArrayRef),
    Payload(Column),
    Place,
}

struct Columns<'a> {
    rows: &'a UnitRows,
    places: Vec<u64>,
    from: Vec<From>,
    schema: SchemaRef,
}

impl<'a> Columns<'a> {
    fn new(target: &RunTarget, rows: &'a UnitRows, payload: Vec<(usize, Column)>, places: Vec<u64>) -> Result<Self> {
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
        Ok(Columns { rows, places, from, schema: Arc::new(Schema::new(fields)) })
    }

    fn batch(&self, rows: &[u32]) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.from.len());
        for (from, field) in self.from.iter().zip(self.schema.fields()) {
            columns.push(match from {
                From::Time => {
                    let times: Vec<i64> = rows.iter().map(|r| self.rows.times[*r as usize]).collect();
                    Arc::new(TimestampMicrosecondArray::from(times).with_timezone("+00:00"))
                }
                From::Key(key, values) => {
                    let codes = Int32Array::from_iter_values(rows.iter().map(|r| self.rows.codes[*key][*r as usize] as i32));
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
}
