//! Other parties change the table while a job is under way: whatever they do and whenever, publishing is a merge with what
//! is live at that moment. A plain model says what must be there; PyIceberg and DuckDB say what is. PyIceberg does not read
//! equality deletes: where there are any, the second judge is a reading of the files with pyarrow that applies them.

use crate::minutes::Minutes;
use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use timelake_tests::{Lab, assert_same_rows, split_words};

type Key = (String, String);

fn key(row: &Value) -> Key {
    (row["ts"].as_str().unwrap().into(), row["device_id"].as_str().unwrap().into())
}

fn valued(rows: &[Value], value: f64) -> Vec<Value> {
    let with = |row: &Value| {
        let mut row = row.clone();
        row["value"] = json!(value);
        row
    };
    rows.iter().map(with).collect()
}

/// A table as others see it, and what must be live in it.
struct Table {
    lab: Lab,
    live: BTreeMap<Key, Value>,
    equality: bool,
}

impl Table {
    /// Rows of d1 on 2 May (keys of the job), and of d9. Some were deleted, in one way or the other.
    fn new(partition: &str, equality: bool) -> Table {
        let lab = Lab::new();
        lab.create_sensor_table(&format!("--partition {partition}"));
        write_readings(&lab, "in/one.parquet", &history());
        let mut table = Table { lab, live: BTreeMap::new(), equality: false };
        table.append(&valued(&readings(2..=2, &["d1"]), -1.0));
        table.append(&readings(1..=4, &["d9"]));
        let rows = table.of("d1");
        if equality {
            table.equality_delete(&rows[..6], &["ts", "device_id"]);
        } else {
            table.position_delete(&rows[..6]);
        }
        table
    }
    fn of(&self, device: &str) -> Vec<Value> {
        self.live.values().filter(|r| r["device_id"] == json!(device)).cloned().collect()
    }
    fn put(&mut self, rows: &[Value]) {
        self.live.extend(rows.iter().map(|r| (key(r), r.clone())));
    }
    fn take(&mut self, rows: &[Value]) {
        rows.iter().for_each(|r| {
            self.live.remove(&key(r));
        });
    }

    fn append(&mut self, rows: &[Value]) {
        self.lab.append(rows);
        self.put(rows);
    }
    /// Copy-on-write: files are rewritten without these rows, or with others in their place.
    fn overwrite(&mut self, device: &str, rows: &[Value]) {
        let filter = json!([{"column": "device_id", "op": "eq", "value": device}]);
        match rows.is_empty() {
            true => self.lab.reader(json!({"command": "delete", "filter": filter})),
            false => self.lab.reader(json!({"command": "overwrite", "filter": filter, "rows": rows})),
        };
        self.live.retain(|(_, d), _| d != device);
        self.put(rows);
    }
    fn position_delete(&mut self, rows: &[Value]) {
        assert!(self.lab.reader(json!({"command": "position_delete", "rows": rows})).as_u64() > Some(0));
        self.take(rows);
    }
    fn equality_delete(&mut self, rows: &[Value], columns: &[&str]) {
        self.lab.reader(json!({"command": "equality_delete", "rows": rows, "columns": columns}));
        self.live.retain(|_, live| !rows.iter().any(|row| columns.iter().all(|c| row[*c] == live[*c])));
        self.equality = true;
    }
    /// Deletes by key and new rows in one commit.
    fn upsert(&mut self, rows: &[Value]) {
        self.lab.reader(json!({"command": "equality_delete", "rows": rows, "columns": ["ts", "device_id"], "then": rows}));
        self.put(rows);
        self.equality = true;
    }

