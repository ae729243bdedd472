//! The table commands: create a table in the layout a backfill wants, show one, read and set its contract.
//!
//! A table of another tool needs nothing but a contract; creating one only picks good defaults. Creating also commits
//! the one empty append `main` starts with, so that no branch ever begins without a parent.

use crate::layouts;
use crate::ports::{Clock, CommitOutcome, TableCatalog};
use crate::tries::{Tries, new_snapshot_id};
use iceberg::spec::{FormatVersion, Schema, SortOrder, TableMetadataBuilder, Transform, UnboundPartitionSpec};
use iceberg::table::Table;
use iceberg::{NamespaceIdent, TableIdent, TableRequirement, TableUpdate};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use timelake_model::contract::{DEFAULT_LATENESS, DEFAULT_UNDO, RETENTION};
use timelake_model::ids::LOCK_PREFIX;
use timelake_model::inventory::PartitionField;
use timelake_model::layout::{self, LAYOUT};
use timelake_model::similar::{names_hint, nearest};
use timelake_model::{Column, ColumnType, Error, Reason, Result, TableContract, TimestampUs};
use timelake_table::commits::{Commit, refs};
use timelake_table::partition::{fields, parse_partition};
use timelake_table::schema::{columns, parse_columns, sort_order};
use timelake_table::snapshot::{empty_append, version_1_refused};

const MAX_NAME_BYTES: usize = 255;

/// What `table create` asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateTable {
    /// `namespace.table`, the namespace with any number of parts.
    pub name: String,
    /// `ts:timestamptz,device_id:string!,value:double`
    pub columns: String,
    pub time_column: String,
    pub series_key: Vec<String>,
    /// Outer `None`: series key and time column. Inner `None`: rows have no identity.
    pub dedup_key: Option<Option<Vec<String>>>,
    /// `None`: `day(<time column>)`.
    pub partition: Option<String>,
    /// ISO-8601 durations.
    pub retention: Option<String>,
    pub lateness: Option<String>,
    pub undo: Option<String>,
    /// The property's JSON.
    pub layout: Option<String>,
}

/// What `table contract` changes; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContractChange {
    pub time_column: Option<String>,
    pub series_key: Option<Vec<String>>,
    pub dedup_key: Option<Option<Vec<String>>>,
    /// Inner `None`: unlimited.
    pub retention: Option<Option<String>>,
    pub lateness: Option<String>,
    pub undo: Option<String>,
    /// The property's JSON; empty = all rows in the table's spec.
    pub layout: Option<String>,
}

/// A table as `table show` prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableInfo {
    pub name: String,
    pub uuid: String,
    pub location: String,
    /// The table's current metadata file: what readers without a catalog open.
    pub metadata_location: Option<String>,
    pub format_version: u8,
    pub columns: Vec<Column>,
    pub partition: Vec<PartitionField>,
    /// Columns of the default sort order; empty = not sorted.
    pub sort: Vec<SortColumn>,
    pub contract: Option<TableContract>,
    /// Head of `main`.
    pub snapshot: Option<SnapshotInfo>,
    /// From the snapshot's summary; `None` when the writer did not state it.
    pub rows: Option<u64>,
    pub files: Option<u64>,
    pub bytes: Option<u64>,
    pub refs: Vec<RefInfo>,
    /// Unpublished windows by job.
    pub locks: BTreeMap<String, serde_json::Value>,
    /// What a user of this table should know.
    pub notes: Vec<String>,
}

