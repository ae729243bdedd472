//! Batches of queue messages: each is taken by itself, and those that failed come again.

use crate::Cloud;
use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use serde::de::DeserializeOwned;
use std::time::Duration;
use timelake_model::{Error, Reason, Result};
use tracing::Instrument;

/// Takes the messages one after the other. The answer names those that are to come again.
pub async fn batch(event: SqsEvent, mut take: impl AsyncFnMut(&SqsMessage) -> Result<()>) -> SqsBatchResponse {
    let mut response = SqsBatchResponse::default();
    for message in event.records {
        let id = message.message_id.clone().unwrap_or_default();
        let span = tracing::info_span!("message", id = %id);
        if let Err(error) = take(&message).instrument(span).await {
            // Errors may hold values of rows; only what kind they are goes to the log.
            tracing::warn!(kind = ?error.kind, reason = ?error.reason, message = %id, "a message comes again");
            let mut failure = BatchItemFailure::default();
            failure.item_identifier = id;
            response.batch_item_failures.push(failure);
        }
    }
    response
}

/// The message's body.
pub fn decode<T: DeserializeOwned>(message: &SqsMessage) -> Result<T> {
    let body = message.body.as_deref().unwrap_or_default();
    serde_json::from_str(body).map_err(|e| Error::internal(format!("a message that is none of ours: {e}")))
}

/// Deliveries of a message so far, this one included.
pub fn deliveries(message: &SqsMessage) -> u32 {
    message.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// The error of a message that comes again after a pause.
pub async fn again(cloud: &Cloud, message: &SqsMessage, pause: Duration) -> Error {
    if let Err(error) = cloud.mail.delay(message, pause).await {
        tracing::warn!(kind = ?error.kind, "the pause of a message cannot be set");
    }
    Error::unavailable(Reason::StorageUnavailable, "a fault that may pass")
}
