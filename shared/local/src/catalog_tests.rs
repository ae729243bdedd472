//! The whole way of a job's commits on the SQLite catalog, and what the catalog answers when things go wrong.

use super::*;
use arrow::array::{ArrayRef, AsArray, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, TimeUnit, TimestampMicrosecondType};
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use iceberg::spec::{FormatVersion, MAIN_BRANCH, Snapshot, TableMetadataBuilder};
use parquet::arrow::ArrowWriter;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use timelake_engine::ports::Clock;
use timelake_engine::tables::{
    ContractChange, CreateTable, TableInfo, create_table, list_tables, set_contract, show_table, start_main, with_hints,
};
use timelake_model::inventory::ExistingFile;
use timelake_model::receipt::ManifestRef;
use timelake_model::{Kind, TimestampUs, Window};
use timelake_table::commits::{Commit, Publish, drop_branch, open_branches, publish, refs, stage};
use timelake_table::manifest::{manifest_file, merge_manifests, read_data_files, write_manifest};
use timelake_table::metrics::{MetricsModes, Written, data_file, writer_schema};
use timelake_table::snapshot::{Added, Append, append_snapshot};
use timelake_table::{Difference, FileContent, LiveFile, Partitioner, difference, live_files, live_rows, read_keys, read_rows};

const DAY_US: i64 = 86_400_000_000;
const MAY_1: i64 = 19_844 * DAY_US;
const TIME_FIELD: i32 = 1;

struct TestClock(AtomicU64);
impl Clock for TestClock {
    fn now(&self) -> TimestampUs {
        TimestampUs(1_780_000_000_000_000 + self.0.fetch_add(1_000, Ordering::SeqCst) as i64)
    }
    fn random(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct Lake {
    folder: tempfile::TempDir,
    catalog: SqliteCatalog,
    clock: TestClock,
    ident: TableIdent,
}

fn request() -> CreateTable {
    CreateTable {
        name: "iot.sensor".into(),
        columns: "ts:timestamptz,device_id:string,value:double".into(),
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        ..CreateTable::default()
    }
}

impl Lake {
    async fn new() -> (Lake, TableInfo) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = SqliteCatalog::open(&folder.path().join("catalog.db"), &folder.path().join("warehouse"), true).unwrap();
        let clock = TestClock(AtomicU64::new(1));
        let info = create_table(&catalog, &clock, &request()).await.unwrap();
        let ident = TableIdent::from_strs(["iot", "sensor"]).unwrap();
        (Lake { folder, catalog, clock, ident }, info)
    }
    async fn table(&self) -> Table {
        self.catalog.load(&self.ident).await.unwrap()
    }
    fn id(&self) -> i64 {
        self.clock.random() as i64 | 1
    }
    /// One data file of a day and its manifest, as a writer makes them.
    async fn write(&self, table: &Table, rows: &[(i64, &str, f64)]) -> ManifestRef {
        let metadata = table.metadata();
        let (schema, spec) = (metadata.current_schema(), metadata.default_partition_spec());
        let arrow_schema = writer_schema(schema).unwrap();
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|r| r.0)).with_timezone("+00:00"));
        let columns: Vec<ArrayRef> = vec![
            times.clone(),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.1))),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.2))),
        ];
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, arrow_schema.clone(), None).unwrap();
        writer.write(&RecordBatch::try_new(arrow_schema, columns).unwrap()).unwrap();
        let footer = writer.finish().unwrap();
        drop(writer);
        let partitioner = Partitioner::new(spec, schema).unwrap();
        let partition = partitioner.partition_of(&[times], 0).unwrap();
        let path = format!("{}/data/{}/{}.parquet", metadata.location(), partitioner.path(&partition), self.id());
        let size = bytes.len() as u64;
        table.file_io().new_output(&path).unwrap().write(bytes.into()).await.unwrap();
        let written = Written { path, bytes: size, spec_id: spec.spec_id(), partition, sort_order_id: 1, nan_counts: HashMap::new() };
        let file = data_file(schema, &footer, written, &MetricsModes::default()).unwrap();
        let manifest = format!("{}/metadata/{}-m0.avro", metadata.location(), self.id());
        write_manifest(table.file_io(), schema.clone(), spec, manifest, vec![file]).await.unwrap()
    }
    async fn snapshot(&self, table: &Table, parent: i64, refs: &[ManifestRef]) -> Snapshot {
        let snapshot_id = self.id();
        let sum = |f: fn(&ManifestRef) -> u64| refs.iter().map(f).sum::<u64>();
        let append = Append {
            snapshot_id,
            manifests: refs.iter().map(|r| manifest_file(r, snapshot_id)).collect(),
            added: Added {
                files: sum(|r| r.added_files.into()),
                rows: sum(|r| r.added_rows),
                bytes: sum(|r| r.added_bytes),
                partitions: 1,
            },
            properties: &[("timelake.job".to_string(), "j".to_string())],
            now_ms: 5, // a clock far behind
            list_path: format!("{}/metadata/snap-{snapshot_id}.avro", table.metadata().location()),
        };
        append_snapshot(table, table.metadata().snapshot_by_id(parent).unwrap(), append).await.unwrap()
    }
    async fn commit(&self, base: &Table, commit: Commit) -> CommitOutcome {
        self.catalog.commit(base, commit.requirements, commit.updates).await.unwrap()
    }
    async fn done(&self, base: &Table, commit: Commit) -> Table {
        match self.commit(base, commit).await {
            CommitOutcome::Done(table) => *table,
            other => panic!("{other:?}"),
        }
    }
    /// What a live writer does: one file straight onto main.
    async fn live(&self, rows: &[(i64, &str, f64)]) -> Table {
        let table = self.table().await;
        let head = table.metadata().current_snapshot_id().unwrap();
        let manifest = self.write(&table, rows).await;
        let snapshot = self.snapshot(&table, head, &[manifest]).await;
        self.done(&table, stage(&table, MAIN_BRANCH, head, snapshot)).await
    }
}

