//! A table of sensors, and how a source is read for it.

use std::sync::Arc;
use timelake_model::request::RowOptions;
use timelake_model::{Column, ColumnType, Result, TableContract};
use timelake_source::SourceSpec;

pub const SENSOR: &str = "ts:timestamptz;device_id:string;value:double";

/// `name:type;...`; ts and device_id are required.
fn columns(text: &str) -> Vec<Column> {
    let column = |(index, pair): (usize, &str)| {
        let (name, column_type) = pair.split_once(':').unwrap();
        let required = name == "ts" || name == "device_id";
        Column { id: index as i32 + 1, name: name.into(), column_type: ColumnType::parse(column_type).unwrap(), required }
    };
    text.split(';').enumerate().map(column).collect()
}

pub fn try_spec(columns_text: &str, options: RowOptions) -> Result<Arc<SourceSpec>> {
    let contract = TableContract {
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        dedup_key: Some(vec!["device_id".into(), "ts".into()]),
        retention: None,
        lateness: "PT1H".into(),
        undo: "P14D".into(),
        layout: vec![],
    };
    SourceSpec::new(&options, &columns(columns_text), &contract).map(Arc::new)
}

pub fn map(text: &str) -> RowOptions {
    RowOptions { map: vec![text.into()], ..Default::default() }
}
