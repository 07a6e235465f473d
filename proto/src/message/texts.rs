//! Text and bytes.

use std::marker::PhantomData;

use bytes::Bytes;

use super::{Checked, Kind, numbers::within};
use crate::error::ParseError;
use crate::text::{clipped, is_plain};
use crate::wire::Value;

/// Text of at most `MAX` bytes without control characters; empty means "not known".
pub(crate) struct Text<const MAX: usize>;

impl<const MAX: usize> Kind for Text<MAX> {
    type Wire = String;
    type Parsed = String;

    fn parse(field: &str, value: String) -> Result<String, ParseError> {
        if value.len() > MAX {
            let expected = format!("at most {MAX} bytes of text");
            let got = format!("{} bytes", value.len());
            return Err(ParseError::malformed(field, expected, got));
        }
        if !is_plain(&value) {
            let expected = "text without control characters";
            return Err(ParseError::malformed(field, expected, value));
        }
        Ok(value)
    }

    fn encode(value: &String) -> String {
        value.clone()
    }

    fn fit(value: &mut String) {
        *value = clipped(value, MAX);
    }
}

impl<const MAX: usize> Checked for Text<MAX> {
    type Seen<'a> = &'a [u8];

    #[inline]
    fn see<'a>(seen: &mut &'a [u8], value: Value<'a>) -> Option<()> {
        *seen = value.text(MAX)?;
        Some(())
    }
}

/// Text of 1 to `MAX` bytes without control characters.
pub(crate) struct Name<const MAX: usize>;

impl<const MAX: usize> Kind for Name<MAX> {
    type Wire = String;
    type Parsed = String;

    fn parse(field: &str, value: String) -> Result<String, ParseError> {
        if value.is_empty() {
            let expected = format!("1 to {MAX} bytes of text");
            return Err(ParseError::malformed(field, expected, "nothing"));
        }
        Text::<MAX>::parse(field, value)
    }

    fn encode(value: &String) -> String {
        value.clone()
    }
}

impl<const MAX: usize> Checked for Name<MAX> {
    type Seen<'a> = &'a [u8];

    #[inline]
    fn see<'a>(seen: &mut &'a [u8], value: Value<'a>) -> Option<()> {
        Text::<MAX>::see(seen, value)
    }

    #[inline]
    fn is_there(seen: &&[u8]) -> bool {
        !seen.is_empty()
    }
}

/// `MIN` to `MAX` bytes.
pub(crate) struct Blob<const MIN: usize, const MAX: usize>;

impl<const MIN: usize, const MAX: usize> Kind for Blob<MIN, MAX> {
    type Wire = Bytes;
    type Parsed = Bytes;

    fn parse(field: &str, value: Bytes) -> Result<Bytes, ParseError> {
        within(field, value.len(), MIN, MAX)?;
        Ok(value)
    }

    fn encode(value: &Bytes) -> Bytes {
        value.clone()
    }
}

/// Exactly `N` bytes.
pub(crate) struct Exact<T, const N: usize>(PhantomData<T>);

impl<T: From<[u8; N]> + AsRef<[u8]>, const N: usize> Kind for Exact<T, N> {
    type Wire = Bytes;
    type Parsed = T;

    fn parse(field: &str, value: Bytes) -> Result<T, ParseError> {
        let bytes = <[u8; N]>::try_from(&*value).map_err(|_| {
            let got = format!("{} bytes", value.len());
            ParseError::malformed(field, format!("{N} bytes"), got)
        })?;
        Ok(bytes.into())
    }

    fn encode(value: &T) -> Bytes {
        Bytes::copy_from_slice(value.as_ref())
    }
}

impl<T: From<[u8; N]> + AsRef<[u8]>, const N: usize> Checked for Exact<T, N> {
    type Seen<'a> = Option<[u8; N]>;

    #[inline]
    fn see<'a>(seen: &mut Option<[u8; N]>, value: Value<'a>) -> Option<()> {
        *seen = Some(value.bytes()?.try_into().ok()?);
        Some(())
    }

    #[inline]
    fn is_there(seen: &Option<[u8; N]>) -> bool {
        seen.is_some()
    }
}

/// Exactly `N` bytes, or none.
pub(crate) struct MaybeBytes<T, const N: usize>(PhantomData<T>);

impl<T: From<[u8; N]> + AsRef<[u8]>, const N: usize> Kind for MaybeBytes<T, N> {
    type Wire = Bytes;
    type Parsed = Option<T>;

    fn parse(field: &str, value: Bytes) -> Result<Option<T>, ParseError> {
        if value.is_empty() {
            return Ok(None);
        }
        Exact::<T, N>::parse(field, value).map(Some)
    }

    fn encode(value: &Option<T>) -> Bytes {
        value
            .as_ref()
            .map(Exact::<T, N>::encode)
            .unwrap_or_default()
    }
}

impl<T: From<[u8; N]> + AsRef<[u8]>, const N: usize> Checked for MaybeBytes<T, N> {
    type Seen<'a> = ();

    #[inline]
    fn see<'a>(_seen: &mut (), value: Value<'a>) -> Option<()> {
        let bytes = value.bytes()?;
        (bytes.len() == N || bytes.is_empty()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipped_text_passes_the_check() {
        assert!(Text::<5>::parse("t", clipped("a\nbéé", 5)).is_ok());
    }
}
