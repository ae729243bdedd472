use super::*;
use arrow::array::*;
use arrow::datatypes::*;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use proptest::prelude::*;
use timelake_model::request::TimeUnit;

fn rules(zone: Option<&str>, unit: Option<TimeUnit>) -> Rules {
    Rules { zone: zone.map(|name| Zone::parse(name).unwrap()), unit, ..Default::default() }
}

/// The converted values as text; faults as `reason` words in their rows, `None` when the types do not convert.
fn converted(array: impl Array + 'static, target: &str, rules: &Rules) -> Option<(Vec<String>, u64)> {
    let array: ArrayRef = Arc::new(array);
    let target = ColumnType::parse(target).unwrap();
    let mut zone = rules.zone.as_ref().map(ZoneConverter::new);
    let mut context = Context::new(rules, zone.as_mut());
    let out = convert(&array, false, target, &mut context).unwrap()?;
    assert_eq!(*out.data_type(), arrow_type(target));
    assert_eq!(out.len(), array.len());
    let formatter = ArrayFormatter::try_new(out.as_ref(), &FormatOptions::default().with_null("NULL")).unwrap();
    let mut texts: Vec<String> = (0..out.len()).map(|row| formatter.value(row).to_string()).collect();
    for fault in context.faults {
        texts[fault.row as usize] = fault.reason.to_string();
    }
    Some((texts, context.truncated))
}

fn check(array: impl Array + 'static, target: &str, right: &[&str]) {
    check_with(array, target, &rules(None, None), right, 0);
}
fn check_with(array: impl Array + 'static, target: &str, rules: &Rules, right: &[&str], truncated: u64) {
    let name = array.data_type().to_string();
    let got = converted(array, target, rules).unwrap_or_else(|| panic!("{name} to {target} is refused"));
    assert_eq!((got.0, got.1), (right.iter().map(|text| text.to_string()).collect(), truncated), "{name} to {target}");
}
fn refused(array: impl Array + 'static, target: &str) {
    assert!(converted(array, target, &rules(None, None)).is_none(), "{target}");
}
fn texts(list: &[&str]) -> StringArray {
    StringArray::from(list.to_vec())
}

#[test]
fn integers_keep_their_value_or_are_refused() {
    check(Int64Array::from(vec![Some(2_147_483_647), Some(-2_147_483_649), None]), "int", &["2147483647", "number_out_of_range", "NULL"]);
    check(Int16Array::from(vec![Some(-192), None]), "int", &["-192", "NULL"]);
    check(UInt32Array::from(vec![u32::MAX]), "int", &["number_out_of_range"]);
    check(UInt32Array::from(vec![u32::MAX]), "long", &["4294967295"]);
    check(UInt64Array::from(vec![u64::MAX, 1]), "long", &["number_out_of_range", "1"]);
    check(Int8Array::from(vec![-128]), "long", &["-128"]);
    check(
        Int64Array::from(vec![9_007_199_254_740_992, 9_007_199_254_740_993, i64::MIN, i64::MAX, -7]),
        "double",
        &["9007199254740992.0", "lossy_conversion", "-9.223372036854776e18", "lossy_conversion", "-7.0"],
    );
    check(UInt64Array::from(vec![1 << 63, u64::MAX]), "double", &["9.223372036854776e18", "lossy_conversion"]);
    check(Int32Array::from(vec![16_777_216, 16_777_217]), "float", &["16777216.0", "lossy_conversion"]);
    check(Int32Array::from(vec![12, -99, 100]), "decimal(4,2)", &["12.00", "-99.00", "number_out_of_range"]);
    check(Int8Array::from(vec![Some(0), Some(1), Some(2), None]), "boolean", &["false", "true", "bad_boolean", "NULL"]);
    check(Int64Array::from(vec![Some(i64::MIN), Some(7), None]), "string", &["-9223372036854775808", "7", "NULL"]);
    refused(Int64Array::from(vec![1]), "timestamptz");
    refused(Int64Array::from(vec![1]), "date");
    refused(BooleanArray::from(vec![true]), "int");
    refused(BooleanArray::from(vec![true]), "string");
    refused(Float64Array::from(vec![1.0]), "string");
    refused(Float64Array::from(vec![1.0]), "boolean");
}

