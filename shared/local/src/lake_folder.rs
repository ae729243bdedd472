//! The lake as a folder: what `--lake` names, what must be there, and which jobs left a folder.
//!
//! Never: a folder made for a request that cannot be met, or a lake of its own made over one whose catalog is lost.

use crate::catalog::warehouse_address;
use crate::objects::write_error;
use std::io::ErrorKind;
use std::path::Path;
use timelake_model::{Error, Reason, Result};

/// Refuses what is no lake, or cannot become one.
pub(crate) fn check(root: &Path, create: bool) -> Result<()> {
    let refused = |what: &str, hint: &str| {
        Error::invalid(Reason::InvalidOption, format!("the lake {} {what}", root.display())).hint(hint).at(|p| {
            p.option = Some("--lake".into());
            p.value = Some(root.display().to_string());
        })
    };
    if root.is_symlink() && !root.exists() {
        return Err(refused(
            "is a symbolic link that leads nowhere",
            "make the folder it leads to (is a disk not mounted?), or name another",
        ));
    }
    if root.exists() && !root.is_dir() {
        return Err(refused("is a file, not a folder", "name a folder with --lake"));
    }
    let missing = ["catalog.db", "ledger.db", "warehouse"].iter().all(|name| !root.join(name).exists());
    if !create && missing {
        return Err(Error::not_found(Reason::PathNotFound, format!("there is no lake at {}", root.display()))
            .hint("name it with --lake, or make one: timelake table create")
            .at(|p| p.file = Some(root.display().to_string())));
    }
    warehouse_address(&root.join("warehouse")).map(|_| ())
}

/// Makes the folders that are missing. A lake that may not be written is read as it is.
pub(crate) fn make(root: &Path, create: bool) -> Result<()> {
    for folder in [root, &root.join("warehouse"), &root.join("jobs")] {
        match std::fs::create_dir_all(folder) {
            Err(e) if !create && matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {}
            made => made.map_err(|e| write_error(folder, e))?,
        }
    }
    Ok(())
}

/// Jobs that have a folder, by name. What else lies there is none of ours.
pub(crate) fn jobs(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    let folders = entries.filter(|e| e.path().is_dir()).map(|e| e.file_name().to_string_lossy().into_owned());
    let mut jobs: Vec<String> = folders.filter(|name| looks_like_a_job(name)).collect();
    jobs.sort();
    jobs
}

/// A table's name and twelve hexadecimal digits.
fn looks_like_a_job(name: &str) -> bool {
    const DIGITS: usize = 12;
    name.rsplit_once('-').is_some_and(|(_, end)| end.len() == DIGITS && end.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_jobs_count() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["iot-sensor-0123456789ab", "lost+found", ".snapshot", "notes", "iot-sensor-old"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("iot-sensor-ffffffffffff"), "a file").unwrap();
        assert_eq!(jobs(folder.path()), ["iot-sensor-0123456789ab"]);
        assert_eq!(jobs(&folder.path().join("absent")), Vec::<String>::new());
    }
}
