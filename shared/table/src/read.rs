//! Rows of existing data files, in the table's current columns.
//!
//! Columns are found by field id, so files written before a column was added, renamed or widened read as the table
//! reads today. Delete files are not applied: callers refuse windows that have any. A column that exists only in the
//! partition of a file, as in folders imported from Hive without rewriting, reads as null: see [`read_rows`].

use crate::errors::{from_arrow, from_iceberg, is_missing_file};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Schema as ArrowSchema, TimestampMicrosecondType};
use arrow::row::{RowConverter, SortField};
use futures::stream::{BoxStream, TryStreamExt};
use futures::{Stream, StreamExt};
use iceberg::expr::Bind;
use iceberg::expr::{BoundPredicate, Predicate, Reference};
use iceberg::scan::FileScanTask;
use iceberg::spec::{DEFAULT_SCHEMA_NAME_MAPPING, DataFileFormat, Datum, NameMapping, SchemaRef};
use iceberg::table::Table;
use std::sync::Arc;
use timelake_model::inventory::ExistingFile;
use timelake_model::{Error, Reason, Result, TableContract, Window};

const BATCH_ROWS: usize = 8192;

/// Rows of the window in `files`: the named columns in the order given, in the table's current types. The order of
/// files is kept, and the order of rows in a file. Values are taken from the files alone, never from partitions.
pub async fn read_rows(
    table: &Table,
    files: &[ExistingFile],
    columns: &[String],
    window: &Window,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let schema = table.current_schema_ref();
    let mut names: Vec<String> = columns.to_vec();
    let time = match *window {
        Window { start: None, end: None } => None,
        _ => Some(time_column(table)?),
    };
    let time_at = time.as_ref().map(|time| match names.iter().position(|n| n == time) {
        Some(at) => at,
        None => {
            names.push(time.clone());
            names.len() - 1
        }
    });
    let layout = Layout::new(&schema, &names, columns.len(), time_at, *window)?;
    let predicate = match &time {
        Some(time) => window_predicate(&schema, time, window)?,
        None => None,
    };
    let tasks = tasks(table, &schema, files, &layout.field_ids, predicate)?;
    let reader = table.reader_builder().with_data_file_concurrency_limit(1).with_batch_size(BATCH_ROWS).build();
    let shown = table.identifier().to_string();
    let stream = reader
        .read(futures::stream::iter(tasks.into_iter().map(Ok)).boxed())
        .map_err(|e| from_iceberg(e, &format!("reading rows of {shown}")))?
        .stream();
    Ok(stream
        .map_err(move |e| file_gone_or(e, &shown))
        .and_then(move |batch| futures::future::ready(layout.apply(&batch)))
        .try_filter(|batch| futures::future::ready(batch.num_rows() > 0))
        .boxed())
}

fn file_gone_or(error: iceberg::Error, table: &str) -> Error {
    if is_missing_file(&error) {
        return Error::conflict(Reason::TableChanged, format!("a data file of {table} is gone: {error}"))
            .hint("the table was cleaned up meanwhile; run the command again: it reads the table anew")
            .at(|p| p.table = Some(table.into()));
    }
    from_iceberg(error, &format!("reading rows of {table}"))
}

fn time_column(table: &Table) -> Result<String> {
    match TableContract::from_properties(table.metadata().properties())? {
        Some(contract) => Ok(contract.time_column),
        None => Err(Error::invalid(Reason::MissingContract, format!("{} has no time column stated", table.identifier()))
            .hint("state it: timelake table contract TABLE --time-column COLUMN --series-key COLUMNS")
            .at(|p| p.table = Some(table.identifier().to_string()))),
    }
}

/// Lets the reader skip row groups; rows are filtered again here.
fn window_predicate(schema: &SchemaRef, time: &str, window: &Window) -> Result<Option<BoundPredicate>> {
    let from = window.start.map(|t| Reference::new(time).greater_than_or_equal_to(Datum::timestamptz_micros(t.0)));
    let to = window.end.map(|t| Reference::new(time).less_than(Datum::timestamptz_micros(t.0)));
    let predicate: Option<Predicate> = match (from, to) {
        (Some(a), Some(b)) => Some(a.and(b)),
        (a, b) => a.or(b),
    };
    predicate.map(|p| p.bind(schema.clone(), true).map_err(|e| from_iceberg(e, "limiting rows to the window"))).transpose()
}