async fn rows(table: &Table) -> Vec<(i64, String, f64)> {
    let batches: Vec<RecordBatch> = table.scan().build().unwrap().to_arrow().await.unwrap().try_collect().await.unwrap();
    sorted(&batches)
}
fn sorted(batches: &[RecordBatch]) -> Vec<(i64, String, f64)> {
    let mut out = Vec::new();
    for batch in batches {
        let column = |name: &str| batch.column_by_name(name).unwrap();
        for i in 0..batch.num_rows() {
            out.push((
                column("ts").as_primitive::<TimestampMicrosecondType>().value(i),
                column("device_id").as_string::<i32>().value(i).to_string(),
                column("value").as_primitive::<Float64Type>().value(i),
            ));
        }
    }
    out.sort_by(|a, b| a.partial_cmp(b).unwrap());
    out
}
#[tokio::test]
async fn a_job_is_staged_and_published_onto_a_main_that_moved() {
    let (lake, info) = Lake::new().await;
    assert_eq!(info.contract.as_ref().unwrap().dedup_key, Some(vec!["device_id".into(), "ts".into()]));
    assert_eq!((info.rows, info.files, info.format_version), (Some(0), Some(0), 2));
    assert_eq!(info.sort.iter().map(|s| s.column.as_str()).collect::<Vec<_>>(), ["device_id", "ts"]);
    assert!(info.columns.iter().filter(|c| c.name != "value").all(|c| c.required));
    assert!(info.notes.is_empty(), "{:?}", info.notes);

    let table = lake.live(&[(MAY_1, "a", 1.0)]).await;
    let base = table.metadata().current_snapshot_id().unwrap();

    // planning: the branch is a ref, no snapshot
    let before = table.metadata().snapshots().len();
    let lock = ("timelake.lock.j".to_string(), r#"{"gen":1}"#.to_string());
    let opened = lake.done(&table, open_branches(&table, &["backfill/j".into()], base, lock.clone()).unwrap()).await;
    assert_eq!(opened.metadata().snapshots().len(), before);
    let again = open_branches(&opened, &["backfill/j".into()], base, lock).unwrap();
    assert!(matches!(lake.commit(&opened, again).await, CommitOutcome::Conflict(_)), "a branch is made once");

    // writing and staging, twice (a second round)
    let job_rows = [(MAY_1 + DAY_US, "a", 2.0), (MAY_1 + DAY_US + 1, "b", 3.0)];
    let manifest = lake.write(&opened, &job_rows).await;
    assert_eq!(read_data_files(&opened, &manifest).await.unwrap()[0].record_count(), 2);
    let first = lake.snapshot(&opened, base, std::slice::from_ref(&manifest)).await;
    let first_id = first.snapshot_id();
    let staged = lake.done(&opened, stage(&opened, "backfill/j", base, first)).await;
    assert!(matches!(
        lake.commit(&staged, stage(&staged, "backfill/j", base, lake.snapshot(&staged, base, &[]).await)).await,
        CommitOutcome::Conflict(_)
    ));
    // A manifest is listed under one path with one sequence number only.
    let metadata = table.metadata();
    let path = |round: i64| move |n: usize| format!("{}/metadata/merged-{round}-{n}.avro", metadata.location());
    let round_2 = merge_manifests(staged.file_io(), std::slice::from_ref(&manifest), 1, path(2)).await.unwrap();
    let second = lake.snapshot(&staged, base, &round_2).await;
    let second_id = second.snapshot_id();
    let staged = lake.done(&staged, stage(&staged, "backfill/j", first_id, second)).await;
    assert_eq!(rows(&staged).await, [(MAY_1, "a".to_string(), 1.0)], "main does not show what is staged");

    // main moves
    let moved = lake.live(&[(MAY_1 + 5, "c", 9.0)]).await;
    let main_at = moved.metadata().current_snapshot_id().unwrap();
    let published = merge_manifests(moved.file_io(), &[manifest], 1, path(3)).await.unwrap();
    let snapshot = lake.snapshot(&moved, main_at, &published).await;
    let snapshot_id = snapshot.snapshot_id();
    let make = |table: &Table, snapshot: Snapshot| {
        publish(
            table,
            Publish {
                main_at,
                branch: "backfill/j",
                branch_at: second_id,
                snapshot,
                tag: "timelake/published/j/1/all",
                max_ref_age_ms: 1_209_600_000,
                staged_to_remove: &[first_id, second_id, 42],
                remove_lock: Some("timelake.lock.j".into()),
            },
        )
    };
    let after = lake.done(&moved, make(&moved, snapshot.clone()).unwrap()).await;
    let metadata = after.metadata();
    let names: Vec<String> = refs(metadata).unwrap().into_keys().collect();
    assert_eq!(names, ["main", "timelake/published/j/1/all"]);
    assert!(metadata.snapshot_by_id(first_id).is_none() && metadata.snapshot_by_id(second_id).is_none());
    assert!(!metadata.properties().contains_key("timelake.lock.j"));
    assert_eq!(metadata.current_snapshot_id(), Some(snapshot_id));
    let totals = &metadata.current_snapshot().unwrap().summary().additional_properties;
    assert_eq!((totals["total-records"].as_str(), totals["total-data-files"].as_str()), ("4", "3"));
    let last = metadata.current_snapshot().unwrap();
    assert!(last.timestamp_ms() > moved.metadata().last_updated_ms(), "time goes forward although the clock does not");

    // read by the crate, from a fresh load
    let loaded = lake.table().await;
    let expected: Vec<(i64, String, f64)> =
        [(MAY_1, "a", 1.0), (MAY_1 + 5, "c", 9.0)].into_iter().chain(job_rows).map(|(t, d, v)| (t, d.to_string(), v)).collect();
    assert_eq!(rows(&loaded).await, expected);

    // doing it again is a conflict, and changes nothing
    assert!(matches!(lake.commit(&moved, make(&moved, snapshot.clone()).unwrap()).await, CommitOutcome::Conflict(_)));
    assert!(matches!(lake.commit(&loaded, make(&loaded, snapshot).unwrap()).await, CommitOutcome::Conflict(_)));

    // what is live in a window
    let window = Window::new(MAY_1 + DAY_US, MAY_1 + DAY_US + 1);
    let live = live_files(&loaded, snapshot_id, TIME_FIELD, &window).await.unwrap();
    assert_eq!((live.len(), live[0].rows, live[0].content.clone()), (1, 2, FileContent::Data));
    let all = live_files(&loaded, snapshot_id, TIME_FIELD, &Window::ALL).await.unwrap();
    assert_eq!(all.len(), 3);
    let stream =
        read_rows(&loaded, &live_rows(&loaded, live).unwrap().files, &[], &["value".into(), "device_id".into()], &window).await.unwrap();
    let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    let names: Vec<String> = batches[0].schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["value", "device_id"], "the order asked for, without the time");
    assert_eq!(batches[0].column(0).as_primitive::<Float64Type>().value(0), 2.0);

    let shown = show_table(&lake.catalog, "iot.sensor").await.unwrap();
    assert_eq!((shown.rows, shown.files, shown.locks.len(), shown.refs.len()), (Some(4), Some(3), 0, 2));
}

