//! Numbers in the spelling of a locale → the spelling of programs.
//!
//! Takes the decimal separator and that of groups of digits. Groups must be whole: three digits after one to three
//! (`1.234.567`), or the Indian way, two and two before the last three (`12,34,567`), and the first must not begin with 0 (`0.125` is no 125). Must never move a point: a text
//! whose separators are not where the format has them is no number.

use super::NumberFormat;
use super::parse::number_parts;

/// Rewrites numbers of one format. Keeps its memory from one number to the next.
pub(super) struct Separators {
    format: NumberFormat,
    /// Numbers are as programs write them: nothing to do.
    plain: bool,
    buffer: String,
}

impl Separators {
    pub fn new(format: NumberFormat) -> Separators {
        Separators { format, plain: format == NumberFormat::default(), buffer: String::new() }
    }

    /// The decimal sign, where it is one byte.
    #[inline]
    pub fn decimal_byte(&self) -> Option<u8> {
        u8::try_from(self.format.decimal).ok().filter(u8::is_ascii)
    }

    /// The number with a point and without groups; `None` when the separators are not where they belong. Anything
    /// else that is wrong is left for the parser.
    pub fn plain<'a>(&'a mut self, text: &'a str) -> Option<&'a str> {
        if self.plain || text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(text);
        }
        self.buffer.clear();
        // Digits of the group that is being read, and the lengths of those before.
        let (mut run, mut groups, mut grouped_by) = (0_usize, Groups::default(), None);
        let mut in_whole_part = true;
        for character in text.chars() {
            if character.is_ascii_digit() {
                run += 1;
                self.buffer.push(character);
            } else if in_whole_part && self.separates_groups(character) {
                // All of one number's separators are alike, and nobody writes 0.125 for 125.
                if run == 0
                    || self.buffer.trim_start_matches(['+', '-']).starts_with('0')
                    || *grouped_by.get_or_insert(character) != character
                {
                    return None;
                }
                groups.push(run);
                run = 0;
            } else {
                if in_whole_part && (character == self.format.decimal || matches!(character, 'e' | 'E')) {
                    in_whole_part = false;
                    if !groups.end_with(run) {
                        return None;
                    }
                }
                if character == self.format.decimal {
                    self.buffer.push('.');
                } else if matches!(character, '+' | '-' | 'e' | 'E') {
                    self.buffer.push(character);
                } else {
                    return None;
                }
            }
        }
        (!in_whole_part || groups.end_with(run)).then_some(self.buffer.as_str())
    }

    fn separates_groups(&self, character: char) -> bool {
        self.format.thousands.is_some_and(|thousands| kind(thousands) == kind(character))
    }
}

/// Characters that locales use for each other: blanks, and the two apostrophes.
fn kind(character: char) -> char {
    match character {
        '\u{a0}' | '\u{202f}' | '\u{2009}' => ' ',
        '\u{2019}' => '\'',
        other => other,
    }
}

/// Lengths of the groups of a number's whole part.
#[derive(Default)]
struct Groups {
    first: Option<usize>,
    threes: bool,
    twos: bool,
}

impl Groups {
    fn push(&mut self, length: usize) {
        match self.first {
            None => (self.first, self.threes, self.twos) = (Some(length), length <= 3, length <= 2),
            Some(_) => (self.threes, self.twos) = (self.threes && length == 3, self.twos && length == 2),
        }
    }
    /// With the last group.
    fn end_with(&self, length: usize) -> bool {
        self.first.is_none() || (length == 3 && (self.threes || self.twos))
    }
}

/// Options under which a text would be a number; for a hint.
pub(super) fn options_for(text: &str, tried: NumberFormat) -> Option<String> {
    let formats = [
        (',', None, "--decimal ','"),
        ('.', Some(','), "--thousands ','"),
        (',', Some('.'), "--decimal ',' --thousands '.'"),
        (',', Some(' '), "--decimal ',' --thousands ' '"),
        ('.', Some(' '), "--thousands ' '"),
        ('.', Some('\''), "--thousands \"'\""),
        (',', Some('\''), "--decimal ',' --thousands \"'\""),
        ('.', None, "no --decimal and no --thousands"),
    ];
    let fits = |decimal, thousands| {
        let format = NumberFormat { decimal, thousands };
        format != tried && Separators::new(format).plain(text).is_some_and(|text| number_parts(text).is_some())
    };
    let found: Vec<&str> = formats
        .into_iter()
        // Without groups it fits with any separator of groups.
        .filter(|(decimal, thousands, _)| fits(*decimal, *thousands) && (thousands.is_none() || !fits(*decimal, None)))
        .map(|(_, _, options)| options)
        .collect();
    (!found.is_empty()).then(|| format!("it is a number with {}", found.join(", or with ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(decimal: char, thousands: Option<char>, text: &str) -> Option<String> {
        let mut separators = Separators::new(NumberFormat { decimal, thousands });
        separators.plain(text).filter(|text| number_parts(text).is_some()).map(str::to_string)
    }

    #[test]
    fn groups_are_whole_or_the_text_is_no_number() {
        for (text, right) in [
            ("45.234,1", Some("45234.1")),
            ("1.000", Some("1000")),
            ("-1.234.567,89", Some("-1234567.89")),
            ("12.34.567", Some("1234567")),
            ("1.23.45.678", Some("12345678")),
            ("42", Some("42")),
            ("1234567,5", Some("1234567.5")),
            ("1.234e3", Some("1234e3")),
            ("1.23", None),
            ("1.2345", None),
            ("1234.567", None),
            ("1..234", None),
            (".234", None),
            ("1.234.", None),
            ("1,234.567", None),
            ("1,2,3", None),
            ("1,5e1.000", None),
            ("123.45.678", None),
            ("1.234.56", None),
            ("1 234", None),
        ] {
            assert_eq!(read(',', Some('.'), text).as_deref(), right, "{text}");
        }
        for text in ["1\u{a0}234,5", "1\u{202f}234,5", "1 234,5", "1\u{2009}234,5"] {
            assert_eq!(read(',', Some(' '), text).as_deref(), Some("1234.5"), "{text}");
            assert_eq!(read(',', Some('\u{a0}'), text).as_deref(), Some("1234.5"), "{text}");
        }
        assert_eq!(read('.', Some('\''), "1’234’567.5").as_deref(), Some("1234567.5"));
        assert_eq!(read('.', Some('\''), "1'234’567.5"), None);
        assert_eq!(read(',', None, "1,5").as_deref(), Some("1.5"));
        assert_eq!(read(',', None, "1.5"), None);
        assert_eq!(read('.', None, "1,5"), None);
    }

    #[test]
    fn hints_name_the_options_under_which_it_is_a_number() {
        let hint = |text: &str| options_for(text, NumberFormat::default());
        assert_eq!(hint("45.234,1").as_deref(), Some("it is a number with --decimal ',' --thousands '.'"));
        assert_eq!(hint("45,234.1").as_deref(), Some("it is a number with --thousands ','"));
        assert_eq!(hint("1,5").as_deref(), Some("it is a number with --decimal ','"));
        assert_eq!(hint("1,234").as_deref(), Some("it is a number with --decimal ',', or with --thousands ','"));
        assert_eq!(hint("n/a"), None);
    }
}
