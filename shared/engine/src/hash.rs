//! Order-independent checksums of rows: what a unit says it wrote, and what validation finds in the files.
//!
//! A value's canonical bits: numbers and times as their 64 bits, floats with one NaN and one zero, texts and
//! bytes by XXH3. A column's checksum is the wrapping sum over its rows, so it does not depend on order.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
};
use timelake_model::{Error, Result};
use twox_hash::XxHash3_64;

/// What NULL counts as: not what any small number counts as.
const NULL_BITS: u64 = 0x6e75_6c6c_9e37_79b9;
const CANONICAL_NAN: u64 = 0x7ff8_0000_0000_0000;

pub fn bytes_hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Finaliser of SplitMix64: every input bit reaches every output bit.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hash of a row's identity: the hash of its key columns and its time.
pub fn key_hash(identity: u64, time_us: i64) -> u64 {
    mix(identity ^ mix(time_us as u64))
}

/// Joins the hashes of several key columns, in order.
pub fn join(hashes: impl IntoIterator<Item = u64>) -> u64 {
    hashes.into_iter().fold(0x7469_6d65_6c61_6b65, |all, one| mix(all.rotate_left(17) ^ one))
}

pub fn float_bits(value: f64) -> u64 {
    if value.is_nan() {
        CANONICAL_NAN
    } else if value == 0.0 {
        0
    } else {
        value.to_bits()
    }
}

fn decimal_bits(value: i128) -> u64 {
    (value as u64) ^ ((value >> 64) as u64).rotate_left(32)
}

/// Sum over a plain (not dictionary) array of one of the table's types.
pub fn column_sum(array: &ArrayRef) -> Result<u64> {
    macro_rules! sum {
        ($t:ty, $bits:expr) => {{
            let typed = array.as_primitive::<$t>();
            let bits = $bits;
            if typed.null_count() == 0 {
                typed.values().iter().fold(0u64, |s, v| s.wrapping_add(bits(*v)))
            } else {
                typed.iter().fold(0u64, |s, v| s.wrapping_add(v.map_or(NULL_BITS, bits)))
            }
        }};
    }
    let text = |values: &mut dyn Iterator<Item = Option<&[u8]>>| values.fold(0u64, |s, v| s.wrapping_add(v.map_or(NULL_BITS, bytes_hash)));
    Ok(match array.data_type() {
        DataType::Boolean => array.as_boolean().iter().fold(0u64, |s, v| s.wrapping_add(v.map_or(NULL_BITS, u64::from))),
        DataType::Int32 => sum!(Int32Type, |v: i32| i64::from(v) as u64),
        DataType::Int64 => sum!(Int64Type, |v: i64| v as u64),
        DataType::Float32 => sum!(Float32Type, |v: f32| float_bits(f64::from(v))),
        DataType::Float64 => sum!(Float64Type, float_bits),
        DataType::Date32 => sum!(Date32Type, |v: i32| i64::from(v) as u64),
        DataType::Time64(_) => sum!(Time64MicrosecondType, |v: i64| v as u64),
        DataType::Timestamp(..) => sum!(TimestampMicrosecondType, |v: i64| v as u64),
        DataType::Decimal128(..) => sum!(Decimal128Type, decimal_bits),
        DataType::Utf8 => text(&mut array.as_string::<i32>().iter().map(|v| v.map(str::as_bytes))),
        DataType::LargeUtf8 => text(&mut array.as_string::<i64>().iter().map(|v| v.map(str::as_bytes))),
        DataType::Binary => text(&mut array.as_binary::<i32>().iter()),
        DataType::LargeBinary => text(&mut array.as_binary::<i64>().iter()),
        DataType::FixedSizeBinary(_) => text(&mut array.as_fixed_size_binary().iter()),
        other => return Err(Error::internal(format!("no checksum for {other}"))),
    })
}

