//! Text files → listing, inspection, batches: what users export, and what goes wrong with it.

mod common;

use arrow::array::*;
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::*;
use common::{SENSOR, map, try_spec};
use std::io::Write;
use std::path::Path;
use timelake_model::request::{RowOptions, TextOptions};
use timelake_model::{Error, Reason, Result};
use timelake_source::{Inspection, Position, SourceBatch, SourceSpec, Sources, inspect_all, list, read};

const NOTES: &str = "ts:timestamptz;device_id:string;value:double;note:string";

const MAP: &str = "ts=Time,device_id=Tag,value=Value";

fn with_text(map_text: &str, text: TextOptions) -> RowOptions {
    RowOptions { text, ..map(map_text) }
}

fn inspected(folder: &Path, from: &[&str], spec: &SourceSpec) -> Result<Vec<Inspection>> {
    let from: Vec<String> = from.iter().map(|text| text.to_string()).collect();
    inspect_all(&list(&from, &Sources::local(), folder, false, spec.format())?, &Sources::local(), spec, 2, &|| Ok(()))
}

/// What one file gives: rows as texts, bad records, repeated headers, and the error that ended it.
#[derive(Default, Debug)]
struct Got {
    rows: Vec<String>,
    bad: Vec<Error>,
    nulled: Vec<u64>,
    repeated_headers: u64,
    error: Option<Error>,
}

impl Got {
    fn lines(&self) -> Vec<u64> {
        self.rows.iter().map(|row| row.split_once(' ').unwrap().0.parse().unwrap()).collect()
    }
    fn only_bad(&self) -> &Error {
        assert_eq!(self.bad.len(), 1, "{self:?}");
        &self.bad[0]
    }
}

fn row_texts(batch: &mut SourceBatch, spec: &SourceSpec, got: &mut Got) -> Result<()> {
    let times = batch.times()?;
    let mut lines: Vec<String> = (0..batch.rows()).map(|row| batch.position(row).number().to_string()).collect();
    got.bad.extend(times.faults.into_iter().map(|fault| {
        let at = batch.position(fault.row as usize);
        fault.into_error(batch.object(), spec, spec.time(), at)
    }));
    for target in 0..spec.columns().len() {
        let column = batch.column(target, None)?;
        got.nulled.resize(spec.columns().len(), 0);
        got.nulled[target] += column.nulled;
        if target != spec.time() {
            got.bad.extend(column.faults.into_iter().map(|fault| {
                let at = batch.position(fault.row as usize);
                fault.into_error(batch.object(), spec, target, at)
            }));
        }
        let texts = cast(&column.array, &DataType::Utf8).unwrap();
        let texts = texts.as_string::<i32>();
        for (row, line) in lines.iter_mut().enumerate() {
            *line += " ";
            *line += if texts.is_valid(row) { texts.value(row) } else { "NULL" };
        }
    }
    got.rows.extend(lines);
    Ok(())
}

fn got_from(inspection: &Inspection) -> Result<Got> {
    let spec = inspection.bound.spec().clone();
    let mut got = Got::default();
    for batch in read(&inspection.bound, &[0])? {
        match batch {
            Ok(mut batch) => {
                assert!(batch.bad_records.iter().all(|bad| bad.position == Position::Line(bad.error.place.line.unwrap())));
                got.bad.extend(batch.bad_records.drain(..).map(|bad| bad.error));
                got.repeated_headers += batch.repeated_headers;
                row_texts(&mut batch, &spec, &mut got)?;
            }
            Err(error) => got.error = Some(error),
        }
    }
    Ok(got)
}

fn read_file(name: &str, bytes: &[u8], table: &str, options: RowOptions) -> Result<Got> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    let found = inspected(folder.path(), &[name], &*try_spec(table, options)?)?;
    assert!(found[0].bound.is_text());
    got_from(&found[0])
}

