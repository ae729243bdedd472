//! Plans of rounds and their counters. A plan's item says whether its round is open (its counters are there) and
//! whether it is closed; both only ever become true.

use crate::ledger::DynamoLedger;
use crate::ledger::documents::with;
use crate::ledger::items::{self, counter_key, damaged, is_set, number as number_of, plan_key, string, units_from, units_text};
use crate::ledger::table::{Item, Key, Write, Written, number, values_of};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use timelake_engine::identity::json_hash;
use timelake_model::ledger::{CounterRecord, PlanRecord, RoundKey};
use timelake_model::{Error, Result};

/// Rounds whose plans are kept in memory.
const KEPT_ROUNDS: usize = 32;
/// Times a round is opened anew because it was opened or closed meanwhile; each can happen once.
const OPEN_TRIES: u32 = 4;
/// A transaction has room for so many counters, beside the plan.
const MOST_SHARDS: u32 = 99;
/// Counters that are closed side by side.
const REQUESTS: usize = 16;

/// A stored plan.
pub(crate) struct Round {
    pub plan: PlanRecord,
    /// The snapshot its units look at, once it is open.
    pub base: Option<i64>,
    pub closed: bool,
}

/// What never changes of a round that was opened.
pub(crate) struct Opened {
    pub units: Vec<u32>,
    pub shards: u32,
    pub base: i64,
    positions: HashMap<u32, u32>,
}

impl Opened {
    fn new(plan: PlanRecord, base: i64) -> Opened {
        let positions = (0u32..).zip(&plan.units).map(|(position, unit)| (*unit, position)).collect();
        Opened { units: plan.units, shards: plan.shards, base, positions }
    }
    /// The counter a unit belongs to; `None`: it is not of this round.
    pub fn shard(&self, unit: u32) -> Option<u32> {
        self.positions.get(&unit)?.checked_rem(self.shards)
    }
    /// A counter without units is none.
    pub fn counters(&self) -> u32 {
        counters_of(&self.units, self.shards)
    }
}

fn counters_of(units: &[u32], shards: u32) -> u32 {
    u32::try_from(units.len()).map_or(shards, |units| units.min(shards))
}

pub(crate) async fn put_plan(ledger: &DynamoLedger, plan: &PlanRecord) -> Result<PlanRecord> {
    let key = plan_key(&plan.key);
    let units = units_text(&plan.units);
    let object = format!("units-{}.txt", json_hash(&units)?);
    let units = ledger.documents.keep("units", units, &plan.key, &object).await?;
    let mut item = with(key.item(), units);
    item.extend(values_of([
        ("plan_hash", AttributeValue::S(plan.plan_hash.clone())),
        ("shards", number(plan.shards)),
        ("cursor", number(plan.cursor)),
        ("closed", AttributeValue::Bool(false)),
    ]));
    match ledger.table.write(Write::put_if_absent(item)).await? {
        Written::Done => Ok(plan.clone()),
        Written::Refused { .. } => {
            Ok(self::plan(ledger, &plan.key).await?.ok_or_else(|| damaged("a plan just written is not in it"))?.plan)
        }
    }
}

pub(crate) async fn plan(ledger: &DynamoLedger, round: &RoundKey) -> Result<Option<Round>> {
    match ledger.table.get(&plan_key(round)).await? {
        Some(item) => Ok(Some(round_from(ledger, &item, round).await?)),
        None => Ok(None),
    }
}

async fn round_from(ledger: &DynamoLedger, item: &Item, key: &RoundKey) -> Result<Round> {
    let units = ledger.documents.text(item, "units").await?.ok_or_else(|| damaged("a plan in it has no units"))?;
    let plan = PlanRecord {
        key: key.clone(),
        plan_hash: string(item, "plan_hash")?,
        units: units_from(&units)?,
        shards: number_of(item, "shards")?,
        cursor: number_of(item, "cursor")?,
    };
    Ok(Round { plan, base: base(item)?, closed: is_set(item, "closed") })
}

/// A round is open once its plan's item has the base.
fn base(item: &Item) -> Result<Option<i64>> {
    item.contains_key("base").then(|| number_of(item, "base")).transpose()
}

/// The round if it was opened, closed or not.
pub(crate) async fn opened(ledger: &DynamoLedger, key: &RoundKey) -> Result<Option<Arc<Opened>>> {
    if let Some(known) = known(ledger, key) {
        return Ok(Some(known));
    }
    let Some(Round { plan, base: Some(base), .. }) = plan(ledger, key).await? else { return Ok(None) };
    Ok(Some(keep(ledger, key, Opened::new(plan, base))))
}

/// The same from the item of a plan.
pub(crate) async fn opened_from(ledger: &DynamoLedger, item: &Item, key: &RoundKey) -> Result<Option<Arc<Opened>>> {
    let Some(base) = base(item)? else { return Ok(None) };
    if let Some(known) = known(ledger, key) {
        return Ok(Some(known));
    }
    let round = round_from(ledger, item, key).await?;
    Ok(Some(keep(ledger, key, Opened::new(round.plan, base))))
}

