//! The small world of the models: one table, one job with one group of a few units, and attempts that write one
//! data file each without reading a source.

use super::desk::Desk;
use super::ports::{chance, write_file};
use crate::clock::START;
use futures::FutureExt;
use iceberg::TableIdent;
use iceberg::io::FileIO;
use iceberg::spec::{DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, Literal, PartitionSpec, SchemaRef, Struct};
use iceberg::table::Table;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_engine::inventory::{self, OpenTable};
use timelake_engine::work::{Attempts, Held};
use timelake_engine::{Engine, store, tables};
use timelake_model::inventory::{InventoryObject, RowGroupInfo};
use timelake_model::ledger::{JobRecord, Phase, RoundKey, State};
use timelake_model::plan::{PLAN_VERSION, PublishGroup, SeriesSlice, UnitInput};
use timelake_model::receipt::{ManifestRef, RowGroupRows, SeriesRows, WrittenFile};
use timelake_model::time::{MICROS_PER_DAY, Period};
use timelake_model::{
    AttemptId, BackfillRequest, Counts, Error, GroupName, Inventory, JobId, Reason, Receipt, Result, SourceObject, TableContract,
    TimestampUs, UnitReceipt, Window, WorkUnit, WritePlan,
};
use tokio::runtime::Handle;

pub const TABLE: &str = "iot.sensor";
/// Units are days from here: far from `START`, so that nothing is in the future.
const FIRST_DAY: i64 = 19_000;
const ROWS: u64 = 10;
const BYTES: u64 = 1_000;

/// What never changes while a model is explored.
pub struct Scene {
    pub units: u32,
    /// The job's first generation.
    pub record: JobRecord,
    pub file_io: FileIO,
    schema: SchemaRef,
    spec: PartitionSpec,
    /// Manifests by attempt: an attempt's id stands for one unit and round.
    manifests: Mutex<HashMap<String, ManifestRef>>,
}

pub fn job() -> JobId {
    JobId("iot-sensor-1".into())
}

pub fn ident() -> TableIdent {
    tables::parse_name(TABLE).expect("a name")
}

/// Runs what never waits: all ports answer at once.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("an actor waits for something that is no port")
}

fn day(unit: u32) -> Window {
    let start = (FIRST_DAY + i64::from(unit)) * MICROS_PER_DAY;
    Window::new(start, start + MICROS_PER_DAY)
}

