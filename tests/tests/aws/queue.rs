//! The queues on SQS: every message arrives, whatever is taken of a batch.

use crate::Cloud;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::MessageSystemAttributeName;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use timelake_aws::{QueueUrls, SqsQueues};
use timelake_engine::ports::{Signals, UnitSender};
use timelake_model::ledger::{Phase, RoundKey, UnitMessage};
use timelake_model::messages::{CloseMessage, Signal, ValidateMessage};
use timelake_model::{Kind, Reason};
use timelake_testkit::ledger_suite::{message, round_key};
use timelake_tests::{Asked, Fault, Proxy};

const SOME_TAKEN: &str = r#"{"Successful":[{"Id":"0","MessageId":"m0","MD5OfMessageBody":"x"},{"Id":"2","MessageId":"m2","MD5OfMessageBody":"x"}],
    "Failed":[{"Id":"1","SenderFault":false,"Code":"InternalError","Message":"later"}]}"#;
const OUR_FAULT: &str =
    r#"{"Successful":[],"Failed":[{"Id":"0","SenderFault":true,"Code":"InvalidMessageContents","Message":"a byte that cannot be"}]}"#;
const THROTTLED: &str = r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"slow down"}"#;

async fn client(cloud: &Cloud) -> Client {
    cloud.services(cloud.emulator.endpoint()).await.sqs()
}

/// A queue of that name, reached at `endpoint`.
async fn make(cloud: &Cloud, name: &str) -> String {
    client(cloud).await.create_queue().queue_name(name).send().await.unwrap().queue_url.unwrap()
}

/// All bodies with their groups, until nothing comes any more.
async fn received(cloud: &Cloud, url: &str) -> Vec<(String, Option<String>)> {
    let (client, mut bodies) = (client(cloud).await, Vec::new());
    loop {
        let request = client.receive_message().queue_url(url).max_number_of_messages(10).wait_time_seconds(0);
        let answer = request.message_system_attribute_names(MessageSystemAttributeName::All).send().await.unwrap();
        let messages = answer.messages.unwrap_or_default();
        if messages.is_empty() {
            return bodies;
        }
        for message in messages {
            let group = message.attributes().and_then(|known| known.get(&MessageSystemAttributeName::MessageGroupId)).cloned();
            bodies.push((message.body.unwrap(), group));
        }
    }
}

fn only_work(url: &str) -> QueueUrls {
    QueueUrls { work: Some(url.to_string()), ..QueueUrls::default() }
}

fn units(messages: &[(String, Option<String>)]) -> Vec<u32> {
    let mut units: Vec<u32> = messages.iter().map(|(body, _)| serde_json::from_str::<UnitMessage>(body).unwrap().unit).collect();
    units.sort();
    units
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_to_the_queue_of_their_phase() {
    let cloud = Cloud::start();
    let urls = QueueUrls {
        work: Some(make(&cloud, "work").await),
        land_close: Some(make(&cloud, "land-close").await),
        close: Some(make(&cloud, "close").await),
        refresh: Some(make(&cloud, "refresh").await),
    };
    let queues = SqsQueues::new(client(&cloud).await, urls.clone());
    let key = round_key(1, 0);
    let (land, refresh) = (RoundKey { phase: Phase::Land, ..key.clone() }, RoundKey { phase: Phase::Refresh, ..key.clone() });
    let mut sent: Vec<UnitMessage> = (0..23).map(|unit| message(&key, unit)).collect();
    sent.extend([message(&land, 100), message(&refresh, 200)]);
    queues.send(&sent).await.unwrap();
    queues.send(&[]).await.unwrap();
    let work = received(&cloud, urls.work.as_ref().unwrap()).await;
    assert_eq!(units(&work), (0..23).chain([100]).collect::<Vec<_>>());
    assert!(work.iter().all(|(body, _)| body.len() < 1_024));
    let groups: BTreeSet<_> = work.iter().filter_map(|(_, group)| group.as_deref()).collect();
    assert!(groups.is_empty() || groups == BTreeSet::from([key.job.as_str()]), "{groups:?}");
    assert_eq!(units(&received(&cloud, urls.refresh.as_ref().unwrap()).await), [200]);

    let validate = ValidateMessage { job: key.job.clone(), generation: 1, group: key.group.clone(), round: 0 };
    let signals = [
        (&urls.land_close, Signal::Close(CloseMessage { key: land })),
        (&urls.close, Signal::Close(CloseMessage { key: key.clone() })),
        (&urls.close, Signal::Validate(validate)),
    ];
    for (url, signal) in signals {
        queues.signal(&signal).await.unwrap();
        let got = received(&cloud, url.as_ref().unwrap()).await;
        assert!(got.iter().any(|(body, _)| serde_json::from_str::<Signal>(body).unwrap() == signal), "{got:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_taken_of_a_batch_is_sent_again() {
    let cloud = Cloud::start();
    let url = make(&cloud, "work").await;
    let first = AtomicBool::new(true);
    let proxy = Proxy::start(cloud.emulator.port(), move |_: &Asked| {
        if first.swap(false, Ordering::SeqCst) { Fault::Answered(200, SOME_TAKEN) } else { Fault::None }
    });
    let queues = SqsQueues::new(cloud.services(proxy.endpoint()).await.sqs(), only_work(&url));
    let key = round_key(1, 0);
    queues.send(&[0, 1, 2, 3].map(|unit| message(&key, unit))).await.unwrap();
    // Of the first answer: 0 and 2 were taken; 1 was not, and of 3 nothing is said.
    assert_eq!(units(&received(&cloud, &url).await), [1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_arrives_at_least_once_when_answers_are_spoiled() {
    let cloud = Cloud::start();
    let url = make(&cloud, "work").await;
    let proxy = Proxy::start(cloud.emulator.port(), |asked: &Asked| match asked.number % 5 {
        0 => Fault::Lost,
        2 => Fault::Answered(400, THROTTLED),
        3 => Fault::Failed,
        _ => Fault::None,
    });
    let queues = SqsQueues::new(cloud.services(proxy.endpoint()).await.sqs(), only_work(&url));
    let key = round_key(1, 0);
    let start = Instant::now();
    queues.send(&(0..100).map(|unit| message(&key, unit)).collect::<Vec<_>>()).await.unwrap();
    println!("100 messages in {:?}", start.elapsed());
    let mut got = units(&received(&cloud, &url).await);
    got.dedup();
    assert_eq!(got, (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_try_mends_is_said_at_once() {
    let cloud = Cloud::start();
    let url = make(&cloud, "work").await;
    let proxy = Proxy::start(cloud.emulator.port(), |_: &Asked| Fault::Answered(200, OUR_FAULT));
    let queues = SqsQueues::new(cloud.services(proxy.endpoint()).await.sqs(), only_work(&url));
    let error = queues.send(&[message(&round_key(1, 0), 0)]).await.unwrap_err();
    assert!(error.kind == Kind::Internal && error.message.contains("a byte that cannot be"), "{error}");
    assert_eq!(proxy.done().len(), 1);
    let absent = SqsQueues::new(client(&cloud).await, only_work(&url.replace("work", "absent")));
    let error = absent.send(&[message(&round_key(1, 0), 0)]).await.unwrap_err();
    assert_eq!((error.kind, error.reason), (Kind::NotFound, Reason::PathNotFound), "{error}");
    let none = SqsQueues::new(client(&cloud).await, QueueUrls::default());
    assert_eq!(none.send(&[message(&round_key(1, 0), 0)]).await.unwrap_err().kind, Kind::Internal);
}
