//! The engine's transitions under every interleaving of a few actors: nothing is found in them, and each planted
//! fault is found.

use timelake_testkit::checker::{Actor, Budget, Fault, Model, Prepared, Report, Role, SENT_FOR_NOTHING, Starts, Swap};

const WORKER: Role = Role::Worker { may_fail: false };
const COMMAND: Role = Role::Runner { resume: false };
const RESUME: Role = Role::Runner { resume: true };

fn actor(name: &'static str, role: Role) -> Actor {
    Actor { name, role, starts: Starts::Always }
}

fn after_a_crash(name: &'static str, role: Role) -> Actor {
    Actor { name, role, starts: Starts::AfterACrash }
}

fn undisturbed() -> Budget {
    Budget::default()
}

fn one_crash() -> Budget {
    Budget { crashes: 1, together: 1, ..Budget::default() }
}

/// A crash or a lost answer.
fn one_disturbance() -> Budget {
    Budget { crashes: 1, lost_answers: 1, together: 1, ..Budget::default() }
}

fn model(name: &'static str, units: u32, prepared: Prepared, actors: Vec<Actor>, budget: Budget) -> Model {
    Model { name, units, swap: Swap::Requirements, prepared, actors, budget }
}

/// Two workers share three units; leases end under them.
fn fan_in() -> Model {
    let actors = vec![actor("worker a", WORKER), actor("worker b", WORKER)];
    model("fan-in", 3, Prepared::Opened, actors, Budget { together: 2, lost_leases: 2, ..one_disturbance() })
}

/// The message that all units are done comes twice.
fn close_twice() -> Model {
    let actors = vec![actor("finalizer a", Role::Finalizer), actor("finalizer b", Role::Finalizer), after_a_crash("again", COMMAND)];
    model("two close messages", 2, Prepared::Written, actors, one_disturbance())
}

fn close_and_cancel() -> Model {
    let actors = vec![actor("finalizer", Role::Finalizer), actor("cancel", Role::Cancel)];
    model("close and cancel", 2, Prepared::Written, actors, one_disturbance())
}

fn close_twice_and_cancel() -> Model {
    let actors = vec![actor("finalizer a", Role::Finalizer), actor("finalizer b", Role::Finalizer), actor("cancel", Role::Cancel)];
    model("two close messages and a cancel", 2, Prepared::Staged, actors, undisturbed())
}

/// An attempt fails for good; whoever closes the round puts the group on HOLD.
fn attempts_fail() -> Model {
    let worker = Role::Worker { may_fail: true };
    let close = Actor { name: "finalizer", role: Role::Finalizer, starts: Starts::After(0) };
    let actors = vec![actor("worker a", worker), actor("worker b", worker), close];
    model("attempts fail", 2, Prepared::Opened, actors, Budget { failures: 1, together: 2, ..one_disturbance() })
}

fn main_moves(swap: Swap) -> Model {
    let actors = vec![actor("finalizer", Role::Finalizer), actor("live writer", Role::LiveWriter), after_a_crash("again", COMMAND)];
    Model { swap, ..model("main moves", 2, Prepared::Written, actors, one_disturbance()) }
}

fn plan_twice() -> Model {
    let actors = vec![actor("planner a", Role::Planner), actor("planner b", Role::Planner)];
    model("two planners", 3, Prepared::Planned, actors, one_disturbance())
}

fn run_and_cancel() -> Model {
    let actors = vec![actor("run", COMMAND), actor("cancel", Role::Cancel)];
    model("run and cancel", 1, Prepared::Planned, actors, one_crash())
}

fn next_generation() -> Model {
    let next = Actor { name: "next run", role: Role::Replanner, starts: Starts::After(1) };
    let actors = vec![actor("old worker", WORKER), actor("cancel", Role::Cancel), next];
    model("next generation", 2, Prepared::Opened, actors, Budget { lost_leases: 1, ..one_disturbance() })
}

/// The cancel ends or dies before the run has opened its generation; then the command is given again.
fn plan_cancel_and_plan_again() -> Model {
    let next = Actor { name: "next run", role: Role::Replanner, starts: Starts::After(0) };
    let actors = vec![actor("planner", Role::Planner), actor("cancel", Role::Cancel), next];
    model("plan, cancel and plan again", 1, Prepared::Planned, actors, one_crash())
}

fn resume_beside_a_worker() -> Model {
    let actors = vec![actor("resume", RESUME), actor("old worker", WORKER), after_a_crash("again", RESUME)];
    model("resume beside a worker", 2, Prepared::Held, actors, one_crash())
}

fn resume_and_cancel() -> Model {
    let actors = vec![actor("resume", RESUME), actor("cancel", Role::Cancel)];
    model("resume and cancel", 1, Prepared::Held, actors, one_crash())
}

