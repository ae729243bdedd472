//! The machine's clock and randomness.

use futures::future::BoxFuture;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use timelake_engine::ports::Clock;
use timelake_model::TimestampUs;

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> TimestampUs {
        // A clock that stands before 1970 is taken as one at 1970: nothing here dates by it.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        TimestampUs(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
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