    #[track_caller]
    fn assert_live(&self, what: &str) {
        let expected: Vec<Value> = self.live.values().cloned().collect();
        for engine in [if self.equality { "pyarrow" } else { "pyiceberg" }, "duckdb"] {
            assert_same_rows(&self.lab.rows(engine), &expected, &format!("{what}: {engine}"));
        }
    }
    /// After the job: what is live, and of the job what had no live row.
    #[track_caller]
    fn assert_merged(&mut self, manifest: &Value, what: &str) {
        assert_eq!((&manifest["state"], &manifest["published"]), (&json!("PUBLISHED"), &json!(true)), "{what}: {manifest}");
        let all = history();
        let mut free: Vec<Value> = all.iter().filter(|r| !self.live.contains_key(&key(r))).cloned().collect();
        assert_eq!(manifest["rows_written"], json!(free.len()), "{what}: {manifest}");
        assert_eq!(manifest["kept_existing"], json!(all.len() - free.len()), "{what}: {manifest}");
        if self.live.values().any(|r| r.get("humidity").is_some()) {
            free.iter_mut().for_each(|r| r["humidity"] = json!(null));
        }
        self.put(&free);
        self.assert_live(what);
        let table = self.lab.inspect();
        assert_eq!(locks(&table), Vec::<String>::new(), "{what}");
        assert!(!ref_names(&table).iter().any(|r| r.starts_with("backfill/")), "{what}: {}", table["refs"]);
    }
}

/// The rows of the job: three days of two devices.
fn history() -> Vec<Value> {
    readings(1..=3, &["d1", "d2"])
}

const LOAD: &str = "backfill iot.sensor --from in --json";
/// Where others come in between: the plan is made, a unit has read, all is staged, publishing has looked and not committed.
const STEPS: [&str; 4] = ["branches-committed", "files-written", "group-staged", "manifests-merged"];

/// Does it at each step of a job of its own.
fn at_each_step(equality: bool, partition: &str, change: impl Fn(&mut Table)) {
    for step in STEPS {
        let mut table = Table::new(partition, equality);
        table.assert_live("before");
        let job = table.lab.start_held(&split_words(LOAD), step);
        change(&mut table);
        table.assert_live(step);
        table.lab.release(step);
        let manifest = job.wait().manifest();
        table.assert_merged(&manifest, step);
        // Once more is nothing more.
        let again = table.lab.timelake(&split_words(LOAD)).manifest();
        assert_eq!((&again["already_published"], &again["published"]), (&json!(true), &json!(false)), "{again}");
    }
}

#[test]
fn deletes_that_were_there_before() {
    for (equality, partition) in [(false, "day(ts)"), (true, "day(ts)"), (false, "none"), (true, "none")] {
        let mut table = Table::new(partition, equality);
        let manifest = table.lab.backfill("--from in");
        assert_eq!(manifest["kept_existing"], json!(48 - 6), "{manifest}");
        table.assert_merged(&manifest, partition);
    }
}

/// Deleted positions count from the start of a file, however many of its row groups are left out.
#[test]
fn deletes_in_files_of_many_row_groups() {
    let mut table = Table::new("none", false);
    table.lab.reader(json!({"command": "set_property", "properties": {"write.parquet.row-group-limit": "20"}}));
    table.append(&valued(&readings(1..=3, &["d2"]), -1.0));
    let rows = table.of("d2");
    table.position_delete(&rows.iter().step_by(7).cloned().collect::<Vec<_>>());
    let rows = table.of("d2");
    table.position_delete(&rows[40..70]);
    let (start, end) = ("2024-05-02T05:00:00", "2024-05-03T07:00:00");
    let manifest = table.lab.backfill(&format!("--from in --start {start}Z --end {end}Z"));
    let inside = |row: &&Value| (start..end).contains(&&row["ts"].as_str().unwrap()[..19]);
    let free: Vec<Value> = history().iter().filter(inside).filter(|r| !table.live.contains_key(&key(r))).cloned().collect();
    assert_eq!(manifest["rows_written"], json!(free.len()), "{manifest}");
    assert!(free.len() > 20 && manifest["kept_existing"].as_u64() > Some(20), "{manifest}");
    table.put(&free);
    table.assert_live("row groups");
}

