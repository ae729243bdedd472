//! Table schemas: from the text of `--columns`, as our columns, and the sort order a contract asks for.

use crate::errors::from_iceberg;
use crate::values::{column_type, primitive_type};
use iceberg::Runtime;
use iceberg::spec::{NestedField, NullOrder, Schema, SortDirection, SortField, SortOrder, TableMetadata, Transform, Type};
use iceberg::table::Table;
use std::sync::Arc;
use timelake_model::similar::{names_hint, nearest};
use timelake_model::{Column, ColumnType, Error, Reason, Result, TableContract};

const OPTION: &str = "--columns";
/// Columns of one table; a bound against nonsense, far above any real table.
const MAX_COLUMNS: usize = 4096;

/// Reads `ts:timestamptz,device_id:string!,value:decimal(10,2)`. Field ids count from 1; `!` marks a required
/// column, and the columns named in `required` are required as well.
pub fn parse_columns(text: &str, required: &[String]) -> Result<Schema> {
    let mut fields: Vec<Arc<NestedField>> = Vec::new();
    for part in split_outside_brackets(text) {
        let part = part.trim();
        let Some((name, type_text)) = part.split_once(':') else {
            return Err(bad(format!("{part:?} is not a column: there is no ':' between name and type"), part)
                .hint("write name:type, for example --columns 'ts:timestamptz,device_id:string!,value:double'"));
        };
        let name = name.trim();
        if name.is_empty() {
            return Err(bad(format!("{part:?} has no column name"), part).hint("write name:type"));
        }
        if name.chars().any(char::is_control) {
            return Err(bad(format!("the column name {name:?} holds a control character"), part));
        }
        let (type_text, marked) = match type_text.trim().strip_suffix('!') {
            Some(rest) => (rest.trim(), true),
            None => (type_text.trim(), false),
        };
        let parsed = ColumnType::parse(type_text).map_err(|e| {
            let types = e.hint.clone().unwrap_or_default();
            let hint = match (too_wide(type_text), nearest_type(type_text)) {
                (Some(why), _) => why,
                (None, Some(near)) => format!("did you mean {near}? {types}"),
                (None, None) => types,
            };
            bad(format!("column {name}: {}", e.message), type_text).hint(hint).at(|p| p.target = Some(name.into()))
        })?;
        // Readers such as Spark and DuckDB find columns without regard to case.
        if let Some(twin) = fields.iter().find(|f| f.name.to_lowercase() == name.to_lowercase()) {
            return Err(bad(format!("column {name} is named twice (as {} before)", twin.name), part)
                .hint("column names must differ in more than upper and lower case"));
        }
        let id = fields.len() as i32 + 1;
        let is_required = marked || required.iter().any(|r| r == name);
        fields.push(Arc::new(NestedField::new(id, name, Type::Primitive(primitive_type(parsed)), is_required)));
    }
    if fields.is_empty() {
        return Err(bad("no columns are given".into(), text).hint("for example --columns 'ts:timestamptz,device_id:string,value:double'"));
    }
    if fields.len() > MAX_COLUMNS {
        return Err(bad(format!("{} columns are more than {MAX_COLUMNS}", fields.len()), "").at(|p| p.limit = Some(MAX_COLUMNS as u64)));
    }
    for name in required {
        if !fields.iter().any(|f| f.name == *name) {
            let names: Vec<&str> = fields.iter().map(|f| f.name.as_str()).collect();
            return Err(Error::invalid(Reason::InvalidContract, format!("{name} is a key column but not one of the columns"))
                .hint(names_hint(name, "columns", &names))
                .at(|p| p.column = Some(name.clone())));
        }
    }
    Schema::builder().with_schema_id(0).with_fields(fields).build().map_err(|e| from_iceberg(e, "making the table's schema"))
}

fn bad(message: String, value: &str) -> Error {
    Error::invalid(Reason::InvalidOption, message).at(|p| {
        p.option = Some(OPTION.into());
        p.value = Some(value.into()).filter(|v: &String| !v.is_empty());
    })
}

