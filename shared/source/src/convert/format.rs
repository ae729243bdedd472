//! `--ts-format`: times in the order that a pattern says.
//!
//! Takes a strftime pattern once and makes a list of steps; each text must then fit the whole list and be used up.
//! What a pattern cannot say for certain (a 12-hour clock without AM or PM, a day without a year, a field twice) is
//! refused when it is compiled, never guessed for a row.
//!
//! Numbers may lack leading zeros (`1/1/2007`) but never have more digits than their field; a year has all of its
//! digits, and so have fields with no separator between. A weekday must be the date's: a wrong one tells that day and
//! month are swapped. A blank stands for one or more, also for those that locales write before AM.
//!
//! `excel` stands for serial days, see `serial`.

mod names;
mod pattern;

use super::clock::{ClockPlace, Scanner, TimeOfDay, TimestampText, days_of_date, trim};
use names::{MONTHS, WEEKDAYS};
use std::sync::Arc;
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_SECOND};
use timelake_model::{Error, Reason, Result};

/// A compiled `--ts-format`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampFormat {
    pattern: Arc<str>,
    way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Excel,
    Steps(Arc<[Step]>),
}

/// One piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Literal(String),
    Blanks,
    /// `least` and `most` digits, with blanks before if the pattern pads by them.
    Number {
        field: Field,
        least: u8,
        most: u8,
        padded: bool,
    },
    MonthName,
    WeekdayName,
    Meridiem,
    /// Digits of a fraction of a second: `exactly` so many, or any.
    Fraction {
        point: Point,
        exactly: Option<u8>,
    },
    Offset,
    Abbreviation,
    EpochSeconds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    None,
    Optional,
    Required,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Year,
    YearOfCentury,
    Month,
    Day,
    DayOfYear,
    Hour,
    HourOfHalf,
    Minute,
    Second,
}

/// Where a text stopped fitting.
struct Misfit {
    /// Bytes of the trimmed text that were left.
    left: usize,
    /// Index of the step, or past the last one.
    step: usize,
}

#[derive(Default)]
struct Parts {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    weekday: Option<i64>,
    hour_of_half: Option<i64>,
    afternoon: Option<bool>,
    epoch_seconds: Option<i64>,
    time: TimeOfDay,
}

impl TimestampFormat {
    /// Compiles a pattern as typed.
    pub fn parse(pattern: &str) -> Result<TimestampFormat> {
        let way = if pattern.trim().eq_ignore_ascii_case("excel") {
            Way::Excel
        } else {
            Way::Steps(pattern::compile(pattern).map_err(|mistake| refused(pattern, &mistake))?.into())
        };
        Ok(TimestampFormat { pattern: pattern.into(), way })
    }

    /// As typed.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
    pub(crate) fn is_excel(&self) -> bool {
        self.way == Way::Excel
    }
    /// Has no time of day and no place: what a column of dates can be read with.
    pub(super) fn is_date_only(&self) -> bool {
        let Way::Steps(steps) = &self.way else { return false };
        steps.iter().all(|step| match step {
            Step::Number { field, .. } => {
                matches!(field, Field::Year | Field::YearOfCentury | Field::Month | Field::Day | Field::DayOfYear)
            }
            Step::Literal(_) | Step::Blanks | Step::MonthName | Step::WeekdayName => true,
            Step::Meridiem | Step::Fraction { .. } | Step::Offset | Step::Abbreviation | Step::EpochSeconds => false,
        })
    }

