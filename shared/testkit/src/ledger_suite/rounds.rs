//! Rounds: opened once whoever opens them, counted by shard, closed for good.

use super::*;
use timelake_engine::ports::EndOutcome;
use timelake_model::Kind;
use timelake_model::ledger::{CounterRecord, UnitState};

pub async fn two_planners_open_a_round_once(f: &Fixture) {
    let key = round_key(1, 0);
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let plan = plan_record(&key, 0..50, 2);
    let plans = futures::join!(f.ledger.put_plan(&plan), f.second.put_plan(&plan));
    let (one, two) = (plans.0.unwrap(), plans.1.unwrap());
    assert_eq!(one, two);
    let opened = futures::join!(f.ledger.open_round(&one, 77), f.second.open_round(&two, 77));
    opened.0.unwrap();
    opened.1.unwrap();
    assert_eq!(f.totals(&key).await, (50, 0, 0));

    // A planner that comes when work has begun, with a base read later, changes nothing.
    f.ledger.end_unit(&key, 3, &attempt("x"), &done(&key, 3, &attempt("x"))).await.unwrap();
    f.second.open_round(&PlanRecord { cursor: 50, ..two }, 88).await.unwrap();
    assert_eq!(f.totals(&key).await, (49, 0, 13));
    let (ended, pending) = (f.unit(&key, 3).await, f.unit(&key, 4).await);
    assert_eq!((ended.state, pending.state, pending.base), (UnitState::Done, UnitState::Pending, 77));
}

pub async fn a_round_opens_only_as_its_plan_is_stored(f: &Fixture) {
    let key = round_key(1, 0);
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let plan = f.ledger.put_plan(&plan_record(&key, 0..4, 1)).await.unwrap();
    for other in [
        PlanRecord { units: vec![0, 1, 2], ..plan.clone() },
        PlanRecord { shards: 2, ..plan.clone() },
        PlanRecord { plan_hash: "other".into(), ..plan.clone() },
    ] {
        assert_eq!(f.second.open_round(&other, 77).await.unwrap_err().kind, Kind::Internal);
    }
    let twice = f.ledger.put_plan(&plan_record(&round_key(1, 1), [3, 5, 3], 1)).await.unwrap();
    assert_eq!(f.ledger.open_round(&twice, 77).await.unwrap_err().kind, Kind::Internal, "its counter would never reach 0");
    for key in [&key, &twice.key] {
        assert_eq!(f.second.counters(key).await.unwrap(), []);
    }
    assert_eq!(f.second.units(&key.job, 1, key.phase, &key.group).await.unwrap(), []);
}

pub async fn units_share_counters_by_their_position(f: &Fixture) {
    let key = round_key(1, 0);
    // Unit numbers say nothing about positions: a later round holds only some units.
    let plan = f.open_round(&key, (0..2500).map(|n| n * 3), PlanRecord::shards_for(2500)).await;
    let remaining = async || f.second.counters(&key).await.unwrap().iter().map(|c| (c.shard, c.remaining)).collect::<Vec<_>>();
    assert_eq!(remaining().await, [(0, 834), (1, 833), (2, 833)]);
    let unit = plan.units[4]; // position 4 mod 3
    f.ledger.end_unit(&key, unit, &attempt("x"), &failed("full")).await.unwrap();
    assert_eq!(remaining().await, [(0, 834), (1, 832), (2, 833)]);
    let expected = CounterRecord { key: key.clone(), shard: 1, open: true, remaining: 832, failed: 1, rows: 0 };
    assert_eq!(f.second.counters(&key).await.unwrap()[1], expected);
}

pub async fn a_counter_without_units_is_not_written(f: &Fixture) {
    let (few, none) = (round_key(1, 0), round_key(1, 1));
    f.open_round(&few, [8, 9], 4).await;
    f.open_round(&none, [], 1).await;
    assert_eq!(f.second.counters(&few).await.unwrap().iter().map(|c| (c.shard, c.remaining)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    assert_eq!(f.second.counters(&none).await.unwrap(), []);
}

pub async fn a_round_closed_before_it_is_opened_stays_closed(f: &Fixture) {
    let (key, unknown) = (round_key(1, 0), round_key(1, 5));
    f.ledger.close_round(&unknown).await.unwrap();
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let plan = f.ledger.put_plan(&plan_record(&key, [0, 1], 1)).await.unwrap();
    f.second.close_round(&key).await.unwrap(); // a cancel overtakes the planner
    f.ledger.open_round(&plan, 77).await.unwrap();
    assert!(!f.ledger.begin_attempt(&key, 0, &attempt("x")).await.unwrap());
    assert_eq!(f.ledger.end_unit(&key, 0, &attempt("x"), &failed("full")).await.unwrap(), EndOutcome::Fenced);
    assert!(f.second.counters(&key).await.unwrap().iter().all(|c| !c.open && c.remaining == 2));
}

pub async fn late_attempts_of_closed_rounds_are_fenced(f: &Fixture) {
    let (old_generation, old_round, current) = (round_key(1, 3), round_key(2, 0), round_key(2, 1));
    for key in [&old_generation, &old_round, &current] {
        f.open_round(key, 0..3, 1).await;
    }
    let late = attempt("late");
    for key in [&old_generation, &old_round] {
        assert!(f.ledger.begin_attempt(key, 0, &late).await.unwrap());
        f.ledger.close_round(key).await.unwrap();
        f.ledger.close_round(key).await.unwrap();
        assert_eq!(f.second.end_unit(key, 0, &late, &done(key, 0, &late)).await.unwrap(), EndOutcome::Fenced);
        assert_eq!(f.second.end_unit(key, 0, &late, &failed("full")).await.unwrap(), EndOutcome::Fenced);
        assert!(!f.second.begin_attempt(key, 1, &late).await.unwrap());
        let unit = f.unit(key, 0).await;
        assert_eq!((unit.state, unit.win, unit.receipt, unit.attempts), (UnitState::Pending, None, None, vec![late.clone()]));
        assert_eq!(f.totals(key).await, (3, 0, 0));
    }
    // What was never opened has no counter, and a unit of no round has none either.
    let absent = round_key(3, 0);
    assert_eq!(f.ledger.end_unit(&absent, 0, &late, &done(&absent, 0, &late)).await.unwrap(), EndOutcome::Fenced);
    assert_eq!(f.ledger.end_unit(&current, 7, &late, &done(&current, 7, &late)).await.unwrap(), EndOutcome::Fenced);
    assert!(!f.ledger.begin_attempt(&absent, 0, &late).await.unwrap());
    // The life that goes on is not touched by any of it.
    assert_eq!(f.totals(&current).await, (3, 0, 0));
    assert_eq!(f.ledger.end_unit(&current, 0, &late, &done(&current, 0, &late)).await.unwrap(), EndOutcome::Won);
}

pub async fn what_ended_before_the_round_was_closed_stays_ended(f: &Fixture) {
    let (key, winner) = (round_key(1, 0), attempt("w"));
    f.open_round(&key, 0..2, 1).await;
    f.ledger.end_unit(&key, 0, &winner, &done(&key, 0, &winner)).await.unwrap();
    f.ledger.close_round(&key).await.unwrap();
    // The winner whose answer was lost still learns that it won.
    let repeated = f.ledger.end_unit(&key, 0, &winner, &done(&key, 0, &winner)).await.unwrap();
    assert_eq!(repeated, EndOutcome::AlreadyEnded { win: Some(winner) });
    assert_eq!(f.totals(&key).await, (1, 0, 10));
    assert!(f.second.counters(&key).await.unwrap().iter().all(|c| !c.open));
}
