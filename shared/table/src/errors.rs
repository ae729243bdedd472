//! Errors of the iceberg crate, as ours. The crate's kinds say what kind of thing failed, not what a caller
//! should do, so the operating system's error number inside its message decides first.

use iceberg::ErrorKind;
use timelake_model::{Error, Kind, Reason};

const NO_SUCH_FILE: &str = "(os error 2)";
/// No space, and quota exceeded.
const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];
/// Permission denied, operation not permitted, and a file system that is mounted read-only.
const DENIED: [&str; 3] = ["(os error 13)", "(os error 1)", "(os error 30)"];
/// Too many open files, in this process or in all.
const TOO_MANY_OPEN: [&str; 2] = ["(os error 24)", "(os error 23)"];

/// Our own error inside one of the crate's: what a storage of ours said. Told as it is.
pub fn carried<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some(ours);
        }
        next = error.source();
    }
    None
}

/// An error of the crate while doing `what` (such as `reading the manifest /a/b.avro`).
pub fn from_iceberg(error: iceberg::Error, what: &str) -> Error {
    if let Some(ours) = carried(&error) {
        return Error { message: format!("{what} failed: {}", ours.message), ..ours.clone() };
    }
    let detail = full_text(&error);
    let message = format!("{what} failed: {detail}");
    if let Some(fault) = system_fault(&detail, &message) {
        return fault;
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

/// [`from_iceberg`] with the file that it is about.
pub fn at_file(error: iceberg::Error, what: &str, file: &str) -> Error {
    from_iceberg(error, what).at(|p| p.file = Some(file.trim_start_matches("file://").to_string()))
}

/// What the operating system's number inside `detail` calls for; `None` when there is none.
pub fn system_fault(detail: &str, message: &str) -> Option<Error> {
    let any = |numbers: &[&str]| numbers.iter().any(|number| detail.contains(number));
    if any(&FULL) {
        return Some(
            Error::unavailable(Reason::DiskFull, message).hint("free some space, then run the same command again: what is done is kept"),
        );
    }
    if any(&DENIED) {
        return Some(Error::unavailable(Reason::AccessDenied, message).hint(
            "give this user the right to read and write there (or mount it for writing), then run the same command again: what is done is kept",
        ));
    }
    if any(&TOO_MANY_OPEN) {
        return Some(
            Error::unavailable(Reason::StorageUnavailable, message)
                .hint("raise the limit on open files (ulimit -n), then run the same command again"),
        );
    }
    detail.contains("os error").then(|| {
        Error::unavailable(Reason::StorageUnavailable, message)
            .hint("check that the warehouse is mounted and can be read and written, then run the same command again")
    })
}

/// True when the error says that a file does not exist.
pub fn is_missing_file(error: &iceberg::Error) -> bool {
    carried(error).map_or_else(|| full_text(error).contains(NO_SUCH_FILE), |ours| ours.kind == Kind::NotFound)
}

/// Message and sources in one line, without the crate's backtrace.
pub fn full_text(error: &dyn std::error::Error) -> String {
    // Every fault of a local file is "unexpected" to the crate; that says nothing.
    let mut text = error.to_string().replace("Unexpected => ", "");
    let mut source = error.source();
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
