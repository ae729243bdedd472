//! Texts → instants, wall clocks and dates, by the rules of the job.
//!
//! A text is read by `--ts-format` if there is one; else as a count of `--ts-unit` if there is one and it is a number;
//! else as ISO. Its offset, its abbreviation or `--tz` then makes it an instant. Columns of dates are read by a
//! `--ts-format` only when that has no time of day, columns of times of day never: the pattern is the time column's.
//! Neighbours often are the same text, so the last one's reading is kept.

use super::clock::{ClockPlace, TimestampText, precedes_leap_second, trim};
use super::separators::Separators;
use super::times::{TimeValues, local_to_utc, marked};
use super::why::{Wrong, why_no_date, why_no_time};
use super::{Context, Rules, epoch, iso, parse};
use crate::cell::CellFault;
use crate::zone::{Abbreviated, ZoneConverter};
use arrow::array::{Array, StringArray};
use timelake_model::Reason;
use timelake_model::time::MICROS_PER_DAY;

/// Reads the texts of one column.
struct TimeReader<'r> {
    rules: &'r Rules,
    separators: Separators,
}

impl<'r> TimeReader<'r> {
    fn new(rules: &'r Rules) -> Self {
        TimeReader { rules, separators: Separators::new(rules.numbers) }
    }

    #[inline]
    fn read<'a>(&mut self, text: &'a str) -> Result<TimestampText<'a>, Wrong> {
        match &self.rules.ts_format {
            Some(format) if format.is_excel() => self.serial(text),
            Some(format) => format.read(text).ok_or_else(|| Wrong::new(Reason::BadTimestamp, Some(format.misfit(text)))),
            None => {
                if self.rules.unit.is_some()
                    && let Some(found) = self.count(text)?
                {
                    return Ok(found);
                }
                iso::parse_timestamp(text).ok_or_else(|| why_no_time(text, self.rules))
            }
        }
    }

    /// `Ok(None)`: not a number.
    fn count(&mut self, text: &str) -> Result<Option<TimestampText<'static>>, Wrong> {
        let Some(unit) = self.rules.unit else { return Ok(None) };
        let Some(plain) = self.separators.plain(trim(text)) else { return Ok(None) };
        let found = epoch::from_count(plain, unit).map_err(|reason| Wrong::new(reason, None))?;
        let instant = |(local_us, truncated)| TimestampText { local_us, place: ClockPlace::Offset(0), truncated, leap_second: false };
        Ok(found.map(instant))
    }

    fn serial(&mut self, text: &str) -> Result<TimestampText<'static>, Wrong> {
        let serial = parse::parse_double(text, &mut self.separators).unwrap_or(f64::NAN);
        let local_us = epoch::from_serial(serial).map_err(|reason| {
            let hint = "with --ts-format excel times are serial days such as 45292.5, from 1 (1900-01-01), without 60".to_string();
            Wrong::new(reason, (reason == Reason::BadTimestamp).then_some(hint))
        })?;
        Ok(TimestampText { local_us, place: ClockPlace::Unsaid, truncated: false, leap_second: false })
    }
}

