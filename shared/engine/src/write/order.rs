//! Sorting and deduplicating the rows of a unit.
//!
//! Rows are scattered by key (a counting sort over key ranks), then each key's rows are sorted by time with
//! a stable sort that is linear on rows already in order. Stable means: rows of one key and time stay in
//! source order, so "first" and "last" are those of the source, whatever the threads.

use super::errors::{BadRow, ErrorBook};
use super::rows::UnitRows;
use arrow::array::Array;
use arrow::row::{RowConverter, SortField};
use timelake_model::request::OnSourceConflict;
use timelake_model::{Counts, Error, Reason, Result};
use timelake_source::Position;

/// A row and its time.
pub type Timed = (i64, u32);

/// Rows grouped by key code rank, each group by time. `segments[r]..segments[r + 1]` are the rows of rank `r`.
pub struct Sorted {
    pub rows: Vec<Timed>,
    pub segments: Vec<u32>,
}

impl Sorted {
    /// Rows by rank, those of a rank in source order yet.
    pub fn scatter(codes: &[u32], ranks: &[u32], times: &[i64], only: Option<&[u32]>) -> Sorted {
        let mut counts = vec![0u32; ranks.len() + 1];
        let mut count = |row: usize| counts[ranks[codes[row] as usize] as usize + 1] += 1;
        match only {
            None => (0..times.len()).for_each(&mut count),
            Some(rows) => rows.iter().for_each(|r| count(*r as usize)),
        }
        for i in 1..counts.len() {
            counts[i] += counts[i - 1];
        }
        let segments = counts.clone();
        let mut rows = vec![(0i64, 0u32); *counts.last().unwrap_or(&0) as usize];
        let mut scatter = |row: usize| {
            let slot = &mut counts[ranks[codes[row] as usize] as usize];
            rows[*slot as usize] = (times[row], row as u32);
            *slot += 1;
        };
        match only {
            None => (0..times.len()).for_each(&mut scatter),
            Some(list) => list.iter().for_each(|r| scatter(*r as usize)),
        }
        Sorted { rows, segments }
    }

    /// Keeps the rows for which `stays` (by row number) says so.
    pub fn retain(&mut self, stays: &[bool]) {
        let (mut kept, mut start) = (0usize, 0usize);
        for segment in &mut self.segments[1..] {
            let end = *segment as usize;
            for at in start..end {
                if stays[self.rows[at].1 as usize] {
                    self.rows[kept] = self.rows[at];
                    kept += 1;
                }
            }
            (start, *segment) = (end, kept as u32);
        }
        self.rows.truncate(kept);
    }
}

/// Rows in the order in which they are written: by series, each series by time.
pub struct Ordered {
    pub rows: Vec<Timed>,
    /// Each series' code, and the position after its last row.
    pub series: Vec<(u32, u32)>,
}

impl Ordered {
    /// `ranks`: of each series code.
    pub fn new(sorted: Sorted, ranks: &[u32]) -> Ordered {
        let mut codes = vec![0u32; ranks.len()];
        ranks.iter().enumerate().for_each(|(code, rank)| codes[*rank as usize] = code as u32);
        let ends = sorted.segments.windows(2).zip(codes);
        let series = ends.filter(|(of_rank, _)| of_rank[0] < of_rank[1]).map(|(of_rank, code)| (code, of_rank[1])).collect();
        Ordered { rows: sorted.rows, series }
    }

    /// The rows of each series.
    pub fn by_series(&self) -> impl Iterator<Item = &[Timed]> {
        let starts = std::iter::once(0).chain(self.series.iter().map(|(_, end)| *end));
        self.series.iter().zip(starts).map(|((_, end), start)| &self.rows[start as usize..*end as usize])
    }
}

/// Sorts `rows` (all rows when `None`) by (rank of code, time, source order).
pub fn sort(codes: &[u32], ranks: &[u32], times: &[i64], only: Option<&[u32]>) -> Sorted {
    let mut sorted = Sorted::scatter(codes, ranks, times, only);
    for pair in sorted.segments.windows(2) {
        by_time(&mut sorted.rows[pair[0] as usize..pair[1] as usize]);
    }
    sorted
}

/// Stable, and linear on rows already in order.
fn by_time(rows: &mut [Timed]) {
    rows.sort_by_key(|(time, _)| *time);
}

/// Sorts scattered rows and removes all but one row of each (identity, time), counting the others; conflicts go to the book when
/// the policy is to stop. Keeps the order.
pub struct Dedup<'a> {
    pub rows: &'a UnitRows,
    pub policy: OnSourceConflict,
    /// For `newest`: index into the unit's payload.
    pub version: Option<usize>,
    /// Name of a source file, and the position in it that a number of its rows is.
    pub shown: &'a dyn Fn(u32, u64) -> (String, Position),
    /// How to mend a conflict.
    pub hint: &'a str,
}

