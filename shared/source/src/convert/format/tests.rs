use super::*;
use chrono::{DateTime, Utc};
use proptest::prelude::*;

fn read(pattern: &str, text: &str) -> Option<String> {
    let format = TimestampFormat::parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error} {:?}", error.hint));
    format.read(text).map(|found| {
        let local = DateTime::<Utc>::from_timestamp_micros(found.local_us).unwrap().naive_utc();
        let place = match found.place {
            ClockPlace::Unsaid => String::new(),
            ClockPlace::Offset(us) => format!(" {}", us / 1_000_000),
            ClockPlace::Abbreviation(word) => format!(" {word}"),
        };
        format!("{}{place}{}", local.format("%Y-%m-%dT%H:%M:%S%.f"), if found.truncated { " cut" } else { "" })
    })
}

#[test]
fn texts_fit_or_do_not() {
    for (pattern, text, right) in [
        ("%d/%m/%Y %H:%M:%S", "1/1/2007 0:01:00", Some("2007-01-01T00:01:00")),
        ("%d/%m/%Y %H:%M:%S", "001/1/2007 0:01:00", None),
        ("%d/%m/%Y %H:%M", "1/1/2007 24:00", Some("2007-01-02T00:00:00")),
        ("%d/%m/%Y %H:%M", "1/1/2007 24:01", None),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 12:00 AM", Some("2024-12-31T00:00:00")),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 12:30 pm", Some("2024-12-31T12:30:00")),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 1:30\u{202f}PM", Some("2024-12-31T13:30:00")),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 1:30 a.\u{a0}m.", Some("2024-12-31T01:30:00")),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 13:30 PM", None),
        ("%m/%d/%Y %I:%M %p", "12/31/2024 0:30 AM", None),
        ("%d.%m.%y", "1.2.69", Some("1969-02-01T00:00:00")),
        ("%d.%m.%y", "1.2.68", Some("2068-02-01T00:00:00")),
        ("%d.%m.%y", "1.2.2024", None),
        ("%e %b %Y", " 5 Sept 2024", Some("2024-09-05T00:00:00")),
        ("%b %e, %Y", "May  5, 2024", Some("2024-05-05T00:00:00")),
        ("%d-%b-%y %k:%M", "05-MAR-24  9:05", Some("2024-03-05T09:05:00")),
        ("%B %d %Y", "december 31 2024", Some("2024-12-31T00:00:00")),
        ("%d %B %Y", "31 Dezember 2024", None),
        ("%a %b %e %H:%M:%S %Y", "Sun May  5 10:00:00 2024", Some("2024-05-05T10:00:00")),
        ("%A, %d %B %Y", "Sunday, 05 May 2024", Some("2024-05-05T00:00:00")),
        // The weekday of the date with day and month swapped.
        ("%a %d/%m/%Y", "Wed 04/03/2024", None),
        ("%a %m/%d/%Y", "Wed 04/03/2024", Some("2024-04-03T00:00:00")),
        ("%Y-%j", "2024-366", Some("2024-12-31T00:00:00")),
        ("%Y-%j", "2023-366", None),
        ("%Y%j", "2024001", Some("2024-01-01T00:00:00")),
        ("%Y%m%d%H%M%S", "20240501101500", Some("2024-05-01T10:15:00")),
        ("%Y%m%d%H%M%S", "2024051101500", None),
        ("%Y%m%d%H%M%S%f", "20240501101500123", Some("2024-05-01T10:15:00.123")),
        ("%Y%m%d%H%M%S%3f", "20240501101500123", Some("2024-05-01T10:15:00.123")),
        ("%F %T.%f", "2024-05-01 10:15:00.1234567", Some("2024-05-01T10:15:00.123456 cut")),
        ("%F %T,%f", "2024-05-01 10:15:00,5", Some("2024-05-01T10:15:00.500")),
        ("%F %T.%f", "2024-05-01 10:15:00", None),
        ("%F %T%.f", "2024-05-01 10:15:00", Some("2024-05-01T10:15:00")),
        ("%F %T%.f", "2024-05-01 10:15:00,25", Some("2024-05-01T10:15:00.250")),
        ("%F %T%.f", "2024-05-01 10:15:00.", None),
        ("%F %T%.3f", "2024-05-01 10:15:00.25", None),
        ("%F %T%.3f", "2024-05-01 10:15:00.250", Some("2024-05-01T10:15:00.250")),
        ("%FT%T%z", "2024-05-01T10:15:00+0200", Some("2024-05-01T10:15:00 7200")),
        ("%FT%T%:z", "2024-05-01T10:15:00-02:30", Some("2024-05-01T10:15:00 -9000")),
        ("%FT%T%z", "2024-05-01T10:15:00Z", Some("2024-05-01T10:15:00 0")),
        ("%FT%T%z", "2024-05-01T10:15:00", None),
        ("%F %R %Z", "2024-05-01 10:15 CEST", Some("2024-05-01T10:15:00 CEST")),
        ("%F %R %Z", "2024-05-01 10:15 UTC", Some("2024-05-01T10:15:00 0")),
        ("%F %R %Z", "2024-05-01 10:15 UTC+5", None),
        ("%a %b %d %Y %T GMT%z (%Z)", "Wed May 01 2024 10:15:00 GMT+0200 (CEST)", Some("2024-05-01T10:15:00 7200")),
        ("%s", "1714521600", Some("2024-05-01T00:00:00 0")),
        ("%s.%f", "1714521600.25", Some("2024-05-01T00:00:00.250 0")),
        ("%s.%f", "-1.25", None),
        ("%D %r", "05/01/24 01:02:03 PM", Some("2024-05-01T13:02:03")),
        ("%Y年%m月%d日 %H時%M分", "2024年5月1日 9時05分", Some("2024-05-01T09:05:00")),
        ("%-d.%-m.%Y", "1.5.2024", Some("2024-05-01T00:00:00")),
        ("%_d.%m.%Y", " 1.05.2024", Some("2024-05-01T00:00:00")),
        ("%d%%%m%n%Y", "1%5\u{a0} 2024", Some("2024-05-01T00:00:00")),
        ("%d.%m.%Y", "01.05.2024 ", Some("2024-05-01T00:00:00")),
        ("%d.%m.%Y", "01.05.2024x", None),
        ("%d.%m.%Y", "٠١.05.2024", None),
        ("%d.%m.%Y", "", None),
    ] {
        assert_eq!(read(pattern, text).as_deref(), right, "{pattern} of {text}");
    }
}

