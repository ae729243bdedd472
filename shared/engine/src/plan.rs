//! plan: Inventory → WritePlan. A pure function: no I/O, no clock, no randomness; the same inventory and
//! limits give the same plan, byte for byte.
//!
//! Time is split before series, so that row groups (which follow time in nearly every export) are read
//! once. Unit limits are limits of chunks, and chunks are calendar periods of the finest time partition, so
//! a partition never is in two units unless it alone exceeds a unit's memory.
//!
//! Must never happen: two units that share a row, a row inside the window that no unit takes, a row group
//! without exactly one owner, a unit larger than the memory it may use.

mod cut;

use crate::identity::json_hash;
use cut::cut;
use std::collections::BTreeMap;
use timelake_model::ids::{GroupName, JobId};
use timelake_model::inventory::{Inventory, RowGroupInfo};
use timelake_model::plan::{Outside, PLAN_VERSION, PrunedRowGroup, PublishGroup, SeriesSlice, UnitInput, WorkUnit, WritePlan, touches};
use timelake_model::time::{Period, Window};
use timelake_model::{Error, Kind, Reason, Result};

/// Units in one plan. A plan above it is refused with the limit to change.
pub const MAX_UNITS: usize = 20_000;
/// A unit is not made smaller than this to occupy more workers: below it the fixed costs of a unit show.
pub const MIN_ROWS_FOR_PARALLELISM: u64 = 500_000;
/// Existing rows whose keys are looked through in the time that one row is written in.
const EXISTING_ROWS_PER_ROW: u64 = 10;
/// Units per worker to aim at, so that the last ones end at about the same time.
const UNITS_PER_WORKER: u64 = 4;
/// Share of a worker's memory for rows; the rest is for decoding one batch and encoding one row group.
const ROWS_SHARE_PERCENT: u64 = 60;
/// Smallest memory of one worker that a plan is made for.
const MIN_WORKER_BYTES: u64 = 32 << 20;

/// Rows of one worker are not more than this, however much memory there is: texts of a column have 32-bit offsets.
const MAX_BUFFER_BYTES: u64 = 1 << 30;

/// Memory that one worker is counted with, besides its rows: a decoded batch, a row group being encoded.
pub const WORKER_BYTES: u64 = 128 << 20;
/// What the process takes before any worker.
pub const PROCESS_BYTES: u64 = 32 << 20;

/// Share of a function's memory that a plan may count on: the rest is the runtime, clients and what the allocator keeps.
const FUNCTION_MEMORY_PERCENT: u64 = 70;
/// Functions that a plan gives work to at a time. Lambda starts more than that within seconds.
const FUNCTIONS: u64 = 64;

/// What bounds a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLimits {
    pub memory_bytes: u64,
    /// Workers that share the memory.
    pub threads: u64,
    /// Workers that there may be at a time: as many as threads, or more where each is a process of its own.
    pub workers: u64,
}

impl PlanLimits {
    /// As many workers as were asked for and as the memory is enough for, at least one.
    pub fn new(memory_bytes: u64, threads: usize) -> Self {
        let threads = (threads as u64).min(memory_bytes.saturating_sub(PROCESS_BYTES) / WORKER_BYTES).max(1);
        PlanLimits { memory_bytes, threads, workers: threads }
    }

    /// Of functions with this memory: each works at one unit at a time, and many work side by side.
    pub fn of_functions(memory_bytes: u64) -> Self {
        PlanLimits { workers: FUNCTIONS, ..PlanLimits::new(memory_bytes * FUNCTION_MEMORY_PERCENT / 100, 1) }
    }

    /// Said when the memory is too little to be kept.
    pub fn warning(&self) -> Option<String> {
        let least = PROCESS_BYTES + WORKER_BYTES;
        let mb = |bytes: u64| bytes / 1_000_000;
        (self.memory_bytes < least)
            .then(|| format!("--memory {} MB is less than one worker needs: the peak can reach {} MB", mb(self.memory_bytes), mb(least)))
    }

    /// Rows one unit may hold, given the width of a row in memory.
    pub fn unit_rows(&self, row_bytes: u64) -> u64 {
        (self.buffer_bytes() / row_bytes.max(1)).max(1)
    }

    /// Bytes of rows one worker may hold.
    pub fn buffer_bytes(&self) -> u64 {
        let worker = (self.memory_bytes / self.threads.max(1)).max(MIN_WORKER_BYTES);
        (worker * ROWS_SHARE_PERCENT / 100).min(MAX_BUFFER_BYTES)
    }
}

