//! What is wrong with a message, where, and what was expected instead.
//!
//! A parser names its own field; each message around it puts its name in front on the way out, so
//! the finished path reads `series[3].stratum.shape_key`. Text of the sender's appears only as a
//! short, escaped excerpt: errors go into logs, metrics and answers.

use std::{borrow::Cow, fmt};

use crate::text::clipped;

/// Longest excerpt of a sender's text in an error, in characters before escaping.
const EXCERPT_CHARS: usize = 32;
/// Longest text of an error on the wire: `ReportResult.detail`.
pub const MAX_DETAIL_BYTES: usize = 256;

/// One refused field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    field: String,
    problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Missing, out of bounds, or contradicts another field.
    Malformed {
        /// What would have been accepted.
        expected: Cow<'static, str>,
        /// What came instead; bounded and escaped.
        got: String,
    },
    /// The whole message is larger than may be sent.
    TooLarge {
        /// Most bytes accepted.
        limit_bytes: usize,
        /// Bytes that came.
        got_bytes: usize,
    },
    /// A scheme, algorithm or enum value that this version does not know.
    Unsupported {
        /// What is known.
        expected: Cow<'static, str>,
        /// What came instead; bounded and escaped.
        got: String,
    },
}

impl ParseError {
    /// A field that is missing, out of bounds or contradicts another.
    pub fn malformed(
        field: &str,
        expected: impl Into<Cow<'static, str>>,
        got: impl fmt::Display,
    ) -> Self {
        let problem = Problem::Malformed {
            expected: expected.into(),
            got: excerpt(got),
        };
        Self {
            field: field.to_owned(),
            problem,
        }
    }

    /// A value that a newer sender may mean and this version does not know.
    pub fn unsupported(
        field: &str,
        expected: impl Into<Cow<'static, str>>,
        got: impl fmt::Display,
    ) -> Self {
        let problem = Problem::Unsupported {
            expected: expected.into(),
            got: excerpt(got),
        };
        Self {
            field: field.to_owned(),
            problem,
        }
    }

    /// A message of more bytes than may be sent.
    pub fn too_large(field: &str, limit_bytes: usize, got_bytes: usize) -> Self {
        let problem = Problem::TooLarge {
            limit_bytes,
            got_bytes,
        };
        Self {
            field: field.to_owned(),
            problem,
        }
    }

    /// Bytes that are no message of the field's type.
    pub(crate) fn not_protobuf(field: &str, error: &prost::DecodeError) -> Self {
        Self::malformed(field, "a protobuf message", error)
    }

    /// Path of the refused field, for example `series[3].stratum.shape_key`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The text, cut to what `ReportResult.detail` may hold.
    pub fn detail(&self) -> String {
        clipped(&self.to_string(), MAX_DETAIL_BYTES)
    }

    /// Puts the field of the message around this one in front of the path.
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
        let field = &self.field;
        match &self.problem {
            Problem::Malformed { expected, got } => {
                write!(f, "{field}: expected {expected}, got {got}")
            }
            Problem::TooLarge {
                limit_bytes,
                got_bytes,
            } => write!(
                f,
                "{field}: expected at most {limit_bytes} bytes, got {got_bytes}"
            ),
            Problem::Unsupported { expected, got } => write!(
                f,
                "{field}: expected {expected}, got {got} (update the receiver?)"
            ),
        }
    }
}

impl std::error::Error for ParseError {}

/// Adds the path of the message around to an error.
pub(crate) trait Inside {
    /// Names the field of the message around.
    fn inside(self, outer: &str) -> Self;
}

impl<T> Inside for Result<T, ParseError> {
    fn inside(self, outer: &str) -> Self {
        self.map_err(|error| error.inside(outer))
    }
}

/// The first characters of what came, without control characters.
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