/// A line of `table list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TableSummary {
    pub name: String,
    /// From the snapshot's summary; `None` when the writer did not state it.
    pub rows: Option<u64>,
    pub files: Option<u64>,
    pub bytes: Option<u64>,
    /// It has one, so that it can be loaded into.
    pub contract: bool,
    /// When the head of `main` was committed.
    pub snapshot_at: Option<TimestampUs>,
    /// Why nothing is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SortColumn {
    pub column: String,
    /// Iceberg's text, `identity` for the value itself.
    pub transform: String,
    /// `asc` or `desc`.
    pub direction: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnapshotInfo {
    pub id: i64,
    pub operation: String,
    pub at: TimestampUs,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefInfo {
    pub name: String,
    /// `branch` or `tag`.
    pub kind: String,
    pub snapshot: i64,
}

/// Reads `namespace.table`; every part is letters, digits, `_` and `-`.
pub fn parse_name(name: &str) -> Result<TableIdent> {
    let bad = |message: String| {
        Error::invalid(Reason::NamespaceInvalid, message)
            .hint("write namespace.table, for example iot.sensor")
            .at(|p| p.table = Some(name.into()))
    };
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() < 2 {
        return Err(bad(format!("{name:?} has no namespace")));
    }
    if let Some(part) = parts.iter().find(|p| p.is_empty() || !p.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')) {
        return Err(bad(format!("{name:?}: {part:?} is not a name of letters, digits, _ and -")));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(bad(format!("the name is longer than {MAX_NAME_BYTES} characters")));
    }
    let (table, namespace) = parts.split_last().ok_or_else(|| bad(format!("{name:?} has no namespace")))?;
    let namespace = NamespaceIdent::from_strs(namespace).map_err(|e| bad(e.message().to_string()))?;
    Ok(TableIdent::new(namespace, table.to_string()))
}

/// All parts of a new table but its place.
struct NewTable {
    ident: TableIdent,
    schema: Schema,
    partition: UnboundPartitionSpec,
    order: SortOrder,
    properties: HashMap<String, String>,
}

/// Refuses what cannot become a table, before anything is made for it.
pub fn check_create(request: &CreateTable) -> Result<()> {
    new_table(request).map(|_| ())
}

fn new_table(request: &CreateTable) -> Result<NewTable> {
    let ident = parse_name(&request.name)?;
    let contract = TableContract {
        time_column: request.time_column.clone(),
        series_key: request.series_key.clone(),
        dedup_key: match &request.dedup_key {
            Some(key) => key.clone(),
            None => Some(request.series_key.iter().cloned().chain([request.time_column.clone()]).collect()),
        },
        retention: request.retention.clone(),
        lateness: request.lateness.clone().unwrap_or_else(|| DEFAULT_LATENESS.into()),
        undo: request.undo.clone().unwrap_or_else(|| DEFAULT_UNDO.into()),
        layout: request.layout.as_deref().map(layout::parse).transpose()?.unwrap_or_default(),
    };
    let required: Vec<String> =
        [&contract.time_column].into_iter().chain(&contract.series_key).chain(contract.dedup_key.iter().flatten()).cloned().collect();
    let schema = parse_columns(&request.columns, &required)?;
    contract.check(&columns(&schema)?)?;
    refuse_commas(&contract)?;
    let partition = match &request.partition {
        Some(text) => text.clone(),
        None => format!("day({})", contract.time_column),
    };
    let partition = parse_partition(&partition, &schema)?;
    layouts::check(&contract, &schema, &partition)?;
    let mut properties: HashMap<String, String> = contract.to_properties().into_iter().collect();
    properties.insert("write.parquet.compression-codec".into(), "zstd".into());
    let order = sort_order(&schema, &contract)?;
    Ok(NewTable { ident, schema, partition, order, properties })
}

/// Makes a table (format version 2) and commits its first, empty snapshot.
pub async fn create_table(catalog: &dyn TableCatalog, clock: &dyn Clock, request: &CreateTable) -> Result<TableInfo> {
    let NewTable { ident, schema, partition, order, properties } = new_table(request)?;
    let metadata = TableMetadataBuilder::new(schema, partition, order, catalog.default_location(&ident), FormatVersion::V2, properties)
        .and_then(TableMetadataBuilder::build)
        .map_err(|e| Error::internal(format!("the new table's metadata is not valid: {e}")))?
        .metadata;
    let table = catalog.create(&ident, metadata).await?;
    let table = start_main(catalog, clock, table).await?;
    info(&table)
}

/// Commits the empty append a table without snapshots starts with; a table that has one is returned as it is.
pub async fn start_main(catalog: &dyn TableCatalog, clock: &dyn Clock, table: Table) -> Result<Table> {
    commit_until_done(catalog, clock, table, async |table| {
        if table.metadata().current_snapshot().is_some() {
            return Ok(None);
        }
        let snapshot_id = new_snapshot_id(clock, table);
        let list = timelake_table::list_path(table.metadata().location(), snapshot_id, &format!("{:016x}", clock.random()));
        Ok(Some(empty_append(table, snapshot_id, clock.now().0.div_euclid(1000), list).await?))
    })
    .await
}

/// All tables by name. One whose metadata cannot be read is listed with its error: the others are still to be seen.
pub async fn list_tables(catalog: &dyn TableCatalog) -> Result<Vec<TableSummary>> {
    let mut out = Vec::new();
    for ident in catalog.list().await? {
        out.push(match catalog.load(&ident).await {
            Ok(table) => summary(&table),
            Err(error) => TableSummary { name: ident.to_string(), error: Some(error), ..TableSummary::default() },
        });
    }
    Ok(out)
}

fn summary(table: &Table) -> TableSummary {
    let metadata = table.metadata();
    TableSummary {
        name: table.identifier().to_string(),
        rows: stated(table, "total-records"),
        files: stated(table, "total-data-files"),
        bytes: stated(table, "total-files-size"),
        contract: matches!(TableContract::from_properties(metadata.properties()), Ok(Some(_))),
        snapshot_at: metadata.current_snapshot().map(|s| TimestampUs(s.timestamp_ms().saturating_mul(1000))),
        error: None,
    }
}

/// A total of the head of `main`, if its writer stated it.
fn stated(table: &Table, total: &str) -> Option<u64> {
    table.metadata().current_snapshot()?.summary().additional_properties.get(total)?.parse().ok()
}

/// Adds to an error about a table what only the catalog knows: the name that was probably meant, and the columns that
/// an option or a contract could name.
pub async fn with_hints(catalog: &dyn TableCatalog, name: &str, error: Error) -> Error {
    match error.reason {
        Reason::TableNotFound => with_table_names(catalog, name, error).await,
        Reason::MissingContract => match loaded_columns(catalog, name).await {
            Some(columns) => {
                let hint = format!("state it: timelake table contract {name} {}", contract_example(&columns));
                error.hint(hint)
            }
            None => error,
        },
        Reason::InvalidOption if error.place.option.as_deref() == Some("--version-column") && error.hint.is_none() => {
            let Some(columns) = loaded_columns(catalog, name).await else { return error };
            let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
            let wanted = error.place.value.clone().unwrap_or_default();
            error.hint(names_hint(&wanted, &format!("columns of {name}"), &names))
        }
        _ => error,
    }
}

async fn with_table_names(catalog: &dyn TableCatalog, name: &str, error: Error) -> Error {
    // The error at hand matters more than a catalog that cannot be listed.
    let Ok(idents) = catalog.list().await else { return error };
    let names: Vec<String> = idents.iter().map(ToString::to_string).collect();
    if names.is_empty() {
        return error.hint("this lake has no tables yet: timelake table create makes one");
    }
    match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean {near}? timelake table list shows all tables")),
        None => error.hint("timelake table list shows the tables of this lake; timelake table create makes one"),
    }
}

