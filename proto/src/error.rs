//! The refusal of a message: the field, the expectation, the value.
//!
//! A parser names its own field. Each enclosing message adds its own field's name in front, so the finished path reads
//! `series[3].stratum.shape_key`. The sender's text appears only as a short, escaped excerpt, because errors go into
//! logs, metrics and answers.

use std::{borrow::Cow, fmt};

use crate::{outcome::Outcome, text::clipped};

/// Longest excerpt of a sender's text in an error, in characters before escaping.
const EXCERPT_CHARS: usize = 32;
/// Longest text of an error on the wire: `ReportResult.detail`.
pub const MAX_DETAIL_BYTES: usize = 256;

/// One refused field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    field: String,
    outcome: Outcome,
    expected: Cow<'static, str>,
    /// Bounded and escaped.
    got: String,
}

impl ParseError {
    /// A field that is missing, out of bounds or contradicts another.
    pub fn malformed(
        field: &str,
        expected: impl Into<Cow<'static, str>>,
        got: impl fmt::Display,
    ) -> Self {
        Self::new(field, Outcome::RefusedMalformed, expected.into(), got)
    }

    /// A scheme, algorithm or enum value that a newer sender may know and this version does not.
    pub fn unsupported(
        field: &str,
        expected: impl Into<Cow<'static, str>>,
        got: impl fmt::Display,
    ) -> Self {
        Self::new(field, Outcome::RefusedUnsupported, expected.into(), got)
    }

    /// A message of more bytes than may be sent.
    pub fn too_large(field: &str, limit_bytes: usize, got_bytes: usize) -> Self {
        let expected = format!("at most {limit_bytes} bytes").into();
        Self::new(field, Outcome::RefusedTooLarge, expected, got_bytes)
    }

    fn new(
        field: &str,
        outcome: Outcome,
        expected: Cow<'static, str>,
        got: impl fmt::Display,
    ) -> Self {
        Self {
            field: field.to_owned(),
            outcome,
            expected,
            got: excerpt(got),
        }
    }

    /// Bytes that are not a message of the field's type.
    pub(crate) fn not_protobuf(field: &str, error: &prost::DecodeError) -> Self {
        Self::malformed(field, "a protobuf message", error)
    }

    /// Path of the refused field, for example `series[3].stratum.shape_key`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the outcome of a report that has this error.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The text, cut to the bound of `ReportResult.detail`.
    pub fn detail(&self) -> String {
        clipped(&self.to_string(), MAX_DETAIL_BYTES)
    }

    /// Puts the field of the enclosing message in front of the path.
    #[must_use]
    pub fn inside(mut self, outer: &str) -> Self {
        self.field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        self
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = match self.outcome {
            Outcome::RefusedUnsupported => " (update the receiver?)",
            _ => "",
        };
        let (field, expected, got) = (&self.field, &self.expected, &self.got);
        write!(f, "{field}: expected {expected}, got {got}{hint}")
    }
}

impl std::error::Error for ParseError {}

/// Adds the field of the enclosing message to an error.
pub(crate) trait Inside {
    /// Puts `outer`, the field of the enclosing message, in front of the path.
    fn inside(self, outer: &str) -> Self;
}

impl<T> Inside for Result<T, ParseError> {
    fn inside(self, outer: &str) -> Self {
        self.map_err(|error| error.inside(outer))
    }
}

/// The first characters of a value, without control characters.
fn excerpt(got: impl fmt::Display) -> String {
    let text = got.to_string();
    let mut out: String = text
        .chars()
        .take(EXCERPT_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_field_expectation_and_value() {
        let error = ParseError::malformed("n", "1 or more", 0)
            .inside("[3]")
            .inside("series");
        assert_eq!(error.field(), "series[3].n");
        assert_eq!(error.to_string(), "series[3].n: expected 1 or more, got 0");
    }

    #[test]
    fn hostile_text_is_cut_and_escaped() {
        let hostile = format!("\u{1b}[31m\n{}", "x".repeat(10_000));
        let error = ParseError::malformed("app.id", "1 to 128 bytes", hostile);
        let text = error.to_string();
        assert!(text.len() < 120, "{text}");
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
        assert!(error.detail().len() <= MAX_DETAIL_BYTES);
    }
}
