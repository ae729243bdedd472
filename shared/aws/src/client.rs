//! The one S3 client of a process, made when it is first needed.
//!
//! Its requests run on threads of their own, so that callers may wait for one wherever they are: in a task, or in
//! synchronous code on any thread.

use crate::config::{Loaded, load};
use crate::errors::Failure;
use crate::retry::tried;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::RequestChecksumCalculation;
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::{Error, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinHandle;

pub use crate::retry::Settings;

/// Enough to keep a fast network busy: they decrypt and sum up, nothing else.
const THREADS: usize = 2;
/// As for all AWS clients.
const TRIES_VARIABLE: &str = "AWS_MAX_ATTEMPTS";
const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL_S3";

/// Objects of S3, and of stores that speak its language. Cheap to clone; all clones share one client.
#[derive(Clone)]
pub struct S3Objects {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub settings: Settings,
    pub permits: Semaphore,
    connected: OnceCell<Connected>,
    runtime: Mutex<Option<Arc<Runtime>>>,
}

struct Connected {
    client: Client,
    /// Uploads carry checksums unless the user turned them off, for stores that do not know them.
    checksums: bool,
}

impl std::fmt::Debug for S3Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("S3Objects")
    }
}

impl Default for S3Objects {
    fn default() -> S3Objects {
        S3Objects::new()
    }
}

/// What is told to all AWS clients, and not passed on by the SDK.
pub(crate) fn settings_of_environment() -> Settings {
    let tries = std::env::var(TRIES_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
    let default = Settings::default();
    Settings { tries: tries.map_or(default.tries, |tries: u32| tries.max(1)), ..default }
}

impl S3Objects {
    /// Credentials, region and endpoint are those of the default chain, read at the first request.
    pub fn new() -> S3Objects {
        S3Objects::with(settings_of_environment())
    }

    pub fn with(settings: Settings) -> S3Objects {
        let permits = Semaphore::new(settings.requests);
        S3Objects { shared: Arc::new(Shared { settings, permits, connected: OnceCell::new(), runtime: Mutex::default() }) }
    }

    /// Starts work on the threads of the client.
    pub(crate) fn start<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<Started<T>> {
        Ok(Started { task: self.shared.runtime()?.spawn(work) })
    }

    /// Does work there and waits for it.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.start(work)?.wait().await
    }

    /// The same from synchronous code.
    pub(crate) fn run_blocking<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.start(work)?.wait_blocking()
    }
}

impl Shared {
    fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.as_ref() {
            return Ok(runtime.clone());
        }
        let made = Builder::new_multi_thread().worker_threads(THREADS).thread_name("timelake-s3").enable_all().build();
        let made = Arc::new(made.map_err(|e| Error::internal(format!("cannot start the threads of the S3 client: {e}")))?);
        *runtime = Some(made.clone());
        Ok(made)
    }

    async fn connected(&self) -> Result<&Connected> {
        self.connected.get_or_try_init(|| connect(&self.settings)).await
    }
    pub async fn client(&self) -> Result<&Client> {
        Ok(&self.connected().await?.client)
    }
    pub async fn checksums(&self) -> Result<bool> {
        Ok(self.connected().await?.checksums)
    }

    /// Tries a request until it is answered or given up; gives also whether an earlier try may have been carried out.
    pub async fn tried<T, F: Future<Output = Result<T, Failure>>>(&self, mut request: impl FnMut() -> F) -> (Result<T, Failure>, bool) {
        tried(&self.settings, || {
            let request = request();
            async move {
                match self.permits.acquire().await {
                    Ok(_permit) => request.await,
                    Err(_) => Err(Failure::of_connection("the client is closed")),
                }
            }
        })
        .await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last owner may be a task, which must not wait for threads to end.
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime.and_then(Arc::into_inner) {
            runtime.shutdown_background();
        }
    }
}

/// Work that was started. Dropping it ends the work.
pub(crate) struct Started<T> {
    task: JoinHandle<Result<T>>,
}

impl<T> Started<T> {
    pub async fn wait(mut self) -> Result<T> {
        ended((&mut self.task).await)
    }
    pub fn wait_blocking(mut self) -> Result<T> {
        ended(futures::executor::block_on(&mut self.task))
    }
}

fn ended<T>(outcome: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    outcome.unwrap_or_else(|e| Err(Error::internal(format!("a request to S3 ended in a panic or was dropped: {e}"))))
}

impl<T> Drop for Started<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(settings: &Settings) -> Result<Connected> {
    let Loaded { config, own_endpoint } = load(settings, &[ENDPOINT_VARIABLE]).await?;
    let mut s3 = aws_sdk_s3::config::Builder::from(&config);
    if own_endpoint {
        // Buckets as host names need a DNS entry each, which only AWS has.
        s3 = s3.force_path_style(true);
    }
    let checksums = config.request_checksum_calculation() != Some(RequestChecksumCalculation::WhenRequired);
    Ok(Connected { client: Client::from_conf(s3.build()), checksums })
}
