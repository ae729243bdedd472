//! All interleavings of a model's actors, breadth first: the first violation found has the shortest schedule.
//!
//! A node is a world, what each actor did so far, and what may still happen. It is seven or eight numbers; the engine
//! runs only to learn what an actor does next after answers it did not get before.

use super::actors::{Cast, Role};
use super::desk::Ran;
use super::invariants::{Invariants, events, settled, step};
use super::space::{Cost, FastMap, FastSet, Id, Outcome, World};
use crate::clock::START;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};
use timelake_model::{Kind, Result};

pub const MAX_ACTORS: usize = 4;
/// A model with more nodes than this is not small: it fails instead of running on.
const MAX_NODES: usize = 3_000_000;

/// When an actor may make its first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    Always,
    AfterACrash,
    /// When that actor (by its place in the cast) has ended or crashed.
    After(usize),
}

#[derive(Debug, Clone)]
pub struct Actor {
    pub name: &'static str,
    pub role: Role,
    pub starts: Starts,
}

/// How often things may go wrong on one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    pub crashes: u8,
    /// Answers of `end_unit` and `commit` that are lost, before or after their effect.
    pub lost_answers: u8,
    /// Attempts that fail for good.
    pub failures: u8,
    /// Of the above, together.
    pub together: u8,
    /// Leases that end while their holder still works. Each crash allows one more.
    pub lost_leases: u8,
}

impl Budget {
    /// Four bits each.
    fn packed(self) -> u32 {
        let Budget { crashes, lost_answers, failures, together, lost_leases } = self;
        [crashes, lost_answers, failures, together, lost_leases].iter().fold(0, |all, one| all << 4 | u32::from(*one & 15))
    }
    fn unpacked(packed: u32) -> Budget {
        let at = |place: u32| (packed >> (4 * place) & 15) as u8;
        Budget { crashes: at(4), lost_answers: at(3), failures: at(2), together: at(1), lost_leases: at(0) }
    }
    fn pay(mut self, cost: Cost) -> Option<Budget> {
        let purse = match cost {
            Cost::Nothing => return Some(self),
            Cost::Crash => &mut self.crashes,
            Cost::LostAnswer => &mut self.lost_answers,
            Cost::Failure => &mut self.failures,
        };
        *purse = purse.checked_sub(1)?;
        self.together = self.together.checked_sub(1)?;
        self.lost_leases += u8::from(cost == Cost::Crash);
        Some(self)
    }
}

/// What was explored, and what was found.
pub struct Report {
    pub model: &'static str,
    pub nodes: usize,
    pub edges: usize,
    pub worlds: usize,
    /// Times an actor was run to learn its next call.
    pub replays: usize,
    /// Worlds in which nothing moves any more, from each of which the job was brought to its end.
    pub ended: usize,
    /// What happened on some path: how actors ended, and what the ledger said.
    pub seen: BTreeSet<String>,
    pub time: Duration,
    pub violation: Option<Violation>,
}

/// A schedule that leads to what must never happen.
pub struct Violation {
    pub what: String,
    pub schedule: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { model, nodes, edges, worlds, replays, ended, seen, time, violation } = self;
        write!(f, "{model}: {nodes} nodes, {edges} steps, {worlds} worlds, {replays} replays, {ended} ends, {:.1} s", time.as_secs_f64())?;
        seen.iter().try_for_each(|event| write!(f, "\n  {event}"))?;
        if let Some(violation) = violation {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violation: {}", self.what)?;
        for (i, line) in self.schedule.iter().enumerate() {
            writeln!(f, "{:>4}  {line}", i + 1)?;
        }
        Ok(())
    }
}

/// An actor after some answers, and the call that it makes next.
struct Point {
    actor: usize,
    /// The point before and the answer that led here.
    from: Option<(Id, Id)>,
    call: Id,
    name: &'static str,
}

/// What tells points apart: the actor, what it remembers, and the answers since then.
type Life = (usize, u128, Vec<Id>);

/// Places of actors that act no more.
const ENDED: Id = Id::MAX;
const CRASHED: Id = Id::MAX - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    world: World,
    budget: u32,
    actors: [Id; MAX_ACTORS],
}

