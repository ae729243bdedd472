//! Rows as read, and their columns in the table's types.
//!
//! A batch holds values as its file has them; they are converted when asked for, for the rows asked for. Must never
//! change a value without a fault or a count.

use crate::bind::{BoundObject, Part, Read};
use crate::cell::{CellFault, Position};
use crate::convert::{Context, FoldRow, arrow_type, as_dictionary, as_plain, convert, dictionary_type, times};
use crate::file::corrupt;
use crate::mapping::SourceSpec;
use crate::nulling::{equal_rows, is_text, set_null};
use crate::zone::ZoneConverter;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar, StringArray, new_null_array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{cast, filter};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::{Error, Reason, Result};

/// Rows of one row group, or of a text file.
pub struct SourceBatch {
    pub row_group: u32,
    /// First row of the batch in the file, from 0.
    pub first_row: u64,
    pub(crate) rows: usize,
    /// Per leaf, as decoded.
    pub(crate) arrays: Vec<Option<ArrayRef>>,
    /// Per leaf: rows that `--null` made NULL.
    pub(crate) nulled: Vec<Vec<u32>>,
    /// Of a text file: the physical line of each row.
    pub(crate) lines: Option<Vec<u64>>,
    /// Records of a text file that are no row of the batch, in order. Each is one row read, and rejected.
    pub bad_records: Vec<BadRecord>,
    /// Header lines met again, which are no rows.
    pub repeated_headers: u64,
    /// Bytes of the file that were read for it, about: how far reading is.
    pub source_bytes: u64,
    pub(crate) bound: BoundObject,
    pub(crate) zone: Option<Arc<Mutex<ZoneConverter>>>,
}

/// A record of a text file that cannot be a row.
#[derive(Debug, Clone)]
pub struct BadRecord {
    pub position: Position,
    pub reason: Reason,
    pub error: Error,
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

impl SourceBatch {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Keeps the first rows of a batch of Parquet; text is read up to a number of rows.
    pub(crate) fn truncate(&mut self, rows: u64) {
        let Some(rows) = usize::try_from(rows).ok().filter(|rows| *rows < self.rows && self.lines.is_none()) else { return };
        self.source_bytes = self.source_bytes * rows as u64 / self.rows as u64;
        self.rows = rows;
        self.arrays.iter_mut().flatten().for_each(|array| *array = array.slice(0, rows));
    }

    pub fn object(&self) -> &timelake_model::SourceObject {
        self.bound.object()
    }

    /// Where a row of the batch is in its file.
    pub fn position(&self, row: usize) -> Position {
        match &self.lines {
            Some(lines) => Position::Line(lines.get(row).copied().unwrap_or_default()),
            None => Position::Row(self.first_row + row as u64 + 1),
        }
    }

    /// The time of a row as its file has it, where that is text.
    pub fn time_text(&self, row: usize) -> Option<String> {
        let cell = |leaf: usize| {
            let array = self.arrays.get(leaf)?.as_ref()?;
            let texts = array.as_string_opt::<i32>()?;
            (row < texts.len() && texts.is_valid(row)).then(|| texts.value(row).to_string())
        };
        match &self.binding(self.spec().time()).ok()?.read {
            Read::Leaf(leaf) => cell(*leaf),
            Read::Joined(parts) => {
                let text = |part: &Part| match part {
                    Part::Leaf(leaf) => cell(*leaf),
                    Part::Text(text) => text.clone(),
                };
                Some(parts.iter().map(text).collect::<Option<Vec<_>>>()?.join(" "))
            }
            _ => None,
        }
    }

    fn spec(&self) -> &SourceSpec {
        &self.bound.inner.spec
    }

