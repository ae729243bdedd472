//! The plan's promises, on random inventories: units are disjoint and cover exactly the window, every row
//! group has one owner, every unit keeps the memory budget, the same input gives the same plan.

use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use timelake_engine::plan::{PlanLimits, check, plan, plan_hash, window};
use timelake_model::inventory::{
    BucketBounds, ExistingFile, Inventory, InventoryObject, PartitionField, RowGroupInfo, SeriesBounds, SourceObject, TableState,
};
use timelake_model::layout::Layout;
use timelake_model::plan::{Outside, WorkUnit, WritePlan};
use timelake_model::time::{MICROS_PER_DAY, Period, TimestampUs, Window};
use timelake_model::{Column, ColumnType, JobId, TableContract};

const BUCKETS: u32 = 8;

fn table(time: &str, bucketed: bool) -> TableState {
    let column = |id, name: &str, column_type| Column { id, name: name.into(), column_type, required: true };
    let field = |column: &str, transform: &str| PartitionField {
        column: column.into(),
        transform: transform.into(),
        name: format!("{column}_{transform}"),
    };
    let mut partition = vec![];
    if !time.is_empty() {
        partition.push(field("ts", time));
    }
    if bucketed {
        partition.push(field("device", &format!("bucket[{BUCKETS}]")));
    }
    TableState {
        name: "iot.sensor".into(),
        uuid: "u".into(),
        location: "/lake".into(),
        format_version: 2,
        snapshot_id: 1,
        schema_id: 0,
        spec_id: 0,
        sort_order_id: 1,
        columns: vec![column(1, "ts", ColumnType::Timestamptz), column(2, "device", ColumnType::String)],
        contract: TableContract {
            time_column: "ts".into(),
            series_key: vec!["device".into()],
            dedup_key: Some(vec!["device".into(), "ts".into()]),
            retention: None,
            lateness: "PT1H".into(),
            undo: "P14D".into(),
            layout: vec![],
        },
        partition,
        target_file_bytes: 512 << 20,
        layouts: vec![],
        existing: Default::default(),
    }
}

/// Rows before a day by month, before an earlier one by year.
fn by_month_and_year(table: &TableState, month_before: i64, year_before: i64) -> Vec<Layout> {
    let layout = |i: i32, period: Period, day: i64| Layout {
        before: TimestampUs(period.start(period.ordinal(day * MICROS_PER_DAY))),
        spec_id: i,
        partition: table.partition.iter().filter(|f| f.column != "ts").cloned().collect(),
        period,
        target_file_bytes: 512 << 20,
    };
    vec![layout(1, Period::Month, month_before), layout(2, Period::Year, year_before)]
}

/// A row group: first day and length in thousandths of a day; `None` = no usable time.
fn row_group() -> impl Strategy<Value = RowGroupInfo> {
    let time = prop_oneof![
        8 => (-400i64..800, 0i64..40_000).prop_map(Some),
        1 => Just(None),
    ];
    (time, 0u64..50_000, any::<bool>()).prop_map(|(time, rows, counted)| {
        let time = time.map(|(day, length)| {
            let low = day * MICROS_PER_DAY;
            (TimestampUs(low), TimestampUs(low + length * (MICROS_PER_DAY / 1000)))
        });
        let mut per_chunk = BTreeMap::new();
        if let (Some((low, high)), true, true) = (time, counted, rows > 0) {
            // Everything in the first and the last day, as a badly clustered file has it.
            *per_chunk.entry(Period::Day.ordinal(low.0)).or_default() += rows / 2;
            *per_chunk.entry(Period::Day.ordinal(high.0)).or_default() += rows - rows / 2;
        }
        RowGroupInfo { rows, time, per_chunk, series: None }
    })
}

