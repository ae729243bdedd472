//! Calls to one DynamoDB table: read consistently, page by page; write on a condition; several writes as one
//! transaction. Each is tried again by the one rule; what an unclear answer means is told to the caller.
//!
//! Expressions name every attribute with `#`, as nearly every good name is a reserved word there.

use crate::errors::Failure;
use crate::retry::{Settings, tried};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::builders::{ConditionCheckBuilder, PutBuilder, UpdateBuilder};
use aws_sdk_dynamodb::types::{AttributeValue, CancellationReason, KeysAndAttributes, TransactWriteItem};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;
use timelake_model::{Error, Reason, Result};

pub(crate) type Item = HashMap<String, AttributeValue>;

/// Items of one BatchGetItem, as DynamoDB bounds them.
const BATCH: usize = 100;
/// Requests of one call that run side by side.
const REQUESTS: usize = 16;
/// The code of a reason that says: the condition of this item does not hold.
const CONDITION_FAILED: &str = "ConditionalCheckFailed";
/// Reasons of a cancelled transaction that say: later.
const LATER: [&str; 3] = ["TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub pk: String,
    pub sk: String,
}

impl Key {
    pub fn item(&self) -> Item {
        HashMap::from([("pk".into(), text(&self.pk)), ("sk".into(), text(&self.sk))])
    }
}

pub(crate) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}
pub(crate) fn number(value: impl Display) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// A write to one item. A condition that does not hold refuses it.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Put { item: Item, condition: String, values: Item },
    Update { key: Key, update: String, condition: String, values: Item },
}

impl Write {
    pub fn put_if_absent(item: Item) -> Write {
        Write::Put { item, condition: "attribute_not_exists(#pk)".into(), values: Item::new() }
    }
    /// Whatever is there.
    pub fn put(item: Item) -> Write {
        Write::Put { item, condition: String::new(), values: Item::new() }
    }
    pub fn update<const N: usize>(key: Key, update: &str, condition: &str, values: [(&str, AttributeValue); N]) -> Write {
        Write::Update { key, update: update.into(), condition: condition.into(), values: values_of(values) }
    }
}

pub(crate) fn values_of<const N: usize>(values: [(&str, AttributeValue); N]) -> Item {
    values.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// A condition does not hold. `unclear`: perhaps because an earlier try of this very call made the write.
    Refused {
        unclear: bool,
    },
}

#[derive(Clone)]
pub(crate) struct Table {
    client: Client,
    name: String,
    settings: Settings,
}

impl Table {
    pub fn new(client: Client, name: String) -> Table {
        // Conflicts are over in milliseconds; what does not answer for half a minute is told.
        let settings =
            Settings { tries: 12, first_delay: Duration::from_millis(20), longest_delay: Duration::from_secs(4), ..Settings::default() };
        Table { client, name, settings }
    }

    fn told(&self, failure: Failure, what: &str) -> Error {
        let is_busy = failure.is_transient && !failure.is_unclear;
        let reason = if is_busy { Reason::LedgerBusy } else { Reason::StorageUnavailable };
        failure.told_of(&format!("the ledger (DynamoDB table {})", self.name), what, reason)
    }

    pub async fn get(&self, key: &Key) -> Result<Option<Item>> {
        let call = || async {
            let request = self.client.get_item().table_name(&self.name).set_key(Some(key.item())).consistent_read(true);
            Ok(request.send().await.map_err(Failure::from)?.item)
        };
        tried(&self.settings, call).await.0.map_err(|failure| self.told(failure, "read"))
    }

