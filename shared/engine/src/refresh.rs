//! refresh: what a publish changed → the table's feed of changes, one row per chunk, newest first.
//!
//! The feed is a table of its own, `<table>_changes`, that others read to know which ranges of the table to compute
//! again. A unit of this phase is one chunk of one published group.
//!
//! Must never happen: a changed chunk that is not in the feed of a REFRESHED group, or one that is there twice.

use crate::Engine;
use crate::inventory::table_ident;
use crate::ports::CommitOutcome;
use crate::rounds::{self, SEND_BATCH, latest};
use crate::store::{StoredPlan, load_refresh_plan, store_refresh_plan};
use crate::tables::{CreateTable, create_table, start_main};
use crate::tries::{Tries, change_group, new_snapshot_id};
use crate::work::{Attempts, Held, Workers};
use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{Int32Type, TimestampMicrosecondType};
use futures::StreamExt;
use iceberg::spec::MAIN_BRANCH;
use iceberg::table::Table;
use parquet::arrow::ArrowWriter;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use timelake_model::ledger::{GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, State, UnitMessage, UnitRecord, UnitState};
use timelake_model::receipt::ManifestRef;
use timelake_model::refresh::{ChangedRange, RefreshPlan, RefreshReceipt};
use timelake_model::{AttemptId, Error, Reason, Receipt, Result, TimestampUs, UnitReceipt, Window};
use timelake_table::{Added, Append, MetricsModes, Partitioner, Written};
use tokio::runtime::Handle;

/// The feed's columns: whose rows came, in which range, how many, and with which snapshot of the table.
const COLUMNS: &str = "range_start:timestamptz!,range_end:timestamptz!,job:string!,generation:int!,publish_group:string!,rows:long!,\
                       snapshot_id:long!,published_at:timestamptz!";

/// Rounds of a group, in each of which units that failed before are tried again.
const MAX_ROUNDS: u32 = 100;

/// Name of a table's feed of changes.
pub fn feed_of(table: &str) -> String {
    format!("{table}_changes")
}

/// Opens the phase for a published group, or opens it again: messages of pending units are sent once more. A group that
/// changed nothing is REFRESHED at once.
pub async fn open(engine: &Engine, job: &JobRecord, stored: &StoredPlan, group: &GroupRecord) -> Result<GroupRecord> {
    let Some(snapshot) = group.published_snapshot.filter(|_| group.committed) else { return refreshed(engine, group).await };
    let plan = match load_refresh_plan(engine, group).await? {
        Some(plan) => plan,
        None => {
            let receipts = rounds::latest_units(engine, group).await?.into_iter().filter_map(|u| u.receipt?.into_written());
            let published_at = published_at(engine, job, snapshot).await?;
            store_refresh_plan(engine, group, RefreshPlan { snapshot, published_at, ranges: ranges(stored, receipts) }).await?
        }
    };
    if plan.ranges.is_empty() {
        return refreshed(engine, group).await;
    }
    let known = units(engine, group).await?;
    let failed: Vec<u32> = known.iter().filter(|u| u.state == UnitState::Failed).map(|u| u.unit).collect();
    let last = known.iter().map(|u| u.key.round).max();
    // Units that failed get a further round.
    let (round, units) = match last {
        Some(round) if failed.is_empty() || round >= MAX_ROUNDS => return resend(engine, group).await.map(|_| group.clone()),
        Some(round) => (round + 1, failed),
        None => (0, (0..plan.ranges.len() as u32).collect()),
    };
    let key = key(group, round);
    let hash = crate::identity::json_hash(&plan)?;
    let record = PlanRecord { key: key.clone(), plan_hash: hash, shards: PlanRecord::shards_for(units.len()), units, cursor: 0 };
    let record = engine.jobs.put_plan(&record).await?;
    engine.jobs.open_round(&record, snapshot).await?;
    resend(engine, group).await?;
    Ok(group.clone())
}

/// Of each unit the record of its highest round.
async fn units(engine: &Engine, group: &GroupRecord) -> Result<Vec<UnitRecord>> {
    Ok(latest(engine.jobs.units(&group.job, group.generation, Phase::Refresh, &group.group).await?, u32::MAX))
}

