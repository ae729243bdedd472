//! Units: each ends once, by one attempt, together with its counter.

use super::*;
use crate::faults::{FaultPoint, FaultyJobStore};
use timelake_engine::ports::EndOutcome;
use timelake_model::Kind;
use timelake_model::ledger::UnitState;

pub async fn attempts_are_recorded_once_and_only_while_pending(f: &Fixture) {
    let key = round_key(1, 0);
    f.open_round(&key, 0..2, 1).await;
    for name in ["b", "a", "b"] {
        assert!(f.ledger.begin_attempt(&key, 0, &attempt(name)).await.unwrap());
    }
    assert_eq!(f.unit(&key, 0).await.attempts, [attempt("b"), attempt("a")], "in order, each once");
    f.ledger.end_unit(&key, 0, &attempt("a"), &done(&key, 0, &attempt("a"))).await.unwrap();
    assert!(!f.second.begin_attempt(&key, 0, &attempt("c")).await.unwrap());
    f.ledger.end_unit(&key, 1, &attempt("d"), &failed("full")).await.unwrap();
    assert!(!f.second.begin_attempt(&key, 1, &attempt("e")).await.unwrap());
    assert_eq!(f.unit(&key, 0).await.attempts.len(), 2);
}

pub async fn a_duplicate_end_changes_nothing(f: &Fixture) {
    let (key, winner) = (round_key(1, 0), attempt("w"));
    f.open_round(&key, 0..3, 1).await;
    let end = done(&key, 2, &winner);
    assert_eq!(f.ledger.end_unit(&key, 2, &winner, &end).await.unwrap(), EndOutcome::Won);
    let once = f.unit(&key, 2).await;
    for ledger in [&f.ledger, &f.second] {
        let repeated = ledger.end_unit(&key, 2, &winner, &end).await.unwrap();
        assert_eq!(repeated, EndOutcome::AlreadyEnded { win: Some(winner.clone()) });
    }
    assert_eq!(f.totals(&key).await, (2, 0, 12));
    assert_eq!(f.unit(&key, 2).await, once);
}

pub async fn one_of_two_attempts_wins(f: &Fixture) {
    let (key, one, two) = (round_key(1, 0), attempt("one"), attempt("two"));
    f.open_round(&key, 0..2, 1).await;
    for attempt in [&one, &two] {
        assert!(f.ledger.begin_attempt(&key, 0, attempt).await.unwrap());
    }
    let (end_one, end_two) = (done(&key, 0, &one), done(&key, 0, &two));
    let (first, second) = futures::join!(f.ledger.end_unit(&key, 0, &one, &end_one), f.second.end_unit(&key, 0, &two, &end_two));
    let outcomes = [(&one, first.unwrap()), (&two, second.unwrap())];
    let winners: Vec<_> = outcomes.iter().filter(|(_, outcome)| *outcome == EndOutcome::Won).map(|(a, _)| (*a).clone()).collect();
    assert_eq!(winners.len(), 1);
    let told = EndOutcome::AlreadyEnded { win: Some(winners[0].clone()) };
    assert!(outcomes.iter().any(|(_, outcome)| *outcome == told), "the loser learns who won: {outcomes:?}");
    let unit = f.unit(&key, 0).await;
    assert_eq!((unit.win.as_ref(), unit.receipt.as_ref().map(|r| r.of().2)), (Some(&winners[0]), Some(&winners[0])));
    assert_eq!(f.totals(&key).await, (1, 0, 10));
}

