use super::super::decode::TextStream;
use super::*;
use proptest::prelude::*;
use std::io::{Cursor, Read};

/// Gives bytes in pieces of one size.
struct Pieces(Cursor<Vec<u8>>, usize);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.1);
        self.0.read(&mut buffer[..length])
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Told {
    Row(u64, Vec<(String, bool)>),
    Bad(u64, RecordFault),
    Unclosed(u64, usize),
    Broken(u64),
}

fn told_in_pieces(bytes: &[u8], delimiter: u8, piece: usize) -> Vec<Told> {
    let stream = TextStream::open(Box::new(Pieces(Cursor::new(bytes.to_vec()), piece)), None, "a.csv").unwrap();
    let mut records = Records::new(stream, delimiter);
    let mut told = Vec::new();
    let mut scratch = Vec::new();
    loop {
        match records.next() {
            Ok(Step::End) => return told,
            Ok(Step::Bad { line, fault }) => told.push(Told::Bad(line, fault)),
            Ok(Step::Record(record)) => {
                let fields = records.fields().to_vec();
                let text = |field: &Field, scratch: &mut Vec<u8>| String::from_utf8(records.text(*field, scratch).to_vec()).unwrap();
                told.push(Told::Row(record.line, fields.iter().map(|field| (text(field, &mut scratch), field.quoted)).collect()));
            }
            Err(Stop::UnclosedQuote { line, field }) => {
                told.push(Told::Unclosed(line, field));
                return told;
            }
            Err(Stop::Io { line, .. }) => {
                told.push(Told::Broken(line));
                return told;
            }
        }
    }
}

fn told(bytes: &[u8]) -> Vec<Told> {
    told_in_pieces(bytes, b',', usize::MAX)
}

