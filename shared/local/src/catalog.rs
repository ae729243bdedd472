//! The catalog of an embedded lake: SQLite with the tables of PyIceberg's `SqlCatalog` (catalog name `timelake`), so
//! that both open the same file, and table metadata as JSON files in the warehouse.
//!
//! The file keeps SQLite's rollback journal: a commit is one small transaction, readers never hold it for long, and
//! the folder has no side files. Waiting for another process is left to SQLite.
//!
//! Must never happen: a pointer to a metadata file or manifest list that would not survive a power loss, and a
//! metadata file deleted after a swap whose outcome is not known.

use crate::SystemClock;
use crate::objects::write_error;
use crate::sqlite::{CATALOG, check_header, is_absent_or_empty, is_busy};
use async_trait::async_trait;
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{MetadataLocation, NamespaceIdent, TableIdent, TableRequirement, TableUpdate};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timelake_engine::ports::{Clock, CommitOutcome, TableCatalog};
use timelake_model::{Error, Reason, Result};
use timelake_table::commits::apply;
use timelake_table::errors::at_file;
use timelake_table::pointer::{next_location, no_table, read_metadata, table_at, table_exists};

/// The name PyIceberg opens the catalog with.
pub const CATALOG_NAME: &str = "timelake";
/// How long a statement waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// The folder of the lake that writes to a table outside it.
const LAKE_PROPERTY: &str = "timelake.lake";

const CREATE_TABLES: &str = "
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL,
    table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000),
    previous_metadata_location VARCHAR(1000),
    iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255) NOT NULL,
    property_value VARCHAR(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);";

#[derive(Debug, Clone)]
pub struct SqliteCatalog {
    connection: Arc<Mutex<Connection>>,
    database: PathBuf,
    /// Where new tables go: `file:///abs/path/warehouse` or `s3://bucket/prefix`, without a slash at the end.
    warehouse: String,
    /// The lake's folder. `None`: tables are another catalog's, which has looked whose they are.
    home: Option<PathBuf>,
    /// Files are on disk before a commit names them.
    durable: bool,
    /// Catalogs made by older clients have no type column; all their rows are tables.
    has_type: bool,
    file_io: FileIO,
}

