//! An object → batches. The hot path of Parquet; text files are read by `text`.
//!
//! A batch never crosses a row group. Values are decoded once per batch and converted when asked for, for the rows
//! asked for. What must never happen: a row that is in no batch, or bytes of another version of the file.

use crate::batch::SourceBatch;
use crate::bind::{BoundObject, Content, Part, Read};
use crate::file::{SourceFile, corrupt, decode_error, decoding};
use crate::leaf::{Leaf, LeafReader, check_keys};
use crate::listing::verify_pin;
use crate::text::TextReader;
use crate::zone::ZoneConverter;
use arrow::array::{Array, AsArray};
use parquet::file::metadata::ColumnChunkMetaData;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use timelake_model::{Error, Reason, Result};

/// Rows of a batch, at most.
pub const BATCH_ROWS: usize = 65_536;

/// Opens the object and reads these row groups, in this order. A text file is row group 0.
pub fn read(bound: &BoundObject, row_groups: &[u32]) -> Result<ObjectReader> {
    read_columns(bound, row_groups, None)
}

/// Like [`read`], but decodes only the leaves of these target columns.
pub(crate) fn read_columns(bound: &BoundObject, row_groups: &[u32], targets: Option<&[usize]>) -> Result<ObjectReader> {
    let inner = &bound.inner;
    let mut wanted = vec![targets.is_none(); inner.leaf_count()];
    for target in targets.into_iter().flatten() {
        match inner.columns.get(*target).map(|binding| &binding.read) {
            Some(Read::Leaf(leaf)) => wanted[*leaf] = true,
            Some(Read::Joined(parts)) => parts.iter().for_each(|part| {
                if let Part::Leaf(leaf) = part {
                    wanted[*leaf] = true;
                }
            }),
            _ => {}
        }
    }
    if let Some(group) = row_groups.iter().find(|group| **group >= bound.row_groups()) {
        return Err(Error::internal(format!("{} has no row group {group}", inner.object.shown)));
    }
    let reader = match &inner.content {
        Content::Text(_) if row_groups.is_empty() => Reader::Done,
        Content::Text(_) => Reader::Text(Box::new(TextReader::open(bound, wanted)?)),
        Content::Parquet(_) => Reader::Parquet(ParquetReader::open(bound, row_groups, wanted)?),
    };
    Ok(ObjectReader { reader, left: inner.spec.first_rows().unwrap_or(u64::MAX) })
}

/// Reads the batches of one object; ends after its first error, or after the rows of a sample.
pub struct ObjectReader {
    reader: Reader,
    /// Rows to give at most.
    left: u64,
}

enum Reader {
    Parquet(ParquetReader),
    Text(Box<TextReader>),
    Done,
}

impl Iterator for ObjectReader {
    type Item = Result<SourceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            self.reader = Reader::Done;
        }
        let mut result = match &mut self.reader {
            Reader::Parquet(reader) => reader.advance(),
            Reader::Text(reader) => reader.next_batch(self.left),
            Reader::Done => return None,
        };
        match &mut result {
            Ok(Some(batch)) => {
                batch.truncate(self.left);
                self.left -= batch.rows() as u64 + batch.bad_records.len() as u64;
            }
            _ => self.reader = Reader::Done,
        }
        result.transpose()
    }
}

struct ParquetReader {
    bound: BoundObject,
    file: Arc<SourceFile>,
    /// Per leaf: decode it.
    wanted: Vec<bool>,
    queue: VecDeque<u32>,
    current: Option<OpenRowGroup>,
    /// First row of each row group in the file.
    first_rows: Vec<u64>,
    /// Shared with the batches, so that what it learned about the zone stays.
    zone: Option<Arc<Mutex<ZoneConverter>>>,
}

struct OpenRowGroup {
    file: Arc<SourceFile>,
    row_group: u32,
    /// First row of the row group in the file.
    group_row: u64,
    next_row: u64,
    remaining: usize,
    batch_rows: usize,
    leaves: Vec<Option<LeafReader>>,
}

impl ParquetReader {
    fn open(bound: &BoundObject, row_groups: &[u32], wanted: Vec<bool>) -> Result<ParquetReader> {
        let content = bound.inner.parquet()?;
        let mut first_rows = Vec::with_capacity(content.metadata.num_row_groups());
        let mut rows = 0;
        for group in content.metadata.row_groups() {
            first_rows.push(rows);
            rows += u64::try_from(group.num_rows()).unwrap_or(0);
        }
        Ok(ParquetReader {
            file: Arc::new(SourceFile::open(bound.object(), &bound.inner.sources)?),
            bound: bound.clone(),
            wanted,
            queue: row_groups.iter().copied().collect(),
            current: None,
            first_rows,
            zone: bound.spec().zone().map(|zone| Arc::new(Mutex::new(ZoneConverter::new(zone)))),
        })
    }

    fn advance(&mut self) -> Result<Option<SourceBatch>> {
        loop {
            if let Some(open) = &mut self.current {
                if open.remaining > 0 {
                    let batch = open.batch(&self.bound, &self.zone)?;
                    return Ok(Some(batch));
                }
                self.current = None;
            }
            let Some(group) = self.queue.pop_front() else {
                verify_pin(self.bound.object())?;
                return Ok(None);
            };
            self.current = Some(self.open_row_group(group)?);
        }
    }

