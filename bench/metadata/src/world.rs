//! A table that holds many data files, and a job whose units have all been written.

use async_trait::async_trait;
use iceberg::spec::{DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, Literal, Struct, TableMetadata};
use iceberg::table::Table;
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_bench::{Days, TABLE, cpu_s};
use timelake_engine::inventory;
use timelake_engine::ports::{Clock, CommitOutcome, TableCatalog};
use timelake_engine::{Engine, rounds, store, tables, tries};
use timelake_local::{LocalObjects, SqliteCatalog, SqliteLedger, SystemClock};
use timelake_model::ledger::{GroupRecord, JobRecord};
use timelake_model::receipt::{ManifestRef, SeriesRows, WrittenFile};
use timelake_model::time::MICROS_PER_DAY;
use timelake_model::{AttemptId, Counts, Error, GroupName, Result, TimestampUs, UnitReceipt, Window};
use timelake_table::{Added, Append};

const FIRST_DAY: i64 = 18_000;
const ROWS: u64 = 100_000;
const BYTES: u64 = 4 << 20;
/// Data files of a manifest of those who wrote to the table before.
const FILES_PER_MANIFEST: u32 = 100;
/// Of each day the last five minutes are live: the job has no rows there.
const LIVE: i64 = MICROS_PER_DAY / 288;

pub struct World {
    pub engine: Engine,
    pub catalog: Arc<Busy>,
    pub job: JobRecord,
    pub stored: store::StoredPlan,
    pub group: GroupRecord,
    pub receipts: Vec<UnitReceipt>,
    ident: TableIdent,
}

impl World {
    pub async fn make(folder: &Path, files: u32, units: u32) -> Result<World> {
        std::fs::create_dir_all(folder).map_err(|e| Error::internal(format!("{}: {e}", folder.display())))?;
        let clock = Arc::new(SystemClock);
        let ledger = Arc::new(SqliteLedger::open(&folder.join("ledger.db"), clock.clone())?);
        let catalog = Arc::new(Busy {
            inner: SqliteCatalog::open(&folder.join("catalog.db"), &folder.join("warehouse"), true)?,
            last_day: FIRST_DAY + i64::from(units) - 1,
            moves: AtomicU32::new(0),
            loaded: Mutex::default(),
            tries: Mutex::default(),
        });
        let engine = Engine {
            catalog: catalog.clone(),
            jobs: ledger.clone(),
            queue: ledger,
            objects: Arc::new(LocalObjects::new(folder)),
            sources: Default::default(),
            clock: clock.clone(),
            jobs_root: folder.join("jobs").display().to_string(),
        };
        timelake_bench::create_table(&engine, "day(ts),bucket(16,device_id)").await?;
        let ident = tables::parse_name(TABLE)?;
        let per_day = files.div_ceil(units).max(1);

        let table = catalog.load(&ident).await?;
        let live = Writer { table: &table, name: "before", per_day };
        let mut manifests = Vec::new();
        for first in (0..files).step_by(FILES_PER_MANIFEST as usize) {
            manifests.push(live.manifest(first, FILES_PER_MANIFEST.min(files - first)).await?.0);
        }
        append(catalog.as_ref(), &table, &manifests, "before").await?;

        let table = catalog.load(&ident).await?;
        let job = timelake_bench::job(table.metadata().uuid().to_string());
        engine.jobs.put_job(&job).await?;
        let open = inventory::open_table(&engine, TABLE).await?;
        let mut inventory = timelake_bench::inventory(&open)?;
        let days = Days { first: FIRST_DAY, units, rows_per_unit: ROWS };
        inventory.table.existing =
            inventory::existing_rows(&open.table, inventory.table.snapshot_id, &open.contract, &days.window()).await?;
        let stored = store::store_plan(&engine, inventory, |i| days.plan(i, &job), &job.job, 1).await?;
        rounds::open_generation(&engine, &job, &stored).await?;
        let group = GroupName::all();
        let group = engine.jobs.group(&job.job, 1, &group).await?.ok_or_else(|| Error::internal("the group was not opened"))?;

        let ours = Writer { table: &table, name: "iot-sensor-1-g1", per_day };
        let mut receipts = Vec::new();
        for unit in 0..units {
            let first = unit * per_day;
            let (manifest, written) = ours.manifest(first, per_day.min(files.saturating_sub(first)).max(1)).await?;
            receipts.push(receipt(&stored, unit, manifest, written));
        }
        catalog.live_commit(&ident, "written").await?;
        Ok(World { engine, catalog, job, stored, group, receipts, ident })
    }

