//! The job folder: the inventory, the plan and the rounds' bases, stored once and never changed.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::identity::json_hash;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use timelake_model::inventory::LiveRows;
use timelake_model::ledger::{GroupRecord, Phase, RoundKey};
use timelake_model::refresh::RefreshPlan;
use timelake_model::timeline::{RunTimeline, Timeline};
use timelake_model::{Error, GroupName, Inventory, JobId, Kind, LandPlan, Reason, Result, WritePlan};

/// What the units of a round look at: existing rows of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundBase {
    pub snapshot: i64,
    #[serde(flatten)]
    pub existing: LiveRows,
}

fn folder(engine: &Engine, job: &JobId, generation: u32) -> String {
    format!("{}/{job}/g{generation}", engine.jobs_root)
}
fn plan_uri(engine: &Engine, job: &JobId, generation: u32) -> String {
    format!("{}/plan.json", folder(engine, job, generation))
}
fn inventory_uri(engine: &Engine, job: &JobId, generation: u32) -> String {
    format!("{}/inventory.json", folder(engine, job, generation))
}
fn base_uri(engine: &Engine, job: &JobId, generation: u32, group: &GroupName, round: u32) -> String {
    format!("{}/{group}-r{round}.json", folder(engine, job, generation))
}
pub fn manifest_uri(engine: &Engine, job: &JobId) -> String {
    format!("{}/{job}/manifest.json", engine.jobs_root)
}

fn timeline_uri(engine: &Engine, job: &JobId) -> String {
    format!("{}/{job}/timeline.json", engine.jobs_root)
}

async fn read<T: DeserializeOwned>(engine: &Engine, uri: &str) -> Result<Option<T>> {
    match engine.objects.read(uri).await {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            Error::corrupt(Reason::LedgerDamaged, format!("{uri} is damaged: {e}"))
                .hint("give the job up (timelake backfill cancel JOB), then run its command again: it starts over; main is as it was")
                .at(|p| p.file = Some(uri.to_string()))
        }),
        Err(e) if e.kind == Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Stores a value once: a second writer gets what the first one stored.
async fn write_once<T: Serialize + DeserializeOwned>(engine: &Engine, uri: &str, value: T) -> Result<T> {
    let bytes = serde_json::to_vec_pretty(&value).map_err(|e| Error::internal(format!("cannot serialise: {e}")))?;
    if engine.objects.put_if_absent(uri, Bytes::from(bytes)).await? {
        return Ok(value);
    }
    read(engine, uri).await?.ok_or_else(|| Error::unavailable(Reason::StorageUnavailable, format!("{uri} was there and is gone")))
}

fn refresh_uri(engine: &Engine, group: &GroupRecord) -> String {
    format!("{}/{}-refresh.json", folder(engine, &group.job, group.generation), group.group)
}

pub async fn load_refresh_plan(engine: &Engine, group: &GroupRecord) -> Result<Option<RefreshPlan>> {
    read(engine, &refresh_uri(engine, group)).await
}

/// Stores what a group's refresh is to do, unless that is stored already; returns what is stored.
pub async fn store_refresh_plan(engine: &Engine, group: &GroupRecord, plan: RefreshPlan) -> Result<RefreshPlan> {
    write_once(engine, &refresh_uri(engine, group), plan).await
}

fn land_uri(engine: &Engine, job: &JobId, generation: u32) -> String {
    format!("{}/land.json", folder(engine, job, generation))
}
/// Where a generation's runs go when the user names no folder.
pub fn runs_uri(engine: &Engine, job: &JobId, generation: u32) -> String {
    format!("{}/runs", folder(engine, job, generation))
}
/// The rows that `--on-bad-row quarantine` left out.
pub fn rejected_uri(engine: &Engine, job: &JobId) -> String {
    format!("{}/{job}/rejected.ndjson", engine.jobs_root)
}

pub async fn load_land_plan(engine: &Engine, job: &JobId, generation: u32) -> Result<Option<LandPlan>> {
    read(engine, &land_uri(engine, job, generation)).await
}

/// Stores the landing plan unless one is stored already; returns what is stored.
pub async fn store_land_plan(engine: &Engine, plan: LandPlan) -> Result<LandPlan> {
    write_once(engine, &land_uri(engine, &plan.job, plan.generation), plan).await.inspect(|_| reached(Boundary::LandPlanStored))
}

