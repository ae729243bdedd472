//! A seeded simulator of the real engine.
//!
//! A seed decides everything: the rows of the sources, who else is at work on the table, who acts when, which calls fail or
//! kill their process, and what the operator does about it. The verbs, units, commits and decisions are the engine's own,
//! over ports in memory; time is the world's. The same seed gives the same script, byte by byte.
//!
//! | | what must hold |
//! |---|---|
//! | 1 | the rows on `main` are those of the model, after every commit |
//! | 2 | a group of one life of a job is published at most once |
//! | 3 | nothing of a group that was given up is published |
//! | 4 | `main` never names a file that does not exist |
//! | 5 | commits of others survive: `main` only moves to a child of where it stands |
//! | 6 | `main` is moved by live writers and by publishing, and by nothing else |
//! | 7 | the counts of a published job are conserved, and it wrote as many rows as came to `main` |
//! | 8 | every job ends, in a bounded number of turns |
//! | 9 | no process panics or reports an internal error |
//! | 10 | a job that is over leaves no branch, lock or staged snapshot |
//! | 11 | the ledger says PUBLISHED of what is on `main`, and of nothing else |
//! | 12 | the files of a unit that is DONE exist until it is done again or its group is over |
//!
//! Left out: landing, layouts by age, other catalogs' ways to fail, a clock that is set back.
//!
//! A new actor is a [`others::Deed`] (others) or an [`process::Order`] (ours), and a number in [`scene::Cast`]. It talks to
//! the world through its [`desk::Desk`] only; whoever commits to `main` says what that means for the rows.
//!
//! Must never happen: a choice that does not follow from the seed (an order of a hash map, the machine's clock, a thread).

mod catalog;
mod desk;
mod dice;
mod expirer;
mod files;
mod invariants;
mod model;
mod operator;
mod others;
mod ports;
mod process;
mod scene;
mod storage;
mod world;

pub use world::Violation;

use dice::Dice;
use scene::{Load, Profile};
use std::collections::BTreeMap;
use std::fmt;
use timelake_engine::planted::Blind;
use world::{State, World};

/// A fault in our own code, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Publishing does not look at what changed on `main`.
    NoRecheck,
    /// Publishing looks at rows that came, not at rows that went.
    OneWayRecheck,
    /// Publishing does not require `main` to be where it looked.
    PublishWithoutMain,
    /// Publishing leaves its staged snapshots in the table.
    StagedSnapshotLeft,
    /// An attempt deletes its files when it does not know how it ended.
    AttemptDeletesFiles,
}

impl Planted {
    pub const ALL: [Planted; 5] = [
        Planted::NoRecheck,
        Planted::OneWayRecheck,
        Planted::PublishWithoutMain,
        Planted::StagedSnapshotLeft,
        Planted::AttemptDeletesFiles,
    ];

    fn in_engine(self) -> Option<Blind> {
        match self {
            Planted::NoRecheck => Some(Blind::Everything),
            Planted::OneWayRecheck => Some(Blind::Removals),
            _ => None,
        }
    }
}

/// How a seed went.
pub struct Outcome {
    pub seed: u64,
    pub planted: Option<Planted>,
    pub violation: Option<Violation>,
    /// What happened, step by step; empty when it was not asked for.
    pub script: Vec<String>,
    pub turns: u64,
    pub seen: BTreeMap<&'static str, u64>,
}

/// Plays a seed. `tells`: writes the script.
pub fn play(seed: u64, planted: Option<Planted>, tells: bool) -> Outcome {
    let mut dice = Dice::new(seed);
    let profile = Profile::of(&mut dice);
    let jobs = if profile.cast.second_job { 2 } else { 1 };
    let loads = (1..=jobs).map(|number| Load::of(&mut dice, number)).collect();
    let world = World::new(State::new(dice.split(), profile, loads, tells));
    operator::start(&world, planted, dice.split());
    world.run();
    let script = world.script();
    let mut state = world.lock();
    let (turns, seen) = (state.turns(), std::mem::take(&mut state.seen));
    Outcome { seed, planted, violation: state.violation.take(), script, turns, seen }
}

/// Plays seeds until one breaks an invariant, and plays that one again to tell it.
pub fn search(seeds: impl IntoIterator<Item = u64>, planted: Option<Planted>) -> Option<Outcome> {
    let found = seeds.into_iter().find(|seed| play(*seed, planted, false).violation.is_some())?;
    Some(play(found, planted, true))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let planted = self.planted.map_or(String::new(), |p| format!(" with {p:?} planted"));
        writeln!(f, "seed {}{planted}: {} turns, {:?}", self.seed, self.turns, self.seen)?;
        for line in &self.script {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            None => writeln!(f, "no invariant is broken"),
            Some(v) => {
                writeln!(f, "invariant {} is broken: {}", v.invariant, v.what)?;
                writeln!(f, "again: make sim SEED={}", self.seed)
            }
        }
    }
}
