//! A machine with faults: a disk that is full or may not be written, a clock that was set back. `shim/faults.c`, loaded
//! into the command, does it; tests run as root, whom no permission stops.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const SHIM: &str = include_str!("../shim/faults.c");

/// What is wrong with the machine. Files are told by parts of their paths, joined by `:`.
#[derive(Default)]
pub struct Faults(Vec<(&'static str, String)>);

impl Faults {
    /// After so many bytes no more can be added to these files.
    pub fn disk_full(files: &str, room: u64) -> Faults {
        Faults::default().with("SHIM_PATH", files).with("SHIM_ROOM", room)
    }
    /// Writes down how many bytes are added to these files, and lets all of them be.
    pub fn measured(files: &str, report: &Path) -> Faults {
        Faults::disk_full(files, u64::MAX >> 2).with("SHIM_REPORT", report.display())
    }
    /// These files and folders may not be made, written, replaced or removed: the system answers with this number.
    pub fn refused(files: &str, errno: i32) -> Faults {
        Faults::only("open,write,truncate,rename,link,mkdir,unlink", files, errno)
    }
    /// Only these calls are refused.
    pub fn only(calls: &str, files: &str, errno: i32) -> Faults {
        Faults::default().with("SHIM_PATH", files).with("SHIM_CALLS", calls).with("SHIM_ERRNO", errno)
    }
    /// The clock is off by so many seconds.
    pub fn clock(seconds: i64) -> Faults {
        Faults::default().with("SHIM_CLOCK", seconds)
    }
    /// The clock jumps when the first of these files is made or replaced.
    pub fn clock_from(file: &str, seconds: i64) -> Faults {
        Faults::clock(seconds).with("SHIM_CLOCK_AT", file)
    }
    /// Waiting for a database that is locked takes so many times less.
    pub fn hasty(times: u32) -> Faults {
        Faults::default().with("SHIM_SLEEP", times)
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Faults {
        self.0.push((name, value.to_string()));
        self
    }
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", shim()).envs(self.0.iter().map(|(name, value)| (name, value)));
    }
}

/// The compiled shim, beside this test executable. Its name says what it was compiled from.
fn shim() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    SHIM.hash(&mut hasher);
    let folder =
        std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf())).expect("the folder of this test executable");
    let library = folder.join(format!("faults-{:016x}.so", hasher.finish()));
    if !library.exists() {
        // Several test processes may be here at once: each compiles its own, and the last one to rename wins.
        let own = folder.join(format!("faults-{}.so", std::process::id()));
        let source = crate::workspace().join("tests/shim/faults.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&own)
            .arg(source)
            .arg("-ldl")
            .output();
        let compiled = compiled.unwrap_or_else(|e| panic!("these tests need a C compiler, called cc: {e}"));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::fs::rename(&own, &library).expect("the compiled shim");
    }
    library
}