fn got(bytes: &[u8], options: RowOptions) -> Got {
    read_file("input.csv", bytes, SENSOR, options).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const ROWS: [&str; 2] = ["2 2024-05-01T00:00:00Z a 1.5", "3 2024-05-01T00:01:00Z a 2.5"];

#[test]
fn marks_encodings_and_compressions_give_the_same_rows() {
    let text = "Time,Tag,Value\r\n2024-05-01T00:00:00Z,a,1.5\r\n2024-05-01T00:01:00Z,a,2.5\r\n";
    let little: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_be_bytes).collect();
    let marked = format!("\u{feff}{text}").into_bytes();
    let (head, rest) = text.as_bytes().split_at(20);
    for (name, bytes) in [
        ("plain.csv", text.as_bytes().to_vec()),
        ("marked.csv", marked.clone()),
        ("little.csv", little.clone()),
        ("big.csv", big),
        ("lone.csv", text.replace("\r\n", "\r").into_bytes()),
        ("members.csv.gz", [gzip(head), gzip(rest)].concat()),
        ("marked.csv.gz", gzip(&marked)),
        ("utf16.csv.zst", zstd::encode_all(&little[..], 1).unwrap()),
        ("named-wrong.csv", gzip(text.as_bytes())),
        ("no-gzip.csv.gz", text.as_bytes().to_vec()),
        ("padded.CSV.GZ", [gzip(text.as_bytes()), vec![0; 512]].concat()),
        ("export", text.as_bytes().to_vec()),
    ] {
        let got = read_file(name, &bytes, SENSOR, map(MAP)).unwrap();
        assert_eq!(got.rows, ROWS, "{name}");
        assert!(got.bad.is_empty() && got.error.is_none());
    }
}

#[test]
fn delimiters_are_found_by_the_columns_that_are_needed() {
    for (text, name) in [
        ("Time;Tag;Value\n2024-05-01T00:00:00Z;a;1.5\n2024-05-01T00:01:00Z;a;2.5\n", "a.csv"),
        ("Time\tTag\tValue\n2024-05-01T00:00:00Z\ta\t1.5\n2024-05-01T00:01:00Z\ta\t2.5\n", "a.csv"),
        ("Time|Tag|Value\n2024-05-01T00:00:00Z|a|1.5\n2024-05-01T00:01:00Z|a|2.5\n", "a.csv"),
        ("\"Time\";\"Tag\";\"Value\"\n2024-05-01T00:00:00Z;a;1.5\n2024-05-01T00:01:00Z;a;2.5\n", "a.csv"),
        ("Time\tTag\tValue\n2024-05-01T00:00:00Z\ta\t1.5\n2024-05-01T00:01:00Z\ta\t2.5\n", "a.tsv.gz"),
        (" time , TAG ,Value,\n2024-05-01T00:00:00Z,a,1.5,\n2024-05-01T00:01:00Z,a,2.5,\n", "a.csv"),
    ] {
        assert_eq!(read_file(name, text.as_bytes(), SENSOR, map(MAP)).unwrap().rows, ROWS, "{text}");
    }
    let sep = b"\xef\xbb\xbf\"sep=;\"\r\nTime;Tag;Value\r\n2024-05-01T00:00:00+02:00;a;1.5\r\n";
    assert_eq!(got(sep, map(MAP)).rows, ["3 2024-04-30T22:00:00Z a 1.5"]);
    // A header with every delimiter in it.
    let mixed = b"\"Time, UTC\";Tag;\"Value | x\"\n2024-05-01T00:00:00Z;a;1\n";
    assert_eq!(got(mixed, map("ts=Time\\, UTC,device_id=Tag,value=Value | x")).rows, ["2 2024-05-01T00:00:00Z a 1.0"]);
}

