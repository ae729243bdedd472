//! The items of the ledger's table: their keys, and what their attributes say.
//!
//! | | `pk` | `sk` |
//! |---|---|---|
//! | all jobs | `JOBS` | `J#<job>` |
//! | jobs of a table | `T#<table uuid>` | `J#<job>` |
//! | job | `J#<job>` | `META` |
//! | group | `J#<job>` | `G#<gen>#<group>` |
//! | plan of a round | `J#<job>` | `P#<gen>#<phase>#<group>#<round>` |
//! | counter | `J#<job>#<shard>` | `CTR#<gen>#<phase>#<group>#<round>` |
//! | unit | `J#<job>#<shard>` | `U#<gen>#<phase>#<group>#<unit>#<round>` |
//!
//! A unit lies with its counter, in the partition of its shard: the writes of many workers spread over the shards.

use crate::ledger::table::{Item, Key};
use aws_sdk_dynamodb::types::AttributeValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::str::FromStr;
use timelake_model::ledger::{Phase, RoundKey};
use timelake_model::{Error, GroupName, JobId, Reason, Result};

pub(crate) const ALL_JOBS: &str = "JOBS";
pub(crate) const JOB_PREFIX: &str = "J#";

fn key(pk: impl Into<String>, sk: impl Into<String>) -> Key {
    Key { pk: pk.into(), sk: sk.into() }
}

pub(crate) fn partition(job: &JobId) -> String {
    format!("{JOB_PREFIX}{job}")
}
pub(crate) fn shard_partition(job: &JobId, shard: u32) -> String {
    format!("{JOB_PREFIX}{job}#{shard}")
}
pub(crate) fn table_partition(table_uuid: &str) -> String {
    format!("T#{table_uuid}")
}

pub(crate) fn job_key(job: &JobId) -> Key {
    key(partition(job), "META")
}
/// In the list of all jobs, or of those of a table.
pub(crate) fn listed_key(list: &str, job: &JobId) -> Key {
    key(list, format!("{JOB_PREFIX}{job}"))
}
/// The job that an item of a list names.
pub(crate) fn listed_job(item: &Item) -> Result<JobId> {
    let name = string(item, "sk")?;
    Ok(JobId(name.strip_prefix(JOB_PREFIX).ok_or_else(|| damaged(format!("a list of jobs has the item {name}")))?.to_string()))
}

pub(crate) fn groups_prefix(generation: u32) -> String {
    format!("G#{generation}#")
}
pub(crate) fn group_key(job: &JobId, generation: u32, group: &GroupName) -> Key {
    key(partition(job), format!("{}{group}", groups_prefix(generation)))
}

fn of_group(generation: u32, phase: Phase, group: &GroupName) -> String {
    format!("{generation}#{phase}#{group}#")
}
pub(crate) fn plans_prefix(generation: u32, phase: Phase, group: &GroupName) -> String {
    format!("P#{}", of_group(generation, phase, group))
}
pub(crate) fn units_prefix(generation: u32, phase: Phase, group: &GroupName) -> String {
    format!("U#{}", of_group(generation, phase, group))
}
pub(crate) fn plan_key(round: &RoundKey) -> Key {
    let prefix = plans_prefix(round.generation, round.phase, &round.group);
    key(partition(&round.job), format!("{prefix}{}", round.round))
}
pub(crate) fn counter_key(round: &RoundKey, shard: u32) -> Key {
    let of_group = of_group(round.generation, round.phase, &round.group);
    key(shard_partition(&round.job, shard), format!("CTR#{of_group}{}", round.round))
}
/// The round of a counter, by the key of its item; `None`: the item is no counter. For whoever sees the table's stream.
pub fn round_of_counter(pk: &str, sk: &str) -> Option<RoundKey> {
    let (job, _shard) = pk.strip_prefix(JOB_PREFIX)?.rsplit_once('#')?;
    let [generation, phase, group, round] = sk.strip_prefix("CTR#")?.split('#').collect::<Vec<_>>().try_into().ok()?;
    Some(RoundKey {
        job: JobId(job.into()),
        generation: generation.parse().ok()?,
        phase: [Phase::Land, Phase::Write, Phase::Refresh].into_iter().find(|p| p.to_string() == phase)?,
        group: GroupName(group.into()),
        round: round.parse().ok()?,
    })
}
pub(crate) fn unit_key(round: &RoundKey, unit: u32, shard: u32) -> Key {
    let prefix = units_prefix(round.generation, round.phase, &round.group);
    key(shard_partition(&round.job, shard), format!("{prefix}{unit}#{}", round.round))
}