/// A row group that units may read, with where it is.
struct Source<'a> {
    object: u32,
    row_group: u32,
    info: &'a RowGroupInfo,
}

impl Source<'_> {
    /// Estimated rows in `[low, high)`: spread evenly over the row group's time, or over each counted chunk.
    fn rows_in(&self, low: i64, high: i64, period: Period) -> u64 {
        let Some((first, last)) = self.info.time else { return 0 };
        let all = Window::new(first.0, last.0.saturating_add(1));
        let asked = Window::new(low, high);
        if self.info.per_chunk.is_empty() {
            return share(self.info.rows, &all, &asked);
        }
        let (from, to) = (period.ordinal(low), period.ordinal(high.saturating_sub(1)));
        let in_chunk = |(ordinal, rows): (&i64, &u64)| share(*rows, &all.intersect(&period.window(*ordinal)), &asked);
        self.info.per_chunk.range(from..=to.max(from)).map(in_chunk).sum()
    }
}

/// Rows of `whole` that fall into `asked` when they are spread evenly, rounded up.
fn share(rows: u64, whole: &Window, asked: &Window) -> u64 {
    let part = whole.intersect(asked);
    if part.is_empty() {
        return 0;
    }
    let length = |w: &Window| i128::from(w.high()) - i128::from(w.low());
    let (part, whole) = (length(&part), length(whole));
    ((i128::from(rows) * part + whole - 1) / whole) as u64
}

/// Makes the plan.
pub fn plan(inventory: &Inventory, job: &JobId, generation: u32, limits: PlanLimits) -> Result<WritePlan> {
    let found = Found::of(inventory);
    let mut units = Vec::new();
    if !found.sources.is_empty() {
        // No unit has rows of two layouts.
        for (part, layout) in inventory.table.by_layout(&found.window) {
            for (time, series, estimated_rows) in
                cut(inventory, &found.sources, &part, layout, limits.unit_rows(inventory.row_bytes), limits.workers)?
            {
                units.push(WorkUnit { index: 0, window: time, series, inputs: vec![], owns: vec![], estimated_rows, layout });
            }
        }
        if units.is_empty() {
            // Nothing can be loaded, but there are rows to read, to say why.
            units.push(WorkUnit {
                index: 0,
                window: empty_at(&found.window),
                series: SeriesSlice::ALL,
                inputs: vec![],
                owns: vec![],
                estimated_rows: 0,
                layout: None,
            });
        }
        assign(&found.sources, &mut units, inventory.table.period());
        // A unit without row groups has no rows; its range stays covered by a neighbour.
        units = absorb_idle(units);
    }
    found.planned(inventory, job, generation, limits, units)
}

/// A plan that divides the work into the units of another one: of the same source, for a table of the same layout. Only their
/// ranges and slices are taken over; what they read is found out here, so that another plan may be a bad one, but not a wrong one.
pub fn divided_as(other: &WritePlan, inventory: &Inventory, job: &JobId, generation: u32, limits: PlanLimits) -> Result<WritePlan> {
    let found = Found::of(inventory);
    let table = &inventory.table;
    if (other.version, other.period) != (PLAN_VERSION, table.period()) {
        return Err(other_plan(format!("it is for partitions by {:?}, and the table has them by {:?}", other.period, table.period())));
    }
    if other.window != found.window {
        return Err(other_plan(format!("it is for {}, and this is {}", other.window, found.window)));
    }
    let slices_fit = |unit: &WorkUnit| {
        let buckets = unit.series.buckets.as_ref().map(|b| (b.column.clone(), b.modulus));
        let column = unit.series.range.as_ref().map(|r| &r.column);
        (buckets.is_none() || buckets == table.bucket_partition(unit.layout)) && (column.is_none() || column == table.slice_column())
    };
    if let Some((_, unit)) = other.units().find(|(_, unit)| !slices_fit(unit)) {
        return Err(other_plan(format!("unit {} is of buckets or of a series column that the table does not have", unit.index)));
    }
    let bare = |unit: &WorkUnit| WorkUnit { inputs: vec![], owns: vec![], ..unit.clone() };
    let mut units: Vec<WorkUnit> = other.units().map(|(_, unit)| bare(unit)).collect();
    if units.is_empty() != found.sources.is_empty() {
        return Err(other_plan("one of both has no rows to read".into()));
    }
    let most = limits.unit_rows(inventory.row_bytes);
    if let Some(unit) = units.iter().find(|u| u.estimated_rows > tolerated_rows(most)) {
        let message = format!("unit {} has about {} rows, and {most} are room for", unit.index, unit.estimated_rows);
        return Err(other_plan(message).hint("give --memory more, or --threads less"));
    }
    if !units.is_empty() {
        assign(&found.sources, &mut units, table.period());
    }
    let plan = found.planned(inventory, job, generation, limits, units)?;
    check(&plan, inventory).map_err(|e| other_plan(e.message))?;
    Ok(plan)
}

