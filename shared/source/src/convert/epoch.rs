//! Numbers as times: counts since 1970 (`--ts-unit`) and serial days of spreadsheets (`--ts-format excel`).
//!
//! Texts are computed in decimal digits, so `1714521600.1` is what it says; floored to a microsecond, also before 1970.

use super::parse::number_parts;
use timelake_model::Reason;
use timelake_model::request::TimeUnit;

const MILLIS_PER_DAY: f64 = 86_400_000.0;
/// Serial of 1970-01-01.
const SERIAL_OF_1970: i64 = 25_569;
/// The day that the serial count has and the calendar has not: 1900-02-29.
const FALSE_LEAP_DAY: i64 = 60;
/// 9999-12-31, the last day a spreadsheet knows.
const LAST_SERIAL: i64 = 2_958_465;

/// A count of units since 1970 in the spelling of programs → microseconds, and whether digits were cut. `Ok(None)`:
/// not a number.
pub(super) fn from_count(text: &str, unit: TimeUnit) -> Result<Option<(i64, bool)>, Reason> {
    let Some((negative, whole, fraction, exponent)) = number_parts(text) else { return Ok(None) };
    let scale = match unit {
        TimeUnit::Seconds => 6,
        TimeUnit::Millis => 3,
        TimeUnit::Micros => 0,
        TimeUnit::Nanos => -3,
    };
    // How many of the digits are whole microseconds.
    let kept = whole.len() as i64 + exponent + scale;
    let (mut us, mut cut) = (0_i64, false);
    for (place, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let digit = i64::from(digit - b'0');
        if (place as i64) < kept {
            us = us.checked_mul(10).and_then(|us| us.checked_add(digit)).ok_or(Reason::TimestampOutOfRange)?;
        } else if digit != 0 {
            cut = true;
        }
    }
    let missing = kept - (whole.len() + fraction.len()) as i64;
    if missing > 0 && us != 0 {
        let power = u32::try_from(missing).ok().and_then(|missing| 10_i64.checked_pow(missing));
        us = power.and_then(|power| us.checked_mul(power)).ok_or(Reason::TimestampOutOfRange)?;
    }
    Ok(Some(match (negative, cut) {
        (false, _) => (us, cut),
        (true, false) => (-us, cut),
        (true, true) => (-us - 1, cut),
    }))
}

/// Serial days → the wall clock in microseconds. Day 1 is 1900-01-01; rounded to the millisecond, since most times of
/// day have no exact fraction. Below 1 there is a time of day without a date.
pub(super) fn from_serial(serial: f64) -> Result<i64, Reason> {
    if !serial.is_finite() {
        return Err(Reason::BadTimestamp);
    }
    if serial.abs() > 1e9 {
        return Err(Reason::TimestampOutOfRange);
    }
    let millis = (serial * MILLIS_PER_DAY).round() as i64;
    let (day, of_day) = (millis.div_euclid(MILLIS_PER_DAY as i64), millis.rem_euclid(MILLIS_PER_DAY as i64));
    if day < 1 || day == FALSE_LEAP_DAY {
        return Err(Reason::BadTimestamp);
    }
    if day > LAST_SERIAL {
        return Err(Reason::TimestampOutOfRange);
    }
    let days = day - SERIAL_OF_1970 + i64::from(day < FALSE_LEAP_DAY);
    Ok((days * MILLIS_PER_DAY as i64 + of_day) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use timelake_model::TimestampUs;

    #[test]
    fn counts_are_exact_and_floored() {
        use TimeUnit::*;
        for (text, unit, right) in [
            ("1714521600", Seconds, Ok(Some((1_714_521_600_000_000, false)))),
            ("1714521600.123", Seconds, Ok(Some((1_714_521_600_123_000, false)))),
            ("1714521600.1234567", Seconds, Ok(Some((1_714_521_600_123_456, true)))),
            ("1.714521600123e12", Millis, Ok(Some((1_714_521_600_123_000, false)))),
            ("1714521600123456789", Nanos, Ok(Some((1_714_521_600_123_456, true)))),
            ("-0.0000001", Seconds, Ok(Some((-1, true)))),
            ("-1.5", Micros, Ok(Some((-2, true)))),
            ("-1", Nanos, Ok(Some((-1, true)))),
            ("1e-400", Seconds, Ok(Some((0, true)))),
            ("0e999999", Seconds, Ok(Some((0, false)))),
            ("9223372036854775807", Micros, Ok(Some((i64::MAX, false)))),
            ("9223372036854775808", Micros, Err(Reason::TimestampOutOfRange)),
            ("1e30", Seconds, Err(Reason::TimestampOutOfRange)),
            ("99999999999999999999999999999999999999999999", Nanos, Err(Reason::TimestampOutOfRange)),
            ("2024-05-01", Seconds, Ok(None)),
            ("0x10", Seconds, Ok(None)),
        ] {
            assert_eq!(from_count(text, unit), right, "{text}");
        }
    }

    #[test]
    fn serial_days_have_the_false_leap_day() {
        for (serial, right) in [
            (1.0, "1900-01-01T00:00:00Z"),
            (59.5, "1900-02-28T12:00:00Z"),
            (61.0, "1900-03-01T00:00:00Z"),
            (25_569.0, "1970-01-01T00:00:00Z"),
            (45_292.010416666664, "2024-01-01T00:15:00Z"),
            (45_473.25, "2024-06-30T06:00:00Z"),
            (45_292.999_999_999_9, "2024-01-02T00:00:00Z"),
            (2_958_465.5, "9999-12-31T12:00:00Z"),
        ] {
            assert_eq!(from_serial(serial).map(|us| TimestampUs(us).short()), Ok(right.to_string()), "{serial}");
        }
        for serial in [0.0, 0.5, -1.0, 60.0, 60.99, 59.999_999_999_999, f64::NAN, f64::INFINITY] {
            assert_eq!(from_serial(serial), Err(Reason::BadTimestamp), "{serial}");
        }
        assert_eq!(from_serial(2_958_466.0), Err(Reason::TimestampOutOfRange));
    }
}
