//! What is live in a window of a snapshot.
//!
//! Must never happen: a file that may hold rows of the window and is not in the answer. Where bounds or partition
//! summaries are missing or not understood, the file counts as overlapping.

use crate::errors::from_iceberg;
use crate::manifest::MANIFESTS_AT_A_TIME;
use crate::partition::period;
use crate::snapshot::manifests_of;
use futures::StreamExt;
use futures::stream::TryStreamExt;
use iceberg::spec::{
    DataContentType, DataFile, DataFileFormat, FieldSummary, Literal, Manifest, ManifestContentType, ManifestFile, PrimitiveLiteral,
    SnapshotRef, Struct, TableMetadata, Transform,
};
use iceberg::table::Table;
use std::collections::HashSet;
use timelake_model::{Error, Reason, Result, Window};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    Data,
    /// Of one data file, or of any.
    PositionDeletes {
        of: Option<String>,
    },
    /// Of format version 3.
    DeletionVector {
        of: Option<String>,
    },
    /// By equality in these fields.
    EqualityDeletes {
        columns: Vec<i32>,
    },
}

/// A file of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveFile {
    pub path: String,
    pub bytes: u64,
    pub rows: u64,
    pub spec_id: i32,
    pub partition: Struct,
    /// Bounds of the time column in microseconds, both inclusive. `None`: unknown, may hold any time.
    pub time: Option<(i64, i64)>,
    pub content: FileContent,
    /// Data sequence number.
    pub sequence_number: i64,
}

impl LiveFile {
    pub fn overlaps(&self, window: &Window) -> bool {
        self.time.is_none_or(|(low, high)| !window.is_empty() && low < window.high() && high >= window.low())
    }
}

/// Data and delete files of a snapshot that may hold (or hide) rows of the window, in manifest order.
pub async fn live_files(table: &Table, snapshot_id: i64, time_field_id: i32, window: &Window) -> Result<Vec<LiveFile>> {
    if window.is_empty() {
        return Ok(Vec::new());
    }
    let manifests = manifests_of(table, snapshot_of(table, snapshot_id)?).await?;
    files_of(table, manifests, time_field_id, window).await
}

/// Live files of the window in those manifests of two snapshots that only one of them has.
pub struct Difference {
    pub gone: Vec<LiveFile>,
    pub come: Vec<LiveFile>,
}

/// What differs between two snapshots of the table. A manifest that both have is not read: it is never changed, and its
/// files have the same sequence numbers in both. A file that moved to another manifest is on both sides.
/// `None`: deletes are in force in the window, or what `from` is made of is not there any more.
pub async fn difference(table: &Table, from: i64, to: i64, time_field_id: i32, window: &Window) -> Result<Option<Difference>> {
    let now = manifests_of(table, snapshot_of(table, to)?).await?;
    let Some(before) = table.metadata().snapshot_by_id(from) else { return Ok(None) };
    // Others may have expired it and removed its files, so no error here matters: what is there now can be told without it.
    let Ok(before) = manifests_of(table, before).await else { return Ok(None) };
    let in_window =
        |m: &ManifestFile| (m.has_added_files() || m.has_existing_files()) && manifest_overlaps(table.metadata(), m, time_field_id, window);
    if before.iter().chain(&now).any(|m| m.content == ManifestContentType::Deletes && in_window(m)) {
        return Ok(None);
    }
    // One path listed with other sequence numbers is another manifest.
    let key = |m: &ManifestFile| (m.manifest_path.clone(), m.sequence_number);
    let without = |manifests: &[ManifestFile], other: &[ManifestFile]| {
        let known: HashSet<_> = other.iter().map(key).collect();
        manifests.iter().filter(|m| !known.contains(&key(m))).cloned().collect::<Vec<_>>()
    };
    let Ok(gone) = files_of(table, without(&before, &now), time_field_id, window).await else { return Ok(None) };
    let come = files_of(table, without(&now, &before), time_field_id, window).await?;
    Ok(Some(Difference { gone, come }))
}

