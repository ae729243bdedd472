//! Files that a command writes for its user: whole or not at all. `-` is stdout.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use timelake_model::{Error, Reason, Result};

/// Is stdin or stdout meant, not a file?
pub fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Why something could not be written.
pub fn reason(error: &std::io::Error) -> Reason {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Reason::DiskFull,
        ErrorKind::PermissionDenied => Reason::AccessDenied,
        _ => Reason::StorageUnavailable,
    }
}

/// Replaces the file in one step: a reader sees the old one or the new one, also after a crash.
pub fn write(file: &Path, text: &str) -> Result<()> {
    let written = match std::fs::metadata(file) {
        // A pipe or device is written into, it is not replaced by a file.
        Ok(found) if !found.is_file() => File::options().write(true).open(file).and_then(|mut out| out.write_all(text.as_bytes())),
        _ => replace(file, text),
    };
    written.map_err(|e| {
        Error::unavailable(reason(&e), format!("cannot write {}: {e}", file.display()))
            .hint("name a file in a folder that exists and may be written")
            .at(|p| p.file = Some(file.display().to_string()))
    })
}

fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let name = file.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    let new = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let done = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut out| out.write_all(text.as_bytes()).and_then(|()| out.sync_all()))
        .and_then(|()| std::fs::rename(&new, file));
    if done.is_err() {
        // Ours, and of no use to anybody; the error is what is told.
        let _ = std::fs::remove_file(&new);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = std::env::temp_dir().join(format!("timelake-output-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("report.html");
        for text in ["first", "second, longer"] {
            write(&file, text).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let error = write(&folder.join("no/such/report.html"), "x").unwrap_err();
        assert_eq!(error.exit_code(), 5);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_device_is_no_file_to_replace() {
        write(Path::new("/dev/null"), "x").unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
    }
}
