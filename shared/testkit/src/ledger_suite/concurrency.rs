//! Many threads on one store, as in a run with several processes.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use timelake_engine::ports::EndOutcome;

const THREADS: usize = 8;
const UNITS: u32 = 200;
const LEASE: Duration = Duration::from_secs(60);

/// Messages come twice, some claims are dropped, leases end early: still each unit ends once, and the counters reach
/// 0 when the last one does, not before.
pub async fn threads_end_every_unit_exactly_once(f: &Fixture) {
    let key = round_key(1, 0);
    f.open_round(&key, 0..UNITS, 3).await;
    let messages: Vec<_> = (0..UNITS).chain(0..UNITS / 4).map(|unit| message(&key, unit)).collect();
    f.queue.send(&messages).await.unwrap();
    let (won, saw_the_end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (ledger, queue) = if thread % 2 == 0 { (&f.ledger, &f.queue) } else { (&f.second, &f.second_queue) };
            let (ledger, queue, clock) = (ledger.clone(), queue.clone(), f.clock.clone());
            let (key, won, saw_the_end) = (key.clone(), won.clone(), saw_the_end.clone());
            tokio::spawn(async move {
                // A bound, so that a queue that never empties fails instead of hanging.
                for turn in 0..messages_limit() {
                    let Some(claim) = queue.claim(Some(&key.job), &format!("thread {thread}"), LEASE).await.unwrap() else {
                        if queue.depth(&key.job).await.unwrap() == 0 {
                            return;
                        }
                        clock.advance(LEASE); // what is left is held by claims that were dropped
                        continue;
                    };
                    if claim.tries == 1 && claim.id % 9 == 0 {
                        continue; // this worker died
                    }
                    let (unit, attempt) = (claim.message.unit, attempt(&format!("{thread}-{turn}")));
                    if ledger.begin_attempt(&key, unit, &attempt).await.unwrap() {
                        let end = if unit % 10 == 0 { failed("full") } else { done(&key, unit, &attempt) };
                        if ledger.end_unit(&key, unit, &attempt, &end).await.unwrap() == EndOutcome::Won {
                            won.fetch_add(1, Ordering::SeqCst);
                            if ledger.counters(&key).await.unwrap().iter().all(|c| c.remaining == 0) {
                                saw_the_end.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                    }
                    queue.ack(&claim).await.unwrap();
                }
                panic!("thread {thread}: the queue does not get empty");
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(won.load(Ordering::SeqCst), UNITS);
    assert!(saw_the_end.load(Ordering::SeqCst) >= 1, "the winner of the last unit sees 0 and closes the round");
    let rows = (0..UNITS).filter(|unit| unit % 10 != 0).map(|unit| u64::from(10 + unit)).sum();
    assert_eq!(f.totals(&key).await, (0, UNITS / 10, rows));
    for unit in f.second.units(&key.job, 1, key.phase, &key.group).await.unwrap() {
        let win = unit.win.unwrap();
        assert!(unit.attempts.contains(&win), "unit {}", unit.unit);
        assert_eq!(unit.receipt.map(|r| r.of().2.clone()), (unit.unit % 10 != 0).then_some(win), "unit {}", unit.unit);
    }
}

fn messages_limit() -> u32 {
    UNITS * 50
}
