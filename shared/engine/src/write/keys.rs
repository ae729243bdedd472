//! Key values as small integers: each distinct value of a key column is seen once, all sorting, grouping
//! and comparing of rows is by code.

use crate::hash::{bytes_hash, join};
use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Int32Type};
use arrow::row::{RowConverter, SortField};
use hashbrown::HashMap;
use std::borrow::Cow;
use timelake_model::{Error, Result};

/// What a value takes besides its bytes: pointer, length, its share of the table and of the allocator.
const BOX_BYTES: usize = 24;

/// Code of a value that was never interned.
pub const UNKNOWN: u32 = u32::MAX;

/// Distinct values of one key column. Values are kept in a byte encoding whose order is the table's sort
/// order (ascending, texts by bytes).
pub struct KeyColumn {
    converter: RowConverter,
    codes: HashMap<Box<[u8]>, u32>,
    encoded: Vec<Box<[u8]>>,
    /// Memory of the values, each of which is kept twice.
    bytes: usize,
    /// The last dictionary seen and its codes: batches of a row group share one.
    dictionary: Option<(Vec<Buffer>, usize, Vec<u32>)>,
}

impl KeyColumn {
    /// `data_type`: the plain type of the values.
    pub fn new(data_type: &DataType) -> Result<Self> {
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())]).map_err(internal)?;
        Ok(KeyColumn { converter, codes: HashMap::new(), encoded: vec![], bytes: 0, dictionary: None })
    }

    /// Memory of the distinct values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of distinct values.
    pub fn distinct(&self) -> usize {
        self.encoded.len()
    }

    /// Codes of an array without nulls, plain or dictionary-encoded; new values get new codes.
    pub fn intern(&mut self, array: &ArrayRef, out: &mut Vec<u32>) -> Result<()> {
        match array.as_any_dictionary_opt() {
            Some(_) => {
                let dictionary =
                    array.as_dictionary_opt::<Int32Type>().ok_or_else(|| Error::internal("a dictionary with other than 32-bit keys"))?;
                let values = dictionary.values();
                let buffers = values.to_data().buffers().to_vec();
                let known = self.dictionary.as_ref().is_some_and(|(kept, len, _)| {
                    *len == values.len()
                        && kept.len() == buffers.len()
                        && kept.iter().zip(&buffers).all(|(a, b)| a.as_ptr() == b.as_ptr() && a.len() == b.len())
                });
                if !known {
                    let mut codes = Vec::with_capacity(values.len());
                    self.intern_plain(values, &mut codes)?;
                    // The buffers are kept, so their addresses cannot be reused by other values.
                    self.dictionary = Some((buffers, values.len(), codes));
                }
                match &self.dictionary {
                    Some((_, _, codes)) => out.extend(dictionary.keys().values().iter().map(|k| codes[*k as usize])),
                    None => return Err(Error::internal("a dictionary without values")),
                }
                Ok(())
            }
            None => self.intern_plain(array, out),
        }
    }

    fn intern_plain(&mut self, array: &ArrayRef, out: &mut Vec<u32>) -> Result<()> {
        let rows = self.converter.convert_columns(std::slice::from_ref(array)).map_err(internal)?;
        out.reserve(rows.num_rows());
        let mut last: Option<(&[u8], u32)> = None;
        for row in rows.iter() {
            let bytes = row.data();
            if let Some((same, code)) = last
                && same == bytes
            {
                out.push(code);
                continue;
            }
            let code = match self.codes.get(bytes) {
                Some(code) => *code,
                None => {
                    let code = self.encoded.len() as u32;
                    self.codes.insert(bytes.into(), code);
                    self.encoded.push(bytes.into());
                    self.bytes += 2 * (bytes.len() + BOX_BYTES);
                    code
                }
            };
            last = Some((bytes, code));
            out.push(code);
        }
        Ok(())
    }

    /// Codes of known values, [`UNKNOWN`] for others. Adds nothing. Rows of a table are mostly in order, so equal
    /// neighbours are looked up once.
    pub fn lookup(&self, array: &ArrayRef) -> Result<Vec<u32>> {
        if let Some(dictionary) = array.as_dictionary_opt::<Int32Type>() {
            let of_values = self.lookup(dictionary.values())?;
            let keys = dictionary.keys();
            let of_key = |(i, key): (usize, &i32)| if keys.is_valid(i) { of_values[*key as usize] } else { UNKNOWN };
            return Ok(match keys.null_count() {
                0 => keys.values().iter().map(|key| of_values[*key as usize]).collect(),
                _ => keys.values().iter().enumerate().map(of_key).collect(),
            });
        }
        let plain = match array.as_any_dictionary_opt() {
            Some(d) => arrow::compute::take(d.values(), d.keys(), None).map_err(internal)?,
            None => array.clone(),
        };
        if plain.is_empty() {
            return Ok(vec![]);
        }
        let runs = arrow::compute::partition(std::slice::from_ref(&plain)).map_err(internal)?.ranges();
        let first = UInt32Array::from_iter_values(runs.iter().map(|run| run.start as u32));
        let distinct = arrow::compute::take(&plain, &first, None).map_err(internal)?;
        let rows = self.converter.convert_columns(&[distinct]).map_err(internal)?;
        let mut out = Vec::with_capacity(plain.len());
        for (run, row) in runs.iter().zip(rows.iter()) {
            out.resize(run.end, self.codes.get(row.data()).copied().unwrap_or(UNKNOWN));
        }
        Ok(out)
    }

    /// The values by code.
    pub fn values(&self) -> Result<ArrayRef> {
        let parser = self.converter.parser();
        let columns = self.converter.convert_rows(self.encoded.iter().map(|b| parser.parse(b))).map_err(internal)?;
        columns.into_iter().next().ok_or_else(|| Error::internal("a key column without values"))
    }

    /// One of them, as an array of one.
    pub fn value(&self, code: u32) -> Result<ArrayRef> {
        let parser = self.converter.parser();
        let columns = self.converter.convert_rows([parser.parse(self.encoding(code))]).map_err(internal)?;
        columns.into_iter().next().ok_or_else(|| Error::internal("a key column without values"))
    }

    fn encoding(&self, code: u32) -> &[u8] {
        &self.encoded[code as usize]
    }
    /// Checksum of each value, by code.
    pub fn hashes(&self) -> Vec<u64> {
        self.encoded.iter().map(|b| bytes_hash(b)).collect()
    }
}

