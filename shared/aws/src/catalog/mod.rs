//! Iceberg tables in the Glue Data Catalog. The pointer is the parameter `metadata_location` of a Glue table; it moves by
//! `UpdateTable` with the `VersionId` that was read together with the old pointer, so of two commits one is refused.
//!
//! Whatever else a Glue table has (parameters, description, owner, serialisation, comments of columns) is other people's
//! and stays. Old versions are not archived: Glue keeps at most 100,000 of an account.
//!
//! Must never happen: an update that is sent a second time after an answer that is not known, and an answer that says
//! "conflict" where the update may have been carried out.

mod columns;

use crate::catalog::columns::columns;
use crate::errors::Failure;
use crate::retry::{Settings, tried};
use async_trait::async_trait;
use aws_sdk_glue::Client;
use aws_sdk_glue::types::{DatabaseInput, StorageDescriptor, Table as GlueTable, TableInput};
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{MetadataLocation, NamespaceIdent, TableIdent, TableRequirement, TableUpdate};
use std::collections::HashMap;
use std::sync::Arc;
use timelake_engine::ports::{Clock, CommitOutcome, TableCatalog};
use timelake_model::{Error, Reason, Result};
use timelake_table::commits::apply;
use timelake_table::errors::at_file;
use timelake_table::pointer::{next_location, no_table, read_metadata, table_at, table_exists};

const METADATA_LOCATION: &str = "metadata_location";
const PREVIOUS_METADATA_LOCATION: &str = "previous_metadata_location";
/// Parameter that tells what a table of Glue is.
const TABLE_TYPE: &str = "table_type";
const ICEBERG: &str = "ICEBERG";
const EXTERNAL_TABLE: &str = "EXTERNAL_TABLE";
/// Answers of `UpdateTable` after which nothing has changed and another try, from a new load, may do.
const OVERTAKEN: [&str; 5] = [
    "ConcurrentModificationException",
    "VersionMismatchException",
    "EntityNotFoundException",
    "ResourceNotReadyException",
    "ThrottlingException",
];
const MISSING: &str = "EntityNotFoundException";
const EXISTS: &str = "AlreadyExistsException";

/// Answers that say nothing about what was done, whatever their status.
const UNCLEAR: [&str; 2] = ["OperationTimeoutException", "InternalServiceException"];

/// The tables of one account and region.
#[derive(Clone)]
pub struct GlueCatalog {
    client: Client,
    settings: Settings,
    /// Lists name the tables of this database; without one, of all.
    database: Option<String>,
    /// Where new tables go, without a slash at the end.
    warehouse: String,
    file_io: FileIO,
    clock: Arc<dyn Clock>,
}

impl GlueCatalog {
    /// Table files are read and written by `file_io`; new tables go below `warehouse`.
    pub fn new(client: Client, warehouse: &str, file_io: FileIO, clock: Arc<dyn Clock>) -> GlueCatalog {
        let warehouse = warehouse.trim_end_matches('/').to_string();
        GlueCatalog { client, settings: Settings::default(), database: None, warehouse, file_io, clock }
    }

    pub fn with_database(self, database: Option<String>) -> GlueCatalog {
        GlueCatalog { database, ..self }
    }

    fn told(failure: Failure, what: &str) -> Error {
        failure.told_of("the Glue catalog", what, Reason::CatalogUnavailable)
    }

    async fn find(&self, table: &TableIdent) -> Result<Option<GlueTable>> {
        let database = database(table)?;
        let call = || async {
            let request = self.client.get_table().database_name(database).name(table.name());
            match request.send().await.map_err(Failure::from) {
                Ok(answer) => Ok(answer.table),
                Err(failure) if failure.has_code(MISSING) => Ok(None),
                Err(failure) => Err(failure),
            }
        };
        tried(&self.settings, call).await.0.map_err(|failure| Self::told(failure, "read"))
    }

    async fn pointer(&self, table: &TableIdent) -> Result<Option<String>> {
        self.find(table).await?.map(|found| pointer(table, &found)).transpose()
    }

    async fn write_metadata(&self, metadata: &TableMetadata, location: &MetadataLocation) -> Result<()> {
        metadata.write_to(&self.file_io, location).await.map_err(|e| at_file(e, "writing the table metadata", &location.to_string()))
    }

    async fn make_database(&self, name: &str) -> Result<()> {
        let look = || async {
            match self.client.get_database().name(name).send().await.map_err(Failure::from) {
                Ok(_) => Ok(true),
                Err(failure) if failure.has_code(MISSING) => Ok(false),
                Err(failure) => Err(failure),
            }
        };
        if tried(&self.settings, look).await.0.map_err(|failure| Self::told(failure, "read"))? {
            return Ok(());
        }
        let input = DatabaseInput::builder().name(name).build().map_err(|e| Error::internal(e.to_string()))?;
        let make = || async {
            match self.client.create_database().database_input(input.clone()).send().await.map_err(Failure::from) {
                Err(failure) if !failure.has_code(EXISTS) => Err(failure),
                _ => Ok(()),
            }
        };
        tried(&self.settings, make).await.0.map_err(|failure| Self::told(failure, "written"))
    }