/// Of several units only those look again that may have lost to what is gone.
#[test]
fn units_that_are_not_concerned_are_left_alone() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let source = Minutes { first_day: 1, days: 4, devices: 140 };
    source.write(&lab, "in");
    let winners = [1, 3].map(|day| reading(day, 0, "d000", -1.0));
    lab.append(&winners);
    let staged = lab.backfill("--from in --threads 1 --memory 40MB --stage-only");
    assert!(staged["plan"]["units"].as_u64() > Some(2), "{staged}");
    lab.reader(json!({"command": "delete", "filter": [{"column": "ts", "op": "lt", "value": "2024-05-02T00:00:00.000000Z"}]}));
    let outcome = lab.job("publish", &job_of(&staged));
    assert!(outcome.stderr.contains("units to look again: 1"), "{outcome}");
    let manifest = outcome.manifest();
    assert_eq!((&manifest["kept_existing"], &manifest["groups"][0]["rederived"]), (&json!(1), &json!(1)), "{manifest}");
    for engine in ["pyiceberg", "duckdb"] {
        let found = lab.reader(json!({"command": "summary", "engine": engine}));
        assert_eq!((&found["rows"], &found["keys"]), (&json!(source.rows()), &json!(source.rows())), "{engine}: {found}");
        // The winner of 3 May stands where the source says 21.
        assert_eq!(found["value_sum"].as_f64(), Some(source.value_sum() - 21.0 - 1.0), "{engine}");
    }
}

#[test]
fn a_table_that_never_rests_holds_the_job_until_it_does() {
    let mut table = Table::new("day(ts)", false);
    let staged = table.lab.backfill("--from in --stage-only");
    let job = job_of(&staged);
    let publish = split_words(&format!("backfill publish {job} --json"));
    let free = readings(1..=1, &["d1"]);
    for (round, row) in free[..5].iter().enumerate() {
        table.append(&valued(std::slice::from_ref(row), -2.0));
        let killed = table.lab.start_failing(&publish, "kill:group-in-next-round:1").wait();
        assert_eq!(killed.code, None, "round {round}: {killed}");
    }
    table.append(&valued(&free[5..6], -2.0));
    let held = table.lab.timelake(&publish);
    assert_eq!((held.code, &held.json()["error"]["reason"]), (Some(4), &json!("rederived_too_often")), "{held}");
    table.assert_live("held");
    assert_eq!(table.lab.job("resume", &job).manifest()["state"], json!("STAGED"), "as far as was asked");
    let manifest = table.lab.timelake(&publish).manifest();
    table.assert_merged(&manifest, "resumed");
}

#[test]
fn rows_come() {
    at_each_step(false, "day(ts)", |t| {
        t.append(&valued(&readings(1..=1, &["d1"])[..5], -2.0));
        t.append(&readings(2..=2, &["d7"]));
    });
}

#[test]
fn winners_go_copy_on_write() {
    at_each_step(false, "day(ts)", |t| t.overwrite("d1", &[]));
}

#[test]
fn winners_are_overwritten_and_others_come() {
    at_each_step(false, "day(ts)", |t| {
        let stay = t.of("d1");
        t.overwrite("d1", &[valued(&stay[10..], -3.0), valued(&readings(3..=3, &["d1"])[..7], -4.0)].concat());
    });
}

#[test]
fn winners_go_by_position() {
    at_each_step(false, "none", |t| {
        let winners = t.of("d1");
        t.position_delete(&winners[3..9]);
    });
}

#[test]
fn winners_go_by_equality() {
    at_each_step(true, "day(ts)", |t| {
        let winners = t.of("d1");
        t.equality_delete(&winners[3..9], &["ts", "device_id"]);
    });
}

#[test]
fn a_device_goes_by_equality_everywhere() {
    at_each_step(true, "none", |t| {
        let winners = t.of("d1");
        t.equality_delete(&winners[..1], &["device_id"]);
    });
}

