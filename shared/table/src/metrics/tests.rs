//! Every value of a file lies between its bounds, under Iceberg's order, for every type: the one property that
//! keeps readers from losing rows.

use super::*;
use crate::schema::parse_columns;
use crate::values::column_type;
use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array, Float64Array, Int32Array, Int64Array,
    LargeBinaryArray, RecordBatch, StringArray, Time64MicrosecondArray, TimestampMicrosecondArray,
};
use iceberg::spec::Datum;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use timelake_model::ColumnType;

fn schema_of(type_text: &str) -> Schema {
    parse_columns(&format!("v:{type_text}"), &[]).unwrap()
}

/// Writes the values as one column in row groups of three, and makes the entry.
fn entry(type_text: &str, array: ArrayRef, modes: &MetricsModes) -> DataFile {
    let schema = schema_of(type_text);
    let arrow_schema = writer_schema(&schema).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(3)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), arrow_schema.clone(), Some(properties)).unwrap();
    writer.write(&RecordBatch::try_new(arrow_schema, vec![array]).unwrap()).unwrap();
    let footer = writer.finish().unwrap();
    let written = Written {
        path: "file:///t/data/a.parquet".into(),
        bytes: 1,
        spec_id: 0,
        partition: Struct::empty(),
        sort_order_id: 1,
        nan_counts: HashMap::new(),
    };
    data_file(&schema, &footer, written, modes).unwrap()
}

