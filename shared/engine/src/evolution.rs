//! What may change in the table while a job is under way: the plan's columns, types and layout must still be the
//! table's; what was added beside them does not matter.
//!
//! Must never happen: rows in columns or partitions that mean something else by now, keys compared that are no identity any
//! more, a value of the source that is left out because its column came after the plan, or a load in a layout that the
//! table was just taken out of.

use crate::layouts;
use crate::rounds::table_replaced;
use crate::store::StoredPlan;
use iceberg::spec::{NestedFieldRef, SchemaRef};
use iceberg::table::Table;
use std::collections::BTreeSet;
use timelake_model::{Error, Inventory, Reason, Result, TableContract, WritePlan};

const NEW_PLAN: &str = "cancel the job and run its command again, which makes a new plan";

/// An error unless what the job wrote, or is about to write, fits the table as it is now.
pub fn still_fits(table: &Table, stored: &StoredPlan) -> Result<()> {
    fits(table, &stored.plan, &stored.inventory)?;
    // Used ones only: a tool that cleans up may have removed the others.
    let used = layouts::used(stored).into_iter().map(Some);
    used.chain([None]).try_for_each(|layout| layouts::spec_of(table.metadata(), &stored.inventory.table, layout).map(|_| ()))
}

pub fn same_table(table: &Table, plan: &WritePlan) -> Result<()> {
    let same = table.metadata().uuid().to_string() == plan.table_uuid;
    if same { Ok(()) } else { Err(table_replaced(&table.identifier().to_string())) }
}

/// The same for one unit, which knows its own layout.
pub fn fits(table: &Table, plan: &WritePlan, inventory: &Inventory) -> Result<()> {
    same_table(table, plan)?;
    if table.metadata().default_partition_spec_id() != plan.spec_id {
        return Err(changed(
            &inventory.table.name,
            "its partitioning changed",
            "cancel the job and run its command again, which writes the new layout",
        ));
    }
    contract_fits(table, inventory)?;
    columns_fit(table, plan.schema_id, inventory)
}

/// An error if by now other columns say what a row's time or its identity is.
fn contract_fits(table: &Table, inventory: &Inventory) -> Result<()> {
    let planned = &inventory.table.contract;
    let key = |contract: &TableContract| contract.dedup_key.as_ref().map(|key| key.iter().cloned().collect::<BTreeSet<_>>());
    match TableContract::from_properties(table.metadata().properties())? {
        Some(now) if now.time_column == planned.time_column && key(&now) == key(planned) => Ok(()),
        _ => Err(changed(&inventory.table.name, "its contract has another time column or dedup key", NEW_PLAN)),
    }
}

/// An error unless rows of an older schema are right rows of the table now.
pub fn columns_fit(table: &Table, schema_id: i32, inventory: &Inventory) -> Result<()> {
    if table.metadata().current_schema_id() == schema_id {
        return Ok(());
    }
    let in_source = |column: &str| inventory.unused_columns.iter().any(|c| c.eq_ignore_ascii_case(column));
    let planned = planned_schema(table, schema_id)?;
    difference(&planned, table.metadata().current_schema(), in_source)
        .map_or(Ok(()), |what| Err(changed(&inventory.table.name, &what, NEW_PLAN)))
}

/// The table as a plan knows it: with the columns of its schema, whatever was added since.
pub fn as_planned(table: &Table, schema_id: i32) -> Result<Table> {
    if table.metadata().current_schema_id() == schema_id {
        return Ok(table.clone());
    }
    planned_schema(table, schema_id)?;
    timelake_table::with_current_schema(table, schema_id)
}

fn planned_schema(table: &Table, schema_id: i32) -> Result<SchemaRef> {
    let gone = || changed(&table.identifier().to_string(), "the schema of the plan was removed from it", NEW_PLAN);
    table.metadata().schema_by_id(schema_id).cloned().ok_or_else(gone)
}

