//! Cells that become NULL because the user said so: `--null-number`, `--bad-text-to`.
//!
//! Must never make a cell NULL that has a fault of its own.

use crate::cell::CellFault;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, Scalar};
use arrow::compute::kernels::cmp::eq;
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use std::collections::HashSet;
use timelake_model::{Error, Result};

fn internal(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("cells could not be made NULL: {error}"))
}

pub(crate) fn is_text(array: &ArrayRef) -> bool {
    let plain = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match array.data_type() {
        DataType::Dictionary(_, value) => plain(value),
        other => plain(other),
    }
}

/// Rows without a fault whose value equals one of the numbers (arrays of one element). As numbers: NaN is NaN, and
/// -0 is 0.
pub(crate) fn equal_rows(array: &ArrayRef, numbers: &[ArrayRef], faults: &[CellFault]) -> Result<Vec<usize>> {
    let faulty: HashSet<usize> = faults.iter().map(|fault| fault.row as usize).collect();
    let mut rows = HashSet::new();
    for number in numbers {
        let mut take = |row: usize| {
            if !faulty.contains(&row) {
                rows.insert(row);
            }
        };
        if let (Some(values), Some(number)) = (array.as_primitive_opt::<Float64Type>(), number.as_primitive_opt::<Float64Type>()) {
            let wanted = number.value(0);
            let equals = |value: f64| value == wanted || (value.is_nan() && wanted.is_nan());
            (0..values.len()).filter(|row| values.is_valid(*row) && equals(values.value(*row))).for_each(&mut take);
        } else if let (Some(values), Some(number)) = (array.as_primitive_opt::<Float32Type>(), number.as_primitive_opt::<Float32Type>()) {
            let wanted = number.value(0);
            let equals = |value: f32| value == wanted || (value.is_nan() && wanted.is_nan());
            (0..values.len()).filter(|row| values.is_valid(*row) && equals(values.value(*row))).for_each(&mut take);
        } else {
            let equal = eq(array, &Scalar::new(number.clone())).map_err(internal)?;
            equal.iter().enumerate().filter(|(_, equal)| *equal == Some(true)).for_each(|(row, _)| take(row));
        }
    }
    Ok(rows.into_iter().collect())
}

/// Makes rows NULL; gives how many.
pub(crate) fn set_null(array: &mut ArrayRef, rows: impl Iterator<Item = usize>) -> Result<u64> {
    let mut mask = BooleanBufferBuilder::new(array.len());
    mask.append_n(array.len(), false);
    rows.for_each(|row| mask.set_bit(row, true));
    let mask = mask.finish();
    let count = mask.count_set_bits() as u64;
    if count > 0 {
        *array = nullif(array, &BooleanArray::new(mask, None)).map_err(internal)?;
    }
    Ok(count)
}