async fn files_of(table: &Table, manifests: Vec<ManifestFile>, time_field_id: i32, window: &Window) -> Result<Vec<LiveFile>> {
    let manifests = manifests
        .into_iter()
        .filter(|m| m.has_added_files() || m.has_existing_files())
        .filter(|m| manifest_overlaps(table.metadata(), m, time_field_id, window))
        .collect();
    let mut out = Vec::new();
    for (manifest_file, manifest) in load(table, manifests).await? {
        for entry in manifest.entries().iter().filter(|e| e.is_alive()) {
            let file = live_file(table.metadata(), &manifest_file, entry.data_file(), entry.sequence_number(), time_field_id);
            let in_partition = partition_overlaps(table.metadata(), &file, time_field_id, window);
            if in_partition && file.overlaps(window) {
                out.push(file);
            }
        }
    }
    Ok(out)
}

fn snapshot_of(table: &Table, snapshot_id: i64) -> Result<&SnapshotRef> {
    table.metadata().snapshot_by_id(snapshot_id).ok_or_else(|| {
        Error::conflict(Reason::TableChanged, format!("snapshot {snapshot_id} of {} is gone", table.identifier()))
            .hint("it was expired meanwhile; run the command again")
            .at(|p| p.table = Some(table.identifier().to_string()))
    })
}

/// Reads manifests a few at a time, in order.
async fn load(table: &Table, manifests: Vec<ManifestFile>) -> Result<Vec<(ManifestFile, Manifest)>> {
    let reads = manifests.into_iter().map(|m| async move {
        let what = format!("reading the manifest {}", m.manifest_path);
        let manifest = m.load_manifest(table.file_io()).await.map_err(|e| from_iceberg(e, &what))?;
        Ok::<_, Error>((m, manifest))
    });
    futures::stream::iter(reads).buffered(MANIFESTS_AT_A_TIME).try_collect().await
}

fn live_file(
    metadata: &TableMetadata,
    manifest: &ManifestFile,
    file: &DataFile,
    sequence_number: Option<i64>,
    time_field_id: i32,
) -> LiveFile {
    let content = match file.content_type() {
        DataContentType::Data => FileContent::Data,
        DataContentType::PositionDeletes if file.file_format() == DataFileFormat::Puffin => {
            FileContent::DeletionVector { of: file.referenced_data_file() }
        }
        DataContentType::PositionDeletes => FileContent::PositionDeletes { of: file.referenced_data_file() },
        DataContentType::EqualityDeletes => FileContent::EqualityDeletes { columns: file.equality_ids().unwrap_or_default() },
    };
    // A position delete names files, not times. An equality delete's times bound what it hides only when the time
    // is one of the columns it compares.
    let bounds_count = match &content {
        FileContent::Data => true,
        FileContent::PositionDeletes { .. } | FileContent::DeletionVector { .. } => false,
        FileContent::EqualityDeletes { columns } => columns.contains(&time_field_id),
    };
    let bound = |bounds: &std::collections::HashMap<i32, iceberg::spec::Datum>| match bounds.get(&time_field_id)?.literal() {
        PrimitiveLiteral::Long(micros) => Some(*micros),
        _ => None,
    };
    let time = if bounds_count { bound(file.lower_bounds()).zip(bound(file.upper_bounds())) } else { None };
    let spec_id = manifest.partition_spec_id;
    let fields = metadata.partition_spec_by_id(spec_id).map_or(0, |s| s.fields().len());
    let partition = if fields == 0 { Struct::empty() } else { file.partition().clone() };
    LiveFile {
        path: file.file_path().to_string(),
        bytes: file.file_size_in_bytes(),
        rows: file.record_count(),
        spec_id,
        partition,
        time,
        content,
        sequence_number: sequence_number.unwrap_or(manifest.sequence_number),
    }
}

/// Smallest and largest partition value that can hold rows of the window.
fn ordinal_range(transform: Transform, window: &Window) -> Option<(i64, i64)> {
    let period = period(transform)?;
    let low = if window.start.is_some() { period.ordinal(window.low()) } else { i64::MIN };
    let high = if window.end.is_some() { period.ordinal(window.high().saturating_sub(1)) } else { i64::MAX };
    // Older writers rounded times before 1970 towards it: their value is one too large.
    Some((low, if high < 0 { high + 1 } else { high }))
}