/// The numbers at the end of a sort key: the round of a plan, unit and round of a unit.
pub(crate) fn after(item: &Item, prefix: &str) -> Result<Vec<u32>> {
    let sk = string(item, "sk")?;
    let numbers = sk.strip_prefix(prefix).map(|rest| rest.split('#').map(str::parse).collect::<Result<_, _>>());
    match numbers {
        Some(Ok(numbers)) => Ok(numbers),
        _ => Err(damaged(format!("there is an item {sk}"))),
    }
}

pub(crate) fn string(item: &Item, name: &str) -> Result<String> {
    optional_string(item, name)?.ok_or_else(|| lacks(name))
}
pub(crate) fn optional_string(item: &Item, name: &str) -> Result<Option<String>> {
    match item.get(name) {
        None => Ok(None),
        Some(AttributeValue::S(text)) => Ok(Some(text.clone())),
        Some(_) => Err(lacks(name)),
    }
}
pub(crate) fn number<T: FromStr>(item: &Item, name: &str) -> Result<T> {
    let text = item.get(name).and_then(|value| value.as_n().ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| lacks(name))
}
/// What is not set is false.
pub(crate) fn is_set(item: &Item, name: &str) -> bool {
    matches!(item.get(name), Some(AttributeValue::Bool(true)))
}
pub(crate) fn strings(item: &Item, name: &str) -> Result<Vec<String>> {
    let Some(value) = item.get(name) else { return Ok(vec![]) };
    let list = value.as_l().map_err(|_| lacks(name))?;
    list.iter().map(|value| value.as_s().cloned().map_err(|_| lacks(name))).collect()
}

pub(crate) fn record<T: DeserializeOwned>(item: &Item) -> Result<T> {
    from_json(&string(item, "record")?)
}
pub(crate) fn from_json<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| damaged(format!("a record in it cannot be read: {e}")))
}
pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("cannot serialise: {e}")))
}

fn lacks(name: &str) -> Error {
    damaged(format!("an item in it lacks a right {name}"))
}
pub(crate) fn damaged(what: impl Display) -> Error {
    Error::corrupt(Reason::LedgerDamaged, format!("the ledger is damaged: {what}"))
        .hint("nothing but timelake may write to its table; restore it to a point in time before")
}

/// Units in their order, ascending runs as `first-last`: a plan of 20,000 units is a few bytes, and a part of it
/// seldom more than some kilobytes.
pub(crate) fn units_text(units: &[u32]) -> String {
    let runs = units.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let text = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    });
    text.collect::<Vec<_>>().join(",")
}
/// More than any plan has.
const MOST_UNITS: u32 = 10_000_000;
pub(crate) fn units_from(text: &str) -> Result<Vec<u32>> {
    let wrong = || damaged(format!("a plan has the units {}", text.chars().take(40).collect::<String>()));
    let mut units = Vec::new();
    for run in text.split(',').filter(|run| !run.is_empty()) {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last) = (first.parse::<u32>().map_err(|_| wrong())?, last.parse::<u32>().map_err(|_| wrong())?);
        if last < first || last - first >= MOST_UNITS {
            return Err(wrong());
        }
        units.extend(first..=last);
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_counter_tells_its_round() {
        for phase in [Phase::Land, Phase::Write, Phase::Refresh] {
            let (job, group) = (JobId("iot-sensor-0123456789ab".into()), GroupName("2024-05".into()));
            let round = RoundKey { job, generation: 3, phase, group, round: 12 };
            let Key { pk, sk } = counter_key(&round, 15);
            assert_eq!(round_of_counter(&pk, &sk), Some(round.clone()));
            let Key { pk, sk } = unit_key(&round, 7, 15);
            assert_eq!(round_of_counter(&pk, &sk), None);
            let Key { pk, sk } = plan_key(&round);
            assert_eq!(round_of_counter(&pk, &sk), None);
        }
    }

    #[test]
    fn units_keep_their_order() {
        for (units, text) in [
            (vec![], ""),
            (vec![7], "7"),
            ((0..20_000).collect(), "0-19999"),
            (vec![3, 5, 3, 4, 2, 1, u32::MAX - 1, u32::MAX, 0], "3,5,3-4,2,1,4294967294-4294967295,0"),
        ] {
            assert_eq!(units_text(&units), text);
            assert_eq!(units_from(text).unwrap(), units);
        }
        for wrong in ["a", "1-", "-", "1-b", "1;2", "3-2", "0-4294967295"] {
            assert!(units_from(wrong).is_err(), "{wrong}");
        }
    }
}