    async fn databases(&self) -> Result<Vec<String>> {
        if let Some(database) = &self.database {
            return Ok(vec![database.clone()]);
        }
        let (mut names, mut next) = (Vec::new(), None);
        loop {
            let call = || async { self.client.get_databases().set_next_token(next.clone()).send().await.map_err(Failure::from) };
            let page = tried(&self.settings, call).await.0.map_err(|failure| Self::told(failure, "listed"))?;
            names.extend(page.database_list.into_iter().map(|database| database.name));
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(names);
            }
        }
    }

    async fn tables(&self, database: &str) -> Result<Vec<GlueTable>> {
        let (mut tables, mut next) = (Vec::new(), None);
        loop {
            let call = || async {
                let request = self.client.get_tables().database_name(database).set_next_token(next.clone());
                match request.send().await.map_err(Failure::from) {
                    Ok(page) => Ok((page.table_list.unwrap_or_default(), page.next_token)),
                    // Removed meanwhile, or not yet made.
                    Err(failure) if failure.has_code(MISSING) => Ok((vec![], None)),
                    Err(failure) => Err(failure),
                }
            };
            let (page, token) = tried(&self.settings, call).await.0.map_err(|failure| Self::told(failure, "listed"))?;
            tables.extend(page);
            next = token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(tables);
            }
        }
    }
}

#[async_trait]
impl TableCatalog for GlueCatalog {
    async fn load(&self, table: &TableIdent) -> Result<Table> {
        let location = self.pointer(table).await?.ok_or_else(|| no_table(table))?;
        let metadata = read_metadata(&self.file_io, table, &location).await?;
        table_at(&self.file_io, table, location, metadata)
    }

    async fn commit(&self, base: &Table, requirements: Vec<TableRequirement>, updates: Vec<TableUpdate>) -> Result<CommitOutcome> {
        let ident = base.identifier();
        let old = base.metadata_location_result().map_err(|e| Error::internal(e.to_string()))?;
        // Pointer and version are of one answer: an update of that version is an update of that pointer.
        let Some(found) = self.find(ident).await? else {
            return Ok(CommitOutcome::Conflict(format!("the table {ident} is gone")));
        };
        if pointer(ident, &found)? != old {
            return Ok(CommitOutcome::Conflict(format!("{ident} was changed by another commit")));
        }
        let version = found.version_id().ok_or_else(|| {
            let message = format!("Glue tells no version of {ident}: of two commits at once, one would be lost");
            Error::invalid(Reason::UnsupportedTable, message).at(|p| p.table = Some(ident.to_string()))
        })?;
        let metadata = match apply(base, &requirements, updates, self.clock.now().0.div_euclid(1000)) {
            Ok(metadata) => metadata,
            Err(e) if e.reason == Reason::CommitConflict => return Ok(CommitOutcome::Conflict(e.message)),
            Err(e) => return Err(e),
        };
        let location = next_location(old, &metadata);
        self.write_metadata(&metadata, &location).await?;

        let new = location.to_string();
        let update = self.client.update_table().database_name(database(ident)?).version_id(version).skip_archive(true);
        let answer = update.table_input(moved(&found, &metadata, old, &new)?).send().await;
        let done = |metadata| Ok(CommitOutcome::Done(Box::new(table_at(&self.file_io, ident, new.clone(), metadata)?)));
        let failure = match answer {
            Ok(_) => return done(metadata),
            Err(error) => Failure::from(error),
        };
        let any = |codes: &[&str]| codes.iter().any(|code| failure.has_code(code));
        if failure.has_credentials && (failure.is_unclear || any(&UNCLEAR)) {
            // What has arrived has; what is not there may still arrive.
            return match self.pointer(ident).await {
                Ok(Some(now)) if now == new => done(metadata),
                _ => Ok(CommitOutcome::Unknown(format!("Glue did not say whether {ident} was committed: {}", failure.text))),
            };
        }
        if any(&OVERTAKEN) {
            return Ok(CommitOutcome::Conflict(format!("{ident} was not changed: {}", failure.text)));
        }
        Err(Self::told(failure, "written"))
    }

