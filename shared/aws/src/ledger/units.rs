//! Units: an attempt is recorded before it uploads, and each unit ends once, together with its counter.

use crate::ledger::DynamoLedger;
use crate::ledger::items::{
    after, counter_key, damaged, from_json, is_set, number as number_of, optional_string, plans_prefix, shard_partition, strings, to_json,
    unit_key, units_prefix,
};
use crate::ledger::rounds::{Opened, opened, opened_from};
use crate::ledger::table::{Item, Write, Written, number, text};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::sync::Arc;
use timelake_engine::ports::{EndOutcome, UnitEnd};
use timelake_model::ledger::{Phase, RoundKey, UnitRecord, UnitState};
use timelake_model::{AttemptId, GroupName, JobId, Result};

/// Objects of receipts that are read side by side.
const READS: usize = 64;
/// Partitions that are read side by side.
const QUERIES: usize = 16;

/// Records an attempt. The unit's item is written first and the counter looked at afterwards: where it is open then, it
/// was open at the write too, since a round is opened before and closed for good. An attempt that is recorded and finds
/// its round closed has uploaded nothing.
pub(crate) async fn begin(ledger: &DynamoLedger, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
    let Some(shard) = opened(ledger, key).await?.and_then(|round| round.shard(unit)) else { return Ok(false) };
    let at = unit_key(key, unit, shard);
    let list = AttributeValue::L(vec![text(&attempt.0)]);
    let write = Write::update(
        at.clone(),
        "SET #attempts = list_append(if_not_exists(#attempts, :none), :list)",
        "attribute_not_exists(#state) AND (attribute_not_exists(#attempts) OR NOT contains(#attempts, :attempt))",
        [(":none", AttributeValue::L(vec![])), (":list", list), (":attempt", text(&attempt.0))],
    );
    if ledger.table.write(write).await? != Written::Done {
        let item = ledger.table.get(&at).await?.unwrap_or_default();
        if state(&item)? != UnitState::Pending {
            return Ok(false);
        }
        if !strings(&item, "attempts")?.contains(&attempt.0) {
            return Err(damaged(format!("unit {unit} of round {} takes no attempt", key.round)));
        }
    }
    let counter = ledger.table.get(&counter_key(key, shard)).await?;
    Ok(counter.is_some_and(|counter| is_set(&counter, "open")))
}

/// One transaction over the unit and its counter. Whatever refuses it, the unit's item tells who ended it.
pub(crate) async fn end(ledger: &DynamoLedger, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
    end.check(key, unit, attempt)?;
    let (state, rows, bytes, (name, content)) = match end {
        UnitEnd::Done(receipt) => {
            let (rows, bytes) = receipt.size();
            (UnitState::Done, rows, bytes, ("receipt", to_json(receipt)?))
        }
        UnitEnd::Failed(error) => (UnitState::Failed, 0, 0, ("error", to_json(error)?)),
    };
    let Some(shard) = opened(ledger, key).await?.and_then(|round| round.shard(unit)) else { return Ok(EndOutcome::Fenced) };
    // Where it is ended already, no object is to be written.
    let at = unit_key(key, unit, shard);
    if let Some(ended) = ended(&ledger.table.get(&at).await?.unwrap_or_default())? {
        return Ok(ended);
    }
    let object = format!("u{unit}-{attempt}-{name}.json");
    let (attribute, content) = ledger.documents.keep(name, content, key, &object).await?;
    let unit_write = Write::update(
        at.clone(),
        &format!("SET #state = :state, #win = :win, #rows = :rows, #bytes = :bytes, #{attribute} = :content"),
        "attribute_not_exists(#state)",
        [
            (":state", text(word(state))),
            (":win", text(&attempt.0)),
            (":rows", number(rows)),
            (":bytes", number(bytes)),
            (":content", text(content)),
        ],
    );
    let counter_write = Write::update(
        counter_key(key, shard),
        "SET #remaining = #remaining - :one, #failed = #failed + :failed, #rows = #rows + :rows",
        "#open = :open",
        [
            (":one", number(1)),
            (":failed", number(u8::from(state == UnitState::Failed))),
            (":rows", number(rows)),
            (":open", AttributeValue::Bool(true)),
        ],
    );
    match ledger.table.transact(vec![counter_write, unit_write]).await? {
        Written::Done => Ok(EndOutcome::Won),
        // Pending still: it was the counter.
        Written::Refused { .. } => Ok(ended(&ledger.table.get(&at).await?.unwrap_or_default())?.unwrap_or(EndOutcome::Fenced)),
    }
}