#[test]
fn floats_keep_their_value_or_are_refused() {
    let doubles = || Float64Array::from(vec![Some(1.5), Some(0.1), Some(f64::NAN), Some(f64::INFINITY), Some(1e300), Some(-0.0), None]);
    check(doubles(), "float", &["1.5", "lossy_conversion", "NaN", "inf", "number_out_of_range", "-0.0", "NULL"]);
    check(
        doubles(),
        "long",
        &["lossy_conversion", "lossy_conversion", "number_out_of_range", "number_out_of_range", "number_out_of_range", "0", "NULL"],
    );
    check(Float64Array::from(vec![2_147_483_647.0, 2_147_483_648.0]), "int", &["2147483647", "number_out_of_range"]);
    check(
        Float64Array::from(vec![9_223_372_036_854_775_808.0, -9_223_372_036_854_775_808.0]),
        "long",
        &["number_out_of_range", "-9223372036854775808"],
    );
    check(Float32Array::from(vec![0.1]), "double", &["0.10000000149011612"]);
    check(Float32Array::from(vec![24.0, 0.5]), "int", &["24", "lossy_conversion"]);
    let half = Float16Array::from_iter_values([1.5_f32, 65504.0].map(<Float16Type as ArrowPrimitiveType>::Native::from_f32));
    check(half, "double", &["1.5", "65504.0"]);
}

#[test]
fn decimals_become_the_nearest_double_of_their_text_and_rescale_exactly() {
    let decimal = |values: Vec<i128>, precision, scale| Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap();
    check(decimal(vec![1_000_000_000, -1_234_567_890_123_456_780_000_000_001], 38, 10), "double", &["0.1", "-1.2345678901234568e17"]);
    check(decimal(vec![1025], 4, 2), "double", &["10.25"]);
    check(decimal(vec![1200, 1230, 1234], 4, 2), "decimal(10,1)", &["12.0", "12.3", "lossy_conversion"]);
    check(decimal(vec![1200, 9999], 4, 2), "decimal(5,3)", &["12.000", "99.990"]);
    check(decimal(vec![12_300], 5, 2), "decimal(4,2)", &["number_out_of_range"]);
    check(decimal(vec![1200, 1230], 4, 2), "int", &["12", "lossy_conversion"]);
    check(decimal(vec![i128::from(i64::MAX) + 1], 38, 0), "long", &["number_out_of_range"]);
    check(decimal(vec![25], 3, 2), "float", &["0.25"]);
    let wide = |text: &str| {
        Decimal256Array::from(vec![arrow::datatypes::i256::from_string(text).unwrap()]).with_precision_and_scale(76, 10).unwrap()
    };
    check(wide("1000000000"), "double", &["0.1"]);
    check(wide("12300000000"), "decimal(5,2)", &["1.23"]);
    check(wide("12345000000"), "decimal(5,2)", &["lossy_conversion"]);
    check(wide("90000000000000000000000000000000000000000000000000000000000"), "long", &["number_out_of_range"]);
    refused(decimal(vec![1], 4, 2), "string");
}