/// When the job's runs worked. One that cannot be read is as none: it is only told, nothing rests on it.
pub async fn load_timeline(engine: &Engine, job: &JobId) -> Result<Timeline> {
    match read(engine, &timeline_uri(engine, job)).await {
        Err(e) if e.kind == Kind::Corrupt => Ok(Timeline::default()),
        read => read.map(Option::unwrap_or_default),
    }
}

/// Adds a run. The caller holds the job's lock.
pub async fn add_run(engine: &Engine, job: &JobId, run: RunTimeline) -> Result<()> {
    /// The earliest are forgotten.
    const MOST_RUNS: usize = 10;
    let mut timeline = load_timeline(engine, job).await?;
    timeline.runs.push(run);
    let surplus = timeline.runs.len().saturating_sub(MOST_RUNS);
    timeline.runs.drain(..surplus);
    let bytes = serde_json::to_vec(&timeline).map_err(|e| Error::internal(format!("cannot serialise: {e}")))?;
    engine.objects.put(&timeline_uri(engine, job), bytes.into()).await
}

/// A stored plan with the inventory it was made from.
pub struct StoredPlan {
    pub plan: WritePlan,
    pub inventory: Inventory,
    pub hash: String,
}

pub async fn load_plan(engine: &Engine, job: &JobId, generation: u32) -> Result<Option<StoredPlan>> {
    let Some(plan) = read::<WritePlan>(engine, &plan_uri(engine, job, generation)).await? else { return Ok(None) };
    let damaged = |what: &str| {
        Error::corrupt(Reason::LedgerDamaged, format!("the {what} of job {job} is not what the job was started with"))
            .hint(format!("give the job up (timelake backfill cancel {job}) and run its command again"))
            .at(|p| p.job = Some(job.to_string()))
    };
    let Some(inventory) = read::<Inventory>(engine, &inventory_uri(engine, job, generation)).await? else {
        return Err(damaged("inventory"));
    };
    if json_hash(&inventory)? != plan.inventory_hash {
        return Err(damaged("inventory"));
    }
    let hash = json_hash(&plan)?;
    for group in &plan.groups {
        let key = RoundKey { job: job.clone(), generation, phase: Phase::Write, group: group.name.clone(), round: 0 };
        if engine.jobs.plan(&key).await?.is_some_and(|known| known.plan_hash != hash) {
            return Err(damaged("plan"));
        }
    }
    Ok(Some(StoredPlan { plan, inventory, hash }))
}

/// Stores inventory and plan unless a plan is stored already; returns what is stored. The inventory goes
/// first: a stored plan always has its inventory, and two planners cannot mix theirs.
pub async fn store_plan(
    engine: &Engine,
    inventory: Inventory,
    make: impl FnOnce(&Inventory) -> Result<WritePlan>,
    job: &JobId,
    generation: u32,
) -> Result<StoredPlan> {
    let inventory = write_once(engine, &inventory_uri(engine, job, generation), inventory).await?;
    reached(Boundary::InventoryStored);
    let plan = make(&inventory)?;
    let plan = write_once(engine, &plan_uri(engine, job, generation), plan).await?;
    reached(Boundary::PlanStored);
    let hash = json_hash(&plan)?;
    Ok(StoredPlan { plan, inventory, hash })
}

pub async fn load_base(engine: &Engine, stored: &StoredPlan, group: &GroupName, round: u32) -> Result<RoundBase> {
    if let Some(base) = read(engine, &base_uri(engine, &stored.plan.job, stored.plan.generation, group, round)).await? {
        return Ok(base);
    }
    if round == 0 {
        return Ok(RoundBase { snapshot: stored.plan.base_snapshot, existing: stored.inventory.table.existing.clone() });
    }
    Err(Error::corrupt(Reason::LedgerDamaged, format!("the base of round {round} of job {} is gone", stored.plan.job)))
}

pub async fn store_base(engine: &Engine, stored: &StoredPlan, group: &GroupName, round: u32, base: RoundBase) -> Result<RoundBase> {
    write_once(engine, &base_uri(engine, &stored.plan.job, stored.plan.generation, group, round), base).await
}
