//! One line of a log, without the parts that log systems add.

/// The parts of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// The process in logcat's prefix; empty without one.
    pub(super) process: &'a str,
    /// The logger's id in ORT's header, which may be the session's; empty without one, and for ORT's own logger.
    pub(super) id: &'a str,
    /// ORT's header with category, session, file and function; empty on lines without one.
    pub(super) header: &'a str,
    /// The message with its leading blanks, which distinguish a list's items from its head.
    pub(super) text: &'a str,
}

/// Splits a line, without colour codes and logcat's prefix.
pub(super) fn split_line(line: &str) -> Line<'_> {
    let line = without_colour(line.trim_end());
    let (process, rest) = logcat(line).unwrap_or(("", line));
    match header_of(line) {
        Some((header, text)) => Line {
            process,
            id: id_of(header),
            header,
            text,
        },
        None => Line {
            process,
            id: "",
            header: "",
            text: rest,
        },
    }
}

/// Colour codes are only at the ends: `ESC[0;93m... ESC[m`.
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

/// `:onnxruntime:scanner, qnn_execution_provider.cc:560 LogNodeSupport`
fn id_of(header: &str) -> &str {
    let id = header
        .strip_prefix(":onnxruntime:")
        .and_then(|rest| rest.split(',').next());
    id.map(str::trim)
        .filter(|id| *id != "Default")
        .unwrap_or_default()
}

/// Returns the process and the message of a line of logcat, whatever the tag:
/// `11-27 16:51:41.486  2119  2119 V tag: text`, `V/tag( 4321): text`, `11-27 16:51:41.486 V/tag( 4321): text`, and
/// Android Studio's `2025-12-25 15:40:33.939 31787-32293 tag  package  W  text`.
fn logcat(line: &str) -> Option<(&str, &str)> {
    let (first, rest) = word(line)?;
    if let Some(found) = brief(line) {
        return Some(found);
    }
    if !is_of(first, "-") || !first.contains('-') {
        return None;
    }
    let (time, rest) = word(rest)?;
    if !is_of(time, ":.") || !time.contains(':') {
        return None;
    }
    if let Some(found) = brief(rest.trim_start()) {
        return Some(found);
    }
    let (process, rest) = word(rest)?;
    if let Some((process, thread)) = process.split_once('-')
        && is_of(process, "")
        && is_of(thread, "")
    {
        return Some((process, studio(rest)?));
    }
    let (thread, rest) = word(rest)?;
    let (level, rest) = word(rest)?;
    if !is_of(process, "") || !is_of(thread, "") || !is_level(level) {
        return None;
    }
    Some((process, behind_tag(rest)?))
}

/// `V/tag( 4321): text`, `I/tag: text`
fn brief(line: &str) -> Option<(&str, &str)> {
    let (level, rest) = line.split_once('/')?;
    if !is_level(level) {
        return None;
    }
    let tag_end = rest.find(['(', ':'])?;
    if rest[tag_end..].starts_with('(') {
        let (process, rest) = rest[tag_end + 1..].split_once(')')?;
        let process = process.trim();
        let text = rest.trim_start().strip_prefix(':')?;
        return is_of(process, "").then_some((process, without_blank(text)));
    }
    Some(("", behind_tag(rest)?))
}

/// The text behind `tag: ` or `tag : `; a tag never contains a colon followed by a blank.
fn behind_tag(rest: &str) -> Option<&str> {
    let at = match rest.find(": ") {
        Some(at) => at,
        None => rest.strip_suffix(':')?.len(),
    };
    Some(without_blank(&rest[at + 1..]))
}

/// The text behind `tag  package  W  `.
fn studio(rest: &str) -> Option<&str> {
    let mut at = 0;
    while let Some((found, after)) = word(&rest[at..]) {
        let end = rest.len() - after.len();
        if at > 0 && is_level(found) {
            return Some(
                after
                    .strip_prefix("  ")
                    .unwrap_or_else(|| without_blank(after)),
            );
        }
        at = end;
    }
    None
}

/// The first word, and the rest behind it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(' ').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Whether a word has only digits and these signs.
fn is_of(word: &str, signs: &str) -> bool {
    !word.is_empty()
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || signs.contains(c))
}

fn is_level(word: &str) -> bool {
    matches!(word, "V" | "D" | "I" | "W" | "E" | "F" | "A")
}

/// The text without one leading blank.
pub(super) fn without_blank(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, header: &str, text: &str) {
        let found = split_line(line);
        assert_eq!((found.header, found.text), (header, text), "{line:?}");
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
    fn any_tag_of_logcat_and_the_process_are_found() {
        let check = |line: &str, process: &str, id: &str, text: &str| {
            let found = split_line(line);
            assert_eq!(
                (found.process, found.id, found.text),
                (process, id, text),
                "{line:?}"
            );
        };
        let item = "\tREASON : x: y";
        check(
            &format!("06-11 09:22:10.101 14110 14160 V MyApp: {item}"),
            "14110",
            "",
            item,
        );
        check(
            &format!("06-11 09:22:10.101 14110 14160 V My App  : {item}"),
            "14110",
            "",
            item,
        );
        check(&format!("V/flutter (  431): {item}"), "431", "", item);
        check(
            &format!("06-11 09:22:10.101 I/my.app(  431): {item}"),
            "431",
            "",
            item,
        );
        check(
            &format!("2025-12-25 15:40:33.939 31787-32293 tag  com.nexa.demo   W  {item}"),
            "31787",
            "",
            item,
        );
        check("06-11 09:22:10.101 14110 14160 V MyApp:", "14110", "", "");
        let header = "[V:onnxruntime:enc, a.cc:1 F] x";
        check(
            &format!("06-11 09:22:10.1 1 2 V T: {header}"),
            "1",
            "enc",
            "x",
        );
        check("[V:onnxruntime:Default, a.cc:1 F] x", "", "", "x");
        check(
            "2026-03-02 10:11:12.131 plain text: x",
            "",
            "",
            "2026-03-02 10:11:12.131 plain text: x",
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
