//! Files → listing, inspection, batches: real files, damaged files, and files written here.

mod common;

use arrow::array::*;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::*;
use common::{SENSOR, map, try_spec};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timelake_model::inventory::InventoryObject;
use timelake_model::request::{RowOptions, TimeUnit as Unit};
use timelake_model::time::Period;
use timelake_model::{Error, Reason, Result, TimestampUs};
use timelake_source::{BoundObject, Inspection, Position, SourceSpec, Sources, count_per_chunk, inspect_all, list, read, sample_series};

const MAY: i64 = 1_714_521_600_000_000;

fn spec(columns_text: &str, options: RowOptions) -> Arc<SourceSpec> {
    try_spec(columns_text, options).unwrap()
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn inspected(folder: &Path, from: &[&str], spec: &SourceSpec) -> Result<Vec<Inspection>> {
    let from: Vec<String> = from.iter().map(|text| text.to_string()).collect();
    inspect_all(&list(&from, &Sources::local(), folder, true, None)?, &Sources::local(), spec, 2, &|| Ok(()))
}

/// Everything of an object: times, and one column as text; faults are errors.
fn all(bound: &BoundObject, spec: &Arc<SourceSpec>, column: usize) -> Result<(Vec<i64>, Vec<String>)> {
    let groups: Vec<u32> = (0..bound.row_groups()).collect();
    let (mut times, mut texts) = (Vec::new(), Vec::new());
    for batch in read(bound, &groups)? {
        let mut batch = batch?;
        let time = batch.times()?;
        if let Some(fault) = time.faults.into_iter().next() {
            let row = batch.first_row + u64::from(fault.row) + 1;
            return Err(fault.into_error(bound.object(), spec, spec.time(), Position::Row(row)));
        }
        times.extend(time.us.iter());
        let converted = batch.column(column, None)?;
        if let Some(fault) = converted.faults.into_iter().next() {
            let row = batch.first_row + u64::from(fault.row) + 1;
            return Err(fault.into_error(bound.object(), spec, column, Position::Row(row)));
        }
        let options = arrow::util::display::FormatOptions::default().with_null("NULL");
        let formatter = arrow::util::display::ArrayFormatter::try_new(converted.array.as_ref(), &options).unwrap();
        texts.extend((0..converted.array.len()).map(|row| formatter.value(row).to_string()));
    }
    Ok((times, texts))
}

fn load(folder: &Path, file: &str, columns: &str, options: RowOptions, column: usize) -> Result<(Vec<i64>, Vec<String>)> {
    let spec = spec(columns, options);
    let inspections = inspected(folder, &[file], &spec)?;
    all(&inspections[0].bound, &spec, column)
}

fn write(path: &Path, fields: Vec<(&str, ArrayRef)>, rows_per_group: usize, statistics: bool) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let batch = RecordBatch::try_from_iter_with_nullable(fields.into_iter().map(|(name, array)| (name, array, true))).unwrap();
    let statistics = if statistics { EnabledStatistics::Chunk } else { EnabledStatistics::None };
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(rows_per_group)).set_statistics_enabled(statistics).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn instants(us: Vec<i64>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(us).with_timezone("UTC"))
}
fn strings(texts: Vec<&str>) -> ArrayRef {
    Arc::new(StringArray::from(texts))
}
fn doubles(values: Vec<f64>) -> ArrayRef {
    Arc::new(Float64Array::from(values))
}

