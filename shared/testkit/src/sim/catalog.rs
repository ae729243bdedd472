//! A catalog of one table in memory: real table metadata, changed by the real requirements and updates. The time of its
//! commits is the world's.

use crate::checker::Swap;
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{Runtime, TableIdent, TableRequirement, TableUpdate};
use std::sync::Arc;
use timelake_engine::tables::parse_name;
use timelake_model::{Error, Reason, Result};
use timelake_table::commits::apply;

pub const TABLE: &str = "iot.sensor";
pub const LOCATION: &str = "mem://lake/iot/sensor";
const UUID: &str = "5f0c1d2e-0000-4000-8000-000000000001";

pub fn ident() -> TableIdent {
    parse_name(TABLE).expect("a name")
}

#[derive(Default)]
pub struct Catalog {
    version: u32,
    pub metadata: Option<Arc<TableMetadata>>,
}

/// How a swap ended.
pub enum Swapped {
    Done,
    Conflict(String),
    Failed(Error),
}

impl Catalog {
    pub fn load(&self, ident: &TableIdent, file_io: FileIO, runtime: Runtime) -> Result<Table> {
        let metadata = self.metadata.clone().filter(|_| *ident == self::ident());
        let metadata = metadata.ok_or_else(|| Error::not_found(Reason::TableNotFound, format!("there is no table {ident}")))?;
        Ok(table(metadata, self.location(), file_io, runtime))
    }

    fn location(&self) -> String {
        format!("{LOCATION}/metadata/{:05}.metadata.json", self.version)
    }

    pub fn create(&mut self, metadata: TableMetadata, now_ms: i64) {
        self.put(metadata, now_ms, None);
    }

    /// `swap`: how it decides whether the table is still what the commit was made for.
    pub fn commit(
        &mut self,
        base: &Table,
        requirements: &[TableRequirement],
        updates: &[TableUpdate],
        swap: Swap,
        now_ms: i64,
        runtime: Runtime,
    ) -> Swapped {
        let Some(metadata) = self.metadata.clone() else { return Swapped::Conflict("the table is gone".into()) };
        let location = self.location();
        if swap == Swap::Pointer && base.metadata_location() != Some(location.as_str()) {
            return Swapped::Conflict("the table was changed by another commit".into());
        }
        let last_ms = metadata.last_updated_ms();
        let now = table(metadata, location, base.file_io().clone(), runtime);
        // The table's times are set below, so no clock is behind them.
        match apply(&now, requirements, updates.to_vec(), i64::MAX) {
            Ok(metadata) => {
                self.put(metadata, now_ms, Some(last_ms));
                Swapped::Done
            }
            Err(e) if e.reason == Reason::CommitConflict => Swapped::Conflict(e.message),
            Err(e) => Swapped::Failed(e),
        }
    }

    /// What the crate takes from the machine (time, uuid) comes from the world instead.
    fn put(&mut self, metadata: TableMetadata, now_ms: i64, last_ms: Option<i64>) {
        self.version += 1;
        let newest = metadata.snapshots().map(|s| s.timestamp_ms()).max().unwrap_or(0);
        let at_ms = now_ms.max(last_ms.map_or(0, |last| last + 1)).max(newest);
        let mut json = serde_json::to_value(&metadata).expect("metadata has a JSON form");
        let fields = json.as_object_mut().expect("metadata is an object");
        fields.insert("last-updated-ms".into(), at_ms.into());
        fields.insert("table-uuid".into(), UUID.into());
        fields.remove("metadata-log");
        // Of the log the crate only wants that it ends where `main` is.
        let log = metadata.current_snapshot_id().map(|id| serde_json::json!({"snapshot-id": id, "timestamp-ms": at_ms}));
        fields.insert("snapshot-log".into(), log.into_iter().collect());
        self.metadata = Some(Arc::new(serde_json::from_value(json).expect("it was metadata before")));
    }
}

pub fn table(metadata: Arc<TableMetadata>, location: String, file_io: FileIO, runtime: Runtime) -> Table {
    let table = Table::builder()
        .identifier(ident())
        .metadata_location(location)
        .metadata(metadata)
        .file_io(file_io)
        .runtime(runtime)
        .disable_cache()
        .build();
    table.expect("all parts of a table are given")
}
