//! The pattern that a text seems to have: for hints, never for reading.

/// `03/04/2024`, `26.01.24`, `3-4-24 10:00`, `1. 2. 2024`: the order of day and month is not to be seen.
pub(super) fn is_day_month_order(text: &str) -> bool {
    let (Some((first, rest)), mut separator) = (leading_number(text), None) else { return false };
    let mut rest = rest;
    let mut numbers = vec![first];
    while numbers.len() < 3 {
        let Some(found) = rest.chars().next().filter(|found| matches!(found, '/' | '.' | '-')) else { return false };
        if *separator.get_or_insert(found) != found {
            return false;
        }
        rest = rest.get(1..).unwrap_or_default().trim_start();
        let Some((number, after)) = leading_number(rest) else { return false };
        numbers.push(number);
        rest = after;
    }
    let [(first, digits_of_first), (second, digits_of_second), (_, digits_of_year)] = numbers[..] else { return false };
    let day_and_month = |day: u32, month: u32| (1..=31).contains(&day) && (1..=12).contains(&month);
    digits_of_first <= 2
        && digits_of_second <= 2
        && matches!(digits_of_year, 2 | 4)
        && (day_and_month(first, second) || day_and_month(second, first))
        && !rest.starts_with(['/', '-'])
}

/// Value and length of a number of up to four digits, and what follows it.
fn leading_number(text: &str) -> Option<((u32, usize), &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=4).contains(&digits) {
        return None;
    }
    let (number, rest) = text.split_at(digits);
    Some(((number.parse().ok()?, digits), rest))
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Longer texts are no times.
const LONGEST: usize = 64;

/// A strftime pattern of the same shape; the caller checks that it fits.
pub(super) fn shape(text: &str, day_first: bool) -> Option<String> {
    if text.len() > LONGEST || text.contains(['%', '\'']) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let named_month = MONTHS.iter().any(|month| lower.contains(month));
    let mut pattern = String::new();
    let (mut dates, mut clocks) = (Vec::new(), 0);
    let mut half_day = false;
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let same_kind: fn(&u8) -> bool = if character.is_ascii_digit() { u8::is_ascii_digit } else { u8::is_ascii_alphabetic };
        let length = rest.bytes().take_while(same_kind).count();
        let (piece, after) = rest.split_at(length.max(character.len_utf8()));
        rest = after;
        if character.is_ascii_digit() {
            let clock = clocks > 0 && pattern.ends_with(':') || length <= 2 && after.starts_with(':');
            if clock {
                pattern.push_str(["%H", "%M", "%S"].get(clocks)?);
                clocks += 1;
            } else if clocks == 3 {
                pattern.push_str("%f");
                clocks += 1;
            } else {
                let field = date_field(length, &dates, named_month, day_first)?;
                dates.push(field);
                pattern.push_str(field);
            }
        } else if character.is_ascii_alphabetic() {
            let word = piece.to_ascii_lowercase();
            let short = word.get(..3).unwrap_or(&word);
            let next_m = after.trim_start_matches(['.', ' ']);
            if MONTHS.contains(&short) {
                dates.push("%b");
                pattern.push_str("%b");
            } else if WEEKDAYS.contains(&short) {
                pattern.push_str("%a");
            } else if matches!(word.as_str(), "am" | "pm") {
                half_day = true;
                pattern.push_str("%p");
            } else if matches!(word.as_str(), "a" | "p") && next_m.starts_with(['m', 'M']) {
                half_day = true;
                pattern.push_str("%p");
                rest = next_m.get(1..)?.trim_start_matches('.');
            } else if word == "z" && clocks > 0 {
                pattern.push_str("%z");
            } else if clocks > 0 && (3..=6).contains(&length) {
                pattern.push_str("%Z");
            } else {
                pattern.push_str(piece);
            }
        } else if clocks > 0 && matches!(character, '+' | '-') {
            rest = after.trim_start_matches(|next: char| next.is_ascii_digit() || next == ':');
            pattern.push_str("%z");
        } else {
            pattern.push_str(piece);
        }
    }
    Some(if half_day { pattern.replace("%H", "%I") } else { pattern })
}

/// What a number of the date is, by its length and by what came before it.
fn date_field(length: usize, before: &[&str], named_month: bool, day_first: bool) -> Option<&'static str> {
    let has = |fields: &[&str]| before.iter().any(|field| fields.contains(field));
    Some(match length {
        4 if !has(&["%Y", "%y"]) => "%Y",
        1 | 2 if has(&["%Y"]) && !named_month && !has(&["%m"]) && before.len() == 1 => "%m",
        1 | 2 if named_month || has(&["%m"]) => {
            if has(&["%d"]) {
                "%y"
            } else {
                "%d"
            }
        }
        1 | 2 if has(&["%d"]) => "%m",
        1 | 2 if day_first => "%d",
        1 | 2 => "%m",
        _ => return None,
    })
}
