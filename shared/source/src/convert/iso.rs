//! Times in ISO order, which need no format: year, month, day, then the clock.
//!
//! Takes a text, gives a wall clock with what the text says about its place. The whole text must be used. Beyond
//! RFC 3339: `/` between the parts of a date, no leading zero of month, day and hour, a blank for the `T` and before
//! the offset, an abbreviation after it, a comma before the fraction, minutes or seconds left out, `20240501T101500Z`, and 24:00 as the end of a
//! day. Not taken, since it has other readings: eight digits alone, 12-hour clocks, `UTC+5`.

use super::clock::{ClockPlace, Scanner, TimeOfDay, TimestampText, days_of_date, trim};
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_SECOND};

/// `None`: not such a text.
#[inline]
pub(super) fn parse_timestamp(text: &str) -> Option<TimestampText<'_>> {
    usual(text.as_bytes()).or_else(|| any(text))
}

/// `2024-05-01 10:15:00`, with `T`, up to six digits of a fraction, and `Z`: how nearly all programs write times. `None`:
/// read it the long way, which takes these for the same times.
#[inline]
fn usual(text: &[u8]) -> Option<TimestampText<'static>> {
    let (clock, rest) = text.split_first_chunk::<19>()?;
    let digit = |byte: u8| byte.wrapping_sub(b'0');
    let signs = [clock[4], clock[7], clock[13], clock[16]] == *b"--::" && matches!(clock[10], b' ' | b'T');
    let all_digits = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18].iter().fold(true, |all, at| all & (digit(clock[*at]) < 10));
    if !signs || !all_digits {
        return None;
    }
    let pair = |at: usize| i64::from(digit(clock[at]) * 10 + digit(clock[at + 1]));
    let (hour, minute, second) = (pair(11), pair(14), pair(17));
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (fraction, place) = match rest {
        [fraction @ .., b'Z'] => (fraction, ClockPlace::Offset(0)),
        fraction => (fraction, ClockPlace::Unsaid),
    };
    let micros = match fraction {
        [] => 0,
        [b'.', digits @ ..] if (1..=6).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) => {
            let value = digits.iter().fold(0, |value, byte| value * 10 + i64::from(digit(*byte)));
            value * 10i64.pow(6 - digits.len() as u32)
        }
        _ => return None,
    };
    let days = days_of_date(pair(0) * 100 + pair(2), pair(5), pair(8))?;
    let local_us = days * MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + micros;
    Some(TimestampText { local_us, place, truncated: false, leap_second: false })
}

fn any(text: &str) -> Option<TimestampText<'_>> {
    let mut scanner = Scanner { rest: trim(text) };
    let compact = scanner.rest.as_bytes().get(4).is_some_and(u8::is_ascii_digit);
    let days = if compact { compact_date(&mut scanner)? } else { date(&mut scanner)? };
    let (mut time, mut place, mut leap_second, mut truncated) = (0, ClockPlace::Unsaid, false, false);
    // A compact date alone is as well a number.
    if compact || !scanner.rest.is_empty() {
        if !scanner.eat(b'T') && !scanner.eat(b't') && scanner.blanks() == 0 {
            return None;
        }
        let of_day = time_of_day(&mut scanner, compact)?;
        (time, leap_second) = of_day.micros_of_day()?;
        truncated = of_day.truncated && !leap_second;
        if !scanner.rest.is_empty() {
            scanner.blanks();
            let by_name = scanner.letters() > 0;
            place = scanner.place()?;
            // `+0200 CEST`: the offset has said it.
            if !by_name && scanner.blanks() > 0 {
                let letters = scanner.letters();
                if (3..=6).contains(&letters) {
                    scanner.skip(letters);
                }
            }
        }
    }
    scanner.rest.is_empty().then_some(TimestampText { local_us: days * MICROS_PER_DAY + time, place, truncated, leap_second })
}

/// Days since 1970.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let mut scanner = Scanner { rest: trim(text) };
    let days = date(&mut scanner)?;
    scanner.rest.is_empty().then_some(i32::try_from(days).ok()?)
}

/// Microseconds since midnight, and whether digits were cut.
pub(super) fn parse_time(text: &str) -> Option<(i64, bool)> {
    let mut scanner = Scanner { rest: trim(text) };
    let of_day = time_of_day(&mut scanner, false)?;
    let (time, leap_second) = of_day.micros_of_day()?;
    let with_minutes = trim(text).contains(':');
    (scanner.rest.is_empty() && with_minutes && time < MICROS_PER_DAY && !leap_second).then_some((time, of_day.truncated))
}

fn date(scanner: &mut Scanner<'_>) -> Option<i64> {
    let year = scanner.number(4, 4)?;
    let separator = scanner.first().filter(|byte| matches!(byte, b'-' | b'/'))?;
    scanner.skip(1);
    let month = scanner.number(1, 2)?;
    if !scanner.eat(separator) {
        return None;
    }
    let day = scanner.number(1, 2)?;
    days_of_date(year, month, day)
}

fn compact_date(scanner: &mut Scanner<'_>) -> Option<i64> {
    days_of_date(scanner.number(4, 4)?, scanner.number(2, 2)?, scanner.number(2, 2)?)
}

/// `HH[:MM[:SS[.digits]]]`; with `compact` also without the colons.
fn time_of_day(scanner: &mut Scanner<'_>, compact: bool) -> Option<TimeOfDay> {
    let mut time = TimeOfDay { hour: scanner.number(1, 2)?, ..TimeOfDay::default() };
    let colons = scanner.first() == Some(b':');
    let another = |scanner: &mut Scanner<'_>| {
        if colons { scanner.eat(b':') } else { compact && scanner.first().is_some_and(|byte| byte.is_ascii_digit()) }
    };
    if another(scanner) {
        time.minute = scanner.number(2, 2)?;
        if another(scanner) {
            time.second = scanner.number(2, 2)?;
            if scanner.eat(b'.') || scanner.eat(b',') {
                (time.micros, time.truncated) = scanner.fraction(usize::MAX)?;
            }
        }
    }
    Some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_times_are_what_the_long_way_reads() {
        let mut seed = 3u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut found = 0;
        for _ in 0..300_000 {
            let mut text = format!(
                "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}",
                random(2_400),
                random(14),
                random(33),
                ["T", " ", "t", ""][random(4)],
                random(26),
                random(62),
                random(62)
            );
            if random(2) == 0 {
                text.push_str(&format!("{}{:0width$}", [".", ","][random(2)], random(1_000), width = 1 + random(8)));
            }
            text.push_str(["", "Z", "z", " Z", "+01:00"][random(5)]);
            if random(8) == 0 {
                text.replace_range(0..1, "x");
            }
            if let Some(time) = usual(text.as_bytes()) {
                assert_eq!(Some(time), any(&text), "{text}");
                found += 1;
            }
        }
        assert!(found > 20_000, "{found}");
        for text in [
            "",
            "2024-05-01",
            "2024-05-01 10:15",
            "2024-02-30 10:15:00",
            "2024-05-01 24:00:00",
            "2024-05-01 10:15:00.",
            "2024-05-01 10:15:00.1234567",
        ] {
            assert_eq!(usual(text.as_bytes()), None, "{text}");
        }
        assert_eq!(usual(b"1969-12-31T23:59:59.5Z").map(|time| time.local_us), Some(-500_000));
    }
}
