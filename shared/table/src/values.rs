//! Single values: from our column types to Iceberg's, from literals to typed values, and to text.

use chrono::{DateTime, NaiveDate};
use iceberg::spec::{Datum, Literal, PrimitiveLiteral, PrimitiveType, Type};
use timelake_model::{ColumnType, Error, Reason, Result};

/// Iceberg's type of a column type.
pub fn primitive_type(column_type: ColumnType) -> PrimitiveType {
    match column_type {
        ColumnType::Boolean => PrimitiveType::Boolean,
        ColumnType::Int => PrimitiveType::Int,
        ColumnType::Long => PrimitiveType::Long,
        ColumnType::Float => PrimitiveType::Float,
        ColumnType::Double => PrimitiveType::Double,
        ColumnType::Decimal { precision, scale } => PrimitiveType::Decimal { precision: precision.into(), scale: scale.into() },
        ColumnType::Date => PrimitiveType::Date,
        ColumnType::Time => PrimitiveType::Time,
        ColumnType::Timestamp => PrimitiveType::Timestamp,
        ColumnType::Timestamptz => PrimitiveType::Timestamptz,
        ColumnType::String => PrimitiveType::String,
        ColumnType::Uuid => PrimitiveType::Uuid,
        ColumnType::Fixed(length) => PrimitiveType::Fixed(length.into()),
        ColumnType::Binary => PrimitiveType::Binary,
    }
}

/// Our type of an Iceberg type; `None` for nested types and for the nanosecond types of format version 3.
pub fn column_type(field_type: &Type) -> Option<ColumnType> {
    Some(match field_type.as_primitive_type()? {
        PrimitiveType::Boolean => ColumnType::Boolean,
        PrimitiveType::Int => ColumnType::Int,
        PrimitiveType::Long => ColumnType::Long,
        PrimitiveType::Float => ColumnType::Float,
        PrimitiveType::Double => ColumnType::Double,
        PrimitiveType::Decimal { precision, scale } => {
            ColumnType::Decimal { precision: u8::try_from(*precision).ok()?, scale: u8::try_from(*scale).ok()? }
        }
        PrimitiveType::Date => ColumnType::Date,
        PrimitiveType::Time => ColumnType::Time,
        PrimitiveType::Timestamp => ColumnType::Timestamp,
        PrimitiveType::Timestamptz => ColumnType::Timestamptz,
        PrimitiveType::String => ColumnType::String,
        PrimitiveType::Uuid => ColumnType::Uuid,
        PrimitiveType::Fixed(length) => ColumnType::Fixed(u32::try_from(*length).ok()?),
        PrimitiveType::Binary => ColumnType::Binary,
        PrimitiveType::TimestampNs | PrimitiveType::TimestamptzNs => return None,
    })
}

/// A literal with its type. The crate's own constructor is private; its byte form is not.
pub fn datum(primitive: &PrimitiveType, literal: &PrimitiveLiteral) -> Result<Datum> {
    let bytes: Vec<u8> = match literal {
        PrimitiveLiteral::Boolean(v) => vec![u8::from(*v)],
        PrimitiveLiteral::Int(v) => v.to_le_bytes().to_vec(),
        PrimitiveLiteral::Long(v) => v.to_le_bytes().to_vec(),
        PrimitiveLiteral::Float(v) => v.0.to_le_bytes().to_vec(),
        PrimitiveLiteral::Double(v) => v.0.to_le_bytes().to_vec(),
        PrimitiveLiteral::String(v) => v.as_bytes().to_vec(),
        PrimitiveLiteral::Binary(v) => v.clone(),
        PrimitiveLiteral::Int128(v) => v.to_be_bytes().to_vec(),
        PrimitiveLiteral::UInt128(v) => v.to_be_bytes().to_vec(),
        PrimitiveLiteral::AboveMax | PrimitiveLiteral::BelowMin => {
            return Err(Error::internal(format!("a value beyond the range of {primitive} has no bytes")));
        }
    };
    Datum::try_from_bytes(&bytes, primitive.clone()).map_err(|e| Error::internal(format!("{literal:?} is not a {primitive}: {e}")))
}

/// The value of a key column from its text, for hashing into buckets.
pub fn literal_from_text(column_type: ColumnType, text: &str) -> Result<Literal> {
    let bad = |why: &str| {
        Error::invalid(Reason::BadValue, format!("{text} is not a {column_type}: {why}")).at(|p| p.value = Some(text.to_string()))
    };
    Ok(match column_type {
        ColumnType::String => Literal::string(text),
        ColumnType::Int => Literal::int(text.parse::<i32>().map_err(|e| bad(&e.to_string()))?),
        ColumnType::Long => Literal::long(text.parse::<i64>().map_err(|e| bad(&e.to_string()))?),
        ColumnType::Date => {
            let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|e| bad(&e.to_string()))?;
            Literal::date((date - NaiveDate::default()).num_days() as i32)
        }
        ColumnType::Timestamptz => {
            Literal::timestamptz(DateTime::parse_from_rfc3339(text).map_err(|e| bad(&e.to_string()))?.timestamp_micros())
        }
        ColumnType::Uuid => Literal::uuid(uuid::Uuid::parse_str(text).map_err(|e| bad(&e.to_string()))?),
        ColumnType::Decimal { scale, .. } => Literal::decimal(unscaled(text, scale).ok_or_else(|| bad("not a number of that scale"))?),
        other => return Err(bad(&format!("a {other} has no text form here"))),
    })
}