fn ended(item: &Item) -> Result<Option<EndOutcome>> {
    if state(item)? == UnitState::Pending {
        return Ok(None);
    }
    Ok(Some(EndOutcome::AlreadyEnded { win: optional_string(item, "win")?.map(AttemptId) }))
}

pub(crate) async fn all(ledger: &DynamoLedger, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
    let mut rounds: HashMap<u32, Arc<Opened>> = HashMap::new();
    let prefix = plans_prefix(generation, phase, group);
    for item in ledger.table.query(&super::items::partition(job), &prefix).await? {
        let [round] = after(&item, &prefix)?[..] else { return Err(damaged("a plan in it has no round")) };
        let key = RoundKey { job: job.clone(), generation, phase, group: group.clone(), round };
        if let Some(opened) = opened_from(ledger, &item, &key).await? {
            rounds.insert(round, opened);
        }
    }
    let shards = rounds.values().map(|round| round.counters()).max().unwrap_or(0);
    let prefix = units_prefix(generation, phase, group);
    let queries: Vec<_> = (0..shards)
        .map(|shard| {
            let (partition, prefix) = (shard_partition(job, shard), &prefix);
            async move { ledger.table.query(&partition, prefix).await }
        })
        .collect();
    let found: Vec<Vec<Item>> = stream::iter(queries).buffer_unordered(QUERIES).try_collect().await?;
    let mut begun = HashMap::new();
    for item in found.into_iter().flatten() {
        let [unit, round] = after(&item, &prefix)?[..] else { return Err(damaged("a unit in it has no round")) };
        begun.insert((unit, round), item);
    }
    let mut reads = Vec::new();
    for (round, opened) in &rounds {
        for unit in &opened.units {
            let item = begun.remove(&(*unit, *round)).unwrap_or_default();
            let key = RoundKey { job: job.clone(), generation, phase, group: group.clone(), round: *round };
            reads.push(unit_from(ledger, item, key, *unit, opened.base));
        }
    }
    let mut units: Vec<UnitRecord> = stream::iter(reads).buffer_unordered(READS).try_collect().await?;
    units.sort_by_key(|unit| (unit.unit, unit.key.round));
    Ok(units)
}

async fn unit_from(ledger: &DynamoLedger, item: Item, key: RoundKey, unit: u32, base: i64) -> Result<UnitRecord> {
    let state = state(&item)?;
    let is_ended = state != UnitState::Pending;
    Ok(UnitRecord {
        key,
        unit,
        state,
        base,
        win: optional_string(&item, "win")?.map(AttemptId),
        attempts: strings(&item, "attempts")?.into_iter().map(AttemptId).collect(),
        rows: if is_ended { number_of(&item, "rows")? } else { 0 },
        bytes: if is_ended { number_of(&item, "bytes")? } else { 0 },
        receipt: ledger.documents.text(&item, "receipt").await?.map(|json| from_json(&json)).transpose()?,
        error: ledger.documents.text(&item, "error").await?.map(|json| from_json(&json)).transpose()?,
    })
}

fn word(state: UnitState) -> &'static str {
    match state {
        UnitState::Pending => "PENDING",
        UnitState::Done => "DONE",
        UnitState::Failed => "FAILED",
    }
}

/// Without a state, or without an item, a unit is pending.
fn state(item: &Item) -> Result<UnitState> {
    let Some(found) = optional_string(item, "state")? else { return Ok(UnitState::Pending) };
    let known = [UnitState::Done, UnitState::Failed].into_iter().find(|state| word(*state) == found);
    known.ok_or_else(|| damaged(format!("a unit in it has the state {found}")))
}