/// Sends the messages of units that are PENDING.
async fn resend(engine: &Engine, group: &GroupRecord) -> Result<u64> {
    let pending = units(engine, group).await?.into_iter().filter(|u| u.state == UnitState::Pending);
    let messages: Vec<UnitMessage> = pending.map(|u| UnitMessage { key: u.key, unit: u.unit }).collect();
    for batch in messages.chunks(SEND_BATCH) {
        engine.queue.send(batch).await?;
    }
    Ok(messages.len() as u64)
}

/// The group is REFRESHED once all its units are DONE; `false`: they are not. What failed is told by the group, whose rows are
/// on `main` all the same.
pub async fn close(engine: &Engine, group: &GroupRecord) -> Result<bool> {
    let units = units(engine, group).await?;
    if !units.is_empty() && units.iter().all(|u| u.state == UnitState::Done) {
        return refreshed(engine, group).await.map(|_| true);
    }
    if !units.iter().any(|u| u.state == UnitState::Pending)
        && let Some(error) = units.into_iter().find_map(|u| u.error)
    {
        change_group(engine, group, |g| {
            let changes = g.state == State::Published && g.error.as_ref() != Some(&error);
            if changes {
                g.error = Some(error.clone());
            }
            changes
        })
        .await?;
    }
    Ok(false)
}

async fn refreshed(engine: &Engine, group: &GroupRecord) -> Result<GroupRecord> {
    change_group(engine, group, |g| {
        let changes = g.state == State::Published;
        if changes {
            g.state = State::Refreshed;
            g.error = None;
        }
        changes
    })
    .await
}

/// Works off the units of this phase.
pub struct Refreshing<'a> {
    pub workers: &'a Workers<'a>,
}

impl Attempts for Refreshing<'_> {
    fn phase(&self) -> Phase {
        Phase::Refresh
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        held.check()?;
        let Workers { engine, job, .. } = self.workers;
        runtime.block_on(refresh(engine, job, key, unit, attempt)).map(Receipt::Refresh)
    }
}

/// Tells the feed of one changed chunk, unless it knows already.
async fn refresh(engine: &Engine, job: &JobRecord, key: &RoundKey, unit: u32, attempt: &AttemptId) -> Result<RefreshReceipt> {
    let gone = || Error::corrupt(Reason::LedgerDamaged, format!("what the refresh of job {} was to do is gone", job.job));
    let group = engine.jobs.group(&key.job, key.generation, &key.group).await?.ok_or_else(gone)?;
    let plan = load_refresh_plan(engine, &group).await?.ok_or_else(gone)?;
    let range = plan.ranges.get(unit as usize).ok_or_else(gone)?;
    let feed = feed(engine, &job.table).await?;
    let row = Row { job, group: &group, plan: &plan, range };
    let mut tries = Tries::new(engine.clock.as_ref(), "telling the feed of changes");
    let receipt = RefreshReceipt { unit, round: key.round, attempt: attempt.clone(), range: range.clone() };
    let mut written: Option<ManifestRef> = None;
    let mut table = feed;
    loop {
        if row.is_told(&table).await? {
            return Ok(receipt);
        }
        let manifest = match &written {
            Some(written) => written,
            None => {
                let made = row.write(&table, attempt).await?;
                engine.objects.make_durable(std::slice::from_ref(&made.path)).await?;
                written.insert(made)
            }
        };
        let head = table.metadata().current_snapshot().ok_or_else(|| Error::internal("the feed of changes has no first snapshot"))?;
        let id = new_snapshot_id(engine.clock.as_ref(), &table);
        let append = Append {
            snapshot_id: id,
            manifests: vec![timelake_table::manifest_file(manifest, id)],
            added: Added { files: 1, rows: 1, bytes: manifest.added_bytes, partitions: 1 },
            properties: &[("timelake.job".into(), job.job.to_string())],
            now_ms: engine.clock.now().0.div_euclid(1000),
            list_path: timelake_table::list_path(table.metadata().location(), id, &attempt.to_string()),
        };
        let snapshot = timelake_table::append_snapshot(&table, head, append).await?;
        let commit = timelake_table::stage(&table, MAIN_BRANCH, head.snapshot_id(), snapshot);
        match engine.catalog.commit(&table, commit.requirements, commit.updates).await? {
            CommitOutcome::Done(_) => return Ok(receipt),
            // A commit whose answer was lost is found when the feed is looked at again.
            CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
        }
        table = engine.catalog.load(table.identifier()).await?;
    }
}