impl SqliteCatalog {
    /// Opens `catalog.db` with its warehouse folder; makes both when `create` is set.
    pub fn open(database: &Path, warehouse: &Path, create: bool) -> Result<SqliteCatalog> {
        let address = warehouse_address(warehouse)?;
        // Before the database is looked at: who makes a table makes the database first.
        let table_folder = first_table_folder(warehouse);
        let no_lake = || {
            Error::not_found(Reason::PathNotFound, format!("there is no catalog at {}", database.display()))
                .hint("make a table first: timelake table create, or check --lake")
                .at(|p| p.file = Some(database.display().to_string()))
        };
        if is_absent_or_empty(database) {
            if let Some(folder) = &table_folder {
                return Err(lost(database, folder));
            }
            if !create {
                return Err(no_lake());
            }
        }
        check_header(&CATALOG, database)?;
        if create {
            std::fs::create_dir_all(warehouse).map_err(|e| write_error(warehouse, e))?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let flags = if create { flags | OpenFlags::SQLITE_OPEN_CREATE } else { flags };
        let mut connection = Connection::open_with_flags(database, flags).map_err(|e| CATALOG.error(database, e))?;
        let has_type = match prepare(&mut connection, create && table_folder.is_none()).map_err(|e| CATALOG.error(database, e))? {
            Content::Catalog { has_type } => has_type,
            Content::Empty => return Err(table_folder.map_or_else(no_lake, |folder| lost(database, &folder))),
            Content::Other => return Err(CATALOG.damaged_error(database, "it is an SQLite file, but not a catalog")),
        };
        Ok(SqliteCatalog {
            connection: Arc::new(Mutex::new(connection)),
            database: database.to_path_buf(),
            warehouse: address,
            home: Some(database.parent().unwrap_or(Path::new("")).to_path_buf()),
            durable: true,
            has_type,
            file_io: FileIO::new_with_fs(),
        })
    }

    /// Table files are read and written by this.
    pub fn with_file_io(self, file_io: FileIO) -> SqliteCatalog {
        SqliteCatalog { file_io, ..self }
    }

    /// New tables go below this prefix of a remote store.
    pub fn with_warehouse(self, prefix: &str) -> SqliteCatalog {
        SqliteCatalog { warehouse: prefix.trim_end_matches('/').to_string(), ..self }
    }

    /// The database is there for the time of a run; the tables are those of the lake in `home`, or of another catalog.
    pub(crate) fn standing_for(self, home: Option<&Path>) -> SqliteCatalog {
        SqliteCatalog { home: home.map(Path::to_path_buf), durable: false, ..self }
    }

    pub fn file_io(&self) -> &FileIO {
        &self.file_io
    }

    /// Runs `work` on a thread that may block.
    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Connection) -> T + Send + 'static) -> Result<T> {
        let connection = self.connection.clone();
        let run = move || {
            // A panic while the lock was held left no transaction behind: SQLite rolled it back.
            let mut guard = connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            work(&mut guard)
        };
        tokio::task::spawn_blocking(run).await.map_err(|e| Error::internal(format!("a catalog call broke off: {e}")))
    }

    /// [`Self::with`] for calls whose failure changed nothing.
    async fn query<T: Send + 'static>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static) -> Result<T> {
        self.with(work).await?.map_err(|e| CATALOG.error(&self.database, e))
    }

    /// Only tables, not views, where the catalog tells them apart.
    fn type_filter(&self) -> &'static str {
        if self.has_type { " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)" } else { "" }
    }

    /// Locations in a catalog are absolute. In a lake that was copied they still lead to the original, whose files
    /// a second catalog must not add to; in one that was moved they lead nowhere.
    fn refuse_elsewhere(&self, table: &TableIdent, location: &str) -> Result<()> {
        if is_remote(location) {
            return Ok(()); // told by the property that `create` sets
        }
        let Some(home) = &self.home else { return Ok(()) };
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let lake = real(home);
        let file = Path::new(location.strip_prefix("file://").unwrap_or(location));
        if real(file.parent().unwrap_or(file)).starts_with(&lake) {
            return Ok(());
        }
        Err(Error::conflict(
            Reason::TableChanged,
            format!("the catalog of this lake says that {table} is at {location}, outside the lake {}", lake.display()),
        )
        .hint("the lake was moved or copied: use it where it was made, or make the table here and load it from the other one's files")
        .at(|p| {
            p.table = Some(table.to_string());
            p.file = Some(location.to_string());
        }))
    }

    fn lake(&self) -> Option<String> {
        let home = self.home.as_ref()?;
        Some(home.canonicalize().unwrap_or_else(|_| home.clone()).display().to_string())
    }

    /// A table outside the lake's folder says whose it is: two copies of a lake must not both write to it.
    fn with_lake(&self, metadata: TableMetadata) -> Result<TableMetadata> {
        let Some(lake) = self.lake().filter(|_| is_remote(metadata.location())) else { return Ok(metadata) };
        let lake = std::collections::HashMap::from([(LAKE_PROPERTY.to_string(), lake)]);
        let built = metadata.into_builder(None).set_properties(lake).and_then(|builder| builder.build());
        Ok(built.map_err(|e| Error::internal(format!("the new table's metadata is not valid: {e}")))?.metadata)
    }

    fn refuse_other_lake(&self, table: &TableIdent, metadata: &TableMetadata) -> Result<()> {
        let Some(lake) = self.lake() else { return Ok(()) };
        match metadata.properties().get(LAKE_PROPERTY) {
            Some(other) if *other != lake => Err(Error::conflict(
                Reason::TableChanged,
                format!("{table} at {} belongs to the lake {other}, this one is {lake}", metadata.location()),
            )
            .hint("the lake was moved or copied: use it where it was made, or make the table here and load it from the other one's files")
            .at(|p| {
                p.table = Some(table.to_string());
                p.file = Some(metadata.location().to_string());
            })),
            _ => Ok(()),
        }
    }

    async fn pointer(&self, table: &TableIdent) -> Result<Option<String>> {
        let sql = format!(
            "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ?1 AND table_namespace = ?2 AND table_name = ?3{}",
            self.type_filter()
        );
        let (namespace, name) = key(table);
        let found = self
            .query(move |c| c.query_row(&sql, params![CATALOG_NAME, namespace, name], |r| r.get::<_, Option<String>>(0)).optional())
            .await?;
        Ok(found.flatten())
    }

    fn table(&self, ident: &TableIdent, location: String, metadata: TableMetadata) -> Result<Table> {
        table_at(&self.file_io, ident, location, metadata)
    }

    /// Names a table whose metadata is at `location`.
    pub(crate) async fn register(&self, table: &TableIdent, location: &str) -> Result<()> {
        let (namespace, name) = key(table);
        let (pointer, has_type) = (location.to_string(), self.has_type);
        let inserted = self
            .with(move |c| -> rusqlite::Result<()> {
                let t = c.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let known = "SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = ?1 AND namespace = ?2 LIMIT 1";
                if t.query_row(known, params![CATALOG_NAME, namespace], |_| Ok(())).optional()?.is_none() {
                    t.execute(
                        "INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) \
                         VALUES (?1, ?2, 'exists', 'true')",
                        params![CATALOG_NAME, namespace],
                    )?;
                }
                let sql = if has_type {
                    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) \
                     VALUES (?1, ?2, ?3, ?4, 'TABLE')"
                } else {
                    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES (?1, ?2, ?3, ?4)"
                };
                t.execute(sql, params![CATALOG_NAME, namespace, name, pointer])?;
                t.commit()
            })
            .await?;
        inserted.map_err(|e| match e.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => table_exists(table),
            _ => CATALOG.error(&self.database, e),
        })
    }

    async fn write_metadata(&self, metadata: &TableMetadata, location: &MetadataLocation) -> Result<()> {
        metadata.write_to(&self.file_io, location).await.map_err(|e| at_file(e, "writing the table metadata", &location.to_string()))?;
        self.make_durable(vec![location.to_string()]).await
    }

    /// Files and the entries of their folders.
    async fn make_durable(&self, locations: Vec<String>) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let run = move || {
            // A remote object is durable once it is written.
            let paths: Vec<PathBuf> = locations.iter().filter(|l| !is_remote(l)).map(|l| local_path(l)).collect();
            for path in &paths {
                sync(path)?;
            }
            for folder in paths.iter().filter_map(|p| p.parent()).collect::<BTreeSet<_>>() {
                sync(folder)?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(run).await.map_err(|e| Error::internal(format!("a catalog call broke off: {e}")))?
    }
}

