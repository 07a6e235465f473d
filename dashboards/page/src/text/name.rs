//! Names of apps, models, versions and chipsets. Devices make them up, so they are never trusted: a name is shown
//! only by [`Name`], and travels in links only by [`Link`].

use std::fmt;

use askama::filters::HtmlSafe;
use epwatch_proto::push_visible;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::terms::SENTENCE;

/// Longest name that is shown whole, in characters.
const MAX_SHOWN: usize = 96;

/// Longest sentence of the store that is shown whole, in characters. The longest next step, with names of hundreds of
/// bytes in two commands, is shorter.
pub(crate) const MAX_SENTENCE: usize = 4_000;

/// Number of first characters that a longer name shows.
const HEAD: usize = 72;

/// Number of last characters that a longer name shows.
const TAIL: usize = 16;

/// Characters that are not encoded in a link.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Returns the name with invisible characters as their code points, cut in the middle if it is long. An empty name, or
/// one of spaces only, becomes a text that says so.
pub(crate) fn visible(name: &str) -> String {
    if name.trim().is_empty() {
        return "(empty name)".to_owned();
    }
    let mut text = String::with_capacity(name.len());
    let n = name.chars().count();
    for (at, c) in name.chars().enumerate() {
        if n > MAX_SHOWN && at == HEAD {
            text.push('\u{2026}');
        }
        if n > MAX_SHOWN && at >= HEAD && at < n - TAIL {
            continue;
        }
        push_visible(&mut text, c);
    }
    text
}

/// Works like [`visible`] for the detector's sentences, which contain names and may be longer.
pub(crate) fn visible_sentence(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, c) in text.chars().enumerate() {
        if at == MAX_SENTENCE {
            shown.push('\u{2026}');
            break;
        }
        push_visible(&mut shown, c);
    }
    shown
}

/// Writes text for an element's content or a quoted attribute.
pub(crate) fn escape(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            '&' => out.write_str("&amp;")?,
            '<' => out.write_str("&lt;")?,
            '>' => out.write_str("&gt;")?,
            '"' => out.write_str("&quot;")?,
            '\'' => out.write_str("&#39;")?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}

/// A name in HTML: visible, escaped, and in a `<bdi>`, so that it cannot reorder the text around it.
#[derive(Debug)]
pub(crate) struct Name<'a>(pub(crate) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<bdi>")?;
        escape(f, &visible(self.0))?;
        f.write_str("</bdi>")
    }
}

impl HtmlSafe for Name<'_> {}

/// A sentence that holds names, in HTML.
#[derive(Debug)]
pub(crate) struct Sentence<'a>(pub(crate) &'a str);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SENTENCE)?;
        escape(f, &visible_sentence(self.0))?;
        f.write_str("</bdi>")
    }
}

impl HtmlSafe for Sentence<'_> {}

/// The address of a page with its parameters. It is percent-encoded, so it needs no escape in an attribute.
#[derive(Debug, Clone)]
pub(crate) struct Link(String);

impl Link {
    pub(crate) fn to(path: &'static str) -> Self {
        Self(path.to_owned())
    }

    /// The address of a page of another program, below an address of the config.
    pub(crate) fn below(address: &str, path: &str) -> Self {
        Self(format!("{}{path}", address.trim_end_matches('/')))
    }

    /// Adds a variable of a dashboard. Variables contain percent-encoded names, so a link encodes them a second time.
    #[must_use]
    pub(crate) fn with_variable(self, key: &'static str, name: &str) -> Self {
        self.with(key, &utf8_percent_encode(name, KEPT).to_string())
    }

    /// Adds a parameter, also if it is empty.
    #[must_use]
    pub(crate) fn with(mut self, key: &'static str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(key);
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, KEPT));
        self
    }

    #[cfg(test)]
    fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `&` separates parameters and needs an escape in HTML.
        escape(f, &self.0)
    }
}

impl HtmlSafe for Link {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_element() {
        let shown = |name| Name(name).to_string();
        assert_eq!(
            shown("\"><script>alert('1')</script>"),
            "<bdi>&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;</bdi>"
        );
        assert_eq!(shown("a\u{202e}b\0"), "<bdi>a[U+202E]b[U+0000]</bdi>");
        assert_eq!(shown(""), "<bdi>(empty name)</bdi>");
        assert_eq!(shown("  "), "<bdi>(empty name)</bdi>");
        let long = shown(&"é".repeat(4_096));
        assert_eq!(long.chars().count(), "<bdi></bdi>".len() + HEAD + 1 + TAIL);
    }

    #[test]
    fn a_sentence_is_whole_up_to_a_bound_and_says_that_it_is_cut() {
        let whole = "\u{e9}".repeat(MAX_SENTENCE);
        assert_eq!(visible_sentence(&whole), whole);
        assert_eq!(
            visible_sentence(&format!("{whole}x")),
            format!("{whole}\u{2026}")
        );
    }

    #[test]
    fn links_decode_to_the_same_names() {
        let names = [
            "a b",
            "../",
            "%2f",
            "",
            "x\\' OR 1=1 -- ",
            "\"><script>",
            "javascript:",
            "&c=d#e",
            "é\u{202e}",
        ];
        for name in names {
            let link = Link::to("/cohort").with("model", name).with("app", "a");
            let (_, query) = link.as_str().split_once('?').unwrap();
            let pairs: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
            assert_eq!(pairs[0], ("model".into(), name.into()));
            assert_eq!(pairs[1], ("app".into(), "a".into()));
            assert!(!link.to_string().contains(['"', '<', '\'', ' ']), "{link}");
        }
    }
}
