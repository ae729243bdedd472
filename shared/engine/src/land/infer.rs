//! Which pass of a repeated hour a reading is of, where the order of its series tells.
//!
//! Takes the whole source, read once in source order (each file by itself, files side by side); gives for each series
//! and each repeated hour the first reading of the second pass: where the local clock goes back, if it does so exactly
//! once. A file whose own order tells is enough (overlapping exports repeat the hour); else the files together.
//! Two readings at the same local time, and no others in the hour, are one of each pass where the series is read once an
//! hour (or whatever the clock goes back by); anywhere else they may be one reading, delivered twice. Readings that a
//! file repeats from the file before it are no second pass either.
//! Must never guess: where the order does not tell, the rows are errors.

use crate::hash::bytes_hash;
use crate::write::{Reading, UnitRows, cell_text, internal};
use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;
use arrow::row::{RowConverter, SortField};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use timelake_model::land::SeriesFold;
use timelake_model::{Error, Kind, Result};
use timelake_source::{FoldRow, LocalTime, SourceBatch, Zone, ZoneConverter};

/// Source object and place of a row.
type At = (u32, u64);

/// What a job knows about its repeated hours.
#[derive(Default)]
pub struct Folds {
    by_series: HashMap<Vec<String>, Vec<SeriesFold>>,
}

impl Folds {
    pub fn new(folds: &[SeriesFold]) -> Folds {
        let mut by_series: HashMap<Vec<String>, Vec<SeriesFold>> = HashMap::new();
        for fold in folds {
            by_series.entry(fold.series.clone()).or_default().push(fold.clone());
        }
        Folds { by_series }
    }

    /// The instant of a row, if the order of its series tells it.
    pub fn instant(&self, series: &[String], row: &FoldRow, at: At) -> Option<i64> {
        let length = row.later_us - row.earlier_us;
        let known = self.by_series.get(series)?;
        let holds = |fold: &&SeriesFold| (fold.fold_us..fold.fold_us + length).contains(&row.local_us);
        let of_file = known.iter().filter(holds).find(|fold| fold.only_in == Some(at.0));
        let fold = of_file.or_else(|| known.iter().filter(holds).find(|fold| fold.only_in.is_none()))?;
        let second = at >= fold.second_pass;
        Some(if second == fold.descending { row.earlier_us } else { row.later_us })
    }
}

