//! The floor of workload F: `timelake-floor late LAKE LAKE THREADS` reads the keys of each daily file and puts a small file
//! beside it, which survives a power loss. No key is compared, no table is read or changed.

use crate::{Encoder, Result, schema};
use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, TimestampMicrosecondType};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// As the late rows of the bench are spread.
const FIRST_DAY: usize = 31;
const DAYS: usize = 300;
const ROWS_A_DAY: usize = 33;
const BATCH_ROWS: usize = 1 << 16;

/// The daily files that late rows fall into.
pub fn days(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    find(folder, &mut files)?;
    files.sort();
    Ok(files.into_iter().skip(FIRST_DAY).take(DAYS).collect())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|e| Ok((e.path(), e.file_type()?)))?;
        if kind.is_dir() {
            find(&path, files)?;
        } else if path.to_string_lossy().contains("/data/") && path.extension().is_some_and(|e| e == "parquet") {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads the keys of a file and writes some of them into another one; the number of keys.
pub fn copy(source: &Path, target: &Path) -> Result<usize> {
    let file = File::open(source)?;
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&file, options.clone())?;
    // Texts as dictionaries, as they are stored.
    let fields = metadata.schema().fields().iter().map(|field| match field.data_type() {
        DataType::Utf8 => {
            Field::new(field.name(), DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()), field.is_nullable())
        }
        other => Field::new(field.name(), other.clone(), field.is_nullable()),
    });
    let wanted = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(wanted))?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let keys = ProjectionMask::columns(builder.parquet_schema(), ["ts", "device_id"]);
    let (mut rows, mut some) = (0, None);
    for batch in builder.with_projection(keys).with_batch_size(BATCH_ROWS).build()? {
        let batch = batch?;
        rows += batch.num_rows();
        some.get_or_insert_with(|| batch.slice(0, batch.num_rows().min(ROWS_A_DAY)));
    }
    let some = some.ok_or("a file without rows")?;
    let (time, name) = (some.column_by_name("ts").ok_or("no times")?, some.column_by_name("device_id").ok_or("no names")?);
    let time: TimestampMicrosecondArray = time.as_primitive::<TimestampMicrosecondType>().clone();
    let values: Vec<ArrayRef> = vec![
        Arc::new(time.with_timezone(crate::UTC)),
        cast(name, schema().field(1).data_type())?,
        Arc::new(Float64Array::from(vec![0.0; some.num_rows()])),
        Arc::new(Int32Array::from(vec![0; some.num_rows()])),
    ];
    // Small files are not compressed.
    let mut encoder = Encoder::compressed(target, Compression::UNCOMPRESSED)?;
    encoder.write(values)?;
    encoder.finish()?;
    File::open(target)?.sync_all()?;
    File::open(target.parent().ok_or("no folder")?)?.sync_all()?;
    Ok(rows)
}
