//! What the benches of jobs without rows share: a table, a job on it with a unit for each day, and what a step costs.

use std::time::Instant;
use timelake_engine::inventory::{self, OpenTable};
use timelake_engine::{Engine, identity, tables};
use timelake_model::ledger::{JobRecord, State};
use timelake_model::plan::{PLAN_VERSION, PublishGroup, SeriesSlice};
use timelake_model::time::{MICROS_PER_DAY, Period};
use timelake_model::{BackfillRequest, GroupName, Inventory, JobId, Result, TimestampUs, Window, WorkUnit, WritePlan};

pub const TABLE: &str = "iot.sensor";
const COLUMNS: &str = "ts:timestamptz,device_id:string,value:double,quality:int";

pub async fn create_table(engine: &Engine, partition: &str) -> Result<()> {
    let create = tables::CreateTable {
        name: TABLE.into(),
        columns: COLUMNS.into(),
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        partition: Some(partition.into()),
        ..Default::default()
    };
    tables::create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &create).await.map(|_| ())
}

pub fn job(table_uuid: String) -> JobRecord {
    JobRecord {
        job: JobId("iot-sensor-1".into()),
        generation: 1,
        table: TABLE.into(),
        table_uuid,
        request_hash: "request".into(),
        request: BackfillRequest { table: TABLE.into(), rows: Default::default(), run: Default::default() },
        opened_by: None,
        as_of: TimestampUs(0),
        window: Window::ALL,
        state: State::Planning,
        error: None,
        created: TimestampUs(0),
        updated: TimestampUs(0),
        version: 0,
    }
}

/// Without objects: units have nothing to read.
pub fn inventory(table: &OpenTable) -> Result<Inventory> {
    Ok(Inventory {
        table: inventory::table_state(table, TABLE, TimestampUs(0))?,
        objects: vec![],
        series_sample: vec![],
        row_bytes: 1,
        times: Window::ALL,
        range: Window::ALL,
        retention_start: None,
        warnings: vec![],
        clip_retention: false,
        skipped_chunks: Default::default(),
        unused_columns: Default::default(),
        landed: None,
    })
}

/// Units of a day each, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Days {
    /// Days since 1970.
    pub first: i64,
    pub units: u32,
    pub rows_per_unit: u64,
}

impl Days {
    pub fn day(&self, unit: u32) -> Window {
        let start = (self.first + i64::from(unit)) * MICROS_PER_DAY;
        Window::new(start, start + MICROS_PER_DAY)
    }

    pub fn window(&self) -> Window {
        Window::new(self.day(0).low(), self.day(self.units).low())
    }

    pub fn plan(&self, inventory: &Inventory, job: &JobRecord) -> Result<WritePlan> {
        let unit = |unit: u32| WorkUnit {
            index: unit,
            window: self.day(unit),
            series: SeriesSlice::ALL,
            inputs: vec![],
            owns: vec![],
            estimated_rows: self.rows_per_unit,
            layout: None,
        };
        let (table, window) = (&inventory.table, self.window());
        Ok(WritePlan {
            version: PLAN_VERSION,
            job: job.job.clone(),
            generation: 1,
            table_uuid: table.uuid.clone(),
            inventory_hash: identity::json_hash(inventory)?,
            base_snapshot: table.snapshot_id,
            schema_id: table.schema_id,
            spec_id: table.spec_id,
            sort_order_id: table.sort_order_id,
            target_file_bytes: table.target_file_bytes,
            period: Period::Day,
            window,
            groups: vec![PublishGroup { name: GroupName::all(), window, units: (0..self.units).map(unit).collect() }],
            pruned: vec![],
            read_amplification_permille: 1_000,
            row_bytes: 1,
            unit_rows_limit: self.rows_per_unit,
        })
    }
}

/// CPU and wall time from here on.
pub struct Cost(f64, Instant);

impl Cost {
    pub fn start() -> Cost {
        Cost(cpu_s(), Instant::now())
    }
    pub fn end(self) -> (f64, f64) {
        (cpu_s() - self.0, self.1.elapsed().as_secs_f64())
    }
}

/// User and system time of this process, from `/proc/self/stat` (fields 14 and 15, in hundredths of a second).
pub fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
