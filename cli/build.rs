//! Names the commit in `--version`: from a crate archive's own note, else from git, else not at all.

use std::path::Path;
use std::process::Command;

/// What cargo puts into the archives it makes.
const ARCHIVE_NOTE: &str = ".cargo_vcs_info.json";
const COMMIT_CHARS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let commit = of_archive().or_else(of_checkout).map(|commit| commit.chars().take(COMMIT_CHARS).collect::<String>());
    let shown = commit.map_or(version.to_string(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=TIMELAKE_VERSION={shown}");
}

/// The first run of hexadecimal digits that is long enough: the note holds nothing else like it.
fn of_archive() -> Option<String> {
    let note = std::fs::read_to_string(ARCHIVE_NOTE).ok()?;
    note.split(|c: char| !c.is_ascii_hexdigit()).find(|word| word.len() >= 40).map(String::from)
}

fn of_checkout() -> Option<String> {
    // Commits and checkouts write both. A path that is not there would make every build run this again.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // Sources that only lie inside some other repository are not of its commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["rev-parse", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
    Some(text)
}
