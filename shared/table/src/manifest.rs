//! Manifests, written by writers apart from any commit.
//!
//! Entries hold no snapshot id and no sequence number: they inherit both from the manifest list of the snapshot
//! that lists the manifest, so the same bytes serve a branch and, copied to a new path, `main`. A path is never
//! listed with two different sequence numbers: readers cache manifests by path.

use crate::errors::{at_file, from_iceberg};
use futures::StreamExt;
use futures::stream::TryStreamExt;
use iceberg::io::FileIO;
use iceberg::spec::{
    DataFile, FieldSummary, Manifest, ManifestContentType, ManifestFile, ManifestWriterBuilder, PartitionSpec, SchemaRef,
    UNASSIGNED_SEQUENCE_NUMBER,
};
use iceberg::table::Table;
use timelake_model::receipt::{FieldSummaryRef, ManifestRef};
use timelake_model::{Error, Reason, Result};

/// Manifests copied or read at a time.
pub(crate) const MANIFESTS_AT_A_TIME: usize = 8;

/// Writes one manifest (format version 2) of added data files. Durable when it returns.
pub async fn write_manifest(
    file_io: &FileIO,
    schema: SchemaRef,
    spec: &PartitionSpec,
    path: String,
    files: Vec<DataFile>,
) -> Result<ManifestRef> {
    if files.is_empty() {
        return Err(Error::internal("a manifest without files is never written"));
    }
    let what = format!("writing the manifest {path}");
    let shown = path.clone();
    let output = file_io.new_output(&path).map_err(|e| from_iceberg(e, &what))?;
    let mut writer = ManifestWriterBuilder::new(output, None, schema, spec.clone()).build_v2_data();
    let mut added_bytes = 0;
    for file in files {
        added_bytes += file.file_size_in_bytes();
        writer.add_file(file, UNASSIGNED_SEQUENCE_NUMBER).map_err(|e| from_iceberg(e, &what))?;
    }
    let written = writer.write_manifest_file().await.map_err(|e| at_file(e, &what, &shown))?;
    Ok(ManifestRef {
        path: written.manifest_path,
        bytes: written.manifest_length,
        spec_id: written.partition_spec_id,
        added_files: written.added_files_count.unwrap_or(0),
        added_rows: written.added_rows_count.unwrap_or(0),
        added_bytes,
        partitions: written
            .partitions
            .unwrap_or_default()
            .into_iter()
            .map(|f| FieldSummaryRef {
                contains_null: f.contains_null,
                contains_nan: f.contains_nan,
                lower: f.lower_bound.map(|b| b.to_vec()),
                upper: f.upper_bound.map(|b| b.to_vec()),
            })
            .collect(),
    })
}

/// The manifest list entry "added in `snapshot_id`"; the list's writer fills in the sequence number.
pub fn manifest_file(r: &ManifestRef, snapshot_id: i64) -> ManifestFile {
    ManifestFile {
        manifest_path: r.path.clone(),
        manifest_length: r.bytes,
        partition_spec_id: r.spec_id,
        content: ManifestContentType::Data,
        sequence_number: UNASSIGNED_SEQUENCE_NUMBER,
        min_sequence_number: UNASSIGNED_SEQUENCE_NUMBER,
        added_snapshot_id: snapshot_id,
        added_files_count: Some(r.added_files),
        existing_files_count: Some(0),
        deleted_files_count: Some(0),
        added_rows_count: Some(r.added_rows),
        existing_rows_count: Some(0),
        deleted_rows_count: Some(0),
        partitions: Some(
            r.partitions
                .iter()
                .map(|f| FieldSummary {
                    contains_null: f.contains_null,
                    contains_nan: f.contains_nan,
                    lower_bound: f.lower.clone().map(Into::into),
                    upper_bound: f.upper.clone().map(Into::into),
                })
                .collect(),
        ),
        key_metadata: None,
        first_row_id: None,
    }
}

/// Copies manifests, bytes as they are, to new paths (in the same order). Durable when it returns.
pub async fn copy_manifests(file_io: &FileIO, refs: &[ManifestRef], new_paths: Vec<String>) -> Result<Vec<ManifestRef>> {
    if refs.len() != new_paths.len() {
        return Err(Error::internal(format!("{} manifests, but {} new paths", refs.len(), new_paths.len())));
    }
    let pairs: Vec<(ManifestRef, String)> = refs.iter().cloned().zip(new_paths).collect();
    let copies = pairs.into_iter().map(|(r, path)| async move {
        let what = format!("copying the manifest {} to {path}", r.path);
        let bytes = read_manifest_bytes(file_io, &r).await?;
        let output = file_io.new_output(&path).map_err(|e| from_iceberg(e, &what))?;
        // A writer, not a plain write: closing it makes the file durable.
        let mut writer = output.writer().await.map_err(|e| at_file(e, &what, &path))?;
        writer.write(bytes).await.map_err(|e| at_file(e, &what, &path))?;
        writer.close().await.map_err(|e| at_file(e, &what, &path))?;
        Ok::<_, Error>(ManifestRef { path, ..r })
    });
    futures::stream::iter(copies).buffered(MANIFESTS_AT_A_TIME).try_collect().await
}

async fn read_manifest_bytes(file_io: &FileIO, r: &ManifestRef) -> Result<bytes::Bytes> {
    let what = format!("reading the manifest {}", r.path);
    let input = file_io.new_input(&r.path).map_err(|e| from_iceberg(e, &what))?;
    let bytes = input.read().await.map_err(|e| at_file(e, &what, &r.path))?;
    if bytes.len() as i64 != r.bytes {
        return Err(Error::corrupt(
            Reason::StagedFileWrong,
            format!("the manifest {} has {} bytes, {} were written", r.path, bytes.len(), r.bytes),
        )
        .at(|p| p.file = Some(r.path.clone())));
    }
    Ok(bytes)
}

/// The data files of a manifest that a receipt names.
pub async fn read_data_files(table: &Table, r: &ManifestRef) -> Result<Vec<DataFile>> {
    let bytes = read_manifest_bytes(table.file_io(), r).await?;
    let manifest = Manifest::parse_avro(&bytes).map_err(|e| from_iceberg(e, &format!("reading the manifest {}", r.path)))?;
    Ok(manifest.entries().iter().map(|entry| entry.data_file().clone()).collect())
}