/// Distinct tuples of some key columns. One column: its own codes. Several: codes of the tuples.
pub struct Tuples {
    columns: Vec<usize>,
    codes: HashMap<Box<[u32]>, u32>,
    tuples: Vec<Box<[u32]>>,
}

impl Tuples {
    /// `columns`: indexes into the unit's key columns.
    pub fn new(columns: Vec<usize>) -> Self {
        Tuples { columns, codes: HashMap::new(), tuples: vec![] }
    }
    /// Indexes into the unit's key columns.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
    fn single(&self) -> Option<usize> {
        match self.columns[..] {
            [one] => Some(one),
            _ => None,
        }
    }
    /// Tuple code of each row, given each key column's codes.
    pub fn intern<'a>(&mut self, keys: &'a [Vec<u32>]) -> Cow<'a, [u32]> {
        if let Some(one) = self.single() {
            return Cow::Borrowed(&keys[one]);
        }
        let of_tuple: Vec<&Vec<u32>> = self.columns.iter().map(|c| &keys[*c]).collect();
        let rows = keys.first().map_or(0, Vec::len);
        let mut out = Vec::with_capacity(rows);
        let mut tuple = vec![0u32; of_tuple.len()];
        let mut last = None;
        for row in 0..rows {
            let mut same = last.is_some();
            for (slot, codes) in tuple.iter_mut().zip(&of_tuple) {
                same &= *slot == codes[row];
                *slot = codes[row];
            }
            let code = match (same, last) {
                (true, Some(code)) => code,
                _ => match self.codes.get(&tuple[..]) {
                    Some(code) => *code,
                    None => {
                        let code = self.tuples.len() as u32;
                        self.codes.insert(tuple.clone().into(), code);
                        self.tuples.push(tuple.clone().into());
                        code
                    }
                },
            };
            last = Some(code);
            out.push(code);
        }
        Cow::Owned(out)
    }
    /// Tuple codes of looked-up column codes; [`UNKNOWN`] when any part or the tuple is unknown.
    pub fn lookup<'a>(&self, keys: &'a [Vec<u32>]) -> Cow<'a, [u32]> {
        if let Some(one) = self.single() {
            return Cow::Borrowed(&keys[one]);
        }
        let rows = keys.first().map_or(0, Vec::len);
        (0..rows)
            .map(|row| {
                let tuple: Vec<u32> = self.columns.iter().map(|c| keys[*c][row]).collect();
                self.codes.get(&tuple[..]).copied().unwrap_or(UNKNOWN)
            })
            .collect()
    }
    /// Number of distinct tuples.
    pub fn distinct(&self, columns: &[KeyColumn]) -> usize {
        self.single().map_or(self.tuples.len(), |one| columns[one].distinct())
    }
    /// Code of a key column by code of the tuple, where the column is a part of it.
    pub fn codes_of(&self, column: usize, columns: &[KeyColumn]) -> Option<Vec<u32>> {
        let part = self.columns.iter().position(|c| *c == column)?;
        Some(match self.single() {
            Some(_) => (0..columns[column].distinct() as u32).collect(),
            None => self.tuples.iter().map(|tuple| tuple[part]).collect(),
        })
    }
    /// The column codes of a tuple.
    pub fn parts(&self, code: u32) -> Vec<(usize, u32)> {
        match self.single() {
            Some(one) => vec![(one, code)],
            None => self.columns.iter().copied().zip(self.tuples[code as usize].iter().copied()).collect(),
        }
    }
    /// Order of two tuples in the table's sort order.
    pub fn compare(&self, columns: &[KeyColumn], a: u32, b: u32) -> std::cmp::Ordering {
        let (a, b) = (self.parts(a), self.parts(b));
        a.iter()
            .zip(&b)
            .map(|((c, x), (_, y))| columns[*c].encoding(*x).cmp(columns[*c].encoding(*y)))
            .find(|o| o.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }
    /// Position of each tuple in the table's sort order, by code.
    pub fn ranks(&self, columns: &[KeyColumn]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.distinct(columns) as u32).collect();
        match self.single() {
            Some(one) => order.sort_unstable_by(|a, b| columns[one].encoding(*a).cmp(columns[one].encoding(*b))),
            None => order.sort_unstable_by(|a, b| self.compare(columns, *a, *b)),
        }
        let mut ranks = vec![0u32; order.len()];
        for (rank, code) in order.into_iter().enumerate() {
            ranks[code as usize] = rank as u32;
        }
        ranks
    }
    /// Checksum of each tuple, by code.
    pub fn hashes(&self, columns: &[KeyColumn]) -> Vec<u64> {
        (0..self.distinct(columns) as u32)
            .map(|code| join(self.parts(code).into_iter().map(|(c, v)| bytes_hash(columns[c].encoding(v)))))
            .collect()
    }
}

