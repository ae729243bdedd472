//! The operator: sets the scene, gives commands while everything goes on, and at last brings every job to its end.

use super::desk::{Desk, runtime};
use super::dice::Dice;
use super::files::{Writer, head, onto_main};
use super::model::Intent;
use super::others::{Deed, Other};
use super::process::{Order, Process, make_table, now};
use super::scene::rows;
use super::world::{ActorId, State};
use super::{Planted, catalog, invariants, storage};
use std::sync::Arc;
use std::time::Duration;
use timelake_engine::progress::StopFlag;
use timelake_model::ledger::{JobRecord, State as Stands};
use timelake_model::{BackfillRequest, Result};

/// Looks of the operator at what still runs.
const POLL: Duration = Duration::from_millis(500);
/// Orders given to bring one job to its end.
const LAST_ORDERS: u32 = 8;

pub struct Operator {
    desk: Desk,
    dice: Dice,
    processes: u32,
    stops: Vec<StopFlag>,
    started: Vec<ActorId>,
}

impl Operator {
    pub fn new(desk: Desk, dice: Dice) -> Operator {
        Operator { desk, dice, processes: 0, stops: vec![], started: vec![] }
    }

    pub fn act(&mut self) -> Result<()> {
        self.set_the_scene()?;
        self.start_all();
        self.give_orders();
        while self.started.iter().any(|id| self.desk.world.lock().is_alive(*id)) {
            self.desk.pause(POLL);
        }
        self.desk.world.lock().calm = true;
        let requests: Vec<BackfillRequest> = self.with(|s| s.loads.iter().map(|l| l.request.clone()).collect());
        for request in requests.iter().chain(&requests) {
            self.bring_to_an_end(request);
        }
        self.with(invariants::at_end);
        Ok(())
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.desk.world.lock())
    }

    fn set_the_scene(&mut self) -> Result<()> {
        self.with(|state| {
            state.calm = true;
            for (uri, bytes) in state.loads.iter().flat_map(|l| l.files.clone()).collect::<Vec<_>>() {
                storage::put(state, &uri, bytes);
            }
        });
        make_table(&self.desk)?;
        let count = self.dice.below(12);
        if count > 0 {
            let _inside = runtime().enter();
            let new = rows(&mut self.dice, count, 900_000);
            now(async {
                let table = self.desk.load(&catalog::ident())?;
                let from = head(&table)?;
                let mut writer = Writer::new(&self.desk, &table, "before".into());
                let files = writer.data(new.clone()).await?;
                let snapshot = writer.snapshot(from, files, vec![], &[]).await?;
                let (requirements, updates) = onto_main(from, snapshot);
                self.desk.commit(&table, requirements, updates, Some(Intent::Append(new)))
            })?;
        }
        self.with(|state| state.calm = false);
        Ok(())
    }

    fn later(&mut self, most_ms: u64) -> Duration {
        Duration::from_millis(self.dice.below(most_ms))
    }

    fn start_all(&mut self) {
        let cast = self.with(|s| s.profile.cast.clone());
        let requests: Vec<BackfillRequest> = self.with(|s| s.loads.iter().map(|l| l.request.clone()).collect());
        for (n, request) in requests.into_iter().enumerate() {
            let after = if n == 0 { Duration::ZERO } else { self.later(4_000) };
            self.start(Order::Command { request: Box::new(request), again: false }, after);
        }
        let deeds = [
            (Deed::Append, cast.appends),
            (Deed::Audit, cast.audits),
            (Deed::Upsert, cast.upserts),
            (Deed::Compact, cast.compactions),
            (Deed::Remove, cast.removals),
            (Deed::Rewind, cast.rewinds),
            (Deed::Expire, cast.expiries),
        ];
        let mut number = 0;
        for (deed, times) in deeds {
            for _ in 0..times {
                number += 1;
                // Some come while the job runs, some long after it stands still.
                let most_ms = *self.dice.pick(&[300, 3_000, 30_000]);
                let after = self.later(most_ms);
                let (mut dice, when_staged) = (self.dice.split(), self.dice.once_in(3));
                let desk = self.desk.clone();
                let id = self.desk.world.start(format!("{deed:?}-{number}").to_lowercase(), move |id| {
                    let desk = Desk { id, ..desk };
                    desk.pause(after);
                    if when_staged {
                        desk.wait_for_staged(&mut dice);
                    }
                    Other { desk, deed, number }.act();
                });
                self.started.push(id);
            }
        }
        for _ in 0..cast.workers {
            let after = self.later(2_000);
            self.start(Order::Worker, after);
        }
        for _ in 0..cast.collections {
            let after = self.later(1_500_000);
            self.start(Order::Gc, after);
        }
    }

    fn start(&mut self, order: Order, after: Duration) -> ActorId {
        self.processes += 1;
        let kind = match &order {
            Order::Command { .. } => "command",
            Order::Resume { .. } => "resume",
            Order::Cancel { .. } => "cancel",
            Order::Worker => "worker",
            Order::Gc => "gc",
        };
        let (desk, stop) = (self.desk.clone(), StopFlag::default());
        self.stops.push(stop.clone());
        let id = self.desk.world.start(format!("{kind}-{}", self.processes), move |id| {
            let desk = Desk { id, ..desk };
            if !after.is_zero() {
                desk.pause(after);
            }
            let _ = Process::new(desk, stop).run(&order); // the script tells how it ended
        });
        self.started.push(id);
        id
    }

    fn jobs(&self) -> Vec<JobRecord> {
        self.with(|s| s.ledger.jobs(None))
    }

    /// While everything goes on.
    fn give_orders(&mut self) {
        for _ in 0..self.with(|s| s.profile.cast.orders) {
            let pause = self.later(4_000);
            self.desk.pause(pause);
            let loads = self.with(|s| s.loads.clone());
            let request = self.dice.pick(&loads).request.clone();
            let jobs = self.jobs();
            let order = match (self.dice.below(7), jobs.is_empty()) {
                (0 | 1, _) | (_, true) => Order::Command { request: Box::new(request), again: self.dice.once_in(4) },
                (2 | 3, _) => Order::Resume { job: self.dice.pick(&jobs).job.clone() },
                (4 | 5, _) => Order::Cancel { job: self.dice.pick(&jobs).job.clone() },
                _ => {
                    self.dice.pick(&self.stops).stop();
                    self.desk.say("interrupts a process");
                    continue;
                }
            };
            self.start(order, Duration::ZERO);
        }
    }

    fn wait_for(&self, order: ActorId) {
        while self.desk.world.lock().is_alive(order) {
            self.desk.pause(POLL);
        }
    }

    /// Nobody else is at work and nothing goes wrong any more: the command, resume, and when it stands still, cancel.
    fn bring_to_an_end(&mut self, request: &BackfillRequest) {
        for turn in 0..LAST_ORDERS {
            let known = self.jobs().into_iter().find(|j| j.request.rows.from == request.rows.from);
            let order = match known {
                None => Order::Command { request: Box::new(request.clone()), again: false },
                // One that was given up is planned anew, once.
                Some(job) if job.state.is_final() && !job.state.is_published() && turn == 0 => {
                    Order::Command { request: Box::new(request.clone()), again: false }
                }
                Some(job) if job.state.is_final() => return,
                Some(job) if turn > 2 || (job.state == Stands::Hold && turn > 1) => Order::Cancel { job: job.job },
                Some(_) if turn == 0 => Order::Command { request: Box::new(request.clone()), again: false },
                Some(job) => Order::Resume { job: job.job },
            };
            let id = self.start(order, Duration::ZERO);
            self.wait_for(id);
        }
    }
}

/// The operator as an actor; everybody else is started by it.
pub fn start(world: &Arc<super::world::World>, planted: Option<Planted>, dice: Dice) {
    let for_desk = world.clone();
    world.start("operator".into(), move |id| {
        let desk = Desk { world: for_desk, id, planted };
        if let Err(e) = Operator::new(desk.clone(), dice).act() {
            desk.world.lock().broken(9, format!("the scene cannot be set: {e}"));
        }
    });
}
