//! A source of a size that takes several units: a reading a minute of many devices, made and judged without a row in JSON.

use crate::sensors::*;
use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray, TimestampMicrosecondArray};
use serde_json::{Value, json};
use std::sync::Arc;
use timelake_tests::{Lab, write_parquet};

/// 2024-05-01T00:00:00Z.
const START_US: i64 = 1_714_521_600_000_000;
const MINUTE_US: i64 = 60_000_000;
const ROW_GROUP_ROWS: usize = 25_000;

/// `days` days from `first_day` (1 = the first of May 2024).
#[derive(Clone, Copy)]
pub struct Minutes {
    pub first_day: usize,
    pub days: usize,
    pub devices: usize,
}

impl Minutes {
    pub fn rows(&self) -> usize {
        self.days * 1_440 * self.devices
    }
    fn value(day: usize, minute: usize, device: usize) -> f64 {
        (day * 7 + minute + device * 3) as f64
    }
    pub fn value_sum(&self) -> f64 {
        let mut sum = 0.0;
        for day in self.first_day..self.first_day + self.days {
            sum += (0..1_440).flat_map(|m| (0..self.devices).map(move |d| Self::value(day, m, d))).sum::<f64>();
        }
        sum
    }

    /// A file a day.
    pub fn write(&self, lab: &Lab, folder: &str) {
        for day in self.first_day..self.first_day + self.days {
            let cells = || (0..1_440).flat_map(|minute| (0..self.devices).map(move |device| (minute, device)));
            let at = |minute: usize| START_US + ((day - 1) * 1_440 + minute) as i64 * MINUTE_US;
            let times: TimestampMicrosecondArray = cells().map(|(minute, _)| Some(at(minute))).collect();
            let names: StringArray = cells().map(|(_, device)| Some(format!("d{device:03}"))).collect();
            let values: Float64Array = cells().map(|(minute, device)| Some(Self::value(day, minute, device))).collect();
            let qualities: Int32Array = cells().map(|_| Some(0)).collect();
            let columns: Vec<(&'static str, ArrayRef)> = vec![
                ("ts", Arc::new(times.with_timezone("+00:00"))),
                ("device_id", Arc::new(names)),
                ("value", Arc::new(values)),
                ("quality", Arc::new(qualities)),
            ];
            write_parquet(&lab.path(&format!("{folder}/day-{day:02}.parquet")), columns, ROW_GROUP_ROWS);
        }
    }
}

/// Both readers find exactly these rows (and `more` single rows of other devices with their values), each key once; no
/// branch, no lock and no second publish of the job is left, and every file is listed once and is there.
#[track_caller]
pub fn assert_loaded(lab: &Lab, parts: &[Minutes], more: &[f64], jobs: usize) {
    let rows = parts.iter().map(Minutes::rows).sum::<usize>() + more.len();
    let sum = parts.iter().map(Minutes::value_sum).sum::<f64>() + more.iter().sum::<f64>();
    for engine in ["pyiceberg", "duckdb"] {
        let found = lab.reader(json!({"command": "summary", "engine": engine}));
        assert_eq!((&found["rows"], &found["keys"]), (&json!(rows), &json!(rows)), "{engine}: {found}");
        assert_eq!(found["value_sum"].as_f64(), Some(sum), "{engine}");
    }
    assert_tidy(lab, jobs);
}

/// Nothing but `main` and one tag per published job.
#[track_caller]
pub fn assert_tidy(lab: &Lab, jobs: usize) -> Value {
    let table = lab.inspect();
    let names = ref_names(&table);
    let tags = names.iter().filter(|r| r.starts_with("timelake/published/")).count();
    assert_eq!((tags, names.len()), (jobs, jobs + 1), "{names:?}");
    assert_eq!(locks(&table), Vec::<String>::new());
    let files = table["files"].as_array().unwrap();
    let paths: std::collections::BTreeSet<&str> = files.iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths.len(), files.len(), "a file is listed twice");
    assert!(files.iter().all(|f| f["exists"] == json!(true)), "a file is missing");
    table
}
