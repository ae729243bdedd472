//! Input that is damaged, endless, or made to mislead: refused by name with nothing published, or loaded whole; in
//! bounded memory either way.

use crate::sensors::write_readings;
use crate::variants::Variants;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use timelake_tests::{Lab, split_words};

const MIB: usize = 1 << 20;
const MAP: &str = "--map ts=Time,device_id=Tag,value=Value";

pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// With a checksum, as the command-line tool writes it.
pub fn zstd(content: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Values that do not compress to nothing.
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(state >> 33)
    })
}

fn noisy_rows(seed: u64) -> (String, Value) {
    let values: Vec<u64> = noise(seed).take(40).collect();
    let csv: String = values.iter().enumerate().map(|(i, value)| format!("2024-05-01T00:{i:02}:00Z,{value}\n")).collect();
    let rows = values.iter().enumerate().map(|(i, value)| json!([format!("2024-05-01T00:{i:02}:00Z"), value])).collect();
    (format!("Time,Value\n{csv}"), rows)
}

#[test]
fn a_truncated_gzip_never_loads_in_part() {
    let mut v = Variants::new();
    let (csv, rows) = noisy_rows(7);
    let whole = gzip(csv.as_bytes());
    for length in (0..whole.len()).step_by(37).skip(1).chain([whole.len() - 1, whole.len() - 8]) {
        v.bad(
            &format!("gz-{length:04}.csv.gz"),
            &whole[..length],
            "",
            json!({"reason": "corrupt_compression", "file": format!("gz-{length:04}.csv.gz")}),
        );
        v.bad(
            &format!("skip-{length:04}.csv.gz"),
            &whole[..length],
            "--on-bad-row skip --on-out-of-range skip",
            json!({"reason": "corrupt_compression"}),
        );
    }
    v.bad("gz-0000.csv.gz", "", "", json!({"reason": "empty_file", "file": "gz-0000.csv.gz"}));
    v.bad(
        "gz-magic.csv.gz",
        &whole[..1],
        "",
        json!({"reason": ["corrupt_compression", "bad_timestamp", "invalid_utf8", "column_not_found"]}),
    );
    v.good("gz-whole.csv.gz", &whole, "", rows);
    v.finish();
}

#[test]
fn damaged_bytes_of_compressed_files_are_found() {
    let mut v = Variants::new();
    let reasons = [
        "corrupt_compression",
        "invalid_utf8",
        "bad_timestamp",
        "bad_number",
        "field_count",
        "column_not_found",
        "nul_byte",
        "unsupported_format",
        "unclosed_quote",
        "line_too_long",
        "bad_value",
        "timestamp_out_of_range",
        "naive_timestamp_without_zone",
        "empty_file",
    ];
    for (kind, pack) in [("gz", gzip as fn(&[u8]) -> Vec<u8>), ("zst", zstd)] {
        let (csv, rows) = noisy_rows(11);
        let whole = pack(csv.as_bytes());
        for at in (0..whole.len()).step_by(37) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            // The header holds bytes that mean nothing for the content.
            v.either(&format!("{kind}-flip-{at:04}.csv.{kind}"), &damaged, "", rows.clone(), &reasons);
        }
        let (csv, rows) = noisy_rows(13);
        let whole = pack(csv.as_bytes());
        v.bad(&format!("{kind}-cut.csv.{kind}"), &whole[..whole.len() / 2], "", json!({"reason": "corrupt_compression"}));
        v.good(&format!("{kind}-good.csv.{kind}"), &whole, "", rows);
        let other = pack(b"Time,Value\n2024-05-02T00:00:00Z,1\n");
        let glued = [pack(b"Time,Value\n2024-05-01T00:00:00Z,0\n"), other.clone()].concat();
        v.good_files(
            &[(&format!("{kind}-glued.csv.{kind}"), &glued)],
            "",
            json!([["2024-05-01T00:00:00Z", 0], ["2024-05-02T00:00:00Z", 1]]),
            json!({"repeated_headers": 1, "rows_read": 2}),
        );
        // A record that goes on in the next member.
        let glued = [pack(b"Time,Value\n2024-05-01T00:0"), pack(b"0:00Z,5\n")].concat();
        v.good(&format!("{kind}-member.csv.{kind}"), &glued, "", json!([["2024-05-01T00:00:00Z", 5]]));
        let cut = [other.clone(), other[..other.len() - 5].to_vec()].concat();
        v.bad(&format!("{kind}-cut-member.csv.{kind}"), &cut, "", json!({"reason": "corrupt_compression"}));
        let garbage = [other.clone(), b"garbage after the end".to_vec()].concat();
        v.bad(&format!("{kind}-garbage.csv.{kind}"), &garbage, "", json!({"reason": "corrupt_compression"}));
    }
    // Tapes and block devices pad with zeros.
    let padded = [gzip(b"Time,Value\n2024-05-01T00:00:00Z,7\n"), vec![0; 512]].concat();
    v.either("padded.csv.gz", &padded, "", json!([["2024-05-01T00:00:00Z", 7]]), &["corrupt_compression"]);
    v.finish();
}

