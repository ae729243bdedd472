//! Which column of the source feeds which column of the table.
//!
//! Takes the options as typed, the table's columns and its contract; gives a [`SourceSpec`]. Knows no file yet: names
//! are looked up in each file's schema by `bind`. Must never let a mistyped target pass.

use crate::convert::{ConstantColumn, Rules, TimestampFormat};
use crate::text::TextRules;
use crate::text::options::{bad_text_column, is_numeric, null_numbers, number_format};
use crate::zone::Zone;
use arrow::array::ArrayRef;
use timelake_model::request::RowOptions;
use timelake_model::similar::nearest;
use timelake_model::{Column, ColumnType, Error, Reason, Result, TableContract};

/// Everything row-deciding that concerns reading.
#[derive(Debug, Clone)]
pub struct SourceSpec {
    columns: Vec<Column>,
    feeds: Vec<Feed>,
    time: usize,
    series_key: Vec<usize>,
    /// Columns in which NULL is `null_in_key`: the time column, the series key, the dedup key.
    in_key: Vec<bool>,
    /// String columns that are read as dictionaries.
    dictionary: Vec<bool>,
    rules: Rules,
    hive: bool,
    format: Option<Format>,
    text: TextRules,
    /// Per column: numbers that mean NULL, as arrays of one element.
    null_numbers: Vec<Vec<ArrayRef>>,
    /// The column that takes texts that stand where numbers should.
    bad_text_to: Option<usize>,
    /// Nested columns of the table, which no source can feed, unless the user left them out.
    nested: Vec<String>,
    /// Of each object only so many rows are read.
    first_rows: Option<u64>,
}

/// What a file is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Parquet,
    /// Delimited text.
    Csv,
}

impl Format {
    /// `--format`.
    pub fn parse(text: &str) -> Result<Format> {
        match text.to_lowercase().as_str() {
            "parquet" => Ok(Format::Parquet),
            "csv" => Ok(Format::Csv),
            _ => Err(Error::invalid(Reason::NotYetSupported, format!("--format {text} cannot be read yet"))
                .hint("this version reads parquet and csv (with any delimiter)")
                .at(|place| place.option = Some("--format".into()))),
        }
    }
}

/// Where a target column comes from.
#[derive(Debug, Clone)]
pub(crate) enum Feed {
    /// `explicit`: named by `--map`; else the source column of the same name, if there is one.
    Named { source: SourceName, explicit: bool },
    /// `--set`.
    Constant(ConstantColumn),
    /// `--map col=`.
    LeftOut,
}

/// A source column as typed, in all its readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceName {
    /// Without escapes: the name of a column that is called exactly so.
    pub whole: String,
    /// Split at `+`: columns to join; each also split at `.`: a path through structs.
    pub parts: Vec<NamePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamePart {
    pub name: String,
    pub path: Vec<String>,
}

impl SourceSpec {
    pub fn new(rows: &RowOptions, columns: &[Column], contract: &TableContract) -> Result<SourceSpec> {
        Self::for_table(rows, columns, &[], contract)
    }

    /// `nested`: columns of the table that are lists, maps or structs.
    pub fn for_table(rows: &RowOptions, columns: &[Column], nested: &[String], contract: &TableContract) -> Result<SourceSpec> {
        contract.check(columns)?;
        let format = rows.format.as_deref().map(Format::parse).transpose()?;
        let rules = Rules {
            zone: rows.tz.as_deref().map(Zone::parse).transpose()?,
            unit: rows.ts_unit,
            ts_format: rows.ts_format.as_deref().map(TimestampFormat::parse).transpose()?,
            ambiguous: rows.ambiguous,
            nonexistent: rows.nonexistent,
            numbers: number_format(&rows.text)?,
        };
        if rows.ts_unit.is_some() && rules.ts_format.as_ref().is_some_and(TimestampFormat::is_excel) {
            return Err(Error::invalid(Reason::InvalidOption, "--ts-format excel and --ts-unit both say what numbers are")
                .hint("excel for serial days such as 45292.5, --ts-unit for counts since 1970")
                .at(|place| place.option = Some("--ts-unit".into())));
        }
        let index_of = |name: &str| columns.iter().position(|column| column.name == name);
        let indexes = |names: &[String]| names.iter().filter_map(|name| index_of(name)).collect::<Vec<_>>();
        let time = index_of(&contract.time_column).ok_or_else(|| Error::internal("the checked contract lost its time column"))?;
        let series_key = indexes(&contract.series_key);
        let dedup_key = indexes(contract.dedup_key.as_deref().unwrap_or_default());
        let in_key: Vec<bool> =
            (0..columns.len()).map(|index| index == time || series_key.contains(&index) || dedup_key.contains(&index)).collect();
        let null_numbers = null_numbers(&rows.text.null_number, columns, &in_key, &rules)?;
        let bad_text_to = rows.text.bad_text_to.as_deref().map(|name| bad_text_column(name, columns, &in_key)).transpose()?;
        let dictionary = columns.iter().zip(&in_key).map(|(column, key)| *key && column.column_type == ColumnType::String).collect();
        let mut spec = SourceSpec {
            columns: columns.to_vec(),
            feeds: Vec::new(),
            time,
            series_key,
            in_key,
            dictionary,
            rules,
            hive: rows.hive,
            format,
            text: TextRules::parse(&rows.text)?,
            null_numbers,
            bad_text_to,
            nested: nested.to_vec(),
            first_rows: None,
        };
        spec.feeds = spec.feeds_of(&rows.map, &rows.set)?;
        Ok(spec)
    }

