//! Layouts by age (`timelake.layout`): the partition specs they need in the table, and which rows go into which.
//!
//! Must never happen: such a spec as the table's default (live writers would follow it), or a table with equality
//! deletes that belong to partitions written in two specs: those deletes reach only files of their own spec.

use crate::Engine;
use crate::inventory::OpenTable;
use crate::tables::commit_until_done;
use iceberg::spec::{PartitionSpecRef, Schema, TableMetadata, UnboundPartitionSpec};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use timelake_model::layout::{AgedLayout, Layout, bad};
use timelake_model::time::{IsoDuration, Period};
use timelake_model::{Error, Reason, Result, TableContract, TimestampUs};
use timelake_table::Commit;
use timelake_table::partition::{fields, parse_partition, period};

/// Can the table have the contract's layouts? Each must be at least as coarse in time as the one before it, the first as
/// the table's own spec: limits of age are limits of the coarser periods.
pub fn check(contract: &TableContract, schema: &Schema, default: &UnboundPartitionSpec) -> Result<()> {
    let mut finest = time_period(default, schema, &contract.time_column);
    for layout in &contract.layout {
        let spec = unbound(layout, schema)?;
        let now = time_period(&spec, schema, &contract.time_column);
        match (finest, now) {
            (Some(before), Some(now)) if now < before => {
                return Err(bad(format!("the layout for {} is finer in time than the one for younger rows", layout.older_than)));
            }
            (_, None) => {
                return Err(bad(format!(
                    "the layout for {} is not partitioned by the time column {}: {}",
                    layout.older_than, contract.time_column, layout.partition
                )));
            }
            (_, now) => finest = now,
        }
    }
    Ok(())
}

fn unbound(layout: &AgedLayout, schema: &Schema) -> Result<UnboundPartitionSpec> {
    parse_partition(&layout.partition, schema).map_err(|e| bad(format!("the layout for {}: {}", layout.older_than, e.message)))
}

fn time_period(spec: &UnboundPartitionSpec, schema: &Schema, time_column: &str) -> Option<Period> {
    let time = schema.field_by_name(time_column)?.id;
    spec.fields().iter().filter(|f| f.source_id == time).filter_map(|f| period(f.transform)).min()
}

/// The table with all specs of its layouts, added where they are missing, in a commit of its own.
pub async fn with_specs(engine: &Engine, open: &OpenTable) -> Result<OpenTable> {
    let contract = &open.contract;
    if contract.layout.is_empty() {
        return Ok(open.clone());
    }
    let table = commit_until_done(engine.catalog.as_ref(), engine.clock.as_ref(), open.table.clone(), async |table| {
        let metadata = table.metadata();
        let schema = metadata.current_schema();
        check(contract, schema, &metadata.default_partition_spec().as_ref().clone().into_unbound())?;
        refuse_partitioned_deletes(table).await?;
        let mut updates = Vec::new();
        for layout in &contract.layout {
            let spec = unbound(layout, schema)?;
            if spec_like(metadata, &spec).is_none() {
                updates.push(TableUpdate::AddSpec { spec: without_id(&spec)? });
            }
        }
        // The ids of the new fields follow from the last one assigned.
        let requirements = vec![
            TableRequirement::UuidMatch { uuid: metadata.uuid() },
            TableRequirement::CurrentSchemaIdMatch { current_schema_id: metadata.current_schema_id() },
            TableRequirement::LastAssignedPartitionIdMatch { last_assigned_partition_id: metadata.last_partition_id() },
        ];
        Ok((!updates.is_empty()).then_some(Commit { requirements, updates }))
    })
    .await?;
    Ok(OpenTable { table, ..open.clone() })
}

/// The table gives the id.
fn without_id(spec: &UnboundPartitionSpec) -> Result<UnboundPartitionSpec> {
    let fields = spec.fields().iter().cloned();
    let failed = |e: iceberg::Error| Error::internal(format!("a checked partition spec is refused: {e}"));
    Ok(UnboundPartitionSpec::builder().add_partition_fields(fields).map_err(failed)?.build())
}

/// A spec of the table with the same fields, whatever their names.
fn spec_like<'a>(metadata: &'a TableMetadata, wanted: &UnboundPartitionSpec) -> Option<&'a PartitionSpecRef> {
    let wanted: Vec<_> = wanted.fields().iter().map(|f| (f.source_id, f.transform)).collect();
    metadata.partition_specs_iter().find(|spec| spec.fields().iter().map(|f| (f.source_id, f.transform)).eq(wanted.iter().copied()))
}

async fn refuse_partitioned_deletes(table: &Table) -> Result<()> {
    let Some(delete) = timelake_table::partitioned_equality_delete(table).await? else { return Ok(()) };
    Err(Error::conflict(
        Reason::DeleteFilesInWindow,
        format!(
            "{} has equality deletes in partitions ({delete}); they would not reach rows written in another layout",
            table.identifier()
        ),
    )
    .hint(
        "rewrite the table's files with deletes applied (compaction), or take the layout off: timelake table contract TABLE --layout none",
    )
    .at(|p| p.table = Some(table.identifier().to_string())))
}

/// The contract's layouts for a job made at `as_of`, youngest first.
pub fn resolve(table: &Table, contract: &TableContract, as_of: TimestampUs, target_file_bytes: u64) -> Result<Vec<Layout>> {
    let metadata = table.metadata();
    let schema = metadata.current_schema();
    let mut out = Vec::new();
    for layout in &contract.layout {
        let spec = unbound(layout, schema)?;
        let missing = || Error::internal(format!("the table has no partition spec for the layout of {}", layout.older_than));
        let period = time_period(&spec, schema, &contract.time_column).ok_or_else(missing)?;
        let found = spec_like(metadata, &spec).ok_or_else(missing)?;
        let limit = IsoDuration::parse(&layout.older_than)?.before(as_of);
        out.push(Layout {
            before: TimestampUs(period.start(period.ordinal(limit.0))),
            spec_id: found.spec_id(),
            partition: fields(found, schema),
            period,
            target_file_bytes: layout.target_file_size_bytes.unwrap_or(target_file_bytes),
        });
    }
    Ok(out)
}
