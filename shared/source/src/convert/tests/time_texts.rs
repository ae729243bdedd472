use super::*;

/// Each text with its instant or its reason.
fn instants(rules: &Rules, pairs: &[(&str, &str)]) {
    for (text, right) in pairs {
        let (got, _) = converted(StringArray::from(vec![*text]), "timestamptz", rules).unwrap();
        assert_eq!(got, [*right], "{text}");
    }
}

/// The faults of one text, with their hints.
fn fault(rules: &Rules, target: &str, text: &str) -> CellFault {
    let array: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let mut zone = rules.zone.as_ref().map(ZoneConverter::new);
    let mut context = Context::new(rules, zone.as_mut());
    convert(&array, false, ColumnType::parse(target).unwrap(), &mut context).unwrap().unwrap();
    context.faults.pop().unwrap_or_else(|| panic!("{text} is accepted"))
}

fn hint(rules: &Rules, text: &str) -> String {
    fault(rules, "timestamptz", text).hint.unwrap_or_default()
}

fn with_format(pattern: &str, zone: Option<&str>) -> Rules {
    Rules { ts_format: Some(TimestampFormat::parse(pattern).unwrap()), ..rules(zone, None) }
}

#[test]
fn iso_texts_have_one_meaning_or_none() {
    let utc = rules(None, None);
    instants(
        &utc,
        &[
            ("2024-05-01T00:00:00.1234567Z", "2024-05-01T00:00:00.123456Z"),
            ("2024-05-01 02:00:00+02", "2024-05-01T00:00:00Z"),
            ("2024-05-01T00:00:00-0330", "2024-05-01T03:30:00Z"),
            ("1880-01-01 00:00:00+00:53:28", "1879-12-31T23:06:32Z"),
            ("2024-05-01 10:00:00.5-07", "2024-05-01T17:00:00.500Z"),
            ("2024-05-01 10:00+07", "2024-05-01T03:00:00Z"),
            ("2024-05-01 10:00 +07:00", "2024-05-01T03:00:00Z"),
            ("2024-05-01 10:00\u{202f}\u{2212}07:00", "2024-05-01T17:00:00Z"),
            ("2024-05-01t10:00:00,25z", "2024-05-01T10:00:00.250Z"),
            ("2024/5/1 9:05Z", "2024-05-01T09:05:00Z"),
            ("20240501T101500Z", "2024-05-01T10:15:00Z"),
            ("20240501 1015+0200", "2024-05-01T08:15:00Z"),
            ("20240501T101500.25Z", "2024-05-01T10:15:00.250Z"),
            ("2024-05-01 10Z", "2024-05-01T10:00:00Z"),
            ("2024-05-01T24:00:00Z", "2024-05-02T00:00:00Z"),
            ("2024-12-31 24:00+01:00", "2024-12-31T23:00:00Z"),
            ("\u{feff}2024-05-01T00:00:00Z\u{a0}", "2024-05-01T00:00:00Z"),
            ("2024-05-01 10:00 UTC", "2024-05-01T10:00:00Z"),
            ("2024-05-01 10:00 gmt", "2024-05-01T10:00:00Z"),
            ("2024-05-01 10:00 UT", "2024-05-01T10:00:00Z"),
            ("2024-05-01 10:00:00.5 +0200 CEST", "2024-05-01T08:00:00.500Z"),
            ("2024-05-01 10:00 UTC CET", "bad_timestamp"),
            ("2024-05-01 10:00 +00 AD", "bad_timestamp"),
            ("2024-05-01T00:00:00", "naive_timestamp_without_zone"),
            ("2024-05-01T00:00:00 EST", "naive_timestamp_without_zone"),
            ("2024-05-01T24:01Z", "bad_timestamp"),
            ("2024-05-01T24:00:00.1Z", "bad_timestamp"),
            ("2024-05-01T00:00:00.Z", "bad_timestamp"),
            ("2024-05-01T00:60Z", "bad_timestamp"),
            ("2024-05-01T1015Z", "bad_timestamp"),
            ("2024-05-01/10:15Z", "bad_timestamp"),
            ("2024-05/01 10:15Z", "bad_timestamp"),
            ("2024-05-01 10:15 AM", "bad_timestamp"),
            ("2024-05-01 10:00 UTC+5", "bad_timestamp"),
            ("2024-05-01 10:00 GMT-02:00", "bad_timestamp"),
            ("2024-05-01 10:00+25:00", "bad_timestamp"),
            ("2024-05-01 10:00+2", "bad_timestamp"),
            ("2023-02-29", "bad_timestamp"),
            ("0000-00-00 00:00:00", "bad_timestamp"),
            ("", "bad_timestamp"),
            ("null", "bad_timestamp"),
            ("NaN", "bad_timestamp"),
            ("２０２４-05-01T00:00:00Z", "bad_timestamp"),
            ("2024-05-01T00:00:00Z\0", "bad_timestamp"),
            ("2024-05-01\u{0}T00:00:00Z", "bad_timestamp"),
            ("٢٠٢٤-٠٥-٠١", "bad_timestamp"),
            ("5 May 2024 10:00", "bad_timestamp"),
            ("infinity", "timestamp_out_of_range"),
            ("-Infinity", "timestamp_out_of_range"),
            ("294276-12-31 23:59:59+00", "timestamp_out_of_range"),
            ("0044-03-15 12:00:00+00 BC", "timestamp_out_of_range"),
            ("0044-03-15 BC", "timestamp_out_of_range"),
            ("-0044-03-15 12:00:00", "timestamp_out_of_range"),
            ("+012024-02-29T00:00:00Z", "timestamp_out_of_range"),
            ("294276-02-30 00:00:00", "bad_timestamp"),
            ("03/04/2024 10:00", "timestamp_format_unclear"),
            ("26.01.2024 12:00", "timestamp_format_unclear"),
            ("3-4-24", "timestamp_format_unclear"),
            ("1. 2. 2024 10:00", "timestamp_format_unclear"),
            ("45/67/2024", "bad_timestamp"),
        ],
    );
}