fn known(ledger: &DynamoLedger, key: &RoundKey) -> Option<Arc<Opened>> {
    ledger.opened.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn keep(ledger: &DynamoLedger, key: &RoundKey, opened: Opened) -> Arc<Opened> {
    let opened = Arc::new(opened);
    let mut known = ledger.opened.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= KEPT_ROUNDS {
        known.clear();
    }
    known.insert(key.clone(), opened.clone());
    opened
}

pub(crate) async fn open(ledger: &DynamoLedger, plan: &PlanRecord, base: i64) -> Result<()> {
    let key = &plan.key;
    let wrong = |what: &str| Error::internal(format!("round {} of group {} {what}", key.round, key.group));
    for _ in 0..OPEN_TRIES {
        let Some(stored) = self::plan(ledger, key).await? else { return Err(wrong("is opened before its plan is stored")) };
        // Two planners that count units differently would lose some: only the stored plan may be opened.
        let theirs = &stored.plan;
        if (&theirs.plan_hash, &theirs.units, theirs.shards) != (&plan.plan_hash, &plan.units, plan.shards) {
            return Err(wrong("is opened with another plan than the stored one"));
        }
        if !(1..=MOST_SHARDS).contains(&plan.shards) {
            return Err(wrong(&format!("has {} counters", plan.shards)));
        }
        if stored.base.is_some() {
            return Ok(());
        }
        let round = Opened::new(stored.plan, base);
        // A unit counted twice ends once: its counter would never reach 0.
        if round.positions.len() != round.units.len() {
            return Err(wrong("has a plan that names a unit twice"));
        }
        if ledger.table.transact(opening(key, &round, stored.closed)).await? == Written::Done {
            return Ok(());
        }
        // Opened or closed meanwhile: look again.
    }
    Err(damaged(format!("round {} of group {} has counters and is not open", key.round, key.group)))
}

/// The counters and the word that they are there, as long as the plan is as it was read: what closes a round marks the
/// plan first, so no counter is opened after that.
fn opening(key: &RoundKey, round: &Opened, closed: bool) -> Vec<Write> {
    let condition = "#closed = :closed AND attribute_not_exists(#base)";
    let values = [(":base", number(round.base)), (":closed", AttributeValue::Bool(closed))];
    let mut writes = vec![Write::update(plan_key(key), "SET #base = :base", condition, values)];
    for shard in 0..round.counters() {
        let units = round.units.iter().skip(shard as usize).step_by(round.shards as usize).count();
        let mut item = counter_key(key, shard).item();
        item.extend(values_of([
            ("open", AttributeValue::Bool(!closed)),
            ("remaining", number(units)),
            ("failed", number(0)),
            ("rows", number(0)),
        ]));
        writes.push(Write::put_if_absent(item));
    }
    writes
}

pub(crate) async fn advance_cursor(ledger: &DynamoLedger, key: &RoundKey, cursor: u32) -> Result<()> {
    // Without a plan there is no cursor, and one that is further stays.
    let write = Write::update(plan_key(key), "SET #cursor = :cursor", "#cursor < :cursor", [(":cursor", number(cursor))]);
    ledger.table.write(write).await.map(|_| ())
}

pub(crate) async fn close(ledger: &DynamoLedger, key: &RoundKey) -> Result<()> {
    let closed = [(":closed", AttributeValue::Bool(true))];
    let write = Write::update(plan_key(key), "SET #closed = :closed", "attribute_exists(#pk)", closed);
    if ledger.table.write(write).await? != Written::Done {
        return Ok(()); // no such round
    }
    // Counters that come from now on are closed ones. Those that are there are closed one by one, each at once: they are
    // busy, and one transaction over all of them would be cancelled again and again.
    let Some(round) = opened(ledger, key).await? else { return Ok(()) };
    let close = |shard| async move {
        let open = [(":open", AttributeValue::Bool(false))];
        let write = Write::update(counter_key(key, shard), "SET #open = :open", "attribute_exists(#pk)", open);
        ledger.table.write(write).await.map(|_| ())
    };
    let closing: Vec<_> = (0..round.counters()).map(close).collect();
    stream::iter(closing).buffer_unordered(REQUESTS).try_collect().await
}

pub(crate) async fn counters(ledger: &DynamoLedger, key: &RoundKey) -> Result<Vec<CounterRecord>> {
    let Some(round) = opened(ledger, key).await? else { return Ok(vec![]) };
    let keys: Vec<Key> = (0..round.counters()).map(|shard| counter_key(key, shard)).collect();
    let items = ledger.table.get_all(&keys).await?;
    if items.len() != keys.len() {
        return Err(damaged(format!("round {} of group {} lacks a counter", key.round, key.group)));
    }
    let mut counters = items.iter().map(|item| counter_from(item, key)).collect::<Result<Vec<_>>>()?;
    counters.sort_by_key(|counter| counter.shard);
    Ok(counters)
}

fn counter_from(item: &Item, key: &RoundKey) -> Result<CounterRecord> {
    let pk = string(item, "pk")?;
    let shard = pk.rsplit('#').next().and_then(|shard| shard.parse().ok());
    Ok(CounterRecord {
        key: key.clone(),
        shard: shard.ok_or_else(|| damaged(format!("a counter lies in {pk}")))?,
        open: is_set(item, "open"),
        remaining: items::number(item, "remaining")?,
        failed: items::number(item, "failed")?,
        rows: items::number(item, "rows")?,
    })
}
