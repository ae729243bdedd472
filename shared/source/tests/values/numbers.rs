//! Texts of numbers: where both accept, the values are equal to the bit; where Python refuses, so do we.

use super::python;
use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::{Decimal128Type, Float64Type};
use std::collections::HashSet;
use std::sync::Arc;
use timelake_model::{ColumnType, Reason};
use timelake_source::{ConvertedColumn, Rules, convert_column};

const TEXTS: usize = 200_000;

/// A small generator, so that the texts are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
    fn digits(&mut self, most: u64) -> String {
        (0..self.below(most + 1)).map(|_| char::from(b'0' + self.below(10) as u8)).collect()
    }
    fn text(&mut self) -> String {
        let sign = ["", "", "", "-", "+"][self.below(5) as usize];
        let most = [3, 8, 17, 25][self.below(4) as usize];
        let mut text = format!("{sign}{}", self.digits(most));
        if self.below(3) > 0 {
            text = format!("{text}.{}", self.digits(most));
        }
        if self.below(4) == 0 {
            let size = self.below(340);
            text = format!("{text}{}{}{size}", ["e", "E"][self.below(2) as usize], ["", "-", "+"][self.below(3) as usize]);
        }
        // One in four is spoilt, so that both sides have something to refuse.
        let pieces = [
            "_", " ", ".", ",", "-", "e", "x", "0x", "nan", "inf", "Infinity", "NaN", "١", "１", "\u{a0}", "\u{2212}", "'", "d", "f", "\t",
            "0",
        ];
        if self.below(4) == 0 {
            let places: Vec<usize> = text.char_indices().map(|(place, _)| place).chain([text.len()]).collect();
            let place = places[self.below(places.len() as u64) as usize];
            text.insert_str(place, pieces[self.below(pieces.len() as u64) as usize]);
        }
        if self.below(50) == 0 {
            text = format!("{sign}{}", ["nan", "inf", "NaN", "Infinity", "-inf", "INF", "infinity", "NAN"][self.below(8) as usize]);
        }
        text
    }
}

/// Texts that Python takes and we refuse: digits grouped by `_` or of other scripts, and spellings of infinity and
/// not-a-number that other programs do not write.
fn is_known_refusal(text: &str) -> bool {
    let word = text.trim().trim_start_matches(['+', '-']).to_ascii_lowercase();
    text.contains('_') || text.contains(['١', '１']) || ["inf", "infinity", "nan"].contains(&word.as_str())
}

fn converted(texts: &[String], target: &str) -> (ConvertedColumn, HashSet<u32>) {
    let array: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let column = convert_column(&array, ColumnType::parse(target).unwrap(), &Rules::default()).unwrap().unwrap();
    let refused = column.faults.iter().map(|fault| fault.row).collect();
    (column, refused)
}

#[test]
fn numbers_are_those_of_python() {
    let mut random = Random(11);
    let mut texts: Vec<String> = (0..TEXTS).map(|_| random.text()).collect();
    // Near ties and ends of the range, where parsers go wrong.
    for text in [
        "4.9e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "9007199254740993",
        "0.1",
        "1e23",
        "8.5e22",
        "-0",
        "-0.0",
    ] {
        texts.push(text.to_string());
    }
    let lines: String = texts.iter().map(|text| format!("\"{}\"\n", text.replace('\t', "\\t"))).collect();
    let answers = String::from_utf8(python::run("number_rules.py", &[], lines.into_bytes())).unwrap();
    let (doubles, refused) = converted(&texts, "double");
    let (decimals, refused_decimals) = converted(&texts, "decimal(38,6)");
    let (values, millionths) = (doubles.array.as_primitive::<Float64Type>(), decimals.array.as_primitive::<Decimal128Type>());
    assert_eq!(answers.lines().count(), texts.len());
    assert!(doubles.faults.iter().all(|fault| fault.reason == Reason::BadNumber));
    let (mut equal, mut equal_decimals) = (0, 0);
    for (row, (text, answer)) in texts.iter().zip(answers.lines()).enumerate() {
        let (bits, decimal) = answer.split_once(' ').unwrap();
        let right = u64::from_str_radix(bits, 16).ok().map(f64::from_bits);
        if !refused.contains(&(row as u32)) {
            let got = values.value(row);
            let right = right.unwrap_or_else(|| panic!("{text} is taken as {got}, Python refuses it"));
            assert!(got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan(), "{text} is {got}, Python has {right}");
            equal += 1;
        } else if let Some(right) = right {
            let too_large = right.is_infinite() && text.contains(|digit: char| digit.is_ascii_digit());
            assert!(too_large || is_known_refusal(text), "{text} is refused, Python has {right}");
        }
        let right = decimal.parse::<i128>().ok().filter(|value| value.abs() < 10_i128.pow(38));
        if !refused_decimals.contains(&(row as u32)) {
            assert_eq!(Some(millionths.value(row)), right, "{text}: Python has {decimal}");
            equal_decimals += 1;
        } else if let Some(right) = right {
            assert!(is_known_refusal(text), "{text} is refused as a decimal, Python has {right}");
        }
    }
    assert!(equal > TEXTS / 2 && equal_decimals > TEXTS / 4, "{equal} {equal_decimals}");
}