/// Explores the healthy code. A search that reached less than it should is no proof.
fn finds_nothing(model: Model, at_least: usize, happens: &[&str]) -> Report {
    let report = model.explore(None);
    println!("{report}");
    assert!(report.violation.is_none(), "{report}");
    assert!(report.nodes >= at_least, "{report}");
    for event in happens {
        assert!(report.seen.contains(*event), "\"{event}\" never happens\n{report}");
    }
    report
}

#[test]
fn every_unit_ends_once_whatever_workers_do() {
    let happens = ["attempt 1 wins in round 0 of generation 1", "attempt 2 wins in round 0 of generation 1"];
    finds_nothing(fan_in(), 15_000, &happens);
}

#[test]
fn two_close_messages_publish_once() {
    let happens = ["finalizer a: job PUBLISHED", "finalizer b: job PUBLISHED", "again: job PUBLISHED"];
    let report = finds_nothing(close_twice(), 100_000, &happens);
    assert!(!report.seen.contains(SENT_FOR_NOTHING), "{report}");
}

#[test]
fn a_cancel_or_a_publish_wins_and_never_both() {
    let happens = ["finalizer: job PUBLISHED", "finalizer: job CANCELLED", "cancel: job PUBLISHED", "cancel: job CANCELLED"];
    finds_nothing(close_and_cancel(), 100_000, &happens);
}

#[test]
fn a_cancel_between_two_close_messages() {
    let happens = ["generation 1 is PUBLISHED", "generation 1 is CANCELLED", "cancel: job PUBLISHED", "cancel: job CANCELLED"];
    finds_nothing(close_twice_and_cancel(), 400_000, &happens);
}

#[test]
fn a_unit_that_fails_holds_its_group_once() {
    let happens = ["finalizer: job HOLD", "finalizer: job PUBLISHED", "generation 1 is HOLD: source_changed"];
    finds_nothing(attempts_fail(), 10_000, &happens);
}

#[test]
fn main_moves_while_a_job_is_published() {
    for swap in [Swap::Requirements, Swap::Pointer] {
        finds_nothing(main_moves(swap), 10_000, &["finalizer: job PUBLISHED", "again: job PUBLISHED", "live writer: appended"]);
    }
}

#[test]
fn two_planners_open_one_generation() {
    finds_nothing(plan_twice(), 8_000, &["planner a: job WRITING", "planner b: job WRITING"]);
}

#[test]
fn a_cancel_reaches_a_run_wherever_it_is() {
    let happens = ["run: job PUBLISHED", "run: job CANCELLED", "cancel: job PUBLISHED", "cancel: job CANCELLED"];
    finds_nothing(run_and_cancel(), 300_000, &happens);
}

#[test]
fn the_next_generation_is_apart_from_the_old_one() {
    let happens = ["cancel: job CANCELLED", "generation 2 is PUBLISHED", "next run: job PUBLISHED", "old worker: no messages left"];
    finds_nothing(next_generation(), 30_000, &happens);
}

#[test]
fn a_job_cancelled_while_it_is_planned_can_be_planned_again() {
    finds_nothing(
        plan_cancel_and_plan_again(),
        300_000,
        &["cancel: job CANCELLED", "generation 2 is PUBLISHED", "next run: job PUBLISHED"],
    );
}

#[test]
fn a_held_job_is_resumed_beside_a_worker() {
    let happens = [
        "generation 1 is HOLD: source_changed",
        "attempt 2 wins in round 1 of generation 1",
        "resume: job PUBLISHED",
        "again: job PUBLISHED",
    ];
    finds_nothing(resume_beside_a_worker(), 200_000, &happens);
}

#[test]
fn a_held_job_is_resumed_and_cancelled() {
    let happens = ["resume: job PUBLISHED", "resume: job CANCELLED", "cancel: job PUBLISHED", "cancel: job CANCELLED"];
    finds_nothing(resume_and_cancel(), 100_000, &happens);
}

/// Explores with a fault planted: the invariant that it breaks is found, and the shortest way to it told.
fn finds(model: Model, fault: Fault, broken: &str, last: &str) {
    let report = model.explore(Some(fault));
    println!("{fault:?} in {report}");
    let violation = report.violation.expect("the fault is found");
    assert!(violation.what.contains(broken), "{}", violation.what);
    assert!(violation.schedule.last().is_some_and(|step| step.contains(last)), "{violation}");
}

#[test]
fn a_decrement_without_its_condition_is_found() {
    finds(fan_in(), Fault::DecrementWithoutCondition, "the counter of generation 1 round 0 says", "end_unit");
}

#[test]
fn an_attempt_that_deletes_files_on_an_unclear_answer_is_found() {
    finds(fan_in(), Fault::FilesDeletedOnUnclearAnswer, "does not exist", "delete_files");
}

#[test]
fn a_publish_without_its_branch_requirement_is_found() {
    finds(close_and_cancel(), Fault::PublishWithoutBranchRequirement, "is CANCELLED and on main", "update_group(gen 1 CANCELLED");
}
