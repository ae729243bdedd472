//! What was read → the table's types: exact, or refused with the row and the value.
//!
//! Takes an array as the file has it and the target type, gives an array of the target's Arrow type, the faults of
//! cells that cannot be taken over (their slots hold anything), and the count of times that lost digits below a
//! microsecond. The common conversions are passes over slices without a branch per row.
//! What must never happen: a value that differs from the source's without a fault or a count.

mod clock;
mod epoch;
mod format;
mod iso;
mod numbers;
mod other;
mod parse;
mod separators;
mod shape;
mod texts;
mod time_texts;
mod times;
mod why;

use crate::batch::ConvertedColumn;
use crate::cell::CellFault;
use crate::zone::{Zone, ZoneConverter};
use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int32Array, UInt32Array, new_null_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Int32Type, TimeUnit as ArrowUnit};
use std::sync::Arc;
use timelake_model::request::{Ambiguous, Nonexistent, TimeUnit};
use timelake_model::{ColumnType, Error, Result};

pub use format::TimestampFormat;
pub(crate) use times::times;

const MICROS_PER_MINUTE: i64 = 60 * timelake_model::time::MICROS_PER_SECOND;

/// How times are read.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub zone: Option<Zone>,
    /// Unit of times stored as plain numbers.
    pub unit: Option<TimeUnit>,
    /// How times are written in texts; ISO when not given.
    pub ts_format: Option<TimestampFormat>,
    pub ambiguous: Ambiguous,
    pub nonexistent: Nonexistent,
    /// How numbers are written in texts.
    pub numbers: NumberFormat,
}

/// How numbers are written in texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberFormat {
    pub decimal: char,
    /// Between groups of digits.
    pub thousands: Option<char>,
}

impl FoldRow {
    /// The fault of a row whose series does not tell which of the two times it is.
    pub fn unclear(&self) -> CellFault {
        let mut fault = CellFault::new(self.row as usize, timelake_model::Reason::AmbiguousLocalTime, Some(self.value.clone()));
        let text = |us| timelake_model::TimestampUs(us).to_string();
        fault.candidates = vec![text(self.earlier_us), text(self.later_us)];
        fault.hint = Some(
            "the order of its series does not show which: the clock must go back exactly once in the repeated hour; \
             choose one with --ambiguous earlier or later, or load that hour from a source with offsets"
                .into(),
        );
        fault
    }
}

impl Default for NumberFormat {
    fn default() -> Self {
        NumberFormat { decimal: '.', thousands: None }
    }
}

/// A local time of the time column that the clock showed twice, under `--ambiguous infer`: which of the two it is
/// shows in the order of its series, which only the caller sees.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldRow {
    pub row: u32,
    /// The wall clock read as if it were UTC.
    pub local_us: i64,
    pub earlier_us: i64,
    pub later_us: i64,
    /// The value as read.
    pub value: String,
}

/// The parts a conversion works with.
pub(crate) struct Context<'a> {
    pub rules: &'a Rules,
    /// Present when the rules have a zone.
    pub zone: Option<&'a mut ZoneConverter>,
    pub faults: Vec<CellFault>,
    /// Values that lost digits below a microsecond.
    pub truncated: u64,
    /// Rows with a leap second, taken as the last microsecond of the second before it.
    pub leap_seconds: Vec<u32>,
    /// `Some`: `--ambiguous infer` may be left to the caller, who finds those rows here. Their slots hold `earlier`.
    pub folds: Option<Vec<FoldRow>>,
}

impl<'a> Context<'a> {
    pub fn new(rules: &'a Rules, zone: Option<&'a mut ZoneConverter>) -> Self {
        Context { rules, zone, faults: Vec::new(), truncated: 0, leap_seconds: Vec::new(), folds: None }
    }
}

/// Arrow's type of a target column.
pub(crate) fn arrow_type(target: ColumnType) -> DataType {
    match target {
        ColumnType::Boolean => DataType::Boolean,
        ColumnType::Int => DataType::Int32,
        ColumnType::Long => DataType::Int64,
        ColumnType::Float => DataType::Float32,
        ColumnType::Double => DataType::Float64,
        ColumnType::Decimal { precision, scale } => DataType::Decimal128(precision, scale as i8),
        ColumnType::Date => DataType::Date32,
        ColumnType::Time => DataType::Time64(ArrowUnit::Microsecond),
        ColumnType::Timestamp => DataType::Timestamp(ArrowUnit::Microsecond, None),
        ColumnType::Timestamptz => DataType::Timestamp(ArrowUnit::Microsecond, Some("+00:00".into())),
        ColumnType::String => DataType::Utf8,
        ColumnType::Uuid => DataType::FixedSizeBinary(16),
        ColumnType::Fixed(length) => DataType::FixedSizeBinary(i32::try_from(length).unwrap_or(i32::MAX)),
        ColumnType::Binary => DataType::LargeBinary,
    }
}

