//! Opens a generation and its rounds: the branches and the lock in the table, then counters, units and
//! messages in the ledger. Every step is written only if absent, so two planners, or one that crashed and
//! came again, end at the same state.

use crate::boundary::{Boundary, reached};
use crate::evolution::same_table;
use crate::inventory::table_ident;
use crate::locks::{Lock, overlapping_lock};
use crate::ports::CommitOutcome;
use crate::store::{RoundBase, StoredPlan, store_base};
use crate::tries::{Tries, change_group, settle_job};
use crate::{Engine, cancel};
use std::collections::{BTreeMap, BTreeSet};
use timelake_model::ids::{branch_name, lock_property};
use timelake_model::ledger::{
    GroupRecord, JobRecord, MAX_REDERIVED, Phase, PlanRecord, RoundKey, State, UnitMessage, UnitRecord, UnitState,
};
use timelake_model::{Error, GroupName, JobId, Reason, Result};

/// Messages sent between two moves of the cursor.
pub(crate) const SEND_BATCH: usize = 100;
/// Units of a job that are announced and not ended, when the request says nothing: so that its messages do not grow old in
/// the queue, and other jobs' come through.
const DEFAULT_MAX_IN_FLIGHT: u32 = 10_000;

/// Opens the generation of a stored plan.
pub async fn open_generation(engine: &Engine, job: &JobRecord, stored: &StoredPlan) -> Result<()> {
    let plan = &stored.plan;
    let mut groups = Vec::new();
    for group in &plan.groups {
        let record = GroupRecord::new(job.job.clone(), job.generation, group.name.clone(), plan.base_snapshot);
        groups.push(engine.jobs.put_group(&record).await?);
    }
    reached(Boundary::GroupsStored);
    // After the groups are written: who cancelled before saw none of them and left the word with the job.
    let now = engine.jobs.job(&job.job).await?;
    if now.is_none_or(|j| j.generation != job.generation || j.state == State::Cancelled) {
        for group in &groups {
            cancel::stand_down(engine, job, group, State::Cancelled, None).await?;
        }
        return settle_job(engine, &job.job, job.generation).await;
    }
    let unopened: Vec<&GroupRecord> = groups.iter().filter(|g| g.state == State::Planning && !g.cancel_requested).collect();
    if !unopened.is_empty() {
        open_branches(engine, job, stored, &unopened).await?;
    }
    for group in &groups {
        let group = change_group(engine, group, |g| {
            let opens = g.state == State::Planning && !g.cancel_requested;
            if opens {
                g.state = State::Writing;
                g.branch_snapshot = Some(plan.base_snapshot);
            }
            opens
        })
        .await?;
        reached(Boundary::GroupWriting);
        if group.cancel_requested {
            // Cancelled while the branch was being made: it may have come after cancel looked for it.
            cancel::sweep(engine, job).await?;
            continue;
        }
        if group.state == State::Writing && group.round == 0 {
            let units: Vec<u32> = plan.group(&group.group).map(|g| g.units.iter().map(|u| u.index).collect()).unwrap_or_default();
            open_round(engine, stored, &group, 0, units, plan.base_snapshot).await?;
        }
    }
    settle_job(engine, &job.job, job.generation).await?;
    Ok(())
}

