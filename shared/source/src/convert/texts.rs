//! Texts → the target's type, by the strict parsers.

use super::numbers::as_decimal;
use super::parse::{self, DecimalText};
use super::separators::{Separators, options_for};
use super::{Context, internal, iso, time_texts};
use crate::cell::CellFault;
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeBinaryArray, LargeBinaryArray, PrimitiveArray, StringArray,
};
use arrow::buffer::Buffer;
use arrow::datatypes::*;
use std::sync::Arc;
use timelake_model::{ColumnType, Reason, Result};

/// Parses row by row; slots of faults and NULLs hold the default.
fn each<'a, V: Default>(
    texts: &'a StringArray,
    context: &mut Context<'_>,
    mut parse: impl FnMut(&'a str) -> std::result::Result<V, Reason>,
) -> Vec<V> {
    let mut out = Vec::with_capacity(texts.len());
    for row in 0..texts.len() {
        if texts.is_null(row) {
            out.push(V::default());
            continue;
        }
        match parse(texts.value(row)) {
            Ok(value) => out.push(value),
            Err(reason) => {
                out.push(V::default());
                let mut fault = CellFault::new(row, reason, Some(texts.value(row).to_string()));
                if reason == Reason::BadNumber {
                    fault.hint = options_for(texts.value(row).trim(), context.rules.numbers);
                }
                context.faults.push(fault);
            }
        }
    }
    out
}

fn primitive<T: ArrowPrimitiveType>(values: Vec<T::Native>, texts: &StringArray) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(values.into(), texts.nulls().cloned()))
}

/// `None`: strings stay as they are, or there is no way.
pub(super) fn from_texts(texts: &StringArray, target: ColumnType, context: &mut Context<'_>) -> Result<Option<ArrayRef>> {
    let separators = &mut Separators::new(context.rules.numbers);
    Ok(Some(match target {
        ColumnType::Boolean => {
            let values = each(texts, context, |text| parse::parse_boolean(text).ok_or(Reason::BadBoolean));
            Arc::new(BooleanArray::new(values.into(), texts.nulls().cloned()))
        }
        ColumnType::Int => {
            let number = |text: &str| {
                parse::parse_integer(text, separators).and_then(|value| i32::try_from(value).map_err(|_| Reason::NumberOutOfRange))
            };
            primitive::<Int32Type>(each(texts, context, number), texts)
        }
        ColumnType::Long => {
            let number = |text: &str| {
                parse::parse_integer(text, separators).and_then(|value| i64::try_from(value).map_err(|_| Reason::NumberOutOfRange))
            };
            primitive::<Int64Type>(each(texts, context, number), texts)
        }
        ColumnType::Float => primitive::<Float32Type>(each(texts, context, |text| parse::parse_float(text, separators)), texts),
        ColumnType::Double => primitive::<Float64Type>(each(texts, context, |text| parse::parse_double(text, separators)), texts),
        ColumnType::Decimal { precision, scale } => {
            let number = |text: &str| match parse::parse_decimal(text, precision, scale, separators) {
                DecimalText::Exact(value) => Ok(value),
                DecimalText::Lossy => Err(Reason::LossyConversion),
                DecimalText::OutOfRange => Err(Reason::NumberOutOfRange),
                DecimalText::NotANumber => Err(Reason::BadNumber),
            };
            return Ok(as_decimal(primitive::<Decimal128Type>(each(texts, context, number), texts), precision, scale));
        }
        ColumnType::Date => primitive::<Date32Type>(time_texts::dates(texts, context), texts),
        ColumnType::Time => {
            let pairs = each(texts, context, |text| iso::parse_time(text).ok_or(Reason::BadTimestamp));
            context.truncated += pairs.iter().filter(|(_, truncated)| *truncated).count() as u64;
            primitive::<Time64MicrosecondType>(pairs.into_iter().map(|(us, _)| us).collect(), texts)
        }
        ColumnType::Timestamp => primitive::<TimestampMicrosecondType>(time_texts::wall_clocks(texts, context), texts),
        ColumnType::Uuid => {
            let values = each(texts, context, |text| parse::parse_uuid(text).ok_or(Reason::BadValue));
            let bytes = Buffer::from_vec(values.into_iter().flatten().collect::<Vec<u8>>());
            Arc::new(FixedSizeBinaryArray::try_new(16, bytes, texts.nulls().cloned()).map_err(internal)?)
        }
        ColumnType::Binary => Arc::new(texts.iter().map(|text| text.map(str::as_bytes)).collect::<LargeBinaryArray>()),
        ColumnType::Timestamptz | ColumnType::String | ColumnType::Fixed(_) => return Ok(None),
    }))
}