    pub async fn table(&self) -> Result<Table> {
        self.catalog.load(&self.ident).await
    }
}

/// A commit of somebody else's to `main`.
async fn append(catalog: &dyn TableCatalog, table: &Table, manifests: &[ManifestRef], name: &str) -> Result<()> {
    let head = table.metadata().current_snapshot().ok_or_else(|| Error::internal("the table has no first snapshot"))?;
    let id = tries::new_snapshot_id(&SystemClock, table);
    let sum = |of: fn(&ManifestRef) -> u64| manifests.iter().map(of).sum();
    let append = Append {
        snapshot_id: id,
        manifests: manifests.iter().map(|m| timelake_table::manifest_file(m, id)).collect(),
        added: Added { files: sum(|m| m.added_files.into()), rows: sum(|m| m.added_rows), bytes: sum(|m| m.added_bytes), partitions: 1 },
        properties: &[],
        now_ms: SystemClock.now().0 / 1000,
        list_path: timelake_table::list_path(table.metadata().location(), id, name),
    };
    let snapshot = timelake_table::append_snapshot(table, head, append).await?;
    let commit = timelake_table::stage(table, "main", head.snapshot_id(), snapshot);
    match catalog.commit(table, commit.requirements, commit.updates).await? {
        CommitOutcome::Done(_) => Ok(()),
        other => Err(Error::internal(format!("{other:?}"))),
    }
}

/// The part of a day that the job, and those who wrote before, have rows in.
fn history(day: i64) -> Window {
    Window::new(day * MICROS_PER_DAY, (day + 1) * MICROS_PER_DAY - LIVE)
}

fn receipt(stored: &store::StoredPlan, unit: u32, manifest: ManifestRef, files: Vec<WrittenFile>) -> UnitReceipt {
    let rows: u64 = files.iter().map(|f| f.rows).sum();
    let window = history(FIRST_DAY + i64::from(unit));
    UnitReceipt {
        unit,
        round: 0,
        attempt: AttemptId("000000000000".into()),
        base_snapshot: stored.plan.base_snapshot,
        counts: Counts { rows_read: rows, rows_written: rows, rows_added_files: rows, ..Default::default() },
        files,
        manifests: vec![manifest],
        taken: vec![],
        left: vec![],
        errors: vec![],
        bad_rows: 0,
        warnings: vec![],
        time: Some((TimestampUs(window.low()), TimestampUs(window.high() - 1))),
        column_sums: BTreeMap::new(),
        key_hash: 0,
        chunk_rows: BTreeMap::new(),
        series: SeriesRows::default(),
    }
}

/// Writes manifests of data files that nobody reads.
struct Writer<'a> {
    table: &'a Table,
    name: &'a str,
    /// Files of a day.
    per_day: u32,
}

