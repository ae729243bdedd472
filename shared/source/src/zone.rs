//! Local times → instants, by an IANA zone or a fixed offset.
//!
//! Takes local microseconds (the wall clock read as if it were UTC), gives UTC microseconds, or says that the wall
//! clock showed this time twice or never. Must never guess: the caller's policy decides those two.

mod abbreviation;

pub(crate) use abbreviation::Abbreviated;

use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use chrono_tz::{GapInfo, TZ_VARIANTS, Tz};
use hashbrown::HashMap;
use timelake_model::similar::nearest;
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND};
use timelake_model::{Error, Reason, Result};

/// Hours remembered by one converter; beyond that it starts afresh (an hour costs 24 bytes).
const CACHED_HOURS: usize = 262_144;
const SECONDS_PER_HOUR: i64 = 3_600;
/// Largest offset a fixed zone may have, as chrono has it.
const MAX_OFFSET_SECONDS: i64 = 86_399;

/// An IANA zone or a fixed offset.
#[derive(Debug, Clone)]
pub struct Zone {
    name: String,
    rule: Rule,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    Fixed { offset_us: i64 },
    Named(Tz),
}

impl Zone {
    /// Parses an IANA name (case-sensitive, as the database has it), `UTC`, `Z`, or an offset such as `+10:00`.
    /// `UTC+5` is refused: POSIX reads it as five hours west, most people as five hours east.
    pub fn parse(text: &str) -> Result<Zone> {
        let rule = match fixed_offset_seconds(text) {
            Some(seconds) => Rule::Fixed { offset_us: seconds * MICROS_PER_SECOND },
            None => Rule::Named(text.parse::<Tz>().map_err(|_| unknown_zone(text))?),
        };
        Ok(Zone { name: text.to_string(), rule })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// No difference between local time and UTC, ever.
    pub fn is_utc(&self) -> bool {
        match self.rule {
            Rule::Fixed { offset_us } => offset_us == 0,
            Rule::Named(zone) => {
                let name = zone.name().trim_start_matches("Etc/");
                matches!(name, "UTC" | "UCT" | "Universal" | "Zulu" | "GMT" | "GMT0" | "GMT+0" | "GMT-0" | "Greenwich")
            }
        }
    }

    /// Smallest and largest offset from UTC within two days of a local time, in microseconds. Subtracting the
    /// largest from a lower bound of local times gives a lower bound of their instants (and the smallest from an
    /// upper bound an upper one): offsets differ by less than two days, so no time further away gets past it.
    pub fn offsets_near_us(&self, local_us: i64) -> (i64, i64) {
        match self.rule {
            Rule::Fixed { offset_us } => (offset_us, offset_us),
            Rule::Named(zone) => offsets_near_us(zone, local_us),
        }
    }
}

fn unknown_zone(text: &str) -> Error {
    let hint = signed_utc(text).unwrap_or_else(|| match meant(text) {
        Some(name) => format!("did you mean {name}?"),
        None if (2..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            "abbreviations are shared by several zones: write an IANA name such as Europe/Berlin, or an offset such as +10:00".to_string()
        }
        None => "write an IANA name such as Europe/Berlin, or an offset such as +10:00".to_string(),
    });
    Error::invalid(Reason::UnknownTimeZone, format!("--tz {text} is not a time zone")).hint(hint).at(|place| {
        place.option = Some("--tz".into());
        place.value = Some(text.into());
        place.zone = Some(text.into());
    })
}

/// The zone whose name somebody most likely wanted to write.
fn meant(text: &str) -> Option<&'static str> {
    let lower = text.trim().to_lowercase().replace(' ', "_");
    let names = || TZ_VARIANTS.iter().map(|zone| zone.name());
    names()
        .find(|name| name.to_lowercase() == lower)
        .or_else(|| names().find(|name| name.rsplit('/').next().is_some_and(|city| city.to_lowercase() == lower)))
        // Among short words everything is near to everything.
        .or_else(|| (text.len() > 5).then(|| nearest(text, names())).flatten())
}

