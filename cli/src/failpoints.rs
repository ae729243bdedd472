//! Test builds only: kills, delays or records the process at step boundaries, as `TIMELAKE_FAILPOINTS` says.
//!
//! Comma separated: `kill:BOUNDARY:N` (SIGKILL the N-th time it is reached), `delay:BOUNDARY:MS` (`all` for each of
//! them), `wait:BOUNDARY:FILE` (until the file is there, two minutes at most), `trace:FILE` (a line per boundary reached: its name, and when, in microseconds since 1970).

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use timelake_engine::boundary::{self, Boundary};
use timelake_engine::ports::Clock;
use timelake_local::SystemClock;

const LONGEST_WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

enum Action {
    Kill { name: String, nth: u64 },
    Delay { name: String, by: Duration },
    Wait { name: String, file: String },
    Trace { file: String },
}

static ACTIONS: OnceLock<Vec<Action>> = OnceLock::new();
static REACHED: Mutex<Option<HashMap<Boundary, u64>>> = Mutex::new(None);

pub fn install() {
    let Ok(text) = std::env::var("TIMELAKE_FAILPOINTS") else { return };
    let actions = text.split(',').map(action).collect::<Option<Vec<_>>>();
    let Some(actions) = actions else {
        // A test that asks for what there is not must not pass.
        eprintln!("TIMELAKE_FAILPOINTS={text} is not understood");
        std::process::exit(1);
    };
    let _ = ACTIONS.set(actions);
    boundary::install(hook);
}

fn action(text: &str) -> Option<Action> {
    let known = |name: &str| name == "all" || Boundary::ALL.iter().any(|b| b.name() == name);
    let (verb, rest) = text.split_once(':')?;
    if verb == "trace" {
        return Some(Action::Trace { file: rest.into() });
    }
    let (name, number) = rest.split_once(':')?;
    if verb == "wait" {
        return known(name).then(|| Action::Wait { name: name.into(), file: number.into() });
    }
    let number: u64 = number.parse().ok()?;
    match verb {
        "kill" if known(name) => Some(Action::Kill { name: name.into(), nth: number }),
        "delay" if known(name) => Some(Action::Delay { name: name.into(), by: Duration::from_millis(number) }),
        _ => None,
    }
}

fn hook(boundary: Boundary) {
    let times = {
        let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
        let times = reached.get_or_insert_default().entry(boundary).or_default();
        *times += 1;
        *times
    };
    let here = |name: &str| name == "all" || name == boundary.name();
    for action in ACTIONS.get().into_iter().flatten() {
        match action {
            Action::Trace { file } => {
                if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(file) {
                    // In one piece: tests read the file while it grows.
                    let _ = file.write_all(format!("{} {}\n", boundary.name(), SystemClock.now().0).as_bytes());
                }
            }
            Action::Delay { name, by } if here(name) => std::thread::sleep(*by),
            Action::Wait { name, file } if here(name) => {
                let start = Instant::now();
                while !Path::new(file).exists() && start.elapsed() < LONGEST_WAIT {
                    std::thread::sleep(POLL);
                }
            }
            Action::Kill { name, nth } if here(name) && *nth == times => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            _ => {}
        }
    }
}
