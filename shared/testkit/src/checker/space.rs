//! Everything the search has met, each once and named by a small number: states of the world's parts, calls, answers,
//! and what a call does to a part. A node of the search is then a handful of numbers, and the engine's real
//! transition code runs once per distinct (state of a part, call).
//!
//! Must never happen: two different things with one number. Things are told apart by 128 bits of their full text.

use super::catalog::CatalogState;
use crate::ledger_state::{LedgerState, StoredUnit};
use bytes::Bytes;
use std::any::Any;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::{self, Debug, Write};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Name of an interned thing.
pub type Id = u32;

/// For keys of a few small numbers.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;
pub type FastSet<K> = HashSet<K, BuildHasherDefault<Mix>>;

/// 128 bits of a value's text.
pub fn digest(value: &(impl Debug + ?Sized)) -> u128 {
    struct Both(DefaultHasher, DefaultHasher);
    impl Write for Both {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            self.1.write(text.as_bytes());
            Ok(())
        }
    }
    let mut both = Both(DefaultHasher::new(), DefaultHasher::new());
    both.1.write_u8(1);
    write!(both, "{value:?}").expect("hashers take everything");
    u128::from(both.0.finish()) << 64 | u128::from(both.1.finish())
}

/// Objects of the job folder with their bytes, and data files by name.
#[derive(Debug, Clone, Default)]
pub struct FilesState {
    pub objects: BTreeMap<String, Bytes>,
    pub data: BTreeSet<String>,
}

/// What a port answered.
#[derive(Clone)]
pub struct Answer {
    pub key: u128,
    /// For people.
    pub shown: String,
    pub value: Arc<dyn Any + Send + Sync>,
}

/// What a call does. Each is one atomic step on one part of the world.
pub enum Effect {
    Ledger(Box<dyn Fn(&mut LedgerState) -> Answer + Send + Sync>),
    Catalog(Box<dyn Fn(&mut CatalogState) -> Answer + Send + Sync>),
    Files(Box<dyn Fn(&mut FilesState) -> Answer + Send + Sync>),
    /// Chance decides; the first answer is the usual one, the others cost a failure each.
    Choice(Vec<Answer>),
}

/// A call of a port, ready to be made.
pub struct Call {
    pub key: u128,
    /// For people.
    pub shown: String,
    pub effect: Effect,
    /// What the caller gets when the answer is lost; `None`: losing it is the same as a crash of the caller.
    pub lost: Option<Answer>,
    /// Nobody else can tell when it happens, so it happens at once.
    pub quiet: bool,
}

/// What the way to an outcome uses up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    Nothing,
    Crash,
    LostAnswer,
    Failure,
}

/// One way a call can go.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub world: World,
    pub answer: Id,
    pub cost: Cost,
}

/// A state of all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    pub ledger: Id,
    pub catalog: Id,
    pub files: Id,
}

struct Store<T> {
    items: Vec<Arc<T>>,
    ids: HashMap<u128, Id>,
}

impl<T> Store<T> {
    fn new() -> Self {
        Store { items: Vec::new(), ids: HashMap::new() }
    }
    fn intern(&mut self, key: u128, item: T) -> Id {
        *self.ids.entry(key).or_insert_with(|| {
            self.items.push(Arc::new(item));
            (self.items.len() - 1) as Id
        })
    }
}

/// The store of all that was met.
pub struct Space {
    ledgers: Store<LedgerState>,
    catalogs: Store<CatalogState>,
    files: Store<FilesState>,
    answers: Store<Answer>,
    calls: Store<Call>,
    done: FastMap<(Id, Id), (Id, Id)>,
    /// Texts of units, by where they are; the pointer keeps the place taken.
    units: HashMap<usize, (u128, Arc<StoredUnit>)>,
    /// Ledger states that followed one another and were not looked at yet: invariants of steps.
    pub ledger_steps: Vec<(Id, Id)>,
}

impl Space {
    pub fn new(catalog: CatalogState) -> (Space, World) {
        let mut space = Space {
            ledgers: Store::new(),
            catalogs: Store::new(),
            files: Store::new(),
            answers: Store::new(),
            calls: Store::new(),
            done: FastMap::default(),
            units: HashMap::new(),
            ledger_steps: Vec::new(),
        };
        let ledger = space.ledger_id(LedgerState::default());
        let files = FilesState::default();
        let (catalog, files) = (space.catalogs.intern(catalog.key, catalog), space.files.intern(digest(&files), files));
        (space, World { ledger, catalog, files })
    }

