//! Files that say how a command is to work: read whole, up to a bound, `-` is stdin.

use crate::output_file;
use std::io::Read;
use std::path::Path;
use timelake_model::{Error, Reason, Result};

/// `what`: of the file, for the error; `hint`: how to get one. A wrong file is not read to its end.
pub fn read(file: &Path, longest_bytes: u64, what: &str, hint: &str) -> Result<String> {
    read_text(file, longest_bytes).map_err(|e| {
        let shown = file.display().to_string();
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let reason = if missing { Reason::PathNotFound } else { Reason::PathNotReadable };
        let message = format!("the {what} {shown} cannot be read: {e}");
        let error = if missing { Error::not_found(reason, message) } else { Error::invalid(reason, message) };
        error.hint(hint).at(|p| p.file = Some(shown))
    })
}

fn read_text(file: &Path, longest_bytes: u64) -> std::io::Result<String> {
    let source: Box<dyn Read> =
        if output_file::is_standard(file) { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file)?) };
    let mut text = String::new();
    source.take(longest_bytes).read_to_string(&mut text)?;
    Ok(text)
}