/// Reads the source for its repeated hours.
pub fn infer(reading: &Reading, types: &[arrow::datatypes::DataType], threads: usize) -> Result<Vec<SeriesFold>> {
    let Some(zone) = reading.spec.zone() else { return Ok(vec![]) };
    let count = reading.bound.len();
    let next = AtomicUsize::new(0);
    let scanned: Mutex<BTreeMap<usize, Result<FileScan>>> = Mutex::default();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let scan = scan(reading, types, index as u32, zone);
            if let Ok(mut all) = scanned.lock() {
                all.insert(index, scan);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut whole: BTreeMap<Vec<String>, WholeSeries> = BTreeMap::new();
    for scan in scanned.into_inner().map_err(|_| Error::internal("a reader panicked"))?.into_values() {
        for (series, part) in scan? {
            whole.entry(series).or_default().append(part);
        }
    }
    let one_at_a_time = UnitRows::new(&reading.inventory.table, types)?.same_key;
    Ok(whole.into_iter().flat_map(|(series, scan)| scan.decide(&series, one_at_a_time)).collect())
}

type FileScan = BTreeMap<Vec<String>, SeriesScan>;

/// Steps between neighbours that are not in one fold: forward, and back.
#[derive(Clone, Copy, Default)]
struct Steps {
    forward: u64,
    back: u64,
}

impl Steps {
    fn count(&mut self, from: (i64, Option<i64>), to: (i64, Option<i64>)) {
        if from.1.is_some() && from.1 == to.1 {
            return;
        }
        self.forward += u64::from(to.0 > from.0);
        self.back += u64::from(to.0 < from.0);
    }
}

/// One series in one file, in the file's order.
#[derive(Default)]
struct SeriesScan {
    /// Instant and fold of the first and the last row.
    first: Option<(i64, Option<i64>)>,
    last: Option<(i64, Option<i64>)>,
    steps: Steps,
    /// Least and greatest instant of the rows that are in no fold.
    once: Option<(i64, i64)>,
    folds: BTreeMap<i64, FoldRows>,
}

/// A row in a fold.
#[derive(Clone, Copy)]
struct InFold {
    local: i64,
    at: At,
    /// Hash of its values.
    payload: u64,
}

/// The rows of one fold in one file.
#[derive(Default)]
struct FoldRows {
    /// An instant in the fold or up to its length before it.
    us: i64,
    /// How far the clock goes back.
    length: i64,
    rows: Vec<InFold>,
    /// Instants of the rows of the series before and after these in the file.
    previous: Option<i64>,
    next: Option<i64>,
}

/// Two readings at one local time, and no others in the hour, between neighbours that are as far away as the clock goes
/// back. `folds`: of one file or several that go on one after the other.
fn is_hourly(folds: &[&FoldRows], descending: bool) -> bool {
    let rows: Vec<InFold> = folds.iter().flat_map(|fold| fold.rows.iter().copied()).collect();
    let ([one, other], Some(first), Some(last)) = (&rows[..], folds.first(), folds.last()) else { return false };
    // From two files one row may be the other, delivered twice: then their values are the same.
    let differ = one.at.0 == other.at.0 || one.payload != other.payload;
    let (early, late) = (first.us - first.length, first.us + 2 * first.length);
    let (before, after) = if descending { (late, early) } else { (early, late) };
    let fits = |neighbour: Option<i64>, expected| neighbour.is_none_or(|us| us == expected);
    let known = first.previous.is_some() || last.next.is_some();
    one.local == other.local && differ && known && fits(first.previous, before) && fits(last.next, after)
}

impl SeriesScan {
    /// `fold`: the first local time of the fold, its length, and the row in it.
    fn push(&mut self, us: i64, fold: Option<(i64, i64, InFold)>) {
        let here = (us, fold.map(|(fold, ..)| fold));
        let last = self.last.replace(here);
        self.first.get_or_insert(here);
        if let Some(last) = last {
            self.steps.count(last, here);
            if let Some(left) = last.1.filter(|left| Some(*left) != here.1).and_then(|left| self.folds.get_mut(&left)) {
                left.next.get_or_insert(us);
            }
        }
        match fold {
            Some((fold, length, row)) => {
                let known = self.folds.entry(fold).or_insert_with(|| FoldRows { previous: last.map(|(us, _)| us), ..Default::default() });
                (known.us, known.length) = (us, length);
                known.rows.push(row);
            }
            None => self.once = Some(self.once.map_or((us, us), |(least, greatest)| (least.min(us), greatest.max(us)))),
        }
    }
}

/// One series in the whole source.
#[derive(Default)]
struct WholeSeries {
    last: Option<(i64, Option<i64>)>,
    steps: Steps,
    /// Of the files that have rows in a fold, in source order, with the last instant of the series before each and the
    /// first after it, whatever the files.
    parts: Vec<(SeriesScan, Option<i64>, Option<i64>)>,
}

impl WholeSeries {
    fn append(&mut self, part: SeriesScan) {
        if let (Some(last), Some(first)) = (self.last, part.first) {
            self.steps.count(last, first);
        }
        if let (Some((_, _, next)), Some((us, _))) = (self.parts.last_mut(), part.first) {
            next.get_or_insert(us);
        }
        let previous = self.last.map(|(us, _)| us);
        self.last = part.last.or(self.last);
        self.steps.forward += part.steps.forward;
        self.steps.back += part.steps.back;
        if !part.folds.is_empty() {
            self.parts.push((part, previous, None));
        }
    }

    /// Whether the series is written newest first; `None`: nothing tells.
    fn direction(&self) -> Option<bool> {
        let mut steps = self.steps;
        if steps.forward == 0 && steps.back == 0 {
            // All of it is in the hour: most steps go its way, and one goes back.
            for rows in self.parts.iter().flat_map(|(part, ..)| part.folds.values()).map(|fold| &fold.rows) {
                for pair in rows.windows(2) {
                    steps.forward += u64::from(pair[1].local > pair[0].local);
                    steps.back += u64::from(pair[1].local < pair[0].local);
                }
            }
            return (steps.forward != steps.back).then_some(steps.back > steps.forward);
        }
        Some(steps.back > 0 && steps.forward == 0)
    }

    /// `one_at_a_time`: there is one row of a series at each time, so two at one local time are of two passes, or one row
    /// delivered twice.
    fn decide(self, series: &[String], one_at_a_time: bool) -> Vec<SeriesFold> {
        let Some(all_descending) = self.direction() else { return vec![] };
        // A file that holds nothing but the hour is read as the series is.
        let descending = |part: &SeriesScan| match part.steps {
            Steps { forward, back } if forward == back => all_descending,
            Steps { forward, back } => back > forward,
        };
        let folds: BTreeSet<i64> = self.parts.iter().flat_map(|(part, ..)| part.folds.keys().copied()).collect();
        let mut out = Vec::new();
        for fold_us in folds {
            let parts: Vec<FilePart> = (self.parts.iter())
                .filter_map(|(part, previous, next)| {
                    let fold = part.folds.get(&fold_us)?;
                    let (before, after) = part.once.map_or((false, false), |(least, greatest)| (least < fold.us, greatest > fold.us));
                    let descending = descending(part);
                    let around = (fold.previous.or(*previous), fold.next.or(*next), fold.us);
                    Some(FilePart { fold, descending, before, after, around })
                })
                .collect();
            let mut decided = |second_pass: At, descending, only_in| {
                out.push(SeriesFold { series: series.to_vec(), fold_us, second_pass, descending, only_in });
            };
            if let Some(descending) = one_after_the_other(&parts) {
                let folds: Vec<&FoldRows> = parts.iter().map(|part| part.fold).collect();
                if let Some(at) = second_pass(&folds, descending, one_at_a_time) {
                    decided(at, descending, None);
                    continue;
                }
            }
            for part in &parts {
                if let Some(at) = second_pass(&[part.fold], part.descending, one_at_a_time) {
                    decided(at, part.descending, Some(at.0));
                }
            }
        }
        out
    }
}

/// The rows of one file in one fold, and whether it has others of the series before and after it.
struct FilePart<'a> {
    fold: &'a FoldRows,
    descending: bool,
    before: bool,
    after: bool,
    /// Instants of the series before and after it in source order, and one of its own.
    around: (Option<i64>, Option<i64>, i64),
}

