//! Decoded text → records and fields, by RFC 4180, each with its physical line.
//!
//! Lines end with LF, CR LF or a lone CR; quotes open only at the start of a field, are doubled inside, and hold line
//! ends. Blank lines are passed over. At most one record and one block are held. Must never lose count of lines, take
//! a line inside quotes for a record, or split a text otherwise when it arrives in other pieces.

use super::decode::{BadByte, BadPlace, TextStream};
use memchr::{memchr, memchr_iter, memchr2, memchr3};
use std::collections::VecDeque;
use std::io;

/// A record is at most this long, its line end not counted.
pub(crate) const RECORD_LIMIT_BYTES: usize = 1 << 20;
/// Blank lines are looked for among lines up to this length.
const BLANK_LIMIT_BYTES: usize = 256;
/// What DOS programs write at the end of a text.
const END_OF_TEXT: &[u8] = b"\x1a";
/// Names and values are told up to this length.
const TOLD_BYTES: usize = 200;

/// One field, as offsets in the buffer, without its quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    start: u32,
    end: u32,
    pub quoted: bool,
    /// Holds doubled quotes.
    doubled: bool,
}

/// A record in the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    start: usize,
    end: usize,
    /// Where it starts, 1 = first.
    pub line: u64,
}

/// A place between records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    /// Offset in the decoded text.
    offset: u64,
    line: u64,
}

/// Why a record is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordFault {
    TooLong {
        /// Where a quote stands open in it.
        quote_line: Option<u64>,
    },
    /// Something stands between a closing quote and the next delimiter.
    TextAfterQuote {
        field: usize,
        value: String,
    },
    /// `stored`: offset in the content.
    Nul {
        stored: u64,
        looks_like_utf16: Option<&'static str>,
    },
    Undecodable {
        stored: u64,
        byte: u8,
        field: usize,
    },
}

pub(crate) enum Step {
    Record(Record),
    Bad { line: u64, fault: RecordFault },
    End,
}

/// Why reading cannot go on.
#[derive(Debug)]
pub(crate) enum Stop {
    Io { line: u64, error: io::Error },
    UnclosedQuote { line: u64, field: usize },
}

pub(crate) struct Records {
    stream: TextStream,
    delimiter: u8,
    buffer: Vec<u8>,
    /// Where the next record starts in the buffer.
    at: usize,
    /// Offset in the decoded text of the buffer's start.
    base: u64,
    /// Line of the next record.
    line: u64,
    ended: bool,
    fields: Vec<Field>,
    bad: VecDeque<BadPlace>,
    /// Offsets in the decoded text between which bytes are not known to be plain ASCII without NUL.
    suspect: std::ops::Range<u64>,
}

/// A record, what is wrong with it, where the next one starts in the buffer, and its lines.
type Scanned = (Record, Option<RecordFault>, usize, u64);

/// What was found at the start of a window.
enum Scan {
    Found {
        length: usize,
        next: usize,
        lines: u64,
        fault: Option<RecordFault>,
    },
    /// The record goes on after the window; the line in it where a quote stands open.
    More {
        open_quote: Option<u64>,
    },
    Unclosed {
        line: u64,
        field: usize,
    },
}

impl Records {
    pub fn new(stream: TextStream, delimiter: u8) -> Records {
        Records {
            stream,
            delimiter,
            buffer: Vec::new(),
            at: 0,
            base: 0,
            line: 1,
            ended: false,
            fields: Vec::new(),
            bad: VecDeque::new(),
            suspect: 0..0,
        }
    }

    pub fn set_delimiter(&mut self, delimiter: u8) {
        self.delimiter = delimiter;
    }

    /// Line of the next record.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Fields of the last record.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of the last record, without its line end.
    pub fn bytes(&self, record: Record) -> &[u8] {
        &self.buffer[record.start..record.end]
    }

    /// A field as it stands between its quotes.
    pub fn raw(&self, field: Field) -> &[u8] {
        &self.buffer[field.start as usize..field.end as usize]
    }

    /// The text of a field; `scratch` holds it where quotes are doubled.
    #[inline]
    pub fn text<'a>(&'a self, field: Field, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let raw = self.raw(field);
        if !field.doubled {
            return raw;
        }
        scratch.clear();
        let mut rest = raw;
        while let Some(at) = memchr(b'"', rest) {
            scratch.extend_from_slice(&rest[..=at]);
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        scratch.extend_from_slice(rest);
        scratch
    }

