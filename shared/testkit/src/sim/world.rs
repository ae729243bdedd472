//! The world of one seed: everything its actors share, and whose turn it is.
//!
//! Each actor is a thread, but only the one whose turn it is runs. Every call of a port is a turn: it takes the world as it
//! is, does one thing to it and passes the turn on, to whom the dice say. Time goes on by a little with each turn, and
//! jumps when all actors sleep. So a seed decides everything that happens.

use super::catalog::Catalog;
use super::dice::Dice;
use super::model::Model;
use super::scene::{Load, Profile};
use crate::clock::START;
use crate::ledger_state::LedgerState;
use bytes::Bytes;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;
use timelake_model::{JobId, TimestampUs};

/// Turns of a seed at most: more is a job that does not come to an end.
const MAX_TURNS: u64 = 150_000;

/// Place of an actor in the cast.
pub type ActorId = usize;
/// Until the world runs, no thread may take a turn for its own.
const NOBODY: ActorId = ActorId::MAX;

/// Payload of the unwinding that ends a process at once, wherever it is.
struct Crashed;

/// What broke an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: u32,
    pub what: String,
}

pub struct Object {
    pub bytes: Bytes,
    pub modified: TimestampUs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    Sleeping { until_us: i64 },
    Ended,
}

struct Actor {
    name: String,
    status: Status,
    /// It crashed: whatever its thread still does has no effect.
    dead: bool,
    turn: Arc<Condvar>,
    thread: Option<ThreadId>,
    dice: Dice,
}

pub struct State {
    pub now_us: i64,
    pub dice: Dice,
    pub profile: Profile,
    /// Nothing goes wrong any more.
    pub calm: bool,
    pub ledger: LedgerState,
    pub catalog: Catalog,
    pub objects: BTreeMap<String, Object>,
    pub model: Model,
    /// Everything that the head of `main` names.
    pub main_files: BTreeSet<String>,
    pub loads: Vec<Load>,
    /// Who runs a job: the lock that the system frees when the process ends.
    pub locks: BTreeMap<JobId, ActorId>,
    /// Who holds which message.
    pub claims: BTreeMap<i64, ActorId>,
    pub violation: Option<Violation>,
    /// How often things happened, for tests that ask whether they can.
    pub seen: BTreeMap<&'static str, u64>,
    actors: Vec<Actor>,
    running: ActorId,
    turns: u64,
    script: Option<Vec<String>>,
}

pub struct World {
    state: Mutex<State>,
    ended: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl State {
    pub fn new(dice: Dice, profile: Profile, loads: Vec<Load>, tells: bool) -> State {
        State {
            now_us: START.0,
            dice,
            profile,
            calm: false,
            ledger: LedgerState::default(),
            catalog: Catalog::default(),
            objects: BTreeMap::new(),
            model: Model::default(),
            main_files: BTreeSet::new(),
            loads,
            locks: BTreeMap::new(),
            claims: BTreeMap::new(),
            violation: None,
            seen: BTreeMap::new(),
            actors: vec![],
            running: NOBODY,
            turns: 0,
            script: tells.then(Vec::new),
        }
    }

    pub fn now(&self) -> TimestampUs {
        TimestampUs(self.now_us)
    }
    pub fn now_ms(&self) -> i64 {
        self.now_us.div_euclid(1000)
    }
    pub fn later_us(&self, after: Duration) -> i64 {
        self.now_us.saturating_add(i64::try_from(after.as_micros()).unwrap_or(i64::MAX))
    }
    pub fn turns(&self) -> u64 {
        self.turns
    }
    pub fn tells(&self) -> bool {
        self.script.is_some()
    }
    pub fn random(&mut self, actor: ActorId) -> u64 {
        self.actors[actor].dice.roll()
    }
    pub fn name(&self, actor: ActorId) -> &str {
        &self.actors[actor].name
    }
    pub fn is_alive(&self, actor: ActorId) -> bool {
        !self.actors[actor].dead && self.actors[actor].status != Status::Ended
    }
    pub fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// A line of the script.
    pub fn say(&mut self, actor: ActorId, what: &str) {
        let since_us = self.now_us - START.0;
        let Some(script) = &mut self.script else { return };
        let (seconds, ms) = (since_us / 1_000_000, since_us / 1_000 % 1_000);
        script.push(format!("{:>6}  {seconds:>5}.{ms:03} s  {:<12}  {what}", script.len() + 1, self.actors[actor].name));
    }

    /// An invariant is broken; the first one counts, and everybody stops.
    pub fn broken(&mut self, invariant: u32, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, what: what.into() });
        }
    }

    /// Nobody does anything any more.
    fn is_over(&self) -> bool {
        self.violation.is_some()
    }

    /// Who is next. When all sleep, time goes on to when the first wakes.
    fn choose(&mut self, current: ActorId) -> Option<ActorId> {
        if self.is_over() {
            // Each unwinds by itself.
            return self.actors.iter().position(|a| a.status != Status::Ended);
        }
        let ready = |a: &Actor, now_us: i64| match a.status {
            Status::Ready => true,
            Status::Sleeping { until_us } => until_us <= now_us,
            Status::Ended => false,
        };
        let stays = self.profile.stays_percent;
        if self.actors.get(current).is_some_and(|a| a.status == Status::Ready) && self.dice.below(100) < stays {
            return Some(current);
        }
        let mut who: Vec<ActorId> = (0..self.actors.len()).filter(|i| ready(&self.actors[*i], self.now_us)).collect();
        if who.is_empty() {
            let wakes = |a: &Actor| match a.status {
                Status::Sleeping { until_us } => Some(until_us),
                _ => None,
            };
            self.now_us = self.actors.iter().filter_map(wakes).min()?;
            who = (0..self.actors.len()).filter(|i| ready(&self.actors[*i], self.now_us)).collect();
        }
        Some(*self.dice.pick(&who))
    }
}

