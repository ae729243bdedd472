//! Texts → numbers, booleans, UUIDs, strictly: the whole text, ASCII digits, no guesses, no hexadecimal.
//!
//! Booleans are true/false, t/f and 1/0 in any case. Other pairs (yes/no, on/off, ein/aus) are states as often as
//! truth values, so they are errors.

use super::clock::trim;
use super::separators::Separators;
use timelake_model::Reason;

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
pub(super) fn number_parts(text: &str) -> Option<(bool, &str, &str, i64)> {
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

/// A number as programs write it.
pub(super) fn plain_decimal(text: &str, precision: u8, scale: u8) -> DecimalText {
    let Some((negative, whole, fraction, exponent)) = number_parts(text) else { return DecimalText::NotANumber };
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

pub(super) fn parse_decimal(text: &str, precision: u8, scale: u8, separators: &mut Separators) -> DecimalText {
    separators.plain(trim(text)).map_or(DecimalText::NotANumber, |text| plain_decimal(text, precision, scale))
}

pub(super) fn parse_integer(text: &str, separators: &mut Separators) -> Result<i128, Reason> {
    match parse_decimal(text, 38, 0, separators) {
        DecimalText::Exact(value) => Ok(value),
        DecimalText::Lossy => Err(Reason::LossyConversion),
        DecimalText::OutOfRange => Err(Reason::NumberOutOfRange),
        DecimalText::NotANumber => Err(Reason::BadNumber),
    }
}

/// The nearest double; infinity only where the text says so. A number beyond the largest double is no double's text.
pub(super) fn parse_double(text: &str, separators: &mut Separators) -> Result<f64, Reason> {
    let text = trim(text);
    if let Some(special) = special_float(text) {
        return Ok(special);
    }
    let text = separators.plain(text).filter(|text| number_parts(text).is_some()).ok_or(Reason::BadNumber)?;
    text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or(Reason::BadNumber)
}

pub(super) fn parse_float(text: &str, separators: &mut Separators) -> Result<f32, Reason> {
    let text = trim(text);
    if let Some(special) = special_float(text) {
        return Ok(special as f32);
    }
    let text = separators.plain(text).filter(|text| number_parts(text).is_some()).ok_or(Reason::BadNumber)?;
    text.parse().ok().filter(|value: &f32| value.is_finite()).ok_or(Reason::BadNumber)
}

fn special_float(text: &str) -> Option<f64> {
    // Programs write them in every case.
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if text.eq_ignore_ascii_case("nan") {
        Some(f64::NAN)
    } else if is(&["inf", "+inf", "infinity", "+infinity"]) {
        Some(f64::INFINITY)
    } else if is(&["-inf", "-infinity"]) {
        Some(f64::NEG_INFINITY)
    } else {
        None
    }
}

pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    let text = trim(text);
    if ["true", "t", "1"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        Some(true)
    } else if ["false", "f", "0"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        Some(false)
    } else {
        None
    }
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