pub(super) fn instants(texts: &StringArray, context: &mut Context<'_>) -> TimeValues {
    let rules = context.rules;
    let mut reader = TimeReader::new(rules);
    let mut us = Vec::with_capacity(texts.len());
    let mut cut = Vec::new();
    let mut last: Option<(&str, TimestampText<'_>)> = None;
    for row in 0..texts.len() {
        if texts.is_null(row) {
            us.push(0);
            continue;
        }
        let text = texts.value(row);
        let found = match last {
            Some((same, found)) if same == text => Ok(found),
            _ => reader.read(text),
        };
        let instant = match found {
            Err(wrong) => Err(wrong.fault(row, text)),
            Ok(found) => {
                last = Some((text, found));
                settle(&found, row, text, context)
            }
        };
        match instant {
            Ok(instant) => {
                us.push(instant);
                if let Some((_, found)) = last {
                    if found.truncated {
                        cut.push(row);
                    }
                    if found.leap_second {
                        context.leap_seconds.push(row as u32);
                    }
                }
            }
            Err(fault) => {
                us.push(0);
                context.faults.push(fault);
            }
        }
    }
    let nulls = texts.nulls().cloned();
    TimeValues { us: us.into(), truncated: marked(texts.len(), &cut, nulls.as_ref()), nulls }
}

/// The instant of a wall clock and its place.
#[inline]
fn settle(found: &TimestampText<'_>, row: usize, text: &str, context: &mut Context<'_>) -> Result<i64, CellFault> {
    let bad = |hint: String| Wrong::new(Reason::BadTimestamp, Some(hint)).fault(row, text);
    let Context { rules, zone, folds, .. } = context;
    let zone = zone.as_deref_mut();
    let instant = match (found.place, zone) {
        (ClockPlace::Offset(offset_us), _) => {
            found.local_us.checked_sub(offset_us).ok_or_else(|| CellFault::new(row, Reason::TimestampOutOfRange, Some(text.to_string())))?
        }
        (ClockPlace::Unsaid, Some(zone)) => {
            let time = zone.convert(found.local_us);
            local_to_utc(time, found.local_us, row, zone, rules, folds.as_mut(), || text.to_string())?
        }
        (ClockPlace::Unsaid, None) => return Err(CellFault::new(row, Reason::NaiveTimestampWithoutZone, Some(text.to_string()))),
        (ClockPlace::Abbreviation(word), None) => {
            let hint = format!("{word} may be of several zones: say whose it is with --tz, such as --tz Europe/Berlin");
            return Err(Wrong::new(Reason::NaiveTimestampWithoutZone, Some(hint)).fault(row, text));
        }
        (ClockPlace::Abbreviation(word), Some(zone)) => abbreviated(word, found, zone)
            .map_err(bad)?
            .map_or_else(|time| local_to_utc(time, found.local_us, row, zone, rules, folds.as_mut(), || text.to_string()), Ok)?,
    };
    if found.leap_second && !precedes_leap_second(instant) {
        return Err(bad("second 60 exists only where a leap second was inserted, the last time at 2016-12-31T23:59:60Z".into()));
    }
    Ok(instant)
}

/// What an abbreviation says: the instant, or a local time that it does not settle; or that the zone has another one.
fn abbreviated(word: &str, found: &TimestampText<'_>, zone: &ZoneConverter) -> Result<Result<i64, crate::zone::LocalTime>, String> {
    match zone.abbreviated(found.local_us, word) {
        Abbreviated::Utc(instant) => Ok(Ok(instant)),
        Abbreviated::Unsettled(time) => Ok(Err(time)),
        Abbreviated::Other { zone, has } if has.is_empty() => {
            Err(format!("--tz {zone} has no abbreviations: name the zone that has {word}, or write offsets"))
        }
        Abbreviated::Other { zone, has } => Err(format!("--tz {zone} has {} at that time, not {word}", has.join(" or "))),
    }
}

/// Wall clocks. A text with an offset is an instant; as a wall clock it would need a zone of its own.
pub(super) fn wall_clocks(texts: &StringArray, context: &mut Context<'_>) -> Vec<i64> {
    let mut reader = TimeReader::new(context.rules);
    each(texts, context, |text, truncated| {
        let found = reader.read(text)?;
        if found.leap_second {
            return Err(Wrong::new(Reason::BadTimestamp, Some("a leap second needs an offset to be one".into())));
        }
        if found.place != ClockPlace::Unsaid {
            let hint = "it is an instant, which has no wall clock of its own: load it into a timestamptz column";
            return Err(Wrong::new(Reason::BadTimestamp, Some(hint.into())));
        }
        *truncated += u64::from(found.truncated);
        Ok(found.local_us)
    })
}

/// Days since 1970.
pub(super) fn dates(texts: &StringArray, context: &mut Context<'_>) -> Vec<i32> {
    let rules = context.rules;
    let by_format = rules.ts_format.as_ref().filter(|format| format.is_excel() || format.is_date_only());
    let mut reader = TimeReader::new(rules);
    each(texts, context, |text, _| {
        let Some(format) = by_format else { return iso::parse_date(text).ok_or_else(|| why_no_date(text)) };
        let local_us = reader.read(text)?.local_us;
        if local_us % MICROS_PER_DAY != 0 {
            return Err(Wrong::new(Reason::LossyConversion, Some("it has a time of day".into())));
        }
        i32::try_from(local_us / MICROS_PER_DAY).map_err(|_| Wrong::new(Reason::TimestampOutOfRange, Some(format.misfit(text))))
    })
}

/// Row by row; slots of faults and NULLs hold zero. The second argument of `read` counts values that lost digits.
fn each<'a, V: Default>(
    texts: &'a StringArray,
    context: &mut Context<'_>,
    mut read: impl FnMut(&'a str, &mut u64) -> Result<V, Wrong>,
) -> Vec<V> {
    let mut out = Vec::with_capacity(texts.len());
    for row in 0..texts.len() {
        out.push(if texts.is_null(row) {
            V::default()
        } else {
            read(texts.value(row), &mut context.truncated).unwrap_or_else(|wrong| {
                context.faults.push(wrong.fault(row, texts.value(row)));
                V::default()
            })
        });
    }
    out
}