impl World {
    pub fn new(state: State) -> Arc<World> {
        Arc::new(World { state: Mutex::new(state), ended: Condvar::new(), threads: Mutex::default() })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self, state: &mut State, from: ActorId) {
        match state.choose(from) {
            Some(next) => {
                state.running = next;
                state.actors[next].status = match state.actors[next].status {
                    Status::Ended => Status::Ended,
                    _ => Status::Ready,
                };
                state.actors[next].turn.notify_all();
            }
            None => self.ended.notify_all(),
        }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, actor: ActorId) -> MutexGuard<'a, State> {
        let turn = state.actors[actor].turn.clone();
        while state.running != actor {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Waits for the actor's next turn. `None`: it has none any more, and its thread is not the one to unwind.
    pub fn turn(&self, actor: ActorId) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if state.actors[actor].dead || state.is_over() {
            return self.stop(state, actor);
        }
        state.turns += 1;
        if state.turns > MAX_TURNS {
            state.broken(8, format!("{MAX_TURNS} turns and no end"));
            return self.stop(state, actor);
        }
        let (least, most) = state.profile.turn_us;
        state.now_us += state.dice.within(least..most) as i64;
        self.pass_on(&mut state, actor);
        let state = self.wait(state, actor);
        if state.is_over() {
            return self.stop(state, actor);
        }
        Some(state)
    }

    /// The actor sleeps, and is the one to act when it returns.
    pub fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>, actor: ActorId, duration: Duration) -> Option<MutexGuard<'a, State>> {
        state.actors[actor].status = Status::Sleeping { until_us: state.later_us(duration) };
        self.pass_on(&mut state, actor);
        let state = self.wait(state, actor);
        if state.is_over() {
            return self.stop(state, actor);
        }
        Some(state)
    }

    /// The process ends here and now.
    pub fn crash<'a>(&'a self, mut state: MutexGuard<'a, State>, actor: ActorId) -> Option<MutexGuard<'a, State>> {
        state.actors[actor].dead = true;
        self.stop(state, actor)
    }

    /// Unwinds the actor's own thread. Threads that it started only get no answer: a panic there would be told as one.
    fn stop<'a>(&'a self, mut state: MutexGuard<'a, State>, actor: ActorId) -> Option<MutexGuard<'a, State>> {
        state.actors[actor].dead = true;
        let own = state.actors[actor].thread == Some(std::thread::current().id());
        drop(state);
        if own && !std::thread::panicking() {
            resume_unwind(Box::new(Crashed));
        }
        None
    }

    /// Starts an actor; it waits for its first turn.
    pub fn start(self: &Arc<World>, name: String, act: impl FnOnce(ActorId) + Send + 'static) -> ActorId {
        let mut state = self.lock();
        let id = state.actors.len();
        let dice = state.dice.split();
        let turn = Arc::new(Condvar::new());
        state.actors.push(Actor { name, status: Status::Ready, dead: false, turn, thread: None, dice });
        drop(state);
        let world = self.clone();
        let thread = std::thread::spawn(move || {
            let mut state = world.lock();
            state.actors[id].thread = Some(std::thread::current().id());
            let state = world.wait(state, id);
            let over = state.is_over();
            drop(state);
            let ended = if over { Ok(()) } else { catch_unwind(AssertUnwindSafe(|| act(id))) };
            world.end(id, ended);
        });
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        id
    }

    fn end(&self, id: ActorId, ended: Result<(), Box<dyn Any + Send>>) {
        let mut state = self.lock();
        if let Err(payload) = ended
            && !payload.is::<Crashed>()
        {
            let text = payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(|t| t.to_string()));
            let what = format!("{} panicked: {}", state.actors[id].name, text.unwrap_or_default());
            state.broken(9, what);
        }
        state.actors[id].status = Status::Ended;
        state.locks.retain(|_, holder| *holder != id);
        self.pass_on(&mut state, id);
    }

    /// Lets the actors act until all have ended.
    pub fn run(&self) {
        let mut state = self.lock();
        self.pass_on(&mut state, NOBODY);
        while state.actors.iter().any(|a| a.status != Status::Ended) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            let _ = thread.join(); // its panics were caught
        }
    }

    pub fn script(&self) -> Vec<String> {
        self.lock().script.take().unwrap_or_default()
    }
}