#[test]
fn int96_keeps_years_far_out_and_warns_about_the_zone() {
    let options = RowOptions {
        map: vec!["ts=a,value=".into()],
        set: vec!["device_id=x".into()],
        tz: Some("Europe/Berlin".into()),
        ..Default::default()
    };
    let spec = spec(SENSOR, options);
    let found = inspected(&data(), &["int96_from_spark.parquet"], &spec).unwrap();
    assert_eq!(found[0].warnings, ["a is INT96, taken as UTC; --tz not applied"]);
    let mut batch = read(&found[0].bound, &[0]).unwrap().next().unwrap().unwrap();
    let times = batch.times().unwrap();
    let right = [1_704_141_296_123_456, 1_704_070_800_000_000, 253_402_225_200_000_000, 1_735_599_600_000_000];
    assert_eq!(times.us[..4], right);
    // The last one is the year 290000 as Spark stored it: its own arithmetic overflowed, the bytes say about 294,500 BC.
    // Readers that overflow the same way get the year back; as stored it is no time a table holds.
    let faults: Vec<_> = times.faults.iter().map(|fault| (fault.row, fault.reason)).collect();
    assert_eq!(faults, [(4, Reason::NullInKey), (5, Reason::TimestampOutOfRange)]);
    let range = found[0].info.row_groups[0].time.unwrap();
    assert_eq!(range, (TimestampUs(right[1]), TimestampUs(right[2])));
}

#[test]
fn damaged_files_are_clean_errors_that_name_file_and_column() {
    let names = "ts=timestamp,device_id=tag_name,value=value";
    let reason = |file: &str| load(&data(), file, SENSOR, map(names), 2).unwrap_err();
    let error = reason("corrupt_page.parquet");
    assert_eq!(error.reason, Reason::PageChecksumMismatch);
    assert_eq!((error.place.file.as_deref(), error.place.column.as_deref()), (Some("corrupt_page.parquet"), Some("value")));
    assert_eq!(reason("cut.parquet").reason, Reason::NotACompleteParquetFile);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes, right) in [
        ("empty.parquet", &b""[..], Reason::NotACompleteParquetFile),
        ("short.parquet", b"PAR1PAR1", Reason::NotACompleteParquetFile),
        ("text.parquet", b"ts,device_id,value\n1,2,3\n", Reason::NotACompleteParquetFile),
        ("lies.parquet", b"PAR1aaaaaaaaaaaa\xff\xff\xff\x7fPAR1", Reason::NotACompleteParquetFile),
        ("noise.parquet", b"PAR1aaaaaaaaaaaa\x0c\x00\x00\x00PAR1", Reason::CorruptParquet),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        assert_eq!(load(folder.path(), name, SENSOR, map(names), 2).unwrap_err().reason, right, "{name}");
    }
}

/// Every column of hostile files, as text: whole or a clean error, never a panic.
#[test]
fn hostile_files_never_panic() {
    for file in
        ["ARROW-GH-41321.parquet", "PARQUET-1481.parquet", "nation.dict-malformed.parquet", "datapage_v2_empty_datapage.snappy.parquet"]
    {
        let bytes = std::fs::read(data().join(file)).unwrap();
        let names: Vec<String> = match parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(bytes)) {
            Ok(metadata) => metadata.file_metadata().schema().get_fields().iter().map(|field| field.name().replace('.', r"\.")).collect(),
            Err(_) => vec!["x".into()],
        };
        for name in names {
            for target in ["string", "long", "double", "binary"] {
                let columns = format!("ts:timestamptz;device_id:string;value:{target}");
                let options = RowOptions {
                    map: vec![format!("value={name}")],
                    set: vec!["ts=2024-05-01T00:00:00Z".into(), "device_id=x".into()],
                    ..Default::default()
                };
                if let Err(error) = load(&data(), file, &columns, options, 2) {
                    assert_ne!(error.reason, Reason::Internal, "{file} {name} {target}: {error:?}");
                    assert_eq!(error.place.file.as_deref(), Some(file), "{name} {target}: {error:?}");
                }
            }
        }
    }
}

#[test]
fn flipped_bytes_never_panic_and_never_read_as_internal() {
    let whole = std::fs::read(data().join("nested.parquet")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(folder.path().join("x.parquet"), &bytes).unwrap();
        if let Err(error) = load(folder.path(), "x.parquet", SENSOR, map("ts=timestamp,device_id=tag_name,value=reading.value"), 2) {
            assert_ne!(error.reason, Reason::Internal, "byte {at}: {error:?}");
        }
    }
}

