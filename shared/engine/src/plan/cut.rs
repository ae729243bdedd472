//! Cuts what is loaded into units: by time at chunk limits, a chunk that is too large by series.

use super::{EXISTING_ROWS_PER_ROW, MAX_UNITS, MIN_ROWS_FOR_PARALLELISM, Source, UNITS_PER_WORKER};
use crate::land::LANDED_FROM_PERMILLE;
use timelake_model::plan::{BucketSet, SeriesRange, SeriesSlice, touches};
use timelake_model::time::{TimestampUs, Window};
use timelake_model::{Error, Inventory, Result};

/// Time, series, estimated rows.
pub(super) type Cut = (Window, SeriesSlice, u64);

/// Cuts the window into units: by time at chunk limits, then by series where one chunk alone is too large.
pub(super) fn cut(
    inventory: &Inventory,
    sources: &[Source],
    window: &Window,
    layout: Option<u32>,
    limit: u64,
    workers: u64,
) -> Result<Vec<Cut>> {
    let counted = inventory.table.period();
    let period = inventory.table.layout(layout).map_or(counted, |l| l.period);
    let rows = |low: i64, high: i64| -> u64 { sources.iter().map(|s| s.rows_in(low, high, counted)).sum() };
    let (low, high) = (window.low(), window.high());
    if low == i64::MIN || high == i64::MAX {
        return Err(Error::internal("the window of a plan has no limits"));
    }
    let total = rows(low, high);
    // Few rows for many existing ones are work too. Each unit may have to decode the whole source: not for more than that is
    // worth before it is landed.
    let existing: u64 = inventory.table.existing.files.iter().filter(|f| touches(window, f.time)).map(|f| f.rows).sum();
    let for_existing = (existing / EXISTING_ROWS_PER_ROW / MIN_ROWS_FOR_PARALLELISM).min(workers).min(LANDED_FROM_PERMILLE / 1000);
    let for_rows = (total / MIN_ROWS_FOR_PARALLELISM).min(workers.max(1) * UNITS_PER_WORKER);
    let wanted_units: u64 = for_rows.max(for_existing).max(1).max(total.div_ceil(limit));

    let last = period.ordinal(high - 1);
    let mut out = Vec::new();
    let mut start = low;
    for unit in 0.. {
        if start >= high {
            break;
        }
        // Even shares of the rows: the unit ends at the chunk limit nearest to its share, found by bisection.
        let share = u128::from(total) * (unit + 1) / u128::from(wanted_units.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let first = period.ordinal(start);
        let end_of = |ordinal: i64| if ordinal >= last { high } else { period.start(ordinal + 1) };
        let (mut fits, mut exceeds) = (first, last + 1);
        while fits + 1 < exceeds {
            let middle = fits + (exceeds - fits) / 2;
            let within = rows(low, end_of(middle)) <= share && rows(start, end_of(middle)) <= limit;
            if within { fits = middle } else { exceeds = middle }
        }
        if fits < last && rows(start, end_of(fits + 1)) <= limit {
            let (below, above) = (rows(low, end_of(fits)), rows(low, end_of(fits + 1)));
            if above.saturating_sub(share) < share.saturating_sub(below) {
                fits += 1;
            }
        }
        let end = end_of(fits);
        let estimated = rows(start, end);
        let time = Window { start: Some(TimestampUs(start)), end: Some(TimestampUs(end)) };
        if estimated <= limit {
            out.push((time, SeriesSlice::ALL, estimated));
        } else {
            split_chunk(&Chunk { inventory, rows: &rows, time, layout }, estimated, limit, &mut out);
        }
        if out.len() > MAX_UNITS {
            break;
        }
        start = end;
    }
    Ok(out)
}

/// One chunk that exceeds a unit's memory.
struct Chunk<'a> {
    inventory: &'a Inventory,
    /// Estimated rows between two times.
    rows: &'a dyn Fn(i64, i64) -> u64,
    time: Window,
    layout: Option<u32>,
}

/// Cuts a chunk by the table's own buckets (files stay one per partition), then by ranges of series, and a
/// single series that is too large by time.
fn split_chunk(chunk: &Chunk, estimated: u64, limit: u64, out: &mut Vec<Cut>) {
    let parts = estimated.div_ceil(limit).max(1);
    let Some((column, modulus)) = chunk.inventory.table.bucket_partition(chunk.layout) else {
        return split_range(chunk, None, estimated, parts, out);
    };
    let sets = parts.min(u64::from(modulus));
    let rows_of = |buckets: u64| estimated * buckets / u64::from(modulus);
    // The same number of parts for every set, so that parts by time have common limits.
    let parts = rows_of(u64::from(modulus).div_ceil(sets)).div_ceil(limit).max(1);
    let first = out.len();
    for i in 0..sets {
        let share = |i: u64| (u64::from(modulus) * i / sets) as u32;
        let buckets: Vec<u32> = (share(i)..share(i + 1)).collect();
        let rows = rows_of(buckets.len() as u64);
        let set = BucketSet { column: column.clone(), modulus, buckets };
        split_range(chunk, Some(set), rows, parts, out);
    }
    out[first..].sort_by_key(|(time, ..)| time.start);
}

fn split_range(chunk: &Chunk, buckets: Option<BucketSet>, estimated: u64, parts: u64, out: &mut Vec<Cut>) {
    let Some(column) = chunk.inventory.table.slice_column() else { return split_time(chunk, buckets, estimated, parts, out) };
    let sample = &chunk.inventory.series_sample;
    let mut limits: Vec<&String> = (1..parts).filter_map(|i| sample.get((sample.len() as u64 * i / parts) as usize)).collect();
    limits.dedup();
    // The smallest value as a limit would make an empty first range.
    limits.retain(|l| Some(*l) != sample.first());
    if parts > 1 && limits.is_empty() {
        return split_time(chunk, buckets, estimated, parts, out);
    }
    let count = limits.len() as u64 + 1;
    for i in 0..=limits.len() {
        let range = (count > 1).then(|| SeriesRange {
            column: column.clone(),
            from: i.checked_sub(1).map(|i| limits[i].clone()),
            to: limits.get(i).map(|l| (*l).clone()),
        });
        out.push((chunk.time, SeriesSlice { buckets: buckets.clone(), range }, estimated / count));
    }
}

/// Even shares of the chunk's estimated rows, each limit found by bisection.
fn split_time(chunk: &Chunk, buckets: Option<BucketSet>, estimated: u64, parts: u64, out: &mut Vec<Cut>) {
    let (low, high) = (chunk.time.low(), chunk.time.high());
    let total = (chunk.rows)(low, high);
    let mut start = low;
    for i in 1..=parts {
        let mut end = high;
        if i < parts {
            let share = (u128::from(total) * u128::from(i) / u128::from(parts)) as u64;
            let (mut below, mut above) = (start, high);
            while above - below > 1 {
                let middle = below + (above - below) / 2;
                if (chunk.rows)(low, middle) <= share { below = middle } else { above = middle }
            }
            end = below;
        }
        if end > start {
            let series = SeriesSlice { buckets: buckets.clone(), range: None };
            out.push((Window::new(start, end), series, estimated / parts));
            start = end;
        }
    }
}