/// Splits at commas that are not inside `()` or `[]`. A trailing comma makes no empty part; an empty text has none.
pub(crate) fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if parts.last().is_some_and(|p| p.trim().is_empty()) {
        parts.pop();
    }
    parts
}

const TYPE_NAMES: [&str; 16] = [
    "boolean",
    "int",
    "integer",
    "long",
    "bigint",
    "float",
    "double",
    "decimal(P,S)",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "fixed[N]",
    "binary",
];

/// Names of other systems, and what they are called here.
const OTHER_NAMES: [(&str, &str); 22] = [
    ("text", "string"),
    ("varchar", "string"),
    ("char", "string"),
    ("str", "string"),
    ("utf8", "string"),
    ("real", "float"),
    ("float4", "float"),
    ("float32", "float"),
    ("float8", "double"),
    ("float64", "double"),
    ("smallint", "int"),
    ("int4", "int"),
    ("int32", "int"),
    ("int8", "long"),
    ("int64", "long"),
    ("numeric", "decimal(P,S)"),
    ("decimal", "decimal(P,S)"),
    ("datetime", "timestamptz"),
    ("timestampz", "timestamptz"),
    ("timestamp_tz", "timestamptz"),
    ("bytes", "binary"),
    ("bytea", "binary"),
];

fn nearest_type(text: &str) -> Option<&'static str> {
    let word: String = text.to_lowercase().split(['(', '[', ' ']).next().unwrap_or_default().to_string();
    if let Some((_, ours)) = OTHER_NAMES.iter().find(|(theirs, _)| *theirs == word) {
        return Some(ours);
    }
    let stem = |name: &'static str| name.split(['(', '[']).next().unwrap_or(name);
    let meant = nearest(&word, TYPE_NAMES.iter().map(|name| stem(name)))?;
    TYPE_NAMES.iter().copied().find(|name| stem(name) == meant)
}

/// The limits of decimals, when the text is one beyond them.
fn too_wide(text: &str) -> Option<String> {
    let compact: String = text.to_lowercase().chars().filter(|c| !c.is_whitespace()).collect();
    let (precision, scale) = compact.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
    let (precision, scale): (u64, u64) = (precision.parse().ok()?, scale.parse().ok()?);
    if precision > 38 {
        return Some(format!("the precision of a decimal is at most 38, for example decimal(38,{})", scale.min(38)));
    }
    if precision == 0 {
        return Some("the precision of a decimal is at least 1, for example decimal(12,3)".into());
    }
    (scale > precision).then(|| format!("the scale is not larger than the precision, for example decimal({scale},{scale})"))
}

/// The top-level columns with a primitive type. Optional nested columns are left out (they are written as null);
/// a required column that cannot be written makes the table unsupported.
pub fn columns(schema: &Schema) -> Result<Vec<Column>> {
    let mut out = Vec::new();
    for field in schema.as_struct().fields() {
        match column_type(&field.field_type) {
            Some(column_type) => out.push(Column { id: field.id, name: field.name.clone(), column_type, required: field.required }),
            None if !field.required => {}
            None => {
                return Err(Error::invalid(
                    Reason::UnsupportedTable,
                    format!("column {} is required and of type {}, which cannot be loaded", field.name, field.field_type),
                )
                .hint("make the column optional, or load into a table without it")
                .at(|p| p.column = Some(field.name.clone())));
            }
        }
    }
    Ok(out)
}

/// Sorted by the series key, then time, ascending, nulls first. Order id 1.
pub fn sort_order(schema: &Schema, contract: &TableContract) -> Result<SortOrder> {
    let mut builder = SortOrder::builder();
    builder.with_order_id(1);
    for name in contract.series_key.iter().chain([&contract.time_column]) {
        let field = schema.field_by_name(name).ok_or_else(|| {
            Error::invalid(Reason::InvalidContract, format!("the key column {name} is not in the table"))
                .at(|p| p.column = Some(name.clone()))
        })?;
        builder.with_sort_field(SortField {
            source_id: field.id,
            transform: Transform::Identity,
            direction: SortDirection::Ascending,
            null_order: NullOrder::First,
        });
    }
    builder.build(schema).map_err(|e| from_iceberg(e, "making the table's sort order"))
}

/// Does this order sort as [`sort_order`] does, whatever its id?
pub fn sorts_by_contract(order: &SortOrder, schema: &Schema, contract: &TableContract) -> bool {
    sort_order(schema, contract).is_ok_and(|wanted| wanted.fields == order.fields)
}

/// The table seen with another of its schemas as the current one. Not by the crate's builder: it refuses a default sort order by
/// a column that this schema does not have yet.
pub fn with_current_schema(table: &Table, schema_id: i32) -> Result<Table> {
    let failed = |e: String| Error::internal(format!("the table does not read with its schema {schema_id}: {e}"));
    let mut json = serde_json::to_value(table.metadata()).map_err(|e| failed(e.to_string()))?;
    json["current-schema-id"] = schema_id.into();
    let metadata: TableMetadata = serde_json::from_value(json).map_err(|e| failed(e.to_string()))?;
    let mut view = Table::builder()
        .identifier(table.identifier().clone())
        .metadata(metadata)
        .file_io(table.file_io().clone())
        .runtime(Runtime::try_current().map_err(|e| failed(e.to_string()))?);
    if let Some(location) = table.metadata_location() {
        view = view.metadata_location(location);
    }
    view.build().map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read() {
        let s = parse_columns(
            "ts:timestamptz, device_id:string ,value:decimal(10, 2)!,q : INT,f:fixed[4],",
            &["ts".into(), "device_id".into()],
        );
        let s = s.unwrap();
        let c = columns(&s).unwrap();
        let shown: Vec<String> =
            c.iter().map(|c| format!("{} {} {}{}", c.id, c.name, c.column_type, if c.required { "!" } else { "" })).collect();
        assert_eq!(shown, ["1 ts timestamptz!", "2 device_id string!", "3 value decimal(10,2)!", "4 q int", "5 f fixed[4]"]);
    }

    #[test]
    fn bad_columns_say_how_to_mend_them() {
        let check = |text: &str, part: &str| {
            let e = parse_columns(text, &["ts".into()]).unwrap_err();
            let all = format!("{} | {}", e.message, e.hint.unwrap_or_default());
            assert!(all.contains(part), "{text}: {all}");
        };
        check("ts:timestamptz,v:text", "did you mean string?");
        check("ts:timestamptz,v:dubble", "did you mean double?");
        check("ts:timestamptz,v:decimal", "did you mean decimal(P,S)?");
        check("ts:timestamptz,v:fixed(3)", "did you mean fixed[N]?");
        check("ts:timestampz,v:int", "did you mean timestamptz?");
        check("ts:timestamptz,v:decimal(40,2)", "at most 38, for example decimal(38,2)");
        check("ts:timestamptz,v:decimal(2, 4)", "for example decimal(4,4)");
        check("ts:timestamptz,v:decimal(0,0)", "at least 1");
        check("ts:timestamptz,TS:int", "named twice");
        check("ts:timestamptz,,v:int", "no ':'");
        check("ts:timestamptz,:int", "no column name");
        check("ts timestamptz", "no ':'");
        check("v:int", "ts is a key column");
        check("tss:timestamptz", "did you mean tss? columns: tss");
        check("", "no columns");
    }

    #[test]
    fn the_sort_order_is_series_then_time() {
        let schema = parse_columns("ts:timestamptz,site:string,tag:string", &[]).unwrap();
        let contract = TableContract {
            time_column: "ts".into(),
            series_key: vec!["site".into(), "tag".into()],
            dedup_key: None,
            retention: None,
            lateness: "PT1H".into(),
            undo: "P14D".into(),
            layout: vec![],
        };
        let order = sort_order(&schema, &contract).unwrap();
        assert_eq!((order.order_id, order.fields.iter().map(|f| f.source_id).collect::<Vec<_>>()), (1, vec![2, 3, 1]));
        assert!(sorts_by_contract(&order.with_order_id(7), &schema, &contract));
        assert!(!sorts_by_contract(&SortOrder::unsorted_order(), &schema, &contract));
    }
}
