//! Anything that can be a time → UTC microseconds.
//!
//! Instants are scaled, local times go through the zone, texts are parsed. Digits below a microsecond are floored
//! (also before 1970) and marked.

use super::numbers::show_double;
use super::{Context, FoldRow, epoch, internal, time_texts};
use crate::cell::CellFault;
use crate::zone::{LocalTime, ZoneConverter};
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, TimestampMicrosecondArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::*;
use chrono::DateTime;
use std::collections::HashSet;
use std::sync::Arc;
use timelake_model::request::{Ambiguous, Nonexistent};
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_SECOND};
use timelake_model::{Reason, Result, TimestampUs};

/// Times of a column in UTC microseconds. Slots of NULLs and of faults hold anything.
pub(crate) struct TimeValues {
    pub us: ScalarBuffer<i64>,
    pub nulls: Option<NullBuffer>,
    /// Rows that lost digits below a microsecond.
    pub truncated: Option<BooleanBuffer>,
}

impl TimeValues {
    pub fn truncated_count(&self) -> u64 {
        self.truncated.as_ref().map_or(0, |bits| bits.count_set_bits() as u64)
    }
    pub fn into_array(self) -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::new(self.us, self.nulls).with_timezone("+00:00"))
    }
}

/// Nanoseconds and the like, per value: the microseconds and whether digits were cut.
type Scaled = std::result::Result<(i64, bool), Reason>;

/// `None`: this type is no time.
pub(crate) fn times(array: &ArrayRef, int96: bool, context: &mut Context<'_>) -> Result<Option<TimeValues>> {
    let data_type = array.data_type().clone();
    let nulls = array.logical_nulls();
    if data_type == DataType::Null {
        return Ok(Some(TimeValues { us: vec![0; array.len()].into(), nulls, truncated: None }));
    }
    if int96 {
        let nanos = array.as_primitive::<Decimal128Type>();
        let scale = |value: i128| {
            i64::try_from(value.div_euclid(1_000)).map(|us| (us, value.rem_euclid(1_000) != 0)).map_err(|_| Reason::TimestampOutOfRange)
        };
        return Ok(Some(scaled(nanos, context, |value| format!("{value} ns"), scale)));
    }
    if let Some(local) = serials(array, context)? {
        if context.zone.is_none() {
            let readable: Vec<usize> = (0..array.len()).filter(|row| array.is_valid(*row)).collect();
            let shown = |row: usize| show_local(local.us[row]);
            context.faults =
                readable.into_iter().map(|row| CellFault::new(row, Reason::NaiveTimestampWithoutZone, Some(shown(row)))).collect();
            return Ok(Some(local));
        }
        return Ok(Some(localised(local, context)));
    }
    let naive = match &data_type {
        DataType::Timestamp(_, zone) => zone.is_none(),
        DataType::Date32 | DataType::Date64 => true,
        DataType::Utf8 => return Ok(Some(time_texts::instants(array.as_string(), context))),
        DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(_, _) => {
            let plain = cast(array, &DataType::Utf8).map_err(internal)?;
            return Ok(Some(time_texts::instants(plain.as_string(), context)));
        }
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => {
            let Some(unit) = context.rules.unit else { return Ok(None) };
            let wide = cast(array, &DataType::Int64).map_err(internal)?;
            let numbers = wide.as_primitive::<Int64Type>();
            use timelake_model::request::TimeUnit::*;
            let values = match unit {
                Micros => TimeValues { us: numbers.values().clone(), nulls, truncated: None },
                Seconds => scaled(numbers, context, |value| value.to_string(), |value| multiplied(value, 1_000_000)),
                Millis => scaled(numbers, context, |value| value.to_string(), |value| multiplied(value, 1_000)),
                Nanos => scaled(numbers, context, |value| value.to_string(), floored_nanos),
            };
            return Ok(Some(values));
        }
        DataType::UInt64 => {
            let Some(unit) = context.rules.unit else { return Ok(None) };
            let by = |value: u64| i64::try_from(value).map_err(|_| Reason::TimestampOutOfRange);
            use timelake_model::request::TimeUnit::*;
            let scale = |value: u64| match unit {
                Seconds => by(value).and_then(|value| multiplied(value, 1_000_000)),
                Millis => by(value).and_then(|value| multiplied(value, 1_000)),
                Micros => by(value).map(|value| (value, false)),
                // Every count of nanoseconds is in range once divided.
                Nanos => by(value / 1_000).map(|us| (us, !value.is_multiple_of(1_000))),
            };
            return Ok(Some(scaled(array.as_primitive::<UInt64Type>(), context, |value| value.to_string(), scale)));
        }
        DataType::Float64 | DataType::Float32 => {
            let Some(unit) = context.rules.unit else { return Ok(None) };
            let wide = cast(array, &DataType::Float64).map_err(internal)?;
            return Ok(Some(scaled(wide.as_primitive::<Float64Type>(), context, show_double, |value| from_double(value, unit))));
        }
        _ => return Ok(None),
    };
    if naive && context.zone.is_none() {
        // Bound columns are refused before they are read; this keeps it so for every other way here.
        return Ok(None);
    }
    let show = |value: i64| show_stored(value, &data_type);
    let values = match &data_type {
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            TimeValues { us: array.as_primitive::<TimestampMicrosecondType>().values().clone(), nulls, truncated: None }
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            scaled(array.as_primitive::<TimestampSecondType>(), context, show, |value| multiplied(value, 1_000_000))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            scaled(array.as_primitive::<TimestampMillisecondType>(), context, show, |value| multiplied(value, 1_000))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            scaled(array.as_primitive::<TimestampNanosecondType>(), context, show, floored_nanos)
        }
        DataType::Date32 => scaled(
            array.as_primitive::<Date32Type>(),
            context,
            |value| show_stored(i64::from(value), &DataType::Date32),
            |value| multiplied(i64::from(value), MICROS_PER_DAY),
        ),
        _ => scaled(array.as_primitive::<Date64Type>(), context, show, |value| multiplied(value, 1_000)),
    };
    Ok(Some(if naive { localised(values, context) } else { values }))
}

