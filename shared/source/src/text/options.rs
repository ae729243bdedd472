//! The options of text files as typed → checked rules. Must never let a mistyped option pass.

use crate::convert::{ConstantColumn, NumberFormat, Rules};
use arrow::array::ArrayRef;
use encoding_rs::Encoding;
use std::collections::HashSet;
use timelake_model::request::TextOptions;
use timelake_model::similar::nearest;
use timelake_model::{Column, ColumnType, Error, Reason, Result};

/// How text files are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextRules {
    /// `None`: found in each file.
    pub delimiter: Option<u8>,
    pub encoding: Option<&'static Encoding>,
    /// Texts that mean NULL in columns that are no key.
    pub nulls: Vec<String>,
    pub header_line: Option<u64>,
    pub skip_after_header: u64,
    /// Not empty: files have no header.
    pub columns: Vec<String>,
}

fn invalid(option: &str, value: &str, message: String, hint: &str) -> Error {
    Error::invalid(Reason::InvalidOption, message).hint(hint).at(|place| {
        place.option = Some(option.into());
        place.value = Some(value.into());
    })
}

impl TextRules {
    pub fn parse(options: &TextOptions) -> Result<TextRules> {
        let delimiter = options.delimiter.as_deref().map(parse_delimiter).transpose()?;
        let encoding = options.encoding.as_deref().map(parse_encoding).transpose()?;
        if options.header_line == Some(0) {
            let hint = "the first line of a file is 1; --columns names the columns of files without a header";
            return Err(invalid("--header-line", "0", "--header-line 0 is no line".into(), hint));
        }
        if !options.columns.is_empty() && (options.header_line.is_some() || options.skip_after_header > 0) {
            let option = if options.header_line.is_some() { "--header-line" } else { "--skip-after-header" };
            let message = format!("--columns is for files without a header, and {option} speaks of one");
            return Err(invalid("--columns", &options.columns.join(","), message, "give one of the two"));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = options.columns.iter().find(|name| !name.is_empty() && !seen.insert(name.as_str())) {
            let message = format!("--columns names {twice} twice");
            return Err(invalid("--columns", twice, message, "give each column a name of its own, or none for one that is not loaded"));
        }
        Ok(TextRules {
            delimiter,
            encoding,
            nulls: options.null.clone(),
            header_line: options.header_line,
            skip_after_header: options.skip_after_header,
            columns: options.columns.clone(),
        })
    }
}

fn parse_delimiter(text: &str) -> Result<u8> {
    let hint = "write one ASCII character such as ';', or tab";
    match (text, text.as_bytes()) {
        ("\\t" | "tab" | "TAB" | "\t", _) => Ok(b'\t'),
        (_, [b'"' | b'\n' | b'\r' | 0]) => Err(invalid("--delimiter", text, format!("{text:?} cannot be the --delimiter"), hint)),
        (_, [byte]) if byte.is_ascii() => Ok(*byte),
        _ => Err(invalid("--delimiter", text, format!("--delimiter {text:?} is not one ASCII character"), hint)),
    }
}

/// Names that other programs use, besides those of the WHATWG standard.
const MORE_ENCODINGS: [(&str, &str); 12] = [
    ("utf-8-sig", "utf-8"),
    ("utf8-sig", "utf-8"),
    ("utf16", "utf-16le"),
    ("utf16le", "utf-16le"),
    ("utf16be", "utf-16be"),
    ("latin-1", "latin1"),
    ("windows1250", "windows-1250"),
    ("windows1251", "windows-1251"),
    ("windows1252", "windows-1252"),
    ("cp932", "shift_jis"),
    ("cp936", "gbk"),
    ("cp950", "big5"),
];

fn parse_encoding(text: &str) -> Result<&'static Encoding> {
    let folded = text.trim().to_lowercase();
    let dashed = folded.replace('_', "-");
    let other = MORE_ENCODINGS.iter().find(|(name, _)| *name == dashed).map(|(_, label)| *label);
    let labels = [folded.as_str(), dashed.as_str(), other.unwrap_or_default()];
    labels.into_iter().find_map(|label| Encoding::for_label_no_replacement(label.as_bytes())).ok_or_else(|| {
        let known = [
            "utf-8",
            "utf-16le",
            "utf-16be",
            "windows-1252",
            "windows-1251",
            "iso-8859-15",
            "macintosh",
            "shift_jis",
            "euc-kr",
            "gb18030",
            "big5",
        ];
        let hint = match nearest(&folded, known) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("encodings have the names of the WHATWG standard, among them {}", known.join(", ")),
        };
        invalid("--encoding", text, format!("--encoding {text} is not known"), &hint)
    })
}