    /// The text by the pattern; `None` when it does not fit. Never for `excel`.
    pub(super) fn read<'a>(&self, text: &'a str) -> Option<TimestampText<'a>> {
        let Way::Steps(steps) = &self.way else { return None };
        follow(steps, trim(text)).ok()
    }

    /// Where and why a text does not fit, for a message.
    pub(super) fn misfit(&self, text: &str) -> String {
        let Way::Steps(steps) = &self.way else {
            return "with --ts-format excel times are serial days such as 45292.5".into();
        };
        let (pattern, text) = (&self.pattern, trim(text));
        let Err(misfit) = follow(steps, text) else { return format!("the pattern is --ts-format '{pattern}'") };
        let left = text.get(text.len().saturating_sub(misfit.left)..).unwrap_or_default();
        let left: String = left.chars().take(20).collect();
        match steps.get(misfit.step) {
            Some(step) if left.is_empty() => format!("--ts-format '{pattern}' wants {} at its end", step.describe()),
            Some(step) => format!("--ts-format '{pattern}' wants {} at '{left}'", step.describe()),
            None if left.is_empty() => format!("it fits --ts-format '{pattern}', but there is no such date or time"),
            None => format!("--ts-format '{pattern}' leaves '{left}' over"),
        }
    }
}

fn refused(pattern: &str, mistake: &pattern::Mistake) -> Error {
    Error::invalid(Reason::InvalidOption, format!("--ts-format '{pattern}': {}", mistake.what)).hint(mistake.hint.clone()).at(|place| {
        place.option = Some("--ts-format".into());
        place.value = Some(pattern.into());
    })
}

impl Step {
    fn describe(&self) -> String {
        match self {
            Step::Literal(text) => format!("'{text}'"),
            Step::Blanks => "a blank".into(),
            Step::Number { field, .. } => match field {
                Field::Year => "a year of four digits",
                Field::YearOfCentury => "a year of two digits",
                Field::Month => "a month (1 to 12)",
                Field::Day => "a day (1 to 31)",
                Field::DayOfYear => "a day of the year",
                Field::Hour => "an hour (0 to 24)",
                Field::HourOfHalf => "an hour (1 to 12)",
                Field::Minute => "minutes",
                Field::Second => "seconds",
            }
            .into(),
            Step::MonthName => "the English name of a month".into(),
            Step::WeekdayName => "the English name of a weekday".into(),
            Step::Meridiem => "AM or PM".into(),
            Step::Fraction { .. } => "a fraction of a second".into(),
            Step::Offset => "an offset such as +02:00".into(),
            Step::Abbreviation => "an abbreviation such as CET".into(),
            Step::EpochSeconds => "seconds since 1970".into(),
        }
    }
}

/// The text must fit all steps and be used up.
fn follow<'a>(steps: &[Step], text: &'a str) -> std::result::Result<TimestampText<'a>, Misfit> {
    let mut scanner = Scanner { rest: text };
    let mut parts = Parts::default();
    let mut place = ClockPlace::Unsaid;
    for (index, step) in steps.iter().enumerate() {
        let before = scanner.rest.len();
        if !take(step, &mut scanner, &mut parts, &mut place) {
            return Err(Misfit { left: before, step: index });
        }
    }
    if !scanner.rest.is_empty() {
        return Err(Misfit { left: scanner.rest.len(), step: steps.len() });
    }
    parts.together(place).ok_or(Misfit { left: 0, step: steps.len() })
}

