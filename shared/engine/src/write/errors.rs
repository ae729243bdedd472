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
    /// Notes one bad row. `make` is only called when its text is needed. Rows may come in any order: what is kept
    /// is what comes first in source order, so it does not depend on how the source was cut into units.
    pub fn add(&mut self, bad: BadRow, make: impl FnOnce() -> Error) {
        let BadRow { reason, column, object, row, value, skipped } = bad;
        let at = (object, row);
        let found = self
            .errors
            .iter()
            .position(|e| e.first.reason == reason && e.skipped == skipped && e.first.place.column.as_deref().unwrap_or("") == column);
        let known = match found {
            Some(i) => &mut self.errors[i],
            None if self.errors.len() < MAX_KINDS => {
                let first = with_column(make(), column);
                let text = place_text(&first, row, value);
                let distinct_rows = value.map(|_| at).into_iter().collect();
                let mut entry =
                    RowErrors { first, object, row, count: 1, places: vec![text], place_rows: vec![at], distinct_rows, skipped };
                entry.first.place.distinct = value.map(str::to_string).into_iter().collect();
                self.errors.push(entry);
                return;
            }
            None => return,
        };
        known.count += 1;
        if let Some(value) = value {
            keep_first(&mut known.first.place.distinct, &mut known.distinct_rows, MAX_DISTINCT, at, value);
        }
        let leads = at < (known.object, known.row);
        if leads || known.places.len() < MAX_PLACES || known.place_rows.last().is_some_and(|last| at < *last) {
            let error = with_column(make(), column);
            keep_first(&mut known.places, &mut known.place_rows, MAX_PLACES, at, &place_text(&error, row, value));
            if leads {
                let distinct = std::mem::take(&mut known.first.place.distinct);
                known.first = error;
                known.first.place.distinct = distinct;
                (known.object, known.row) = at;
            }
        }
    }

    /// Is there anything that stops the job?
    pub fn any_fatal(&self) -> bool {
        self.errors.iter().any(|e| !e.skipped)
    }

    pub fn into_errors(mut self) -> Vec<RowErrors> {
        self.errors.sort_by_key(|e| (e.object, e.row));
        self.errors
    }
}

/// Notes what ended the reading of a file; it comes after the rows that were read before it.
pub fn fatal_error(book: &mut ErrorBook, object: u32, error: Error) {
    let row = error.place.line.or(error.place.row).unwrap_or(u64::MAX);
    let (reason, column, value) = (error.reason, error.place.column.clone().unwrap_or_default(), error.place.value.clone());
    book.add(BadRow { reason, column: &column, object, row, value: value.as_deref(), skipped: false }, || error);
}

fn place_text(error: &Error, row: u64, value: Option<&str>) -> String {
    let value = value.map_or(String::new(), |v| format!(" {v}"));
    let row = if row == u64::MAX { String::new() } else { format!(":{row}") };
    format!("{}{row}{value}", error.place.file.as_deref().unwrap_or("?"))
}

/// Keeps the `most` texts that come first, each once at its first place, in order.
fn keep_first(texts: &mut Vec<String>, rows: &mut Vec<(u32, u64)>, most: usize, at: (u32, u64), text: &str) {
    if let Some(i) = texts.iter().position(|t| t == text) {
        if rows[i] <= at {
            return;
        }
        texts.remove(i);
        rows.remove(i);
    }
    let i = rows.partition_point(|r| *r <= at);
    if i < most {
        texts.insert(i, text.to_string());
        rows.insert(i, at);
        texts.truncate(most);
        rows.truncate(most);
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
                for (value, at) in other.first.place.distinct.iter().zip(&other.distinct_rows) {
                    keep_first(&mut first.first.place.distinct, &mut first.distinct_rows, MAX_DISTINCT, *at, value);
                }
                for (place, at) in other.places.iter().zip(&other.place_rows) {
                    keep_first(&mut first.places, &mut first.place_rows, MAX_PLACES, *at, place);
                }
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
        // Only needed to join books.
        e.place_rows.clear();
        e.distinct_rows.clear();
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
    fn what_is_told_does_not_depend_on_how_rows_were_cut_into_units() {
        let rows: Vec<(u64, String)> = (0..300).map(|i| ((i * 7919) % 1000, format!("v{}", i % 40))).collect();
        let told = |units: usize| {
            let mut books: Vec<ErrorBook> = (0..units).map(|_| ErrorBook::default()).collect();
            for (i, (row, value)) in rows.iter().enumerate() {
                books[i % units].add(bad(0, *row, value, false), || error(*row));
            }
            merge(books.into_iter().flat_map(ErrorBook::into_errors))
        };
        let one = told(1);
        assert_eq!((one[0].count, one[0].first.place.distinct.len(), one[0].places.len()), (300, MAX_DISTINCT, MAX_PLACES));
        for units in [2, 3, 7] {
            assert_eq!(told(units), one, "{units} units");
        }
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
