//! Times in ISO order, which need no format: year, month, day, then the clock.
//!
//! Takes a text, gives a wall clock with what the text says about its place. The whole text must be used. Beyond
//! RFC 3339: `/` between the parts of a date, no leading zero of month, day and hour, a blank for the `T` and before
//! the offset, an abbreviation after it, a comma before the fraction, minutes or seconds left out, `20240501T101500Z`, and 24:00 as the end of a
//! day. Not taken, since it has other readings: eight digits alone, 12-hour clocks, `UTC+5`.

use super::clock::{ClockPlace, Scanner, TimeOfDay, TimestampText, days_of_date, trim};
use timelake_model::time::MICROS_PER_DAY;

/// `None`: not such a text.
pub(super) fn parse_timestamp(text: &str) -> Option<TimestampText<'_>> {
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
