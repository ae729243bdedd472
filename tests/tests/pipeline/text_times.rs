//! Times as texts, through the real command: zones, repeated and skipped hours, formats, clocks that are wrong.

use crate::variants::Variants;
use serde_json::{Value, json};

/// `Time,Value` with the values 1, 2, 3, ...
fn csv(times: &[&str]) -> String {
    let rows = times.iter().enumerate().map(|(i, time)| format!("{time},{}\n", i + 1));
    format!("Time,Value\n{}", rows.collect::<String>())
}

fn numbered(instants: &[&str]) -> Value {
    instants.iter().enumerate().map(|(i, ts)| json!([ts, i + 1])).collect()
}

/// Local times, and the instants that they are under `options`.
fn loads(variants: &mut Variants, name: &str, options: &str, times: &[(&str, &str)]) {
    let (local, instants): (Vec<&str>, Vec<&str>) = times.iter().copied().unzip();
    variants.good(&format!("{name}.csv"), csv(&local), options, numbered(&instants));
}

/// One local time in line 2, and the error it is.
fn refuses(variants: &mut Variants, name: &str, options: &str, time: &str, mut fields: Value) {
    let object = fields.as_object_mut().expect("fields");
    if !object.contains_key("option") {
        object.insert("line".into(), json!(2));
        object.insert("column".into(), json!("Time"));
        object.insert("value".into(), json!(time.trim_matches('"')));
    }
    variants.bad(&format!("{name}.csv"), csv(&[time]), options, fields);
}

