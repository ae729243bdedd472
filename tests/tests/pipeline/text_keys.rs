//! Rows of text that are the same, that contradict each other, that exist already, and files without any.

use crate::hostile::{gzip, zstd};
use crate::sensors::job_of;
use crate::variants::Variants;
use serde_json::json;

const MAP: &str = "--map ts=Time,device_id=Tag,value=Value,note=Note";

#[test]
fn the_same_row_in_other_spellings_is_one() {
    let mut v = Variants::new();
    let rows = "Time,Tag,Value,Note\n\
        2016-03-31T12:00:00Z,s,29.8,x\n\
        2016-03-31T14:00:00+02:00,s,29.80,x\n\
        2016-03-31 17:30:00.000+0530,s,2.98e1,\"x\"\n\
        2016-03-31 24:00:00Z,s,NaN,\n\
        2016-04-01T00:00:00Z,s,nan,\n\
        2016-04-02T00:00:00Z,s,0,\n\
        2016-04-02T00:00:00Z,s,-0.0,\n\
        2016-04-03T00:00:00Z,s,,\n\
        2016-04-03T00:00:00Z,s,\"\",\n";
    let expected = json!([
        ["s 2016-03-31T12:00:00Z", 29.8, "x"],
        ["s 2016-04-01T00:00:00Z", "NaN"],
        ["s 2016-04-02T00:00:00Z", 0],
        ["s 2016-04-03T00:00:00Z", null],
    ]);
    let report = json!({"rows_read": 9, "duplicates_collapsed": 5, "in_source_conflicts": 0, "rows_written": 4});
    v.good_files(&[("same.csv", rows.as_bytes())], MAP, expected, report);
    // Keys are compared as they stand: no letter is folded, composed or trimmed.
    let keys = ["é", "e\u{301}", "É", "ß", "ss", "k ", " k", "k", "K", "\u{212a}", "ﬁ", "fi", "i", "İ", "ı", "1", "01", "1.0"];
    let text: String = keys.iter().enumerate().map(|(i, key)| format!("2024-05-01T00:00:00Z,\"{key}\",{i},\n")).collect();
    let rows = keys.iter().enumerate().map(|(i, key)| json!([format!("{key} 2024-05-01T00:00:00Z"), i])).collect();
    v.good_files(&[("keys.csv", format!("Time,Tag,Value,Note\n{text}").as_bytes())], MAP, rows, json!({"duplicates_collapsed": 0}));
    // An empty text and none are two things.
    let differ = "Time,Tag,Value,Note\n2024-05-01T00:00:00Z,n,1,\n2024-05-01T00:00:00Z,n,1,\"\"\n";
    v.bad(
        "differ.csv",
        differ,
        MAP,
        json!({"reason": "in_source_conflict", "line": 3, "other_line": 2, "count": 1, "key": "n @ 2024-05-01T00:00:00Z"}),
    );
    v.finish();
}

#[test]
fn contradictions_are_decided_by_source_order() {
    let mut v = Variants::new();
    let file = |tag: &str, value: u32| format!("Time,Tag,Value,Note\n2024-05-01T00:00:00Z,{tag},{value},\n");
    // The order of folders is that of bytes: Z before a before ä.
    let in_folder = |tag: &str| [("Z", 1), ("a", 2), ("ä", 3)].map(|(name, value)| (format!("{tag}/{name}.csv"), file(tag, value)));
    for (policy, value) in [("first", 1), ("last", 3)] {
        let files = in_folder(policy);
        let inputs: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        let rows = json!([[format!("{policy} 2024-05-01T00:00:00Z"), value]]);
        let options = format!("--from {policy} {MAP} --on-source-conflict {policy} --threads 3");
        v.good_files(&inputs, &options, rows, json!({"in_source_conflicts": 2}));
    }
    let files = in_folder("error");
    let inputs: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    let expected =
        json!({"reason": "in_source_conflict", "file": "error/a.csv", "line": 2, "other_file": "error/Z.csv", "other_line": 2, "count": 2});
    v.bad_files(&inputs, &format!("--from error {MAP}"), expected);
    // What was typed first comes first.
    let (one, two) = (file("typed", 1), file("typed", 2));
    let inputs: [(&str, &[u8]); 2] = [("y.csv", two.as_bytes()), ("x.csv", one.as_bytes())];
    v.good_files(
        &inputs,
        &format!("{MAP} --on-source-conflict first"),
        json!([["typed 2024-05-01T00:00:00Z", 2]]),
        json!({"in_source_conflicts": 1}),
    );
    v.finish();
}