    fn feeds_of(&mut self, maps: &[String], sets: &[String]) -> Result<Vec<Feed>> {
        let mut feeds: Vec<Option<Feed>> = vec![None; self.columns.len()];
        for pair in maps.iter().flat_map(|map| split_escaped(map, ',')).filter(|pair| !pair.trim().is_empty()) {
            let Some((target, source)) = split_once_escaped(&pair, '=') else {
                return Err(Error::invalid(Reason::InvalidOption, format!("--map {pair} has no ="))
                    .hint("write target=source, for example ts=timestamp; several are separated by commas")
                    .at(|place| {
                        place.option = Some("--map".into());
                        place.value = Some(pair.clone());
                    }));
            };
            if let Some(position) = self.nested.iter().position(|name| *name == unescape(target.trim())) {
                let name = self.nested.remove(position);
                if source.trim().is_empty() {
                    continue;
                }
                return Err(nested_column(&name, None));
            }
            let index = self.target(&target, "--map", &feeds)?;
            feeds[index] = Some(if source.trim().is_empty() {
                self.may_be_left_out(index)?;
                Feed::LeftOut
            } else {
                Feed::Named { source: SourceName::parse(source.trim()), explicit: true }
            });
        }
        for set in sets {
            let Some((target, value)) = split_once_escaped(set, '=') else {
                return Err(Error::invalid(Reason::InvalidOption, format!("--set {set} has no ="))
                    .hint("write column=value, for example site=halle")
                    .at(|place| {
                        place.option = Some("--set".into());
                        place.value = Some(set.clone());
                    }));
            };
            let index = self.target(&target, "--set", &feeds)?;
            feeds[index] = Some(Feed::Constant(self.constant_of_set(index, &value)?));
        }
        if let Some(index) = self.bad_text_to {
            // A source column of the same name is not read.
            if feeds[index].replace(Feed::LeftOut).is_some() {
                return Err(fed_twice(&self.columns[index].name));
            }
        }
        let fill = |(index, feed): (usize, Option<Feed>)| {
            feed.unwrap_or_else(|| Feed::Named { source: SourceName::plain(&self.columns[index].name), explicit: false })
        };
        Ok(feeds.into_iter().enumerate().map(fill).collect())
    }

    fn constant_of_set(&self, index: usize, value: &str) -> Result<ConstantColumn> {
        let column = &self.columns[index];
        ConstantColumn::parse(Some(value), column.column_type, self.dictionary[index], &self.rules)?.map_err(|fault| {
            let (message, hint) = match fault.reason {
                Reason::NaiveTimestampWithoutZone => {
                    (format!("--set {}={value} has no offset", column.name), "write it with an offset, or give --tz")
                }
                _ => (
                    format!("--set {}={value}: not a value of type {}", column.name, column.column_type),
                    "give a value of the column's type",
                ),
            };
            Error::invalid(fault.reason, message).hint(hint).at(|place| {
                place.option = Some("--set".into());
                place.target = Some(column.name.clone());
                place.value = Some(value.into());
            })
        })
    }

    fn target(&self, text: &str, option: &str, feeds: &[Option<Feed>]) -> Result<usize> {
        let name = unescape(text.trim());
        let Some(index) = self.columns.iter().position(|column| column.name == name) else {
            let names = || self.columns.iter().map(|column| column.name.as_str());
            let hint = match nearest(&name, names()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("columns of the table: {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::invalid(Reason::UnknownTarget, format!("{option}: the table has no column {name}")).hint(hint).at(
                |place| {
                    place.option = Some(option.into());
                    place.target = Some(name.clone());
                },
            ));
        };
        if feeds[index].is_some() {
            return Err(Error::invalid(Reason::DuplicateMapping, format!("column {name} is given twice by --map or --set"))
                .hint("keep one of them; columns to be joined are written ts=date+time")
                .at(|place| {
                    place.option = Some(option.into());
                    place.target = Some(name.clone());
                }));
        }
        Ok(index)
    }

