//! The clients of the services beside S3. They share one configuration, and run on the runtime of their caller.

use crate::config::{Loaded, load};
use crate::retry::Settings;
use aws_config::SdkConfig;
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use timelake_model::Result;

const ENDPOINT_VARIABLES: [&str; 4] =
    ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_GLUE", "AWS_ENDPOINT_URL_SFN", "AWS_ENDPOINT_URL_SQS"];

/// Configured once; each client is cheap to clone.
#[derive(Debug, Clone)]
pub struct Services {
    config: SdkConfig,
}

impl Services {
    /// Credentials, region and endpoint are those of the default chain.
    pub async fn connect(settings: &Settings) -> Result<Services> {
        let Loaded { config, .. } = load(settings, &ENDPOINT_VARIABLES).await?;
        if settings.endpoint.is_none() {
            return Ok(Services { config });
        }
        // Unlike S3, these services take no request without a signature; whose it is means nothing there.
        let nobody = SharedCredentialsProvider::new(Credentials::new("nobody", "nobody", None, None, "endpoint"));
        Ok(Services { config: config.into_builder().credentials_provider(nobody).build() })
    }

    pub fn dynamodb(&self) -> aws_sdk_dynamodb::Client {
        aws_sdk_dynamodb::Client::new(&self.config)
    }
    pub fn sqs(&self) -> aws_sdk_sqs::Client {
        aws_sdk_sqs::Client::new(&self.config)
    }
    pub fn step_functions(&self) -> aws_sdk_sfn::Client {
        aws_sdk_sfn::Client::new(&self.config)
    }
    pub fn glue(&self) -> aws_sdk_glue::Client {
        aws_sdk_glue::Client::new(&self.config)
    }
}
