//! Texts → values, strictly: the whole text, no guesses, no thousands separators, no hexadecimal.

use chrono::NaiveDate;
use timelake_model::Reason;
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND};

const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;

/// A number as text, at a fixed scale.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecimalText {
    Exact(i128),
    /// Digits beyond the scale that are not zero.
    Lossy,
    OutOfRange,
    NotANumber,
}

/// `[+-] digits [. digits] [e [+-] digits]` with a digit before the exponent: sign, digits, digits after the point, exponent.
fn number_parts(text: &str) -> Option<(bool, &str, &str, i64)> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (rest, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let exponent = match exponent {
        None => 0,
        Some(text) => {
            let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
            if unsigned.is_empty() || !digits(unsigned) {
                return None;
            }
            // An exponent beyond i32 is as far away as any.
            let size: i64 = unsigned.parse().unwrap_or(i64::from(i32::MAX)).min(i64::from(i32::MAX));
            if text.starts_with('-') { -size } else { size }
        }
    };
    Some((negative, whole, fraction, exponent))
}

pub(super) fn parse_decimal(text: &str, precision: u8, scale: u8) -> DecimalText {
    let Some((negative, whole, fraction, exponent)) = number_parts(text.trim_ascii()) else { return DecimalText::NotANumber };
    // Digits before the point once the exponent and the scale are applied.
    let kept = whole.len() as i64 + exponent + i64::from(scale);
    let mut value: i128 = 0;
    for (place, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let digit = i128::from(digit - b'0');
        if (place as i64) < kept {
            value = match value.checked_mul(10).and_then(|value| value.checked_add(digit)) {
                Some(value) => value,
                None => return DecimalText::OutOfRange,
            };
        } else if digit != 0 {
            return DecimalText::Lossy;
        }
    }
    let missing = kept - (whole.len() + fraction.len()) as i64;
    if missing > 0 && value != 0 {
        let power = u32::try_from(missing).ok().and_then(super::numbers::power_of_ten);
        value = match power.and_then(|power| value.checked_mul(power)) {
            Some(value) => value,
            None => return DecimalText::OutOfRange,
        };
    }
    match super::numbers::power_of_ten(u32::from(precision)) {
        Some(limit) if value >= limit => DecimalText::OutOfRange,
        _ => DecimalText::Exact(if negative { -value } else { value }),
    }
}

pub(super) fn parse_integer(text: &str) -> Result<i128, Reason> {
    match parse_decimal(text, 38, 0) {
        DecimalText::Exact(value) => Ok(value),
        DecimalText::Lossy => Err(Reason::LossyConversion),
        DecimalText::OutOfRange => Err(Reason::NumberOutOfRange),
        DecimalText::NotANumber => Err(Reason::BadNumber),
    }
}

/// The nearest double; infinity only where the text says so.
pub(super) fn parse_double(text: &str) -> Result<f64, Reason> {
    let text = text.trim_ascii();
    if let Some(special) = special_float(text) {
        return Ok(special);
    }
    number_parts(text).ok_or(Reason::BadNumber)?;
    let value: f64 = text.parse().map_err(|_| Reason::BadNumber)?;
    if value.is_finite() { Ok(value) } else { Err(Reason::NumberOutOfRange) }
}

pub(super) fn parse_float(text: &str) -> Result<f32, Reason> {
    let text = text.trim_ascii();
    if let Some(special) = special_float(text) {
        return Ok(special as f32);
    }
    number_parts(text).ok_or(Reason::BadNumber)?;
    let value: f32 = text.parse().map_err(|_| Reason::BadNumber)?;
    if value.is_finite() { Ok(value) } else { Err(Reason::NumberOutOfRange) }
}

fn special_float(text: &str) -> Option<f64> {
    Some(match text {
        "NaN" | "nan" => f64::NAN,
        "inf" | "+inf" | "Infinity" | "+Infinity" => f64::INFINITY,
        "-inf" | "-Infinity" => f64::NEG_INFINITY,
        _ => return None,
    })
}

pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    let text = text.trim_ascii();
    if ["true", "t", "1"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        Some(true)
    } else if ["false", "f", "0"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        Some(false)
    } else {
        None
    }
}

/// A time as text: a wall clock and, where the text says it, the offset that makes it an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimestampText {
    pub local_us: i64,
    pub offset_us: Option<i64>,
    /// Digits below a microsecond were cut (floored).
    pub truncated: bool,
    /// Second 60: `local_us` is the second after it, as POSIX counts.
    pub leap_second: bool,
}

struct Scanner<'a> {
    bytes: &'a [u8],
}

