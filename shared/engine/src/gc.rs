//! gc: removes what jobs left behind, and only what the ledger says is theirs: files of attempts that lost, of jobs
//! that ended unpublished, of tries at a commit that came to nothing; branches and locks of such jobs; tags whose undo
//! window is over.
//!
//! Must never happen: a file removed that any snapshot of the table refers to, that a winning attempt of a published
//! group wrote, or that an attempt still at work is about to hand in (files younger than the grace period stay).

use crate::boundary::{Boundary, reached};
use crate::inventory::table_ident;
use crate::ports::ObjectMeta;
use crate::publish::drop_branch;
use crate::rounds::latest;
use crate::tables::commit_until_done;
use crate::{Engine, locks};
use iceberg::spec::{SnapshotReference, SnapshotRetention};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use serde::Serialize;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use timelake_model::ids::{PUBLISHED_PREFIX, branch_name, lock_property, published_by};
use timelake_model::ledger::{JobRecord, Phase, UnitState};
use timelake_model::{AttemptId, JobId, Kind, Result, TimestampUs};

/// What kind of thing is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Litter {
    /// A data file, manifest or manifest list.
    File,
    /// The folder of a job's landed runs.
    Runs,
    Branch,
    Lock,
    Tag,
    /// An unfinished job that was given up because a newer one took its place.
    Job,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Item {
    pub kind: Litter,
    pub table: String,
    pub job: String,
    /// Path, ref or property.
    pub name: String,
    pub bytes: u64,
    /// Why nobody needs it.
    pub why: &'static str,
}

/// What is looked for, and what is done with it.
pub struct Sweep<'a> {
    /// Only what was last touched before this.
    pub before: TimestampUs,
    pub dry_run: bool,
    /// Jobs that a process is running right now are left alone.
    pub is_running: &'a (dyn Fn(&JobId) -> bool + Sync),
}

/// Looks through the tables of all jobs. A table that is gone or was replaced is passed over: its files are not ours to judge.
pub async fn tables(engine: &Engine, sweep: &Sweep<'_>) -> Result<Vec<Item>> {
    let mut by_table: BTreeMap<(String, String), Vec<JobRecord>> = BTreeMap::new();
    for job in engine.jobs.jobs(None).await? {
        by_table.entry((job.table.clone(), job.table_uuid.clone())).or_default().push(job);
    }
    let mut items = Vec::new();
    for ((name, uuid), jobs) in by_table {
        let table = match engine.catalog.load(&table_ident(&name)?).await {
            Ok(table) if table.metadata().uuid().to_string() == uuid => table,
            Ok(_) => continue,
            Err(e) if e.kind == Kind::NotFound => continue,
            Err(e) => return Err(e),
        };
        items.extend(expired_tags(engine, &table, sweep.dry_run).await?);
        for job in &jobs {
            items.extend(stale_refs(engine, &name, job, sweep).await?);
        }
        items.extend(lost_files(engine, &name, &jobs, sweep).await?);
    }
    Ok(items)
}

