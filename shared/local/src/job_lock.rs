//! One process runs a job at a time: a lock on a file of the job's folder, freed by the system when the
//! process ends, however it ends.

use crate::objects::write_error;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use timelake_model::{Error, JobId, Reason, Result};

/// Held while this process runs the job.
pub struct JobLock {
    _file: File,
}

impl JobLock {
    /// Takes the lock, or says which process has it.
    pub fn take(jobs: &Path, job: &JobId) -> Result<JobLock> {
        let folder = jobs.join(job.as_str());
        let path = folder.join("running.lock");
        let fault = |e: std::io::Error| write_error(&path, e);
        std::fs::create_dir_all(&folder).map_err(fault)?;
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0).map_err(fault)?;
                file.rewind().map_err(fault)?;
                writeln!(file, "{}", std::process::id()).map_err(fault)?;
                Ok(JobLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder); // only for the message
                let process = if holder.trim().is_empty() { "another process".to_string() } else { format!("process {}", holder.trim()) };
                Err(Error::conflict(Reason::JobRunningElsewhere, format!("job {job} is run by {process}"))
                    .hint(format!("wait for it, or look: timelake backfill status {job}"))
                    .at(|p| p.job = Some(job.to_string())))
            }
            Err(TryLockError::Error(e)) => Err(fault(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_who_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobId("j".into());
        let held = JobLock::take(folder.path(), &job).unwrap();
        let refused = JobLock::take(folder.path(), &job).err().unwrap();
        assert_eq!((refused.reason, refused.exit_code()), (Reason::JobRunningElsewhere, 6));
        assert!(refused.message.contains(&std::process::id().to_string()), "{refused}");
        drop(held);
        JobLock::take(folder.path(), &job).unwrap();
    }
}
