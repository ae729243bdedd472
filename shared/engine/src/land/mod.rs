//! land: sources that cannot be read in pieces → runs, which the plan then reads as any columnar source.
//!
//! Landed are text files (a record is found only by reading all before it), sources whose meaning depends on the order
//! of rows (`--ambiguous infer`), jobs that list bad rows, and Parquet so badly clustered that units would read most of
//! it again and again. It is all or nothing: a job's objects are its sources, or runs.
//!
//! Landing is a phase of the ledger of its own (units are splits, the group is `land`); it commits nothing to the table
//! and holds nothing there.

mod infer;
mod run;
mod split;

pub use infer::{Folds, infer};
pub use split::{LandTask, land};

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::rounds::latest;
use crate::store::store_land_plan;
use crate::tries::change_job;
use crate::write::{UnitRows, cell_text, merge_errors};
use timelake_model::inventory::{InventoryObject, RowGroupInfo, TableState};
use timelake_model::land::{LAND_PLAN_VERSION, LandPlan, LandReceipt, Landed, LandedSource, SeriesFold};
use timelake_model::ledger::{JobRecord, Phase, PlanRecord, RoundKey, State, UnitMessage, UnitRecord, UnitState};
use timelake_model::receipt::RowErrors;
use timelake_model::request::{Ambiguous, OnBadRow, RowOptions};
use timelake_model::{Counts, Error, GroupName, Inventory, Reason, Result, WritePlan};
use timelake_source::{BoundObject, BoundObjects, ConvertedColumn};

/// Units that decode the source more often than this (in thousandths) cost more than writing and reading it once more.
pub const LANDED_FROM_PERMILLE: u64 = 4_000;
/// Messages sent between two moves of the cursor.
const SEND_BATCH: usize = 100;
/// Rounds that are looked for.
const MOST_ROUNDS: u32 = 1_000;

/// Must the source be landed, whatever its statistics?
pub fn is_needed(rows: &RowOptions, bound: &BoundObjects) -> bool {
    // The rows of a sample are those that are landed: row groups are planned whole.
    bound.values().any(|b| b.spec().first_rows().is_some())
        || rows.ambiguous == Ambiguous::Infer
        || rows.on_bad_row == OnBadRow::Quarantine
        || bound.values().any(BoundObject::is_text)
}

/// Would units read a columnar source so often that landing is cheaper?
pub fn is_cheaper(direct: &WritePlan) -> bool {
    direct.read_amplification_permille > LANDED_FROM_PERMILLE && direct.units().count() > 1
}

pub fn plan(job: &JobRecord, folder: String, mut inventory: Inventory, folds: Vec<SeriesFold>) -> LandPlan {
    // What units would need is found in the runs.
    for object in &mut inventory.objects {
        object.row_groups.clear();
    }
    inventory.series_sample.clear();
    LandPlan { version: LAND_PLAN_VERSION, job: job.job.clone(), generation: job.generation, folder, inventory, folds }
}

fn key(job: &JobRecord, round: u32) -> RoundKey {
    RoundKey { job: job.job.clone(), generation: job.generation, phase: Phase::Land, group: GroupName::land(), round }
}

/// Of each split the record of its highest round.
pub async fn units(engine: &Engine, job: &JobRecord) -> Result<Vec<UnitRecord>> {
    Ok(latest(engine.jobs.units(&job.job, job.generation, Phase::Land, &GroupName::land()).await?, u32::MAX))
}

/// The round of the phase that was opened last, by its plan alone.
pub async fn newest_round(engine: &Engine, job: &JobRecord) -> Result<Option<RoundKey>> {
    for round in 0..MOST_ROUNDS {
        if engine.jobs.plan(&key(job, round)).await?.is_none() {
            return Ok(round.checked_sub(1).map(|round| key(job, round)));
        }
    }
    Ok(None)
}

/// Stores the landing plan, unless one is stored already, and opens its phase. Returns what is stored and the splits that
/// are still to be landed.
pub async fn begin(engine: &Engine, job: &JobRecord, plan: LandPlan) -> Result<(LandPlan, Vec<u32>)> {
    let plan = store_land_plan(engine, plan).await?;
    change_job(engine, &job.job, job.generation, |j| {
        let changes = j.state == State::Planning;
        if changes {
            j.state = State::Landing;
        }
        changes
    })
    .await?;
    reached(Boundary::JobLanding);
    let pending = open(engine, job, &plan).await?;
    Ok((plan, pending))
}

/// Opens the phase, or opens it again: units that failed get a further round, messages of pending ones are sent again.
/// Returns the splits that are still to be landed.
async fn open(engine: &Engine, job: &JobRecord, plan: &LandPlan) -> Result<Vec<u32>> {
    let hash = crate::identity::json_hash(plan)?;
    let known = units(engine, job).await?;
    let failed: Vec<u32> = known.iter().filter(|u| u.state == UnitState::Failed).map(|u| u.unit).collect();
    let round = known.iter().map(|u| u.key.round).max();
    if round.is_none() || !failed.is_empty() {
        let opened = match round {
            None => (0, (0..plan.inventory.objects.len() as u32).collect()),
            Some(round) => (round + 1, failed),
        };
        let units: Vec<u32> = opened.1;
        let record =
            PlanRecord { key: key(job, opened.0), plan_hash: hash.clone(), shards: PlanRecord::shards_for(units.len()), units, cursor: 0 };
        let record = engine.jobs.put_plan(&record).await?;
        reached(Boundary::LandRoundStored);
        if record.plan_hash != hash {
            return Err(Error::internal(format!("the stored landing plan of job {} is not the one its ledger knows", job.job)));
        }
        engine.jobs.open_round(&record, plan.inventory.table.snapshot_id).await?;
        reached(Boundary::LandUnitsStored);
    }
    resend(engine, job).await
}

