//! A service that gives one answer to everything: no network, no waiting.

use crate::retry::Settings;
use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, HttpClient, Region, RuntimeComponents};
use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Canned {
    status: u16,
    body: &'static str,
    asked: Arc<AtomicU32>,
}

impl Canned {
    pub fn new(status: u16, body: &'static str) -> Canned {
        Canned { status, body, asked: Arc::default() }
    }

    /// Requests since the last time.
    pub fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }

    pub fn config(&self) -> aws_config::SdkConfig {
        aws_config::SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-central-1"))
            .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(Credentials::new("a", "b", None, None, "test")))
            .retry_config(aws_config::retry::RetryConfig::disabled())
            .http_client(self.clone())
            .build()
    }
}

impl HttpConnector for Canned {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        self.asked.fetch_add(1, Ordering::SeqCst);
        HttpConnectorFuture::ready(Ok(HttpResponse::new(self.status.try_into().unwrap(), SdkBody::from(self.body))))
    }
}

impl HttpClient for Canned {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

/// The same number of tries, without pauses.
pub(crate) fn at_once(settings: &Settings) -> Settings {
    Settings { first_delay: Duration::ZERO, longest_delay: Duration::ZERO, ..settings.clone() }
}
