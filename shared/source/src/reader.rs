//! Row groups of one file → batches in the table's columns. The hot path.
//!
//! A batch never crosses a row group. Values are decoded once per batch and converted when asked for, for the rows
//! asked for. What must never happen: a row that is in no batch, or bytes of another version of the file.

use crate::bind::{BoundObject, Part, Read};
use crate::cell::CellFault;
use crate::convert::{Context, FoldRow, arrow_type, as_dictionary, as_plain, convert, dictionary_type, times};
use crate::file::{SourceFile, corrupt, decode_error, decoding};
use crate::leaf::{Leaf, LeafReader, check_keys};
use crate::listing::verify_pin;
use crate::mapping::SourceSpec;
use crate::zone::ZoneConverter;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar, StringArray, new_null_array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{cast, filter};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::{Error, Reason, Result};

/// Rows of a batch, at most.
pub const BATCH_ROWS: usize = 65_536;

/// Opens the file and reads these row groups, in this order.
pub fn read(bound: &BoundObject, row_groups: &[u32]) -> Result<ObjectReader> {
    read_columns(bound, row_groups, &bound.inner.spec.clone(), None)
}

/// Like [`read`], but decodes only the leaves of these target columns.
pub(crate) fn read_columns(
    bound: &BoundObject,
    row_groups: &[u32],
    spec: &Arc<SourceSpec>,
    targets: Option<&[usize]>,
) -> Result<ObjectReader> {
    let inner = &bound.inner;
    let mut wanted = vec![targets.is_none(); inner.leaves.len()];
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
    let mut first_rows = Vec::with_capacity(inner.metadata.num_row_groups());
    let mut rows = 0;
    for group in inner.metadata.row_groups() {
        first_rows.push(rows);
        rows += u64::try_from(group.num_rows()).unwrap_or(0);
    }
    Ok(ObjectReader {
        file: Arc::new(SourceFile::open(&inner.object)?),
        bound: bound.clone(),
        spec: spec.clone(),
        wanted,
        queue: row_groups.iter().copied().collect(),
        current: None,
        first_rows,
        zone: spec.zone().map(|zone| Arc::new(Mutex::new(ZoneConverter::new(zone)))),
        finished: false,
    })
}

/// Reads the batches of one object; ends after its first error.
pub struct ObjectReader {
    bound: BoundObject,
    spec: Arc<SourceSpec>,
    file: Arc<SourceFile>,
    /// Per leaf: decode it.
    wanted: Vec<bool>,
    queue: VecDeque<u32>,
    current: Option<OpenRowGroup>,
    /// First row of each row group in the file.
    first_rows: Vec<u64>,
    /// Shared with the batches, so that what it learned about the zone stays.
    zone: Option<Arc<Mutex<ZoneConverter>>>,
    finished: bool,
}

struct OpenRowGroup {
    row_group: u32,
    /// First row of the row group in the file.
    group_row: u64,
    next_row: u64,
    remaining: usize,
    batch_rows: usize,
    leaves: Vec<Option<LeafReader>>,
}

impl Iterator for ObjectReader {
    type Item = Result<SourceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let result = self.advance();
        if !matches!(result, Ok(Some(_))) {
            self.finished = true;
            self.current = None;
        }
        result.transpose()
    }
}

impl ObjectReader {
    fn advance(&mut self) -> Result<Option<SourceBatch>> {
        loop {
            if let Some(open) = &mut self.current {
                if open.remaining > 0 {
                    let batch = open.batch(&self.bound, &self.spec, &self.zone)?;
                    return Ok(Some(batch));
                }
                self.current = None;
            }
            let Some(group) = self.queue.pop_front() else {
                verify_pin(self.bound.object())?;
                return Ok(None);
            };
            self.current = Some(self.open(group)?);
        }
    }

