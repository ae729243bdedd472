//! One primitive column of one file, read by itself.
//!
//! Each mapped leaf has its own reader over one row group. So exotic columns next to it cannot disturb, an error names
//! its column, and the type asked of the decoder is ours, not the one a writer left in the footer.

use crate::file::{SourceFile, decode_error, decoding};
use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, StructArray, make_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use parquet::column::page::{PageIterator, PageReader};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use std::sync::Arc;
use timelake_model::{Error, Result};

/// Julian day number of 1970-01-01.
const JULIAN_DAY_OF_EPOCH: i128 = 2_440_588;
const NANOS_PER_DAY: i128 = 86_400_000_000_000;
/// Bytes of one batch of one column that are aimed at, however long the values are.
const BATCH_BYTES: u64 = 16 << 20;

/// How a byte array is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bytes {
    Text,
    /// Text as Dictionary(Int32, Utf8).
    DictionaryText,
    Binary,
}

/// A leaf column of a file, bound.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    /// Position among the file's leaf columns.
    pub index: usize,
    /// As messages name it: steps joined by dots.
    pub name: String,
    /// What the reader gives.
    pub data_type: DataType,
    pub int96: bool,
    levels: FieldLevels,
    path: Vec<TypePtr>,
}

impl Leaf {
    /// Binds the leaf at the end of `path` (root fields first, the leaf last). `stored_hint`: the writer's Arrow type,
    /// for what Parquet has no annotation for.
    pub fn bind(index: usize, path: &[TypePtr], bytes: Bytes, stored_hint: Option<&DataType>) -> ParquetResult<Leaf> {
        let name = path.iter().map(|step| step.name()).collect::<Vec<_>>().join(".");
        let (last, groups) = path.split_last().ok_or_else(|| ParquetError::General("a column without a name".into()))?;
        let int96 = last.get_physical_type() == PhysicalType::INT96;
        let (leaf_type, hint) = read_as(last, bytes, stored_hint)?;
        // A schema of this column alone; its levels are those of the file's.
        let mut node = leaf_type;
        let mut hint = hint;
        for group in groups.iter().rev() {
            let info = group.get_basic_info();
            hint = hint.map(|inner| DataType::Struct(Fields::from(vec![Field::new(node.name(), inner, true)])));
            let built = Type::group_type_builder(group.name()).with_repetition(info.repetition()).with_fields(vec![node]).build()?;
            node = Arc::new(built);
        }
        let fields = hint.map(|inner| Fields::from(vec![Field::new(node.name(), inner, true)]));
        let root = Type::group_type_builder("schema").with_fields(vec![node]).build()?;
        let descriptor = SchemaDescriptor::new(Arc::new(root));
        let arrow = parquet::arrow::parquet_to_arrow_schema_by_columns(&descriptor, ProjectionMask::all(), None);
        let levels = match fields.as_ref() {
            Some(hint) => parquet_to_arrow_field_levels(&descriptor, ProjectionMask::all(), Some(hint))?,
            None => parquet_to_arrow_field_levels(&descriptor, ProjectionMask::all(), None)?,
        };
        let data_type = if int96 { DataType::Decimal128(38, 0) } else { resolved_type(arrow?.field(0).data_type(), fields.as_ref()) };
        Ok(Leaf { index, name, data_type, int96, levels, path: path.to_vec() })
    }

    /// The same column read as bytes.
    pub fn as_bytes(&self) -> ParquetResult<Leaf> {
        Leaf::bind(self.index, &self.path, Bytes::Binary, None)
    }

    /// Opens the column in one row group.
    pub fn open(
        &self,
        file: &Arc<SourceFile>,
        metadata: &Arc<ParquetMetaData>,
        row_group: usize,
        batch_rows: usize,
    ) -> ParquetResult<LeafReader> {
        let group = OneColumn { file: file.clone(), metadata: metadata.clone(), row_group, leaf: self.index };
        if self.int96 {
            let descriptor = metadata.row_group(row_group).column(self.index).column_descr_ptr();
            let max_definition = descriptor.max_def_level();
            let reader = parquet::column::reader::get_column_reader(descriptor, group.pages()?);
            return Ok(LeafReader::Int96 { reader: Box::new(get_typed_column_reader::<Int96Type>(reader)), max_definition, batch_rows });
        }
        Ok(LeafReader::Arrow(ParquetRecordBatchReader::try_new_with_row_groups(&self.levels, &group, batch_rows, None)?))
    }

