//! Fields of one encoded message, borrowed, without a schema. Other readers of protocol buffers use this module too.
//! `None` means "not surely valid": the walker leaves rare forms (groups, booleans above 1) to the full parser.

use crate::text::{is_plain, is_printable_ascii};

/// A field's value as the wire has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Whole numbers, booleans and enums.
    Varint(u64),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// Four bytes; no field of ours has them.
    Fixed32,
    /// A text, bytes, a message or packed numbers.
    Bytes(&'a [u8]),
}

/// Passes every field of a message to `take`, which must accept unknown field numbers.
#[inline]
pub fn each_field<'a>(
    mut rest: &'a [u8],
    mut take: impl FnMut(u32, Value<'a>) -> Option<()>,
) -> Option<()> {
    while let Some((&first, after)) = rest.split_first() {
        // Nearly all keys take one byte.
        let key = if first < 0x80 {
            rest = after;
            u64::from(first)
        } else {
            long_varint(&mut rest)?
        };
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut rest)?),
            1 => {
                let (bytes, after) = rest.split_first_chunk()?;
                rest = after;
                Value::Fixed64(u64::from_le_bytes(*bytes))
            }
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                let (bytes, after) = rest.split_at_checked(len)?;
                rest = after;
                Value::Bytes(bytes)
            }
            5 => {
                rest = rest.get(4..)?;
                Value::Fixed32
            }
            _ => return None,
        };
        // A key is a u32 on the wire.
        if key > u64::from(u32::MAX) {
            return None;
        }
        take(number, value)?;
    }
    Some(())
}

/// Takes a number from the front of `rest`; `None` if it is torn or has more than 64 bits.
#[inline]
pub fn varint(rest: &mut &[u8]) -> Option<u64> {
    let (&first, after) = rest.split_first()?;
    if first < 0x80 {
        *rest = after;
        return Some(u64::from(first));
    }
    long_varint(rest)
}

fn long_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, &byte) in rest.iter().enumerate().take(10) {
        // The tenth byte holds one bit.
        if at == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

/// Appends a number in as few bytes as it needs.
pub fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

impl<'a> Value<'a> {
    #[inline]
    pub(crate) fn u64(self) -> Option<u64> {
        match self {
            Self::Varint(value) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn u32(self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    #[inline]
    pub(crate) fn i64(self) -> Option<i64> {
        self.u64().map(u64::cast_signed)
    }

    /// Negative numbers take ten bytes.
    #[inline]
    pub(crate) fn i32(self) -> Option<i32> {
        i32::try_from(self.i64()?).ok()
    }

    #[inline]
    pub(crate) fn bool(self) -> Option<bool> {
        match self.u64()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn fixed64(self) -> Option<u64> {
        match self {
            Self::Fixed64(value) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn f64(self) -> Option<f64> {
        self.fixed64().map(f64::from_bits)
    }

    #[inline]
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// At most `max` bytes of UTF-8 without control characters.
    #[inline]
    pub(crate) fn text(self, max: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes().filter(|bytes| bytes.len() <= max)?;
        let is_text = is_printable_ascii(bytes) || is_plain(std::str::from_utf8(bytes).ok()?);
        is_text.then_some(bytes)
    }

    /// Passes each number of a repeated field to `take`, packed or not.
    #[inline]
    pub fn each_number(self, mut take: impl FnMut(u64) -> Option<()>) -> Option<()> {
        match self {
            Self::Varint(value) => take(value),
            Self::Bytes(mut rest) => {
                while !rest.is_empty() {
                    take(varint(&mut rest)?)?;
                }
                Some(())
            }
            Self::Fixed64(_) | Self::Fixed32 => None,
        }
    }
}
