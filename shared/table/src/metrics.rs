//! Metrics of a data file, from the footer of the Parquet file just written.
//!
//! Must never happen: a bound that excludes a value of the file. Readers skip files by bounds, so such a bound hides
//! rows without any error. Where a footer does not give a sure bound, there is none.

use crate::values::datum;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, PrimitiveLiteral, PrimitiveType, Schema, SortOrder, Struct, Type,
};
use parquet::basic::{LogicalType, TimeUnit, Type as PhysicalType};
use parquet::data_type::AsBytes;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::statistics::Statistics;
use parquet::schema::types::{SchemaDescriptor, Type as ParquetType};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use timelake_model::{Error, Reason, Result};

pub const METRICS_DEFAULT: &str = "write.metadata.metrics.default";
pub const METRICS_COLUMN_PREFIX: &str = "write.metadata.metrics.column.";
/// Iceberg's default: texts and binaries are cut to 16.
const DEFAULT_WIDTH: usize = 16;

/// What is kept about a column (Iceberg's metrics modes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsMode {
    None,
    Counts,
    /// Counts, and bounds of at most this many characters or bytes.
    Truncate(usize),
    Full,
}

impl MetricsMode {
    fn parse(text: &str) -> Option<MetricsMode> {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
        match compact.as_str() {
            "none" => Some(MetricsMode::None),
            "counts" => Some(MetricsMode::Counts),
            "full" => Some(MetricsMode::Full),
            other => match other.strip_prefix("truncate(")?.strip_suffix(')')?.parse() {
                Ok(width) if width > 0 => Some(MetricsMode::Truncate(width)),
                _ => None,
            },
        }
    }
}

/// The metrics mode of each column.
#[derive(Debug, Clone)]
pub struct MetricsModes {
    default: MetricsMode,
    /// By field id.
    columns: HashMap<i32, MetricsMode>,
}

impl Default for MetricsModes {
    fn default() -> Self {
        MetricsModes { default: MetricsMode::Truncate(DEFAULT_WIDTH), columns: HashMap::new() }
    }
}

impl MetricsModes {
    /// From the table's properties. Columns of the sort order keep their bounds even when the default mode has none.
    pub fn from_properties(properties: &HashMap<String, String>, schema: &Schema, sort_order: &SortOrder) -> Result<Self> {
        let parse = |property: &str, text: &str| {
            MetricsMode::parse(text).ok_or_else(|| {
                Error::invalid(Reason::UnsupportedTable, format!("the table property {property} is {text:?}, which is not a metrics mode"))
                    .hint("metrics modes: none, counts, truncate(16), full")
                    .at(|p| p.value = Some(text.into()))
            })
        };
        let mut modes = MetricsModes::default();
        if let Some(text) = properties.get(METRICS_DEFAULT) {
            modes.default = parse(METRICS_DEFAULT, text)?;
        }
        if matches!(modes.default, MetricsMode::None | MetricsMode::Counts) {
            for field in &sort_order.fields {
                modes.columns.insert(field.source_id, MetricsMode::Truncate(DEFAULT_WIDTH));
            }
        }
        for (property, text) in properties {
            let Some(column) = property.strip_prefix(METRICS_COLUMN_PREFIX) else { continue };
            // A property of a column that was dropped or renamed says nothing about any column.
            if let Some(id) = schema.field_id_by_name(column) {
                modes.columns.insert(id, parse(property, text)?);
            }
        }
        Ok(modes)
    }

    pub fn of(&self, field_id: i32) -> MetricsMode {
        self.columns.get(&field_id).copied().unwrap_or(self.default)
    }
}

/// The Arrow schema of data files: the table's columns with their field ids (`PARQUET:field_id`).
pub fn writer_schema(schema: &Schema) -> Result<Arc<arrow::datatypes::Schema>> {
    iceberg::arrow::schema_to_arrow_schema(schema)
        .map(Arc::new)
        .map_err(|e| Error::invalid(Reason::UnsupportedTable, format!("the table's schema has no Arrow form: {e}")))
}

