//! Which series of its time range a unit takes.

use super::keys::internal;
use super::rows::{UnitRows, cell_text};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Int32Type;
use iceberg::spec::Transform;
use iceberg::transform::create_transform_function;
use timelake_model::inventory::TableState;
use timelake_model::plan::SeriesSlice;
use timelake_model::{Error, Result};
use timelake_source::ConvertedColumn;

/// Which series a unit takes, decided once per distinct value of one key column.
pub struct Slice {
    buckets: Option<(usize, u32, Vec<u32>)>,
    range: Option<(usize, Option<String>, Option<String>)>,
}

impl Slice {
    pub fn new(series: &SeriesSlice, table: &TableState, rows: &UnitRows) -> Result<Self> {
        let position = |name: &String| {
            rows.key_columns
                .iter()
                .position(|c| table.columns[*c].name == *name)
                .ok_or_else(|| Error::internal(format!("{name} is no key column")))
        };
        Ok(Slice {
            buckets: series.buckets.as_ref().map(|b| position(&b.column).map(|p| (p, b.modulus, b.buckets.clone()))).transpose()?,
            range: series.range.as_ref().map(|r| position(&r.column).map(|p| (p, r.from.clone(), r.to.clone()))).transpose()?,
        })
    }

    pub fn mask(&self, keys: &[(usize, ConvertedColumn)]) -> Result<BooleanBuffer> {
        let len = keys.first().map_or(0, |(_, c)| c.array.len());
        let mut mask = BooleanBuffer::new_set(len);
        if let Some((position, modulus, buckets)) = &self.buckets {
            let inside = |values: &ArrayRef| -> Result<Vec<bool>> {
                Ok(buckets_of(values, *modulus)?.into_iter().map(|b| b.is_some_and(|b| buckets.contains(&b))).collect())
            };
            mask = &mask & &per_value(&keys[*position].1.array, inside)?;
        }
        if let Some((position, from, to)) = &self.range {
            let inside = |values: &ArrayRef| -> Result<Vec<bool>> {
                (0..values.len())
                    .map(|i| {
                        let text = cell_text(values, i)?;
                        Ok(from.as_ref().is_none_or(|f| text.as_bytes() >= f.as_bytes())
                            && to.as_ref().is_none_or(|t| text.as_bytes() < t.as_bytes()))
                    })
                    .collect()
            };
            mask = &mask & &per_value(&keys[*position].1.array, inside)?;
        }
        Ok(mask)
    }
}

/// Applies a test to the values of an array: once per dictionary value where there is a dictionary.
fn per_value(array: &ArrayRef, test: impl Fn(&ArrayRef) -> Result<Vec<bool>>) -> Result<BooleanBuffer> {
    match array.as_dictionary_opt::<Int32Type>() {
        Some(d) => {
            let values = test(d.values())?;
            let keys = d.keys().values();
            Ok(BooleanBuffer::collect_bool(keys.len(), |i| values[keys[i] as usize]))
        }
        None => {
            let values = test(array)?;
            Ok(BooleanBuffer::collect_bool(values.len(), |i| values[i]))
        }
    }
}

/// The partition bucket of each value; `None` for NULL.
pub fn buckets_of(values: &ArrayRef, modulus: u32) -> Result<Vec<Option<u32>>> {
    let function = create_transform_function(&Transform::Bucket(modulus)).map_err(internal)?;
    let found = function.transform(values.clone()).map_err(internal)?;
    let found = found.as_primitive_opt::<Int32Type>().ok_or_else(|| Error::internal("buckets are numbers"))?;
    Ok(found.iter().map(|b| b.map(|b| b as u32)).collect())
}
