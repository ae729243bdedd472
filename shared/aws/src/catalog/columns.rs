//! The columns of a Glue table as its Iceberg schema has them, the way other Iceberg catalogs on Glue write them: types in
//! Hive's words, the field in the column's parameters. Athena and the console show these; readers of Iceberg do not.

use aws_sdk_glue::types::Column;
use iceberg::spec::{NestedFieldRef, PrimitiveType, Schema, Type};
use std::collections::HashMap;
use timelake_model::{Error, Result};

const FIELD_ID: &str = "iceberg.field.id";
const FIELD_OPTIONAL: &str = "iceberg.field.optional";
const FIELD_CURRENT: &str = "iceberg.field.current";

/// What Glue takes as a comment.
const MOST_COMMENT_CHARS: usize = 255;

/// The columns of the current schema. What `known` says of a column beside that (its comment, further parameters) stays.
pub(crate) fn columns(schema: &Schema, known: &[Column]) -> Result<Vec<Column>> {
    schema.as_struct().fields().iter().map(|field| column(field, known.iter().find(|column| column.name == field.name))).collect()
}

fn column(field: &NestedFieldRef, known: Option<&Column>) -> Result<Column> {
    let mut parameters: HashMap<String, String> = known.and_then(|column| column.parameters.clone()).unwrap_or_default();
    parameters.insert(FIELD_ID.into(), field.id.to_string());
    parameters.insert(FIELD_OPTIONAL.into(), (!field.required).to_string());
    parameters.insert(FIELD_CURRENT.into(), "true".into());
    let documented = field.doc.as_ref().map(|text| text.chars().take(MOST_COMMENT_CHARS).collect());
    Column::builder()
        .name(&field.name)
        .r#type(hive(&field.field_type))
        .set_comment(documented.or_else(|| known.and_then(|column| column.comment.clone())))
        .set_parameters(Some(parameters))
        .build()
        .map_err(|e| Error::internal(e.to_string()))
}

fn hive(of: &Type) -> String {
    match of {
        Type::Primitive(primitive) => match primitive {
            PrimitiveType::Boolean => "boolean".into(),
            PrimitiveType::Int => "int".into(),
            PrimitiveType::Long => "bigint".into(),
            PrimitiveType::Float => "float".into(),
            PrimitiveType::Double => "double".into(),
            PrimitiveType::Decimal { precision, scale } => format!("decimal({precision},{scale})"),
            PrimitiveType::Date => "date".into(),
            PrimitiveType::Timestamp | PrimitiveType::Timestamptz | PrimitiveType::TimestampNs | PrimitiveType::TimestamptzNs => {
                "timestamp".into()
            }
            PrimitiveType::Time | PrimitiveType::String | PrimitiveType::Uuid => "string".into(),
            PrimitiveType::Fixed(_) | PrimitiveType::Binary => "binary".into(),
        },
        Type::Struct(fields) => {
            let fields: Vec<String> = fields.fields().iter().map(|field| format!("{}:{}", field.name, hive(&field.field_type))).collect();
            format!("struct<{}>", fields.join(","))
        }
        Type::List(list) => format!("array<{}>", hive(&list.element_field.field_type)),
        Type::Map(map) => format!("map<{},{}>", hive(&map.key_field.field_type), hive(&map.value_field.field_type)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iceberg::spec::{ListType, NestedField, StructType};
    use std::sync::Arc;

    #[test]
    fn columns_follow_the_schema_and_keep_what_only_glue_knows() {
        let list = ListType::new(Arc::new(NestedField::list_element(5, Type::Primitive(PrimitiveType::Long), true)));
        let inner = StructType::new(vec![Arc::new(NestedField::optional(6, "x", Type::Primitive(PrimitiveType::Uuid)))]);
        let fields = [
            NestedField::required(1, "ts", Type::Primitive(PrimitiveType::Timestamptz)),
            NestedField::optional(2, "value", Type::Primitive(PrimitiveType::Decimal { precision: 9, scale: 2 })).with_doc("of the table"),
            NestedField::optional(3, "list", Type::List(list)),
            NestedField::optional(4, "inner", Type::Struct(inner)),
        ];
        let schema = Schema::builder().with_fields(fields.into_iter().map(Arc::new)).build().unwrap();
        let known = |name: &str| Column::builder().name(name).comment("of Glue").parameters("owner", "plant").build().unwrap();
        let columns = columns(&schema, &[known("gone"), known("value"), known("ts")]).unwrap();
        let told: Vec<_> = columns.iter().map(|c| (c.name.as_str(), c.r#type.as_deref().unwrap(), c.comment.as_deref())).collect();
        assert_eq!(
            told,
            [
                ("ts", "timestamp", Some("of Glue")),
                ("value", "decimal(9,2)", Some("of the table")),
                ("list", "array<bigint>", None),
                ("inner", "struct<x:string>", None)
            ]
        );
        let parameters = columns[0].parameters.as_ref().unwrap();
        assert_eq!(
            (parameters["owner"].as_str(), parameters[FIELD_ID].as_str(), parameters[FIELD_OPTIONAL].as_str()),
            ("plant", "1", "false")
        );
    }
}
