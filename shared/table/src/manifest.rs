//! Manifests, written by writers apart from any commit.
//!
//! Entries hold no snapshot id and no sequence number: they inherit both from the manifest list of the snapshot
//! that lists the manifest, so the same entries serve a branch and, in manifests of new paths, `main`. A path is never
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

/// Manifests read at a time.
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

/// The manifests' entries under new paths: neighbours together in manifests of about the target size. Given in the order of
/// partitions, each holds a range of them, so that readers skip most. One manifest at a time is in memory. Durable when it
/// returns.
pub async fn merge_manifests(
    file_io: &FileIO,
    refs: &[ManifestRef],
    target_bytes: i64,
    new_path: impl Fn(usize) -> String,
) -> Result<Vec<ManifestRef>> {
    let mut out = Vec::new();
    for neighbours in neighbours(refs, target_bytes) {
        let path = new_path(out.len());
        out.push(match neighbours {
            [one] => copy(file_io, one, path).await?,
            several => merge(file_io, several, path).await?,
        });
    }
    Ok(out)
}

/// Cut where the target is reached, and where the spec changes: a manifest is of one spec.
fn neighbours(refs: &[ManifestRef], target_bytes: i64) -> Vec<&[ManifestRef]> {
    let mut bytes = 0;
    let mut together = |a: &ManifestRef, b: &ManifestRef| {
        bytes += a.bytes;
        let fits = a.spec_id == b.spec_id && bytes + b.bytes <= target_bytes;
        if !fits {
            bytes = 0;
        }
        fits
    };
    refs.chunk_by(|a, b| together(a, b)).collect()
}

/// Bytes as they are.
async fn copy(file_io: &FileIO, r: &ManifestRef, path: String) -> Result<ManifestRef> {
    let what = format!("copying the manifest {} to {path}", r.path);
    let bytes = read_manifest_bytes(file_io, r).await?;
    let output = file_io.new_output(&path).map_err(|e| from_iceberg(e, &what))?;
    // A writer, not a plain write: closing it makes the file durable.
    let mut writer = output.writer().await.map_err(|e| at_file(e, &what, &path))?;
    writer.write(bytes).await.map_err(|e| at_file(e, &what, &path))?;
    writer.close().await.map_err(|e| at_file(e, &what, &path))?;
    Ok(ManifestRef { path, ..r.clone() })
}

async fn merge(file_io: &FileIO, refs: &[ManifestRef], path: String) -> Result<ManifestRef> {
    let reads = refs.iter().map(|r| async move { Ok::<_, Error>((r, read_manifest_bytes(file_io, r).await?)) });
    let mut reads = futures::stream::iter(reads).buffered(MANIFESTS_AT_A_TIME);
    let (mut files, mut first) = (Vec::new(), None);
    while let Some((r, bytes)) = reads.try_next().await? {
        let (entries, metadata) = parse(r, &bytes)?.into_parts();
        files.extend(entries.iter().map(|entry| entry.data_file().clone()));
        first.get_or_insert(metadata);
    }
    let first = first.ok_or_else(|| Error::internal("no manifests to merge"))?;
    let merged = write_manifest(file_io, first.schema().clone(), first.partition_spec(), path, files).await?;
    let sum = |of: fn(&ManifestRef) -> u64| refs.iter().map(of).sum::<u64>();
    let expected = (sum(|r| r.added_files.into()), sum(|r| r.added_rows), sum(|r| r.added_bytes));
    if (u64::from(merged.added_files), merged.added_rows, merged.added_bytes) != expected {
        return Err(Error::internal(format!("{} holds other files than the manifests that it was merged from", merged.path)));
    }
    Ok(merged)
}

fn parse(r: &ManifestRef, bytes: &[u8]) -> Result<Manifest> {
    Manifest::parse_avro(bytes).map_err(|e| from_iceberg(e, &format!("reading the manifest {}", r.path)))
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
    let manifest = parse(r, &read_manifest_bytes(table.file_io(), r).await?)?;
    Ok(manifest.entries().iter().map(|entry| entry.data_file().clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_together_up_to_the_target_and_within_one_spec() {
        let manifest = |bytes: i64, spec_id: i32| ManifestRef {
            path: String::new(),
            bytes,
            spec_id,
            added_files: 1,
            added_rows: 1,
            added_bytes: 1,
            partitions: vec![],
        };
        let cut = |sizes: &[(i64, i32)], target: i64| -> Vec<usize> {
            let refs: Vec<ManifestRef> = sizes.iter().map(|(bytes, spec)| manifest(*bytes, *spec)).collect();
            neighbours(&refs, target).iter().map(|n| n.len()).collect()
        };
        assert_eq!(cut(&[], 10), [0usize; 0]);
        assert_eq!(cut(&[(4, 0), (4, 0), (4, 0), (4, 0), (4, 0)], 10), [2, 2, 1]);
        assert_eq!(cut(&[(11, 0), (1, 0), (9, 0), (1, 0)], 10), [1, 2, 1]);
        assert_eq!(cut(&[(1, 0), (1, 1), (1, 1), (1, 0)], 10), [1, 2, 1]);
    }
}