#[test]
fn texts_are_parsed_strictly() {
    check(
        texts(&["25", " -7 ", "2.0", "2.5", "1e3", "99999999999", "x", "", "0x10", "1,000", "+5", "-"]),
        "int",
        &[
            "25",
            "-7",
            "2",
            "lossy_conversion",
            "1000",
            "number_out_of_range",
            "bad_number",
            "bad_number",
            "bad_number",
            "bad_number",
            "5",
            "bad_number",
        ],
    );
    check(
        texts(&["24.6", "1e309", "NaN", "-Infinity", "inf", "1e-400", ".5", "5.", "1_0", "infinity", "e5", "1e", "٣"]),
        "double",
        &["24.6", "bad_number", "NaN", "-inf", "inf", "0.0", "0.5", "5.0", "bad_number", "inf", "bad_number", "bad_number", "bad_number"],
    );
    check(texts(&["1e39", "0.1"]), "float", &["bad_number", "0.1"]);
    check(
        texts(&["1.10", "-0.005", "100", "1e1", "12300e-2", "1e999999999999", "0e99", "x"]),
        "decimal(4,2)",
        &["1.10", "lossy_conversion", "number_out_of_range", "10.00", "number_out_of_range", "number_out_of_range", "0.00", "bad_number"],
    );
    check(texts(&["true", "F", "1", "yes"]), "boolean", &["true", "false", "true", "bad_boolean"]);
    check(texts(&["2024-02-29", "2023-02-29", "2024-2-1"]), "date", &["2024-02-29", "bad_timestamp", "2024-02-01"]);
    check_with(
        texts(&["10:00", "23:59:59.1234567", "24:00:00"]),
        "time",
        &rules(None, None),
        &["10:00:00", "23:59:59.123456", "bad_timestamp"],
        1,
    );
    check_with(
        texts(&["2024-05-01 10:00:00", "2024-05-01T10:00:00Z"]),
        "timestamp",
        &rules(None, None),
        &["2024-05-01T10:00:00", "bad_timestamp"],
        0,
    );
    check(
        texts(&["f79c3e09-677c-4bbd-a479-3f349cb785e7", "f79c3e09677c4bbda4793f349cb785e7"]),
        "uuid",
        &["f79c3e09677c4bbda4793f349cb785e7", "bad_value"],
    );
    check(texts(&["äb"]), "binary", &["c3a462"]);
    check(texts(&["007", ""]), "string", &["007", ""]);
    refused(texts(&["x"]), "fixed[3]");
}

#[test]
fn every_kind_of_text_array_is_the_same_text() {
    check(LargeStringArray::from(vec!["1.5"]), "double", &["1.5"]);
    check(StringViewArray::from(vec!["1.5"]), "double", &["1.5"]);
    check(vec!["1.5", "1.5"].into_iter().collect::<DictionaryArray<Int32Type>>(), "double", &["1.5", "1.5"]);
    check_with(
        vec!["2024-05-01T00:00:00Z"].into_iter().collect::<DictionaryArray<Int32Type>>(),
        "timestamptz",
        &rules(None, None),
        &["2024-05-01T00:00:00Z"],
        0,
    );
}

#[test]
fn instants_are_floored_to_microseconds_and_counted() {
    let utc = rules(None, None);
    let nanos = TimestampNanosecondArray::from(vec![Some(1_714_521_600_123_456_789), Some(-1), Some(1_714_521_600_000_000_000), None]);
    check_with(
        nanos.with_timezone("Europe/Berlin"),
        "timestamptz",
        &rules(Some("America/New_York"), None),
        &["2024-05-01T00:00:00.123456Z", "1969-12-31T23:59:59.999999Z", "2024-05-01T00:00:00Z", "NULL"],
        2,
    );
    let millis = TimestampMillisecondArray::from(vec![-1, i64::MAX]).with_timezone("UTC");
    check_with(millis, "timestamptz", &utc, &["1969-12-31T23:59:59.999Z", "timestamp_out_of_range"], 0);
    let seconds = TimestampSecondArray::from(vec![1_714_521_600]).with_timezone("UTC");
    check_with(seconds, "timestamptz", &utc, &["2024-05-01T00:00:00Z"], 0);
    let unit = |unit| rules(Some("Europe/Berlin"), Some(unit));
    let may = "2024-05-01T00:00:00Z";
    check_with(Int64Array::from(vec![1_714_521_600_000]), "timestamptz", &unit(TimeUnit::Millis), &[may], 0);
    check_with(
        UInt64Array::from(vec![1_714_521_600_000, u64::MAX]),
        "timestamptz",
        &unit(TimeUnit::Millis),
        &[may, "timestamp_out_of_range"],
        0,
    );
    check_with(Int64Array::from(vec![1_714_521_600_000_000_001]), "timestamptz", &unit(TimeUnit::Nanos), &[may], 1);
    check_with(Int32Array::from(vec![1_714_521_600]), "timestamptz", &unit(TimeUnit::Seconds), &[may], 0);
    check_with(
        Float64Array::from(vec![1_714_521_600.5, -0.5, f64::NAN, 1e300]),
        "timestamptz",
        &unit(TimeUnit::Seconds),
        &["2024-05-01T00:00:00.500Z", "1969-12-31T23:59:59.500Z", "bad_timestamp", "timestamp_out_of_range"],
        0,
    );
}

