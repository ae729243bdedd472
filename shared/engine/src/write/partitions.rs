//! Which rows go to which partition, and rows of a partition by and by.
//!
//! Rows are in their final order already, so a partition is a list of runs of it: nothing is kept per row.

use super::order::{Ordered, Timed};
use super::rows::{Column, UnitRows};
use arrow::array::{ArrayRef, TimestampMicrosecondArray};
use hashbrown::HashMap;
use iceberg::spec::{Literal, Struct};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use timelake_model::inventory::TableState;
use timelake_model::time::Period;
use timelake_model::{Error, Result};
use timelake_table::Partitioner;

/// A partition's values, and its rows as runs of positions in their order.
pub struct Partition {
    pub values: Struct,
    pub runs: Vec<Range<u32>>,
}

/// The partitions of the rows, by path, so that files come in one order.
pub fn partition(
    partitioner: &Partitioner,
    state: &TableState,
    rows: &UnitRows,
    payload: &[(usize, Column)],
    ordered: &Ordered,
) -> Result<Vec<Partition>> {
    let all = 0..ordered.rows.len() as u32;
    if partitioner.is_empty() {
        return Ok(vec![Partition { values: Struct::empty(), runs: vec![all] }]);
    }
    let mut fields: Vec<FieldIds> = partitioner
        .sources()
        .enumerate()
        .map(|(i, source)| FieldIds::new(partitioner, i, source, state, rows, payload, ordered))
        .collect::<Result<_>>()?;
    // Runs by the fields' numbers.
    let mut found: BTreeMap<Box<[u32]>, Vec<Range<u32>>> = BTreeMap::new();
    let mut tuple = vec![0u32; fields.len()];
    let mut run = 0..0;
    let mut start = 0;
    for (code, series_end) in &ordered.series {
        while start < *series_end {
            let mut end = *series_end;
            let mut same = true;
            for (slot, field) in tuple.iter_mut().zip(&mut fields) {
                let (id, field_end) = field.at(start, *series_end, *code, rows, ordered);
                same &= *slot == id;
                *slot = id;
                end = end.min(field_end);
            }
            if same && run.end == start && !run.is_empty() {
                run.end = end;
            } else {
                run = start..end;
            }
            match found.get_mut(&tuple[..]) {
                Some(runs) => match runs.last_mut() {
                    Some(last) if last.start == run.start => last.end = run.end,
                    _ => runs.push(run.clone()),
                },
                None => {
                    found.insert(tuple.clone().into(), vec![run.clone()]);
                }
            }
            start = end;
        }
    }
    let literals: Vec<Vec<Option<Literal>>> = fields.into_iter().map(|f| f.literals(partitioner)).collect::<Result<_>>()?;
    let values = |tuple: &[u32]| Struct::from_iter(literals.iter().zip(tuple).map(|(of_field, id)| of_field[*id as usize].clone()));
    let mut out: Vec<Partition> = found.into_iter().map(|(tuple, runs)| Partition { values: values(&tuple), runs }).collect();
    out.sort_by_cached_key(|p| partitioner.path(&p.values));
    Ok(out)
}

/// One partition field's values as small numbers.
enum FieldIds {
    /// By the code of the series.
    Series(Vec<Option<Literal>>, Vec<u32>),
    Periods(Periods),
    /// By the code of a key column that is no part of the series.
    Key(Vec<Option<Literal>>, usize, Vec<u32>),
    /// By position in the order.
    Positions(Vec<Option<Literal>>, Vec<u32>),
    /// By row.
    Rows(Vec<Option<Literal>>, Vec<u32>),
}

/// Calendar periods of the time column: found per run of rows, not per row.
struct Periods {
    field: usize,
    period: Period,
    ids: HashMap<i64, u32>,
    /// By number.
    starts: Vec<i64>,
}

impl FieldIds {
    fn new(
        partitioner: &Partitioner,
        field: usize,
        source: &str,
        state: &TableState,
        rows: &UnitRows,
        payload: &[(usize, Column)],
        ordered: &Ordered,
    ) -> Result<Self> {
        let column = state.columns.iter().position(|c| c.name == source).ok_or_else(|| Error::internal(format!("no column {source}")))?;
        let number = |values: Vec<Option<Literal>>| {
            let mut known: HashMap<Option<Literal>, u32> = HashMap::new();
            let mut literals = Vec::new();
            let ids: Vec<u32> = values
                .into_iter()
                .map(|v| {
                    *known.entry(v).or_insert_with_key(|v| {
                        literals.push(v.clone());
                        literals.len() as u32 - 1
                    })
                })
                .collect();
            (literals, ids)
        };
        if let Some(key) = rows.key_columns.iter().position(|c| *c == column) {
            let (literals, ids) = number(partitioner.values(field, &rows.keys[key].values()?)?);
            return Ok(match rows.ordering().codes_of(key, &rows.keys) {
                Some(codes) => FieldIds::Series(literals, codes.into_iter().map(|code| ids[code as usize]).collect()),
                None => FieldIds::Key(literals, key, ids),
            });
        }
        if source == state.contract.time_column {
            if let Some(period) = partitioner.period(field) {
                return Ok(FieldIds::Periods(Periods { field, period, ids: HashMap::new(), starts: vec![] }));
            }
            let times = TimestampMicrosecondArray::from_iter_values(ordered.rows.iter().map(|(time, _)| *time));
            let times: ArrayRef = Arc::new(times.with_timezone("+00:00"));
            let (literals, ids) = number(partitioner.values(field, &times)?);
            return Ok(FieldIds::Positions(literals, ids));
        }
        let (_, found) = payload.iter().find(|(c, _)| *c == column).ok_or_else(|| Error::internal(format!("no values of {source}")))?;
        let (literals, ids) = number(partitioner.values(field, &found.whole()?)?);
        Ok(FieldIds::Rows(literals, ids))
    }