/// Rows as texts; quoted fields in brackets.
fn rows(bytes: &[u8]) -> Vec<(u64, String)> {
    let field = |(text, quoted): (String, bool)| if quoted { format!("[{text}]") } else { text };
    told(bytes)
        .into_iter()
        .map(|told| match told {
            Told::Row(line, fields) => (line, fields.into_iter().map(field).collect::<Vec<_>>().join("|")),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn row(line: u64, text: &str) -> (u64, String) {
    (line, text.to_string())
}

#[test]
fn every_line_end_and_blank_lines_count() {
    for (bytes, line) in
        [("a,b\n1,2\n\n\n3,4", 5), ("a,b\r\n1,2\r\n\r\n\r\n3,4\r\n", 5), ("a,b\r1,2\r\r\r3,4\r", 5), ("a,b\r\r\n1,2\n3,4\n", 4)]
    {
        let found = rows(bytes.as_bytes());
        assert_eq!(found[0], row(1, "a|b"));
        assert_eq!(found[2], row(line, "3|4"), "{bytes:?}");
    }
    assert_eq!(rows(b"a,b\n1,2\n\x1a"), [row(1, "a|b"), row(2, "1|2")]);
    assert!(told(b"").is_empty() && told(b"\n\r\n\r").is_empty());
}

#[test]
fn quotes_hold_delimiters_line_ends_and_doubled_quotes() {
    let text = b"t,n\n1,\"first\n2,99,no row\"\r\n2,\"said \"\"ok\"\", then\"\n3,\"\"\n4,\"a\r\nb\rc\"\n5,x\"y\n6, \"z\"\n7,\"\"\"\"";
    let wanted = [
        row(1, "t|n"),
        row(2, "1|[first\n2,99,no row]"),
        row(4, "2|[said \"ok\", then]"),
        row(5, "3|[]"),
        row(6, "4|[a\r\nb\rc]"),
        row(9, "5|x\"y"),
        row(10, "6| \"z\""),
        row(11, "7|[\"]"),
    ];
    assert_eq!(rows(text), wanted);
    assert_eq!(rows(b"\"a\",\"b\"\n\"1\",2\n"), [row(1, "[a]|[b]"), row(2, "[1]|2")]);
    assert_eq!(rows(b"a,\n,b\n,"), [row(1, "a|"), row(2, "|b"), row(3, "|")]);
}

#[test]
fn an_unclosed_quote_is_named_where_it_opens() {
    assert_eq!(told(b"a,b\n\"x\ny\",\"1\n2,3\n").last(), Some(&Told::Unclosed(3, 1)));
    assert_eq!(told(b"a,b\n1,\"2\n3,4\n")[1], Told::Unclosed(2, 1));
}

#[test]
fn text_after_a_closing_quote_spoils_its_record_only() {
    let found = told(b"a,b\n1,\"5\" pipe\",x\n2,3\n");
    let fault = RecordFault::TextAfterQuote { field: 1, value: "\"5\" pipe\",x".into() };
    assert_eq!(found[1], Told::Bad(2, fault));
    assert_eq!(found.len(), 3);
}

#[test]
fn bytes_no_text_may_hold_are_placed() {
    let found = told(b"Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n\0\0\0,a,2\n3,a,\xb0\n");
    assert_eq!(found[2], Told::Bad(3, RecordFault::Nul { stored: 40, looks_like_utf16: None }));
    assert_eq!(found[3], Told::Bad(4, RecordFault::Undecodable { stored: 52, byte: 0xb0, field: 2 }));
    let marked = [b"\xef\xbb\xbfa,b\n1,".as_slice(), b"\xff\n"].concat();
    assert_eq!(told(&marked)[1], Told::Bad(2, RecordFault::Undecodable { stored: 9, byte: 0xff, field: 1 }));
    let utf16: Vec<u8> = "Time,Tag\r\n1,2\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let Told::Bad(1, RecordFault::Nul { looks_like_utf16, .. }) = &told(&utf16)[0] else { panic!() };
    assert_eq!(*looks_like_utf16, Some("utf-16le"));
    let utf16: Vec<u8> = "Time,Tag\r\n1,2\r\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let Told::Bad(1, RecordFault::Nul { looks_like_utf16, .. }) = &told(&utf16)[0] else { panic!() };
    assert_eq!(*looks_like_utf16, Some("utf-16be"));
}

#[test]
fn a_long_record_is_passed_over() {
    let at_limit = "x".repeat(RECORD_LIMIT_BYTES - 2);
    let long = format!("a,b\n1,{}\n2,{at_limit}\n3,4\n", "y".repeat(10 << 20));
    let found = told(long.as_bytes());
    assert_eq!(found[1], Told::Bad(2, RecordFault::TooLong { quote_line: None }));
    assert!(matches!(&found[2], Told::Row(3, fields) if fields[1].0 == at_limit));
    assert!(matches!(&found[3], Told::Row(4, _)));
    // At the end of the file, with and without a line end.
    for end in ["", "\r\n"] {
        let found = told(format!("a,b\n1,{}{end}", "y".repeat(RECORD_LIMIT_BYTES)).as_bytes());
        assert_eq!(found[1..], [Told::Bad(2, RecordFault::TooLong { quote_line: None })]);
    }
}

#[test]
fn an_unclosed_quote_that_runs_on_is_a_long_record() {
    let lines = "0123456789,1\n".repeat(RECORD_LIMIT_BYTES / 13 + 2);
    let found = told(format!("a,b\n1,\"x\n{lines}2,3\n").as_bytes());
    assert_eq!(found[1], Told::Bad(2, RecordFault::TooLong { quote_line: Some(2) }));
    let last = found.last().unwrap();
    let line = 3 + lines.lines().count() as u64;
    assert!(matches!(last, Told::Row(found, _) if *found == line), "{last:?} {line}");
    // Nothing after the limit: it is still that.
    let found = told(format!("a,b\n1,\"{}", "x".repeat(RECORD_LIMIT_BYTES + 9)).as_bytes());
    assert_eq!(found[1..], [Told::Bad(2, RecordFault::TooLong { quote_line: Some(2) })]);
}

#[test]
fn raw_lines_are_passed_over_whatever_they_hold() {
    let stream = |bytes: &[u8]| TextStream::open(Box::new(Pieces(Cursor::new(bytes.to_vec()), 1)), None, "a.csv").unwrap();
    let mut records = Records::new(stream(b"it's \"open\r\nx\ry\n\na,b\n"), b',');
    assert_eq!(records.peek_line(100).unwrap(), b"it's \"open");
    assert_eq!(records.peek_line(4).unwrap(), b"it's");
    for line in 2..=5 {
        assert!(records.skip_line().unwrap());
        assert_eq!(records.line(), line);
    }
    assert!(matches!(records.next(), Ok(Step::Record(record)) if record.line == 5));
    assert!(!records.skip_line().unwrap());
}

/// The state machine of RFC 4180, byte by byte, as Python's csv module has it.
fn reference(bytes: &[u8]) -> Vec<(u64, Vec<Vec<u8>>)> {
    let mut rows = Vec::new();
    let (mut line, mut at) = (1, 0);
    while at < bytes.len() {
        let (start_line, mut fields, mut field, mut quoted) = (line, Vec::new(), Vec::new(), false);
        let mut at_start = true;
        loop {
            let byte = bytes.get(at).copied();
            let next_is = |wanted| bytes.get(at + 1) == Some(&wanted);
            match byte {
                None => break,
                Some(b'"') if quoted && next_is(b'"') => {
                    field.push(b'"');
                    at += 1;
                }
                Some(b'"') if quoted => quoted = false,
                Some(b'"') if at_start => quoted = true,
                Some(b',') if !quoted => {
                    fields.push(std::mem::take(&mut field));
                    at_start = true;
                    at += 1;
                    continue;
                }
                Some(end @ (b'\n' | b'\r')) => {
                    let pair = end == b'\r' && next_is(b'\n');
                    line += 1;
                    if !quoted {
                        at += if pair { 2 } else { 1 };
                        break;
                    }
                    field.push(end);
                    if pair {
                        field.push(b'\n');
                        at += 1;
                    }
                }
                Some(other) => field.push(other),
            }
            at_start = false;
            at += 1;
        }
        fields.push(field);
        rows.push((start_line, fields));
    }
    rows
}

fn written(rows: &[Vec<String>], end: &str, quote_all: bool) -> String {
    let field = |text: &String| {
        let must = quote_all || text.starts_with('"') || text.contains([',', '\n', '\r']);
        if must { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.clone() }
    };
    rows.iter().map(|row| row.iter().map(field).collect::<Vec<_>>().join(",") + end).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn well_formed_text_is_read_as_it_was_written(
        rows in prop::collection::vec(prop::collection::vec("[ab\"\n\r,é ]{0,6}", 2..5), 0..12),
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        quote_all: bool,
    ) {
        let text = written(&rows, end, quote_all);
        let found: Vec<(u64, Vec<Vec<u8>>)> = told(text.as_bytes()).into_iter().map(|told| match told {
            Told::Row(line, fields) => (line, fields.into_iter().map(|(text, _)| text.into_bytes()).collect()),
            other => panic!("{other:?} in {text:?}"),
        }).collect();
        prop_assert_eq!(&found, &reference(text.as_bytes()));
        let texts: Vec<Vec<String>> = found.into_iter().map(|(_, fields)| fields.into_iter().map(|field| String::from_utf8(field).unwrap()).collect()).collect();
        prop_assert_eq!(texts, rows);
    }

    #[test]
    fn any_bytes_in_any_pieces_are_told_the_same(bytes in prop::collection::vec(prop::sample::select(b"a1,\"\n\r\0\xb0\xc3 \xa9".to_vec()), 0..200)) {
        let whole = told(&bytes);
        for piece in [1, 7] {
            prop_assert_eq!(&told_in_pieces(&bytes, b',', piece), &whole);
        }
        // No line is lost: the last one told is not behind the end, and lines only go up.
        let lines: Vec<u64> = whole.iter().filter_map(|told| match told {
            Told::Row(line, _) | Told::Bad(line, _) => Some(*line),
            _ => None,
        }).collect();
        prop_assert!(lines.is_sorted_by(|a, b| a < b));
        prop_assert!(lines.last().is_none_or(|last| *last <= count_line_ends(&bytes) + 1));
    }
}

#[test]
fn blocks_do_not_change_what_is_told() {
    // More than a block of records whose quotes, line ends and characters fall on every offset of its end.
    let mut text = String::new();
    let mut rows = 0;
    while text.len() < 3 * 256 * 1024 {
        text += &format!("{rows},\"q {}\"\"é\r\nx\",{}\r\n", "y".repeat(rows % 13), "z".repeat(rows % 7));
        rows += 1;
    }
    let whole = told(text.as_bytes());
    assert_eq!(whole.len(), rows);
    assert!(matches!(whole.last(), Some(Told::Row(line, _)) if *line == rows as u64 * 2 - 1));
    assert_eq!(told_in_pieces(text.as_bytes(), b',', 7), whole);
    assert_eq!(told_in_pieces(text.as_bytes(), b',', 64 * 1024), whole);
}
