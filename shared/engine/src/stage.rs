//! stage: receipts → StagedSnapshot on the group's branch. One snapshot per group and round: its id is in
//! the ledger before the commit, so a commit whose answer was lost is recognised and adopted.
//!
//! Must never happen: a branch created here (only planning creates them), or moved from anywhere but where
//! this job last put it.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::evolution::same_table;
use crate::inventory::table_ident;
use crate::ports::CommitOutcome;
use crate::store::StoredPlan;
use crate::tries::{Tries, change_group, new_snapshot_id};
use crate::write;
use iceberg::spec::Snapshot;
use iceberg::table::Table;
use timelake_model::ids::branch_name;
use timelake_model::ledger::{GroupRecord, JobRecord, Kept, State};
use timelake_model::{Error, Reason, Result, UnitReceipt};
use timelake_table::{Added, Append};

/// Totals of what the receipts add.
pub fn added(receipts: &[UnitReceipt]) -> Added {
    let files = || receipts.iter().flat_map(|r| &r.files);
    Added {
        files: files().count() as u64,
        rows: files().map(|f| f.rows).sum(),
        bytes: files().map(|f| f.bytes).sum(),
        partitions: write::partitions(receipts),
    }
}

/// Summary entries of a snapshot of a job.
pub fn summary(job: &JobRecord, group: &GroupRecord, source_snapshot: Option<i64>) -> Vec<(String, String)> {
    let mut out = vec![
        ("timelake.job".to_string(), job.job.to_string()),
        ("timelake.generation".into(), job.generation.to_string()),
        ("timelake.group".into(), group.group.to_string()),
    ];
    if let Some(id) = source_snapshot {
        out.push(("source-snapshot-id".into(), id.to_string()));
    }
    out
}

/// Named as Iceberg names manifest lists, with the job in it: `gc` tells whose a list of a lost try is.
pub fn list_path(location: &str, group: &GroupRecord, snapshot_id: i64, random: u64) -> String {
    timelake_table::list_path(location, snapshot_id, &format!("{}-g{}-{random:016x}", group.job, group.generation))
}

/// A group and what its units wrote, to be put on its branch.
pub struct Staging<'a> {
    pub engine: &'a Engine,
    pub job: &'a JobRecord,
    pub stored: &'a StoredPlan,
    pub group: &'a GroupRecord,
    pub receipts: &'a [UnitReceipt],
}

