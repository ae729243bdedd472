//! The rows of one unit in memory: times and key codes per row, payload columns in pieces as they were
//! read, and where each row came from.

use super::keys::{KeyColumn, Tuples, internal};
use crate::hash::cells_equal;
use arrow::array::{Array, ArrayData, ArrayRef, MutableArrayData, NullBufferBuilder, UInt32Array, make_array};
use arrow::buffer::{BooleanBuffer, MutableBuffer};
use arrow::compute::{concat, interleave, take};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use timelake_model::inventory::TableState;
use timelake_model::{Error, Result, TimestampUs};
use timelake_source::{ConvertedColumn, SourceBatch};

/// Where a piece's rows came from.
struct Origin {
    /// Index of the source file.
    source: u32,
    places: Places,
    /// Index of the piece's first row in the unit.
    start: u32,
}

/// The places of a piece's rows in their source file.
pub enum Places {
    /// Data rows, without a number per row.
    Counted {
        /// 0-based data row of the batch's first row.
        first_row: u64,
        /// Rows of the batch that were taken; `None` = all.
        taken: Option<BooleanBuffer>,
    },
    /// One by one: lines, and rows that were landed.
    Listed(Vec<u64>),
}

/// A column of the table that is no key and not the time.
pub struct Payload {
    /// Index into the table's columns.
    pub column: usize,
    /// Fixed-width values, while they are gathered: copied at once, so that a reader's arrays are free for the next batch.
    growing: Option<Growing>,
    /// Other values in pieces, as read. After gathering, all.
    pieces: Vec<ArrayRef>,
    /// Row of the unit at which each piece starts.
    starts: Vec<u32>,
    /// Rows to make room for.
    room: usize,
}

/// Values of one fixed width.
struct Growing {
    data_type: DataType,
    width: usize,
    bytes: MutableBuffer,
    nulls: NullBufferBuilder,
    rows: usize,
}

impl Growing {
    fn push(&mut self, array: &ArrayRef) -> Result<()> {
        let data = array.to_data();
        let bytes = match data.buffers() {
            [values] if *data.data_type() == self.data_type => {
                values.get(data.offset() * self.width..(data.offset() + data.len()) * self.width)
            }
            _ => None,
        };
        let bytes = bytes.ok_or_else(|| Error::internal(format!("a piece of {} among {}", data.data_type(), self.data_type)))?;
        self.bytes.extend_from_slice(bytes);
        match array.nulls() {
            Some(nulls) => self.nulls.append_buffer(nulls),
            None => self.nulls.append_n_non_nulls(array.len()),
        }
        self.rows += array.len();
        Ok(())
    }

    fn finish(mut self) -> Result<ArrayRef> {
        let data = ArrayData::builder(self.data_type).len(self.rows).add_buffer(self.bytes.into()).nulls(self.nulls.finish());
        Ok(make_array(data.build().map_err(internal)?))
    }
}

/// Estimates are estimates: room is made for no more rows than this at first.
const MAX_ROOM_ROWS: u64 = 1 << 25;
/// Room is made for this part more rows than estimated: one row too many, and all columns move to twice the room.
const SPARE_ROOM: usize = 16;

/// Pieces below this are copied to their exact size (a reader's arrays have room for a whole batch) and joined
/// with their neighbours: a source of many tiny row groups must not take a batch's memory for each.
const SMALL_PIECE_ROWS: usize = 1 << 15;
/// Pieces that are joined have at most this together: long texts would be copied for nothing.
const JOINED_BYTES: usize = 1 << 20;

/// A reader's array of texts grows by doubling: up to half of it may be empty, for as long as it is kept.
fn is_roomy(array: &ArrayRef) -> bool {
    array.to_data().get_slice_memory_size().is_ok_and(|bytes| array.get_array_memory_size() > bytes / 4 * 5)
}

impl Payload {
    fn new(column: usize) -> Self {
        Payload { column, growing: None, pieces: vec![], starts: vec![], room: 0 }
    }

