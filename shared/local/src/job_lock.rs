//! One process runs a job at a time: a lock on a file of the job's folder, freed by the system when the
//! process ends, however it ends.

use crate::objects::write_error;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use timelake_model::{Error, JobId, Reason, Result};

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Held while this process runs the job.
pub struct JobLock {
    _file: File,
}

impl JobLock {
    /// Takes the lock, or says which process has it.
    pub fn take(jobs: &Path, job: &JobId) -> Result<JobLock> {
        let path = path(jobs, job);
        let fault = |e: std::io::Error| write_error(&path, e);
        std::fs::create_dir_all(jobs.join(job.as_str())).map_err(fault)?;
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(fault)?;
        let mut taken = file.try_lock();
        // Whoever asks if the job runs holds it too, for a moment.
        for _ in 0..TRIES {
            if !matches!(taken, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(PAUSE);
            taken = file.try_lock();
        }
        match taken {
            Ok(()) => {
                file.set_len(0).map_err(fault)?;
                file.rewind().map_err(fault)?;
                writeln!(file, "{}", std::process::id()).map_err(fault)?;
                Ok(JobLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(running_elsewhere(job, file)),
            Err(TryLockError::Error(e)) => Err(fault(e)),
        }
    }

    /// Refuses as [`JobLock::take`] does, and takes nothing.
    pub fn check_free(jobs: &Path, job: &JobId) -> Result<()> {
        match File::open(path(jobs, job)) {
            Ok(file) if Self::is_held(jobs, job) => Err(running_elsewhere(job, file)),
            _ => Ok(()),
        }
    }

    /// Does a process hold the lock? Those who ask do not disturb each other, and leave no trace.
    pub fn is_held(jobs: &Path, job: &JobId) -> bool {
        File::open(path(jobs, job)).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

fn running_elsewhere(job: &JobId, mut file: File) -> Error {
    let mut holder = String::new();
    let _ = file.read_to_string(&mut holder); // only for the message
    let process = if holder.trim().is_empty() { "another process".to_string() } else { format!("process {}", holder.trim()) };
    Error::conflict(Reason::JobRunningElsewhere, format!("job {job} is run by {process}"))
        .hint(format!("wait for it, or look: timelake backfill status {job}"))
        .at(|p| p.job = Some(job.to_string()))
}

fn path(jobs: &Path, job: &JobId) -> PathBuf {
    jobs.join(job.as_str()).join("running.lock")
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
        assert!(JobLock::is_held(folder.path(), &job));
        drop(held);
        assert!(!JobLock::is_held(folder.path(), &job));
        JobLock::take(folder.path(), &job).unwrap();
    }

    #[test]
    fn asking_whether_a_job_runs_keeps_nobody_from_running_it() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobId("j".into());
        drop(JobLock::take(folder.path(), &job).unwrap());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        JobLock::is_held(folder.path(), &job);
                    }
                });
            }
            let refused = (0..200).filter(|_| JobLock::take(folder.path(), &job).is_err()).count();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }
}
