//! Parquet and text sources → Arrow batches in the columns of the target table.
//!
//! The way of a row: [`listing`] finds the files and pins them, [`mapping`] says which column of the source feeds
//! which column of the table, [`inspect`] reads footers and headers and binds the columns of each file, [`reader`]
//! reads row groups and text files into [`batch`]es, and [`convert`] turns what was read into the table's types: exact, or refused with the row, the column and
//! the value. [`zone`] turns local times into instants.
//!
//! Everything is synchronous and reads local files, or objects of a [`remote`] store. What must never happen: a value that is changed on the way
//! without a fault or a count, bytes of another version of a file than the pinned one, a panic on a damaged file.

pub mod batch;
mod bind;
mod cell;
pub mod convert;
mod file;
pub mod inspect;
mod kind;
mod leaf;
pub mod listing;
pub mod mapping;
mod nulling;
pub mod reader;
pub mod remote;
pub mod runs;
mod text;
pub mod zone;

pub use batch::{BadRecord, ConvertedColumn, SourceBatch, TimeColumn};
pub use bind::{BoundObject, BoundObjects};
pub use cell::{CellFault, Position};
pub use convert::{FoldRow, NumberFormat, Rules, TimestampFormat, convert_column};
pub use inspect::{Inspection, count_per_chunk, inspect, inspect_all, sample_series};
pub use listing::{list, verify_pin};
pub use mapping::{Format, SourceSpec};
pub use reader::{ObjectReader, read};
pub use remote::{RemoteStore, Sources};
pub use runs::place_column;
pub use zone::{LocalTime, Zone, ZoneConverter};
