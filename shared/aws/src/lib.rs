//! AWS as the engine needs it: sources, table files and other objects on S3, the ledger on DynamoDB,
//! Iceberg tables in the Glue Data Catalog, queues on SQS.

mod address;
mod catalog;
mod client;
mod clock;
mod cloud;
mod config;
mod errors;
mod lake;
mod ledger;
mod local_file;
mod multipart;
mod objects;
mod queue;
mod requests;
mod retry;
mod services;
mod settings;
mod sources;
mod storage;

pub use catalog::GlueCatalog;
pub use client::{S3Objects, Settings};
pub use clock::SystemClock;
pub use cloud::Cloud;
pub use lake::{CloudLake, LakeSettings, Submitted};
pub use ledger::{DynamoLedger, round_of_counter};
pub use queue::{QueueUrls, SqsQueues};
pub use services::Services;
pub use settings::{CloudSettings, VARIABLES, Variable};
pub use storage::WarehouseStorageFactory;

/// Of URIs of S3.
pub const SCHEME: &str = "s3";

#[cfg(test)]
mod canned_tests;
