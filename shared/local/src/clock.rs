//! The machine's clock and randomness: the only place outside the command line where either is read.

use futures::future::BoxFuture;
use std::time::Duration;
use timelake_engine::ports::Clock;
use timelake_model::TimestampUs;

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> TimestampUs {
        TimestampUs(chrono::Utc::now().timestamp_micros())
    }

    fn random(&self) -> u64 {
        // A random UUID has six fixed bits; folding its halves onto each other covers them with random ones.
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        high ^ low
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ_and_use_all_bits() {
        let (mut ones, mut zeros) = (0u64, 0u64);
        let numbers: std::collections::HashSet<u64> = (0..200).map(|_| SystemClock.random()).collect();
        for number in &numbers {
            ones |= number;
            zeros |= !number;
        }
        assert_eq!((numbers.len(), ones, zeros), (200, u64::MAX, u64::MAX));
    }

    #[tokio::test]
    async fn time_goes_on() {
        let before = SystemClock.now();
        SystemClock.sleep(Duration::from_millis(5)).await;
        assert!(SystemClock.now().0 - before.0 >= 4_000);
    }
}
