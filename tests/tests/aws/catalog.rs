//! The Glue catalog against the contract of every catalog, and what is Glue's own: other people's parts of a table, and
//! answers that say nothing.

use crate::{Cloud, wait};
use aws_sdk_glue::types::{Column, SerDeInfo, StorageDescriptor, Table as GlueTable, TableInput};
use iceberg::io::FileIOBuilder;
use iceberg::{TableIdent, TableUpdate};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use timelake_aws::{GlueCatalog, SystemClock, WarehouseStorageFactory};
use timelake_engine::ports::{CommitOutcome, TableCatalog};
use timelake_model::{Kind, Reason};
use timelake_testkit::catalog_suite::{Fixture, Lake, MAY_1};
use timelake_tests::{Asked, Emulator, Fault, Proxy};

const BUCKET: &str = "lake";
const STALE: &str = r#"{"__type":"ConcurrentModificationException","Message":"Update table failed due to concurrent modifications."}"#;
const THROTTLED: &str = r#"{"__type":"ThrottlingException","Message":"Rate exceeded"}"#;
const GONE: &str = r#"{"__type":"EntityNotFoundException","Message":"Table not found"}"#;
const TIMEOUT: &str = r#"{"__type":"OperationTimeoutException","Message":"Operation timed out"}"#;
const FORBIDDEN: &str = r#"{"__type":"AccessDeniedException","Message":"not authorized to perform: glue:UpdateTable"}"#;
const INVALID: &str = r#"{"__type":"InvalidInputException","Message":"Column type is unknown"}"#;

impl Cloud {
    fn with_bucket() -> Cloud {
        let cloud = Cloud::start();
        cloud.emulator.make_bucket(BUCKET);
        cloud
    }
    async fn catalog(&self, endpoint: String) -> GlueCatalog {
        let client = self.services(endpoint).await.glue();
        let file_io = FileIOBuilder::new(Arc::new(WarehouseStorageFactory::new(self.objects()))).build();
        GlueCatalog::new(client, &format!("s3://{BUCKET}/warehouse/"), file_io, Arc::new(SystemClock))
    }
    /// What Glue itself has of the suite's table.
    async fn in_glue(&self) -> GlueTable {
        let client = self.services(self.emulator.endpoint()).await.glue();
        client.get_table().database_name("iot").name("sensor").send().await.unwrap().table.unwrap()
    }
}

fn fixture() -> Fixture {
    let cloud = Cloud::with_bucket();
    let open = || Arc::new(wait(cloud.catalog(cloud.emulator.endpoint())));
    Fixture { catalog: open(), second: open(), keep: Box::new(cloud) }
}

timelake_testkit::catalog_suite!(glue, fixture);

fn set(key: &str, value: &str) -> Vec<TableUpdate> {
    vec![TableUpdate::SetProperties { updates: HashMap::from([(key.to_string(), value.to_string())]) }]
}