#[test]
fn patterns_that_leave_a_choice_are_refused() {
    for pattern in [
        "",
        "%",
        "%Q",
        "%d/%m",
        "%Y-%m",
        "%H:%M",
        "%Y-%d",
        "%j",
        "%Y-%m-%d %I:%M",
        "%Y-%m-%d %H:%M %p",
        "%Y-%y-%m-%d",
        "%Y-%m-%b-%d",
        "%F %j",
        "%F %H:%H",
        "%F %M",
        "%F %H:%S",
        "%F %f",
        "%s %Y",
        "%c",
        "%F %X",
        "%F %T%f%d",
        "%F %s",
        "%G-%V-%u",
        "%F %T.%L",
        "%E",
        "yyyy-MM-dd",
        "iso",
    ] {
        let error = TimestampFormat::parse(pattern).expect_err(pattern);
        assert_eq!((error.reason, error.place.option.as_deref()), (Reason::InvalidOption, Some("--ts-format")));
        assert_eq!(error.place.value.as_deref(), Some(pattern));
        assert!(error.hint.is_some());
    }
    let hint = |pattern| TimestampFormat::parse(pattern).unwrap_err().hint.unwrap();
    assert_eq!(hint("yyyy-MM-dd HH:mm:ss"), "patterns are those of strftime: '%Y-%m-%d %H:%M:%S'");
    assert_eq!(hint("dd.MM.yyyy HH:mm"), "patterns are those of strftime: '%d.%m.%Y %H:%M'");
    assert!(TimestampFormat::parse("Excel").unwrap().is_excel());
}

/// Pieces that each say one part, in orders and with separators of all sorts.
fn patterns() -> impl Strategy<Value = String> {
    let date = prop::sample::select(vec![
        "%Y-%m-%d",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%e.%m.%Y",
        "%d %b %Y",
        "%A, %B %d, %Y",
        "%Y%m%d",
        "%Y-%j",
        "%a %d.%m.%Y",
        "%F",
    ]);
    let time = prop::sample::select(vec!["%H:%M:%S%.f", "%I:%M:%S%.f %p", "%k.%M.%S,%f", "%l:%M:%S.%6f %P", "%H%M%S%6f", "%T.%f"]);
    let offset = prop::sample::select(vec!["", " %z", "%:z"]);
    let between = prop::sample::select(vec![" ", "T", ", "]);
    (date, time, offset, between, any::<bool>()).prop_map(|(date, time, offset, between, date_first)| match date_first {
        true => format!("{date}{between}{time}{offset}"),
        false => format!("{time}{between}{date}{offset}"),
    })
}

proptest! {
    #[test]
    fn what_is_written_by_a_pattern_is_read_by_it(pattern in patterns(), us in -30_000_000_000_000_000_i64..200_000_000_000_000_000, minutes in -900_i32..900) {
        let zone = chrono::FixedOffset::east_opt(minutes * 60).unwrap();
        let time = DateTime::<Utc>::from_timestamp_micros(us).unwrap().with_timezone(&zone);
        // chrono's %f writes nanoseconds.
        let text = time.format(&pattern).to_string();
        let format = TimestampFormat::parse(&pattern).unwrap();
        let found = format.read(&text);
        prop_assert!(found.is_some(), "{} of {}: {}", pattern, text, format.misfit(&text));
        let found = found.unwrap();
        prop_assert_eq!(found.local_us, us + i64::from(minutes) * 60_000_000, "{} of {}", pattern, text);
        let place = if pattern.contains('z') { ClockPlace::Offset(i64::from(minutes) * 60_000_000) } else { ClockPlace::Unsaid };
        prop_assert_eq!(found.place, place);
        prop_assert!(!found.truncated);
    }
}

/// Not a check, a figure: run with `--no-capture`.
#[test]
fn speed_of_a_text() {
    for (pattern, text) in [("%d.%m.%Y %H:%M:%S", "01.07.2024 13:45:10"), ("%m/%d/%Y %I:%M:%S%.f %p", "07/01/2024 1:45:10.25 PM")] {
        let format = TimestampFormat::parse(pattern).unwrap();
        let start = std::time::Instant::now();
        let rounds = 200_000;
        for _ in 0..rounds {
            assert!(std::hint::black_box(format.read(std::hint::black_box(text))).is_some());
        }
        println!("{pattern}: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    let start = std::time::Instant::now();
    for _ in 0..200_000 {
        assert!(std::hint::black_box(crate::convert::iso::parse_timestamp(std::hint::black_box("2024-07-01 13:45:10.25+02"))).is_some());
    }
    println!("iso: {:.1} ns", start.elapsed().as_nanos() as f64 / 200_000.0);
}