    /// Makes room for as many rows more.
    fn expect_rows(&mut self, rows: usize) {
        match &mut self.growing {
            Some(growing) => growing.bytes.reserve(rows * growing.width),
            None => self.room = rows,
        }
    }

    /// Appends rows; `start` is the unit's number of rows before them.
    pub fn push(&mut self, array: ArrayRef, start: usize) -> Result<()> {
        if let Some(width) = array.data_type().primitive_width() {
            let room = self.room.max(array.len());
            let growing = self.growing.get_or_insert_with(|| Growing {
                data_type: array.data_type().clone(),
                width,
                bytes: MutableBuffer::with_capacity(room * width),
                nulls: NullBufferBuilder::new(room),
                rows: 0,
            });
            return growing.push(&array);
        }
        let exact = array.len() < SMALL_PIECE_ROWS || is_roomy(&array);
        self.pieces.push(if exact { copied(&array) } else { array });
        self.starts.push(start as u32);
        // Joined while the last is at least half as long as the one before: each row is copied a few times in all.
        while let [.., before, last] = &self.pieces[..] {
            let bytes = before.get_array_memory_size() + last.get_array_memory_size();
            if before.len() + last.len() > SMALL_PIECE_ROWS || bytes > JOINED_BYTES || last.len() * 2 < before.len() {
                break;
            }
            let joined = arrow::compute::concat(&[before.as_ref(), last.as_ref()]).map_err(internal)?;
            self.pieces.truncate(self.pieces.len() - 2);
            self.pieces.push(joined);
            self.starts.pop();
        }
        Ok(())
    }

    /// All rows are there.
    fn seal(&mut self) -> Result<()> {
        if let Some(growing) = self.growing.take() {
            (self.pieces, self.starts) = (vec![growing.finish()?], vec![0]);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let growing = self.growing.as_ref().map_or(0, |growing| growing.bytes.len() + growing.rows / 8);
        growing + self.pieces.iter().map(|piece| piece.get_array_memory_size()).sum::<usize>()
    }

    fn cell(&self, row: u32) -> (&ArrayRef, usize) {
        let piece = self.starts.partition_point(|start| *start <= row) - 1;
        (&self.pieces[piece], (row - self.starts[piece]) as usize)
    }
}

/// A payload column whose rows are gathered by number.
pub enum Column {
    /// Fixed-width values in one piece: gathering is fastest.
    Whole(ArrayRef),
    /// Texts and bytes as they were read: a copy of all of them would double the memory of a unit of wide rows.
    Pieces { pieces: Vec<ArrayRef>, starts: Vec<u32> },
}

impl Column {
    pub fn new(mut payload: Payload) -> Result<Column> {
        payload.seal()?;
        let Payload { mut pieces, starts, .. } = payload;
        if pieces.len() == 1 {
            return Ok(Column::Whole(pieces.remove(0)));
        }
        if pieces.first().is_none_or(|piece| *piece.data_type() != DataType::Boolean) {
            return Ok(Column::Pieces { pieces, starts });
        }
        let all: Vec<&dyn Array> = pieces.iter().map(|a| a.as_ref()).collect();
        concat(&all).map(Column::Whole).map_err(internal)
    }

    /// All values in one array, where they are needed so.
    pub fn whole(&self) -> Result<ArrayRef> {
        match self {
            Column::Whole(array) => Ok(array.clone()),
            Column::Pieces { pieces, .. } => concat(&pieces.iter().map(|a| a.as_ref()).collect::<Vec<_>>()).map_err(internal),
        }
    }

