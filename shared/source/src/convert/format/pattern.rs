//! A strftime pattern → steps, or what is wrong with it.

use super::{Field, Point, Step};

/// Why a pattern is refused.
pub(super) struct Mistake {
    pub what: String,
    pub hint: String,
}

fn mistake<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { what: what.into(), hint: hint.into() })
}

const KNOWN: &str = "known are %Y %y %m %d %e %j %b %B %a %A %H %k %I %l %M %S %p %f %.f %3f %z %Z %s %F %T %R %D %%";

pub(super) fn compile(pattern: &str) -> Result<Vec<Step>, Mistake> {
    if !pattern.contains('%') {
        return mistake("there is no % in it", without_percent(pattern));
    }
    let mut steps = Vec::new();
    let mut characters = pattern.trim().chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            literal(&mut steps, character);
            continue;
        }
        // Flags say how numbers are padded when written; when read only blanks matter.
        let flag = characters.next_if(|next| matches!(next, '-' | '_' | '0' | '#'));
        let mut specifier = String::new();
        specifier.extend(characters.next_if_eq(&'.'));
        specifier.extend(characters.next_if(|next| matches!(next, '3' | '6' | '9')));
        while let Some(colon) = characters.next_if_eq(&':') {
            specifier.push(colon);
        }
        let Some(last) = characters.next() else { return mistake("it ends in a single %", "a percent sign in the text is written %%") };
        specifier.push(last);
        add(&mut steps, &specifier, flag)?;
    }
    widths(&mut steps)?;
    check(&steps)?;
    Ok(steps)
}

fn literal(steps: &mut Vec<Step>, character: char) {
    if character.is_whitespace() {
        if steps.last() != Some(&Step::Blanks) {
            steps.push(Step::Blanks);
        }
    } else if let Some(Step::Literal(text)) = steps.last_mut() {
        text.push(character);
    } else {
        steps.push(Step::Literal(character.into()));
    }
}

fn add(steps: &mut Vec<Step>, specifier: &str, flag: Option<char>) -> Result<(), Mistake> {
    let number = |field, least, most, padded| Step::Number { field, least, most, padded: padded || flag == Some('_') };
    let two = |field| number(field, 1, 2, false);
    steps.push(match specifier {
        "Y" => number(Field::Year, 4, 4, false),
        "y" => number(Field::YearOfCentury, 2, 2, false),
        "m" => two(Field::Month),
        "d" => two(Field::Day),
        "e" => number(Field::Day, 1, 2, true),
        "j" => number(Field::DayOfYear, 1, 3, false),
        "H" => two(Field::Hour),
        "k" => number(Field::Hour, 1, 2, true),
        "I" => two(Field::HourOfHalf),
        "l" => number(Field::HourOfHalf, 1, 2, true),
        "M" => two(Field::Minute),
        "S" => two(Field::Second),
        "p" | "P" => Step::Meridiem,
        "b" | "B" | "h" => Step::MonthName,
        "a" | "A" => Step::WeekdayName,
        "f" => Step::Fraction { point: Point::None, exactly: None },
        "3f" | "6f" | "9f" => Step::Fraction { point: Point::None, exactly: specifier.as_bytes().first().map(|digit| digit - b'0') },
        ".f" => Step::Fraction { point: Point::Optional, exactly: None },
        ".3f" | ".6f" | ".9f" => Step::Fraction { point: Point::Required, exactly: specifier.as_bytes().get(1).map(|digit| digit - b'0') },
        "z" | ":z" | "::z" => Step::Offset,
        "Z" => Step::Abbreviation,
        "s" => Step::EpochSeconds,
        "n" | "t" => {
            literal(steps, ' ');
            return Ok(());
        }
        "%" => {
            literal(steps, '%');
            return Ok(());
        }
        "T" => return several(steps, "%H:%M:%S"),
        "R" => return several(steps, "%H:%M"),
        "D" => return several(steps, "%m/%d/%y"),
        "F" => return several(steps, "%Y-%m-%d"),
        "r" => return several(steps, "%I:%M:%S %p"),
        "v" => return several(steps, "%e-%b-%Y"),
        "c" | "x" | "X" | "+" => {
            return mistake(format!("%{specifier} is another text in each language"), "write the parts out, such as %d/%m/%Y %H:%M:%S");
        }
        "L" | "N" | "Q" => {
            return mistake(format!("%{specifier} is not known"), "digits after the second are %f, or %.f with the point");
        }
        _ => return mistake(format!("%{specifier} is not known"), KNOWN),
    });
    Ok(())
}

fn several(steps: &mut Vec<Step>, pattern: &str) -> Result<(), Mistake> {
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match (character, characters.clone().next()) {
            ('%', Some(specifier)) => {
                characters.next();
                add(steps, specifier.encode_utf8(&mut [0; 4]), None)?;
            }
            _ => literal(steps, character),
        }
    }
    Ok(())
}

