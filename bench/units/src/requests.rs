//! Counts what is asked of SQS and DynamoDB: a hook of the SDK's clients sees every answer.
//!
//! Write units are those that the service says it took. Read units are counted by DynamoDB's rule from what came back,
//! since the emulator's word on them does not depend on sizes: one for each 4 KiB of an item, or of a page of a query, as
//! every read of the ledger is consistent.

use aws_sdk_dynamodb::config::interceptors::{AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemOutput;
use aws_sdk_dynamodb::operation::get_item::GetItemOutput;
use aws_sdk_dynamodb::operation::put_item::{PutItemInput, PutItemOutput};
use aws_sdk_dynamodb::operation::query::QueryOutput;
use aws_sdk_dynamodb::operation::transact_write_items::{TransactWriteItemsInput, TransactWriteItemsOutput};
use aws_sdk_dynamodb::operation::update_item::{UpdateItemInput, UpdateItemOutput};
use aws_sdk_dynamodb::types::{AttributeValue, ConsumedCapacity, ReturnConsumedCapacity};
use aws_sdk_sqs::operation::receive_message::ReceiveMessageOutput;
use aws_smithy_runtime_api::client::interceptors::context::Output;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

const READ_UNIT_BYTES: usize = 4 << 10;

/// Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    counts: Arc<Mutex<BTreeMap<(String, String), Count>>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requests: u64,
    /// Among them, answered with an error.
    refused: u64,
    write_units: f64,
    read_units: f64,
}

impl Requests {
    /// What was counted since the last time, by service and operation.
    pub fn take(&self) -> Value {
        let counts = std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        let told = counts.iter().map(|((service, operation), count)| {
            let Count { requests, refused, write_units, read_units } = count;
            json!({
                "service": service, "operation": operation, "requests": requests, "refused": refused,
                "write_units": write_units, "read_units": read_units,
            })
        });
        told.collect()
    }
}

impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (input, total) = (context.input_mut(), Some(ReturnConsumedCapacity::Total));
        if let Some(put) = input.downcast_mut::<PutItemInput>() {
            put.return_consumed_capacity = total;
        } else if let Some(update) = input.downcast_mut::<UpdateItemInput>() {
            update.return_consumed_capacity = total;
        } else if let Some(transaction) = input.downcast_mut::<TransactWriteItemsInput>() {
            transaction.return_consumed_capacity = total;
        }
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(asked) = config.load::<Metadata>() else { return Ok(()) };
        let answer = context.output_or_error().ok();
        let received = answer.and_then(|output| output.downcast_ref::<ReceiveMessageOutput>());
        if received.is_some_and(|received| received.messages().is_empty()) {
            return Ok(()); // asks whether there is something to do, which costs the same without a job
        }
        let write_units = answer.map_or_else(|| write_units_refused(asked.name()), write_units);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((asked.service().to_string(), asked.name().to_string())).or_default();
        count.requests += 1;
        count.refused += u64::from(answer.is_none());
        count.write_units += write_units;
        count.read_units += answer.map_or(0.0, read_units);
        Ok(())
    }
}

fn write_units(output: &Output) -> f64 {
    let told = |consumed: &ConsumedCapacity| consumed.capacity_units().unwrap_or_default();
    if let Some(put) = output.downcast_ref::<PutItemOutput>() {
        put.consumed_capacity().map_or(0.0, told)
    } else if let Some(update) = output.downcast_ref::<UpdateItemOutput>() {
        update.consumed_capacity().map_or(0.0, told)
    } else if let Some(transaction) = output.downcast_ref::<TransactWriteItemsOutput>() {
        transaction.consumed_capacity().iter().map(told).sum()
    } else {
        0.0
    }
}

/// A condition that does not hold costs what the write would have: of an item of at most a kilobyte, and of a unit and
/// its counter.
fn write_units_refused(operation: &str) -> f64 {
    match operation {
        "PutItem" | "UpdateItem" => 1.0,
        "TransactWriteItems" => 4.0,
        _ => 0.0,
    }
}

fn read_units(output: &Output) -> f64 {
    if let Some(get) = output.downcast_ref::<GetItemOutput>() {
        blocks(get.item().map_or(0, item_bytes))
    } else if let Some(query) = output.downcast_ref::<QueryOutput>() {
        blocks(query.items().iter().map(item_bytes).sum())
    } else if let Some(batch) = output.downcast_ref::<BatchGetItemOutput>() {
        let items = batch.responses().into_iter().flat_map(HashMap::values).flatten();
        items.map(|item| blocks(item_bytes(item))).sum()
    } else {
        0.0
    }
}

/// Nothing found is a read, too.
fn blocks(bytes: usize) -> f64 {
    bytes.div_ceil(READ_UNIT_BYTES).max(1) as f64
}

fn item_bytes(item: &HashMap<String, AttributeValue>) -> usize {
    item.iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
}

/// Of the types that the ledger has, by DynamoDB's rule but for numbers, which take less.
fn value_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        AttributeValue::L(list) => 3 + list.iter().map(|value| 1 + value_bytes(value)).sum::<usize>(),
        _ => 1,
    }
}
