//! Parquet inputs made by tests.

use arrow::array::{ArrayRef, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::path::Path;

/// A column of an input: its name and values.
pub type Cells = (&'static str, ArrayRef);

/// Writes one Snappy file as a historian export would; `row_group_rows` cuts it into row groups.
pub fn write_parquet(path: &Path, columns: Vec<Cells>, row_group_rows: usize) {
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders of an input");
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, values)| (name, values, true)))
        .expect("columns of one length");
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_max_row_group_row_count(Some(row_group_rows)).build();
    let file = File::create(path).unwrap_or_else(|e| panic!("create {}: {e}", path.display()));
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a Parquet writer");
    writer.write(&batch).expect("rows written");
    writer.close().expect("a footer");
}
