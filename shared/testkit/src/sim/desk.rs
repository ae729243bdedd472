//! What an actor sees of the world: calls, each a turn of its own, some of which go wrong.

use super::Planted;
use super::catalog::{self, Swapped};
use super::dice::Dice;
use super::invariants;
use super::model::Intent;
use super::world::{ActorId, State, World};
use crate::checker::tell;
use futures::future::BoxFuture;
use iceberg::io::{FileIO, FileIOBuilder};
use iceberg::spec::MAIN_BRANCH;
use iceberg::table::Table;
use iceberg::{Runtime, TableIdent, TableRequirement, TableUpdate};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use timelake_engine::ports::{Clock, CommitOutcome};
use timelake_model::ids::PUBLISHED_PREFIX;
use timelake_model::{Error, Reason, Result, TimestampUs};

/// How long an actor stands still when it is stalled: less than a lease, about one, longer than one.
const STALLS_MS: [u64; 5] = [50, 500, 3_000, 29_000, 70_000];

/// Calls that change what others see: they fail so many times more often than those that only look.
const EFFECTS: [&str; 13] = [
    "commit",
    "put_job",
    "update_job",
    "put_group",
    "update_group",
    "put_plan",
    "open_round",
    "close_round",
    "begin_attempt",
    "end_unit",
    "send",
    "ack",
    "put_if_absent",
];
const EFFECTS_FAIL_MORE: u64 = 8;

/// Iceberg's reader wants a runtime at hand; nothing of it waits, so all worlds share one.
pub fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime"))
}

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    CrashBefore,
    CrashAfter,
    /// Nothing happens, and the caller gets an error.
    LostBefore,
    /// It happens, and the caller gets an error.
    LostAfter,
}

/// One actor's access to the world.
#[derive(Clone)]
pub struct Desk {
    pub world: Arc<World>,
    pub id: ActorId,
    pub planted: Option<Planted>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "desk of actor {}", self.id)
    }
}

/// The error of an answer that is lost.
pub fn lost(name: &str) -> Error {
    Error::unavailable(Reason::StorageUnavailable, format!("the answer of {name} is lost"))
}

impl Desk {
    /// One call: whose turn it is, what goes wrong, what it does. `told`: the call in words; `shown`: its answer.
    pub fn call<T>(
        &self,
        name: &'static str,
        told: impl FnOnce() -> String,
        shown: impl FnOnce(&T) -> String,
        effect: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let ended = || lost(name);
        let mut state = self.world.turn(self.id).ok_or_else(ended)?;
        if let Some(stall) = self.stall(&mut state) {
            let told = format!("stands still for {} ms", stall.as_millis());
            state.say(self.id, &told);
            state = self.world.sleep(state, self.id, stall).ok_or_else(ended)?;
        }
        let fault = self.fault(&mut state, name);
        let told = match (state.tells(), name) {
            (false, _) => String::new(),
            (true, "commit") => told(),
            (true, _) => format!("{name}({})", told()),
        };
        let say = |state: &mut State, what: &str| {
            if state.tells() {
                state.say(self.id, &format!("{told} → {what}"));
            }
        };
        match fault {
            Some(Fault::CrashBefore) => {
                say(&mut state, "CRASHES before it");
                self.world.crash(state, self.id);
                return Err(lost(name));
            }
            Some(Fault::LostBefore) => {
                say(&mut state, "LOST before it");
                return Err(lost(name));
            }
            _ => {}
        }
        let answer = effect(&mut state);
        let answered = match (&answer, state.tells()) {
            (_, false) => String::new(),
            (Ok(value), true) => shown(value),
            (Err(e), true) => e.to_string(),
        };
        match fault {
            Some(Fault::CrashAfter) => {
                say(&mut state, &format!("{answered}, and CRASHES"));
                self.world.crash(state, self.id);
                Err(lost(name))
            }
            Some(Fault::LostAfter) => {
                say(&mut state, &format!("{answered}, and the answer is LOST"));
                Err(lost(name))
            }
            _ => {
                say(&mut state, &answered);
                answer
            }
        }
    }

    fn stall(&self, state: &mut State) -> Option<Duration> {
        if state.calm || state.profile.stalls == 0 {
            return None;
        }
        let often = state.profile.stall_in;
        if !state.dice.once_in(often) {
            return None;
        }
        state.profile.stalls -= 1;
        state.count("stall");
        Some(Duration::from_millis(*state.dice.pick(&STALLS_MS)))
    }