    /// The next record that is not blank.
    pub fn next(&mut self) -> Result<Step, Stop> {
        loop {
            let (record, fault, next, lines) = match self.scan()? {
                None => return Ok(Step::End),
                Some(found) => found,
            };
            self.at = next;
            self.line += lines;
            if let Some(fault) = fault {
                return Ok(Step::Bad { line: record.line, fault });
            }
            if self.fields.len() == 1 && self.is_blank(record) {
                continue;
            }
            if let Some(fault) = self.bad_byte(record) {
                return Ok(Step::Bad { line: record.line, fault });
            }
            return Ok(Step::Record(record));
        }
    }

    /// Nothing but white space. A line of a file with one column is blank only if it is empty.
    fn is_blank(&self, record: Record) -> bool {
        let bytes = self.bytes(record);
        if bytes.is_empty() {
            return true;
        }
        let at_end = self.ended && self.at >= self.buffer.len();
        bytes == END_OF_TEXT && at_end
    }

    /// True when the only field of the record is white space.
    pub fn is_white(&self, record: Record) -> bool {
        let bytes = self.bytes(record);
        self.fields.len() == 1 && bytes.len() <= BLANK_LIMIT_BYTES && std::str::from_utf8(bytes).is_ok_and(|text| text.trim().is_empty())
    }

    fn scan(&mut self) -> Result<Option<Scanned>, Stop> {
        loop {
            let window = &self.buffer[self.at..];
            if window.is_empty() && self.ended {
                return Ok(None);
            }
            let found = if window.is_empty() {
                Scan::More { open_quote: None }
            } else {
                scan(window, self.at, self.delimiter, self.ended, &mut self.fields)
            };
            let long = window.len() > RECORD_LIMIT_BYTES;
            match found {
                Scan::Found { length, next, lines, fault } if length <= RECORD_LIMIT_BYTES => {
                    let record = self.record(length);
                    return Ok(Some((record, fault, self.at + next, lines)));
                }
                Scan::Found { lines, .. } => {
                    let quote_line = (lines > 1).then_some(self.line);
                    return self.pass_over_long(quote_line).map(Some);
                }
                Scan::More { open_quote } if long => {
                    let quote_line = open_quote.map(|line| self.line + line);
                    return self.pass_over_long(quote_line).map(Some);
                }
                Scan::Unclosed { line, .. } if long => {
                    let quote_line = Some(self.line + line);
                    return self.pass_over_long(quote_line).map(Some);
                }
                Scan::Unclosed { line, field } => return Err(Stop::UnclosedQuote { line: self.line + line, field }),
                Scan::More { .. } => self.refill()?,
            }
        }
    }

    /// Passes over a record that is too long, up to the first line end after the limit, without holding it.
    fn pass_over_long(&mut self, quote_line: Option<u64>) -> Result<Scanned, Stop> {
        let record = self.record(0);
        let within = &self.buffer[self.at..self.at + RECORD_LIMIT_BYTES];
        self.line += count_line_ends(within);
        self.at += RECORD_LIMIT_BYTES;
        // Cut between CR and LF, the LF is part of the line end counted.
        if self.buffer[self.at - 1] == b'\r' && self.buffer.get(self.at) == Some(&b'\n') {
            self.at += 1;
        }
        self.skip_line()?;
        let (line, at) = (self.line, self.at);
        self.line = record.line;
        self.fields.clear();
        Ok((record, Some(RecordFault::TooLong { quote_line }), at, line - record.line))
    }

    /// Passes over the rest of a physical line, whatever it holds. `false`: there is none.
    pub fn skip_line(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        loop {
            let window = &self.buffer[self.at..];
            any |= !window.is_empty();
            match line_end(window, self.ended) {
                Some((_, next)) => {
                    self.at += next;
                    self.line += 1;
                    return Ok(true);
                }
                None if self.ended => {
                    self.line += u64::from(any);
                    self.at = self.buffer.len();
                    return Ok(any);
                }
                None => {
                    // A CR at the end is kept until it is known what follows.
                    let keep = usize::from(window.last() == Some(&b'\r'));
                    self.at = self.buffer.len() - keep;
                    self.refill()?;
                }
            }
        }
    }

    /// The next physical line, up to a limit, without passing over it.
    pub fn peek_line(&mut self, limit: usize) -> Result<&[u8], Stop> {
        loop {
            let window = &self.buffer[self.at..];
            let found = match line_end(window, self.ended) {
                Some((length, _)) => Some(length),
                None if self.ended || window.len() > limit => Some(window.len()),
                None => None,
            };
            if let Some(length) = found {
                return Ok(&self.buffer[self.at..self.at + length.min(limit)]);
            }
            self.refill()?;
        }
    }

