//! All zones of the IANA database around all of their changes from 1900 to 2100.

use super::python;
use chrono_tz::{IANA_TZDB_VERSION, TZ_VARIANTS, Tz};
use std::collections::BTreeMap;
use timelake_source::{LocalTime, Zone, ZoneConverter};

/// Names that only one of the two has. `Factory` says that a computer's zone was never set.
const ONLY_PYTHON: [&str; 1] = ["Factory"];
const ONLY_HERE: [&str; 0] = [];

/// Zones that differ, and how often. Nuuk had its last stored change on 2023-10-29, from a standard time of -02 to a
/// rule that begins with -02: the clock went on. zoneinfo holds the local hour before it against the rule alone, by
/// which a summer time of -01 would have ended then, and says that the hour came twice.
const DIFFERENT: [(&str, usize); 2] = [("America/Godthab", 10), ("America/Nuuk", 10)];

fn expected(local_us: i64, first_us: i64, second_us: i64) -> LocalTime {
    match first_us - second_us {
        0 => LocalTime::Utc(local_us - first_us),
        // The clock went back: the first pass is the one further east.
        1.. => LocalTime::Ambiguous { earlier: local_us - first_us, later: local_us - second_us },
        // In a gap fold=0 has the offset before it.
        _ => LocalTime::Nonexistent { shifted: local_us + second_us - first_us },
    }
}

#[test]
fn every_zone_is_as_zoneinfo_has_it_around_every_change() {
    let version = String::from_utf8(python::run("zone_rules.py", &["--version"], Vec::new())).unwrap();
    assert_eq!(
        version.trim(),
        IANA_TZDB_VERSION,
        "both sides need the same rules: install the tzdata of tests/python/requirements.txt (`make venv`), or pin the release that chrono-tz has"
    );
    let bytes = python::run("zone_rules.py", &[], Vec::new());
    let mut rest = &bytes[..];
    let (mut names, mut rows, mut different, mut first_difference) = (Vec::new(), 0, BTreeMap::<String, usize>::new(), String::new());
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let header = std::str::from_utf8(&rest[..end]).unwrap();
        let (zones, count) = header.trim_start_matches("{\"zones\": [").trim_end_matches('}').split_once("], \"rows\": ").unwrap();
        let zones: Vec<String> = zones.split(", ").map(|name| name.trim_matches('"').to_string()).collect();
        let length = count.parse::<usize>().unwrap() * 24;
        let (table, after) = rest[end + 1..].split_at(length);
        rest = after;
        let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap()) * 1_000_000;
        let table: Vec<[i64; 3]> = table.chunks_exact(24).map(|row| [number(&row[..8]), number(&row[8..16]), number(&row[16..])]).collect();
        for name in zones {
            if name.parse::<Tz>().is_ok() {
                let zone = Zone::parse(&name).unwrap();
                let mut converter = ZoneConverter::new(&zone);
                // Forwards with the hours remembered, and backwards through what was remembered.
                for (index, [clock_us, first_us, second_us]) in table.iter().chain(table.iter().rev()).enumerate() {
                    let local_us = clock_us + [0, 999_999, 1][index % 3];
                    let (got, right) = (converter.convert(local_us), expected(local_us, *first_us, *second_us));
                    let (smallest, largest) = if index % 16 == 0 { zone.offsets_near_us(local_us) } else { (i64::MIN, i64::MAX) };
                    let within = |offset_us: &i64| smallest <= *offset_us && *offset_us <= largest;
                    if got != right || !within(first_us) || !within(second_us) {
                        *different.entry(name.clone()).or_default() += 1;
                        if first_difference.is_empty() {
                            first_difference = format!("{name} {local_us}: {got:?}, zoneinfo has {right:?}");
                        }
                    }
                }
                rows += table.len() * 2;
            }
            names.push(name);
        }
    }
    let here: Vec<&str> = TZ_VARIANTS.iter().map(|zone| zone.name()).collect();
    let only_python: Vec<&str> = names.iter().map(String::as_str).filter(|name| !here.contains(name)).collect();
    let only_here: Vec<&str> = here.iter().copied().filter(|name| !names.iter().any(|other| other == name)).collect();
    assert_eq!((only_python, only_here), (ONLY_PYTHON.to_vec(), ONLY_HERE.to_vec()));
    let known: BTreeMap<String, usize> = DIFFERENT.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    assert_eq!(different, known, "{first_difference}");
    assert!(rows > 1_000_000, "{rows}");
}