    fn open_row_group(&self, row_group: u32) -> Result<OpenRowGroup> {
        let content = self.bound.inner.parquet()?;
        let metadata = content.metadata.row_group(row_group as usize);
        let wanted = || content.leaves.iter().zip(&self.wanted);
        let batch_rows =
            wanted().filter(|(_, wanted)| **wanted).map(|(leaf, _)| leaf.batch_rows(metadata, BATCH_ROWS)).min().unwrap_or(BATCH_ROWS);
        // A column beyond those of the row group is told when it is opened.
        let chunks = wanted().filter(|(_, wanted)| **wanted).filter_map(|(leaf, _)| metadata.columns().get(leaf.index));
        self.file.prepare(chunks.map(chunk_range).collect())?;
        let mut leaves = Vec::with_capacity(content.leaves.len());
        for (leaf, wanted) in wanted() {
            leaves.push(if *wanted {
                let opened = decoding(|| leaf.open(&self.file, &content.metadata, row_group as usize, batch_rows));
                Some(opened.map_err(|error| decode_error(&self.file, Some(row_group), Some(&leaf.name), &error))?)
            } else {
                None
            });
        }
        Ok(OpenRowGroup {
            file: self.file.clone(),
            row_group,
            group_row: self.first_rows[row_group as usize],
            next_row: self.first_rows[row_group as usize],
            remaining: usize::try_from(metadata.num_rows()).unwrap_or(0),
            batch_rows,
            leaves,
        })
    }
}

impl OpenRowGroup {
    fn batch(&mut self, bound: &BoundObject, zone: &Option<Arc<Mutex<ZoneConverter>>>) -> Result<SourceBatch> {
        let inner = &bound.inner;
        let rows = self.batch_rows.min(self.remaining);
        let mut arrays = Vec::with_capacity(self.leaves.len());
        for (leaf, reader) in inner.parquet()?.leaves.iter().zip(&mut self.leaves) {
            let Some(reader) = reader else {
                arrays.push(None);
                continue;
            };
            let array = decoding(|| reader.next()).map_err(|error| {
                let told = decode_error(&self.file, Some(self.row_group), Some(&leaf.name), &error);
                if told.reason == Reason::InvalidUtf8 { name_bad_text(told, bound, leaf, self.row_group, self.group_row) } else { told }
            })?;
            let found = array.as_ref().map_or(0, |array| array.len());
            let array = array.filter(|array| array.len() == rows).ok_or_else(|| {
                corrupt(&inner.object, Some(self.row_group), Some(&leaf.name), &format!("{rows} rows expected, {found} found"))
            })?;
            check_keys(&array).map_err(|_| corrupt(&inner.object, Some(self.row_group), Some(&leaf.name), "its dictionary is empty"))?;
            arrays.push(Some(array));
        }
        let batch = SourceBatch {
            row_group: self.row_group,
            first_row: self.next_row,
            rows,
            nulled: vec![Vec::new(); arrays.len()],
            arrays,
            lines: None,
            bad_records: Vec::new(),
            repeated_headers: 0,
            source_bytes: share(inner.object.size, rows, inner.parquet()?.metadata.file_metadata().num_rows()),
            bound: bound.clone(),
            zone: zone.clone(),
        };
        self.next_row += rows as u64;
        self.remaining -= rows;
        Ok(batch)
    }
}

/// Where a column's pages lie; empty where the footer says nonsense.
fn chunk_range(column: &ColumnChunkMetaData) -> Range<u64> {
    let start = column.dictionary_page_offset().map_or(column.data_page_offset(), |dictionary| dictionary.min(column.data_page_offset()));
    match (u64::try_from(start), u64::try_from(column.compressed_size())) {
        (Ok(start), Ok(size)) => start..start.saturating_add(size),
        _ => 0..0,
    }
}

/// The part of a file's bytes that some of its rows are, were they all of one size.
fn share(bytes: u64, rows: usize, all_rows: i64) -> u64 {
    let part = u128::from(bytes) * rows as u128 / all_rows.max(1) as u128;
    u64::try_from(part).unwrap_or(bytes)
}

/// Adds the row and the value of the first text that is not UTF-8, by reading the column as bytes.
pub(crate) fn name_bad_text(error: Error, bound: &BoundObject, leaf: &Leaf, row_group: u32, group_row: u64) -> Error {
    let find = || -> Result<Option<(u64, String)>> {
        let file = Arc::new(SourceFile::open(bound.object(), &bound.inner.sources)?);
        let metadata = &bound.inner.parquet()?.metadata;
        let told = |error: parquet::errors::ParquetError| decode_error(&file, Some(row_group), Some(&leaf.name), &error);
        let mut reader = decoding(|| leaf.as_bytes()?.open(&file, metadata, row_group as usize, BATCH_ROWS)).map_err(told)?;
        let mut row = group_row;
        while let Some(array) = decoding(|| reader.next()).map_err(told)? {
            if let Some(bytes) = array.as_binary_opt::<i64>() {
                let bad = bytes.iter().position(|value| value.is_some_and(|value| std::str::from_utf8(value).is_err()));
                if let Some(index) = bad {
                    return Ok(Some((row + index as u64 + 1, String::from_utf8_lossy(bytes.value(index)).chars().take(200).collect())));
                }
            }
            row += array.len() as u64;
        }
        Ok(None)
    };
    match find() {
        Ok(Some((row, value))) => error.at(|place| {
            place.row = Some(row);
            place.value = Some(value);
        }),
        _ => error,
    }
}
