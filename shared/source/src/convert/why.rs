//! Why a text is no time, and which option would make it one. Only for texts that failed: nothing is read by this.

use super::clock::trim;
use super::format::TimestampFormat;
use super::parse::number_parts;
use super::separators::Separators;
use super::shape::{is_day_month_order, shape};
use super::{NumberFormat, Rules, epoch, iso};
use crate::cell::CellFault;
use timelake_model::request::TimeUnit;
use timelake_model::{Reason, TimestampUs};

/// What is wrong with a text.
#[derive(Debug)]
pub(super) struct Wrong {
    pub reason: Reason,
    pub hint: Option<String>,
}

impl Wrong {
    pub fn new(reason: Reason, hint: Option<String>) -> Wrong {
        Wrong { reason, hint }
    }
    #[cold]
    pub fn fault(self, row: usize, text: &str) -> CellFault {
        let mut fault = CellFault::new(row, self.reason, Some(text.to_string()));
        fault.hint = self.hint;
        fault
    }
}

/// A text that is no ISO time, and was not read by a format.
#[cold]
pub(super) fn why_no_time(text: &str, rules: &Rules) -> Wrong {
    let text = trim(text);
    if is_beyond_the_calendar(text) {
        return Wrong::new(Reason::TimestampOutOfRange, None);
    }
    if let Some(number) = as_number(text) {
        return Wrong::new(Reason::BadTimestamp, if rules.unit.is_none() { about_number(&number) } else { None });
    }
    if is_day_month_order(text) {
        return Wrong::new(Reason::TimestampFormatUnclear, Some(about_order(text)));
    }
    if let Some(sign) = sign_after_utc(text) {
        let hint = format!("offsets after UTC or GMT are read with both signs: write {sign}05:00 alone for {sign}5 hours east of UTC");
        return Wrong::new(Reason::BadTimestamp, Some(hint));
    }
    let pattern = shape(text, true).filter(|pattern| fits(pattern, text));
    Wrong::new(Reason::BadTimestamp, pattern.map(|pattern| format!("give its pattern: --ts-format '{pattern}'")))
}

/// A text that is no ISO date.
#[cold]
pub(super) fn why_no_date(text: &str) -> Wrong {
    let text = trim(text);
    if is_day_month_order(text) {
        return Wrong::new(Reason::TimestampFormatUnclear, Some(about_order(text)));
    }
    let reason = if is_beyond_the_calendar(text) { Reason::TimestampOutOfRange } else { Reason::BadTimestamp };
    Wrong::new(reason, None)
}

fn fits(pattern: &str, text: &str) -> bool {
    TimestampFormat::parse(pattern).is_ok_and(|format| format.read(text).is_some())
}

fn about_order(text: &str) -> String {
    let [day_first, month_first] = [true, false].map(|day_first| shape(text, day_first));
    // With a year of two digits it may as well stand first.
    let year_first = day_first.as_ref().filter(|pattern| pattern.starts_with("%d") && pattern.contains("%y"));
    let year_first = year_first.map(|pattern| pattern.replace("%y", "\0").replacen("%d", "%y", 1).replace('\0', "%d"));
    let patterns: Vec<String> = [day_first, month_first, year_first]
        .into_iter()
        .flatten()
        .filter(|pattern| fits(pattern, text))
        .map(|pattern| format!("--ts-format '{pattern}'"))
        .collect();
    if patterns.is_empty() {
        return "day/month order: give --ts-format, such as --ts-format '%d/%m/%Y %H:%M'".into();
    }
    format!("day/month order: give {}", patterns.join(" or "))
}

/// PostgreSQL's words for the ends of time, years of more than four digits, years before Christ.
fn is_beyond_the_calendar(text: &str) -> bool {
    let word = text.strip_prefix(['+', '-']).unwrap_or(text);
    if word.eq_ignore_ascii_case("infinity") {
        return true;
    }
    if let Some(start) = text.len().checked_sub(3)
        && text.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(" bc"))
    {
        return text.get(..start).is_some_and(|before| iso::parse_timestamp(before).is_some());
    }
    // With another year it would be a time; 400 years later the calendar is the same.
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (year, rest) = word.split_at(digits);
    let Ok(value) = year.parse::<u64>() else { return false };
    let is_far = (5..=9).contains(&digits) && value > 9_999 || digits >= 4 && text.starts_with('-');
    is_far && rest.starts_with('-') && iso::parse_timestamp(&format!("{}{rest}", 2_000 + value % 400)).is_some()
}

/// A plain number, also with a decimal comma, in the spelling of programs.
fn as_number(text: &str) -> Option<String> {
    let number = |decimal| {
        let mut separators = Separators::new(NumberFormat { decimal, thousands: None });
        separators.plain(text).filter(|text| number_parts(text).is_some()).map(str::to_string)
    };
    number('.').or_else(|| number(','))
}

/// 1990 to 2100: what a unit that is suggested must make of a number.
const PLAUSIBLE_FROM_US: i64 = 631_152_000_000_000;
const PLAUSIBLE_TO_US: i64 = 4_102_444_800_000_000;

fn about_number(number: &str) -> Option<String> {
    let date = |us: i64| TimestampUs(us).short().chars().take(10).collect::<String>();
    let serial: f64 = number.parse().ok()?;
    if (20_000.0..80_000.0).contains(&serial) {
        let us = epoch::from_serial(serial).ok()?;
        return Some(format!("looks like an Excel serial date ({}); use --ts-format excel", date(us)));
    }
    for pattern in ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d%H%M%S%f"] {
        // Only years that readings come from: most numbers of twelve digits are milliseconds.
        if number.bytes().all(|byte| byte.is_ascii_digit()) && matches!(number.get(..2), Some("19" | "20")) && fits(pattern, number) {
            return Some(format!("looks like a date without separators; use --ts-format '{pattern}'"));
        }
    }
    let (whole, unit, word) = match number.bytes().take_while(u8::is_ascii_digit).count() {
        9 | 10 => (TimeUnit::Seconds, "s", "seconds"),
        12 | 13 => (TimeUnit::Millis, "ms", "milliseconds"),
        15 | 16 => (TimeUnit::Micros, "us", "microseconds"),
        18 | 19 => (TimeUnit::Nanos, "ns", "nanoseconds"),
        _ => return Some("a number is a time only with --ts-unit (s, ms, us or ns since 1970)".into()),
    };
    let (us, _) = epoch::from_count(number, whole).ok()??;
    // Counts of other things since other years (FILETIME, .NET ticks) are as long.
    if !(PLAUSIBLE_FROM_US..PLAUSIBLE_TO_US).contains(&us) {
        return Some("a number is a time only with --ts-unit (s, ms, us or ns since 1970)".into());
    }
    Some(format!("looks like epoch {word} ({}); use --ts-unit {unit}", TimestampUs(us).short()))
}

/// The sign in `UTC+5` or `GMT-2`.
fn sign_after_utc(text: &str) -> Option<char> {
    let upper = text.to_ascii_uppercase();
    ["UTC", "GMT"].iter().find_map(|word| {
        let rest = upper.split_once(word)?.1.trim_start();
        rest.chars().next().filter(|sign| matches!(sign, '+' | '-'))
    })
}