/// `12.5` with scale 2 is 1250; `None` when digits would be lost.
fn unscaled(text: &str, scale: u8) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || !whole.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit()) {
        return None;
    }
    let kept = fraction.get(..usize::from(scale).min(fraction.len()))?;
    if fraction[kept.len()..].chars().any(|c| c != '0') {
        return None;
    }
    let number: i128 = format!("{whole}{kept:0<width$}", width = usize::from(scale)).parse().ok()?;
    Some(if negative { -number } else { number })
}

/// Text of a value as Java Iceberg writes it into partition paths.
pub fn human_text(primitive: &PrimitiveType, literal: &PrimitiveLiteral) -> String {
    let instant = |micros: i64, zone: &str| match DateTime::from_timestamp_micros(micros) {
        Some(t) => format!("{}{zone}", t.format("%Y-%m-%dT%H:%M:%S%.f")),
        None => micros.to_string(),
    };
    match (primitive, literal) {
        (PrimitiveType::Date, PrimitiveLiteral::Int(days)) => date_text(*days),
        (PrimitiveType::Time, PrimitiveLiteral::Long(micros)) => {
            let (seconds, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
            match u32::try_from(seconds).ok().and_then(|s| chrono::NaiveTime::from_num_seconds_from_midnight_opt(s, rest as u32 * 1000)) {
                Some(t) => t.format("%H:%M:%S%.f").to_string(),
                None => micros.to_string(),
            }
        }
        (PrimitiveType::Timestamp, PrimitiveLiteral::Long(micros)) => instant(*micros, ""),
        (PrimitiveType::Timestamptz, PrimitiveLiteral::Long(micros)) => instant(*micros, "+00:00"),
        (PrimitiveType::Decimal { scale, .. }, PrimitiveLiteral::Int128(v)) => decimal_text(*v, *scale),
        (_, PrimitiveLiteral::Boolean(v)) => v.to_string(),
        (_, PrimitiveLiteral::Int(v)) => v.to_string(),
        (_, PrimitiveLiteral::Long(v)) => v.to_string(),
        (_, PrimitiveLiteral::Float(v)) => format!("{:?}", v.0),
        (_, PrimitiveLiteral::Double(v)) => format!("{:?}", v.0),
        (_, PrimitiveLiteral::String(v)) => v.clone(),
        (_, PrimitiveLiteral::Binary(v)) => base64(v),
        (_, PrimitiveLiteral::Int128(v)) => v.to_string(),
        (_, PrimitiveLiteral::UInt128(v)) => uuid::Uuid::from_u128(*v).to_string(),
        (_, PrimitiveLiteral::AboveMax) => "above-max".into(),
        (_, PrimitiveLiteral::BelowMin) => "below-min".into(),
    }
}

/// `2024-05-01`; days beyond the calendar of chrono are written as a number.
pub fn date_text(days: i32) -> String {
    match NaiveDate::default().checked_add_signed(chrono::Duration::days(days.into())) {
        Some(date) => date.format("%Y-%m-%d").to_string(),
        None => days.to_string(),
    }
}

fn decimal_text(unscaled: i128, scale: u32) -> String {
    let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
    let sign = if unscaled < 0 { "-" } else { "" };
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let six = (group >> (18 - 6 * i)) & 63;
            out.push(if i <= chunk.len() { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        for text in ["boolean", "int", "long", "float", "double", "decimal(38,10)", "date", "time", "timestamp", "timestamptz", "string"] {
            let t = ColumnType::parse(text).unwrap();
            assert_eq!(column_type(&Type::Primitive(primitive_type(t))), Some(t));
        }
        assert_eq!(column_type(&Type::Primitive(PrimitiveType::TimestampNs)), None);
    }

    #[test]
    fn texts_are_those_of_java_iceberg() {
        let decimal = PrimitiveType::Decimal { precision: 9, scale: 2 };
        for (value, text) in [(-5, "-0.05"), (0, "0.00"), (1250, "12.50"), (-1250, "-12.50")] {
            assert_eq!(human_text(&decimal, &PrimitiveLiteral::Int128(value)), text);
        }
        assert_eq!(human_text(&PrimitiveType::Date, &PrimitiveLiteral::Int(-1)), "1969-12-31");
        assert_eq!(human_text(&PrimitiveType::Timestamptz, &PrimitiveLiteral::Long(-1)), "1969-12-31T23:59:59.999999+00:00");
        assert_eq!(human_text(&PrimitiveType::Time, &PrimitiveLiteral::Long(3_600_000_000)), "01:00:00");
        for (bytes, text) in [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn decimals_are_read_exactly_or_not_at_all() {
        for (text, scale, value) in
            [("12.5", 2, Some(1250)), ("-0.05", 2, Some(-5)), ("7", 0, Some(7)), ("1.230", 2, Some(123)), (".5", 1, Some(5))]
        {
            assert_eq!(unscaled(text, scale), value, "{text}");
        }
        for bad in ["1.234", "", ".", "1e3", "--1", "1.2.3"] {
            assert_eq!(unscaled(bad, 2), None, "{bad}");
        }
    }
}
