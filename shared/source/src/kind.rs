//! What a file is: by its first bytes, else by its name, else by `--format`.
//!
//! Content wins over a wrong name. Must never read a file of another format as text.

use crate::file::SourceFile;
use crate::mapping::Format;
use crate::text::Compression;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use timelake_model::{Error, Reason, Result};

/// Bytes looked at.
const HEAD_BYTES: u64 = 4_096;
const PARQUET_MAGIC: &[u8] = b"PAR1";
const PARQUET_NAMES: [&str; 3] = ["parquet", "parq", "pq"];
/// Picked up in folders.
const CSV_NAMES: [&str; 3] = ["csv", "tsv", "tab"];
/// Text that may be anything.
const TEXT_NAMES: [&str; 5] = ["txt", "log", "dat", "asc", "prn"];
const COMPRESSED_NAMES: [&str; 4] = ["gz", "gzip", "zst", "zstd"];
const OTHER_NAMES: [&str; 18] = [
    "json", "ndjson", "jsonl", "lp", "avro", "orc", "arrow", "feather", "xls", "xlsx", "ods", "bz2", "xz", "7z", "zip", "tar", "xml", "db",
];
/// First bytes of formats that cannot be read, and what they are.
const OTHER_MAGICS: [(&[u8], &str); 9] = [
    (b"PK\x03\x04", "a zip archive (or an Excel workbook)"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel workbook"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ\x00", "compressed with xz"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3\x00", "an SQLite database"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Parquet,
    Text,
}

/// What the name says: its last extension, without one of compression, in lower case.
fn extension(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let mut parts: Vec<&str> = name.split('.').skip(1).collect();
    while parts.last().is_some_and(|last| COMPRESSED_NAMES.contains(last)) {
        parts.pop();
    }
    parts.last().map(|last| last.to_string()).unwrap_or_default()
}

/// The last extension as it stands, in lower case.
fn last_extension(path: &Path) -> String {
    path.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn has_parquet_name(path: &Path) -> bool {
    PARQUET_NAMES.contains(&last_extension(path).as_str())
}

/// A name that data files have.
pub(crate) fn has_data_name(path: &Path) -> bool {
    has_parquet_name(path) || CSV_NAMES.contains(&extension(path).as_str())
}

pub(crate) fn is_meant_by_name(path: &Path, format: Option<Format>) -> bool {
    let extension = extension(path);
    match format {
        Some(Format::Csv) => !PARQUET_NAMES.contains(&extension.as_str()) && !OTHER_NAMES.contains(&extension.as_str()),
        Some(Format::Parquet) => has_parquet_name(path),
        None => has_parquet_name(path) || CSV_NAMES.contains(&extension.as_str()),
    }
}

/// Whether a file found in a folder is meant.
pub(crate) fn is_meant(path: &Path, format: Option<Format>) -> io::Result<bool> {
    Ok(is_meant_by_name(path, format) || (format != Some(Format::Csv) && head(path)?.starts_with(PARQUET_MAGIC)))
}

/// What a typed or found file is; `shown`: how messages name it.
pub(crate) fn judge_file(path: &Path, shown: &str, format: Option<Format>) -> Result<Kind> {
    let head = head(path).map_err(|error| {
        Error::invalid(Reason::PathNotReadable, format!("{shown} cannot be read: {error}"))
            .hint("check its kind and permissions, or name another path with --from")
            .at(|place| place.file = Some(shown.into()))
    })?;
    judge(path, &head, shown, format)
}

fn judge(path: &Path, head: &[u8], shown: &str, format: Option<Format>) -> Result<Kind> {
    let unsupported = |what: String, hint: &str| {
        Err(Error::invalid(Reason::UnsupportedFormat, format!("{shown} {what}")).hint(hint).at(|place| place.file = Some(shown.into())))
    };
    if head.starts_with(PARQUET_MAGIC) || format == Some(Format::Parquet) {
        return Ok(Kind::Parquet);
    }
    // Told as a damaged Parquet file: what else would it be.
    if has_parquet_name(path) && format.is_none() {
        return Ok(Kind::Parquet);
    }
    if let Some((_, what)) = OTHER_MAGICS.iter().find(|(magic, _)| head.starts_with(magic) && is_binary(magic, head)) {
        return unsupported(format!("is {what}, which cannot be read"), "unpack or export it to CSV or Parquet first");
    }
    let extension = extension(path);
    if format == Some(Format::Csv) || CSV_NAMES.contains(&extension.as_str()) || TEXT_NAMES.contains(&extension.as_str()) {
        return Ok(Kind::Text);
    }
    if OTHER_NAMES.contains(&extension.as_str()) {
        return unsupported(
            format!("is a .{extension} file; only Parquet and CSV can be read yet"),
            "convert it to CSV or Parquet first; --format csv if it is delimited text",
        );
    }
    // No name says what it is.
    if Compression::of(head) != Compression::None || !head.contains(&0) || head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Ok(Kind::Text);
    }
    unsupported("is neither Parquet nor text".into(), "name Parquet or CSV files; --format csv if it is delimited text")
}

/// Words of letters start texts too: `ORC` or `BZh` may be the name of a column.
fn is_binary(magic: &[u8], head: &[u8]) -> bool {
    !magic.iter().all(u8::is_ascii_alphanumeric) || std::str::from_utf8(head).is_err() || head.contains(&0)
}

/// What a pinned object is read as.
pub(crate) fn kind_of(file: &SourceFile, format: Option<Format>) -> Result<Kind> {
    let object = file.object();
    judge(Path::new(&object.uri), &file.head(HEAD_BYTES)?, &object.shown, format)
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, bytes: &[u8], format: Option<Format>) -> std::result::Result<Kind, Reason> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        judge_file(&path, name, format).map_err(|error| error.reason)
    }

    #[test]
    fn content_wins_over_the_name() {
        assert_eq!(judged("a.csv", b"PAR1....", None), Ok(Kind::Parquet));
        assert_eq!(judged("a.csv", b"PAR1....", Some(Format::Csv)), Ok(Kind::Parquet));
        assert_eq!(judged("a.parquet", b"Time,Tag\n1,a\n", None), Ok(Kind::Parquet));
        assert_eq!(judged("a.parquet", b"Time,Tag\n1,a\n", Some(Format::Csv)), Ok(Kind::Text));
        assert_eq!(judged("a.parquet", b"", None), Ok(Kind::Parquet));
        assert_eq!(judged("a.parquet", b"\x1f\x8b\x08garbage", None), Ok(Kind::Parquet));
        assert_eq!(judged("a.csv", b"PK\x03\x04....", None), Err(Reason::UnsupportedFormat));
        assert_eq!(judged("a.csv", b"ORC,Time\n1,2\n", None), Ok(Kind::Text));
        assert_eq!(judged("a.csv.bz2", b"BZh91AY\xff", None), Err(Reason::UnsupportedFormat));
        assert_eq!(judged("A.CSV.GZ", b"Time,Tag\n", None), Ok(Kind::Text));
    }

    #[test]
    fn names_and_the_option_settle_the_rest() {
        assert_eq!(judged("a.json", b"{}", None), Err(Reason::UnsupportedFormat));
        assert_eq!(judged("a.json.gz", b"{}", None), Err(Reason::UnsupportedFormat));
        assert_eq!(judged("a.json", b"{}", Some(Format::Csv)), Ok(Kind::Text));
        assert_eq!(judged("export", b"Time,Tag\n", None), Ok(Kind::Text));
        assert_eq!(judged("export", b"a\0b", None), Err(Reason::UnsupportedFormat));
        assert_eq!(judged("export", b"\xff\xfea\0", None), Ok(Kind::Text));
        assert_eq!(judged("export", b"", None), Ok(Kind::Text));
        assert_eq!(judged("export", b"x", Some(Format::Parquet)), Ok(Kind::Parquet));
    }
}
