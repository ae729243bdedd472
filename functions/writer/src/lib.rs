//! The writer: lands splits and writes units, one message at a time.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use std::collections::BTreeSet;
use timelake_engine::inventory::{self, Effort};
use timelake_engine::plan::PlanLimits;
use timelake_engine::progress::StopFlag;
use timelake_engine::store;
use timelake_engine::work::{Attempts, Held, Landing, Workers, Writing};
use timelake_functions::{Ports, batch, work_off};
use timelake_model::ledger::{Phase, RoundKey};
use timelake_model::{AttemptId, Error, Reason, Receipt, Result};
use tokio::runtime::Handle;

pub async fn handle(ports: &Ports, event: SqsEvent, stop: &StopFlag) -> SqsBatchResponse {
    batch(&ports.tally, event, async |message| work_off(ports, message, stop, opening).await).await
}

fn opening<'a>(ports: &'a Ports, workers: &'a Workers<'a>, phase: Phase) -> Box<dyn Attempts + 'a> {
    Box::new(Opening { ports, workers, phase })
}

/// Opens what a unit reads and nothing else, as a part of its attempt: a source that has changed ends the unit.
struct Opening<'a> {
    ports: &'a Ports,
    workers: &'a Workers<'a>,
    phase: Phase,
}

impl Attempts for Opening<'_> {
    fn phase(&self) -> Phase {
        self.phase
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        let Workers { engine, job, .. } = *self.workers;
        let check_stop = || held.check();
        let limits = PlanLimits::new(self.ports.memory_bytes, 1);
        let effort = Effort { limits, threads: 1, sources: &engine.sources, runs_folder: "", check_stop: &check_stop };
        let table = runtime.block_on(inventory::open_table(engine, &job.table))?;
        let spec = inventory::spec(&job.request.rows, &table)?;
        let gone = || Error::corrupt(Reason::LedgerDamaged, format!("the plan of job {} is gone", job.job));
        if self.phase == Phase::Land {
            let plan = runtime.block_on(store::load_land_plan(engine, &job.job, job.generation))?.ok_or_else(gone)?;
            let bound = inventory::reopen(&plan.inventory, Some(&BTreeSet::from([unit])), &spec, &effort)?;
            let buffer = self.ports.limits().buffer_bytes() as usize;
            return Landing::new(self.workers, &plan, &spec, &bound, buffer, 0).attempt(key, unit, attempt, held, runtime);
        }
        let stored = runtime.block_on(store::load_plan(engine, &job.job, job.generation))?.ok_or_else(gone)?;
        let planned = stored.plan.group(&key.group).into_iter().flat_map(|g| &g.units).find(|u| u.index == unit);
        let objects: BTreeSet<u32> = planned.into_iter().flat_map(|u| u.inputs.iter().map(|i| i.object)).collect();
        let spec = match stored.inventory.landed {
            Some(_) => inventory::run_spec(&stored.inventory)?,
            None => spec,
        };
        let bound = inventory::reopen(&stored.inventory, Some(&objects), &spec, &effort)?;
        Writing::new(self.workers, &stored, &spec, &bound).attempt(key, unit, attempt, held, runtime)
    }
}