/// For `UTC+5` and the like: what to write instead.
fn signed_utc(text: &str) -> Option<String> {
    let upper = text.trim().to_ascii_uppercase();
    let rest = ["UTC", "GMT", "UT", "Z"].iter().find_map(|word| upper.strip_prefix(word))?.trim_start();
    let sign = rest.chars().next().filter(|sign| matches!(sign, '+' | '-' | '\u{2212}'))?;
    let sign = if sign == '+' { '+' } else { '-' };
    let hours = rest.trim_start_matches(|character: char| !character.is_ascii_digit());
    let offset = match (hours.len(), hours.bytes().all(|byte| byte.is_ascii_digit())) {
        (1, true) => format!("{sign}0{hours}:00"),
        (2, true) => format!("{sign}{hours}:00"),
        (5, false) if hours.as_bytes()[2] == b':' => format!("{sign}{hours}"),
        _ => format!("{sign}05:00"),
    };
    Some(format!("its sign is read both ways: write {offset} or an IANA name"))
}

/// `UTC`, `Z`, `+10`, `+1000`, `+10:00` in seconds east of UTC.
fn fixed_offset_seconds(text: &str) -> Option<i64> {
    if matches!(text, "UTC" | "Z" | "z") {
        return Some(0);
    }
    // U+2212 is the minus of ISO 8601.
    let (sign, digits) = match text.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, text.strip_prefix(['-', '\u{2212}'])?),
    };
    let (hours, minutes) = match (digits.len(), digits.split_once(':')) {
        (5, Some((hours, minutes))) => (hours, minutes),
        (4, None) => digits.split_at_checked(2)?,
        (2, None) => (digits, "00"),
        _ => return None,
    };
    let number =
        |text: &str| (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<i64>().ok()).flatten();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let seconds = hours * SECONDS_PER_HOUR + minutes * 60;
    (minutes < 60 && seconds <= MAX_OFFSET_SECONDS).then_some(sign * seconds)
}

/// Looked up every half hour: no zone ever had an offset for less.
fn offsets_near_us(zone: Tz, local_us: i64) -> (i64, i64) {
    const AROUND_SECONDS: i64 = 2 * 86_400 + 86_400; // two days of local time, and a day of offset
    const STEP_SECONDS: i64 = 1_800;
    // Beyond the calendar the nearest instant inside it has the offset that holds there.
    let seconds = local_us.div_euclid(MICROS_PER_SECOND).clamp(FIRST_SECOND, LAST_SECOND);
    let (mut smallest, mut largest) = (i64::MAX, i64::MIN);
    for step in -AROUND_SECONDS / STEP_SECONDS..=AROUND_SECONDS / STEP_SECONDS {
        if let Some(instant) = DateTime::from_timestamp(seconds + step * STEP_SECONDS, 0) {
            let offset = i64::from(zone.offset_from_utc_datetime(&instant.naive_utc()).fix().local_minus_utc());
            (smallest, largest) = (smallest.min(offset), largest.max(offset));
        }
    }
    (smallest * MICROS_PER_SECOND, largest * MICROS_PER_SECOND)
}

// Years -9999 to 9999: well inside chrono's calendar.
const FIRST_SECOND: i64 = -377_705_116_800;
const LAST_SECOND: i64 = 253_402_300_799;

/// What a local time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalTime {
    /// One instant, UTC microseconds.
    Utc(i64),
    /// The wall clock showed it twice; both instants in UTC microseconds.
    Ambiguous { earlier: i64, later: i64 },
    /// The wall clock skipped it; `shifted` is the local time moved forward by the gap.
    Nonexistent { shifted: i64 },
}

/// Converts local times of one zone. Remembers hours that have one offset, so that most rows cost a comparison.
pub struct ZoneConverter {
    rule: Rule,
    name: String,
    /// Local span `[low, high)` that has `offset_us`.
    low: i64,
    high: i64,
    offset_us: i64,
    /// Offset of local hours; `None` = a change of the clock touches the hour.
    hours: HashMap<i64, Option<i64>>,
}

impl ZoneConverter {
    pub fn new(zone: &Zone) -> Self {
        let (low, high, offset_us) = match zone.rule {
            Rule::Fixed { offset_us } => (i64::MIN, i64::MAX, offset_us),
            Rule::Named(_) => (0, 0, 0),
        };
        ZoneConverter { rule: zone.rule, name: zone.name.clone(), low, high, offset_us, hours: HashMap::new() }
    }

