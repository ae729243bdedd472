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

/// Most digits of a short number: it and its power of ten are exact as doubles, so their quotient is the nearest double.
const SHORT_DIGITS: usize = 15;
const POWERS: [f64; SHORT_DIGITS + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// `[-] digits [decimal digits]` of few digits, as nearly all numbers are: sign, all digits as one number, digits
/// after the point. `None`: read it the long way, which takes these for the same numbers.
#[inline]
fn short_number(text: &str, decimal: Option<u8>) -> Option<(bool, u64, usize)> {
    let (negative, rest) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if rest.len() > SHORT_DIGITS + 1 {
        return None;
    }
    let (mut value, mut digits, mut point) = (0u64, 0, None);
    for byte in rest {
        if byte.is_ascii_digit() {
            value = value * 10 + u64::from(byte - b'0');
            digits += 1;
        } else if Some(*byte) == decimal && point.is_none() {
            point = Some(digits);
        } else {
            return None;
        }
    }
    (1..=SHORT_DIGITS).contains(&digits).then(|| (negative, value, digits - point.unwrap_or(digits)))
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
    if let Some((negative, value, 0)) = short_number(text, None) {
        return Ok(if negative { -i128::from(value) } else { i128::from(value) });
    }
    match parse_decimal(text, 38, 0, separators) {
        DecimalText::Exact(value) => Ok(value),
        DecimalText::Lossy => Err(Reason::LossyConversion),
        DecimalText::OutOfRange => Err(Reason::NumberOutOfRange),
        DecimalText::NotANumber => Err(Reason::BadNumber),
    }
}

/// The nearest double; infinity only where the text says so. A number beyond the largest double is no double's text.
pub(super) fn parse_double(text: &str, separators: &mut Separators) -> Result<f64, Reason> {
    if let Some((negative, value, fraction)) = short_number(text, separators.decimal_byte()) {
        let value = value as f64 / POWERS[fraction];
        return Ok(if negative { -value } else { value });
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::NumberFormat;

    #[test]
    fn short_numbers_are_what_the_long_way_reads() {
        let formats = [('.', None), (',', None), (',', Some('.')), (',', Some('\u{a0}')), ('.', Some(','))];
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut short = 0;
        for (decimal, thousands) in formats {
            let mut separators = Separators::new(NumberFormat { decimal, thousands });
            for _ in 0..200_000 {
                let text: String = (0..1 + random(17)).map(|_| b"00123456789012345678-,.e"[random(24)] as char).collect();
                let long = separators.plain(&text).filter(|text| number_parts(text).is_some()).and_then(|text| text.parse::<f64>().ok());
                if let Some((negative, value, fraction)) = short_number(&text, separators.decimal_byte()) {
                    let value = value as f64 / POWERS[fraction];
                    let value = if negative { -value } else { value };
                    assert_eq!(Some(value.to_bits()), long.map(f64::to_bits), "{text} with {decimal} {thousands:?}");
                    short += 1;
                }
                let whole = short_number(&text, None).filter(|(.., fraction)| *fraction == 0);
                if let Some((negative, value, _)) = whole {
                    let long = parse_decimal(&text, 38, 0, &mut separators);
                    assert_eq!(long, DecimalText::Exact(if negative { -i128::from(value) } else { value.into() }), "{text}");
                }
            }
        }
        assert!(short > 100_000, "{short}");
        for text in ["", "-", ",", "-,", "1,2,3", "1234567890123456", "+1", "1e3", " 1"] {
            assert_eq!(short_number(text, Some(b',')), None, "{text}");
        }
        assert_eq!(short_number("-,50", Some(b',')), Some((true, 50, 2)));
    }
}
