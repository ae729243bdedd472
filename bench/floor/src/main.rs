//! The floor of the bench: `timelake-floor csv|parquet SOURCE OUT THREADS` decodes the source's rows and encodes them
//! (`late`: see there).
//!
//! Takes a folder of files in the shape of workload A or B, gives one Parquet file per source file, with the properties
//! of timelake's data files. It does what nobody can leave out who turns these sources into Parquet, with the usual
//! crates, and nothing else: no zones (local times are stored as if they were UTC), no duplicates removed, no sort, no
//! table, no checks. It must never be shown as a way to do the job: its output is not what anyone asked for.

mod late;
mod text;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// As in the command, so that the two differ in their work only.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROW_GROUP_ROWS: usize = 1 << 20;
const BATCH_ROWS: usize = 1 << 15;
const ZSTD_LEVEL: i32 = 3;
const UTC: &str = "+00:00";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(rows) => {
            println!("{{\"rows\": {rows}}}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("timelake-floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<usize> {
    let [format, source, out, threads] = arguments else {
        return Err("usage: timelake-floor csv|parquet|late SOURCE OUT THREADS".into());
    };
    let copy: fn(&Path, &Path) -> Result<usize> = match format.as_str() {
        "csv" => text::copy,
        "parquet" => copy_parquet,
        "late" => late::copy,
        other => return Err(format!("no format {other}").into()),
    };
    let threads: usize = threads.parse()?;
    let files = match format.as_str() {
        "late" => late::days(Path::new(source))?,
        "csv" => listed(Path::new(source), ".csv.gz")?,
        _ => listed(Path::new(source), ".parquet")?,
    };
    fs::create_dir_all(out)?;
    let next = AtomicUsize::new(0);
    // Each thread takes the next file until there are none.
    let work = || -> Result<usize> {
        let mut rows = 0;
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let stem = name.split('.').next().unwrap_or_default();
            let target = match format.as_str() {
                "late" => file.with_file_name("floor.parquet"),
                _ => Path::new(out).join(format!("{stem}.parquet")),
            };
            rows += copy(file, &target).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(rows)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().map_err(|_| "a thread panicked")?).sum()
    })
}

fn listed(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() { Err(format!("{}: no *{ending} files", folder.display()).into()) } else { Ok(files) }
}

/// The columns of the bench's table.
fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("ts", DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())), false),
        Field::new("device_id", DataType::Utf8, false),
        Field::new("value", DataType::Float64, true),
        Field::new("quality", DataType::Int32, true),
    ]))
}

/// Encodes into one file, as `engine/write/layout.rs` does for the bench's table.
struct Encoder {
    schema: SchemaRef,
    writer: ArrowWriter<BufWriter<File>>,
    rows: usize,
}

impl Encoder {
    /// With zstd, as large files are.
    fn create(path: &Path) -> Result<Self> {
        Self::compressed(path, Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
    }
    fn compressed(path: &Path, compression: Compression) -> Result<Self> {
        let schema = schema();
        let time = ColumnPath::from("ts");
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_column_encoding(time.clone(), Encoding::DELTA_BINARY_PACKED)
            .set_column_dictionary_enabled(time, false)
            .build();
        let writer = ArrowWriter::try_new(BufWriter::new(File::create_new(path)?), schema.clone(), Some(properties))?;
        Ok(Encoder { schema, writer, rows: 0 })
    }
    fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.rows += batch.num_rows();
        Ok(self.writer.write(&batch)?)
    }
    /// The number of rows that were written.
    fn finish(self) -> Result<usize> {
        self.writer.close()?;
        Ok(self.rows)
    }
}

fn copy_parquet(source: &Path, target: &Path) -> Result<usize> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(source)?)?.with_batch_size(BATCH_ROWS).build()?;
    let (mut encoder, schema) = (Encoder::create(target)?, schema());
    for batch in reader {
        let batch = batch?;
        let columns = ["timestamp", "tag_name", "value", "quality"].iter().zip(schema.fields()).map(|(name, field)| {
            let column = batch.column_by_name(name).ok_or_else(|| format!("no column {name}"))?;
            Ok(match column.as_primitive_opt::<TimestampMicrosecondType>() {
                // Relabelled: a cast would convert each value.
                Some(local) => Arc::new(local.clone().with_timezone(UTC)),
                None => cast(column, field.data_type())?,
            })
        });
        encoder.write(columns.collect::<Result<_>>()?)?;
    }
    encoder.finish()
}
