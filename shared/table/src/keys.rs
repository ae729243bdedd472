//! Key columns of one data file, as they are stored: texts as dictionaries, so that a text is looked at once per row group
//! and not once per row.
//!
//! Only for files that hold the columns in the table's own types, as most do. Others, and files that do not read, are
//! left to [`crate::read_rows`], which knows what to make of them or what to say.

use crate::metrics::parquet_schema;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::StreamExt;
use futures::stream::BoxStream;
use iceberg::arrow::ArrowFileReader;
use iceberg::io::FileMetadata;
use iceberg::table::Table;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask, parquet_to_arrow_schema};
use parquet::file::metadata::ParquetMetaDataReader;
use std::sync::Arc;
use timelake_model::inventory::ExistingFile;
use timelake_model::{Error, Result};

/// A row group of a small file at once: its dictionary is looked up once per batch.
const BATCH_ROWS: usize = 1 << 16;
/// Read from the end of a file at once: footers of files of few row groups are smaller.
const FOOTER_BYTES: usize = 64 << 10;

/// Batches of a file's key columns. An item is `None` when the file does not read any further.
pub type Keys = BoxStream<'static, Option<Vec<ArrayRef>>>;

/// The named columns of all rows of a file, in the order given. `None`: to be read another way.
pub async fn read_keys(table: &Table, file: &ExistingFile, columns: &[String]) -> Result<Option<Keys>> {
    let wanted = wanted(table, columns)?;
    Ok(open(table, file, &wanted).await)
}

/// A column by its field id, and the type that it must have.
struct Wanted {
    id: i32,
    data_type: DataType,
}

fn wanted(table: &Table, columns: &[String]) -> Result<Vec<Wanted>> {
    let schema = table.metadata().current_schema();
    // As they are read from our own files.
    let plain = parquet_to_arrow_schema(&parquet_schema(schema)?, None)
        .map_err(|e| Error::internal(format!("the table's schema has no Arrow form: {e}")))?;
    let of = |name: &String| {
        let id = schema.as_struct().field_by_name(name)?.id;
        Some(Wanted { id, data_type: plain.field_with_name(name).ok()?.data_type().clone() })
    };
    // A column that is gone is told by who reads all of them.
    Ok(columns.iter().map(of).collect::<Option<_>>().unwrap_or_default())
}

async fn open(table: &Table, file: &ExistingFile, wanted: &[Wanted]) -> Option<Keys> {
    if wanted.is_empty() {
        return None;
    }
    let input = table.file_io().new_input(&file.path).ok()?.reader().await.ok()?;
    let mut input = ArrowFileReader::new(FileMetadata { size: file.bytes }, input);
    let footer = ParquetMetaDataReader::new().with_prefetch_hint(Some(FOOTER_BYTES.min(file.bytes as usize)));
    let footer = Arc::new(footer.load_and_finish(&mut input, file.bytes).await.ok()?);
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let plain = ArrowReaderMetadata::try_new(footer.clone(), options.clone()).ok()?;
    let roots = footer.file_metadata().schema_descr().root_schema().get_fields();
    let at = |id: i32| roots.iter().position(|f| f.get_basic_info().has_id() && f.get_basic_info().id() == id);
    let positions: Vec<usize> = wanted.iter().map(|w| at(w.id)).collect::<Option<_>>()?;
    let fields = plain.schema().fields();
    if positions.iter().zip(wanted).any(|(at, w)| *fields[*at].data_type() != w.data_type) {
        return None;
    }
    let schema = with_dictionaries(plain.schema(), &positions);
    let metadata = ArrowReaderMetadata::try_new(footer, options.with_schema(schema)).ok()?;
    let builder = ParquetRecordBatchStreamBuilder::new_with_metadata(input, metadata);
    let mask = ProjectionMask::roots(builder.parquet_schema(), positions.iter().copied());
    // The reader gives columns in the file's order.
    let rank = |position: &usize| positions.iter().filter(|other| *other < position).count();
    let order: Vec<usize> = positions.iter().map(rank).collect();
    let stream = builder.with_projection(mask).with_batch_size(BATCH_ROWS).build().ok()?;
    let columns = move |batch: RecordBatch| order.iter().map(|at| batch.column(*at).clone()).collect();
    Some(stream.map(move |batch| batch.ok().map(&columns)).boxed())
}

fn with_dictionaries(plain: &Schema, positions: &[usize]) -> SchemaRef {
    let field = |(at, field): (usize, &Arc<Field>)| match field.data_type() {
        DataType::Utf8 if positions.contains(&at) => {
            let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            Arc::new(field.as_ref().clone().with_data_type(dictionary))
        }
        _ => field.clone(),
    };
    Arc::new(Schema::new(plain.fields().iter().enumerate().map(field).collect::<Vec<_>>()))
}
