//! Collects bad rows: per reason and column the first in source order, how many, and a few places.

use timelake_model::receipt::RowErrors;
use timelake_model::{Error, Reason};

/// Places kept per reason and column.
pub const MAX_PLACES: usize = 5;
/// Distinct values kept per reason and column.
pub const MAX_DISTINCT: usize = 20;
/// Different (reason, column) pairs kept; a source cannot make this list long.
const MAX_KINDS: usize = 200;

/// A bad row, as far as it is needed to file it.
pub struct BadRow<'a> {
    pub reason: Reason,
    /// The source's name of the column; empty when the fault is in no single column.
    pub column: &'a str,
    pub object: u32,
    /// 1-based data row in the object.
    pub row: u64,
    pub value: Option<&'a str>,
    /// Dropped by the user's policy.
    pub skipped: bool,
}

#[derive(Default)]
pub struct ErrorBook {
    errors: Vec<RowErrors>,
}

impl ErrorBook {
    /// Notes one bad row. `make` is only called when its text is needed.
    pub fn add(&mut self, bad: BadRow, make: impl FnOnce() -> Error) {
        let BadRow { reason, column, object, row, value, skipped } = bad;
        let found = self
            .errors
            .iter()
            .position(|e| e.first.reason == reason && e.skipped == skipped && e.first.place.column.as_deref().unwrap_or("") == column);
        let place = |file: Option<&String>| {
            let value = value.map_or(String::new(), |v| format!(" {v}"));
            format!("{}:{row}{value}", file.map_or("?", String::as_str))
        };
        match found {
            Some(i) => {
                let known = &mut self.errors[i];
                known.count += 1;
                if let Some(value) = value
                    && known.first.place.distinct.len() < MAX_DISTINCT
                    && !known.first.place.distinct.iter().any(|d| d == value)
                {
                    known.first.place.distinct.push(value.to_string());
                }
                let earlier = (object, row) < (known.object, known.row);
                if earlier || known.places.len() < MAX_PLACES {
                    let error = make();
                    let text = place(error.place.file.as_ref());
                    if earlier {
                        let distinct = std::mem::take(&mut known.first.place.distinct);
                        known.first = with_column(error, column);
                        known.first.place.distinct = distinct;
                        (known.object, known.row) = (object, row);
                        known.places.insert(0, text);
                        known.places.truncate(MAX_PLACES);
                    } else {
                        known.places.push(text);
                    }
                }
            }
            None if self.errors.len() < MAX_KINDS => {
                let mut first = with_column(make(), column);
                first.place.distinct = value.map(str::to_string).into_iter().collect();
                let places = vec![place(first.place.file.as_ref())];
                self.errors.push(RowErrors { first, object, row, count: 1, places, skipped });
            }
            None => {}
        }
    }

    pub fn into_errors(mut self) -> Vec<RowErrors> {
        self.errors.sort_by_key(|e| (e.object, e.row));
        self.errors
    }
}

fn with_column(mut error: Error, column: &str) -> Error {
    if !column.is_empty() {
        error.place.column.get_or_insert_with(|| column.to_string());
    }
    error
}

/// Joins the books of several units: counts add up, the first in source order leads.
pub fn merge(books: impl IntoIterator<Item = RowErrors>) -> Vec<RowErrors> {
    let mut out: Vec<RowErrors> = Vec::new();
    for book in books {
        let same = out
            .iter_mut()
            .find(|e| e.first.reason == book.first.reason && e.first.place.column == book.first.place.column && e.skipped == book.skipped);
        match same {
            Some(known) => {
                let (mut first, other) =
                    if (book.object, book.row) < (known.object, known.row) { (book, known.clone()) } else { (known.clone(), book) };
                first.count += other.count;
                for value in other.first.place.distinct {
                    if first.first.place.distinct.len() < MAX_DISTINCT && !first.first.place.distinct.contains(&value) {
                        first.first.place.distinct.push(value);
                    }
                }
                first.places.extend(other.places);
                first.places.truncate(MAX_PLACES);
                *known = first;
            }
            None => out.push(book),
        }
    }
    out.sort_by_key(|e| (e.object, e.row));
    for e in &mut out {
        e.first.place.count = Some(e.count);
        if e.first.place.distinct.len() < 2 {
            e.first.place.distinct.clear(); // `value` says it already
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(object: u32, row: u64, value: &str, skipped: bool) -> BadRow<'_> {
        BadRow { reason: Reason::BadNumber, column: "v", object, row, value: Some(value), skipped }
    }
    fn error(row: u64) -> Error {
        Error::invalid(Reason::BadNumber, format!("row {row}")).at(|p| {
            p.file = Some("f".into());
            p.row = Some(row);
        })
    }

    #[test]
    fn the_first_in_source_order_leads_whatever_came_first() {
        let mut a = ErrorBook::default();
        let mut b = ErrorBook::default();
        for row in [9, 8] {
            a.add(bad(1, row, "x", false), || error(row));
        }
        b.add(bad(0, 50, "y", false), || error(50));
        let all = merge(a.into_errors().into_iter().chain(b.into_errors()));
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].count, all[0].first.place.row, all[0].first.place.count), (3, Some(50), Some(3)));
        assert_eq!(all[0].first.place.distinct, ["y", "x"]);
        assert_eq!(all[0].places.len(), 3);
    }

    #[test]
    fn a_flood_of_bad_rows_stays_small() {
        let mut book = ErrorBook::default();
        for row in 0..100_000 {
            book.add(bad(0, row, &row.to_string(), true), || error(row));
        }
        let e = &book.into_errors()[0];
        assert_eq!((e.count, e.places.len(), e.first.place.distinct.len(), e.skipped), (100_000, MAX_PLACES, MAX_DISTINCT, true));
    }
}