#[test]
fn an_upserter_replaces_winners_and_is_first_with_others() {
    at_each_step(true, "day(ts)", |t| {
        let winners = t.of("d1");
        t.upsert(&valued(&winners[..4], -5.0));
        t.upsert(&valued(&readings(1..=1, &["d2"])[..4], -6.0));
        // It also deletes a key that nobody but the job has: what is deleted before publishing is not there to be hidden.
        t.equality_delete(&readings(3..=3, &["d2"])[..3], &["ts", "device_id"]);
    });
}

#[test]
fn compactions_change_nothing() {
    at_each_step(false, "day(ts)", |t| {
        t.lab.reader(json!({"command": "compact_deletes"}));
    });
    at_each_step(true, "none", |t| {
        t.lab.reader(json!({"command": "compact_deletes"}));
    });
}

#[test]
fn compactions_among_other_changes() {
    at_each_step(false, "day(ts)", |t| {
        t.append(&valued(&readings(1..=1, &["d1"])[..5], -2.0));
        let winners = t.of("d1");
        t.position_delete(&winners[2..4]);
        t.lab.reader(json!({"command": "compact_deletes"}));
        let winners = t.of("d1");
        t.position_delete(&winners[..1]);
    });
}

#[test]
fn deleted_rows_come_back() {
    at_each_step(false, "day(ts)", |t| {
        t.lab.reader(json!({"command": "remove_deletes"}));
        t.put(&valued(&readings(2..=2, &["d1"]), -1.0));
    });
}

#[test]
fn snapshots_between_expire() {
    at_each_step(false, "day(ts)", |t| {
        let winners = t.of("d1");
        t.overwrite("d1", &winners[20..]);
        t.append(&valued(&readings(3..=3, &["d2"])[..4], -2.0));
        let expired = t.lab.reader(json!({"command": "expire"}));
        assert!(expired["snapshots"].as_u64() > Some(0), "{expired}");
    });
}

/// The rows that a later round looks at are held by nothing until it is staged.
#[test]
fn the_base_of_a_round_expires_before_it_is_read() {
    let mut table = Table::new("day(ts)", false);
    let staged = table.lab.backfill("--from in --stage-only");
    table.append(&valued(&readings(1..=1, &["d1"])[..5], -2.0));
    let words = split_words(&format!("backfill publish {} --json", job_of(&staged)));
    let job = table.lab.start_held(&words, "group-in-next-round");
    let rows = table.of("d1");
    table.overwrite("d1", &rows[4..]);
    assert!(table.lab.reader(json!({"command": "expire"}))["files"].as_u64() > Some(0));
    table.lab.release("group-in-next-round");
    let manifest = job.wait().manifest();
    assert_eq!(manifest["groups"][0]["rederived"], json!(2), "{manifest}");
    table.assert_merged(&manifest, "expired");
}

#[test]
fn main_is_set_back() {
    at_each_step(false, "day(ts)", |t| {
        let first = t.lab.inspect()["history"][1].clone();
        t.lab.reader(json!({"command": "set_main", "snapshot": first}));
        t.live.clear();
        t.put(&valued(&readings(2..=2, &["d1"]), -1.0));
    });
}

#[test]
fn columns_and_orders_that_the_job_does_not_know() {
    at_each_step(false, "day(ts)", |t| {
        t.lab.reader(json!({"command": "evolve", "add": [{"name": "humidity", "type": "double"}]}));
        t.lab.reader(json!({"command": "set_sort_order", "column": "quality"}));
        t.live.values_mut().for_each(|r| r["humidity"] = json!(null));
        let mut late = valued(&readings(2..=2, &["d2"])[..3], -2.0);
        late.iter_mut().for_each(|r| r["humidity"] = json!(0.5));
        t.append(&late);
    });
}

