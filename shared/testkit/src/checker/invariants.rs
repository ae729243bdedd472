//! What must hold in every world, after every step of the ledger, and when a job was brought to its end.

use super::catalog::CatalogState;
use super::scene::{Scene, job, now};
use super::space::{FilesState, Id, Space, World};
use super::tell::short;
use crate::ledger_state::LedgerState;
use iceberg::spec::{Manifest, Snapshot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use timelake_engine::rounds;
use timelake_model::Receipt;
use timelake_model::ids::{LOCK_PREFIX, published_tag};
use timelake_model::ledger::{GroupRecord, Phase, State, UnitMessage, UnitState, job_state};

/// `Err` says what is wrong.
pub type Checked = Result<(), String>;

/// What `main` of a catalog's state holds.
struct OnMain {
    /// Data files that snapshots of `main` added, by job's (generation, group), and by nobody we know.
    published: BTreeMap<(u32, String), Vec<Published>>,
    files: BTreeSet<String>,
    /// A file that two snapshots added.
    twice: Option<String>,
    tags: BTreeMap<String, i64>,
}

struct Published {
    snapshot: i64,
    files: BTreeSet<String>,
}

/// The invariants, with what was read of manifests so far.
#[derive(Default)]
pub struct Invariants {
    mains: HashMap<Id, Arc<OnMain>>,
    added: HashMap<String, Arc<BTreeSet<String>>>,
}

impl Invariants {
    /// Holds in every world.
    pub fn world(&mut self, space: &Space, scene: &Scene, world: World) -> Checked {
        let (ledger, files) = (space.ledger(world.ledger), space.files(world.files));
        let main = self.on_main(&space.catalog(world.catalog), world.catalog, scene);
        counters(&ledger)?;
        winners_have_files(&ledger, &files)?;
        if let Some(path) = &main.twice {
            return Err(format!("main names {path} twice"));
        }
        if let Some(path) = main.files.iter().find(|path| !files.data.contains(*path)) {
            return Err(format!("main names {path}, which does not exist"));
        }
        for ((generation, group), published) in &main.published {
            if published.len() > 1 {
                return Err(format!("group {group} of generation {generation} is published {} times", published.len()));
            }
            let Some(record) = ledger.groups.values().find(|g| g.generation == *generation && g.group.0 == *group) else {
                return Err(format!("group {group} of generation {generation} is published and not in the ledger"));
            };
            for published in published {
                publication(&ledger, record, published, &main)?;
            }
        }
        for group in ledger.groups.values().filter(|g| g.state.is_published() && g.committed) {
            if !main.published.contains_key(&(group.generation, group.group.0.clone())) {
                return Err(format!("group {} of generation {} says PUBLISHED and is not on main", group.group, group.generation));
            }
        }
        if main.published.len() > 1 {
            return Err("two generations of the job are on main".into());
        }
        Ok(())
    }

    /// Holds when a job was brought to its end: final, and nothing left that blocks another.
    pub fn end(&self, space: &Space, world: World) -> Checked {
        let ledger = space.ledger(world.ledger);
        let state = ledger.job(&job()).map(|j| j.state);
        if !state.is_some_and(State::is_final) {
            return Err(format!("the job ends {}", state.map_or("nowhere".into(), |s| s.to_string())));
        }
        let catalog = space.catalog(world.catalog);
        let Some(table) = catalog.table() else { return Err("the table is gone".into()) };
        let refs = timelake_table::refs(table.metadata()).map_err(|e| e.to_string())?;
        if let Some(branch) = refs.keys().find(|name| name.starts_with("backfill/")) {
            return Err(format!("the job is {} and branch {branch} is left", state.unwrap_or(State::Planning)));
        }
        if let Some(lock) = table.metadata().properties().keys().find(|name| name.starts_with(LOCK_PREFIX)) {
            return Err(format!("the job is {} and lock {lock} is left", state.unwrap_or(State::Planning)));
        }
        let reachable: BTreeSet<i64> = chain(&catalog).iter().map(|s| s.snapshot_id()).collect();
        if let Some(staged) = table.metadata().snapshots().find(|s| !reachable.contains(&s.snapshot_id())) {
            return Err(format!("staged snapshot {} is left", short(staged.snapshot_id())));
        }
        // A message of a unit that has ended is dropped by whoever claims it.
        match ledger.queue.values().find(|m| !(state.is_some_and(State::is_published) && has_ended(&ledger, &m.message))) {
            None => Ok(()),
            Some(left) => Err(format!("the message of unit {} round {} is left", left.message.unit, left.message.key.round)),
        }
    }

    fn on_main(&mut self, catalog: &CatalogState, id: Id, scene: &Scene) -> Arc<OnMain> {
        if let Some(known) = self.mains.get(&id) {
            return known.clone();
        }
        let mut main = OnMain { published: BTreeMap::new(), files: BTreeSet::new(), twice: None, tags: BTreeMap::new() };
        if let Some(table) = catalog.table() {
            let refs = timelake_table::refs(table.metadata()).expect("refs are readable");
            main.tags = refs.into_iter().map(|(name, r)| (name, r.snapshot_id)).collect();
        }
        for snapshot in chain(catalog) {
            let files = self.added(snapshot, catalog, scene);
            for file in files.iter() {
                if !main.files.insert(file.clone()) {
                    main.twice = Some(file.clone());
                }
            }
            let summary = &snapshot.summary().additional_properties;
            if let (Some(generation), Some(group)) = (summary.get("timelake.generation"), summary.get("timelake.group")) {
                let key = (generation.parse().unwrap_or(0), group.clone());
                let published = Published { snapshot: snapshot.snapshot_id(), files: (*files).clone() };
                main.published.entry(key).or_default().push(published);
            }
        }
        let main = Arc::new(main);
        self.mains.insert(id, main.clone());
        main
    }

    /// Data files that a snapshot added. A manifest list's path stands for one content.
    fn added(&mut self, snapshot: &Snapshot, catalog: &CatalogState, scene: &Scene) -> Arc<BTreeSet<String>> {
        if let Some(known) = self.added.get(snapshot.manifest_list()) {
            return known.clone();
        }
        let table = catalog.table().expect("a snapshot is of a table");
        let manifests = now(timelake_table::manifests_of(table, &Arc::new(snapshot.clone()))).expect("manifest lists stay");
        let mut files = BTreeSet::new();
        for manifest in manifests.iter().filter(|m| m.added_snapshot_id == snapshot.snapshot_id()) {
            let input = scene.file_io.new_input(&manifest.manifest_path).expect("a path");
            let bytes = now(input.read()).expect("manifests stay");
            let manifest = Manifest::parse_avro(&bytes).expect("a manifest");
            files.extend(manifest.entries().iter().map(|e| e.data_file().file_path().to_string()));
        }
        let files = Arc::new(files);
        self.added.insert(snapshot.manifest_list().to_string(), files.clone());
        files
    }
}

/// Snapshots of `main`, newest first.
fn chain(catalog: &CatalogState) -> Vec<&Snapshot> {
    let Some(table) = catalog.table() else { return vec![] };
    let mut out: Vec<&Snapshot> = Vec::new();
    let mut at = table.metadata().current_snapshot();
    while let Some(snapshot) = at {
        out.push(snapshot);
        at = snapshot.parent_snapshot_id().and_then(|id| table.metadata().snapshot_by_id(id));
    }
    out
}

/// Counters are the numbers of units they stand for.
fn counters(ledger: &LedgerState) -> Checked {
    for ((key, shard), counter) in &ledger.counters {
        let units = || ledger.units.values().filter(|u| u.unit.key == *key && u.shard == *shard).map(|u| u.unit.state);
        let pending = units().filter(|s| *s == UnitState::Pending).count() as u32;
        let failed = units().filter(|s| *s == UnitState::Failed).count() as u32;
        if (counter.remaining, counter.failed) != (pending, failed) {
            return Err(format!(
                "the counter of generation {} round {} says {} remain and {} failed, {pending} are pending and {failed} failed",
                key.generation, key.round, counter.remaining, counter.failed
            ));
        }
    }
    Ok(())
}

/// What an attempt that won has written is there.
fn winners_have_files(ledger: &LedgerState, files: &FilesState) -> Checked {
    for stored in ledger.units.values() {
        if let Some(Receipt::Write(receipt)) = &stored.unit.receipt
            && let Some(file) = receipt.files.iter().find(|f| !files.data.contains(&f.path))
        {
            return Err(format!("unit {} is DONE and its file {} does not exist", stored.unit.unit, file.path));
        }
    }
    Ok(())
}

/// A published group is one that may be, with exactly the files of its winners.
fn publication(ledger: &LedgerState, group: &GroupRecord, published: &Published, main: &OnMain) -> Checked {
    let named = format!("group {} of generation {}", group.group, group.generation);
    if matches!(group.state, State::Cancelled | State::Rejected) {
        return Err(format!("{named} is {} and on main", group.state));
    }
    let tag = published_tag(&group.job, group.generation, &group.group);
    if main.tags.get(&tag) != Some(&published.snapshot) {
        return Err(format!("{named} is on main without its tag"));
    }
    let units = ledger.units(&group.job, group.generation, Phase::Write, &group.group);
    let mut expected = BTreeSet::new();
    for unit in rounds::latest(units, group.round) {
        match unit.receipt {
            Some(Receipt::Write(receipt)) => expected.extend(receipt.files.into_iter().map(|f| f.path)),
            _ => return Err(format!("{named} is on main and its unit {} is not DONE", unit.unit)),
        }
    }
    if expected != published.files {
        return Err(format!("{named} put other files on main than those of its winning attempts"));
    }
    Ok(())
}

/// Holds when all actors have ended and none was disturbed: the job says what its groups say, and what came twice holds
/// nobody up.
pub fn settled(ledger: &LedgerState) -> Checked {
    let Some(record) = ledger.job(&job()) else { return Err("the job is gone".into()) };
    let groups = ledger.groups(&record.job, record.generation);
    let state = job_state(groups.iter().map(|g| g.state));
    if !groups.is_empty() && record.state != state {
        return Err(format!("the job is {}, its groups are {state}", record.state));
    }
    match groups.iter().find(|g| g.state == State::Hold && !ledger.units.values().any(|u| u.unit.state == UnitState::Failed)) {
        None => Ok(()),
        Some(held) => Err(format!("group {} is on HOLD although nothing went wrong", held.group)),
    }
}

/// What the ledger says has happened: for tests that must not pass with nothing explored.
pub fn events(ledger: &LedgerState) -> impl Iterator<Item = String> {
    let groups = ledger.groups.values().map(|g| match &g.error {
        None => format!("generation {} is {}", g.generation, g.state),
        Some(error) => format!("generation {} is {}: {}", g.generation, g.state, error.reason),
    });
    let units = ledger.units.values().filter_map(|stored| {
        let unit = &stored.unit;
        let attempt = 1 + unit.attempts.iter().position(|a| Some(a) == unit.win.as_ref())?;
        Some(format!("attempt {attempt} wins in round {} of generation {}", unit.key.round, unit.key.generation))
    });
    let waits = ledger.queue.values().any(|m| m.tries == 0 && has_ended(ledger, &m.message));
    groups.chain(units).chain(waits.then(|| SENT_FOR_NOTHING.to_string()))
}

/// An event: messages of units that have ended are sent again.
pub const SENT_FOR_NOTHING: &str = "a unit that has ended is sent again";

fn has_ended(ledger: &LedgerState, message: &UnitMessage) -> bool {
    ledger.units.get(&(message.key.clone(), message.unit)).is_some_and(|u| u.unit.state != UnitState::Pending)
}

/// Holds for each step of the ledger: a win never changes, and a closed round stays as it was.
pub fn step(before: &LedgerState, after: &LedgerState) -> Checked {
    for (key, old) in &before.units {
        let Some(new) = after.units.get(key) else { return Err(format!("unit {} is gone", key.1)) };
        let (old_unit, new_unit) = (&old.unit, &new.unit);
        if old_unit.state != UnitState::Pending && (old_unit.state, &old_unit.win) != (new_unit.state, &new_unit.win) {
            return Err(format!("the win of unit {} changed from {:?} to {:?}", key.1, old_unit.win, new_unit.win));
        }
        let open = before.counters.get(&(key.0.clone(), old.shard)).is_some_and(|c| c.open);
        if !open && (old_unit.state, &old_unit.win, &old_unit.attempts) != (new_unit.state, &new_unit.win, &new_unit.attempts) {
            return Err(format!("unit {} of the closed round {} of generation {} changed", key.1, key.0.round, key.0.generation));
        }
    }
    for (key, old) in &before.counters {
        let Some(new) = after.counters.get(key) else { return Err("a counter is gone".into()) };
        if !old.open && new != old {
            return Err(format!("the closed counter of generation {} round {} changed", key.0.generation, key.0.round));
        }
    }
    for (key, old) in &before.groups {
        let Some(new) = after.groups.get(key) else { return Err(format!("group {} is gone", key.2)) };
        if old.state.is_final() && new.state != old.state {
            return Err(format!("group {} of generation {} was {} and is {}", key.2, key.1, old.state, new.state));
        }
    }
    let generation = |l: &LedgerState| l.jobs.values().map(|j| j.generation).max();
    if generation(after) < generation(before) {
        return Err("the job's generation went back".into());
    }
    Ok(())
}
