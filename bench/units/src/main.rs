//! What the units of a job ask of queues and ledger: `timelake-units UNITS WRITERS AT_ONCE` opens the round of a plan of so
//! many units and works them off by the writer's own code, but for the data, with WRITERS writers that take AT_ONCE
//! messages at a time; every fiftieth message comes twice. Prints times and requests as JSON. The environment says where
//! everything is, as it does to functions.

mod requests;
mod work;
mod world;

use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use timelake_bench::Cost;
use timelake_engine::advance::Life;
use timelake_engine::fanin;
use timelake_model::ledger::{PlanRecord, UnitMessage, UnitState};
use timelake_model::{Error, Result, cost};
use tokio::runtime::{Builder, Runtime};
use work::failed;
use world::World;

// As in the functions.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of so many messages one comes twice.
const TWICE: usize = 50;
/// A run ends after that, whatever the job does.
const LEAST_TIME: Duration = Duration::from_secs(60);
const TIME_PER_UNIT: Duration = Duration::from_millis(60);

fn main() -> ExitCode {
    let arguments: Vec<u32> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [units @ (1..), writers @ (1..), at_once @ 1..=10] = arguments[..] else {
        eprintln!("usage: timelake-units UNITS WRITERS AT_ONCE (1 to 10)");
        return ExitCode::FAILURE;
    };
    match Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed).and_then(|r| run(&r, units, writers, at_once))
    {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("timelake-units: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(runtime: &Runtime, units: u32, writers: u32, at_once: u32) -> Result<Value> {
    let world = runtime.block_on(World::open(units))?;
    let (engine, key) = (&world.ports.engine, world.round());

    let opening = Cost::start();
    let announced = runtime.block_on(open(&world))?;
    let opening = opening.end();
    let asked_to_open = world.requests.take();

    let twice: Vec<UnitMessage> = (0..units).step_by(TWICE).map(|unit| UnitMessage { key: key.clone(), unit }).collect();
    runtime.block_on(engine.queue.send(&twice))?;
    let working = Cost::start();
    work_off(runtime, &world, writers, at_once, Instant::now() + LEAST_TIME + TIME_PER_UNIT * units)?;
    let working = working.end();
    let asked_to_work = world.requests.take();
    let tally = world.ports.tally.take();

    runtime.block_on(check(&world, units))?;
    let asked_to_list = world.requests.take();
    if tally.messages != u64::from(units) + twice.len() as u64 {
        return Err(failed(format!("{} messages came", tally.messages)));
    }
    runtime.block_on(all_is_quiet(&world))?;
    let model = cost::of_units(u64::from(units), 0.0);
    Ok(json!({
        "units": units,
        "writers": writers,
        "at_once": at_once,
        "counters": PlanRecord::shards_for(units as usize),
        "twice": twice.len(),
        "opening": { "wall_s": opening.1, "cpu_s": opening.0, "announced": announced, "requests": asked_to_open },
        "working": { "wall_s": working.1, "cpu_s": working.0, "requests": asked_to_work },
        "listing": { "requests": asked_to_list, "times": cost::LISTINGS },
        "model": { "queue_requests": model.queue_requests, "write_units": model.write_units, "read_units": model.read_units },
    }))
}

/// As the planner does once its plan is stored; gives how many units are announced.
async fn open(world: &World) -> Result<u32> {
    let (engine, job) = (&world.ports.engine, &world.job);
    Life { engine, job, stored: &world.stored, resume: false, stage_only: false }.open().await?;
    fanin::nudge(engine, world.ports.signals.as_ref(), job, false).await?;
    let plan = engine.jobs.plan(&world.round()).await?;
    Ok(plan.ok_or_else(|| failed("no round is open"))?.cursor)
}

/// All units end.
fn work_off(runtime: &Runtime, world: &World, writers: u32, at_once: u32, end: Instant) -> Result<()> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let write = || {
            let wrote = runtime.block_on(work::write(world, at_once as i32, &over));
            if wrote.is_err() {
                over.store(true, Ordering::SeqCst);
            }
            wrote
        };
        let writers: Vec<_> = (0..writers).map(|_| scope.spawn(write)).collect();
        let closed = runtime.block_on(work::close(world, &over, end));
        over.store(true, Ordering::SeqCst);
        let wrote: Vec<Result<()>> = writers.into_iter().map(|writer| writer.join().map_err(|_| failed("a writer panicked"))?).collect();
        wrote.into_iter().collect::<Result<()>>().and(closed)
    })
}

/// Each unit is DONE, and was counted once.
async fn check(world: &World, units: u32) -> Result<()> {
    let (engine, key) = (&world.ports.engine, world.round());
    let found = engine.jobs.units(&key.job, key.generation, key.phase, &key.group).await?;
    let done =
        found.iter().filter(|unit| unit.state == UnitState::Done && unit.win.as_ref().is_some_and(|win| unit.attempts.contains(win)));
    let counters = engine.jobs.counters(&key).await?;
    let (left, rows) =
        counters.iter().fold((0, 0), |(left, rows), counter| (left + counter.remaining + counter.failed, rows + counter.rows));
    if (found.len(), done.count(), left, rows) != (units as usize, units as usize, 0, u64::from(units)) {
        return Err(failed(format!("{} units, {rows} counted, {left} left or failed", found.len())));
    }
    Ok(())
}

/// No message is left but words that the round is over, which may come again.
async fn all_is_quiet(world: &World) -> Result<()> {
    while !work::heard(world).await?.is_empty() {}
    match world.queues.waiting().await? {
        0 => Ok(()),
        waiting => Err::<(), Error>(failed(format!("{waiting} messages are left"))),
    }
}
