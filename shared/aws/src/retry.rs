//! Which failure is tried again, when, and for how long. The SDK's own retries are off: they do not cover a body that
//! breaks off, and would multiply with these.

use crate::errors::Failure;
use std::time::Duration;

/// Times and limits of requests.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Requests go there, unsigned; `None`: as the default chain says.
    pub endpoint: Option<String>,
    /// Signed requests go there; `None`: as the default chain says.
    pub endpoint_url: Option<String>,
    /// `None`: as the default chain says.
    pub region: Option<String>,
    /// Requests at once, of the whole process.
    pub requests: usize,
    /// Tries without any progress before a request is given up.
    pub tries: u32,
    pub first_delay: Duration,
    pub longest_delay: Duration,
    pub connect_timeout: Duration,
    /// Until an answer begins. Also the time for one uploaded part.
    pub answer_timeout: Duration,
    /// A body that brings less than `least_bytes` in this time is given up, and asked for again from there.
    pub pace_window: Duration,
    pub least_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            endpoint: None,
            endpoint_url: None,
            region: None,
            requests: 32,
            tries: 8,
            first_delay: Duration::from_millis(100),
            longest_delay: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(60),
            pace_window: Duration::from_secs(10),
            least_bytes: 64 << 10,
        }
    }
}

/// Counts tries of one request.
pub(crate) struct Tries<'a> {
    settings: &'a Settings,
    failed: u32,
}

impl<'a> Tries<'a> {
    pub fn new(settings: &'a Settings) -> Tries<'a> {
        Tries { settings, failed: 0 }
    }

    /// Some of what was asked arrived: the next failure is a first one again.
    pub fn progressed(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try; gives the failure back when there is none.
    pub async fn after(&mut self, failure: Failure) -> Result<(), Failure> {
        self.failed += 1;
        if !failure.is_transient || self.failed >= self.settings.tries {
            return Err(failure);
        }
        tracing::debug!(failed = self.failed, error = failure.text, "a request to AWS is tried again");
        tokio::time::sleep(self.delay(random())).await;
        Ok(())
    }

    /// Doubled from try to try; between half of that and all of it, so that many writers do not come back together.
    fn delay(&self, random: u64) -> Duration {
        let doubled = self.settings.first_delay.saturating_mul(1 << self.failed.saturating_sub(1).min(16));
        let most = doubled.min(self.settings.longest_delay);
        let parts = (random % 1_001) as u32;
        most / 2 + most / 2 * parts / 1_000
    }
}

/// Tries a request until it is answered or given up; gives also whether an earlier try may have been carried out.
pub(crate) async fn tried<T, F>(settings: &Settings, mut request: impl FnMut() -> F) -> (Result<T, Failure>, bool)
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut tries = Tries::new(settings);
    let mut unclear = false;
    loop {
        match request().await {
            Ok(answer) => return (Ok(answer), unclear),
            Err(failure) => {
                let is_unclear = failure.is_unclear;
                if let Err(failure) = tries.after(failure).await {
                    return (Err(failure), unclear);
                }
                unclear |= is_unclear;
            }
        }
    }
}

fn random() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_differ() {
        let settings = Settings::default();
        let at = |failed, random| Tries { settings: &settings, failed }.delay(random).as_millis();
        assert_eq!((at(1, 0), at(1, 1_000)), (50, 100));
        assert_eq!((at(4, 0), at(4, 1_000)), (400, 800));
        assert_eq!((at(60, 0), at(60, 1_000)), (5_000, 10_000));
    }

    #[tokio::test]
    async fn only_what_may_mend_itself_is_tried_again_and_not_for_ever() {
        let settings = Settings { first_delay: Duration::ZERO, ..Settings::default() };
        let mut tries = Tries::new(&settings);
        let cut = || Failure::of_connection("cut");
        for _ in 0..settings.tries - 1 {
            tries.after(cut()).await.unwrap();
        }
        tries.progressed();
        for _ in 0..settings.tries - 1 {
            tries.after(cut()).await.unwrap();
        }
        assert!(tries.after(cut()).await.is_err());
        let lasting = Failure { is_transient: false, ..cut() };
        assert!(Tries::new(&settings).after(lasting).await.is_err());
    }
}