#[test]
fn hints_name_the_option_that_helps() {
    let utc = rules(Some("UTC"), None);
    for (text, right) in [
        ("45292", "looks like an Excel serial date (2024-01-01); use --ts-format excel"),
        ("45292,5", "looks like an Excel serial date (2024-01-01); use --ts-format excel"),
        ("1714521600", "looks like epoch seconds (2024-05-01T00:00:00Z); use --ts-unit s"),
        ("1714521600123", "looks like epoch milliseconds (2024-05-01T00:00:00.123Z); use --ts-unit ms"),
        ("1714521600123456", "looks like epoch microseconds (2024-05-01T00:00:00.123456Z); use --ts-unit us"),
        ("1714521600123456789", "looks like epoch nanoseconds (2024-05-01T00:00:00.123456Z); use --ts-unit ns"),
        ("20240501", "looks like a date without separators; use --ts-format '%Y%m%d'"),
        ("20240501101500", "looks like a date without separators; use --ts-format '%Y%m%d%H%M%S'"),
        ("7", "a number is a time only with --ts-unit (s, ms, us or ns since 1970)"),
        ("03/04/2024 10:00", "day/month order: give --ts-format '%d/%m/%Y %H:%M' or --ts-format '%m/%d/%Y %H:%M'"),
        ("26.01.2024 12:00", "day/month order: give --ts-format '%d.%m.%Y %H:%M'"),
        ("3-13-24", "day/month order: give --ts-format '%m-%d-%y'"),
        ("3/4/2024, 1:02:03 PM", "day/month order: give --ts-format '%d/%m/%Y, %I:%M:%S %p' or --ts-format '%m/%d/%Y, %I:%M:%S %p'"),
        ("26/01/2024 12:00:00.5 +0100", "day/month order: give --ts-format '%d/%m/%Y %H:%M:%S.%f %z'"),
        ("26.01.2024 12:00 Uhr!", "day/month order: give --ts-format '%d.%m.%Y %H:%M %Z!'"),
        ("5 May 2024 10:00", "give its pattern: --ts-format '%d %b %Y %H:%M'"),
        ("Sun, 05 May 2024 10:00:00 +0200", "give its pattern: --ts-format '%a, %d %b %Y %H:%M:%S %z'"),
        ("2024-05-01 10:15 p.m.", "give its pattern: --ts-format '%Y-%m-%d %I:%M %p'"),
        ("2024.05.01 10:15", "give its pattern: --ts-format '%Y.%m.%d %H:%M'"),
        ("2024-05-01 10:00 UTC+5", "offsets after UTC or GMT are read with both signs: write +05:00 alone for +5 hours east of UTC"),
        ("2024-02-30", ""),
    ] {
        assert_eq!(hint(&utc, text), right, "{text}");
    }
}

