//! The table contract: what `timelake.*` table properties promise about a table.

use crate::error::{Error, Reason, Result};
use crate::layout::{self, AgedLayout, LAYOUT};
use crate::similar::names_hint;
use crate::time::IsoDuration;
use crate::types::{Column, ColumnType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const TIME_COLUMN: &str = "timelake.time-column";
pub const SERIES_KEY: &str = "timelake.series-key";
pub const DEDUP_KEY: &str = "timelake.dedup-key";
pub const RETENTION: &str = "timelake.retention";
pub const LATENESS: &str = "timelake.lateness";
pub const UNDO: &str = "timelake.undo";

pub const DEFAULT_LATENESS: &str = "PT1H";
pub const DEFAULT_UNDO: &str = "P14D";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableContract {
    /// Event time; a required `timestamptz`.
    pub time_column: String,
    /// What identifies a series, in sort order.
    pub series_key: Vec<String>,
    /// What identifies a row; holds the time column. `None` = rows have no identity.
    pub dedup_key: Option<Vec<String>>,
    /// ISO-8601, `None` = unlimited.
    pub retention: Option<String>,
    pub lateness: String,
    /// How long a published job can be rolled back.
    pub undo: String,
    /// How older rows are laid out, youngest first; empty = all rows in the table's spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layout: Vec<AgedLayout>,
}

impl TableContract {
    /// Reads the contract from table properties; `None` when the table has none yet.
    pub fn from_properties(properties: &std::collections::HashMap<String, String>) -> Result<Option<TableContract>> {
        let list = |text: &String| text.split(',').map(|s| s.trim().to_string()).filter(|s| !s.is_empty()).collect::<Vec<_>>();
        let (Some(time), Some(series)) = (properties.get(TIME_COLUMN), properties.get(SERIES_KEY)) else { return Ok(None) };
        let series_key = list(series);
        let dedup_key = match properties.get(DEDUP_KEY).map(String::as_str) {
            Some("none") => None,
            Some(text) => Some(list(&text.to_string())),
            None => Some(series_key.iter().cloned().chain([time.clone()]).collect()),
        };
        Ok(Some(TableContract {
            time_column: time.clone(),
            series_key,
            dedup_key,
            retention: properties.get(RETENTION).cloned(),
            lateness: properties.get(LATENESS).cloned().unwrap_or_else(|| DEFAULT_LATENESS.into()),
            undo: properties.get(UNDO).cloned().unwrap_or_else(|| DEFAULT_UNDO.into()),
            layout: properties.get(LAYOUT).map(|text| layout::parse(text)).transpose()?.unwrap_or_default(),
        }))
    }

    /// The properties that state this contract.
    pub fn to_properties(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::from([
            (TIME_COLUMN.to_string(), self.time_column.clone()),
            (SERIES_KEY.to_string(), self.series_key.join(",")),
            (DEDUP_KEY.to_string(), self.dedup_key.as_ref().map_or("none".into(), |k| k.join(","))),
            (LATENESS.to_string(), self.lateness.clone()),
            (UNDO.to_string(), self.undo.clone()),
        ]);
        if let Some(r) = &self.retention {
            out.insert(RETENTION.into(), r.clone());
        }
        if !self.layout.is_empty() {
            out.insert(LAYOUT.into(), layout::text_of(&self.layout));
        }
        out
    }

    /// Checks the contract against the table's columns.
    pub fn check(&self, columns: &[Column]) -> Result<()> {
        let find = |name: &String, property: &str| {
            columns.iter().find(|c| c.name == *name).ok_or_else(|| {
                let names: Vec<_> = columns.iter().map(|c| c.name.as_str()).collect();
                Error::invalid(Reason::InvalidContract, format!("{property} names column {name}, which the table does not have"))
                    .hint(names_hint(name, "columns", &names))
                    .at(|p| p.column = Some(name.clone()))
            })
        };
        let time = find(&self.time_column, TIME_COLUMN)?;
        if time.column_type != ColumnType::Timestamptz {
            return Err(Error::invalid(
                Reason::InvalidContract,
                format!("the time column {} is {}, it must be timestamptz", time.name, time.column_type),
            )
            .hint("event times are instants: use a timestamptz column")
            .at(|p| p.column = Some(time.name.clone())));
        }
        let bad = |message: String| Err(Error::invalid(Reason::InvalidContract, message));
        if self.series_key.is_empty() {
            return bad(format!("{SERIES_KEY} is empty"));
        }
        for (key, property) in [(Some(&self.series_key), SERIES_KEY), (self.dedup_key.as_ref(), DEDUP_KEY)] {
            for (i, name) in key.into_iter().flatten().enumerate() {
                let column = find(name, property)?;
                if key.is_some_and(|k| k[..i].contains(name)) {
                    return bad(format!("{property} names {name} twice"));
                }
                if property == SERIES_KEY && *name == self.time_column {
                    return bad(format!("{SERIES_KEY} must not hold the time column {name}"));
                }
                if matches!(column.column_type, ColumnType::Float | ColumnType::Double) {
                    return bad(format!("{property} names {name}, a {}: floating point numbers are no keys", column.column_type));
                }
            }
        }
        match &self.dedup_key {
            Some(k) if !k.contains(&self.time_column) => bad(format!("{DEDUP_KEY} must contain the time column {}", self.time_column))?,
            _ => {}
        }
        for text in self.retention.iter().chain([&self.lateness, &self.undo]) {
            IsoDuration::parse(text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        let c = |id, name: &str, column_type| Column { id, name: name.into(), column_type, required: false };
        vec![c(1, "ts", ColumnType::Timestamptz), c(2, "d", ColumnType::String), c(3, "v", ColumnType::Double)]
    }

    #[test]
    fn properties_round_trip_and_default() {
        let properties = [(TIME_COLUMN.to_string(), "ts".to_string()), (SERIES_KEY.into(), " d ".into())].into();
        let c = TableContract::from_properties(&properties).unwrap().unwrap();
        assert_eq!(c.dedup_key, Some(vec!["d".to_string(), "ts".into()]));
        c.check(&columns()).unwrap();
        assert_eq!(TableContract::from_properties(&c.to_properties().into_iter().collect()).unwrap(), Some(c));
        assert_eq!(TableContract::from_properties(&Default::default()).unwrap(), None);
    }

    #[test]
    fn bad_contracts_are_refused() {
        let good = TableContract {
            time_column: "ts".into(),
            series_key: vec!["d".into()],
            dedup_key: None,
            retention: None,
            lateness: "PT1H".into(),
            undo: "P14D".into(),
            layout: vec![],
        };
        good.check(&columns()).unwrap();
        let change: [fn(&mut TableContract); 7] = [
            |c| c.time_column = "d".into(),
            |c| c.series_key = vec!["x".into()],
            |c| c.series_key = vec!["ts".into()],
            |c| c.series_key = vec![],
            |c| c.series_key = vec!["v".into()],
            |c| c.dedup_key = Some(vec!["d".into()]),
            |c| c.retention = Some("2 years".into()),
        ];
        for (i, f) in change.iter().enumerate() {
            let mut c = good.clone();
            f(&mut c);
            assert!(c.check(&columns()).is_err(), "change {i}");
        }
    }
}
