//! What is wrong with a record or with the bytes of a text file, as errors for the user.

use super::bytes::Compression;
use super::records::{RECORD_LIMIT_BYTES, RecordFault, Stop};
use crate::listing::verify_pin;
use crate::remote::told;
use std::io;
use timelake_model::{Error, Reason, SourceObject};

/// Why a record is no row. `names`: the columns, as far as they are known.
pub(crate) fn record_error(object: &SourceObject, names: &[String], line: u64, fault: &RecordFault) -> Error {
    let shown = &object.shown;
    let column = |field: usize| names.get(field).map(|name| name.trim().to_string());
    let in_column = |field: usize| column(field).map_or(String::new(), |name| format!(", column {name}"));
    let error = match fault {
        RecordFault::TooLong { quote_line } => {
            let quote = quote_line.map_or(String::new(), |line| format!("; a quote was opened at line {line}"));
            Error::invalid(
                Reason::LineTooLong,
                format!("{shown}, line {line}: the record is longer than {RECORD_LIMIT_BYTES} bytes{quote}"),
            )
            .hint("the usual cause is a quote that is never closed: mend the line, or leave it out with --on-bad-row skip")
            .at(|place| place.limit = Some(RECORD_LIMIT_BYTES as u64))
        }
        RecordFault::TextAfterQuote { field, value } => Error::invalid(
            Reason::BadValue,
            format!("{shown}, line {line}{}: text follows the closing quote of {value}", in_column(*field)),
        )
        .hint("a quote inside a quoted field must be written twice; or leave such rows out with --on-bad-row skip")
        .at(|place| {
            place.column = column(*field);
            place.value = Some(value.clone());
        }),
        RecordFault::Nul { stored, looks_like_utf16 } => {
            let hint = match looks_like_utf16 {
                Some(encoding) => format!("this looks like UTF-16 text: add --encoding {encoding}"),
                None => "NUL bytes often mean that a logger lost power: leave such rows out with --on-bad-row skip".to_string(),
            };
            Error::invalid(Reason::NulByte, format!("{shown}, line {line}: a NUL byte at offset {stored}"))
                .hint(hint)
                .at(|place| place.byte_offset = Some(*stored))
        }
        RecordFault::Undecodable { stored, byte, field } => {
            let byte = format!("0x{byte:02X}");
            Error::invalid(
                Reason::InvalidUtf8,
                format!("{shown}, line {line}{}: byte {byte} at offset {stored} is no character", in_column(*field)),
            )
            .hint("is the text in another encoding? then add for example --encoding windows-1252")
            .at(|place| {
                place.column = column(*field);
                place.byte = Some(byte);
                place.byte_offset = Some(*stored);
            })
        }
    };
    error.at(|place| {
        place.file = Some(shown.clone());
        place.line = Some(line);
    })
}

/// A record with another number of fields than the header has.
pub(crate) fn field_count(object: &SourceObject, line: u64, expected: usize, found: usize, last_is_empty: bool) -> Error {
    let hint = if found == expected + 1 && last_is_empty {
        "a delimiter stands at the end of the line but not of the header: take it away, or leave such rows out with --on-bad-row skip"
    } else if found > expected {
        "a text that holds the delimiter, or a number with a decimal comma, must be quoted; else --delimiter or --header-line may be wrong"
    } else {
        "the line may be cut short or be no data: mend it, or leave such rows out with --on-bad-row skip"
    };
    let fields = |count: usize| if count == 1 { "1 field".to_string() } else { format!("{count} fields") };
    Error::invalid(Reason::FieldCount, format!("{}, line {line}: {} instead of {}", object.shown, fields(found), expected)).hint(hint).at(
        |place| {
            place.file = Some(object.shown.clone());
            place.line = Some(line);
            place.expected_fields = Some(expected as u64);
            place.found_fields = Some(found as u64);
        },
    )
}

/// Why the file cannot be read on.
pub(crate) fn stop_error(object: &SourceObject, compression: Compression, names: &[String], stop: Stop) -> Error {
    match stop {
        Stop::Io { line, error } => read_error(object, compression, line, &error),
        Stop::UnclosedQuote { line, field } => {
            if let Err(changed) = verify_pin(object) {
                return changed;
            }
            let column = names.get(field).map(|name| name.trim().to_string());
            Error::invalid(Reason::UnclosedQuote, format!("{}, line {line}: the quote that opens here is never closed", object.shown))
                .hint("close the quote in the source, or double it if it is part of a quoted text")
                .at(|place| {
                    place.file = Some(object.shown.clone());
                    place.line = Some(line);
                    place.column = column;
                })
        }
    }
}

/// An error of the disk, or of the decompression of damaged bytes; `line`: the line that was being read.
pub(crate) fn read_error(object: &SourceObject, compression: Compression, line: u64, error: &io::Error) -> Error {
    if let Err(changed) = verify_pin(object) {
        return changed;
    }
    if let Some(error) = told(error) {
        return error;
    }
    let shown = &object.shown;
    if error.raw_os_error().is_some() || compression == Compression::None {
        return Error::unavailable(Reason::SourceUnavailable, format!("{shown} cannot be read: {error}"))
            .hint("check the disk or mount, then run the command again")
            .at(|place| place.file = Some(shown.clone()));
    }
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "end too early".to_string(),
        _ => format!("are damaged ({error})"),
    };
    Error::corrupt(Reason::CorruptCompression, format!("{shown}, line {line}: the {} data {why}", compression.name()))
        .hint("copy or export the file again, or leave it out of --from")
        .at(|place| {
            place.file = Some(shown.clone());
            place.line = Some(line);
        })
}

pub(crate) fn empty_file(object: &SourceObject) -> Error {
    let what = if object.size == 0 { "is empty (0 bytes)" } else { "is empty: it has no header line" };
    Error::invalid(Reason::EmptyFile, format!("{} {what}", object.shown))
        .hint("write or copy the file again, or leave it out of --from")
        .at(|place| place.file = Some(object.shown.clone()))
}
