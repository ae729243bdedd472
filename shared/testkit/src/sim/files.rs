//! Data files, delete files and snapshots as other writers make them: nothing of it is the engine's code but the schema.

use super::desk::Desk;
use super::model::{Key, Row, Rows, add};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Float64Type, Schema as ArrowSchema, TimeUnit, TimestampMicrosecondType};
use bytes::Bytes;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, Literal, MAIN_BRANCH, ManifestEntryRef, ManifestFile,
    ManifestListWriter, ManifestWriterBuilder, Operation, PartitionSpec, Snapshot, SnapshotReference, SnapshotRetention, Struct, Summary,
    UNASSIGNED_SEQUENCE_NUMBER,
};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use timelake_model::time::MICROS_PER_DAY;
use timelake_model::{Error, Result};

pub const TIME_FIELD: i32 = 1;
const DEVICE_FIELD: i32 = 2;

pub fn wrong(e: impl std::fmt::Display) -> Error {
    Error::unavailable(timelake_model::Reason::StorageUnavailable, e.to_string())
}

pub fn day(key: &Key) -> i32 {
    key.time_us.div_euclid(MICROS_PER_DAY) as i32
}

fn schema(ids: bool) -> Arc<ArrowSchema> {
    let with_id = |field: Field, id: i32| match ids {
        true => field.with_metadata(HashMap::from([("PARQUET:field_id".to_string(), id.to_string())])),
        false => field,
    };
    Arc::new(ArrowSchema::new(vec![
        with_id(Field::new("ts", DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())), false), TIME_FIELD),
        with_id(Field::new("device_id", DataType::Utf8, false), DEVICE_FIELD),
        with_id(Field::new("value", DataType::Float64, true), 3),
    ]))
}

/// Rows as Parquet, `group` rows per row group.
pub fn parquet(rows: &[Row], group: usize, ids: bool) -> Bytes {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|r| r.key.time_us)).with_timezone("+00:00")),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.key.device))),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| f64::from(r.value)))),
    ];
    let batch = RecordBatch::try_new(schema(ids), columns).expect("columns fit the schema");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group.max(1))).build();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, schema(ids), Some(properties)).expect("a writer");
    writer.write(&batch).expect("rows are written");
    writer.close().expect("a file is closed");
    out.into()
}

/// Rows of a file, in its order; of delete files only the key is set.
pub fn rows_of(bytes: &Bytes) -> Result<Vec<Row>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).map_err(wrong)?.build().map_err(wrong)?;
    let mut out = Vec::new();
    for batch in reader {
        let batch = batch.map_err(wrong)?;
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::internal(format!("a file without {name}")));
        let times = column("ts")?.as_primitive::<TimestampMicrosecondType>();
        let devices = column("device_id")?.as_string::<i32>();
        let values = column("value")?.as_primitive::<Float64Type>();
        for i in 0..batch.num_rows() {
            let key = Key { time_us: times.value(i), device: devices.value(i).to_string() };
            out.push(Row { key, value: if values.is_null(i) { 0 } else { values.value(i) as u32 } });
        }
    }
    Ok(out)
}

pub fn by_day<T>(items: Vec<T>, day: impl Fn(&T) -> i32) -> BTreeMap<i32, Vec<T>> {
    let mut out: BTreeMap<i32, Vec<T>> = BTreeMap::new();
    for item in items {
        out.entry(day(&item)).or_default().push(item);
    }
    out
}

/// A writer of files with names of its own.
pub struct Writer<'a> {
    pub desk: &'a Desk,
    pub table: &'a Table,
    pub name: String,
    files: u32,
}

/// A live file with its entry in the manifest.
#[derive(Clone)]
pub struct Live {
    pub entry: ManifestEntryRef,
    pub sequence: i64,
}

impl Live {
    pub fn file(&self) -> &DataFile {
        self.entry.data_file()
    }
    pub fn is_data(&self) -> bool {
        self.file().content_type() == DataContentType::Data
    }
    pub fn day(&self) -> Option<Literal> {
        self.file().partition().fields().first().cloned().flatten()
    }
}

/// Everything that the snapshot holds.
pub async fn live_files(table: &Table, snapshot_id: i64) -> Result<Vec<Live>> {
    let snapshot = table.metadata().snapshot_by_id(snapshot_id).ok_or_else(|| wrong("the snapshot is gone"))?;
    let list = table.manifest_list_reader(snapshot).load().await.map_err(wrong)?;
    let mut out = Vec::new();
    for manifest in list.entries() {
        let read = manifest.load_manifest(table.file_io()).await.map_err(wrong)?;
        for entry in read.entries().iter().filter(|e| e.is_alive()) {
            let sequence = entry.sequence_number().unwrap_or(manifest.sequence_number);
            out.push(Live { entry: entry.clone(), sequence });
        }
    }
    Ok(out)
}