/// Whether the files go on where the one before stopped, and in which direction: a file that goes on beyond the hour,
/// or begins before it, holds a whole pass by itself or stands at another place.
fn one_after_the_other(parts: &[FilePart]) -> Option<bool> {
    let (first, last) = (parts.first()?, parts.last()?);
    let descending = first.descending;
    // Files that are in another order than their rows would swap the passes: what is around them shows it, and several
    // files with nothing around them are not trusted.
    let fits = |before: Option<i64>, after: Option<i64>, us: i64| {
        let (earlier, later) = if descending { (after, before) } else { (before, after) };
        earlier.is_none_or(|earlier| earlier < us) && later.is_none_or(|later| later > us)
    };
    let known = first.around.0.is_some() || last.around.1.is_some();
    if parts.len() > 1 && !(known && fits(first.around.0, last.around.1, first.around.2)) {
        return None;
    }
    let goes_on = parts.windows(2).all(|pair| {
        let (leaves, returns) = if descending { (pair[0].before, pair[1].after) } else { (pair[0].after, pair[1].before) };
        pair[1].descending == descending && !leaves && !returns
    });
    goes_on.then_some(descending)
}

/// The one place where the clock goes back.
fn second_pass(folds: &[&FoldRows], descending: bool, one_at_a_time: bool) -> Option<At> {
    let rows: Vec<InFold> = folds.iter().flat_map(|fold| fold.rows.iter().copied()).collect();
    let goes_back = |i: &usize| {
        let (before, after) = (rows[i - 1].local, rows[*i].local);
        if descending { after > before } else { after < before }
    };
    let mut steps = (1..rows.len()).filter(goes_back);
    match (steps.next(), steps.next()) {
        (Some(step), None) if !repeats_the_file_before(&rows, step) => Some(rows[step].at),
        (None, _) if one_at_a_time && is_hourly(folds, descending) => rows.get(1).map(|row| row.at),
        _ => None,
    }
}

/// The clock goes back where a file begins, and all that follows stands in the files before, value for value.
fn repeats_the_file_before(rows: &[InFold], step: usize) -> bool {
    let (earlier, later) = rows.split_at(step);
    let begins = earlier.last().is_some_and(|last| later.first().is_some_and(|first| first.at.0 != last.at.0));
    begins && later.iter().all(|row| earlier.iter().any(|other| (other.local, other.payload) == (row.local, row.payload)))
}