/// One commit: a branch per group at the plan's base snapshot, without a new snapshot, and the lock.
async fn open_branches(engine: &Engine, job: &JobRecord, stored: &StoredPlan, groups: &[&GroupRecord]) -> Result<()> {
    let plan = &stored.plan;
    let ident = table_ident(&job.table)?;
    let own = lock_property(&job.job);
    let lock =
        serde_json::to_string(&Lock { generation: job.generation, window: plan.window }).map_err(|e| Error::internal(e.to_string()))?;
    let mut tries = Tries::new(engine.clock.as_ref(), "opening the staging branch");
    loop {
        let table = engine.catalog.load(&ident).await?;
        let metadata = table.metadata();
        same_table(&table, plan)?;
        if let Some((other, lock)) = overlapping_lock(metadata.properties(), &own, &plan.window).filter(|_| !job.request.run.allow_overlap)
        {
            let theirs = engine.jobs.job(&JobId(other.clone())).await?;
            let finish = if theirs.is_some_and(|j| j.state == State::Staged) { "publish" } else { "resume" };
            return Err(Error::conflict(
                Reason::WindowLocked,
                format!("job {other} has not published its window {} yet, which overlaps {}", lock.window, plan.window),
            )
            .hint(format!("finish it (timelake backfill {finish} {other}), give it up (timelake backfill cancel {other}), or load beside it: --allow-overlap"))
            .at(|p| p.job = Some(other)));
        }
        let refs = timelake_table::refs(metadata)?;
        let mut missing = Vec::new();
        for group in groups {
            let branch = branch_name(&job.job, job.generation, &group.group);
            match refs.get(&branch) {
                None => missing.push(branch),
                Some(r) if r.snapshot_id == plan.base_snapshot => {}
                Some(r) => {
                    return Err(Error::conflict(
                        Reason::BranchMoved,
                        format!("branch {branch} is at snapshot {}, not where this job would put it", r.snapshot_id),
                    )
                    .hint("somebody else wrote to it; cancel the job and run its command again"));
                }
            }
        }
        if missing.is_empty() && metadata.properties().get(&own) == Some(&lock) {
            return Ok(());
        }
        let commit = timelake_table::open_branches(&table, &missing, plan.base_snapshot, (own.clone(), lock.clone()))?;
        match engine.catalog.commit(&table, commit.requirements, commit.updates).await? {
            CommitOutcome::Done(_) => {
                reached(Boundary::BranchesCommitted);
                return Ok(());
            }
            CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
        }
    }
}

pub fn table_replaced(name: &str) -> Error {
    Error::conflict(Reason::TableChanged, format!("{name} was dropped or replaced by another table of that name"))
        .hint("cancel the job; its rows were for the old table")
        .at(|p| p.table = Some(name.into()))
}

/// Opens one round: plan record, units and counters, then the messages.
async fn open_round(engine: &Engine, stored: &StoredPlan, group: &GroupRecord, round: u32, units: Vec<u32>, base: i64) -> Result<()> {
    let key = round_key(group, round);
    let record =
        PlanRecord { key: key.clone(), plan_hash: stored.hash.clone(), shards: PlanRecord::shards_for(units.len()), units, cursor: 0 };
    let record = engine.jobs.put_plan(&record).await?;
    reached(Boundary::RoundStored);
    if record.plan_hash != stored.hash {
        return Err(Error::corrupt(Reason::LedgerDamaged, format!("the stored plan of job {} is not the one its ledger knows", group.job))
            .hint(format!("give the job up (timelake backfill cancel {}), then run its command again: it starts over", group.job))
            .at(|p| p.job = Some(group.job.to_string())));
    }
    engine.jobs.open_round(&record, base).await?;
    reached(Boundary::UnitsStored);
    release(engine, &key).await
}

/// Sends messages of the round that were never sent, so many that no more units are announced and not ended than the job
/// allows. The rest is sent as units end.
pub async fn release(engine: &Engine, key: &RoundKey) -> Result<()> {
    let Some(record) = engine.jobs.plan(key).await? else { return Ok(()) };
    let (mut sent, all) = (record.cursor as usize, record.units.len());
    if sent >= all {
        return Ok(());
    }
    let Some(job) = engine.jobs.job(&key.job).await? else { return Ok(()) };
    let remaining: usize = engine.jobs.counters(key).await?.iter().map(|c| c.remaining as usize).sum();
    let most = job.request.run.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT).max(1) as usize;
    let end = (all.saturating_sub(remaining) + most).min(all);
    for batch in record.units.get(sent..end).unwrap_or_default().chunks(SEND_BATCH) {
        let messages: Vec<UnitMessage> = batch.iter().map(|unit| UnitMessage { key: key.clone(), unit: *unit }).collect();
        engine.queue.send(&messages).await?;
        reached(Boundary::MessagesSent);
        sent += batch.len();
        engine.jobs.advance_cursor(key, sent as u32).await?;
    }
    Ok(())
}

pub fn round_key(group: &GroupRecord, round: u32) -> RoundKey {
    RoundKey { job: group.job.clone(), generation: group.generation, phase: Phase::Write, group: group.group.clone(), round }
}

/// Of each unit the record of its highest round, up to the group's: a round that is still being opened does not count.
pub fn latest(units: Vec<UnitRecord>, round: u32) -> Vec<UnitRecord> {
    let mut out: Vec<UnitRecord> = Vec::new();
    for unit in units.into_iter().filter(|u| u.key.round <= round) {
        match out.last_mut() {
            Some(last) if last.unit == unit.unit => *last = unit,
            _ => out.push(unit),
        }
    }
    out
}