/// Fields with nothing between them have all their digits: else nobody could tell where one ends.
fn widths(steps: &mut [Step]) -> Result<(), Mistake> {
    let digits_first = |step: &Step| matches!(step, Step::Number { .. } | Step::Fraction { point: Point::None, .. } | Step::EpochSeconds);
    for index in 1..steps.len() {
        if !digits_first(&steps[index]) {
            continue;
        }
        match &mut steps[index - 1] {
            Step::Number { least, most, .. } => {
                *least = *most;
                if let Step::Number { least, most, .. } = &mut steps[index] {
                    *least = *most;
                }
            }
            Step::Fraction { exactly: None, .. } | Step::EpochSeconds => {
                return mistake("digits follow digits of any number", "say how many there are: %3f, %6f or %9f");
            }
            Step::Fraction { .. } => {
                if let Step::Number { least, most, .. } = &mut steps[index] {
                    *least = *most;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Gives one date and one time of day, each said once.
fn check(steps: &[Step]) -> Result<(), Mistake> {
    let count = |wanted: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    let fields = |wanted: &[Field]| count(&|step| matches!(step, Step::Number { field, .. } if wanted.contains(field)));
    let (year, day, day_of_year) = (fields(&[Field::Year, Field::YearOfCentury]), fields(&[Field::Day]), fields(&[Field::DayOfYear]));
    let month = fields(&[Field::Month]) + count(&|step| *step == Step::MonthName);
    let (hour, half) = (fields(&[Field::Hour]), fields(&[Field::HourOfHalf]));
    let (minute, second) = (fields(&[Field::Minute]), fields(&[Field::Second]));
    let meridiem = count(&|step| *step == Step::Meridiem);
    let weekday = count(&|step| *step == Step::WeekdayName);
    let fraction = count(&|step| matches!(step, Step::Fraction { .. }));
    let (offset, abbreviation) = (count(&|step| *step == Step::Offset), count(&|step| *step == Step::Abbreviation));
    let epoch = count(&|step| *step == Step::EpochSeconds);

    let twice = [
        ("the year", year),
        ("the month", month),
        ("the day", day + day_of_year),
        ("the weekday", weekday),
        ("the hour", hour + half),
        ("the minute", minute),
        ("the second", second),
        ("the fraction", fraction),
        ("AM or PM", meridiem),
        ("the offset", offset),
        ("the abbreviation", abbreviation),
        ("%s", epoch),
    ];
    if let Some((what, _)) = twice.iter().find(|(_, times)| *times > 1) {
        return mistake(
            format!("{what} is in it twice"),
            "keep one of them; a text that stands there but says nothing more cannot be passed over",
        );
    }
    if epoch == 1 {
        let others = year + month + day + day_of_year + weekday + hour + half + minute + second + meridiem + offset + abbreviation;
        return if others == 0 {
            Ok(())
        } else {
            mistake("%s is a whole time, other parts contradict it", "use %s alone, or with %f after it")
        };
    }
    if year == 0 {
        return mistake("there is no year in it", "a time needs a date: %Y-%m-%d, or two columns joined by --map ts=date+time");
    }
    if day_of_year == 1 && month + day > 0 {
        return mistake("%j is the day of the year, month and day contradict it", "use %Y and %j, or %Y, %m and %d");
    }
    if day_of_year == 0 && (month == 0 || day == 0) {
        return mistake("there is no whole date in it", "a date needs %Y, %m and %d, or %Y and %j");
    }
    if half == 1 && meridiem == 0 {
        return mistake("%I is a 12-hour clock, and there is no %p", "use %H for a 24-hour clock, or add %p for AM and PM");
    }
    if meridiem == 1 && half == 0 {
        return mistake("%p is AM or PM, and there is no %I", "use %I for the hour of a 12-hour clock");
    }
    if minute == 1 && hour + half == 0 || second == 1 && minute == 0 || fraction == 1 && second == 0 {
        return mistake("a part of the time of day is missing", "write them all, such as %H:%M:%S%.f");
    }
    Ok(())
}

/// Patterns of other worlds, translated.
fn without_percent(pattern: &str) -> String {
    let mut translated = pattern.to_string();
    let words = [
        ("yyyy", "%Y"),
        ("YYYY", "%Y"),
        ("uuuu", "%Y"),
        ("MMMM", "%B"),
        ("MMM", "%b"),
        ("MM", "%m"),
        ("dd", "%d"),
        ("DD", "%d"),
        ("HH24", "%H"),
        ("HH", "%H"),
        ("hh", "%I"),
        ("MI", "%M"),
        ("mm", "%M"),
        ("SSSSSS", "%f"),
        ("SSS", "%f"),
        ("ss", "%S"),
        ("SS", "%S"),
        ("yy", "%y"),
    ];
    for (word, specifier) in words {
        translated = translated.replace(word, specifier);
    }
    if translated.contains('%') && compile(&translated).is_ok() {
        format!("patterns are those of strftime: '{translated}'")
    } else {
        "patterns are those of strftime, such as '%d/%m/%Y %H:%M:%S', or excel for serial days".into()
    }
}
