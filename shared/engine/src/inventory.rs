//! inventory: BackfillRequest → Inventory. Reads the table's state and the source's footers; decides nothing
//! about rows except the window that the options and the contract give.

use crate::Engine;
use crate::evolution;
use crate::land;
use crate::layouts;
use crate::plan::{self, PlanLimits};
use crate::store::RoundBase;
pub use crate::tables::parse_name as table_ident;
use crate::write::Reading;
use arrow::array::AsArray;
use arrow::datatypes::TimestampMicrosecondType;
use futures::StreamExt;
use iceberg::spec::FormatVersion;
use iceberg::table::Table;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use timelake_model::inventory::{LiveRows, SourceObject, TableState};
use timelake_model::land::SeriesFold;
use timelake_model::ledger::JobRecord;
use timelake_model::request::{Ambiguous, Mode, OnSourceConflict, RowOptions};
use timelake_model::time::{IsoDuration, MICROS_PER_DAY, Period, TimestampUs, Window};
use timelake_model::{BackfillRequest, Column, ColumnType, Error, Inventory, Kind, LandPlan, LandReceipt, Reason, Result, TableContract};
use timelake_source::{BoundObjects, Inspection, SourceSpec, Sources};
use timelake_table::Difference;

/// Target file size when the table names none; Iceberg's default.
const DEFAULT_TARGET_FILE_BYTES: u64 = 512 << 20;
/// Series values sampled to find ranges.
const SERIES_SAMPLE: usize = 10_000;
/// Bytes per row besides the decoded columns: time, sort pairs, order, partition, one column's copy.
pub const ROW_OVERHEAD_BYTES: u64 = 8 + 16 + 4 + 4 + 8;

/// First instant that loads by default: earlier ones are clocks that were never set.
const DEFAULT_MIN_TS: i64 = MICROS_PER_DAY;

/// A table that can be backfilled: version, contract, columns.
#[derive(Clone)]
pub struct OpenTable {
    pub table: Table,
    pub contract: TableContract,
    pub notes: Vec<String>,
}

pub async fn open_table(engine: &Engine, name: &str) -> Result<OpenTable> {
    let table = engine.catalog.load(&table_ident(name)?).await?;
    let metadata = table.metadata();
    let mut notes = vec![];
    match metadata.format_version() {
        FormatVersion::V1 => return Err(timelake_table::version_1_refused(name)),
        FormatVersion::V2 => {}
        FormatVersion::V3 => notes.push(format!("{name} has Iceberg format version 3: rows are only ever appended to it")),
    }
    let contract = TableContract::from_properties(metadata.properties())?.ok_or_else(|| {
        Error::invalid(Reason::MissingContract, format!("{name} does not say which column is the time and which name the series"))
            .hint(format!("say it once: timelake table contract {name} --time-column ts --series-key device_id"))
            .at(|p| p.table = Some(name.into()))
    })?;
    contract.check(&timelake_table::columns(metadata.current_schema())?)?;
    Ok(OpenTable { table, contract, notes })
}

/// Refuses options that contradict each other or the table, before anything is read.
pub fn check_request(request: &BackfillRequest, open: &OpenTable) -> Result<()> {
    let rows = &request.rows;
    let bad = |message: String, option: &str| Error::invalid(Reason::InvalidOption, message).at(|p| p.option = Some(option.into()));
    let has_identity = open.contract.dedup_key.is_some();
    match (rows.mode, has_identity) {
        (Mode::Append, true) if !rows.allow_duplicates => {
            return Err(bad(format!("rows of {} have an identity, and append does not look which of them exist", request.table), "--mode")
                .hint("--mode merge loads each row once; --allow-duplicates appends all the same"));
        }
        (Mode::Append, _) => {}
        (_, false) => {
            return Err(bad(
                format!("{} says its rows have no identity (dedup key none), so nothing can tell which exist", request.table),
                "--mode",
            )
            .hint("--mode append loads all rows; or set a dedup key: timelake table contract TABLE --dedup-key ..."));
        }
        _ => {}
    }
    if rows.allow_duplicates && rows.mode != Mode::Append {
        return Err(bad("--allow-duplicates has no effect here".into(), "--allow-duplicates").hint("it goes with --mode append"));
    }
    if !has_identity && rows.on_source_conflict != OnSourceConflict::Error {
        return Err(bad(
            format!("rows of {} have no identity (dedup key none), so none of them conflict", request.table),
            "--on-source-conflict",
        )
        .hint("leave the option out"));
    }
    if rows.override_retention && rows.clip_retention {
        return Err(bad("--override-retention and --clip-retention exclude each other".into(), "--clip-retention"));
    }
    match (&rows.version_column, rows.on_source_conflict) {
        (None, OnSourceConflict::Newest) => {
            return Err(bad("--on-source-conflict newest needs --version-column".into(), "--version-column"));
        }
        (Some(_), other) if other != OnSourceConflict::Newest => {
            return Err(bad("--version-column needs --on-source-conflict newest".into(), "--version-column"));
        }
        (Some(name), _) => {
            let columns = timelake_table::columns(open.table.metadata().current_schema())?;
            let contract = &open.contract;
            let is_key = *name == contract.time_column
                || contract.series_key.contains(name)
                || contract.dedup_key.iter().flatten().any(|k| k == name);
            if !columns.iter().any(|c| c.name == *name) || is_key {
                return Err(bad(format!("--version-column {name} must be a column of the table that is no key"), "--version-column")
                    .at(|p| p.value = Some(name.clone())));
            }
        }
        _ => {}
    }
    windows(rows, &open.contract, TimestampUs(i64::MAX / 4)).map(|_| ())
}