    fn record(&self, length: usize) -> Record {
        Record { start: self.at, end: self.at + length, line: self.line }
    }

    /// Bytes of decoded text before the next record, and all that were decoded so far.
    pub fn passed(&self) -> (u64, u64) {
        (self.base + self.at as u64, self.base + self.buffer.len() as u64)
    }

    /// The place of the next record, to come back to.
    pub fn mark(&self) -> Mark {
        Mark { offset: self.base + self.at as u64, line: self.line }
    }

    /// Goes back. `false`: the text there is not held any more.
    pub fn go_back(&mut self, mark: Mark) -> bool {
        let Some(at) = mark.offset.checked_sub(self.base) else { return false };
        self.at = at as usize;
        self.line = mark.line;
        true
    }

    fn refill(&mut self) -> Result<(), Stop> {
        self.buffer.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        let before = self.buffer.len();
        let more = self.stream.fill(&mut self.buffer, &mut self.bad).map_err(|error| Stop::Io { line: self.line, error })?;
        self.ended = !more;
        let new = &self.buffer[before..];
        if !new.is_ascii() || memchr(0, new).is_some() {
            let range = self.base + before as u64..self.base + self.buffer.len() as u64;
            let start = if self.suspect.end > self.base { self.suspect.start } else { range.start };
            self.suspect = start..range.end;
        }
        Ok(())
    }

    /// The first byte of a record that no text may hold.
    fn bad_byte(&mut self, record: Record) -> Option<RecordFault> {
        let (start, end) = (self.base + record.start as u64, self.base + record.end as u64);
        if end <= self.suspect.start || start >= self.suspect.end {
            return None;
        }
        let bytes = &self.buffer[record.start..record.end];
        if self.stream.is_utf8() {
            if let Some(at) = memchr(0, bytes) {
                let stored = self.stream.stored_offset(start + at as u64).unwrap_or_default();
                return Some(RecordFault::Nul { stored, looks_like_utf16: looks_like_utf16(bytes, record.line) });
            }
            let at = std::str::from_utf8(bytes).err()?.valid_up_to();
            let stored = self.stream.stored_offset(start + at as u64).unwrap_or_default();
            return Some(RecordFault::Undecodable { stored, byte: bytes[at], field: self.field_at(record.start + at) });
        }
        while self.bad.front().is_some_and(|place| place.decoded < start) {
            self.bad.pop_front();
        }
        let place = self.bad.front().copied().filter(|place| place.decoded < end)?;
        Some(match place.what {
            BadByte::Nul => RecordFault::Nul { stored: place.stored, looks_like_utf16: None },
            BadByte::Undecodable(byte) => {
                let field = self.field_at((place.decoded - self.base) as usize);
                RecordFault::Undecodable { stored: place.stored, byte, field }
            }
        })
    }

    fn field_at(&self, at: usize) -> usize {
        self.fields.iter().position(|field| at <= field.end as usize).unwrap_or(0)
    }
}

/// Length of the line at the start of the window, and where the next starts. `None`: not known yet, or no line end.
fn line_end(window: &[u8], ended: bool) -> Option<(usize, usize)> {
    let at = memchr2(b'\n', b'\r', window)?;
    match (window[at], window.get(at + 1)) {
        (b'\r', Some(b'\n')) => Some((at, at + 2)),
        (b'\r', None) if !ended => None,
        _ => Some((at, at + 1)),
    }
}

fn count_line_ends(bytes: &[u8]) -> u64 {
    let (mut count, mut rest) = (0, bytes);
    while let Some((_, next)) = line_end(rest, true) {
        count += 1;
        rest = &rest[next..];
    }
    count
}

/// Every second byte of ASCII text in UTF-16 is NUL. Which one says the first line only: later ones start with a half
/// of the line end.
fn looks_like_utf16(bytes: &[u8], line: u64) -> Option<&'static str> {
    let nuls = memchr_iter(0, bytes).count();
    if nuls * 3 < bytes.len() || nuls == bytes.len() {
        return None;
    }
    let even = bytes.iter().step_by(2).filter(|byte| **byte == 0).count();
    match (even == 0, even == nuls) {
        (false, true) if line == 1 => Some("utf-16be"),
        (true, _) | (_, true) => Some("utf-16le"),
        _ => None,
    }
}