#[test]
fn headers_stand_where_the_user_says() {
    let text = b"Station \"Halle\nexported, today\n\nTime,Tag,Value\nUTC,,degC\n2024-05-01T00:00:00Z,a,1.5\n";
    let options = TextOptions { header_line: Some(4), skip_after_header: 1, ..Default::default() };
    assert_eq!(got(text, with_text(MAP, options)).rows, ["6 2024-05-01T00:00:00Z a 1.5"]);
    let error = read_file("a.csv", text, SENSOR, map(MAP)).unwrap_err();
    assert_eq!(error.reason, Reason::ColumnNotFound);
    assert_eq!(error.hint.as_deref(), Some("line 4 has the columns: add --header-line 4"));
    let wrong = TextOptions { delimiter: Some(";".into()), ..Default::default() };
    let error = read_file("a.csv", b"Time,Tag,Value\n", SENSOR, with_text(MAP, wrong)).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("line 1 has the columns: add --delimiter ','"));
    let beyond = TextOptions { header_line: Some(9), ..Default::default() };
    assert_eq!(read_file("a.csv", text, SENSOR, with_text(MAP, beyond)).unwrap_err().reason, Reason::InvalidOption);
    let names = TextOptions { columns: ["Time", "Tag", "Value"].map(String::from).to_vec(), ..Default::default() };
    assert_eq!(got(b"2024-05-01T00:00:00Z;a;1.5\n", with_text(MAP, names)).rows, ["1 2024-05-01T00:00:00Z a 1.5"]);
    let error = read_file("a.csv", b"Time,Tag,Value,Value\n1,2,3,4\n", SENSOR, map(MAP)).unwrap_err();
    assert_eq!((error.reason, error.place.candidates.len()), (Reason::AmbiguousColumn, 2));
}

#[test]
fn a_repeated_header_is_counted_and_is_no_row() {
    let text = b"Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\nTime,Tag,Value\n\n  \n2024-05-01T00:02:00Z,a,3\n\xef\xbb\xbfTime,Tag,Value\r\n";
    let got = got(text, map(MAP));
    assert_eq!((got.lines(), got.repeated_headers, got.bad.len()), (vec![2, 6], 2, 0));
}

#[test]
fn empty_fields_are_null_and_quoted_ones_only_in_texts_are_not() {
    let text = b"Time,Tag,Value,note\n2024-05-01T00:00:00Z,a,,\n2024-05-01T00:01:00Z,a,\"\",\"\"\n2024-05-01T00:02:00Z,a,\" 7 \",\" x \"\n";
    let got = read_file("a.csv", text, NOTES, map(MAP)).unwrap();
    assert_eq!(got.rows, ["2 2024-05-01T00:00:00Z a NULL NULL", "3 2024-05-01T00:01:00Z a NULL ", "4 2024-05-01T00:02:00Z a 7.0  x "]);
    let keys =
        read_file("a.csv", b"Time,Tag,Value\n,a,1\n2024-05-01T00:00:00Z,,1\n2024-05-01T00:00:00Z,\"\",1\n", SENSOR, map(MAP)).unwrap();
    let told: Vec<_> = keys.bad.iter().map(|error| (error.reason, error.place.line)).collect();
    assert_eq!(told, [(Reason::NullInKey, Some(2)), (Reason::NullInKey, Some(3))], "a quoted empty text is a text");
}

#[test]
fn texts_and_numbers_that_mean_null_are_counted() {
    let text =
        b"Time,Tag,Value,note\n2024-05-01T00:00:00Z,-,-,-\n2024-05-01T00:01:00Z,a, \\N ,x\n2024-05-01T00:02:00Z,a,-9999.0,\xc2\xa0-\n";
    let text_options = TextOptions { null: vec!["-".into(), "\\N".into()], null_number: vec!["value=-9999".into()], ..Default::default() };
    let got = read_file("a.csv", text, NOTES, with_text(MAP, text_options)).unwrap();
    assert_eq!(got.rows, ["2 2024-05-01T00:00:00Z - NULL NULL", "3 2024-05-01T00:01:00Z a NULL x", "4 2024-05-01T00:02:00Z a NULL NULL"]);
    assert_eq!(got.nulled, [0, 0, 3, 2]);
    for (pair, reason) in [
        ("vaule=1", Reason::UnknownTarget),
        ("note=1", Reason::InvalidOption),
        ("value=x", Reason::InvalidOption),
        ("value=", Reason::InvalidOption),
        ("value", Reason::InvalidOption),
        ("device_id=1", Reason::InvalidOption),
    ] {
        let options = TextOptions { null_number: vec![pair.into()], ..Default::default() };
        assert_eq!(try_spec(NOTES, with_text("", options)).unwrap_err().reason, reason, "{pair}");
    }
}

