//! Splitting never changes results: the same rows as one file or many, packed or plain, by any number of threads, in
//! any memory, into any partitions, give the same table, the same counts, the same rejected rows, the same error.

use crate::hostile::{gzip, zstd};
use crate::sensors::job_of;
use arrow::array::{ArrayRef, Float64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use serde_json::{Value, json};
use std::sync::Arc;
use timelake_tests::{Lab, assert_same_rows, split_words, write_parquet};

const SERIES: usize = 7;
const STEPS: usize = 7_000;
/// 2024-10-20 00:00 in Berlin, on the wall clock.
const FIRST_MINUTE: i64 = 28_823_040;
const STEP_MINUTES: i64 = 3;
/// The clock goes back when this many minutes of the wall clock are over: 2024-10-27 03:00.
const FOLD_MINUTE: i64 = FIRST_MINUTE + 7 * 1_440 + 180;
const HEADER: &str = "Zeit,Messstelle,Wert,Notiz\n";
const FILES: usize = 13;
const MAP: &str = "--map ts=Zeit,device_id=Messstelle,value=Wert,note=Notiz --tz Europe/Berlin";

/// A record of the source, and whether it is of the repeated day.
struct Record {
    text: String,
    lines: usize,
}

struct Source {
    records: Vec<Record>,
}

/// Where the records of a file begin in the whole: physical lines before it, header not counted.
struct Part {
    name: String,
    lines_before: u64,
}

fn wall_clock(minute: i64) -> String {
    timelake_model::TimestampUs(minute * 60_000_000).short().replace('T', " ").trim_end_matches('Z').to_string()
}

/// How bad a source is made.
#[derive(Clone, Copy, PartialEq)]
enum Dirt {
    /// Duplicates and quoted line ends only.
    Clean,
    /// Keys with other values as well.
    Conflicts,
    /// Bad rows of many reasons as well.
    Everything,
}

fn source(dirt: Dirt) -> Source {
    let mut records = Vec::new();
    let mut state = 42_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..STEPS {
        let elapsed = FIRST_MINUTE + step as i64 * STEP_MINUTES;
        let minute = if elapsed < FOLD_MINUTE { elapsed } else { elapsed - 60 };
        let in_fold_day = (minute - FOLD_MINUTE).abs() < 1_440;
        for series in 0..SERIES {
            let (time, value) = (wall_clock(minute), random(100_000));
            let note = match random(40) {
                0 => "\"eine Zeile\nnoch eine, mit \"\"Zeichen\"\"\"".to_string(),
                1 => "\"\"".to_string(),
                2 => "grün".to_string(),
                _ => String::new(),
            };
            let row = format!("{time},Zähler {series},{}.{},{note}\n", value / 100, value % 100);
            // Records that come in the repeated day must keep the order of their series.
            let repeats = if in_fold_day { 0 } else { random(60) };
            match repeats {
                1 => records.push(row.clone()),
                2 if dirt != Dirt::Clean => records.push(format!("{time},Zähler {series},{value}.5,anders\n")),
                _ => {}
            }
            records.push(row);
            let junk = if dirt == Dirt::Everything { random(400) } else { 99 };
            match junk {
                0 => records.push(format!("{time},Zähler {series},kaputt {},\n", random(3))),
                1 => records.push(format!("{time},Zähler {series}\n")),
                2 => records.push(format!("gestern,Zähler {series},1,\n")),
                3 => records.push(format!("{time},,1,\n")),
                4 => records.push(format!("{time},Zähler {series},\"1\"x,\n")),
                5 => records.push(format!("2036-02-07 06:28:16,Zähler {series},1,\n")),
                6 => records.push("\n".to_string()),
                _ => {}
            }
        }
    }
    let records = records.into_iter().map(|text| Record { lines: text.matches('\n').count(), text });
    Source { records: records.collect() }
}

type Pack = fn(&[u8]) -> Vec<u8>;

/// One way to load the source.
struct Way {
    files: usize,
    pack: Option<Pack>,
    threads: usize,
    memory: &'static str,
    partition: &'static str,
}

const WAYS: [Way; 8] = [
    Way { files: 1, pack: None, threads: 1, memory: "1GB", partition: "day(ts)" },
    Way { files: 1, pack: None, threads: 4, memory: "40MB", partition: "month(ts)" },
    Way { files: FILES, pack: None, threads: 2, memory: "100MB", partition: "day(ts)" },
    Way { files: FILES, pack: None, threads: 1, memory: "40MB", partition: "month(ts),bucket(4,device_id)" },
    Way { files: 1, pack: Some(gzip), threads: 2, memory: "100MB", partition: "day(ts),bucket(2,device_id)" },
    Way { files: FILES, pack: Some(gzip), threads: 4, memory: "40MB", partition: "day(ts)" },
    Way { files: 1, pack: Some(zstd), threads: 4, memory: "1GB", partition: "month(ts)" },
    Way { files: FILES, pack: Some(zstd), threads: 4, memory: "100MB", partition: "month(ts),bucket(4,device_id)" },
];

impl Way {
    fn name(&self) -> String {
        let Way { files, pack, threads, memory, partition } = self;
        format!("{files} files, packed {}, {threads} threads, {memory}, {partition}", pack.is_some())
    }

    fn write(&self, lab: &Lab, source: &Source) -> Vec<Part> {
        let per_file = source.records.len().div_ceil(self.files);
        let mut lines_before = 0;
        let mut parts = Vec::new();
        for (index, records) in source.records.chunks(per_file).enumerate() {
            let text: String = std::iter::once(HEADER).chain(records.iter().map(|record| record.text.as_str())).collect();
            let name = format!("in/teil-{index:02}.csv");
            std::fs::create_dir_all(lab.path("in")).unwrap();
            std::fs::write(lab.path(&name), self.pack.map_or(text.clone().into_bytes(), |pack| pack(text.as_bytes()))).unwrap();
            parts.push(Part { name, lines_before });
            lines_before += records.iter().map(|record| record.lines as u64).sum::<u64>();
        }
        parts
    }

    /// What must be the same for every way.
    fn load(&self, source: &Source, options: &str) -> (Lab, Value) {
        let lab = Lab::new();
        let create = "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,note:string --time-column ts \
                      --series-key device_id --partition";
        let mut words = split_words(create);
        words.push(self.partition.to_string());
        lab.timelake(&words).success();
        let parts = self.write(&lab, source);
        let command = format!("--from in {MAP} {options} --threads {} --memory {}", self.threads, self.memory);
        let outcome = lab.backfill_outcome(&command);
        let mut object = outcome.json();
        if outcome.code != Some(0) {
            let error = object["error"].clone();
            return (lab, json!({"code": outcome.code, "error": in_whole(error, &parts)}));
        }
        let rejected = rejected_rows(&lab, &job_of(&object), &parts);
        let manifest = outcome.manifest();
        assert!(manifest["source"]["landed_bytes"].as_u64() > Some(0), "text is landed: {}", manifest["source"]);
        let peak = manifest["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak < 256 << 20 || self.memory == "1GB", "{}: {peak} bytes", self.name());
        let fields = object.as_object_mut().unwrap();
        fields.retain(|name, value| {
            value.is_u64() || ["nulled", "column_sums", "key_hash", "time_range", "state", "published"].contains(&name.as_str())
        });
        // Each file of many brings its header once, the whole none twice.
        fields.retain(|name, _| name != "peak_memory_bytes");
        object["rejected_rows"] = Value::Array(rejected);
        (lab, object)
    }
}

/// An error or rejected row with its places as they are in the whole; texts that name files are left out.
fn in_whole(mut object: Value, parts: &[Part]) -> Value {
    for (file, line) in [("file", "line"), ("other_file", "other_line")] {
        let name = object[file].as_str().map(str::to_string).or_else(|| object["file"].as_str().map(str::to_string));
        let part = name.and_then(|name| parts.iter().find(|part| part.name == name));
        if let (Some(part), Some(number)) = (part, object[line].as_u64()) {
            object[line] = json!(number + part.lines_before);
        }
    }
    if let Some(fields) = object.as_object_mut() {
        for said in ["file", "other_file", "message", "hint", "job", "places"] {
            fields.remove(said);
        }
    }
    object
}

fn rejected_rows(lab: &Lab, job: &str, parts: &[Part]) -> Vec<Value> {
    let path = lab.lake().join("jobs").join(job).join("rejected.ndjson");
    let Ok(text) = std::fs::read_to_string(path) else { return vec![] };
    text.lines().map(|line| in_whole(serde_json::from_str(line).expect("one object a line"), parts)).collect()
}

/// Every way gives the same; the first way's lake is given for a closer look.
#[track_caller]
fn all_ways(dirt: Dirt, options: &str) -> (Lab, Value) {
    let source = source(dirt);
    assert!(source.records.len() > 49_000);
    let (lab, first) = WAYS[0].load(&source, options);
    for way in &WAYS[1..] {
        let (_, other) = way.load(&source, options);
        if other != first {
            let differing = |object: &Value| -> Value {
                let fields = object.as_object().unwrap().iter().filter(|(name, value)| first[*name] != **value || other[*name] != **value);
                fields.map(|(name, value)| (name.clone(), value.clone())).collect()
            };
            panic!("{options}\n{}: {}\n{}: {}", WAYS[0].name(), clip(&differing(&first)), way.name(), clip(&differing(&other)));
        }
    }
    (lab, first)
}

fn clip(value: &Value) -> String {
    value.to_string().chars().take(3_000).collect()
}

#[test]
fn inferred_hours_are_the_same_and_both_readers_agree() {
    let (lab, manifest) = all_ways(Dirt::Clean, "--ambiguous infer");
    assert_eq!(manifest["rows_written"], json!(STEPS * SERIES), "{manifest}");
    assert!(manifest["duplicates_collapsed"].as_u64() > Some(100), "{manifest}");
    let rows = lab.rows("pyiceberg");
    assert_same_rows(&lab.rows("duckdb"), &rows, "duckdb");
    // An instant every three minutes: the repeated hour neither folded nor stretched.
    let mut instants: Vec<&str> = rows.iter().filter(|r| r["device_id"] == json!("Zähler 0")).map(|r| r["ts"].as_str().unwrap()).collect();
    instants.sort_unstable();
    let expected: Vec<String> = (0..STEPS as i64)
        .map(|step| timelake_model::TimestampUs((FIRST_MINUTE - 120 + step * STEP_MINUTES) * 60_000_000).short().replace('Z', ".000000Z"))
        .collect();
    assert_eq!(instants, expected);
}

#[test]
fn conflicts_first() {
    let (_, manifest) = all_ways(Dirt::Conflicts, "--ambiguous infer --on-source-conflict first");
    assert!(manifest["in_source_conflicts"].as_u64() > Some(100), "{manifest}");
}

#[test]
fn conflicts_last() {
    let (_, manifest) = all_ways(Dirt::Conflicts, "--ambiguous earlier --on-source-conflict last");
    assert!(manifest["in_source_conflicts"].as_u64() > Some(100), "{manifest}");
}

#[test]
fn conflicts_are_the_same_error() {
    let (_, error) = all_ways(Dirt::Conflicts, "--ambiguous infer");
    assert_eq!(error["error"]["reason"], json!("in_source_conflict"), "{error}");
    assert!(error["error"]["other_line"].as_u64() < error["error"]["line"].as_u64(), "{error}");
}

#[test]
fn bad_rows_are_the_same_error() {
    let (_, error) = all_ways(Dirt::Everything, "--ambiguous later --on-source-conflict first");
    assert_eq!(error["code"], json!(3), "{error}");
    assert!(error["error"]["line"].is_u64(), "{error}");
}

#[test]
fn an_ambiguous_hour_is_the_same_error() {
    let (_, error) = all_ways(Dirt::Conflicts, "--on-source-conflict first");
    let error = &error["error"];
    assert_eq!((&error["reason"], &error["count"]), (&json!("ambiguous_local_time"), &json!(2 * 20 * SERIES)), "{error}");
}

#[test]
fn skipped_rows_are_the_same() {
    let options = "--ambiguous later --on-source-conflict first --on-bad-row skip --on-out-of-range skip --start 2024-10-21T00:00:00Z --end 2024-11-02T12:00:00Z";
    let (_, manifest) = all_ways(Dirt::Everything, options);
    assert!(manifest["rejected"].as_u64() > Some(300) && manifest["outside_range"].as_u64() > Some(1_000), "{manifest}");
}

#[test]
fn quarantined_rows_are_the_same_in_the_same_order() {
    let options = "--ambiguous earlier --on-source-conflict last --on-bad-row quarantine --on-out-of-range skip";
    let (_, manifest) = all_ways(Dirt::Everything, options);
    let rejected = manifest["rejected_rows"].as_array().unwrap();
    let lines: Vec<u64> = rejected.iter().map(|row| row["line"].as_u64().expect("a line")).collect();
    assert!(lines.len() > 300 && lines.is_sorted(), "{} rows, {}", lines.len(), clip(&json!(&lines)));
}

/// Rows in random order.
fn shuffle(rows: &mut [Value]) {
    let mut state = 7_u64;
    for i in (1..rows.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        rows.swap(i, (state >> 33) as usize % (i + 1));
    }
}

/// Loads rows, each for `copies` devices, as one Parquet file.
fn load_parquet(rows: &[Value], copies: usize, options: &str) -> Value {
    let lab = Lab::new();
    let create = "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,note:string --time-column ts \
                  --series-key device_id --partition day(ts)";
    lab.timelake(&split_words(create)).success();
    let repeated = || rows.iter().flat_map(|row| (0..copies).map(move |copy| (row, copy)));
    let text = |name: &'static str| repeated().map(move |(row, _)| row[name].as_str()).collect::<StringArray>();
    let instants = cast(&text("ts"), &DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))).unwrap();
    let name = |row: &Value, copy: usize| match copy {
        0 => row["device_id"].as_str().unwrap().to_string(),
        _ => format!("{}-{copy}", row["device_id"].as_str().unwrap()),
    };
    let devices: StringArray = repeated().map(|(row, copy)| Some(name(row, copy))).collect();
    let values: Float64Array = repeated().map(|(row, _)| row["value"].as_f64()).collect();
    let columns: Vec<(&'static str, ArrayRef)> =
        vec![("ts", instants), ("device_id", Arc::new(devices)), ("value", Arc::new(values)), ("note", Arc::new(text("note")))];
    write_parquet(&lab.path("in/rows.parquet"), columns, 10_000);
    lab.backfill(&format!("--from in {options}"))
}

#[test]
fn parquet_in_random_order_gives_the_same() {
    let (lab, from_text) = WAYS[2].load(&source(Dirt::Clean), "--ambiguous infer");
    let mut shuffled = lab.rows("pyiceberg");
    shuffled.sort_by_key(|row| (row["ts"].to_string(), row["device_id"].to_string()));
    let in_order = shuffled.clone();
    shuffle(&mut shuffled);
    let same = |one: &Value, other: &Value| {
        for field in ["key_hash", "column_sums", "rows_written", "time_range"] {
            assert_eq!(one[field], other[field], "{field}");
        }
    };
    same(&load_parquet(&shuffled, 1, "--threads 1"), &from_text);

    // More than fits one unit: units that read row groups of all times again and again would never end.
    let direct = load_parquet(&in_order, 30, "--memory 20MB");
    assert_eq!(direct["source"]["landed_bytes"], json!(0), "{}", direct["source"]);
    for options in ["--memory 20MB --threads 1", "--memory 20MB --threads 4"] {
        let landed = load_parquet(&shuffled, 30, options);
        same(&landed, &direct);
        assert!(landed["source"]["landed_bytes"].as_u64() > Some(0), "{} {}", landed["source"], landed["plan"]);
        let amplification = landed["plan"]["read_amplification"].as_f64().unwrap();
        assert!(amplification < 3.0, "read {amplification} times: {}", landed["plan"]);
    }
}
