//! Fields → Arrow arrays of texts. The hot path of text sources: no allocation per field.

use super::bind::TextLeaf;
use arrow::array::{ArrayRef, BooleanBufferBuilder, DictionaryArray, Int32Array, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;
use timelake_model::{Error, Result};

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

struct Dictionary {
    strings: Strings,
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
    fn finish(self, nulls: Option<NullBuffer>) -> Result<StringArray> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        StringArray::try_new(offsets, Buffer::from_vec(self.bytes), nulls).map_err(internal)
    }
}

fn internal(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("texts are no array: {error}"))
}

impl Dictionary {
    fn new() -> Dictionary {
        Dictionary {
            strings: Strings::new(),
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

    /// The array, and the rows that `--null` made NULL.
    pub fn finish(self) -> Result<(ArrayRef, Vec<u32>)> {
        let nulls = self.validity.map(|mut validity| NullBuffer::new(validity.finish()));
        let array: ArrayRef = match self.values {
            Texts::Plain(strings) => Arc::new(strings.finish(nulls)?),
            Texts::Dictionary(dictionary) => {
                let keys = Int32Array::try_new(dictionary.keys.into(), nulls).map_err(internal)?;
                let values = Arc::new(dictionary.strings.finish(None)?);
                Arc::new(DictionaryArray::<Int32Type>::try_new(keys, values).map_err(internal)?)
            }
        };
        Ok((array, self.nulled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};
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
            let (array, nulled) = column.finish().unwrap();
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
        assert!(column.finish().unwrap().0.is_null(0), "no text at all");
    }
}