    /// Number of the row's value, and a position up to which (not beyond `end`, where the series ends) all rows have it.
    fn at(&mut self, position: u32, end: u32, series: u32, rows: &UnitRows, ordered: &Ordered) -> (u32, u32) {
        let row = || ordered.rows[position as usize].1 as usize;
        match self {
            FieldIds::Series(_, ids) => (ids[series as usize], end),
            FieldIds::Periods(periods) => periods.at(&ordered.rows[position as usize..end as usize], position),
            FieldIds::Key(_, key, ids) => (ids[rows.codes[*key][row()] as usize], position + 1),
            FieldIds::Positions(_, ids) => (ids[position as usize], position + 1),
            FieldIds::Rows(_, ids) => (ids[row()], position + 1),
        }
    }

    fn literals(self, partitioner: &Partitioner) -> Result<Vec<Option<Literal>>> {
        match self {
            FieldIds::Series(literals, _)
            | FieldIds::Key(literals, ..)
            | FieldIds::Positions(literals, _)
            | FieldIds::Rows(literals, _) => Ok(literals),
            FieldIds::Periods(periods) => {
                let starts: ArrayRef = Arc::new(TimestampMicrosecondArray::from(periods.starts).with_timezone("+00:00"));
                partitioner.values(periods.field, &starts)
            }
        }
    }
}

impl Periods {
    /// Of rows in order of time, the first of which is at `position`.
    fn at(&mut self, rows: &[Timed], position: u32) -> (u32, u32) {
        let ordinal = self.period.ordinal(rows[0].0);
        let next = self.period.start(ordinal + 1);
        let id = *self.ids.entry(ordinal).or_insert_with(|| {
            self.starts.push(self.period.start(ordinal));
            self.starts.len() as u32 - 1
        });
        (id, position + rows.partition_point(|(time, _)| *time < next) as u32)
    }
}

/// Some rows in a row, as a batch is made of them.
#[derive(Default)]
pub struct Slice {
    pub rows: Vec<u32>,
    pub times: Vec<i64>,
    /// Code of each series, and the index after its last row.
    ends: Vec<(u32, usize)>,
}

impl Slice {
    /// Each series' code and its rows.
    pub fn series(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        self.ends.iter().zip(starts).map(|((code, end), start)| (*code, start..*end))
    }
}

/// The rows of a partition, handed out in order.
pub struct Front<'a> {
    ordered: &'a Ordered,
    runs: &'a [Range<u32>],
    /// Position of the next row, in the first of the runs.
    at: u32,
    /// Index of the series of the last row, or of one before it.
    series: usize,
    left: usize,
}

impl<'a> Front<'a> {
    pub fn new(ordered: &'a Ordered, runs: &'a [Range<u32>]) -> Self {
        Front { ordered, runs, at: runs.first().map_or(0, |run| run.start), series: 0, left: runs.iter().map(|run| run.len()).sum() }
    }

    pub fn rows_left(&self) -> usize {
        self.left
    }

    /// Takes the next rows, at most `most`; with `same_series` only those of the series of the last row.
    pub fn take(&mut self, most: usize, same_series: bool, slice: &mut Slice) {
        slice.rows.clear();
        slice.times.clear();
        slice.ends.clear();
        let series = &self.ordered.series;
        while let Some(run) = self.runs.first().filter(|_| slice.rows.len() < most) {
            if same_series && series[self.series].1 <= self.at {
                break;
            }
            while series[self.series].1 <= self.at {
                self.series += 1;
            }
            let (code, series_end) = series[self.series];
            let end = run.end.min(series_end).min(self.at + (most - slice.rows.len()) as u32);
            let taken = &self.ordered.rows[self.at as usize..end as usize];
            slice.times.extend(taken.iter().map(|(time, _)| *time));
            slice.rows.extend(taken.iter().map(|(_, row)| *row));
            match slice.ends.last_mut() {
                Some((last, last_end)) if *last == code => *last_end = slice.rows.len(),
                _ => slice.ends.push((code, slice.rows.len())),
            }
            self.at = end;
            if end == run.end {
                self.runs = &self.runs[1..];
                self.at = self.runs.first().map_or(end, |run| run.start);
            }
        }
        self.left -= slice.rows.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_handed_out_in_order_and_cut_at_a_series_when_asked() {
        // Three series of 4, 2 and 3 rows; the row numbers are ten times the positions.
        let ordered = Ordered { rows: (0..9).map(|i| (i64::from(i) + 100, i * 10)).collect(), series: vec![(7, 4), (5, 6), (9, 9)] };
        let runs = [1..3, 5..8];
        let mut front = Front::new(&ordered, &runs);
        let mut slice = Slice::default();
        let mut taken = |front: &mut Front, most, same| {
            front.take(most, same, &mut slice);
            (slice.rows.clone(), slice.series().map(|(code, range)| (code, range.len())).collect::<Vec<_>>())
        };
        assert_eq!(taken(&mut front, 1, false), (vec![10], vec![(7, 1)]));
        assert_eq!(taken(&mut front, 9, true), (vec![20], vec![(7, 1)]));
        assert_eq!(taken(&mut front, 9, true), (vec![], vec![]));
        assert_eq!(front.rows_left(), 3);
        assert_eq!(taken(&mut front, 9, false), (vec![50, 60, 70], vec![(5, 1), (9, 2)]));
        assert_eq!(front.rows_left(), 0);
    }
}