fn scan(reading: &Reading, types: &[arrow::datatypes::DataType], source: u32, zone: &Zone) -> Result<FileScan> {
    let bound = reading.bound.get(&source).ok_or_else(|| Error::internal(format!("no source {source}")))?;
    // Only its keys are used: series are small numbers here, their texts are made once.
    let mut rows = UnitRows::new(&reading.inventory.table, types)?;
    let mut starts = FoldStarts { zone: ZoneConverter::new(zone), last: None };
    let mut scans: Vec<SeriesScan> = Vec::new();
    for batch in timelake_source::read(bound, &bound.all_row_groups())? {
        (reading.check_stop)()?;
        let mut batch = match batch {
            Ok(batch) => batch,
            // Told when the split is landed.
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::Corrupt) => break,
            Err(e) => return Err(e),
        };
        let times = batch.times()?;
        let mut usable = vec![true; batch.rows()];
        times.faults.iter().for_each(|fault| usable[fault.row as usize] = false);
        let mut keep: BooleanBuffer = usable.iter().copied().collect();
        let mut keys = rows.key_arrays(&mut batch, Some(&keep))?;
        if keys.iter().any(|(_, column)| !column.faults.is_empty()) {
            let kept: Vec<usize> = keep.set_indices().collect();
            keys.iter().flat_map(|(_, column)| &column.faults).for_each(|fault| usable[kept[fault.row as usize]] = false);
            keep = usable.iter().copied().collect();
            keys = rows.key_arrays(&mut batch, Some(&keep))?;
        }
        let mut codes: Vec<Vec<u32>> = vec![Vec::new(); keys.len()];
        for ((key, (_, column)), codes) in rows.keys.iter_mut().zip(&keys).zip(&mut codes) {
            key.intern(&column.array, codes)?;
        }
        let series = rows.series.intern(&codes);
        let payloads = payload_hashes(&mut batch, &times.folds, &rows)?;
        let mut folds = times.folds.iter().zip(payloads).peekable();
        for (row, series) in keep.set_indices().zip(series.iter()) {
            while folds.next_if(|(fold, _)| (fold.row as usize) < row).is_some() {}
            let fold = match folds.next_if(|(fold, _)| fold.row as usize == row) {
                Some((fold, payload)) => {
                    let at = (source, batch.position(row).number());
                    Some((starts.start(fold)?, fold.later_us - fold.earlier_us, InFold { local: fold.local_us, at, payload }))
                }
                None => None,
            };
            let series = *series as usize;
            if scans.len() <= series {
                scans.resize_with(series + 1, SeriesScan::default);
            }
            scans[series].push(times.us[row], fold);
        }
    }
    let values = rows.keys.iter().map(|key| key.values()).collect::<Result<Vec<_>>>()?;
    let mut out = FileScan::new();
    for (code, scan) in scans.into_iter().enumerate() {
        let texts = rows.series.parts(code as u32).into_iter().map(|(column, value)| cell_text(&values[column], value as usize));
        out.insert(texts.collect::<Result<Vec<_>>>()?, scan);
    }
    Ok(out)
}

/// A hash of the values of each row in a fold, keys aside.
fn payload_hashes(batch: &mut SourceBatch, folds: &[FoldRow], rows: &UnitRows) -> Result<Vec<u64>> {
    if folds.is_empty() {
        return Ok(vec![]);
    }
    let mut in_fold = vec![false; batch.rows()];
    folds.iter().for_each(|fold| in_fold[fold.row as usize] = true);
    let keep: BooleanBuffer = in_fold.into_iter().collect();
    let columns: Vec<ArrayRef> = rows.payload_arrays(batch, Some(&keep))?.into_iter().map(|(_, column)| column.array).collect();
    if columns.is_empty() {
        return Ok(vec![0; folds.len()]);
    }
    let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
    let converter = RowConverter::new(fields).map_err(internal)?;
    let encoded = converter.convert_columns(&columns).map_err(internal)?;
    Ok(encoded.iter().map(|row| bytes_hash(row.data())).collect())
}

/// Names a repeated hour by the first local time of it.
struct FoldStarts {
    zone: ZoneConverter,
    last: Option<std::ops::Range<i64>>,
}

