//! Jobs, groups and plans: written only if absent, changed only from what the writer has seen.

use super::*;
use timelake_model::Kind;

pub async fn a_job_is_written_only_if_absent(f: &Fixture) {
    let first = job_record("a", "t", 0);
    assert_eq!(f.ledger.job(&first.job).await.unwrap(), None);
    assert_eq!(f.ledger.put_job(&first).await.unwrap(), first);
    let other = JobRecord { state: State::Hold, as_of: TimestampUs(0), ..first.clone() };
    assert_eq!(f.second.put_job(&other).await.unwrap(), first, "the stored one comes back");
    assert_eq!(f.second.job(&first.job).await.unwrap(), Some(first));
}

pub async fn jobs_are_listed_newest_first_and_by_table(f: &Fixture) {
    for (name, table, age_s) in [("b", "t", 20), ("c", "u", 10), ("a", "t", 20), ("d", "t", 5)] {
        f.ledger.put_job(&job_record(name, table, age_s)).await.unwrap();
    }
    for (table, expected) in [(None, "dcab"), (Some("t"), "dab"), (Some("u"), "c"), (Some("x"), "")] {
        let jobs = f.second.jobs(table).await.unwrap();
        assert_eq!(jobs.iter().map(|j| j.job.0.trim_start_matches("iot-")).collect::<String>(), expected, "{table:?}");
    }
}

pub async fn a_job_changes_only_from_the_expected_generation(f: &Fixture) {
    let first = job_record("a", "t", 0);
    assert_eq!(f.ledger.update_job(1, &first).await.unwrap(), None, "an update does not make a job");
    assert_eq!(f.ledger.job(&first.job).await.unwrap(), None);
    f.ledger.put_job(&first).await.unwrap();
    let second = JobRecord {
        generation: 2,
        state: State::Rejected,
        error: Some(Error::conflict(Reason::CountsDisagree, "no").at(|p| p.row = Some(3))),
        ..first.clone()
    };
    let stored = f.ledger.update_job(1, &second).await.unwrap().unwrap();
    assert_eq!(stored, JobRecord { version: 1, ..second.clone() });
    assert_eq!(f.second.update_job(1, &JobRecord { state: State::Cancelled, ..first.clone() }).await.unwrap(), None);
    assert_eq!(f.second.job(&first.job).await.unwrap(), Some(stored.clone()));
    assert_eq!(f.second.update_job(2, &second).await.unwrap(), None, "changed since it was read");
    let same_generation = JobRecord { state: State::Published, updated: TimestampUs(START.0 + 1), ..stored };
    let stored = f.second.update_job(2, &same_generation).await.unwrap().unwrap();
    assert_eq!(stored, JobRecord { version: 2, ..same_generation });
    assert_eq!(f.ledger.jobs(Some("t")).await.unwrap(), [stored]);
}

pub async fn a_group_is_written_only_if_absent(f: &Fixture) {
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let first = group_record("a", 1, "all");
    assert_eq!(f.ledger.group(&first.job, 1, &first.group).await.unwrap(), None);
    assert_eq!(f.ledger.put_group(&first).await.unwrap(), first);
    let other = GroupRecord { round: 9, ..first.clone() };
    assert_eq!(f.second.put_group(&other).await.unwrap(), first);
    assert_eq!(f.second.group(&first.job, 1, &first.group).await.unwrap(), Some(first));
}

pub async fn a_group_changes_only_from_the_stored_version(f: &Fixture) {
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let new = group_record("a", 1, "all");
    assert_eq!(f.ledger.update_group(&new).await.unwrap(), None, "an update does not make a group");
    let read = f.ledger.put_group(&new).await.unwrap();

    let one = GroupRecord { state: State::Staged, next_snapshot: Some(i64::MIN), staged: vec![1, -2], ..read.clone() };
    let stored = f.ledger.update_group(&one).await.unwrap().unwrap();
    assert_eq!(stored, GroupRecord { version: read.version + 1, ..one });
    let other = GroupRecord { cancel_requested: true, ..read.clone() };
    assert_eq!(f.second.update_group(&other).await.unwrap(), None, "it was read before the first change");
    assert_eq!(f.second.group(&new.job, 1, &new.group).await.unwrap(), Some(stored.clone()));

    let again = f.second.update_group(&GroupRecord { cancel_requested: true, ..stored.clone() }).await.unwrap().unwrap();
    assert_eq!((again.version, again.state), (read.version + 2, State::Staged));
    assert_eq!(f.ledger.update_group(&GroupRecord { version: 9, ..again.clone() }).await.unwrap(), None, "nor from a version to come");
    assert_eq!(f.ledger.groups(&new.job, 1).await.unwrap(), [again]);
}

