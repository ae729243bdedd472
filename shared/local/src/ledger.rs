//! The ledger in SQLite: jobs, groups, plans, counters and units in one file, `ledger.db`, which also holds the
//! queue (`queue.rs`). Takes records, gives back what is stored; decides nothing.
//!
//! Each method is one transaction, so a crash at any point leaves either all of it or nothing. What must never
//! happen: a unit that ends twice, a counter that moves without its unit, a record that is written over when it
//! should only be written if absent.

use crate::schema::{BUSY_TIMEOUT, Database, Fault, from_json, to_json};
use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::ports::{Clock, EndOutcome, JobStore, UnitEnd};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitRecord, UnitState};
use timelake_model::{AttemptId, Error, GroupName, JobId, Reason, Receipt, Result, UnitReceipt};

/// Jobs and the unit queue of an embedded lake. Any number of processes may have the same file open.
pub struct SqliteLedger {
    pub(crate) database: Database,
}

impl SqliteLedger {
    /// Opens `path`, or creates it when absent (its folder must exist).
    ///
    /// Errors: `ledger_too_new`, `ledger_damaged` (also for an SQLite file that is no ledger), `ledger_busy`,
    /// `storage_unavailable`, `access_denied`, `disk_full`.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<SqliteLedger> {
        SqliteLedger::open_waiting(path, clock, BUSY_TIMEOUT)
    }

    /// [`SqliteLedger::open`] in a lake where `jobs` have a folder: it must know them.
    pub fn open_knowing(path: &Path, clock: Arc<dyn Clock>, jobs: &[String]) -> Result<SqliteLedger> {
        Ok(SqliteLedger { database: Database::open(path, clock, BUSY_TIMEOUT, jobs)? })
    }

    pub(crate) fn open_waiting(path: &Path, clock: Arc<dyn Clock>, busy_timeout: Duration) -> Result<SqliteLedger> {
        Ok(SqliteLedger { database: Database::open(path, clock, busy_timeout, &[])? })
    }
}

