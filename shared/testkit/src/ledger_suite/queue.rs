//! The queue: at least once, oldest first, held by leases that end.

use super::*;
use std::time::Duration;
use timelake_engine::ports::Clock;

const LEASE: Duration = Duration::from_secs(60);

pub async fn messages_come_oldest_first_and_by_job(f: &Fixture) {
    let (a, b) = (round_key(1, 0), RoundKey { job: job_id("b"), phase: Phase::Land, ..round_key(2, 4) });
    f.queue.send(&[]).await.unwrap();
    f.queue.send(&[message(&a, 5), message(&a, 2)]).await.unwrap();
    f.queue.send(&[message(&b, 1), message(&a, 5), message(&a, 7)]).await.unwrap();
    assert_eq!((f.second_queue.depth(&a.job).await.unwrap(), f.second_queue.depth(&b.job).await.unwrap()), (3, 1));
    let of_b = f.second_queue.claim(Some(&b.job), "w", LEASE).await.unwrap().unwrap();
    assert_eq!((of_b.message, of_b.tries), (message(&b, 1), 1));
    assert_eq!(f.second_queue.claim(Some(&b.job), "w", LEASE).await.unwrap(), None);
    for unit in [5, 2, 7] {
        let claim = f.queue.claim(None, "w", LEASE).await.unwrap().unwrap();
        assert_eq!((claim.message, claim.tries), (message(&a, unit), 1));
    }
    assert_eq!(f.queue.claim(None, "w", LEASE).await.unwrap(), None);
    assert_eq!(f.queue.depth(&a.job).await.unwrap(), 3, "held ones count");
    assert_eq!(f.queue.depth(&job_id("c")).await.unwrap(), 0);
}

pub async fn a_lease_that_ends_is_a_redelivery(f: &Fixture) {
    let key = round_key(1, 0);
    f.queue.send(&[message(&key, 0)]).await.unwrap();
    let first = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.clock.advance(LEASE - Duration::from_micros(1));
    assert_eq!(f.second_queue.claim(None, "two", LEASE).await.unwrap(), None);
    f.clock.advance(Duration::from_micros(1));
    let second = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!((second.id, &second.message, second.tries), (first.id, &first.message, 2));
    for tries in 3..6 {
        f.clock.advance(LEASE);
        assert_eq!(f.queue.claim(Some(&key.job), "one", LEASE).await.unwrap().unwrap().tries, tries);
    }
}

pub async fn an_extended_lease_holds(f: &Fixture) {
    f.queue.send(&[message(&round_key(1, 0), 0)]).await.unwrap();
    let claim = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.clock.advance(LEASE / 2);
    assert!(f.queue.extend(&claim, LEASE).await.unwrap());
    f.clock.advance(LEASE * 3 / 4);
    assert_eq!(f.second_queue.claim(None, "two", LEASE).await.unwrap(), None);
    f.clock.advance(LEASE / 4);
    let second = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!(second.tries, 2);
    assert!(!f.queue.extend(&claim, LEASE).await.unwrap(), "the first claim is lost");
    assert!(f.second_queue.extend(&second, Duration::MAX).await.unwrap(), "a lease may be longer than the calendar");
}

/// A clock that is set back must not hold units until it has come to where it was.
pub async fn a_lease_of_a_clock_that_was_ahead_is_over(f: &Fixture) {
    let start = f.clock.now();
    f.queue.send(&[message(&round_key(1, 0), 0)]).await.unwrap();
    let ahead = TimestampUs(start.0 + 3_600_000_000);
    f.clock.set(ahead);
    let held = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    // A little back: two processes never have quite the same clock.
    f.clock.set(TimestampUs(ahead.0 - 1_000_000));
    assert_eq!(f.second_queue.claim(None, "two", LEASE).await.unwrap(), None);
    f.clock.set(start);
    let again = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!((again.id, again.tries), (held.id, 2));
    assert!(!f.queue.extend(&held, LEASE).await.unwrap(), "the claim of before is lost");
}

/// Set back by less than a lease, too: nobody holds them.
pub async fn messages_that_nobody_holds_wait_for_no_clock(f: &Fixture) {
    f.queue.send(&[message(&round_key(1, 0), 0)]).await.unwrap();
    f.clock.set(TimestampUs(f.clock.now().0 - 1_000_000));
    let claim = f.second_queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.second_queue.release(&claim, Duration::ZERO).await.unwrap();
    f.clock.set(TimestampUs(f.clock.now().0 - 1_000_000));
    assert_eq!(f.queue.claim(None, "two", LEASE).await.unwrap().unwrap().tries, 2);
}

