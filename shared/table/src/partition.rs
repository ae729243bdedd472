//! Partition specs from text, and the partition of a row.
//!
//! Must never happen: a partition value that other Iceberg libraries would not compute for the row. Readers prune
//! by these values, so a wrong one hides rows without any error.

use crate::errors::{from_arrow, from_iceberg};
use crate::schema::split_outside_brackets;
use crate::values::{date_text, datum, human_text, literal_from_text, primitive_type};
use arrow::array::{Array, ArrayRef, AsArray, Date32Array, Int32Array, PrimitiveArray};
use arrow::datatypes::{DataType, Date32Type, Int32Type, TimeUnit, TimestampMicrosecondType};
use iceberg::arrow::arrow_primitive_to_literal;
use iceberg::spec::{Literal, PartitionSpec, PrimitiveLiteral, PrimitiveType, Schema, Struct, Transform, Type, UnboundPartitionSpec};
use iceberg::transform::{BoxedTransformFunction, create_transform_function};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::Arc;
use timelake_model::inventory::PartitionField;
use timelake_model::similar::names_hint;
use timelake_model::time::{MICROS_PER_DAY, Period};
use timelake_model::{ColumnType, Error, Reason, Result};

const OPTION: &str = "--partition";
const MAX_FIELDS: usize = 16;
const MAX_BUCKETS: u32 = 100_000;

/// Reads `day(ts),bucket(16,device_id),region`: transforms `year`, `month`, `day`, `hour`, `bucket(N,column)`,
/// `truncate(W,column)`, and a bare column name for its own value. Empty text or `none`: not partitioned.
pub fn parse_partition(text: &str, schema: &Schema) -> Result<UnboundPartitionSpec> {
    let mut builder = UnboundPartitionSpec::builder().with_spec_id(0);
    let text = text.trim();
    let parts = if text == "none" { Vec::new() } else { split_outside_brackets(text) };
    if parts.len() > MAX_FIELDS {
        return Err(bad(format!("{} partition fields are more than {MAX_FIELDS}", parts.len()), text));
    }
    for part in parts {
        let (transform, column) = parse_field(part.trim())?;
        let field = schema.as_struct().field_by_name(column).ok_or_else(|| {
            let names: Vec<&str> = schema.as_struct().fields().iter().map(|f| f.name.as_str()).collect();
            bad(format!("the table has no column {column}"), part).hint(names_hint(column, "columns", &names))
        })?;
        refuse_what_cannot_be_written(transform, &field.field_type, column)?;
        let name = match transform {
            Transform::Identity => column.to_string(),
            Transform::Bucket(_) => format!("{column}_bucket"),
            Transform::Truncate(_) => format!("{column}_trunc"),
            other => format!("{column}_{other}"),
        };
        builder = builder.add_partition_field(field.id, name, transform).map_err(|e| bad(format!("{part}: {}", e.message()), part))?;
    }
    let spec = builder.build();
    spec.clone().bind(schema.clone()).map_err(|e| bad(format!("the table cannot be partitioned by {text}: {}", e.message()), text))?;
    Ok(spec)
}

/// Folder names have an end in every file system. Readers take partition values from the manifests, not from paths,
/// so a long value may be cut; its hash keeps folders of different values apart.
fn shortened(encoded: String) -> String {
    const MOST: usize = 100;
    if encoded.len() <= MOST {
        return encoded;
    }
    format!("{}-{:016x}", &encoded[..MOST], twox_hash::XxHash3_64::oneshot(encoded.as_bytes()))
}

fn bad(message: String, value: &str) -> Error {
    Error::invalid(Reason::InvalidOption, message).hint("for example --partition 'day(ts),bucket(16,device_id)', or --partition none").at(
        |p| {
            p.option = Some(OPTION.into());
            p.value = Some(value.into()).filter(|v: &String| !v.is_empty());
        },
    )
}

