//! English names of months and weekdays, AM and PM. Names of other languages are not known: a few are spelt alike and
//! mean another month.

use crate::convert::clock::Scanner;

pub(super) const MONTHS: [&str; 12] =
    ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"];
pub(super) const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// A name, whole or its first three letters, in any case, at the start of a text: which one, and its length. `Sept`,
/// `Tues`, `Thur` and `Thurs` are in use as well.
pub(super) fn english(text: &str, names: &[&str]) -> Option<(i64, usize)> {
    let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count().min(9);
    let word = &text.as_bytes()[..letters];
    let index = names.iter().position(|name| word.len() >= 3 && word[..3].eq_ignore_ascii_case(&name.as_bytes()[..3]))?;
    let name = names[index].as_bytes();
    let whole = word.len() >= name.len() && word[..name.len()].eq_ignore_ascii_case(name);
    let longer = ["sept", "tues", "thurs", "thur"]
        .iter()
        .find(|short| name.starts_with(short.as_bytes()) && word.eq_ignore_ascii_case(short.as_bytes()));
    let length = match longer {
        _ if whole => name.len(),
        Some(short) => short.len(),
        None => 3,
    };
    Some((index as i64, length))
}

/// `AM`, `pm`, `a.m.`, `p. m.`: whether afternoon.
pub(super) fn meridiem(scanner: &mut Scanner<'_>) -> Option<bool> {
    let afternoon = match scanner.first()? {
        b'a' | b'A' => false,
        b'p' | b'P' => true,
        _ => return None,
    };
    scanner.skip(1);
    if scanner.eat(b'.') {
        scanner.blanks();
    }
    if !scanner.eat(b'm') && !scanner.eat(b'M') {
        return None;
    }
    scanner.eat(b'.');
    Some(afternoon)
}
