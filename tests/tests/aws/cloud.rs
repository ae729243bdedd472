//! All adapters together, as a process opens them.

use crate::{Cloud as Emulated, hurried};
use timelake_aws::{Cloud, CloudSettings};
use timelake_engine::tables::{CreateTable, create_table, list_tables};
use timelake_testkit::ledger_suite::{job_record, message, round_key};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_opens_everything_once_and_makes_an_engine_of_it() {
    let emulated = Emulated::with_ledger().await;
    let endpoint = emulated.emulator.endpoint();
    let sqs = emulated.services(endpoint.clone()).await.sqs();
    let work = sqs.create_queue().queue_name("work").send().await.unwrap().queue_url.unwrap();
    let settings = CloudSettings::from(|name| {
        let value = match name {
            "TIMELAKE_LEDGER_TABLE" => crate::ledger::TABLE,
            "TIMELAKE_BUCKET" => "lake",
            "TIMELAKE_WORK_QUEUE_URL" => &work,
            _ => return None,
        };
        Some(value.to_string())
    });
    let cloud = Cloud::open_with(settings.unwrap(), hurried(endpoint)).await.unwrap();
    let engine = cloud.engine();
    let table = CreateTable {
        name: "iot.sensor".into(),
        columns: "ts:timestamptz,device_id:string,value:double".into(),
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        ..CreateTable::default()
    };
    let made = create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &table).await.unwrap();
    assert!(made.metadata_location.unwrap().starts_with("s3://lake/warehouse/iot/sensor/metadata/"));
    assert_eq!(list_tables(engine.catalog.as_ref()).await.unwrap().len(), 1);
    let job = engine.jobs.put_job(&job_record("a", "t", 0)).await.unwrap();
    assert_eq!(engine.jobs.jobs(None).await.unwrap(), [job]);
    engine.queue.send(&[message(&round_key(1, 0), 0)]).await.unwrap();
    let got = sqs.receive_message().queue_url(&work).send().await.unwrap();
    assert_eq!(got.messages().len(), 1);
    assert!(engine.objects.put_if_absent(&format!("{}/x", engine.jobs_root), "x".into()).await.unwrap());
}

#[test]
fn every_variable_is_in_the_docs() {
    let docs = std::fs::read_to_string(timelake_tests::workspace().join("infra/README.md")).unwrap();
    for variable in timelake_aws::VARIABLES {
        let line = format!("| `{}` | {} |", variable.name, variable.what);
        assert!(docs.contains(&line), "infra/README.md lacks: {line}");
    }
}