impl Writer<'_> {
    async fn manifest(&self, first: u32, count: u32) -> Result<(ManifestRef, Vec<WrittenFile>)> {
        let files: Vec<DataFile> = (first..first + count).map(|i| self.file(i)).collect::<Result<_>>()?;
        let spec_id = self.table.metadata().default_partition_spec_id();
        let written = files.iter().map(|f| WrittenFile {
            path: f.file_path().to_string(),
            bytes: BYTES,
            rows: ROWS,
            spec_id,
            partition: vec![],
            key_hash: 0,
            column_sums: BTreeMap::new(),
        });
        let written = written.collect();
        Ok((self.write(first, files).await?, written))
    }

    async fn write(&self, number: u32, files: Vec<DataFile>) -> Result<ManifestRef> {
        let metadata = self.table.metadata();
        let path = format!("{}/metadata/{}-{number:06}.avro", metadata.location(), self.name);
        let (schema, spec) = (metadata.current_schema().clone(), metadata.default_partition_spec());
        timelake_table::write_manifest(self.table.file_io(), schema, spec, path, files).await
    }

    fn file(&self, i: u32) -> Result<DataFile> {
        let day = FIRST_DAY + i64::from(i / self.per_day);
        self.file_of(i, day, history(day))
    }

    /// With the metrics that our files have: sizes, counts and bounds of four columns.
    fn file_of(&self, i: u32, day: i64, times: Window) -> Result<DataFile> {
        let bucket = (i % 16) as i32;
        let of_all = |value: u64| (1..=4).map(|id| (id, value)).collect::<HashMap<i32, u64>>();
        let bounds = |time: i64, device: &str, value: f64, quality: i32| {
            let device = Datum::string(format!("plant{}/{device}", i % 7));
            HashMap::from([(1, Datum::timestamptz_micros(time)), (2, device), (3, Datum::double(value)), (4, Datum::int(quality))])
        };
        let location = self.table.metadata().location();
        DataFileBuilder::default()
            .content(DataContentType::Data)
            .file_path(format!("{location}/data/ts_day={day}/device_id_bucket={bucket}/{}-u{i:06}-r0-5f3c2a9d8e71-000.parquet", self.name))
            .file_format(DataFileFormat::Parquet)
            .partition(Struct::from_iter([Some(Literal::int(day as i32)), Some(Literal::int(bucket))]))
            .partition_spec_id(self.table.metadata().default_partition_spec_id())
            .record_count(ROWS)
            .file_size_in_bytes(BYTES + u64::from(i % 4099))
            .column_sizes(of_all(BYTES / 5 + u64::from(i % 1009)))
            .value_counts(of_all(ROWS))
            .null_value_counts(of_all(0))
            .nan_value_counts(HashMap::from([(3, 0)]))
            .lower_bounds(bounds(times.low(), "line1", -f64::from(i), 0))
            .upper_bounds(bounds(times.high() - 1, "line9", f64::from(i), 3))
            .split_offsets(Some(vec![4]))
            .sort_order_id(1)
            .build()
            .map_err(|e| Error::internal(e.to_string()))
    }
}

/// The catalog of a table that is written to: others commit before the job can, and the CPU time from each load to the end
/// of its commit is noted, without theirs.
pub struct Busy {
    inner: SqliteCatalog,
    last_day: i64,
    /// Commits of the job that others come before.
    moves: AtomicU32,
    loaded: Mutex<f64>,
    tries: Mutex<Vec<f64>>,
}

impl Busy {
    /// From now on others come before so many commits, and tries are noted.
    pub fn others_come_first(&self, count: u32) {
        self.moves.store(count, Ordering::SeqCst);
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn tries(&self) -> Vec<f64> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Others write to the last day of the job's window, after its last row.
    async fn live_commit(&self, ident: &TableIdent, name: &str) -> Result<()> {
        let table = self.inner.load(ident).await?;
        let end = (self.last_day + 1) * MICROS_PER_DAY;
        let live = Writer { table: &table, name, per_day: 1 };
        let file = live.file_of(0, self.last_day, Window::new(end - LIVE, end))?;
        append(&self.inner, &table, &[live.write(0, vec![file]).await?], name).await
    }
}

#[async_trait]
impl TableCatalog for Busy {
    async fn load(&self, table: &TableIdent) -> Result<Table> {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = cpu_s();
        self.inner.load(table).await
    }

    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome> {
        let before = cpu_s();
        if let Ok(left) = self.moves.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            self.live_commit(base.identifier(), &format!("live-{left}")).await?;
        }
        let theirs = cpu_s() - before;
        let outcome = self.inner.commit(base, requirements, updates).await?;
        let took = cpu_s() - theirs - *self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        Ok(outcome)
    }

    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table> {
        self.inner.create(table, metadata).await
    }

    fn default_location(&self, table: &TableIdent) -> String {
        self.inner.default_location(table)
    }

    async fn list(&self) -> Result<Vec<TableIdent>> {
        self.inner.list().await
    }
}
