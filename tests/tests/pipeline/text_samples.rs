//! Real public text files (`tests/samples/SOURCES.md`): loaded with the values that stand in them, or refused cleanly.

use serde_json::{Value, json};
use timelake_tests::{Lab, split_words, workspace};

/// A lake with `columns` beside ts and device_id, keyed by `key`, and the sample in it.
fn lab(sample: &str, columns: &str, key: &str) -> Lab {
    let lab = Lab::new();
    lab.copy_in(&workspace().join("tests/samples").join(sample), sample);
    let mut words = split_words("table create iot.sensor --time-column ts --series-key device_id --partition month(ts)");
    words.extend(["--columns".into(), format!("ts:timestamptz,device_id:string,{columns}"), "--dedup-key".into(), key.into()]);
    lab.timelake(&words).success();
    lab
}

fn text(sample: &str) -> String {
    std::fs::read_to_string(workspace().join("tests/samples").join(sample)).unwrap()
}

/// Winter in Berlin: an hour ahead of UTC. `07.01.2024 23:00`.
fn berlin_winter(time: &str) -> String {
    let number = |range: std::ops::Range<usize>| time[range].parse::<i64>().unwrap();
    let (day, month, year, hour) = (number(0..2), number(3..5), number(6..10), number(11..13));
    let (day, hour) = if hour == 0 { (day - 1, 23) } else { (day, hour - 1) };
    assert!(day > 0, "{time}");
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{}:00.000000Z", &time[14..16])
}

fn decimal(text: &str) -> f64 {
    text.replace(',', ".").parse().unwrap()
}

#[test]
fn home_assistant_statistics_with_tabs_and_decimal_commas() {
    let sample = "ha-statistics__state_sum.tsv";
    let lab = lab(sample, "unit:string,state:double,total:double", "device_id,ts");
    let options = "--ts-format '%d.%m.%Y %H:%M' --map ts=start,device_id=statistic_id,total=sum";
    let error = lab.backfill_outcome(&format!("--from {sample} {options} --tz Europe/Berlin")).error(3);
    assert_eq!((&error["reason"], &error["line"], &error["value"]), (&json!("bad_number"), &json!(2), &json!("274021,6")), "{error}");
    let error = lab.backfill_outcome(&format!("--from {sample} {options} --decimal ,")).error(3);
    assert_eq!((&error["reason"], &error["line"]), (&json!("naive_timestamp_without_zone"), &json!(2)), "{error}");
    lab.backfill(&format!("--from {sample} {options} --decimal , --tz Europe/Berlin"));
    let expected: Vec<Value> = text(sample)
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            json!({"ts": berlin_winter(fields[2]), "device_id": fields[0], "unit": fields[1], "state": decimal(fields[3]), "total": decimal(fields[4])})
        })
        .collect();
    assert!(expected.len() > 30);
    lab.assert_rows(&expected);
}

#[test]
fn tabs_in_a_file_that_is_named_for_commas() {
    let sample = "ha-statistics__correctcolumnscomma.csv";
    let lab = lab(sample, "unit:string,min:double,max:double,mean:double", "device_id,ts");
    lab.backfill(&format!(
        "--from {sample} --ts-format '%d.%m.%Y %H:%M' --map ts=start,device_id=statistic_id --decimal , --tz Europe/Berlin"
    ));
    lab.assert_rows(&[json!({
        "ts": "2024-01-25T23:00:00.000000Z", "device_id": "sensor.esp32_soundroom_bathroomtempsensor",
        "unit": "°C", "min": 1131.3, "max": 1231.5, "mean": 1181,
    })]);
}

#[test]
fn home_assistant_counters() {
    let sample = "ha-statistics__export_counter_data.csv";
    let lab = lab(sample, "unit:string,sum:double,state:long,delta:double", "device_id,ts");
    lab.backfill(&format!("--from {sample} --ts-format '%d.%m.%Y %H:%M' --map ts=start,device_id=statistic_id --tz UTC"));
    let row = |hour: u32, device: &str, unit: &str, sum: f64, state: i64, delta: f64| json!({"ts": format!("2024-01-26T{hour}:00:00.000000Z"), "device_id": device, "unit": unit, "sum": sum, "state": state, "delta": delta});
    lab.assert_rows(&[
        row(12, "counter.energy_consumed", "kWh", 10.5, 100, 0.0),
        row(13, "counter.energy_consumed", "kWh", 11.2, 110, 0.7),
        row(12, "counter.water_used", "L", 5.3, 50, 0.0),
        row(13, "counter.water_used", "L", 5.8, 55, 0.5),
    ]);
}

/// A code that is once a number stays a text; the last line has no end.
#[test]
fn osisoft_streams() {
    let sample = "osisoft-adh__datafile.csv";
    let lab = lab(sample, "Temperature1:double,Temperature2:double,Code:string", "device_id,ts");
    lab.backfill(&format!("--from {sample} --map ts=Timestamp,device_id=StreamId"));
    let row = |ts: &str, stream: u32, one: f64, two: f64, code: &str| json!({"ts": format!("{ts}000Z"), "device_id": format!("CSVtoADHStream_{stream}"), "Temperature1": one, "Temperature2": two, "Code": code});
    lab.assert_rows(&[
        row("2022-01-11T21:23:25.430", 1, 23.0, 1.5, "hi"),
        row("2022-02-11T21:23:26.430", 2, 243.0, 11.5, "hi1"),
        row("2022-03-11T21:23:27.430", 1, 23.0, 1.5, "75"),
    ]);
}

/// Annotations are not understood yet: the header has to be pointed at, and the tag that is missing shows as a conflict.
#[test]
fn annotated_flux_output() {
    let sample = "flux__union_heterogeneous.out.csv";
    let options = "--map ts=_time,device_id=host,field=_field,value=_value,name=name";
    let columns = "field:string,value:long,name:string";
    let by_field = lab(sample, columns, "device_id,field,ts");
    let outcome = by_field.backfill_outcome(&format!("--from {sample} {options}"));
    let error = outcome.json()["error"].clone();
    assert_eq!(error["reason"], json!("column_not_found"), "{outcome}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("--header-line 4")), "{error}");
    let error = by_field.backfill_outcome(&format!("--from {sample} {options} --header-line 4")).error(3);
    assert_eq!((&error["reason"], &error["line"], &error["other_line"]), (&json!("in_source_conflict"), &json!(6), &json!(5)), "{error}");
    by_field.assert_rows(&[]);

    let by_value = lab(sample, columns, "device_id,field,value,ts");
    by_value.backfill(&format!("--from {sample} {options} --header-line 4"));
    let expected: Vec<Value> = text(sample)
        .lines()
        .skip(4)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.trim_end().split(',').collect();
            let name = (!fields[8].is_empty()).then_some(fields[8]);
            json!({"ts": fields[3].replace('Z', ".000000Z"), "device_id": fields[7], "field": fields[5], "value": fields[4].parse::<i64>().unwrap(), "name": name})
        })
        .collect();
    assert_eq!(expected.len(), 18);
    by_value.assert_rows(&expected);
}