#[test]
fn texts_where_numbers_should_be_go_to_their_column() {
    const TABLE: &str = "ts:timestamptz;device_id:string;value:double;low:int;note:string";
    let text = b"Time,Tag,Value,low,note\n2024-05-01T00:00:00Z,a,1,2,kept out\n2024-05-01T00:01:00Z,a,Bad,Bad,x\n2024-05-01T00:02:00Z,a,I/O Timeout,\xe6\x95\x85,x\n";
    let options =
        |column: &str, map_text: &str| with_text(map_text, TextOptions { bad_text_to: Some(column.into()), ..Default::default() });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), text).unwrap();
    let found = inspected(folder.path(), &["a.csv"], &try_spec(TABLE, options("note", MAP)).unwrap()).unwrap();
    assert!(found[0].warnings[0].contains("its column note is not read"), "{:?}", found[0].warnings);
    let got = got_from(&found[0]).unwrap();
    assert_eq!(
        got.rows,
        [
            "2 2024-05-01T00:00:00Z a 1.0 2 NULL",
            "3 2024-05-01T00:01:00Z a NULL NULL Bad",
            "4 2024-05-01T00:02:00Z a NULL NULL I/O Timeout; 故"
        ]
    );
    assert!(got.bad.is_empty());
    assert_eq!(got.nulled, [0, 0, 2, 2, 0]);
    // Only kept rows count.
    let mut batch = read(&found[0].bound, &[0]).unwrap().next().unwrap().unwrap();
    let keep = BooleanBuffer::from(vec![true, false, true]);
    assert_eq!(batch.column(2, Some(&keep)).unwrap().nulled, 1);
    let notes = batch.column(4, Some(&keep)).unwrap().array;
    assert_eq!(notes.as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("I/O Timeout; 故")]);
    for (column, map_text, reason) in [
        ("device_id", MAP, Reason::InvalidOption),
        ("value", MAP, Reason::InvalidOption),
        ("nothing", MAP, Reason::UnknownTarget),
        ("note", "note=x", Reason::DuplicateMapping),
    ] {
        assert_eq!(try_spec(TABLE, options(column, map_text)).unwrap_err().reason, reason, "{column}");
    }
}

#[test]
fn joined_columns_and_constants() {
    let text = "Date;Time;Power\n2006-12-31;23:59:00;2.5\n;00:00:00;1\n";
    let options = RowOptions { set: vec!["device_id=house".into()], tz: Some("UTC".into()), ..map("ts=Date+Time,value=power") };
    let got = got(text.as_bytes(), options);
    assert_eq!(got.rows[0], "2 2006-12-31T23:59:00Z house 2.5");
    assert_eq!((got.only_bad().reason, got.bad[0].place.line), (Reason::NullInKey, Some(3)));
    let error = read_file("a.csv", text.as_bytes(), SENSOR, map("ts=Date+Tiem,device_id=Power")).unwrap_err();
    assert_eq!((error.reason, error.place.column.as_deref()), (Reason::ColumnNotFound, Some("Tiem")));
}

