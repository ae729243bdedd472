//! How a unit's written rows spread over chunks and over series: what a report shows. One cheap pass each, nothing is
//! kept per row.

use super::keys::{KeyColumn, Tuples, internal};
use super::order::Ordered;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::collections::BTreeMap;
use timelake_model::Result;
use timelake_model::receipt::{OutlierKind, SeriesOutlier, SeriesRows};
use timelake_model::time::Period;

/// So many times more, or fewer, is far.
const FAR: u64 = 4;
/// Of each kind, the farthest.
const MOST_OUTLIERS: usize = 5;
/// Among fewer series nothing is usual.
const FEWEST_SERIES: usize = 4;
/// A smaller share of dropped rows is not worth a line, however small that of the others.
const NOTABLE_DROPPED_PERCENT: u64 = 5;

/// Rows of a series (by its code): taken by the unit, and still there when it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub rows: u32,
    pub written: u32,
}

/// Rows by ordinal, and the first and last time.
pub fn by_chunk(ordered: &Ordered, period: Period) -> (BTreeMap<i64, u64>, Option<(i64, i64)>) {
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    let mut limits: Option<(i64, i64)> = None;
    for mut rows in ordered.by_series() {
        if let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) {
            let (low, high) = limits.unwrap_or((*first, *last));
            limits = Some((low.min(*first), high.max(*last)));
        }
        // The rows of a series are in order of time.
        while let Some((first, _)) = rows.first() {
            let ordinal = period.ordinal(*first);
            let next = period.start(ordinal + 1);
            let (of_chunk, rest) = rows.split_at(rows.partition_point(|(time, _)| *time < next));
            *counts.entry(ordinal).or_default() += of_chunk.len() as u64;
            rows = rest;
        }
    }
    (counts, limits)
}

/// `tallies` and `ranks`: by code of `series`. Outliers that are equally far come in the order of ranks.
pub fn by_series(keys: &[KeyColumn], tuples: &Tuples, tallies: &[Tally], ranks: &[u32]) -> Result<SeriesRows> {
    let mut codes: Vec<u32> = (0..tallies.len() as u32).filter(|code| tallies[*code as usize].rows > 0).collect();
    let of = |code: u32| tallies[code as usize];
    let series = codes.len();
    if series < FEWEST_SERIES {
        return Ok(SeriesRows { series: series as u64, ..Default::default() });
    }
    let (_, middle, _) = codes.select_nth_unstable_by_key(series / 2, |code| of(*code).rows);
    let median = u64::from(of(*middle).rows);
    let (all, dropped) = codes
        .iter()
        .map(|code| of(*code))
        .fold((0u64, 0u64), |(all, dropped), t| (all + u64::from(t.rows), dropped + u64::from(t.rows - t.written)));
    let dropped_permille = |code: u32| u64::from(of(code).rows - of(code).written) * 1000 / u64::from(of(code).rows);
    let many_dropped = (FAR * dropped * 1000 / all).max(NOTABLE_DROPPED_PERCENT * 10);
    let mut outliers = Vec::new();
    let mut farthest = |kind, is_far: &dyn Fn(u32) -> bool, key: &dyn Fn(u32) -> u64| -> Result<()> {
        let mut far: Vec<u32> = codes.iter().copied().filter(|code| is_far(*code)).collect();
        far.sort_unstable_by_key(|code| (key(*code), ranks[*code as usize]));
        for code in far.into_iter().take(MOST_OUTLIERS) {
            let Tally { rows: taken, written } = of(code);
            outliers.push(SeriesOutlier { kind, series: texts(keys, tuples, code)?, rows: taken.into(), rows_written: written.into() });
        }
        Ok(())
    };
    let taken = |code: u32| u64::from(of(code).rows);
    farthest(OutlierKind::MoreRows, &|code| taken(code) >= FAR * median, &|code| u64::MAX - taken(code))?;
    farthest(OutlierKind::FewerRows, &|code| taken(code) * FAR <= median, &taken)?;
    farthest(OutlierKind::MoreDropped, &|code| dropped_permille(code) >= many_dropped, &|code| 1000 - dropped_permille(code))?;
    Ok(SeriesRows { series: series as u64, median_rows: median, outliers })
}

/// The key's values of a series.
fn texts(keys: &[KeyColumn], tuples: &Tuples, code: u32) -> Result<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let text = |(column, code): (usize, u32)| {
        let value = keys[column].value(code)?;
        Ok(ArrayFormatter::try_new(&value, &options).map_err(internal)?.value(0).to_string())
    };
    tuples.parts(code).into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::DataType;

    #[test]
    fn rows_are_counted_by_chunk_series_by_series_and_before_1970() {
        let day = 86_400_000_000i64;
        let times = [0, day - 1, day, -1, -1, 0, 5 * day];
        let rows = times.iter().enumerate().map(|(row, time)| (*time, row as u32)).collect();
        let ordered = Ordered { rows, series: vec![(1, 3), (0, 7)] };
        assert_eq!(by_chunk(&ordered, Period::Day), ([(-1, 2), (0, 3), (1, 1), (5, 1)].into(), Some((-1, 5 * day))));
        assert_eq!(by_chunk(&Ordered { rows: vec![], series: vec![] }, Period::Month), (BTreeMap::new(), None));
    }

    fn spread(tallies: &[(u32, u32)]) -> SeriesRows {
        let names: ArrayRef = std::sync::Arc::new((0..tallies.len()).map(|i| Some(format!("d{i}"))).collect::<StringArray>());
        let mut key = KeyColumn::new(&DataType::Utf8).unwrap();
        key.intern(&names, &mut vec![]).unwrap();
        let tallies: Vec<Tally> = tallies.iter().map(|(rows, written)| Tally { rows: *rows, written: *written }).collect();
        let ranks: Vec<u32> = (0..tallies.len() as u32).collect();
        by_series(&[key], &Tuples::new(vec![0]), &tallies, &ranks).unwrap()
    }
    fn told(spread: &SeriesRows) -> Vec<(OutlierKind, &str, u64)> {
        spread.outliers.iter().map(|o| (o.kind, o.series[0].as_str(), o.rows)).collect()
    }

    #[test]
    fn only_what_is_far_from_the_others_stands_out() {
        use OutlierKind::*;
        assert_eq!(spread(&[(100, 100), (90, 90), (110, 110), (105, 80), (0, 0)]).outliers, []);
        let some = spread(&[(100, 100), (90, 90), (401, 401), (100, 100), (25, 25), (26, 26), (0, 0), (500, 500)]);
        assert_eq!((some.series, some.median_rows), (7, 100));
        assert_eq!(told(&some), [(MoreRows, "d7", 500), (MoreRows, "d2", 401), (FewerRows, "d4", 25)]);
        assert_eq!(told(&spread(&[(100, 50), (100, 40), (100, 0), (100, 60)])), [], "it is usual here");
        let dropped = spread(&[&[(100, 100); 50][..], &[(100, 40)]].concat());
        assert_eq!(told(&dropped), [(MoreDropped, "d50", 100)]);
        assert_eq!(dropped.outliers[0].rows_written, 40);
    }

    #[test]
    fn of_many_outliers_a_few_are_kept_the_farthest_first() {
        let all = spread(&(0..40).map(|i| if i < 30 { (10, 10) } else { (100 + i, 100 + i) }).collect::<Vec<_>>());
        assert_eq!(told(&all).iter().map(|(.., rows)| *rows).collect::<Vec<_>>(), [139, 138, 137, 136, 135]);
        assert_eq!(spread(&[(1, 1), (1000, 1000)]), SeriesRows { series: 2, ..Default::default() });
    }
}