/// Sends the messages of splits that are PENDING; which they are.
pub async fn resend(engine: &Engine, job: &JobRecord) -> Result<Vec<u32>> {
    let pending: Vec<UnitRecord> = units(engine, job).await?.into_iter().filter(|u| u.state == UnitState::Pending).collect();
    let messages: Vec<UnitMessage> = pending.iter().map(|u| UnitMessage { key: u.key.clone(), unit: u.unit }).collect();
    for batch in messages.chunks(SEND_BATCH) {
        engine.queue.send(batch).await?;
    }
    reached(Boundary::LandMessagesSent);
    Ok(pending.into_iter().map(|u| u.unit).collect())
}

/// What the finished splits of a job produced, in source order.
pub async fn finished(engine: &Engine, job: &JobRecord) -> Result<Vec<LandReceipt>> {
    Ok(units(engine, job).await?.into_iter().filter_map(|u| u.receipt?.into_landed()).collect())
}

/// The receipts of all splits, or the error of the first that failed.
pub async fn receipts(engine: &Engine, job: &JobRecord, plan: &LandPlan) -> Result<Vec<LandReceipt>> {
    let units = units(engine, job).await?;
    if let Some(error) = units.iter().filter(|u| u.state == UnitState::Failed).find_map(|u| u.error.clone()) {
        return Err(error);
    }
    let receipts = finished(engine, job).await?;
    if receipts.len() != plan.inventory.objects.len() {
        return Err(Error::internal("the queue is empty and splits are not landed"));
    }
    Ok(receipts)
}

/// May a job with these rows go on? Else it is REJECTED.
pub async fn judge(engine: &Engine, job: &JobRecord, receipts: &[LandReceipt]) -> Result<bool> {
    let bad_rows = receipts.iter().map(|r| r.bad_rows).sum();
    let Some(error) = crate::validate::bad_rows(&job.request.rows, &errors(receipts), bad_rows) else { return Ok(true) };
    crate::advance::reject_unplanned(engine, job, &error).await?;
    Ok(false)
}

/// Bad rows of all splits; the first in source order leads.
pub fn errors(receipts: &[LandReceipt]) -> Vec<RowErrors> {
    merge_errors(receipts.iter().flat_map(|r| r.errors.clone()))
}

/// Rows that ended in landing.
pub fn totals(receipts: &[LandReceipt]) -> Counts {
    receipts.iter().fold(Counts::default(), |mut all, r| {
        all.add(&r.counts);
        all
    })
}

/// The inventory of the runs, against the table as it is now.
pub fn inventory(plan: &LandPlan, receipts: &[LandReceipt], table: TableState) -> Result<Inventory> {
    let before = &plan.inventory.table;
    let same = |a: &TableState| (a.uuid.clone(), a.columns.clone(), a.contract.clone(), a.partition.clone());
    if same(before) != same(&table) {
        return Err(Error::conflict(
            Reason::TableChanged,
            format!("the columns, partitions or contract of {} changed while its source was landed", table.name),
        )
        .hint(format!("give the job up (timelake backfill cancel {}) and run its command again", plan.job))
        .at(|p| p.table = Some(table.name.clone())));
    }
    let mut objects = Vec::new();
    for receipt in receipts {
        for run in &receipt.runs {
            objects.push(InventoryObject {
                object: run.file.clone(),
                rows: run.row_groups.iter().map(|g: &RowGroupInfo| g.rows).sum(),
                row_groups: run.row_groups.clone(),
                missing_columns: vec![],
                text: false,
                run_of: Some(receipt.unit),
            });
        }
    }
    let parsed = |source: usize| receipts.get(source).map_or(0, |r| r.rows_parsed);
    let sources = plan.inventory.objects.iter().enumerate().map(|(i, o)| LandedSource {
        object: o.object.clone(),
        rows: parsed(i),
        text: o.text,
        missing_columns: o.missing_columns.clone(),
    });
    let mut series: Vec<String> = receipts.iter().flat_map(|r| r.series_sample.clone()).collect();
    series.sort_unstable();
    series.dedup();
    Ok(Inventory {
        table,
        objects,
        series_sample: series,
        row_bytes: crate::inventory::ROW_OVERHEAD_BYTES + receipts.iter().map(|r| r.row_bytes).max().unwrap_or(0),
        landed: Some(Landed {
            sources: sources.collect(),
            counts: totals(receipts),
            errors: errors(receipts),
            bad_rows: receipts.iter().map(|r| r.bad_rows).sum(),
        }),
        ..plan.inventory.clone()
    })
}

/// The series key of each row as texts, `None` where it is at fault.
pub(crate) fn series_texts(keys: &[(usize, ConvertedColumn)], rows: &UnitRows) -> Result<Vec<Option<Vec<String>>>> {
    let count = keys.first().map_or(0, |(_, column)| column.array.len());
    let mut out: Vec<Option<Vec<String>>> = vec![Some(Vec::new()); count];
    for position in rows.series.columns() {
        let Some((_, column)) = keys.get(*position) else { return Err(Error::internal("a series without its key")) };
        for fault in &column.faults {
            out[fault.row as usize] = None;
        }
        for (row, texts) in out.iter_mut().enumerate() {
            if let Some(texts) = texts {
                texts.push(cell_text(&column.array, row)?);
            }
        }
    }
    Ok(out)
}
