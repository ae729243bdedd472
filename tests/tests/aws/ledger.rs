//! The ledger on DynamoDB against the contract of every ledger, and what is its own: long plans, long receipts, pages.

use crate::{Cloud, wait};
use aws_sdk_dynamodb::types::{AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType};
use std::sync::Arc;
use std::time::Instant;
use timelake_aws::DynamoLedger;
use timelake_engine::ports::{EndOutcome, JobStore, UnitEnd};
use timelake_model::ledger::{PlanRecord, UnitState};
use timelake_testkit::ledger_suite::{Fixture, attempt, done, failed, group_record, job_record, plan_record, round_key};
use timelake_testkit::{ManualClock, MemoryLedger};

pub const TABLE: &str = "timelake";
pub const BUCKET: &str = "lake";
const ROOT: &str = "s3://lake/jobs";

impl Cloud {
    /// With a table and a bucket, both empty.
    pub async fn with_ledger() -> Cloud {
        let cloud = Cloud::start();
        cloud.emulator.make_bucket(BUCKET);
        let client = cloud.services(cloud.emulator.endpoint()).await.dynamodb();
        let mut table = client.create_table().table_name(TABLE).billing_mode(BillingMode::PayPerRequest);
        for (name, kind) in [("pk", KeyType::Hash), ("sk", KeyType::Range)] {
            let key = KeySchemaElement::builder().attribute_name(name).key_type(kind).build().unwrap();
            let attribute = AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S).build().unwrap();
            table = table.key_schema(key).attribute_definitions(attribute);
        }
        table.send().await.unwrap();
        cloud
    }

    pub async fn ledger(&self, endpoint: String) -> Arc<DynamoLedger> {
        let client = self.services(endpoint).await.dynamodb();
        Arc::new(DynamoLedger::new(client, TABLE, Arc::new(self.objects()), ROOT))
    }
}

fn fixture() -> Fixture {
    let cloud = wait(Cloud::with_ledger());
    let open = || wait(cloud.ledger(cloud.emulator.endpoint()));
    let (ledger, second) = (open(), open());
    let clock = Arc::new(ManualClock::default());
    let queue = Arc::new(MemoryLedger::new(clock.clone()));
    Fixture { ledger, second, queue: queue.clone(), second_queue: queue, clock, keep: Box::new(cloud) }
}

timelake_testkit::ledger_suite!(dynamodb, fixture);