#[async_trait]
impl TableCatalog for SqliteCatalog {
    async fn load(&self, table: &TableIdent) -> Result<Table> {
        let location = self.pointer(table).await?.ok_or_else(|| no_table(table))?;
        self.refuse_elsewhere(table, &location)?;
        let metadata = read_metadata(&self.file_io, table, &location).await?;
        self.refuse_other_lake(table, &metadata)?;
        self.table(table, location, metadata)
    }

    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome> {
        let ident = base.identifier().clone();
        let old = base.metadata_location_result().map_err(|e| Error::internal(e.to_string()))?.to_string();
        // A stale base can be told apart before any file is written.
        match self.pointer(&ident).await? {
            None => return Ok(CommitOutcome::Conflict(format!("the table {ident} is gone"))),
            Some(now) if now != old => return Ok(CommitOutcome::Conflict(format!("{ident} was changed by another commit"))),
            Some(_) => {}
        }
        let lists: Vec<String> = updates
            .iter()
            .filter_map(|u| match u {
                TableUpdate::AddSnapshot { snapshot } => Some(snapshot.manifest_list().to_string()),
                _ => None,
            })
            .collect();
        let metadata = match apply(base, &requirements, updates, SystemClock.now().0.div_euclid(1000)) {
            Ok(metadata) => metadata,
            Err(e) if e.reason == Reason::CommitConflict => return Ok(CommitOutcome::Conflict(e.message)),
            Err(e) => return Err(e),
        };
        let location = next_location(&old, &metadata);
        self.make_durable(lists).await?;
        self.write_metadata(&metadata, &location).await?;

        let (namespace, name) = key(&ident);
        let (new, filter) = (location.to_string(), self.type_filter());
        let swapped = {
            let (old, new) = (old.clone(), new.clone());
            self.with(move |c| swap(c, filter, &namespace, &name, &old, &new)).await?
        };
        match swapped {
            Swap::Done => Ok(CommitOutcome::Done(Box::new(self.table(&ident, new, metadata)?))),
            Swap::Moved => Ok(CommitOutcome::Conflict(format!("{ident} was changed by another commit"))),
            Swap::Refused(e) => Err(CATALOG.error(&self.database, e)),
            // The connection looks: SQLite undoes a commit that failed before anybody reads, here as in other processes.
            Swap::Unclear(e) => match self.pointer(&ident).await {
                Ok(Some(now)) if now == new => Ok(CommitOutcome::Done(Box::new(self.table(&ident, new, metadata)?))),
                Ok(Some(now)) if now == old => Err(CATALOG.error(&self.database, e)),
                _ => Ok(CommitOutcome::Unknown(format!("the catalog did not say whether {ident} was committed: {e}"))),
            },
        }
    }

    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table> {
        if self.pointer(table).await?.is_some() {
            return Err(table_exists(table));
        }
        let metadata = self.with_lake(metadata)?;
        let location = MetadataLocation::new_with_metadata(metadata.location(), &metadata);
        self.write_metadata(&metadata, &location).await?;
        self.register(table, &location.to_string()).await?;
        self.table(table, location.to_string(), metadata)
    }