#[test]
fn counts_in_texts_follow_the_unit_and_the_spelling_of_numbers() {
    let mut seconds = rules(None, Some(TimeUnit::Seconds));
    instants(
        &seconds,
        &[
            ("1714521600", "2024-05-01T00:00:00Z"),
            (" 1714521600.123 ", "2024-05-01T00:00:00.123Z"),
            ("1.7145216e9", "2024-05-01T00:00:00Z"),
            ("-0.5", "1969-12-31T23:59:59.500Z"),
            ("2024-05-01T00:00:00Z", "2024-05-01T00:00:00Z"),
            ("1714521600,5", "bad_timestamp"),
            ("1e300", "timestamp_out_of_range"),
            ("NaN", "bad_timestamp"),
        ],
    );
    check_with(texts(&["1714521600.1234567"]), "timestamptz", &seconds, &["2024-05-01T00:00:00.123456Z"], 1);
    seconds.numbers = NumberFormat { decimal: ',', thousands: Some('.') };
    instants(&seconds, &[("1.714.521.600,5", "2024-05-01T00:00:00.500Z"), ("1.71", "bad_timestamp")]);
}

#[test]
fn formats_decide_and_nothing_else_is_tried() {
    let day_first = with_format("%d/%m/%Y %H:%M", Some("UTC"));
    instants(
        &day_first,
        &[
            ("03/04/2024 10:00", "2024-04-03T10:00:00Z"),
            ("1/1/2007\u{a0}0:01", "2007-01-01T00:01:00Z"),
            ("31/12/2024 24:00", "2025-01-01T00:00:00Z"),
            ("2024-04-03 10:00", "bad_timestamp"),
            ("03/04/2024 10:00Z", "bad_timestamp"),
            ("03/04/2024", "bad_timestamp"),
            ("30/02/2024 10:00", "bad_timestamp"),
            ("03/04/24 10:00", "bad_timestamp"),
        ],
    );
    let month_first = with_format("%m/%d/%Y %H:%M", Some("UTC"));
    assert_eq!(hint(&month_first, "13/04/2024 10:00"), "--ts-format '%m/%d/%Y %H:%M' wants a month (1 to 12) at '13/04/2024 10:00'");
    assert_eq!(hint(&day_first, "03/04/2024 10:00Z"), "--ts-format '%d/%m/%Y %H:%M' leaves 'Z' over");
    assert_eq!(hint(&day_first, "30/02/2024 10:00"), "it fits --ts-format '%d/%m/%Y %H:%M', but there is no such date or time");
    instants(&with_format("%d.%m.%Y %H:%M", None), &[("01.07.2024 00:00", "naive_timestamp_without_zone")]);
    // A column of dates is read by a pattern of dates only; wall clocks by any.
    let dates = with_format("%d.%m.%Y", None);
    check_with(texts(&["1.7.2024", "2024-07-01"]), "date", &dates, &["2024-07-01", "bad_timestamp"], 0);
    check_with(texts(&["2024-07-01", "1.7.2024"]), "date", &day_first, &["2024-07-01", "timestamp_format_unclear"], 0);
    check_with(texts(&["03/04/2024 10:00"]), "timestamp", &day_first, &["2024-04-03T10:00:00"], 0);
    check_with(texts(&["10:00"]), "time", &day_first, &["10:00:00"], 0);
}