#[tokio::test]
async fn a_dropped_branch_takes_its_snapshots_with_it() {
    let (lake, _) = Lake::new().await;
    let table = lake.table().await;
    let base = table.metadata().current_snapshot_id().unwrap();
    let lock = ("timelake.lock.j".to_string(), "{}".to_string());
    let table = lake.done(&table, open_branches(&table, &["b1".into(), "b2".into()], base, lock).unwrap()).await;
    let snapshot = lake.snapshot(&table, base, &[]).await;
    let id = snapshot.snapshot_id();
    let table = lake.done(&table, stage(&table, "b1", base, snapshot)).await;
    // the base is also main's: it stays
    let table = lake.done(&table, drop_branch(&table, "b1", id, &[base, id], None).unwrap()).await;
    assert!(table.metadata().snapshot_by_id(id).is_none() && table.metadata().snapshot_by_id(base).is_some());
    let table = lake.done(&table, drop_branch(&table, "b2", base, &[], Some("timelake.lock.j".into())).unwrap()).await;
    assert_eq!(refs(table.metadata()).unwrap().into_keys().collect::<Vec<_>>(), ["main"]);
    assert!(!table.metadata().properties().contains_key("timelake.lock.j"));
    assert_eq!(open_branches(&table, &["b3".into()], 77, ("a".into(), "b".into())).unwrap_err().reason, Reason::TableChanged);
}

