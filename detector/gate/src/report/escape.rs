//! Escapes text from strangers for Markdown.

use super::clean;

/// Escapes every character that has a meaning in Markdown or HTML.
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

/// Escapes a text, but keeps the parts between backticks as code.
pub(super) fn with_code(text: &str) -> String {
    let text = clean(text);
    let parts: Vec<&str> = text.split('`').collect();
    let mut codes = parts.iter().skip(1).step_by(2);
    let is_code = |part: &&str| !part.trim().is_empty();
    // A name that contains a backtick may leave a backtick without a partner.
    if parts.len().is_multiple_of(2) || !codes.all(is_code) {
        return escaped(&text);
    }
    let each = parts.iter().enumerate().map(|(at, part)| match at % 2 {
        0 => escaped(part),
        _ => format!("`{part}`"),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_code_and_markup_is_not() {
        for (text, expected) in [
            (
                "use `gate fix MODEL --soc A_B` now_",
                "use `gate fix MODEL --soc A_B` now\\_",
            ),
            ("a `b", "a \\`b"),
            ("`` and `x`", "\\`\\` and \\`x\\`"),
            ("`<b>` <b>", "`<b>` &lt;b>"),
            ("none", "none"),
            ("two `a`, `b`", "two `a`, `b`"),
        ] {
            assert_eq!(with_code(text), expected);
        }
    }
}