#[derive(Debug, Clone, Copy)]
enum Move {
    Step { actor: u8, answer: Id },
    Crash { actor: u8 },
    LeaseEnds { message: i64 },
}

pub struct Search<'a> {
    cast: &'a Cast,
    actors: &'a [Actor],
    budget: Budget,
    points: Vec<Point>,
    lives: HashMap<Life, Id>,
    ways: FastMap<(Id, Id), Id>,
    roots: Vec<Id>,
    nodes: Vec<Node>,
    from: Vec<(u32, Move)>,
    known: FastSet<Node>,
    invariants: Invariants,
    worlds: FastSet<World>,
    ended: FastSet<(World, bool)>,
    seen: BTreeSet<String>,
    replays: usize,
    edges: usize,
}

struct Found {
    what: String,
    node: usize,
    last: Option<Move>,
}

impl<'a> Search<'a> {
    pub fn new(cast: &'a Cast, actors: &'a [Actor], budget: Budget) -> Self {
        assert!(actors.len() <= MAX_ACTORS, "a model has at most {MAX_ACTORS} actors");
        Search {
            cast,
            actors,
            budget,
            points: Vec::new(),
            lives: HashMap::new(),
            ways: FastMap::default(),
            roots: Vec::new(),
            nodes: Vec::new(),
            from: Vec::new(),
            known: FastSet::default(),
            invariants: Invariants::default(),
            worlds: FastSet::default(),
            ended: FastSet::default(),
            seen: BTreeSet::new(),
            replays: 0,
            edges: 0,
        }
    }

    /// Explores everything that can follow from `world`.
    pub fn explore(mut self, model: &'static str, world: World) -> Report {
        let start = Instant::now();
        let _inside = self.cast.runtime.enter();
        self.roots = (0..self.actors.len()).map(|actor| self.point(actor, None).expect("an actor does something")).collect();
        let mut actors = [ENDED; MAX_ACTORS];
        actors[..self.roots.len()].copy_from_slice(&self.roots);
        let found = self.all(Node { world, budget: self.budget.packed(), actors });
        let violation = found.err().map(|found| self.violation(found));
        Report {
            model,
            nodes: self.nodes.len(),
            edges: self.edges,
            worlds: self.worlds.len(),
            replays: self.replays,
            ended: self.ended.len(),
            seen: self.seen,
            time: start.elapsed(),
            violation,
        }
    }

    fn all(&mut self, first: Node) -> std::result::Result<(), Found> {
        self.reach(first, 0, None)?;
        let mut at = 0;
        while at < self.nodes.len() {
            self.expand(at)?;
            at += 1;
            if self.nodes.len() > MAX_NODES {
                let what = format!("the model is too large: more than {MAX_NODES} states");
                return Err(Found { what, node: at - 1, last: None });
            }
        }
        Ok(())
    }

    fn reach(&mut self, node: Node, from: usize, last: Option<Move>) -> std::result::Result<(), Found> {
        self.edges += 1;
        if !self.known.insert(node) {
            return Ok(());
        }
        self.nodes.push(node);
        self.from.push((from as u32, last.unwrap_or(Move::Crash { actor: 0 })));
        if self.worlds.insert(node.world) {
            let Search { cast, invariants, seen, .. } = self;
            let checked = cast.desk.with_space(|space| {
                let steps = std::mem::take(&mut space.ledger_steps);
                steps.iter().try_for_each(|(before, after)| step(&space.ledger(*before), &space.ledger(*after)))?;
                seen.extend(events(&space.ledger(node.world.ledger)));
                invariants.world(space, &cast.scene, node.world)
            });
            checked.map_err(|what| Found { what, node: from, last })?;
        }
        Ok(())
    }