fn parse_field(part: &str) -> Result<(Transform, &str)> {
    let Some((word, rest)) = part.split_once('(') else {
        return if part.is_empty() { Err(bad("a partition field is empty".into(), part)) } else { Ok((Transform::Identity, part)) };
    };
    let inner = rest.strip_suffix(')').ok_or_else(|| bad(format!("{part}: the closing ) is missing"), part))?;
    let word = word.trim().to_lowercase();
    let number_and_column = |what: &str, limit: u32| -> Result<(u32, &str)> {
        let (number, column) =
            inner.split_once(',').ok_or_else(|| bad(format!("{part}: {what} needs a number and a column, {what}(16,column)"), part))?;
        match number.trim().parse::<u32>() {
            Ok(n) if n > 0 && n <= limit => Ok((n, column.trim())),
            _ => Err(bad(format!("{part}: {} is not a number from 1 to {limit}", number.trim()), part)),
        }
    };
    Ok(match word.as_str() {
        "year" | "years" => (Transform::Year, inner.trim()),
        "month" | "months" => (Transform::Month, inner.trim()),
        "day" | "days" => (Transform::Day, inner.trim()),
        "hour" | "hours" => (Transform::Hour, inner.trim()),
        "identity" => (Transform::Identity, inner.trim()),
        "bucket" => number_and_column("bucket", MAX_BUCKETS).map(|(n, column)| (Transform::Bucket(n), column))?,
        "truncate" => number_and_column("truncate", i32::MAX as u32).map(|(w, column)| (Transform::Truncate(w), column))?,
        "void" => return Err(bad("void is not a partition to create: it always holds null".into(), part)),
        other => {
            return Err(bad(format!("{other} is not a partition transform"), part)
                .hint("transforms: year, month, day, hour, bucket(N,column), truncate(W,column), or just the column"));
        }
    })
}

/// Partitions the iceberg crate cannot write, or whose values libraries do not agree on.
fn refuse_what_cannot_be_written(transform: Transform, field_type: &Type, column: &str) -> Result<()> {
    let without_text = matches!(
        field_type.as_primitive_type(),
        Some(PrimitiveType::Uuid | PrimitiveType::Fixed(_) | PrimitiveType::Binary | PrimitiveType::Float | PrimitiveType::Double)
    );
    let refused = transform == Transform::Unknown || transform == Transform::Identity && without_text;
    if refused {
        return Err(Error::invalid(
            Reason::UnsupportedTable,
            format!("partitioning by {transform} of {column} ({field_type}) is not supported"),
        )
        .hint(format!("use bucket(N,{column}) instead"))
        .at(|p| p.column = Some(column.into())));
    }
    Ok(())
}

/// The spec's fields as plain words. Fields of dropped columns and `void` are left out.
pub fn fields(spec: &PartitionSpec, schema: &Schema) -> Vec<PartitionField> {
    spec.fields()
        .iter()
        .filter(|f| f.transform != Transform::Void)
        .filter_map(|f| {
            let column = schema.name_by_field_id(f.source_id)?;
            Some(PartitionField { column: column.into(), transform: f.transform.to_string(), name: f.name.clone() })
        })
        .collect()
}

/// The period of a time transform.
pub fn period(transform: Transform) -> Option<Period> {
    match transform {
        Transform::Hour => Some(Period::Hour),
        Transform::Day => Some(Period::Day),
        Transform::Month => Some(Period::Month),
        Transform::Year => Some(Period::Year),
        _ => None,
    }
}

/// Bucket of a value, the same number as the partition field `bucket[buckets]` has.
pub fn bucket_of(column_type: ColumnType, value: &Literal, buckets: u32) -> Result<u32> {
    let primitive = value.as_primitive_literal().ok_or_else(|| Error::internal("a nested value has no bucket"))?;
    let typed = datum(&primitive_type(column_type), &primitive)?;
    let function = create_transform_function(&Transform::Bucket(buckets)).map_err(|e| from_iceberg(e, "making a bucket transform"))?;
    let bucket = function.transform_literal_result(&typed).map_err(|e| from_iceberg(e, "computing a bucket"))?;
    match bucket.literal() {
        PrimitiveLiteral::Int(n) => u32::try_from(*n).map_err(|_| Error::internal(format!("bucket {n} is negative"))),
        other => Err(Error::internal(format!("a bucket is a number, not {other:?}"))),
    }
}

/// [`bucket_of`] for a key column's text.
pub fn bucket_of_text(column_type: ColumnType, text: &str, buckets: u32) -> Result<u32> {
    bucket_of(column_type, &literal_from_text(column_type, text)?, buckets)
}

struct Field {
    name: String,
    source: String,
    source_type: PrimitiveType,
    result_type: PrimitiveType,
    transform: Transform,
    function: BoxedTransformFunction,
}

/// Computes the partition of rows for one spec.
pub struct Partitioner {
    fields: Vec<Field>,
}

