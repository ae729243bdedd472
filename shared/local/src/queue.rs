//! The unit queue as a table of the ledger. At least once: a claim is a lease, and what is not acknowledged
//! before the lease ends is handed out again with one more try. A message that is there already is not sent again.
//!
//! A claim is known by the message and its number of tries: when somebody else has taken the message since, or it
//! was given back, `extend`, `ack` and `release` of the old claim change nothing. The time comes from the clock
//! that the ledger was opened with, so all of its processes must share one clock (they are on one machine).

use crate::ledger::SqliteLedger;
use async_trait::async_trait;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};
use std::time::Duration;
use timelake_engine::ports::{Claim, UnitQueue, UnitSender};
use timelake_model::ledger::{Phase, RoundKey, UnitMessage};
use timelake_model::{GroupName, JobId, Result};

impl SqliteLedger {
    fn now_us(&self) -> i64 {
        self.database.clock().now().0
    }
}

/// Where nothing is to be waited for, no clock is asked either: one that is set back afterwards would still hold it.
const AT_ONCE_US: i64 = i64::MIN;

/// The instant `after` from `now_us`; a wait beyond the calendar is one without end.
fn later_us(now_us: i64, after: Duration) -> i64 {
    now_us.saturating_add(i64::try_from(after.as_micros()).unwrap_or(i64::MAX))
}

impl SqliteLedger {
    /// Who holds messages.
    pub(crate) async fn holders(&self) -> Result<Vec<String>> {
        self.database
            .read(|t| {
                let mut owners = t.prepare_cached("SELECT DISTINCT owner FROM queue WHERE owner IS NOT NULL")?;
                let owners = owners.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
                Ok(owners)
            })
            .await
    }

    /// Gives back at once what an owner holds who is gone. Its claims are void then.
    pub(crate) async fn give_back(&self, owner: &str) -> Result<()> {
        self.database
            .write(|t| {
                t.prepare_cached("UPDATE queue SET owner = NULL, lease_until_us = ? WHERE owner = ?")?
                    .execute(params![AT_ONCE_US, owner])?;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl UnitSender for SqliteLedger {
    async fn send(&self, messages: &[UnitMessage]) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        self.database
            .write(|t| {
                let mut insert = t.prepare_cached(
                    "INSERT INTO queue (job, generation, phase, group_name, round, unit, lease_until_us, tries)
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, 0 WHERE NOT EXISTS (SELECT 1 FROM queue WHERE job = ?1
                     AND generation = ?2 AND phase = ?3 AND group_name = ?4 AND round = ?5 AND unit = ?6)",
                )?;
                for UnitMessage { key, unit } in messages {
                    insert.execute(params![key.job.0, key.generation, key.phase.to_string(), key.group.0, key.round, unit, AT_ONCE_US])?;
                }
                Ok(())
            })
            .await
    }

    async fn purge(&self, job: &JobId, generation: Option<u32>) -> Result<()> {
        self.database
            .write(|t| {
                t.prepare_cached("DELETE FROM queue WHERE job = ?1 AND (?2 IS NULL OR generation = ?2)")?
                    .execute(params![job.0, generation])?;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl UnitQueue for SqliteLedger {
    async fn claim(&self, job: Option<&JobId>, owner: &str, lease: Duration) -> Result<Option<Claim>> {
        let now_us = self.now_us();
        // No lease given by a clock that agrees with ours ends later; twice, as two processes' clocks are never one.
        let latest_us = later_us(now_us, lease.saturating_mul(2));
        self.database
            .write(|t| {
                let free = "(lease_until_us <= ?2 OR lease_until_us > ?5)";
                let oldest = match job {
                    Some(_) => format!("SELECT id FROM queue WHERE job = ?1 AND {free} ORDER BY id LIMIT 1"),
                    None => format!("SELECT id FROM queue WHERE ?1 IS NULL AND {free} ORDER BY id LIMIT 1"),
                };
                let row = t
                    .prepare_cached(&format!(
                        "UPDATE queue SET owner = ?3, lease_until_us = ?4, tries = tries + 1 WHERE id = ({oldest})
                         RETURNING id, tries, job, generation, phase, group_name, round, unit"
                    ))?
                    .query_row(params![job.map(JobId::as_str), now_us, owner, later_us(now_us, lease), latest_us], |row| {
                        let key = RoundKey {
                            job: JobId(row.get(2)?),
                            generation: row.get(3)?,
                            phase: phase_at(row, 4)?,
                            group: GroupName(row.get(5)?),
                            round: row.get(6)?,
                        };
                        Ok(Claim { id: row.get(0)?, tries: row.get(1)?, message: UnitMessage { key, unit: row.get(7)? } })
                    })
                    .optional()?;
                Ok(row)
            })
            .await
    }

    async fn extend(&self, claim: &Claim, lease: Duration) -> Result<bool> {
        let until_us = later_us(self.now_us(), lease);
        self.database
            .write(|t| {
                let changed = t
                    .prepare_cached("UPDATE queue SET lease_until_us = ? WHERE id = ? AND tries = ? AND owner IS NOT NULL")?
                    .execute(params![until_us, claim.id, claim.tries])?;
                Ok(changed == 1)
            })
            .await
    }

    async fn ack(&self, claim: &Claim) -> Result<()> {
        self.database
            .write(|t| {
                t.prepare_cached("DELETE FROM queue WHERE id = ? AND tries = ? AND owner IS NOT NULL")?
                    .execute(params![claim.id, claim.tries])?;
                Ok(())
            })
            .await
    }

    async fn release(&self, claim: &Claim, delay: Duration) -> Result<()> {
        let until_us = if delay.is_zero() { AT_ONCE_US } else { later_us(self.now_us(), delay) };
        self.database
            .write(|t| {
                t.prepare_cached("UPDATE queue SET owner = NULL, lease_until_us = ? WHERE id = ? AND tries = ? AND owner IS NOT NULL")?
                    .execute(params![until_us, claim.id, claim.tries])?;
                Ok(())
            })
            .await
    }

    async fn depth(&self, job: &JobId) -> Result<u64> {
        self.database
            .read(|t| Ok(t.prepare_cached("SELECT count(*) FROM queue WHERE job = ?")?.query_row([&job.0], |row| row.get(0))?))
            .await
    }
}

/// A word that is no phase is an error of the column's type: the file was changed by somebody else.
fn phase_at(row: &Row, column: usize) -> rusqlite::Result<Phase> {
    let word: String = row.get(column)?;
    [Phase::Land, Phase::Write, Phase::Refresh]
        .into_iter()
        .find(|phase| phase.to_string() == word)
        .ok_or_else(|| rusqlite::Error::InvalidColumnType(column, word, Type::Text))
}
