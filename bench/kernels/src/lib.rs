//! Inputs of the kernel benches: rows as a year of readings has them, the same every time.

use arrow::array::{ArrayRef, Float64Array, StringArray, TimestampMicrosecondArray};
use std::sync::Arc;
use timelake_engine::hash::mix;

const START_US: i64 = 1_704_067_200_000_000; // 2024-01-01
const STEP_US: i64 = 31_536;

/// Readings of some series in time order, interleaved.
pub struct Readings {
    pub times: Vec<i64>,
    pub series: Vec<String>,
    pub values: Vec<f64>,
}

impl Readings {
    pub fn new(rows: usize, series: u64) -> Readings {
        let random = |row: usize, salt: u64| mix(row as u64 ^ (salt << 40));
        Readings {
            times: (0..rows).map(|row| START_US + row as i64 * STEP_US + (random(row, 1) % 1_000) as i64).collect(),
            series: (0..rows).map(|row| format!("plant/line/sensor-{:05}", random(row, 2) % series)).collect(),
            values: (0..rows).map(|row| (random(row, 3) % 100_000) as f64 / 100.0).collect(),
        }
    }

    pub fn time_array(&self) -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(self.times.clone()))
    }
    pub fn value_array(&self) -> ArrayRef {
        Arc::new(Float64Array::from(self.values.clone()))
    }
    pub fn series_array(&self) -> ArrayRef {
        Arc::new(StringArray::from(self.series.clone()))
    }
    /// Times as a CSV file has them.
    pub fn time_texts(&self) -> ArrayRef {
        let text = |us: &i64| timelake_model::TimestampUs(*us).to_string().replace('T', " ").trim_end_matches('Z').to_string();
        Arc::new(StringArray::from(self.times.iter().map(text).collect::<Vec<_>>()))
    }
    /// Numbers with a decimal comma.
    pub fn value_texts(&self) -> ArrayRef {
        Arc::new(StringArray::from(self.values.iter().map(|v| format!("{v:.2}").replace('.', ",")).collect::<Vec<_>>()))
    }
}
