//! Runs a script of `tests/python` with the Python of the tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The script's output; `input` is written to it meanwhile.
pub fn run(script: &str, arguments: &[&str], input: Vec<u8>) -> Vec<u8> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("TIMELAKE_PYTHON").map_or_else(|| workspace.join(".venv/bin/python"), PathBuf::from);
    assert!(
        python.is_file(),
        "no Python at {}: run `make venv`, or set TIMELAKE_PYTHON to one that has tests/python/requirements.txt",
        python.display()
    );
    let script = workspace.join("tests/python").join(script);
    let mut child = Command::new(&python)
        .arg(&script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("start {} {}: {error}", python.display(), script.display()));
    let mut stdin = child.stdin.take().unwrap();
    // Beside the reading of its output: neither pipe may fill up while the other is waited for.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let written = writer.join().unwrap();
    assert!(output.status.success(), "{} failed; its stderr says why", script.display());
    written.unwrap();
    output.stdout
}