    fn open(&self, row_group: u32) -> Result<OpenRowGroup> {
        let inner = &self.bound.inner;
        let metadata = inner.metadata.row_group(row_group as usize);
        let wanted = || inner.leaves.iter().zip(&self.wanted);
        let batch_rows =
            wanted().filter(|(_, wanted)| **wanted).map(|(leaf, _)| leaf.batch_rows(metadata, BATCH_ROWS)).min().unwrap_or(BATCH_ROWS);
        let mut leaves = Vec::with_capacity(inner.leaves.len());
        for (leaf, wanted) in wanted() {
            leaves.push(if *wanted {
                let opened = decoding(|| leaf.open(&self.file, &inner.metadata, row_group as usize, batch_rows));
                Some(opened.map_err(|error| decode_error(&inner.object, Some(row_group), Some(&leaf.name), &error))?)
            } else {
                None
            });
        }
        Ok(OpenRowGroup {
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
    fn batch(&mut self, bound: &BoundObject, spec: &Arc<SourceSpec>, zone: &Option<Arc<Mutex<ZoneConverter>>>) -> Result<SourceBatch> {
        let inner = &bound.inner;
        let rows = self.batch_rows.min(self.remaining);
        let mut arrays = Vec::with_capacity(self.leaves.len());
        for (leaf, reader) in inner.leaves.iter().zip(&mut self.leaves) {
            let Some(reader) = reader else {
                arrays.push(None);
                continue;
            };
            let array = decoding(|| reader.next()).map_err(|error| {
                let told = decode_error(&inner.object, Some(self.row_group), Some(&leaf.name), &error);
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
            bad_records: vec![],
            repeated_headers: 0,
            arrays,
            bound: bound.clone(),
            spec: spec.clone(),
            zone: zone.clone(),
        };
        self.next_row += rows as u64;
        self.remaining -= rows;
        Ok(batch)
    }
}

/// Adds the row and the value of the first text that is not UTF-8, by reading the column as bytes.
pub(crate) fn name_bad_text(error: Error, bound: &BoundObject, leaf: &Leaf, row_group: u32, group_row: u64) -> Error {
    let find = || -> Result<Option<(u64, String)>> {
        let file = Arc::new(SourceFile::open(bound.object())?);
        let metadata = &bound.inner.metadata;
        let told = |error: parquet::errors::ParquetError| decode_error(bound.object(), Some(row_group), Some(&leaf.name), &error);
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

/// Rows of one row group.
pub struct SourceBatch {
    pub row_group: u32,
    /// First row of the batch in the file, from 0.
    pub first_row: u64,
    rows: usize,
    pub bad_records: Vec<BadRecord>,
    pub repeated_headers: u64,
    /// Per leaf, as decoded.
    arrays: Vec<Option<ArrayRef>>,
    bound: BoundObject,
    spec: Arc<SourceSpec>,
    zone: Option<Arc<Mutex<ZoneConverter>>>,
}

/// The time column in UTC microseconds.
#[derive(Debug, Clone)]
pub struct TimeColumn {
    /// One per row; unspecified for rows that have a fault.
    pub us: ScalarBuffer<i64>,
    /// By row, at most one per row.
    pub faults: Vec<CellFault>,
    /// Rows that lost digits below a microsecond.
    pub truncated: Option<BooleanBuffer>,
    /// Under `--ambiguous infer`: rows whose pass through the repeated hour is still to be found.
    pub folds: Vec<FoldRow>,
    /// Rows with a leap second.
    pub leap_seconds: Vec<u32>,
}

/// A column in the table's type.
#[derive(Debug, Clone)]
pub struct ConvertedColumn {
    /// One element per kept row; unspecified for rows that have a fault.
    pub array: ArrayRef,
    /// By row among the kept rows, at most one per row.
    pub faults: Vec<CellFault>,
    /// Values that lost digits below a microsecond.
    pub truncated: u64,
    /// Values with a leap second.
    pub leap_seconds: u64,
    /// Cells that became NULL as the user asked: `--null`, `--null-number`, `--bad-text-to`.
    pub nulled: u64,
}

pub struct BadRecord {
    pub position: crate::Position,
    pub reason: Reason,
    pub error: Error,
}
impl SourceBatch {
    pub fn position(&self, row: usize) -> crate::Position {
        crate::Position::Row(self.first_row + row as u64 + 1)
    }
    pub fn time_text(&self, _row: usize) -> Option<String> {
        None
    }
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn object(&self) -> &timelake_model::SourceObject {
        self.bound.object()
    }

    /// The time column of all rows.
    pub fn times(&mut self) -> Result<TimeColumn> {
        let target = self.spec.time();
        let binding = self.binding(target)?;
        let (array, int96) = match &binding.read {
            Read::Missing => (new_null_array(&DataType::Null, self.rows), false),
            Read::Constant(constant) => {
                let array = constant.repeat(self.rows)?;
                let us = array.as_primitive::<TimestampMicrosecondType>();
                let truncated = (constant.truncated(1) > 0).then(|| BooleanBuffer::new_set(self.rows));
                let faults = self.null_faults(target, us.nulls(), Vec::new());
                return Ok(TimeColumn { us: us.values().clone(), faults, truncated, folds: Vec::new(), leap_seconds: Vec::new() });
            }
            Read::Leaf(leaf) => (self.leaf(*leaf, None)?, self.bound.inner.leaves[*leaf].int96),
            Read::Joined(parts) => (self.joined(parts, None)?, false),
        };
        let mut zone = self.zone.as_ref().map(|zone| zone.lock().unwrap_or_else(PoisonError::into_inner));
        let mut context = Context::new(self.spec.rules(), zone.as_deref_mut());
        context.folds = Some(Vec::new());
        let values =
            times(&array, int96, &mut context)?.ok_or_else(|| Error::internal("the time column was bound to a type that is no time"))?;
        let (folds, leap_seconds) = (context.folds.unwrap_or_default(), context.leap_seconds);
        let mut faults = self.null_faults(target, values.nulls.as_ref(), context.faults);
        if let Some(path) = &binding.path {
            let converted: ArrayRef =
                Arc::new(arrow::array::TimestampMicrosecondArray::new(values.us.clone(), values.nulls.clone()).with_timezone("+00:00"));
            self.compare_with_path(&converted, path, &mut faults)?;
        }
        Ok(TimeColumn { us: values.us, faults, truncated: values.truncated, folds, leap_seconds })
    }

    /// Column `target` in the table's type, for the rows of `keep` (`None`: all).
    pub fn column(&mut self, target: usize, keep: Option<&BooleanBuffer>) -> Result<ConvertedColumn> {
        if keep.is_some_and(|keep| keep.len() != self.rows) {
            return Err(Error::internal("a filter of another batch"));
        }
        let keep = keep.filter(|keep| keep.count_set_bits() != self.rows);
        let rows = keep.map_or(self.rows, BooleanBuffer::count_set_bits);
        let column_type =
            self.spec.columns().get(target).map(|column| column.column_type).ok_or_else(|| Error::internal("no such column"))?;
        let dictionary = self.spec.is_dictionary(target);
        let binding = self.binding(target)?;
        let (array, int96) = match &binding.read {
            Read::Missing => {
                let data_type = if dictionary { dictionary_type() } else { arrow_type(column_type) };
                let array = new_null_array(&data_type, rows);
                let faults = self.null_faults(target, Some(&NullBuffer::new_null(rows)), Vec::new());
                return Ok(ConvertedColumn { array, faults, truncated: 0, leap_seconds: 0, nulled: 0 });
            }
            Read::Constant(constant) => {
                let array = constant.repeat(rows)?;
                let faults = self.null_faults(target, array.logical_nulls().as_ref(), Vec::new());
                return Ok(ConvertedColumn { array, faults, truncated: constant.truncated(rows), leap_seconds: 0, nulled: 0 });
            }
            Read::Leaf(leaf) => (self.leaf(*leaf, keep)?, self.bound.inner.leaves[*leaf].int96),
            Read::Joined(parts) => (self.joined(parts, keep)?, false),
        };
        let mut zone = self.zone.as_ref().map(|zone| zone.lock().unwrap_or_else(PoisonError::into_inner));
        let mut context = Context::new(self.spec.rules(), zone.as_deref_mut());
        let converted = convert(&array, int96, column_type, &mut context)?
            .ok_or_else(|| Error::internal("a column was bound to a type that does not convert"))?;
        let mut faults = self.null_faults(target, array.logical_nulls().as_ref(), context.faults);
        let converted = match column_type {
            timelake_model::ColumnType::String if dictionary => as_dictionary(converted)?,
            timelake_model::ColumnType::String => as_plain(converted)?,
            _ => converted,
        };
        if let Some(path) = &binding.path {
            self.compare_with_path(&converted, path, &mut faults)?;
        }
        let leap_seconds = context.leap_seconds.len() as u64;
        Ok(ConvertedColumn { array: converted, faults, truncated: context.truncated, leap_seconds, nulled: 0 })
    }

    fn binding(&self, target: usize) -> Result<&crate::bind::Binding> {
        self.bound.inner.columns.get(target).ok_or_else(|| Error::internal("the object is bound to other columns"))
    }

    fn leaf(&self, leaf: usize, keep: Option<&BooleanBuffer>) -> Result<ArrayRef> {
        let array = self.arrays.get(leaf).and_then(Option::as_ref).ok_or_else(|| Error::internal("a column was not read"))?;
        match keep {
            None => Ok(array.clone()),
            Some(keep) => filter(array, &BooleanArray::new(keep.clone(), None)).map_err(|error| Error::internal(error.to_string())),
        }
    }

    /// The parts of each row as texts, with one blank between; NULL where any part is.
    fn joined(&self, parts: &[Part], keep: Option<&BooleanBuffer>) -> Result<ArrayRef> {
        let mut texts: Vec<PartTexts> = Vec::with_capacity(parts.len());
        for part in parts {
            texts.push(match part {
                Part::Text(text) => PartTexts::Same(text.clone()),
                Part::Leaf(leaf) => {
                    let array = self.leaf(*leaf, keep)?;
                    let days = *array.data_type() == DataType::Date64;
                    let array = if days { cast(&array, &DataType::Date32).map_err(|error| self.no_text(*leaf, &error))? } else { array };
                    PartTexts::Rows(cast(&array, &DataType::Utf8).map_err(|error| self.no_text(*leaf, &error))?)
                }
            });
        }
        let rows = keep.map_or(self.rows, BooleanBuffer::count_set_bits);
        let mut joined = Vec::with_capacity(rows);
        for row in 0..rows {
            let pieces: Option<Vec<&str>> = texts.iter().map(|texts| texts.at(row)).collect();
            joined.push(pieces.map(|pieces| pieces.join(" ")));
        }
        Ok(Arc::new(StringArray::from(joined)))
    }

    /// A date or time of day so far out that it has no text.
    fn no_text(&self, leaf: usize, error: &arrow::error::ArrowError) -> Error {
        let column = self.bound.inner.leaves.get(leaf).map(|leaf| leaf.name.as_str());
        corrupt(self.bound.object(), Some(self.row_group), column, &error.to_string())
    }

    /// Adds the faults of NULLs where none may be, and orders all by row.
    fn null_faults(&self, target: usize, nulls: Option<&NullBuffer>, mut faults: Vec<CellFault>) -> Vec<CellFault> {
        if let Some(reason) = self.spec.null_fault(target)
            && let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0)
        {
            faults.extend(nulls.iter().enumerate().filter(|(_, valid)| !valid).map(|(row, _)| CellFault::new(row, reason, None)));
        }
        faults.sort_by_key(|fault| fault.row);
        faults.dedup_by_key(|fault| fault.row);
        faults
    }

    /// A column that is in the path and in the file must be the same in every row.
    fn compare_with_path(
        &self,
        array: &ArrayRef,
        (text, constant): &(Option<String>, crate::convert::ConstantColumn),
        faults: &mut Vec<CellFault>,
    ) -> Result<()> {
        let internal = |error: arrow::error::ArrowError| Error::internal(format!("path and file could not be compared: {error}"));
        let plain = |array: &ArrayRef| match array.data_type() {
            DataType::Dictionary(_, value) => cast(array, value),
            _ => Ok(array.clone()),
        };
        let (array, value) = (plain(array).map_err(internal)?, plain(constant.value()).map_err(internal)?);
        let differs = distinct(&array, &Scalar::new(value)).map_err(internal)?;
        if differs.true_count() == 0 {
            return Ok(());
        }
        let formatter = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default()).map_err(internal)?;
        // A NULL that disagrees is told as that; a value that did not convert has its own fault already.
        let own: HashSet<u32> = faults
            .iter()
            .filter(|fault| !matches!(fault.reason, Reason::NullInKey | Reason::NullInRequired))
            .map(|fault| fault.row)
            .collect();
        let mut disagreeing = Vec::new();
        for row in differs.values().set_indices().filter(|row| !own.contains(&(*row as u32))) {
            let found = array.is_valid(row).then(|| formatter.value(row).to_string());
            let mut fault = CellFault::new(row, Reason::PathAndFileDisagree, found);
            fault.path_value = text.clone();
            disagreeing.push(fault);
        }
        let rows: HashSet<u32> = disagreeing.iter().map(|fault| fault.row).collect();
        faults.retain(|fault| !rows.contains(&fault.row));
        faults.extend(disagreeing);
        faults.sort_by_key(|fault| fault.row);
        Ok(())
    }
}

enum PartTexts {
    Same(Option<String>),
    Rows(ArrayRef),
}

impl PartTexts {
    fn at(&self, row: usize) -> Option<&str> {
        match self {
            PartTexts::Same(text) => text.as_deref(),
            PartTexts::Rows(array) => {
                let texts = array.as_string::<i32>();
                texts.is_valid(row).then(|| texts.value(row))
            }
        }
    }
}