#[test]
fn wall_clocks_go_through_the_zone_and_its_policies() {
    let local = || {
        TimestampMicrosecondArray::from(vec![
            1_714_557_600_000_000, // 2024-05-01 10:00, once
            1_729_996_200_000_000, // 2024-10-27 02:30, twice
            1_711_852_200_000_000, // 2024-03-31 02:30, never
        ])
    };
    let mut berlin = rules(Some("Europe/Berlin"), None);
    check_with(local(), "timestamptz", &berlin, &["2024-05-01T08:00:00Z", "ambiguous_local_time", "nonexistent_local_time"], 0);
    berlin.ambiguous = Ambiguous::Earlier;
    berlin.nonexistent = Nonexistent::Shift;
    check_with(local(), "timestamptz", &berlin, &["2024-05-01T08:00:00Z", "2024-10-27T00:30:00Z", "2024-03-31T01:30:00Z"], 0);
    berlin.ambiguous = Ambiguous::Later;
    check_with(
        texts(&["2024-10-27 02:30:00", "2024-03-31T02:30", "2024-05-01", "2024-05-01T10:00:00+02:00", "01.05.2024"]),
        "timestamptz",
        &berlin,
        &["2024-10-27T01:30:00Z", "2024-03-31T01:30:00Z", "2024-04-30T22:00:00Z", "2024-05-01T08:00:00Z", "timestamp_format_unclear"],
        0,
    );
    check_with(Date32Array::from(vec![19_844]), "timestamptz", &berlin, &["2024-04-30T22:00:00Z"], 0);
    refused(local(), "timestamptz");
    check(local(), "timestamp", &["2024-05-01T10:00:00", "2024-10-27T02:30:00", "2024-03-31T02:30:00"]);
    refused(local().with_timezone("UTC"), "timestamp");

    berlin.nonexistent = Nonexistent::Skip;
    let array: ArrayRef = Arc::new(local());
    let mut zone = berlin.zone.as_ref().map(ZoneConverter::new);
    let mut context = Context::new(&berlin, zone.as_mut());
    convert(&array, false, ColumnType::Timestamptz, &mut context).unwrap();
    assert_eq!(context.faults.len(), 1);
    assert!(context.faults[0].skipped && context.faults[0].row == 2);
    assert_eq!(context.faults[0].value.as_deref(), Some("2024-03-31T02:30:00"));
}

#[test]
fn int96_is_exact_over_its_whole_range() {
    let nanos = |us: i128| us * 1_000;
    let array: ArrayRef = Arc::new(
        Decimal128Array::from(vec![
            Some(nanos(9_089_380_393_200_000_000)),
            Some(nanos(253_402_225_200_000_000) + 999),
            Some(nanos(i128::from(i64::MAX) + 1)),
            None,
        ])
        .with_precision_and_scale(38, 0)
        .unwrap(),
    );
    let rules = rules(None, None);
    let mut context = Context::new(&rules, None);
    let values = times(&array, true, &mut context).unwrap().unwrap();
    assert_eq!(values.us[..2], [9_089_380_393_200_000_000, 253_402_225_200_000_000]);
    assert_eq!(
        context.faults.iter().map(|fault| (fault.row, fault.reason)).collect::<Vec<_>>(),
        [(2, timelake_model::Reason::TimestampOutOfRange)]
    );
    assert_eq!(values.truncated_count(), 1);
}