pub async fn latest_units(engine: &Engine, group: &GroupRecord) -> Result<Vec<UnitRecord>> {
    Ok(latest(engine.jobs.units(&group.job, group.generation, Phase::Write, &group.group).await?, group.round))
}

/// Why a further round is opened.
pub enum Again {
    /// `main` has rows that some units did not see: they are derived again from this base.
    MainMoved(RoundBase),
    /// The user resumes: units that failed are tried again as they were.
    Resumed,
}

/// Opens the next round for some units. Rounds opened because `main` moved are bounded.
pub async fn next_round(engine: &Engine, stored: &StoredPlan, group: &GroupRecord, units: Vec<u32>, why: Again) -> Result<GroupRecord> {
    let round = group.round + 1;
    let moved = matches!(why, Again::MainMoved(_));
    if moved && group.rederived >= MAX_REDERIVED {
        return Err(Error::conflict(
            Reason::RederivedTooOften,
            format!("rows with keys of this job came to main or left it {MAX_REDERIVED} times while it was published"),
        )
        .hint("pause the writer of this time range and resume the job")
        .at(|p| p.limit = Some(u64::from(MAX_REDERIVED))));
    }
    let base = match why {
        Again::MainMoved(base) => base,
        Again::Resumed => {
            // The newest base that any of the units had: an older one would miss rows already looked at.
            let mut base = crate::store::load_base(engine, stored, &group.group, 0).await?;
            if group.round > 0 {
                base = crate::store::load_base(engine, stored, &group.group, group.round).await?;
            }
            base
        }
    };
    // First everything the round needs, each written only if absent, then the group's step to it: a crash in
    // between leaves the group in the round before, and this is done again from what is stored.
    let base = store_base(engine, stored, &group.group, round, base).await?;
    reached(Boundary::BaseStored);
    let next = GroupRecord { round, ..group.clone() };
    open_round(engine, stored, &next, round, units, base.snapshot).await?;
    reached(Boundary::NextRoundOpened);
    engine.jobs.close_round(&round_key(group, group.round)).await?;
    reached(Boundary::RoundClosed);
    change_group(engine, group, |g| {
        if g.round >= round || g.cancel_requested {
            return false;
        }
        g.round = round;
        g.rederived = if moved { g.rederived + 1 } else { 0 };
        g.state = State::Writing;
        g.error = None;
        if moved {
            g.checked_snapshot = Some(base.snapshot);
        }
        true
    })
    .await
    .inspect(|_| reached(Boundary::GroupInNextRound))
}

/// Sends the messages of units that are PENDING again; the queue drops those that are there already.
pub async fn resend_pending(engine: &Engine, group: &GroupRecord) -> Result<u64> {
    let pending: Vec<UnitRecord> = latest_units(engine, group).await?.into_iter().filter(|u| u.state == UnitState::Pending).collect();
    let messages: Vec<UnitMessage> = pending.iter().map(|u| UnitMessage { key: u.key.clone(), unit: u.unit }).collect();
    for batch in messages.chunks(SEND_BATCH) {
        engine.queue.send(batch).await?;
    }
    Ok(messages.len() as u64)
}

/// Sends the messages of units that are PENDING again, as far as they were ever sent, and further ones if there is room.
pub async fn resend_sent(engine: &Engine, group: &GroupRecord) -> Result<()> {
    let mut rounds: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for unit in latest_units(engine, group).await?.into_iter().filter(|u| u.state == UnitState::Pending) {
        rounds.entry(unit.key.round).or_default().insert(unit.unit);
    }
    for (round, pending) in rounds {
        let key = round_key(group, round);
        let Some(record) = engine.jobs.plan(&key).await? else { continue };
        let sent = record.units.iter().take(record.cursor as usize).filter(|unit| pending.contains(unit));
        let messages: Vec<UnitMessage> = sent.map(|unit| UnitMessage { key: key.clone(), unit: *unit }).collect();
        for batch in messages.chunks(SEND_BATCH) {
            engine.queue.send(batch).await?;
        }
        release(engine, &key).await?;
    }
    Ok(())
}

/// The group's plan, or a clear word that it is gone.
pub fn planned<'a>(stored: &'a StoredPlan, group: &GroupName) -> Result<&'a timelake_model::plan::PublishGroup> {
    stored.plan.group(group).ok_or_else(|| Error::internal(format!("the plan has no group {group}")))
}