/// The Parquet schema of the table's data files: as Arrow would write it, with the annotations that Arrow has
/// no type for (UUID), and Iceberg's field ids.
pub fn parquet_schema(schema: &Schema) -> Result<SchemaDescriptor> {
    let internal = |e: parquet::errors::ParquetError| Error::internal(format!("the table's schema has no Parquet form: {e}"));
    let arrow = writer_schema(schema)?;
    let converted = parquet::arrow::ArrowSchemaConverter::new().convert(&arrow).map_err(internal)?;
    let fields = converted
        .root_schema()
        .get_fields()
        .iter()
        .map(|field| {
            let info = field.get_basic_info();
            let is_uuid = schema.field_by_name(info.name()).is_some_and(|f| *f.field_type == Type::Primitive(PrimitiveType::Uuid));
            if !is_uuid {
                return Ok(field.clone());
            }
            let uuid = ParquetType::primitive_type_builder(info.name(), PhysicalType::FIXED_LEN_BYTE_ARRAY)
                .with_length(16)
                .with_logical_type(Some(LogicalType::Uuid))
                .with_repetition(info.repetition())
                .with_id(info.has_id().then(|| info.id()))
                .build()
                .map_err(internal)?;
            Ok(Arc::new(uuid))
        })
        .collect::<Result<Vec<_>>>()?;
    let root = ParquetType::group_type_builder(converted.root_schema().name()).with_fields(fields).build().map_err(internal)?;
    Ok(SchemaDescriptor::new(Arc::new(root)))
}

/// A data file just written: where, how big, in which partition.
#[derive(Debug, Clone)]
pub struct Written {
    pub path: String,
    pub bytes: u64,
    pub spec_id: i32,
    pub partition: Struct,
    /// 0 = not sorted.
    pub sort_order_id: i32,
    /// NaN values by field id; a footer does not count them.
    pub nan_counts: HashMap<i32, u64>,
}

/// The manifest entry's content for a file whose columns carry field ids.
pub fn data_file(schema: &Schema, footer: &ParquetMetaData, written: Written, modes: &MetricsModes) -> Result<DataFile> {
    let mut columns: HashMap<i32, ColumnMetrics> = HashMap::new();
    for group in footer.row_groups() {
        for chunk in group.columns() {
            let info = chunk.column_descr().self_type().get_basic_info();
            if !info.has_id() {
                return Err(Error::internal(format!("column {} of {} has no field id", chunk.column_path(), written.path)));
            }
            let id = info.id();
            let Some(primitive) = schema.field_by_id(id).and_then(|f| f.field_type.as_primitive_type()) else { continue };
            columns.entry(id).or_default().add(chunk, primitive);
        }
    }
    let (mut sizes, mut values, mut nulls, mut nans) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let (mut lower, mut upper) = (HashMap::new(), HashMap::new());
    for (id, column) in columns {
        let mode = modes.of(id);
        sizes.insert(id, column.bytes);
        if mode == MetricsMode::None {
            continue;
        }
        values.insert(id, column.values);
        if column.nulls_known {
            nulls.insert(id, column.nulls);
        }
        if let Some(count) = written.nan_counts.get(&id) {
            nans.insert(id, *count);
        }
        let width = match mode {
            MetricsMode::Truncate(width) => width,
            MetricsMode::Full => usize::MAX,
            MetricsMode::None | MetricsMode::Counts => continue,
        };
        let Some(primitive) = schema.field_by_id(id).and_then(|f| f.field_type.as_primitive_type()) else { continue };
        if let Some(bound) = column.lower.bound().and_then(|b| b.lower(primitive, width)) {
            lower.insert(id, datum(primitive, &bound)?);
        }
        if let Some(bound) = column.upper.bound().and_then(|b| b.upper(primitive, width)) {
            upper.insert(id, datum(primitive, &bound)?);
        }
    }
    let rows = u64::try_from(footer.file_metadata().num_rows()).map_err(|_| Error::internal("a footer has a negative row count"))?;
    let split_offsets: Vec<i64> = footer
        .row_groups()
        .iter()
        .filter_map(|group| group.columns().iter().map(|c| c.byte_range().0).min())
        .filter_map(|offset| i64::try_from(offset).ok())
        .collect();
    DataFileBuilder::default()
        .content(DataContentType::Data)
        .file_path(written.path)
        .file_format(DataFileFormat::Parquet)
        .partition(written.partition)
        .partition_spec_id(written.spec_id)
        .record_count(rows)
        .file_size_in_bytes(written.bytes)
        .column_sizes(sizes)
        .value_counts(values)
        .null_value_counts(nulls)
        .nan_value_counts(nans)
        .lower_bounds(lower)
        .upper_bounds(upper)
        .split_offsets(Some(split_offsets).filter(|o| !o.is_empty()))
        .sort_order_id(written.sort_order_id)
        .build()
        .map_err(|e| Error::internal(format!("a data file entry is incomplete: {e}")))
}