    pub fn take(&self, rows: &[u32]) -> Result<ArrayRef> {
        match self {
            Column::Whole(array) => take(array, &UInt32Array::from(rows.to_vec()), None).map_err(internal),
            Column::Pieces { pieces, starts } => {
                let arrays: Vec<&dyn Array> = pieces.iter().map(|a| a.as_ref()).collect();
                let place = |row: &u32| {
                    let piece = starts.partition_point(|start| start <= row) - 1;
                    (piece, (row - starts[piece]) as usize)
                };
                interleave(&arrays, &rows.iter().map(place).collect::<Vec<_>>()).map_err(internal)
            }
        }
    }
}

fn copied(array: &ArrayRef) -> ArrayRef {
    let data = array.to_data();
    let mut exact = MutableArrayData::new(vec![&data], false, array.len());
    exact.extend(0, 0, array.len());
    make_array(exact.freeze())
}

pub struct UnitRows {
    pub times: Vec<i64>,
    /// Index into the table's columns, for each key column.
    pub key_columns: Vec<usize>,
    pub keys: Vec<KeyColumn>,
    /// Per key column, the code of each row.
    pub codes: Vec<Vec<u32>>,
    pub payload: Vec<Payload>,
    origins: Vec<Origin>,
    /// Keeps the place of every row, as landing needs it.
    pub lists_places: bool,
    /// Series key, and identity (dedup key without the time), as tuples of key columns.
    pub series: Tuples,
    pub identity: Tuples,
    /// The identity is the series: one order serves both.
    pub same_key: bool,
    /// Rows have an identity: of rows with the same one, one stays.
    pub unique: bool,
}

/// Which columns are keys, and how series and identity are made of them. The same everywhere a row's
/// identity is hashed.
pub struct KeyLayout {
    /// Index into the table's columns, for each key column.
    pub key_columns: Vec<usize>,
    /// Positions in `key_columns`.
    pub series: Vec<usize>,
    pub identity: Vec<usize>,
    /// Identity and series are the same columns: one order serves both.
    pub same_key: bool,
    /// Rows have an identity. Without one their keys are hashed by series, and may repeat.
    pub unique: bool,
}

impl KeyLayout {
    pub fn new(table: &TableState) -> Result<Self> {
        let index =
            |name: &String| table.columns.iter().position(|c| c.name == *name).ok_or_else(|| Error::internal(format!("no column {name}")));
        let contract = &table.contract;
        let dedup: Vec<String> = match &contract.dedup_key {
            Some(key) => key.iter().filter(|c| **c != contract.time_column).cloned().collect(),
            None => contract.series_key.clone(),
        };
        let mut key_columns = Vec::new();
        for name in contract.series_key.iter().chain(&dedup) {
            let i = index(name)?;
            if !key_columns.contains(&i) {
                key_columns.push(i);
            }
        }
        let positions = |names: &[String]| -> Result<Vec<usize>> {
            names.iter().map(|n| index(n).map(|i| key_columns.iter().position(|k| *k == i).unwrap_or_default())).collect()
        };
        let (series, identity) = (positions(&contract.series_key)?, positions(&dedup)?);
        let sorted = |v: &[usize]| {
            let mut v = v.to_vec();
            v.sort_unstable();
            v
        };
        let same_key = sorted(&series) == sorted(&identity);
        // Same columns: the same order of columns too, so that one code serves both.
        let identity = if same_key { series.clone() } else { identity };
        Ok(KeyLayout { key_columns, series, identity, same_key, unique: contract.dedup_key.is_some() })
    }
}

impl UnitRows {
    pub fn new(table: &TableState, plain_types: &[arrow::datatypes::DataType]) -> Result<Self> {
        let KeyLayout { key_columns, series, identity, same_key, unique } = KeyLayout::new(table)?;
        let payload = (0..table.columns.len())
            .filter(|i| table.columns[*i].name != table.contract.time_column && !key_columns.contains(i))
            .map(Payload::new)
            .collect();
        Ok(UnitRows {
            times: vec![],
            keys: key_columns.iter().map(|c| KeyColumn::new(&plain_types[*c])).collect::<Result<_>>()?,
            codes: vec![vec![]; key_columns.len()],
            payload,
            origins: vec![],
            lists_places: false,
            identity: Tuples::new(identity),
            series: Tuples::new(series),
            same_key,
            unique,
            key_columns,
        })
    }

    /// The tuples that rows are ordered by: the series key.
    pub fn ordering(&self) -> &Tuples {
        if self.same_key { &self.identity } else { &self.series }
    }

