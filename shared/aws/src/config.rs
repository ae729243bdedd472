//! What all clients share: credentials, region and endpoint of the default chain, one TLS stack, no retries of their own.

use crate::retry::Settings;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use timelake_model::{Error, Reason, Result};

/// Where the endpoint is an own one, requests are signed for this region unless another is named.
const DEFAULT_REGION: &str = "us-east-1";
const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL";

pub(crate) struct Loaded {
    pub config: SdkConfig,
    /// Not AWS's.
    pub own_endpoint: bool,
}

/// `endpoint_variables`: those of the services that are meant.
pub(crate) async fn load(settings: &Settings, endpoint_variables: &[&str]) -> Result<Loaded> {
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let timeouts = TimeoutConfig::builder().connect_timeout(settings.connect_timeout).read_timeout(settings.answer_timeout).build();
    let config = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .timeout_config(timeouts)
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    let config = match (&settings.endpoint, &settings.endpoint_url) {
        (Some(endpoint), _) => config.endpoint_url(endpoint).no_credentials(),
        (None, Some(endpoint)) => config.endpoint_url(endpoint),
        (None, None) => config,
    };
    let config = match &settings.region {
        Some(region) => config.region(Region::new(region.clone())),
        None => config,
    };
    let config = config.load().await;
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let own_endpoint = endpoint_variables.iter().any(|name| is_set(name)) || is_set(ENDPOINT_VARIABLE) || config.endpoint_url().is_some();
    if config.region().is_some() {
        return Ok(Loaded { config, own_endpoint });
    }
    if !own_endpoint {
        return Err(Error::invalid(Reason::InvalidOption, "no AWS region is set")
            .hint("set AWS_REGION to the region of the bucket, or a region in the profile"));
    }
    let config = config.into_builder().region(Region::new(DEFAULT_REGION)).build();
    Ok(Loaded { config, own_endpoint })
}
