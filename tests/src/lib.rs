//! Harness of the black-box tests: they run the real `timelake` command in a folder of their own and judge the
//! table with independent readers ([`Reader`]: PyIceberg and DuckDB), never with this project's own scan.
//!
//! Takes the command from `TIMELAKE_BIN` (else the one built beside the test executable) and Python from
//! `TIMELAKE_PYTHON` (else `.venv/bin/python` of the workspace). What is missing is a failure, never a skipped test.

mod emulator;
mod faults;
mod inputs;
mod lab;
mod proxy;
mod reader;
mod rows;

pub use emulator::Emulator;
pub use faults::Faults;
pub use inputs::{Cells, write_parquet};
pub use lab::{CLASSES, Lab, Outcome, Running};
pub use proxy::{Asked, Fault, Proxy};
pub use reader::Reader;
pub use rows::{assert_same_rows, normalised, sorted_texts, split_words};

use std::path::{Path, PathBuf};

/// Root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}
