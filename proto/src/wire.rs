//! The fields of one encoded message, borrowed, and the checks that messages share. `None` always
//! means "not surely sound".

use crate::bounds::{MAX_UNIX_MS, is_plain, is_printable_ascii};

/// A field's value as the wire has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

/// Hands every field of a message to `take`, which passes over numbers that it does not know.
#[inline]
pub(super) fn each_field<'a>(
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
            // Groups: nobody sends them.
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

#[inline]
fn varint(rest: &mut &[u8]) -> Option<u64> {
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

impl<'a> Value<'a> {
    #[inline]
    pub(super) fn u64(self) -> Option<u64> {
        match self {
            Self::Varint(value) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn u32(self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    /// Any number that an i32 can be; negative ones take ten bytes.
    #[inline]
    pub(super) fn i32(self) -> Option<i32> {
        i32::try_from(self.u64()?.cast_signed()).ok()
    }

    #[inline]
    pub(super) fn bool(self) -> Option<bool> {
        match self.u64()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn unix_ms(self) -> Option<()> {
        let value = self.u64()?.cast_signed();
        (0..=MAX_UNIX_MS).contains(&value).then_some(())
    }

    #[inline]
    pub(super) fn fixed64(self) -> Option<u64> {
        match self {
            Self::Fixed64(value) => Some(value),
            _ => None,
        }
    }

    /// Finite, zero or more.
    #[inline]
    pub(super) fn finite(self) -> Option<f64> {
        let value = f64::from_bits(self.fixed64()?);
        (value.is_finite() && value >= 0.0).then_some(value)
    }

    /// 0 to 1.
    #[inline]
    pub(super) fn share(self) -> Option<f64> {
        let value = f64::from_bits(self.fixed64()?);
        (0.0..=1.0).contains(&value).then_some(value)
    }

    #[inline]
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// `len` bytes or none.
    #[inline]
    pub(super) fn hash(self, len: usize) -> Option<()> {
        let bytes = self.bytes()?;
        (bytes.len() == len || bytes.is_empty()).then_some(())
    }

    /// At most `max` bytes of text without control characters.
    #[inline]
    pub(super) fn text(self, max: usize) -> Option<&'a str> {
        let bytes = self.bytes().filter(|bytes| bytes.len() <= max)?;
        let text = std::str::from_utf8(bytes).ok()?;
        is_plain(text).then_some(text)
    }

    /// That [`Self::text`] would take it.
    #[inline]
    pub(super) fn is_text(self, max: usize) -> Option<()> {
        let bytes = self.bytes().filter(|bytes| bytes.len() <= max)?;
        if is_printable_ascii(bytes) {
            return Some(());
        }
        self.text(max).map(|_| ())
    }

    /// As [`Self::text`], and not empty.
    #[inline]
    pub(super) fn name(self, max: usize) -> Option<&'a str> {
        self.text(max).filter(|text| !text.is_empty())
    }

    /// Each number of a repeated one, packed or not.
    pub(super) fn each_number(self, mut take: impl FnMut(u64) -> Option<()>) -> Option<()> {
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

/// An enum's value that this version knows; `None` for UNSPECIFIED too.
macro_rules! known {
    ($name:ty, $value:expr) => {
        <$name>::parse("", $value).ok()
    };
}
pub(super) use known;

/// A message that may be there once: a second one would be merged into the first, which is left to
/// the full parser.
#[derive(Debug)]
pub(super) struct Once<T>(Option<T>);

impl<T> Once<T> {
    pub(super) const NEVER: Self = Self(None);

    #[inline]
    pub(super) fn set(&mut self, value: Option<T>) -> Option<()> {
        match (&self.0, value) {
            (None, Some(value)) => {
                self.0 = Some(value);
                Some(())
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get(self) -> Option<T> {
        self.0
    }
}

/// A few things, each at most once. More than `N` is for the full parser, whose sets take any
/// number in less than the square of it.
#[derive(Debug)]
pub(super) struct Few<T, const N: usize> {
    entries: [T; N],
    len: usize,
}

impl<T: Copy + PartialEq, const N: usize> Few<T, N> {
    #[inline]
    pub(super) fn new(filler: T) -> Self {
        Self {
            entries: [filler; N],
            len: 0,
        }
    }

    /// Adds one; `None` if it is there already, or there is no room.
    #[inline]
    pub(super) fn add(&mut self, entry: T) -> Option<()> {
        if self.entries().contains(&entry) {
            return None;
        }
        *self.entries.get_mut(self.len)? = entry;
        self.len += 1;
        Some(())
    }

    /// Adds one unless it is there; `None` if there is no room.
    #[inline]
    pub(super) fn note(&mut self, entry: T) -> Option<()> {
        if self.entries().contains(&entry) {
            return Some(());
        }
        self.add(entry)
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline]
    pub(super) fn entries(&self) -> &[T] {
        &self.entries[..self.len]
    }
}