/// Tags whose undo window is over: they keep files that nobody can ask back any more. Only of groups that the ledger
/// says are PUBLISHED: until then the tag is what tells a run that its commit went through.
pub async fn expired_tags(engine: &Engine, table: &Table, dry_run: bool) -> Result<Vec<Item>> {
    let now_ms = engine.clock.now().0.div_euclid(1000);
    let mut items = Vec::new();
    for (tag, _) in over(table, now_ms)? {
        let Some((job, generation, group)) = published_by(&tag) else { continue };
        if engine.jobs.group(&job, generation, &group).await?.is_some_and(|g| g.state.is_published()) {
            let table = table.identifier().to_string();
            items.push(Item { kind: Litter::Tag, table, job: job.to_string(), name: tag, bytes: 0, why: "its undo window is over" });
        }
    }
    if items.is_empty() || dry_run {
        return Ok(items);
    }
    commit_until_done(engine.catalog.as_ref(), engine.clock.as_ref(), table.clone(), async |table| {
        let mut commit =
            timelake_table::Commit { requirements: vec![TableRequirement::UuidMatch { uuid: table.metadata().uuid() }], updates: vec![] };
        for (tag, at) in over(table, now_ms)?.into_iter().filter(|(tag, _)| items.iter().any(|i| i.name == *tag)) {
            commit.requirements.push(TableRequirement::RefSnapshotIdMatch { r#ref: tag.clone(), snapshot_id: Some(at) });
            commit.updates.push(TableUpdate::RemoveSnapshotRef { ref_name: tag });
        }
        Ok((!commit.updates.is_empty()).then_some(commit))
    })
    .await?;
    reached(Boundary::TagsDropped);
    Ok(items)
}

/// Tags of published groups that are older than they say they get, with their snapshots.
fn over(table: &Table, now_ms: i64) -> Result<Vec<(String, i64)>> {
    let metadata = table.metadata();
    let is_over = |r: &SnapshotReference| {
        let SnapshotRetention::Tag { max_ref_age_ms: Some(age) } = r.retention else { return false };
        metadata.snapshot_by_id(r.snapshot_id).is_some_and(|made| made.timestamp_ms().saturating_add(age) < now_ms)
    };
    let refs = timelake_table::refs(metadata)?.into_iter();
    Ok(refs.filter(|(name, r)| name.starts_with(PUBLISHED_PREFIX) && is_over(r)).map(|(name, r)| (name, r.snapshot_id)).collect())
}

/// Branches and locks of lives of the job that ended unpublished. Usually the end removes them; a process that died or
/// came late may have left one.
async fn stale_refs(engine: &Engine, name: &str, job: &JobRecord, sweep: &Sweep<'_>) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    if job.updated >= sweep.before || (sweep.is_running)(&job.job) {
        return Ok(items);
    }
    for generation in 1..=job.generation {
        if generation == job.generation && !job.state.is_final() {
            continue;
        }
        for group in engine.jobs.groups(&job.job, generation).await?.iter().filter(|g| g.state.is_final() && !g.state.is_published()) {
            let table = engine.catalog.load(&table_ident(name)?).await?;
            let branch = branch_name(&job.job, generation, &group.group);
            let lock = lock_property(&job.job);
            let has_branch = timelake_table::refs(table.metadata())?.contains_key(&branch);
            let has_lock = locks::lock_of(table.metadata().properties(), &lock).is_some_and(|l| l.generation == generation);
            if !has_branch && !has_lock {
                continue;
            }
            if !sweep.dry_run {
                drop_branch(engine, job, group).await?;
            }
            let item = |kind, name| Item {
                kind,
                table: job.table.clone(),
                job: job.job.to_string(),
                name,
                bytes: 0,
                why: "its job ended unpublished",
            };
            items.extend(has_branch.then(|| item(Litter::Branch, branch)));
            items.extend(has_lock.then(|| item(Litter::Lock, lock)));
        }
    }
    Ok(items)
}

/// What the ledger says of one life of a job.
struct Life {
    /// Ended: nobody will commit what it wrote any more.
    is_over: bool,
    /// Attempts by unit and round, with the one whose files count (or may yet).
    attempts: BTreeMap<(u32, u32), (Vec<AttemptId>, Option<AttemptId>)>,
}

async fn life(engine: &Engine, job: &JobRecord, generation: u32, is_running: bool) -> Result<Life> {
    let groups = engine.jobs.groups(&job.job, generation).await?;
    let is_over = !is_running && (generation < job.generation || job.state.is_final());
    let mut attempts = BTreeMap::new();
    for group in &groups {
        let units = engine.jobs.units(&job.job, generation, Phase::Write, &group.group).await?;
        let counting: BTreeSet<(u32, u32)> = latest(units.clone(), group.round).iter().map(|u| (u.unit, u.key.round)).collect();
        for unit in units {
            let at = (unit.unit, unit.key.round);
            // The winner's files stay where they are on `main`, and where the group may still publish them: also those of
            // a round that was being opened when its process died.
            let is_ahead = !is_over && unit.key.round > group.round;
            let counts = is_ahead || counting.contains(&at) && (group.state.is_published() || !is_over);
            let wins = unit.win.clone().filter(|_| counts);
            let known = match (unit.state, is_over) {
                // An attempt at work, or about to be repeated: nothing of the unit is lost yet.
                (UnitState::Pending | UnitState::Failed, false) => vec![],
                _ => unit.attempts.clone(),
            };
            attempts.insert(at, (known, wins));
        }
    }
    Ok(Life { is_over, attempts })
}

/// Whose file this is, by its name.
#[derive(Debug, PartialEq, Eq)]
enum Owner<'a> {
    Attempt {
        generation: u32,
        unit: u32,
        round: u32,
        attempt: &'a str,
    },
    /// A manifest written for publish, or a manifest list.
    Commit {
        generation: u32,
    },
}

fn owner<'a>(path: &'a str, job: &str) -> Option<Owner<'a>> {
    let name = path.rsplit('/').next()?;
    let number = |text: &str, mark: char| text.strip_prefix(mark)?.parse::<u32>().ok();
    let after = |text: &'a str| text.strip_prefix(job)?.strip_prefix('-');
    if let Some(rest) = name.strip_prefix("snap-") {
        // snap-<snapshot>-0-<job>-g<gen>-<random>.avro
        let rest = after(rest.splitn(3, '-').nth(2)?)?;
        return Some(Owner::Commit { generation: number(rest.split('-').next()?, 'g')? });
    }
    let mut parts = after(name)?.split(['-', '.']);
    let generation = number(parts.next()?, 'g')?;
    match parts.next()? {
        "pub" => Some(Owner::Commit { generation }),
        unit => Some(Owner::Attempt { generation, unit: number(unit, 'u')?, round: number(parts.next()?, 'r')?, attempt: parts.next()? }),
    }
}