impl Partitioner {
    pub fn new(spec: &PartitionSpec, schema: &Schema) -> Result<Self> {
        let mut fields = Vec::with_capacity(spec.fields().len());
        for f in spec.fields() {
            let source = schema.field_by_id(f.source_id);
            let source_type = source.and_then(|s| s.field_type.as_primitive_type());
            let (Some(source), Some(source_type)) = (source, source_type) else {
                return Err(Error::invalid(
                    Reason::UnsupportedTable,
                    format!("the partition field {} is made from a column the table no longer has", f.name),
                )
                .hint("remove the field from the table's partition spec first"));
            };
            let column = schema.name_by_field_id(source.id).unwrap_or(&source.name);
            refuse_what_cannot_be_written(f.transform, &source.field_type, column)?;
            let result = f.transform.result_type(&source.field_type).map_err(|e| from_iceberg(e, "reading the partition spec"))?;
            let result_type = result.as_primitive_type().cloned().ok_or_else(|| Error::internal("a partition value is primitive"))?;
            fields.push(Field {
                name: f.name.clone(),
                source: column.to_string(),
                source_type: source_type.clone(),
                result_type,
                transform: f.transform,
                function: create_transform_function(&f.transform).map_err(|e| from_iceberg(e, "reading the partition spec"))?,
            });
        }
        Ok(Partitioner { fields })
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
    /// Column each field is made from, in the order of the spec.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|f| f.source.as_str())
    }

    /// Calendar period of a field, when its transform is one.
    pub fn period(&self, field: usize) -> Option<Period> {
        self.fields.get(field).and_then(|f| period(f.transform))
    }

    fn field(&self, field: usize) -> Result<&Field> {
        self.fields.get(field).ok_or_else(|| Error::internal(format!("the spec has no partition field {field}")))
    }

    /// The field's values for the rows of its source column, as an array: `Int32` for bucket, year, month and hour,
    /// `Date32` for day, the source's type for identity and truncate. Dictionary arrays are transformed by their values.
    pub fn transform(&self, field: usize, source: &ArrayRef) -> Result<ArrayRef> {
        let f = self.field(field)?;
        if let DataType::Dictionary(..) = source.data_type() {
            let dictionary = source.as_any_dictionary();
            let values = self.transform(field, dictionary.values())?;
            return arrow::compute::take(&values, dictionary.keys(), None).map_err(|e| from_arrow(e, "spreading partition values"));
        }
        if let Some(period) = period(f.transform) {
            return time_ordinals(period, source);
        }
        let expected = iceberg::arrow::type_to_arrow_type(&Type::Primitive(f.source_type.clone()))
            .map_err(|e| from_iceberg(e, "reading the partition spec"))?;
        let source = if *source.data_type() == expected {
            source.clone()
        } else {
            arrow::compute::cast(source, &expected).map_err(|e| from_arrow(e, "preparing a partition column"))?
        };
        f.function.transform(source).map_err(|e| from_iceberg(e, "computing partition values"))
    }

    /// The field's values for the rows of its source column.
    pub fn values(&self, field: usize, source: &ArrayRef) -> Result<Vec<Option<Literal>>> {
        let f = self.field(field)?;
        if f.transform == Transform::Void {
            return Ok(vec![None; source.len()]);
        }
        let array = self.transform(field, source)?;
        arrow_primitive_to_literal(&array, &Type::Primitive(f.result_type.clone())).map_err(|e| from_iceberg(e, "reading partition values"))
    }

    /// Partition of the single row at `row`, from the source columns in the order of the spec.
    pub fn partition_of(&self, sources: &[ArrayRef], row: usize) -> Result<Struct> {
        let mut values = Vec::with_capacity(self.fields.len());
        for (i, source) in sources.iter().enumerate().take(self.fields.len()) {
            let one = source.slice(row, 1);
            values.push(self.values(i, &one)?.into_iter().next().flatten());
        }
        if values.len() != self.fields.len() {
            return Err(Error::internal("a source column of the partition spec is missing"));
        }
        Ok(Struct::from_iter(values))
    }

    /// Folder of a partition below the data folder, `ts_day=2024-05-01/device_id_bucket=3`; empty when not
    /// partitioned. Everything but letters, digits and `-_.` is percent-encoded, so no value leaves its folder.
    pub fn path(&self, partition: &Struct) -> String {
        let parts: Vec<String> = self
            .fields
            .iter()
            .zip(self.texts(partition))
            .map(|(f, text)| format!("{}={}", shortened(encode(&f.name)), shortened(encode(text.as_deref().unwrap_or("null")))))
            .collect();
        parts.join("/")
    }