impl Staging<'_> {
    /// Commits the staged snapshot; returns the group as stored. Repeating it is safe.
    pub async fn stage(&self) -> Result<GroupRecord> {
        let engine = self.engine;
        let mut tries = Tries::new(engine.clock.as_ref(), "staging");
        loop {
            let (table, at) = self.branch().await?;
            let id = match self.group.next_snapshot {
                Some(id) => id,
                None => new_snapshot_id(engine.clock.as_ref(), &table),
            };
            let to_stage = |g: &GroupRecord| g.state == State::Writing && g.round == self.group.round && !g.cancel_requested;
            let group = change_group(engine, self.group, |g| {
                let unset = to_stage(g) && g.next_snapshot.is_none();
                if unset {
                    g.next_snapshot = Some(id);
                }
                unset
            })
            .await?;
            reached(Boundary::NextSnapshotStored);
            if !to_stage(&group) {
                return Ok(group); // cancelled, or staged by whoever got the same message
            }
            let next = group.next_snapshot.unwrap_or(id);
            if at == Some(next) {
                return adopt(engine, &group, next).await;
            }
            if at.is_some() && at == group.next_kept {
                adopt_kept(engine, &group, 0).await?;
                tries.again("a part of it was kept").await?;
                continue;
            }
            let expected = self.left_at(&group);
            if at != Some(expected) {
                return Err(branch_moved(&self.branch_name(), at, expected));
            }
            let snapshot = self.snapshot(&table, &group, next).await?;
            reached(Boundary::StagedListWritten);
            match self.commit(&table, expected, snapshot).await? {
                CommitOutcome::Done(_) => {
                    reached(Boundary::StageCommitted);
                    return adopt(engine, &group, next).await;
                }
                CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
            }
        }
    }

    /// Puts on the branch what is written so far of a group that is not staged yet. Some lakes have cleaners that remove files
    /// which no snapshot names for some days; a job may take longer, or stand on HOLD. Repeating it is safe.
    pub async fn keep(&self) -> Result<GroupRecord> {
        let engine = self.engine;
        let mut tries = Tries::new(engine.clock.as_ref(), "keeping what is written");
        let mut units = 0;
        loop {
            let (table, at) = self.branch().await?;
            let round = self.group.round;
            let unstaged = |g: &GroupRecord| {
                matches!(g.state, State::Writing | State::Hold) && g.round == round && g.staged_round != Some(round) && !g.cancel_requested
            };
            let id = new_snapshot_id(engine.clock.as_ref(), &table);
            let group = change_group(engine, self.group, |g| {
                let unset = unstaged(g) && g.next_kept.is_none();
                if unset {
                    g.next_kept = Some(id);
                }
                unset
            })
            .await?;
            let next = group.next_kept.unwrap_or(id);
            if at == Some(next) {
                return adopt_kept(engine, &group, units).await;
            }
            let expected = self.left_at(&group);
            // Whoever stages it or cancels it comes first.
            if !unstaged(&group) || at != Some(expected) {
                return Ok(group);
            }
            let snapshot = self.snapshot(&table, &group, next).await?;
            // From here on a snapshot of this id holds these units; how many one of an earlier call holds is not known.
            units = self.receipts.len() as u32;
            match self.commit(&table, expected, snapshot).await? {
                CommitOutcome::Done(_) => return adopt_kept(engine, &group, units).await,
                CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
            }
        }
    }

    fn branch_name(&self) -> String {
        branch_name(&self.job.job, self.job.generation, &self.group.group)
    }

    /// The table, as it was planned, and where the branch is.
    async fn branch(&self) -> Result<(Table, Option<i64>)> {
        let table = self.engine.catalog.load(&table_ident(&self.job.table)?).await?;
        same_table(&table, &self.stored.plan)?;
        let at = timelake_table::refs(table.metadata())?.get(&self.branch_name()).map(|r| r.snapshot_id);
        Ok((table, at))
    }

    /// Where the branch was left by this job.
    fn left_at(&self, group: &GroupRecord) -> i64 {
        group.branch_snapshot.unwrap_or(self.stored.plan.base_snapshot)
    }

    async fn snapshot(&self, table: &Table, group: &GroupRecord, id: i64) -> Result<Snapshot> {
        let clock = &self.engine.clock;
        let metadata = table.metadata();
        // The first round stands on the plan's base; a later one on `main` as its units saw it.
        let parent_id = if group.round == 0 { Some(self.stored.plan.base_snapshot) } else { metadata.current_snapshot_id() };
        let parent = parent_id.and_then(|id| metadata.snapshot_by_id(id)).ok_or_else(|| {
            Error::conflict(Reason::TableChanged, "the snapshot that the job started from is gone")
                .hint("cancel the job and run its command again")
        })?;
        let append = Append {
            snapshot_id: id,
            manifests: self.receipts.iter().flat_map(|r| &r.manifests).map(|m| timelake_table::manifest_file(m, id)).collect(),
            added: added(self.receipts),
            properties: &summary(self.job, group, None),
            now_ms: clock.now().0.div_euclid(1000),
            list_path: list_path(metadata.location(), group, id, clock.random()),
        };
        timelake_table::append_snapshot(table, parent, append).await
    }

    async fn commit(&self, table: &Table, expected: i64, snapshot: Snapshot) -> Result<CommitOutcome> {
        let commit = timelake_table::stage(table, &self.branch_name(), expected, snapshot);
        self.engine.catalog.commit(table, commit.requirements, commit.updates).await
    }
}

/// `units`: how many the kept snapshot is known to hold.
async fn adopt_kept(engine: &Engine, group: &GroupRecord, units: u32) -> Result<GroupRecord> {
    let Some(snapshot) = group.next_kept else { return Ok(group.clone()) };
    let at = engine.clock.now();
    change_group(engine, group, |g| {
        let changes = g.next_kept == Some(snapshot);
        if changes {
            g.branch_snapshot = Some(snapshot);
            g.next_kept = None;
            g.kept = Some(Kept { round: g.round, units, at });
            g.staged.push(snapshot);
        }
        changes
    })
    .await
}

async fn adopt(engine: &Engine, group: &GroupRecord, snapshot: i64) -> Result<GroupRecord> {
    change_group(engine, group, |g| {
        if g.state.is_final() || (g.branch_snapshot == Some(snapshot) && g.state == State::Staged) {
            return false;
        }
        g.branch_snapshot = Some(snapshot);
        g.next_snapshot = None;
        g.state = State::Staged;
        g.staged_round = Some(g.round);
        if !g.staged.contains(&snapshot) {
            g.staged.push(snapshot);
        }
        true
    })
    .await
    .inspect(|_| reached(Boundary::GroupStaged))
}

pub fn branch_moved(branch: &str, at: Option<i64>, expected: i64) -> Error {
    let what = match at {
        None => format!("branch {branch} is gone"),
        Some(at) => format!("branch {branch} is at snapshot {at}, not at {expected} where this job left it"),
    };
    Error::conflict(Reason::BranchMoved, what).hint("somebody else changed it; cancel the job and run its command again")
}