#[test]
fn serial_days_are_local_times() {
    let mut excel = with_format("excel", Some("Europe/Berlin"));
    instants(
        &excel,
        &[
            ("45292", "2023-12-31T23:00:00Z"),
            ("45292.5", "2024-01-01T11:00:00Z"),
            ("45292.010416666664", "2023-12-31T23:15:00Z"),
            ("45473.25", "2024-06-30T04:00:00Z"),
            ("60", "bad_timestamp"),
            ("2024-01-01", "bad_timestamp"),
            ("45382.1", "nonexistent_local_time"),
        ],
    );
    let numbers = || Float64Array::from(vec![Some(45_292.5), None, Some(60.0)]);
    check_with(numbers(), "timestamptz", &excel, &["2024-01-01T11:00:00Z", "NULL", "bad_timestamp"], 0);
    check_with(numbers(), "timestamp", &excel, &["2024-01-01T12:00:00", "NULL", "bad_timestamp"], 0);
    check_with(numbers(), "date", &excel, &["lossy_conversion", "NULL", "bad_timestamp"], 0);
    check_with(Int32Array::from(vec![45_292]), "date", &excel, &["2024-01-01"], 0);
    check_with(Int64Array::from(vec![45_292]), "timestamptz", &excel, &["2023-12-31T23:00:00Z"], 0);
    check_with(numbers(), "double", &excel, &["45292.5", "NULL", "60.0"], 0);
    excel.numbers.decimal = ',';
    instants(&excel, &[("45292,5", "2024-01-01T11:00:00Z"), ("45292.5", "bad_timestamp")]);
    let nowhere = with_format("EXCEL", None);
    check_with(numbers(), "timestamptz", &nowhere, &["naive_timestamp_without_zone", "NULL", "naive_timestamp_without_zone"], 0);
}

#[test]
fn leap_seconds_are_kept_where_there_was_one() {
    let rules = rules(Some("Europe/Berlin"), None);
    instants(
        &rules,
        &[
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999Z"),
            ("2016-12-31T23:59:60.75Z", "2016-12-31T23:59:59.999999Z"),
            ("2017-01-01T00:59:60+01:00", "2016-12-31T23:59:59.999999Z"),
            ("2017-01-01 00:59:60", "2016-12-31T23:59:59.999999Z"),
            ("2015-07-01 01:59:60 CEST", "2015-06-30T23:59:59.999999Z"),
            ("2016-12-31T23:59:60", "bad_timestamp"),
            ("2017-12-31T23:59:60Z", "bad_timestamp"),
            ("2023-12-11T11:31:60.000Z", "bad_timestamp"),
            ("2024-05-01T10:20:60Z", "bad_timestamp"),
            ("2016-12-31T23:59:61Z", "bad_timestamp"),
        ],
    );
    let array: ArrayRef = Arc::new(texts(&["2016-12-31T23:59:59Z", "2016-12-31T23:59:60.1234567Z"]));
    let mut context = Context::new(&rules, None);
    let values = times(&array, false, &mut context).unwrap().unwrap();
    assert_eq!((context.leap_seconds, values.truncated_count()), (vec![1], 0));
    let format = with_format("%d.%m.%Y %H:%M:%S%.f %z", None);
    instants(&format, &[("31.12.2016 23:59:60.5 Z", "2016-12-31T23:59:59.999999Z"), ("31.12.2018 23:59:60 Z", "bad_timestamp")]);
}

#[test]
fn abbreviations_belong_to_the_zone() {
    let berlin = rules(Some("Europe/Berlin"), None);
    instants(
        &berlin,
        &[
            ("2024-10-27 02:30:00 CEST", "2024-10-27T00:30:00Z"),
            ("2024-10-27 02:30:00 CET", "2024-10-27T01:30:00Z"),
            ("2024-07-01 12:00 cest", "2024-07-01T10:00:00Z"),
            ("2024-07-01 12:00 CET", "bad_timestamp"),
            ("2024-10-27 02:30:00 EST", "bad_timestamp"),
            ("2024-03-31 02:30:00 CET", "nonexistent_local_time"),
            ("2024-03-31 02:30:00 CEST", "bad_timestamp"),
            ("2024-07-01 12:00 UTC", "2024-07-01T12:00:00Z"),
        ],
    );
    assert_eq!(hint(&berlin, "2024-07-01 12:00 CET"), "--tz Europe/Berlin has CEST at that time, not CET");
    assert_eq!(hint(&berlin, "2024-10-27 02:30 EST"), "--tz Europe/Berlin has CEST or CET at that time, not EST");
    assert!(hint(&rules(None, None), "2024-07-01 12:00 CST").contains("several zones"));
    assert!(hint(&rules(Some("+02:00"), None), "2024-07-01 12:00 CEST").contains("no abbreviations"));
    let format = with_format("%d.%m.%Y %H:%M %Z", Some("America/New_York"));
    instants(&format, &[("03.11.2024 01:30 EDT", "2024-11-03T05:30:00Z"), ("03.11.2024 01:30 EST", "2024-11-03T06:30:00Z")]);
    // Moscow went from MSK to MSK in 2014: the name does not say which.
    instants(&rules(Some("Europe/Moscow"), None), &[("2014-10-26 01:30 MSK", "ambiguous_local_time")]);
}

