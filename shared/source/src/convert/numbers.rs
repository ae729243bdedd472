//! Numbers → numbers: exact or refused.

use super::{Context, arrow_type};
use crate::cell::CellFault;
use crate::convert::parse::{DecimalText, plain_decimal};
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, StringArray};
use arrow::datatypes::*;
use std::fmt::Display;
use std::sync::Arc;
use timelake_model::{ColumnType, Reason};

/// Largest whole number up to which every one is a double.
const EXACT_IN_DOUBLE: u64 = 1 << 53;
const EXACT_IN_FLOAT: u64 = 1 << 24;
/// Powers of ten that are doubles exactly.
const EXACT_POWERS: [f64; 23] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22];

/// Converts value by value; slots of NULLs are passed over, slots of faults hold zero.
pub(super) fn try_each<S, T>(
    array: &PrimitiveArray<S>,
    context: &mut Context<'_>,
    show: impl Fn(S::Native) -> String,
    each: impl Fn(S::Native) -> Result<T::Native, Reason>,
) -> ArrayRef
where
    S: ArrowPrimitiveType,
    T: ArrowPrimitiveType,
{
    let mut out = Vec::with_capacity(array.len());
    for (row, value) in array.values().iter().enumerate() {
        match each(*value) {
            Ok(converted) => out.push(converted),
            Err(reason) => {
                out.push(T::Native::default());
                if array.is_valid(row) {
                    context.faults.push(CellFault::new(row, reason, Some(show(*value))));
                }
            }
        }
    }
    Arc::new(PrimitiveArray::<T>::new(out.into(), array.nulls().cloned()))
}

pub(super) fn from_integers(array: &ArrayRef, target: ColumnType, context: &mut Context<'_>) -> Option<ArrayRef> {
    match (array.data_type(), target) {
        (DataType::Int32, ColumnType::Int) | (DataType::Int64, ColumnType::Long) => return Some(array.clone()),
        _ => {}
    }
    match array.data_type() {
        DataType::Int8 => integers::<Int8Type>(array.as_primitive(), target, context),
        DataType::Int16 => integers::<Int16Type>(array.as_primitive(), target, context),
        DataType::Int32 => integers::<Int32Type>(array.as_primitive(), target, context),
        DataType::Int64 => integers::<Int64Type>(array.as_primitive(), target, context),
        DataType::UInt8 => integers::<UInt8Type>(array.as_primitive(), target, context),
        DataType::UInt16 => integers::<UInt16Type>(array.as_primitive(), target, context),
        DataType::UInt32 => integers::<UInt32Type>(array.as_primitive(), target, context),
        DataType::UInt64 => integers::<UInt64Type>(array.as_primitive(), target, context),
        _ => None,
    }
}

