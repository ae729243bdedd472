//! What a seed plays: the table, the sources, who takes part and how roughly it goes.

use super::dice::Dice;
use super::files::parquet;
use super::model::{Key, Row};
use crate::checker::Swap;
use bytes::Bytes;
use std::collections::BTreeSet;
use timelake_engine::tables::CreateTable;
use timelake_model::BackfillRequest;
use timelake_model::request::{Mode, OnSourceConflict, RowOptions, RunOptions};
use timelake_model::time::MICROS_PER_DAY;

/// Far from where clocks start, so that nothing is in the future.
const FIRST_DAY: i64 = 19_000;
const DAYS: u64 = 4;
const SLOTS: u64 = 4;
const DEVICES: [&str; 3] = ["a", "b", "c"];
/// Rows of one unit: a job has several.
const UNIT_ROWS: u64 = 9;

/// How roughly it goes.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Time between two turns: least and most.
    pub turn_us: (u64, u64),
    /// How often an actor goes on without a pause, in percent.
    pub stays_percent: u64,
    /// Calls that fail or kill their process: how many at most, and how often (once in so many).
    pub faults: u64,
    pub fault_in: u64,
    pub stalls: u64,
    pub stall_in: u64,
    /// How often a claim gets a message that somebody holds.
    pub twice_in: u64,
    pub swap: Swap,
    pub cast: Cast,
}

/// Who takes part beside the command: how often each does what it does.
#[derive(Debug, Clone)]
pub struct Cast {
    pub appends: u64,
    /// Appends in two commits: onto a branch, then `main` follows.
    pub audits: u64,
    pub upserts: u64,
    pub compactions: u64,
    pub removals: u64,
    pub rewinds: u64,
    pub expiries: u64,
    pub workers: u64,
    pub collections: u64,
    /// Commands of the operator.
    pub orders: u64,
    pub second_job: bool,
}

/// A request, what its source holds, and what of it may come to the table.
#[derive(Debug, Clone)]
pub struct Load {
    pub request: BackfillRequest,
    pub files: Vec<(String, Bytes)>,
    pub rows_read: u64,
    /// One row per key: the first in source order.
    pub rows: Vec<Row>,
}

impl Profile {
    pub fn of(dice: &mut Dice) -> Profile {
        let often = |dice: &mut Dice, percent: u64, most: u64| if dice.below(100) < percent { 1 + dice.below(most) } else { 0 };
        let cast = Cast {
            appends: often(dice, 70, 3),
            audits: often(dice, 40, 2),
            upserts: often(dice, 25, 2),
            compactions: often(dice, 40, 2),
            removals: often(dice, 20, 1),
            rewinds: often(dice, 8, 1),
            expiries: often(dice, 45, 4),
            workers: often(dice, 40, 2),
            collections: often(dice, 30, 2),
            orders: often(dice, 60, 4),
            second_job: dice.below(100) < 35,
        };
        Profile {
            turn_us: *dice.pick(&[(200, 2_000), (2_000, 9_000), (10_000, 60_000)]),
            stays_percent: *dice.pick(&[0, 50, 80, 93]),
            faults: dice.below(5),
            fault_in: *dice.pick(&[40, 150, 400]),
            stalls: dice.below(5),
            stall_in: *dice.pick(&[60, 150, 400]),
            twice_in: *dice.pick(&[0, 5, 15]),
            swap: *dice.pick(&[Swap::Pointer, Swap::Requirements]),
            cast,
        }
    }
}

/// A key that sources and live writers have in common with some luck.
pub fn key(dice: &mut Dice) -> Key {
    let day = FIRST_DAY + dice.below(DAYS) as i64;
    let slot = dice.below(SLOTS) as i64 * (MICROS_PER_DAY / SLOTS as i64);
    Key { time_us: day * MICROS_PER_DAY + slot, device: (*dice.pick(&DEVICES)).into() }
}

pub fn rows(dice: &mut Dice, count: u64, first_value: u32) -> Vec<Row> {
    (0..count as u32).map(|n| Row { key: key(dice), value: first_value + n }).collect()
}

pub fn create_table() -> CreateTable {
    CreateTable {
        name: super::catalog::TABLE.into(),
        columns: "ts:timestamptz,device_id:string!,value:double".into(),
        time_column: "ts".into(),
        series_key: vec!["device_id".into()],
        ..Default::default()
    }
}

/// Bytes that a row is counted with, so that a unit holds few.
pub fn row_bytes() -> u64 {
    timelake_engine::plan::PlanLimits::new(0, 1).buffer_bytes() / UNIT_ROWS
}

impl Load {
    /// `number`: 1 for the first job.
    pub fn of(dice: &mut Dice, number: u32) -> Load {
        let (mut all, mut files) = (Vec::new(), Vec::new());
        for file in 0..1 + dice.below(2) as u32 {
            let count = 6 + dice.below(20);
            let mut rows = rows(dice, count, number * 10_000 + file * 1_000);
            rows.sort_by(|a, b| a.key.cmp(&b.key).then(a.value.cmp(&b.value)));
            // A row that is there twice.
            if dice.once_in(2) {
                rows.insert(0, rows[0].clone());
            }
            files.push((format!("mem://source/job-{number}/{file}.parquet"), parquet(&rows, 5, false)));
            all.extend(rows);
        }
        let mut known = BTreeSet::new();
        let first: Vec<Row> = all.iter().filter(|row| known.insert(row.key.clone())).cloned().collect();
        let rows = RowOptions {
            from: files.iter().map(|(uri, _)| uri.clone()).collect(),
            map: vec![],
            mode: if dice.once_in(6) { Mode::Fail } else { Mode::Merge },
            on_source_conflict: OnSourceConflict::First,
            ..Default::default()
        };
        let run =
            RunOptions { allow_overlap: !dice.once_in(3), stage_only: dice.once_in(4), verify_full: dice.once_in(2), ..Default::default() };
        let request = BackfillRequest { table: super::catalog::TABLE.into(), rows, run };
        Load { request, files, rows_read: all.len() as u64, rows: first }
    }
}