fn inventory() -> impl Strategy<Value = Inventory> {
    let objects = prop::collection::vec(prop::collection::vec(row_group(), 0..4), 0..8);
    let partition = (prop_oneof![Just("day"), Just("month"), Just("year"), Just("")], any::<bool>());
    let range = (prop::option::of(-500i64..900), prop::option::of(0i64..600));
    let series = prop_oneof![Just(vec![]), Just((0..50).map(|i| format!("d{i:02}")).collect::<Vec<_>>())];
    // Days in which the table has rows; none in half of the inventories.
    // Rows older than some days by month, then by year; buckets are the table's.
    let by_age = prop::option::of((-450i64..850, 0i64..500));
    let skipped = prop_oneof![Just(vec![]), prop::collection::vec(-400i64..800, 1..600)];
    (objects, partition, range, prop::option::of(0i64..400), any::<bool>(), series, skipped, by_age).prop_map(
        |(objects, (time, bucketed), range, retention, clip, series_sample, skipped, by_age)| {
            let objects = objects
                .into_iter()
                .enumerate()
                .map(|(i, mut row_groups)| {
                    if time != "day" {
                        row_groups.iter_mut().for_each(|g| g.per_chunk.clear()); // counts are by the table's period
                    }
                    let object = SourceObject {
                        uri: format!("/{i}"),
                        shown: i.to_string(),
                        size: 1,
                        fingerprint: "1".into(),
                        hive: BTreeMap::new(),
                    };
                    InventoryObject {
                        object,
                        rows: row_groups.iter().map(|g| g.rows).sum(),
                        row_groups,
                        missing_columns: vec![],
                        text: false,
                        run_of: None,
                    }
                })
                .collect();
            let at = |day: i64| TimestampUs(day * MICROS_PER_DAY + 1_234_567);
            let start = range.0.map(at);
            let end = range.1.map(|length| TimestampUs(start.map_or(at(0).0, |s| s.0) + length * MICROS_PER_DAY + 1));
            let mut table = table(time, bucketed);
            let period = table.period();
            table.layouts = by_age.filter(|_| time != "year").map_or(vec![], |(day, more)| by_month_and_year(&table, day, day - more));
            Inventory {
                skipped_chunks: skipped.into_iter().map(|day| period.ordinal(day * MICROS_PER_DAY)).collect(),
                table,
                objects,
                series_sample,
                row_bytes: 100,
                times: Window { start: Some(at(-300)), end: Some(at(700)) },
                range: Window { start, end },
                retention_start: retention.map(at),
                warnings: vec![],
                clip_retention: clip,
                unused_columns: Default::default(),
                landed: None,
            }
        },
    )
}

fn limits() -> impl Strategy<Value = PlanLimits> {
    (prop_oneof![Just(1u64), Just(20 << 20), Just(1_000_000_000)], 1u64..5).prop_map(|(memory_bytes, threads)| PlanLimits {
        memory_bytes,
        threads,
        workers: threads,
    })
}

