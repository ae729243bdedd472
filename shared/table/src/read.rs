//! Rows of existing data files, in the table's current columns.
//!
//! Columns are found by field id, so files written before a column was added, renamed or widened read as the table
//! reads today. A column that exists only in the partition of a file, as in folders imported from Hive without
//! rewriting, reads as null: see [`read_rows`].

use crate::deletes::{EqualityDeletes, applies};
use crate::errors::{from_arrow, from_iceberg, is_missing_file};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Schema as ArrowSchema, TimestampMicrosecondType};
use futures::StreamExt;
use futures::stream::{BoxStream, TryStreamExt};
use iceberg::expr::Bind;
use iceberg::expr::{BoundPredicate, Predicate, Reference};
use iceberg::metadata_columns::{RESERVED_COL_NAME_FILE, RESERVED_FIELD_ID_FILE};
use iceberg::scan::{FileScanTask, FileScanTaskDeleteFile};
use iceberg::spec::{DEFAULT_SCHEMA_NAME_MAPPING, DataContentType, DataFileFormat, Datum, NameMapping, SchemaRef};
use iceberg::table::Table;
use std::sync::Arc;
use timelake_model::inventory::{DeleteFile, ExistingFile, Hides};
use timelake_model::{Error, Reason, Result, TableContract, Window};

const BATCH_ROWS: usize = 8192;

/// Rows of the window in `files` that `deletes` leave: the named columns in the order given, in the table's current types.
/// The order of files is kept, and the order of rows in a file. Values are taken from the files alone, never from partitions.
pub async fn read_rows(
    table: &Table,
    files: &[ExistingFile],
    deletes: &[DeleteFile],
    columns: &[String],
    window: &Window,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let mut named = Named { names: columns.to_vec(), shown: columns.len(), time_at: None, window: *window };
    if *window != Window::ALL {
        named.time_at = Some(named.add(&time_column(table)?));
    }
    let equality = match deletes.iter().any(|d| matches!(d.hides, Hides::Equal { .. })) {
        true => EqualityDeletes::load(table, files, deletes, &time_column(table)?, window).await?,
        false => None,
    };
    equality.iter().flat_map(EqualityDeletes::columns).for_each(|name| {
        named.add(name);
    });
    stream(table, files, deletes, named, equality)
}

/// Columns to read: the first `shown` are given back. Rows are those of the window by the time at `time_at`.
pub(crate) struct Named {
    pub names: Vec<String>,
    pub shown: usize,
    pub time_at: Option<usize>,
    pub window: Window,
}

impl Named {
    fn add(&mut self, name: &str) -> usize {
        self.names.iter().position(|n| n == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        })
    }
}

/// Position deletes among `deletes` are applied by the reader, equality deletes as they were loaded.
pub(crate) fn stream(
    table: &Table,
    files: &[ExistingFile],
    deletes: &[DeleteFile],
    named: Named,
    equality: Option<EqualityDeletes>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let schema = table.current_schema_ref();
    let predicate = match named.time_at {
        Some(at) => window_predicate(&schema, &named.names[at], &named.window)?,
        None => None,
    };
    let layout = Layout::new(&schema, named, equality)?;
    let tasks = tasks(table, &schema, files, deletes, &layout.field_ids, predicate)?;
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
    deletes: &[DeleteFile],
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
            let positions = deletes.iter().filter(|d| matches!(d.hides, Hides::Positions { .. }) && applies(d, file));
            let positions = positions.map(|d| {
                FileScanTaskDeleteFile::builder()
                    .with_file_path(d.path.clone())
                    .with_file_size_in_bytes(d.bytes)
                    .with_file_type(DataContentType::PositionDeletes)
                    .with_partition_spec_id(d.spec_id)
                    .build()
            });
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
                .with_deletes(positions.collect())
                .with_name_mapping(mapping.clone())
                .with_case_sensitive(true)
                .build())
        })
        .collect()
}

/// How a batch of the reader becomes ours.
struct Layout {
    field_ids: Vec<i32>,
    named: Named,
    schema: Arc<ArrowSchema>,
    equality: Option<EqualityDeletes>,
}

impl Layout {
    fn new(schema: &SchemaRef, named: Named, equality: Option<EqualityDeletes>) -> Result<Layout> {
        let all = iceberg::arrow::schema_to_arrow_schema(schema).map_err(|e| from_iceberg(e, "reading the table's schema"))?;
        let (mut field_ids, mut fields) = (Vec::with_capacity(named.names.len()), Vec::with_capacity(named.names.len()));
        for name in &named.names {
            let id = schema.as_struct().field_by_name(name).map(|f| f.id);
            let field = all.fields().iter().find(|f| f.name() == name);
            let (Some(id), Some(field)) = (id, field) else {
                return Err(Error::conflict(Reason::TableChanged, format!("the table no longer has a column {name}"))
                    .at(|p| p.column = Some(name.clone())));
            };
            field_ids.push(id);
            fields.push(field.clone());
        }
        if equality.is_some() {
            field_ids.push(RESERVED_FIELD_ID_FILE);
        }
        Ok(Layout { field_ids, named, schema: Arc::new(ArrowSchema::new(fields)), equality })
    }

    fn apply(&self, read: &RecordBatch) -> Result<RecordBatch> {
        let Named { names, shown, time_at, .. } = &self.named;
        let column = |name: &str| read.column_by_name(name).ok_or_else(|| Error::internal(format!("the reader left out column {name}")));
        let mut arrays = Vec::with_capacity(names.len());
        for (name, field) in names.iter().zip(self.schema.fields()) {
            arrays.push(in_type(column(name)?, field.data_type())?);
        }
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(|e| from_arrow(e, "reading existing rows"))?;
        let inside = time_at.map(|at| self.inside(batch.column(at))).transpose()?;
        let stay = match &self.equality {
            Some(equality) => Some(equality.stay(column(RESERVED_COL_NAME_FILE)?, &batch)?),
            None => None,
        };
        let keep = match (inside, stay) {
            (Some(a), Some(b)) => Some(&a & &b),
            (a, b) => a.or(b),
        };
        let batch = match keep {
            Some(keep) => arrow::compute::filter_record_batch(&batch, &BooleanArray::new(keep, None))
                .map_err(|e| from_arrow(e, "limiting rows to the window"))?,
            None => batch,
        };
        if *shown == names.len() {
            return Ok(batch);
        }
        batch.project(&(0..*shown).collect::<Vec<_>>()).map_err(|e| from_arrow(e, "reading existing rows"))
    }

    fn inside(&self, time: &ArrayRef) -> Result<BooleanBuffer> {
        let times = time
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal(format!("the time column is read as {}", time.data_type())))?;
        Ok(BooleanBuffer::collect_bool(times.len(), |i| times.is_valid(i) && self.named.window.contains(times.value(i))))
    }
}

/// Constant columns come run-length encoded, and file types may be narrower than the table's.
fn in_type(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    if array.data_type() == wanted {
        return Ok(array.clone());
    }
    arrow::compute::cast(array, wanted).map_err(|e| from_arrow(e, "reading existing rows"))
}