async fn loaded_columns(catalog: &dyn TableCatalog, name: &str) -> Option<Vec<Column>> {
    let table = catalog.load(&parse_name(name).ok()?).await.ok()?;
    columns(table.metadata().current_schema()).ok()
}

/// The options of `table contract` with columns that fit by their types: the first instant, and the first text.
fn contract_example(columns: &[Column]) -> String {
    let first = |wanted: ColumnType| columns.iter().find(|c| c.column_type == wanted).map(|c| c.name.as_str());
    let (time, series) = (first(ColumnType::Timestamptz).unwrap_or("COLUMN"), first(ColumnType::String).unwrap_or("COLUMNS"));
    format!("--time-column {time} --series-key {series}")
}

/// Loads a table and says what it is.
pub async fn show_table(catalog: &dyn TableCatalog, name: &str) -> Result<TableInfo> {
    info(&catalog.load(&parse_name(name)?).await?)
}

/// The contract of a table; `missing_contract` when it has none.
pub async fn contract(catalog: &dyn TableCatalog, name: &str) -> Result<TableContract> {
    let table = catalog.load(&parse_name(name)?).await?;
    TableContract::from_properties(table.metadata().properties())?.ok_or_else(|| {
        Error::invalid(Reason::MissingContract, format!("{name} has no contract"))
            .hint(format!("state it: timelake table contract {name} --time-column COLUMN --series-key COLUMNS"))
            .at(|p| p.table = Some(name.into()))
    })
}

/// Sets the contract of an existing table, also one another tool made, and its sort order when it has none.
pub async fn set_contract(catalog: &dyn TableCatalog, clock: &dyn Clock, name: &str, change: &ContractChange) -> Result<TableInfo> {
    let table = catalog.load(&parse_name(name)?).await?;
    refuse_version_1(&table)?;
    let make = async |table: &Table| {
        if let Some(text) = &change.layout
            && !layout::parse(text)?.is_empty()
        {
            layouts::refuse_partitioned_deletes(table).await?;
        }
        contract_commit(table, name, change)
    };
    let table = commit_until_done(catalog, clock, table, make).await?;
    info(&table)
}