impl Dedup<'_> {
    pub fn run(&self, sorted: &mut Sorted, counts: &mut Counts, errors: &mut ErrorBook, identity_of: &[u32]) -> Result<()> {
        let (mut kept, mut start) = (0usize, 0usize);
        for at in 1..sorted.segments.len() {
            let end = sorted.segments[at] as usize;
            // Each key's rows are sorted and looked at while they are in the cache.
            let rows = &mut sorted.rows[start..end];
            by_time(rows);
            let of_key = self.collapse(rows, counts, errors, identity_of)?;
            if kept < start {
                sorted.rows.copy_within(start..start + of_key, kept);
            }
            (kept, start) = (kept + of_key, end);
            sorted.segments[at] = kept as u32;
        }
        sorted.rows.truncate(kept);
        Ok(())
    }

    /// Moves the rows that stay of one identity's to the front; gives their number.
    fn collapse(&self, rows: &mut [Timed], counts: &mut Counts, errors: &mut ErrorBook, identity_of: &[u32]) -> Result<usize> {
        let Some(mut i) = rows.windows(2).position(|pair| pair[0].0 == pair[1].0) else { return Ok(rows.len()) };
        let mut kept = i;
        while i < rows.len() {
            let time = rows[i].0;
            let same = 1 + rows[i + 1..].iter().take_while(|(other, _)| *other == time).count();
            let winner = if same == 1 { rows[i].1 } else { self.settle(&rows[i..i + same], counts, errors, identity_of)? };
            rows[kept] = (time, winner);
            (kept, i) = (kept + 1, i + same);
        }
        Ok(kept)
    }

    /// Rows of one identity and time, in source order: which one stays.
    fn settle(&self, same: &[Timed], counts: &mut Counts, errors: &mut ErrorBook, identity_of: &[u32]) -> Result<u32> {
        let winner = match self.policy {
            OnSourceConflict::Error | OnSourceConflict::First => same[0].1,
            OnSourceConflict::Last => same[same.len() - 1].1,
            OnSourceConflict::Newest => self.newest(same)?,
        };
        for (_, row) in same.iter().filter(|(_, r)| *r != winner) {
            if self.rows.rows_equal(*row, winner) {
                counts.duplicates_collapsed += 1;
                continue;
            }
            counts.in_source_conflicts += 1;
            if self.policy == OnSourceConflict::Error {
                let (source, number) = self.rows.place(*row);
                let (other_source, other_number) = self.rows.place(winner);
                let key = self.rows.key_text(*row, identity_of[*row as usize])?;
                let bad = BadRow {
                    reason: Reason::InSourceConflict,
                    column: "",
                    object: source,
                    row: number,
                    value: Some(&key.clone()),
                    skipped: false,
                };
                errors.add(bad, || {
                    let ((file, here), (other, there)) = ((self.shown)(source, number), (self.shown)(other_source, other_number));
                    Error::invalid(
                        Reason::InSourceConflict,
                        format!("{file} {here} and {other} {there} have the same key {key} and different values"),
                    )
                    .hint(self.hint)
                    .at(|p| {
                        p.file = Some(file);
                        here.mark(p);
                        p.other_file = Some(other);
                        match there {
                            Position::Line(line) => p.other_line = Some(line),
                            Position::Row(row) => p.other_row = Some(row),
                        }
                        p.key = Some(key);
                    })
                });
            }
        }
        Ok(winner)
    }

    /// The largest version wins, NULL is the oldest; of equal ones the later in source order.
    fn newest(&self, same: &[Timed]) -> Result<u32> {
        let version = self.version.ok_or_else(|| Error::internal("newest without a version column"))?;
        let cells: Vec<_> = same.iter().map(|(_, row)| self.rows.payload_cell(version, *row)).collect();
        let slices: Vec<_> = cells.iter().map(|(array, i)| array.slice(*i, 1)).collect();
        let refs: Vec<&dyn Array> = slices.iter().map(|s| s.as_ref()).collect();
        let column = arrow::compute::concat(&refs).map_err(super::keys::internal)?;
        let converter = RowConverter::new(vec![SortField::new(column.data_type().clone())]).map_err(super::keys::internal)?;
        let encoded = converter.convert_columns(&[column]).map_err(super::keys::internal)?;
        let best = (0..same.len()).max_by(|a, b| encoded.row(*a).cmp(&encoded.row(*b)).then(a.cmp(b)));
        Ok(same[best.unwrap_or(0)].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_sort_by_rank_then_time_then_source_order() {
        //            row: 0  1  2  3  4
        let codes = [0, 1, 0, 1, 0];
        let times = [5, 9, 3, 1, 5];
        let s = sort(&codes, &[1, 0], &times, None);
        assert_eq!(s.rows, [(1, 3), (9, 1), (3, 2), (5, 0), (5, 4)]);
        assert_eq!(s.segments, [0, 2, 5]);
        let s = sort(&codes, &[0, 1], &times, Some(&[4, 3]));
        assert_eq!(s.rows, [(5, 4), (1, 3)]);
    }

    #[test]
    fn what_stays_keeps_its_order_and_series() {
        let mut s = sort(&[0, 1, 0, 2, 0], &[2, 0, 1], &[5, 9, 3, 1, 6], None);
        s.retain(&[true, true, false, false, true]);
        assert_eq!((&s.rows[..], &s.segments[..]), (&[(9, 1), (5, 0), (6, 4)][..], &[0, 1, 1, 3][..]));
        let ordered = Ordered::new(s, &[2, 0, 1]);
        assert_eq!(ordered.series, [(1, 1), (0, 3)]);
    }
}
