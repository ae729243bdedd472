//! A plan in a file: what `report JOB --plan FILE` writes and `--plan FILE` reads. The JSON is the model's `WritePlan`.

use crate::input_file;
use std::path::Path;
use timelake_model::{Error, Reason, Result, WritePlan};

const OPTION: &str = "--plan";
/// A plan of as many units as there may be is smaller.
const LONGEST_FILE_BYTES: u64 = 256 << 20;
const HINT: &str = "timelake backfill report JOB --plan FILE writes one";

pub fn read(file: &Path) -> Result<WritePlan> {
    let text = input_file::read(file, LONGEST_FILE_BYTES, "plan", HINT)?;
    serde_json::from_str(&text).map_err(|e| {
        Error::invalid(Reason::InvalidOption, format!("{} is not a plan: {e}", file.display())).hint(HINT).at(|p| {
            p.file = Some(file.display().to_string());
            p.line = Some(e.line() as u64);
            p.option = Some(OPTION.into());
        })
    })
}

/// The plan as `--plan` reads it.
pub fn text(plan: &WritePlan) -> Result<String> {
    let failed = |e: serde_json::Error| Error::internal(format!("the plan cannot be written as JSON: {e}"));
    Ok(serde_json::to_string_pretty(plan).map_err(failed)? + "\n")
}
