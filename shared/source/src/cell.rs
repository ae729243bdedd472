//! One value that could not be taken over, and how it is told.

use crate::mapping::SourceSpec;
use timelake_model::error::Place;
use timelake_model::{Error, Reason, SourceObject};

/// Where a row is in its file: physical line of a text file, data row of any other; 1 = first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    Line(u64),
    Row(u64),
}

impl Position {
    /// Says in an error's place where the row is.
    pub fn mark(self, place: &mut Place) {
        match self {
            Position::Line(line) => place.line = Some(line),
            Position::Row(row) => place.row = Some(row),
        }
    }
    pub fn number(self) -> u64 {
        match self {
            Position::Line(number) | Position::Row(number) => number,
        }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Position::Line(line) => write!(f, "line {line}"),
            Position::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// Longest part of a value in a message; the error's place has all of it.
const SHOWN_CHARACTERS: usize = 120;
const LEAVE_OUT: &str = "leave such rows out with --on-bad-row skip";

/// A value for one line of a terminal: control characters escaped, long texts cut, empty ones seen.
fn shown(value: &str) -> String {
    let mut out = String::new();
    for character in value.chars().take(SHOWN_CHARACTERS) {
        if character.is_control() { out.extend(character.escape_default()) } else { out.push(character) }
    }
    match value {
        "" => "''".into(),
        _ if value.chars().nth(SHOWN_CHARACTERS).is_some() => out + "...",
        _ => out,
    }
}

/// A fault of one cell. Rows are counted among the rows that were converted together.
#[derive(Debug, Clone, PartialEq)]
pub struct CellFault {
    pub row: u32,
    pub reason: Reason,
    /// The value as read.
    pub value: Option<String>,
    /// Instants the value may stand for.
    pub candidates: Vec<String>,
    /// The row is left out as the user asked: counted as rejected, never an error.
    pub skipped: bool,
    /// The folder's value, where path and file disagree.
    pub path_value: Option<String>,
    /// How to mend this value, where that depends on the value.
    pub hint: Option<String>,
}

impl CellFault {
    pub(crate) fn new(row: usize, reason: Reason, value: Option<String>) -> Self {
        // Batches have at most 65,536 rows.
        CellFault { row: row as u32, reason, value, candidates: Vec::new(), skipped: false, path_value: None, hint: None }
    }

    /// The error of this fault.
    pub fn into_error(self, object: &SourceObject, spec: &SourceSpec, target: usize, at: Position) -> Error {
        let column = spec.source_name(target);
        let (target_name, target_type) =
            spec.columns().get(target).map(|column| (column.name.clone(), column.column_type.to_string())).unwrap_or_default();
        let value = &self.value.as_deref().map_or_else(|| "NULL".to_string(), shown);
        let zone = spec.zone().map_or("no zone", |zone| zone.name());
        let (what, hint) = match self.reason {
            Reason::NullInKey => {
                (format!("NULL, but column {target_name} is part of the table's key"), format!("mend the source, or {LEAVE_OUT}"))
            }
            Reason::NullInRequired => (format!("NULL, but column {target_name} is required"), format!("mend the source, or {LEAVE_OUT}")),
            Reason::NaiveTimestampWithoutZone => (
                format!("{value} has no offset, and no zone is given"),
                "say whose wall clock it is: --tz Europe/Berlin or --tz UTC".to_string(),
            ),
            Reason::AmbiguousLocalTime => (
                format!("{value} happens twice in {zone}"),
                "--ambiguous infer tells them apart by the order of each series; earlier or later takes one for all".to_string(),
            ),
            Reason::NonexistentLocalTime => (
                format!("{value} does not exist in {zone}, the clock skips it"),
                "is --tz right? else --nonexistent shift or --nonexistent skip".to_string(),
            ),
            Reason::BadTimestamp => (
                format!("{value} is not a {target_type}"),
                format!("mend the source, give the pattern of its times with --ts-format, or {LEAVE_OUT}"),
            ),
            Reason::TimestampFormatUnclear => (
                format!("{value} may be read in more than one way"),
                "day/month order: give --ts-format, such as --ts-format '%d/%m/%Y %H:%M'".to_string(),
            ),
            Reason::BadNumber => (
                format!("{value} is not a {target_type}"),
                format!("--null takes such texts as NULL, --bad-text-to keeps them in a text column; or mend the source, or {LEAVE_OUT}"),
            ),
            Reason::BadBoolean => {
                (format!("{value} is not a {target_type}"), format!("write true or false, t or f, 1 or 0; or {LEAVE_OUT}"))
            }
            Reason::LossyConversion => (
                format!("{value} cannot be kept exactly as {target_type}"),
                format!("use a column type that holds it, or leave the column out with --map {target_name}="),
            ),
            Reason::NumberOutOfRange => (
                format!("{value} is out of the range of {target_type}"),
                format!("use a wider column type, or leave the column out with --map {target_name}="),
            ),
            Reason::TimestampOutOfRange => (
                format!("{value} is beyond the times a {target_type} holds"),
                "mend the source, or leave such rows out with --on-out-of-range skip".to_string(),
            ),
            Reason::PathAndFileDisagree => (
                format!("the folder says {}, the file says {value}", self.path_value.as_deref().unwrap_or("NULL")),
                "move the file to the folder it belongs to, or run without --hive".to_string(),
            ),
            _ => (format!("{value} is not a {target_type}"), format!("mend the source, or {LEAVE_OUT}")),
        };
        let hint = self.hint.unwrap_or(hint);
        Error::invalid(self.reason, format!("{}, {at}, column {column}: {what}", object.shown)).hint(hint).at(|place| {
            place.file = Some(object.shown.clone());
            at.mark(place);
            place.column = Some(column);
            if self.reason == Reason::PathAndFileDisagree {
                place.path_value = self.path_value;
                place.file_value = Some(self.value.clone().unwrap_or_else(|| "NULL".into()));
            }
            place.value = self.value;
            place.candidates = self.candidates;
            place.target = Some(target_type);
            if matches!(self.reason, Reason::AmbiguousLocalTime | Reason::NonexistentLocalTime) {
                place.zone = spec.zone().map(|zone| zone.name().to_string());
            }
        })
    }
}
