//! Instants and windows. Everything is UTC microseconds; windows are half-open.

use crate::error::{Error, Reason, Result};
use chrono::{DateTime, NaiveDate, NaiveDateTime, SecondsFormat};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

pub const MICROS_PER_SECOND: i64 = 1_000_000;
pub const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
pub const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;

/// Microseconds since 1970-01-01T00:00:00Z. Written as RFC 3339 with six digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimestampUs(pub i64);

impl fmt::Display for TimestampUs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::from_timestamp_micros(self.0) {
            Some(t) => f.write_str(&t.to_rfc3339_opts(SecondsFormat::Micros, true)),
            None => write!(f, "{} us", self.0), // beyond the calendar of chrono
        }
    }
}
impl Serialize for TimestampUs {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_string())
    }
}
impl<'de> Deserialize<'de> for TimestampUs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if let Some(number) = text.strip_suffix(" us") {
            return number.parse().map(TimestampUs).map_err(serde::de::Error::custom);
        }
        DateTime::parse_from_rfc3339(&text).map(|t| TimestampUs(t.timestamp_micros())).map_err(serde::de::Error::custom)
    }
}

impl TimestampUs {
    /// Short form for keys and messages: whole seconds lose their zero digits (`2024-05-01T00:01:00Z`).
    pub fn short(&self) -> String {
        match DateTime::from_timestamp_micros(self.0) {
            Some(t) => t.to_rfc3339_opts(SecondsFormat::AutoSi, true),
            None => self.to_string(),
        }
    }

    /// Parses an instant given as an option: RFC 3339, or a date or naive time which is then taken as
    /// UTC. `naive_is_error`: with a `--tz` other than UTC a naive bound could mean either, so it is refused.
    pub fn parse_bound(text: &str, option: &str, naive_is_error: bool) -> Result<TimestampUs> {
        let text = text.trim();
        if let Ok(t) = DateTime::parse_from_rfc3339(text) {
            return Ok(TimestampUs(t.timestamp_micros()));
        }
        // RFC 3339 wants seconds; a date or a minute with an offset is just as clear.
        if let Some((local, offset_us)) = split_offset(text)
            && let Some(t) = parse_naive(local)
        {
            return Ok(TimestampUs(t.and_utc().timestamp_micros() - offset_us));
        }
        match parse_naive(text) {
            Some(_) if naive_is_error => Err(Error::invalid(
                Reason::NaiveBound,
                format!("{option} {text} has no offset, and with --tz it could mean local time or UTC"),
            )
            .hint(format!("write {option} with an offset, for example {text}Z or {text}+01:00"))
            .at(|p| {
                p.option = Some(option.into());
                p.value = Some(text.into())
            })),
            Some(t) => Ok(TimestampUs(t.and_utc().timestamp_micros())),
            None => Err(Error::invalid(Reason::InvalidOption, format!("{option} {text} is not a time"))
                .hint("write a date (2024-05-01) or an instant (2024-05-01T06:00:00Z)")
                .at(|p| {
                    p.option = Some(option.into());
                    p.value = Some(text.into())
                })),
        }
    }
}

/// A date, or a date and a time to the minute or finer.
fn parse_naive(text: &str) -> Option<NaiveDateTime> {
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"]
        .iter()
        .find_map(|f| NaiveDateTime::parse_from_str(text, f).ok())
        .or_else(|| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(|d| d.and_hms_opt(0, 0, 0)))
}

/// What stands before a final `Z` or `+01:00`, and the offset in microseconds.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return Some((local, 0));
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let sign = match offset.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return None,
    };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    if !hours.bytes().chain(minutes.bytes()).all(|b| b.is_ascii_digit()) {
        return None; // parse would take another sign
    }
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let in_range = (0..24).contains(&hours) && (0..60).contains(&minutes);
    in_range.then_some((local, sign * (hours * MICROS_PER_HOUR + minutes * 60 * MICROS_PER_SECOND)))
}

/// Half-open `[start, end)` in UTC; `None` is unbounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub start: Option<TimestampUs>,
    pub end: Option<TimestampUs>,
}

