//! Batches of queue messages: each is taken by itself, and those that failed come again.

use crate::Tally;
use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use serde::de::DeserializeOwned;
use timelake_model::{Error, Reason, Result};
use tracing::Instrument;

/// Takes the messages one after the other. The answer names those that are to come again.
pub async fn batch(tally: &Tally, event: SqsEvent, mut take: impl AsyncFnMut(&SqsMessage) -> Result<()>) -> SqsBatchResponse {
    let mut response = SqsBatchResponse::default();
    for message in event.records {
        let id = message.message_id.clone().unwrap_or_default();
        let span = tracing::info_span!("message", id = %id);
        let taken = take(&message).instrument(span).await;
        tally.message(taken.is_err());
        if let Err(error) = taken {
            // Errors may hold values of rows; only what kind they are goes to the log. What AWS refuses, it names.
            let refused = Some(&error.message).filter(|_| error.reason == Reason::AccessDenied);
            tracing::warn!(kind = %error.kind, reason = %error.reason, refused, message = %id, "a message comes again");
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