/// `--decimal` and `--thousands`.
pub(crate) fn number_format(options: &TextOptions) -> Result<NumberFormat> {
    let one = |option: &str, text: &str| {
        let mut characters = text.chars();
        let hint = "write the character between the digits, for example --decimal ,";
        match (characters.next(), characters.next()) {
            (Some(character), None) if !character.is_alphanumeric() && !matches!(character, '+' | '-' | '"' | '\n' | '\r' | '\0') => {
                Ok(character)
            }
            _ => Err(invalid(option, text, format!("{option} {text:?} is not a character that separates digits"), hint)),
        }
    };
    let decimal = options.decimal.as_deref().map_or(Ok('.'), |text| one("--decimal", text))?;
    if decimal.is_whitespace() {
        let text = options.decimal.as_deref().unwrap_or_default();
        return Err(invalid("--decimal", text, "--decimal cannot be white space".into(), "numbers are trimmed: give a visible character"));
    }
    let thousands = options.thousands.as_deref().map(|text| one("--thousands", text)).transpose()?;
    if thousands == Some(decimal) {
        let text = options.thousands.as_deref().unwrap_or_default();
        let message = format!("--thousands {text} is the decimal separator as well");
        let hint = if decimal == '.' { "give the other one with --decimal ," } else { "give two different characters" };
        return Err(invalid("--thousands", text, message, hint));
    }
    Ok(NumberFormat { decimal, thousands })
}

pub(crate) fn is_numeric(column_type: ColumnType) -> bool {
    matches!(column_type, ColumnType::Int | ColumnType::Long | ColumnType::Float | ColumnType::Double | ColumnType::Decimal { .. })
}

/// `--null-number COL=N`: per column, the numbers that mean NULL, as arrays of one element.
pub(crate) fn null_numbers(pairs: &[String], columns: &[Column], is_key: &[bool], rules: &Rules) -> Result<Vec<Vec<ArrayRef>>> {
    const OPTION: &str = "--null-number";
    let mut numbers = vec![Vec::new(); columns.len()];
    for pair in pairs {
        // A number holds no `=`, a column's name may.
        let Some((name, text)) = pair.rsplit_once('=') else {
            return Err(invalid(OPTION, pair, format!("{OPTION} {pair} is not COL=N"), "write --null-number value=-9999"));
        };
        let index = table_column(OPTION, name.trim(), columns)?;
        let column = &columns[index];
        if is_key[index] || !is_numeric(column.column_type) {
            let why = if is_key[index] { "is part of the table's key" } else { "is no number" };
            let message = format!("{OPTION} {pair}: column {} {why}", column.name);
            return Err(
                invalid(OPTION, pair, message, "name a numeric column that is no key").at(|place| place.target = Some(column.name.clone()))
            );
        }
        // The number as programs write it, else as the source does.
        let plain = Rules { numbers: NumberFormat::default(), ..rules.clone() };
        let mut value = ConstantColumn::parse(Some(text), column.column_type, false, &plain)?;
        if value.is_err() {
            value = ConstantColumn::parse(Some(text), column.column_type, false, rules)?;
        }
        match value {
            Ok(value) if !value.is_null() => numbers[index].push(value.value().clone()),
            _ => {
                let message = format!("{OPTION} {pair}: {text} is not a value of type {}", column.column_type);
                let error = invalid(OPTION, pair, message, "give a number that the column can hold");
                return Err(error.at(|place| place.target = Some(column.column_type.to_string())));
            }
        }
    }
    Ok(numbers)
}