/// NaN values of a float array; 0 for other types.
pub fn nan_count(array: &ArrayRef) -> u64 {
    let nulls = array.nulls();
    let valid = |i: usize| nulls.is_none_or(|n| n.is_valid(i));
    match array.data_type() {
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().values().iter().enumerate().filter(|(i, v)| v.is_nan() && valid(*i)).count() as u64
        }
        DataType::Float64 => {
            array.as_primitive::<Float64Type>().values().iter().enumerate().filter(|(i, v)| v.is_nan() && valid(*i)).count() as u64
        }
        _ => 0,
    }
}

/// Equality of two cells as the table sees it: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0.
/// Both arrays have the same plain type.
pub fn cells_equal(a: &ArrayRef, i: usize, b: &ArrayRef, j: usize) -> bool {
    match (a.is_null(i), b.is_null(j)) {
        (true, true) => return true,
        (false, false) => {}
        _ => return false,
    }
    macro_rules! same {
        ($t:ty) => {
            a.as_primitive::<$t>().value(i) == b.as_primitive::<$t>().value(j)
        };
    }
    match (a.data_type(), b.data_type()) {
        (DataType::Float64, DataType::Float64) => {
            float_bits(a.as_primitive::<Float64Type>().value(i)) == float_bits(b.as_primitive::<Float64Type>().value(j))
        }
        (DataType::Float32, DataType::Float32) => {
            float_bits(f64::from(a.as_primitive::<Float32Type>().value(i)))
                == float_bits(f64::from(b.as_primitive::<Float32Type>().value(j)))
        }
        (DataType::Int32, DataType::Int32) => same!(Int32Type),
        (DataType::Int64, DataType::Int64) => same!(Int64Type),
        (DataType::Timestamp(..), DataType::Timestamp(..)) => same!(TimestampMicrosecondType),
        (DataType::Date32, DataType::Date32) => same!(Date32Type),
        (DataType::Time64(_), DataType::Time64(_)) => same!(Time64MicrosecondType),
        (DataType::Decimal128(..), DataType::Decimal128(..)) => same!(Decimal128Type),
        (DataType::Boolean, DataType::Boolean) => a.as_boolean().value(i) == b.as_boolean().value(j),
        (DataType::Utf8, DataType::Utf8) => a.as_string::<i32>().value(i) == b.as_string::<i32>().value(j),
        _ => a.slice(i, 1).to_data() == b.slice(j, 1).to_data(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, LargeBinaryArray, StringArray};
    use std::sync::Arc;

    fn f(values: Vec<Option<f64>>) -> ArrayRef {
        Arc::new(Float64Array::from(values))
    }

    #[test]
    fn sums_do_not_depend_on_order_and_see_every_change() {
        let a = column_sum(&f(vec![Some(1.0), None, Some(2.5)])).unwrap();
        assert_eq!(a, column_sum(&f(vec![Some(2.5), Some(1.0), None])).unwrap());
        assert_ne!(a, column_sum(&f(vec![Some(2.5), Some(1.0), Some(0.0)])).unwrap());
        assert_eq!(column_sum(&f(vec![Some(-0.0), Some(f64::NAN)])).unwrap(), column_sum(&f(vec![Some(-f64::NAN), Some(0.0)])).unwrap());
        let text = |v: &str| column_sum(&(Arc::new(StringArray::from(vec![v])) as ArrayRef)).unwrap();
        assert_ne!(text("a"), text("b"));
        assert_eq!(nan_count(&f(vec![Some(f64::NAN), None, Some(1.0)])), 1);
    }

    #[test]
    fn cells_compare_as_the_table_sees_them() {
        let a = f(vec![None, Some(f64::NAN), Some(0.0), Some(1.0)]);
        let b = f(vec![None, Some(-f64::NAN), Some(-0.0), Some(2.0)]);
        assert_eq!((0..4).map(|i| cells_equal(&a, i, &b, i)).collect::<Vec<_>>(), [true, true, true, false]);
        let a: ArrayRef = Arc::new(LargeBinaryArray::from(vec![Some(&b"ab"[..]), None]));
        assert!(cells_equal(&a, 0, &a, 0) && !cells_equal(&a, 0, &a, 1));
        assert_ne!(key_hash(1, 2), key_hash(2, 1));
    }
}