#[test]
fn records_that_cannot_be_rows_are_told_and_the_rest_is_read() {
    let place = |text: &[u8]| {
        let got = read_file("a.csv", text, NOTES, map(MAP)).unwrap();
        assert_eq!(got.rows.len(), 2, "{got:?}");
        got.only_bad().clone()
    };
    let around = |middle: &[u8]| {
        [b"Time,Tag,Value,note\n2024-05-01T00:00:00Z,a,1,ok\n".as_slice(), middle, b"\n2024-05-01T00:02:00Z,a,3,ok\n"].concat()
    };
    let short = place(&around(b"2024-05-01T00:01:00Z,2"));
    assert_eq!(
        (short.reason, short.place.line, short.place.expected_fields, short.place.found_fields),
        (Reason::FieldCount, Some(3), Some(4), Some(2))
    );
    let trailing = place(&around(b"2024-05-01T00:01:00Z,a,2,ok,"));
    assert!(trailing.reason == Reason::FieldCount && trailing.hint.unwrap().contains("at the end of the line"));
    let latin = place(&around(b"2024-05-01T00:01:00Z,a,2,20 \xb0C"));
    assert_eq!(latin.reason, Reason::InvalidUtf8);
    assert_eq!(
        (latin.place.column.as_deref(), latin.place.byte.as_deref(), latin.place.byte_offset),
        (Some("note"), Some("0xB0"), Some(76))
    );
    assert!(latin.hint.unwrap().contains("--encoding"));
    let nul = place(&around(b"\x00\x00\x002024-05-01T00:01:00Z,a,2,x"));
    assert_eq!((nul.reason, nul.place.line, nul.place.byte_offset), (Reason::NulByte, Some(3), Some(48)));
    let quote = place(&around(b"2024-05-01T00:01:00Z,a,2,\"say \"ok\"\""));
    assert_eq!((quote.reason, quote.place.column.as_deref()), (Reason::BadValue, Some("note")));
    let long = place(&around(format!("2024-05-01T00:01:00Z,a,2,{}", "x".repeat(10 << 20)).as_bytes()));
    assert_eq!((long.reason, long.place.line, long.place.limit), (Reason::LineTooLong, Some(3), Some(1 << 20)));
}

#[test]
fn what_stops_comes_after_the_rows_before_it() {
    let good = "Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n";
    let unclosed = got(format!("{good}2024-05-01T00:01:00Z,\"a,2\n2024-05-01T00:02:00Z,a,3\n").as_bytes(), map(MAP));
    let error = unclosed.error.unwrap();
    assert_eq!((unclosed.rows.len(), error.reason, error.place.line), (1, Reason::UnclosedQuote, Some(3)));
    // Cut in the middle of the third line: what is there of it is no row.
    let lines = good.to_string() + &(0..50_000).map(|row| format!("2024-05-01T00:01:00Z,a,{row}\n")).collect::<String>();
    let whole = gzip(lines.as_bytes());
    let cut = read_file("a.csv.gz", &whole[..whole.len() / 2], SENSOR, map(MAP)).unwrap();
    let error = cut.error.clone().unwrap();
    assert_eq!((error.reason, error.place.file.as_deref()), (Reason::CorruptCompression, Some("a.csv.gz")));
    assert_eq!(error.place.line, Some(cut.lines().last().unwrap() + 1));
    assert!(cut.bad.is_empty() && cut.rows.len() > 1_000);
    let garbage = read_file("a.csv.gz", &[gzip(good.as_bytes()), b"more".to_vec()].concat(), SENSOR, map(MAP)).unwrap();
    assert_eq!((garbage.rows.len(), garbage.error.unwrap().reason), (1, Reason::CorruptCompression));
}

#[test]
fn utf16_without_a_mark_is_recognised() {
    let text: Vec<u8> = "Time,Tag,Value\n2024-05-01T00:00:00Z,ä,1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let error = read_file("a.csv", &text, SENSOR, map(MAP)).unwrap_err();
    assert_eq!((error.reason, error.place.line), (Reason::NulByte, Some(1)));
    assert!(error.hint.unwrap().contains("--encoding utf-16le"));
    let options = TextOptions { encoding: Some("utf-16le".into()), ..Default::default() };
    assert_eq!(got(&text, with_text(MAP, options)).rows, ["2 2024-05-01T00:00:00Z ä 1.0"]);
}

