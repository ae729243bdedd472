//! One error type for all steps. `kind` decides what the caller does, `reason` is the exact word a
//! user or a test looks up, `place` says where in the input it was.

use serde::{Deserialize, Serialize};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request or the source data is wrong; trying again gives the same answer.
    Invalid,
    NotFound,
    /// Something else changed the table or the job; look before going on.
    Conflict,
    /// A service, disk or lock did not answer; run again.
    Unavailable,
    /// Bytes are damaged.
    Corrupt,
    /// A defect of this tool.
    Internal,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Why, in one word. The words are stable: users, tests and documentation refer to them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])* $name),* }
        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];
        }
    };
}
reasons! {
    // the request
    InvalidOption, UnknownTimeZone, NaiveBound, ColumnNotFound, AmbiguousColumn, UnknownTarget, MissingContract, InvalidContract,
    UnsupportedType, UnsupportedTable, NotYetSupported, DuplicateMapping, CostAboveLimit,
    // finding the source
    NoInputFiles, PathNotFound, PathNotReadable, UnsupportedFormat, SourceUnavailable, SourceChanged, IcebergFolder,
    // the source's bytes
    NotACompleteParquetFile, CorruptParquet, PageChecksumMismatch, CorruptCompression, EmptyFile, InvalidUtf8, NulByte,
    // the source's values
    BadNumber, BadTimestamp, BadBoolean, BadValue, NumberOutOfRange, LossyConversion, TimestampOutOfRange, NaiveTimestampWithoutZone,
    AmbiguousLocalTime, NonexistentLocalTime, LeapSecond, MissingTimestamp, NullInKey, NullInRequired, PathAndFileDisagree,
    InSourceConflict, BeyondRetention, OverlapsExisting, TextTooLong, TimestampFormatUnclear, TooManyBadRows,
    // the source's lines
    FieldCount, LineTooLong, UnclosedQuote,
    // reserved for databases and services
    BadJson, SplitTooLarge, PaginationDoesNotAdvance, SourceReportsError,
    // the table and its catalog
    TableNotFound, TableExists, NamespaceInvalid, CatalogUnavailable, CatalogDamaged, CommitConflict, CommitUnknown, TableChanged, DeleteFilesInWindow,
    WindowLocked, BranchMoved, MainSetBack, StorageUnavailable, DiskFull, AccessDenied,
    // the job
    JobNotFound, JobAmbiguous, JobRunningElsewhere, OlderJobUnfinished, WrongState, CountsDisagree, StagedFileWrong, PlanTooLarge, RederivedTooOften,
    LedgerDamaged, LedgerTooNew, LedgerBusy, Interrupted, Cancelled, Internal,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Invalid => "invalid",
            Kind::NotFound => "not_found",
            Kind::Conflict => "conflict",
            Kind::Unavailable => "unavailable",
            Kind::Corrupt => "corrupt",
            Kind::Internal => "internal",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        f.write_str(text.as_str().unwrap_or("internal"))
    }
}

/// Where an error is and what it is about. Only what applies is set (and serialised).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// As typed by the user or as matched by their pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Physical line, 1 = first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Data row in the file, 1 = first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// The source's name of the column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// The value as read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Rows with the same reason and column over all input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distinct: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_row: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_fields: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_fields: Option<u64>,
    /// The byte that cannot be, as `0xB0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_value: Option<String>,
    /// The source's type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// The target's type (or the target column where there is no type).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: Kind,
    pub reason: Reason,
    /// What happened, where, with the value; one sentence, no hint.
    pub message: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    #[serde(flatten)]
    pub place: Box<Place>,
}