#[test]
fn structs_lists_and_missing_columns() {
    let names = |value: &str| map(&format!("ts=timestamp,device_id=tag_name,value={value}"));
    let (times, values) = load(&data(), "nested.parquet", SENSOR, names("reading.value"), 2).unwrap();
    assert_eq!((times[0], values), (MAY, vec!["1.5".to_string(), "NULL".into(), "NULL".into()]));
    let error = load(&data(), "nested.parquet", SENSOR, names("spectrum"), 2).unwrap_err();
    assert_eq!((error.reason, error.place.source_type.as_deref()), (Reason::UnsupportedType, Some("list<double>")));
    assert_eq!((error.place.column.as_deref(), error.place.target.as_deref()), (Some("spectrum"), Some("double")));
    let error = load(&data(), "nested.parquet", SENSOR, names("reading"), 2).unwrap_err();
    assert_eq!(error.place.source_type.as_deref(), Some("struct<value:double,q:int>"));
    let error = load(&data(), "nested.parquet", SENSOR, names("reading.vlaue"), 2).unwrap_err();
    assert_eq!((error.reason, error.hint.as_deref()), (Reason::ColumnNotFound, Some("did you mean --map value=reading.value?")));
}

#[test]
fn a_file_without_rows_decides_nothing() {
    let spec = spec(SENSOR, map("ts=timestamp,device_id=tag_name,value=value"));
    // A name that only a file without rows has is no typing slip.
    let found = inspected(&data(), &["zero_rows.parquet", "nested.parquet"], &spec).unwrap();
    assert_eq!(found[1].info.missing_columns, ["value"]);
    let found = inspected(&data(), &["zero_rows.parquet", "arrow_zone.parquet"], &spec).unwrap();
    assert_eq!(found[0].info.rows, 0);
    assert_eq!(all(&found[0].bound, &spec, 2).unwrap(), (vec![], vec![]));
    assert_eq!(all(&found[1].bound, &spec, 2).unwrap(), (vec![1_719_828_000_000_000], vec!["4.0".to_string()]));
    assert_eq!(inspected(&data(), &["zero_rows.parquet"], &spec).unwrap()[0].info.rows, 0);
}

fn missing(inspections: &[Inspection]) -> Vec<&InventoryObject> {
    inspections.iter().map(|inspection| &inspection.info).collect()
}

#[test]
fn a_column_missing_in_some_files_is_null_there_and_missing_in_all_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), vec![("ts", instants(vec![MAY])), ("device_id", strings(vec!["a"]))], 10, true);
    write(
        &folder.path().join("b.parquet"),
        vec![("VALUE", doubles(vec![2.0])), ("device_id", strings(vec!["a"])), ("ts", instants(vec![MAY + 1]))],
        10,
        true,
    );
    let by_name = spec(SENSOR, RowOptions::default());
    let found = inspected(folder.path(), &["*.parquet"], &by_name).unwrap();
    assert_eq!(missing(&found)[0].missing_columns, ["value"]);
    assert!(missing(&found)[1].missing_columns.is_empty());
    assert_eq!(all(&found[0].bound, &by_name, 2).unwrap().1, ["NULL"]);
    assert_eq!(all(&found[1].bound, &by_name, 2).unwrap().1, ["2.0"]);
    let error = inspected(folder.path(), &["*.parquet"], &spec(SENSOR, map("value=vaule"))).unwrap_err();
    assert_eq!((error.reason, error.place.column.as_deref()), (Reason::ColumnNotFound, Some("vaule")));
    // Nowhere, and nothing but keys would be loaded: refused, unless the user says that it is meant so.
    let error = inspected(folder.path(), &["a.parquet"], &by_name).unwrap_err();
    assert_eq!((error.reason, error.place.target.as_deref()), (Reason::ColumnNotFound, Some("value")));
    assert!(inspected(folder.path(), &["a.parquet"], &spec(SENSOR, map("value="))).unwrap()[0].info.missing_columns.is_empty());
    let error = inspected(folder.path(), &["*.parquet"], &spec(SENSOR, map("device_id=VALUE"))).unwrap_err();
    assert_eq!((error.reason, error.place.file.as_deref()), (Reason::ColumnNotFound, Some("a.parquet")));
}

