//! Text forms that all crates share: clipped text, text for people, errors with their causes, and hexadecimal.

use std::{error::Error, fmt::Write};

/// Returns text of at most `max_bytes` with control characters replaced by spaces, cut at a character.
///
/// For senders: a receiver refuses longer text, so text of a platform or a library is clipped
/// before it is put into a message.
pub fn clipped(text: &str, max_bytes: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max_bytes));
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if out.len() + c.len_utf8() > max_bytes {
            break;
        }
        out.push(c);
    }
    out
}

/// Returns text for people. Names of devices may hold characters that are invisible or reorder other characters. Each
/// such character is replaced by its code point, as in `[U+202E]`.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        push_visible(&mut shown, c);
    }
    shown
}

/// Appends a character as [`visible`] shows it.
pub fn push_visible(text: &mut String, c: char) {
    match is_invisible(c) {
        // Writing to a String cannot fail.
        true => _ = write!(text, "[U+{:04X}]", u32::from(c)),
        false => text.push(c),
    }
}

/// Control characters, separators of lines, and the characters of Unicode's category Cf that are never drawn.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}'
        )
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether text has no control characters.
#[inline]
pub(crate) fn is_plain(text: &str) -> bool {
    // Nearly all text is ASCII, which takes no decoding.
    is_printable_ascii(text.as_bytes()) || !text.chars().any(char::is_control)
}

#[inline]
pub(crate) fn is_printable_ascii(bytes: &[u8]) -> bool {
    // Without an early end, so that the processor compares many bytes in one step.
    bytes
        .iter()
        .fold(true, |all, byte| all & (b' '..=b'~').contains(byte))
}

/// Returns the texts of an error and of its causes, separated by colons. A cause is not repeated if a text before it
/// already contains it.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Returns two lower-case hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 0xf] {
            out.push(char::from(DIGITS[usize::from(nibble)]));
        }
    }
    out
}

/// Reads pairs of hexadecimal digits of either case. `None` for any other text.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let digit = |c: u8| char::from(c).to_digit(16);
    pairs
        .iter()
        .map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sees_is_shown_as_its_code_point() {
        let name = "a\u{202e}b\u{200b}\u{feff}\nc\u{e0041}\u{fff9}é";
        assert_eq!(
            visible(name),
            "a[U+202E]b[U+200B][U+FEFF][U+000A]c[U+E0041][U+FFF9]é"
        );
    }

    #[test]
    fn clipped_text_splits_no_character() {
        let clip = clipped("a\nbéé", 5);
        assert_eq!(clip, "a bé");
        assert!(is_plain(&clip));
    }

    #[test]
    fn hex_reads_back_and_other_text_is_refused() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert!(hex(&all).starts_with("000102"));
        assert!(hex(&all).ends_with("fdfeff"));
        assert_eq!(unhex(&hex(&all).to_uppercase()), Some(all));
        assert_eq!(unhex(""), Some(Vec::new()));
        for text in ["0", "0g", "+1", "é"] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