    /// All items of a partition whose sort key has this start, in its order.
    pub async fn query(&self, pk: &str, prefix: &str) -> Result<Vec<Item>> {
        let (mut items, mut start) = (Vec::new(), None);
        loop {
            let call = || async {
                let request = self.client.query().table_name(&self.name).consistent_read(true).set_exclusive_start_key(start.clone());
                let request = request
                    .key_condition_expression("pk = :pk AND begins_with(sk, :prefix)")
                    .expression_attribute_values(":pk", text(pk))
                    .expression_attribute_values(":prefix", text(prefix));
                request.send().await.map_err(Failure::from)
            };
            let page = tried(&self.settings, call).await.0.map_err(|failure| self.told(failure, "read"))?;
            items.extend(page.items.unwrap_or_default());
            start = page.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(items);
            }
        }
    }

    /// The items of these keys that exist, in no order. `keys` names none twice.
    pub async fn get_all(&self, keys: &[Key]) -> Result<Vec<Item>> {
        let batches: Vec<_> = keys.chunks(BATCH).map(|batch| self.get_batch(batch.iter().map(Key::item).collect())).collect();
        let found: Vec<Vec<Item>> = stream::iter(batches).buffer_unordered(REQUESTS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn get_batch(&self, mut keys: Vec<Item>) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        while !keys.is_empty() {
            // An answer may hold a part; one without any item is a throttled one.
            let call = || async {
                let asked = KeysAndAttributes::builder().set_keys(Some(keys.clone())).consistent_read(true).build();
                let asked = asked.map_err(|e| Failure { is_transient: false, ..Failure::of_connection(e.to_string()) })?;
                let answer = self.client.batch_get_item().request_items(&self.name, asked).send().await.map_err(Failure::from)?;
                let found = answer.responses.and_then(|mut tables| tables.remove(&self.name)).unwrap_or_default();
                let left = answer.unprocessed_keys.and_then(|mut tables| tables.remove(&self.name));
                let left = left.map(|left| left.keys).unwrap_or_default();
                if left.len() == keys.len() {
                    return Err(Failure {
                        code: Some("Throttled".into()),
                        is_unclear: false,
                        ..Failure::of_connection("no item was read")
                    });
                }
                Ok((found, left))
            };
            let (found, left) = tried(&self.settings, call).await.0.map_err(|failure| self.told(failure, "read"))?;
            items.extend(found);
            keys = left;
        }
        Ok(items)
    }

    pub async fn write(&self, write: Write) -> Result<Written> {
        let call = || async {
            match self.write_once(write.clone()).await {
                Err(failure) if failure.has_code("ConditionalCheckFailedException") => Ok(false),
                answer => answer.map(|()| true),
            }
        };
        match tried(&self.settings, call).await {
            (Ok(true), _) => Ok(Written::Done),
            (Ok(false), unclear) => Ok(Written::Refused { unclear }),
            (Err(failure), _) => Err(self.told(failure, "written")),
        }
    }

    async fn write_once(&self, write: Write) -> Result<(), Failure> {
        let (names, expressions, values) = (names(&write), expressions(&write), values(&write));
        match write {
            Write::Put { item, .. } => {
                let request = self.client.put_item().table_name(&self.name).set_item(Some(item));
                let request = request.set_condition_expression(expressions.1).set_expression_attribute_names(names);
                request.set_expression_attribute_values(values).send().await.map_err(Failure::from)?;
            }
            Write::Update { key, .. } => {
                let request = self.client.update_item().table_name(&self.name).set_key(Some(key.item()));
                let request = request.set_update_expression(expressions.0).set_condition_expression(expressions.1);
                let request = request.set_expression_attribute_names(names).set_expression_attribute_values(values);
                request.send().await.map_err(Failure::from)?;
            }
        }
        Ok(())
    }

    /// All of the writes, or none. Repeated under one token, so that a try that was carried out without our knowledge
    /// counts as done; DynamoDB remembers tokens for ten minutes.
    pub async fn transact(&self, writes: Vec<Write>) -> Result<Written> {
        let items: Vec<TransactWriteItem> =
            writes.iter().map(|write| self.part(write)).collect::<Result<_, _>>().map_err(|e| Error::internal(e.to_string()))?;
        let token = uuid::Uuid::new_v4().to_string();
        let call = || async {
            let request = self.client.transact_write_items().set_transact_items(Some(items.clone())).client_request_token(&token);
            match request.send().await {
                Ok(_) => Ok(true),
                Err(error) => match cancelled(&error) {
                    Some(Cancelled::Refused) => Ok(false),
                    Some(Cancelled::Later(code)) => {
                        Err(Failure { code: Some(code), is_transient: true, is_unclear: false, ..Failure::from(error) })
                    }
                    None => Err(Failure::from(error)),
                },
            }
        };
        match tried(&self.settings, call).await {
            (Ok(true), _) => Ok(Written::Done),
            (Ok(false), unclear) => Ok(Written::Refused { unclear }),
            (Err(failure), _) => Err(self.told(failure, "written")),
        }
    }

    fn part(&self, write: &Write) -> Result<TransactWriteItem, aws_sdk_dynamodb::error::BuildError> {
        let (names, (update, condition), values) = (names(write), expressions(write), values(write));
        Ok(match write {
            Write::Put { item, .. } => {
                let put = PutBuilder::default().table_name(&self.name).set_item(Some(item.clone())).set_condition_expression(condition);
                let put = put.set_expression_attribute_names(names).set_expression_attribute_values(values).build()?;
                TransactWriteItem::builder().put(put).build()
            }
            // Without a change it is a check.
            Write::Update { key, .. } if update.is_none() => {
                let check = ConditionCheckBuilder::default().table_name(&self.name).set_key(Some(key.item()));
                let check = check.set_condition_expression(condition).set_expression_attribute_names(names);
                TransactWriteItem::builder().condition_check(check.set_expression_attribute_values(values).build()?).build()
            }
            Write::Update { key, .. } => {
                let change = UpdateBuilder::default().table_name(&self.name).set_key(Some(key.item()));
                let change = change.set_update_expression(update).set_condition_expression(condition);
                let change = change.set_expression_attribute_names(names).set_expression_attribute_values(values).build()?;
                TransactWriteItem::builder().update(change).build()
            }
        })
    }
}

enum Cancelled {
    /// A condition does not hold, and nothing else stood in the way.
    Refused,
    Later(String),
}