    /// Rows per batch that keep a batch of this column small, by the size the footer states.
    pub fn batch_rows(&self, group: &RowGroupMetaData, wanted: usize) -> usize {
        let column = group.column(self.index);
        let rows = u64::try_from(group.num_rows()).unwrap_or(0).max(1);
        let stated = column.unencoded_byte_array_data_bytes().unwrap_or(0).max(column.uncompressed_size());
        let bytes_per_row = u64::try_from(stated).unwrap_or(0) / rows;
        wanted.min(usize::try_from(BATCH_BYTES / bytes_per_row.max(1)).unwrap_or(wanted)).max(1)
    }
}

/// The type to read a leaf as, and the hint that makes the decoder give it.
fn read_as(leaf: &TypePtr, bytes: Bytes, stored_hint: Option<&DataType>) -> ParquetResult<(TypePtr, Option<DataType>)> {
    let info = leaf.get_basic_info();
    let is_decimal = matches!(info.logical_type_ref(), Some(LogicalType::Decimal { .. }))
        || info.converted_type() == parquet::basic::ConvertedType::DECIMAL;
    let is_null = matches!(info.logical_type_ref(), Some(LogicalType::Unknown));
    match leaf.get_physical_type() {
        _ if is_null => Ok((leaf.clone(), None)),
        // Annotated as text whatever the writer said (enum, JSON, nothing): so the decoder checks that it is UTF-8.
        PhysicalType::BYTE_ARRAY if !is_decimal => {
            let builder = Type::primitive_type_builder(leaf.name(), PhysicalType::BYTE_ARRAY).with_repetition(info.repetition());
            Ok(match bytes {
                Bytes::Text => (Arc::new(builder.with_logical_type(Some(LogicalType::String)).build()?), None),
                Bytes::DictionaryText => {
                    (Arc::new(builder.with_logical_type(Some(LogicalType::String)).build()?), Some(crate::convert::dictionary_type()))
                }
                Bytes::Binary => (Arc::new(builder.build()?), Some(DataType::LargeBinary)),
            })
        }
        // Arrow writers store these without an annotation; only the footer's Arrow schema tells.
        PhysicalType::INT64 if info.logical_type_ref().is_none() && info.converted_type() == parquet::basic::ConvertedType::NONE => {
            let hint = stored_hint.filter(|hint| matches!(hint, DataType::Timestamp(TimeUnit::Second, _) | DataType::Date64));
            Ok((leaf.clone(), hint.cloned()))
        }
        PhysicalType::INT32 if info.logical_type_ref().is_none() && info.converted_type() == parquet::basic::ConvertedType::NONE => {
            let hint = stored_hint.filter(|hint| matches!(hint, DataType::Time32(TimeUnit::Second)));
            Ok((leaf.clone(), hint.cloned()))
        }
        _ => Ok((leaf.clone(), None)),
    }
}

/// The leaf's type below its structs; a hint that was given is one the decoder takes.
fn resolved_type(outer: &DataType, hint: Option<&Fields>) -> DataType {
    let mut current = hint.and_then(|fields| fields.first()).map_or(outer, |field| field.data_type());
    while let DataType::Struct(fields) = current {
        match fields.first() {
            Some(field) => current = field.data_type(),
            None => break,
        }
    }
    current.clone()
}

/// The arrays of one leaf in one row group.
pub(crate) enum LeafReader {
    Arrow(ParquetRecordBatchReader),
    /// The decoder would wrap INT96 outside i64 nanoseconds, so it is read raw.
    Int96 {
        reader: Box<ColumnReaderImpl<Int96Type>>,
        max_definition: i16,
        batch_rows: usize,
    },
}

impl LeafReader {
    /// The next rows; at most as many as were asked for at opening. `None` at the end.
    pub fn next(&mut self) -> ParquetResult<Option<ArrayRef>> {
        match self {
            LeafReader::Arrow(reader) => match reader.next() {
                None => Ok(None),
                Some(batch) => Ok(Some(below_structs(batch?.column(0).clone())?)),
            },
            LeafReader::Int96 { reader, max_definition, batch_rows } => {
                let (mut definitions, mut values) = (Vec::new(), Vec::new());
                let levels = (*max_definition > 0).then_some(&mut definitions);
                let (rows, _, _) = reader.read_records(*batch_rows, levels, None, &mut values)?;
                if rows == 0 {
                    return Ok(None);
                }
                int96_nanos(rows, &definitions, *max_definition, &values).map(Some)
            }
        }
    }
}