#[test]
fn folds_are_left_to_the_caller_who_asks_for_them() {
    let mut berlin = rules(Some("Europe/Berlin"), None);
    berlin.ambiguous = Ambiguous::Infer;
    let first = 1_729_996_200_000_000; // 2024-10-27 02:30
    let text: ArrayRef = Arc::new(texts(&["2024-10-27 01:30", "2024-10-27 02:30", "2024-10-27 02:30 CET", "2024-10-27 02:30+01"]));
    let stored: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![Some(first - 3_600_000_000), Some(first), None]));
    let millis: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(i64::MAX), Some(first / 1_000), None]));
    for (array, value) in [(text, "2024-10-27 02:30"), (stored, "2024-10-27T02:30:00"), (millis, "2024-10-27T02:30:00")] {
        let mut zone = berlin.zone.as_ref().map(ZoneConverter::new);
        let mut context = Context::new(&berlin, zone.as_mut());
        context.folds = Some(Vec::new());
        let values = times(&array, false, &mut context).unwrap().unwrap();
        let fold = FoldRow {
            row: 1,
            local_us: first,
            earlier_us: first - 7_200_000_000,
            later_us: first - 3_600_000_000,
            value: value.to_string(),
        };
        assert_eq!(values.us[1], fold.earlier_us);
        assert_eq!(context.folds, Some(vec![fold]));
        assert!(context.faults.iter().all(|fault| fault.row == 0 && fault.reason == timelake_model::Reason::TimestampOutOfRange));
    }
    instants(&berlin, &[("2024-10-27 02:30", "ambiguous_local_time")]);
}

#[test]
fn a_skipped_time_hints_at_standard_time() {
    let sydney = rules(Some("Australia/Sydney"), None);
    let fault = fault(&sydney, "timestamptz", "2008-10-05 02:00");
    assert_eq!(fault.reason, timelake_model::Reason::NonexistentLocalTime);
    assert!(fault.hint.unwrap().contains("--tz +10:00"));
    assert!(hint(&rules(Some("America/St_Johns"), None), "2024-03-10 02:30").contains("--tz -03:30"));
}

#[test]
fn numbers_follow_their_separators() {
    let german = Rules { numbers: NumberFormat { decimal: ',', thousands: Some('.') }, ..rules(None, None) };
    check_with(
        texts(&["45.234,1", "1.000", "-1.234.567,89", "1.23", "\u{a0}7\u{202f}", "1,5e3", "NaN", "45,234.1", "1e309"]),
        "double",
        &german,
        &["45234.1", "1000.0", "-1234567.89", "bad_number", "7.0", "1500.0", "NaN", "bad_number", "bad_number"],
        0,
    );
    check_with(texts(&["1.000", "1,5", "1,0"]), "int", &german, &["1000", "lossy_conversion", "1"], 0);
    check_with(texts(&["1.234,50"]), "decimal(10,2)", &german, &["1234.50"], 0);
    check_with(texts(&["1.234,5"]), "float", &german, &["1234.5"], 0);
    assert_eq!(fault(&rules(None, None), "double", "45.234,1").hint.as_deref(), Some("it is a number with --decimal ',' --thousands '.'"));
    assert_eq!(fault(&rules(None, None), "double", "?").hint, None);
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_of_times_panic(text in "\\PC*|[-+0-9eE.,:/TZ \u{a0}]{0,40}|[0-9]{1,6}[-/.][0-9]{1,3}[-/.][0-9]{1,5}.{0,12}") {
        let mut every = vec![rules(Some("Europe/Berlin"), None), rules(Some("+02:00"), Some(TimeUnit::Seconds)), rules(None, Some(TimeUnit::Nanos))];
        for pattern in ["excel", "%d/%m/%y %I:%M %p", "%a %b %e %Y %H:%M:%S%.f %Z", "%Y%j%H%M%S%f%z", "%s"] {
            every.push(with_format(pattern, Some("America/New_York")));
        }
        for rules in &every {
            for target in ["timestamptz", "timestamp", "date", "double", "long"] {
                let _ = converted(StringArray::from(vec![text.clone()]), target, rules);
            }
        }
        let _ = TimestampFormat::parse(&text);
        let _ = Zone::parse(&text);
    }
}
