//! Booleans, dates, times of day, wall clocks, bytes.

use super::numbers::try_each;
use super::times::TimeValues;
use super::{Context, internal};
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::*;
use std::sync::Arc;
use timelake_model::time::MICROS_PER_DAY;
use timelake_model::{ColumnType, Reason, Result, TimestampUs};

const MILLIS_PER_DAY: i64 = 86_400_000;

pub(super) fn convert(array: &ArrayRef, target: ColumnType, context: &mut Context<'_>) -> Result<Option<ArrayRef>> {
    let text = |value: i64| value.to_string();
    Ok(Some(match (array.data_type(), target) {
        (DataType::Boolean, ColumnType::Boolean) => array.clone(),
        (DataType::Date32, ColumnType::Date) => array.clone(),
        (DataType::Date64, ColumnType::Date) => try_each::<Date64Type, Date32Type>(array.as_primitive(), context, text, |millis| {
            if millis.rem_euclid(MILLIS_PER_DAY) != 0 {
                return Err(Reason::LossyConversion);
            }
            i32::try_from(millis.div_euclid(MILLIS_PER_DAY)).map_err(|_| Reason::TimestampOutOfRange)
        }),
        (DataType::Date32, ColumnType::Timestamp) => try_each::<Date32Type, TimestampMicrosecondType>(
            array.as_primitive(),
            context,
            |days| days.to_string(),
            |days| i64::from(days).checked_mul(MICROS_PER_DAY).ok_or(Reason::TimestampOutOfRange),
        ),
        (DataType::Date64, ColumnType::Timestamp) => {
            try_each::<Date64Type, TimestampMicrosecondType>(array.as_primitive(), context, text, |millis| {
                millis.checked_mul(1_000).ok_or(Reason::TimestampOutOfRange)
            })
        }
        // A wall clock stays one. An instant has none without a zone: refused.
        (DataType::Timestamp(unit, None), ColumnType::Timestamp) => match unit {
            TimeUnit::Microsecond => array.clone(),
            TimeUnit::Second => try_each::<TimestampSecondType, TimestampMicrosecondType>(array.as_primitive(), context, text, |value| {
                value.checked_mul(1_000_000).ok_or(Reason::TimestampOutOfRange)
            }),
            TimeUnit::Millisecond => {
                try_each::<TimestampMillisecondType, TimestampMicrosecondType>(array.as_primitive(), context, text, |value| {
                    value.checked_mul(1_000).ok_or(Reason::TimestampOutOfRange)
                })
            }
            TimeUnit::Nanosecond => floored::<TimestampNanosecondType, TimestampMicrosecondType>(array.as_primitive(), context),
        },
        (DataType::Time32(TimeUnit::Second), ColumnType::Time) => within_day(
            try_each::<Time32SecondType, Time64MicrosecondType>(
                array.as_primitive(),
                context,
                |value| value.to_string(),
                |value| Ok(i64::from(value) * 1_000_000),
            ),
            context,
        ),
        (DataType::Time32(_), ColumnType::Time) => within_day(
            try_each::<Time32MillisecondType, Time64MicrosecondType>(
                array.as_primitive(),
                context,
                |value| value.to_string(),
                |value| Ok(i64::from(value) * 1_000),
            ),
            context,
        ),
        (DataType::Time64(TimeUnit::Microsecond), ColumnType::Time) => within_day(array.clone(), context),
        (DataType::Time64(_), ColumnType::Time) => {
            within_day(floored::<Time64NanosecondType, Time64MicrosecondType>(array.as_primitive(), context), context)
        }
        (DataType::FixedSizeBinary(16), ColumnType::Uuid) => array.clone(),
        (DataType::FixedSizeBinary(length), ColumnType::Fixed(wanted)) if u32::try_from(*length) == Ok(wanted) => array.clone(),
        (DataType::LargeBinary, ColumnType::Binary) => array.clone(),
        (DataType::Binary | DataType::BinaryView | DataType::FixedSizeBinary(_), ColumnType::Binary) => {
            cast(array, &DataType::LargeBinary).map_err(internal)?
        }
        _ => return Ok(None),
    }))
}

/// Wall clocks as what a column holds.
pub(super) fn from_wall_clocks(values: TimeValues, target: ColumnType, context: &mut Context<'_>) -> ArrayRef {
    let clocks = PrimitiveArray::<TimestampMicrosecondType>::new(values.us, values.nulls);
    if target != ColumnType::Date {
        return Arc::new(clocks);
    }
    let show = |us: i64| TimestampUs(us).short().trim_end_matches('Z').to_string();
    try_each::<TimestampMicrosecondType, Date32Type>(&clocks, context, show, |us| match us.rem_euclid(MICROS_PER_DAY) {
        0 => i32::try_from(us.div_euclid(MICROS_PER_DAY)).map_err(|_| Reason::TimestampOutOfRange),
        _ => Err(Reason::LossyConversion),
    })
}

/// Nanoseconds floored to microseconds; values that lost digits are counted.
fn floored<S, T>(array: &PrimitiveArray<S>, context: &mut Context<'_>) -> ArrayRef
where
    S: ArrowPrimitiveType<Native = i64>,
    T: ArrowPrimitiveType<Native = i64>,
{
    context.truncated += array.iter().flatten().filter(|value| value.rem_euclid(1_000) != 0).count() as u64;
    let micros: PrimitiveArray<T> = array.unary(|value| value.div_euclid(1_000));
    Arc::new(micros)
}

/// Refuses times of day outside the day, which a damaged or odd writer can store.
fn within_day(array: ArrayRef, context: &mut Context<'_>) -> ArrayRef {
    try_each::<Time64MicrosecondType, Time64MicrosecondType>(
        array.as_primitive(),
        context,
        |value| format!("{value} us"),
        |value| {
            if (0..MICROS_PER_DAY).contains(&value) { Ok(value) } else { Err(Reason::TimestampOutOfRange) }
        },
    )
}