/// Rows of data files after the deletes among `files`. `bytes_of`: a file's bytes.
pub fn rows_after_deletes(files: &[Live], mut bytes_of: impl FnMut(&str) -> Result<Bytes>) -> Result<Rows> {
    let mut deletes = Vec::new();
    for delete in files.iter().filter(|f| !f.is_data()) {
        if delete.file().content_type() != DataContentType::EqualityDeletes {
            return Err(Error::internal("nobody writes position deletes"));
        }
        let keys: Vec<Key> = rows_of(&bytes_of(delete.file().file_path())?)?.into_iter().map(|r| r.key).collect();
        deletes.push((delete.sequence, delete.day(), keys));
    }
    let mut out = Rows::new();
    for data in files.iter().filter(|f| f.is_data()) {
        let hides =
            |key: &Key| deletes.iter().any(|(sequence, day, keys)| *sequence > data.sequence && *day == data.day() && keys.contains(key));
        for row in rows_of(&bytes_of(data.file().file_path())?)? {
            if !hides(&row.key) {
                add(&mut out, row);
            }
        }
    }
    Ok(out)
}

impl<'a> Writer<'a> {
    pub fn new(desk: &'a Desk, table: &'a Table, name: String) -> Writer<'a> {
        Writer { desk, table, name, files: 0 }
    }

    fn spec(&self) -> &PartitionSpec {
        self.table.metadata().default_partition_spec()
    }

    async fn file(&mut self, rows: &[Row], content: DataContentType) -> Result<DataFile> {
        self.files += 1;
        let location = self.table.metadata().location();
        let path = format!("{location}/data/{}-{}.parquet", self.name, self.files);
        let bytes = parquet(rows, rows.len(), true);
        let size = bytes.len() as u64;
        let output = self.table.file_io().new_output(&path).map_err(wrong)?;
        output.write(bytes).await.map_err(wrong)?;
        let times = || rows.iter().map(|r| r.key.time_us);
        let bound = |us: Option<i64>| HashMap::from([(TIME_FIELD, Datum::timestamptz_micros(us.unwrap_or(0)))]);
        let mut builder = DataFileBuilder::default();
        builder
            .content(content)
            .file_path(path)
            .file_format(DataFileFormat::Parquet)
            .partition(Struct::from_iter([rows.first().map(|r| Literal::int(day(&r.key)))]))
            .partition_spec_id(self.spec().spec_id())
            .record_count(rows.len() as u64)
            .file_size_in_bytes(size)
            .lower_bounds(bound(times().min()))
            .upper_bounds(bound(times().max()));
        if content == DataContentType::EqualityDeletes {
            builder.equality_ids(Some(vec![TIME_FIELD, DEVICE_FIELD]));
        }
        builder.build().map_err(wrong)
    }

    /// One file per day.
    pub async fn data(&mut self, rows: Vec<Row>) -> Result<Vec<DataFile>> {
        let mut out = Vec::new();
        for rows in by_day(rows, |r| day(&r.key)).into_values() {
            out.push(self.file(&rows, DataContentType::Data).await?);
        }
        Ok(out)
    }

    pub async fn deletes(&mut self, keys: &[Key]) -> Result<Vec<DataFile>> {
        let rows = keys.iter().map(|key| Row { key: key.clone(), value: 0 }).collect();
        let mut out = Vec::new();
        for rows in by_day::<Row>(rows, |r| day(&r.key)).into_values() {
            out.push(self.file(&rows, DataContentType::EqualityDeletes).await?);
        }
        Ok(out)
    }

    fn manifest(&mut self, snapshot_id: i64) -> Result<ManifestWriterBuilder> {
        self.files += 1;
        let path = format!("{}/metadata/{}-m{}.avro", self.table.metadata().location(), self.name, self.files);
        let output = self.table.file_io().new_output(path).map_err(wrong)?;
        let metadata = self.table.metadata();
        Ok(ManifestWriterBuilder::new(output, Some(snapshot_id), metadata.current_schema().clone(), self.spec().clone()))
    }

    async fn added(&mut self, snapshot_id: i64, files: Vec<DataFile>, deletes: bool) -> Result<Option<ManifestFile>> {
        if files.is_empty() {
            return Ok(None);
        }
        let builder = self.manifest(snapshot_id)?;
        let mut writer = if deletes { builder.build_v2_deletes() } else { builder.build_v2_data() };
        for file in files {
            writer.add_file(file, UNASSIGNED_SEQUENCE_NUMBER).map_err(wrong)?;
        }
        writer.write_manifest_file().await.map(Some).map_err(wrong)
    }

    /// A snapshot on top of `parent`: files added, delete files added, files removed.
    pub async fn snapshot(&mut self, parent: i64, data: Vec<DataFile>, deletes: Vec<DataFile>, removed: &[Live]) -> Result<Snapshot> {
        let metadata = self.table.metadata();
        let id = loop {
            let id = (timelake_engine::ports::Clock::random(self.desk) >> 1) as i64;
            if id > 0 && metadata.snapshot_by_id(id).is_none() {
                break id;
            }
        };
        let before = metadata.snapshot_by_id(parent).ok_or_else(|| wrong("the parent is gone"))?;
        let list = self.table.manifest_list_reader(before).load().await.map_err(wrong)?;
        let mut manifests = Vec::new();
        let is_removed = |e: &ManifestEntryRef| removed.iter().any(|r| r.file().file_path() == e.file_path());
        for manifest in list.entries() {
            let read = manifest.load_manifest(self.table.file_io()).await.map_err(wrong)?;
            if !read.entries().iter().any(|e| e.is_alive() && is_removed(e)) {
                manifests.push(manifest.clone());
                continue;
            }
            let builder = self.manifest(id)?;
            let deletes = manifest.content == iceberg::spec::ManifestContentType::Deletes;
            let mut writer = if deletes { builder.build_v2_deletes() } else { builder.build_v2_data() };
            for entry in read.entries().iter().filter(|e| e.is_alive()) {
                let sequence = entry.sequence_number().unwrap_or(manifest.sequence_number);
                let (file, file_sequence) = (entry.data_file().clone(), Some(manifest.sequence_number));
                let written = match is_removed(entry) {
                    true => writer.add_delete_file(file, sequence, file_sequence),
                    false => {
                        writer.add_existing_file(file, entry.snapshot_id().unwrap_or(manifest.added_snapshot_id), sequence, file_sequence)
                    }
                };
                written.map_err(wrong)?;
            }
            manifests.push(writer.write_manifest_file().await.map_err(wrong)?);
        }
        let operation = match (data.is_empty(), deletes.is_empty() && removed.is_empty()) {
            (_, true) => Operation::Append,
            (true, false) => Operation::Delete,
            (false, false) => Operation::Overwrite,
        };
        manifests.extend(self.added(id, data, false).await?);
        manifests.extend(self.added(id, deletes, true).await?);
        let list_path = format!("{}/metadata/snap-{id}-{}.avro", metadata.location(), self.name);
        let sequence = metadata.next_sequence_number();
        let output = self.table.file_io().new_output(&list_path).map_err(wrong)?;
        let mut writer = ManifestListWriter::v2(output.writer().await.map_err(wrong)?, id, Some(parent), sequence);
        writer.add_manifests(manifests.into_iter()).map_err(wrong)?;
        writer.close().await.map_err(wrong)?;
        let now_ms = self.desk.world.lock().now_ms();
        Ok(Snapshot::builder()
            .with_snapshot_id(id)
            .with_parent_snapshot_id(Some(parent))
            .with_sequence_number(sequence)
            .with_timestamp_ms(now_ms.max(metadata.last_updated_ms() + 1))
            .with_manifest_list(list_path)
            .with_summary(Summary { operation, additional_properties: HashMap::new() })
            .with_schema_id(metadata.current_schema_id())
            .build())
    }
}

pub fn head(table: &Table) -> Result<i64> {
    table.metadata().current_snapshot_id().ok_or_else(|| wrong("main is empty"))
}

pub fn branch(name: &str, snapshot_id: i64) -> TableUpdate {
    let reference = SnapshotReference::new(snapshot_id, SnapshotRetention::branch(None, None, None));
    TableUpdate::SetSnapshotRef { ref_name: name.into(), reference }
}

pub fn at(name: &str, snapshot_id: Option<i64>) -> TableRequirement {
    TableRequirement::RefSnapshotIdMatch { r#ref: name.into(), snapshot_id }
}

/// `main` from one snapshot to a new one.
pub fn onto_main(from: i64, snapshot: Snapshot) -> (Vec<TableRequirement>, Vec<TableUpdate>) {
    let id = snapshot.snapshot_id();
    (vec![at(MAIN_BRANCH, Some(from))], vec![TableUpdate::AddSnapshot { snapshot }, branch(MAIN_BRANCH, id)])
}