impl Window {
    pub const ALL: Window = Window { start: None, end: None };
    pub fn new(start: i64, end: i64) -> Self {
        Window { start: Some(TimestampUs(start)), end: Some(TimestampUs(end)) }
    }
    /// Smallest instant inside, in microseconds.
    pub fn low(&self) -> i64 {
        self.start.map_or(i64::MIN, |t| t.0)
    }
    /// First instant after, in microseconds (`i64::MAX` when unbounded).
    pub fn high(&self) -> i64 {
        self.end.map_or(i64::MAX, |t| t.0)
    }
    pub fn contains(&self, us: i64) -> bool {
        self.low() <= us && us < self.high()
    }
    pub fn overlaps(&self, other: &Window) -> bool {
        self.low() < other.high() && other.low() < self.high()
    }
    pub fn intersect(&self, other: &Window) -> Window {
        Window {
            start: self.start.max(other.start), // None is the smallest
            end: match (self.end, other.end) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        }
    }
    pub fn is_empty(&self) -> bool {
        self.low() >= self.high()
    }
}
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |t: Option<TimestampUs>| t.map_or("..".to_string(), |t| t.short());
        write!(f, "[{}, {})", side(self.start), side(self.end))
    }
}

/// An ISO-8601 duration such as `P2Y`, `P14D`, `PT1H`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IsoDuration {
    pub months: u32,
    pub days: u32,
    pub seconds: u64,
}

impl IsoDuration {
    pub fn parse(text: &str) -> Result<IsoDuration> {
        let bad = || {
            Error::invalid(Reason::InvalidContract, format!("{text} is not an ISO-8601 duration"))
                .hint("write for example P2Y, P6M, P14D or PT1H")
                .at(|p| p.value = Some(text.into()))
        };
        let rest = text.strip_prefix('P').ok_or_else(bad)?;
        let (mut out, mut in_time, mut digits, mut any) = (IsoDuration::default(), false, String::new(), false);
        for c in rest.chars() {
            match c {
                '0'..='9' => digits.push(c),
                'T' if !in_time && digits.is_empty() => in_time = true,
                _ => {
                    let n: u32 = std::mem::take(&mut digits).parse().map_err(|_| bad())?;
                    let times = |unit: u32| n.checked_mul(unit).ok_or_else(bad);
                    match (in_time, c) {
                        (false, 'Y') => out.months += times(12)?,
                        (false, 'M') => out.months += n,
                        (false, 'W') => out.days += times(7)?,
                        (false, 'D') => out.days += n,
                        (true, 'H') => out.seconds += u64::from(n) * 3600,
                        (true, 'M') => out.seconds += u64::from(n) * 60,
                        (true, 'S') => out.seconds += u64::from(n),
                        _ => return Err(bad()),
                    }
                    any = true;
                }
            }
        }
        if !any || !digits.is_empty() { Err(bad()) } else { Ok(out) }
    }

    /// The instant this long before `t` (calendar months, then days, then seconds).
    pub fn before(&self, t: TimestampUs) -> TimestampUs {
        let Some(start) = DateTime::from_timestamp_micros(t.0) else { return t };
        let moved = start.checked_sub_months(chrono::Months::new(self.months)).unwrap_or(start).timestamp_micros();
        TimestampUs(moved - i64::from(self.days) * MICROS_PER_DAY - self.seconds as i64 * MICROS_PER_SECOND)
    }

    /// Length in milliseconds with months of 31 and years of 366 days: never shorter than the calendar's.
    pub fn upper_ms(&self) -> i64 {
        let days = i64::from(self.months / 12) * 366 + i64::from(self.months % 12) * 31 + i64::from(self.days);
        days * 86_400_000 + self.seconds as i64 * 1000
    }
}

/// Chunk length: the calendar period of the finest time partition, so that chunks and partitions share limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Hour,
    Day,
    Month,
    Year,
}

impl Period {
    /// Number of the period that holds `us`, counted from 1970 with floor arithmetic (also before 1970).
    /// The same number as Iceberg's hour, day, month and year transforms.
    pub fn ordinal(self, us: i64) -> i64 {
        match self {
            Period::Hour => us.div_euclid(MICROS_PER_HOUR),
            Period::Day => us.div_euclid(MICROS_PER_DAY),
            Period::Month | Period::Year => {
                let (y, m) = civil_month(us.div_euclid(MICROS_PER_DAY));
                if self == Period::Month { (y - 1970) * 12 + m } else { y - 1970 }
            }
        }
    }
    /// First instant of the period with this ordinal.
    pub fn start(self, ordinal: i64) -> i64 {
        match self {
            Period::Hour => ordinal * MICROS_PER_HOUR,
            Period::Day => ordinal * MICROS_PER_DAY,
            Period::Month => days_from_civil(1970 + ordinal.div_euclid(12), ordinal.rem_euclid(12)) * MICROS_PER_DAY,
            Period::Year => days_from_civil(1970 + ordinal, 0) * MICROS_PER_DAY,
        }
    }
    pub fn window(self, ordinal: i64) -> Window {
        Window::new(self.start(ordinal), self.start(ordinal + 1))
    }
    /// Name of the chunk, safe in paths and branch names: `2024-05`, `2024-05-01`, `2024-05-01-13`.
    pub fn name(self, ordinal: i64) -> String {
        let t = DateTime::from_timestamp_micros(self.start(ordinal)).unwrap_or_default();
        let format = match self {
            Period::Hour => "%Y-%m-%d-%H",
            Period::Day => "%Y-%m-%d",
            Period::Month => "%Y-%m",
            Period::Year => "%Y",
        };
        t.format(format).to_string()
    }
}