fn int96_nanos(rows: usize, definitions: &[i16], max_definition: i16, values: &[Int96]) -> ParquetResult<ArrayRef> {
    let nanos = |value: &Int96| {
        let [low, high, day] = *value.data() else { return 0 };
        // Both are signed: some writers count days before 4713 BC, and nanoseconds back from a day.
        let nanos_of_day = (u64::from(high) << 32 | u64::from(low)).cast_signed();
        (i128::from(day.cast_signed()) - JULIAN_DAY_OF_EPOCH) * NANOS_PER_DAY + i128::from(nanos_of_day)
    };
    let array: Decimal128Array = if max_definition == 0 {
        values.iter().map(|value| Some(nanos(value))).collect()
    } else {
        let mut present = values.iter();
        definitions.iter().map(|level| if *level == max_definition { present.next().map(nanos) } else { None }).collect()
    };
    if array.len() != rows {
        return Err(ParquetError::General(format!("{rows} rows were announced and {} found", array.len())));
    }
    Ok(Arc::new(array.with_data_type(DataType::Decimal128(38, 0))))
}

/// The child at the end of nested structs, NULL wherever a parent is.
fn below_structs(mut array: ArrayRef) -> ParquetResult<ArrayRef> {
    while let Some(parent) = array.as_any().downcast_ref::<StructArray>() {
        let Some(child) = parent.columns().first() else {
            return Err(ParquetError::General("a struct lost its field".into()));
        };
        array = match parent.nulls() {
            None => child.clone(),
            Some(_) if *child.data_type() == DataType::Null => child.clone(),
            Some(nulls) => {
                let both = NullBuffer::union(Some(nulls), child.nulls());
                make_array(child.to_data().into_builder().nulls(both).build().map_err(|error| ParquetError::ArrowError(error.to_string()))?)
            }
        };
    }
    Ok(array)
}

/// One column of one row group, as the decoder wants it.
struct OneColumn {
    file: Arc<SourceFile>,
    metadata: Arc<ParquetMetaData>,
    row_group: usize,
    leaf: usize,
}

impl OneColumn {
    fn pages(&self) -> ParquetResult<Box<dyn PageReader>> {
        let group = self.metadata.row_group(self.row_group);
        let column = group.columns().get(self.leaf).ok_or(ParquetError::IndexOutOfBound(self.leaf, group.num_columns()))?;
        if column.file_path().is_some_and(|path| !path.is_empty()) {
            return Err(ParquetError::NYI("the column lies in another file".into()));
        }
        let rows = usize::try_from(group.num_rows()).map_err(|_| ParquetError::General("a negative row count".into()))?;
        Ok(Box::new(SerializedPageReader::new(self.file.clone(), column, rows, None)?))
    }
}

impl RowGroups for OneColumn {
    fn num_rows(&self) -> usize {
        usize::try_from(self.metadata.row_group(self.row_group).num_rows()).unwrap_or(0)
    }
    fn column_chunks(&self, _: usize) -> ParquetResult<Box<dyn PageIterator>> {
        Ok(Box::new(OnePageReader(Some(self.pages()))))
    }
    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.row_group)))
    }
    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

struct OnePageReader(Option<ParquetResult<Box<dyn PageReader>>>);

impl Iterator for OnePageReader {
    type Item = ParquetResult<Box<dyn PageReader>>;
    fn next(&mut self) -> Option<Self::Item> {
        self.0.take()
    }
}
impl PageIterator for OnePageReader {}

/// True when a leaf repeats, which makes it a list.
pub(crate) fn repeats(path: &[TypePtr]) -> bool {
    path.iter().any(|step| step.get_basic_info().has_repetition() && step.get_basic_info().repetition() == Repetition::REPEATED)
}

/// Reads the first rows of a leaf of a row group.
pub(crate) fn first_rows(
    file: &Arc<SourceFile>,
    metadata: &Arc<ParquetMetaData>,
    leaf: &Leaf,
    row_group: u32,
    rows: usize,
) -> Result<Option<ArrayRef>> {
    decoding(|| leaf.open(file, metadata, row_group as usize, leaf.batch_rows(metadata.row_group(row_group as usize), rows))?.next())
        .map_err(|error| decode_error(file, Some(row_group), Some(&leaf.name), &error))
}

/// Rows of a dictionary array whose keys point outside its values would panic later on.
pub(crate) fn check_keys(array: &ArrayRef) -> std::result::Result<(), Error> {
    if let Some(dictionary) = array.as_dictionary_opt::<arrow::datatypes::Int32Type>()
        && dictionary.values().is_empty()
        && dictionary.null_count() < dictionary.len()
    {
        return Err(Error::internal("a dictionary without values has rows"));
    }
    Ok(())
}