#[test]
fn folders_give_columns_and_must_agree_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let fields = || vec![("ts", instants(vec![MAY, MAY + 1])), ("device_id", strings(vec!["a", "a"]))];
    write(&folder.path().join("good/site=Halle%207/p.parquet"), fields(), 10, true);
    let both = |site: Vec<&'static str>| fields().into_iter().chain([("site", strings(site))]).collect();
    write(&folder.path().join("same/site=A/p.parquet"), both(vec!["A", "A"]), 10, true);
    write(&folder.path().join("other/site=A/p.parquet"), both(vec!["A", "Z"]), 10, true);
    let columns = "ts:timestamptz;device_id:string;site:string";
    let options = || RowOptions { hive: true, ..Default::default() };
    assert_eq!(load(folder.path(), "good", columns, options(), 2).unwrap().1, ["Halle 7", "Halle 7"]);
    assert_eq!(load(folder.path(), "same", columns, options(), 2).unwrap().1, ["A", "A"]);
    let error = load(folder.path(), "other", columns, options(), 2).unwrap_err();
    assert_eq!((error.reason, error.place.row), (Reason::PathAndFileDisagree, Some(2)));
    assert_eq!((error.place.path_value.as_deref(), error.place.file_value.as_deref()), (Some("A"), Some("Z")));
}

#[test]
fn time_ranges_come_from_statistics_or_rows_and_hold_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let us: Vec<i64> = (0..1_000).map(|index| MAY + index * 3_600_000_000).collect();
    let devices = || strings(vec!["a"; 1_000]);
    let local: ArrayRef = Arc::new(TimestampMicrosecondArray::from(us.clone()));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(us.iter().map(|us| TimestampUs(*us).short())));
    write(&folder.path().join("statistics.parquet"), vec![("ts", instants(us.clone())), ("device_id", devices())], 300, true);
    write(&folder.path().join("none.parquet"), vec![("ts", instants(us.clone())), ("device_id", devices())], 300, false);
    write(&folder.path().join("local.parquet"), vec![("ts", local), ("device_id", devices())], 300, true);
    write(&folder.path().join("texts.parquet"), vec![("ts", texts), ("device_id", devices())], 300, true);
    let nulls: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![None; 1_000]).with_timezone("UTC"));
    write(&folder.path().join("nulls.parquet"), vec![("ts", nulls), ("device_id", devices())], 1_000, true);
    let plain = spec(SENSOR, map("value="));
    for file in ["statistics.parquet", "none.parquet", "texts.parquet"] {
        let found = inspected(folder.path(), &[file], &plain).unwrap();
        let ranges: Vec<_> = found[0].info.row_groups.iter().map(|group| group.time.unwrap()).collect();
        let right: Vec<_> = us.chunks(300).map(|part| (TimestampUs(part[0]), TimestampUs(*part.last().unwrap()))).collect();
        assert_eq!(ranges, right, "{file}");
        let counts = count_per_chunk(&found[0].bound, 3, Period::Day).unwrap();
        assert_eq!(counts.values().sum::<u64>(), 100, "{file}");
        assert_eq!(counts.values().max(), Some(&24), "{file}");
    }
    assert_eq!(inspected(folder.path(), &["nulls.parquet"], &plain).unwrap()[0].info.row_groups[0].time, None);
    let berlin = spec(SENSOR, RowOptions { tz: Some("Europe/Berlin".into()), ..map("value=") });
    let found = inspected(folder.path(), &["local.parquet"], &berlin).unwrap();
    let times = all(&found[0].bound, &berlin, 1).unwrap().0;
    for (group, part) in found[0].info.row_groups.iter().zip(times.chunks(300)) {
        let (low, high) = group.time.unwrap();
        assert!(part.iter().all(|us| (low.0..=high.0).contains(us)));
    }
    let error = inspected(folder.path(), &["local.parquet"], &plain).unwrap_err();
    assert_eq!((error.reason, error.place.column.as_deref()), (Reason::NaiveTimestampWithoutZone, Some("ts")));
}