// Proleptic Gregorian calendar by days; the era method, see "chrono-Compatible Low-Level Date Algorithms" (H. Hinnant).
fn civil_month(days: i64) -> (i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 2 } else { mp - 10 }; // 0 = January
    (yoe + era * 400 + i64::from(month < 2), month)
}
fn days_from_civil(year: i64, month0: i64) -> i64 {
    let y = if month0 < 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = if month0 >= 2 { month0 - 2 } else { month0 + 10 };
    let doy = (153 * mp + 2) / 5;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Datelike;

    #[test]
    fn periods_agree_with_chrono_around_every_month_from_1890_to_2110() {
        let mut day = NaiveDate::from_ymd_opt(1890, 1, 1).unwrap();
        while day.year() < 2110 {
            let us = day.and_hms_opt(0, 0, 0).unwrap().and_utc().timestamp_micros();
            for t in [us - 1, us, us + 1, us + MICROS_PER_DAY / 2] {
                let d = DateTime::from_timestamp_micros(t).unwrap();
                let month = (d.year() as i64 - 1970) * 12 + i64::from(d.month0());
                assert_eq!(Period::Month.ordinal(t), month, "{d}");
                assert_eq!(Period::Year.ordinal(t), d.year() as i64 - 1970, "{d}");
                for p in [Period::Hour, Period::Day, Period::Month, Period::Year] {
                    assert!(p.window(p.ordinal(t)).contains(t), "{p:?} {d}");
                }
            }
            day = day.succ_opt().unwrap();
        }
        assert_eq!(Period::Month.name(Period::Month.ordinal(1_714_521_600_000_000)), "2024-05");
    }

    #[test]
    fn durations() {
        assert_eq!(IsoDuration::parse("P2Y3M1DT4H").unwrap(), IsoDuration { months: 27, days: 1, seconds: 14_400 });
        for bad in ["", "P", "2Y", "P2", "PT", "P1H", "PT1Y", "P99999999999Y"] {
            assert!(IsoDuration::parse(bad).is_err(), "{bad}");
        }
        let t = TimestampUs::parse_bound("2024-03-31", "--x", false).unwrap();
        assert_eq!(IsoDuration::parse("P1M").unwrap().before(t).short(), "2024-02-29T00:00:00Z");
    }

    #[test]
    fn bounds_without_offset_are_utc_or_refused() {
        assert_eq!(TimestampUs::parse_bound("2024-05-01T02:00+02:00", "--start", true).unwrap().short(), "2024-05-01T00:00:00Z");
        assert_eq!(TimestampUs::parse_bound("2024-05-01", "--start", true).unwrap_err().reason, Reason::NaiveBound);
        assert_eq!(TimestampUs::parse_bound("yesterday", "--start", false).unwrap_err().reason, Reason::InvalidOption);
    }

    #[test]
    fn bounds_with_an_offset_need_no_seconds() {
        for text in ["2024-05-01Z", "2024-05-01T00:00Z", "2024-05-01 02:00+02:00", "2024-05-01T02:00:00.0+02:00", "2024-04-30T18:30-05:30"]
        {
            assert_eq!(TimestampUs::parse_bound(text, "--start", true).map(|t| t.short()), Ok("2024-05-01T00:00:00Z".into()), "{text}");
        }
        for bad in ["Z", "2024-05-01T00:00+25:00", "2024-05-01T00:00+2:00", "ä:00", "+01:00", "2024-05-01T00:00++1:00"] {
            assert!(TimestampUs::parse_bound(bad, "--start", true).is_err(), "{bad}");
        }
    }

    #[test]
    fn windows_are_half_open() {
        let w = Window::new(0, 10);
        assert!(w.contains(0) && !w.contains(10));
        assert!(!w.overlaps(&Window::new(10, 20)) && w.overlaps(&Window::ALL));
        assert_eq!(w.intersect(&Window { start: Some(TimestampUs(5)), end: None }), Window::new(5, 10));
    }
}