#[async_trait]
impl JobStore for SqliteLedger {
    async fn put_job(&self, job: &JobRecord) -> Result<JobRecord> {
        self.database
            .write(|t| {
                t.prepare_cached(
                    "INSERT INTO jobs (job, generation, table_uuid, created_us, record) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                )?
                .execute(params![job.job.0, job.generation, job.table_uuid, job.created.0, to_json(job)?])?;
                job_of(t, &job.job)?.ok_or_else(|| vanished("job"))
            })
            .await
    }

    async fn job(&self, job: &JobId) -> Result<Option<JobRecord>> {
        self.database.read(|t| job_of(t, job)).await
    }

    async fn jobs(&self, table_uuid: Option<&str>) -> Result<Vec<JobRecord>> {
        self.database
            .read(|t| {
                t.prepare_cached("SELECT record FROM jobs WHERE ?1 IS NULL OR table_uuid = ?1 ORDER BY created_us DESC, job")?
                    .query_map([table_uuid], text)?
                    .map(|record| from_json(&record?))
                    .collect()
            })
            .await
    }

    async fn update_job(&self, expected_generation: u32, job: &JobRecord) -> Result<Option<JobRecord>> {
        self.database
            .write(|t| {
                let unchanged =
                    job_of(t, &job.job)?.is_some_and(|stored| stored.generation == expected_generation && stored.version == job.version);
                if !unchanged {
                    return Ok(None);
                }
                let next = JobRecord { version: job.version + 1, ..job.clone() };
                t.prepare_cached("UPDATE jobs SET generation = ?, table_uuid = ?, created_us = ?, record = ? WHERE job = ?")?
                    .execute(params![next.generation, next.table_uuid, next.created.0, to_json(&next)?, next.job.0])?;
                Ok(Some(next))
            })
            .await
    }

    async fn put_group(&self, group: &GroupRecord) -> Result<GroupRecord> {
        self.database
            .write(|t| {
                t.prepare_cached(
                    "INSERT INTO groups (job, generation, group_name, version, record) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                )?
                .execute(params![group.job.0, group.generation, group.group.0, group.version, to_json(group)?])?;
                group_of(t, &group.job, group.generation, &group.group)?.ok_or_else(|| vanished("group"))
            })
            .await
    }

    async fn group(&self, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>> {
        self.database.read(|t| group_of(t, job, generation, group)).await
    }

    async fn groups(&self, job: &JobId, generation: u32) -> Result<Vec<GroupRecord>> {
        self.database
            .read(|t| {
                t.prepare_cached("SELECT record FROM groups WHERE job = ? AND generation = ? ORDER BY group_name")?
                    .query_map(params![job.0, generation], text)?
                    .map(|record| from_json(&record?))
                    .collect()
            })
            .await
    }

    async fn update_group(&self, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        let stored = GroupRecord { version: group.version + 1, ..group.clone() };
        self.database
            .write(|t| {
                let changed = t
                    .prepare_cached(
                        "UPDATE groups SET version = ?, record = ? WHERE job = ? AND generation = ? AND group_name = ? AND version = ?",
                    )?
                    .execute(params![stored.version, to_json(&stored)?, group.job.0, group.generation, group.group.0, group.version])?;
                Ok((changed == 1).then(|| stored.clone()))
            })
            .await
    }

    async fn put_plan(&self, plan: &PlanRecord) -> Result<PlanRecord> {
        let key = &plan.key;
        self.database
            .write(|t| {
                t.prepare_cached(
                    "INSERT INTO plans (job, generation, phase, group_name, round, plan_hash, units, shards, cursor, closed)
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, FALSE) ON CONFLICT DO NOTHING",
                )?
                .execute(params![
                    key.job.0,
                    key.generation,
                    key.phase.to_string(),
                    key.group.0,
                    key.round,
                    plan.plan_hash,
                    to_json(&plan.units)?,
                    plan.shards,
                    plan.cursor
                ])?;
                plan_of(t, key)?.map(|(stored, _)| stored).ok_or_else(|| vanished("plan"))
            })
            .await
    }

    async fn plan(&self, key: &RoundKey) -> Result<Option<PlanRecord>> {
        self.database.read(|t| Ok(plan_of(t, key)?.map(|(stored, _)| stored))).await
    }

    async fn open_round(&self, plan: &PlanRecord, base: i64) -> Result<()> {
        self.database.write(|t| open_round(t, plan, base)).await
    }

    async fn advance_cursor(&self, key: &RoundKey, cursor: u32) -> Result<()> {
        self.database
            .write(|t| {
                t.prepare_cached(
                    "UPDATE plans SET cursor = max(cursor, ?) WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ?",
                )?
                .execute(params![cursor, key.job.0, key.generation, key.phase.to_string(), key.group.0, key.round])?;
                Ok(())
            })
            .await
    }

    async fn close_round(&self, key: &RoundKey) -> Result<()> {
        self.database
            .write(|t| {
                // The plan too: a planner that is late must not open counters in a round that is closed.
                for table in ["plans SET closed = TRUE", "counters SET open = FALSE"] {
                    t.prepare_cached(&format!(
                        "UPDATE {table} WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ?"
                    ))?
                    .execute(params![key.job.0, key.generation, key.phase.to_string(), key.group.0, key.round])?;
                }
                Ok(())
            })
            .await
    }

    async fn begin_attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool> {
        self.database.write(|t| begin_attempt(t, key, unit, attempt)).await
    }

    async fn end_unit(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<EndOutcome> {
        let ending = Ending::of(key, unit, attempt, end)?;
        self.database.write(|t| end_unit(t, key, unit, attempt, &ending)).await
    }

    async fn counters(&self, key: &RoundKey) -> Result<Vec<CounterRecord>> {
        self.database
            .read(|t| {
                let mut query = t.prepare_cached(
                    "SELECT shard, open, remaining, failed, rows FROM counters
                     WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? ORDER BY shard",
                )?;
                let rows = query.query_map(params![key.job.0, key.generation, key.phase.to_string(), key.group.0, key.round], |row| {
                    Ok(CounterRecord {
                        key: key.clone(),
                        shard: row.get(0)?,
                        open: row.get(1)?,
                        remaining: row.get(2)?,
                        failed: row.get(3)?,
                        rows: row.get(4)?,
                    })
                })?;
                Ok(rows.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }

    async fn units(&self, job: &JobId, generation: u32, phase: Phase, group: &GroupName) -> Result<Vec<UnitRecord>> {
        self.database
            .read(|t| {
                let mut query = t.prepare_cached(
                    "SELECT unit, round, state, base, win, attempts, rows, bytes, receipt, error FROM units
                     WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? ORDER BY unit, round",
                )?;
                let mut rows = query.query(params![job.0, generation, phase.to_string(), group.0])?;
                let mut units = Vec::new();
                while let Some(row) = rows.next()? {
                    let key = RoundKey { job: job.clone(), generation, phase, group: group.clone(), round: row.get("round")? };
                    units.push(unit_from(row, key)?);
                }
                Ok(units)
            })
            .await
    }
}

fn text(row: &Row) -> rusqlite::Result<String> {
    row.get(0)
}

fn vanished(what: &str) -> Fault {
    Fault::Ours(Error::internal(format!("the {what} just written is not in the ledger")))
}

fn job_of(t: &Transaction, job: &JobId) -> Result<Option<JobRecord>, Fault> {
    let record = t.prepare_cached("SELECT record FROM jobs WHERE job = ?")?.query_row([&job.0], text).optional()?;
    record.map(|record| from_json(&record)).transpose()
}

fn group_of(t: &Transaction, job: &JobId, generation: u32, group: &GroupName) -> Result<Option<GroupRecord>, Fault> {
    let record = t
        .prepare_cached("SELECT record FROM groups WHERE job = ? AND generation = ? AND group_name = ?")?
        .query_row(params![job.0, generation, group.0], text)
        .optional()?;
    record.map(|record| from_json(&record)).transpose()
}

/// The stored plan, and whether its round is closed.
fn plan_of(t: &Transaction, key: &RoundKey) -> Result<Option<(PlanRecord, bool)>, Fault> {
    let row = t
        .prepare_cached(
            "SELECT plan_hash, units, shards, cursor, closed FROM plans
             WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ?",
        )?
        .query_row(params![key.job.0, key.generation, key.phase.to_string(), key.group.0, key.round], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((plan_hash, units, shards, cursor, closed)) = row else { return Ok(None) };
    Ok(Some((PlanRecord { key: key.clone(), plan_hash, units: from_json(&units)?, shards, cursor }, closed)))
}

fn open_round(t: &Transaction, plan: &PlanRecord, base: i64) -> Result<(), Fault> {
    let key = &plan.key;
    let Some((stored, closed)) = plan_of(t, key)? else {
        return Err(Error::internal(format!("round {} of group {} is opened before its plan is stored", key.round, key.group)).into());
    };
    // Two planners that count units differently would lose some: only the stored plan may be opened.
    if (&stored.plan_hash, &stored.units, stored.shards) != (&plan.plan_hash, &plan.units, plan.shards) || plan.shards == 0 {
        return Err(
            Error::internal(format!("round {} of group {} is opened with another plan than the stored one", key.round, key.group)).into()
        );
    }
    // A unit counted twice ends once: its counter would never reach 0.
    if plan.units.iter().collect::<BTreeSet<_>>().len() != plan.units.len() {
        return Err(Error::internal(format!("the plan of round {} of group {} names a unit twice", key.round, key.group)).into());
    }
    let phase = key.phase.to_string();
    let mut insert_counter = t.prepare_cached(
        "INSERT INTO counters (job, generation, phase, group_name, round, shard, open, remaining, failed, rows)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0) ON CONFLICT DO NOTHING",
    )?;
    let mut insert_unit = t.prepare_cached(
        "INSERT INTO units (job, generation, phase, group_name, round, unit, shard, state, base, attempts, rows, bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, 'PENDING', ?, '[]', 0, 0) ON CONFLICT DO NOTHING",
    )?;
    let mut totals = vec![0u32; plan.shards as usize];
    for (position, _) in plan.units.iter().enumerate() {
        totals[position % plan.shards as usize] += 1;
    }
    for (shard, total) in totals.iter().enumerate().filter(|(_, total)| **total > 0) {
        insert_counter.execute(params![key.job.0, key.generation, phase, key.group.0, key.round, shard as u32, !closed, total])?;
    }
    for (position, unit) in plan.units.iter().enumerate() {
        let shard = position as u32 % plan.shards;
        insert_unit.execute(params![key.job.0, key.generation, phase, key.group.0, key.round, unit, shard, base])?;
    }
    Ok(())
}

fn begin_attempt(t: &Transaction, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<bool, Fault> {
    let phase = key.phase.to_string();
    let attempts = t
        .prepare_cached(
            "SELECT attempts FROM units JOIN counters USING (job, generation, phase, group_name, round, shard)
             WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? AND unit = ? AND state = 'PENDING' AND open",
        )?
        .query_row(params![key.job.0, key.generation, phase, key.group.0, key.round, unit], text)
        .optional()?;
    let Some(attempts) = attempts else { return Ok(false) };
    let mut attempts: Vec<AttemptId> = from_json(&attempts)?;
    if !attempts.contains(attempt) {
        attempts.push(attempt.clone());
        t.prepare_cached(
            "UPDATE units SET attempts = ? WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? AND unit = ?",
        )?
        .execute(params![to_json(&attempts)?, key.job.0, key.generation, phase, key.group.0, key.round, unit])?;
    }
    Ok(true)
}

/// The end of a unit as its columns.
struct Ending {
    state: UnitState,
    rows: u64,
    bytes: u64,
    receipt: Option<String>,
    error: Option<String>,
}

impl Ending {
    fn of(key: &RoundKey, unit: u32, attempt: &AttemptId, end: &UnitEnd) -> Result<Ending> {
        end.check(key, unit, attempt)?;
        match end {
            UnitEnd::Done(receipt) => Ok(Ending {
                state: UnitState::Done,
                rows: receipt.size().0,
                bytes: receipt.size().1,
                receipt: Some(to_json(receipt)?),
                error: None,
            }),
            UnitEnd::Failed(error) => {
                Ok(Ending { state: UnitState::Failed, rows: 0, bytes: 0, receipt: None, error: Some(to_json(error)?) })
            }
        }
    }
}

fn end_unit(t: &Transaction, key: &RoundKey, unit: u32, attempt: &AttemptId, ending: &Ending) -> Result<EndOutcome, Fault> {
    let phase = key.phase.to_string();
    let stored: Option<(u32, String, Option<String>)> = t
        .prepare_cached(
            "SELECT shard, state, win FROM units
             WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? AND unit = ?",
        )?
        .query_row(params![key.job.0, key.generation, phase, key.group.0, key.round, unit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((shard, state, win)) = stored else { return Ok(EndOutcome::Fenced) };
    if unit_state(&state)? != UnitState::Pending {
        return Ok(EndOutcome::AlreadyEnded { win: win.map(AttemptId) });
    }
    let failed = ending.state == UnitState::Failed;
    let counted = t
        .prepare_cached(
            "UPDATE counters SET remaining = remaining - 1, failed = failed + ?, rows = rows + ?
             WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? AND shard = ? AND open",
        )?
        .execute(params![failed, ending.rows, key.job.0, key.generation, phase, key.group.0, key.round, shard])?;
    if counted == 0 {
        return Ok(EndOutcome::Fenced);
    }
    let ended = t
        .prepare_cached(
            "UPDATE units SET state = ?, win = ?, rows = ?, bytes = ?, receipt = ?, error = ?
             WHERE job = ? AND generation = ? AND phase = ? AND group_name = ? AND round = ? AND unit = ? AND state = 'PENDING'",
        )?
        .execute(params![
            state_word(ending.state),
            attempt.0,
            ending.rows,
            ending.bytes,
            ending.receipt,
            ending.error,
            key.job.0,
            key.generation,
            phase,
            key.group.0,
            key.round,
            unit
        ])?;
    // An error rolls the counter back as well.
    if ended == 1 { Ok(EndOutcome::Won) } else { Err(vanished("pending unit")) }
}

fn state_word(state: UnitState) -> &'static str {
    match state {
        UnitState::Pending => "PENDING",
        UnitState::Done => "DONE",
        UnitState::Failed => "FAILED",
    }
}

fn unit_state(word: &str) -> Result<UnitState, Fault> {
    [UnitState::Pending, UnitState::Done, UnitState::Failed]
        .into_iter()
        .find(|state| state_word(*state) == word)
        .ok_or_else(|| Fault::Ours(Error::corrupt(Reason::LedgerDamaged, format!("a unit in it has the state {word}"))))
}

fn unit_from(row: &Row, key: RoundKey) -> Result<UnitRecord, Fault> {
    let text_of = |column: &str| row.get::<_, Option<String>>(column);
    Ok(UnitRecord {
        key,
        unit: row.get("unit")?,
        state: unit_state(&row.get::<_, String>("state")?)?,
        base: row.get("base")?,
        win: text_of("win")?.map(AttemptId),
        attempts: from_json(&row.get::<_, String>("attempts")?)?,
        rows: row.get("rows")?,
        bytes: row.get("bytes")?,
        receipt: text_of("receipt")?.map(|json| receipt_from(&json)).transpose()?,
        error: text_of("error")?.map(|json| from_json(&json)).transpose()?,
    })
}

/// Ledgers of the first version had only one kind of receipt, and did not name it.
fn receipt_from(json: &str) -> Result<Receipt, Fault> {
    from_json(json).or_else(|named| from_json::<UnitReceipt>(json).map(Receipt::Write).map_err(|_| named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_of_the_first_version_still_load() {
        let old = r#"{"unit":3,"round":0,"attempt":"a1","base_snapshot":7,"counts":{"rows_read":2,"rows_written":2},"files":[],"manifests":[],
            "taken":[],"left":[],"errors":[],"warnings":[],"time":null,"column_sums":{},"key_hash":18446744073709551615}"#;
        let Ok(Receipt::Write(receipt)) = receipt_from(old) else { panic!("not read as a receipt of a written unit") };
        assert_eq!((receipt.unit, receipt.key_hash, receipt.bad_rows), (3, u64::MAX, 0));
        let new = to_json(&Receipt::Write(receipt.clone())).unwrap_or_default();
        assert!(receipt_from(&new).is_ok_and(|again| again == Receipt::Write(receipt)));
        assert!(receipt_from("{}").is_err());
    }
}
