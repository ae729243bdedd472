//! Footers and headers → what the plan needs: rows, row groups, their times, the bindings of the columns. Of text
//! files only the columns are known.
//!
//! Takes pinned objects, gives an [`Inspection`] each. Must never give a time range that a row of the row group lies
//! outside of: the plan would send nobody for that row.

use crate::bind::{BindOutcome, BoundObject, BoundObjects, Content, Read, bind, column_not_found};
use crate::file::{SourceFile, read_footer};
use crate::kind::{Kind, kind_of};
use crate::leaf::first_rows;
use crate::mapping::{Feed, SourceSpec, nested_column};
use crate::reader::{ObjectReader, name_bad_text, read_columns};
use crate::remote::Sources;
use crate::text::{OpenText, bind_text, detect, empty_file, header_hint};
use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit as ArrowUnit};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::inventory::{InventoryObject, RowGroupInfo};
use timelake_model::request::TimeUnit;
use timelake_model::time::{MICROS_PER_DAY, MICROS_PER_SECOND, Period};
use timelake_model::{Error, Reason, Result, SourceObject, TimestampUs};

/// Rows read of a text column to estimate its width.
const MEASURED_ROWS: usize = 4_096;
/// Files of an inventory whose texts are measured.
const MEASURED_FILES: usize = 16;
/// Row groups a sample of series is taken from.
const SAMPLED_ROW_GROUPS: usize = 8;
/// Assumed where nothing was measured.
const DEFAULT_TEXT_BYTES: u64 = 24;
/// Offset and validity of a text in memory.
const TEXT_OVERHEAD_BYTES: u64 = 5;

/// A source object with its footer read.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub info: InventoryObject,
    pub bound: BoundObject,
    pub warnings: Vec<String>,
    /// Decoded width of the mapped columns of one row, estimated.
    pub key_and_payload_bytes_per_row: u64,
}

/// An inspection and the targets whose source column the file does not have.
type Inspected = (Inspection, Vec<usize>);

/// Reads one footer. A mapped column that is missing is an error here: this file is the whole source.
pub fn inspect(object: &SourceObject, sources: &Sources, spec: &SourceSpec) -> Result<Inspection> {
    let inspections = inspect_all(std::slice::from_ref(object), sources, spec, 1, &|| Ok(()))?;
    inspections.into_iter().next().ok_or_else(|| Error::internal("an inspected object got lost"))
}

