//! Which field of one text file feeds which column of the table.

use super::dialect::{Dialect, find_name};
use crate::bind::{
    BindOutcome, Binding, Bound, BoundObject, Content, Part, Read, ambiguous, column_not_found, hive_text, path_value, refused,
};
use crate::convert::{Context, convert};
use crate::mapping::{Feed, SourceName, SourceSpec};
use crate::remote::Sources;
use crate::zone::ZoneConverter;
use arrow::array::{ArrayRef, new_empty_array};
use arrow::datatypes::DataType;
use std::sync::Arc;
use timelake_model::{ColumnType, Result, SourceObject};

/// A text file whose start is read.
#[derive(Debug)]
pub(crate) struct TextContent {
    /// `None`: the file is empty.
    pub dialect: Option<Dialect>,
    pub leaves: Vec<TextLeaf>,
}

/// A field that is read, and what is NULL in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextLeaf {
    /// Position in the record.
    pub field: usize,
    pub name: String,
    /// Read as Dictionary(Int32, Utf8).
    pub dictionary: bool,
    pub quoted_empty_is_null: bool,
    /// The texts of `--null` are NULL.
    pub has_nulls: bool,
}

pub(crate) fn bind_text(object: &SourceObject, sources: &Sources, dialect: Option<Dialect>, spec: &Arc<SourceSpec>) -> Result<BindOutcome> {
    let names = dialect.as_ref().map(|dialect| dialect.names.clone()).unwrap_or_default();
    let mut binder = TextBinder { object, spec, names, empty: dialect.is_none(), leaves: Vec::new() };
    let mut columns = Vec::with_capacity(spec.columns().len());
    let (mut missing, mut warnings) = (Vec::new(), Vec::new());
    for target in 0..spec.columns().len() {
        let binding = binder.column(target)?;
        if matches!(binding.read, Read::Missing) && matches!(spec.feed(target), Feed::Named { .. }) {
            missing.push(target);
        }
        columns.push(binding);
    }
    if let Some(target) = spec.bad_text_to() {
        let name = &spec.columns()[target].name;
        if !find_name(&binder.names, name).is_empty() {
            warnings.push(format!("{}: its column {name} is not read, --bad-text-to fills that column", object.shown));
        }
    }
    let content = Content::Text(TextContent { dialect, leaves: binder.leaves });
    let bound = Bound { object: object.clone(), sources: sources.clone(), spec: spec.clone(), content, columns };
    Ok(BindOutcome { bound: BoundObject { inner: Arc::new(bound) }, missing, warnings })
}

struct TextBinder<'a> {
    object: &'a SourceObject,
    spec: &'a SourceSpec,
    names: Vec<String>,
    empty: bool,
    leaves: Vec<TextLeaf>,
}

impl TextBinder<'_> {
    fn column(&mut self, target: usize) -> Result<Binding> {
        let plain = |read| Ok(Binding { read, path: None });
        let source = match self.spec.feed(target) {
            Feed::Constant(constant) => return plain(Read::Constant(constant.clone())),
            Feed::LeftOut => return plain(Read::Missing),
            Feed::Named { source, .. } => source.clone(),
        };
        let found = self.find(&source.whole)?;
        let path = path_value(self.object, self.spec, &source.whole, target)?;
        match (found, path) {
            (None, Some((_, constant))) => plain(Read::Constant(constant)),
            (None, None) if source.parts.len() > 1 => self.joined(&source, target),
            (None, None) => plain(Read::Missing),
            (Some(field), path) => {
                self.check(&self.names[field], target)?;
                let column_type = self.spec.columns()[target].column_type;
                let leaf = TextLeaf {
                    field,
                    name: self.names[field].trim().to_string(),
                    dictionary: self.spec.is_dictionary(target),
                    quoted_empty_is_null: column_type != ColumnType::String,
                    has_nulls: self.has_nulls(target),
                };
                Ok(Binding { read: Read::Leaf(self.keep(leaf)), path })
            }
        }
    }

    fn has_nulls(&self, target: usize) -> bool {
        !self.spec.is_key(target) && !self.spec.text().nulls.is_empty()
    }

    fn find(&self, name: &str) -> Result<Option<usize>> {
        match find_name(&self.names, name).as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            several => {
                let told = several.iter().map(|field| format!("{} (column {})", self.names[*field].trim(), field + 1)).collect();
                Err(ambiguous(self.object, name, told))
            }
        }
    }

    fn joined(&mut self, source: &SourceName, target: usize) -> Result<Binding> {
        let mut parts = Vec::with_capacity(source.parts.len());
        let mut absent = Vec::new();
        for part in &source.parts {
            match self.find(&part.name)? {
                Some(field) => {
                    let leaf = TextLeaf {
                        field,
                        name: self.names[field].trim().to_string(),
                        dictionary: false,
                        quoted_empty_is_null: true,
                        has_nulls: self.has_nulls(target),
                    };
                    parts.push(Part::Leaf(self.keep(leaf)));
                }
                None => match self.spec.hive().then(|| hive_text(self.object, &part.name)).flatten() {
                    Some(text) => parts.push(Part::Text(text)),
                    None => absent.push(part.name.clone()),
                },
            }
        }
        // A join of which only a part is there is a mistake, not a missing column.
        if !absent.is_empty() && !parts.is_empty() && !self.empty {
            return Err(column_not_found(self.object, self.spec, target, &absent[0], &self.names));
        }
        if !absent.is_empty() {
            return Ok(Binding { read: Read::Missing, path: None });
        }
        self.check(&source.whole, target)?;
        Ok(Binding { read: Read::Joined(parts), path: None })
    }

    /// Whether texts can become the target's type at all.
    fn check(&self, name: &str, target: usize) -> Result<()> {
        let empty: ArrayRef = new_empty_array(&DataType::Utf8);
        let mut zone = self.spec.zone().map(ZoneConverter::new);
        let mut context = Context::new(self.spec.rules(), zone.as_mut());
        match convert(&empty, false, self.spec.columns()[target].column_type, &mut context)? {
            Some(_) => Ok(()),
            None => Err(refused(self.object, self.spec, "string", name, target)),
        }
    }

    fn keep(&mut self, leaf: TextLeaf) -> usize {
        let known = self.leaves.iter().position(|other| *other == leaf);
        known.unwrap_or_else(|| {
            self.leaves.push(leaf);
            self.leaves.len() - 1
        })
    }
}