#[test]
fn keys_are_dictionaries_batches_are_filtered_and_rows_are_counted_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 150_000;
    let names: Vec<String> = (0..rows).map(|row| format!("tag{}", row % 1_000)).collect();
    let us: Vec<i64> = (0..rows).map(|row| MAY + row).collect();
    let values: Vec<f64> = (0..rows).map(|row| row as f64).collect();
    let fields = vec![("ts", instants(us)), ("device_id", strings(names.iter().map(String::as_str).collect())), ("value", doubles(values))];
    write(&folder.path().join("a.parquet"), fields, 100_000, true);
    let spec = spec(SENSOR, RowOptions::default());
    let found = inspected(folder.path(), &["a.parquet"], &spec).unwrap();
    let mut seen = Vec::new();
    let mut dictionaries = Vec::new();
    for batch in read(&found[0].bound, &[0, 1]).unwrap() {
        let mut batch = batch.unwrap();
        seen.push((batch.row_group, batch.first_row, batch.rows()));
        let first = batch.first_row;
        let keep: BooleanBuffer = (0..batch.rows()).map(|row| row % 7 == 0).collect();
        let key = batch.column(1, Some(&keep)).unwrap();
        let key = key.array.as_dictionary::<Int32Type>();
        let texts = key.values().as_string::<i32>();
        assert_eq!(key.len(), batch.rows().div_ceil(7));
        assert_eq!(texts.value(key.keys().value(1) as usize), format!("tag{}", (first + 7) % 1_000));
        dictionaries.push((batch.row_group, texts.values().as_ptr() as usize));
        let value = batch.column(2, Some(&keep)).unwrap();
        assert_eq!(value.array.as_primitive::<Float64Type>().value(2), (first + 14) as f64);
        let time = batch.column(0, Some(&keep)).unwrap();
        assert_eq!(time.array.as_primitive::<TimestampMicrosecondType>().value(1), MAY + first as i64 + 7);
    }
    assert_eq!(seen, [(0, 0, 65_536), (0, 65_536, 34_464), (1, 100_000, 50_000)]);
    assert_eq!(dictionaries[0], dictionaries[1], "batches of a row group share their dictionary");
    assert_eq!(sample_series(&[(0, found[0].bound.clone())].into(), spec.series_key()[0], 10).unwrap().len(), 10);
    let width = found[0].key_and_payload_bytes_per_row;
    assert!((20..40).contains(&width), "{width}");
}

#[test]
fn joined_columns_units_and_constants() {
    let folder = tempfile::tempdir().unwrap();
    let date: ArrayRef = Arc::new(Date32Array::from(vec![19_844, 19_844]));
    let time: ArrayRef = Arc::new(Time64MicrosecondArray::from(vec![Some(36_000_000_000), None]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![7, 8]));
    let epoch: ArrayRef = Arc::new(Int64Array::from(vec![1_714_521_600_000, 1_714_521_600_001]));
    let fields = vec![("date", date), ("time", time), ("id", ids), ("epoch", epoch), ("a+b", strings(vec!["x", "y"]))];
    write(&folder.path().join("a.parquet"), fields, 10, true);
    let options = |ts: &str| RowOptions {
        map: vec![format!("ts={ts},device_id=id,value=")],
        tz: Some("UTC".into()),
        ts_unit: Some(Unit::Millis),
        ..Default::default()
    };
    let error: Error = load(folder.path(), "a.parquet", SENSOR, options("date+time"), 1).unwrap_err();
    assert_eq!((error.reason, error.place.row, error.place.column.as_deref()), (Reason::NullInKey, Some(2), Some("date+time")));
    let (times, ids) = load(folder.path(), "a.parquet", SENSOR, options("epoch"), 1).unwrap();
    assert_eq!((times, ids), (vec![MAY, MAY + 1_000], vec!["7".to_string(), "8".into()]));
    let columns = "ts:timestamptz;device_id:string;note:string";
    let options = RowOptions {
        map: vec!["ts=epoch,note=a+b".into()],
        set: vec!["device_id=fixed".into()],
        ts_unit: Some(Unit::Millis),
        ..Default::default()
    };
    assert_eq!(load(folder.path(), "a.parquet", columns, options, 2).unwrap().1, ["x", "y"], "a column of that very name wins over a join");
    let error = load(folder.path(), "a.parquet", SENSOR, map("ts=epoch,device_id=id,value="), 1).unwrap_err();
    assert_eq!(error.reason, Reason::UnsupportedType);
    assert!(error.hint.unwrap().contains("--ts-unit ms"));
}