/// `--bad-text-to COL`.
pub(crate) fn bad_text_column(name: &str, columns: &[Column], is_key: &[bool]) -> Result<usize> {
    const OPTION: &str = "--bad-text-to";
    let index = table_column(OPTION, name.trim(), columns)?;
    let column = &columns[index];
    if is_key[index] || column.column_type != ColumnType::String {
        let why = if is_key[index] { "is part of the table's key".to_string() } else { format!("is a {}", column.column_type) };
        let message = format!("{OPTION} {name}: column {name} {why}");
        return Err(
            invalid(OPTION, name, message, "name a string column that is no key").at(|place| place.target = Some(column.name.clone()))
        );
    }
    Ok(index)
}

fn table_column(option: &str, name: &str, columns: &[Column]) -> Result<usize> {
    columns.iter().position(|column| column.name == name).ok_or_else(|| {
        let names = || columns.iter().map(|column| column.name.as_str());
        let hint = match nearest(name, names()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("columns of the table: {}", names().collect::<Vec<_>>().join(", ")),
        };
        Error::invalid(Reason::UnknownTarget, format!("{option}: the table has no column {name}")).hint(hint).at(|place| {
            place.option = Some(option.into());
            place.target = Some(name.into());
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fill: impl FnOnce(&mut TextOptions)) -> Result<TextRules> {
        let mut options = TextOptions::default();
        fill(&mut options);
        TextRules::parse(&options)
    }
    fn numbers(decimal: Option<&str>, thousands: Option<&str>) -> Result<NumberFormat> {
        let texts = |text: Option<&str>| text.map(str::to_string);
        number_format(&TextOptions { decimal: texts(decimal), thousands: texts(thousands), ..Default::default() })
    }

    #[test]
    fn delimiters_and_encodings() {
        let delimiter = |value: &str| text(|options| options.delimiter = Some(value.into())).map(|rules| rules.delimiter);
        for (typed, byte) in [(";", b';'), ("\\t", b'\t'), ("tab", b'\t'), ("|", b'|'), (" ", b' ')] {
            assert_eq!(delimiter(typed).unwrap(), Some(byte));
        }
        for wrong in ["", ";;", "§", "\"", "\n"] {
            let error = delimiter(wrong).unwrap_err();
            assert_eq!((error.reason, error.place.option.as_deref()), (Reason::InvalidOption, Some("--delimiter")), "{wrong}");
        }
        let encoding = |value: &str| text(|options| options.encoding = Some(value.into())).map(|rules| rules.encoding.unwrap().name());
        for (typed, name) in [
            ("latin1", "windows-1252"),
            ("Latin-1", "windows-1252"),
            ("UTF_16LE", "UTF-16LE"),
            ("cp1251", "windows-1251"),
            ("cp932", "Shift_JIS"),
            ("utf-8-sig", "UTF-8"),
        ] {
            assert_eq!(encoding(typed).unwrap(), name);
        }
        let error = encoding("shift_jiss").unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean shift_jis?"));
    }

    #[test]
    fn separators_of_numbers() {
        assert_eq!(numbers(None, None).unwrap(), NumberFormat::default());
        assert_eq!(numbers(Some(","), Some("\u{202f}")).unwrap(), NumberFormat { decimal: ',', thousands: Some('\u{202f}') });
        assert_eq!(numbers(None, Some("'")).unwrap().thousands, Some('\''));
        assert!(numbers(Some("٫"), Some("٬")).is_ok());
        for (decimal, thousands) in [
            (Some("5"), None),
            (Some(""), None),
            (Some(",,"), None),
            (None, Some(".")),
            (Some(","), Some(",")),
            (Some("-"), None),
            (Some(" "), None),
            (Some("e"), None),
        ] {
            assert_eq!(numbers(decimal, thousands).unwrap_err().reason, Reason::InvalidOption);
        }
    }

    #[test]
    fn columns_without_a_header() {
        assert!(text(|options| options.columns = vec!["a".into(), String::new(), String::new()]).is_ok());
        assert!(text(|options| options.columns = vec!["a".into(), "a".into()]).is_err());
        assert!(text(|options| (options.columns, options.header_line) = (vec!["a".into()], Some(3))).is_err());
        assert!(text(|options| options.header_line = Some(0)).is_err());
    }
}