/// Whoever goes on with a job sends the messages of all units that are not done.
pub async fn a_message_that_is_there_is_not_sent_again(f: &Fixture) {
    let key = round_key(1, 0);
    f.queue.send(&[message(&key, 0), message(&key, 1)]).await.unwrap();
    let held = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.second_queue.send(&[0, 1, 2].map(|unit| message(&key, unit))).await.unwrap();
    assert_eq!(f.queue.depth(&key.job).await.unwrap(), 3);
    f.queue.ack(&held).await.unwrap();
    f.second_queue.send(&[message(&key, 0), message(&round_key(1, 1), 1), message(&round_key(2, 0), 1)]).await.unwrap();
    assert_eq!(f.queue.depth(&key.job).await.unwrap(), 5, "an acknowledged one is sent anew; rounds and lives are apart");
}

pub async fn an_acknowledged_message_is_gone(f: &Fixture) {
    let key = round_key(1, 0);
    f.queue.send(&[message(&key, 0), message(&key, 1)]).await.unwrap();
    let claim = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.second_queue.ack(&claim).await.unwrap();
    f.second_queue.ack(&claim).await.unwrap();
    assert!(!f.queue.extend(&claim, LEASE).await.unwrap());
    f.queue.release(&claim, Duration::ZERO).await.unwrap();
    f.clock.advance(LEASE * 2);
    assert_eq!(f.queue.claim(None, "one", LEASE).await.unwrap().unwrap().message, message(&key, 1));
    assert_eq!(f.queue.depth(&key.job).await.unwrap(), 1);
}

pub async fn a_released_message_comes_after_its_delay(f: &Fixture) {
    let key = round_key(1, 0);
    f.queue.send(&[message(&key, 0), message(&key, 1)]).await.unwrap();
    let claim = f.queue.claim(None, "one", LEASE).await.unwrap().unwrap();
    f.queue.release(&claim, Duration::from_secs(10)).await.unwrap();
    assert!(!f.queue.extend(&claim, LEASE).await.unwrap(), "it was given back");
    let next = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!(next.message, message(&key, 1));
    f.second_queue.release(&next, Duration::ZERO).await.unwrap();
    f.clock.advance(Duration::from_secs(10));
    let again = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!((again.id, again.tries), (claim.id, 2), "the oldest visible one");
    let next_again = f.second_queue.claim(None, "two", LEASE).await.unwrap().unwrap();
    assert_eq!((next_again.id, next_again.tries), (next.id, 2));
}

pub async fn a_lost_claim_changes_nothing(f: &Fixture) {
    let key = round_key(1, 0);
    f.queue.send(&[message(&key, 0)]).await.unwrap();
    let lost = f.queue.claim(None, "slow", LEASE).await.unwrap().unwrap();
    f.clock.advance(LEASE);
    let held = f.second_queue.claim(None, "slow", LEASE).await.unwrap().unwrap(); // the same owner's name: not the same claim
    assert!(!f.queue.extend(&lost, LEASE * 9).await.unwrap());
    f.queue.release(&lost, Duration::ZERO).await.unwrap();
    f.queue.ack(&lost).await.unwrap();
    assert_eq!(f.queue.claim(None, "x", LEASE).await.unwrap(), None, "still held by the second");
    assert!(f.second_queue.extend(&held, LEASE).await.unwrap());
    f.second_queue.ack(&held).await.unwrap();
    assert_eq!(f.second_queue.depth(&key.job).await.unwrap(), 0);
}

pub async fn purge_removes_a_generation_or_all(f: &Fixture) {
    let keys = [round_key(1, 0), round_key(2, 0), RoundKey { job: job_id("b"), ..round_key(1, 0) }];
    for key in &keys {
        f.queue.send(&[message(key, 0), message(key, 1)]).await.unwrap();
    }
    let held = f.queue.claim(Some(&keys[0].job), "one", LEASE).await.unwrap().unwrap();
    f.second_queue.purge(&keys[0].job, Some(1)).await.unwrap();
    assert!(!f.queue.extend(&held, LEASE).await.unwrap());
    assert_eq!(f.queue.claim(Some(&keys[0].job), "one", LEASE).await.unwrap().unwrap().message.key.generation, 2);
    f.second_queue.purge(&keys[0].job, None).await.unwrap();
    assert_eq!((f.queue.depth(&keys[0].job).await.unwrap(), f.queue.depth(&keys[2].job).await.unwrap()), (0, 2));
}
