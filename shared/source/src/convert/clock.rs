//! What the parsers of times share: the scanner, the calendar, offsets, leap seconds.
//!
//! Must never accept a date that does not exist, or a second 60 that no clock showed.

use super::MICROS_PER_MINUTE;
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND};

/// A time as text: a wall clock and what the text says about where the clock hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimestampText<'a> {
    /// The wall clock read as if it were UTC. Of a leap second: the last microsecond of the second before.
    pub local_us: i64,
    pub place: ClockPlace<'a>,
    /// Digits below a microsecond were cut (floored).
    pub truncated: bool,
    /// Second 60, which is still to be checked against the table when the instant is known.
    pub leap_second: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockPlace<'a> {
    /// Nothing said: `--tz` decides.
    Unsaid,
    /// Microseconds east of UTC.
    Offset(i64),
    /// `CEST`: shared by several zones, so `--tz` must have it.
    Abbreviation(&'a str),
}

/// Trims what spreadsheets and locales put around numbers and times: ASCII blanks, no-break blanks, a byte order mark.
#[inline]
pub(super) fn trim(text: &str) -> &str {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) if first.is_ascii_graphic() && last.is_ascii_graphic() => text,
        _ => text.trim_matches(|character: char| {
            character.is_ascii_whitespace() || matches!(character, '\u{b}' | '\u{a0}' | '\u{202f}' | '\u{feff}')
        }),
    }
}

pub(super) fn is_leap_year(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub(super) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap_year(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar, extended to years before it.
pub(super) fn days_of_date(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return None;
    }
    // Years that begin in March, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// A time of day from its parts, and whether it is a leap second. 24:00 only as the end of the day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TimeOfDay {
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
    pub micros: i64,
    pub truncated: bool,
}

impl TimeOfDay {
    /// Microseconds since midnight and whether this is second 60.
    pub fn micros_of_day(&self) -> Option<(i64, bool)> {
        let end_of_day = self.hour == 24 && self.minute == 0 && self.second == 0 && self.micros == 0 && !self.truncated;
        if (self.hour > 23 && !end_of_day) || self.minute > 59 || self.second > 60 {
            return None;
        }
        let minutes = self.hour * MICROS_PER_HOUR + self.minute * MICROS_PER_MINUTE;
        if self.second == 60 {
            // The fraction of a leap second has no place: what is kept is its last microsecond but one second earlier.
            return Some((minutes + 60 * MICROS_PER_SECOND - 1, true));
        }
        Some((minutes + self.second * MICROS_PER_SECOND + self.micros, false))
    }
}

/// Days since 1970 at whose end (UTC) a second was inserted. Source: IERS Bulletin C 10 (1995) to 71 (2026) and
/// `leap-seconds.list` of the IANA database; none was announced after 2016.
const LEAP_DAYS: [i64; 27] = [
    911, 1_095, 1_460, 1_825, 2_190, 2_556, 2_921, 3_286, 3_651, 4_198, 4_563, 4_928, 5_659, 6_573, 7_304, 7_669, 8_216, 8_581, 8_946,
    9_495, 10_042, 10_591, 13_148, 14_244, 15_521, 16_616, 17_166,
];

/// Whether an instant lies in the second before an inserted one.
pub(super) fn precedes_leap_second(instant_us: i64) -> bool {
    let next_us = (instant_us.div_euclid(MICROS_PER_SECOND) + 1) * MICROS_PER_SECOND;
    next_us.rem_euclid(MICROS_PER_DAY) == 0 && LEAP_DAYS.binary_search(&(next_us / MICROS_PER_DAY - 1)).is_ok()
}

/// Bytes of a text that are still to be read.
pub(super) struct Scanner<'a> {
    pub rest: &'a str,
}

