//! Fields → Arrow arrays of texts. The hot path of text sources: no allocation per field.

use super::bind::TextLeaf;
use arrow::array::{Array, ArrayRef, BooleanBufferBuilder, DictionaryArray, Int32Array, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;
use timelake_model::{Error, Result};

/// A dictionary is kept for the next batch when it has at most one text for so many rows, and not more bytes.
const KEPT_SHARE: usize = 4;
const KEPT_BYTES: usize = 1 << 20;

/// The texts of one column of a batch, being collected.
pub(crate) struct TextColumn {
    values: Texts,
    validity: Option<BooleanBufferBuilder>,
    rows: usize,
    /// Rows that `--null` made NULL.
    nulled: Vec<u32>,
}

/// Texts one after the other.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    /// End of each; the first element is 0.
    offsets: Vec<i32>,
}

enum Texts {
    Plain(Strings),
    Dictionary(Dictionary),
}

/// Kept from batch to batch, so that texts are looked up once and the values stay the same array.
struct Dictionary {
    strings: Strings,
    /// The strings as an array, as the last batch had them.
    values: Option<Arc<StringArray>>,
    keys: Vec<i32>,
    table: HashTable<i32>,
    hasher: DefaultHashBuilder,
    /// Which text followed this one last time: series take turns.
    successors: Vec<i32>,
    last: usize,
}

impl Strings {
    fn new() -> Strings {
        Strings { bytes: Vec::new(), offsets: vec![0] }
    }
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        // A batch has a few MiB of text.
        self.offsets.push(self.bytes.len() as i32);
    }
    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }
    /// Gives all away; the next batch will be much the same size.
    fn take(&mut self, nulls: Option<NullBuffer>) -> Result<StringArray> {
        let bytes = std::mem::take(&mut self.bytes);
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        self.bytes.reserve(bytes.len() + bytes.len() / 16);
        self.offsets.reserve(offsets.len());
        array(bytes, offsets, nulls)
    }
}

fn array(bytes: Vec<u8>, offsets: Vec<i32>, nulls: Option<NullBuffer>) -> Result<StringArray> {
    StringArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(bytes), nulls).map_err(internal)
}

fn internal(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("texts are no array: {error}"))
}

impl Dictionary {
    fn new() -> Dictionary {
        Dictionary {
            strings: Strings::new(),
            values: None,
            keys: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            successors: Vec::new(),
            last: 0,
        }
    }

    fn push(&mut self, text: &[u8]) {
        let guess = self.successors.get(self.last).copied().unwrap_or(-1);
        if guess >= 0 && self.strings.get(guess as usize) == text {
            self.keys.push(guess);
            self.last = guess as usize;
            return;
        }
        let hash = self.hasher.hash_one(text);
        let (strings, hasher) = (&mut self.strings, &self.hasher);
        let known = self.table.find(hash, |key| strings.get(*key as usize) == text).copied();
        let key = known.unwrap_or_else(|| {
            let key = self.successors.len() as i32;
            strings.push(text);
            self.successors.push(-1);
            self.table.insert_unique(hash, key, |key| hasher.hash_one(strings.get(*key as usize)));
            key
        });
        if let Some(successor) = self.successors.get_mut(self.last) {
            *successor = key;
        }
        self.keys.push(key);
        self.last = key as usize;
    }
}

impl Dictionary {
    fn take(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let keys = std::mem::take(&mut self.keys);
        self.keys.reserve(keys.len());
        let texts = self.successors.len();
        let values = match self.values.take().filter(|values| values.len() == texts) {
            Some(values) => values,
            None => Arc::new(array(self.strings.bytes.clone(), self.strings.offsets.clone(), None)?),
        };
        if texts > keys.len() / KEPT_SHARE || self.strings.bytes.len() > KEPT_BYTES {
            *self = Dictionary { keys: std::mem::take(&mut self.keys), ..Dictionary::new() };
        } else {
            self.values = Some(values.clone());
        }
        let keys = Int32Array::try_new(keys.into(), nulls).map_err(internal)?;
        Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(keys, values).map_err(internal)?))
    }
}

impl TextColumn {
    pub fn new(leaf: &TextLeaf) -> TextColumn {
        let values = if leaf.dictionary { Texts::Dictionary(Dictionary::new()) } else { Texts::Plain(Strings::new()) };
        TextColumn { values, validity: None, rows: 0, nulled: Vec::new() }
    }