/// Times that may be loaded at all, the asked range, and where retention starts.
fn windows(rows: &RowOptions, contract: &TableContract, as_of: TimestampUs) -> Result<(Window, Window, Option<TimestampUs>)> {
    let local = match &rows.tz {
        Some(zone) => !timelake_source::Zone::parse(zone)?.is_utc(),
        None => false,
    };
    let parse = |text: &Option<String>, option| text.as_ref().map(|t| TimestampUs::parse_bound(t, option, local)).transpose();
    let start_of_days = TimestampUs(DEFAULT_MIN_TS);
    let tomorrow = TimestampUs(as_of.0.saturating_add(MICROS_PER_DAY));
    let times = Window {
        start: Some(parse(&rows.min_ts, "--min-ts")?.unwrap_or(start_of_days)),
        end: Some(parse(&rows.max_ts, "--max-ts")?.unwrap_or(tomorrow)),
    };
    let range = Window { start: parse(&rows.start, "--start")?, end: parse(&rows.end, "--end")? };
    for (window, options) in [(&times, "--min-ts and --max-ts"), (&range, "--start and --end")] {
        if window.is_empty() {
            return Err(Error::invalid(Reason::InvalidOption, format!("{options} leave nothing: {window} is empty"))
                .hint("the end is not included; it must be after the start"));
        }
    }
    let retention = match &contract.retention {
        Some(text) if !rows.override_retention => Some(IsoDuration::parse(text)?.before(as_of)),
        _ => None,
    };
    Ok((times, range, retention))
}

/// The table's state at the head of `main`, without its files.
pub fn table_state(open: &OpenTable, name: &str, as_of: TimestampUs) -> Result<TableState> {
    let metadata = open.table.metadata();
    let schema = metadata.current_schema();
    let snapshot = metadata.current_snapshot().ok_or_else(|| Error::internal("the table has no snapshot to plan against"))?;
    let target = metadata.properties().get("write.target-file-size-bytes").and_then(|t| t.parse().ok());
    let target_file_bytes = target.unwrap_or(DEFAULT_TARGET_FILE_BYTES);
    Ok(TableState {
        name: name.into(),
        uuid: metadata.uuid().to_string(),
        location: metadata.location().to_string(),
        format_version: metadata.format_version() as u8,
        snapshot_id: snapshot.snapshot_id(),
        schema_id: metadata.current_schema_id(),
        spec_id: metadata.default_partition_spec_id(),
        // Files say the order they are in only when it is the table's.
        sort_order_id: if timelake_table::sorts_by_contract(metadata.default_sort_order(), schema, &open.contract) {
            metadata.default_sort_order_id() as i32
        } else {
            0
        },
        columns: timelake_table::columns(schema)?,
        contract: open.contract.clone(),
        partition: timelake_table::fields(metadata.default_partition_spec(), schema),
        target_file_bytes,
        layouts: layouts::resolve(&open.table, &open.contract, as_of, target_file_bytes)?,
        existing: LiveRows::default(),
    })
}

