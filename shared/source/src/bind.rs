//! Which leaf of one file feeds which column of the table.
//!
//! Takes a file's schema and the [`SourceSpec`]; gives the bindings, or says which column is missing, ambiguous or of
//! a type that cannot become the target's. A file without rows binds whatever it has: it must not decide anything.

use crate::convert::{ConstantColumn, Context, convert};
use crate::file::decoding;
use crate::leaf::{Bytes, Leaf, repeats};
use crate::mapping::{Feed, NamePart, SourceName, SourceSpec};
use crate::remote::Sources;
use crate::text::TextContent;
use crate::zone::ZoneConverter;
use arrow::array::{ArrayRef, new_empty_array};
use arrow::datatypes::{DataType, Fields, TimeUnit};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_schema, parquet_to_arrow_schema_by_columns};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use std::collections::BTreeMap;
use std::sync::Arc;
use timelake_model::similar::nearest;
use timelake_model::{ColumnType, Error, Reason, Result, SourceObject};

/// Objects by their place in the inventory; those that nobody here reads may be missing.
pub type BoundObjects = BTreeMap<u32, BoundObject>;

/// A source object whose columns are bound: what a reader needs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BoundObject {
    pub(crate) inner: Arc<Bound>,
}

#[derive(Debug)]
pub(crate) struct Bound {
    pub object: SourceObject,
    /// Where the object is opened again.
    pub sources: Sources,
    pub spec: Arc<SourceSpec>,
    pub content: Content,
    /// One per target column.
    pub columns: Vec<Binding>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Parquet(ParquetContent),
    Text(TextContent),
}

#[derive(Debug)]
pub(crate) struct ParquetContent {
    pub metadata: Arc<ParquetMetaData>,
    pub leaves: Vec<Leaf>,
}

impl BoundObject {
    pub fn object(&self) -> &SourceObject {
        &self.inner.object
    }
    pub fn spec(&self) -> &Arc<SourceSpec> {
        &self.inner.spec
    }
    /// A text file: its rows are known only when it is read, as a whole and in order.
    pub fn is_text(&self) -> bool {
        matches!(self.inner.content, Content::Text(_))
    }
    /// Names of its columns.
    pub fn column_names(&self) -> Vec<String> {
        self.inner.column_names()
    }
    /// A text file is one of unknown size.
    /// Of a text file the only one: all of it.
    pub fn all_row_groups(&self) -> Vec<u32> {
        (0..self.row_groups()).collect()
    }
    pub fn row_groups(&self) -> u32 {
        match &self.inner.content {
            Content::Parquet(content) => content.metadata.num_row_groups() as u32,
            Content::Text(_) => 1,
        }
    }
}