    /// Makes room for as many rows in all, by an estimate.
    pub fn expect_rows(&mut self, estimated: u64) {
        let estimated = estimated.min(MAX_ROOM_ROWS) as usize;
        let rows = (estimated + estimated / SPARE_ROOM).saturating_sub(self.len());
        self.times.reserve_exact(rows);
        self.codes.iter_mut().for_each(|codes| codes.reserve_exact(rows));
        self.payload.iter_mut().for_each(|payload| payload.expect_rows(rows));
    }

    /// To be called when all rows are gathered, before cells are looked at.
    pub fn seal(&mut self) -> Result<()> {
        self.payload.iter_mut().try_for_each(Payload::seal)
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Memory of the rows.
    pub fn bytes(&self) -> usize {
        let per_row = 8 + 4 * self.codes.len() + if self.lists_places { 8 } else { 0 };
        let payload: usize = self.payload.iter().map(Payload::bytes).sum();
        let keys: usize = self.keys.iter().map(KeyColumn::bytes).sum();
        self.times.len() * per_row + payload + keys
    }

    /// Key columns of a batch, for the rows of `keep`, each with its index among the table's columns.
    pub fn key_arrays(&self, batch: &mut SourceBatch, keep: Option<&BooleanBuffer>) -> Result<Vec<(usize, ConvertedColumn)>> {
        self.key_columns.iter().map(|c| Ok((*c, batch.column(*c, keep)?))).collect()
    }

    /// The other columns but the time, likewise.
    pub fn payload_arrays(&self, batch: &mut SourceBatch, keep: Option<&BooleanBuffer>) -> Result<Vec<(usize, ConvertedColumn)>> {
        self.payload.iter().map(|p| Ok((p.column, batch.column(p.column, keep)?))).collect()
    }

    /// Starts a piece; its rows are appended to `times`, `codes` and `payload` by the caller.
    pub fn begin_piece(&mut self, source: u32, places: Places) {
        self.origins.push(Origin { source, places, start: self.times.len() as u32 });
    }

    /// The places of all rows, in the order they were read. Empty unless they are listed.
    pub fn listed_places(&self) -> Vec<u64> {
        let listed = |origin: &Origin| match &origin.places {
            Places::Listed(numbers) => numbers.clone(),
            Places::Counted { .. } => vec![],
        };
        self.origins.iter().flat_map(listed).collect()
    }

    /// Source index and place (1-based) of a row of the unit.
    pub fn place(&self, row: u32) -> (u32, u64) {
        let piece = self.origins.partition_point(|o| o.start <= row) - 1;
        let origin = &self.origins[piece];
        let offset = (row - origin.start) as usize;
        let number = match &origin.places {
            Places::Listed(numbers) => numbers[offset],
            Places::Counted { first_row, taken } => {
                let in_batch = taken.as_ref().map_or(offset, |mask| mask.set_indices().nth(offset).unwrap_or(offset));
                first_row + in_batch as u64 + 1
            }
        };
        (origin.source, number)
    }

    pub fn payload_cell(&self, payload: usize, row: u32) -> (&ArrayRef, usize) {
        self.payload[payload].cell(row)
    }

    /// Do two rows of the same identity and time hold the same values?
    pub fn rows_equal(&self, a: u32, b: u32) -> bool {
        let same_cell = |p: &Payload| {
            let ((left, i), (right, j)) = (p.cell(a), p.cell(b));
            cells_equal(left, i, right, j)
        };
        self.codes.iter().all(|c| c[a as usize] == c[b as usize]) && self.payload.iter().all(same_cell)
    }

    /// `x @ 2024-05-01T00:01:00Z`: the identity of a row in words.
    pub fn key_text(&self, row: u32, identity: u32) -> Result<String> {
        let mut parts = Vec::new();
        for (column, code) in self.identity.parts(identity) {
            let values = self.keys[column].values()?;
            parts.push(cell_text(&values, code as usize)?);
        }
        Ok(format!("{} @ {}", parts.join(", "), TimestampUs(self.times[row as usize]).short()))
    }
}

/// A cell as text, for messages.
pub fn cell_text(array: &ArrayRef, row: usize) -> Result<String> {
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(array, &options).map_err(internal)?;
    Ok(formatter.value(row).to_string())
}

/// The rows of `outer` (over `len` rows) that `inner` (over the set rows of `outer`) keeps.
pub fn compose(outer: Option<&BooleanBuffer>, len: usize, inner: &BooleanBuffer) -> BooleanBuffer {
    match outer {
        None => inner.clone(),
        Some(outer) => {
            let mut bits = arrow::array::BooleanBufferBuilder::new(len);
            bits.append_n(len, false);
            for (i, row) in outer.set_indices().enumerate() {
                if inner.value(i) {
                    bits.set_bit(row, true);
                }
            }
            bits.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_pieces_take_the_memory_of_their_rows() {
        use arrow::array::Int64Array;
        let (mut texts, mut numbers) = (Payload::new(0), Payload::new(1));
        for row in 0..20_000i64 {
            let mut builder = Int64Array::builder(1 << 16);
            builder.append_option((row % 7 > 0).then_some(row));
            numbers.push(std::sync::Arc::new(builder.finish()), row as usize).unwrap();
            let mut builder = arrow::array::StringBuilder::with_capacity(1 << 16, 1 << 16);
            builder.append_value(row.to_string());
            texts.push(std::sync::Arc::new(builder.finish()), row as usize).unwrap();
        }
        for payload in [&mut texts, &mut numbers] {
            assert!(payload.bytes() < 20_000 * 10 * 2 + 10_000, "{} bytes for 20,000 cells", payload.bytes());
            payload.seal().unwrap();
            for row in [1u32, 9_999, 19_998] {
                let (piece, at) = payload.cell(row);
                assert_eq!(cell_text(piece, at).unwrap(), row.to_string());
            }
        }
        let (piece, at) = numbers.cell(14);
        assert!(piece.is_null(at));
    }

    #[test]
    fn long_texts_take_their_own_memory_and_are_not_copied_together() {
        let rows = SMALL_PIECE_ROWS + 1;
        let piece = |rows: usize, letters: usize| -> ArrayRef {
            // As a reader that doubles leaves it.
            let mut builder = arrow::array::StringBuilder::with_capacity(2 * rows, 2 * rows * letters);
            (0..rows).for_each(|_| builder.append_value("x".repeat(letters)));
            std::sync::Arc::new(builder.finish())
        };
        let mut roomy = Payload::new(0);
        roomy.push(piece(rows, 100), 0).unwrap();
        assert!(roomy.bytes() < rows * 110, "{} bytes for {rows} texts of 100", roomy.bytes());
        let mut long = Payload::new(0);
        (0..4).for_each(|i| long.push(piece(1_000, 1_000), i * 1_000).unwrap());
        assert_eq!(long.pieces.len(), 4);
        let (piece, at) = long.cell(3_999);
        assert_eq!(cell_text(piece, at).unwrap().len(), 1_000);
    }

    #[test]
    fn room_is_made_before_and_again_when_more_is_known() {
        use arrow::array::Int64Array;
        let mut payload = Payload::new(0);
        payload.expect_rows(1_000);
        payload.push(std::sync::Arc::new(Int64Array::from(vec![1; 1_000])), 0).unwrap();
        let room = |payload: &Payload| payload.growing.as_ref().map_or(0, |growing| growing.bytes.capacity() / 8);
        assert!((1_000..2_000).contains(&room(&payload)), "{}", room(&payload));
        payload.expect_rows(5_000);
        assert!((6_000..13_000).contains(&room(&payload)), "{}", room(&payload));
    }

    #[test]
    fn masks_compose() {
        let outer = BooleanBuffer::from(vec![true, false, true, true]);
        let inner = BooleanBuffer::from(vec![false, true, true]);
        assert_eq!(compose(Some(&outer), 4, &inner), BooleanBuffer::from(vec![false, false, true, true]));
        assert_eq!(compose(None, 3, &inner), inner);
    }
}
