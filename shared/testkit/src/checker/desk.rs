//! Where an actor's calls arrive. An actor is a deterministic function of the answers it got, so it needs no thread
//! and no suspended future: it is run from its start with the answers it got so far, and stopped at the first call
//! that has none yet. That call is what the actor does next.
//!
//! Live, a desk answers at once from a world of its own: for preparing a world, and for one actor running alone.

use super::space::{Answer, Call, Space, World, digest};
use crate::clock::START;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use timelake_model::TimestampUs;

/// Calls an actor makes in one go at most when it runs alone: more is a loop that does not end.
const MAX_LIVE_CALLS: u32 = 2_000;

/// More than the time between two beats of an attempt.
const BEAT_US: i64 = 10_000_000;

/// Payload of the unwinding that stops a replay.
struct Stopped;

/// Calls whose last answers decide what an actor writes next: random numbers are made of these and of nothing older,
/// so that a path or id always stands for the same content, and actors that differ only in what they forgot are equal.
const REMEMBERED: [&str; 3] = ["load", "units", "claim"];

enum Mode {
    Off,
    Replay { history: Vec<(&'static str, Arc<Answer>)>, at: usize },
    Live { world: World, calls: u32 },
}

struct Inner {
    space: Space,
    mode: Mode,
    actor: String,
    remembered: [u128; REMEMBERED.len()],
    randoms: u32,
    last: &'static str,
    pending: Option<(&'static str, Call)>,
    /// An attempt is at work for so long that it has to say so.
    beat: bool,
    forgot: Forgot,
}

/// An actor said that what it does from here on follows from a value, whatever it did before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Forgot {
    pub value: u128,
    /// Answers it had got by then.
    pub answers: usize,
}

/// How a run of an actor went.
pub enum Ran<T> {
    /// It stopped at this call.
    At(&'static str, Call, Forgot),
    Ended(T),
}

pub struct Desk(Mutex<Inner>);

impl Desk {
    pub fn new(space: Space) -> Arc<Desk> {
        let inner = Inner {
            space,
            mode: Mode::Off,
            actor: String::new(),
            remembered: Default::default(),
            randoms: 0,
            last: "",
            pending: None,
            beat: false,
            forgot: Forgot::default(),
        };
        Arc::new(Desk(Mutex::new(inner)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn with_space<T>(&self, work: impl FnOnce(&mut Space) -> T) -> T {
        work(&mut self.inner().space)
    }

    /// A random number of the actor at this place of its life. Right after a claim, which is given out once, it is the
    /// claim's: then workers that do the same are equal.
    pub fn random(&self) -> u64 {
        let mut inner = self.inner();
        inner.randoms += 1;
        if inner.last == "claim" {
            return digest(&(inner.remembered[2], inner.randoms)) as u64;
        }
        digest(&(&inner.actor, &inner.remembered, inner.randoms)) as u64
    }

    /// What the actor does from here on follows from `value` and from the answers to come. Histories that differ only
    /// before this are one.
    ///
    /// Must never happen: something the actor still knows and uses that is not in `value`.
    pub fn forget(&self, value: &impl Debug) {
        let mut inner = self.inner();
        let answers = match &inner.mode {
            Mode::Replay { at, .. } => *at,
            _ => 0,
        };
        inner.forgot = Forgot { value: digest(value), answers };
        inner.remembered = [inner.forgot.value; REMEMBERED.len()];
        inner.randoms = 0;
        inner.last = "";
    }

    /// For what runs inside, time has passed.
    pub fn at_a_beat<T>(&self, run: impl FnOnce() -> T) -> T {
        self.inner().beat = true;
        let result = run();
        self.inner().beat = false;
        result
    }

    pub fn now(&self) -> TimestampUs {
        TimestampUs(START.0 + if self.inner().beat { BEAT_US } else { 0 })
    }

    /// One call of a port. `make` is only asked for a call that is not answered from the history.
    pub fn step<T: Clone + 'static>(&self, name: &'static str, make: impl FnOnce() -> Call) -> T {
        let mut inner = self.inner();
        let Inner { space, mode, pending, .. } = &mut *inner;
        let answer = match mode {
            Mode::Replay { history, at } if *at < history.len() => {
                let (known, answer) = &history[*at];
                assert_eq!(*known, name, "an actor is no function of the answers it got");
                *at += 1;
                answer.clone()
            }
            Mode::Replay { .. } => {
                *pending = Some((name, make()));
                drop(inner);
                resume_unwind(Box::new(Stopped));
            }
            Mode::Live { world, calls } => {
                *calls += 1;
                assert!(*calls < MAX_LIVE_CALLS, "an actor that runs alone does not end");
                let call = space.intern_call(make());
                let outcome = space.usual(*world, call);
                *world = outcome.world;
                space.answer(outcome.answer)
            }
            Mode::Off => panic!("{name} is called while no actor runs"),
        };
        inner.randoms = 0;
        inner.last = name;
        if let Some(i) = REMEMBERED.iter().position(|r| *r == name) {
            inner.remembered[i] = answer.key;
        }
        answer.value.downcast_ref::<T>().expect("a call has one type of answer").clone()
    }

    fn start(&self, actor: &str, mode: Mode) {
        let mut inner = self.inner();
        inner.mode = mode;
        inner.actor = actor.to_string();
        inner.remembered = Default::default();
        inner.randoms = 0;
        inner.last = "";
        inner.pending = None;
        inner.beat = false;
        inner.forgot = Forgot::default();
    }

    /// Runs an actor with the answers it got.
    pub fn replay<T>(&self, actor: &str, history: Vec<(&'static str, Arc<Answer>)>, run: impl FnOnce() -> T) -> Ran<T> {
        let length = history.len();
        self.start(actor, Mode::Replay { history, at: 0 });
        let ran = catch_unwind(AssertUnwindSafe(run));
        let mut inner = self.inner();
        let Mode::Replay { at, .. } = std::mem::replace(&mut inner.mode, Mode::Off) else { panic!("the desk was given away") };
        match (ran, inner.pending.take()) {
            (Err(payload), Some((name, call))) if payload.is::<Stopped>() => {
                assert_eq!(at, length, "an actor is no function of the answers it got");
                Ran::At(name, call, inner.forgot)
            }
            (Err(payload), _) => {
                drop(inner);
                resume_unwind(payload)
            }
            (Ok(result), _) => Ran::Ended(result),
        }
    }

    /// Runs an actor alone in a world; returns the world after it.
    pub fn live<T>(&self, actor: &str, world: World, run: impl FnOnce() -> T) -> (World, T) {
        self.start(actor, Mode::Live { world, calls: 0 });
        let result = run();
        let mut inner = self.inner();
        let Mode::Live { world, .. } = std::mem::replace(&mut inner.mode, Mode::Off) else { panic!("the desk was given away") };
        (world, result)
    }

    /// Live: time passes. All leases end, for nobody else is there.
    pub fn leases_end(&self) {
        let mut inner = self.inner();
        let Inner { space, mode: Mode::Live { world, .. }, .. } = &mut *inner else { return };
        let mut ledger = (*space.ledger(world.ledger)).clone();
        ledger.end_leases(None);
        world.ledger = space.ledger_id(ledger);
    }
}

/// An answer to keep.
pub fn answer<T: Debug + Send + Sync + 'static>(name: &str, value: T, shown: String) -> Answer {
    Answer { key: digest(&(name, &value)), shown, value: Arc::new(value) }
}