#[tokio::test]
async fn deletion_vectors_are_refused_where_they_hide_something() {
    let (lake, _) = Lake::new().await;
    let table = lake.live(&[(MAY_1, "a", 1.0)]).await;
    let head = table.metadata().current_snapshot_id().unwrap();
    let live = live_files(&table, head, TIME_FIELD, &Window::ALL).await.unwrap();
    let with_vector_of = |path: &str| {
        let content = FileContent::DeletionVector { of: Some(path.into()) };
        let vector = LiveFile { path: "v.puffin".into(), content, time: None, ..live[0].clone() };
        live_rows(&table, vec![live[0].clone(), vector])
    };
    let e = with_vector_of(&live[0].path).unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Conflict, Reason::DeleteFilesInWindow), "{e}");
    let rows = with_vector_of("another.parquet").unwrap();
    assert_eq!((rows.files.len(), rows.deletes.len()), (1, 0));
}

#[tokio::test]
async fn what_differs_is_told_by_the_manifests_that_differ() {
    let (lake, _) = Lake::new().await;
    let first = lake.live(&[(MAY_1, "a", 1.0)]).await;
    let head = |table: &Table| table.metadata().current_snapshot_id().unwrap();
    let (before, table) = (head(&first), lake.live(&[(MAY_1 + 2 * DAY_US, "a", 1.0)]).await);
    let paths = |files: &[LiveFile]| files.iter().map(|f| f.path.clone()).collect::<Vec<_>>();
    let at = async |snapshot| paths(&live_files(&table, snapshot, TIME_FIELD, &Window::ALL).await.unwrap());
    let Difference { gone, come } = difference(&table, before, head(&table), TIME_FIELD, &Window::ALL).await.unwrap().unwrap();
    let (old, new) = (at(before).await, at(head(&table)).await);
    assert_eq!(paths(&gone), [""; 0]);
    assert_eq!(paths(&come), new.iter().filter(|p| !old.contains(p)).cloned().collect::<Vec<_>>());
    // `main` set back: the same, the other way round
    let back = difference(&table, head(&table), before, TIME_FIELD, &Window::ALL).await.unwrap().unwrap();
    assert_eq!((back.gone, back.come), (come, gone));
    // outside of the window nothing differs
    let day = Window::new(MAY_1, MAY_1 + DAY_US);
    let inside = difference(&table, before, head(&table), TIME_FIELD, &day).await.unwrap().unwrap();
    assert!(inside.gone.is_empty() && inside.come.is_empty());
    // what the first of both is made of is gone: its list, then itself
    let list = table.metadata().snapshot_by_id(before).unwrap().manifest_list();
    std::fs::remove_file(local_path(list)).unwrap();
    assert!(difference(&table, before, head(&table), TIME_FIELD, &Window::ALL).await.unwrap().is_none());
    assert!(difference(&table, 77, head(&table), TIME_FIELD, &Window::ALL).await.unwrap().is_none());
    assert!(difference(&table, head(&table), 77, TIME_FIELD, &Window::ALL).await.is_err());
}

