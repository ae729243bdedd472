//! AWS as the engine needs it. So far S3: sources, table files and other objects, all through one client.

mod address;
mod client;
mod errors;
mod local_file;
mod multipart;
mod objects;
mod requests;
mod retry;
mod sources;
mod storage;

pub use client::{S3Objects, Settings};
pub use storage::WarehouseStorageFactory;

/// Of URIs of S3.
pub const SCHEME: &str = "s3";
