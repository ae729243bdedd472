//! The start of a text file → how the rest is to be read: delimiter, names of the columns, where the data begin.
//!
//! Must never take a line of data for the header because of what other files have: each file is judged by itself.

use super::decode::TextStream;
use super::faults::{record_error, stop_error};
use super::open::OpenText;
use super::records::{Mark, Record, Records, Step};
use crate::mapping::{SourceName, SourceSpec};
use crate::remote::Sources;
use std::io::Cursor;
use std::path::Path;
use timelake_model::{Error, Kind, Reason, Result, SourceObject};

/// Delimiters that are looked for, in this order.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// Physical lines among which a header is looked for to give a hint.
const HINT_LINES: u64 = 50;
const HINT_LINE_BYTES: usize = 64 * 1024;
/// `"sep=;"`
const SEP_LINE_BYTES: usize = 8;
/// Longer lines are not blank.
const BLANK_LINE_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    pub names: Vec<String>,
    /// The header as it stands; `None` without one.
    pub header: Option<Vec<u8>>,
    /// Physical line at which the data begin.
    pub first_line: u64,
}

/// Reads the start of a file; `None` when it holds nothing but blank lines.
pub(crate) fn detect(open: &mut OpenText, object: &SourceObject, spec: &SourceSpec) -> Result<Option<Dialect>> {
    let rules = spec.text();
    let compression = open.compression;
    let records = &mut open.records;
    let stopped = |stop| stop_error(object, compression, &[], stop);
    let by_line = sep_line(records.peek_line(SEP_LINE_BYTES).map_err(stopped)?);
    if by_line.is_some() {
        records.skip_line().map_err(stopped)?;
    }
    let is_tabbed = is_named_for_tabs(&object.uri);
    let candidates: Vec<u8> = match rules.delimiter.or(by_line) {
        Some(delimiter) => vec![delimiter],
        None if is_tabbed => vec![b'\t', b',', b';', b'|'],
        None => DELIMITERS.to_vec(),
    };
    if let Some(header_line) = rules.header_line {
        while records.line() < header_line {
            if !records.skip_line().map_err(stopped)? {
                return Err(no_such_line(object, header_line, records.line() - 1));
            }
        }
    }
    if !rules.columns.is_empty() {
        return without_header(open, object, spec, &candidates);
    }
    let Some((delimiter, names, header)) = header(open, object, spec, &candidates)? else { return Ok(None) };
    let records = &mut open.records;
    for _ in 0..rules.skip_after_header {
        records.skip_line().map_err(stopped)?;
    }
    Ok(Some(Dialect { delimiter, names, header: Some(header), first_line: records.line() }))
}

/// `sep=;`, also quoted, as Excel writes and reads it.
fn sep_line(line: &[u8]) -> Option<u8> {
    let inner = line.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(line);
    match inner {
        [s, e, p, b'=', delimiter] if [*s, *e, *p].eq_ignore_ascii_case(b"sep") && delimiter.is_ascii() && *delimiter != b'"' => {
            Some(*delimiter)
        }
        _ => None,
    }
}

fn is_named_for_tabs(uri: &str) -> bool {
    let name = Path::new(uri).file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    name.split('.').skip(1).any(|part| part == "tsv" || part == "tab")
}

fn no_such_line(object: &SourceObject, wanted: u64, lines: u64) -> Error {
    Error::invalid(Reason::InvalidOption, format!("--header-line {wanted}: {} has only {lines} lines", object.shown))
        .hint("give the physical line of the header, 1 = first")
        .at(|place| {
            place.option = Some("--header-line".into());
            place.file = Some(object.shown.clone());
        })
}

/// The first record that is not white space; the records stand behind it.
fn first_record(open: &mut OpenText, object: &SourceObject) -> Result<Option<Record>> {
    let compression = open.compression;
    loop {
        match open.records.next().map_err(|stop| stop_error(object, compression, &[], stop))? {
            Step::End => return Ok(None),
            Step::Bad { line, fault } => return Err(record_error(object, &[], line, &fault)),
            Step::Record(record) if open.records.is_white(record) => {}
            Step::Record(record) => return Ok(Some(record)),
        }
    }
}

/// Passes over blank lines; gives the place of the first other one.
fn first_mark(open: &mut OpenText, object: &SourceObject) -> Result<Mark> {
    let compression = open.compression;
    let stopped = |stop| stop_error(object, compression, &[], stop);
    while String::from_utf8_lossy(open.records.peek_line(BLANK_LINE_BYTES).map_err(stopped)?).trim().is_empty() {
        if !open.records.skip_line().map_err(stopped)? {
            break;
        }
    }
    Ok(open.records.mark())
}