async fn lost_files(engine: &Engine, name: &str, jobs: &[JobRecord], sweep: &Sweep<'_>) -> Result<Vec<Item>> {
    // Loaded after the branches and tags above are gone.
    let table = engine.catalog.load(&table_ident(name)?).await?;
    let location = table.metadata().location().trim_end_matches('/');
    let mut files: Vec<ObjectMeta> = Vec::new();
    for folder in ["data", "metadata"] {
        files.extend(engine.objects.list(&format!("{location}/{folder}")).await?);
    }
    files.retain(|f| f.modified < sweep.before);
    let mut candidates: Vec<Item> = Vec::new();
    for job in jobs {
        let mut lives: BTreeMap<u32, Life> = BTreeMap::new();
        let is_running = (sweep.is_running)(&job.job);
        for file in &files {
            let Some(owner) = owner(&file.uri, job.job.as_str()) else { continue };
            let (Owner::Attempt { generation, .. } | Owner::Commit { generation }) = owner;
            if generation == 0 || generation > job.generation {
                continue;
            }
            let life = match lives.entry(generation) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(life(engine, job, generation, is_running).await?),
            };
            let why = why_lost(life, &owner);
            let item = |why| Item {
                kind: Litter::File,
                table: name.to_string(),
                job: job.job.to_string(),
                name: file.uri.clone(),
                bytes: file.size,
                why,
            };
            candidates.extend(why.map(item));
        }
    }
    if candidates.is_empty() {
        return Ok(candidates);
    }
    let wanted: HashSet<String> = candidates.iter().map(|c| c.name.clone()).collect();
    let needed = timelake_table::referenced(&table, &wanted).await?;
    candidates.retain(|c| !needed.contains(&c.name));
    if !sweep.dry_run {
        for lost in &candidates {
            engine.objects.delete(&lost.name).await?;
            reached(Boundary::FileRemoved);
        }
    }
    Ok(candidates)
}

fn why_lost(life: &Life, owner: &Owner) -> Option<&'static str> {
    match owner {
        // Those that count are referred to by a snapshot, which is looked up.
        Owner::Commit { .. } => life.is_over.then_some("of a commit that came to nothing"),
        Owner::Attempt { unit, round, attempt, .. } => {
            let (attempts, wins) = life.attempts.get(&(*unit, *round))?;
            let is = |a: &AttemptId| a.as_str() == *attempt;
            if !attempts.iter().any(is) || wins.as_ref().is_some_and(is) {
                return None;
            }
            Some(if life.is_over { "its job ended without it" } else { "another attempt at the unit won" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_whose_it_is() {
        let job = "iot-sensor-0a1b2c3d4e5f";
        let attempt = Owner::Attempt { generation: 2, unit: 7, round: 1, attempt: "00ff00ff00ff" };
        assert_eq!(owner("/w/data/ts_day=2024-01-01/iot-sensor-0a1b2c3d4e5f-g2-u00007-r1-00ff00ff00ff-003.parquet", job), Some(attempt));
        let manifest = Owner::Attempt { generation: 1, unit: 0, round: 0, attempt: "a" };
        assert_eq!(owner("/w/metadata/iot-sensor-0a1b2c3d4e5f-g1-u00000-r0-a.avro", job), Some(manifest));
        assert_eq!(owner("/w/metadata/iot-sensor-0a1b2c3d4e5f-g1-pub-00aa-00001.avro", job), Some(Owner::Commit { generation: 1 }));
        assert_eq!(owner("/w/metadata/snap-5-0-iot-sensor-0a1b2c3d4e5f-g3-00aa.avro", job), Some(Owner::Commit { generation: 3 }));
        for foreign in [
            "/w/data/00000-0-7f.parquet",
            "/w/metadata/snap-5-0-7f2c1d90-1b2c-4d5e-8f90-a1b2c3d4e5f6.avro",
            "/w/data/iot-sensor-000000000000-g1-u00000-r0-a-000.parquet",
            "/w/data/iot-sensor-0a1b2c3d4e5f-copy.parquet",
            "/w/data/iot-sensor-0a1b2c3d4e5f-g1-u0000x-r0-a-000.parquet",
            "/w/metadata/00004-4f.metadata.json",
        ] {
            assert_eq!(owner(foreign, job), None, "{foreign}");
        }
    }

    #[test]
    fn only_losers_are_lost() {
        let id = |text: &str| AttemptId(text.into());
        let of = |attempt| Owner::Attempt { generation: 1, unit: 0, round: 0, attempt };
        let attempts = |wins: Option<&str>| BTreeMap::from([((0, 0), (vec![id("a"), id("b")], wins.map(id)))]);
        let running = Life { is_over: false, attempts: attempts(Some("a")) };
        assert_eq!(why_lost(&running, &of("a")), None);
        assert!(why_lost(&running, &of("b")).is_some());
        assert_eq!(why_lost(&running, &of("c")), None, "the ledger does not list it");
        assert_eq!(why_lost(&running, &Owner::Commit { generation: 1 }), None);
        let ended = Life { is_over: true, attempts: attempts(None) };
        assert!(why_lost(&ended, &of("a")).is_some() && why_lost(&ended, &Owner::Commit { generation: 1 }).is_some());
    }
}