#[tokio::test]
async fn a_file_that_went_away_is_a_conflict() {
    let (lake, _) = Lake::new().await;
    let table = lake.live(&[(MAY_1, "a", 1.0)]).await;
    let head = table.metadata().current_snapshot_id().unwrap();
    let live = live_rows(&table, live_files(&table, head, TIME_FIELD, &Window::ALL).await.unwrap()).unwrap();
    std::fs::remove_file(local_path(&live.files[0].path)).unwrap();
    let mut rows = read_rows(&table, &live.files, &live.deletes, &["value".into()], &Window::ALL).await.unwrap();
    let e = rows.try_next().await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Conflict, Reason::TableChanged), "{e}");
}

#[tokio::test]
async fn merged_manifests_hold_all_files_and_their_ranges() {
    let (lake, _) = Lake::new().await;
    let table = lake.table().await;
    let days = [0, 1, 2].map(|day| [(MAY_1 + day * DAY_US, "a", 1.0), (MAY_1 + day * DAY_US + 1, "b", 2.0)]);
    let mut refs = Vec::new();
    for day in &days {
        refs.push(lake.write(&table, day).await);
    }
    let path = |n: usize| format!("{}/metadata/merged-{n}.avro", table.metadata().location());
    let merged = merge_manifests(table.file_io(), &refs, 2 * refs[0].bytes, path).await.unwrap();
    let counts: Vec<_> = merged.iter().map(|m| (m.path.clone(), m.added_files, m.added_rows)).collect();
    assert_eq!(counts, [(path(0), 2, 4), (path(1), 1, 2)]);
    assert_eq!(merged[0].added_bytes, refs[0].added_bytes + refs[1].added_bytes);
    let range = |m: &ManifestRef| (m.partitions[0].lower.clone(), m.partitions[0].upper.clone());
    assert_eq!(range(&merged[0]), (range(&refs[0]).0, range(&refs[1]).1));
    let mut files = Vec::new();
    for (before, after) in [(&refs[..2], &merged[0]), (&refs[2..], &merged[1])] {
        files.clear();
        for manifest in before {
            files.extend(read_data_files(&table, manifest).await.unwrap());
        }
        assert_eq!(read_data_files(&table, after).await.unwrap(), files, "entries with all their metrics");
    }
    std::fs::remove_file(local_path(&refs[1].path)).unwrap();
    assert!(merge_manifests(table.file_io(), &refs, i64::MAX, path).await.is_err());
}

