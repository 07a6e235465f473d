//! One line of a log, without the parts that log systems add.

/// A line in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// ORT's header with category, session, file and function; empty on lines without one.
    pub(super) header: &'a str,
    /// The message with its leading blanks, which distinguish a list's items from its head.
    pub(super) text: &'a str,
}

/// Splits a line, without colour codes and logcat's prefix.
pub(super) fn split_line(line: &str) -> Line<'_> {
    let line = without_colour(line.trim_end());
    match header_of(line) {
        Some((header, text)) => Line { header, text },
        None => Line {
            header: "",
            text: without_logcat(line),
        },
    }
}

/// Colour codes stand at the ends only: `ESC[0;93m... ESC[m`.
fn without_colour(mut line: &str) -> &str {
    while let Some((_, rest)) = line.strip_prefix('\u{1b}').and_then(|l| l.split_once('m')) {
        line = rest;
    }
    match line.rsplit_once('\u{1b}') {
        Some((text, code)) if code.starts_with('[') && code.ends_with('m') => text.trim_end(),
        _ => line,
    }
}

/// `...[V:onnxruntime:, session_state.cc:1578 VerifyEachNodeIsAssignedToAnEp] text`
fn header_of(line: &str) -> Option<(&str, &str)> {
    let open = line.find(":onnxruntime:")?;
    let before = line.get(..open)?;
    let severity = before.as_bytes().last()?;
    if !b"VIWEF".contains(severity) || before.as_bytes().iter().rev().nth(1) != Some(&b'[') {
        return None;
    }
    let (header, text) = line.get(open..)?.split_once(']')?;
    Some((header, text.strip_prefix(' ').unwrap_or(text)))
}

/// `11-27 16:51:41.486  2119  2119 V onnxruntime: text`, `I/onnxruntime( 4321): text`
fn without_logcat(line: &str) -> &str {
    const TAG: &str = "onnxruntime";
    let Some(at) = line.find(TAG).filter(|at| (1..=80).contains(at)) else {
        return line;
    };
    let (before, after) = (&line[..at], &line[at + TAG.len()..]);
    if !before.ends_with([' ', '/']) {
        return line;
    }
    let after = after.trim_start();
    let after = match after.strip_prefix('(').and_then(|a| a.split_once(')')) {
        Some((pid, rest)) if pid.trim().bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => after,
    };
    match after.trim_start().strip_prefix(':') {
        Some(text) => text.strip_prefix(' ').unwrap_or(text),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, header: &str, text: &str) {
        assert_eq!(split_line(line), Line { header, text }, "{line:?}");
    }

    #[test]
    fn the_same_words_come_out_of_every_form() {
        let header = ":onnxruntime:, session_state.cc:1586 VerifyEachNodeIsAssignedToAnEp";
        let text = "  TopK (topk)";
        for before in [
            "2026-11-21 07:29:46.666931426 [V",
            "V/onnxruntime( 4321): [V",
            "11-27 16:51:41.486  2119  2119 V onnxruntime: [V",
            "\u{1b}[0;93m2026-11-21 07:29:46.6 [W",
        ] {
            check(&format!("{before}{header}]   TopK (topk)"), header, text);
        }
        check(&format!("x [W{header}] a\u{1b}[m\r\n"), header, "a");
    }

    #[test]
    fn lines_without_a_header_lose_logcats_prefix_only() {
        let reason = "\tREASON : Cannot get shape";
        check(reason, "", reason);
        check(&format!("I/onnxruntime: {reason}"), "", reason);
        check(&format!("I/onnxruntime( 43): {reason}"), "", reason);
        let time = "11-27 16:51:41.486  2119  2119 I onnxruntime";
        check(&format!("{time}: {reason}"), "", reason);
        check(&format!("{time} : {reason}"), "", reason);
        check(
            "failed: no onnxruntime here",
            "",
            "failed: no onnxruntime here",
        );
    }

    #[test]
    fn nonsense_stays_as_it_is() {
        for text in [
            "",
            "[",
            "[V:",
            "[V:onnxruntime:",
            "\u{1b}",
            "\u{1b}[",
            "é:onnxruntime:]x",
        ] {
            let line = split_line(text);
            assert!(text.ends_with(line.text), "{text:?}");
        }
    }
}
