//! "Did you mean": the candidate a mistyped name most likely stands for.

/// The nearest candidate, if it is near enough to be worth saying.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = wanted.to_lowercase();
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The hint of an error about a name that is none of `names`: the likely one, and all of them.
pub fn names_hint(wanted: &str, what: &str, names: &[&str]) -> String {
    let meant = nearest(wanted, names.iter().copied()).map_or(String::new(), |name| format!("did you mean {name}? "));
    format!("{meant}{what}: {}", names.join(", "))
}

/// Edits (insert, remove, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 3 {
        return usize::MAX;
    }
    let mut before_previous = vec![0; b.len() + 1];
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut current = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = previous[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            current[j] = replaced.min(previous[j] + 1).min(current[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                current[j] = current[j].min(before_previous[j - 2] + 1);
            }
        }
        before_previous = std::mem::replace(&mut previous, current);
    }
    previous[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_found_by_the_same_rule() {
        let verbs = ["list", "status", "resume", "report", "gc"];
        for (word, meant) in [("lst", Some("list")), ("statsu", Some("status")), ("RESUME", Some("resume")), ("repot", Some("report"))] {
            assert_eq!(nearest(word, verbs), meant, "{word}");
        }
        assert_eq!((nearest("sensor", verbs), nearest("", verbs)), (None, None));
    }

    #[test]
    fn a_hint_has_all_names_and_the_likely_one_first() {
        assert_eq!(names_hint("vlaue", "columns", &["ts", "value"]), "did you mean value? columns: ts, value");
        assert_eq!(names_hint("humidity", "columns", &["ts", "value"]), "columns: ts, value");
    }

    #[test]
    fn finds_typing_slips_and_nothing_far() {
        let names = ["timestamp", "tag_name", "value"];
        assert_eq!(nearest("timestmap", names), Some("timestamp"));
        assert_eq!(nearest("Value", names), Some("value"));
        assert_eq!(nearest("vlaue", names), Some("value"));
        assert_eq!(nearest("humidity", names), None);
    }
}