#[test]
fn bytes_that_are_not_utf8_are_named_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let bad: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"ok", b"\xff\xfe"]));
    write(&folder.path().join("a.parquet"), vec![("ts", instants(vec![MAY, MAY])), ("device_id", bad)], 10, true);
    let spec = spec(SENSOR, map("value="));
    // The width of a text is measured while planning, so it is found there.
    let found = inspected(folder.path(), &["a.parquet"], &spec).and_then(|found| all(&found[0].bound, &spec, 1));
    let error = found.unwrap_err();
    assert_eq!((error.reason, error.place.column.as_deref(), error.place.row), (Reason::InvalidUtf8, Some("device_id"), Some(2)));
}

#[test]
fn a_source_that_changes_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, vec![("ts", instants(vec![MAY])), ("device_id", strings(vec!["a"]))], 10, true);
    let spec = spec(SENSOR, map("value="));
    let found = inspected(folder.path(), &["a.parquet"], &spec).unwrap();
    let mut reader = read(&found[0].bound, &[0]).unwrap();
    reader.next().unwrap().unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(reader.next().unwrap().map(|_| ()).unwrap_err().reason, Reason::SourceChanged);
    assert!(reader.next().is_none());
    assert_eq!(read(&found[0].bound, &[0]).map(|_| ()).unwrap_err().reason, Reason::SourceChanged);
}

#[test]
fn a_sample_is_the_first_rows_of_each_file_whatever_its_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let times: Vec<i64> = (0..250).map(|i| MAY + i * 1_000_000).collect();
    let values: Vec<f64> = (0..250).map(f64::from).collect();
    let columns = |names: [&'static str; 3]| -> Vec<(&'static str, ArrayRef)> {
        let times = TimestampMicrosecondArray::from(times.clone()).with_timezone("+00:00");
        let devices = StringArray::from(vec!["a"; 250]);
        vec![(names[0], Arc::new(times)), (names[1], Arc::new(devices)), (names[2], Arc::new(Float64Array::from(values.clone())))]
    };
    write(&folder.path().join("one.parquet"), columns(["ts", "device_id", "value"]), 100, true);
    let lines: String = (0..250).map(|i| format!("2024-05-01T00:{:02}:{:02}Z,a,{i}\n", i / 60, i % 60)).collect();
    std::fs::write(folder.path().join("two.csv"), format!("ts,device_id,value\n{lines}")).unwrap();
    let spec = spec(SENSOR, RowOptions::default());
    for rows in [1, 99, 100, 101, 250, 1_000] {
        let sampled = Arc::new(spec.with_first_rows(rows));
        let all_rows = rows.min(250) as usize;
        for (file, size) in [("one.parquet", None), ("two.csv", Some(lines.len() as u64))] {
            let bound = &inspected(folder.path(), &[file], &sampled).unwrap()[0].bound;
            let (found, texts) = all(bound, &sampled, 2).unwrap();
            assert_eq!(found, times[..all_rows], "{file}, {rows} rows");
            assert_eq!(texts.last(), Some(&format!("{:.1}", values[all_rows - 1])), "{file}, {rows} rows");
            // How far reading is, though a whole block was read ahead.
            let groups: Vec<u32> = (0..bound.row_groups()).collect();
            let bytes: u64 = read(bound, &groups).unwrap().map(|batch| batch.unwrap().source_bytes).sum();
            let expected = size.unwrap_or(bound.object().size) as f64 * all_rows as f64 / 250.0;
            assert!((bytes as f64 - expected).abs() <= expected * 0.1 + 40.0, "{file}, {rows} rows: {bytes} of {expected} bytes");
        }
    }
}
