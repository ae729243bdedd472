//! Row-level deletes: which delete files apply to which data files, and the rows that equality deletes hide.
//!
//! Must never happen: a hidden row that counts as there (a key of a job would lose to nothing), or a live row that counts
//! as hidden (its key would be there twice). What is not understood is refused.

use crate::errors::from_arrow;
use crate::live::{FileContent, LiveFile};
use crate::read::{Named, stream};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Int32Type;
use arrow::row::{RowConverter, SortField};
use futures::stream::TryStreamExt;
use iceberg::spec::{PartitionSpec, Struct};
use iceberg::table::Table;
use std::collections::HashMap;
use timelake_model::inventory::{DeleteFile, ExistingFile, Hides, LiveRows};
use timelake_model::plan::meet;
use timelake_model::{Error, Reason, Result, TimestampUs, Window};
use twox_hash::XxHash3_128;

/// Keys of equality deletes held at a time, about 50 bytes each.
const MAX_EQUALITY_KEYS: usize = 4_000_000;

/// May the delete file hide rows of the data file? The rule of the Iceberg specification.
pub fn applies(delete: &DeleteFile, file: &ExistingFile) -> bool {
    let in_partition = match delete.partition {
        Some(partition) => (delete.spec_id, partition) == (file.spec_id, file.partition),
        None => true,
    };
    in_partition
        && match &delete.hides {
            // A delete of the same commit may name its own data files.
            Hides::Positions { of } => delete.sequence >= file.sequence && of.as_ref().is_none_or(|path| *path == file.path),
            // An upsert writes deletes and new rows in one commit: its own rows stay.
            Hides::Equal { time, .. } => delete.sequence > file.sequence && meet(*time, file.time),
        }
}

/// Data files with the deletes that apply to any of them.
pub fn live_rows(table: &Table, live: Vec<LiveFile>) -> Result<LiveRows> {
    let metadata = table.metadata();
    let instants = |time: Option<(i64, i64)>| time.map(|(low, high)| (TimestampUs(low), TimestampUs(high)));
    let mut numbers: HashMap<(i32, Struct), u32> = HashMap::new();
    let mut rows = LiveRows::default();
    let mut vectors = Vec::new();
    for file in live {
        let everywhere = metadata.partition_spec_by_id(file.spec_id).is_some_and(|spec| PartitionSpec::is_unpartitioned(spec));
        let next = numbers.len() as u32;
        let partition = *numbers.entry((file.spec_id, file.partition.clone())).or_insert(next);
        let delete = |partition, hides| DeleteFile {
            path: file.path.clone(),
            bytes: file.bytes,
            rows: file.rows,
            spec_id: file.spec_id,
            sequence: file.sequence_number,
            partition,
            hides,
        };
        match file.content.clone() {
            FileContent::Data => rows.files.push(ExistingFile {
                path: file.path.clone(),
                bytes: file.bytes,
                rows: file.rows,
                spec_id: file.spec_id,
                time: instants(file.time),
                sequence: file.sequence_number,
                partition,
            }),
            FileContent::PositionDeletes { of } => rows.deletes.push(delete(Some(partition), Hides::Positions { of })),
            FileContent::DeletionVector { of } => vectors.push(delete(Some(partition), Hides::Positions { of })),
            FileContent::EqualityDeletes { columns } => {
                let partition = (!everywhere).then_some(partition);
                rows.deletes.push(delete(partition, Hides::Equal { columns, time: instants(file.time) }));
            }
        }
    }
    if let Some(vector) = vectors.iter().find(|v| rows.files.iter().any(|f| applies(v, f))) {
        return Err(refused(table, format!("has deletion vectors in the window ({}), which are not read yet", vector.path)));
    }
    rows.deletes.retain(|d| rows.files.iter().any(|f| applies(d, f)));
    if rows.deletes.is_empty() {
        // What is stored stays as it is in tables without deletes.
        rows.files.iter_mut().for_each(|f| f.partition = 0);
    }
    Ok(rows)
}