fn manifest_overlaps(metadata: &TableMetadata, manifest: &ManifestFile, time_field_id: i32, window: &Window) -> bool {
    let Some(spec) = metadata.partition_spec_by_id(manifest.partition_spec_id) else { return true };
    let Some(summaries) = &manifest.partitions else { return true };
    if summaries.len() != spec.fields().len() {
        return true;
    }
    // Position deletes made in another partition than their data do not exist; equality deletes of an
    // unpartitioned spec reach everywhere, and that spec has no fields to prune by.
    spec.fields().iter().zip(summaries).filter(|(f, _)| f.source_id == time_field_id).all(|(f, summary)| {
        let Some((low, high)) = ordinal_range(f.transform, window) else { return true };
        match summary_range(summary) {
            Some((smallest, largest)) => smallest <= high && largest >= low,
            None => true,
        }
    })
}

/// The bounds of a year, month, day or hour field: four bytes, little endian.
fn summary_range(summary: &FieldSummary) -> Option<(i64, i64)> {
    let number = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(|b| i64::from(i32::from_le_bytes(b)));
    Some((number(summary.lower_bound.as_deref()?)?, number(summary.upper_bound.as_deref()?)?))
}

fn partition_overlaps(metadata: &TableMetadata, file: &LiveFile, time_field_id: i32, window: &Window) -> bool {
    let Some(spec) = metadata.partition_spec_by_id(file.spec_id) else { return true };
    spec.fields().iter().zip(file.partition.fields()).filter(|(f, _)| f.source_id == time_field_id).all(|(f, value)| {
        match (ordinal_range(f.transform, window), value) {
            (Some((low, high)), Some(Literal::Primitive(PrimitiveLiteral::Int(n)))) => (low..=high).contains(&i64::from(*n)),
            _ => true,
        }
    })
}

/// An equality delete of the current snapshot that belongs to a partition, by its path.
pub async fn partitioned_equality_delete(table: &Table) -> Result<Option<String>> {
    let metadata = table.metadata();
    let Some(snapshot) = metadata.current_snapshot() else { return Ok(None) };
    let in_partitions = |m: &ManifestFile| {
        let fields = metadata.partition_spec_by_id(m.partition_spec_id).map_or(1, |s| s.fields().len());
        m.content == ManifestContentType::Deletes && fields > 0 && (m.has_added_files() || m.has_existing_files())
    };
    let manifests: Vec<ManifestFile> = manifests_of(table, snapshot).await?.into_iter().filter(in_partitions).collect();
    for (_, manifest) in load(table, manifests).await? {
        let found = manifest.entries().iter().find(|e| e.is_alive() && e.content_type() == DataContentType::EqualityDeletes);
        if let Some(entry) = found {
            return Ok(Some(entry.data_file().file_path().to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use timelake_model::TimestampUs;
    use timelake_model::time::MICROS_PER_DAY;

    #[test]
    fn partitions_of_a_window_are_those_of_its_first_and_last_instant() {
        let days = |from: i64, to: i64| Window::new(from * MICROS_PER_DAY, to * MICROS_PER_DAY);
        assert_eq!(ordinal_range(Transform::Day, &days(10, 12)), Some((10, 11)));
        assert_eq!(ordinal_range(Transform::Month, &days(31, 59)), Some((1, 1)));
        assert_eq!(ordinal_range(Transform::Month, &days(31, 60)), Some((1, 2)));
        assert_eq!(ordinal_range(Transform::Year, &Window::ALL), Some((i64::MIN, i64::MAX)));
        assert_eq!(ordinal_range(Transform::Bucket(4), &days(1, 2)), None);
        assert_eq!(ordinal_range(Transform::Identity, &days(1, 2)), None);
        // one more before 1970, for writers that rounded towards it
        assert_eq!(ordinal_range(Transform::Day, &days(-3, -1)), Some((-3, -1)));
        assert_eq!(ordinal_range(Transform::Hour, &Window { start: None, end: Some(TimestampUs(0)) }), Some((i64::MIN, 0)));
    }

    #[test]
    fn a_file_without_bounds_overlaps_everything_but_an_empty_window() {
        let file = |time| LiveFile {
            path: String::new(),
            bytes: 1,
            rows: 1,
            spec_id: 0,
            partition: Struct::empty(),
            time,
            content: FileContent::Data,
            sequence_number: 1,
        };
        assert!(file(None).overlaps(&Window::new(0, 1)));
        assert!(file(Some((5, 5))).overlaps(&Window::new(5, 6)));
        assert!(!file(Some((5, 5))).overlaps(&Window::new(0, 5)));
        assert!(!file(Some((5, 5))).overlaps(&Window::new(6, 7)));
        assert!(!file(Some((5, 5))).overlaps(&Window::new(5, 5)));
    }
}
