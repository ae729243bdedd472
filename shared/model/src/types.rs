//! Column types: Iceberg's primitive types and their names as users type them.

use crate::error::{Error, Reason, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// An Iceberg primitive type (format version 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Decimal { precision: u8, scale: u8 },
    Date,
    Time,
    Timestamp,
    Timestamptz,
    String,
    Uuid,
    Fixed(u32),
    Binary,
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Boolean => f.write_str("boolean"),
            ColumnType::Int => f.write_str("int"),
            ColumnType::Long => f.write_str("long"),
            ColumnType::Float => f.write_str("float"),
            ColumnType::Double => f.write_str("double"),
            ColumnType::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            ColumnType::Date => f.write_str("date"),
            ColumnType::Time => f.write_str("time"),
            ColumnType::Timestamp => f.write_str("timestamp"),
            ColumnType::Timestamptz => f.write_str("timestamptz"),
            ColumnType::String => f.write_str("string"),
            ColumnType::Uuid => f.write_str("uuid"),
            ColumnType::Fixed(n) => write!(f, "fixed[{n}]"),
            ColumnType::Binary => f.write_str("binary"),
        }
    }
}

impl ColumnType {
    /// Parses Iceberg's names, and `bigint`, `integer`, `bool`, `timestamp(us)`, `timestamptz(us)`.
    pub fn parse(text: &str) -> Result<ColumnType> {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
        let bad = || {
            Error::invalid(Reason::UnsupportedType, format!("{text} is not a column type of Iceberg"))
                .hint("types: boolean, int, long (bigint), float, double, decimal(P,S), date, time, timestamp, timestamptz, string, uuid, fixed[N], binary")
                .at(|p| p.source_type = Some(text.into()))
        };
        Ok(match compact.as_str() {
            "boolean" | "bool" => ColumnType::Boolean,
            "int" | "integer" => ColumnType::Int,
            "long" | "bigint" => ColumnType::Long,
            "float" => ColumnType::Float,
            "double" => ColumnType::Double,
            "date" => ColumnType::Date,
            "time" | "time(us)" => ColumnType::Time,
            "timestamp" | "timestamp(us)" => ColumnType::Timestamp,
            "timestamptz" | "timestamptz(us)" => ColumnType::Timestamptz,
            "string" => ColumnType::String,
            "uuid" => ColumnType::Uuid,
            "binary" => ColumnType::Binary,
            other => {
                if let Some(inner) = other.strip_prefix("decimal(").and_then(|r| r.strip_suffix(')')) {
                    let (p, s) = inner.split_once(',').ok_or_else(bad)?;
                    let (precision, scale): (u8, u8) = (p.parse().map_err(|_| bad())?, s.parse().map_err(|_| bad())?);
                    if precision == 0 || precision > 38 || scale > precision {
                        return Err(bad());
                    }
                    ColumnType::Decimal { precision, scale }
                } else if let Some(n) = other.strip_prefix("fixed[").and_then(|r| r.strip_suffix(']')) {
                    match n.parse() {
                        Ok(n) if n > 0 => ColumnType::Fixed(n),
                        _ => return Err(bad()),
                    }
                } else {
                    return Err(bad());
                }
            }
        })
    }
    /// Bytes of one value in memory; texts and binaries are estimated elsewhere.
    pub fn fixed_width(&self) -> Option<usize> {
        Some(match self {
            ColumnType::Boolean => 1,
            ColumnType::Int | ColumnType::Float | ColumnType::Date => 4,
            ColumnType::Long | ColumnType::Double | ColumnType::Time | ColumnType::Timestamp | ColumnType::Timestamptz => 8,
            ColumnType::Decimal { .. } | ColumnType::Uuid => 16,
            ColumnType::Fixed(n) => *n as usize,
            ColumnType::String | ColumnType::Binary => return None,
        })
    }
}
impl Serialize for ColumnType {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        ColumnType::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// One top-level column of the target table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Iceberg field id.
    pub id: i32,
    pub name: String,
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    pub required: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn names_round_trip() {
        for t in [
            "boolean",
            "int",
            "long",
            "float",
            "double",
            "decimal(38,10)",
            "date",
            "time",
            "timestamp",
            "timestamptz",
            "string",
            "uuid",
            "fixed[16]",
            "binary",
        ] {
            assert_eq!(ColumnType::parse(t).unwrap().to_string(), t);
        }
        assert_eq!(ColumnType::parse("TimestampTZ (us)").unwrap(), ColumnType::Timestamptz);
        for bad in ["text", "decimal(39,1)", "decimal(4,5)", "decimal(4)", "fixed[0]", "timestamptz_ns", "list<int>", ""] {
            assert!(ColumnType::parse(bad).is_err(), "{bad}");
        }
    }
}