#[test]
fn empty_files_are_errors_unless_others_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("zero.csv", b"");
    write("mark.csv", b"\xef\xbb\xbf");
    write("mark.csv.gz", &gzip(b"\xef\xbb\xbf"));
    write("blank.csv", b"\r\n\r\n");
    write("zero.parquet", b"");
    write("header.csv", b"Time,Tag,Value\n");
    write("ok.csv", b"Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n");
    let spec = try_spec(SENSOR, map(MAP)).unwrap();
    for name in ["zero.csv", "mark.csv", "mark.csv.gz", "blank.csv"] {
        let error = inspected(folder.path(), &[name], &spec).unwrap_err();
        assert_eq!((error.reason, error.place.file.as_deref()), (Reason::EmptyFile, Some(name)));
    }
    assert_eq!(inspected(folder.path(), &["zero.parquet"], &spec).unwrap_err().reason, Reason::NotACompleteParquetFile);
    let found = inspected(folder.path(), &["zero.csv", "ok.csv"], &spec).unwrap();
    assert_eq!(found[0].warnings, ["zero.csv is empty"]);
    assert!(got_from(&found[0]).unwrap().rows.is_empty());
    assert_eq!(got_from(&found[1]).unwrap().rows.len(), 1);
    let header = inspected(folder.path(), &["header.csv"], &spec).unwrap();
    assert!(got_from(&header[0]).unwrap().rows.is_empty());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let rows = |count: usize| "Time,Tag,Value\n".to_string() + &"2024-05-01T00:00:00Z,a,1\n".repeat(count);
    std::fs::write(&path, rows(200_000)).unwrap();
    let found = inspected(folder.path(), &["a.csv"], &try_spec(SENSOR, map(MAP)).unwrap()).unwrap();
    let mut reader = read(&found[0].bound, &[0]).unwrap();
    assert!((1..200_000).contains(&reader.next().unwrap().unwrap().rows()));
    std::fs::write(&path, rows(200_001)).unwrap();
    let last = reader.filter_map(Result::err).next().unwrap();
    assert_eq!(last.reason, Reason::SourceChanged);
    assert_eq!(read(&found[0].bound, &[0]).map(|_| ()).unwrap_err().reason, Reason::SourceChanged);
}

#[test]
fn folders_give_what_is_named_csv_and_more_when_told() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.csv", "b.CSV.gz", "c.tsv", "d.txt", "e", "f.json", "_SUCCESS", "g.dat"] {
        std::fs::write(folder.path().join(name), "Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n").unwrap();
    }
    let names = |format: Option<&str>| -> Vec<String> {
        let spec = try_spec(SENSOR, RowOptions { format: format.map(str::to_string), ..map(MAP) }).unwrap();
        let from = [folder.path().display().to_string()];
        let found = list(&from, &Sources::local(), folder.path(), false, spec.format()).unwrap();
        found.into_iter().map(|object| object.shown.rsplit_once('/').unwrap().1.to_string()).collect()
    };
    assert_eq!(names(None), ["a.csv", "b.CSV.gz", "c.tsv"]);
    assert_eq!(names(Some("csv")), ["a.csv", "b.CSV.gz", "c.tsv", "d.txt", "e", "g.dat"]);
}

#[test]
fn a_bomb_of_one_field_is_a_long_record() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n2024-05-01T00:01:00Z,a,").unwrap();
    let zeros = vec![b'0'; 1 << 20];
    (0..128).for_each(|_| encoder.write_all(&zeros).unwrap());
    encoder.write_all(b"\n2024-05-01T00:02:00Z,a,3\n").unwrap();
    let got = read_file("a.csv.gz", &encoder.finish().unwrap(), SENSOR, map(MAP)).unwrap();
    assert_eq!(got.lines(), [2, 4]);
    assert_eq!((got.only_bad().reason, got.bad[0].place.line), (Reason::LineTooLong, Some(3)));
}

#[test]
fn damaged_files_never_panic_or_hang() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    let text: String =
        "Time,Tag,Value\n".to_string() + &(0..40).map(|row| format!("2024-05-01T00:{row:02}:00Z,\"a, {row}\",{row}\n")).collect::<String>();
    let sources = [text.as_bytes().to_vec(), gzip(text.as_bytes()), zstd::encode_all(text.as_bytes(), 1).unwrap()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let spec = try_spec(SENSOR, map(MAP)).unwrap();
    let mut runner = TestRunner::new(Config::with_cases(300));
    let strategy =
        (0..sources.len(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), any::<prop::sample::Index>());
    runner
        .run(&strategy, |(source, changes, cut)| {
            let mut bytes = sources[source].clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 2);
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(found) = inspected(folder.path(), &["a.csv"], &spec)
                && found[0].bound.is_text()
            {
                let got = got_from(&found[0]).unwrap();
                prop_assert!(got.rows.len() + got.bad.len() <= 200);
            }
            Ok(())
        })
        .unwrap();
}
