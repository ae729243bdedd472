//! Layout by age: rows that are old enough are written in a coarser partition spec of the same table.

use crate::error::{Error, Reason, Result};
use crate::inventory::PartitionField;
use crate::time::{IsoDuration, Period, TimestampUs};
use serde::{Deserialize, Serialize};

/// The table property: a JSON list of [`AgedLayout`].
pub const LAYOUT: &str = "timelake.layout";

const MAX_ENTRIES: usize = 16;
/// A thousand years: all that is further back is beyond the calendar.
const MAX_AGE_MS: i64 = 1_000 * 366 * 86_400_000;

/// An entry of the property: how rows are written that are older than a span when the job is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AgedLayout {
    /// ISO-8601.
    pub older_than: String,
    /// Partition transforms, as `table create --partition` takes them.
    pub partition: String,
    /// `None`: the table's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_file_size_bytes: Option<u64>,
}

/// The property's text for some entries.
pub fn text_of(layouts: &[AgedLayout]) -> String {
    serde_json::to_string(layouts).unwrap_or_default()
}

/// Reads the property; youngest first.
pub fn parse(text: &str) -> Result<Vec<AgedLayout>> {
    let mut layouts: Vec<AgedLayout> = serde_json::from_str(text).map_err(|e| bad(format!("{LAYOUT} is not understood: {e}")))?;
    if layouts.len() > MAX_ENTRIES {
        return Err(bad(format!("{LAYOUT} has {} entries, more than {MAX_ENTRIES}", layouts.len())));
    }
    let mut ages = Vec::new();
    for layout in &layouts {
        let age = IsoDuration::parse(&layout.older_than)?.upper_ms();
        if ages.contains(&age) {
            return Err(bad(format!("{LAYOUT} has two entries for {}", layout.older_than)));
        }
        if age > MAX_AGE_MS {
            return Err(bad(format!("{LAYOUT}: {} is too long", layout.older_than)));
        }
        if layout.target_file_size_bytes == Some(0) {
            return Err(bad(format!("{LAYOUT}: files of {} have no size", layout.older_than)));
        }
        ages.push(age);
    }
    let age = |l: &AgedLayout| IsoDuration::parse(&l.older_than).map_or(0, |d| d.upper_ms());
    layouts.sort_by_key(age);
    Ok(layouts)
}

pub fn bad(message: String) -> Error {
    Error::invalid(Reason::InvalidContract, message)
        .hint(r#"for example [{"older-than": "P90D", "partition": "month(ts)", "target-file-size-bytes": 536870912}]"#)
}

/// Up to which instants the rows of a job made at `as_of` are old enough for some layouts, youngest first: limits of their
/// own periods, each at or before the one before it. A month can be shorter than 30 days, so ages alone do not order them.
pub fn limits(as_of: TimestampUs, layouts: &[(IsoDuration, Period)]) -> Vec<TimestampUs> {
    let mut limit = as_of;
    let mut aligned = |(age, period): &(IsoDuration, Period)| {
        limit = limit.min(age.before(as_of));
        TimestampUs(period.start(period.ordinal(limit.0)))
    };
    layouts.iter().map(&mut aligned).collect()
}

/// An entry as a job uses it: rows before an instant are written in another spec of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// A limit of the layout's own periods, so that no partition has rows of two layouts.
    pub before: TimestampUs,
    pub spec_id: i32,
    pub partition: Vec<PartitionField>,
    pub period: Period,
    pub target_file_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_youngest_first_and_round_trip() {
        let text =
            r#"[{"older-than":"P2Y","partition":"year(ts)"},{"older-than":"P90D","partition":"month(ts)","target-file-size-bytes":1000}]"#;
        let layouts = parse(text).unwrap();
        assert_eq!(layouts.iter().map(|l| l.older_than.as_str()).collect::<Vec<_>>(), ["P90D", "P2Y"]);
        assert_eq!(parse(&text_of(&layouts)).unwrap(), layouts);
        assert_eq!(parse("[]").unwrap(), []);
    }

    #[test]
    fn limits_are_those_of_periods_and_never_cross() {
        let at = |text: &str| TimestampUs::parse_bound(text, "", false).unwrap();
        let of = |as_of: &str, layouts: &[(&str, Period)]| {
            let layouts: Vec<_> = layouts.iter().map(|(age, period)| (IsoDuration::parse(age).unwrap(), *period)).collect();
            limits(at(as_of), &layouts)
        };
        let found = of("2026-12-02T10:00:00", &[("P90D", Period::Month), ("P2Y", Period::Year)]);
        assert_eq!(found, [at("2026-09-01"), at("2024-01-01")]);
        // 30 days before the 15th of March is earlier than a month before it.
        let found = of("2026-03-15T10:00:00", &[("P30D", Period::Day), ("P1M", Period::Day)]);
        assert_eq!(found, [at("2026-02-13"), at("2026-02-13")]);
        assert_eq!(of("2026-01-01", &[("P0D", Period::Year)]), [at("2026-01-01")]);
        assert_eq!(of("1970-02-01", &[("P2M", Period::Month), ("P1000Y", Period::Year)]), [at("1969-12-01"), at("0970-01-01")]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "P90D",
            "{}",
            r#"[{"older-than":"P90D"}]"#,
            r#"[{"older-than":"90 days","partition":"month(ts)"}]"#,
            r#"[{"older-than":"P90D","partition":"month(ts)","size":1}]"#,
            r#"[{"older-than":"P90D","partition":"month(ts)","target-file-size-bytes":0}]"#,
            r#"[{"older-than":"P90D","partition":"month(ts)"},{"older-than":"P90D","partition":"year(ts)"}]"#,
            r#"[{"older-than":"P4000000000D","partition":"month(ts)"}]"#,
        ] {
            parse(text).unwrap_err();
        }
    }
}