fn refused(table: &Table, what: String) -> Error {
    Error::conflict(Reason::DeleteFilesInWindow, format!("{} {what}", table.identifier()))
        .hint("rewrite the table's files with deletes applied (compaction), or load a range without them")
        .at(|p| p.table = Some(table.identifier().to_string()))
}

/// Rows hidden by equality deletes, while data files are read.
pub(crate) struct EqualityDeletes {
    sets: Vec<Set>,
    /// Sequence number, spec and partition of the data files, by path.
    files: HashMap<String, (i64, i32, u32)>,
}

/// Deletes of one scope that compare the same columns.
struct Set {
    scope: Option<(i32, u32)>,
    /// Names of the columns, in the order of their ids.
    columns: Vec<String>,
    converter: RowConverter,
    /// The last delete of each key, by its sequence number.
    keys: HashMap<u128, i64>,
}

impl EqualityDeletes {
    /// Reads the equality deletes that apply to the files; `None`: there are none.
    pub(crate) async fn load(
        table: &Table,
        files: &[ExistingFile],
        deletes: &[DeleteFile],
        time: &str,
        window: &Window,
    ) -> Result<Option<Self>> {
        let schema = table.current_schema_ref();
        let mut sets: Vec<Set> = Vec::new();
        let mut held = 0;
        for delete in deletes.iter().filter(|d| files.iter().any(|f| applies(d, f))) {
            let Hides::Equal { columns: ids, .. } = &delete.hides else { continue };
            let mut ids = ids.clone();
            ids.sort_unstable();
            let named = ids.iter().map(|id| schema.as_struct().field_by_id(*id).filter(|f| f.field_type.is_primitive()));
            let columns = named.map(|f| f.map(|f| f.name.clone())).collect::<Option<Vec<String>>>().filter(|c| !c.is_empty());
            let columns = columns.ok_or_else(|| {
                refused(table, format!("has equality deletes by columns that it has no longer or that are nested ({})", delete.path))
            })?;
            // Only those of the window are held where the time is compared.
            let (window, time_at) = match columns.iter().position(|c| c == time) {
                Some(at) => (*window, Some(at)),
                None => (Window::ALL, None),
            };
            let as_data = ExistingFile {
                path: delete.path.clone(),
                bytes: delete.bytes,
                rows: delete.rows,
                spec_id: delete.spec_id,
                time: None,
                sequence: 0,
                partition: 0,
            };
            let named = Named { names: columns.clone(), shown: columns.len(), time_at, window };
            let mut batches = stream(table, &[as_data], &[], named, None)?;
            let scope = delete.partition.map(|p| (delete.spec_id, p));
            while let Some(batch) = batches.try_next().await? {
                let set = match sets.iter().position(|s| s.scope == scope && s.columns == columns) {
                    Some(at) => &mut sets[at],
                    None => {
                        let fields = batch.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
                        let converter = RowConverter::new(fields).map_err(|e| from_arrow(e, "reading equality deletes"))?;
                        sets.push(Set { scope, columns: columns.clone(), converter, keys: HashMap::new() });
                        sets.last_mut().ok_or_else(|| Error::internal("a set that was just pushed"))?
                    }
                };
                let before = set.keys.len();
                for key in set.hashes(batch.columns())? {
                    let last = set.keys.entry(key).or_insert(delete.sequence);
                    *last = delete.sequence.max(*last);
                }
                held += set.keys.len() - before;
                if held > MAX_EQUALITY_KEYS {
                    return Err(refused(table, format!("has more than {MAX_EQUALITY_KEYS} rows of equality deletes in one time range")));
                }
            }
        }
        let files = files.iter().map(|f| (f.path.clone(), (f.sequence, f.spec_id, f.partition))).collect();
        Ok((!sets.is_empty()).then_some(EqualityDeletes { sets, files }))
    }