fn integers<S>(array: &PrimitiveArray<S>, target: ColumnType, context: &mut Context<'_>) -> Option<ArrayRef>
where
    S: ArrowPrimitiveType,
    S::Native: Into<i128> + TryInto<i32> + TryInto<i64> + Display,
{
    let show = |value: S::Native| value.to_string();
    Some(match target {
        ColumnType::Int => try_each::<S, Int32Type>(array, context, show, |value| value.try_into().map_err(|_| Reason::NumberOutOfRange)),
        ColumnType::Long => try_each::<S, Int64Type>(array, context, show, |value| value.try_into().map_err(|_| Reason::NumberOutOfRange)),
        ColumnType::Double => try_each::<S, Float64Type>(array, context, show, |value| {
            if let Ok(whole) = TryInto::<i64>::try_into(value)
                && whole.unsigned_abs() <= EXACT_IN_DOUBLE
            {
                return Ok(whole as f64);
            }
            let whole: i128 = value.into();
            let double = whole as f64;
            if double as i128 == whole { Ok(double) } else { Err(Reason::LossyConversion) }
        }),
        ColumnType::Float => try_each::<S, Float32Type>(array, context, show, |value| {
            let whole: i128 = value.into();
            let float = whole as f32;
            if whole.unsigned_abs() <= u128::from(EXACT_IN_FLOAT) || float as i128 == whole {
                Ok(float)
            } else {
                Err(Reason::LossyConversion)
            }
        }),
        ColumnType::Decimal { precision, scale } => {
            let factor = power_of_ten(u32::from(scale))?;
            let limit = power_of_ten(u32::from(precision))?;
            let converted = try_each::<S, Decimal128Type>(array, context, show, |value| {
                let whole: i128 = value.into();
                whole.checked_mul(factor).filter(|scaled| scaled.abs() < limit).ok_or(Reason::NumberOutOfRange)
            });
            as_decimal(converted, precision, scale)?
        }
        ColumnType::Boolean => {
            let mut out = Vec::with_capacity(array.len());
            for (row, value) in array.values().iter().enumerate() {
                let whole: i128 = (*value).into();
                out.push(whole == 1);
                if !matches!(whole, 0 | 1) && array.is_valid(row) {
                    context.faults.push(CellFault::new(row, Reason::BadBoolean, Some(whole.to_string())));
                }
            }
            Arc::new(BooleanArray::new(out.into(), array.nulls().cloned()))
        }
        // Ids are often numbers: their decimal text is exact.
        ColumnType::String => Arc::new(array.iter().map(|value| value.map(show)).collect::<StringArray>()),
        _ => return None,
    })
}

pub(super) fn from_floats(array: &ArrayRef, target: ColumnType, context: &mut Context<'_>) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::Float64 => {
            let doubles = array.as_primitive::<Float64Type>();
            let show = |value: f64| show_double(value);
            match target {
                ColumnType::Double => Some(array.clone()),
                ColumnType::Float => Some(try_each::<Float64Type, Float32Type>(doubles, context, show, |value| {
                    let float = value as f32;
                    if f64::from(float) == value || value.is_nan() {
                        Ok(float)
                    } else if float.is_infinite() {
                        Err(Reason::NumberOutOfRange)
                    } else {
                        Err(Reason::LossyConversion)
                    }
                })),
                ColumnType::Int => Some(try_each::<Float64Type, Int32Type>(doubles, context, show, |value| {
                    whole(value).and_then(|whole| i32::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
                })),
                ColumnType::Long => Some(try_each::<Float64Type, Int64Type>(doubles, context, show, |value| {
                    whole(value).and_then(|whole| i64::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
                })),
                _ => None,
            }
        }
        DataType::Float32 if target == ColumnType::Float => Some(array.clone()),
        DataType::Float32 => {
            let wide: PrimitiveArray<Float64Type> = array.as_primitive::<Float32Type>().unary(f64::from);
            from_floats(&(Arc::new(wide) as ArrayRef), target, context)
        }
        DataType::Float16 => {
            let wide: PrimitiveArray<Float32Type> = array.as_primitive::<Float16Type>().unary(|value| value.to_f32());
            from_floats(&(Arc::new(wide) as ArrayRef), target, context)
        }
        _ => None,
    }
}

/// As JSON and people write it; whole numbers without a fraction.
pub(super) fn show_double(value: f64) -> String {
    format!("{value:?}")
}

fn whole(value: f64) -> Result<i128, Reason> {
    if !value.is_finite() || value.abs() >= 1e30 {
        Err(Reason::NumberOutOfRange)
    } else if value.fract() != 0.0 {
        Err(Reason::LossyConversion)
    } else {
        Ok(value as i128)
    }
}

pub(super) fn power_of_ten(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

pub(super) fn as_decimal(array: ArrayRef, precision: u8, scale: u8) -> Option<ArrayRef> {
    let decimals = array.as_primitive::<Decimal128Type>().clone().with_data_type(arrow_type(ColumnType::Decimal { precision, scale }));
    Some(Arc::new(decimals))
}

pub(super) fn from_decimal128(
    array: &PrimitiveArray<Decimal128Type>,
    scale: i8,
    target: ColumnType,
    context: &mut Context<'_>,
) -> Option<ArrayRef> {
    let show = |value: i128| Decimal128Type::format_decimal(value, 38, scale);
    Some(match target {
        ColumnType::Double => try_each::<Decimal128Type, Float64Type>(array, context, show, |value| {
            // Both operands are exact, so the division rounds once: the nearest double of the decimal text.
            match EXACT_POWERS.get(usize::from(scale.unsigned_abs())) {
                Some(power) if scale >= 0 && value.unsigned_abs() <= u128::from(EXACT_IN_DOUBLE) => Ok(value as f64 / power),
                _ => show(value).parse().map_err(|_| Reason::BadNumber),
            }
        }),
        ColumnType::Float => try_each::<Decimal128Type, Float32Type>(array, context, show, |value| match show(value).parse::<f32>() {
            Ok(float) if float.is_finite() => Ok(float),
            _ => Err(Reason::NumberOutOfRange),
        }),
        ColumnType::Int => try_each::<Decimal128Type, Int32Type>(array, context, show, |value| {
            rescale(value, scale, 0).and_then(|whole| i32::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
        }),
        ColumnType::Long => try_each::<Decimal128Type, Int64Type>(array, context, show, |value| {
            rescale(value, scale, 0).and_then(|whole| i64::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
        }),
        ColumnType::Decimal { precision, scale: to } => {
            let limit = power_of_ten(u32::from(precision))?;
            let converted = try_each::<Decimal128Type, Decimal128Type>(array, context, show, |value| {
                rescale(value, scale, to as i8)
                    .and_then(|scaled| if scaled.abs() < limit { Ok(scaled) } else { Err(Reason::NumberOutOfRange) })
            });
            as_decimal(converted, precision, to)?
        }
        _ => return None,
    })
}

fn rescale(value: i128, from: i8, to: i8) -> Result<i128, Reason> {
    let by = i32::from(to) - i32::from(from);
    if value == 0 {
        return Ok(0);
    }
    match power_of_ten(by.unsigned_abs()) {
        Some(power) if by >= 0 => value.checked_mul(power).filter(|scaled| *scaled != i128::MIN).ok_or(Reason::NumberOutOfRange),
        Some(power) if value % power == 0 => Ok(value / power),
        None if by >= 0 => Err(Reason::NumberOutOfRange),
        _ => Err(Reason::LossyConversion),
    }
}

/// Wide decimals go by their text: rare, and right by the same code as texts.
pub(super) fn from_decimal256(
    array: &PrimitiveArray<Decimal256Type>,
    scale: i8,
    target: ColumnType,
    context: &mut Context<'_>,
) -> Option<ArrayRef> {
    let show = |value: arrow::datatypes::i256| Decimal256Type::format_decimal(value, 76, scale);
    let decimal = |value, precision, scale| match plain_decimal(&show(value), precision, scale) {
        DecimalText::Exact(scaled) => Ok(scaled),
        DecimalText::Lossy => Err(Reason::LossyConversion),
        DecimalText::OutOfRange => Err(Reason::NumberOutOfRange),
        DecimalText::NotANumber => Err(Reason::BadNumber),
    };
    Some(match target {
        ColumnType::Double => {
            try_each::<Decimal256Type, Float64Type>(array, context, show, |value| show(value).parse().map_err(|_| Reason::BadNumber))
        }
        ColumnType::Float => try_each::<Decimal256Type, Float32Type>(array, context, show, |value| match show(value).parse::<f32>() {
            Ok(float) if float.is_finite() => Ok(float),
            _ => Err(Reason::NumberOutOfRange),
        }),
        ColumnType::Int => try_each::<Decimal256Type, Int32Type>(array, context, show, |value| {
            decimal(value, 38, 0).and_then(|whole| i32::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
        }),
        ColumnType::Long => try_each::<Decimal256Type, Int64Type>(array, context, show, |value| {
            decimal(value, 38, 0).and_then(|whole| i64::try_from(whole).map_err(|_| Reason::NumberOutOfRange))
        }),
        ColumnType::Decimal { precision, scale: to } => {
            let converted = try_each::<Decimal256Type, Decimal128Type>(array, context, show, |value| decimal(value, precision, to));
            as_decimal(converted, precision, to)?
        }
        _ => return None,
    })
}