#[test]
fn what_a_file_is_not_what_its_name_says() {
    let mut v = Variants::new();
    let csv = "Time,Value\n2024-05-01T00:00:00Z,1\n";
    let row = || json!([["2024-05-01T00:00:00Z", 1]]);
    v.good("packed.csv", gzip(csv.as_bytes()), "", row());
    v.good("packed2.csv", zstd(csv.as_bytes()), "", row());
    v.either("plain.csv.gz", csv, "", row(), &["corrupt_compression"]);
    v.either("text.parquet", csv, "", row(), &["not_a_complete_parquet_file", "unsupported_format"]);
    v.bad("text-said.parquet", csv, "--format parquet", json!({"reason": "not_a_complete_parquet_file", "file": "text-said.parquet"}));
    v.good("text-csv.parquet", csv, "--format csv", row());
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
    let refused = json!({"reason": ["unsupported_format", "invalid_utf8", "nul_byte", "column_not_found", "field_count"]});
    v.bad("picture.csv", png, "", refused.clone());
    v.bad("book.csv", b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0[Content_Types].xml", "", refused.clone());
    v.bad("old-book.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0\0\0", "", refused.clone());
    for seed in 1..=8 {
        let bytes: Vec<u8> = noise(seed).take(3_000).map(|n| n as u8).collect();
        v.bad(&format!("random-{seed}.csv"), &bytes, "", json!({"reason": ["unsupported_format", "invalid_utf8", "nul_byte", "column_not_found", "field_count", "unclosed_quote", "corrupt_compression", "bad_value"]}));
        let under_header = [csv.as_bytes(), &bytes].concat();
        v.bad(
            &format!("header-{seed}.csv"),
            under_header,
            "",
            json!({"reason": ["invalid_utf8", "nul_byte", "field_count", "unclosed_quote", "bad_value", "bad_timestamp"]}),
        );
    }
    v.bad("zeros.csv", vec![0; 4_096], "", json!({"reason": ["nul_byte", "column_not_found", "unsupported_format", "empty_file"]}));
    v.bad("hole.csv", [csv.as_bytes(), &[0; 4_096]].concat(), "", json!({"reason": "nul_byte", "line": 3, "byte_offset": csv.len()}));
    v.bad("nul.csv", "Time,Value\n2024-05-01T00:00:00Z,1\0\n", "", json!({"reason": "nul_byte", "line": 2, "byte_offset": 33}));
    let nul = "Time,Value\n2024-05-01T00:00:00Z,1\0\n2024-05-01T00:01:00Z,2\n";
    v.good_files(&[("nul-skip.csv", nul.as_bytes())], "--on-bad-row skip", json!([["2024-05-01T00:01:00Z", 2]]), json!({"rejected": 1}));
    let lab = Lab::new();
    write_readings(&lab, "a.parquet", &[crate::sensors::reading(1, 0, "columnar", 5.0)]);
    let columnar = std::fs::read(lab.path("a.parquet")).unwrap();
    v.good("columnar.csv", columnar, "--map device_id=device_id,value=value", json!([["columnar 2024-05-01T00:00:00Z", 5]]));
    v.finish();
}

#[track_caller]
fn peak_below(lab: &Lab, options: &str, limit: usize) -> Value {
    let outcome = lab.backfill_outcome(options);
    let object = outcome.json();
    let peak = object["peak_memory_bytes"].as_u64().unwrap_or_else(|| panic!("no peak memory\n{outcome}"));
    assert!(peak < limit as u64, "{options}: {peak} bytes\n{outcome}");
    object
}

#[test]
fn endless_lines_and_files_take_bounded_memory() {
    let lab = Lab::new();
    let create = "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double --time-column ts --series-key device_id";
    lab.timelake(&split_words(create)).success();
    let head = "Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n";
    let write = |file: &str, content: Vec<u8>| std::fs::write(lab.path(file), content).unwrap();

    write("field.csv.gz", gzip(&[head.as_bytes(), &vec![b'7'; 192 * MIB], b"\n"].concat()));
    let error = peak_below(&lab, &format!("--from field.csv.gz {MAP}"), 256 * MIB);
    assert_eq!((&error["error"]["reason"], &error["error"]["line"]), (&json!("line_too_long"), &json!(3)), "{error}");
    assert!(error["error"]["limit"].is_u64(), "{error}");

    // A quote that is opened and never closed swallows the rest; the line that is told is where it opens.
    let mut open = format!("{head}2024-05-01T00:01:00Z,\"a,1\n").into_bytes();
    while open.len() < 50 * MIB {
        open.extend_from_slice(b"2024-05-01T00:02:00Z,a,3\n");
    }
    write("open.csv", open);
    for policy in ["error", "skip"] {
        let error = peak_below(&lab, &format!("--from open.csv {MAP} --on-bad-row {policy} --memory 60MB"), 256 * MIB);
        let reason = error["error"]["reason"].as_str().unwrap_or_default();
        if policy == "error" {
            assert!(["unclosed_quote", "line_too_long"].contains(&reason), "{error}");
            assert_eq!(error["error"]["line"], json!(3), "{error}");
        } else {
            assert!(["unclosed_quote", "in_source_conflict", "field_count", "line_too_long", ""].contains(&reason), "{error}");
        }
        assert!(lab.rows("pyiceberg").len() <= 2);
    }

    // Blank lines without end are no rows.
    write("blank.csv.zst", zstd(&[b"Time,Tag,Value\n".to_vec(), vec![b'\n'; 128 * MIB], b"2024-05-01T00:09:00Z,b,2\n".to_vec()].concat()));
    let manifest = peak_below(&lab, &format!("--from blank.csv.zst {MAP}"), 256 * MIB);
    assert_eq!((&manifest["rows_written"], &manifest["rows_read"]), (&json!(1), &json!(1)), "{manifest}");

    let long =
        [b"Time,Tag,Value\n2024-05-01T00:01:00Z,c,".to_vec(), vec![b'1'; 10 * MIB], b"\n2024-05-01T00:02:00Z,c,3\n".to_vec()].concat();
    write("long.csv", long);
    let error = lab.backfill_outcome(&format!("--from long.csv {MAP}")).error(3);
    assert_eq!((&error["reason"], &error["line"], &error["file"]), (&json!("line_too_long"), &json!(2), &json!("long.csv")), "{error}");
    let manifest = lab.backfill(&format!("--from long.csv {MAP} --on-bad-row skip"));
    assert_eq!((&manifest["rejected"], &manifest["rows_written"]), (&json!(1), &json!(1)), "{manifest}");
}

#[test]
fn a_hundred_thousand_columns() {
    let mut v = Variants::new();
    let names: String = (0..100_000).map(|i| format!("c{i},")).collect();
    let blanks = ",".repeat(100_000);
    let wide = format!("{names}Time,Value\n{blanks}2024-05-01T00:00:00Z,1\n{blanks}2024-05-01T00:01:00Z,2\n");
    v.good("wide.csv", wide, "", json!([["2024-05-01T00:00:00Z", 1], ["2024-05-01T00:01:00Z", 2]]));
    let many = format!("Time,Value\n2024-05-01T00:00:00Z,1{blanks}\n");
    v.bad("many.csv", many, "", json!({"reason": "field_count", "line": 2, "expected_fields": 2, "found_fields": 100_002}));
    v.finish();
}

#[test]
fn folders_with_pipes_loops_and_closed_files() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    let csv = "ts,device_id,value,quality\n2024-05-01T00:00:00Z,a,1,0\n";
    let write = |file: &str| {
        std::fs::create_dir_all(lab.path(file).parent().unwrap()).unwrap();
        std::fs::write(lab.path(file), csv).unwrap();
    };
    write("loop/a.csv");
    symlink(lab.path("loop"), lab.path("loop/again")).unwrap();
    symlink("self", lab.path("loop/self")).unwrap();
    symlink("nowhere", lab.path("loop/dangling.csv")).unwrap();
    let outcome = lab.backfill_outcome("--from loop");
    assert!(matches!(outcome.code, Some(0 | 2 | 3)), "{outcome}");
    if outcome.code == Some(0) {
        assert_eq!(outcome.manifest()["rows_read"], json!(1), "the same file once");
    } else {
        assert!(outcome.json()["error"]["file"].is_string(), "{outcome}");
    }

    write("pipe/a.csv");
    let pipe = lab.path("pipe/b.csv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for from in ["pipe", "pipe/b.csv", "'pipe/*.csv'"] {
        // Must not wait for a writer.
        let started = std::time::Instant::now();
        let outcome = lab.backfill_outcome(&format!("--from {from} --again"));
        assert!(started.elapsed().as_secs() < 60, "{outcome}");
        assert!(matches!(outcome.code, Some(0 | 2 | 3)), "{outcome}");
        if outcome.code != Some(0) {
            assert!(outcome.stdout.contains("b.csv"), "{outcome}");
        }
    }

    write("closed/a.csv");
    std::fs::set_permissions(lab.path("closed/a.csv"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(lab.path("closed/a.csv")).is_ok() {
        println!("run as root: every file can be read");
        return;
    }
    let outcome = lab.backfill_outcome("--from closed");
    let error = outcome.json()["error"].clone();
    assert_eq!((&error["reason"], &error["file"]), (&json!("path_not_readable"), &json!("closed/a.csv")), "{outcome}");
}

/// Values become partition folders: none leaves the table, none meets another, and all come back as they were.
#[test]
fn values_that_look_like_paths_stay_in_the_table() {
    let lab = Lab::new();
    let create = "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double --time-column ts \
                  --series-key device_id --partition identity(device_id)";
    lab.timelake(&split_words(create)).success();
    let devices = [
        "../../etc/passwd",
        "..",
        ".",
        "/",
        "/etc/passwd",
        "a/b",
        "a%2Fb",
        "a%b",
        "a b",
        "a=b",
        "a\\b",
        "C:\\x",
        "ä",
        "a\u{308}",
        "\u{202e}rtl",
        "line\nbreak",
        "quote\"s",
        "it's",
        "null",
        "__HIVE_DEFAULT_PARTITION__",
        "$HOME",
        "*",
        "?x#y",
        " ",
        "\u{1f600}",
    ];
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let rows: String = devices.iter().enumerate().map(|(i, device)| format!("2024-05-01T00:{i:02}:00Z,{},{i}\n", quoted(device))).collect();
    std::fs::write(lab.path("keys.csv"), format!("ts,device_id,value\n{rows}")).unwrap();
    let manifest = lab.backfill("--from keys.csv");
    assert_eq!(manifest["rows_written"], json!(devices.len()), "{manifest}");
    let expected: Vec<Value> = devices
        .iter()
        .enumerate()
        .map(|(i, device)| json!({"ts": format!("2024-05-01T00:{i:02}:00.000000Z"), "device_id": device, "value": i}))
        .collect();
    lab.assert_rows(&expected);
    let inspected = lab.inspect();
    let location = lab.lake().canonicalize().unwrap();
    for file in inspected["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let path =
            std::path::Path::new(path.strip_prefix("file://").unwrap_or(path)).canonicalize().unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(path.starts_with(&location), "{path:?} is not in the lake");
    }
    assert!(!lab.path("etc").exists() && !lab.lake().join("etc").exists());
}