/// Are the units of both the same ranges and slices?
pub fn is_divided_as(plan: &WritePlan, other: &WritePlan) -> bool {
    let division = |plan: &WritePlan| -> Vec<_> { plan.units().map(|(_, u)| (u.window, u.series.clone(), u.layout)).collect() };
    division(plan) == division(other)
}

fn other_plan(why: String) -> Error {
    Error::invalid(Reason::InvalidOption, format!("the plan does not fit this load: {why}"))
        .hint("it must be of the same source and options, for a table with the same partitions; without --plan one is made")
        .at(|p| p.option = Some("--plan".into()))
}

/// An estimate may be off by so much before the unit is cut once more.
pub fn tolerated_rows(limit: u64) -> u64 {
    limit.saturating_add(limit / 2)
}

/// What there is to be divided.
struct Found<'a> {
    window: Window,
    sources: Vec<Source<'a>>,
    pruned: Vec<PrunedRowGroup>,
}

impl Found<'_> {
    fn of(inventory: &Inventory) -> Found<'_> {
        let (sources, pruned) = sort_out(inventory, &inventory.window());
        Found { window: window(inventory), sources, pruned }
    }

    fn planned(
        self,
        inventory: &Inventory,
        job: &JobId,
        generation: u32,
        limits: PlanLimits,
        mut units: Vec<WorkUnit>,
    ) -> Result<WritePlan> {
        let Found { window, sources, pruned } = self;
        for (i, unit) in units.iter_mut().enumerate() {
            unit.index = i as u32;
        }
        if units.len() > MAX_UNITS {
            return Err(Error::invalid(Reason::PlanTooLarge, format!("the plan has {} units, more than {MAX_UNITS}", units.len()))
                .hint("give --memory more, or load a shorter range with --start and --end")
                .at(|p| p.limit = Some(MAX_UNITS as u64)));
        }
        let source_rows: u64 = sources.iter().map(|s| s.info.rows).sum();
        let rows_of: BTreeMap<(u32, u32), u64> = sources.iter().map(|s| ((s.object, s.row_group), s.info.rows)).collect();
        let decoded: u64 = units
            .iter()
            .flat_map(|u| &u.inputs)
            .flat_map(|i| i.row_groups.iter().map(|g| rows_of.get(&(i.object, *g)).copied().unwrap_or(0)))
            .sum();
        let table = &inventory.table;
        Ok(WritePlan {
            version: PLAN_VERSION,
            job: job.clone(),
            generation,
            table_uuid: table.uuid.clone(),
            inventory_hash: json_hash(inventory)?,
            base_snapshot: table.snapshot_id,
            schema_id: table.schema_id,
            spec_id: table.spec_id,
            sort_order_id: table.sort_order_id,
            target_file_bytes: table.target_file_bytes,
            period: table.period(),
            window,
            groups: vec![PublishGroup { name: GroupName::all(), window, units }],
            pruned,
            read_amplification_permille: (decoded * 1000).checked_div(source_rows).unwrap_or(1000),
            row_bytes: inventory.row_bytes,
            unit_rows_limit: limits.unit_rows(inventory.row_bytes),
        })
    }
}

/// What the job loads: the chunks that the source has rows in, inside what may be loaded. Tight, because
/// this is the range that is locked until the job is published.
pub fn window(inventory: &Inventory) -> Window {
    let load = inventory.window();
    let period = inventory.table.period();
    let times = inventory
        .objects
        .iter()
        .flat_map(|o| &o.row_groups)
        .filter(|g| g.rows > 0 && touches(&load, g.time) && !inventory.is_skipped(g))
        .filter_map(|g| g.time);
    match times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) {
        None => empty_at(&load),
        Some((low, high)) => {
            let (low, high) = (low.0.max(load.low()), high.0.min(load.high().saturating_sub(1)));
            load.intersect(&Window::new(period.start(period.ordinal(low)), period.start(period.ordinal(high) + 1)))
        }
    }
}