#[tokio::test]
async fn keys_read_by_themselves_where_a_file_has_them_in_the_tables_types() {
    let (lake, _) = Lake::new().await;
    let table = lake.live(&[(MAY_1, "a", 1.0), (MAY_1 + 1, "a", 1.0), (MAY_1 + 1, "b", 2.0)]).await;
    let live = live_files(&table, table.metadata().current_snapshot_id().unwrap(), TIME_FIELD, &Window::ALL).await.unwrap();
    let file = &live_rows(&table, live).unwrap().files[0];
    let columns = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    // Not the order of the file.
    let keys = read_keys(&table, file, &columns(&["device_id", "ts"])).await.unwrap().unwrap();
    let batches: Vec<_> = keys.collect().await;
    let [Some(batch)] = &batches[..] else { panic!("{} batches", batches.len()) };
    let dictionary = batch[0].as_dictionary::<Int32Type>();
    assert_eq!(dictionary.keys().values(), &[0, 0, 1]);
    assert_eq!(dictionary.values().as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(batch[1].as_primitive::<TimestampMicrosecondType>().values(), &[MAY_1, MAY_1 + 1, MAY_1 + 1]);

    assert!(read_keys(&table, file, &columns(&["ts", "gone"])).await.unwrap().is_none());
    let path = local_path(&file.path);
    let whole = std::fs::read(&path).unwrap();
    let schema = writer_schema(table.metadata().current_schema()).unwrap();
    let rewrite = |change: &dyn Fn(&Field) -> Field| {
        let fields: Vec<Field> = schema.fields().iter().map(|f| change(f)).collect();
        let narrow = Arc::new(arrow::datatypes::Schema::new(fields));
        let mut bytes = Vec::new();
        ArrowWriter::try_new(&mut bytes, narrow, None).unwrap().close().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        ExistingFile { bytes: bytes.len() as u64, ..file.clone() }
    };
    let without_ids = rewrite(&|f| Field::new(f.name(), f.data_type().clone(), true));
    assert!(read_keys(&table, &without_ids, &columns(&["ts"])).await.unwrap().is_none());
    let in_milliseconds = rewrite(&|f| match f.data_type() {
        DataType::Timestamp(_, zone) => f.clone().with_data_type(DataType::Timestamp(TimeUnit::Millisecond, zone.clone())),
        _ => f.clone(),
    });
    assert!(read_keys(&table, &in_milliseconds, &columns(&["ts"])).await.unwrap().is_none());
    assert!(read_keys(&table, &in_milliseconds, &columns(&["device_id"])).await.unwrap().is_some());

    // A page that does not read ends the keys, and says so.
    let mut damaged = whole.clone();
    damaged[4..40].fill(0xff);
    std::fs::write(&path, &damaged).unwrap();
    let read: Vec<_> = match read_keys(&table, file, &columns(&["ts"])).await.unwrap() {
        Some(keys) => keys.collect().await,
        None => vec![None],
    };
    assert!(read.contains(&None));
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(read_keys(&table, file, &columns(&["ts"])).await.unwrap().is_none());
    std::fs::remove_file(&path).unwrap();
    assert!(read_keys(&table, file, &columns(&["ts"])).await.unwrap().is_none());
}

#[tokio::test]
async fn errors_about_tables_know_the_lakes_names_and_columns() {
    let (lake, info) = Lake::new().await;
    let hint = async |name: &str, error: Error| with_hints(&lake.catalog, name, error).await.hint.unwrap_or_default();
    let missing = || Error::not_found(Reason::TableNotFound, "");
    assert!(hint("iot.snsor", missing()).await.starts_with("did you mean iot.sensor?"));
    let far = hint("plant.boiler", missing()).await;
    assert!(far.contains("timelake table list") && !far.contains("did you mean"), "{far}");

    let version = Error::invalid(Reason::InvalidOption, "").at(|p| p.option = Some("--version-column".into()));
    assert_eq!(hint("iot.sensor", version).await, "columns of iot.sensor: ts, device_id, value");
    let other = Error::invalid(Reason::InvalidOption, "").at(|p| p.option = Some("--mode".into()));
    assert_eq!(hint("iot.sensor", other).await, "");

    let listed = list_tables(&lake.catalog).await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].rows, listed[0].contract), (1, "iot.sensor", Some(0), true));
    assert_eq!(listed[0].snapshot_at, info.snapshot.map(|s| s.at));

    let table = lake.table().await;
    assert_eq!(info.metadata_location.as_deref(), table.metadata_location());
    let removals: Vec<String> = table.metadata().properties().keys().filter(|k| k.starts_with("timelake.")).cloned().collect();
    lake.done(&table, Commit { requirements: vec![], updates: vec![TableUpdate::RemoveProperties { removals }] }).await;
    let bare = hint("iot.sensor", Error::invalid(Reason::MissingContract, "")).await;
    assert_eq!(bare, "state it: timelake table contract iot.sensor --time-column ts --series-key device_id");
    assert!(!list_tables(&lake.catalog).await.unwrap()[0].contract);

    // One table that cannot be read does not hide the others.
    let pointer = lake.table().await.metadata_location().unwrap().to_string();
    std::fs::remove_file(local_path(&pointer)).unwrap();
    let listed = list_tables(&lake.catalog).await.unwrap();
    assert_eq!(listed[0].error.as_ref().map(|e| e.reason), Some(Reason::CatalogDamaged));
}

