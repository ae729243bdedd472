//! A pinned file → its content, decompressed. Compression is found by the first bytes, not by the name.
//!
//! Gzip of several members and zstd of several frames are one content; zero bytes after the last gzip member are
//! padding. Must never end a damaged or cut file as if it were whole: that is an error after the bytes before it.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Enough for every magic.
const MAGIC_BYTES: usize = 4;
const COMPRESSED_BUFFER: usize = 128 * 1024;

/// Bytes of any source.
pub(crate) type Bytes = Box<dyn Read + Send>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub fn of(first_bytes: &[u8]) -> Compression {
        if first_bytes.starts_with(&GZIP_MAGIC) {
            Compression::Gzip
        } else if first_bytes.starts_with(&ZSTD_MAGIC) || is_skippable_frame(first_bytes) {
            Compression::Zstd
        } else {
            Compression::None
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// Frames of user data, which may stand first (pzstd writes one).
fn is_skippable_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The content of a file.
pub(crate) fn decompressed(mut raw: Bytes) -> io::Result<(Bytes, Compression)> {
    let mut head = [0; MAGIC_BYTES];
    let filled = read_full(&mut raw, &mut head)?;
    let compression = Compression::of(&head[..filled]);
    let whole = Cursor::new(head[..filled].to_vec()).chain(raw);
    let content: Bytes = match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => {
            let buffered: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(COMPRESSED_BUFFER, whole));
            Box::new(Gzip { member: Some(GzDecoder::new(buffered)) })
        }
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(whole)?),
    };
    Ok((content, compression))
}

/// Reads until the buffer is full or the input ends. An error after some bytes comes at the next call.
pub(crate) fn read_full(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// All members of a gzip file, one after the other.
struct Gzip {
    /// `None`: the end was reached.
    member: Option<GzDecoder<Box<dyn BufRead + Send>>>,
}

impl Read for Gzip {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            // The member ended and its checksum was right.
            let Some(member) = self.member.take() else { return Ok(0) };
            let mut rest = member.into_inner();
            if rest.fill_buf()?.first() == Some(&GZIP_MAGIC[0]) {
                self.member = Some(GzDecoder::new(rest));
                continue;
            }
            only_padding(rest.as_mut())?;
        }
    }
}

fn only_padding(rest: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let bytes = rest.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes follow the end of the gzip data"));
        }
        let length = bytes.len();
        rest.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }
    fn content(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(Box::new(Cursor::new(bytes)))?.0.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn members_frames_and_padding_are_one_content() {
        let (one, two) = (b"Time,Tag\n".to_vec(), b"1,a\n".to_vec());
        let both = [one.clone(), two.clone()].concat();
        assert_eq!(content(both.clone()).unwrap(), both);
        assert_eq!(content([gzip(&one), gzip(b""), gzip(&two)].concat()).unwrap(), both);
        assert_eq!(content([gzip(&both), vec![0; 1_000]].concat()).unwrap(), both);
        let frames = [zstd::encode_all(&one[..], 3).unwrap(), zstd::encode_all(&two[..], 3).unwrap()].concat();
        assert_eq!(content(frames.clone()).unwrap(), both);
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &frames].concat();
        assert_eq!(content(skippable).unwrap(), both);
        assert_eq!(content(vec![]).unwrap(), b"");
        assert_eq!(content(vec![0x1f]).unwrap(), [0x1f]);
    }

    #[test]
    fn cut_damaged_and_followed_by_garbage_are_errors() {
        let whole = gzip(&b"0123456789".repeat(1_000));
        for cut in [2, 9, 12, whole.len() / 2, whole.len() - 1] {
            assert!(content(whole[..cut].to_vec()).is_err(), "{cut}");
        }
        let mut wrong_sum = whole.clone();
        let at = wrong_sum.len() - 6;
        wrong_sum[at] ^= 1;
        assert!(content(wrong_sum).is_err());
        assert!(content([whole.clone(), b"garbage".to_vec()].concat()).is_err());
        assert!(content([whole.clone(), vec![0, 0, 1]].concat()).is_err());
        assert!(content([whole, vec![0x1f, 1]].concat()).is_err());
        let frame = zstd::encode_all(&b"0123456789".repeat(1_000)[..], 3).unwrap();
        assert!(content(frame[..frame.len() - 1].to_vec()).is_err());
        assert!(content([frame, b"garbage".to_vec()].concat()).is_err());
    }
}