async fn opened(cloud: &Cloud, plan: &PlanRecord) -> Arc<DynamoLedger> {
    let ledger = cloud.ledger(cloud.emulator.endpoint()).await;
    ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let stored = ledger.put_plan(plan).await.unwrap();
    ledger.open_round(&stored, 77).await.unwrap();
    ledger
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_20_000_units_opens_at_once_whatever_its_units_are() {
    let cloud = Cloud::with_ledger().await;
    let shards = PlanRecord::shards_for(20_000);
    // All units; and every other one, which is no few runs.
    let plans = [plan_record(&round_key(1, 0), 0..20_000, shards), plan_record(&round_key(1, 1), (0..20_000).map(|n| n * 2), shards)];
    let ledger = opened(&cloud, &plans[0]).await;
    let stored = ledger.put_plan(&plans[1]).await.unwrap();
    let start = Instant::now();
    ledger.open_round(&stored, 88).await.unwrap();
    println!("opened in {:?}", start.elapsed());
    let other = cloud.ledger(cloud.emulator.endpoint()).await;
    for plan in &plans {
        assert_eq!(other.plan(&plan.key).await.unwrap().as_ref(), Some(plan));
        let counters = other.counters(&plan.key).await.unwrap();
        assert_eq!((counters.len(), counters.iter().map(|c| c.remaining).sum::<u32>()), (16, 20_000));
    }
    let (key, unit) = (&plans[1].key, 39_998);
    assert!(other.begin_attempt(key, unit, &attempt("x")).await.unwrap());
    assert_eq!(ledger.end_unit(key, unit, &attempt("x"), &done(key, unit, &attempt("x"))).await.unwrap(), EndOutcome::Won);
    let units = other.units(&key.job, 1, key.phase, &key.group).await.unwrap();
    assert_eq!(units.len(), 40_000);
    assert_eq!(units.iter().filter(|u| u.state == UnitState::Done).map(|u| (u.unit, u.base)).collect::<Vec<_>>(), [(39_998, 88)]);
    assert_eq!((units[0].base, units[1].base, units[1].key.round), (77, 88, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_item_is_longer_than_a_kilobyte_and_no_receipt_is_cut() {
    let cloud = Cloud::with_ledger().await;
    let key = round_key(1, 0);
    let plan = plan_record(&key, (0..2_000).map(|n| n * 7), 2);
    let ledger = opened(&cloud, &plan).await;
    let UnitEnd::Done(mut receipt) = done(&key, 0, &attempt("x")) else { unreachable!() };
    let timelake_model::Receipt::Write(written) = receipt.as_mut() else { unreachable!() };
    written.warnings = (0..30_000).map(|n| format!("{n} ä \u{0}")).collect();
    let end = UnitEnd::Done(receipt.clone());
    for name in ["a", "b", "c", "d", "x"] {
        assert!(ledger.begin_attempt(&key, 0, &attempt(name)).await.unwrap());
    }
    assert_eq!(ledger.end_unit(&key, 0, &attempt("x"), &end).await.unwrap(), EndOutcome::Won);
    let error = "long ".repeat(2_000);
    assert_eq!(ledger.end_unit(&key, 7, &attempt("y"), &failed(&error)).await.unwrap(), EndOutcome::Won);
    assert_eq!(ledger.end_unit(&key, 14, &attempt("z"), &failed("short")).await.unwrap(), EndOutcome::Won);

    let second = cloud.ledger(cloud.emulator.endpoint()).await;
    let units = second.units(&key.job, 1, key.phase, &key.group).await.unwrap();
    assert_eq!(units[0].receipt.as_ref(), Some(receipt.as_ref()));
    assert_eq!((units[1].error.as_ref().unwrap().message.as_str(), units[2].error.as_ref().unwrap().message.as_str()), (&*error, "short"));
    assert_eq!(units[3..].iter().filter(|u| u.state != UnitState::Pending).count(), 0);

    let client = cloud.services(cloud.emulator.endpoint()).await.dynamodb();
    let items = client.scan().table_name(TABLE).send().await.unwrap().items.unwrap();
    let size = |value: &AttributeValue| match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        AttributeValue::L(list) => list.iter().map(|value| value.as_s().map_or(1, |text| text.len() + 1)).sum(),
        _ => 1,
    };
    for item in items.iter().filter(|item| !item.contains_key("record")) {
        let bytes: usize = item.iter().map(|(name, value)| name.len() + size(value)).sum();
        assert!(bytes <= 1024, "{bytes}: {item:?}");
    }
    // What the ledger names and is gone is damage, not a unit that never was.
    for object in cloud.emulator.list(BUCKET, "jobs/iot-a/g1/ledger/write-2024-05-r0/u0")["objects"].as_object().unwrap().keys() {
        cloud.emulator.delete(BUCKET, object);
    }
    let gone = second.units(&key.job, 1, key.phase, &key.group).await.unwrap_err();
    assert_eq!(gone.reason, timelake_model::Reason::LedgerDamaged, "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_listing_reads_all_its_pages() {
    let cloud = Cloud::with_ledger().await;
    let ledger = cloud.ledger(cloud.emulator.endpoint()).await;
    // A page ends after a megabyte.
    let long = "x".repeat(150_000);
    let names: Vec<String> = (0..23).map(|n| format!("j{n:03}")).collect();
    for name in &names {
        let mut job = job_record(name, "t", 0);
        job.request_hash = long.clone();
        ledger.put_job(&job).await.unwrap();
        ledger
            .put_group(&timelake_model::ledger::GroupRecord {
                error: Some(timelake_model::Error::internal(long.clone())),
                ..group_record("j000", 1, name)
            })
            .await
            .unwrap();
    }
    for table in [None, Some("t")] {
        assert_eq!(ledger.jobs(table).await.unwrap().len(), names.len());
    }
    let groups = ledger.groups(&group_record("j000", 1, "x").job, 1).await.unwrap();
    assert_eq!(groups.iter().map(|g| g.group.0.clone()).collect::<Vec<_>>(), names);
    // More than one batch of keys.
    for n in 0..130 {
        ledger.put_job(&job_record(&format!("k{n:03}"), "u", n)).await.unwrap();
    }
    let jobs = ledger.jobs(Some("u")).await.unwrap();
    assert_eq!(jobs.iter().map(|j| j.job.0.clone()).collect::<Vec<_>>(), (0..130).map(|n| format!("iot-k{n:03}")).collect::<Vec<_>>());
}
