//! Checks that several messages share: text, lists, numbers, times.
//!
//! Each takes the field's name and gives the value back or says what was expected.

use bytes::Bytes;

use crate::error::{Inside, ParseError};

/// Latest wall time that is accepted, 2299-12-31: what the store's date type can hold.
pub const MAX_UNIX_MS: i64 = 10_413_791_999_999;

/// Text of at most `max` bytes without control characters; empty means "not known".
pub(crate) fn text(field: &str, value: String, max: usize) -> Result<String, ParseError> {
    if value.len() > max {
        let expected = format!("at most {max} bytes of text");
        let got = format!("{} bytes", value.len());
        return Err(ParseError::malformed(field, expected, got));
    }
    if !is_plain(&value) {
        let expected = "text without control characters";
        return Err(ParseError::malformed(field, expected, value));
    }
    Ok(value)
}

/// Whether text has no control characters.
#[inline]
pub(crate) fn is_plain(text: &str) -> bool {
    // Nearly all that comes is ASCII, which takes no decoding.
    is_printable_ascii(text.as_bytes()) || !text.chars().any(char::is_control)
}

#[inline]
pub(crate) fn is_printable_ascii(bytes: &[u8]) -> bool {
    // Without an early end, so that many bytes are looked at in one step.
    bytes
        .iter()
        .fold(true, |all, byte| all & (b' '..=b'~').contains(byte))
}

/// Text of 1 to `max` bytes without control characters.
pub(crate) fn required_text(field: &str, value: String, max: usize) -> Result<String, ParseError> {
    if value.is_empty() {
        let expected = format!("1 to {max} bytes of text");
        return Err(ParseError::malformed(field, expected, "nothing"));
    }
    text(field, value, max)
}

/// A message that must be there.
pub(crate) fn required<T>(field: &str, value: Option<T>) -> Result<T, ParseError> {
    value.ok_or_else(|| ParseError::malformed(field, "a value", "nothing"))
}

/// Exactly `N` bytes.
pub(crate) fn exact_bytes<const N: usize>(
    field: &str,
    value: &[u8],
) -> Result<[u8; N], ParseError> {
    value.try_into().map_err(|_| {
        let got = format!("{} bytes", value.len());
        ParseError::malformed(field, format!("{N} bytes"), got)
    })
}

/// Exactly `N` bytes, or none.
pub(crate) fn optional_bytes<const N: usize>(
    field: &str,
    value: &[u8],
) -> Result<Option<[u8; N]>, ParseError> {
    if value.is_empty() {
        return Ok(None);
    }
    exact_bytes(field, value).map(Some)
}

/// The wire form of optional bytes.
pub(crate) fn bytes_or_empty(value: Option<&[u8]>) -> Bytes {
    Bytes::copy_from_slice(value.unwrap_or_default())
}

/// At most `max` entries, each parsed; an error says which.
pub(crate) fn list<W, P>(
    field: &str,
    values: Vec<W>,
    max: usize,
    mut parse: impl FnMut(W) -> Result<P, ParseError>,
) -> Result<Vec<P>, ParseError> {
    at_most(field, values.len(), max)?;
    let mut parsed = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let value = parse(value).map_err(|e| e.inside(&format!("{field}[{index}]")))?;
        parsed.push(value);
    }
    Ok(parsed)
}

/// At most `max` texts of 1 to `max_bytes`.
pub(crate) fn texts(
    field: &str,
    values: Vec<String>,
    max: usize,
    max_bytes: usize,
) -> Result<Vec<String>, ParseError> {
    list(field, values, max, |value| {
        required_text("", value, max_bytes)
    })
}

/// The number of entries is at most `max`.
pub(crate) fn at_most(field: &str, len: usize, max: usize) -> Result<(), ParseError> {
    if len > max {
        let expected = format!("at most {max} entries");
        return Err(ParseError::malformed(field, expected, len));
    }
    Ok(())
}

/// No two entries have the same key.
pub(crate) fn each_once<'a, T, K: Ord>(
    field: &str,
    values: &'a [T],
    key: impl Fn(&'a T) -> K,
) -> Result<(), ParseError> {
    if values.len() < 2 {
        return Ok(());
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, value) in values.iter().enumerate() {
        if !seen.insert(key(value)) {
            let error = ParseError::malformed("", "each at most once", "a second one");
            return Err(error).inside(&format!("{field}[{index}]"));
        }
    }
    Ok(())
}

/// A number within bounds.
pub(crate) fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Result<T, ParseError> {
    // Written so that NaN, which compares with nothing, is refused.
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(ParseError::malformed(
        field,
        format!("{min} to {max}"),
        value,
    ))
}

/// A count of one or more.
pub(crate) fn positive<T: PartialOrd + From<u8> + std::fmt::Display>(
    field: &str,
    value: T,
) -> Result<T, ParseError> {
    if value < T::from(1) {
        return Err(ParseError::malformed(field, "1 or more", value));
    }
    Ok(value)
}

/// A finite number, zero or more.
pub(crate) fn finite(field: &str, value: f64) -> Result<f64, ParseError> {
    if !value.is_finite() || value < 0.0 {
        return Err(ParseError::malformed(
            field,
            "a finite number, 0 or more",
            value,
        ));
    }
    Ok(value)
}

/// A share, 0 to 1, if it is there.
pub(crate) fn share(field: &str, value: Option<f64>) -> Result<Option<f64>, ParseError> {
    value.map(|v| within(field, v, 0.0, 1.0)).transpose()
}

/// Wall time as a clock says it: any date the store can hold.
pub(crate) fn unix_ms(field: &str, value: i64) -> Result<i64, ParseError> {
    within(field, value, 0, MAX_UNIX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::clipped;

    #[test]
    fn clipped_text_passes_the_check() {
        assert!(text("t", clipped("a\nbéé", 5), 5).is_ok());
    }

    #[test]
    fn nan_is_within_no_bounds() {
        assert!(share("s", Some(f64::NAN)).is_err());
        assert!(finite("s", f64::NAN).is_err());
        assert!(share("s", Some(1.0)).is_ok());
        assert!(share("s", Some(1.000_001)).is_err());
    }

    #[test]
    fn errors_in_lists_say_which_entry() {
        let error = texts("eps", vec!["a".into(), String::new()], 8, 4).unwrap_err();
        assert_eq!(error.field(), "eps[1]");
    }
}