pub async fn failed_units_are_counted(f: &Fixture) {
    let key = round_key(1, 0);
    f.open_round(&key, 0..3, 1).await;
    let (loser, late) = (attempt("f"), attempt("late"));
    assert_eq!(f.ledger.end_unit(&key, 1, &loser, &failed("full")).await.unwrap(), EndOutcome::Won);
    f.ledger.end_unit(&key, 0, &loser, &done(&key, 0, &loser)).await.unwrap();
    assert_eq!(f.totals(&key).await, (1, 1, 10));
    let unit = f.unit(&key, 1).await;
    assert_eq!((unit.state, unit.rows, unit.bytes, unit.receipt), (UnitState::Failed, 0, 0, None));
    let UnitEnd::Failed(error) = failed("full") else { unreachable!() };
    assert_eq!(unit.error, Some(error));
    // FAILED is an end: a success that comes later belongs to no round.
    let told = EndOutcome::AlreadyEnded { win: Some(loser) };
    assert_eq!(f.second.end_unit(&key, 1, &late, &done(&key, 1, &late)).await.unwrap(), told);
    assert_eq!(f.totals(&key).await, (1, 1, 10));
}

pub async fn a_receipt_of_another_unit_is_refused(f: &Fixture) {
    let (key, a) = (round_key(1, 0), attempt("a"));
    f.open_round(&key, 0..2, 1).await;
    for end in [done(&key, 1, &a), done(&round_key(1, 1), 0, &a), done(&key, 0, &attempt("b"))] {
        assert_eq!(f.ledger.end_unit(&key, 0, &a, &end).await.unwrap_err().kind, Kind::Internal);
    }
    assert_eq!((f.totals(&key).await, f.unit(&key, 0).await.state), ((2, 0, 0), UnitState::Pending));
}

pub async fn units_come_back_as_written_by_unit_and_round(f: &Fixture) {
    let (first, second, a) = (round_key(1, 0), round_key(1, 1), attempt("a"));
    f.open_round(&first, [0, 1, 10], 1).await;
    f.open_round(&second, [10, 1], 1).await;
    f.open_round(&RoundKey { phase: Phase::Land, ..first.clone() }, [5], 1).await;
    f.open_round(&RoundKey { group: GroupName("2024-06".into()), ..first.clone() }, [6], 1).await;
    let end = done(&second, 10, &a);
    f.ledger.begin_attempt(&second, 10, &a).await.unwrap();
    f.ledger.end_unit(&second, 10, &a, &end).await.unwrap();

    let units = f.second.units(&first.job, 1, Phase::Write, &first.group).await.unwrap();
    let order: Vec<_> = units.iter().map(|u| (u.unit, u.key.round, u.state)).collect();
    use UnitState::{Done, Pending};
    assert_eq!(order, [(0, 0, Pending), (1, 0, Pending), (1, 1, Pending), (10, 0, Pending), (10, 1, Done)]);
    let UnitEnd::Done(receipt) = end else { unreachable!() };
    let expected = UnitRecord {
        key: second,
        unit: 10,
        state: Done,
        base: 77,
        win: Some(a.clone()),
        attempts: vec![a],
        rows: 20,
        bytes: 2000,
        receipt: Some(*receipt),
        error: None,
    };
    assert_eq!(units[4], expected);
}

/// The rule for a writer whose answer is lost: make the same call again, and `win` tells who won.
pub async fn an_unclear_answer_is_settled_by_repeating(f: &Fixture) {
    let (key, winner) = (round_key(1, 0), attempt("w"));
    f.open_round(&key, 0..2, 1).await;
    for (unit, point) in [(0, FaultPoint::BeforeEffect), (1, FaultPoint::AfterEffect)] {
        let faulty = FaultyJobStore::new(f.ledger.clone(), 2, point);
        let end = done(&key, unit, &winner);
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(faulty.end_unit(&key, unit, &winner, &end).await);
        }
        let lost = answers.iter().take(2).all(|answer| answer.as_ref().is_err_and(|e| e.kind == Kind::Unavailable));
        assert!(lost && faulty.injected() == 2, "{answers:?}");
        let expected = match point {
            FaultPoint::BeforeEffect => EndOutcome::Won,
            FaultPoint::AfterEffect => EndOutcome::AlreadyEnded { win: Some(winner.clone()) },
        };
        assert_eq!(answers.pop().unwrap().unwrap(), expected);
    }
    assert_eq!(f.totals(&key).await, (0, 0, 21));
}