fn order(a: &PrimitiveLiteral, b: &PrimitiveLiteral) -> Ordering {
    match (a, b) {
        // Iceberg orders -0.0 before 0.0.
        (PrimitiveLiteral::Double(a), PrimitiveLiteral::Double(b)) => a.0.total_cmp(&b.0),
        (PrimitiveLiteral::Float(a), PrimitiveLiteral::Float(b)) => a.0.total_cmp(&b.0),
        (PrimitiveLiteral::String(a), PrimitiveLiteral::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        _ => a.partial_cmp(b).unwrap(),
    }
}

/// The bounds, after checking that they enclose all values and survive their byte form.
fn check_bounds(type_text: &str, file: &DataFile, values: &[PrimitiveLiteral]) -> (Option<PrimitiveLiteral>, Option<PrimitiveLiteral>) {
    let through_bytes = |d: &Datum| {
        let back = Datum::try_from_bytes(&d.to_bytes().unwrap(), d.data_type().clone()).unwrap();
        assert_eq!(&back, d, "{type_text}: a bound changes when stored");
        d.literal().clone()
    };
    let lower = file.lower_bounds().get(&1).map(through_bytes);
    let upper = file.upper_bounds().get(&1).map(through_bytes);
    for v in values.iter().filter(|v| !v.is_nan()) {
        if let Some(bound) = &lower {
            assert_ne!(order(bound, v), Ordering::Greater, "{type_text}: lower bound {bound:?} is above {v:?}");
        }
        if let Some(bound) = &upper {
            assert_ne!(order(bound, v), Ordering::Less, "{type_text}: upper bound {bound:?} is below {v:?}");
        }
    }
    for bound in [&lower, &upper].into_iter().flatten() {
        match bound {
            PrimitiveLiteral::String(s) => assert!(s.chars().count() <= 16),
            PrimitiveLiteral::Binary(b) if type_text == "binary" => assert!(b.len() <= 16),
            _ => {}
        }
    }
    (lower, upper)
}

fn check(type_text: &str, array: ArrayRef, values: &[PrimitiveLiteral]) -> (Option<PrimitiveLiteral>, Option<PrimitiveLiteral>) {
    let file = entry(type_text, array, &MetricsModes::default());
    assert_eq!(file.record_count(), values.len() as u64);
    assert_eq!(file.value_counts().get(&1), Some(&(values.len() as u64)));
    assert_eq!(file.null_value_counts().get(&1), Some(&0));
    check_bounds(type_text, &file, values)
}

/// Texts around the hard places: long ones, the edges of the surrogates, the last scalar value, and common ones.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\u{10FFFF}".to_string()),
        Just("\u{D7FF}".to_string()),
        Just("\u{E000}".to_string()),
        Just("\u{7F}".to_string()),
        Just("\0".to_string()),
        Just("ü".to_string()),
        "[a-z]{1,4}".prop_map(String::from),
        any::<char>().prop_map(String::from),
    ];
    prop_oneof![
        proptest::collection::vec(piece, 0..90).prop_map(|p| p.concat()),
        (0usize..90).prop_map(|n| "\u{10FFFF}".repeat(n)),
        (0usize..90).prop_map(|n| "\u{D7FF}".repeat(n)),
        (0usize..90).prop_map(|n| "a".repeat(n)),
    ]
}
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..90),
        (0usize..90).prop_map(|n| vec![0xFF; n]),
        (0usize..90, any::<u8>()).prop_map(|(n, last)| [vec![0xFF; n], vec![last]].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts_are_enclosed(values in proptest::collection::vec(text(), 1..8)) {
        let literals: Vec<_> = values.iter().map(|v| PrimitiveLiteral::String(v.clone())).collect();
        let (lower, _) = check("string", Arc::new(StringArray::from(values)), &literals);
        prop_assert!(lower.is_some());
    }

    #[test]
    fn binaries_are_enclosed(values in proptest::collection::vec(bytes(), 1..8)) {
        let literals: Vec<_> = values.iter().map(|v| PrimitiveLiteral::Binary(v.clone())).collect();
        let array = LargeBinaryArray::from_iter_values(values.iter());
        let (lower, _) = check("binary", Arc::new(array), &literals);
        prop_assert!(lower.is_some());
    }

    #[test]
    fn doubles_are_enclosed(values in proptest::collection::vec(prop_oneof![any::<f64>(), Just(-0.0), Just(0.0), Just(f64::NAN)], 1..8)) {
        let literals: Vec<_> = values.iter().map(|v| PrimitiveLiteral::Double((*v).into())).collect();
        let (lower, upper) = check("double", Arc::new(Float64Array::from(values.clone())), &literals);
        for bound in [lower, upper].into_iter().flatten() {
            prop_assert!(!bound.is_nan());
        }
        let floats: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        let literals: Vec<_> = floats.iter().map(|v| PrimitiveLiteral::Float((*v).into())).collect();
        check("float", Arc::new(Float32Array::from(floats)), &literals);
    }

    #[test]
    fn decimals_are_enclosed_and_exact(values in proptest::collection::vec(-999_999_999i64..=999_999_999, 1..8), digits in 0usize..3) {
        // stored as int32, int64 and bytes
        let (precision, factor) = [(9u8, 1i128), (18, 999_999_999), (38, 99_999_999_999_999_999_999_999_999_999)][digits];
        let values: Vec<i128> = values.into_iter().map(|v| i128::from(v) * factor).collect();
        let type_text = format!("decimal({precision},3)");
        let array = Decimal128Array::from(values.clone()).with_precision_and_scale(precision, 3).unwrap();
        let literals: Vec<_> = values.iter().map(|v| PrimitiveLiteral::Int128(*v)).collect();
        let (lower, upper) = check(&type_text, Arc::new(array), &literals);
        prop_assert_eq!(lower, values.iter().min().map(|v| PrimitiveLiteral::Int128(*v)));
        prop_assert_eq!(upper, values.iter().max().map(|v| PrimitiveLiteral::Int128(*v)));
    }

    #[test]
    fn fixed_values_and_uuids_are_enclosed(values in proptest::collection::vec(any::<[u8; 16]>(), 1..8), fill in any::<u8>()) {
        let array = FixedSizeBinaryArray::try_from_iter(values.iter()).unwrap();
        let literals: Vec<_> = values.iter().map(|v| PrimitiveLiteral::UInt128(u128::from_be_bytes(*v))).collect();
        let (lower, upper) = check("uuid", Arc::new(array), &literals);
        prop_assert!(lower.is_some() && upper.is_some());
        // longer than what the footer keeps of a value
        let long: Vec<[u8; 100]> = values.iter().map(|v| { let mut l = [fill; 100]; l[60..76].copy_from_slice(v); l }).collect();
        let array = FixedSizeBinaryArray::try_from_iter(long.iter()).unwrap();
        let literals: Vec<_> = long.iter().map(|v| PrimitiveLiteral::Binary(v.to_vec())).collect();
        let (lower, upper) = check("fixed[100]", Arc::new(array), &literals);
        for bound in [lower, upper].into_iter().flatten() {
            prop_assert!(matches!(bound, PrimitiveLiteral::Binary(b) if b.len() == 100));
        }
    }

    #[test]
    fn whole_numbers_and_times_have_exact_bounds(values in proptest::collection::vec(any::<i64>(), 1..8)) {
        let ints: Vec<i32> = values.iter().map(|v| *v as i32).collect();
        let (int, long) = (|v: &i32| PrimitiveLiteral::Int(*v), |v: &i64| PrimitiveLiteral::Long(*v));
        let int_literals: Vec<_> = ints.iter().map(int).collect();
        let long_literals: Vec<_> = values.iter().map(long).collect();
        let day_times: Vec<i64> = values.iter().map(|v| v.rem_euclid(86_400_000_000)).collect();
        let time_literals: Vec<_> = day_times.iter().map(long).collect();
        let cases: [(&str, ArrayRef, &[PrimitiveLiteral]); 6] = [
            ("int", Arc::new(Int32Array::from(ints.clone())), &int_literals),
            ("date", Arc::new(Date32Array::from(ints.clone())), &int_literals),
            ("long", Arc::new(Int64Array::from(values.clone())), &long_literals),
            ("time", Arc::new(Time64MicrosecondArray::from(day_times.clone())), &time_literals),
            ("timestamp", Arc::new(TimestampMicrosecondArray::from(values.clone())), &long_literals),
            ("timestamptz", Arc::new(TimestampMicrosecondArray::from(values.clone()).with_timezone("+00:00")), &long_literals),
        ];
        for (type_text, array, literals) in cases {
            let (lower, upper) = check(type_text, array, literals);
            let smallest = literals.iter().min_by(|a, b| order(a, b)).cloned();
            let largest = literals.iter().max_by(|a, b| order(a, b)).cloned();
            prop_assert_eq!((lower, upper), (smallest, largest), "{}", type_text);
        }
    }
}