/// Data files of a snapshot that may hold rows of the window, and the deletes in force on them.
pub async fn existing_rows(table: &Table, snapshot: i64, contract: &TableContract, window: &Window) -> Result<LiveRows> {
    let live = timelake_table::live_files(table, snapshot, time_field(table, contract)?, window).await?;
    timelake_table::live_rows(table, live)
}

/// [`existing_rows`], from what was found at another snapshot: only manifests that one of the two does not have are read,
/// so that a look at a large table that moved a little costs little.
pub async fn existing_rows_since(
    table: &Table,
    before: &RoundBase,
    snapshot: i64,
    contract: &TableContract,
    window: &Window,
) -> Result<LiveRows> {
    if before.existing.deletes.is_empty() {
        let differs = timelake_table::difference(table, before.snapshot, snapshot, time_field(table, contract)?, window).await?;
        if let Some(Difference { gone, come }) = differs {
            let gone: HashSet<&str> = gone.iter().map(|f| f.path.as_str()).collect();
            let mut rows = timelake_table::live_rows(table, come)?;
            rows.files.extend(before.existing.files.iter().filter(|f| !gone.contains(f.path.as_str())).cloned());
            return Ok(rows);
        }
    }
    existing_rows(table, snapshot, contract, window).await
}

/// What of the table the job's rows meet: files with rows that may have their keys, and chunks that are left out.
async fn meet(inventory: &mut Inventory, open: &OpenTable, rows: &RowOptions, window: &Window) -> Result<()> {
    if rows.mode == Mode::Append && !rows.only_missing {
        return Ok(());
    }
    let existing = existing_rows(&open.table, inventory.table.snapshot_id, &open.contract, window).await?;
    if rows.only_missing {
        inventory.skipped_chunks = chunks_with_rows(open, &existing, window, inventory.table.period()).await?;
    }
    if rows.mode != Mode::Append {
        inventory.table.existing = existing;
    }
    Ok(())
}

/// Chunks of the window that have a row. Files within one chunk say it by their bounds, the times of others and of those
/// with deletes are read.
async fn chunks_with_rows(open: &OpenTable, existing: &LiveRows, window: &Window, period: Period) -> Result<BTreeSet<i64>> {
    let LiveRows { files, deletes } = existing;
    let mut chunks = BTreeSet::new();
    let mut unclear = Vec::new();
    for file in files.iter().filter(|f| f.rows > 0) {
        match file.time.map(|(low, high)| (period.ordinal(low.0), period.ordinal(high.0))) {
            Some((first, last)) if first == last && !deletes.iter().any(|d| timelake_table::applies(d, file)) => {
                chunks.insert(first);
            }
            _ => unclear.push(file.clone()),
        }
    }
    if unclear.is_empty() {
        return Ok(chunks);
    }
    let columns = [open.contract.time_column.clone()];
    let mut batches = timelake_table::read_rows(&open.table, &unclear, deletes, &columns, window).await?;
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        let times = batch
            .column(0)
            .as_primitive_opt::<TimestampMicrosecondType>()
            .ok_or_else(|| Error::internal("the time column of existing rows is no timestamp"))?;
        chunks.extend(times.iter().flatten().filter(|t| window.contains(*t)).map(|t| period.ordinal(t)));
    }
    Ok(chunks)
}

pub fn time_field(table: &Table, contract: &TableContract) -> Result<i32> {
    table
        .metadata()
        .current_schema()
        .field_by_name(&contract.time_column)
        .map(|f| f.id)
        .ok_or_else(|| Error::internal("the table has no time column"))
}

/// What was found, with what is needed to read it.
pub enum Taken {
    /// Units read the source's objects.
    Direct { inventory: Box<Inventory>, bound: BoundObjects },
    /// The source is landed first.
    ToLand { plan: Box<LandPlan>, bound: BoundObjects },
}

/// How this process reads and is stopped.
pub struct Effort<'a> {
    /// What units are sized for.
    pub limits: PlanLimits,
    /// Threads that read the source's objects.
    pub threads: usize,
    pub sources: &'a Sources,
    /// Where runs would go.
    pub runs_folder: &'a str,
    pub check_stop: &'a (dyn Fn() -> Result<()> + Sync),
}