/// The first record as each delimiter has it. `judge` gives how well it fits; the first of the best is read last.
/// The fault of the first delimiter counts only if no other reads the record.
fn best_delimiter(
    open: &mut OpenText,
    object: &SourceObject,
    candidates: &[u8],
    judge: impl Fn(&[String]) -> (usize, usize),
) -> Result<Option<(u8, Record)>> {
    let mark = first_mark(open, object)?;
    let mut best: Option<((usize, usize), u8)> = None;
    let mut first_error: Option<Error> = None;
    for delimiter in candidates {
        open.records.set_delimiter(*delimiter);
        if !open.records.go_back(mark) {
            break;
        }
        match first_record(open, object) {
            Ok(None) => return Ok(None),
            Ok(Some(_)) => {
                let fits = judge(&names_of(&open.records));
                if best.is_none_or(|(known, _)| fits > known) {
                    best = Some((fits, *delimiter));
                }
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some((_, delimiter)) = best {
        open.records.set_delimiter(delimiter);
        if open.records.go_back(mark) {
            return Ok(first_record(open, object)?.map(|record| (delimiter, record)));
        }
    }
    Err(first_error.unwrap_or_else(|| Error::internal(format!("{}: the first line got lost", object.shown))))
}

type Header = (u8, Vec<String>, Vec<u8>);

fn header(open: &mut OpenText, object: &SourceObject, spec: &SourceSpec, candidates: &[u8]) -> Result<Option<Header>> {
    let needed = spec.needed();
    let judge = |names: &[String]| (needed.iter().filter(|source| has_source(names, source)).count(), names.len());
    let Some((delimiter, record)) = best_delimiter(open, object, candidates, judge)? else { return Ok(None) };
    Ok(Some((delimiter, names_of(&open.records), open.records.bytes(record).to_vec())))
}

fn without_header(open: &mut OpenText, object: &SourceObject, spec: &SourceSpec, candidates: &[u8]) -> Result<Option<Dialect>> {
    let names = &spec.text().columns;
    let first_line = open.records.line();
    let judge = |fields: &[String]| (usize::from(fields.len() == names.len()), 0);
    // A first record that cannot be read is a bad row like any other.
    let delimiter = match best_delimiter(open, object, candidates, judge) {
        Ok(None) => return Ok(None),
        Ok(Some((delimiter, _))) => delimiter,
        Err(error) if error.kind == Kind::Invalid => candidates[0],
        Err(error) => return Err(error),
    };
    Ok(Some(Dialect { delimiter, names: names.clone(), header: None, first_line }))
}

fn names_of(records: &Records) -> Vec<String> {
    let mut scratch = Vec::new();
    records.fields().iter().map(|field| String::from_utf8_lossy(records.text(*field, &mut scratch)).into_owned()).collect()
}

/// Where a name is among the columns: as it is, else without the white space around it, else the only one that
/// differs by case. More than one: it is not clear which.
pub(crate) fn find_name(names: &[String], wanted: &str) -> Vec<usize> {
    let folded = wanted.trim().to_lowercase();
    let all = |same: &dyn Fn(&str) -> bool| -> Vec<usize> {
        names.iter().enumerate().filter(|(_, name)| same(name)).map(|(index, _)| index).collect()
    };
    let exact = all(&|name| name == wanted);
    if !exact.is_empty() {
        return exact;
    }
    if folded.is_empty() {
        return Vec::new();
    }
    let trimmed = all(&|name| name.trim() == wanted.trim());
    if !trimmed.is_empty() { trimmed } else { all(&|name| name.trim().to_lowercase() == folded) }
}

/// The column is there, or all that are to be joined.
fn has_source(names: &[String], source: &SourceName) -> bool {
    let has = |name: &str| !find_name(names, name).is_empty();
    has(&source.whole) || source.parts.iter().all(|part| has(&part.name))
}

/// What to write so that the mapped columns are found: another line or another delimiter.
pub(crate) fn header_hint(object: &SourceObject, sources: &Sources, spec: &SourceSpec, dialect: &Dialect) -> Option<String> {
    let needed = spec.needed();
    if needed.is_empty() || dialect.header.is_none() {
        return None;
    }
    let mut open = OpenText::open(object, sources, spec.text().encoding).ok()?;
    let mut delimiters = vec![dialect.delimiter];
    delimiters.extend(DELIMITERS.iter().filter(|delimiter| **delimiter != dialect.delimiter));
    for _ in 0..HINT_LINES {
        let number = open.records.line();
        let line = open.records.peek_line(HINT_LINE_BYTES).ok()?.to_vec();
        for delimiter in &delimiters {
            let stream = TextStream::open(Box::new(Cursor::new(line.clone())), None, &object.shown).ok()?;
            let mut records = Records::new(stream, *delimiter);
            let Ok(Step::Record(_)) = records.next() else { continue };
            let names = names_of(&records);
            if needed.iter().all(|source| has_source(&names, source)) {
                let shown = if *delimiter == b'\t' { "tab".to_string() } else { format!("'{}'", char::from(*delimiter)) };
                let other = *delimiter != dialect.delimiter && (spec.text().delimiter.is_some() || number == dialect.first_line - 1);
                let by = if other { format!(" --delimiter {shown}") } else { String::new() };
                let at = if number + 1 == dialect.first_line { String::new() } else { format!(" --header-line {number}") };
                let options = format!("{at}{by}");
                return (!options.is_empty()).then(|| format!("line {number} has the columns: add{options}"));
            }
        }
        if !open.records.skip_line().ok()? {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_exactly_then_trimmed_then_by_case() {
        let names: Vec<String> = ["Time", " value ", "VALUE", "a", "a", ""].map(String::from).to_vec();
        assert_eq!(find_name(&names, "Time"), [0]);
        assert_eq!(find_name(&names, "time"), [0]);
        assert_eq!(find_name(&names, "value"), [1]);
        assert_eq!(find_name(&names, "Value"), [1, 2]);
        assert_eq!(find_name(&names, "a"), [3, 4]);
        assert!(find_name(&names, " ").is_empty());
    }

    #[test]
    fn sep_lines() {
        assert_eq!(sep_line(b"sep=;"), Some(b';'));
        assert_eq!(sep_line(b"\"SEP=|\""), Some(b'|'));
        assert_eq!(sep_line(b"sep=\t"), Some(b'\t'));
        assert_eq!(sep_line(b"sep=;;"), None);
        assert_eq!(sep_line(b"separ"), None);
    }
}