    /// Columns that are compared.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &String> {
        self.sets.iter().flat_map(|s| &s.columns)
    }

    /// The rows of a batch that stay. `path` is the reader's constant column with the file's path.
    pub(crate) fn stay(&self, path: &ArrayRef, batch: &RecordBatch) -> Result<BooleanBuffer> {
        let path = constant_text(path)?;
        let (sequence, spec, partition) =
            *self.files.get(&path).ok_or_else(|| Error::internal(format!("the reader names a file that was not asked for: {path}")))?;
        let mut stay = BooleanBuffer::new_set(batch.num_rows());
        for set in self.sets.iter().filter(|s| s.scope.is_none_or(|scope| scope == (spec, partition))) {
            let columns: Option<Vec<ArrayRef>> = set.columns.iter().map(|c| batch.column_by_name(c).cloned()).collect();
            let columns = columns.ok_or_else(|| Error::internal("a compared column was not read"))?;
            let hashes = set.hashes(&columns)?;
            let kept = BooleanBuffer::collect_bool(hashes.len(), |i| set.keys.get(&hashes[i]).is_none_or(|last| *last <= sequence));
            stay = &stay & &kept;
        }
        Ok(stay)
    }
}

impl Set {
    fn hashes(&self, columns: &[ArrayRef]) -> Result<Vec<u128>> {
        let rows = self.converter.convert_columns(columns).map_err(|e| from_arrow(e, "comparing equality deletes"))?;
        Ok(rows.iter().map(|row| XxHash3_128::oneshot(row.as_ref())).collect())
    }
}

fn constant_text(array: &ArrayRef) -> Result<String> {
    let values = match array.as_run_opt::<Int32Type>() {
        Some(runs) => runs.values().clone(),
        None => array.clone(),
    };
    let texts = values.as_string_opt::<i32>().filter(|t| !t.is_empty());
    texts.map(|t| t.value(0).to_string()).ok_or_else(|| Error::internal("the reader does not say which file a row is of"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(sequence: i64, partition: u32, time: Option<(i64, i64)>) -> ExistingFile {
        let time = time.map(|(a, b)| (TimestampUs(a), TimestampUs(b)));
        ExistingFile { path: "a.parquet".into(), bytes: 1, rows: 1, spec_id: 1, time, sequence, partition }
    }
    fn delete(sequence: i64, partition: Option<u32>, hides: Hides) -> DeleteFile {
        DeleteFile { path: "d.parquet".into(), bytes: 1, rows: 1, spec_id: 1, sequence, partition, hides }
    }

    #[test]
    fn sequence_numbers_partitions_and_bounds_decide() {
        let equal = |time: Option<(i64, i64)>| Hides::Equal { columns: vec![1], time: time.map(|(a, b)| (TimestampUs(a), TimestampUs(b))) };
        let any = || Hides::Positions { of: None };
        // Equality deletes hide strictly older rows, position deletes also those of their own commit.
        let cases = [
            (delete(5, Some(3), equal(None)), data(4, 3, None), true),
            (delete(5, Some(3), equal(None)), data(5, 3, None), false),
            (delete(5, Some(3), any()), data(5, 3, None), true),
            (delete(5, Some(3), any()), data(6, 3, None), false),
            (delete(5, Some(2), equal(None)), data(4, 3, None), false),
            (delete(5, Some(2), any()), data(4, 3, None), false),
            (delete(5, None, equal(None)), data(4, 3, None), true),
            (delete(5, Some(3), Hides::Positions { of: Some("a.parquet".into()) }), data(5, 3, None), true),
            (delete(5, Some(3), Hides::Positions { of: Some("b.parquet".into()) }), data(5, 3, None), false),
            (delete(5, None, equal(Some((10, 20)))), data(4, 3, Some((20, 30))), true),
            (delete(5, None, equal(Some((10, 20)))), data(4, 3, Some((21, 30))), false),
        ];
        for (delete, file, expected) in cases {
            assert_eq!(applies(&delete, &file), expected, "{delete:?} {file:?}");
        }
        let other_spec = ExistingFile { spec_id: 2, ..data(4, 3, None) };
        assert!(!applies(&delete(5, Some(3), equal(None)), &other_spec));
        assert!(applies(&delete(5, None, equal(None)), &other_spec));
    }
}