    fn default_location(&self, table: &TableIdent) -> String {
        let (namespace, name) = key(table);
        format!("{}/{namespace}/{name}", self.warehouse)
    }

    async fn list(&self) -> Result<Vec<TableIdent>> {
        let sql = format!(
            "SELECT table_namespace, table_name FROM iceberg_tables WHERE catalog_name = ?1{} ORDER BY table_namespace, table_name",
            self.type_filter()
        );
        let rows = self
            .query(move |c| {
                let mut statement = c.prepare(&sql)?;
                let rows = statement.query_map(params![CATALOG_NAME], |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)))?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            })
            .await?;
        rows.into_iter()
            .map(|(namespace, name)| {
                let namespace = NamespaceIdent::from_strs(namespace.split('.'))
                    .map_err(|e| Error::corrupt(Reason::CatalogDamaged, format!("the catalog names a table without a namespace: {e}")))?;
                Ok(TableIdent::new(namespace, name))
            })
            .collect()
    }
}

/// Namespace and name as the catalog's rows hold them.
fn key(table: &TableIdent) -> (String, String) {
    (table.namespace().join("."), table.name().to_string())
}

/// Where tables go as Iceberg names it: `file:///abs/path/warehouse`, without a slash at the end. Refuses a folder whose
/// name cannot stand in an address.
pub(crate) fn warehouse_address(warehouse: &Path) -> Result<String> {
    let absolute = std::path::absolute(warehouse)
        .map_err(|e| Error::unavailable(Reason::StorageUnavailable, format!("{} has no absolute path: {e}", warehouse.display())))?;
    let folder = absolute.to_str().filter(|t| !t.contains(['#', '?'])).ok_or_else(|| {
        Error::invalid(Reason::InvalidOption, format!("the warehouse {} cannot be written as a file: address", absolute.display()))
            .hint("use a path of UTF-8 characters without # and ?")
            .at(|p| p.option = Some("--lake".into()))
    })?;
    Ok(format!("file://{}", folder.trim_end_matches('/')))
}

