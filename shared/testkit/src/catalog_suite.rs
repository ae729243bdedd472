//! What every catalog of ours must do: the whole way of a job's commits, compare-and-swap, and what it answers when things
//! go wrong. Each case is an async function of a [`Fixture`]; [`catalog_suite!`](crate::catalog_suite!) makes them tests.

use crate::ManualClock;
use arrow::array::{ArrayRef, AsArray, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{Float64Type, TimestampMicrosecondType};
use futures::TryStreamExt;
use iceberg::spec::{FormatVersion, MAIN_BRANCH, Snapshot, TableMetadataBuilder};
use iceberg::table::Table;
use iceberg::{TableIdent, TableUpdate};
use parquet::arrow::ArrowWriter;
use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use timelake_engine::ports::{Clock, CommitOutcome, TableCatalog};
use timelake_engine::tables::{ContractChange, CreateTable, TableInfo, create_table, set_contract, show_table, start_main};
use timelake_model::receipt::ManifestRef;
use timelake_model::{Kind, Reason, Window};
use timelake_table::commits::{Commit, Publish, drop_branch, open_branches, publish, refs, stage};
use timelake_table::manifest::{manifest_file, merge_manifests, read_data_files, write_manifest};
use timelake_table::metrics::{MetricsModes, Written, data_file, writer_schema};
use timelake_table::snapshot::{Added, Append, append_snapshot};
use timelake_table::{FileContent, Partitioner, live_files, live_rows, read_rows};

pub const DAY_US: i64 = 86_400_000_000;
pub const MAY_1: i64 = 19_844 * DAY_US;
pub const TIME_FIELD: i32 = 1;

/// A new, empty catalog.
pub struct Fixture {
    pub catalog: Arc<dyn TableCatalog>,
    /// Another way to the same catalog.
    pub second: Arc<dyn TableCatalog>,
    /// What must live as long as the catalog.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Makes all cases tests of the catalog that `$fixture: fn() -> Fixture` makes, in a module named `$catalog`.
#[macro_export]
macro_rules! catalog_suite {
    ($catalog:ident, $fixture:path) => {
        $crate::catalog_suite!(@tests $catalog, $fixture,
            a_job_is_staged_and_published_onto_a_main_that_moved
            a_dropped_branch_takes_its_snapshots_with_it
            a_contract_is_set_and_changed
            a_table_is_made_once_and_listed
            of_two_commits_from_one_base_the_first_wins
            commits_from_many_sides_are_all_kept
            version_3_tables_give_every_appended_row_an_id
        );
    };
    (@tests $catalog:ident, $fixture:path, $($case:ident)*) => {
        mod $catalog {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::catalog_suite::$case(&$fixture()).await;
                }
            )*
        }
    };
}

/// A catalog with the table `iot.sensor`.
pub struct Lake {
    pub catalog: Arc<dyn TableCatalog>,
    pub clock: ManualClock,
    pub ident: TableIdent,
}

pub fn request() -> CreateTable {
    CreateTable {
        name: "iot.sensor".into(),
        columns: "ts:timestamptz,device_id:string,value:double".into(),
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        ..CreateTable::default()
    }
}