#[test]
fn rows_that_exist_stay_whole_and_a_second_run_changes_nothing() {
    let mut v = Variants::new();
    let existing = |day: u32, value: f64| json!({"ts": format!("2024-10-27T0{day}:30:00.000000Z"), "device_id": "Ort", "value": value});
    v.lab.append(&[existing(0, 20.0), existing(1, 22.0)]);
    let csv = "Zeit;Tag;Wert;Notiz\n27.10.2024 02:30;Ort;21,0;neu\n27.10.2024 02:30;Ort;22,0;\n27.10.2024 03:30;Ort;23,5;ü\n";
    let options =
        "--map ts=Zeit,device_id=Tag,value=Wert,note=Notiz --tz Europe/Berlin --ambiguous infer --decimal , --ts-format '%d.%m.%Y %H:%M'";
    let expected = json!([["Ort 2024-10-27T00:30:00Z", 20], ["Ort 2024-10-27T01:30:00Z", 22], ["Ort 2024-10-27T02:30:00Z", 23.5, "ü"],]);
    let report = json!({"kept_existing": 2, "kept_existing_different": 1, "rows_written": 1, "published": true});
    v.good_files(&[("ort.csv", csv.as_bytes())], options, expected, report);
    let published = v.lab.inspect();
    let again = v.lab.backfill(&format!("--from ort.csv {options}"));
    assert_eq!(
        (&again["already_published"], &again["published"], &again["rows_written"]),
        (&json!(true), &json!(false), &json!(0)),
        "{again}"
    );
    assert_eq!(v.lab.inspect()["metadata_location"], published["metadata_location"]);
    for name in ["ort2.csv", "ort3.csv.gz"] {
        let content = if name.ends_with(".gz") { gzip(csv.as_bytes()) } else { csv.as_bytes().to_vec() };
        let report = json!({"kept_existing": 3, "kept_existing_different": 1, "rows_written": 0, "published": false});
        v.good_files(&[(name, &content)], options, json!([]), report);
    }
    // A live row arrives while the job is staged.
    std::fs::write(v.lab.path("live.csv"), "Time,Tag,Value,Note\n2024-05-01T00:00:00Z,wach,1,a\n2024-05-01T00:10:00Z,wach,2,b\n").unwrap();
    let job = job_of(&v.lab.backfill(&format!("--from live.csv {MAP} --stage-only")));
    v.lab.append(&[json!({"ts": "2024-05-01T00:10:00.000000Z", "device_id": "wach", "value": 99.0})]);
    let manifest = v.lab.job("publish", &job).manifest();
    assert_eq!((&manifest["kept_existing"], &manifest["rows_written"]), (&json!(1), &json!(1)), "{manifest}");
    v.expect(json!([["wach 2024-05-01T00:00:00Z", 1, "a"], ["wach 2024-05-01T00:10:00Z", 99]]));
    v.finish();
}

#[test]
fn files_without_rows() {
    let mut v = Variants::new();
    let empty = |name: &str| json!({"reason": "empty_file", "file": name});
    for (name, content) in [
        ("zero.csv", vec![]),
        ("mark.csv", b"\xef\xbb\xbf".to_vec()),
        ("mark-le.csv", b"\xff\xfe".to_vec()),
        ("mark-be.csv", b"\xfe\xff".to_vec()),
        ("blank.csv", b"\r\n\r\n\n".to_vec()),
        ("mark-blank.csv", b"\xef\xbb\xbf\r\n".to_vec()),
        ("white.csv", b"   \n\t\n".to_vec()),
        ("zero.csv.gz", gzip(b"")),
        ("zero.csv.zst", zstd(b"")),
        ("zero.tsv", vec![]),
    ] {
        v.bad(name, content, "", empty(name));
    }
    v.bad("zero-columns.csv", "", "--columns Time,Value", empty("zero-columns.csv"));
    for (name, content) in [
        ("header.csv", "Time,Value\n"),
        ("header-end.csv", "Time,Value"),
        ("header-mark.csv", "\u{feff}Time;Value\r\n\r\n"),
        ("header-sep.csv", "sep=;\r\nTime;Value\r\n"),
        ("header-twice.csv", "Time,Value\nTime,Value\n"),
    ] {
        v.good_files(&[(name, content.as_bytes())], "", json!([]), json!({"rows_read": 0, "rows_written": 0, "published": false}));
    }
    v.good_files(&[("header.csv.gz", &gzip(b"Time,Value\n"))], "", json!([]), json!({"rows_read": 0, "published": false}));
    let files: [(&str, &[u8]); 3] =
        [("some.csv", b"Time,Value\n2024-05-01T00:00:00Z,1\n"), ("some-zero.csv", b""), ("some-header.csv", b"Time,Value\n")];
    v.good_files(&files, "", json!([["2024-05-01T00:00:00Z", 1]]), json!({"rows_read": 1, "warnings": ["some-zero.csv is empty"]}));
    std::fs::create_dir_all(v.lab.path("leer")).unwrap();
    for (from, reason) in [("leer", "no_input_files"), ("'über/*.csv'", "no_input_files"), ("fehlt.csv", "path_not_found")] {
        let outcome = v.lab.backfill_outcome(&format!("--from {from}"));
        let error = outcome.error(outcome.code.expect("an exit code"));
        assert!([json!(reason), json!("path_not_found")].contains(&error["reason"]), "{from}: {error}");
    }
    v.finish();
}