    fn expand(&mut self, at: usize) -> std::result::Result<(), Found> {
        let node = self.nodes[at];
        let budget = Budget::unpacked(node.budget);
        // Nothing moves any more: all have ended, or wait for messages that somebody holds.
        let mut at_rest = true;
        let live: Vec<(usize, Id)> = (0..self.actors.len()).filter(|a| self.may_act(&node, *a)).map(|a| (a, node.actors[a])).collect();
        let over = live.is_empty();
        // What nobody else can tell happens at once, alone: one order stands for all.
        let quiet = live.iter().copied().find(|(_, point)| {
            let call = self.points[*point as usize].call;
            self.cast.desk.with_space(|space| space.call(call).quiet)
        });
        let acting = quiet.map_or(live, |one| vec![one]);
        for (actor, point) in acting {
            let Point { call, name, .. } = self.points[point as usize];
            assert_ne!(name, "update_group", "a group is changed without being read right before");
            let outcomes = self.cast.desk.with_space(|space| space.outcomes(node.world, call));
            for outcome in outcomes {
                let Some(budget) = budget.pay(outcome.cost) else { continue };
                let last = Move::Step { actor: actor as u8, answer: outcome.answer };
                let found = |what| Found { what, node: at, last: Some(last) };
                let mut next = self.way(point, outcome.answer).map_err(found)?;
                let mut world = outcome.world;
                if let Some(written) = self.written_at_once(name, next, world) {
                    next = self.way(next, written.answer).map_err(found)?;
                    world = written.world;
                }
                let mut after = Node { world, budget: budget.packed(), ..node };
                after.actors[actor] = next;
                at_rest &= name == "claim" && after.world == node.world;
                self.reach(after, at, Some(last))?;
            }
            if quiet.is_none()
                && point != self.roots[actor]
                && let Some(left) = budget.pay(Cost::Crash)
            {
                let mut after = Node { budget: left.packed(), ..node };
                after.actors[actor] = CRASHED;
                self.reach(after, at, Some(Move::Crash { actor: actor as u8 }))?;
            }
        }
        if quiet.is_none() && budget.lost_leases > 0 {
            let ledger = self.cast.desk.with_space(|space| space.ledger(node.world.ledger));
            for message in ledger.held_messages(START.0) {
                let mut ledger = (*ledger).clone();
                ledger.end_leases(Some(message));
                let ledger = self.cast.desk.with_space(|space| space.ledger_id(ledger));
                let left = Budget { lost_leases: budget.lost_leases - 1, ..budget };
                let after = Node { world: World { ledger, ..node.world }, budget: left.packed(), ..node };
                self.reach(after, at, Some(Move::LeaseEnds { message }))?;
            }
        }
        if at_rest && self.ended.insert((node.world, over && budget == self.budget)) {
            self.end(node.world, over && budget == self.budget).map_err(|what| Found { what, node: at, last: None })?;
        }
        Ok(())
    }

    /// A read that is followed by a compare-and-swap of the same record is one step with it: if the swap goes well,
    /// nobody changed the record in between, so the read might as well have come right before; if not, the record is
    /// read again and nothing has happened.
    fn written_at_once(&self, read: &str, next: Id, world: World) -> Option<Outcome> {
        let Point { call, name, .. } = self.points.get(next as usize)?;
        let swaps = matches!((read, *name), ("group", "update_group") | ("job", "update_job"));
        swaps.then(|| self.cast.desk.with_space(|space| space.usual(world, *call)))
    }

    fn may_act(&self, node: &Node, actor: usize) -> bool {
        let at = node.actors[actor];
        if at == ENDED || at == CRASHED {
            return false;
        }
        at != self.roots[actor]
            || match self.actors[actor].starts {
                Starts::Always => true,
                Starts::AfterACrash => node.actors.contains(&CRASHED),
                Starts::After(other) => matches!(node.actors[other], ENDED | CRASHED),
            }
    }

    /// The point after an answer.
    fn way(&mut self, point: Id, answer: Id) -> std::result::Result<Id, String> {
        if let Some(known) = self.ways.get(&(point, answer)) {
            return Ok(*known);
        }
        let actor = self.points[point as usize].actor;
        let next = match self.point(actor, Some((point, answer))) {
            Ok(next) => next,
            Err(how) if how.starts_with(INTERNAL) => return Err(format!("{} ends with an {how}", self.actors[actor].name)),
            Err(how) => {
                self.seen.insert(format!("{}: {how}", self.actors[actor].name));
                ENDED
            }
        };
        self.ways.insert((point, answer), next);
        Ok(next)
    }

