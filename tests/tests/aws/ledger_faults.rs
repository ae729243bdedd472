//! The ledger when DynamoDB cancels, throttles, or is not heard.

use crate::Cloud;
use crate::ledger::TABLE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use timelake_aws::DynamoLedger;
use timelake_engine::ports::{EndOutcome, JobStore};
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitState};
use timelake_model::{Kind, Reason};
use timelake_testkit::ledger_suite::{attempt, done, failed, group_record, job_record, plan_record, round_key};
use timelake_tests::{Asked, Fault, Proxy};

const CONFLICT: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
    "CancellationReasons":[{"Code":"TransactionConflict","Message":"busy"},{"Code":"None"}]}"#;
const CONFLICT_AND_CONDITION: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
    "CancellationReasons":[{"Code":"ConditionalCheckFailed"},{"Code":"TransactionConflict","Message":"busy"}]}"#;
const TOO_LARGE: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
    "CancellationReasons":[{"Code":"ValidationError","Message":"Item size has exceeded"},{"Code":"None"}]}"#;
const ITEM_CONFLICT: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionConflictException","message":"busy"}"#;
const THROTTLED: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"slow down"}"#;
const THROTTLING: &str = r#"{"__type":"com.amazon.coral.availability#ThrottlingException","message":"Rate exceeded"}"#;
const FORBIDDEN: &str = r#"{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"not authorized to perform"}"#;

fn is(asked: &Asked, operation: &str) -> bool {
    asked.operation.ends_with(&format!(".{operation}"))
}

/// The first `times` calls of this operation get this fault.
fn first(operation: &'static str, times: u32, fault: Fault) -> impl Fn(&Asked) -> Fault + Send + Sync {
    let left = AtomicU32::new(times);
    move |asked| {
        let hit = is(asked, operation) && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        if hit { fault } else { Fault::None }
    }
}

struct Scene {
    cloud: Cloud,
    proxy: Proxy,
    /// Through the proxy.
    spoiled: Arc<DynamoLedger>,
    direct: Arc<DynamoLedger>,
}

/// Round 0 of job `a` with three units; the faults come for what is asked afterwards.
async fn scene(plan: impl Fn(&Asked) -> Fault + Send + Sync + 'static) -> Scene {
    let cloud = Cloud::with_ledger().await;
    let direct = cloud.ledger(cloud.emulator.endpoint()).await;
    direct.put_job(&job_record("a", "t", 0)).await.unwrap();
    let stored = direct.put_plan(&plan_record(&round_key(1, 0), 0..3, 1)).await.unwrap();
    direct.open_round(&stored, 77).await.unwrap();
    let proxy = Proxy::start(cloud.emulator.port(), plan);
    let spoiled = cloud.ledger(proxy.endpoint()).await;
    Scene { cloud, proxy, spoiled, direct }
}