#[test]
fn the_rest() {
    check(NullArray::new(2), "uuid", &["NULL", "NULL"]);
    check(NullArray::new(1), "timestamptz", &["NULL"]);
    check(Date64Array::from(vec![86_400_000, 1]), "date", &["1970-01-02", "lossy_conversion"]);
    check(Date32Array::from(vec![1]), "timestamp", &["1970-01-02T00:00:00"]);
    check(Time32MillisecondArray::from(vec![1_500]), "time", &["00:00:01.500"]);
    check_with(Time64NanosecondArray::from(vec![1_999]), "time", &rules(None, None), &["00:00:00.000001"], 1);
    let bytes = || FixedSizeBinaryArray::try_from_iter([[7_u8; 16]].iter()).unwrap();
    check(bytes(), "uuid", &["07070707070707070707070707070707"]);
    check(bytes(), "fixed[16]", &["07070707070707070707070707070707"]);
    check(bytes(), "binary", &["07070707070707070707070707070707"]);
    refused(bytes(), "fixed[15]");
    refused(bytes(), "string");
    check(BooleanArray::from(vec![Some(true), None]), "boolean", &["true", "NULL"]);
    let list = ListArray::from_iter_primitive::<Float64Type, _, _>(vec![Some(vec![Some(1.0)])]);
    refused(list, "double");
}

fn one(array: impl Array + 'static, target: &str) -> std::result::Result<ArrayRef, timelake_model::Reason> {
    let array: ArrayRef = Arc::new(array);
    let rules = Rules::default();
    let mut context = Context::new(&rules, None);
    let out = convert(&array, false, ColumnType::parse(target).unwrap(), &mut context).unwrap().unwrap();
    context.faults.pop().map_or(Ok(out), |fault| Err(fault.reason))
}

proptest! {
    #[test]
    fn integers_and_doubles_agree_exactly_or_are_refused(value: i64, shift in 0_u32..63) {
        let value = value >> shift;
        match one(Int64Array::from(vec![value]), "double") {
            Ok(out) => {
                let double = out.as_primitive::<Float64Type>().value(0);
                prop_assert_eq!(double as i128, i128::from(value));
                let back = one(Float64Array::from(vec![double]), "long").unwrap();
                prop_assert_eq!(back.as_primitive::<Int64Type>().value(0), value);
            }
            Err(_) => prop_assert_ne!(value as f64 as i128, i128::from(value)),
        }
    }

    #[test]
    fn doubles_go_through_text_unchanged(value: f64) {
        let out = one(StringArray::from(vec![format!("{value:?}")]), "double").unwrap();
        let back = out.as_primitive::<Float64Type>().value(0);
        prop_assert!(back.to_bits() == value.to_bits() || (back.is_nan() && value.is_nan()));
    }

    #[test]
    fn decimals_are_the_double_of_their_text(value in -(10_i128.pow(37))..10_i128.pow(37), shift in 0_u32..36, scale in 0_i8..38) {
        let value = value / 10_i128.pow(shift);
        let text = Decimal128Type::format_decimal(value, 38, scale);
        let array = Decimal128Array::from(vec![value]).with_precision_and_scale(38, scale).unwrap();
        let out = one(array.clone(), "double").unwrap();
        prop_assert_eq!(out.as_primitive::<Float64Type>().value(0).to_bits(), text.parse::<f64>().unwrap().to_bits());
        // Text, decimal of the same scale, and the way over another scale are one number.
        let target = format!("decimal(38,{scale})");
        let by_text = one(StringArray::from(vec![text]), &target).unwrap();
        prop_assert_eq!(by_text.as_primitive::<Decimal128Type>().value(0), value);
        if let Ok(rescaled) = one(array, "decimal(38,5)") {
            let back = one(rescaled.as_primitive::<Decimal128Type>().clone(), &target).unwrap();
            prop_assert_eq!(back.as_primitive::<Decimal128Type>().value(0), value);
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC*|[-+0-9eE.:TZ ]{0,40}") {
        for target in ["int", "double", "decimal(10,3)", "boolean", "date", "time", "timestamp", "timestamptz", "uuid"] {
            let _ = one(StringArray::from(vec![text.clone()]), target);
        }
    }
}

mod time_texts;