fn bound_text(bounds: &HashMap<i32, Datum>) -> Option<String> {
    match bounds.get(&1)?.literal() {
        PrimitiveLiteral::String(s) => Some(s.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn long_texts_are_cut_to_sixteen_characters_and_raised() {
    let text = format!("{}{}", "ü".repeat(20), "z".repeat(62));
    let file = entry("string", Arc::new(StringArray::from(vec![text])), &MetricsModes::default());
    assert_eq!(bound_text(file.lower_bounds()), Some("ü".repeat(16)));
    assert_eq!(bound_text(file.upper_bounds()), Some(format!("{}ý", "ü".repeat(15))));
    // the last scalar value cannot be raised, the one before it is
    let text = format!("a{}", "\u{10FFFF}".repeat(40));
    let file = entry("string", Arc::new(StringArray::from(vec![text])), &MetricsModes::default());
    assert_eq!(bound_text(file.upper_bounds()), Some("b".into()));
    // and when none can be, there is no upper bound
    let file = entry("string", Arc::new(StringArray::from(vec!["\u{10FFFF}".repeat(40)])), &MetricsModes::default());
    assert_eq!(bound_text(file.upper_bounds()), None);
    assert_eq!(bound_text(file.lower_bounds()), Some("\u{10FFFF}".repeat(16)));
    // U+D7FF is followed by U+E000
    assert_eq!(truncate_text_up(&"\u{D7FF}".repeat(17), 16), Some(format!("{}\u{E000}", "\u{D7FF}".repeat(15))));
    assert_eq!(truncate_bytes_up(&[1, 0xFF, 0xFF, 9], 3), Some(vec![2]));
    assert_eq!(truncate_bytes_up(&[0xFF; 4], 3), None);
}

#[test]
fn nulls_and_nan_leave_bounds_alone() {
    let array = StringArray::from(vec![Some("b"), None, None, None, None, None, Some("a")]);
    let file = entry("string", Arc::new(array), &MetricsModes::default());
    assert_eq!((file.value_counts()[&1], file.null_value_counts()[&1]), (7, 5));
    assert_eq!((bound_text(file.lower_bounds()), bound_text(file.upper_bounds())), (Some("a".into()), Some("b".into())));
    let file = entry("string", Arc::new(StringArray::from(vec![None::<&str>; 2])), &MetricsModes::default());
    assert!(file.lower_bounds().is_empty() && file.upper_bounds().is_empty());
    let file = entry("double", Arc::new(Float64Array::from(vec![f64::NAN; 2])), &MetricsModes::default());
    assert!(file.lower_bounds().is_empty() && file.upper_bounds().is_empty());
    let file = entry("boolean", Arc::new(BooleanArray::from(vec![true, true])), &MetricsModes::default());
    assert_eq!(file.lower_bounds()[&1], Datum::bool(true));
}

#[test]
fn modes_of_the_table_are_kept() {
    let modes = |properties: &[(&str, &str)]| {
        let properties = properties.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        MetricsModes::from_properties(&properties, &schema_of("string"), &SortOrder::unsorted_order())
    };
    let array = || Arc::new(StringArray::from(vec!["abcdef"])) as ArrayRef;
    let file = entry("string", array(), &modes(&[(METRICS_DEFAULT, "none")]).unwrap());
    assert!(file.value_counts().is_empty() && file.lower_bounds().is_empty() && !file.column_sizes().is_empty());
    let file = entry("string", array(), &modes(&[("write.metadata.metrics.column.v", "counts")]).unwrap());
    assert!(!file.value_counts().is_empty() && file.lower_bounds().is_empty());
    let file = entry("string", array(), &modes(&[(METRICS_DEFAULT, "none"), ("write.metadata.metrics.column.v", "Truncate(2)")]).unwrap());
    assert_eq!((bound_text(file.lower_bounds()), bound_text(file.upper_bounds())), (Some("ab".into()), Some("ac".into())));
    let file = entry("string", array(), &modes(&[(METRICS_DEFAULT, "full")]).unwrap());
    assert_eq!(bound_text(file.upper_bounds()), Some("abcdef".into()));
    assert!(modes(&[(METRICS_DEFAULT, "truncate(0)")]).is_err());
    assert!(modes(&[("write.metadata.metrics.column.gone", "nonsense")]).is_ok(), "a dropped column has no mode");
}

#[test]
fn split_offsets_are_the_row_groups_and_the_entry_is_complete() {
    let file = entry("long", Arc::new(Int64Array::from_iter_values(0..7)), &MetricsModes::default());
    let offsets = file.split_offsets().unwrap();
    assert_eq!((offsets.len(), offsets[0]), (3, 4));
    assert!(offsets.is_sorted());
    assert_eq!((file.sort_order_id(), file.record_count()), (Some(1), 7));
    assert!(file.column_sizes()[&1] > 0);
    assert_eq!(column_type(&schema_of("long").field_by_id(1).unwrap().field_type), Some(ColumnType::Long));
}