    fn may_be_left_out(&self, index: usize) -> Result<()> {
        let column = &self.columns[index];
        if !self.needs_value(index) {
            return Ok(());
        }
        Err(Error::invalid(Reason::InvalidOption, format!("--map {}= leaves out a column that every row needs", column.name))
            .hint(format!("map it to a source column, or give a value with --set {}=...", column.name))
            .at(|place| {
                place.option = Some("--map".into());
                place.target = Some(column.name.clone());
            }))
    }

    /// Nested columns of the table that the user did not leave out.
    pub(crate) fn nested(&self) -> &[String] {
        &self.nested
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
    /// Index of the time column.
    pub fn time(&self) -> usize {
        self.time
    }
    pub fn series_key(&self) -> &[usize] {
        &self.series_key
    }
    /// Per column: read as Dictionary(Int32, Utf8).
    pub fn dictionary_columns(&self) -> &[bool] {
        &self.dictionary
    }
    /// The same for a sample: readers end after the first `rows` rows of each object.
    pub fn with_first_rows(&self, rows: u64) -> SourceSpec {
        SourceSpec { first_rows: Some(rows), ..self.clone() }
    }
    pub fn first_rows(&self) -> Option<u64> {
        self.first_rows
    }
    pub fn zone(&self) -> Option<&Zone> {
        self.rules.zone.as_ref()
    }
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
    /// What the source calls the column that feeds this target, as typed.
    pub fn source_name(&self, target: usize) -> String {
        match (self.feeds.get(target), self.columns.get(target)) {
            (Some(Feed::Named { source, .. }), _) => source.whole.clone(),
            (_, Some(column)) => column.name.clone(),
            _ => String::new(),
        }
    }
    /// What `--format` says the source is.
    pub fn format(&self) -> Option<Format> {
        self.format
    }
    pub(crate) fn text(&self) -> &TextRules {
        &self.text
    }
    pub(crate) fn null_numbers(&self, target: usize) -> &[ArrayRef] {
        self.null_numbers.get(target).map(Vec::as_slice).unwrap_or_default()
    }
    pub(crate) fn bad_text_to(&self) -> Option<usize> {
        self.bad_text_to
    }
    /// Texts in this column that are no numbers go to another column.
    pub(crate) fn bad_text_is_taken(&self, target: usize) -> bool {
        self.bad_text_to.is_some() && is_numeric(self.columns[target].column_type) && !self.needs_value(target)
    }
    /// Source columns that identify the rows, or that the user named: by them a header is known.
    pub(crate) fn needed<'a>(&'a self) -> Vec<&'a SourceName> {
        let needed = |(target, feed): (usize, &'a Feed)| match feed {
            Feed::Named { source, explicit } if *explicit || target == self.time || self.series_key.contains(&target) => Some(source),
            _ => None,
        };
        self.feeds.iter().enumerate().filter_map(needed).collect()
    }
    pub(crate) fn hive(&self) -> bool {
        self.hive
    }
    pub(crate) fn feed(&self, target: usize) -> &Feed {
        &self.feeds[target]
    }
    pub(crate) fn is_dictionary(&self, target: usize) -> bool {
        self.dictionary.get(target).copied().unwrap_or(false)
    }
    /// What a NULL in this column is, if it is a fault.
    pub(crate) fn null_fault(&self, target: usize) -> Option<Reason> {
        if self.in_key[target] {
            Some(Reason::NullInKey)
        } else if self.columns[target].required {
            Some(Reason::NullInRequired)
        } else {
            None
        }
    }
    /// Part of the time, the series key or the dedup key.
    pub(crate) fn is_key(&self, target: usize) -> bool {
        self.in_key[target]
    }
    pub(crate) fn needs_value(&self, target: usize) -> bool {
        self.null_fault(target).is_some()
    }
}

fn fed_twice(name: &str) -> Error {
    Error::invalid(Reason::DuplicateMapping, format!("column {name} is given by --bad-text-to and by --map or --set"))
        .hint("name another column, or leave it out of --map and --set")
        .at(|place| {
            place.option = Some("--bad-text-to".into());
            place.target = Some(name.into());
        })
}

/// Lists, maps and structs of the table cannot be loaded.
pub(crate) fn nested_column(name: &str, file: Option<&str>) -> Error {
    let has = file.map_or(String::new(), |file| format!("{file} has a column {name}, but "));
    Error::invalid(
        Reason::UnsupportedType,
        format!("{has}the table's column {name} is nested (a list, map or struct), which cannot be loaded yet"),
    )
    .hint(format!("--map {name}= leaves it out: it is NULL in the new rows"))
    .at(|place| {
        place.file = file.map(str::to_string);
        place.column = Some(name.into());
        place.target = Some(name.into());
        place.option = file.is_none().then(|| "--map".into());
    })
}