fn contract_commit(table: &Table, name: &str, change: &ContractChange) -> Result<Option<Commit>> {
    let metadata = table.metadata();
    let mut properties = metadata.properties().clone();
    if change.layout.is_some() {
        // One that is not understood can be replaced.
        properties.remove(LAYOUT);
    }
    let current = TableContract::from_properties(&properties)?;
    let wanted = changed_contract(current, name, change)?;
    let schema = metadata.current_schema();
    wanted.check(&columns(schema)?)?;
    refuse_commas(&wanted)?;
    layouts::check(&wanted, schema, &metadata.default_partition_spec().as_ref().clone().into_unbound())?;

    let mut updates = Vec::new();
    let properties: HashMap<String, String> =
        wanted.to_properties().into_iter().filter(|(k, v)| metadata.properties().get(k) != Some(v)).collect();
    if !properties.is_empty() {
        updates.push(TableUpdate::SetProperties { updates: properties });
    }
    let gone = [(wanted.retention.is_none(), RETENTION), (wanted.layout.is_empty(), LAYOUT)];
    let removals: Vec<String> =
        gone.iter().filter(|(gone, name)| *gone && metadata.properties().contains_key(*name)).map(|(_, name)| name.to_string()).collect();
    if !removals.is_empty() {
        updates.push(TableUpdate::RemoveProperties { removals });
    }
    if metadata.default_sort_order().is_unsorted() {
        updates.push(TableUpdate::AddSortOrder { sort_order: sort_order(schema, &wanted)? });
        updates.push(TableUpdate::SetDefaultSortOrder { sort_order_id: TableMetadataBuilder::LAST_ADDED.into() });
    }
    if updates.is_empty() {
        return Ok(None);
    }
    Ok(Some(Commit {
        requirements: vec![
            TableRequirement::UuidMatch { uuid: metadata.uuid() },
            TableRequirement::CurrentSchemaIdMatch { current_schema_id: metadata.current_schema_id() },
            TableRequirement::DefaultSortOrderIdMatch { default_sort_order_id: metadata.default_sort_order_id() },
        ],
        updates,
    }))
}

fn changed_contract(current: Option<TableContract>, name: &str, change: &ContractChange) -> Result<TableContract> {
    let need = |option: &str| {
        Error::invalid(Reason::MissingContract, format!("{name} has no contract yet, and {option} is not given"))
            .hint("give at least --time-column and --series-key")
            .at(|p| {
                p.table = Some(name.into());
                p.option = Some(option.into());
            })
    };
    let time_column = change.time_column.clone().or_else(|| current.as_ref().map(|c| c.time_column.clone()));
    let series_key = change.series_key.clone().or_else(|| current.as_ref().map(|c| c.series_key.clone()));
    let (time_column, series_key) = (time_column.ok_or_else(|| need("--time-column"))?, series_key.ok_or_else(|| need("--series-key"))?);
    // New keys make a new default identity; an identity that was stated by itself stays.
    let usual = |c: &TableContract| Some(c.series_key.iter().cloned().chain([c.time_column.clone()]).collect::<Vec<_>>());
    let dedup_key = match (&change.dedup_key, &current) {
        (Some(key), _) => key.clone(),
        (None, Some(c)) if c.dedup_key != usual(c) => c.dedup_key.clone(),
        _ => Some(series_key.iter().cloned().chain([time_column.clone()]).collect()),
    };
    let kept = |new: &Option<String>, old: fn(&TableContract) -> String, default: &str| {
        new.clone().or_else(|| current.as_ref().map(old)).unwrap_or_else(|| default.into())
    };
    Ok(TableContract {
        dedup_key,
        retention: match &change.retention {
            Some(retention) => retention.clone(),
            None => current.as_ref().and_then(|c| c.retention.clone()),
        },
        lateness: kept(&change.lateness, |c| c.lateness.clone(), DEFAULT_LATENESS),
        undo: kept(&change.undo, |c| c.undo.clone(), DEFAULT_UNDO),
        layout: match &change.layout {
            Some(text) => layout::parse(text)?,
            None => current.as_ref().map(|c| c.layout.clone()).unwrap_or_default(),
        },
        time_column,
        series_key,
    })
}

/// Keys are stored as lists with commas and blanks around names cut off.
fn refuse_commas(contract: &TableContract) -> Result<()> {
    let names = contract.series_key.iter().chain(contract.dedup_key.iter().flatten());
    for name in names {
        if name.contains(',') || name.trim() != name || name == "none" {
            return Err(Error::invalid(Reason::InvalidContract, format!("a key column cannot be named {name:?}"))
                .hint("rename the column: no commas, no blanks at its ends, and not none")
                .at(|p| p.column = Some(name.clone())));
        }
    }
    Ok(())
}

fn refuse_version_1(table: &Table) -> Result<()> {
    if table.metadata().format_version() == FormatVersion::V1 {
        return Err(version_1_refused(&table.identifier().to_string()));
    }
    Ok(())
}

