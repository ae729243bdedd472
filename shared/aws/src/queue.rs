//! The queues on SQS: units to their workers, signals to whoever goes on. Receives nothing: messages come to functions as
//! events, and here they are put off at most.
//!
//! Messages carry their job as group, so that one large job does not keep the others waiting (a fair queue). What SQS does
//! not say it took is sent again, so a message may come twice; receivers look into the ledger.

use crate::errors::Failure;
use crate::retry::{Settings, Tries};
use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{BatchResultErrorEntry, QueueAttributeName, SendMessageBatchRequestEntry};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::collections::HashSet;
use std::time::Duration;
use timelake_engine::ports::{Signals, UnitSender};
use timelake_model::ledger::{Phase, UnitMessage};
use timelake_model::messages::Signal;
use timelake_model::{Error, JobId, Reason, Result};

/// Messages of one request, as SQS bounds them.
const BATCH: usize = 10;
/// Requests of one call that run side by side.
const REQUESTS: usize = 8;
/// 12 hours, as SQS bounds it.
const MOST_HIDDEN_SECONDS: i32 = 43_200;
const WAITING: [QueueAttributeName; 3] = [
    QueueAttributeName::ApproximateNumberOfMessages,
    QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
    QueueAttributeName::ApproximateNumberOfMessagesDelayed,
];

/// Addresses of the queues. A part of a run that never sends to one does not need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueUrls {
    /// Units to be landed or written.
    pub work: Option<String>,
    /// Signals of landed rounds.
    pub land_close: Option<String>,
    /// Signals of written, staged and refreshed rounds.
    pub close: Option<String>,
    /// Units to be refreshed.
    pub refresh: Option<String>,
}

impl QueueUrls {
    fn all(&self) -> impl Iterator<Item = &str> {
        [&self.work, &self.land_close, &self.close, &self.refresh].into_iter().flatten().map(String::as_str)
    }
}

pub struct SqsQueues {
    client: Client,
    urls: QueueUrls,
    settings: Settings,
}

impl SqsQueues {
    pub fn new(client: Client, urls: QueueUrls) -> SqsQueues {
        SqsQueues { client, urls, settings: Settings::default() }
    }

    fn of_units(&self, phase: Phase) -> Result<&str> {
        match phase {
            Phase::Land | Phase::Write => need(&self.urls.work, "units"),
            Phase::Refresh => need(&self.urls.refresh, "units to be refreshed"),
        }
    }

    fn of_signals(&self, phase: Phase) -> Result<&str> {
        match phase {
            Phase::Land => need(&self.urls.land_close, "signals of landed rounds"),
            Phase::Write | Phase::Refresh => need(&self.urls.close, "signals of written rounds"),
        }
    }

    /// A message of the queue with this ARN comes again after the pause, whoever holds it.
    pub async fn hide(&self, queue_arn: &str, receipt_handle: &str, pause: Duration) -> Result<()> {
        let name = queue_arn.rsplit(':').next().unwrap_or_default();
        let url = self.urls.all().find(|url| url.rsplit('/').next() == Some(name));
        let url = url.ok_or_else(|| Error::internal(format!("the address of the queue {name} is not set")))?;
        let seconds = i32::try_from(pause.as_secs_f64().ceil() as u64).unwrap_or(i32::MAX).min(MOST_HIDDEN_SECONDS);
        let hide = self.client.change_message_visibility().queue_url(url).receipt_handle(receipt_handle).visibility_timeout(seconds);
        let mut tries = Tries::new(&self.settings);
        while let Err(error) = hide.clone().send().await {
            let failed = tries.after(Failure::from(error)).await;
            failed.map_err(|failure| failure.told_of(&format!("a message of the queue {url}"), "put off", Reason::StorageUnavailable))?;
        }
        Ok(())
    }

