//! Errors of the iceberg crate, as ours. The crate's kinds say what kind of thing failed, not what a caller
//! should do, so the operating system's error number inside its message decides first.

use iceberg::ErrorKind;
use timelake_model::{Error, Reason};

const NO_SUCH_FILE: &str = "(os error 2)";
const NO_SPACE: &str = "(os error 28)";
const QUOTA: &str = "(os error 122)";

/// An error of the crate while doing `what` (such as `reading the manifest /a/b.avro`).
pub fn from_iceberg(error: iceberg::Error, what: &str) -> Error {
    let detail = full_text(&error);
    let message = format!("{what} failed: {detail}");
    if detail.contains(NO_SPACE) || detail.contains(QUOTA) {
        return Error::unavailable(Reason::DiskFull, message).hint("free some space, then run the same command again");
    }
    if detail.contains("os error") {
        return Error::unavailable(Reason::StorageUnavailable, message)
            .hint("check that the warehouse is mounted and can be read and written, then run the same command again");
    }
    match error.kind() {
        ErrorKind::CatalogCommitConflicts | ErrorKind::PreconditionFailed => Error::conflict(Reason::CommitConflict, message),
        ErrorKind::FeatureUnsupported => Error::invalid(Reason::UnsupportedTable, message),
        ErrorKind::TableNotFound => Error::not_found(Reason::TableNotFound, message),
        ErrorKind::DataInvalid => {
            Error::corrupt(Reason::CatalogDamaged, message).hint("the table's metadata or one of its files is damaged")
        }
        _ => Error::internal(message),
    }
}

/// True when the error says that a file does not exist.
pub fn is_missing_file(error: &iceberg::Error) -> bool {
    full_text(error).contains(NO_SUCH_FILE)
}

/// Message and sources in one line, without the crate's backtrace.
fn full_text(error: &iceberg::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = inner.source();
    }
    text
}

/// An Arrow kernel that failed on arrays this crate made itself.
pub fn from_arrow(error: arrow::error::ArrowError, what: &str) -> Error {
    Error::internal(format!("{what} failed: {error}"))
}
