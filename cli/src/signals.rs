//! Ctrl-C and SIGTERM. The first asks the run to stop at the next batch, what is done stays; the second ends
//! the process at once, which is safe too: every step can be repeated.

use crate::progress::Console;
use std::sync::Arc;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_model::{Error, Result};

pub const INTERRUPTED: u8 = 130;

/// Listens on a thread of its own, so that busy workers cannot delay the answer.
pub fn listen(stop: StopFlag, console: Arc<Console>, stopping: &'static str) -> Result<()> {
    let failed = |error: std::io::Error| Error::internal(format!("cannot listen to signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let ready = std::sync::Arc::new(std::sync::Barrier::new(2));
    let listening = ready.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async move {
                let mut signals = Signals::open();
                listening.wait();
                let Ok(signals) = &mut signals else {
                    console.note("signals cannot be caught here: Ctrl-C ends the run at once");
                    return;
                };
                signals.next().await;
                stop.stop();
                console.stopping(stopping);
                signals.next().await;
                console.clear();
                std::process::exit(i32::from(INTERRUPTED));
            });
        })
        .map_err(failed)?;
    // Until the handlers are in place, a signal would end the process unseen.
    ready.wait();
    Ok(())
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn open() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn open() -> std::io::Result<Signals> {
        Ok(Signals)
    }
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::progress::Style;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// The other process of the test below.
    #[test]
    #[ignore = "waits for signals"]
    fn child() {
        let stop = StopFlag::default();
        listen(stop.clone(), Arc::new(Console::new(Style::Silent, false)), "stopping").unwrap();
        let say = |word: &str| {
            println!("\n{word}");
            std::io::stdout().flush().unwrap();
        };
        say("ready");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !stop.is_set() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        say(if stop.is_set() { "stopping" } else { "late" });
        std::thread::sleep(Duration::from_secs(20));
    }

    #[test]
    fn the_first_signal_asks_and_the_second_one_ends() {
        let test = std::env::current_exe().unwrap();
        let mut child = Command::new(test)
            .args(["--exact", "signals::tests::child", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
        for (word, signal) in [("ready", "-TERM"), ("stopping", "-INT")] {
            assert!(lines.any(|line| line == word), "{word} was not said");
            assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        }
        assert_eq!(child.wait().unwrap().code(), Some(i32::from(INTERRUPTED)));
    }
}