    /// Messages that wait or are held, in all queues; SQS only knows about how many.
    pub async fn waiting(&self) -> Result<u64> {
        let mut messages = 0;
        for url in self.urls.all() {
            let ask = self.client.get_queue_attributes().queue_url(url).set_attribute_names(Some(WAITING.to_vec()));
            let mut tries = Tries::new(&self.settings);
            let answer = loop {
                match ask.clone().send().await {
                    Ok(answer) => break answer,
                    Err(error) => {
                        let failed = tries.after(Failure::from(error)).await;
                        failed.map_err(|failure| failure.told_of(&format!("the queue {url}"), "read", Reason::StorageUnavailable))?;
                    }
                }
            };
            let counts = answer.attributes().into_iter().flat_map(|attributes| attributes.values());
            messages += counts.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(messages)
    }

    /// Sends at most [`BATCH`] messages, those again that were not taken.
    async fn send_batch(&self, url: &str, mut entries: Vec<SendMessageBatchRequestEntry>) -> Result<()> {
        let mut tries = Tries::new(&self.settings);
        let told = |failure: Failure| failure.told_of(&format!("the queue {url}"), "written", Reason::StorageUnavailable);
        loop {
            let failure = match self.client.send_message_batch().queue_url(url).set_entries(Some(entries.clone())).send().await {
                Err(error) => Failure::from(error),
                Ok(answer) => {
                    let taken: HashSet<&str> = answer.successful().iter().map(|entry| entry.id()).collect();
                    let asked = entries.len();
                    entries.retain(|entry| !taken.contains(entry.id()));
                    if entries.is_empty() {
                        return Ok(());
                    }
                    if entries.len() < asked {
                        tries.progressed();
                    }
                    refused(answer.failed())
                }
            };
            tries.after(failure).await.map_err(told)?;
        }
    }
}

/// Why messages of a batch were not taken: ours is the fault, or another try may do.
fn refused(failed: &[BatchResultErrorEntry]) -> Failure {
    let ours = failed.iter().find(|entry| entry.sender_fault());
    let told = ours.or(failed.first());
    let text = told.and_then(|entry| entry.message()).unwrap_or("a message of the batch was not taken");
    Failure {
        status: Some(if ours.is_some() { 400 } else { 503 }),
        code: told.map(|entry| entry.code().to_string()),
        is_transient: ours.is_none(),
        is_unclear: false,
        ..Failure::of_connection(text)
    }
}

fn need<'a>(url: &'a Option<String>, what: &str) -> Result<&'a str> {
    url.as_deref().ok_or_else(|| Error::internal(format!("there is no queue for {what}: its address is not set")))
}

fn entry(id: usize, job: &JobId, message: &impl Serialize) -> Result<SendMessageBatchRequestEntry> {
    let body = serde_json::to_string(message).map_err(|e| Error::internal(format!("cannot serialise: {e}")))?;
    let entry = SendMessageBatchRequestEntry::builder().id(id.to_string()).message_group_id(job.as_str()).message_body(body);
    entry.build().map_err(|e| Error::internal(e.to_string()))
}

#[async_trait]
impl UnitSender for SqsQueues {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        let mut batches = Vec::new();
        for phase in [Phase::Land, Phase::Write, Phase::Refresh] {
            let of_phase: Vec<&UnitMessage> = messages.iter().filter(|message| message.key.phase == phase).collect();
            for batch in of_phase.chunks(BATCH) {
                let entries = batch.iter().enumerate().map(|(id, message)| entry(id, &message.key.job, message));
                batches.push(self.send_batch(self.of_units(phase)?, entries.collect::<Result<_>>()?));
            }
        }
        stream::iter(batches).buffer_unordered(REQUESTS).try_collect().await
    }

    /// A queue of SQS cannot be searched: whoever gets a message of an ended round finds it closed in the ledger.
    async fn purge(&self, _: &JobId, _: Option<u32>) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Signals for SqsQueues {
    async fn signal(&self, signal: &Signal) -> Result<()> {
        self.send_batch(self.of_signals(signal.phase())?, vec![entry(0, signal.job(), signal)?]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canned_tests::{Canned, at_once};
    use timelake_model::GroupName;
    use timelake_model::ledger::RoundKey;

    const NOT_TAKEN: &str = r#"{"Successful":[],"Failed":[{"Id":"0","SenderFault":false,"Code":"InternalError","Message":"later"}]}"#;
    const NOTHING_SAID: &str = r#"{"Successful":[],"Failed":[]}"#;
    const THROTTLED: &str = r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"slow down"}"#;

    #[tokio::test]
    async fn what_is_never_taken_is_given_up() {
        let key = RoundKey { job: JobId("iot-a".into()), generation: 1, phase: Phase::Write, group: GroupName::all(), round: 0 };
        let message = UnitMessage { key, unit: 0 };
        for (status, body) in [(200, NOT_TAKEN), (200, NOTHING_SAID), (400, THROTTLED), (503, "{}")] {
            let service = Canned::new(status, body);
            let urls = QueueUrls { work: Some("https://sqs/1/work".into()), ..QueueUrls::default() };
            let queues = SqsQueues::new(Client::new(&service.config()), urls);
            let queues = SqsQueues { settings: at_once(&queues.settings), ..queues };
            let error = queues.send(std::slice::from_ref(&message)).await.unwrap_err();
            assert_eq!(error.reason, Reason::StorageUnavailable, "{body}: {error}");
            assert_eq!(service.asked(), queues.settings.tries, "{body}");
        }
    }
}
