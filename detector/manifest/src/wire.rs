//! Protobuf's wire format, read from a file field by field. Fields that are not wanted are skipped by a seek.

use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::ManifestError;

/// Maximum memory of a graph without its weights. Models of 100,000 nodes take a third.
pub(crate) const MOST_BYTES: usize = 40 << 20;

/// Longest message of protobuf.
const MOST_FILE_BYTES: u64 = i32::MAX as u64;
/// Number of first bytes that are read to recognise the format.
const HEAD: u64 = 128;

/// The format of a file that is often taken for an ONNX model, with the way out.
fn other_format(head: &[u8]) -> Option<&'static str> {
    let at_4 = head.get(4..8).unwrap_or_default();
    match () {
        () if at_4 == b"ORTM" => Some(
            "in ORT format (ORTM), from which ONNX Runtime records no placement; give the .onnx that it was made from",
        ),
        () if at_4 == b"TFL3" => Some("a LiteRT model (TFL3); give the .onnx of it"),
        () if head.starts_with(b"version https://git-lfs") => {
            Some("a pointer of Git LFS; run `git lfs pull`")
        }
        () if head.starts_with(b"PK\x03\x04") => {
            Some("a ZIP archive, as PyTorch saves (.pt); export the model to ONNX")
        }
        () if head.starts_with(b"\x1f\x8b") => Some("compressed with gzip; unpack it first"),
        () if starts_like_html(head) => {
            Some("a page of HTML, as a failed download leaves it; fetch the model again")
        }
        () if is_path(head) => Some(
            "the text of a link to another file, as a checkout without links leaves it; give that file",
        ),
        () => None,
    }
}

fn starts_like_html(head: &[u8]) -> bool {
    let head = head.trim_ascii_start().to_ascii_lowercase();
    head.starts_with(b"<!doctype html") || head.starts_with(b"<html")
}

/// Whether the bytes that were read are only a relative path.
fn is_path(head: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b'\n';
    head.starts_with(b"../") && head.iter().all(is_plain)
}

/// Memory that a model may still take.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    left: usize,
}

impl MemoryBudget {
    pub(crate) fn new() -> Self {
        Self { left: MOST_BYTES }
    }

    /// # Errors
    /// The model needs more memory than [`MOST_BYTES`].
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), ManifestError> {
        let most_bytes = MOST_BYTES;
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(ManifestError::TooLarge { most_bytes })?;
        Ok(())
    }
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wired {
    Varint(u64),
    Fixed32(u32),
    /// Bytes up to this offset in the file: a text, a message, or packed numbers.
    Until(u64),
    /// A number of 64 bits, which no field of interest has.
    Other,
}

#[derive(Debug)]
pub(crate) struct WireReader<R> {
    input: BufReader<R>,
    at: u64,
    len: u64,
    pub(crate) budget: MemoryBudget,
}

impl<R: Read + Seek> WireReader<R> {
    pub(crate) fn new(mut input: R) -> Result<Self, ManifestError> {
        let len = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        let mut head = Vec::new();
        input.by_ref().take(HEAD).read_to_end(&mut head)?;
        input.seek(SeekFrom::Start(0))?;
        if let Some(what) = other_format(&head) {
            return Err(ManifestError::OtherFormat { what });
        }
        if len > MOST_FILE_BYTES {
            return Err(ManifestError::Over2Gb { bytes: len });
        }
        Ok(Self {
            input: BufReader::new(input),
            at: 0,
            len,
            budget: MemoryBudget::new(),
        })
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn damaged<T>(&self, expected: &'static str) -> Result<T, ManifestError> {
        Err(ManifestError::NotOnnx {
            at: self.at,
            expected,
        })
    }

    /// Returns the next field of the message that ends at `end`; `None` at its end.
    pub(crate) fn field(&mut self, end: u64) -> Result<Option<(u64, Wired)>, ManifestError> {
        if self.at >= end {
            return match self.at == end {
                true => Ok(None),
                false => self.damaged("the end of a message"),
            };
        }
        let key = self.varint()?;
        let wired = match key & 7 {
            0 => Wired::Varint(self.varint()?),
            1 => {
                self.skip(8, end)?;
                Wired::Other
            }
            2 => {
                let len = self.varint()?;
                match self.at.checked_add(len) {
                    Some(until) if until <= end => Wired::Until(until),
                    _ => return self.damaged("a field within its message"),
                }
            }
            5 => {
                let mut bytes = [0; 4];
                self.bytes(&mut bytes)?;
                Wired::Fixed32(u32::from_le_bytes(bytes))
            }
            _ => return self.damaged("a field's key"),
        };
        if key >> 3 == 0 {
            return self.damaged("a field's number");
        }
        Ok(Some((key >> 3, wired)))
    }

    /// Skips what is left of a field.
    pub(crate) fn pass(&mut self, wired: Wired) -> Result<(), ManifestError> {
        match wired {
            Wired::Until(until) => self.skip(self.left(until)?, until),
            _ => Ok(()),
        }
    }

    pub(crate) fn text(&mut self, until: u64) -> Result<String, ManifestError> {
        let bytes = self.vec(until)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn vec(&mut self, until: u64) -> Result<Vec<u8>, ManifestError> {
        let len = usize::try_from(self.left(until)?).unwrap_or(usize::MAX);
        self.budget.spend(len)?;
        let mut bytes = vec![0; len];
        self.bytes(&mut bytes)?;
        Ok(bytes)
    }

    /// Appends one number, or a list of packed numbers.
    pub(crate) fn numbers(&mut self, wired: Wired, to: &mut Vec<i64>) -> Result<(), ManifestError> {
        let (mut next, until) = match wired {
            Wired::Varint(number) => (Some(number), self.at),
            Wired::Until(until) => (None, until),
            _ => return self.damaged("integers"),
        };
        while next.is_some() || self.at < until {
            let number = match next.take() {
                Some(number) => number,
                None => self.varint()?,
            };
            self.budget.spend(size_of::<i64>())?;
            to.push(number.cast_signed());
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, ManifestError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.bytes(&mut byte)?;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        self.damaged("a number of 64 bits")
    }

    fn bytes(&mut self, to: &mut [u8]) -> Result<(), ManifestError> {
        if self.len - self.at < to.len() as u64 {
            self.at = self.len;
            return self.damaged("more bytes");
        }
        self.input.read_exact(to)?;
        self.at += to.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes up to `end`. It fails if a number was read beyond `end`.
    fn left(&self, end: u64) -> Result<u64, ManifestError> {
        match end.checked_sub(self.at) {
            Some(left) => Ok(left),
            None => self.damaged("the end of a message"),
        }
    }

    fn skip(&mut self, bytes: u64, end: u64) -> Result<(), ManifestError> {
        let Ok(relative) = i64::try_from(bytes) else {
            return self.damaged("a shorter field");
        };
        if self.left(end)? < bytes || end > self.len {
            return self.damaged("more bytes");
        }
        self.input.seek_relative(relative)?;
        self.at += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_number_that_goes_beyond_its_message_is_damage() {
        // The message has one byte, so the second byte of the key is beyond its end; eight bytes follow.
        let mut reader = WireReader::new(Cursor::new([0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0])).unwrap();
        let field = reader.field(1);
        assert!(matches!(field, Err(ManifestError::NotOnnx { at: 2, .. })));
    }
}