fn changed(table: &str, what: &str, hint: &str) -> Error {
    Error::conflict(Reason::TableChanged, format!("{table} changed under this job: {what} since the plan was made"))
        .hint(hint)
        .at(|p| p.table = Some(table.into()))
}

/// Why rows of the planned columns would not be right rows of the table now, by field id. `None`: they are.
fn difference(planned: &SchemaRef, now: &SchemaRef, in_source: impl Fn(&str) -> bool) -> Option<String> {
    let field = |schema: &SchemaRef, id| schema.as_struct().field_by_id(id).cloned();
    for old in planned.as_struct().fields() {
        let Some(new) = field(now, old.id) else { return Some(format!("column {} was dropped", old.name)) };
        if new.name != old.name {
            return Some(format!("column {} was renamed to {}", old.name, new.name));
        }
        if new.field_type != old.field_type {
            return Some(format!("column {} was {} and is {}", old.name, old.field_type, new.field_type));
        }
        if new.required && !old.required {
            return Some(format!("column {} became required", old.name));
        }
    }
    now.as_struct().fields().iter().filter(|new| field(planned, new.id).is_none()).find_map(|new| added(new, &in_source))
}

/// Why a column that was added cannot be left to what readers make of files without it.
fn added(new: &NestedFieldRef, in_source: impl Fn(&str) -> bool) -> Option<String> {
    let name = &new.name;
    if in_source(name) {
        return Some(format!("column {name} was added, which the source has"));
    }
    if new.required && new.initial_default.is_none() {
        return Some(format!("the required column {name} was added"));
    }
    // Files without the column read as the initial default; new rows are to have the write default.
    (new.initial_default != new.write_default).then(|| format!("column {name} was added with another default for new rows"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iceberg::spec::{Literal, NestedField, PrimitiveType, Schema, Type};
    use std::sync::Arc;

    fn schema(fields: Vec<NestedField>) -> SchemaRef {
        Arc::new(Schema::builder().with_fields(fields.into_iter().map(Arc::new)).build().unwrap())
    }
    fn optional(id: i32, name: &str, t: PrimitiveType) -> NestedField {
        NestedField::optional(id, name, Type::Primitive(t))
    }

    #[test]
    fn columns_are_compared_by_id() {
        let base = || vec![optional(1, "value", PrimitiveType::Float), optional(2, "quality", PrimitiveType::Int)];
        let with = |field| base().into_iter().chain([field]).collect::<Vec<_>>();
        let long = |n| Literal::long(n);
        let cases: Vec<(Vec<NestedField>, Option<&str>)> = vec![
            (base(), None),
            (base().into_iter().rev().collect(), None),
            (with(optional(3, "humidity", PrimitiveType::Double)), None),
            (with(optional(3, "Pressure", PrimitiveType::Double)), Some("which the source has")),
            (with(NestedField::required(3, "site", Type::Primitive(PrimitiveType::String))), Some("required column site")),
            (with(optional(3, "n", PrimitiveType::Long).with_initial_default(long(7)).with_write_default(long(7))), None),
            (with(optional(3, "n", PrimitiveType::Long).with_write_default(long(7))), Some("another default")),
            (vec![optional(1, "value", PrimitiveType::Float)], Some("quality was dropped")),
            (vec![optional(1, "value", PrimitiveType::Float), optional(3, "quality", PrimitiveType::Int)], Some("quality was dropped")),
            (vec![optional(1, "reading", PrimitiveType::Float), base().remove(1)], Some("renamed to reading")),
            (vec![optional(1, "value", PrimitiveType::Double), base().remove(1)], Some("was float and is double")),
            (vec![NestedField::required(1, "value", Type::Primitive(PrimitiveType::Float)), base().remove(1)], Some("became required")),
        ];
        for (now, expected) in cases {
            let found = difference(&schema(base()), &schema(now), |name| name == "Pressure");
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.as_ref().is_some_and(|f| f.contains(part)), "{part}: {found:?}"),
            }
        }
    }
}
