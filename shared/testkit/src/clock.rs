//! A clock that stands still until a test moves it.

use futures::future::BoxFuture;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use timelake_engine::ports::Clock;
use timelake_model::TimestampUs;

/// 2026-01-01T00:00:00Z: where manual clocks start.
pub const START: TimestampUs = TimestampUs(1_767_225_600_000_000);

/// Time moves by [`ManualClock::advance`] and by `sleep`, which returns at once. Random numbers follow from the seed.
#[derive(Debug)]
pub struct ManualClock {
    now_us: AtomicI64,
    random_state: AtomicU64,
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new(START, 1)
    }
}

impl ManualClock {
    pub fn new(now: TimestampUs, seed: u64) -> Self {
        ManualClock { now_us: AtomicI64::new(now.0), random_state: AtomicU64::new(seed) }
    }
    /// Sets the clock, also back.
    pub fn set(&self, now: TimestampUs) {
        self.now_us.store(now.0, Ordering::SeqCst);
    }
    pub fn advance(&self, duration: Duration) {
        self.now_us.fetch_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

/// What a state of random numbers grows by.
pub(crate) const RANDOM_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random number of a state. SplitMix64 (Steele, Lea, Flood 2014): the state is a counter, so threads never get the
/// same number.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Clock for ManualClock {
    fn now(&self) -> TimestampUs {
        TimestampUs(self.now_us.load(Ordering::SeqCst))
    }

    fn random(&self) -> u64 {
        mix(self.random_state.fetch_add(RANDOM_STEP, Ordering::SeqCst).wrapping_add(RANDOM_STEP))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.advance(duration);
        Box::pin(tokio::task::yield_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_test_moves_the_time_and_the_seed_decides_the_numbers() {
        let clock = ManualClock::default();
        assert_eq!((clock.now(), clock.now().short().as_str()), (START, "2026-01-01T00:00:00Z"));
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().0 - START.0, 3_600_000_000);
        let other = ManualClock::default();
        let numbers: Vec<u64> = (0..4).map(|_| clock.random()).collect();
        assert_eq!(numbers, (0..4).map(|_| other.random()).collect::<Vec<_>>());
        assert_ne!(numbers[0], ManualClock::new(START, 2).random());
    }
}