pub fn spec(rows: &RowOptions, open: &OpenTable) -> Result<Arc<SourceSpec>> {
    let schema = open.table.metadata().current_schema();
    let columns = timelake_table::columns(schema)?;
    let nested: Vec<String> =
        schema.as_struct().fields().iter().map(|f| f.name.clone()).filter(|name| !columns.iter().any(|c| c.name == *name)).collect();
    SourceSpec::for_table(rows, &columns, &nested, &open.contract).map(Arc::new)
}

/// Takes the inventory: footers of all objects, the table at the head of `main`.
pub async fn take(
    open: &OpenTable,
    job: &JobRecord,
    objects: &[SourceObject],
    spec: &Arc<SourceSpec>,
    effort: &Effort<'_>,
) -> Result<Taken> {
    let rows = &job.request.rows;
    let (times, range, retention_start) = windows(rows, &open.contract, job.as_of)?;
    let inspections = inspect(objects, spec, effort)?;
    let mut inventory = Inventory {
        table: table_state(open, &job.table, job.as_of)?,
        objects: inspections.iter().map(|i| i.info.clone()).collect(),
        series_sample: vec![],
        row_bytes: ROW_OVERHEAD_BYTES + inspections.iter().map(|i| i.key_and_payload_bytes_per_row).max().unwrap_or(0),
        times,
        range,
        retention_start,
        clip_retention: rows.clip_retention,
        skipped_chunks: BTreeSet::new(),
        unused_columns: unused(&inspections, open)?,
        landed: None,
        warnings: inspections.iter().flat_map(|i| i.warnings.clone()).chain(open.notes.clone()).chain(effort.limits.warning()).fold(
            vec![],
            |mut all, w| {
                if !all.contains(&w) {
                    all.push(w);
                }
                all
            },
        ),
    };
    let bound: BoundObjects = (0..).zip(inspections.into_iter().map(|i| i.bound)).collect();
    let to_land = |inventory: Inventory, bound: BoundObjects| -> Result<Taken> {
        let folds = folds(open, rows, spec, &inventory, &bound, effort)?;
        Ok(Taken::ToLand { plan: Box::new(land::plan(job, effort.runs_folder.to_string(), inventory, folds)), bound })
    };
    if land::is_needed(rows, &bound) {
        return to_land(inventory, bound);
    }
    let window = plan::window(&inventory);
    meet(&mut inventory, open, rows, &window).await?;
    refine(&mut inventory, &bound, job, effort)?;
    if land::is_cheaper(&plan::plan(&inventory, &job.job, job.generation, effort.limits)?) {
        inventory.table.existing = LiveRows::default();
        inventory.skipped_chunks.clear();
        return to_land(inventory, bound);
    }
    Ok(Taken::Direct { inventory: Box::new(inventory), bound })
}

/// Names of the source that no column of the table has.
fn unused(inspections: &[Inspection], open: &OpenTable) -> Result<BTreeSet<String>> {
    let columns = timelake_table::columns(open.table.metadata().current_schema())?;
    let names = inspections.iter().flat_map(|i| i.bound.column_names());
    Ok(names.filter(|name| !columns.iter().any(|c| c.name.eq_ignore_ascii_case(name))).collect())
}

/// Where the clock of each series goes back, if that is to be inferred.
fn folds(
    open: &OpenTable,
    rows: &RowOptions,
    spec: &Arc<SourceSpec>,
    inventory: &Inventory,
    bound: &BoundObjects,
    effort: &Effort,
) -> Result<Vec<SeriesFold>> {
    if rows.ambiguous != Ambiguous::Infer {
        return Ok(vec![]);
    }
    let types = crate::write::row_types(&open.table, &inventory.table)?;
    let reading = Reading { inventory, options: rows, spec, bound, folds: None, check_stop: effort.check_stop, advance: &|_| {} };
    land::infer(&reading, &types, effort.threads)
}

/// The inventory of a landed source: its runs, against the table at the head of `main` as it is now.
pub async fn of_runs(
    open: &OpenTable,
    job: &JobRecord,
    plan: &LandPlan,
    receipts: &[LandReceipt],
    effort: &Effort<'_>,
) -> Result<(Inventory, BoundObjects)> {
    let mut now = table_state(open, &job.table, job.as_of)?;
    let before = &plan.inventory.table;
    // Runs have the columns of when they were landed; one that was added since is NULL in them.
    if evolution::columns_fit(&open.table, before.schema_id, &plan.inventory).is_ok() {
        (now.schema_id, now.columns) = (before.schema_id, before.columns.clone());
    }
    let mut inventory = land::inventory(plan, receipts, now)?;
    let window = plan::window(&inventory);
    meet(&mut inventory, open, &job.request.rows, &window).await?;
    let bound = reopen_runs(&inventory, None, effort)?;
    Ok((inventory, bound))
}