    fn fault(&self, state: &mut State, name: &str) -> Option<Fault> {
        if state.calm || state.profile.faults == 0 {
            return None;
        }
        let often = state.profile.fault_in / if EFFECTS.contains(&name) { EFFECTS_FAIL_MORE } else { 1 };
        if !state.dice.once_in(often) {
            return None;
        }
        state.profile.faults -= 1;
        state.count("fault");
        Some(*state.dice.pick(&[Fault::CrashBefore, Fault::CrashAfter, Fault::LostBefore, Fault::LostAfter]))
    }

    /// A line of the script that is no call.
    pub fn say(&self, what: &str) {
        let mut state = self.world.lock();
        state.say(self.id, what);
    }

    /// Blocks the actor's thread until the world's time has come. `false`: the actor has ended.
    pub fn pause(&self, duration: Duration) -> bool {
        let Some(state) = self.world.turn(self.id) else { return false };
        self.world.sleep(state, self.id, duration).is_some()
    }

    /// Waits until a job is staged, and a little longer: what comes between its look at `main` and its commit matters most.
    pub fn wait_for_staged(&self, dice: &mut Dice) {
        const LOOKS: u32 = 150;
        const POLL: Duration = Duration::from_millis(100);
        for _ in 0..LOOKS {
            let (staged, (_, turn_us)) = {
                let state = self.world.lock();
                (state.ledger.groups.values().any(|g| g.staged_round.is_some() && !g.state.is_final()), state.profile.turn_us)
            };
            if staged {
                self.pause(Duration::from_micros(dice.below(turn_us * 40)));
                return;
            }
            self.pause(POLL);
        }
    }

    /// Table files as this actor reads and writes them.
    pub fn file_io(&self) -> FileIO {
        FileIOBuilder::new(Arc::new(super::storage::Files::new(self.clone()))).build()
    }

    pub fn load(&self, table: &TableIdent) -> Result<Table> {
        let file_io = self.file_io();
        let shown = |table: &Table| tell::table(table);
        self.call("load", String::new, shown, |state| state.catalog.load(table, file_io, Runtime::new(runtime())))
    }

    /// `intent`: what the commit means for the rows of `main`, when it is not the engine's.
    pub fn commit(
        &self,
        base: &Table,
        mut requirements: Vec<TableRequirement>,
        mut updates: Vec<TableUpdate>,
        intent: Option<Intent>,
    ) -> Result<CommitOutcome> {
        let publishes =
            |u: &TableUpdate| matches!(u, TableUpdate::SetSnapshotRef { ref_name, .. } if ref_name.starts_with(PUBLISHED_PREFIX));
        if updates.iter().any(publishes) {
            match self.planted {
                Some(Planted::PublishWithoutMain) => {
                    requirements.retain(|r| !matches!(r, TableRequirement::RefSnapshotIdMatch { r#ref, .. } if r#ref == MAIN_BRANCH))
                }
                Some(Planted::StagedSnapshotLeft) => updates.retain(|u| !matches!(u, TableUpdate::RemoveSnapshots { .. })),
                _ => {}
            }
        }
        let told = || tell::updates(&updates);
        let shown = |outcome: &CommitOutcome| match outcome {
            CommitOutcome::Done(_) => "done".into(),
            CommitOutcome::Conflict(why) => format!("conflict: {why}"),
            CommitOutcome::Unknown(why) => format!("unknown: {why}"),
        };
        let file_io = self.file_io();
        let answer = self.call("commit", told, shown, |state| {
            let before = state.catalog.metadata.clone();
            let (swap, now_ms) = (state.profile.swap, state.now_ms());
            match state.catalog.commit(base, &requirements, &updates, swap, now_ms, Runtime::new(runtime())) {
                Swapped::Done => {
                    invariants::swapped(state, self.id, before.as_deref(), intent);
                    let table = state.catalog.load(&catalog::ident(), file_io, Runtime::new(runtime()))?;
                    Ok(CommitOutcome::Done(Box::new(table)))
                }
                Swapped::Conflict(why) => Ok(CommitOutcome::Conflict(why)),
                Swapped::Failed(error) => Err(error),
            }
        });
        // Of a catalog whose answer is lost nobody knows whether it swapped.
        match answer {
            Err(e) if e == lost("commit") => Ok(CommitOutcome::Unknown(e.message)),
            other => other,
        }
    }
}

impl Clock for Desk {
    fn now(&self) -> TimestampUs {
        self.world.lock().now()
    }
    fn random(&self) -> u64 {
        self.world.lock().random(self.id)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.pause(duration);
        Box::pin(std::future::ready(()))
    }
}
