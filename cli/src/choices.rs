//! Options with a closed list of words: the words stand in `--help`, the values are the model's enums.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

/// Reads one of `words`; each is the serialised name of a value of `T`.
pub fn choice<T: DeserializeOwned + Clone + Send + Sync + 'static>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(serde_json::Value::String(word)))
}

/// The candidate that was probably meant, if one is near: at most a third of its letters differ.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    candidates
        .iter()
        .map(|candidate| (edits(&word.to_lowercase(), candidate), *candidate))
        .filter(|(edits, candidate)| *edits <= candidate.chars().count().div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours between two words (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::JOB_VERBS;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        for (word, meant) in [
            ("lst", Some("list")),
            ("statsu", Some("status")),
            ("RESUME", Some("resume")),
            ("repot", Some("report")),
            ("sensor", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &JOB_VERBS), meant, "{word}");
        }
    }
}
