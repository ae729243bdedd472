//! The content of a file → blocks of UTF-8, each byte's place in the content known.
//!
//! The encoding is the one of a byte order mark, else the option's, else UTF-8. UTF-8 is passed on as it is, and not
//! checked here. Of other encodings, bytes that stand for nothing are marked. Must never pass a replacement character
//! on without a mark. Blocks do not depend on how the bytes arrive.

use super::bytes::{Bytes, read_full};
use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use memchr::{memchr_iter, memrchr};
use std::collections::VecDeque;
use std::io;
use timelake_model::{Error, Reason, Result};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 256 * 1024;
/// Longest byte order mark looked for.
const MARK_BYTES: usize = 4;

/// A place in decoded text that makes its record bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadPlace {
    /// Offset in the decoded text.
    pub decoded: u64,
    /// Offset in the content as stored.
    pub stored: u64,
    pub what: BadByte,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadByte {
    Nul,
    /// Stands for no character in the encoding.
    Undecodable(u8),
}

/// Decoded text, block by block.
pub(crate) struct TextStream {
    bytes: Bytes,
    /// First bytes, read to find a byte order mark.
    head: Vec<u8>,
    /// `None`: the content is UTF-8.
    decoding: Option<Decoding>,
    mark_length: u64,
    held_error: Option<io::Error>,
    /// Nothing was given yet.
    fresh: bool,
    ended: bool,
}

struct Decoding {
    encoding: &'static Encoding,
    decoder: Decoder,
    /// Stored bytes not decoded yet.
    input: Vec<u8>,
    /// Offset in the content of the first of them.
    stored: u64,
    /// Length of the text so far.
    decoded: u64,
}

impl TextStream {
    pub fn open(mut bytes: Bytes, encoding: Option<&'static Encoding>, shown: &str) -> Result<TextStream> {
        let mut head = vec![0; MARK_BYTES];
        let mut held_error = None;
        let mut filled = 0;
        // Byte by byte, so that what comes before an error is not lost.
        while filled < head.len() {
            match read_full(bytes.as_mut(), &mut head[filled..filled + 1]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) => {
                    held_error = Some(error);
                    break;
                }
            }
        }
        head.truncate(filled);
        refuse_utf32(&head, shown)?;
        let (encoding, mark_length) = match Encoding::for_bom(&head) {
            // No text of another encoding starts with these bytes.
            Some((found, length)) => (found, length),
            None => (encoding.unwrap_or(UTF_8), 0),
        };
        head.drain(..mark_length);
        let decoding = (encoding != UTF_8).then(|| Decoding {
            encoding,
            decoder: encoding.new_decoder_without_bom_handling(),
            input: std::mem::take(&mut head),
            stored: mark_length as u64,
            decoded: 0,
        });
        Ok(TextStream { bytes, head, decoding, mark_length: mark_length as u64, held_error, fresh: true, ended: false })
    }

    /// Where the byte at a decoded offset is stored; `None` where only [`BadPlace`]s know.
    pub fn stored_offset(&self, decoded: u64) -> Option<u64> {
        self.decoding.is_none().then_some(decoded + self.mark_length)
    }

    pub fn is_utf8(&self) -> bool {
        self.decoding.is_none()
    }

    /// Appends the next block. `false`: the text has ended. An error comes after all text before it.
    pub fn fill(&mut self, text: &mut Vec<u8>, bad: &mut VecDeque<BadPlace>) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let before = text.len();
        loop {
            if !self.fresh
                && let Some(error) = self.held_error.take()
            {
                self.ended = true;
                return Err(error);
            }
            self.fresh = false;
            let last = match &mut self.decoding {
                None => self.block(text),
                Some(_) => self.decoded_block(text, bad),
            };
            self.ended = last && self.held_error.is_none();
            if text.len() > before || self.ended {
                return Ok(text.len() > before);
            }
        }
    }

    /// Appends a block as it is; true at the end.
    fn block(&mut self, text: &mut Vec<u8>) -> bool {
        text.append(&mut self.head);
        let start = text.len();
        text.resize(start + BLOCK_BYTES, 0);
        let (filled, last) = fill_block(self.bytes.as_mut(), &mut text[start..], &mut self.held_error);
        text.truncate(start + filled);
        last
    }

    fn decoded_block(&mut self, text: &mut Vec<u8>, bad: &mut VecDeque<BadPlace>) -> bool {
        let Some(decoding) = &mut self.decoding else { return true };
        let start = decoding.input.len();
        decoding.input.resize(start + BLOCK_BYTES, 0);
        let (filled, last) = fill_block(self.bytes.as_mut(), &mut decoding.input[start..], &mut self.held_error);
        decoding.input.truncate(start + filled);
        decoding.decode(last && self.held_error.is_none(), text, bad);
        last
    }
}