impl Scanner<'_> {
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (head, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        head.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
    }
    fn eat(&mut self, wanted: u8) -> bool {
        match self.bytes.split_first() {
            Some((byte, rest)) if *byte == wanted => {
                self.bytes = rest;
                true
            }
            _ => false,
        }
    }
    fn literal(&mut self, wanted: u8) -> Option<()> {
        self.eat(wanted).then_some(())
    }
    fn date(&mut self) -> Option<i64> {
        let year = self.digits(4)?;
        self.literal(b'-')?;
        let month = self.digits(2)?;
        self.literal(b'-')?;
        let day = self.digits(2)?;
        let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, u32::try_from(month).ok()?, u32::try_from(day).ok()?)?;
        Some(date.signed_duration_since(NaiveDate::default()).num_days())
    }
    /// `HH:MM[:SS[.digits]]` in µs since midnight, whether digits were cut, whether the second is 60.
    fn time_of_day(&mut self) -> Option<(i64, bool, bool)> {
        let hours = self.digits(2)?;
        self.literal(b':')?;
        let minutes = self.digits(2)?;
        let (mut seconds, mut micros, mut truncated) = (0, 0, false);
        if self.eat(b':') {
            seconds = self.digits(2)?;
            if self.eat(b'.') || self.eat(b',') {
                let mut places = 0;
                while let Some(byte) = self.bytes.first().filter(|byte| byte.is_ascii_digit()) {
                    if places < 6 {
                        micros = micros * 10 + i64::from(byte - b'0');
                    } else if *byte != b'0' {
                        truncated = true;
                    }
                    places += 1;
                    self.bytes = &self.bytes[1..];
                }
                if places == 0 {
                    return None;
                }
                micros *= 10_i64.pow(6_u32.saturating_sub(places));
            }
        }
        let end_of_day = hours == 24 && minutes == 0 && seconds == 0 && micros == 0 && !truncated;
        if (hours > 23 && !end_of_day) || minutes > 59 || seconds > 60 {
            return None;
        }
        let leap_second = seconds == 60;
        // A leap second is taken as the second after it; its fraction stays.
        Some((hours * MICROS_PER_HOUR + minutes * MICROS_PER_MINUTE + seconds * MICROS_PER_SECOND + micros, truncated, leap_second))
    }
    /// `Z`, `+02:00`, `+0200`, `+02`; `None` in the inner option: no offset.
    fn offset(&mut self) -> Option<Option<i64>> {
        let sign = match self.bytes.first() {
            None => return Some(None),
            Some(b'Z' | b'z') => {
                self.bytes = &self.bytes[1..];
                return Some(Some(0));
            }
            Some(b'+') => 1,
            Some(b'-') => -1,
            Some(_) => return None,
        };
        self.bytes = &self.bytes[1..];
        let hours = self.digits(2)?;
        let minutes = if self.bytes.is_empty() {
            0
        } else {
            self.eat(b':');
            self.digits(2)?
        };
        (hours < 24 && minutes < 60).then_some(Some(sign * (hours * MICROS_PER_HOUR + minutes * MICROS_PER_MINUTE)))
    }
    fn end(&self) -> Option<()> {
        self.bytes.is_empty().then_some(())
    }
}

/// ISO 8601 / RFC 3339; a date alone is its midnight.
pub(super) fn parse_timestamp(text: &str) -> Option<TimestampText> {
    let mut scanner = Scanner { bytes: text.trim_ascii().as_bytes() };
    let days = scanner.date()?;
    let (mut time, mut truncated, mut leap_second, mut offset_us) = (0, false, false, None);
    if scanner.eat(b'T') || scanner.eat(b't') || scanner.eat(b' ') {
        (time, truncated, leap_second) = scanner.time_of_day()?;
        scanner.eat(b' ');
        offset_us = scanner.offset()?;
    }
    scanner.end()?;
    let local_us = days * MICROS_PER_DAY + time;
    // Leap seconds end a UTC day; seen from here the offset may move them to any full quarter of an hour.
    let may_be_leap = |us: i64| us.div_euclid(MICROS_PER_SECOND).rem_euclid(900) == 0;
    if leap_second
        && (!may_be_leap(local_us)
            || offset_us.is_some_and(|offset| (local_us - offset).div_euclid(MICROS_PER_SECOND).rem_euclid(86_400) != 0))
    {
        return None;
    }
    Some(TimestampText { local_us, offset_us, truncated, leap_second })
}

/// Days since 1970.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let mut scanner = Scanner { bytes: text.trim_ascii().as_bytes() };
    let days = scanner.date()?;
    scanner.end()?;
    i32::try_from(days).ok()
}

/// Microseconds since midnight, and whether digits were cut.
pub(super) fn parse_time(text: &str) -> Option<(i64, bool)> {
    let mut scanner = Scanner { bytes: text.trim_ascii().as_bytes() };
    let (time, truncated, leap_second) = scanner.time_of_day()?;
    scanner.end()?;
    (time < MICROS_PER_DAY && !leap_second).then_some((time, truncated))
}

/// The 36-character form.
pub(super) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.trim_ascii().as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let nibble = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut out, mut count) = ([0_u8; 16], 0);
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 8 | 13 | 18 | 23) {
            if *byte != b'-' {
                return None;
            }
            continue;
        }
        out[count / 2] = out[count / 2] << 4 | nibble(*byte)?;
        count += 1;
    }
    Some(out)
}