/// Reads all footers with some threads. The first error in source order is returned, whatever the threads.
pub fn inspect_all(
    objects: &[SourceObject],
    sources: &Sources,
    spec: &SourceSpec,
    threads: usize,
    check_stop: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Vec<Inspection>> {
    let shared = Arc::new(spec.clone());
    let next = AtomicUsize::new(0);
    // Files after the first error in source order need not be read; files before it must.
    let first_error = AtomicUsize::new(usize::MAX);
    let results: Mutex<BTreeMap<usize, Result<Inspected>>> = Mutex::default();
    let step = objects.len().div_ceil(MEASURED_FILES).max(1);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= objects.len() || index > first_error.load(Ordering::Relaxed) {
                return;
            }
            let result = check_stop().and_then(|()| inspect_one(&objects[index], sources, &shared, index.is_multiple_of(step)));
            if result.is_err() {
                first_error.fetch_min(index, Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).insert(index, result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, objects.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut inspections = Vec::with_capacity(objects.len());
    let mut missing = Vec::with_capacity(objects.len());
    for (_, result) in results {
        let (inspection, absent) = result?;
        inspections.push(inspection);
        missing.push(absent);
    }
    judge_empty(&mut inspections)?;
    judge_missing(&mut inspections, &missing, spec)?;
    Ok(inspections)
}

/// Missing everywhere is a mistake, missing in some files is NULL there.
fn judge_missing(inspections: &mut [Inspection], missing: &[Vec<usize>], spec: &SourceSpec) -> Result<()> {
    let columns_of = |inspection: &Inspection| inspection.bound.inner.column_names();
    // A file without rows and columns says nothing about names.
    let speaks: Vec<bool> =
        inspections.iter().map(|inspection| inspection.bound.inner.may_have_rows() || !columns_of(inspection).is_empty()).collect();
    let mut everywhere: BTreeSet<usize> = BTreeSet::new();
    for target in 0..spec.columns().len() {
        let Feed::Named { source, explicit } = spec.feed(target) else { continue };
        let absent_in = |index: usize| missing[index].contains(&target) && !has_column(&inspections[index], &source.whole);
        let speakers: Vec<usize> = (0..inspections.len()).filter(|index| speaks[*index]).collect();
        if !speakers.is_empty() && speakers.iter().all(|index| absent_in(*index)) {
            if *explicit {
                let first = &inspections[speakers[0]];
                return Err(not_found(first, spec, target, &source.whole));
            }
            everywhere.insert(target);
        }
    }
    refuse_nested(inspections, spec)?;
    tell_absent(inspections, &everywhere, &speaks, spec)?;
    for (index, inspection) in inspections.iter_mut().enumerate() {
        if inspection.bound.inner.may_have_rows() {
            let names =
                missing[index].iter().filter(|target| !everywhere.contains(target)).map(|target| spec.columns()[*target].name.clone());
            inspection.info.missing_columns = names.collect();
        }
    }
    Ok(())
}

/// A nested column that the source has would silently become NULL.
fn refuse_nested(inspections: &[Inspection], spec: &SourceSpec) -> Result<()> {
    for inspection in inspections {
        let names = inspection.bound.inner.column_names();
        if let Some(name) = spec.nested().iter().find(|nested| names.iter().any(|name| name == *nested)) {
            return Err(nested_column(name, Some(&inspection.info.object.shown)));
        }
    }
    Ok(())
}

/// Columns that no file has are NULL in every row: told, and an error when nothing but keys would be loaded.
fn tell_absent(inspections: &mut [Inspection], everywhere: &BTreeSet<usize>, speaks: &[bool], spec: &SourceSpec) -> Result<()> {
    let Some(first) = speaks.iter().position(|speaks| *speaks) else { return Ok(()) };
    let is_value = |target: &usize| !spec.needs_value(*target) && !spec.is_key(*target);
    let fed = (0..spec.columns().len()).filter(is_value).any(|target| !everywhere.contains(&target));
    if let (false, Some(target)) = (fed, everywhere.iter().find(|target| is_value(target))) {
        let found = &inspections[first];
        let column = &spec.columns()[*target].name;
        let error = not_found(found, spec, *target, column);
        let hint = format!("{}, or say that it is NULL with --map {column}=", error.hint.clone().unwrap_or_default());
        return Err(error.hint(hint));
    }
    if !everywhere.is_empty() {
        let names: Vec<&str> = everywhere.iter().map(|target| spec.columns()[*target].name.as_str()).collect();
        inspections[first].warnings.push(format!(
            "no file has a column for {}: NULL in every row (--map {}=... names one)",
            names.join(", "),
            names[0]
        ));
    }
    Ok(())
}

/// True when a file without rows has the column, whatever its type: it then is not a typing slip.
fn has_column(inspection: &Inspection, name: &str) -> bool {
    let inner = &inspection.bound.inner;
    !inner.may_have_rows() && inner.column_names().iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// A mapped column that no file has. A text file may have it in another line, or by another delimiter.
fn not_found(inspection: &Inspection, spec: &SourceSpec, target: usize, name: &str) -> Error {
    bound_not_found(&inspection.bound, spec, target, name)
}

fn bound_not_found(bound: &BoundObject, spec: &SourceSpec, target: usize, name: &str) -> Error {
    let error = column_not_found(bound.object(), spec, target, name, &bound.inner.column_names());
    match &bound.inner.content {
        Content::Text(content) => {
            match content.dialect.as_ref().and_then(|dialect| header_hint(bound.object(), &bound.inner.sources, spec, dialect)) {
                Some(hint) => error.hint(hint),
                None => error,
            }
        }
        Content::Parquet(_) => error,
    }
}

/// One empty text file among others is a quiet source; nothing but empty files is a failed export.
fn judge_empty(inspections: &mut [Inspection]) -> Result<()> {
    let all_empty = inspections.iter().all(|inspection| inspection.bound.inner.is_empty_text());
    for inspection in inspections.iter_mut().filter(|inspection| inspection.bound.inner.is_empty_text()) {
        if all_empty {
            return Err(empty_file(inspection.bound.object()));
        }
        inspection.warnings.push(format!("{} is empty", inspection.info.object.shown));
    }
    Ok(())
}

fn inspect_one(object: &SourceObject, sources: &Sources, spec: &Arc<SourceSpec>, measure: bool) -> Result<Inspected> {
    let file = SourceFile::open(object, sources)?;
    let outcome = match kind_of(&file, spec.format())? {
        Kind::Parquet => bind(object, sources, read_footer(&file)?, spec)?,
        Kind::Text => {
            let mut open = OpenText::open(object, sources, spec.text().encoding)?;
            bind_text(object, sources, detect(&mut open, object, spec)?, spec)?
        }
    };
    let BindOutcome { bound, missing, warnings } = outcome;
    // Other columns are judged over all files; without these no row of this file can be loaded.
    if bound.inner.may_have_rows()
        && let Some(target) = missing.iter().find(|target| spec.needs_value(**target))
    {
        return Err(bound_not_found(&bound, spec, *target, &spec.source_name(*target)));
    }
    let (mut row_groups, mut rows) = (Vec::new(), 0);
    if let Content::Parquet(content) = &bound.inner.content {
        let has_time = !missing.contains(&spec.time());
        for (index, group) in content.metadata.row_groups().iter().enumerate() {
            let group_rows = u64::try_from(group.num_rows()).unwrap_or(0);
            let time = if group_rows == 0 || !has_time { None } else { time_range(&bound, index as u32, group, spec)? };
            row_groups.push(RowGroupInfo { rows: group_rows, time, per_chunk: BTreeMap::new(), series: None });
            rows += group_rows;
        }
    }
    let bytes = bytes_per_row(&bound, spec, measure)?;
    let info =
        InventoryObject { object: object.clone(), rows, row_groups, missing_columns: Vec::new(), text: bound.is_text(), run_of: None };
    Ok((Inspection { info, bound, warnings, key_and_payload_bytes_per_row: bytes }, missing))
}

/// Smallest and largest instant of a row group: from statistics where they can be trusted, else from the rows.
fn time_range(
    bound: &BoundObject,
    row_group: u32,
    group: &RowGroupMetaData,
    spec: &Arc<SourceSpec>,
) -> Result<Option<(TimestampUs, TimestampUs)>> {
    if let Some(known) = range_from_statistics(bound, group, spec) {
        return Ok(known);
    }
    let mut range: Option<(i64, i64)> = None;
    for_each_time(bound, row_group, |us| {
        let (low, high) = range.unwrap_or((us, us));
        range = Some((low.min(us), high.max(us)));
    })?;
    Ok(range.map(|(low, high)| (TimestampUs(low), TimestampUs(high))))
}

/// Outer `None`: not usable. Inner `None`: every row is NULL.
fn range_from_statistics(bound: &BoundObject, group: &RowGroupMetaData, spec: &SourceSpec) -> Option<Option<(TimestampUs, TimestampUs)>> {
    let Read::Leaf(leaf) = &bound.inner.columns.get(spec.time())?.read else { return None };
    let leaf = bound.inner.parquet().ok()?.leaves.get(*leaf)?;
    if leaf.int96 {
        return None;
    }
    let statistics = group.columns().get(leaf.index)?.statistics()?;
    if statistics.null_count_opt() == u64::try_from(group.num_rows()).ok() {
        return Some(None);
    }
    let (low, high) = match statistics {
        Statistics::Int64(values) => (*values.min_opt()?, *values.max_opt()?),
        Statistics::Int32(values) => (i64::from(*values.min_opt()?), i64::from(*values.max_opt()?)),
        _ => return None,
    };
    if low > high {
        return None;
    }
    // Times beyond i64 microseconds are clamped here and are bad rows when read.
    let scale = |value: i64| -> Option<i64> {
        Some(match &leaf.data_type {
            DataType::Timestamp(ArrowUnit::Second, _) => value.saturating_mul(MICROS_PER_SECOND),
            DataType::Timestamp(ArrowUnit::Millisecond, _) | DataType::Date64 => value.saturating_mul(1_000),
            DataType::Timestamp(ArrowUnit::Microsecond, _) => value,
            DataType::Timestamp(ArrowUnit::Nanosecond, _) => value.div_euclid(1_000),
            DataType::Date32 => value.saturating_mul(MICROS_PER_DAY),
            // Unsigned ones are ordered otherwise by some writers.
            DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8 => match spec.rules().unit? {
                TimeUnit::Seconds => value.saturating_mul(MICROS_PER_SECOND),
                TimeUnit::Millis => value.saturating_mul(1_000),
                TimeUnit::Micros => value,
                TimeUnit::Nanos => value.div_euclid(1_000),
            },
            _ => return None,
        })
    };
    let (low, high) = (scale(low)?, scale(high)?);
    let naive = matches!(leaf.data_type, DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64);
    if !naive {
        return Some(Some((TimestampUs(low), TimestampUs(high))));
    }
    let zone = spec.zone()?;
    let (largest, smallest) = (zone.offsets_near_us(low).1, zone.offsets_near_us(high).0);
    Some(Some((TimestampUs(low.saturating_sub(largest)), TimestampUs(high.saturating_sub(smallest)))))
}

/// Calls `each` with every usable time of a row group.
fn for_each_time(bound: &BoundObject, row_group: u32, mut each: impl FnMut(i64)) -> Result<()> {
    for batch in read_columns(bound, &[row_group], Some(&[bound.spec().time()]))? {
        let times = batch?.times()?;
        let mut faults = times.faults.iter().map(|fault| fault.row as usize).peekable();
        for (row, us) in times.us.iter().enumerate() {
            if faults.next_if_eq(&row).is_none() {
                each(*us);
            }
        }
    }
    Ok(())
}

/// Exact rows per chunk of one row group; reads only the time column. Rows without a usable time are in no chunk.
pub fn count_per_chunk(bound: &BoundObject, row_group: u32, period: Period) -> Result<BTreeMap<i64, u64>> {
    let mut counts = BTreeMap::new();
    // Times come in runs of one chunk: the map is touched once per run.
    let (mut span, mut ordinal, mut run) = (0..0, 0, 0_u64);
    for_each_time(bound, row_group, |us| {
        if !span.contains(&us) {
            if run > 0 {
                *counts.entry(ordinal).or_insert(0) += run;
            }
            ordinal = period.ordinal(us);
            span = period.start(ordinal)..period.start(ordinal + 1);
            run = 0;
        }
        run += 1;
    })?;
    if run > 0 {
        *counts.entry(ordinal).or_insert(0) += run;
    }
    Ok(counts)
}

fn bytes_per_row(bound: &BoundObject, spec: &SourceSpec, measure: bool) -> Result<u64> {
    let mut bytes = 0;
    for (target, column) in spec.columns().iter().enumerate() {
        bytes += match (column.column_type.fixed_width(), &bound.inner.columns[target].read) {
            (Some(width), _) => width as u64,
            (None, Read::Missing) => 1,
            (None, Read::Leaf(leaf)) => TEXT_OVERHEAD_BYTES + text_bytes(bound, *leaf, measure)?,
            (None, _) => TEXT_OVERHEAD_BYTES + DEFAULT_TEXT_BYTES,
        };
    }
    Ok(bytes)
}

/// Average bytes of a text: from the footer, else from the first rows of the largest row group.
fn text_bytes(bound: &BoundObject, leaf: usize, measure: bool) -> Result<u64> {
    let Content::Parquet(content) = &bound.inner.content else { return Ok(DEFAULT_TEXT_BYTES) };
    let Some(leaf) = content.leaves.get(leaf) else { return Ok(DEFAULT_TEXT_BYTES) };
    let groups = content.metadata.row_groups();
    let Some((index, group)) = groups.iter().enumerate().max_by_key(|(index, group)| (group.num_rows(), std::cmp::Reverse(*index))) else {
        return Ok(DEFAULT_TEXT_BYTES);
    };
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    if rows == 0 {
        return Ok(DEFAULT_TEXT_BYTES);
    }
    let stated = group.columns().get(leaf.index).and_then(|column| column.unencoded_byte_array_data_bytes());
    if let Some(bytes) = stated.and_then(|bytes| u64::try_from(bytes).ok()) {
        return Ok(bytes.div_ceil(rows));
    }
    if !measure {
        return Ok(DEFAULT_TEXT_BYTES);
    }
    let file = Arc::new(SourceFile::open(bound.object(), &bound.inner.sources)?);
    let group_row = || groups[..index].iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).sum();
    let measured = first_rows(&file, &content.metadata, leaf, index as u32, MEASURED_ROWS).map_err(|error| match error.reason {
        Reason::InvalidUtf8 => name_bad_text(error, bound, leaf, index as u32, group_row()),
        _ => error,
    })?;
    let Some(array) = measured else { return Ok(DEFAULT_TEXT_BYTES) };
    let array = match array.data_type() {
        DataType::Dictionary(_, value) => cast(&array, value).map_err(|error| Error::internal(error.to_string()))?,
        _ => array,
    };
    let bytes = match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().values().len(),
        DataType::LargeBinary => array.as_binary::<i64>().values().len(),
        _ => return Ok(DEFAULT_TEXT_BYTES),
    };
    Ok((bytes as u64).div_ceil(array.len().max(1) as u64))
}

/// Sorted sample of a key column (index of the target) as text, from row groups spread over the source.
pub fn sample_series(objects: &BoundObjects, target: usize, limit: usize) -> Result<Vec<String>> {
    let groups: Vec<(&BoundObject, u32)> =
        objects.values().flat_map(|object| (0..object.row_groups()).map(move |group| (object, group))).collect();
    let picked = groups.len().min(SAMPLED_ROW_GROUPS);
    let mut values = BTreeSet::new();
    for pick in 0..picked {
        let (object, group) = groups[pick * groups.len() / picked];
        let mut reader: ObjectReader = read_columns(object, &[group], Some(&[target]))?;
        // One batch is enough to know the series of a neighbourhood.
        if let Some(batch) = reader.next() {
            let column = batch?.column(target, None)?;
            let faulty: BTreeSet<u32> = column.faults.iter().map(|fault| fault.row).collect();
            let texts = cast(&column.array, &DataType::Utf8).map_err(|error| Error::internal(error.to_string()))?;
            let texts = texts.as_string::<i32>();
            let rows = (0..texts.len()).filter(|row| texts.is_valid(*row) && !faulty.contains(&(*row as u32)));
            let mut previous = None;
            for row in rows {
                let text = texts.value(row);
                if previous != Some(text) && !values.contains(text) {
                    values.insert(text.to_string());
                }
                previous = Some(text);
            }
        }
    }
    if values.len() <= limit {
        return Ok(values.into_iter().collect());
    }
    // Evenly spaced over the sorted values, so that the sample cuts the series into equal parts.
    let all: Vec<String> = values.into_iter().collect();
    Ok((0..limit).map(|index| all[index * all.len() / limit].clone()).collect())
}
