//! What a dry run remembers of the rows that go by: per column the smallest and largest value and the NULLs, the first
//! rows, and how many rows the source is about to have. Stands between the run and what shows its progress.

use crate::progress::{Progress, Step};
use crate::write::{cell_text, internal};
use arrow::array::{Array, ArrayRef, ArrowNumericType, AsArray, BooleanArray, PrimitiveArray, RecordBatch, make_comparator};
use arrow::compute::{SortOptions, concat, filter, max, min};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use timelake_model::Result;

/// Rows that are shown.
pub const FIRST_ROWS: usize = 5;

pub struct Watch<'a> {
    shown: &'a dyn Progress,
    /// Rows that landing foresaw last: of all files, had they been read to their ends.
    foreseen: AtomicU64,
    seen: Mutex<Result<Seen>>,
}

/// What was seen of the rows that would be stored.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub columns: Vec<ColumnSeen>,
    /// By unit.
    first: BTreeMap<u32, Vec<Vec<String>>>,
}

#[derive(Debug, Clone)]
pub struct ColumnSeen {
    pub name: String,
    /// Smallest and largest value, each an array of one.
    range: Option<(ArrayRef, ArrayRef)>,
    pub nulls: u64,
}

impl ColumnSeen {
    pub fn range(&self) -> Result<Option<(String, String)>> {
        self.range.as_ref().map(|(low, high)| Ok((cell_text(low, 0)?, cell_text(high, 0)?))).transpose()
    }

    fn add(&mut self, other: ColumnSeen) -> Result<()> {
        self.nulls += other.nulls;
        self.range = match (self.range.take(), other.range) {
            (Some((low, high)), Some((other_low, other_high))) => {
                let all = [low, high, other_low, other_high];
                extremes(&concat(&all.each_ref().map(|a| a.as_ref())).map_err(internal)?)?
            }
            (one, other) => one.or(other),
        };
        Ok(())
    }
}

impl Seen {
    /// The first rows of the table's files, unit by unit.
    pub fn first_rows(&self) -> Vec<Vec<String>> {
        self.first.values().flatten().take(FIRST_ROWS).cloned().collect()
    }

    fn wants_rows_of(&self, unit: u32) -> bool {
        let before: usize = self.first.range(..=unit).map(|(_, rows)| rows.len()).sum();
        before < FIRST_ROWS
    }

    fn add(&mut self, columns: Vec<ColumnSeen>, unit: u32, rows: &RecordBatch) -> Result<()> {
        if self.columns.is_empty() {
            self.columns = columns;
        } else {
            for (known, more) in self.columns.iter_mut().zip(columns) {
                known.add(more)?;
            }
        }
        if self.wants_rows_of(unit) {
            let of_unit = self.first.entry(unit).or_default();
            for row in 0..rows.num_rows().min(FIRST_ROWS.saturating_sub(of_unit.len())) {
                of_unit.push(rows.columns().iter().map(|column| cell_text(column, row)).collect::<Result<_>>()?);
            }
        }
        Ok(())
    }
}

