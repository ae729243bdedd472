//! The SQLite catalog against the contract of every catalog, and what it answers when files or its database are wrong.

use super::*;
use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int32Type, TimeUnit, TimestampMicrosecondType};
use futures::{StreamExt, TryStreamExt};
use parquet::arrow::ArrowWriter;
use std::collections::HashMap;
use timelake_engine::tables::{TableInfo, list_tables, show_table, with_hints};
use timelake_model::inventory::ExistingFile;
use timelake_model::receipt::ManifestRef;
use timelake_model::{Kind, Window};
use timelake_table::commits::Commit;
use timelake_table::manifest::{merge_manifests, read_data_files};
use timelake_table::metrics::writer_schema;
use timelake_table::{Difference, FileContent, LiveFile, difference, live_files, live_rows, read_keys, read_rows};
use timelake_testkit::catalog_suite::{self, DAY_US, Fixture, MAY_1, TIME_FIELD};

/// The suite's lake, and what is SQLite's own of it.
struct Lake {
    lake: catalog_suite::Lake,
    folder: tempfile::TempDir,
    catalog: SqliteCatalog,
}

impl std::ops::Deref for Lake {
    type Target = catalog_suite::Lake;
    fn deref(&self) -> &catalog_suite::Lake {
        &self.lake
    }
}

fn open(folder: &Path) -> SqliteCatalog {
    SqliteCatalog::open(&folder.join("catalog.db"), &folder.join("warehouse"), true).unwrap()
}

impl Lake {
    async fn new() -> (Lake, TableInfo) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let (lake, info) = catalog_suite::Lake::new(Arc::new(catalog.clone())).await;
        (Lake { lake, folder, catalog }, info)
    }
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (catalog, second) = (Arc::new(open(folder.path())), Arc::new(open(folder.path())));
    Fixture { catalog, second, keep: Box::new(folder) }
}

timelake_testkit::catalog_suite!(sqlite, fixture);

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
    for name in ["sensor", "iot..sensor", "iot.sen sor", "../x.y", "iot.", ""] {
        let e = show_table(&lake.catalog, name).await.unwrap_err();
        assert_eq!(e.reason, Reason::NamespaceInvalid, "{name}");
    }
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