#[tokio::test]
async fn the_catalog_says_what_is_wrong() {
    let (lake, _) = Lake::new().await;
    let e = create_table(&lake.catalog, &lake.clock, &request()).await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Conflict, Reason::TableExists));
    let e = show_table(&lake.catalog, "iot.nope").await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::NotFound, Reason::TableNotFound));
    for name in ["sensor", "iot..sensor", "iot.sen sor", "../x.y", "iot.", ""] {
        let e = show_table(&lake.catalog, name).await.unwrap_err();
        assert_eq!(e.reason, Reason::NamespaceInvalid, "{name}");
    }
    assert_eq!(lake.catalog.list().await.unwrap(), vec![lake.ident.clone()]);

    // two commits from one base: the second one lost
    let base = lake.table().await;
    let set = |v: &str| Commit {
        requirements: vec![],
        updates: vec![TableUpdate::SetProperties { updates: HashMap::from([("k".to_string(), v.to_string())]) }],
    };
    lake.done(&base, set("1")).await;
    assert!(matches!(lake.commit(&base, set("2")).await, CommitOutcome::Conflict(_)));
    assert_eq!(lake.table().await.metadata().properties()["k"], "1");

    // a metadata file that is gone, a database that is none, no database
    let table = lake.table().await;
    std::fs::remove_file(local_path(table.metadata_location().unwrap())).unwrap();
    let e = lake.catalog.load(&lake.ident).await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Corrupt, Reason::CatalogDamaged), "{e}");
    let database = lake.folder.path().join("other.db");
    std::fs::write(&database, "this is not a database, but longer than its header would be ".repeat(20)).unwrap();
    let e = SqliteCatalog::open(&database, lake.folder.path(), false).unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Corrupt, Reason::CatalogDamaged), "{e}");
    for create in [false, true] {
        let e = SqliteCatalog::open(&lake.folder.path().join("none.db"), &lake.folder.path().join("warehouse"), create).unwrap_err();
        assert_eq!((e.kind, e.reason), (Kind::Corrupt, Reason::CatalogDamaged), "there are tables: {e}");
    }
    assert!(!lake.folder.path().join("none.db").exists());
    let elsewhere = tempfile::tempdir().unwrap();
    let e = SqliteCatalog::open(&elsewhere.path().join("none.db"), elsewhere.path(), false).unwrap_err();
    assert_eq!(e.kind, Kind::NotFound);
}

