//! What every catalog of ours does with the metadata file that its pointer names.

use crate::errors::{carried, from_iceberg, full_text};
use crate::is_missing_file;
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use iceberg::table::Table;
use iceberg::{ErrorKind, MetadataLocation, Runtime, TableIdent};
use std::str::FromStr;
use timelake_model::{Error, Kind, Reason, Result};

pub fn no_table(table: &TableIdent) -> Error {
    Error::not_found(Reason::TableNotFound, format!("there is no table {table}"))
        .hint("make it: timelake table create; or see which tables there are: timelake table list")
        .at(|p| p.table = Some(table.to_string()))
}

pub fn table_exists(table: &TableIdent) -> Error {
    Error::conflict(Reason::TableExists, format!("there is a table {table} already"))
        .hint("choose another name, or see it: timelake table show")
        .at(|p| p.table = Some(table.to_string()))
}

/// Reads the metadata of a table. One that is gone or cannot be read is damage.
pub async fn read_metadata(file_io: &FileIO, table: &TableIdent, location: &str) -> Result<TableMetadata> {
    TableMetadata::read_from(file_io, location).await.map_err(|e| {
        let is_ours = carried(&e).is_some_and(|ours| ours.kind != Kind::NotFound);
        if !is_ours && (is_missing_file(&e) || matches!(e.kind(), ErrorKind::DataInvalid | ErrorKind::Unexpected)) {
            let message = format!("the metadata of {table} cannot be read from {location}: {}", full_text(&e));
            return Error::corrupt(Reason::CatalogDamaged, message)
                .hint("restore the file, or point the catalog at an earlier metadata file (previous_metadata_location)")
                .at(|p| {
                    p.table = Some(table.to_string());
                    p.file = Some(location.to_string());
                });
        }
        from_iceberg(e, &format!("reading the table metadata {location}"))
    })
}

/// The table at a metadata file.
pub fn table_at(file_io: &FileIO, ident: &TableIdent, location: String, metadata: TableMetadata) -> Result<Table> {
    let runtime = Runtime::try_current().map_err(|e| Error::internal(format!("tables are loaded inside a tokio runtime: {e}")))?;
    Table::builder()
        .identifier(ident.clone())
        .metadata_location(location)
        .metadata(metadata)
        .file_io(file_io.clone())
        .runtime(runtime)
        .build()
        .map_err(|e| from_iceberg(e, &format!("opening {ident}")))
}

/// The next metadata file. A table registered under another naming starts ours at version 0.
pub fn next_location(old: &str, metadata: &TableMetadata) -> MetadataLocation {
    match MetadataLocation::from_str(old) {
        Ok(location) => location.with_next_version().with_new_metadata(metadata),
        Err(_) => MetadataLocation::new_with_metadata(metadata.location(), metadata),
    }
}
