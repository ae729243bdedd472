//! Errors on stderr for people, on stdout as one object with `--json`. Also turns clap's complaints into our error.

use crate::output::{Fields, Layout, Paint, counted, number, shortened, wrapped};
use clap::error::{ContextKind, ContextValue};
use timelake_model::{Error, Place, Reason};

/// `error[reason]: message`, what is known about the place, and how to mend it.
pub fn for_people(error: &Error, layout: Layout) -> String {
    // What was read is shown as it is, never broken.
    let head = layout.paint(&format!("error[{}]", error.reason), Paint::Bad);
    let mut out = format!("{head}: {}\n{}", error.message, place(&error.place).render(2, Layout::default()));
    if let Some(hint) = &error.hint {
        for (i, line) in wrapped(hint, layout.width.map(|width| width.saturating_sub(6))).iter().enumerate() {
            let start = if i == 0 { format!("{}: ", layout.paint("hint", Paint::Strong)) } else { " ".repeat(6) };
            out.push_str(&format!("{start}{line}\n"));
        }
    }
    out
}

/// `{"error": {...}}`
pub fn as_json(error: &Error) -> serde_json::Value {
    serde_json::json!({ "error": error })
}

/// All that is set, in the order in which one looks for it.
pub fn place(place: &Place) -> Fields {
    // Destructured so that a new field cannot be forgotten here.
    let Place {
        file,
        line,
        row,
        column,
        value,
        count,
        distinct,
        candidates,
        zone,
        key,
        other_file,
        other_line,
        other_row,
        expected_fields,
        found_fields,
        byte,
        byte_offset,
        path_value,
        file_value,
        source_type,
        target,
        option,
        pattern,
        limit,
        job,
        table,
    } = place;
    let plain = |n: &Option<u64>| n.map(number);
    let list = |words: &Vec<String>| (!words.is_empty()).then(|| few(words));
    let lines: [(&str, Option<String>); 26] = [
        ("option", option.clone()),
        ("table", table.clone()),
        ("job", job.clone()),
        ("pattern", pattern.clone()),
        ("file", file.clone()),
        ("line", plain(line)),
        ("row", plain(row)),
        ("byte", byte.clone()),
        ("byte offset", plain(byte_offset)),
        ("column", column.clone()),
        ("type", source_type.clone()),
        ("target", target.clone()),
        ("value", value.as_deref().map(visible)),
        ("zone", zone.clone()),
        ("key", key.clone()),
        ("other file", other_file.clone()),
        ("other line", plain(other_line)),
        ("other row", plain(other_row)),
        ("value in path", path_value.clone()),
        ("value in file", file_value.clone()),
        ("fields expected", plain(expected_fields)),
        ("fields found", plain(found_fields)),
        ("limit", plain(limit)),
        ("values", list(distinct)),
        ("candidates", list(candidates)),
        ("in all", count.map(|n| counted(n, "row"))),
    ];
    let mut fields = Fields::default();
    for (name, text) in lines {
        if let Some(text) = text {
            fields.add(name, text);
        }
    }
    fields
}

/// The first few, each cut when long; how many more there are. A single line of a terminal holds them as a rule.
fn few(words: &[String]) -> String {
    const MOST_WORDS: usize = 5;
    const LONGEST_WORD_CHARS: usize = 40;
    let shown: Vec<String> = words.iter().take(MOST_WORDS).map(|word| shortened(&visible(word), LONGEST_WORD_CHARS)).collect();
    let more = words.len().saturating_sub(MOST_WORDS);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// A value as read, made harmless for a terminal: control characters are escaped, and what is long is cut.
fn visible(value: &str) -> String {
    const LONGEST_VALUE_CHARS: usize = 200;
    if value.is_empty() || value != value.trim() {
        return format!("\"{}\"", value.escape_debug());
    }
    let mut out = String::new();
    for (i, c) in value.chars().enumerate() {
        if i == LONGEST_VALUE_CHARS {
            out.push_str(&format!("... ({})", counted(value.len() as u64, "byte")));
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// What clap refuses, as our error: for `--json`, where its own text would not be one object.
pub fn from_clap(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
    let tips: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let listed: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("  ") && !line.trim().starts_with("tip:"))
        .map(|line| line.trim().to_string())
        .collect();
    let message = if message.ends_with(':') && !listed.is_empty() { format!("{message} {}", listed.join(", ")) } else { message };
    let hint = if tips.is_empty() { "see --help".to_string() } else { tips.join("; ") };
    Error::invalid(Reason::InvalidOption, message).hint(hint).at(|p| {
        // `--tz <ZONE>` names its value too
        let option = word(ContextKind::InvalidArg).or_else(|| word(ContextKind::InvalidSubcommand));
        p.option = option.map(|option| option.split(" <").next().unwrap_or_default().to_string());
        p.value = word(ContextKind::InvalidValue);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn an_error_shows_where_and_how_to_mend_it() {
        let error = Error::invalid(Reason::LossyConversion, "the value 2.5 does not fit the int column quality")
            .hint("map another column, or make the column a double")
            .at(|p| {
                p.file = Some("export/a.parquet".into());
                p.row = Some(1_200);
                p.column = Some("q".into());
                p.value = Some("2.5".into());
                p.count = Some(17);
            });
        let expected = "\
error[lossy_conversion]: the value 2.5 does not fit the int column quality
  file    export/a.parquet
  row     1,200
  column  q
  value   2.5
  in all  17 rows
hint: map another column, or make the column a double
";
        assert_eq!(for_people(&error, Layout::default()), expected);
        assert!(for_people(&error, Layout { width: None, color: true }).starts_with("\x1b[31;1merror[lossy_conversion]\x1b[0m: "));
        assert_eq!(as_json(&error)["error"]["row"], 1200);
    }

    #[test]
    fn of_many_values_a_few_are_shown() {
        let words: Vec<String> = (0..20).map(|i| format!("{i}.5")).collect();
        assert_eq!(few(&words), "0.5, 1.5, 2.5, 3.5, 4.5 and 15 more");
        assert_eq!(few(&words[..2]), "0.5, 1.5");
        assert!(few(&vec!["x".repeat(500); 20]).len() < 230);
    }

    #[test]
    fn values_cannot_write_to_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(visible(" 1"), "\" 1\"");
        assert_eq!(visible(""), "\"\"");
        assert!(visible(&"x".repeat(5000)).len() < 300);
    }

    #[test]
    fn claps_complaints_keep_their_word_and_their_tip() {
        let from = |words: &str| from_clap(&Cli::try_parse_from(words.split(' ')).unwrap_err());
        let misspelt = from("timelake backfill iot.sensor --fromm a");
        assert_eq!((misspelt.reason, misspelt.exit_code()), (Reason::InvalidOption, 2));
        assert_eq!(misspelt.place.option.as_deref(), Some("--fromm"));
        assert!(misspelt.hint.unwrap().contains("'--from'"));
        let value = from("timelake backfill iot.sensor --from a --ambiguous latter");
        assert_eq!((value.place.option.as_deref(), value.place.value.as_deref()), (Some("--ambiguous"), Some("latter")));
        assert!(value.hint.unwrap().contains("later"));
        let missing = from("timelake table create iot.sensor --time-column ts --series-key a");
        assert!(missing.message.contains("--columns"), "{}", missing.message);
        assert!(from("timelake tabel show x").hint.unwrap().contains("table"));
    }
}