impl SourceName {
    fn plain(name: &str) -> SourceName {
        SourceName { whole: name.into(), parts: vec![NamePart { name: name.into(), path: vec![name.into()] }] }
    }
    fn parse(text: &str) -> SourceName {
        let part =
            |text: &String| NamePart { name: unescape(text), path: split_escaped(text, '.').iter().map(|step| unescape(step)).collect() };
        SourceName { whole: unescape(text), parts: split_escaped(text, '+').iter().map(part).collect() }
    }
}

/// Splits at `separator` where no backslash stands before it; escapes are kept.
fn split_escaped(text: &str, separator: char) -> Vec<String> {
    let (mut pieces, mut piece, mut escaped) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        if character == separator && !escaped {
            pieces.push(std::mem::take(&mut piece));
        } else {
            piece.push(character);
        }
        escaped = character == '\\' && !escaped;
    }
    pieces.push(piece);
    pieces
}

fn split_once_escaped(text: &str, separator: char) -> Option<(String, String)> {
    let first = split_escaped(text, separator).swap_remove(0);
    let rest = text.get(first.len() + separator.len_utf8()..)?.to_string();
    Some((first, rest))
}

/// Takes the backslash away before `, = + .` and itself; any other backslash is part of the name.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('\\', Some(&next @ (',' | '=' | '+' | '.' | '\\'))) => {
                out.push(next);
                characters.next();
            }
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        let column = |id, name: &str, column_type, required| Column { id, name: name.into(), column_type, required };
        vec![
            column(1, "ts", ColumnType::Timestamptz, true),
            column(2, "device_id", ColumnType::String, true),
            column(3, "value", ColumnType::Double, false),
            column(4, "quality", ColumnType::Int, false),
            column(5, "site", ColumnType::String, false),
        ]
    }
    fn contract() -> TableContract {
        TableContract {
            time_column: "ts".into(),
            series_key: vec!["device_id".into()],
            dedup_key: Some(vec!["device_id".into(), "ts".into()]),
            retention: None,
            lateness: "PT1H".into(),
            undo: "P14D".into(),
            layout: vec![],
        }
    }
    fn spec(map: &[&str], set: &[&str]) -> Result<SourceSpec> {
        let texts = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
        SourceSpec::new(&RowOptions { map: texts(map), set: texts(set), ..Default::default() }, &columns(), &contract())
    }
    fn parts(spec: &SourceSpec, target: usize) -> Vec<Vec<String>> {
        let Feed::Named { source, .. } = spec.feed(target) else { panic!() };
        source.parts.iter().map(|part| part.path.clone()).collect()
    }

    #[test]
    fn pairs_paths_joins_and_escapes() {
        let spec = spec(&["ts=date+time,value=reading.value", r"quality=a\,b\=c\+d\.e"], &["site=a=b,c"]).unwrap();
        assert_eq!(parts(&spec, 0), [["date"], ["time"]]);
        assert_eq!(parts(&spec, 2), [["reading", "value"]]);
        assert_eq!(parts(&spec, 3), [["a,b=c+d.e"]]);
        assert_eq!(spec.source_name(3), "a,b=c+d.e");
        assert!(matches!(spec.feed(1), Feed::Named { explicit: false, .. }));
        assert!(matches!(spec.feed(4), Feed::Constant(_)));
        assert_eq!(spec.dictionary_columns(), [false, true, false, false, false]);
    }

    #[test]
    fn mistakes_are_named() {
        let reason = |map: &[&str], set: &[&str]| spec(map, set).unwrap_err().reason;
        let error = spec(&["valeu=x"], &[]).unwrap_err();
        assert_eq!((error.reason, error.hint.as_deref()), (Reason::UnknownTarget, Some("did you mean value?")));
        assert_eq!(reason(&[], &["nothing=1"]), Reason::UnknownTarget);
        assert_eq!(reason(&["value=a,value=b"], &[]), Reason::DuplicateMapping);
        assert_eq!(reason(&["value=a"], &["value=1"]), Reason::DuplicateMapping);
        assert_eq!(reason(&["value"], &[]), Reason::InvalidOption);
        assert_eq!(reason(&["device_id="], &[]), Reason::InvalidOption);
        assert_eq!(reason(&[], &["quality=x"]), Reason::BadNumber);
        assert_eq!(reason(&[], &["ts=2024-01-01"]), Reason::NaiveTimestampWithoutZone);
        assert!(matches!(spec(&["value="], &[]).unwrap().feed(2), Feed::LeftOut));
    }
}