fn key(group: &GroupRecord, round: u32) -> RoundKey {
    RoundKey { job: group.job.clone(), generation: group.generation, phase: Phase::Refresh, group: group.group.clone(), round }
}

async fn published_at(engine: &Engine, job: &JobRecord, snapshot: i64) -> Result<TimestampUs> {
    let table = engine.catalog.load(&table_ident(&job.table)?).await?;
    // Expired already: then it was published before now.
    let at = table.metadata().snapshot_by_id(snapshot).map(|s| TimestampUs(s.timestamp_ms().saturating_mul(1000)));
    Ok(at.unwrap_or_else(|| engine.clock.now()))
}

/// Chunks that got rows, newest first.
fn ranges(stored: &StoredPlan, receipts: impl Iterator<Item = UnitReceipt>) -> Vec<ChangedRange> {
    let period = stored.plan.period;
    let mut rows: BTreeMap<i64, u64> = BTreeMap::new();
    for (ordinal, count) in receipts.flat_map(|r| r.chunk_rows) {
        *rows.entry(ordinal).or_default() += count;
    }
    let range = |(ordinal, rows): (i64, u64)| ChangedRange {
        start: TimestampUs(period.start(ordinal)),
        end: TimestampUs(period.start(ordinal.saturating_add(1))),
        rows,
    };
    rows.into_iter().rev().map(range).collect()
}

/// The table's feed, made when it is not there yet.
async fn feed(engine: &Engine, table: &str) -> Result<Table> {
    let name = feed_of(table);
    let ident = table_ident(&name)?;
    match engine.catalog.load(&ident).await {
        Err(e) if e.reason == Reason::TableNotFound => {}
        found => return started(engine, found?).await,
    }
    let keys = ["job", "generation", "publish_group", "range_start"].map(String::from).to_vec();
    let create = CreateTable {
        name,
        columns: COLUMNS.into(),
        time_column: "range_start".into(),
        series_key: vec!["job".into()],
        dedup_key: Some(Some(keys)),
        partition: Some("none".into()),
        ..Default::default()
    };
    match create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &create).await {
        // Another refresher was faster.
        Err(e) if e.reason == Reason::TableExists => {}
        made => drop(made?),
    }
    started(engine, engine.catalog.load(&ident).await?).await
}

/// Another refresher may have made it and not come to its first snapshot.
async fn started(engine: &Engine, feed: Table) -> Result<Table> {
    start_main(engine.catalog.as_ref(), engine.clock.as_ref(), feed).await
}

/// What is told of one range.
struct Row<'a> {
    job: &'a JobRecord,
    group: &'a GroupRecord,
    plan: &'a RefreshPlan,
    range: &'a ChangedRange,
}