    /// Runs an actor with the answers on the way to a new point. `Err`: it ended, and how.
    fn point(&mut self, actor: usize, from: Option<(Id, Id)>) -> std::result::Result<Id, String> {
        let mut got: Vec<(&'static str, Id)> = Vec::new();
        let mut at = from;
        while let Some((before, answer)) = at {
            let Point { from, name, .. } = &self.points[before as usize];
            got.push((name, answer));
            at = *from;
        }
        got.reverse();
        self.replays += 1;
        let history = self.cast.desk.with_space(|space| got.iter().map(|(name, answer)| (*name, space.answer(*answer))).collect());
        let Actor { name, role, .. } = &self.actors[actor];
        let (name, call, forgot) = match self.cast.desk.replay(name, history, || self.cast.run(*role)) {
            Ran::At(name, call, forgot) => (name, call, forgot),
            Ran::Ended(result) => return Err(told(&result)),
        };
        let mut since = &got[forgot.answers..];
        // A worker that is about to claim a message remembers nothing of earlier ones.
        if let Some(first) = since.iter().position(|(called, _)| name == "claim" && *called == name) {
            since = &since[..first];
        }
        let call = self.cast.desk.with_space(|space| space.intern_call(call));
        let Search { points, lives, .. } = self;
        let life = (actor, forgot.value, since.iter().map(|(_, answer)| *answer).collect());
        Ok(*lives.entry(life).or_insert_with(|| {
            points.push(Point { actor, from, call, name });
            (points.len() - 1) as Id
        }))
    }

    /// From a world in which nothing moves any more (for now), the operator brings the job to its end.
    fn end(&mut self, world: World, undisturbed: bool) -> std::result::Result<(), String> {
        let cast = self.cast;
        if undisturbed {
            cast.desk.with_space(|space| settled(&space.ledger(world.ledger)))?;
        }
        let (after, result) = cast.desk.live("operator", world, || super::scene::now(cast.bring_to_an_end()));
        result.map_err(|e| format!("the job cannot be brought to its end: {e}"))?;
        let Search { invariants, .. } = self;
        cast.desk
            .with_space(|space| {
                invariants.world(space, &cast.scene, after)?;
                invariants.end(space, after)
            })
            .map_err(|what| format!("{what}, after the job was brought to its end from here"))
    }

    fn violation(&self, found: Found) -> Violation {
        let mut moves = Vec::new();
        let mut at = found.node;
        while at != 0 {
            let (before, last) = self.from[at];
            moves.push((before as usize, last));
            at = before as usize;
        }
        moves.reverse();
        moves.extend(found.last.map(|last| (found.node, last)));
        let schedule = moves.into_iter().flat_map(|(node, last)| self.tell(&self.nodes[node], last)).collect();
        Violation { what: found.what, schedule }
    }

    fn tell(&self, node: &Node, last: Move) -> Vec<String> {
        match last {
            Move::Crash { actor } => vec![format!("{} crashes", self.actors[actor as usize].name)],
            Move::LeaseEnds { message } => vec![format!("the lease of message {message} ends")],
            Move::Step { actor, answer } => {
                let name = self.actors[actor as usize].name;
                let point = node.actors[actor as usize];
                let told = |point: Id, answer: Id| {
                    let call = self.points[point as usize].call;
                    let (call, answer) = self.cast.desk.with_space(|space| (space.call(call), space.answer(answer)));
                    format!("{name}: {} → {}", call.shown, answer.shown)
                };
                let mut lines = vec![told(point, answer)];
                let next = self.ways.get(&(point, answer)).copied();
                if let Some((next, written)) =
                    next.and_then(|next| Some((next, self.written_at_once(self.points[point as usize].name, next, node.world)?)))
                {
                    lines.push(told(next, written.answer));
                }
                lines
            }
        }
    }
}

const INTERNAL: &str = "internal error";

fn told(result: &Result<String>) -> String {
    match result {
        Ok(how) => how.clone(),
        Err(e) if e.kind == Kind::Internal => format!("{INTERNAL}: {e}"),
        Err(e) => format!("error: {e}"),
    }
}
