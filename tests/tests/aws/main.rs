//! The adapters of AWS against the emulator, and against a network and services that fail.

mod catalog;
mod cloud;
mod command;
mod dry_run;
mod installed;
mod ledger;
mod ledger_faults;
mod queue;

use std::sync::Arc;
use std::time::Duration;
use timelake_aws::{S3Objects, Services, Settings};
use timelake_tests::Emulator;
use tokio::runtime::Handle;

/// An emulator, and clients that reach it.
struct Cloud {
    emulator: Arc<Emulator>,
}

impl Cloud {
    fn start() -> Cloud {
        Cloud { emulator: Arc::new(Emulator::start()) }
    }
    async fn services(&self, endpoint: String) -> Services {
        Services::connect(&hurried(endpoint)).await.unwrap()
    }
    fn objects(&self) -> S3Objects {
        S3Objects::with(hurried(self.emulator.endpoint()))
    }
}

/// Where the buckets of tests are.
const REGION: &str = "eu-central-1";

/// A client in a hurry.
fn hurried(endpoint: String) -> Settings {
    Settings {
        endpoint: Some(endpoint),
        region: Some(REGION.into()),
        first_delay: Duration::from_millis(2),
        longest_delay: Duration::from_millis(50),
        answer_timeout: Duration::from_secs(20),
        ..Settings::default()
    }
}

/// Waits where no `await` can be, on a runtime of several threads.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(work))
}