impl Row<'_> {
    /// Does the feed know it?
    async fn is_told(&self, feed: &Table) -> Result<bool> {
        let Some(head) = feed.metadata().current_snapshot_id() else { return Ok(false) };
        let time = feed.metadata().current_schema().field_by_name("range_start");
        let time = time.ok_or_else(|| Error::internal(format!("{} has no column range_start", feed.identifier())))?.id;
        let at = Window::new(self.range.start.0, self.range.start.0.saturating_add(1));
        let live = timelake_table::live_rows(feed, timelake_table::live_files(feed, head, time, &at).await?)?;
        let columns = ["job", "generation", "publish_group", "range_start"].map(String::from);
        let mut rows = timelake_table::read_rows(feed, &live.files, &live.deletes, &columns, &at).await?;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            let text = |column: usize| arrow::compute::cast(batch.column(column), &arrow::datatypes::DataType::Utf8);
            let texts = text(0).and_then(|jobs| Ok((jobs, text(2)?))).map_err(|e| Error::internal(e.to_string()))?;
            let (jobs, groups) = (texts.0.as_string::<i32>(), texts.1.as_string::<i32>());
            let (generations, starts) =
                (batch.column(1).as_primitive_opt::<Int32Type>(), batch.column(3).as_primitive_opt::<TimestampMicrosecondType>());
            let (Some(generations), Some(starts)) = (generations, starts) else {
                return Err(Error::internal(format!("{} has columns of other types", feed.identifier())));
            };
            let same = |i: &usize| {
                (jobs.value(*i), groups.value(*i)) == (self.job.job.as_str(), self.group.group.as_str())
                    && i64::from(generations.value(*i)) == i64::from(self.group.generation)
                    && starts.value(*i) == self.range.start.0
            };
            if (0..batch.num_rows()).any(|i| same(&i)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One data file of one row, and its manifest.
    async fn write(&self, feed: &Table, attempt: &AttemptId) -> Result<ManifestRef> {
        let metadata = feed.metadata();
        let (schema, spec) = (metadata.current_schema(), metadata.default_partition_spec());
        let arrow_schema = timelake_table::writer_schema(schema)?;
        let instant = |at: TimestampUs| Arc::new(TimestampMicrosecondArray::from_value(at.0, 1).with_timezone("+00:00")) as ArrayRef;
        let text = |text: &str| Arc::new(StringArray::from_iter_values([text])) as ArrayRef;
        let number = |number: i64| Arc::new(Int64Array::from_value(number, 1)) as ArrayRef;
        let mut columns = Vec::new();
        for field in arrow_schema.fields() {
            columns.push(match field.name().as_str() {
                "range_start" => instant(self.range.start),
                "range_end" => instant(self.range.end),
                "job" => text(self.job.job.as_str()),
                "generation" => Arc::new(Int32Array::from_value(self.group.generation as i32, 1)),
                "publish_group" => text(self.group.group.as_str()),
                "rows" => number(self.range.rows as i64),
                "snapshot_id" => number(self.plan.snapshot),
                "published_at" => instant(self.plan.published_at),
                // Somebody's own column.
                _ => arrow::array::new_null_array(field.data_type(), 1),
            });
        }
        let encoding = |e: String| Error::internal(format!("encoding a row of {}: {e}", feed.identifier()));
        let batch = RecordBatch::try_new(arrow_schema.clone(), columns).map_err(|e| encoding(e.to_string()))?;
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, arrow_schema, None).map_err(|e| encoding(e.to_string()))?;
        writer.write(&batch).map_err(|e| encoding(e.to_string()))?;
        let footer = writer.finish().map_err(|e| encoding(e.to_string()))?;
        drop(writer);
        let partitioner = Partitioner::new(spec, schema)?;
        let sources: Vec<ArrayRef> = partitioner.sources().filter_map(|name| batch.column_by_name(name).cloned()).collect();
        let partition = partitioner.partition_of(&sources, 0)?;
        let name = format!("{}-g{}-{}-{}-{attempt}", self.job.job, self.group.generation, self.group.group, self.range.start.0);
        let location = metadata.location().trim_end_matches('/');
        let folder = partitioner.path(&partition);
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let path = format!("{location}/data/{folder}{name}.parquet");
        let size = bytes.len() as u64;
        let failed = |e| timelake_table::errors::from_iceberg(e, &format!("writing {path}"));
        feed.file_io().new_output(&path).map_err(failed)?.write(bytes.into()).await.map_err(failed)?;
        let sort_order_id = metadata.default_sort_order_id() as i32;
        let written =
            Written { path: path.clone(), bytes: size, spec_id: spec.spec_id(), partition, sort_order_id, nan_counts: HashMap::new() };
        let modes = MetricsModes::from_properties(metadata.properties(), schema, metadata.default_sort_order())?;
        let file = timelake_table::data_file(schema, &footer, written, &modes)?;
        let manifest = format!("{location}/metadata/{name}.avro");
        timelake_table::write_manifest(feed.file_io(), schema.clone(), spec, manifest, vec![file]).await
    }
}
