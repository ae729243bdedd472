//! A catalog of one table as a value: real table metadata, changed by the real requirements and updates.
//!
//! Must never happen: two states that are told apart by anything but what a caller can see. Times of changes follow
//! from the version, logs of them are dropped.

use super::space::digest;
use crate::clock::START;
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{Runtime, TableIdent, TableRequirement, TableUpdate};
use serde_json::Value;
use std::fmt;
use timelake_model::{Error, Reason, Result};
use timelake_table::commits::apply;

/// How a catalog decides whether a commit may go in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// By the metadata pointer as well: the table must still be what the caller loaded (SQLite, Glue).
    Pointer,
    /// By the requirements alone, against the table as it is by now (REST). The weaker promise.
    Requirements,
}

/// The catalog, at one moment.
#[derive(Clone)]
pub struct CatalogState {
    pub swap: Swap,
    pub file_io: FileIO,
    /// Grows with each commit, so that no earlier state comes back.
    version: u32,
    table: Option<Table>,
    pub key: u128,
}

/// A loaded table; its text is what tells it from others.
#[derive(Clone)]
pub struct Loaded(pub Result<Table>, u128);

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {:032x}", self.1)
    }
}

/// [`timelake_engine::ports::CommitOutcome`], to keep.
#[derive(Clone)]
pub enum Committed {
    Done(Loaded),
    Conflict(String),
    Unknown(String),
    Failed(Error),
}

impl fmt::Debug for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Committed::Done(loaded) => write!(f, "done {loaded:?}"),
            Committed::Conflict(why) => write!(f, "conflict {why}"),
            Committed::Unknown(why) => write!(f, "unknown {why}"),
            Committed::Failed(error) => write!(f, "{error:?}"),
        }
    }
}

impl CatalogState {
    pub fn new(swap: Swap) -> Self {
        CatalogState { swap, file_io: FileIO::new_with_memory(), version: 0, table: None, key: 0 }
    }

    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    pub fn load(&self, ident: &TableIdent) -> Loaded {
        let table = self.table.clone().filter(|t| t.identifier() == ident);
        Loaded(table.ok_or_else(|| Error::not_found(Reason::TableNotFound, format!("there is no table {ident}"))), self.key)
    }

    pub fn create(&mut self, ident: &TableIdent, metadata: TableMetadata) -> Loaded {
        if self.table.is_some() {
            return Loaded(Err(Error::conflict(Reason::TableExists, format!("there is a table {ident} already"))), self.key);
        }
        self.put(ident, metadata);
        self.load(ident)
    }

    pub fn commit(&mut self, base: &Table, requirements: &[TableRequirement], updates: &[TableUpdate]) -> Committed {
        let Some(now) = self.table.clone() else { return Committed::Conflict("the table is gone".into()) };
        if self.swap == Swap::Pointer && base.metadata_location() != now.metadata_location() {
            return Committed::Conflict("the table was changed by another commit".into());
        }
        // The table's times are set below, so no clock is behind them.
        match apply(&now, requirements, updates.to_vec(), i64::MAX) {
            Ok(metadata) => {
                self.put(now.identifier(), metadata);
                Committed::Done(self.load(now.identifier()))
            }
            Err(e) if e.reason == Reason::CommitConflict => Committed::Conflict(e.message),
            Err(e) => Committed::Failed(e),
        }
    }

    fn put(&mut self, ident: &TableIdent, metadata: TableMetadata) {
        self.version += 1;
        let mut json = serde_json::to_value(&metadata).expect("metadata has a JSON form");
        let fields = json.as_object_mut().expect("metadata is an object");
        fields.insert("last-updated-ms".into(), (START.0 / 1000 + i64::from(self.version)).into());
        fields.remove("metadata-log");
        self.key = digest(&(self.version, canonical(json.clone())));
        let metadata: TableMetadata = serde_json::from_value(json).expect("it was metadata before");
        let table = Table::builder()
            .identifier(ident.clone())
            .metadata_location(format!("{}/metadata/{:05}.metadata.json", metadata.location(), self.version))
            .metadata(metadata)
            .file_io(self.file_io.clone())
            .runtime(Runtime::try_current().expect("the search runs inside a runtime"))
            .disable_cache()
            .build();
        self.table = Some(table.expect("all parts of a table are given"));
    }
}

/// The text of a JSON value that does not depend on the order of maps: keys sorted, snapshots by id.
pub fn canonical(value: Value) -> String {
    fn write(value: Value, out: &mut String) {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.into_iter().collect();
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                for (name, value) in fields {
                    out.push_str(&name);
                    out.push(':');
                    write(value, out);
                }
                out.push('}');
            }
            Value::Array(mut items) => {
                if items.iter().all(|i| i.get("snapshot-id").is_some() && i.get("manifest-list").is_some()) {
                    items.sort_by_key(|i| i["snapshot-id"].as_i64());
                }
                items.into_iter().for_each(|item| write(item, out));
                out.push(']');
            }
            plain => {
                out.push_str(&plain.to_string());
                out.push(',');
            }
        }
    }
    let mut out = String::new();
    write(value, &mut out);
    out
}