/// With `--ts-format excel`: numbers as the wall clocks of serial days. `None`: no numbers, or another format.
pub(super) fn serials(array: &ArrayRef, context: &mut Context<'_>) -> Result<Option<TimeValues>> {
    let is_number = array.data_type().is_numeric();
    if !is_number || !context.rules.ts_format.as_ref().is_some_and(|format| format.is_excel()) {
        return Ok(None);
    }
    let wide = cast(array, &DataType::Float64).map_err(internal)?;
    Ok(Some(scaled(wide.as_primitive::<Float64Type>(), context, show_double, |serial| epoch::from_serial(serial).map(|us| (us, false)))))
}

fn multiplied(value: i64, by: i64) -> Scaled {
    value.checked_mul(by).map(|us| (us, false)).ok_or(Reason::TimestampOutOfRange)
}

fn floored_nanos(value: i64) -> Scaled {
    Ok((value.div_euclid(1_000), value.rem_euclid(1_000) != 0))
}

/// A double counts units; its exact value is floored to a microsecond.
fn from_double(value: f64, unit: timelake_model::request::TimeUnit) -> Scaled {
    use timelake_model::request::TimeUnit::*;
    if !value.is_finite() {
        return Err(Reason::BadTimestamp);
    }
    let whole = value.floor();
    if whole.abs() >= 9.3e18 {
        return Err(Reason::TimestampOutOfRange);
    }
    // The fraction of a double is exact, and so is its product with a power of two; with 10^6 it takes 53 + 20 bits,
    // so it is computed in whole numbers of 2^-60.
    let fraction = ((value - whole) * (1_u64 << 60) as f64) as i128;
    let whole = whole as i128;
    let one = 1_i128 << 60;
    let (us, rest) = match unit {
        Seconds => (whole * 1_000_000 + ((fraction * 1_000_000) >> 60), (fraction * 1_000_000) & (one - 1)),
        Millis => (whole * 1_000 + ((fraction * 1_000) >> 60), (fraction * 1_000) & (one - 1)),
        Micros => (whole, fraction),
        Nanos => (whole.div_euclid(1_000), whole.rem_euclid(1_000) + i128::from(fraction != 0)),
    };
    i64::try_from(us).map(|us| (us, rest != 0)).map_err(|_| Reason::TimestampOutOfRange)
}

fn scaled<S: ArrowPrimitiveType>(
    array: &PrimitiveArray<S>,
    context: &mut Context<'_>,
    show: impl Fn(S::Native) -> String,
    scale: impl Fn(S::Native) -> Scaled,
) -> TimeValues {
    let mut us = Vec::with_capacity(array.len());
    let mut cut = Vec::new();
    for (row, value) in array.values().iter().enumerate() {
        match scale(*value) {
            Ok((value, false)) => us.push(value),
            Ok((value, true)) => {
                us.push(value);
                cut.push(row);
            }
            Err(reason) => {
                us.push(0);
                if array.is_valid(row) {
                    context.faults.push(CellFault::new(row, reason, Some(show(*value))));
                }
            }
        }
    }
    let nulls = array.nulls().cloned();
    TimeValues { us: us.into(), truncated: marked(array.len(), &cut, nulls.as_ref()), nulls }
}

pub(super) fn marked(rows: usize, cut: &[usize], nulls: Option<&NullBuffer>) -> Option<BooleanBuffer> {
    let mut bits = vec![false; rows];
    let mut any = false;
    for row in cut {
        if nulls.is_none_or(|nulls| nulls.is_valid(*row)) {
            bits[*row] = true;
            any = true;
        }
    }
    any.then(|| bits.into())
}