impl<'a> Watch<'a> {
    pub fn new(shown: &'a dyn Progress) -> Watch<'a> {
        Watch { shown, foreseen: AtomicU64::new(0), seen: Mutex::new(Ok(Seen::default())) }
    }

    pub fn foreseen_rows(&self) -> u64 {
        self.foreseen.load(Ordering::Relaxed)
    }

    pub fn into_seen(self) -> Result<Seen> {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Watch<'_> {
    fn begin(&self, step: Step, rows: Option<u64>) {
        self.shown.begin(step, rows);
    }
    fn advance(&self, step: Step, rows: u64) {
        self.shown.advance(step, rows);
    }
    fn foresee(&self, step: Step, rows: u64) {
        self.foreseen.store(rows, Ordering::Relaxed);
        self.shown.foresee(step, rows);
    }
    fn end(&self, step: Step) {
        self.shown.end(step);
    }
    fn stored(&self, unit: u32, rows: &RecordBatch) {
        let columns = rows.schema_ref().fields().iter().zip(rows.columns());
        let columns: Result<Vec<ColumnSeen>> = columns
            .map(|(field, array)| {
                Ok(ColumnSeen { name: field.name().clone(), range: extremes(array)?, nulls: array.logical_null_count() as u64 })
            })
            .collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(known) = seen.as_mut()
            && let Err(e) = columns.and_then(|columns| known.add(columns, unit, rows))
        {
            *seen = Err(e);
        }
    }
    fn note(&self, text: &str) {
        self.shown.note(text);
    }
}

/// Smallest and largest value, each as an array of one. NaN is neither.
fn extremes(array: &ArrayRef) -> Result<Option<(ArrayRef, ArrayRef)>> {
    Ok(match array.data_type() {
        DataType::Int32 => of_numbers::<Int32Type>(array, |_| false),
        DataType::Int64 => of_numbers::<Int64Type>(array, |_| false),
        DataType::Float32 => of_numbers::<Float32Type>(array, f32::is_nan),
        DataType::Float64 => of_numbers::<Float64Type>(array, f64::is_nan),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of_numbers::<TimestampMicrosecondType>(array, |_| false),
        DataType::Dictionary(..) => {
            let dictionary = array.as_dictionary::<Int32Type>();
            // Its values are those of the whole unit.
            let used = BooleanArray::new(dictionary.occupancy(), None);
            of_any(&filter(dictionary.values().as_ref(), &used).map_err(internal)?)?
        }
        _ => of_any(array)?,
    })
}

fn of_numbers<T: ArrowNumericType>(array: &ArrayRef, is_nan: impl Fn(T::Native) -> bool) -> Option<(ArrayRef, ArrayRef)> {
    let numbers = array.as_primitive::<T>();
    let one = |value| -> ArrayRef { Arc::new(PrimitiveArray::<T>::from_value(value, 1).with_data_type(array.data_type().clone())) };
    let (low, high) = (min(numbers)?, max(numbers)?);
    if !is_nan(high) {
        return Some((one(low), one(high)));
    }
    // NaN is the largest of all.
    let numbers: PrimitiveArray<T> = numbers.iter().map(|value| value.filter(|v| !is_nan(*v))).collect();
    Some((one(min(&numbers)?), one(max(&numbers)?)))
}

fn of_any(array: &ArrayRef) -> Result<Option<(ArrayRef, ArrayRef)>> {
    let mut valid = (0..array.len()).filter(|i| array.is_valid(*i));
    let Some(first) = valid.next() else { return Ok(None) };
    let compare = make_comparator(array.as_ref(), array.as_ref(), SortOptions::default()).map_err(internal)?;
    let (low, high) = valid.fold((first, first), |(low, high), i| {
        (if compare(i, low).is_lt() { i } else { low }, if compare(i, high).is_gt() { i } else { high })
    });
    Ok(Some((array.slice(low, 1), array.slice(high, 1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use arrow::array::{DictionaryArray, Float64Array, Int32Array, StringArray, TimestampMicrosecondArray};
    use arrow::datatypes::{Field, Schema};

    fn batch(times: &[i64], devices: &[&str], values: &[Option<f64>]) -> RecordBatch {
        let all = StringArray::from(vec!["a", "b", "c", "zzz"]);
        let keys = Int32Array::from_iter_values(devices.iter().map(|d| all.iter().position(|v| v == Some(*d)).unwrap() as i32));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(TimestampMicrosecondArray::from(times.to_vec()).with_timezone("+00:00")),
            Arc::new(DictionaryArray::new(keys, Arc::new(all))),
            Arc::new(Float64Array::from(values.to_vec())),
        ];
        let names = ["ts", "device_id", "value"];
        let fields: Vec<Field> = names.iter().zip(&columns).map(|(n, c)| Field::new(*n, c.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }

    #[test]
    fn columns_and_first_rows_do_not_depend_on_which_unit_ends_first() {
        let units = [
            (0, batch(&[0, 1_000_000], &["a", "c"], &[Some(1.5), None])),
            (1, batch(&[-1], &["b"], &[Some(f64::NAN)])),
            (1, batch(&[5, 6, 7], &["b", "b", "a"], &[Some(-2.0), Some(0.0), None])),
        ];
        for order in [[0, 1, 2], [1, 2, 0]] {
            let watch = Watch::new(&Silent);
            for i in order {
                watch.stored(units[i].0, &units[i].1);
            }
            let seen = watch.into_seen().unwrap();
            let told: Vec<_> = seen.columns.iter().map(|c| (c.name.as_str(), c.range().unwrap().unwrap(), c.nulls)).collect();
            let pair = |low: &str, high: &str| (low.to_string(), high.to_string());
            assert_eq!(
                told,
                [
                    ("ts", pair("1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:01Z"), 0),
                    ("device_id", pair("a", "c"), 0),
                    ("value", pair("-2.0", "1.5"), 2),
                ]
            );
            let first = seen.first_rows();
            assert_eq!(first.len(), FIRST_ROWS);
            assert_eq!(first[1], ["1970-01-01T00:00:01Z", "c", "NULL"]);
            assert_eq!(first[2][1..], ["b", "NaN"]);
        }
    }

    #[test]
    fn a_column_without_values_has_no_range() {
        let nothing: ArrayRef = Arc::new(Float64Array::from(vec![None, Some(f64::NAN)]));
        assert!(extremes(&nothing).unwrap().is_none());
        let texts: ArrayRef = Arc::new(StringArray::from(vec![None, Some("b"), Some("a"), Some("ä")]));
        let (low, high) = extremes(&texts).unwrap().unwrap();
        assert_eq!((cell_text(&low, 0).unwrap(), cell_text(&high, 0).unwrap()), ("a".into(), "ä".into()));
    }
}