    /// Bytes of text held.
    pub fn bytes(&self) -> usize {
        match &self.values {
            Texts::Plain(strings) => strings.bytes.len(),
            Texts::Dictionary(dictionary) => dictionary.strings.bytes.len(),
        }
    }

    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        match &mut self.values {
            Texts::Plain(strings) => strings.push(text),
            Texts::Dictionary(dictionary) => dictionary.push(text),
        }
        if let Some(validity) = &mut self.validity {
            validity.append(true);
        }
        self.rows += 1;
    }

    pub fn push_null(&mut self) {
        let rows = self.rows;
        let validity = self.validity.get_or_insert_with(|| {
            let mut builder = BooleanBufferBuilder::new(rows + 1);
            builder.append_n(rows, true);
            builder
        });
        validity.append(false);
        match &mut self.values {
            Texts::Plain(strings) => strings.push(b""),
            Texts::Dictionary(dictionary) => dictionary.keys.push(0),
        }
        self.rows += 1;
    }

    /// A text of `--null`.
    pub fn push_nulled(&mut self) {
        self.nulled.push(self.rows as u32);
        self.push_null();
    }

    /// The array of the batch, and the rows that `--null` made NULL.
    pub fn take(&mut self) -> Result<(ArrayRef, Vec<u32>)> {
        let nulls = self.validity.take().map(|mut validity| NullBuffer::new(validity.finish()));
        self.rows = 0;
        let array: ArrayRef = match &mut self.values {
            Texts::Plain(strings) => Arc::new(strings.take(nulls)?),
            Texts::Dictionary(dictionary) => dictionary.take(nulls)?,
        };
        Ok((array, std::mem::take(&mut self.nulled)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::compute::cast;
    use arrow::datatypes::DataType;

    #[test]
    fn dictionaries_hold_what_was_pushed() {
        let leaf = |dictionary| TextLeaf { field: 0, name: "a".into(), dictionary, quoted_empty_is_null: true, has_nulls: false };
        let texts = ["a", "b", "c", "a", "b", "c", "a", "", "c", "c", "x", "a"];
        for dictionary in [true, false] {
            let mut column = TextColumn::new(&leaf(dictionary));
            column.push_null();
            texts.iter().for_each(|text| column.push(text.as_bytes()));
            column.push_nulled();
            let (array, nulled) = column.take().unwrap();
            assert_eq!(nulled, [13]);
            let plain = cast(&array, &DataType::Utf8).unwrap();
            let found: Vec<Option<&str>> = plain.as_string::<i32>().iter().collect();
            let wanted: Vec<Option<&str>> = [None].into_iter().chain(texts.map(Some)).chain([None]).collect();
            assert_eq!(found, wanted);
            if dictionary {
                assert_eq!(array.as_dictionary::<Int32Type>().values().len(), 5);
            }
        }
        let mut column = TextColumn::new(&leaf(true));
        column.push_null();
        assert!(column.take().unwrap().0.is_null(0), "no text at all");
    }

    #[test]
    fn a_batch_begins_anew_and_its_dictionary_is_kept_while_it_is_small() {
        let leaf = TextLeaf { field: 0, name: "a".into(), dictionary: true, quoted_empty_is_null: true, has_nulls: false };
        let mut column = TextColumn::new(&leaf);
        let mut batch = |texts: &[&str]| {
            texts.iter().for_each(|text| column.push(text.as_bytes()));
            let (array, nulled) = column.take().unwrap();
            assert_eq!((array.null_count(), nulled.len()), (0, 0));
            let plain = cast(&array, &DataType::Utf8).unwrap();
            assert_eq!(plain.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), texts);
            array.as_dictionary::<Int32Type>().values().clone()
        };
        let many = |text| [text; 20];
        let first = batch(&[many("a"), many("b")].concat());
        let second = batch(&[many("b"), many("a")].concat());
        assert_eq!(first.to_data().buffers()[1].as_ptr(), second.to_data().buffers()[1].as_ptr());
        assert_eq!(batch(&[&many("b")[..], &["c"]].concat()).len(), 3);
        assert_eq!(batch(&["d", "e", "f", "g"]).len(), 7);
        assert_eq!(batch(&["d"]).len(), 1, "too many texts for their rows");
    }
}