    pub fn ledger(&self, id: Id) -> Arc<LedgerState> {
        self.ledgers.items[id as usize].clone()
    }
    pub fn catalog(&self, id: Id) -> Arc<CatalogState> {
        self.catalogs.items[id as usize].clone()
    }
    pub fn files(&self, id: Id) -> Arc<FilesState> {
        self.files.items[id as usize].clone()
    }
    pub fn answer(&self, id: Id) -> Arc<Answer> {
        self.answers.items[id as usize].clone()
    }
    pub fn call(&self, id: Id) -> Arc<Call> {
        self.calls.items[id as usize].clone()
    }
    pub fn intern_call(&mut self, call: Call) -> Id {
        self.calls.intern(call.key, call)
    }
    pub fn ledger_id(&mut self, ledger: LedgerState) -> Id {
        // Receipts are most of the text, and shared between states.
        let mut unit =
            |unit: &Arc<StoredUnit>| self.units.entry(Arc::as_ptr(unit).addr()).or_insert_with(|| (digest(unit), unit.clone())).0;
        let units: Vec<_> = ledger.units.iter().map(|(key, stored)| (key, unit(stored))).collect();
        let LedgerState { jobs, groups, plans, counters, units: _, queue, last_message } = &ledger;
        let key = digest(&(jobs, groups, plans, counters, units, queue, last_message));
        self.ledgers.intern(key, ledger)
    }

    fn intern_answer(&mut self, answer: Answer) -> Id {
        self.answers.intern(answer.key, answer)
    }

    /// The usual way a call goes.
    pub fn usual(&mut self, world: World, call_id: Id) -> Outcome {
        let call = self.call(call_id);
        // Part states of different parts never meet under one call: a call has one part.
        let part = match &call.effect {
            Effect::Ledger(_) => world.ledger,
            Effect::Catalog(_) => world.catalog,
            Effect::Files(_) => world.files,
            Effect::Choice(_) => 0,
        };
        let (part, answer) = match self.done.get(&(part, call_id)) {
            Some(done) => *done,
            None => {
                let done = self.make(part, &call);
                self.done.insert((part, call_id), done);
                done
            }
        };
        let world = match &call.effect {
            Effect::Ledger(_) => World { ledger: part, ..world },
            Effect::Catalog(_) => World { catalog: part, ..world },
            Effect::Files(_) => World { files: part, ..world },
            Effect::Choice(_) => world,
        };
        Outcome { world, answer, cost: Cost::Nothing }
    }

    /// Every way a call can go, the usual one first.
    pub fn outcomes(&mut self, world: World, call_id: Id) -> Vec<Outcome> {
        let usual = self.usual(world, call_id);
        let mut out = vec![usual];
        let call = self.call(call_id);
        if let Some(lost) = &call.lost {
            let answer = self.intern_answer(lost.clone());
            out.push(Outcome { world: usual.world, answer, cost: Cost::LostAnswer });
            if usual.world != world {
                out.push(Outcome { world, answer, cost: Cost::LostAnswer });
            }
        }
        if let Effect::Choice(answers) = &call.effect {
            for answer in &answers[1..] {
                out.push(Outcome { world, answer: self.intern_answer(answer.clone()), cost: Cost::Failure });
            }
        }
        out
    }

    fn make(&mut self, part: Id, call: &Call) -> (Id, Id) {
        let (after, answer) = match &call.effect {
            Effect::Ledger(effect) => {
                let mut state = (*self.ledger(part)).clone();
                let answer = effect(&mut state);
                let after = self.ledger_id(state);
                if after != part {
                    self.ledger_steps.push((part, after));
                }
                (after, answer)
            }
            Effect::Catalog(effect) => {
                let mut state = (*self.catalog(part)).clone();
                let answer = effect(&mut state);
                (self.catalogs.intern(state.key, state), answer)
            }
            Effect::Files(effect) => {
                let mut state = (*self.files(part)).clone();
                let answer = effect(&mut state);
                (self.files.intern(digest(&state), state), answer)
            }
            Effect::Choice(answers) => (0, answers[0].clone()),
        };
        (after, self.intern_answer(answer))
    }
}
