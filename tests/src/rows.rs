//! Comparing rows as sets with multiplicity, and the few words of a shell that cases need.

use serde_json::{Map, Value};

/// Whole and fractional JSON numbers of the same value are the same; nulls and absent fields too.
pub fn normalised(row: &Value) -> Value {
    match row {
        Value::Object(fields) => {
            let kept: Map<String, Value> =
                fields.iter().filter(|(_, v)| !v.is_null()).map(|(name, v)| (name.clone(), normalised(v))).collect();
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.iter().map(normalised).collect()),
        Value::Number(n) => match n.as_f64() {
            Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < 1e15 => Value::from(f as i64),
            _ => row.clone(),
        },
        _ => row.clone(),
    }
}

pub fn sorted_texts(rows: &[Value]) -> Vec<String> {
    let mut texts: Vec<String> = rows.iter().map(|r| normalised(r).to_string()).collect();
    texts.sort();
    texts
}

#[track_caller]
pub fn assert_same_rows(found: &[Value], expected: &[Value], reader: &str) {
    let (found, expected) = (sorted_texts(found), sorted_texts(expected));
    if found == expected {
        return;
    }
    let without = |a: &[String], b: &[String]| {
        let mut rest = b.to_vec();
        let mut out = Vec::new();
        for text in a {
            match rest.iter().position(|t| t == text) {
                Some(at) => drop(rest.swap_remove(at)),
                None => out.push(text.clone()),
            }
        }
        out.into_iter().take(20).collect::<Vec<_>>().join("\n  ")
    };
    panic!(
        "{reader} reads {} rows, {} are right\nmissing:\n  {}\ntoo many:\n  {}",
        found.len(),
        expected.len(),
        without(&expected, &found),
        without(&found, &expected)
    );
}

/// Words as a shell splits them: blanks separate, single or double quotes hold together.
pub fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "an open quote in {text}");
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_split_as_a_shell_does() {
        assert_eq!(split_words("--from '*.parquet'  --set a=\"b c\" ''"), ["--from", "*.parquet", "--set", "a=b c", ""]);
    }
    #[test]
    fn rows_differ_in_number_value_and_column() {
        assert_same_rows(&[json!({"a": 1, "b": null}), json!({"a": 2.5})], &[json!({"a": 2.5}), json!({"a": 1.0})], "x");
        for (found, expected) in [
            (vec![json!({"a": 1})], vec![json!({"a": 1}), json!({"a": 1})]),
            (vec![json!({"a": 0.0})], vec![json!({"a": "-0.0"})]),
            (vec![json!({"a": 1})], vec![json!({"b": 1})]),
        ] {
            assert!(std::panic::catch_unwind(|| assert_same_rows(&found, &expected, "x")).is_err(), "{found:?}");
        }
    }
}