pub(crate) fn internal(e: impl std::fmt::Display) -> Error {
    Error::internal(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{DictionaryArray, Int32Array, Int64Array, StringArray};
    use std::sync::Arc;

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn codes_are_stable_and_ranks_follow_the_order_of_values() {
        let mut c = KeyColumn::new(&DataType::Utf8).unwrap();
        let mut codes = vec![];
        c.intern(&texts(&["b", "b", "", "ab"]), &mut codes).unwrap();
        let dictionary = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![1, 0, 1]), texts(&["zz", "b"]));
        c.intern(&(Arc::new(dictionary) as ArrayRef), &mut codes).unwrap();
        assert_eq!(codes, [0, 0, 1, 2, 0, 3, 0]);
        assert_eq!(c.values().unwrap().as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["b", "", "ab", "zz"]);
        assert_eq!(Tuples::new(vec![0]).ranks(&[c]), [2, 0, 1, 3]);
    }

    #[test]
    fn tuples_sort_by_their_columns_and_lookup_adds_nothing() {
        let mut columns = vec![KeyColumn::new(&DataType::Utf8).unwrap(), KeyColumn::new(&DataType::Int64).unwrap()];
        let mut keys = vec![vec![], vec![]];
        columns[0].intern(&texts(&["b", "a", "b", "b"]), &mut keys[0]).unwrap();
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![-5, 7, -7, -5]));
        columns[1].intern(&numbers, &mut keys[1]).unwrap();
        let mut tuples = Tuples::new(vec![0, 1]);
        assert_eq!(*tuples.intern(&keys), [0, 1, 2, 0]);
        assert_eq!(tuples.ranks(&columns), [2, 0, 1]);
        let looked = vec![columns[0].lookup(&texts(&["a", "c"])).unwrap(), columns[1].lookup(&numbers.slice(1, 2)).unwrap()];
        assert_eq!(*tuples.lookup(&looked), [1, UNKNOWN]);
        assert_eq!(columns[0].lookup(&texts(&["a", "a", "c", "b", "b", "a"])).unwrap(), [1, 1, UNKNOWN, 0, 0, 1]);
        assert_eq!(columns[0].lookup(&texts(&[])).unwrap(), [0u32; 0]);
        assert_eq!(tuples.distinct(&columns), 3);
        let h = tuples.hashes(&columns);
        assert!(h[0] != h[1] && h[1] != h[2]);
    }
}