/// The first bytes of the content mean UTF-32, which nobody can read.
fn refuse_utf32(first_bytes: &[u8], shown: &str) -> Result<()> {
    if !matches!(first_bytes, [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..]) {
        return Ok(());
    }
    Err(Error::invalid(Reason::UnsupportedFormat, format!("{shown} is UTF-32 text"))
        .hint("convert it to UTF-8 first, for example with iconv -f UTF-32 -t UTF-8")
        .at(|place| place.file = Some(shown.into())))
}

/// Fills a block; the second value is true at the end of the bytes or before an error, which is kept.
fn fill_block(bytes: &mut dyn io::Read, block: &mut [u8], held_error: &mut Option<io::Error>) -> (usize, bool) {
    let mut filled = 0;
    if held_error.is_some() {
        return (0, true);
    }
    while filled < block.len() {
        match bytes.read(&mut block[filled..]) {
            Ok(0) => return (filled, true),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                *held_error = Some(error);
                return (filled, true);
            }
        }
    }
    (filled, false)
}

impl Decoding {
    /// Decodes what is there, but for the start of a character that the next block ends.
    fn decode(&mut self, last: bool, text: &mut Vec<u8>, bad: &mut VecDeque<BadPlace>) {
        let cut = if last { self.input.len() } else { self.cut() };
        let mut read = 0;
        loop {
            let room = self.decoder.max_utf8_buffer_length_without_replacement(cut - read).unwrap_or(BLOCK_BYTES).max(16);
            let start = text.len();
            text.resize(start + room, 0);
            let (result, consumed, written) =
                self.decoder.decode_to_utf8_without_replacement(&self.input[read..cut], &mut text[start..], last);
            text.truncate(start + written);
            self.mark_nuls(&text[start..], self.stored + read as u64, bad);
            self.decoded += written as u64;
            read += consumed;
            match result {
                DecoderResult::InputEmpty => break,
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(length, after) => {
                    let behind = usize::from(length) + usize::from(after);
                    let stored = (self.stored + read as u64).saturating_sub(behind as u64);
                    let byte = read.checked_sub(behind).and_then(|at| self.input.get(at)).copied().unwrap_or_default();
                    bad.push_back(BadPlace { decoded: self.decoded, stored, what: BadByte::Undecodable(byte) });
                    let replacement = char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]).len();
                    text.extend_from_slice("\u{fffd}".as_bytes());
                    self.decoded += replacement as u64;
                }
            }
        }
        self.stored += cut as u64;
        self.input.drain(..cut);
    }

    /// Up to where no character is cut in two.
    fn cut(&self) -> usize {
        let length = self.input.len();
        if self.encoding != UTF_16LE && self.encoding != UTF_16BE {
            // A line feed is no second byte of a character in any encoding.
            return memrchr(b'\n', &self.input).map_or(length, |at| at + 1);
        }
        let even = length & !1;
        let high_byte = if self.encoding == UTF_16LE { even.checked_sub(1) } else { even.checked_sub(2) };
        let starts_pair = high_byte.is_some_and(|at| matches!(self.input[at], 0xd8..=0xdb));
        if starts_pair { even - 2 } else { even }
    }

    fn mark_nuls(&self, decoded: &[u8], stored: u64, bad: &mut VecDeque<BadPlace>) {
        let (mut from, mut stored) = (0, stored);
        for at in memchr_iter(0, decoded) {
            stored += self.stored_length(&decoded[from..at]);
            from = at;
            bad.push_back(BadPlace { decoded: self.decoded + at as u64, stored, what: BadByte::Nul });
        }
    }

    /// Bytes that a decoded text takes in the content.
    fn stored_length(&self, text: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(text);
        if self.encoding == UTF_16LE || self.encoding == UTF_16BE {
            text.encode_utf16().count() as u64 * 2
        } else if self.encoding.is_single_byte() {
            text.chars().count() as u64
        } else {
            self.encoding.encode(&text).0.len() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn decoded(bytes: &[u8], label: Option<&str>) -> (String, Vec<BadPlace>) {
        let encoding = label.map(|label| Encoding::for_label(label.as_bytes()).unwrap());
        let mut stream = TextStream::open(Box::new(Cursor::new(bytes.to_vec())), encoding, "a.csv").unwrap();
        let (mut text, mut bad) = (Vec::new(), VecDeque::new());
        while stream.fill(&mut text, &mut bad).unwrap() {}
        (String::from_utf8(text).unwrap(), bad.into())
    }
    fn utf16(text: &str, big: bool) -> Vec<u8> {
        text.encode_utf16().flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    }

    #[test]
    fn byte_order_marks_win_over_the_option() {
        assert_eq!(decoded(b"\xef\xbb\xbfa\xc2\xb0", Some("windows-1252")).0, "a°");
        assert_eq!(decoded(&[b"\xff\xfe".to_vec(), utf16("Zähler,1", false)].concat(), None).0, "Zähler,1");
        assert_eq!(decoded(&[b"\xfe\xff".to_vec(), utf16("温度,1", true)].concat(), None).0, "温度,1");
        assert_eq!(decoded(&utf16("a😀b", false), Some("utf-16le")).0, "a😀b");
        assert_eq!(decoded(b"20 \xb0C", Some("latin1")).0, "20 °C");
        assert_eq!(decoded(b"\x89\xb7\x93x", Some("shift_jis")).0, "温度");
        assert_eq!(decoded(b"\xef\xbb\xbf", None).0, "");
    }

    #[test]
    fn what_is_no_character_is_marked_with_its_place() {
        let (text, bad) = decoded(b"ab\x81\x20c", Some("shift_jis"));
        assert_eq!(text, "ab\u{fffd} c");
        assert_eq!(bad, [BadPlace { decoded: 2, stored: 2, what: BadByte::Undecodable(0x81) }]);
        let (_, bad) = decoded(&[b"\xff\xfe".to_vec(), utf16("a", false), vec![0x00, 0xdc], utf16("b", false)].concat(), None);
        assert_eq!(bad, [BadPlace { decoded: 1, stored: 4, what: BadByte::Undecodable(0) }]);
        let (_, bad) = decoded(&[b"\xff\xfe".to_vec(), utf16("ä\0", false)].concat(), None);
        assert_eq!(bad, [BadPlace { decoded: 2, stored: 4, what: BadByte::Nul }]);
        // Cut inside a character at the end.
        assert_eq!(decoded(&[b"\xff\xfe".to_vec(), utf16("a", false), vec![b'b']].concat(), None).1.len(), 1);
    }

    #[test]
    fn blocks_do_not_cut_characters() {
        for (label, text) in
            [("utf-16le", "😀ä,1\n".repeat(120_000)), ("gb18030", "温度ß,1\n".repeat(150_000)), ("gb18030", "温".repeat(300_000))]
        {
            let encoding = Encoding::for_label(label.as_bytes()).unwrap();
            let bytes = if label == "utf-16le" { utf16(&text, false) } else { encoding.encode(&text).0.into_owned() };
            let (found, bad) = decoded(&bytes, Some(label));
            assert!(found == text && bad.is_empty(), "{label}");
        }
    }
}