impl Error {
    pub fn new(kind: Kind, reason: Reason, message: impl Into<String>) -> Self {
        Error { kind, reason, message: message.into(), hint: None, place: Box::default() }
    }
    pub fn invalid(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, reason, message)
    }
    pub fn not_found(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, reason, message)
    }
    pub fn conflict(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, reason, message)
    }
    pub fn unavailable(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, reason, message)
    }
    pub fn corrupt(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, reason, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, Reason::Internal, message)
    }
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Fill in where it happened: `err.at(|p| p.file = Some(..))`.
    pub fn at(mut self, fill: impl FnOnce(&mut Place)) -> Self {
        fill(&mut self.place);
        self
    }

    /// The process exit code of the command line for this error.
    pub fn exit_code(&self) -> u8 {
        use Reason::*;
        match (self.kind, self.reason) {
            (_, Interrupted) => 130,
            (_, JobRunningElsewhere) => 6,
            (Kind::Internal, _) => 1,
            (Kind::Unavailable, _) => 5,
            (Kind::Conflict, _) => 4,
            (_, reason) if reason.is_source_data() && !self.is_about_an_option() => 3,
            // Files of the lake are damaged: neither the request nor the source is at fault, and running again does not help.
            (Kind::Corrupt, _) => 4,
            _ => 2,
        }
    }

    /// The disk or its permissions must be mended by somebody; trying again by itself only makes them wait.
    pub fn needs_a_hand(&self) -> bool {
        matches!(self.reason, Reason::DiskFull | Reason::AccessDenied)
    }

    /// A value typed in an option, not read from a file: the request is at fault, whatever the reason's word.
    fn is_about_an_option(&self) -> bool {
        self.place.option.is_some() && self.place.file.is_none()
    }
}

impl Reason {
    /// True for faults of the source's bytes or values (exit code 3), false for faults of the request.
    pub fn is_source_data(self) -> bool {
        use Reason::*;
        matches!(
            self,
            NotACompleteParquetFile
                | CorruptParquet
                | PageChecksumMismatch
                | CorruptCompression
                | EmptyFile
                | InvalidUtf8
                | NulByte
                | BadNumber
                | BadTimestamp
                | BadBoolean
                | BadValue
                | NumberOutOfRange
                | LossyConversion
                | TimestampOutOfRange
                | NaiveTimestampWithoutZone
                | AmbiguousLocalTime
                | NonexistentLocalTime
                | LeapSecond
                | MissingTimestamp
                | NullInKey
                | NullInRequired
                | PathAndFileDisagree
                | InSourceConflict
                | BeyondRetention
                | TextTooLong
                | BadJson
                | FieldCount
                | LineTooLong
                | UnclosedQuote
                | TimestampFormatUnclear
                | TooManyBadRows
                | SourceReportsError
                | UnsupportedType
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialises_as_one_flat_object_with_only_what_applies() {
        let e = Error::invalid(Reason::LossyConversion, "no").at(|p| {
            p.file = Some("a.parquet".into());
            p.row = Some(2);
        });
        let v = serde_json::to_value(&e).unwrap();
        assert_eq!(v, serde_json::json!({"kind":"invalid","reason":"lossy_conversion","message":"no","file":"a.parquet","row":2}));
        assert_eq!(serde_json::from_value::<Error>(v).unwrap(), e);
    }

    #[test]
    fn a_bad_value_in_an_option_is_a_bad_request_and_in_a_file_bad_data() {
        let bad = || Error::invalid(Reason::BadNumber, "no");
        assert_eq!(bad().exit_code(), 3);
        assert_eq!(bad().at(|p| p.option = Some("--set".into())).exit_code(), 2);
        let in_a_file = bad().at(|p| (p.option, p.file) = (Some("--hive".into()), Some("a.parquet".into())));
        assert_eq!(in_a_file.exit_code(), 3);
    }

    #[test]
    fn a_damaged_lake_is_no_fault_of_the_request() {
        for (reason, code) in [(Reason::LedgerDamaged, 4), (Reason::CatalogDamaged, 4), (Reason::CorruptParquet, 3)] {
            assert_eq!(Error::corrupt(reason, "no").exit_code(), code, "{reason}");
        }
        assert_eq!(Error::unavailable(Reason::AccessDenied, "no").exit_code(), 5);
    }

    #[test]
    fn every_reason_has_a_distinct_word() {
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.to_string()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(words.contains("page_checksum_mismatch"));
    }
}