/// Why a transaction was cancelled. A condition may have been judged while another transaction was half way, so a
/// conflict beside it counts for more.
fn cancelled(error: &SdkError<TransactWriteItemsError>) -> Option<Cancelled> {
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error.as_service_error()? else { return None };
    let codes: Vec<&str> = cancelled.cancellation_reasons().iter().filter_map(CancellationReason::code).collect();
    if let Some(code) = codes.iter().find(|code| LATER.contains(code)) {
        return Some(Cancelled::Later((*code).to_string()));
    }
    // Whatever else there is (an item too large) comes again with every try.
    let only_conditions = codes.iter().all(|code| matches!(*code, "None" | CONDITION_FAILED));
    (only_conditions && codes.contains(&CONDITION_FAILED)).then_some(Cancelled::Refused)
}

/// The update and the condition; none is empty.
fn expressions(write: &Write) -> (Option<String>, Option<String>) {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    match write {
        Write::Put { condition, .. } => (None, some(condition)),
        Write::Update { update, condition, .. } => (some(update), some(condition)),
    }
}

fn values(write: &Write) -> Option<Item> {
    let (Write::Put { values, .. } | Write::Update { values, .. }) = write;
    Some(values.clone()).filter(|values| !values.is_empty())
}

/// `#name` stands for the attribute of that name.
fn names(write: &Write) -> Option<HashMap<String, String>> {
    let (update, condition) = expressions(write);
    let all = [update.unwrap_or_default(), condition.unwrap_or_default()].join(" ");
    let names: HashMap<String, String> = all
        .split('#')
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_string())
        .map(|name| (format!("#{name}"), name))
        .collect();
    Some(names).filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canned_tests::{Canned, at_once};
    use aws_sdk_dynamodb::types::error::TransactionCanceledException;

    fn of(codes: &[&str]) -> Option<Cancelled> {
        let reasons = codes.iter().map(|code| CancellationReason::builder().code(*code).build());
        let exception = TransactionCanceledException::builder().set_cancellation_reasons(Some(reasons.collect())).build();
        let error = TransactWriteItemsError::TransactionCanceledException(exception);
        let answer = aws_sdk_dynamodb::config::http::HttpResponse::new(400.try_into().unwrap(), "".into());
        cancelled(&SdkError::service_error(error, answer))
    }

    #[test]
    fn a_condition_that_fails_is_told_from_what_passes() {
        assert!(matches!(of(&["ConditionalCheckFailed", "None"]), Some(Cancelled::Refused)));
        for later in ["TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"] {
            assert!(matches!(of(&["None", later]), Some(Cancelled::Later(code)) if code == later));
            assert!(matches!(of(&[later, "ConditionalCheckFailed"]), Some(Cancelled::Later(_))), "{later}: look again");
        }
        for lasting in [["ValidationError", "None"], ["ItemCollectionSizeLimitExceeded", "ConditionalCheckFailed"]] {
            assert!(of(&lasting).is_none());
        }
        assert!(of(&[]).is_none(), "no reason is no refusal");
    }

    #[test]
    fn every_attribute_of_an_expression_is_named() {
        let key = Key { pk: "a".into(), sk: "b".into() };
        let write = Write::update(key, "SET #rows = #rows + :n, #by_me=:m", "#open = :open AND attribute_not_exists(#state)", []);
        let mut names: Vec<String> = names(&write).unwrap().into_values().collect();
        names.sort();
        assert_eq!(names, ["by_me", "open", "rows", "state"]);
        assert_eq!(super::names(&Write::put(Item::new())), None);
    }
    const THROTTLED: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"slow down"}"#;
    const THROTTLING: &str = r#"{"__type":"com.amazon.coral.availability#ThrottlingException","message":"Rate exceeded"}"#;
    const LIMIT: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#RequestLimitExceeded","message":"too many"}"#;
    const CONFLICT: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionConflictException","message":"busy"}"#;

    #[tokio::test]
    async fn every_call_is_tried_again_while_it_is_throttled_and_not_for_ever() {
        for (status, body, reason) in [
            (400, THROTTLED, Reason::LedgerBusy),
            (400, THROTTLING, Reason::LedgerBusy),
            (400, LIMIT, Reason::LedgerBusy),
            (400, CONFLICT, Reason::LedgerBusy),
            (500, "{}", Reason::StorageUnavailable),
        ] {
            let service = Canned::new(status, body);
            let table = Table::new(Client::new(&service.config()), "timelake".into());
            let table = Table { settings: at_once(&table.settings), ..table };
            let key = Key { pk: "a".into(), sk: "b".into() };
            let change = || Write::update(key.clone(), "SET #rows = :n", "#open = :n", [(":n", number(1))]);
            for error in [
                table.get(&key).await.unwrap_err(),
                table.query("a", "b").await.unwrap_err(),
                table.get_all(std::slice::from_ref(&key)).await.unwrap_err(),
                table.write(Write::put_if_absent(key.item())).await.unwrap_err(),
                table.write(change()).await.unwrap_err(),
                table.transact(vec![change()]).await.unwrap_err(),
            ] {
                assert_eq!(error.reason, reason, "{body}: {error}");
            }
            assert_eq!(service.asked(), 6 * table.settings.tries, "{body}");
        }
    }
}