#[tokio::test]
async fn a_locked_catalog_is_unavailable_and_nothing_is_committed() {
    let (lake, _) = Lake::new().await;
    let base = lake.table().await;
    let other = Connection::open(lake.folder.path().join("catalog.db")).unwrap();
    lake.catalog.connection.lock().unwrap().busy_timeout(Duration::from_millis(50)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let update = TableUpdate::SetProperties { updates: HashMap::from([("k".to_string(), "1".to_string())]) };
    let e = lake.catalog.commit(&base, vec![], vec![update]).await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Unavailable, Reason::CatalogUnavailable), "{e}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(!lake.table().await.metadata().properties().contains_key("k"));
}

#[tokio::test]
async fn a_contract_is_set_and_changed() {
    let (lake, _) = Lake::new().await;
    let change = ContractChange { retention: Some(Some("P2Y".into())), ..ContractChange::default() };
    let info = set_contract(&lake.catalog, &lake.clock, "iot.sensor", &change).await.unwrap();
    assert_eq!(info.contract.as_ref().unwrap().retention.as_deref(), Some("P2Y"));
    let pointer = lake.catalog.pointer(&lake.ident).await.unwrap();
    set_contract(&lake.catalog, &lake.clock, "iot.sensor", &change).await.unwrap();
    assert_eq!(lake.catalog.pointer(&lake.ident).await.unwrap(), pointer, "nothing to change is no commit");
    let change = ContractChange { retention: Some(None), dedup_key: Some(None), ..ContractChange::default() };
    let contract = set_contract(&lake.catalog, &lake.clock, "iot.sensor", &change).await.unwrap().contract.unwrap();
    assert_eq!((contract.retention, contract.dedup_key), (None, None));
    let change = ContractChange { series_key: Some(vec!["value".into()]), ..ContractChange::default() };
    let e = set_contract(&lake.catalog, &lake.clock, "iot.sensor", &change).await.unwrap_err();
    assert_eq!(e.reason, Reason::InvalidContract);
}

#[tokio::test]
async fn version_3_tables_give_every_appended_row_an_id() {
    let (lake, _) = Lake::new().await;
    let like = lake.table().await;
    let metadata = like.metadata();
    let ident = TableIdent::from_strs(["iot", "nested", "v3"]).unwrap();
    let new = TableMetadataBuilder::new(
        metadata.current_schema().as_ref().clone(),
        metadata.default_partition_spec().as_ref().clone(),
        metadata.default_sort_order().as_ref().clone(),
        lake.catalog.default_location(&ident),
        FormatVersion::V3,
        metadata.properties().clone(),
    );
    let table = lake.catalog.create(&ident, new.unwrap().build().unwrap().metadata).await.unwrap();
    start_main(&lake.catalog, &lake.clock, table).await.unwrap();
    let lake = Lake { ident, ..lake };
    lake.live(&[(MAY_1, "a", 1.0), (MAY_1 + 1, "a", 2.0)]).await;
    let table = lake.live(&[(MAY_1 + 2, "a", 3.0)]).await;
    assert_eq!(table.metadata().next_row_id(), 3);
    assert_eq!(table.metadata().current_snapshot().unwrap().row_range(), Some((2, 1)));
    assert_eq!(rows(&lake.table().await).await.len(), 3);
    let info = show_table(&lake.catalog, "iot.nested.v3").await.unwrap();
    assert!(info.notes[0].contains("only append"), "{:?}", info.notes);
}