pub(crate) fn dictionary_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// Converts one array; `None` when there is no exact way from its type to the target's.
/// `int96`: the array holds nanoseconds since 1970 as Decimal128 with scale 0.
pub(crate) fn convert(array: &ArrayRef, int96: bool, target: ColumnType, context: &mut Context<'_>) -> Result<Option<ArrayRef>> {
    let data_type = array.data_type();
    if *data_type == DataType::Null {
        return Ok(Some(new_null_array(&arrow_type(target), array.len())));
    }
    if target == ColumnType::Timestamptz {
        let Some(values) = times(array, int96, context)? else { return Ok(None) };
        context.truncated += values.truncated_count();
        return Ok(Some(values.into_array()));
    }
    if int96 {
        return Ok(None);
    }
    if matches!(target, ColumnType::Timestamp | ColumnType::Date)
        && let Some(local) = times::serials(array, context)?
    {
        return Ok(Some(other::from_wall_clocks(local, target, context)));
    }
    Ok(match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => numbers::from_integers(array, target, context),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => numbers::from_integers(array, target, context),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => numbers::from_floats(array, target, context),
        DataType::Decimal128(_, scale) => numbers::from_decimal128(array.as_primitive(), *scale, target, context),
        DataType::Decimal256(_, scale) => numbers::from_decimal256(array.as_primitive(), *scale, target, context),
        DataType::Utf8 => {
            texts::from_texts(array.as_string(), target, context)?.or_else(|| (target == ColumnType::String).then(|| array.clone()))
        }
        DataType::Dictionary(_, value) if **value == DataType::Utf8 && target == ColumnType::String => Some(array.clone()),
        DataType::Dictionary(_, value) => {
            let plain = cast(array, value).map_err(internal)?;
            return convert(&plain, false, target, context);
        }
        DataType::LargeUtf8 | DataType::Utf8View => {
            let plain = cast(array, &DataType::Utf8).map_err(internal)?;
            return convert(&plain, false, target, context);
        }
        _ => other::convert(array, target, context)?,
    })
}

/// One column by itself, with its own zone: for sources that have their rows in memory, and for checks. `None` when
/// there is no exact way between the types.
pub fn convert_column(array: &ArrayRef, target: ColumnType, rules: &Rules) -> Result<Option<ConvertedColumn>> {
    let mut zone = rules.zone.as_ref().map(ZoneConverter::new);
    let mut context = Context::new(rules, zone.as_mut());
    let Some(array) = convert(array, false, target, &mut context)? else { return Ok(None) };
    let leap_seconds = context.leap_seconds.len() as u64;
    Ok(Some(ConvertedColumn { array, faults: context.faults, truncated: context.truncated, leap_seconds, nulled: 0 }))
}

fn internal(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("a column could not be converted: {error}"))
}

/// Strings as Dictionary(Int32, Utf8), unless they are already.
pub(crate) fn as_dictionary(array: ArrayRef) -> Result<ArrayRef> {
    if *array.data_type() == dictionary_type() { Ok(array) } else { cast(&array, &dictionary_type()).map_err(internal) }
}

/// Strings as plain Utf8, unless they are already.
pub(crate) fn as_plain(array: ArrayRef) -> Result<ArrayRef> {
    if *array.data_type() == DataType::Utf8 { Ok(array) } else { cast(&array, &DataType::Utf8).map_err(internal) }
}

/// One value for every row: from `--set` or from a folder.
#[derive(Debug, Clone)]
pub struct ConstantColumn {
    /// One row, in the target's type.
    value: ArrayRef,
    /// 1 if the value lost digits below a microsecond.
    truncated: u64,
}

impl ConstantColumn {
    /// Parses a text into the target's type, by the rules for text columns. What is typed on a command line or in a
    /// folder's name is not in the source's spelling: numbers are plain and times are ISO.
    pub(crate) fn parse(
        text: Option<&str>,
        target: ColumnType,
        dictionary: bool,
        rules: &Rules,
    ) -> Result<std::result::Result<ConstantColumn, CellFault>> {
        let array: ArrayRef = Arc::new(arrow::array::StringArray::from(vec![text]));
        let rules = Rules { numbers: NumberFormat::default(), ts_format: None, ..rules.clone() };
        let mut zone = rules.zone.as_ref().map(ZoneConverter::new);
        let mut context = Context::new(&rules, zone.as_mut());
        let value = convert(&array, false, target, &mut context)?;
        if let Some(fault) = context.faults.pop() {
            return Ok(Err(fault));
        }
        let Some(value) = value else { return Ok(Err(CellFault::new(0, timelake_model::Reason::BadValue, text.map(str::to_string)))) };
        let value = if dictionary { as_dictionary(value)? } else { value };
        Ok(Ok(ConstantColumn { value, truncated: context.truncated }))
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value.is_null(0)
    }
    pub(crate) fn value(&self) -> &ArrayRef {
        &self.value
    }
    pub(crate) fn truncated(&self, rows: usize) -> u64 {
        self.truncated * rows as u64
    }
    pub(crate) fn repeat(&self, rows: usize) -> Result<ArrayRef> {
        if self.is_null() {
            return Ok(new_null_array(self.value.data_type(), rows));
        }
        if let Some(dictionary) = self.value.as_dictionary_opt::<Int32Type>() {
            let keys = Int32Array::from(vec![dictionary.keys().value(0); rows]);
            return Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(keys, dictionary.values().clone()).map_err(internal)?));
        }
        take(&self.value, &UInt32Array::from(vec![0; rows]), None).map_err(internal)
    }
}

#[cfg(test)]
mod tests;
