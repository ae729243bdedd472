//! All of AWS that a process uses, opened once when it starts.

use crate::catalog::GlueCatalog;
use crate::client::{S3Objects, settings_of_environment};
use crate::clock::SystemClock;
use crate::ledger::DynamoLedger;
use crate::queue::SqsQueues;
use crate::retry::Settings;
use crate::services::Services;
use crate::settings::CloudSettings;
use crate::storage::WarehouseStorageFactory;
use iceberg::io::FileIOBuilder;
use std::sync::Arc;
use timelake_engine::Engine;
use timelake_model::Result;
use timelake_source::Sources;

#[derive(Clone)]
pub struct Cloud {
    pub settings: CloudSettings,
    pub objects: S3Objects,
    pub ledger: Arc<DynamoLedger>,
    pub catalog: Arc<GlueCatalog>,
    /// Units, and the signals of functions to each other.
    pub queues: Arc<SqsQueues>,
}

impl Cloud {
    /// Credentials, region and endpoints are those of the default chain.
    pub async fn open(settings: CloudSettings) -> Result<Cloud> {
        Cloud::open_with(settings, settings_of_environment()).await
    }

    pub async fn open_with(settings: CloudSettings, requests: Settings) -> Result<Cloud> {
        let services = Services::connect(&requests).await?;
        let objects = S3Objects::with(requests);
        let file_io = FileIOBuilder::new(Arc::new(WarehouseStorageFactory::new(objects.clone()))).build();
        let catalog = GlueCatalog::new(services.glue(), &settings.warehouse, file_io, Arc::new(SystemClock));
        Ok(Cloud {
            ledger: Arc::new(DynamoLedger::new(services.dynamodb(), &settings.ledger_table, Arc::new(objects.clone()), &settings.jobs)),
            catalog: Arc::new(catalog.with_database(settings.glue_database.clone())),
            queues: Arc::new(SqsQueues::new(services.sqs(), settings.queues.clone())),
            objects,
            settings,
        })
    }

    pub fn engine(&self) -> Engine {
        Engine {
            catalog: self.catalog.clone(),
            jobs: self.ledger.clone(),
            queue: self.queues.clone(),
            objects: Arc::new(self.objects.clone()),
            sources: Sources::remote_only().with(crate::SCHEME, Arc::new(self.objects.clone())),
            clock: Arc::new(SystemClock),
            jobs_root: self.settings.jobs.clone(),
        }
    }
}