impl Bound {
    pub fn parquet(&self) -> Result<&ParquetContent> {
        match &self.content {
            Content::Parquet(content) => Ok(content),
            Content::Text(_) => Err(Error::internal(format!("{} is not a Parquet file", self.object.shown))),
        }
    }
    /// Columns that are read.
    pub fn leaf_count(&self) -> usize {
        match &self.content {
            Content::Parquet(content) => content.leaves.len(),
            Content::Text(content) => content.leaves.len(),
        }
    }
    pub fn leaf_name(&self, leaf: usize) -> Option<&str> {
        match &self.content {
            Content::Parquet(content) => content.leaves.get(leaf).map(|leaf| leaf.name.as_str()),
            Content::Text(content) => content.leaves.get(leaf).map(|leaf| leaf.name.as_str()),
        }
    }
    pub fn is_int96(&self, leaf: usize) -> bool {
        match &self.content {
            Content::Parquet(content) => content.leaves.get(leaf).is_some_and(|leaf| leaf.int96),
            Content::Text(_) => false,
        }
    }
    /// Names a user may mean.
    pub fn column_names(&self) -> Vec<String> {
        match &self.content {
            Content::Parquet(content) => column_names(content.metadata.file_metadata().schema_descr()),
            Content::Text(content) => content.dialect.as_ref().map(|dialect| dialect.names.clone()).unwrap_or_default(),
        }
    }
    /// A text file that holds nothing at all.
    pub fn is_empty_text(&self) -> bool {
        matches!(&self.content, Content::Text(content) if content.dialect.is_none())
    }
    /// Something is known about its columns and rows.
    pub fn may_have_rows(&self) -> bool {
        match &self.content {
            Content::Parquet(content) => content.metadata.file_metadata().num_rows() > 0,
            Content::Text(content) => content.dialect.is_some(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Binding {
    pub read: Read,
    /// The folder's value of a column that is in the file as well.
    pub path: Option<(Option<String>, ConstantColumn)>,
}

#[derive(Debug)]
pub(crate) enum Read {
    /// NULL in every row.
    Missing,
    Constant(ConstantColumn),
    Leaf(usize),
    /// Texts joined with one blank.
    Joined(Vec<Part>),
}

#[derive(Debug)]
pub(crate) enum Part {
    Leaf(usize),
    Text(Option<String>),
}

/// What binding a file found.
pub(crate) struct BindOutcome {
    pub bound: BoundObject,
    /// Targets whose source column this file does not have.
    pub missing: Vec<usize>,
    pub warnings: Vec<String>,
}

/// Binds all columns of a file.
pub(crate) fn bind(object: &SourceObject, sources: &Sources, metadata: ParquetMetaData, spec: &Arc<SourceSpec>) -> Result<BindOutcome> {
    let metadata = Arc::new(metadata);
    let descriptor = metadata.file_metadata().schema_descr_ptr();
    // Only to recognise what Parquet has no annotation for; a footer without or with an odd one does no harm.
    let stored = decoding(|| parquet_to_arrow_schema(&descriptor, metadata.file_metadata().key_value_metadata())).ok();
    let mut binder = Binder {
        object,
        spec,
        descriptor: &descriptor,
        stored: stored.map(|schema| schema.fields().clone()),
        has_rows: metadata.file_metadata().num_rows() > 0,
        leaves: Vec::new(),
        warnings: Vec::new(),
    };
    let mut columns = Vec::with_capacity(spec.columns().len());
    let mut missing = Vec::new();
    for target in 0..spec.columns().len() {
        let binding = binder.column(target)?;
        if matches!(binding.read, Read::Missing) && matches!(spec.feed(target), Feed::Named { .. }) {
            missing.push(target);
        }
        columns.push(binding);
    }
    let (leaves, warnings) = (binder.leaves, binder.warnings);
    let content = Content::Parquet(ParquetContent { metadata, leaves });
    let bound = Bound { object: object.clone(), sources: sources.clone(), spec: spec.clone(), content, columns };
    Ok(BindOutcome { bound: BoundObject { inner: Arc::new(bound) }, missing, warnings })
}

/// A source column as found in a file.
enum Found {
    /// Leaf index and the way to it.
    Leaf(usize, Vec<TypePtr>),
    /// A struct, list or map.
    Group(TypePtr, String),
    Absent,
}

struct Binder<'a> {
    object: &'a SourceObject,
    spec: &'a SourceSpec,
    descriptor: &'a SchemaDescriptor,
    stored: Option<Fields>,
    has_rows: bool,
    leaves: Vec<Leaf>,
    warnings: Vec<String>,
}

impl Binder<'_> {
    fn column(&mut self, target: usize) -> Result<Binding> {
        let plain = |read| Ok(Binding { read, path: None });
        let (source, explicit) = match self.spec.feed(target) {
            Feed::Constant(constant) => return plain(Read::Constant(constant.clone())),
            Feed::LeftOut => return plain(Read::Missing),
            Feed::Named { source, explicit } => (source.clone(), *explicit),
        };
        let whole = NamePart { name: source.whole.clone(), path: vec![source.whole.clone()] };
        // The name as it stands wins over its reading as a path or a join.
        let mut found = self.find_root(&whole.name)?;
        if matches!(found, Found::Absent) && source.parts.len() == 1 && explicit {
            found = self.find_path(&source.parts[0])?;
        }
        let path = path_value(self.object, self.spec, &source.whole, target)?;
        match found {
            Found::Absent if path.is_some() => plain(path.map_or(Read::Missing, |(_, constant)| Read::Constant(constant))),
            Found::Absent if source.parts.len() > 1 => self.joined(&source, target),
            Found::Absent => plain(Read::Missing),
            Found::Group(group, name) => self.refused(&type_text_of_group(&group), &name, target),
            Found::Leaf(index, steps) => Ok(Binding { read: self.leaf(index, &steps, target)?, path }),
        }
    }

    /// A root column: by exact name, else the only one that differs by case.
    fn find_root(&self, name: &str) -> Result<Found> {
        let fields = self.descriptor.root_schema().get_fields();
        let exact: Vec<_> = fields.iter().filter(|field| field.name() == name).collect();
        let folded = name.to_lowercase();
        let near = || fields.iter().filter(|field| field.name().to_lowercase() == folded).collect::<Vec<_>>();
        let matches = if exact.is_empty() { near() } else { exact };
        match matches.as_slice() {
            [] => Ok(Found::Absent),
            [one] => Ok(self.found(vec![TypePtr::clone(one)])),
            several => Err(self.ambiguous(name, several)),
        }
    }

    fn ambiguous(&self, name: &str, several: &[&TypePtr]) -> Error {
        ambiguous(self.object, name, several.iter().map(|field| field.name().to_string()).collect())
    }

    /// One part of a name: a root column, else a path through structs.
    fn find_path(&self, part: &NamePart) -> Result<Found> {
        let root = self.find_root(&part.name)?;
        if !matches!(root, Found::Absent) || part.path.len() < 2 {
            return Ok(root);
        }
        let mut steps: Vec<TypePtr> = Vec::new();
        for name in &part.path {
            let fields = match steps.last() {
                None => self.descriptor.root_schema().get_fields(),
                Some(group) if group.is_group() => group.get_fields(),
                Some(_) => return Ok(Found::Absent),
            };
            let exact: Vec<_> = fields.iter().filter(|field| field.name() == name).collect();
            let matches = if exact.is_empty() {
                fields.iter().filter(|field| field.name().to_lowercase() == name.to_lowercase()).collect()
            } else {
                exact
            };
            match matches.as_slice() {
                [] => return Ok(Found::Absent),
                [one] => steps.push(TypePtr::clone(one)),
                several => return Err(self.ambiguous(name, several)),
            }
        }
        Ok(self.found(steps))
    }

    fn found(&self, steps: Vec<TypePtr>) -> Found {
        let name = || steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(".");
        match steps.last() {
            None => Found::Absent,
            Some(last) if last.is_group() => Found::Group(last.clone(), name()),
            Some(last) if repeats(&steps) => Found::Group(last.clone(), name()),
            Some(last) => {
                let at = (0..self.descriptor.num_columns())
                    .find(|index| std::ptr::eq(self.descriptor.column(*index).self_type(), last.as_ref()));
                at.map_or(Found::Absent, |index| Found::Leaf(index, steps))
            }
        }
    }

    fn joined(&mut self, source: &SourceName, target: usize) -> Result<Binding> {
        let mut parts = Vec::with_capacity(source.parts.len());
        let mut absent = Vec::new();
        for part in &source.parts {
            match self.find_path(part)? {
                Found::Leaf(index, steps) => {
                    let leaf = self.bind_leaf(index, &steps, Bytes::Text)?;
                    let joinable = matches!(
                        leaf.data_type,
                        DataType::Utf8 | DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) | DataType::Null
                    ) || leaf.data_type.is_integer();
                    if !joinable || leaf.int96 {
                        let (text, name) = (type_text(&leaf.data_type), leaf.name.clone());
                        return self.refused(&text, &name, target);
                    }
                    parts.push(Part::Leaf(self.keep(leaf)));
                }
                Found::Group(group, name) => return self.refused(&type_text_of_group(&group), &name, target),
                Found::Absent => match self.spec.hive().then(|| hive_text(self.object, &part.name)).flatten() {
                    Some(text) => parts.push(Part::Text(text)),
                    None => absent.push(part.name.clone()),
                },
            }
        }
        // A join of which only a part is there is a mistake, not a missing column.
        if !absent.is_empty() && !parts.is_empty() && self.has_rows {
            return Err(column_not_found(self.object, self.spec, target, &absent[0], &self.names()));
        }
        let read = if absent.is_empty() { Read::Joined(parts) } else { Read::Missing };
        if matches!(read, Read::Joined(_)) {
            self.check(&DataType::Utf8, false, &source.whole, target)?;
        }
        Ok(Binding { read, path: None })
    }

    fn leaf(&mut self, index: usize, steps: &[TypePtr], target: usize) -> Result<Read> {
        let column_type = self.spec.columns()[target].column_type;
        let bytes = match column_type {
            ColumnType::Binary => Bytes::Binary,
            _ if self.spec.is_dictionary(target) => Bytes::DictionaryText,
            _ => Bytes::Text,
        };
        let leaf = match self.bind_leaf(index, steps, bytes) {
            Ok(leaf) => leaf,
            Err(_) if !self.has_rows => return Ok(Read::Missing),
            Err(error) => return Err(error),
        };
        if !self.check(&leaf.data_type, leaf.int96, &leaf.name, target)? {
            return Ok(Read::Missing);
        }
        if leaf.int96 && self.spec.zone().is_some() && column_type == ColumnType::Timestamptz {
            self.warnings.push(format!("{} is INT96, taken as UTC; --tz not applied", leaf.name));
        }
        Ok(Read::Leaf(self.keep(leaf)))
    }

    fn bind_leaf(&self, index: usize, steps: &[TypePtr], bytes: Bytes) -> Result<Leaf> {
        let mut hint = None;
        let mut fields = self.stored.as_ref();
        for step in steps {
            let field = fields.and_then(|fields| fields.iter().find(|field| field.name() == step.name()));
            hint = field.map(|field| field.data_type());
            fields = match hint {
                Some(DataType::Struct(children)) => Some(children),
                _ => None,
            };
        }
        decoding(|| Leaf::bind(index, steps, bytes, hint)).map_err(|error| {
            let name = steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(".");
            Error::invalid(Reason::UnsupportedType, format!("{}, column {name}: {error}", self.object.shown))
                .hint("leave the column out, or write it with another type")
                .at(|place| {
                    place.file = Some(self.object.shown.clone());
                    place.column = Some(name);
                })
        })
    }

    fn keep(&mut self, leaf: Leaf) -> usize {
        let known = self.leaves.iter().position(|other| other.index == leaf.index && other.data_type == leaf.data_type);
        known.unwrap_or_else(|| {
            self.leaves.push(leaf);
            self.leaves.len() - 1
        })
    }

    /// True when the type converts; an error when not; false when not but the file has no rows.
    fn check(&self, data_type: &DataType, int96: bool, name: &str, target: usize) -> Result<bool> {
        let column = &self.spec.columns()[target];
        let naive = !int96 && matches!(data_type, DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64);
        if naive && column.column_type == ColumnType::Timestamptz && self.spec.zone().is_none() {
            if !self.has_rows {
                return Ok(false);
            }
            return Err(Error::invalid(
                Reason::NaiveTimestampWithoutZone,
                format!("{}, column {name}: {} is a wall clock, and no zone is given", self.object.shown, type_text(data_type)),
            )
            .hint("say whose wall clock it is: --tz Europe/Berlin or --tz UTC")
            .at(|place| {
                place.file = Some(self.object.shown.clone());
                place.column = Some(name.into());
                place.source_type = Some(type_text(data_type));
                place.target = Some(column.column_type.to_string());
            }));
        }
        let empty: ArrayRef = new_empty_array(data_type);
        let mut zone = self.spec.zone().map(ZoneConverter::new);
        let mut context = Context::new(self.spec.rules(), zone.as_mut());
        match convert(&empty, int96, column.column_type, &mut context)? {
            Some(_) => Ok(true),
            None if !self.has_rows => Ok(false),
            None => self.refused(&type_text(data_type), name, target).map(|_| false),
        }
    }

    fn refused(&self, source_type: &str, name: &str, target: usize) -> Result<Binding> {
        if !self.has_rows {
            return Ok(Binding { read: Read::Missing, path: None });
        }
        Err(refused(self.object, self.spec, source_type, name, target))
    }

    fn names(&self) -> Vec<String> {
        column_names(self.descriptor)
    }
}

/// A name that several columns may have.
pub(crate) fn ambiguous(object: &SourceObject, name: &str, names: Vec<String>) -> Error {
    Error::invalid(Reason::AmbiguousColumn, format!("{}: {name} could be any of {}", object.shown, names.join(", ")))
        .hint("name one of them exactly with --map; columns of one name have to be renamed in the file")
        .at(|place| {
            place.file = Some(object.shown.clone());
            place.column = Some(name.into());
            place.candidates = names;
        })
}

/// The folder's value of a column, by exact name, else by the only one that differs by case.
pub(crate) fn path_value(
    object: &SourceObject,
    spec: &SourceSpec,
    name: &str,
    target: usize,
) -> Result<Option<(Option<String>, ConstantColumn)>> {
    if !spec.hive() {
        return Ok(None);
    }
    let Some(value) = hive_text(object, name) else { return Ok(None) };
    let column = &spec.columns()[target];
    let parsed = ConstantColumn::parse(value.as_deref(), column.column_type, spec.is_dictionary(target), spec.rules())?;
    match parsed {
        Ok(constant) => Ok(Some((value, constant))),
        Err(fault) => Err(Error::invalid(
            fault.reason,
            format!("{}: the folder value {name}={} is not a {}", object.shown, value.as_deref().unwrap_or("NULL"), column.column_type),
        )
        .hint(format!("leave the column out with --map {}=, or run without --hive", column.name))
        .at(|place| {
            place.file = Some(object.shown.clone());
            place.column = Some(name.into());
            place.path_value = value.clone();
            place.value = value;
            place.target = Some(column.column_type.to_string());
        })),
    }
}

pub(crate) fn hive_text(object: &SourceObject, name: &str) -> Option<Option<String>> {
    let hive = &object.hive;
    let folded = name.to_lowercase();
    hive.get(name).or_else(|| hive.iter().find(|(key, _)| key.to_lowercase() == folded).map(|(_, value)| value)).cloned()
}

/// A type that cannot become the target's.
pub(crate) fn refused(object: &SourceObject, spec: &SourceSpec, source_type: &str, name: &str, target: usize) -> Error {
    let column = &spec.columns()[target];
    let is_number = ["int", "long", "double", "float"].iter().any(|word| source_type.contains(word)) && !source_type.contains('<');
    let hint = match column.column_type {
        ColumnType::Timestamptz if is_number && spec.rules().unit.is_none() => {
            "numbers need a unit to be times: --ts-unit ms (or s, us, ns)".to_string()
        }
        ColumnType::Timestamp if source_type.starts_with("timestamptz") => {
            "an instant has no wall clock of its own: load it into a timestamptz column".to_string()
        }
        _ if source_type.starts_with("struct") => format!("name a field of it, for example --map {}={name}.field", column.name),
        _ => format!("map another column, or leave this one out with --map {}=", column.name),
    };
    Error::invalid(
        Reason::UnsupportedType,
        format!("{}, column {name}: {source_type} cannot become {} ({})", object.shown, column.name, column.column_type),
    )
    .hint(hint)
    .at(|place| {
        place.file = Some(object.shown.clone());
        place.column = Some(name.into());
        place.source_type = Some(source_type.into());
        place.target = Some(column.column_type.to_string());
    })
}

/// Names a user may mean: root columns, and fields of structs by their path.
pub(crate) fn column_names(descriptor: &SchemaDescriptor) -> Vec<String> {
    let mut names: Vec<String> = descriptor.root_schema().get_fields().iter().map(|field| field.name().to_string()).collect();
    for column in descriptor.columns() {
        let path = column.path().string();
        if !names.contains(&path) {
            names.push(path);
        }
    }
    names
}

pub(crate) fn column_not_found(object: &SourceObject, spec: &SourceSpec, target: usize, name: &str, names: &[String]) -> Error {
    let column = &spec.columns()[target].name;
    let hint = match nearest(name, names.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean --map {column}={meant}?"),
        None => {
            format!("map a column with --map {column}=...; the file has: {}", names.iter().take(20).cloned().collect::<Vec<_>>().join(", "))
        }
    };
    // Values where names should be: to map them would load all but the first row.
    let is_value = |name: &String| {
        name.trim().parse::<f64>().is_ok() || name.get(..5).is_some_and(|year| year.ends_with('-') && year[..4].parse::<u16>().is_ok())
    };
    let hint = match names.iter().any(is_value) {
        true => format!("{hint}; if the first line is no header, name the columns with --columns"),
        false => hint,
    };
    Error::invalid(Reason::ColumnNotFound, format!("{}: there is no column {name} for {column}", object.shown)).hint(hint).at(|place| {
        place.file = Some(object.shown.clone());
        place.column = Some(name.into());
        place.target = Some(column.clone());
        place.candidates = names.iter().take(20).cloned().collect();
    })
}

/// The type of a group (or repeated leaf) as users write types.
fn type_text_of_group(group: &TypePtr) -> String {
    let alone = decoding(|| {
        let root = Type::group_type_builder("schema").with_fields(vec![group.clone()]).build()?;
        parquet_to_arrow_schema_by_columns(&SchemaDescriptor::new(Arc::new(root)), ProjectionMask::all(), None)
    });
    let data_type = alone.ok().and_then(|schema| schema.fields().first().map(|field| field.data_type().clone()));
    data_type.map_or_else(|| "group".to_string(), |data_type| type_text(&data_type))
}

/// A source type in words near to Iceberg's.
pub(crate) fn type_text(data_type: &DataType) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    match data_type {
        DataType::Int8 => "int8".into(),
        DataType::Int16 => "int16".into(),
        DataType::Int32 => "int".into(),
        DataType::Int64 => "long".into(),
        DataType::UInt8 => "uint8".into(),
        DataType::UInt16 => "uint16".into(),
        DataType::UInt32 => "uint32".into(),
        DataType::UInt64 => "uint64".into(),
        DataType::Float16 => "float16".into(),
        DataType::Float32 => "float".into(),
        DataType::Float64 => "double".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Null => "null".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "binary".into(),
        DataType::FixedSizeBinary(length) => format!("fixed[{length}]"),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(u) | DataType::Time64(u) => format!("time({})", unit(u)),
        DataType::Timestamp(u, None) => format!("timestamp({})", unit(u)),
        DataType::Timestamp(u, Some(_)) => format!("timestamptz({})", unit(u)),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::Dictionary(_, value) => type_text(value),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            format!("list<{}>", type_text(field.data_type()))
        }
        DataType::Struct(fields) => {
            let inner: Vec<_> = fields.iter().map(|field| format!("{}:{}", field.name(), type_text(field.data_type()))).collect();
            format!("struct<{}>", inner.join(","))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                format!("map<{}>", fields.iter().map(|field| type_text(field.data_type())).collect::<Vec<_>>().join(","))
            }
            _ => "map".into(),
        },
        other => other.to_string().to_lowercase(),
    }
}