fn tasks(
    table: &Table,
    schema: &SchemaRef,
    files: &[ExistingFile],
    field_ids: &[i32],
    predicate: Option<BoundPredicate>,
) -> Result<Vec<FileScanTask>> {
    let mapping = match table.metadata().properties().get(DEFAULT_SCHEMA_NAME_MAPPING) {
        None => None,
        Some(text) => Some(Arc::new(serde_json::from_str::<NameMapping>(text).map_err(|e| {
            Error::invalid(Reason::UnsupportedTable, format!("the table property {DEFAULT_SCHEMA_NAME_MAPPING} is damaged: {e}"))
        })?)),
    };
    files
        .iter()
        .map(|file| {
            if !file.path.ends_with(".parquet") && [".avro", ".orc"].iter().any(|end| file.path.ends_with(end)) {
                return Err(Error::invalid(Reason::UnsupportedTable, format!("{} is not a Parquet file", file.path))
                    .hint("rewrite the table's data files as Parquet")
                    .at(|p| p.file = Some(file.path.clone())));
            }
            Ok(FileScanTask::builder()
                .with_file_size_in_bytes(file.bytes)
                .with_start(0)
                .with_length(file.bytes)
                .with_record_count(Some(file.rows))
                .with_data_file_path(file.path.clone())
                .with_data_file_format(DataFileFormat::Parquet)
                .with_schema(schema.clone())
                .with_project_field_ids(field_ids.to_vec())
                .with_predicate(predicate.clone())
                .with_name_mapping(mapping.clone())
                .with_case_sensitive(true)
                .build())
        })
        .collect()
}

/// How a batch of the reader becomes ours.
struct Layout {
    field_ids: Vec<i32>,
    /// Columns to read; the first `shown` are given back.
    names: Vec<String>,
    schema: Arc<ArrowSchema>,
    shown: usize,
    time_at: Option<usize>,
    window: Window,
}

impl Layout {
    fn new(schema: &SchemaRef, names: &[String], shown: usize, time_at: Option<usize>, window: Window) -> Result<Layout> {
        let all = iceberg::arrow::schema_to_arrow_schema(schema).map_err(|e| from_iceberg(e, "reading the table's schema"))?;
        let (mut field_ids, mut fields) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for name in names {
            let id = schema.as_struct().field_by_name(name).map(|f| f.id);
            let field = all.fields().iter().find(|f| f.name() == name);
            let (Some(id), Some(field)) = (id, field) else {
                return Err(Error::conflict(Reason::TableChanged, format!("the table no longer has a column {name}"))
                    .at(|p| p.column = Some(name.clone())));
            };
            field_ids.push(id);
            fields.push(field.clone());
        }
        Ok(Layout { field_ids, names: names.to_vec(), schema: Arc::new(ArrowSchema::new(fields)), shown, time_at, window })
    }

    fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut arrays = Vec::with_capacity(self.names.len());
        for (name, field) in self.names.iter().zip(self.schema.fields()) {
            let array = batch.column_by_name(name).ok_or_else(|| Error::internal(format!("the reader left out column {name}")))?;
            arrays.push(in_type(array, field.data_type())?);
        }
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(|e| from_arrow(e, "reading existing rows"))?;
        let batch = match self.time_at {
            Some(at) => {
                let inside = self.inside(batch.column(at))?;
                arrow::compute::filter_record_batch(&batch, &inside).map_err(|e| from_arrow(e, "limiting rows to the window"))?
            }
            None => batch,
        };
        if self.shown == self.names.len() {
            return Ok(batch);
        }
        batch.project(&(0..self.shown).collect::<Vec<_>>()).map_err(|e| from_arrow(e, "reading existing rows"))
    }

    fn inside(&self, time: &ArrayRef) -> Result<BooleanArray> {
        let times = time
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal(format!("the time column is read as {}", time.data_type())))?;
        let keep = BooleanBuffer::collect_bool(times.len(), |i| times.is_valid(i) && self.window.contains(times.value(i)));
        Ok(BooleanArray::new(keep, None))
    }
}

/// Constant columns come run-length encoded, and file types may be narrower than the table's.
fn in_type(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    if array.data_type() == wanted {
        return Ok(array.clone());
    }
    arrow::compute::cast(array, wanted).map_err(|e| from_arrow(e, "reading existing rows"))
}

/// Rows in `files` and a hash over all their columns that does not depend on the order of rows or files: equal
/// before and after a compaction, and after nothing else.
pub async fn content_hash(table: &Table, files: &[ExistingFile]) -> Result<(u64, u64)> {
    let schema = table.current_schema_ref();
    let columns: Vec<String> = schema.as_struct().fields().iter().map(|f| f.name.clone()).collect();
    let stream = read_rows(table, files, &columns, &Window::ALL).await?;
    hash_of_batches(stream).await
}

async fn hash_of_batches(mut batches: impl Stream<Item = Result<RecordBatch>> + Unpin) -> Result<(u64, u64)> {
    let mut converter: Option<RowConverter> = None;
    let (mut rows, mut hash) = (0u64, 0u64);
    while let Some(batch) = batches.try_next().await? {
        let converter = match &mut converter {
            Some(converter) => converter,
            None => {
                let fields: Vec<SortField> = batch.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
                if !RowConverter::supports_fields(&fields) {
                    return Err(Error::invalid(Reason::UnsupportedTable, "tables with map columns cannot be compared after a compaction")
                        .hint("run the command again: it reads the table anew"));
                }
                converter.insert(RowConverter::new(fields).map_err(|e| from_arrow(e, "hashing rows"))?)
            }
        };
        let encoded = converter.convert_columns(batch.columns()).map_err(|e| from_arrow(e, "hashing rows"))?;
        for row in encoded.iter() {
            hash = hash.wrapping_add(twox_hash::XxHash3_64::oneshot(row.as_ref()));
        }
        rows += batch.num_rows() as u64;
    }
    Ok((rows, hash))
}