    async fn create(&self, table: &TableIdent, metadata: TableMetadata) -> Result<Table> {
        let database = database(table)?;
        // Glue would store it in lower case, and the table be one of another name.
        if let Some(name) = [database, table.name()].into_iter().find(|name| name.chars().any(char::is_uppercase)) {
            return Err(Error::invalid(Reason::NamespaceInvalid, format!("Glue knows no upper case in names such as {name}"))
                .hint(format!("write {}", name.to_lowercase()))
                .at(|p| p.table = Some(table.to_string())));
        }
        if self.find(table).await?.is_some() {
            return Err(table_exists(table));
        }
        let location = MetadataLocation::new_with_metadata(metadata.location(), &metadata);
        self.write_metadata(&metadata, &location).await?;
        let location = location.to_string();
        let input = made(table.name(), &metadata, &location)?;
        let call = || async {
            match self.client.create_table().database_name(database).table_input(input.clone()).send().await.map_err(Failure::from) {
                Ok(_) => Ok(true),
                Err(failure) if failure.has_code(EXISTS) => Ok(false),
                Err(failure) => Err(failure),
            }
        };
        let made = match tried(&self.settings, call).await {
            // The database is nearly always there, and who may make tables in it need not be one who may make databases.
            (Err(failure), _) if failure.has_code(MISSING) => {
                self.make_database(database).await?;
                tried(&self.settings, call).await
            }
            made => made,
        };
        match made {
            (Ok(true), _) => {}
            // Perhaps by an earlier try of this call.
            (Ok(false), true) if self.pointer(table).await?.as_ref() == Some(&location) => {}
            (Ok(false), _) => return Err(table_exists(table)),
            (Err(failure), _) => return Err(Self::told(failure, "written")),
        }
        table_at(&self.file_io, table, location, metadata)
    }

    fn default_location(&self, table: &TableIdent) -> String {
        format!("{}/{}/{}", self.warehouse, table.namespace().join("."), table.name())
    }

    async fn list(&self) -> Result<Vec<TableIdent>> {
        let mut idents = Vec::new();
        for database in self.databases().await? {
            let tables = self.tables(&database).await?;
            let named = tables.into_iter().filter(is_iceberg);
            idents.extend(named.map(|table| TableIdent::new(NamespaceIdent::new(database.clone()), table.name)));
        }
        idents.sort_by_key(|ident| (ident.namespace().to_string(), ident.name().to_string()));
        Ok(idents)
    }
}

/// A namespace is a database of Glue, which has no others in it.
fn database(table: &TableIdent) -> Result<&str> {
    match table.namespace().as_ref().as_slice() {
        [database] => Ok(database),
        _ => Err(Error::invalid(Reason::NamespaceInvalid, format!("{table} is not of the form database.table, as Glue has it"))
            .at(|p| p.table = Some(table.to_string()))),
    }
}

fn parameter<'a>(table: &'a GlueTable, name: &str) -> Option<&'a String> {
    table.parameters()?.get(name)
}

fn is_iceberg(table: &GlueTable) -> bool {
    parameter(table, TABLE_TYPE).is_some_and(|kind| kind.eq_ignore_ascii_case(ICEBERG))
}

fn pointer(ident: &TableIdent, table: &GlueTable) -> Result<String> {
    let location = parameter(table, METADATA_LOCATION).filter(|_| is_iceberg(table)).cloned();
    location.ok_or_else(|| {
        Error::invalid(Reason::UnsupportedTable, format!("{ident} is a table of Glue, but no Iceberg table"))
            .hint("choose another name for the Iceberg table, or make one of it first")
            .at(|p| p.table = Some(ident.to_string()))
    })
}

/// The same table, its pointer moved on.
fn moved(table: &GlueTable, metadata: &TableMetadata, old: &str, new: &str) -> Result<TableInput> {
    let mut parameters: HashMap<String, String> = table.parameters().cloned().unwrap_or_default();
    parameters.insert(METADATA_LOCATION.into(), new.into());
    parameters.insert(PREVIOUS_METADATA_LOCATION.into(), old.into());
    let mut storage = table.storage_descriptor().cloned().unwrap_or_else(|| StorageDescriptor::builder().build());
    storage.columns = Some(columns(metadata.current_schema(), storage.columns())?);
    storage.location = Some(metadata.location().to_string());
    let input = TableInput::builder()
        .name(table.name())
        .set_description(table.description.clone())
        .set_owner(table.owner.clone())
        .set_last_access_time(table.last_access_time)
        .set_last_analyzed_time(table.last_analyzed_time)
        .retention(table.retention)
        .storage_descriptor(storage)
        .set_partition_keys(table.partition_keys.clone())
        .set_view_original_text(table.view_original_text.clone())
        .set_view_expanded_text(table.view_expanded_text.clone())
        .set_table_type(table.table_type.clone())
        .set_parameters(Some(parameters))
        .set_target_table(table.target_table.clone());
    input.build().map_err(|e| Error::internal(e.to_string()))
}

fn made(name: &str, metadata: &TableMetadata, location: &str) -> Result<TableInput> {
    let storage = StorageDescriptor::builder().set_columns(Some(columns(metadata.current_schema(), &[])?)).location(metadata.location());
    let input = TableInput::builder()
        .name(name)
        .table_type(EXTERNAL_TABLE)
        .parameters(TABLE_TYPE, ICEBERG)
        .parameters(METADATA_LOCATION, location)
        .storage_descriptor(storage.build());
    input.build().map_err(|e| Error::internal(e.to_string()))
}
