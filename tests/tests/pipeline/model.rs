//! The pipeline against a plain model in memory: random sources, existing rows, windows and live rows, small enough
//! that keys meet all the time. A failing seed is printed and gives the same run again.

use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use timelake_tests::Lab;

type Key = (String, String);

/// SplitMix64: the tests need no more, and a seed means the same everywhere.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
    /// A reading somewhere in 1 to 6 May, on one of few keys, with one of few payloads.
    fn reading(&mut self) -> Value {
        let mut row = reading(1 + self.below(6) as u32, self.below(8) as u32 * 180, &format!("d{}", self.below(5)), 1.5);
        row["value"] = self.pick(&[json!(1.5), json!(2.5), json!("NaN"), Value::Null, json!("-Infinity")]).clone();
        row["quality"] = self.pick(&[json!(0), json!(192), Value::Null]).clone();
        row
    }
    fn readings(&mut self, count: u64) -> Vec<Value> {
        (0..count).map(|_| self.reading()).collect()
    }
}

fn key(row: &Value) -> Key {
    (row["device_id"].as_str().unwrap().into(), row["ts"].as_str().unwrap().into())
}

/// Rows of the table by key: only keys that are free go in, as a well-behaved live writer does.
#[derive(Clone, Default)]
struct Existing(BTreeMap<Key, Value>);

impl Existing {
    fn take(&mut self, rows: Vec<Value>) -> Vec<Value> {
        rows.into_iter().filter(|r| self.0.insert(key(r), r.clone()).map(|old| self.0.insert(key(r), old)).is_none()).collect()
    }
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    read: u64,
    outside: u64,
    losers: u64,
    kept_existing: u64,
    kept_different: u64,
    written: u64,
}

struct Expected {
    rows: Vec<Value>,
    counts: Counts,
    conflict: bool,
}

/// What the words of the design say, row by row.
fn expected(source: &[Value], existing: &Existing, window: (&str, &str), last_wins: bool) -> Expected {
    let mut counts = Counts { read: source.len() as u64, ..Counts::default() };
    let (mut winners, mut conflict) = (BTreeMap::<Key, &Value>::new(), false);
    for row in source {
        let ts = row["ts"].as_str().unwrap();
        if ts < window.0 || ts >= window.1 {
            counts.outside += 1;
            continue;
        }
        if let Some(other) = winners.get(&key(row)) {
            counts.losers += 1;
            conflict |= *other != row;
            if !last_wins {
                continue;
            }
        }
        winners.insert(key(row), row);
    }
    let mut rows: Vec<Value> = existing.0.values().cloned().collect();
    for (key, row) in winners {
        match existing.0.get(&key) {
            Some(old) => {
                counts.kept_existing += 1;
                counts.kept_different += u64::from(old != row);
            }
            None => {
                counts.written += 1;
                rows.push(row.clone());
            }
        }
    }
    Expected { rows, counts, conflict }
}

fn run(seed: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let lab = Lab::new();
    let partitions = ["--partition day(ts)", "--partition 'month(ts),bucket(3,device_id)'", "--partition hour(ts)", ""];
    let partition = *random.pick(&partitions);
    lab.create_sensor_table(partition);
    let mut existing = Existing::default();
    for _ in 0..random.below(3) {
        let count = random.below(60) + 1;
        let rows = existing.take(random.readings(count));
        if !rows.is_empty() {
            lab.append(&rows);
        }
    }

    // File names against the order of --from: the order typed counts.
    let files = ["in/c.parquet", "in/a.parquet", "in/b.parquet"];
    let (mut source, mut arguments) = (Vec::new(), String::new());
    for file in &files[..1 + random.below(3) as usize] {
        let count = random.below(120) + 1;
        let rows = random.readings(count);
        write_grouped_readings(&lab, file, &rows, 1 + random.below(40) as usize);
        arguments += &format!(" --from {file}");
        source.extend(rows);
    }
    let mut window = ("2024-01-01T00:00:00.000000Z", "2025-01-01T00:00:00.000000Z");
    if random.below(2) == 0 {
        window = ("2024-05-02T03:00:00.000000Z", "2024-05-05T12:00:00.000000Z");
        arguments += &format!(" --start {} --end {}", window.0, window.1);
    }
    let policy = *random.pick(&["error", "first", "last", "first", "last"]);
    arguments += &format!(" --on-source-conflict {policy} --threads {}", 1 + random.below(2));

    let before = lab.inspect();
    let model = expected(&source, &existing, window, policy == "last");
    if policy == "error" && model.conflict {
        let error = lab.backfill_outcome(&arguments).error(3);
        assert_eq!(error["reason"], json!("in_source_conflict"), "{error}");
        assert_eq!(lab.inspect()["files"], before["files"]);
        let rows: Vec<Value> = existing.0.into_values().collect();
        return lab.assert_rows(&rows);
    }

    let manifest = if random.below(2) == 0 {
        lab.backfill(&arguments)
    } else {
        let staged = lab.backfill(&format!("{arguments} --stage-only"));
        for _ in 0..random.below(3) {
            let count = random.below(20) + 1;
            let arrived = existing.take(random.readings(count));
            if !arrived.is_empty() {
                lab.append(&arrived);
            }
        }
        lab.job("publish", &job_of(&staged)).manifest()
    };
    let model = expected(&source, &existing, window, policy == "last");
    lab.assert_rows(&model.rows);
    let count = |name: &str| manifest[name].as_u64().unwrap();
    let found = Counts {
        read: count("rows_read"),
        outside: count("outside_range"),
        losers: count("duplicates_collapsed") + count("in_source_conflicts"),
        kept_existing: count("kept_existing"),
        kept_different: count("kept_existing_different"),
        written: count("rows_written"),
    };
    assert_eq!(found, model.counts, "seed {seed}: {manifest}");
    assert_eq!(count("in_source_conflicts") > 0, model.conflict, "seed {seed}: {manifest}");
    assert_eq!(manifest["published"], json!(model.counts.written > 0), "seed {seed}: {manifest}");

    let again = lab.backfill(&arguments);
    assert_eq!((&again["already_published"], &again["rows_written"]), (&json!(true), &json!(0)), "seed {seed}: {again}");
}

macro_rules! seeds {
    ($($name:ident: $seeds:expr),* $(,)?) => { $(#[test] fn $name() { $seeds.for_each(run); })* };
}
seeds! {
    seeds_0_to_5: 0..6u64,
    seeds_6_to_11: 6..12u64,
    seeds_12_to_17: 12..18u64,
    seeds_18_to_23: 18..24u64,
}

#[test]
fn the_model_itself_knows_the_words() {
    let row = |minute, value: f64| reading(1, minute, "a", value);
    let source = [row(0, 1.0), row(0, 1.0), row(0, 2.0), row(1, 5.0), row(2, 7.0), reading(9, 0, "a", 1.0)];
    let mut existing = Existing::default();
    assert_eq!(existing.take(vec![row(1, 6.0), row(1, 8.0)]), [row(1, 6.0)]);
    let window = ("2024-05-01T00:00:00.000000Z", "2024-05-02T00:00:00.000000Z");
    let e = expected(&source, &existing, window, false);
    assert_eq!(e.counts, Counts { read: 6, outside: 1, losers: 2, kept_existing: 1, kept_different: 1, written: 2 });
    assert!(e.conflict);
    assert_eq!(e.rows, [row(1, 6.0), row(0, 1.0), row(2, 7.0)]);
    assert_eq!(expected(&source, &existing, window, true).rows[1], row(0, 2.0));
}