impl<'a> Scanner<'a> {
    #[inline]
    pub fn first(&self) -> Option<u8> {
        self.rest.as_bytes().first().copied()
    }
    /// Nothing is passed over that is not whole characters.
    #[inline]
    pub fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or(self.rest);
    }
    /// At least `least` and at most `most` digits, as a number: `None` if there are fewer; more stay unread.
    #[inline]
    pub fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let mut value = 0;
        let mut count = 0;
        for byte in self.rest.as_bytes().iter().take(most) {
            if !byte.is_ascii_digit() {
                break;
            }
            value = value * 10 + i64::from(byte - b'0');
            count += 1;
        }
        if count < least {
            return None;
        }
        self.skip(count);
        Some(value)
    }
    #[inline]
    pub fn eat(&mut self, wanted: u8) -> bool {
        let found = self.first() == Some(wanted);
        if found {
            self.skip(1);
        }
        found
    }
    /// Blanks, also those that locales write between numbers and words. How many bytes.
    #[inline]
    pub fn blanks(&mut self) -> usize {
        let before = self.rest.len();
        loop {
            match self.first() {
                Some(b' ' | b'\t') => self.skip(1),
                Some(0xC2) if self.rest.starts_with('\u{a0}') => self.skip(2),
                Some(0xE2) if self.rest.starts_with(['\u{202f}', '\u{2009}']) => self.skip(3),
                _ => return before - self.rest.len(),
            }
        }
    }
    /// Digits of a fraction of a second as microseconds, and whether digits were cut; `None` without a digit.
    pub fn fraction(&mut self, most: usize) -> Option<(i64, bool)> {
        let (mut micros, mut places, mut truncated) = (0_i64, 0_usize, false);
        for byte in self.rest.as_bytes().iter().take(most).take_while(|byte| byte.is_ascii_digit()) {
            if places < 6 {
                micros = micros * 10 + i64::from(byte - b'0');
            } else if *byte != b'0' {
                truncated = true;
            }
            places += 1;
        }
        if places == 0 {
            return None;
        }
        self.skip(places);
        for _ in places..6 {
            micros *= 10;
        }
        Some((micros, truncated))
    }
    /// `Z`, `+02:00`, `+0200`, `+02`, `+05:30:15`, also with U+2212 for the minus: microseconds east of UTC.
    pub fn offset(&mut self) -> Option<i64> {
        let (sign, length) = match self.first()? {
            b'Z' | b'z' => {
                self.skip(1);
                return Some(0);
            }
            b'+' => (1, 1),
            b'-' => (-1, 1),
            0xE2 if self.rest.starts_with('\u{2212}') => (-1, '\u{2212}'.len_utf8()),
            _ => return None,
        };
        self.skip(length);
        let hours = self.number(2, 2)?;
        let (mut minutes, mut seconds) = (0, 0);
        if self.eat(b':') {
            minutes = self.number(2, 2)?;
            if self.eat(b':') {
                seconds = self.number(2, 2)?;
            }
        } else if self.first().is_some_and(|byte| byte.is_ascii_digit()) {
            minutes = self.number(2, 2)?;
            if self.first().is_some_and(|byte| byte.is_ascii_digit()) {
                seconds = self.number(2, 2)?;
            }
        }
        (hours < 24 && minutes < 60 && seconds < 60)
            .then_some(sign * (hours * MICROS_PER_HOUR + minutes * MICROS_PER_MINUTE + seconds * MICROS_PER_SECOND))
    }
    /// Where the clock hangs: an offset, a word for UTC, or an abbreviation.
    pub fn place(&mut self) -> Option<ClockPlace<'a>> {
        let letters = self.letters();
        let word = &self.rest[..letters];
        if letters == 0 {
            return self.offset().map(ClockPlace::Offset);
        }
        self.skip(letters);
        match word {
            "Z" | "z" => Some(ClockPlace::Offset(0)),
            _ if ["UTC", "GMT", "UT"].iter().any(|utc| word.eq_ignore_ascii_case(utc)) => Some(ClockPlace::Offset(0)),
            // The database has none shorter: two letters are AM, PM, BC, AD.
            _ if (3..=6).contains(&letters) => Some(ClockPlace::Abbreviation(word)),
            _ => None,
        }
    }
    /// How many ASCII letters come next.
    pub fn letters(&self) -> usize {
        self.rest.bytes().take_while(u8::is_ascii_alphabetic).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{DateTime, NaiveDate};

    #[test]
    fn dates_are_those_of_the_calendar() {
        let mut date = NaiveDate::from_ymd_opt(-5, 1, 1).unwrap();
        while date < NaiveDate::from_ymd_opt(2_405, 1, 1).unwrap() {
            use chrono::Datelike;
            let days = days_of_date(i64::from(date.year()), i64::from(date.month()), i64::from(date.day()));
            assert_eq!(days, Some(date.signed_duration_since(NaiveDate::default()).num_days()), "{date}");
            date += chrono::TimeDelta::days(1);
        }
        for (year, month, day) in [(2023, 2, 29), (1900, 2, 29), (2024, 4, 31), (2024, 13, 1), (2024, 0, 1), (2024, 1, 0), (2024, 1, 32)] {
            assert_eq!(days_of_date(year, month, day), None);
        }
    }

    #[test]
    fn leap_seconds_end_june_and_december_as_bulletin_c_says() {
        // Year and whether in June: the list as the IERS publishes it.
        let june = [1972, 1981, 1982, 1983, 1985, 1992, 1993, 1994, 1997, 2012, 2015];
        let december = [1972, 1973, 1974, 1975, 1976, 1977, 1978, 1979, 1987, 1989, 1990, 1995, 1998, 2005, 2008, 2016];
        let mut days: Vec<i64> = june.iter().filter_map(|year| days_of_date(*year, 6, 30)).collect();
        days.extend(december.iter().filter_map(|year| days_of_date(*year, 12, 31)));
        days.sort_unstable();
        assert_eq!(days, LEAP_DAYS);
        let at = |text: &str| precedes_leap_second(DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros());
        assert!(at("2016-12-31T23:59:59.999999Z") && at("1972-06-30T23:59:59Z"));
        assert!(!at("2016-12-31T23:59:58Z") && !at("2017-01-01T00:00:00Z") && !at("2017-12-31T23:59:59Z") && !at("1969-12-31T23:59:59Z"));
    }
}
