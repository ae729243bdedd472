//! A model: from where the search starts, who acts, and what may go wrong.

use super::actors::{Cast, Role};
use super::catalog::{CatalogState, Swap};
use super::desk::Desk;
use super::ports::{self, Fault};
use super::scene::{Scene, now};
use super::search::{Actor, Budget, Report, Search};
use super::space::Space;
use std::sync::Arc;

/// What happened before the model starts, in order and undisturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// The plan is stored.
    Planned,
    /// And the generation is open: branch, lock, units, messages.
    Opened,
    /// And all units are DONE.
    Written,
    /// And the group is STAGED.
    Staged,
    /// The generation was open, and the first attempt failed: a worker ended, the group is on HOLD.
    Held,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub name: &'static str,
    pub units: u32,
    pub swap: Swap,
    pub prepared: Prepared,
    pub actors: Vec<Actor>,
    pub budget: Budget,
}

impl Model {
    /// Explores the model, with a fault planted.
    pub fn explore(&self, fault: Option<Fault>) -> Report {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        let inside = runtime.enter();
        let (space, world) = Space::new(CatalogState::new(self.swap));
        let desk = Desk::new(space);
        let (engine, queue) = (ports::engine(desk.clone(), fault), ports::queue(desk.clone(), fault));
        let (world, (scene, plan)) = desk.live("first", world, || {
            let scene = Scene::prepare(&engine, self.units);
            let plan = now(scene.store_plan(&engine, 1)).expect("the plan is stored");
            (scene, Arc::new(plan))
        });
        let cast = Cast { engine, queue, desk: desk.clone(), runtime: runtime.handle().clone(), scene, plan };
        let before: &[Role] = match self.prepared {
            Prepared::Planned => &[],
            Prepared::Opened => &[Role::Planner],
            Prepared::Written => &[Role::Planner, Role::Worker { may_fail: false }],
            Prepared::Staged => &[Role::Planner, Role::Worker { may_fail: false }, Role::Stager],
            Prepared::Held => &[Role::Planner, Role::FailingWorker, Role::Finalizer],
        };
        let mut world = world;
        for (i, role) in before.iter().enumerate() {
            let (after, ended) = desk.live(&format!("before-{i}"), world, || cast.run(*role));
            ended.expect("what comes before goes well");
            world = after;
        }
        drop(inside);
        Search::new(&cast, &self.actors, self.budget).explore(self.name, world)
    }
}