/// Local → UTC by the zone and the policies. Rows that already have a fault get no second one.
fn localised(values: TimeValues, context: &mut Context<'_>) -> TimeValues {
    let TimeValues { us, nulls, truncated } = values;
    let Context { rules, zone, faults, folds, .. } = context;
    let Some(zone) = zone.as_deref_mut() else { return TimeValues { us, nulls, truncated } };
    let has_fault: HashSet<u32> = faults.iter().map(|fault| fault.row).collect();
    let is_readable = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) && !has_fault.contains(&(row as u32));
    let mut out = Vec::with_capacity(us.len());
    for (row, local_us) in us.iter().enumerate() {
        out.push(match zone.convert(*local_us) {
            LocalTime::Utc(instant) => instant,
            _ if !is_readable(row) => 0,
            special => {
                local_to_utc(special, *local_us, row, zone, rules, folds.as_mut(), || show_local(*local_us)).unwrap_or_else(|fault| {
                    faults.push(fault);
                    0
                })
            }
        });
    }
    faults.sort_by_key(|fault| fault.row);
    TimeValues { us: out.into(), nulls, truncated }
}

/// What the policies make of a local time; `folds` takes times that happen twice and are left to the caller.
#[inline]
pub(super) fn local_to_utc(
    time: LocalTime,
    local_us: i64,
    row: usize,
    zone: &mut ZoneConverter,
    rules: &super::Rules,
    folds: Option<&mut Vec<FoldRow>>,
    value: impl Fn() -> String,
) -> std::result::Result<i64, CellFault> {
    match (time, rules.ambiguous, folds) {
        (LocalTime::Utc(instant), ..) => Ok(instant),
        (LocalTime::Ambiguous { earlier, later }, Ambiguous::Infer, Some(folds)) => {
            folds.push(FoldRow { row: row as u32, local_us, earlier_us: earlier, later_us: later, value: value() });
            Ok(earlier)
        }
        _ => by_policy(time, local_us, row, zone, rules, &value),
    }
}

#[cold]
fn by_policy(
    time: LocalTime,
    local_us: i64,
    row: usize,
    zone: &mut ZoneConverter,
    rules: &super::Rules,
    value: &dyn Fn() -> String,
) -> std::result::Result<i64, CellFault> {
    match (time, rules.ambiguous, rules.nonexistent) {
        (LocalTime::Utc(instant), ..) => Ok(instant),
        (LocalTime::Ambiguous { earlier, .. }, Ambiguous::Earlier, _) => Ok(earlier),
        (LocalTime::Ambiguous { later, .. }, Ambiguous::Later, _) => Ok(later),
        (LocalTime::Ambiguous { earlier, later }, Ambiguous::Error | Ambiguous::Infer, _) => {
            let mut fault = CellFault::new(row, Reason::AmbiguousLocalTime, Some(value()));
            fault.candidates = vec![TimestampUs(earlier).to_string(), TimestampUs(later).to_string()];
            Err(fault)
        }
        (LocalTime::Nonexistent { shifted }, _, policy) => {
            // Moved forward by the gap, it is the instant that the clock before the gap would have shown.
            let instant = match zone.convert(shifted) {
                LocalTime::Utc(instant) => Some(instant),
                // Another change of the clock where the gap ends: the later reading, as everywhere for `shift`.
                LocalTime::Ambiguous { later, .. } => Some(later),
                LocalTime::Nonexistent { .. } => None,
            };
            if let (Nonexistent::Shift, Some(instant)) = (policy, instant) {
                return Ok(instant);
            }
            let mut fault = CellFault::new(row, Reason::NonexistentLocalTime, Some(value()));
            fault.skipped = policy == Nonexistent::Skip;
            fault.hint = instant.map(|instant| {
                let standard = show_offset(local_us - instant);
                format!("is --tz right? a source that keeps standard time all year needs --tz {standard}; else --nonexistent shift or --nonexistent skip")
            });
            Err(fault)
        }
    }
}

/// `+10:00`; seconds only where there are some, which no zone has today.
fn show_offset(offset_us: i64) -> String {
    let seconds = offset_us.abs() / MICROS_PER_SECOND;
    let sign = if offset_us < 0 { '-' } else { '+' };
    let text = format!("{sign}{:02}:{:02}", seconds / 3_600, seconds / 60 % 60);
    if seconds % 60 == 0 { text } else { format!("{text}:{:02}", seconds % 60) }
}

/// A wall clock as text.
fn show_local(local_us: i64) -> String {
    match DateTime::from_timestamp_micros(local_us) {
        Some(time) => time.naive_utc().format("%Y-%m-%dT%H:%M:%S%.f").to_string(),
        None => format!("{local_us} us"),
    }
}

/// A stored number as the time it stands for, or as the number where the calendar ends.
fn show_stored(value: i64, data_type: &DataType) -> String {
    let micros = match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => value.checked_mul(1_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => value.checked_mul(1_000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => Some(value.div_euclid(1_000)),
        DataType::Date32 => value.checked_mul(MICROS_PER_DAY),
        _ => Some(value),
    };
    micros.map_or_else(|| value.to_string(), show_local)
}