#[test]
fn repeated_hours_of_other_zones_are_told_by_order() {
    let mut v = Variants::new();
    loads(
        &mut v,
        "lord-howe",
        "--tz Australia/Lord_Howe --ambiguous infer",
        &[
            ("2024-04-07 01:15", "2024-04-06T14:15:00Z"),
            ("2024-04-07 01:30", "2024-04-06T14:30:00Z"),
            ("2024-04-07 01:45", "2024-04-06T14:45:00Z"),
            ("2024-04-07 01:30", "2024-04-06T15:00:00Z"),
            ("2024-04-07 01:45", "2024-04-06T15:15:00Z"),
            ("2024-04-07 02:00", "2024-04-06T15:30:00Z"),
        ],
    );
    loads(
        &mut v,
        "casablanca",
        "--tz Africa/Casablanca --ambiguous infer",
        &[
            ("2024-03-10 01:30", "2024-03-10T00:30:00Z"),
            ("2024-03-10 02:00", "2024-03-10T01:00:00Z"),
            ("2024-03-10 02:30", "2024-03-10T01:30:00Z"),
            ("2024-03-10 02:00", "2024-03-10T02:00:00Z"),
            ("2024-03-10 02:30", "2024-03-10T02:30:00Z"),
            ("2024-03-10 03:00", "2024-03-10T03:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "new-york",
        "--tz America/New_York --ambiguous infer",
        &[
            ("2024-11-03 00:59:59.999", "2024-11-03T04:59:59.999000Z"),
            ("2024-11-03 01:00:00.000", "2024-11-03T05:00:00Z"),
            ("2024-11-03 01:59:59.999", "2024-11-03T05:59:59.999000Z"),
            ("2024-11-03 01:00:00.000", "2024-11-03T06:00:00Z"),
            ("2024-11-03 01:59:59.999", "2024-11-03T06:59:59.999000Z"),
            ("2024-11-03 02:00:00.000", "2024-11-03T07:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "sao-paulo",
        "--tz America/Sao_Paulo --ambiguous infer",
        &[
            ("2018-02-17 22:30", "2018-02-18T00:30:00Z"),
            ("2018-02-17 23:00", "2018-02-18T01:00:00Z"),
            ("2018-02-17 23:30", "2018-02-18T01:30:00Z"),
            ("2018-02-17 23:00", "2018-02-18T02:00:00Z"),
            ("2018-02-17 23:30", "2018-02-18T02:30:00Z"),
            ("2018-02-18 00:00", "2018-02-18T03:00:00Z"),
        ],
    );
    // Under double summer time the repeated hour of August leads back to summer time.
    loads(
        &mut v,
        "london-1941",
        "--tz Europe/London --ambiguous infer --min-ts 1900-01-01T00:00:00Z",
        &[
            ("1941-08-10 02:00", "1941-08-10T00:00:00Z"),
            ("1941-08-10 02:30", "1941-08-10T00:30:00Z"),
            ("1941-08-10 02:00", "1941-08-10T01:00:00Z"),
            ("1941-08-10 02:30", "1941-08-10T01:30:00Z"),
            ("1941-08-10 03:00", "1941-08-10T02:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "newest-first",
        "--tz Europe/Berlin --ambiguous infer",
        &[
            ("2024-10-27 03:00", "2024-10-27T02:00:00Z"),
            ("2024-10-27 02:30", "2024-10-27T01:30:00Z"),
            ("2024-10-27 02:00", "2024-10-27T01:00:00Z"),
            ("2024-10-27 02:30", "2024-10-27T00:30:00Z"),
            ("2024-10-27 02:00", "2024-10-27T00:00:00Z"),
            ("2024-10-27 01:30", "2024-10-26T23:30:00Z"),
        ],
    );
    loads(
        &mut v,
        "hourly",
        "--tz Europe/Berlin --ambiguous infer",
        &[
            ("2024-10-27 01:00", "2024-10-26T23:00:00Z"),
            ("2024-10-27 02:00", "2024-10-27T00:00:00Z"),
            ("2024-10-27 02:00", "2024-10-27T01:00:00Z"),
            ("2024-10-27 03:00", "2024-10-27T02:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "hourly-newest-first",
        "--tz Europe/Berlin --ambiguous infer",
        &[
            ("2024-10-27 03:00", "2024-10-27T02:00:00Z"),
            ("2024-10-27 02:00", "2024-10-27T01:00:00Z"),
            ("2024-10-27 02:00", "2024-10-27T00:00:00Z"),
            ("2024-10-27 01:00", "2024-10-26T23:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "ends-in-the-hour",
        "--tz Europe/Berlin --ambiguous infer",
        &[
            ("2024-10-27 01:30", "2024-10-26T23:30:00Z"),
            ("2024-10-27 02:00", "2024-10-27T00:00:00Z"),
            ("2024-10-27 02:30", "2024-10-27T00:30:00Z"),
            ("2024-10-27 02:00", "2024-10-27T01:00:00Z"),
        ],
    );
    loads(
        &mut v,
        "two-autumns",
        "--tz Europe/Berlin --ambiguous infer",
        &[
            ("2023-10-29 02:10", "2023-10-29T00:10:00Z"),
            ("2023-10-29 02:00", "2023-10-29T01:00:00Z"),
            ("2024-10-27 02:40", "2024-10-27T00:40:00Z"),
            ("2024-10-27 02:20", "2024-10-27T01:20:00Z"),
        ],
    );
    v.finish();
}

#[test]
fn repeated_hours_over_several_files_and_series() {
    let mut v = Variants::new();
    let infer = "--tz Europe/Berlin --ambiguous infer";
    let first = csv(&["2024-10-27 01:30", "2024-10-27 02:00", "2024-10-27 02:30"]);
    let second = "Time,Value\n2024-10-27 02:00,4\n2024-10-27 02:30,5\n2024-10-27 03:00,6\n";
    let rows = numbered(&[
        "2024-10-26T23:30:00Z",
        "2024-10-27T00:00:00Z",
        "2024-10-27T00:30:00Z",
        "2024-10-27T01:00:00Z",
        "2024-10-27T01:30:00Z",
        "2024-10-27T02:00:00Z",
    ]);
    v.good_files(&[("cut.1.csv", first.as_bytes()), ("cut.2.csv", second.as_bytes())], infer, rows, json!({}));
    // The passes of each series begin at rows of their own; one series has nothing in the hour.
    let tags = "Time,Tag,Value\n\
        2024-10-27 01:45,überall,1\n2024-10-27 02:15,überall,2\n2024-10-27 02:45,überall,3\n2024-10-27 01:50,skips,9\n\
        2024-10-27 02:05,früh,1\n2024-10-27 02:15,überall,4\n2024-10-27 02:55,früh,2\n2024-10-27 02:45,überall,5\n\
        2024-10-27 02:05,früh,3\n2024-10-27 02:55,früh,4\n2024-10-27 03:10,skips,10\n";
    v.good(
        "tags.csv",
        tags,
        &format!("{infer} --map ts=Time,device_id=Tag,value=Value"),
        json!([
            ["überall 2024-10-26T23:45:00Z", 1],
            ["überall 2024-10-27T00:15:00Z", 2],
            ["überall 2024-10-27T00:45:00Z", 3],
            ["überall 2024-10-27T01:15:00Z", 4],
            ["überall 2024-10-27T01:45:00Z", 5],
            ["skips 2024-10-26T23:50:00Z", 9],
            ["skips 2024-10-27T02:10:00Z", 10],
            ["früh 2024-10-27T00:05:00Z", 1],
            ["früh 2024-10-27T00:55:00Z", 2],
            ["früh 2024-10-27T01:05:00Z", 3],
            ["früh 2024-10-27T01:55:00Z", 4],
        ]),
    );
    // Days in order, each of them newest first: the order inside the file tells.
    let sunday = "Time,Value\n2024-10-27 03:00,4\n2024-10-27 02:00,3\n2024-10-27 02:00,2\n2024-10-27 01:00,1\n";
    let monday = "Time,Value\n2024-10-28 01:00,6\n2024-10-28 00:00,5\n";
    let rows = numbered(&[
        "2024-10-26T23:00:00Z",
        "2024-10-27T00:00:00Z",
        "2024-10-27T01:00:00Z",
        "2024-10-27T02:00:00Z",
        "2024-10-27T23:00:00Z",
        "2024-10-28T00:00:00Z",
    ]);
    v.good_files(&[("days.1.csv", sunday.as_bytes()), ("days.2.csv", monday.as_bytes())], infer, rows, json!({}));
    // One pass only, newest first, looks like a clock that goes back once; files in another order than their rows too.
    let one_pass = "Time,Value\n2024-10-27 02:30,3\n2024-10-27 02:00,2\n2024-10-27 01:00,1\n";
    let rest = "Time,Value\n2024-10-27 03:00,6\n2024-10-27 02:30,5\n2024-10-27 02:00,4\n";
    let other_order = "Time,Value\n2024-10-27 02:00,4\n2024-10-27 02:30,5\n2024-10-27 03:00,6\n";
    let before = "Time,Value\n2024-10-27 01:30,1\n2024-10-27 02:00,2\n2024-10-27 02:30,3\n";
    for (name, files) in [("pass", [one_pass, monday]), ("turned", [one_pass, rest]), ("swapped", [other_order, before])] {
        let names = [format!("{name}.1.csv"), format!("{name}.2.csv")];
        let inputs = [(names[0].as_str(), files[0].as_bytes()), (names[1].as_str(), files[1].as_bytes())];
        let count = if name == "pass" { 2 } else { 4 };
        v.bad_files(&inputs, infer, json!({"reason": "ambiguous_local_time", "line": 2, "count": count}));
    }
    v.good_files(
        &[("backwards.1.csv", rest.as_bytes()), ("backwards.2.csv", one_pass.as_bytes())],
        infer,
        json!([
            ["2024-10-26T23:00:00Z", 1],
            ["2024-10-27T00:00:00Z", 2],
            ["2024-10-27T00:30:00Z", 3],
            ["2024-10-27T01:00:00Z", 4],
            ["2024-10-27T01:30:00Z", 5],
            ["2024-10-27T02:00:00Z", 6],
        ]),
        json!({}),
    );
    // Twice back is not once back; once through the hour tells nothing.
    let times = ["2024-10-27 02:00", "2024-10-27 02:30", "2024-10-27 02:10", "2024-10-27 02:40", "2024-10-27 02:20"];
    v.bad("twice-back.csv", csv(&times), infer, json!({"reason": "ambiguous_local_time", "line": 2, "count": 5}));
    let once = csv(&["2024-10-27 01:00", "2024-10-27 02:00", "2024-10-27 02:30", "2024-10-27 03:00"]);
    v.bad("once.csv", once, infer, json!({"reason": "ambiguous_local_time", "line": 3, "count": 2, "value": "2024-10-27 02:00"}));
    // One series tells, the other does not: the rows of the other are the error.
    let mixed = "Time,Tag,Value\n2024-10-27 01:30,x1,0\n2024-10-27 02:30,x1,1\n2024-10-27 02:10,x1,2\n2024-10-27 02:20,x2,3\n";
    v.bad(
        "mixed.csv",
        mixed,
        &format!("{infer} --map ts=Time,device_id=Tag,value=Value"),
        json!({"reason": "ambiguous_local_time", "line": 5, "count": 1, "value": "2024-10-27 02:20"}),
    );
    // Nothing shows in which direction these were written, or whether a reading was delivered twice.
    let two = "Time,Value\n2024-10-27 02:50,1\n2024-10-27 02:10,2\n";
    v.bad("two.csv", two, infer, json!({"reason": "ambiguous_local_time", "line": 2, "count": 2}));
    let door = "Time,Value\n2024-10-26 12:00,0\n2024-10-27 02:10,1\n2024-10-27 02:10,1\n2024-10-27 09:00,0\n";
    v.bad("door.csv", door, infer, json!({"reason": "ambiguous_local_time", "line": 3, "count": 2}));
    let delivered = "Time,Value\n2024-10-27 01:30,1\n2024-10-27 02:00,2\n2024-10-27 02:30,3\n";
    let again = [("again.1.csv", delivered.as_bytes()), ("again.2.csv", delivered.as_bytes())];
    v.bad_files(&again, infer, json!({"reason": "ambiguous_local_time", "line": 3, "count": 4}));
    v.finish();
}

#[test]
fn skipped_and_repeated_hours_under_each_policy() {
    let mut v = Variants::new();
    let gap = |zone: &str| format!("--tz {zone} --nonexistent shift");
    loads(&mut v, "gap-lord-howe", &gap("Australia/Lord_Howe"), &[("2024-10-06 02:15", "2024-10-05T15:45:00Z")]);
    loads(
        &mut v,
        "gap-brazil",
        &gap("America/Sao_Paulo"),
        &[
            ("2018-11-03 23:59", "2018-11-04T02:59:00Z"),
            ("2018-11-04 00:30", "2018-11-04T03:30:00Z"),
            ("2018-11-04 02:00", "2018-11-04T04:00:00Z"),
        ],
    );
    // A whole day was skipped here.
    loads(
        &mut v,
        "gap-apia",
        &gap("Pacific/Apia"),
        &[("2011-12-29 23:00", "2011-12-30T09:00:00Z"), ("2011-12-31 01:00", "2011-12-30T11:00:00Z")],
    );
    let sao = "--tz America/Sao_Paulo";
    for (name, time) in [("brazil-half", "2018-11-04 00:30"), ("brazil-24", "2018-11-03 24:00"), ("brazil-date", "2018-11-04")] {
        refuses(&mut v, name, sao, time, json!({"reason": "nonexistent_local_time", "zone": "America/Sao_Paulo"}));
    }
    refuses(&mut v, "casablanca-gap", "--tz Africa/Casablanca", "2024-04-14 02:30", json!({"reason": "nonexistent_local_time"}));
    let times = csv(&["2024-03-31 01:59", "2024-03-31 02:30", "2024-03-31 03:00"]);
    let rows = json!([["2024-03-31T00:59:00Z", 1], ["2024-03-31T01:00:00Z", 3]]);
    v.good_files(&[("gap-skip.csv", times.as_bytes())], "--tz Europe/Berlin --nonexistent skip", rows, json!({"rejected": 1}));

    for (policy, instant) in [("earlier", "2024-04-06T14:45:00Z"), ("later", "2024-04-06T15:15:00Z")] {
        let options = format!("--tz Australia/Lord_Howe --ambiguous {policy}");
        loads(&mut v, &format!("fold-{policy}"), &options, &[("2024-04-07 01:45", instant)]);
    }
    refuses(
        &mut v,
        "fold-error",
        "--tz Australia/Lord_Howe",
        "2024-04-07 01:45",
        json!({
            "reason": "ambiguous_local_time",
            "candidates": ["2024-04-06T14:45:00.000000Z", "2024-04-06T15:15:00.000000Z"],
        }),
    );
    refuses(
        &mut v,
        "fold-london",
        "--tz Europe/London --min-ts 1900-01-01T00:00:00Z",
        "1941-08-10 02:30",
        json!({
            "reason": "ambiguous_local_time",
            "candidates": ["1941-08-10T00:30:00.000000Z", "1941-08-10T01:30:00.000000Z"],
        }),
    );
    // The text itself says which one it is.
    loads(
        &mut v,
        "said",
        "--tz Europe/Berlin",
        &[
            ("2024-10-27 02:30:00 CEST", "2024-10-27T00:30:00Z"),
            ("2024-10-27 02:30:00 CET", "2024-10-27T01:30:00Z"),
            ("2024-10-27 02:45:00+02", "2024-10-27T00:45:00Z"),
        ],
    );
    v.finish();
}

#[test]
fn zones_as_they_are_written() {
    let mut v = Variants::new();
    let noon = "2024-01-15 12:00:00";
    for (name, zone, instant) in [
        ("z-kathmandu", "Asia/Kathmandu", "2024-01-15T06:15:00Z"),
        ("z-chatham", "Pacific/Chatham", "2024-01-14T22:15:00Z"),
        ("z-st-johns", "America/St_Johns", "2024-01-15T15:30:00Z"),
        ("z-kyiv", "Europe/Kyiv", "2024-01-15T10:00:00Z"),
        ("z-etc", "Etc/GMT-14", "2024-01-14T22:00:00Z"),
        ("z-utc", "UTC", "2024-01-15T12:00:00Z"),
        ("z-offset", "+05:45", "2024-01-15T06:15:00Z"),
        ("z-west", "-09:30", "2024-01-15T21:30:00Z"),
    ] {
        loads(&mut v, name, &format!("--tz {zone}"), &[(noon, instant)]);
    }
    loads(&mut v, "z-london-1971", "--tz Europe/London", &[("1971-02-01 12:00", "1971-02-01T11:00:00Z")]);
    for (name, zone, hint) in [
        ("n-gmt", "GMT+2", "+02:00"),
        ("n-utc", "UTC-3", "-03:00"),
        ("n-case", "europe/berlin", "Europe/Berlin"),
        ("n-typo", "America/Sao_Paolo", "America/Sao_Paulo"),
        ("n-blank", "America/New York", "America/New_York"),
        ("n-umlaut", "Europe/Zürich", "Europe/Zurich"),
        ("n-far", "+25:00", ""),
    ] {
        refuses(
            &mut v,
            name,
            &format!("--tz '{zone}'"),
            noon,
            json!({
                "reason": "unknown_time_zone", "option": "--tz", "value": zone, "hint": hint,
            }),
        );
    }
    refuses(&mut v, "naive-bound", "--tz Europe/Berlin --start 2024-01-01", noon, json!({"reason": "naive_bound", "option": "--start"}));
    v.finish();
}

#[test]
fn formats_and_units() {
    let mut v = Variants::new();
    let us = "--tz UTC --ts-format '%m/%d/%Y %I:%M:%S %p'";
    loads(
        &mut v,
        "twelve-hours",
        us,
        &[
            ("05/01/2024 12:00:00 AM", "2024-05-01T00:00:00Z"),
            ("05/01/2024 12:30:00 PM", "2024-05-01T12:30:00Z"),
            ("05/01/2024 01:05:09 pm", "2024-05-01T13:05:09Z"),
            ("05/01/2024 11:59:59 PM", "2024-05-01T23:59:59Z"),
        ],
    );
    // Browsers put a narrow no-break blank before AM and PM.
    loads(&mut v, "narrow-blank", us, &[("05/01/2024 09:15:00\u{202f}PM", "2024-05-01T21:15:00Z")]);
    refuses(&mut v, "thirteen-pm", us, "05/01/2024 13:00:00 PM", json!({"reason": "bad_timestamp"}));
    refuses(&mut v, "zero-am", us, "05/01/2024 00:30:00 AM", json!({"reason": "bad_timestamp"}));
    loads(
        &mut v,
        "month-names",
        "--tz UTC --ts-format '%d-%b-%y %H:%M'",
        &[
            ("01-MAY-24 10:00", "2024-05-01T10:00:00Z"),
            ("01-may-24 11:00", "2024-05-01T11:00:00Z"),
            ("01-Jan-71 12:00", "1971-01-01T12:00:00Z"),
        ],
    );
    refuses(&mut v, "month-german", "--tz UTC --ts-format '%d-%b-%y %H:%M'", "01-Mai-24 10:00", json!({"reason": "bad_timestamp"}));
    loads(
        &mut v,
        "hour-24",
        "--tz Asia/Tokyo",
        &[("2024-02-28 24:00", "2024-02-28T15:00:00Z"), ("2023-12-31 24:00:00", "2023-12-31T15:00:00Z")],
    );
    for (name, time) in
        [("h-24-01", "2024-06-30 24:00:01"), ("h-25", "2024-06-30 25:00"), ("h-60", "2024-06-30 10:60"), ("h-day", "2023-02-29 10:00")]
    {
        refuses(&mut v, name, "--tz UTC", time, json!({"reason": "bad_timestamp"}));
    }
    let excel = "--tz Europe/Berlin --ts-format excel --decimal , --delimiter ;";
    v.good(
        "excel-comma.csv",
        "Time;Value\n45292,5;1\n45292,010416666664;2\n45473,25;3\n45292;4\n",
        excel,
        numbered(&["2024-01-01T11:00:00Z", "2023-12-31T23:15:00Z", "2024-06-30T04:00:00Z", "2023-12-31T23:00:00Z"]),
    );
    loads(
        &mut v,
        "epoch-s",
        "--ts-unit s",
        &[
            ("1714521600", "2024-05-01T00:00:00Z"),
            ("1714521600.25", "2024-05-01T00:00:00.250000Z"),
            ("1.7145217e9", "2024-05-01T00:01:40Z"),
            (" 1714521800 ", "2024-05-01T00:03:20Z"),
            ("+1714521900", "2024-05-01T00:05:00Z"),
        ],
    );
    loads(
        &mut v,
        "epoch-ms",
        "--ts-unit ms",
        &[("1.714521600123E+12", "2024-05-01T00:00:00.123000Z"), ("1714521600456.789", "2024-05-01T00:00:00.456789Z")],
    );
    v.good(
        "epoch-comma.csv",
        "Time;Value\n1714521600,5;1\n",
        "--ts-unit s --decimal , --delimiter ;",
        numbered(&["2024-05-01T00:00:00.500000Z"]),
    );
    for (name, time) in [("e-hex", "0x66316f80"), ("e-wide", "１７１４５２１６００"), ("e-nan", "NaN")] {
        refuses(&mut v, name, "--ts-unit s", time, json!({"reason": "bad_timestamp"}));
    }
    refuses(&mut v, "e-unit", "--tz UTC", "1714521600", json!({"reason": "bad_timestamp", "hint": "--ts-unit"}));
    refuses(&mut v, "e-ms-as-s", "--ts-unit s", "1714521600000", json!({"reason": "timestamp_out_of_range", "hint": "ms"}));
    refuses(&mut v, "order", "--tz UTC", "03/04/2024 10:00", json!({"reason": "timestamp_format_unclear", "hint": "--ts-format"}));
    refuses(
        &mut v,
        "order-dots",
        "--tz UTC",
        "03.04.2024 10:00",
        json!({"reason": ["timestamp_format_unclear", "bad_timestamp"], "hint": "--ts-format"}),
    );
    refuses(&mut v, "digits", "--tz UTC", "２０２４-05-01 00:00", json!({"reason": "bad_timestamp"}));
    refuses(&mut v, "arabic", "--tz UTC", "٢٠٢٤-٠٥-٠١ 00:00", json!({"reason": "bad_timestamp"}));
    refuses(&mut v, "naive", "", "2024-05-01 00:00", json!({"reason": "naive_timestamp_without_zone", "hint": "--tz"}));
    let two = "Datum;Zeit;Value\n01.05.2024;00:00:30;1\n01.05.2024;23:59:59;2\n";
    v.good(
        "two-columns.csv",
        two,
        "--map ts=Datum+Zeit,value=Value --tz Europe/Berlin --ts-format '%d.%m.%Y %H:%M:%S'",
        numbered(&["2024-04-30T22:00:30Z", "2024-05-01T21:59:59Z"]),
    );
    v.finish();
}

#[test]
fn leap_seconds_infinity_and_clocks_that_are_wrong() {
    let mut v = Variants::new();
    loads(
        &mut v,
        "leap-berlin",
        "--tz Europe/Berlin",
        &[("2017-01-01 00:59:60", "2016-12-31T23:59:59.999999Z"), ("2017-01-01 01:00:00", "2017-01-01T00:00:00Z")],
    );
    loads(&mut v, "leap-kolkata", "--tz Asia/Kolkata", &[("2015-07-01 05:29:60.5", "2015-06-30T23:59:59.999999Z")]);
    loads(&mut v, "leap-offset", "", &[("2016-12-31T18:59:60-05:00", "2016-12-31T23:59:59.999999Z")]);
    for (name, options, time) in [
        ("l-other-year", "--tz Europe/Berlin", "2016-01-01 00:59:60"),
        ("l-local-midnight", "--tz Europe/Berlin", "2016-12-31 23:59:60"),
        ("l-61", "", "2016-12-31T23:59:61Z"),
    ] {
        refuses(&mut v, name, options, time, json!({"reason": "bad_timestamp"}));
    }
    let range = json!("timestamp_out_of_range");
    for (name, time) in [
        ("r-infinity", "infinity"),
        ("r-minus", "-infinity"),
        ("r-upper", "INFINITY"),
        ("r-10000", "10000-01-01 00:00:00+00"),
        ("r-bc", "0044-03-15 12:00:00+00 BC"),
        ("r-dead", "1970-01-01T00:00:00Z"),
        ("r-before", "1969-12-31T23:59:59Z"),
        ("r-ntp", "2036-02-07T06:28:16Z"),
        ("r-u32", "2106-02-07T06:28:15Z"),
        ("r-dotnet", "0001-01-01T00:00:00Z"),
        ("r-9999", "9999-12-31T23:59:59.9999999Z"),
    ] {
        refuses(&mut v, name, "", time, json!({"reason": range, "count": 1}));
        let options = "--on-out-of-range skip";
        v.good_files(&[(&format!("{name}.skip.csv"), csv(&[time]).as_bytes())], options, json!([]), json!({"rejected": 1, "rows_read": 1}));
    }
    refuses(&mut v, "zero-date", "--tz UTC", "0000-00-00 00:00:00", json!({"reason": "bad_timestamp"}));
    v.bad(
        "no-time.csv",
        "Time,Value\n,1\n",
        "--tz UTC",
        json!({"reason": ["missing_timestamp", "null_in_key"], "line": 2, "column": "Time"}),
    );
    // What falls together below a microsecond: the same reading is one, another one is a conflict.
    let equal = csv(&["1609459200000000001", "1609459200000000002"]).replace(",2\n", ",1\n");
    v.good_files(
        &[("ns-equal.csv", equal.as_bytes())],
        "--ts-unit ns",
        json!([["2021-01-01T00:00:00Z", 1]]),
        json!({"precision_truncated": 2, "duplicates_collapsed": 1, "in_source_conflicts": 0}),
    );
    v.bad(
        "ns-differ.csv",
        csv(&["1609459200000000001", "1609459200000000002"]),
        "--ts-unit ns",
        json!({"reason": "in_source_conflict", "line": 3, "other_line": 2, "hint": "microsecond"}),
    );
    let iso = csv(&["2021-01-01T00:00:00.1234561Z", "2021-01-01 00:00:00.1234569Z"]);
    v.good_files(
        &[("ns-iso.csv", iso.as_bytes())],
        "--on-source-conflict last",
        json!([["2021-01-01T00:00:00.123456Z", 2]]),
        json!({"precision_truncated": 2, "in_source_conflicts": 1}),
    );
    v.finish();
}
