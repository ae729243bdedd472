//! Abbreviations such as CEST: what they say about a local time of one zone.
//!
//! An abbreviation alone names no zone (CST is in America, China and Cuba), so it is only held against the zone the
//! user gave. Where the clock shows a time twice it says which pass is meant, if the two have different ones.

use super::{LocalTime, Rule, ZoneConverter, resolve, wall_clock};
use chrono::{MappedLocalTime, TimeZone};
use chrono_tz::{GapInfo, OffsetName, TzOffset};

/// A local time with an abbreviation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Abbreviated {
    /// UTC microseconds.
    Utc(i64),
    /// The zone has the abbreviation, but it does not say which instant is meant.
    Unsettled(LocalTime),
    /// The zone has others at that time, or none at all.
    Other { zone: String, has: Vec<String> },
}

impl ZoneConverter {
    pub(crate) fn abbreviated(&self, local_us: i64, word: &str) -> Abbreviated {
        let zone = match self.rule {
            Rule::Fixed { .. } => return Abbreviated::Other { zone: self.name.clone(), has: Vec::new() },
            Rule::Named(zone) => zone,
        };
        let local = wall_clock(local_us);
        let is_word = |offset: &TzOffset| offset.abbreviation().is_some_and(|name| name.eq_ignore_ascii_case(word));
        let other = |offsets: &[&TzOffset]| {
            let mut has: Vec<String> = offsets.iter().filter_map(|offset| offset.abbreviation().map(str::to_string)).collect();
            has.dedup();
            Abbreviated::Other { zone: self.name.clone(), has }
        };
        let time = resolve(zone, local_us);
        match (zone.offset_from_local_datetime(&local), time) {
            (MappedLocalTime::Single(offset), LocalTime::Utc(instant)) if is_word(&offset) => Abbreviated::Utc(instant),
            (MappedLocalTime::Single(offset), _) => other(&[&offset]),
            (MappedLocalTime::Ambiguous(one, two), LocalTime::Ambiguous { earlier, later }) => {
                // The earlier instant is the one further east.
                let (east, west) = if super::offset_us(&one) >= super::offset_us(&two) { (one, two) } else { (two, one) };
                match (is_word(&east), is_word(&west)) {
                    (true, true) => Abbreviated::Unsettled(time),
                    (true, false) => Abbreviated::Utc(earlier),
                    (false, true) => Abbreviated::Utc(later),
                    (false, false) => other(&[&east, &west]),
                }
            }
            // A skipped time is told as that, if the clock that is yet to be moved is named.
            (MappedLocalTime::None, time) => match GapInfo::new(&local, &zone).and_then(|gap| gap.begin) {
                Some((_, before)) if !is_word(&before) => other(&[&before]),
                _ => Abbreviated::Unsettled(time),
            },
            (_, time) => Abbreviated::Unsettled(time),
        }
    }
}