impl Scene {
    async fn state(&self, unit: usize) -> (UnitState, u32) {
        let key = round_key(1, 0);
        let units = self.direct.units(&key.job, 1, key.phase, &key.group).await.unwrap();
        (units[unit].state, self.direct.counters(&key).await.unwrap()[0].remaining)
    }
    fn asked(&self, operation: &str) -> usize {
        self.proxy.done().iter().filter(|(asked, _)| is(asked, operation)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_meets_another_is_tried_again() {
    for answer in [CONFLICT, CONFLICT_AND_CONDITION, THROTTLED] {
        let scene = scene(first("TransactWriteItems", 5, Fault::Answered(400, answer))).await;
        let (key, a) = (round_key(1, 0), attempt("a"));
        assert_eq!(scene.spoiled.end_unit(&key, 1, &a, &done(&key, 1, &a)).await.unwrap(), EndOutcome::Won);
        assert_eq!((scene.state(1).await, scene.asked("TransactWriteItems")), ((UnitState::Done, 2), 6));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_comes_to_its_end_after_it_was_throttled() {
    let cloud = Cloud::with_ledger().await;
    // Every call is refused once: transactions as they meet others, the rest in both ways that DynamoDB has.
    let proxy = Proxy::start(cloud.emulator.port(), |asked: &Asked| match (asked.number % 4, is(asked, "TransactWriteItems")) {
        (1 | 3, _) => Fault::None,
        (_, true) => Fault::Answered(400, CONFLICT),
        (0, _) => Fault::Answered(400, THROTTLED),
        _ => Fault::Answered(400, THROTTLING),
    });
    let (ledger, key, a) = (cloud.ledger(proxy.endpoint()).await, round_key(1, 0), attempt("a"));
    let job = ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    assert_eq!(ledger.jobs(Some("t")).await.unwrap(), std::slice::from_ref(&job));
    let job = ledger.update_job(1, &JobRecord { state: State::Hold, ..job }).await.unwrap().expect("nobody else changed it");
    assert_eq!(ledger.job(&job.job).await.unwrap(), Some(job));
    let group = ledger.put_group(&group_record("a", 1, &key.group.0)).await.unwrap();
    let group = ledger.update_group(&group).await.unwrap().expect("nobody else changed it");
    assert_eq!(ledger.group(&key.job, 1, &key.group).await.unwrap().as_ref(), Some(&group));
    assert_eq!(ledger.groups(&key.job, 1).await.unwrap(), [group]);
    let plan = ledger.put_plan(&plan_record(&key, 0..3, 1)).await.unwrap();
    ledger.open_round(&plan, 77).await.unwrap();
    ledger.advance_cursor(&key, 3).await.unwrap();
    assert_eq!(ledger.plan(&key).await.unwrap().unwrap().cursor, 3);
    assert!(ledger.begin_attempt(&key, 1, &a).await.unwrap());
    assert_eq!(ledger.end_unit(&key, 1, &a, &done(&key, 1, &a)).await.unwrap(), EndOutcome::Won);
    assert_eq!(ledger.counters(&key).await.unwrap()[0].remaining, 2);
    assert_eq!(ledger.units(&key.job, 1, key.phase, &key.group).await.unwrap()[1].state, UnitState::Done);
    ledger.close_round(&key).await.unwrap();
    assert!(!ledger.begin_attempt(&key, 0, &a).await.unwrap());
    for operation in ["GetItem", "Query", "BatchGetItem", "PutItem", "UpdateItem", "TransactWriteItems"] {
        let refused = proxy.done().iter().any(|(asked, fault)| is(asked, operation) && *fault != Fault::None);
        assert!(refused, "{operation}: {:?}", proxy.done());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_are_bounded_and_what_comes_again_each_time_is_not_tried() {
    let scene = scene(|asked: &Asked| match (is(asked, "TransactWriteItems"), asked.number) {
        (true, _) => Fault::Answered(400, CONFLICT),
        _ => Fault::None,
    })
    .await;
    let key = round_key(1, 0);
    let error = scene.spoiled.end_unit(&key, 1, &attempt("a"), &failed("full")).await.unwrap_err();
    assert_eq!((error.kind, error.reason), (Kind::Unavailable, Reason::LedgerBusy), "{error}");
    assert_eq!((scene.state(1).await, scene.asked("TransactWriteItems")), ((UnitState::Pending, 3), 12));
    for (answer, kind) in [(TOO_LARGE, Kind::Internal), (FORBIDDEN, Kind::Unavailable)] {
        let proxy = Proxy::start(scene.cloud.emulator.port(), first("TransactWriteItems", 9, Fault::Answered(400, answer)));
        let ledger = scene.cloud.ledger(proxy.endpoint()).await;
        let error = ledger.end_unit(&key, 1, &attempt("a"), &failed("full")).await.unwrap_err();
        assert_eq!((error.kind, error.needs_a_hand()), (kind, answer == FORBIDDEN), "{error}");
        assert!(error.message.contains(TABLE), "{error}");
        assert_eq!(proxy.done().iter().filter(|(asked, _)| is(asked, "TransactWriteItems")).count(), 1);
    }
    assert_eq!(scene.state(1).await, (UnitState::Pending, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_transaction_counts_once() {
    for fault in [Fault::Lost, Fault::Failed, Fault::Cut] {
        let scene = scene(first("TransactWriteItems", 3, fault)).await;
        let (key, a, b) = (round_key(1, 0), attempt("a"), attempt("b"));
        let outcome = scene.spoiled.end_unit(&key, 1, &a, &done(&key, 1, &a)).await.unwrap();
        // Where the service does not remember the token, `win` tells.
        assert!(outcome == EndOutcome::Won || outcome == EndOutcome::AlreadyEnded { win: Some(a.clone()) }, "{fault:?}: {outcome:?}");
        assert_eq!(scene.state(1).await, (UnitState::Done, 2));
        let told = EndOutcome::AlreadyEnded { win: Some(a) };
        assert_eq!(scene.spoiled.end_unit(&key, 1, &b, &done(&key, 1, &b)).await.unwrap(), told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_change_is_known_again() {
    let scene = scene(|asked: &Asked| match (is(asked, "PutItem") || is(asked, "UpdateItem"), asked.number % 3) {
        (true, 0) => Fault::Lost,
        (true, 1) => Fault::Answered(400, ITEM_CONFLICT),
        _ => Fault::None,
    })
    .await;
    let (ledger, direct) = (&scene.spoiled, &scene.direct);
    let mut group = ledger.put_group(&group_record("a", 1, "all")).await.unwrap();
    let mut job = ledger.job(&group.job).await.unwrap().unwrap();
    for round in 1..6 {
        group = ledger.update_group(&GroupRecord { round, ..group }).await.unwrap().expect("nobody else changed it");
        job = ledger.update_job(1, &JobRecord { state: State::Hold, ..job }).await.unwrap().expect("nor this");
    }
    assert_eq!((group.version, job.version), (5, 5));
    assert_eq!(direct.group(&group.job, 1, &group.group).await.unwrap(), Some(group.clone()));
    // One that was read before is refused, also when answers are lost.
    let stale = GroupRecord { version: 2, ..group.clone() };
    for _ in 0..3 {
        assert_eq!(ledger.update_group(&stale).await.unwrap(), None);
    }
    let key = round_key(1, 0);
    for n in 0..6 {
        assert!(ledger.begin_attempt(&key, 0, &attempt(&n.to_string())).await.unwrap());
        ledger.advance_cursor(&key, n).await.unwrap();
    }
    let units = direct.units(&key.job, 1, key.phase, &key.group).await.unwrap();
    assert_eq!(units[0].attempts, (0..6).map(|n| attempt(&n.to_string())).collect::<Vec<_>>());
    assert!(scene.proxy.count(Fault::Lost) > 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_one_also_when_every_third_answer_is_spoiled() {
    let scene = scene(|asked: &Asked| match asked.number % 9 {
        0 => Fault::Answered(400, THROTTLED),
        3 => Fault::Failed,
        6 => Fault::Lost,
        _ => Fault::None,
    })
    .await;
    let (ledger, key) = (&scene.spoiled, round_key(1, 1));
    let plan = ledger.put_plan(&plan_record(&key, 0..60, 3)).await.unwrap();
    ledger.open_round(&plan, 77).await.unwrap();
    let a = attempt("a");
    for unit in 0..60 {
        assert!(ledger.begin_attempt(&key, unit, &a).await.unwrap());
        let end = if unit % 10 == 0 { failed("full") } else { done(&key, unit, &a) };
        let outcome = ledger.end_unit(&key, unit, &a, &end).await.unwrap();
        assert!(outcome == EndOutcome::Won || outcome == EndOutcome::AlreadyEnded { win: Some(a.clone()) }, "{outcome:?}");
    }
    ledger.close_round(&key).await.unwrap();
    let counters = scene.direct.counters(&key).await.unwrap();
    let sums = counters.iter().fold((0, 0, 0), |(left, failed, rows), c| (left + c.remaining, failed + c.failed, rows + c.rows));
    assert_eq!(sums, (0, 6, (0..60).filter(|unit| unit % 10 != 0).map(|unit| 10 + unit).sum()));
    assert!(counters.iter().all(|c| !c.open));
}

/// An open counter in a round that was closed would let a late attempt of an older life win.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_is_never_open_after_it_was_closed_whatever_crosses() {
    let scene = scene(|_: &Asked| Fault::None).await;
    for round in 1..40 {
        let key = round_key(1, round);
        let plan = scene.direct.put_plan(&plan_record(&key, 0..5, 3)).await.unwrap();
        let (one, two) = (scene.direct.clone(), scene.spoiled.clone());
        let (opens, closes) = {
            let key = key.clone();
            (tokio::spawn(async move { one.open_round(&plan, 77).await }), tokio::spawn(async move { two.close_round(&key).await }))
        };
        opens.await.unwrap().unwrap();
        closes.await.unwrap().unwrap();
        let counters = scene.direct.counters(&key).await.unwrap();
        assert!(counters.len() == 3 && counters.iter().all(|c| !c.open && c.remaining > 0), "{counters:?}");
        assert!(!scene.direct.begin_attempt(&key, 0, &attempt("x")).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_there_is_said() {
    let cloud = Cloud::with_ledger().await;
    let client = cloud.services(cloud.emulator.endpoint()).await.dynamodb();
    let ledger = DynamoLedger::new(client, "absent", Arc::new(cloud.objects()), "s3://lake/jobs");
    let error = ledger.job(&round_key(1, 0).job).await.unwrap_err();
    assert!(error.kind == Kind::NotFound && error.message.contains("absent") && error.hint.is_some(), "{error:?}");
}