#[inline]
fn scan(window: &[u8], at: usize, delimiter: u8, ended: bool, fields: &mut Vec<Field>) -> Scan {
    fields.clear();
    let (length, next) = match memchr3(b'\n', b'\r', b'"', window) {
        None if ended => (window.len(), window.len()),
        None => return Scan::More { open_quote: None },
        Some(end) => match (window[end], window.get(end + 1)) {
            (b'\n', _) => (end, end + 1),
            (b'"', _) => return scan_quoted(window, at, delimiter, ended, fields),
            (_, Some(b'\n')) => (end, end + 2),
            (_, None) if !ended => return Scan::More { open_quote: None },
            _ => (end, end + 1),
        },
    };
    // The buffer is a record and a block at most: offsets fit.
    let mut start = at as u32;
    for end in memchr_iter(delimiter, &window[..length]) {
        let end = (at + end) as u32;
        fields.push(Field { start, end, quoted: false, doubled: false });
        start = end + 1;
    }
    fields.push(Field { start, end: (at + length) as u32, quoted: false, doubled: false });
    Scan::Found { length, next, lines: 1, fault: None }
}

/// What follows the opening quote of a field.
enum Quoted {
    Closed { at: usize, doubled: bool },
    More,
    Unclosed,
}

fn scan_quoted(window: &[u8], at: usize, delimiter: u8, ended: bool, fields: &mut Vec<Field>) -> Scan {
    let push = |fields: &mut Vec<Field>, start: usize, end: usize, quoted, doubled| {
        fields.push(Field { start: (at + start) as u32, end: (at + end) as u32, quoted, doubled });
    };
    let (mut position, mut lines, mut fault) = (0, 0, None);
    loop {
        if window.get(position) == Some(&b'"') {
            let opened = lines;
            let (close, doubled) = match closing_quote(window, position + 1, ended, &mut lines) {
                Quoted::Closed { at, doubled } => (at, doubled),
                Quoted::More => return Scan::More { open_quote: Some(opened) },
                Quoted::Unclosed => return Scan::Unclosed { line: opened, field: fields.len() },
            };
            push(fields, position + 1, close, true, doubled);
            let after = close + 1;
            match window.get(after) {
                Some(byte) if *byte == delimiter => {
                    position = after + 1;
                    continue;
                }
                Some(b'\n' | b'\r') | None => position = after,
                Some(_) => {
                    let end = memchr2(b'\n', b'\r', &window[after..]).map_or(window.len(), |end| after + end);
                    let told = &window[position..end.min(position + TOLD_BYTES)];
                    fault =
                        Some(RecordFault::TextAfterQuote { field: fields.len() - 1, value: String::from_utf8_lossy(told).into_owned() });
                    position = end;
                }
            }
            // At the end of the record.
            return match line_end(&window[position..], ended) {
                Some((_, next)) => Scan::Found { length: position, next: position + next, lines: lines + 1, fault },
                None if ended => Scan::Found { length: window.len(), next: window.len(), lines: lines + 1, fault },
                None => Scan::More { open_quote: None },
            };
        }
        match memchr3(delimiter, b'\n', b'\r', &window[position..]) {
            Some(end) if window[position + end] == delimiter => {
                push(fields, position, position + end, false, false);
                position += end + 1;
            }
            Some(end) => {
                push(fields, position, position + end, false, false);
                return match line_end(&window[position + end..], ended) {
                    Some((_, next)) => Scan::Found { length: position + end, next: position + end + next, lines: lines + 1, fault },
                    None => Scan::More { open_quote: None },
                };
            }
            None if ended => {
                push(fields, position, window.len(), false, false);
                return Scan::Found { length: window.len(), next: window.len(), lines: lines + 1, fault };
            }
            None => return Scan::More { open_quote: None },
        }
    }
}

/// Finds the quote that closes a field; counts the lines inside.
fn closing_quote(window: &[u8], start: usize, ended: bool, lines: &mut u64) -> Quoted {
    let (mut position, mut doubled) = (start, false);
    while let Some(found) = memchr3(b'"', b'\n', b'\r', window.get(position..).unwrap_or_default()) {
        let at = position + found;
        match (window[at], window.get(at + 1)) {
            (b'"', Some(b'"')) => {
                doubled = true;
                position = at + 2;
            }
            (b'"' | b'\r', None) if !ended => return Quoted::More,
            (b'"', _) => return Quoted::Closed { at, doubled },
            (b'\r', Some(b'\n')) => {
                *lines += 1;
                position = at + 2;
            }
            _ => {
                *lines += 1;
                position = at + 1;
            }
        }
    }
    if ended { Quoted::Unclosed } else { Quoted::More }
}

#[cfg(test)]
mod tests;