/// A table's folder in the warehouse (`namespace/table` with metadata in it), if there is one.
fn first_table_folder(warehouse: &Path) -> Option<PathBuf> {
    let folders = |of: &Path| std::fs::read_dir(of).into_iter().flatten().filter_map(|entry| entry.ok().map(|e| e.path()));
    folders(warehouse).flat_map(|namespace| folders(&namespace)).filter(|table| table.join("metadata").is_dir()).min()
}

/// Tables without their catalog: an empty one in its place would hide them, and new tables could take their folders.
fn lost(database: &Path, table_folder: &Path) -> Error {
    CATALOG.damaged_error(database, format!("it is gone or empty, and there are tables in {}", table_folder.display()))
}

/// What a database holds.
enum Content {
    Catalog {
        has_type: bool,
    },
    /// Nothing at all.
    Empty,
    /// Tables of somebody else.
    Other,
}

/// Looks what the database is; makes our tables when it is empty and `may_be_new`.
fn prepare(connection: &mut Connection, may_be_new: bool) -> rusqlite::Result<Content> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // FULL: a commit is on disk when it returns. Temporary files need no folder.
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY")?;
    let count = |c: &Connection, of: &str| c.query_row(&format!("SELECT count(*) FROM sqlite_master{of}"), [], |r| r.get::<_, i64>(0));
    const OURS: &str = " WHERE type = 'table' AND name IN ('iceberg_tables', 'iceberg_namespace_properties')";
    match (count(connection, OURS)?, count(connection, "")?) {
        (2, _) => {}
        (1, _) => connection.execute_batch(CREATE_TABLES)?,
        (_, 0) if may_be_new => {
            // Several processes can be here at once: who comes second finds them made.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(CREATE_TABLES)?;
            transaction.commit()?;
        }
        (_, 0) => return Ok(Content::Empty),
        _ => return Ok(Content::Other),
    }
    let mut statement = connection.prepare("SELECT 1 FROM pragma_table_info('iceberg_tables') WHERE name = 'iceberg_type'")?;
    Ok(Content::Catalog { has_type: statement.exists([])? })
}

enum Swap {
    Done,
    /// The pointer was not the expected one; nothing changed.
    Moved,
    /// Failed before the commit, or a commit that SQLite refused: nothing changed.
    Refused(rusqlite::Error),
    /// The commit broke off.
    Unclear(rusqlite::Error),
}

fn swap(connection: &mut Connection, type_filter: &str, namespace: &str, name: &str, old: &str, new: &str) -> Swap {
    let transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(transaction) => transaction,
        Err(e) => return Swap::Refused(e),
    };
    let sql = format!(
        "UPDATE iceberg_tables SET metadata_location = ?1, previous_metadata_location = ?2 \
         WHERE catalog_name = ?3 AND table_namespace = ?4 AND table_name = ?5 AND metadata_location = ?2{type_filter}"
    );
    match transaction.execute(&sql, params![new, old, CATALOG_NAME, namespace, name]) {
        Ok(1) => match transaction.commit() {
            Ok(()) => Swap::Done,
            // Readers that do not end, or no room: the transaction still stands and is rolled back.
            Err(e) if is_busy(&e) || e.sqlite_error_code() == Some(ErrorCode::DiskFull) => Swap::Refused(e),
            Err(e) => Swap::Unclear(e),
        },
        Ok(_) => Swap::Moved,
        Err(e) => Swap::Refused(e),
    }
}

/// Not below a file system that is ours to sync.
fn is_remote(location: &str) -> bool {
    timelake_source::remote::scheme(location).is_some_and(|scheme| scheme != "file")
}

/// `file:///abs`, `file:/abs` and `/abs` are the same file.
pub(crate) fn local_path(location: &str) -> PathBuf {
    let rest = location.strip_prefix("file:").unwrap_or(location);
    PathBuf::from(format!("/{}", rest.trim_start_matches('/')))
}

fn sync(path: &Path) -> Result<()> {
    std::fs::File::open(path).and_then(|f| f.sync_all()).map_err(|e| write_error(path, e))
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