/// Reads one step; false when it is not there.
#[inline]
fn take<'a>(step: &Step, scanner: &mut Scanner<'a>, parts: &mut Parts, place: &mut ClockPlace<'a>) -> bool {
    match step {
        Step::Literal(literal) => {
            let found = scanner.rest.starts_with(literal.as_str());
            if found {
                scanner.skip(literal.len());
            }
            found
        }
        Step::Blanks => scanner.blanks() > 0,
        Step::Number { field, least, most, padded } => {
            if *padded {
                scanner.blanks();
            }
            let Some(value) = scanner.number(usize::from(*least), usize::from(*most)) else { return false };
            parts.set(*field, value)
        }
        Step::MonthName => match names::english(scanner.rest, &MONTHS) {
            Some((index, length)) => {
                scanner.skip(length);
                parts.month = Some(index + 1);
                true
            }
            None => false,
        },
        Step::WeekdayName => match names::english(scanner.rest, &WEEKDAYS) {
            Some((index, length)) => {
                scanner.skip(length);
                parts.weekday = Some(index);
                true
            }
            None => false,
        },
        Step::Meridiem => {
            parts.afternoon = names::meridiem(scanner);
            parts.afternoon.is_some()
        }
        Step::Fraction { point, exactly } => {
            let point_found = *point != Point::None && (scanner.eat(b'.') || scanner.eat(b','));
            match (point, point_found) {
                (Point::Optional, false) => return true,
                (Point::Required, false) => return false,
                _ => {}
            }
            let before = scanner.rest.len();
            let Some((micros, truncated)) = scanner.fraction(exactly.map_or(usize::MAX, usize::from)) else { return false };
            (parts.time.micros, parts.time.truncated) = (micros, truncated);
            exactly.is_none_or(|digits| before - scanner.rest.len() == usize::from(digits))
        }
        Step::Offset => match scanner.offset() {
            Some(offset_us) => {
                *place = ClockPlace::Offset(offset_us);
                true
            }
            None => false,
        },
        Step::Abbreviation => match scanner.place() {
            // An offset says more than a name.
            Some(found) => {
                if !matches!(place, ClockPlace::Offset(_)) {
                    *place = found;
                }
                true
            }
            None => false,
        },
        Step::EpochSeconds => {
            let negative = scanner.eat(b'-');
            // Twelve digits reach beyond the year 9999.
            let Some(seconds) = scanner.number(1, 12) else { return false };
            parts.epoch_seconds = Some(if negative { -seconds } else { seconds });
            true
        }
    }
}

impl Parts {
    /// False for a value that its field cannot have.
    #[inline]
    fn set(&mut self, field: Field, value: i64) -> bool {
        match field {
            Field::Year => self.year = Some(value),
            // POSIX: 69 to 99 are of the twentieth century.
            Field::YearOfCentury => self.year = Some(value + if value < 69 { 2_000 } else { 1_900 }),
            Field::Month => {
                self.month = Some(value);
                return (1..=12).contains(&value);
            }
            Field::Day => {
                self.day = Some(value);
                return (1..=31).contains(&value);
            }
            Field::DayOfYear => {
                self.day_of_year = Some(value);
                return (1..=366).contains(&value);
            }
            Field::Hour => {
                self.time.hour = value;
                return value <= 24;
            }
            Field::HourOfHalf => {
                self.hour_of_half = Some(value);
                return (1..=12).contains(&value);
            }
            Field::Minute => {
                self.time.minute = value;
                return value < 60;
            }
            Field::Second => {
                self.time.second = value;
                return value <= 60;
            }
        }
        true
    }

    fn together(mut self, place: ClockPlace<'_>) -> Option<TimestampText<'_>> {
        if let Some(seconds) = self.epoch_seconds {
            let local_us = seconds * MICROS_PER_SECOND + self.time.micros;
            // `-1.5` would have two readings, so digits after a negative count are refused.
            return (seconds >= 0 || self.time.micros == 0).then_some(TimestampText {
                local_us,
                place: ClockPlace::Offset(0),
                truncated: self.time.truncated,
                leap_second: false,
            });
        }
        let year = self.year?;
        let days = match self.day_of_year {
            Some(day) if day == 366 && !super::clock::is_leap_year(year) => return None,
            Some(day) => days_of_date(year, 1, 1)? + day - 1,
            None => days_of_date(year, self.month?, self.day?)?,
        };
        // 1970-01-01 was a Thursday; weekdays count from Monday.
        if self.weekday.is_some_and(|weekday| (days + 3).rem_euclid(7) != weekday) {
            return None;
        }
        if let Some(hour) = self.hour_of_half {
            self.time.hour = hour % 12 + if self.afternoon? { 12 } else { 0 };
        }
        let (time, leap_second) = self.time.micros_of_day()?;
        let truncated = self.time.truncated && !leap_second;
        Some(TimestampText { local_us: days * MICROS_PER_DAY + time, place, truncated, leap_second })
    }
}

#[cfg(test)]
mod tests;