/// Which units take a row of this time, bucket and series?
fn takers<'a>(plan: &'a WritePlan, time: i64, bucket: u32, series: &str) -> Vec<&'a WorkUnit> {
    plan.units()
        .map(|(_, u)| u)
        .filter(|u| {
            u.window.contains(time)
                && u.series.buckets.as_ref().is_none_or(|b| b.buckets.contains(&bucket))
                && u.series.range.as_ref().is_none_or(|r| {
                    r.from.as_ref().is_none_or(|f| series >= f.as_str()) && r.to.as_ref().is_none_or(|t| series < t.as_str())
                })
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold(inventory in inventory(), limits in limits(), probes in prop::collection::vec((-500i64..900_000, 0u32..BUCKETS, 0usize..60), 40)) {
        let job = JobId("iot-sensor-0".into());
        let plan = plan(&inventory, &job, 1, limits).unwrap();
        check(&plan, &inventory).unwrap();

        // Pure: the same inventory gives the same bytes.
        let again = timelake_engine::plan::plan(&inventory, &job, 1, limits).unwrap();
        prop_assert_eq!(plan_hash(&plan).unwrap(), plan_hash(&again).unwrap());

        // Every row group that has rows is read by its one owner, or counted from its footer.
        let mut owners: HashMap<(u32, u32), u32> = HashMap::new();
        for (_, unit) in plan.units() {
            for input in &unit.owns {
                for g in &input.row_groups {
                    *owners.entry((input.object, *g)).or_default() += 1;
                }
            }
        }
        for pruned in &plan.pruned {
            *owners.entry((pruned.object, pruned.row_group)).or_default() += 1;
            let time = inventory.objects[pruned.object as usize].row_groups[pruned.row_group as usize].time.unwrap();
            prop_assert!(inventory.times.contains(time.0.0) && inventory.times.contains(time.1.0), "rows outside min/max must be read to be rejected");
            match pruned.outside {
                Outside::Range => prop_assert!(!timelake_model::plan::touches(&inventory.range, Some(time))),
                Outside::SkippedChunk => {
                    let load = inventory.window();
                    prop_assert!(load.contains(time.0.0) && load.contains(time.1.0));
                    let counted = &inventory.objects[pruned.object as usize].row_groups[pruned.row_group as usize].per_chunk;
                    let chunks: Vec<i64> = match counted.is_empty() {
                        true => (plan.period.ordinal(time.0.0)..=plan.period.ordinal(time.1.0)).collect(),
                        false => counted.keys().copied().collect(),
                    };
                    prop_assert!(chunks.iter().all(|chunk| inventory.skipped_chunks.contains(chunk)));
                }
                Outside::Retention => prop_assert!(inventory.clip_retention && time.1 < inventory.retention_start.unwrap()),
            }
        }
        for (o, object) in inventory.objects.iter().enumerate() {
            for (g, info) in object.row_groups.iter().enumerate() {
                prop_assert_eq!(owners.get(&(o as u32, g as u32)).copied().unwrap_or(0), u32::from(info.rows > 0));
            }
        }

        // A row inside the window has exactly one taker, and that unit reads every row group that may hold it.
        let loaded = window(&inventory);
        prop_assert_eq!(plan.window, loaded);
        for (millidays, bucket, series) in probes {
            let time = millidays * (MICROS_PER_DAY / 1000);
            let layout = inventory.table.layouts.iter().rposition(|l| time < l.before.0).map(|l| l as u32);
            let series = format!("d{series:02}");
            let takers = takers(&plan, time, bucket, &series);
            let expected = usize::from(loaded.contains(time) && plan.units().next().is_some());
            prop_assert_eq!(takers.len(), expected, "time {} of {}", time, loaded);
            prop_assert!(takers.iter().all(|u| u.layout == layout), "time {} in another layout", time);
            for (o, object) in inventory.objects.iter().enumerate() {
                for (g, info) in object.row_groups.iter().enumerate().filter(|(_, i)| i.rows > 0) {
                    let may_hold = !inventory.skipped_chunks.contains(&plan.period.ordinal(time)) && info.time.is_some_and(|(low, high)| low.0 <= time && time <= high.0)
                        && (info.per_chunk.is_empty() || info.per_chunk.contains_key(&plan.period.ordinal(time)));
                    if let (true, Some(unit)) = (may_hold, takers.first()) {
                        let reads = unit.inputs.iter().any(|i| i.object == o as u32 && i.row_groups.contains(&(g as u32)));
                        prop_assert!(reads, "unit {} must read row group {} of {}", unit.index, g, o);
                    }
                }
            }
        }

        // Units are as large as memory allows, not larger: estimates of units add up and each keeps the limit.
        let limit = plan.unit_rows_limit;
        for (_, unit) in plan.units() {
            let splittable = inventory.series_sample.len() > 1 || unit.window.high() - unit.window.low() > 1;
            prop_assert!(unit.estimated_rows <= limit * 2 || !splittable, "unit of {} rows, limit {limit}", unit.estimated_rows);
        }
        // Source order inside a unit.
        for (_, unit) in plan.units() {
            prop_assert!(unit.inputs.windows(2).all(|w| w[0].object < w[1].object));
            prop_assert!(unit.inputs.iter().all(|i| i.row_groups.windows(2).all(|w| w[0] < w[1])));
        }
    }
}

fn one_object(table: TableState, row_groups: Vec<RowGroupInfo>) -> Inventory {
    let object = SourceObject { uri: "/0".into(), shown: "0".into(), size: 1, fingerprint: "1".into(), hive: BTreeMap::new() };
    let rows = row_groups.iter().map(|g| g.rows).sum();
    Inventory {
        table,
        objects: vec![InventoryObject { object, rows, row_groups, missing_columns: vec![], text: false, run_of: None }],
        series_sample: vec![],
        row_bytes: 100,
        times: Window::new(0, 100 * MICROS_PER_DAY),
        range: Window::ALL,
        retention_start: None,
        warnings: vec![],
        clip_retention: false,
        skipped_chunks: Default::default(),
        unused_columns: Default::default(),
        landed: None,
    }
}

#[test]
fn many_existing_rows_are_work_for_several_units() {
    let time = |from: i64, to: i64| Some((TimestampUs(from * MICROS_PER_DAY), TimestampUs(to * MICROS_PER_DAY - 1)));
    let rows = RowGroupInfo { rows: 10_000, time: time(0, 100), per_chunk: BTreeMap::new(), series: None };
    let mut inventory = one_object(table("day", false), vec![rows]);
    let units = |inventory: &Inventory, threads| {
        let made = plan(inventory, &JobId("j".into()), 1, PlanLimits { memory_bytes: 1 << 30, threads, workers: threads }).unwrap();
        check(&made, inventory).unwrap();
        assert!(!timelake_engine::land::is_cheaper(&made), "a few rows are not landed for it");
        made.units().count()
    };
    assert_eq!(units(&inventory, 8), 1);
    let file = |day| ExistingFile {
        path: format!("/{day}"),
        bytes: 1,
        rows: 200_000,
        spec_id: 0,
        time: time(day, day + 1),
        sequence: 1,
        partition: 0,
    };
    inventory.table.existing.files = (0..100).map(file).collect();
    assert_eq!([1, 2, 8].map(|threads| units(&inventory, threads)), [1, 2, 4]);
    // Those of other times are not looked at.
    inventory.table.existing.files.iter_mut().for_each(|f| f.time = time(200, 201));
    assert_eq!(units(&inventory, 8), 1);
}

#[test]
fn unit_limits_are_partition_limits_unless_one_chunk_exceeds_memory() {
    let rows = |day: i64, rows| RowGroupInfo {
        rows,
        time: Some((TimestampUs(day * MICROS_PER_DAY), TimestampUs((day + 1) * MICROS_PER_DAY - 1))),
        per_chunk: BTreeMap::new(),
        series: None,
    };
    let mut inventory = one_object(table("day", true), (0..10).map(|day| rows(day, 100_000)).collect());
    let limits = PlanLimits { memory_bytes: 64 << 20, threads: 1, workers: 1 };
    let made = plan(&inventory, &JobId("j".into()), 1, limits).unwrap();
    assert_eq!(made.unit_rows_limit, 402_653);
    assert_eq!(made.units().count(), 3, "a million rows in units of at most 402,653");
    assert!(made.units().all(|(_, u)| u.window.low() % MICROS_PER_DAY == 0 && u.series.is_all()));
    assert_eq!(made.read_amplification_permille, 1000);

    // One day larger than memory: cut by the table's own buckets, so that files stay one per partition.
    inventory.objects[0].row_groups[4].rows = 1_000_000;
    let made = plan(&inventory, &JobId("j".into()), 1, limits).unwrap();
    let cut: Vec<_> = made.units().filter_map(|(_, u)| u.series.buckets.as_ref()).collect();
    assert_eq!(cut.iter().map(|b| b.buckets.len()).sum::<usize>(), BUCKETS as usize);
    assert!(cut.len() >= 3 && made.units().all(|(_, u)| u.window.low() % MICROS_PER_DAY == 0));
    assert!(made.read_amplification_permille > 1000);

    // Without buckets: by ranges of series.
    inventory.table = table("day", false);
    inventory.series_sample = (0..100).map(|i| format!("d{i:03}")).collect();
    let made = plan(&inventory, &JobId("j".into()), 1, limits).unwrap();
    let ranges: Vec<_> = made.units().filter_map(|(_, u)| u.series.range.clone()).collect();
    assert_eq!(ranges.first().unwrap().from, None);
    assert_eq!(ranges.last().unwrap().to, None);
    assert!(ranges.windows(2).all(|w| w[0].to == w[1].from));
}

#[test]
fn buckets_of_a_run_say_nothing_about_the_buckets_of_a_layout() {
    let known = |low, high| {
        let buckets = Some(BucketBounds { column: "device".into(), modulus: BUCKETS, low, high });
        Some(SeriesBounds { buckets, range: None })
    };
    let all = Some((TimestampUs(0), TimestampUs(MICROS_PER_DAY - 1)));
    let rows = |low, high| RowGroupInfo { rows: 400_000, time: all, per_chunk: BTreeMap::new(), series: known(low, high) };
    let mut inventory = one_object(table("day", true), vec![rows(0, 3), rows(4, 7)]);
    let limits = PlanLimits { memory_bytes: 64 << 20, threads: 1, workers: 1 };
    let read = |inventory: &Inventory| -> Vec<usize> {
        let made = plan(inventory, &JobId("j".into()), 1, limits).unwrap();
        check(&made, inventory).unwrap();
        made.units().map(|(_, u)| u.inputs.iter().map(|i| i.row_groups.len()).sum()).collect()
    };
    assert_eq!(read(&inventory), [1, 1], "units of buckets 0 to 3 and 4 to 7");
    let mut by_month = by_month_and_year(&inventory.table, 40, -400);
    by_month[0].partition[0].transform = "bucket[2]".into();
    inventory.table.layouts = by_month;
    assert_eq!(read(&inventory), [2, 2], "bucket 1 of 2 has rows of all of 8");
}
