//! How a job's rows spread over chunks and series, from what its units told and the files they met.

use std::collections::BTreeMap;
use timelake_model::inventory::ExistingFile;
use timelake_model::manifest::{ChunkRows, SeriesSummary};
use timelake_model::receipt::{OutlierKind, UnitReceipt};
use timelake_model::time::{Period, Window};
use timelake_model::{TimestampUs, WritePlan};

/// Of each kind, the farthest of all units.
const MOST_OUTLIERS: usize = 20;

/// Chunks with rows, and the existing rows that are in files across chunks. `existing`: `None` when the job does not look.
pub fn chunks(period: Period, existing: Option<&[ExistingFile]>, receipts: &[UnitReceipt]) -> (Vec<ChunkRows>, u64) {
    // Units of an earlier version do not tell: nothing is said then, rather than half of it.
    if receipts.iter().any(|receipt| receipt.chunk_rows.values().sum::<u64>() != receipt.counts.rows_written) {
        return (vec![], 0);
    }
    let mut rows: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
    let mut across = 0;
    for file in existing.unwrap_or_default().iter().filter(|file| file.rows > 0) {
        match file.time.map(|(low, high)| (period.ordinal(low.0), period.ordinal(high.0))) {
            Some((first, last)) if first == last => rows.entry(first).or_default().0 += file.rows,
            _ => across += file.rows,
        }
    }
    for (ordinal, written) in receipts.iter().flat_map(|receipt| &receipt.chunk_rows) {
        rows.entry(*ordinal).or_default().1 += written;
    }
    let chunks = rows.into_iter().map(|(ordinal, (before, written))| ChunkRows {
        chunk: period.name(ordinal),
        start: TimestampUs(period.start(ordinal)),
        existing: existing.map(|_| before),
        written,
    });
    (chunks.collect(), across)
}

/// Each series once per kind, where it is farthest from the others.
pub fn outliers(plan: &WritePlan, receipts: &[UnitReceipt]) -> Vec<SeriesSummary> {
    let windows: BTreeMap<u32, Window> = plan.units().map(|(_, unit)| (unit.index, unit.window)).collect();
    let mut found: BTreeMap<(OutlierKind, &Vec<String>), SeriesSummary> = BTreeMap::new();
    for receipt in receipts {
        for outlier in &receipt.series.outliers {
            let here = SeriesSummary {
                outlier: outlier.clone(),
                window: windows.get(&receipt.unit).copied().unwrap_or(Window::ALL),
                median_rows: receipt.series.median_rows,
                units: 1,
            };
            let known = found.entry((outlier.kind, &outlier.series)).or_insert_with(|| SeriesSummary { units: 0, ..here.clone() });
            let units = known.units + 1;
            if distance(&here) > distance(known) {
                *known = here;
            }
            known.units = units;
        }
    }
    let mut all: Vec<SeriesSummary> = found.into_values().collect();
    all.sort_by(|a, b| a.outlier.kind.cmp(&b.outlier.kind).then(distance(b).total_cmp(&distance(a))));
    let mut of_kind = BTreeMap::new();
    all.retain(|summary| {
        let count = of_kind.entry(summary.outlier.kind).or_insert(0usize);
        *count += 1;
        *count <= MOST_OUTLIERS
    });
    all
}

/// How many times more or fewer rows than the others, or the share that was dropped.
fn distance(summary: &SeriesSummary) -> f64 {
    let (rows, written) = (summary.outlier.rows as f64, summary.outlier.rows_written as f64);
    let median = summary.median_rows as f64;
    match summary.outlier.kind {
        OutlierKind::MoreRows => rows / median.max(1.0),
        OutlierKind::FewerRows => median / rows.max(1.0),
        OutlierKind::MoreDropped => 1.0 - written / rows.max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_rows_are_counted_where_their_file_is_in_one_chunk() {
        let day = 86_400_000_000i64;
        let file = |rows, low: i64, high: i64| ExistingFile {
            path: String::new(),
            bytes: 1,
            rows,
            spec_id: 0,
            time: Some((TimestampUs(low), TimestampUs(high))),
            sequence: 0,
            partition: 0,
        };
        let mut unknown = file(7, 0, 0);
        unknown.time = None;
        let files = [file(5, 0, day - 1), file(6, 0, 1), file(9, day - 1, day), unknown];
        let (chunks, across) = chunks(Period::Day, Some(&files), &[]);
        assert_eq!((across, chunks.len()), (16, 1));
        assert_eq!((chunks[0].chunk.as_str(), chunks[0].existing, chunks[0].written), ("1970-01-01", Some(11), 0));
    }
}