async fn lake(cloud: &Cloud) -> Lake {
    Lake::new(Arc::new(cloud.catalog(cloud.emulator.endpoint()).await)).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_into_glue_stays_there() {
    let cloud = Cloud::with_bucket();
    let lake = lake(&cloud).await;
    let client = cloud.services(cloud.emulator.endpoint()).await.glue();
    let found = cloud.in_glue().await;
    let column = |name: &str, of: &str, comment: &str| Column::builder().name(name).r#type(of).comment(comment).build().unwrap();
    let storage = StorageDescriptor::builder()
        .columns(column("ts", "timestamp", "UTC"))
        .columns(column("dropped_long_ago", "int", "gone"))
        .location(found.storage_descriptor().unwrap().location().unwrap())
        .input_format("a.b.Input")
        .serde_info(SerDeInfo::builder().name("s").serialization_library("a.b.Serde").build())
        .parameters("classification", "parquet")
        .build();
    let input = TableInput::builder()
        .name("sensor")
        .description("readings of the plant")
        .owner("plant")
        .table_type("EXTERNAL_TABLE")
        .storage_descriptor(storage)
        .set_parameters(found.parameters().cloned())
        .parameters("lf:owner", "data team");
    client.update_table().database_name("iot").table_input(input.build().unwrap()).send().await.unwrap();

    let old = lake.table().await.metadata_location().unwrap().to_string();
    lake.live(&[(MAY_1, "a", 1.0)]).await;
    let found = cloud.in_glue().await;
    let now = lake.table().await.metadata_location().unwrap().to_string();
    let parameters = found.parameters().unwrap();
    assert_eq!(parameters["lf:owner"], "data team");
    assert_eq!((parameters["metadata_location"].as_str(), parameters["previous_metadata_location"].as_str()), (now.as_str(), old.as_str()));
    assert_eq!((found.description(), found.owner()), (Some("readings of the plant"), Some("plant")));
    let storage = found.storage_descriptor().unwrap();
    assert_eq!(storage.input_format(), Some("a.b.Input"));
    assert_eq!(storage.serde_info().unwrap().serialization_library(), Some("a.b.Serde"));
    assert_eq!(storage.parameters().unwrap()["classification"], "parquet");
    let columns: Vec<_> = storage.columns().iter().map(|c| (c.name(), c.r#type().unwrap(), c.comment())).collect();
    assert_eq!(columns, [("ts", "timestamp", Some("UTC")), ("device_id", "string", None), ("value", "double", None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_no_iceberg_table_is_left_alone() {
    let cloud = Cloud::with_bucket();
    let lake = lake(&cloud).await;
    let client = cloud.services(cloud.emulator.endpoint()).await.glue();
    let input = TableInput::builder().name("csv").table_type("EXTERNAL_TABLE").parameters("classification", "csv").build().unwrap();
    client.create_table().database_name("iot").table_input(input).send().await.unwrap();
    let ident = |names: &[&str]| TableIdent::from_strs(names.iter().copied()).unwrap();
    let error = lake.catalog.load(&ident(&["iot", "csv"])).await.unwrap_err();
    assert_eq!((error.kind, error.reason), (Kind::Invalid, Reason::UnsupportedTable), "{error}");
    assert_eq!(lake.catalog.list().await.unwrap(), [ident(&["iot", "sensor"])]);
    let metadata = lake.table().await.metadata().clone();
    let error = lake.catalog.create(&ident(&["iot", "csv"]), metadata.clone()).await.unwrap_err();
    assert_eq!(error.reason, Reason::TableExists, "{error}");
    for wrong in [&["iot", "Sensor"][..], &["Plant", "b"], &["a", "b", "c"]] {
        let error = lake.catalog.create(&ident(wrong), metadata.clone()).await.unwrap_err();
        assert_eq!(error.reason, Reason::NamespaceInvalid, "{error}");
    }
    let other = cloud.catalog(cloud.emulator.endpoint()).await.with_database(Some("plant".into()));
    assert_eq!(other.list().await.unwrap(), []);
}

fn is_update(asked: &Asked) -> bool {
    asked.operation.ends_with(".UpdateTable")
}

/// One commit through a proxy that spoils the update; then what the table has, and how often the update was sent.
async fn spoiled(emulator_of: &Cloud, lake: &Lake, fault: Fault) -> (timelake_model::Result<CommitOutcome>, bool, usize) {
    let left = AtomicU32::new(1);
    let proxy = Proxy::start(emulator_of.emulator.port(), move |asked| {
        if is_update(asked) && left.swap(0, Ordering::SeqCst) == 1 { fault } else { Fault::None }
    });
    let catalog = emulator_of.catalog(proxy.endpoint()).await;
    let key = format!("k-{}", lake.id());
    let outcome = catalog.commit(&lake.table().await, vec![], set(&key, "1")).await;
    let is_there = lake.table().await.metadata().properties().contains_key(&key);
    (outcome, is_there, proxy.done().iter().filter(|(asked, _)| is_update(asked)).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_a_conflict_only_where_nothing_was_changed() {
    let cloud = Cloud::with_bucket();
    let lake = lake(&cloud).await;
    for answer in [STALE, THROTTLED, GONE] {
        let (outcome, is_there, sent) = spoiled(&cloud, &lake, Fault::Answered(400, answer)).await;
        assert!(matches!(outcome, Ok(CommitOutcome::Conflict(_))), "{outcome:?}");
        assert_eq!((is_there, sent), (false, 1), "{answer}");
    }
    // Carried out, and not heard: the table is looked at.
    for fault in [Fault::Lost, Fault::Failed] {
        let (outcome, is_there, sent) = spoiled(&cloud, &lake, fault).await;
        assert!(matches!(outcome, Ok(CommitOutcome::Done(_))), "{fault:?}: {outcome:?}");
        assert_eq!((is_there, sent), (true, 1), "{fault:?}");
    }
    // Not carried out, as far as can be seen: it may still be.
    for fault in [Fault::Answered(400, TIMEOUT), Fault::Answered(500, "{}"), Fault::Refused] {
        let (outcome, is_there, sent) = spoiled(&cloud, &lake, fault).await;
        assert!(matches!(outcome, Ok(CommitOutcome::Unknown(_))), "{fault:?}: {outcome:?}");
        assert_eq!((is_there, sent), (false, 1), "{fault:?}");
    }
    for (answer, kind) in [(FORBIDDEN, Kind::Unavailable), (INVALID, Kind::Internal)] {
        let (outcome, is_there, sent) = spoiled(&cloud, &lake, Fault::Answered(400, answer)).await;
        let error = outcome.unwrap_err();
        assert_eq!((error.kind, error.needs_a_hand(), is_there, sent), (kind, answer == FORBIDDEN, false, 1), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_tried_again_and_a_table_whose_making_was_not_heard_is_made() {
    let cloud = Cloud { emulator: Arc::new(Emulator::start()) };
    cloud.emulator.make_bucket(BUCKET);
    let proxy = Proxy::start(cloud.emulator.port(), |asked| match (is_update(asked), asked.number % 4) {
        (true, _) => Fault::None,
        (_, 0) => Fault::Answered(400, THROTTLED),
        (_, 1) => Fault::Lost,
        (_, 2) => Fault::Failed,
        _ => Fault::None,
    });
    let catalog = Arc::new(cloud.catalog(proxy.endpoint()).await);
    let (lake, _) = Lake::new(catalog.clone()).await;
    lake.live(&[(MAY_1, "a", 1.0)]).await;
    assert_eq!(catalog.list().await.unwrap().len(), 1);
    assert!(proxy.count(Fault::Lost) > 2, "{:?}", proxy.done());
}