impl Lake {
    pub async fn new(catalog: Arc<dyn TableCatalog>) -> (Lake, TableInfo) {
        let clock = ManualClock::default();
        let info = create_table(catalog.as_ref(), &clock, &request()).await.unwrap();
        let ident = TableIdent::from_strs(["iot", "sensor"]).unwrap();
        (Lake { catalog, clock, ident }, info)
    }
    pub async fn table(&self) -> Table {
        self.catalog.load(&self.ident).await.unwrap()
    }
    pub fn id(&self) -> i64 {
        (self.clock.random() >> 1) as i64
    }
    /// One data file of a day and its manifest, as a writer makes them.
    pub async fn write(&self, table: &Table, rows: &[(i64, &str, f64)]) -> ManifestRef {
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
    pub async fn snapshot(&self, table: &Table, parent: i64, refs: &[ManifestRef]) -> Snapshot {
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
    pub async fn commit(&self, base: &Table, commit: Commit) -> CommitOutcome {
        self.catalog.commit(base, commit.requirements, commit.updates).await.unwrap()
    }
    pub async fn done(&self, base: &Table, commit: Commit) -> Table {
        match self.commit(base, commit).await {
            CommitOutcome::Done(table) => *table,
            other => panic!("{other:?}"),
        }
    }
    /// What a live writer does: one file straight onto main.
    pub async fn live(&self, rows: &[(i64, &str, f64)]) -> Table {
        let table = self.table().await;
        let head = table.metadata().current_snapshot_id().unwrap();
        let manifest = self.write(&table, rows).await;
        let snapshot = self.snapshot(&table, head, &[manifest]).await;
        self.done(&table, stage(&table, MAIN_BRANCH, head, snapshot)).await
    }
}

pub async fn rows(table: &Table) -> Vec<(i64, String, f64)> {
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
pub async fn a_job_is_staged_and_published_onto_a_main_that_moved(f: &Fixture) {
    let (lake, info) = Lake::new(f.catalog.clone()).await;
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

    let shown = show_table(lake.catalog.as_ref(), "iot.sensor").await.unwrap();
    assert_eq!((shown.rows, shown.files, shown.locks.len(), shown.refs.len()), (Some(4), Some(3), 0, 2));
}

pub async fn a_dropped_branch_takes_its_snapshots_with_it(f: &Fixture) {
    let (lake, _) = Lake::new(f.catalog.clone()).await;
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

pub async fn a_contract_is_set_and_changed(f: &Fixture) {
    let (lake, _) = Lake::new(f.catalog.clone()).await;
    let change = ContractChange { retention: Some(Some("P2Y".into())), ..ContractChange::default() };
    let info = set_contract(lake.catalog.as_ref(), &lake.clock, "iot.sensor", &change).await.unwrap();
    assert_eq!(info.contract.as_ref().unwrap().retention.as_deref(), Some("P2Y"));
    let pointer = lake.table().await.metadata_location().map(str::to_string);
    set_contract(lake.catalog.as_ref(), &lake.clock, "iot.sensor", &change).await.unwrap();
    assert_eq!(lake.table().await.metadata_location().map(str::to_string), pointer, "nothing to change is no commit");
    let change = ContractChange { retention: Some(None), dedup_key: Some(None), ..ContractChange::default() };
    let contract = set_contract(lake.catalog.as_ref(), &lake.clock, "iot.sensor", &change).await.unwrap().contract.unwrap();
    assert_eq!((contract.retention, contract.dedup_key), (None, None));
    let change = ContractChange { series_key: Some(vec!["value".into()]), ..ContractChange::default() };
    let e = set_contract(lake.catalog.as_ref(), &lake.clock, "iot.sensor", &change).await.unwrap_err();
    assert_eq!(e.reason, Reason::InvalidContract);
}

pub async fn a_table_is_made_once_and_listed(f: &Fixture) {
    assert_eq!(f.catalog.list().await.unwrap(), []);
    let (lake, info) = Lake::new(f.catalog.clone()).await;
    let e = create_table(f.second.as_ref(), &lake.clock, &request()).await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::Conflict, Reason::TableExists));
    let e = show_table(f.second.as_ref(), "iot.nope").await.unwrap_err();
    assert_eq!((e.kind, e.reason), (Kind::NotFound, Reason::TableNotFound));
    let other = CreateTable { name: "iot.b".into(), ..request() };
    create_table(f.second.as_ref(), &lake.clock, &other).await.unwrap();
    let names: Vec<String> = f.catalog.list().await.unwrap().iter().map(|ident| ident.to_string()).collect();
    assert_eq!(names, ["iot.b", "iot.sensor"]);
    let loaded = f.second.load(&lake.ident).await.unwrap();
    assert_eq!(loaded.metadata_location(), info.metadata_location.as_deref());
    assert_eq!(loaded.metadata().location(), f.catalog.default_location(&lake.ident));
}

fn set(key: &str, value: &str) -> Commit {
    Commit {
        requirements: vec![],
        updates: vec![TableUpdate::SetProperties { updates: HashMap::from([(key.to_string(), value.to_string())]) }],
    }
}

pub async fn of_two_commits_from_one_base_the_first_wins(f: &Fixture) {
    let (lake, _) = Lake::new(f.catalog.clone()).await;
    let base = lake.table().await;
    let done = lake.done(&base, set("k", "1")).await;
    assert_eq!(lake.table().await.metadata_location(), done.metadata_location());
    for catalog in [&f.catalog, &f.second] {
        let Commit { requirements, updates } = set("k", "2");
        assert!(matches!(catalog.commit(&base, requirements, updates).await.unwrap(), CommitOutcome::Conflict(_)));
    }
    assert_eq!(lake.table().await.metadata().properties()["k"], "1");
}

pub async fn commits_from_many_sides_are_all_kept(f: &Fixture) {
    const SIDES: usize = 4;
    const COMMITS: usize = 4;
    let (lake, _) = Lake::new(f.catalog.clone()).await;
    let sides: Vec<_> = (0..SIDES)
        .map(|side| {
            let (catalog, ident) = (if side % 2 == 0 { &f.catalog } else { &f.second }.clone(), lake.ident.clone());
            tokio::spawn(async move {
                for n in 0..COMMITS {
                    // A bound: somebody always comes first, and each of the others at most once per commit.
                    let mut tries = 0..10 * SIDES * COMMITS;
                    loop {
                        tries.next().expect("a commit comes through");
                        let base = catalog.load(&ident).await.unwrap();
                        let Commit { requirements, updates } = set(&format!("k{side}-{n}"), "1");
                        match catalog.commit(&base, requirements, updates).await.unwrap() {
                            CommitOutcome::Done(_) => break,
                            CommitOutcome::Conflict(_) => {}
                            CommitOutcome::Unknown(why) => panic!("{why}"),
                        }
                    }
                }
            })
        })
        .collect();
    for side in sides {
        side.await.unwrap();
    }
    let table = lake.table().await;
    let kept: BTreeSet<&String> = table.metadata().properties().keys().filter(|key| key.starts_with('k')).collect();
    assert_eq!(kept.len(), SIDES * COMMITS, "{kept:?}");
}

pub async fn version_3_tables_give_every_appended_row_an_id(f: &Fixture) {
    let (lake, _) = Lake::new(f.catalog.clone()).await;
    let like = lake.table().await;
    let metadata = like.metadata();
    let ident = TableIdent::from_strs(["iot", "v3"]).unwrap();
    let new = TableMetadataBuilder::new(
        metadata.current_schema().as_ref().clone(),
        metadata.default_partition_spec().as_ref().clone(),
        metadata.default_sort_order().as_ref().clone(),
        lake.catalog.default_location(&ident),
        FormatVersion::V3,
        metadata.properties().clone(),
    );
    let table = lake.catalog.create(&ident, new.unwrap().build().unwrap().metadata).await.unwrap();
    start_main(lake.catalog.as_ref(), &lake.clock, table).await.unwrap();
    let lake = Lake { ident, ..lake };
    lake.live(&[(MAY_1, "a", 1.0), (MAY_1 + 1, "a", 2.0)]).await;
    let table = lake.live(&[(MAY_1 + 2, "a", 3.0)]).await;
    assert_eq!(table.metadata().next_row_id(), 3);
    assert_eq!(table.metadata().current_snapshot().unwrap().row_range(), Some((2, 1)));
    assert_eq!(rows(&lake.table().await).await.len(), 3);
    let info = show_table(lake.catalog.as_ref(), "iot.v3").await.unwrap();
    assert!(info.notes[0].contains("only append"), "{:?}", info.notes);
}
