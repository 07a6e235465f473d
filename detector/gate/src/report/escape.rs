//! Text of strangers in Markdown.

use super::clean;

/// Escapes all that Markdown and HTML give a meaning.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '!' | '#' | '~' | '@' => {
                out.extend(['\\', c])
            }
            c => out.push(c),
        }
    }
    out
}