/// How runs are read: every column is there under its own name, in its type, with the place of each row in its source.
pub fn run_spec(inventory: &Inventory) -> Result<Arc<SourceSpec>> {
    let mut columns = inventory.table.columns.clone();
    columns.push(Column { id: -1, name: timelake_source::place_column(&columns), column_type: ColumnType::Long, required: true });
    SourceSpec::new(&RowOptions::default(), &columns, &inventory.table.contract).map(Arc::new)
}

fn reopen_runs(inventory: &Inventory, only: Option<&BTreeSet<u32>>, effort: &Effort) -> Result<BoundObjects> {
    open_pinned(inventory, only, &run_spec(inventory)?, effort).map_err(|e| match e.kind {
        Kind::Conflict | Kind::NotFound => Error::conflict(Reason::SourceChanged, format!("a file of the landed source: {}", e.message))
            .hint("give the job up (timelake backfill cancel) and run its command again: it lands the source anew"),
        _ => e,
    })
}

/// Reads the footers again, of all objects or of `only` some, for a job whose plan is stored; the objects must be the
/// pinned ones.
pub fn reopen(inventory: &Inventory, only: Option<&BTreeSet<u32>>, spec: &Arc<SourceSpec>, effort: &Effort) -> Result<BoundObjects> {
    match inventory.landed {
        Some(_) => reopen_runs(inventory, only, effort),
        None => open_pinned(inventory, only, spec, effort),
    }
}

fn open_pinned(inventory: &Inventory, only: Option<&BTreeSet<u32>>, spec: &Arc<SourceSpec>, effort: &Effort) -> Result<BoundObjects> {
    let wanted = (0..).zip(&inventory.objects).filter(|(i, _)| only.is_none_or(|only| only.contains(i)));
    let (places, objects): (Vec<u32>, Vec<SourceObject>) = wanted.map(|(i, o)| (i, o.object.clone())).unzip();
    objects.iter().try_for_each(timelake_source::verify_pin)?;
    Ok(places.into_iter().zip(inspect(&objects, spec, effort)?.into_iter().map(|i| i.bound)).collect())
}

fn inspect(objects: &[SourceObject], spec: &Arc<SourceSpec>, effort: &Effort) -> Result<Vec<Inspection>> {
    timelake_source::inspect_all(objects, effort.sources, spec, effort.threads, effort.check_stop)
}

/// Statistics say only where a row group starts and ends. Where that is too little to bound a unit's memory,
/// rows are counted per chunk, and series are sampled where one chunk alone is too large.
fn refine(inventory: &mut Inventory, bound: &BoundObjects, job: &JobRecord, effort: &Effort) -> Result<()> {
    let first = plan::plan(inventory, &job.job, job.generation, effort.limits)?;
    let period = inventory.table.period();
    let tolerated = plan::tolerated_rows(first.unit_rows_limit);
    for (_, unit) in first.units() {
        let most: u64 = unit
            .inputs
            .iter()
            .flat_map(|i| i.row_groups.iter().map(|g| inventory.objects[i.object as usize].row_groups[*g as usize].rows))
            .sum();
        if most <= tolerated {
            continue;
        }
        for input in &unit.inputs {
            for g in &input.row_groups {
                (effort.check_stop)()?;
                let group = &mut inventory.objects[input.object as usize].row_groups[*g as usize];
                let straddles = group.time.is_some_and(|(low, high)| period.ordinal(low.0) != period.ordinal(high.0));
                if straddles && group.per_chunk.is_empty() {
                    group.per_chunk = timelake_source::count_per_chunk(&bound[&input.object], *g, period)?;
                }
            }
        }
    }
    if plan::wants_series(inventory, effort.limits)? {
        let column = inventory.table.slice_column().and_then(|name| inventory.table.columns.iter().position(|c| c.name == *name));
        let column = column.ok_or_else(|| Error::internal("a sample of no column"))?;
        inventory.series_sample = timelake_source::sample_series(bound, column, SERIES_SAMPLE)?;
    }
    Ok(())
}