    /// The time column of all rows.
    pub fn times(&mut self) -> Result<TimeColumn> {
        let target = self.spec().time();
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
            Read::Leaf(leaf) => (self.leaf(*leaf, None)?, self.bound.inner.is_int96(*leaf)),
            Read::Joined(parts) => (self.joined(parts, None)?, false),
        };
        let mut zone = self.zone.as_ref().map(|zone| zone.lock().unwrap_or_else(PoisonError::into_inner));
        let mut context = Context::new(self.spec().rules(), zone.as_deref_mut());
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
            self.spec().columns().get(target).map(|column| column.column_type).ok_or_else(|| Error::internal("no such column"))?;
        let dictionary = self.spec().is_dictionary(target);
        if self.spec().bad_text_to() == Some(target) {
            return self.bad_text_column(target, keep, rows);
        }
        let mut nulled = 0;
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
            Read::Leaf(leaf) => {
                let rows = self.nulled.get(*leaf).map(Vec::as_slice).unwrap_or_default();
                nulled += rows.iter().filter(|row| keep.is_none_or(|keep| keep.value(**row as usize))).count() as u64;
                (self.leaf(*leaf, keep)?, self.bound.inner.is_int96(*leaf))
            }
            Read::Joined(parts) => (self.joined(parts, keep)?, false),
        };
        let mut zone = self.zone.as_ref().map(|zone| zone.lock().unwrap_or_else(PoisonError::into_inner));
        let mut context = Context::new(self.spec().rules(), zone.as_deref_mut());
        let mut converted = convert(&array, int96, column_type, &mut context)?
            .ok_or_else(|| Error::internal("a column was bound to a type that does not convert"))?;
        if is_text(&array) && self.spec().bad_text_is_taken(target) {
            let (bad, kept) = context.faults.into_iter().partition(is_bad_text);
            context.faults = kept;
            nulled += set_null(&mut converted, bad.iter().map(|fault: &CellFault| fault.row as usize))?;
        }
        let numbers = self.spec().null_numbers(target);
        if !numbers.is_empty() {
            let rows = equal_rows(&converted, numbers, &context.faults)?;
            nulled += set_null(&mut converted, rows.into_iter())?;
        }
        let nulls = if nulled > 0 { converted.logical_nulls() } else { array.logical_nulls() };
        let mut faults = self.null_faults(target, nulls.as_ref(), context.faults);
        let converted = match column_type {
            timelake_model::ColumnType::String if dictionary => as_dictionary(converted)?,
            timelake_model::ColumnType::String => as_plain(converted)?,
            _ => converted,
        };
        if let Some(path) = &binding.path {
            self.compare_with_path(&converted, path, &mut faults)?;
        }
        let leap_seconds = context.leap_seconds.len() as u64;
        Ok(ConvertedColumn { array: converted, faults, truncated: context.truncated, leap_seconds, nulled })
    }

    /// The column of `--bad-text-to`: the texts that stand where numbers should.
    fn bad_text_column(&self, target: usize, keep: Option<&BooleanBuffer>, rows: usize) -> Result<ConvertedColumn> {
        let mut texts: Vec<Vec<String>> = Vec::new();
        for number in (0..self.spec().columns().len()).filter(|column| self.spec().bad_text_is_taken(*column)) {
            let array = match &self.binding(number)?.read {
                Read::Leaf(leaf) => self.leaf(*leaf, keep)?,
                Read::Joined(parts) => self.joined(parts, keep)?,
                Read::Missing | Read::Constant(_) => continue,
            };
            if !is_text(&array) {
                continue;
            }
            let mut context = Context::new(self.spec().rules(), None);
            convert(&array, false, self.spec().columns()[number].column_type, &mut context)?;
            for fault in context.faults.into_iter().filter(is_bad_text) {
                texts.resize(rows, Vec::new());
                let (found, row) = (fault.value.unwrap_or_default(), &mut texts[fault.row as usize]);
                if !row.contains(&found) {
                    row.push(found);
                }
            }
        }
        texts.resize(rows, Vec::new());
        let array: ArrayRef = Arc::new(StringArray::from_iter(texts.iter().map(|row| (!row.is_empty()).then(|| row.join("; ")))));
        let faults = self.null_faults(target, array.logical_nulls().as_ref(), Vec::new());
        Ok(ConvertedColumn { array, faults, truncated: 0, leap_seconds: 0, nulled: 0 })
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
        let column = self.bound.inner.leaf_name(leaf);
        corrupt(self.bound.object(), Some(self.row_group), column, &error.to_string())
    }

    /// Adds the faults of NULLs where none may be, and orders all by row.
    fn null_faults(&self, target: usize, nulls: Option<&NullBuffer>, mut faults: Vec<CellFault>) -> Vec<CellFault> {
        if let Some(reason) = self.spec().null_fault(target)
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

/// What `--bad-text-to` takes. A text with a hint is a number by other options: to keep it as text would hide that they
/// were forgotten.
fn is_bad_text(fault: &CellFault) -> bool {
    fault.reason == Reason::BadNumber && fault.hint.is_none()
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