pub async fn groups_of_jobs_and_generations_are_apart(f: &Fixture) {
    for name in ["a", "b"] {
        f.ledger.put_job(&job_record(name, "t", 0)).await.unwrap();
    }
    for (name, generation, group) in [("a", 1, "2024-06"), ("a", 1, "2024-05"), ("a", 2, "2024-05"), ("b", 1, "all")] {
        f.ledger.put_group(&group_record(name, generation, group)).await.unwrap();
    }
    let names = |groups: Vec<GroupRecord>| groups.iter().map(|g| g.group.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(f.second.groups(&job_id("a"), 1).await.unwrap()), ["2024-05", "2024-06"]);
    assert_eq!(names(f.second.groups(&job_id("a"), 2).await.unwrap()), ["2024-05"]);
    assert_eq!(names(f.second.groups(&job_id("a"), 3).await.unwrap()), [""; 0]);
    let changed = GroupRecord { round: 3, ..group_record("a", 2, "2024-05") };
    f.ledger.update_group(&changed).await.unwrap().unwrap();
    assert_eq!(f.second.group(&job_id("a"), 1, &changed.group).await.unwrap().unwrap().round, 0);
}

pub async fn a_plan_is_written_only_if_absent(f: &Fixture) {
    f.ledger.put_job(&job_record("a", "t", 0)).await.unwrap();
    let plan = plan_record(&round_key(1, 0), [4, 2, 9], 1);
    assert_eq!(f.ledger.plan(&plan.key).await.unwrap(), None);
    assert_eq!(f.ledger.put_plan(&plan).await.unwrap(), plan);
    let other = PlanRecord { plan_hash: "other".into(), units: vec![1], ..plan.clone() };
    assert_eq!(f.second.put_plan(&other).await.unwrap(), plan);
    for key in [round_key(2, 0), round_key(1, 1), RoundKey { phase: Phase::Land, ..round_key(1, 0) }] {
        assert_eq!(f.second.plan(&key).await.unwrap(), None, "{key:?}");
    }
    assert_eq!(f.second.plan(&plan.key).await.unwrap(), Some(plan));
}

pub async fn the_cursor_never_goes_back(f: &Fixture) {
    let key = round_key(1, 0);
    f.open_round(&key, 0..10, 1).await;
    for (cursor, expected) in [(3, 3), (7, 7), (5, 7), (0, 7), (10, 10)] {
        f.ledger.advance_cursor(&key, cursor).await.unwrap();
        assert_eq!(f.second.plan(&key).await.unwrap().unwrap().cursor, expected);
    }
    let again = plan_record(&key, 0..10, 1);
    assert_eq!(f.second.put_plan(&again).await.unwrap().cursor, 10, "a second planner goes on where the first was");
    f.second.open_round(&again, 77).await.unwrap();
    assert_eq!(f.ledger.plan(&key).await.unwrap().unwrap().cursor, 10);
}

pub async fn records_need_the_record_they_belong_to(f: &Fixture) {
    let plan = plan_record(&round_key(1, 0), [0], 1);
    let kinds = [
        f.ledger.put_group(&group_record("a", 1, "all")).await.unwrap_err().kind,
        f.ledger.put_plan(&plan).await.unwrap_err().kind,
        f.ledger.open_round(&plan, 77).await.unwrap_err().kind,
    ];
    assert_eq!(kinds, [Kind::Internal; 3]);
    assert_eq!(f.second.groups(&job_id("a"), 1).await.unwrap(), []);
    assert_eq!(f.second.counters(&plan.key).await.unwrap(), []);
}