/// Bound over row groups: unset until one with values comes, lost for good when one of them gives none.
#[derive(Debug, Default)]
enum Running {
    #[default]
    Unset,
    Known(Extreme),
    Lost,
}

impl Running {
    fn add(&mut self, next: Option<Extreme>, keep_next: Ordering) {
        let current = std::mem::replace(self, Running::Lost);
        *self = match (current, next) {
            (Running::Lost, _) | (_, None) => Running::Lost,
            (Running::Unset, Some(next)) => Running::Known(next),
            (Running::Known(old), Some(next)) => {
                Running::Known(if next.literal.partial_cmp(&old.literal) == Some(keep_next) { next } else { old })
            }
        };
    }
    fn bound(&self) -> Option<&Extreme> {
        match self {
            Running::Known(extreme) => Some(extreme),
            Running::Unset | Running::Lost => None,
        }
    }
}

/// Smallest or largest value of a column, or something surely beyond it.
#[derive(Debug)]
struct Extreme {
    literal: PrimitiveLiteral,
}

#[derive(Debug, Default)]
struct ColumnMetrics {
    bytes: u64,
    values: u64,
    nulls: u64,
    nulls_known: bool,
    lower: Running,
    upper: Running,
    started: bool,
}

impl ColumnMetrics {
    fn add(&mut self, chunk: &ColumnChunkMetaData, primitive: &PrimitiveType) {
        let values = u64::try_from(chunk.num_values()).unwrap_or(0);
        let nulls = chunk.statistics().and_then(|s| s.null_count_opt());
        self.bytes += u64::try_from(chunk.compressed_size()).unwrap_or(0);
        self.values += values;
        self.nulls += nulls.unwrap_or(0);
        self.nulls_known = nulls.is_some() && (self.nulls_known || !self.started);
        self.started = true;
        if nulls == Some(values) {
            return; // nothing to bound
        }
        // Elements of lists and maps have no bounds in Iceberg.
        let repeated = chunk.column_descr().max_rep_level() > 0;
        let statistics = chunk.statistics().filter(|_| !repeated);
        let (low, high) = statistics.map_or((None, None), |s| (extreme(chunk, s, primitive, false), extreme(chunk, s, primitive, true)));
        self.lower.add(low, Ordering::Less);
        self.upper.add(high, Ordering::Greater);
    }
}

/// The statistic as a value of the column's type, or `None` when it cannot be trusted to bound all values.
fn extreme(chunk: &ColumnChunkMetaData, statistics: &Statistics, primitive: &PrimitiveType, upper: bool) -> Option<Extreme> {
    macro_rules! pick {
        ($s:expr) => {
            if upper { $s.max_opt()? } else { $s.min_opt()? }
        };
    }
    let literal = match (statistics, primitive) {
        (Statistics::Boolean(s), PrimitiveType::Boolean) => PrimitiveLiteral::Boolean(*pick!(s)),
        (Statistics::Int32(s), PrimitiveType::Int | PrimitiveType::Date) => PrimitiveLiteral::Int(*pick!(s)),
        (Statistics::Int64(s), PrimitiveType::Long) => PrimitiveLiteral::Long(*pick!(s)),
        (Statistics::Int64(s), PrimitiveType::Time | PrimitiveType::Timestamp | PrimitiveType::Timestamptz) => {
            in_microseconds(chunk).then_some(())?;
            PrimitiveLiteral::Long(*pick!(s))
        }
        // Zero has two signs that compare equal when written; the bound takes the outer one.
        (Statistics::Float(s), PrimitiveType::Float) => {
            let v = *pick!(s);
            (!v.is_nan()).then_some(())?;
            PrimitiveLiteral::Float(outer_zero(v.into(), upper).map_or(v, |z| z as f32).into())
        }
        (Statistics::Double(s), PrimitiveType::Double) => {
            let v = *pick!(s);
            (!v.is_nan()).then_some(())?;
            PrimitiveLiteral::Double(outer_zero(v, upper).unwrap_or(v).into())
        }
        (Statistics::Int32(s), PrimitiveType::Decimal { .. }) => PrimitiveLiteral::Int128(i128::from(*pick!(s))),
        (Statistics::Int64(s), PrimitiveType::Decimal { .. }) => PrimitiveLiteral::Int128(i128::from(*pick!(s))),
        (Statistics::FixedLenByteArray(s), PrimitiveType::Decimal { .. }) => {
            // A shortened decimal is not an ordered prefix of the number.
            statistics_exact(statistics, upper).then_some(())?;
            PrimitiveLiteral::Int128(iceberg_i128(pick!(s).as_bytes())?)
        }
        (Statistics::ByteArray(s), PrimitiveType::String) => {
            PrimitiveLiteral::String(std::str::from_utf8(pick!(s).as_bytes()).ok()?.to_string())
        }
        (Statistics::ByteArray(s), PrimitiveType::Binary) => PrimitiveLiteral::Binary(pick!(s).as_bytes().to_vec()),
        (Statistics::FixedLenByteArray(s), PrimitiveType::Fixed(length)) => {
            // A shortened bound keeps its order when filled up with zeros: below all values with its prefix for the
            // lower one, and for the upper one the prefix itself is already above them.
            let mut bytes = pick!(s).as_bytes().to_vec();
            bytes.resize(usize::try_from(*length).ok()?, 0);
            PrimitiveLiteral::Binary(bytes)
        }
        (Statistics::FixedLenByteArray(s), PrimitiveType::Uuid) => {
            PrimitiveLiteral::UInt128(u128::from_be_bytes(pick!(s).as_bytes().try_into().ok()?))
        }
        _ => return None,
    };
    Some(Extreme { literal })
}