    /// Text of each value, as Java Iceberg shows it (`2024-05-01`, `2024-05`, `3`); `None` = null.
    pub fn texts(&self, partition: &Struct) -> Vec<Option<String>> {
        self.fields
            .iter()
            .zip(partition.fields())
            .map(|(f, value)| {
                let literal = value.as_ref()?.as_primitive_literal()?;
                Some(match (f.transform, &literal) {
                    (Transform::Year, PrimitiveLiteral::Int(n)) => (1970 + i64::from(*n)).to_string(),
                    (Transform::Month, PrimitiveLiteral::Int(n)) => {
                        let n = i64::from(*n);
                        format!("{}-{:02}", 1970 + n.div_euclid(12), n.rem_euclid(12) + 1)
                    }
                    (Transform::Hour, PrimitiveLiteral::Int(n)) => format!("{}-{:02}", date_text(n.div_euclid(24)), n.rem_euclid(24)),
                    _ => human_text(&f.result_type, &literal),
                })
            })
            .collect()
    }
}

const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

fn encode(text: &str) -> String {
    match text {
        // These two would be folders of their own.
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ => utf8_percent_encode(text, KEPT).to_string(),
    }
}

/// Year, month, day and hour by our own calendar, the one the plan cuts chunks with: the crate's month depends on
/// the array's zone tag before 1970.
fn time_ordinals(period: Period, source: &ArrayRef) -> Result<ArrayRef> {
    let too_far = || Error::invalid(Reason::TimestampOutOfRange, "a time is too far from 1970 to be partitioned");
    let convert = |ordinal: i64| i32::try_from(ordinal).map_err(|_| too_far());
    let ordinals: PrimitiveArray<Int32Type> = match source.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            source.as_primitive::<TimestampMicrosecondType>().try_unary(|us| convert(period.ordinal(us)))?
        }
        DataType::Date32 => {
            source.as_primitive::<Date32Type>().try_unary(|days| convert(period.ordinal(i64::from(days) * MICROS_PER_DAY)))?
        }
        other => return Err(Error::internal(format!("{other} has no year, month, day or hour"))),
    };
    Ok(match period {
        Period::Day => Arc::new(Date32Array::new(ordinals.values().clone(), ordinals.nulls().cloned())),
        _ => Arc::new(Int32Array::new(ordinals.values().clone(), ordinals.nulls().cloned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::parse_columns;
    use arrow::array::{DictionaryArray, StringArray, TimestampMicrosecondArray};

    fn schema() -> Schema {
        parse_columns("ts:timestamptz!,device_id:string!,region:string,n:long,d:date,u:uuid,x:double,b:decimal(9,2)", &[]).unwrap()
    }
    fn partitioner(text: &str) -> Partitioner {
        let schema = schema();
        Partitioner::new(&parse_partition(text, &schema).unwrap().bind(schema.clone()).unwrap(), &schema).unwrap()
    }
    fn micros(values: &[i64]) -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(values.to_vec()).with_timezone("UTC"))
    }

    #[test]
    fn specs_are_read_and_named_as_other_libraries_do() {
        let schema = schema();
        let spec = parse_partition("Day(ts), bucket(16, device_id),truncate(4,region),n", &schema).unwrap();
        let shown: Vec<String> = spec.fields().iter().map(|f| format!("{} {} {}", f.source_id, f.name, f.transform)).collect();
        assert_eq!(shown, ["1 ts_day day", "2 device_id_bucket bucket[16]", "3 region_trunc truncate[4]", "4 n identity"]);
        for none in ["", "none", "  "] {
            assert!(parse_partition(none, &schema).unwrap().fields().is_empty());
        }
        let bound = spec.bind(schema.clone()).unwrap();
        let f = fields(&bound, &schema);
        assert_eq!((f[1].column.as_str(), f[1].transform.as_str()), ("device_id", "bucket[16]"));
    }

    #[test]
    fn bad_specs_are_refused() {
        for text in [
            "day(nope)",
            "week(ts)",
            "bucket(device_id)",
            "bucket(0,device_id)",
            "void(ts)",
            "day(ts",
            "day(device_id)",
            "u",
            "x",
            "day(ts),hour(ts)",
            "n,n",
        ] {
            let e = parse_partition(text, &schema()).unwrap_err();
            assert!(e.hint.is_some(), "{text}: {e}");
        }
    }

    #[test]
    fn time_values_are_the_plans_periods_for_two_centuries() {
        for (text, period) in
            [("hour(ts)", Period::Hour), ("day(ts)", Period::Day), ("month(ts)", Period::Month), ("year(ts)", Period::Year)]
        {
            let p = partitioner(text);
            // 1890 to 2110, odd steps, and both sides of each step
            let times: Vec<i64> =
                (-2_524_521_600..4_449_600_000i64).step_by(1_234_577).flat_map(|s| [s * 1_000_000 - 1, s * 1_000_000]).collect();
            let values = p.values(0, &micros(&times)).unwrap();
            for (time, value) in times.iter().zip(values) {
                let expected = period.ordinal(*time) as i32;
                let expected = if period == Period::Day { Literal::date(expected) } else { Literal::int(expected) };
                assert_eq!(value, Some(expected), "{text} of {time}");
            }
        }
    }

    #[test]
    fn our_calendar_is_the_crates() {
        for (transform, period) in [
            (Transform::Hour, Period::Hour),
            (Transform::Day, Period::Day),
            (Transform::Month, Period::Month),
            (Transform::Year, Period::Year),
        ] {
            let function = create_transform_function(&transform).unwrap();
            for second in (-2_524_521_600..4_449_600_000i64).step_by(98_765_432) {
                let us = second * 1_000_000;
                let theirs = function.transform_literal_result(&iceberg::spec::Datum::timestamptz_micros(us)).unwrap();
                assert_eq!(theirs.literal(), &PrimitiveLiteral::Int(period.ordinal(us) as i32), "{transform} of {us}");
            }
        }
    }

    #[test]
    fn buckets_are_those_of_the_specification() {
        // Iceberg specification, appendix B: hash values of examples
        let hash = |t: ColumnType, v: Literal| bucket_of(t, &v, i32::MAX as u32).unwrap();
        assert_eq!(hash(ColumnType::Long, Literal::long(34)), 2_017_239_379);
        assert_eq!(hash(ColumnType::Int, Literal::int(34)), 2_017_239_379);
        assert_eq!(hash(ColumnType::String, Literal::string("iceberg")), 1_210_000_089);
        let expected = (-500_754_589_i32 & i32::MAX) as u32;
        assert_eq!(hash(ColumnType::Decimal { precision: 9, scale: 2 }, Literal::decimal(1420)), expected);
        assert_eq!(bucket_of_text(ColumnType::Decimal { precision: 9, scale: 2 }, "14.20", i32::MAX as u32).unwrap(), expected);
        let p = partitioner("bucket(16,device_id)");
        let plain: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("iceberg"), Some("a")]));
        let dictionary: ArrayRef =
            Arc::new(vec![Some("a"), None, Some("iceberg"), Some("a")].into_iter().collect::<DictionaryArray<Int32Type>>());
        let values = p.values(0, &plain).unwrap();
        assert_eq!(values, p.values(0, &dictionary).unwrap());
        assert_eq!(values[1], None);
        assert_eq!(values[2], Some(Literal::int(1_210_000_089 % 16)));
        assert_eq!(bucket_of_text(ColumnType::String, "iceberg", 16).unwrap(), 1_210_000_089 % 16);
    }

    #[test]
    fn paths_are_escaped_and_readable() {
        let p = partitioner("month(ts),region,bucket(4,device_id)");
        let region: ArrayRef = Arc::new(StringArray::from(vec![Some("../a b/ü=%"), None]));
        let device: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
        let sources = [micros(&[1_714_521_600_000_000, -1]), region, device];
        let first = p.partition_of(&sources, 0).unwrap();
        let bucket = bucket_of_text(ColumnType::String, "x", 4).unwrap();
        assert_eq!(p.path(&first), format!("ts_month=2024-05/region=..%2Fa%20b%2F%C3%BC%3D%25/device_id_bucket={bucket}"));
        assert_eq!(p.texts(&p.partition_of(&sources, 1).unwrap())[..2], [Some("1969-12".to_string()), None]);
        assert_eq!(partitioner("hour(ts)").texts(&Struct::from_iter([Some(Literal::int(-1))])), [Some("1969-12-31-23".to_string())]);
        assert_eq!(encode(".."), "%2E%2E");
        assert_eq!(partitioner("none").path(&Struct::empty()), "");
    }
}
