//! Text forms that all crates share: clipped text and hexadecimal.

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
