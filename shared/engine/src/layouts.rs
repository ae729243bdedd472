//! Layouts by age (`timelake.layout`): the partition specs they need in the table, and which rows go into which.
//!
//! Must never happen: such a spec as the table's default (live writers would follow it), or a table with equality
//! deletes that belong to partitions written in two specs: those deletes reach only files of their own spec.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::inventory::OpenTable;
use crate::store::StoredPlan;
use crate::tables::commit_until_done;
use iceberg::spec::{PartitionSpecRef, Schema, TableMetadata, Transform, UnboundPartitionSpec};
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use std::collections::BTreeSet;
use timelake_model::inventory::TableState;
use timelake_model::layout::{AgedLayout, Layout, bad, limits};
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
        let mut known = known_fields(metadata);
        for layout in &contract.layout {
            let spec = unbound(layout, schema)?;
            if spec_like(metadata, &spec).is_none() {
                updates.push(TableUpdate::AddSpec { spec: to_add(&spec, schema, &mut known)? });
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
    reached(Boundary::SpecsAdded);
    Ok(OpenTable { table, ..open.clone() })
}

/// Source, transform and name of a partition field.
type KnownField = (i32, Transform, String);

/// Fields of all specs of the table, in the order of the specs' ids.
fn known_fields(metadata: &TableMetadata) -> Vec<KnownField> {
    let mut specs: Vec<&PartitionSpecRef> = metadata.partition_specs_iter().collect();
    specs.sort_by_key(|s| s.spec_id());
    specs.iter().flat_map(|s| s.fields()).map(|f| (f.source_id, f.transform, f.name.clone())).collect()
}

/// The spec as it is added: the table gives the ids, and no name means two fields, because readers put the fields of all
/// specs into one struct.
fn to_add(spec: &UnboundPartitionSpec, schema: &Schema, known: &mut Vec<KnownField>) -> Result<UnboundPartitionSpec> {
    let mut builder = UnboundPartitionSpec::builder();
    for field in spec.fields() {
        let same = known.iter().rev().find(|(source, transform, _)| (*source, *transform) == (field.source_id, field.transform));
        let name = match same {
            Some((.., name)) => name.clone(),
            None => {
                let first = match field.transform {
                    Transform::Bucket(n) | Transform::Truncate(n) => n,
                    _ => 2,
                };
                let numbered = (first..).map(|n| format!("{}_{n}", field.name)).filter(|name| schema.field_by_name(name).is_none());
                let mut names = std::iter::once(field.name.clone()).chain(numbered);
                let free = names.find(|name| known.iter().all(|(.., taken)| taken != name));
                free.ok_or_else(|| Error::internal(format!("no name is left for the partition field {}", field.name)))?
            }
        };
        known.push((field.source_id, field.transform, name.clone()));
        builder = builder
            .add_partition_field(field.source_id, name, field.transform)
            .map_err(|e| Error::internal(format!("a checked partition spec is refused: {e}")))?;
    }
    Ok(builder.build())
}

/// The table's first spec with the same fields, whatever their names and whoever made it.
fn spec_like<'a>(metadata: &'a TableMetadata, wanted: &UnboundPartitionSpec) -> Option<&'a PartitionSpecRef> {
    let wanted: Vec<_> = wanted.fields().iter().map(|f| (f.source_id, f.transform)).collect();
    let same = |spec: &&PartitionSpecRef| spec.fields().iter().map(|f| (f.source_id, f.transform)).eq(wanted.iter().copied());
    metadata.partition_specs_iter().filter(same).min_by_key(|spec| spec.spec_id())
}

/// The spec that the plan means by a layout (`None`: the table's own). Others may have removed it while no file used it,
/// and given its id to another one.
pub fn spec_of<'a>(metadata: &'a TableMetadata, state: &TableState, layout: Option<u32>) -> Result<&'a PartitionSpecRef> {
    let (spec_id, _) = state.files_of(layout);
    let planned = state.layout(layout).map_or(&state.partition, |l| &l.partition);
    metadata.partition_spec_by_id(spec_id).filter(|spec| fields(spec, metadata.current_schema()) == *planned).ok_or_else(|| {
        Error::conflict(Reason::TableChanged, format!("{} has no longer the partition spec {spec_id} of the plan", state.name))
            .hint("cancel the job and run its command again, which makes a new plan")
            .at(|p| p.table = Some(state.name.clone()))
    })
}

/// Layouts that the plan's units write in.
pub fn used(stored: &StoredPlan) -> BTreeSet<u32> {
    stored.plan.units().filter_map(|(_, unit)| unit.layout).collect()
}

pub async fn refuse_partitioned_deletes(table: &Table) -> Result<()> {
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
    let mut ages = Vec::new();
    let mut found = Vec::new();
    for layout in &contract.layout {
        let spec = unbound(layout, schema)?;
        let missing = || Error::internal(format!("the table has no partition spec for the layout of {}", layout.older_than));
        let period = time_period(&spec, schema, &contract.time_column).ok_or_else(missing)?;
        ages.push((IsoDuration::parse(&layout.older_than)?, period));
        found.push((layout, period, spec_like(metadata, &spec).ok_or_else(missing)?));
    }
    let of = |(before, (layout, period, spec)): (TimestampUs, (&AgedLayout, Period, &PartitionSpecRef))| Layout {
        before,
        spec_id: spec.spec_id(),
        partition: fields(spec, schema),
        period,
        target_file_bytes: layout.target_file_size_bytes.unwrap_or(target_file_bytes),
    };
    Ok(limits(as_of, &ages).into_iter().zip(found).map(of).collect())
}