/// Commits what `make` returns for the table as it is now; makes it anew after each conflict. `None`: nothing to do.
pub(crate) async fn commit_until_done(
    catalog: &dyn TableCatalog,
    clock: &dyn Clock,
    mut table: Table,
    make: impl AsyncFn(&Table) -> Result<Option<Commit>>,
) -> Result<Table> {
    let mut tries = Tries::new(clock, format!("a commit to {}", table.identifier()));
    loop {
        let Some(commit) = make(&table).await? else { return Ok(table) };
        match catalog.commit(&table, commit.requirements, commit.updates).await? {
            CommitOutcome::Done(table) => return Ok(*table),
            // Both go on the same way: the next try looks at the table and does only what is still missing.
            CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
        }
        table = catalog.load(table.identifier()).await?;
    }
}

fn info(table: &Table) -> Result<TableInfo> {
    let metadata = table.metadata();
    let schema = metadata.current_schema();
    let contract = TableContract::from_properties(metadata.properties())?;
    let snapshot = metadata.current_snapshot();
    let columns = columns(schema)?;
    Ok(TableInfo {
        name: table.identifier().to_string(),
        uuid: metadata.uuid().to_string(),
        location: metadata.location().to_string(),
        metadata_location: table.metadata_location().map(str::to_string),
        format_version: metadata.format_version() as u8,
        partition: fields(metadata.default_partition_spec(), schema),
        sort: sort_columns(metadata.default_sort_order(), schema),
        snapshot: snapshot.map(|s| SnapshotInfo {
            id: s.snapshot_id(),
            operation: s.summary().operation.as_str().to_string(),
            at: TimestampUs(s.timestamp_ms().saturating_mul(1000)),
        }),
        rows: stated(table, "total-records"),
        files: stated(table, "total-data-files"),
        bytes: stated(table, "total-files-size"),
        refs: refs(metadata)?
            .into_iter()
            .map(|(name, r)| RefInfo { name, kind: if r.is_branch() { "branch" } else { "tag" }.into(), snapshot: r.snapshot_id })
            .collect(),
        locks: metadata
            .properties()
            .iter()
            .filter_map(|(k, v)| {
                let job = k.strip_prefix(LOCK_PREFIX)?;
                Some((job.to_string(), serde_json::from_str(v).unwrap_or_else(|_| serde_json::Value::String(v.clone()))))
            })
            .collect(),
        notes: notes(table, &columns, contract.as_ref(), schema),
        columns,
        contract,
    })
}

fn sort_columns(order: &SortOrder, schema: &Schema) -> Vec<SortColumn> {
    order
        .fields
        .iter()
        .map(|f| SortColumn {
            column: schema.name_by_field_id(f.source_id).unwrap_or("?").to_string(),
            transform: f.transform.to_string(),
            direction: match f.direction {
                iceberg::spec::SortDirection::Ascending => "asc".into(),
                iceberg::spec::SortDirection::Descending => "desc".into(),
            },
        })
        .collect()
}

fn notes(table: &Table, columns: &[Column], contract: Option<&TableContract>, schema: &Schema) -> Vec<String> {
    let metadata = table.metadata();
    let mut notes = Vec::new();
    match metadata.format_version() {
        FormatVersion::V1 => notes.push("format version 1: upgrade to 2 before a backfill".into()),
        FormatVersion::V2 => {}
        FormatVersion::V3 => notes.push("format version 3: backfills only append (rewritten manifests would lose row ids)".into()),
    }
    let nested: Vec<&str> =
        schema.as_struct().fields().iter().map(|f| f.name.as_str()).filter(|n| !columns.iter().any(|c| c.name == *n)).collect();
    if !nested.is_empty() {
        notes.push(format!("written as null by backfills: {}", nested.join(", ")));
    }
    let Some(contract) = contract else {
        notes.push("no contract: state it with timelake table contract before a backfill".into());
        return notes;
    };
    let optional: Vec<&str> = [&contract.time_column]
        .into_iter()
        .chain(&contract.series_key)
        .filter_map(|name| columns.iter().find(|c| c.name == *name && !c.required))
        .map(|c| c.name.as_str())
        .collect();
    if !optional.is_empty() {
        notes.push(format!("key columns that may be null in the table: {} (rows with a null key are refused)", optional.join(", ")));
    }
    let by_time = metadata.default_partition_spec().fields().iter().any(|f| {
        schema.name_by_field_id(f.source_id) == Some(contract.time_column.as_str())
            && matches!(f.transform, Transform::Hour | Transform::Day | Transform::Month | Transform::Year)
    });
    if !by_time {
        notes.push("not partitioned by time: chunks are months".into());
    }
    notes
}