impl Scene {
    /// Makes the table (through the engine) and the job's record.
    pub fn prepare(engine: &Engine, units: u32) -> Scene {
        let create = tables::CreateTable {
            name: TABLE.into(),
            columns: "ts:timestamptz,device_id:string!,value:double".into(),
            time_column: "ts".into(),
            series_key: vec!["device_id".into()],
            ..Default::default()
        };
        now(tables::create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &create)).expect("the table is made");
        let table = now(engine.catalog.load(&ident())).expect("the table is there");
        let record = JobRecord {
            job: job(),
            generation: 1,
            table: TABLE.into(),
            table_uuid: table.metadata().uuid().to_string(),
            request_hash: "request".into(),
            request: BackfillRequest { table: TABLE.into(), rows: Default::default(), run: Default::default() },
            opened_by: None,
            as_of: START,
            window: Window::ALL,
            state: State::Planning,
            error: None,
            created: START,
            updated: START,
            version: 0,
        };
        now(engine.jobs.put_job(&record)).expect("the job is written");
        Scene {
            units,
            record,
            file_io: table.file_io().clone(),
            schema: table.metadata().current_schema().clone(),
            spec: (**table.metadata().default_partition_spec()).clone(),
            manifests: Mutex::default(),
        }
    }

    /// One source file with a row group per unit, and the table at the head of `main`.
    fn inventory(&self, table: &Table) -> Inventory {
        let contract = TableContract::from_properties(table.metadata().properties()).ok().flatten().expect("the table has a contract");
        let open = OpenTable { contract, table: table.clone(), notes: vec![] };
        let group = |unit: u32| {
            let start = day(unit).low();
            let time = Some((TimestampUs(start), TimestampUs(start + 1)));
            RowGroupInfo { rows: ROWS, time, per_chunk: BTreeMap::new(), series: None }
        };
        let file = SourceObject {
            uri: "memory://source/a.parquet".into(),
            shown: "a.parquet".into(),
            size: 1,
            fingerprint: "1".into(),
            hive: BTreeMap::new(),
        };
        Inventory {
            table: inventory::table_state(&open, TABLE, START).expect("the table has a state"),
            objects: vec![InventoryObject {
                object: file,
                rows: ROWS * u64::from(self.units),
                row_groups: (0..self.units).map(group).collect(),
                missing_columns: vec![],
                text: false,
                run_of: None,
            }],
            series_sample: vec![],
            row_bytes: 1,
            times: Window::ALL,
            range: Window::ALL,
            retention_start: None,
            warnings: vec![],
            clip_retention: false,
            skipped_chunks: BTreeSet::new(),
            unused_columns: BTreeSet::new(),
            landed: None,
        }
    }

    fn plan(&self, inventory: &Inventory, generation: u32) -> Result<WritePlan> {
        let window = Window::new(day(0).low(), day(self.units).low());
        let input = |unit: u32| vec![UnitInput { object: 0, row_groups: vec![unit] }];
        let unit = |unit: u32| WorkUnit {
            index: unit,
            window: day(unit),
            series: SeriesSlice::ALL,
            inputs: input(unit),
            owns: input(unit),
            estimated_rows: ROWS,
            layout: None,
        };
        Ok(WritePlan {
            version: PLAN_VERSION,
            job: job(),
            generation,
            table_uuid: inventory.table.uuid.clone(),
            inventory_hash: timelake_engine::identity::json_hash(inventory)?,
            base_snapshot: inventory.table.snapshot_id,
            schema_id: inventory.table.schema_id,
            spec_id: inventory.table.spec_id,
            sort_order_id: 0,
            target_file_bytes: 1 << 20,
            period: Period::Day,
            window,
            groups: vec![PublishGroup { name: GroupName::all(), window, units: (0..self.units).map(unit).collect() }],
            pruned: vec![],
            read_amplification_permille: 1_000,
            row_bytes: 1,
            unit_rows_limit: 1_000,
        })
    }

    /// Takes the inventory and stores the plan of a generation, as the command does.
    pub async fn store_plan(&self, engine: &Engine, generation: u32) -> Result<store::StoredPlan> {
        let table = engine.catalog.load(&ident()).await?;
        let inventory = self.inventory(&table);
        store::store_plan(engine, inventory, |inventory| self.plan(inventory, generation), &job(), generation).await
    }

    fn file(&self, path: &str, day: i64) -> DataFile {
        let bound = |us: i64| HashMap::from([(1, Datum::timestamptz_micros(us))]);
        DataFileBuilder::default()
            .content(DataContentType::Data)
            .file_path(path.into())
            .file_format(DataFileFormat::Parquet)
            .partition(Struct::from_iter([Some(Literal::int(day as i32))]))
            .partition_spec_id(self.spec.spec_id())
            .record_count(ROWS)
            .file_size_in_bytes(BYTES)
            .lower_bounds(bound(day * MICROS_PER_DAY))
            .upper_bounds(bound(day * MICROS_PER_DAY + 1))
            .build()
            .expect("a data file")
    }

    /// The manifest of one data file, written once.
    pub async fn manifest(&self, name: &str, day: i64) -> Result<(String, ManifestRef)> {
        let path = format!("memory://lake/sensor/data/{name}.parquet");
        let known = self.manifests.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(manifest) = known {
            return Ok((path, manifest));
        }
        let at = format!("memory://lake/sensor/metadata/{name}.avro");
        let files = vec![self.file(&path, day)];
        let manifest = timelake_table::manifest::write_manifest(&self.file_io, self.schema.clone(), &self.spec, at, files).await?;
        self.manifests.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), manifest.clone());
        Ok((path, manifest))
    }
}

/// Attempts of the models: they write one file and say so, or fail when chance wants it.
pub struct Writing<'a> {
    pub desk: &'a Arc<Desk>,
    pub scene: &'a Scene,
    pub base_snapshot: i64,
    pub fails: Fails,
}

/// Which attempts fail for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    Never,
    ByChance,
    Unit(u32),
}

impl Attempts for Writing<'_> {
    fn phase(&self) -> Phase {
        Phase::Write
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        let fails = match self.fails {
            Fails::Never => false,
            Fails::ByChance => !chance(self.desk, format!("attempt {attempt} at unit {unit}")),
            Fails::Unit(failing) => failing == unit,
        };
        if fails {
            return Err(Error::conflict(Reason::SourceChanged, "the source is not what it was"));
        }
        let day = FIRST_DAY + i64::from(unit);
        let name = format!("{}-g{}-u{unit}-r{}-{attempt}", key.job, key.generation, key.round);
        let (path, manifest) = runtime.block_on(self.scene.manifest(&name, day))?;
        write_file(self.desk, path.clone());
        self.desk.at_a_beat(|| held.check())?;
        let part = vec![RowGroupRows { object: 0, row_group: unit, rows: ROWS }];
        let start = TimestampUs(day * MICROS_PER_DAY);
        Ok(Receipt::Write(UnitReceipt {
            unit,
            round: key.round,
            attempt: attempt.clone(),
            base_snapshot: self.base_snapshot,
            counts: Counts { rows_read: ROWS, rows_written: ROWS, rows_added_files: ROWS, ..Default::default() },
            files: vec![WrittenFile {
                path,
                bytes: BYTES,
                rows: ROWS,
                spec_id: self.spec_id(),
                partition: vec![Some(day.to_string())],
                key_hash: 0,
                column_sums: BTreeMap::new(),
            }],
            manifests: vec![manifest],
            taken: part,
            left: vec![],
            errors: vec![],
            bad_rows: 0,
            warnings: vec![],
            time: Some((start, TimestampUs(start.0 + 1))),
            column_sums: BTreeMap::new(),
            key_hash: 0,
            chunk_rows: [(day, ROWS)].into(),
            series: SeriesRows::default(),
        }))
    }
}

impl Writing<'_> {
    fn spec_id(&self) -> i32 {
        self.scene.spec.spec_id()
    }
}