/// Would a sample of the series help? True when one chunk alone exceeds a unit and is cut by time for want of it.
pub fn wants_series(inventory: &Inventory, limits: PlanLimits) -> Result<bool> {
    let window = window(inventory);
    let (sources, _) = sort_out(inventory, &inventory.window());
    if window.is_empty() || !inventory.series_sample.is_empty() || inventory.table.slice_column().is_none() {
        return Ok(false);
    }
    for (part, layout) in inventory.table.by_layout(&window) {
        let period = inventory.table.layout(layout).map_or(inventory.table.period(), |l| l.period);
        let cuts = cut(inventory, &sources, &part, layout, limits.unit_rows(inventory.row_bytes), limits.workers)?;
        if cuts.iter().any(|(time, ..)| time.low() != part.low() && period.start(period.ordinal(time.low())) != time.low()) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn plan_hash(plan: &WritePlan) -> Result<String> {
    json_hash(plan)
}

fn empty_at(window: &Window) -> Window {
    Window { start: window.start, end: window.start }
}

/// Which row groups are read, and which only counted from the footer.
fn sort_out<'a>(inventory: &'a Inventory, window: &Window) -> (Vec<Source<'a>>, Vec<PrunedRowGroup>) {
    let (mut sources, mut pruned) = (Vec::new(), Vec::new());
    for (object, found) in inventory.objects.iter().enumerate() {
        for (row_group, info) in found.row_groups.iter().enumerate() {
            if info.rows == 0 {
                continue;
            }
            let (object, row_group) = (object as u32, row_group as u32);
            match outside(inventory, info, window) {
                Some(outside) => pruned.push(PrunedRowGroup { object, row_group, rows: info.rows, outside }),
                None => sources.push(Source { object, row_group, info }),
            }
        }
    }
    (sources, pruned)
}

/// A row group is pruned only if every row of it is inside min/max times and falls into one class of rows
/// that are not loaded. With any doubt it is read.
fn outside(inventory: &Inventory, info: &RowGroupInfo, window: &Window) -> Option<Outside> {
    let time = info.time?;
    let within = |w: &Window| w.contains(time.0.0) && w.contains(time.1.0);
    if within(window) && inventory.is_skipped(info) {
        return Some(Outside::SkippedChunk);
    }
    if touches(window, info.time) || !within(&inventory.times) {
        return None;
    }
    if !touches(&inventory.range, info.time) {
        return Some(Outside::Range);
    }
    let beyond = inventory.retention_start.is_some_and(|r| time.1 < r);
    (beyond && inventory.clip_retention && within(&inventory.range)).then_some(Outside::Retention)
}

/// Gives each unit the row groups that may hold its rows, and each row group its owner.
fn assign(sources: &[Source], units: &mut [WorkUnit], period: Period) {
    for source in sources {
        let mut owner = None;
        for (i, unit) in units.iter_mut().enumerate() {
            let touched =
                source.info.time.is_some() && touches(&unit.window, source.info.time) && may_hold_series(&unit.series, source.info);
            if touched && !unit.window.is_empty() && holds_counted(source, &unit.window, period) {
                push(&mut unit.inputs, source);
                owner.get_or_insert(i);
            }
        }
        // Read by nobody (times outside, no usable time): its owner reads it, to count and to name its rows.
        let owner = owner.unwrap_or_else(|| {
            push(&mut units[0].inputs, source);
            0
        });
        push(&mut units[owner].owns, source);
    }
}

/// Bounds of a row group's series that no series of the slice lies in: the unit need not read it. Only runs have bounds,
/// and every row of a run has a series, so the slice of rows without one makes no difference.
fn may_hold_series(slice: &SeriesSlice, info: &RowGroupInfo) -> bool {
    let Some(bounds) = &info.series else { return true };
    let buckets = match (&slice.buckets, &bounds.buckets) {
        // Layouts may have buckets of their own.
        (Some(set), Some(known)) if (&set.column, set.modulus) == (&known.column, known.modulus) => {
            set.buckets.iter().any(|b| (known.low..=known.high).contains(b))
        }
        _ => true,
    };
    let range = match (&slice.range, &bounds.range) {
        (Some(range), Some((low, high))) => {
            range.from.as_ref().is_none_or(|from| high.as_bytes() >= from.as_bytes())
                && range.to.as_ref().is_none_or(|to| low.as_bytes() < to.as_bytes())
        }
        _ => true,
    };
    buckets && range
}

/// With exact counts a row group is given only to units whose chunks it has rows in.
fn holds_counted(source: &Source, window: &Window, period: Period) -> bool {
    let counts = &source.info.per_chunk;
    counts.is_empty() || counts.range(period.ordinal(window.low())..=period.ordinal(window.high().saturating_sub(1))).next().is_some()
}

fn push(list: &mut Vec<UnitInput>, source: &Source) {
    match list.last_mut() {
        Some(last) if last.object == source.object => last.row_groups.push(source.row_group),
        _ => list.push(UnitInput { object: source.object, row_groups: vec![source.row_group] }),
    }
}

/// Joins units that read nothing to a neighbour of the same layout, so that ranges still cover the window. Where none may be
/// stretched they stay, and cost nothing.
fn absorb_idle(units: Vec<WorkUnit>) -> Vec<WorkUnit> {
    let idle = |unit: &WorkUnit| unit.inputs.is_empty() && unit.series.is_all();
    let mut out: Vec<WorkUnit> = Vec::with_capacity(units.len());
    for mut unit in units {
        match out.last_mut() {
            Some(last) if last.layout != unit.layout || !last.series.is_all() || !unit.series.is_all() => out.push(unit),
            Some(last) if idle(&unit) => last.window.end = unit.window.end,
            Some(last) if idle(last) => {
                unit.window.start = last.window.start;
                *last = unit;
            }
            _ => out.push(unit),
        }
    }
    out
}

/// Checks what a plan promises; run on every plan before it is stored, and by the property test.
pub fn check(plan: &WritePlan, inventory: &Inventory) -> Result<()> {
    let broken = |what: String| Err(Error::new(Kind::Internal, Reason::Internal, format!("the plan is wrong: {what}")));
    let mut owners: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (_, unit) in plan.units() {
        for input in &unit.owns {
            for g in &input.row_groups {
                *owners.entry((input.object, *g)).or_default() += 1;
                if !unit.inputs.iter().any(|i| i.object == input.object && i.row_groups.contains(g)) {
                    return broken(format!("unit {} owns row group {g} of object {} and does not read it", unit.index, input.object));
                }
            }
        }
    }
    for p in &plan.pruned {
        *owners.entry((p.object, p.row_group)).or_default() += 1;
    }
    for (o, object) in inventory.objects.iter().enumerate() {
        for (g, info) in object.row_groups.iter().enumerate().filter(|(_, i)| i.rows > 0) {
            match owners.get(&(o as u32, g as u32)) {
                Some(1) => {}
                n => return broken(format!("row group {g} of object {o} ({} rows) has {} owners", info.rows, n.unwrap_or(&0))),
            }
        }
    }
    // Time ranges in order, without gap; equal ranges must be slices of one chunk.
    let units: Vec<&WorkUnit> = plan.units().map(|(_, u)| u).collect();
    let parts = inventory.table.by_layout(&plan.window);
    let in_its_layout = |u: &WorkUnit| parts.iter().any(|(part, layout)| u.layout == *layout && part.intersect(&u.window) == u.window);
    if let Some(unit) = units.iter().find(|u| !u.window.is_empty() && !in_its_layout(u)) {
        return broken(format!("unit {} has times of another layout", unit.index));
    }
    let mut at = plan.window.start;
    let mut i = 0;
    while i < units.len() && !plan.window.is_empty() {
        let window = units[i].window;
        if window.start != at {
            return broken(format!("unit {} starts at {:?}, not at {at:?}", units[i].index, window.start));
        }
        let mut unkeyed = 0;
        while i < units.len() && units[i].window == window {
            unkeyed += u32::from(units[i].series.takes_unkeyed());
            i += 1;
        }
        if unkeyed != 1 {
            return broken(format!("{unkeyed} units of {window} take rows without a series"));
        }
        at = window.end;
    }
    if !units.is_empty() && !plan.window.is_empty() && at != plan.window.end {
        return broken(format!("the units end at {at:?}, the window at {:?}", plan.window.end));
    }
    Ok(())
}
