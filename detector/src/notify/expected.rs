//! The answer that shows that a channel took a notification. A status alone is not enough, because proxies answer 200
//! with a page of their own.

use http::{HeaderValue, StatusCode};

/// The answer that means "delivered".
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) is_taken: fn(StatusCode) -> bool,
    pub(super) body: ExpectedBody,
}

#[derive(Debug, Clone)]
pub(super) enum ExpectedBody {
    /// The body is not read.
    Any,
    /// Any body that is not a page for a browser.
    NoHtml,
    /// This text and nothing else.
    Exactly(&'static str),
    /// A text that contains this in its first kilobyte.
    With(String),
}

impl Expected {
    /// Any status of success.
    pub(super) const SUCCESS: Expected = Expected {
        is_taken: |status| status.is_success(),
        body: ExpectedBody::Any,
    };

    /// Status 200, and no page for a browser.
    pub(super) const OK_WITHOUT_HTML: Expected = Expected {
        is_taken: |status| status.as_u16() == 200,
        body: ExpectedBody::NoHtml,
    };
}

impl ExpectedBody {
    /// Returns the difference of an answer from the expected one, to be read after its status; `None` if there is none.
    pub(super) fn lack(&self, kind: Option<&HeaderValue>, text: &str) -> Option<String> {
        let text = text.trim();
        let is_html = || {
            let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            kind.to_ascii_lowercase().contains("html") || text.starts_with('<')
        };
        match self {
            Self::Any => None,
            Self::NoHtml => is_html().then(|| "with an HTML page".to_owned()),
            Self::Exactly(expected) if text == *expected => None,
            Self::Exactly(expected) => Some(format!("without `{expected}`")),
            Self::With(expected) if text.contains(expected.as_str()) => None,
            Self::With(_) => Some("without `expected_answer`".to_owned()),
        }
    }
}