impl FoldStarts {
    fn start(&mut self, row: &FoldRow) -> Result<i64> {
        if let Some(last) = self.last.as_ref().filter(|last| last.contains(&row.local_us)) {
            return Ok(last.start);
        }
        // The hour before it happens once: the first repeated microsecond is found by bisection.
        let length = row.later_us - row.earlier_us;
        let (mut once, mut twice) = (row.local_us - length, row.local_us);
        while twice - once > 1 {
            let middle = once + (twice - once) / 2;
            match self.zone.convert(middle) {
                LocalTime::Ambiguous { .. } => twice = middle,
                _ => once = middle,
            }
        }
        self.last = Some(twice..twice + length);
        Ok(twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_fold(local: i64, at: At) -> InFold {
        InFold { local, at, payload: u64::from(at.0) << 32 | at.1 }
    }
    fn pass(locals: &[i64], descending: bool) -> Option<usize> {
        let rows = locals.iter().enumerate().map(|(i, local)| in_fold(*local, (0, i as u64))).collect();
        second_pass(&[&FoldRows { rows, ..Default::default() }], descending, true).map(|(_, at)| at as usize)
    }

    #[test]
    fn the_clock_goes_back_exactly_once() {
        assert_eq!(pass(&[0, 30, 0, 30], false), Some(2));
        assert_eq!(pass(&[30, 0], false), Some(1));
        assert_eq!(pass(&[0, 30, 45], false), None);
        assert_eq!(pass(&[0, 30, 0, 30, 0], false), None);
        assert_eq!(pass(&[15], false), None);
        assert_eq!(pass(&[0, 0, 30, 0], false), Some(3), "a delivery twice is no step");
        assert_eq!(pass(&[0, 0], false), None, "one reading, delivered twice");
        assert_eq!(pass(&[0, 15, 15, 30], false), None, "a delivery twice in one pass, the other missing");
        assert_eq!(pass(&[30, 0, 30, 0], true), Some(2));
    }

    #[test]
    fn overlapping_files_tell_each_for_itself() {
        let mut whole = WholeSeries::default();
        for file in 0..2 {
            let mut scan = SeriesScan::default();
            for (i, local) in [0, 30, 0, 30].into_iter().enumerate() {
                scan.push(local, Some((0, 60, in_fold(local, (file, i as u64)))));
            }
            whole.append(scan);
        }
        let decided = whole.decide(&["a".into()], true);
        assert_eq!(decided.iter().map(|d| (d.second_pass, d.only_in)).collect::<Vec<_>>(), [((0, 2), Some(0)), ((1, 2), Some(1))]);
        let folds = Folds::new(&decided);
        let row = FoldRow { row: 0, local_us: 30, earlier_us: 1_000, later_us: 1_060, value: String::new() };
        let at = |at| folds.instant(&["a".into()], &row, at);
        assert_eq!(
            (at((0, 1)), at((0, 3)), at((1, 1)), at((1, 3)), at((2, 1))),
            (Some(1_000), Some(1_060), Some(1_000), Some(1_060), None)
        );
    }

    /// Rows of files: local times between 0 and 59 are in the hour, which begins at instant 0.
    fn decided(files: &[&[i64]]) -> Vec<(At, bool, Option<u32>)> {
        let mut whole = WholeSeries::default();
        for (file, locals) in files.iter().enumerate() {
            let mut scan = SeriesScan::default();
            for (i, local) in locals.iter().enumerate() {
                let fold = (0..60).contains(local).then_some((0, 60, in_fold(*local, (file as u32, i as u64))));
                scan.push(if *local < 60 { *local } else { local + 60 }, fold);
            }
            whole.append(scan);
        }
        whole.decide(&["a".into()], true).into_iter().map(|fold| (fold.second_pass, fold.descending, fold.only_in)).collect()
    }

    #[test]
    fn each_file_has_a_direction_of_its_own() {
        let newest_first: &[i64] = &[90, 30, 0, 30, 0, -30];
        assert_eq!(decided(&[newest_first, &[300, 240, 200]]), [((0, 3), true, None)], "days in order, each newest first");
        assert_eq!(decided(&[&[60, 0, 0, -60], &[300, 240]]), [((0, 2), true, None)], "hourly");
        assert_eq!(decided(&[&[-60, 0, 0, 60]]), [((0, 2), false, None)], "hourly");
        assert_eq!(decided(&[&[-60, 0], &[0, 60]]), [((1, 0), false, None)], "hourly, with other values in the second file");
        assert_eq!(decided(&[&[-300, 10, 10, 500]]), [], "not hourly: one reading, delivered twice");
        assert_eq!(decided(&[&[30, 0, -30], &[300, 240, 200]]), [], "one pass, newest first");
        assert_eq!(decided(&[&[30, 0, -30], &[90, 30, 0]]), [], "both passes, the files in another order than their rows");
        assert_eq!(decided(&[&[90, 30, 0], &[30, 0, -30]]), [((1, 0), true, None)], "all newest first");
        assert_eq!(decided(&[&[0, 30, 90], &[-30, 0, 30]]), [], "the later file first");
        assert_eq!(decided(&[&[-30, 0, 30], &[0, 30, 90]]), [((1, 0), false, None)]);
        assert_eq!(decided(&[&[-30, 0], &[30], &[0, 30, 90]]), [((2, 0), false, None)], "a file of nothing but the hour");
        assert_eq!(decided(&[&[-90, -60, -70, 0, 30, 0, 30, 90]]), [((0, 5), false, None)], "a late row elsewhere");
    }
}