/// Stops at each step on what it cannot merge with, says so, and changes nothing; a cancel leaves nothing behind.
#[test]
fn what_the_rows_do_not_fit_any_more_holds_the_job() {
    let evolve = |change: Value| {
        let mut request = change;
        request["command"] = json!("evolve");
        request
    };
    let changes = [
        (evolve(json!({"rename": [{"from": "value", "to": "reading"}]})), "column value was renamed to reading"),
        (evolve(json!({"drop": ["quality"]})), "column quality was dropped"),
        (evolve(json!({"widen": [{"name": "quality", "type": "long"}]})), "column quality was int and is long"),
        (evolve(json!({"add": [{"name": "Note", "type": "string"}]})), "column Note was added, which the source has"),
        (evolve(json!({"add": [{"name": "site", "type": "string", "required": true}]})), "required column site"),
        (json!({"command": "set_partition", "column": "ts", "transform": "month", "name": "ts_month"}), "partitioning changed"),
        (
            json!({"command": "set_property", "properties": {"timelake.dedup-key": "ts,device_id,quality"}}),
            "another time column or dedup key",
        ),
        (json!({"command": "remove_property", "names": ["timelake.time-column"]}), "another time column or dedup key"),
    ];
    for (change, said) in changes {
        for step in ["units-stored", "group-staged"] {
            let lab = Lab::new();
            lab.create_sensor_table("--partition day(ts)");
            write_text_readings(&lab, "in", &history(), 1_000);
            let path = lab.path("in/000.csv");
            let text = std::fs::read_to_string(&path).unwrap().replace("quality\n", "quality,note\n");
            std::fs::write(&path, text.replace(",0\n", ",0,x\n")).unwrap();
            let job = lab.start_held(&split_words(LOAD), step);
            lab.reader(change.clone());
            let before = lab.inspect();
            lab.release(step);
            let outcome = job.wait();
            assert_eq!(outcome.code, Some(4), "{outcome}");
            let manifest = outcome.json();
            assert_eq!((&manifest["state"], &manifest["error"]["reason"]), (&json!("HOLD"), &json!("table_changed")), "{step} {manifest}");
            assert!(manifest["error"]["message"].as_str().unwrap().contains(said), "{said}: {manifest}");
            assert!(manifest["error"]["hint"].as_str().unwrap().contains("cancel"), "{manifest}");
            let after = lab.inspect();
            assert_eq!(after["current_snapshot"], before["current_snapshot"], "{said}");
            lab.job("cancel", &job_of(&manifest)).success();
            assert_eq!(ref_names(&lab.inspect()), ["main"], "{said}");
        }
    }
}

#[test]
fn a_table_that_was_dropped_or_replaced_gets_nothing() {
    for step in ["attempt-begun", "group-staged", "manifests-merged"] {
        for replaced in [false, true] {
            let table = Table::new("day(ts)", false);
            let job = table.lab.start_held(&split_words(LOAD), step);
            table.lab.reader(json!({"command": "drop_table"}));
            if replaced {
                table.lab.create_sensor_table("--partition day(ts)");
                table.lab.append(&readings(2..=2, &["d1"]));
            }
            table.lab.release(step);
            let outcome = job.wait();
            let error = &outcome.json()["error"];
            assert_eq!(outcome.code, Some(if replaced { 4 } else { 2 }), "{step} {outcome}");
            assert_eq!(error["reason"], json!(if replaced { "table_changed" } else { "table_not_found" }), "{step} {outcome}");
            let job = table.lab.timelake(&split_words("backfill list --json")).success().json();
            let job = job["jobs"][0]["job"].as_str().unwrap_or_else(|| panic!("{job}")).to_string();
            table.lab.job("cancel", &job).success();
            if replaced {
                table.lab.assert_rows(&readings(2..=2, &["d1"]));
                assert_eq!(ref_names(&table.lab.inspect()), ["main"]);
            }
        }
    }
}
