//! Text files (CSV) → batches of texts, in source order, never the whole file in memory.
//!
//! [`bytes`] decompresses, [`decode`] turns other encodings into UTF-8, [`records`] finds records, fields and lines,
//! [`dialect`] finds the header and the delimiter, [`bind`] says which field feeds which column, [`reader`] makes
//! batches. What becomes of a text is the business of `convert`, as for any other source.
//! Must never give a row that the file does not have, or lose one without an error or a count.

mod bind;
mod bytes;
mod columns;
mod decode;
mod dialect;
mod faults;
mod open;
pub(crate) mod options;
mod reader;
mod records;

pub(crate) use bind::{TextContent, bind_text};
pub(crate) use bytes::Compression;
pub(crate) use dialect::{detect, header_hint};
pub(crate) use faults::empty_file;
pub(crate) use open::OpenText;
pub(crate) use options::TextRules;
pub(crate) use reader::TextReader;