    #[inline(always)]
    pub fn convert(&mut self, local_us: i64) -> LocalTime {
        if local_us >= self.low && local_us < self.high {
            return LocalTime::Utc(local_us.saturating_sub(self.offset_us));
        }
        self.convert_elsewhere(local_us)
    }

    #[cold]
    fn convert_elsewhere(&mut self, local_us: i64) -> LocalTime {
        let zone = match self.rule {
            Rule::Fixed { offset_us } => return LocalTime::Utc(local_us.saturating_sub(offset_us)),
            Rule::Named(zone) => zone,
        };
        let hour = local_us.div_euclid(MICROS_PER_HOUR);
        let known = self.hours.get(&hour).copied();
        let offset = known.unwrap_or_else(|| {
            if self.hours.len() >= CACHED_HOURS {
                self.hours.clear();
            }
            let found = offset_of_hour(zone, hour);
            self.hours.insert(hour, found);
            found
        });
        match offset {
            Some(offset_us) => {
                self.low = hour.saturating_mul(MICROS_PER_HOUR);
                self.high = self.low.saturating_add(MICROS_PER_HOUR);
                self.offset_us = offset_us;
                LocalTime::Utc(local_us.saturating_sub(offset_us))
            }
            None => resolve(zone, local_us),
        }
    }
}

/// The local clock's reading, kept inside the calendar: an hour beyond it has the offset of its end.
fn wall_clock(local_us: i64) -> NaiveDateTime {
    // A day of room on both sides, so that adding an offset stays inside.
    let first = NaiveDateTime::MIN.and_utc().timestamp_micros().saturating_add(2 * MICROS_PER_DAY);
    let last = NaiveDateTime::MAX.and_utc().timestamp_micros().saturating_sub(2 * MICROS_PER_DAY);
    DateTime::from_timestamp_micros(local_us.clamp(first, last)).unwrap_or_default().naive_utc()
}

/// The offset (µs) of a local hour when both ends and every quarter in between have the same one.
/// No clock change leaves less than its own length of time skipped or doubled, and none is undone within an hour.
fn offset_of_hour(zone: Tz, hour: i64) -> Option<i64> {
    let start = hour.saturating_mul(MICROS_PER_HOUR);
    let mut offset = None;
    for within in [0, 900, 1_800, 2_700, 3_599] {
        let here = match zone.offset_from_local_datetime(&wall_clock(start.saturating_add(within * MICROS_PER_SECOND))) {
            chrono::MappedLocalTime::Single(offset) => i64::from(offset.fix().local_minus_utc()) * MICROS_PER_SECOND,
            _ => return None,
        };
        if *offset.get_or_insert(here) != here {
            return None;
        }
    }
    offset
}

fn offset_us(offset: &chrono_tz::TzOffset) -> i64 {
    i64::from(offset.fix().local_minus_utc()) * MICROS_PER_SECOND
}

fn resolve(zone: Tz, local_us: i64) -> LocalTime {
    let local = wall_clock(local_us);
    let at = |offset: &chrono_tz::TzOffset| local_us.saturating_sub(offset_us(offset));
    match zone.offset_from_local_datetime(&local) {
        chrono::MappedLocalTime::Single(offset) => LocalTime::Utc(at(&offset)),
        chrono::MappedLocalTime::Ambiguous(one, other) => {
            let (one, other) = (at(&one), at(&other));
            LocalTime::Ambiguous { earlier: one.min(other), later: one.max(other) }
        }
        chrono::MappedLocalTime::None => {
            let gap_us = GapInfo::new(&local, &zone)
                .and_then(|gap| Some((gap.begin?.1, gap.end?)))
                .map(|(before, after)| i64::from(after.offset().fix().local_minus_utc() - before.fix().local_minus_utc()))
                .unwrap_or(SECONDS_PER_HOUR);
            LocalTime::Nonexistent { shifted: local_us.saturating_add(gap_us * MICROS_PER_SECOND) }
        }
    }
}

#[cfg(test)]
mod tests;