fn statistics_exact(statistics: &Statistics, upper: bool) -> bool {
    if upper { statistics.max_is_exact() } else { statistics.min_is_exact() }
}

fn outer_zero(value: f64, upper: bool) -> Option<f64> {
    (value == 0.0).then_some(if upper { 0.0 } else { -0.0 })
}

/// False for times in other units: their numbers are not Iceberg's.
fn in_microseconds(chunk: &ColumnChunkMetaData) -> bool {
    match chunk.column_descr().logical_type_ref() {
        Some(LogicalType::Timestamp { unit, .. } | LogicalType::Time { unit, .. }) => matches!(unit, TimeUnit::MICROS),
        _ => false,
    }
}

fn iceberg_i128(bytes: &[u8]) -> Option<i128> {
    if bytes.is_empty() || bytes.len() > 16 {
        return None;
    }
    let fill = if bytes[0] & 0x80 != 0 { 0xFF } else { 0 };
    let mut wide = [fill; 16];
    wide[16 - bytes.len()..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(wide))
}

impl Extreme {
    /// At most `width` characters or bytes, not above the value.
    fn lower(&self, primitive: &PrimitiveType, width: usize) -> Option<PrimitiveLiteral> {
        Some(match (&self.literal, primitive) {
            (PrimitiveLiteral::String(text), _) => PrimitiveLiteral::String(text.chars().take(width).collect()),
            (PrimitiveLiteral::Binary(bytes), PrimitiveType::Binary) => PrimitiveLiteral::Binary(bytes[..bytes.len().min(width)].to_vec()),
            (other, _) => other.clone(),
        })
    }

    /// At most `width` characters or bytes, not below the value; `None` when no such value exists.
    fn upper(&self, primitive: &PrimitiveType, width: usize) -> Option<PrimitiveLiteral> {
        Some(match (&self.literal, primitive) {
            (PrimitiveLiteral::String(text), _) => PrimitiveLiteral::String(truncate_text_up(text, width)?),
            (PrimitiveLiteral::Binary(bytes), PrimitiveType::Binary) => PrimitiveLiteral::Binary(truncate_bytes_up(bytes, width)?),
            (other, _) => other.clone(),
        })
    }
}

/// The shortest step up from the first `width` characters: the last one that can be raised is, and the rest goes.
fn truncate_text_up(text: &str, width: usize) -> Option<String> {
    let mut kept: Vec<char> = text.chars().take(width).collect();
    if kept.iter().map(|c| c.len_utf8()).sum::<usize>() == text.len() {
        return Some(text.to_string());
    }
    while let Some(last) = kept.pop() {
        if let Some(next) = next_char(last) {
            kept.push(next);
            return Some(kept.into_iter().collect());
        }
    }
    None
}

/// The next Unicode scalar value; the surrogates between U+D7FF and U+E000 are none.
fn next_char(c: char) -> Option<char> {
    match c {
        '\u{D7FF}' => Some('\u{E000}'),
        char::MAX => None,
        _ => char::from_u32(c as u32 + 1),
    }
}

fn truncate_bytes_up(bytes: &[u8], width: usize) -> Option<Vec<u8>> {
    if bytes.len() <= width {
        return Some(bytes.to_vec());
    }
    let mut kept = bytes[..width].to_vec();
    while let Some(last) = kept.pop() {
        if let Some(next) = last.checked_add(1) {
            kept.push(next);
            return Some(kept);
        }
    }
    None
}

#[cfg(test)]
mod tests;
