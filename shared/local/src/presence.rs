//! Which processes are at work in a lake: each holds a lock on a file of its own, which the system frees when the
//! process ends, however it ends. So claims of dead processes are given back at once, long before their leases end.
//!
//! Must never happen: a process taken for dead that is alive. (If it did, a unit would be written twice and one of the
//! attempts would win: time lost, nothing else.)

use crate::SqliteLedger;
use crate::objects::write_error;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use timelake_engine::ports::Clock;
use timelake_model::Result;

/// Idle workers look for dead processes at most this often.
const LOOK_EVERY_US: i64 = 500_000;
/// A file that is locked and then found removed by a sweeper is made again.
const TRIES: u32 = 10;
const ENDING: &str = ".lock";

/// This process, as others see it.
pub struct Presence {
    name: String,
    path: PathBuf,
    folder: PathBuf,
    ledger: Arc<SqliteLedger>,
    clock: Arc<dyn Clock>,
    last_look_us: AtomicI64,
    _file: File,
}

impl Presence {
    /// Announces this process in the lake's folder of processes.
    /// Where the units of running jobs wait.
    pub fn queue(&self) -> &SqliteLedger {
        &self.ledger
    }

    pub fn announce(folder: &Path, ledger: Arc<SqliteLedger>, clock: Arc<dyn Clock>) -> Result<Presence> {
        std::fs::create_dir_all(folder).map_err(|e| write_error(folder, e))?;
        for _ in 0..TRIES {
            let name = format!("{}-{:08x}", std::process::id(), clock.random() as u32);
            let path = folder.join(format!("{name}{ENDING}"));
            let file = OpenOptions::new().create_new(true).write(true).open(&path).map_err(|e| write_error(&path, e))?;
            if file.try_lock().is_ok() && is_same(&file, &path) {
                let folder = folder.to_path_buf();
                return Ok(Presence { name, path, folder, ledger, clock, last_look_us: AtomicI64::new(i64::MIN), _file: file });
            }
        }
        Err(write_error(folder, std::io::Error::other("the files of processes are removed all the time")))
    }

    /// Name under which a thread of this process claims messages.
    pub fn owner(&self, thread: usize) -> String {
        format!("{}/{thread}", self.name)
    }

    /// Gives back what dead processes hold, and removes their files.
    pub async fn sweep(&self) -> Result<()> {
        for owner in self.ledger.holders().await? {
            let process = owner.split('/').next().unwrap_or_default();
            if process != self.name && !is_alive(&self.folder.join(format!("{process}{ENDING}"))) {
                tracing::info!(owner, "a process is gone; its units are given back");
                self.ledger.give_back(&owner).await?;
            }
        }
        // Whoever cannot read the folder leaves the files to others.
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path != self.path {
                remove_if_dead(&path);
            }
        }
        Ok(())
    }

    /// The same, when the last look is some time ago: for loops that wait.
    pub async fn look(&self) -> Result<()> {
        let now = self.clock.now().0;
        let last = self.last_look_us.load(Ordering::Relaxed);
        if last != i64::MIN && (last..last.saturating_add(LOOK_EVERY_US)).contains(&now) {
            return Ok(());
        }
        self.last_look_us.store(now, Ordering::Relaxed);
        self.sweep().await
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // a sweeper does it otherwise
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn is_alive(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        // Files are removed by their process or after its death. With any other fault the lease decides.
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Removed while locked: a process that has made its file and not locked it yet finds out and makes another.
fn remove_if_dead(path: &Path) {
    if let Ok(file) = OpenOptions::new().write(true).open(path)
        && file.try_lock().is_ok()
        && is_same(&file, path)
    {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;
    use std::time::Duration;
    use timelake_engine::ports::{UnitQueue, UnitSender};
    use timelake_model::ledger::{Phase, RoundKey, UnitMessage};
    use timelake_model::{GroupName, JobId};

    #[tokio::test]
    async fn what_a_dead_process_held_is_free_at_once_and_a_live_one_keeps_its_own() {
        let lake = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let ledger = Arc::new(SqliteLedger::open(&lake.path().join("ledger.db"), clock.clone()).unwrap());
        let folder = lake.path().join("processes");
        let announce = || Presence::announce(&folder, ledger.clone(), clock.clone()).unwrap();
        let job = JobId("j".into());
        let key = RoundKey { job: job.clone(), generation: 1, phase: Phase::Write, group: GroupName::all(), round: 0 };
        ledger.send(&[0, 1].map(|unit| UnitMessage { key: key.clone(), unit })).await.unwrap();
        let lease = Duration::from_secs(600);
        let (alive, dead, watcher) = (announce(), announce(), announce());
        let kept = ledger.claim(Some(&job), &alive.owner(0), lease).await.unwrap().unwrap();
        let lost = ledger.claim(Some(&job), &dead.owner(3), lease).await.unwrap().unwrap();
        watcher.sweep().await.unwrap();
        assert_eq!(ledger.claim(Some(&job), "x", lease).await.unwrap(), None, "both are alive");
        drop(dead);
        std::fs::write(folder.join("4711-0.lock"), "").unwrap(); // left by a killed process
        watcher.sweep().await.unwrap();
        let again = ledger.claim(Some(&job), &watcher.owner(0), lease).await.unwrap().unwrap();
        assert_eq!((again.message.unit, again.tries), (lost.message.unit, 2));
        assert!(!ledger.extend(&lost, lease).await.unwrap() && ledger.extend(&kept, lease).await.unwrap());
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, 2, "only those of live processes are left");
    }
}
