//! Removes prefixes that an app's own logging function wrote before ONNX Runtime's messages.

use super::line::without_blank;

/// Beginnings of messages that are found behind any prefix.
const ANCHORS: [&str; 14] = [
    "Validation PASSED for ",
    "Validation FAILED for ",
    "GetCapability pass ",
    "Operator type: ",
    "REASON :",
    "Node supported: [",
    "Number of partitions supported by QNN EP: ",
    "Unsupported nodes in QNN EP: ",
    "User specified soc_model: ",
    "Session Options {",
    "Initializing session.",
    "Node placements",
    "Node(s) placed on [",
    "All nodes placed on [",
];

/// The prefix of the last message. The items of a list have no fixed beginning, so they are recognised by the same
/// prefix.
#[derive(Debug, Default)]
pub(super) struct OwnPrefix {
    /// The prefix with each digit replaced by 0, because times and thread numbers differ.
    shape: String,
}

impl OwnPrefix {
    /// Returns the line without an app's own prefix.
    pub(super) fn without<'a>(&mut self, text: &'a str) -> &'a str {
        let anchored = ANCHORS
            .iter()
            .filter_map(|anchor| text.find(anchor))
            .min()
            .filter(|at| is_prefix(&text[..*at]));
        if let Some(at) = anchored {
            let prefix = text[..at].trim_end();
            self.shape = shape(prefix);
            return without_blank(&text[prefix.len()..]);
        }
        if self.shape.is_empty() || !text.is_char_boundary(self.shape.len().min(text.len())) {
            return text;
        }
        match text.split_at_checked(self.shape.len()) {
            Some((prefix, rest)) if shape(prefix) == self.shape => without_blank(rest),
            _ => text,
        }
    }
}

/// Whether a message may begin after these words: after a blank or a sign, not within a word.
fn is_prefix(before: &str) -> bool {
    !before.trim().is_empty() && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn shape(prefix: &str) -> String {
    prefix.replace(|c: char| c.is_ascii_digit(), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_a_list_lose_the_prefix_of_its_head() {
        let mut own = OwnPrefix::default();
        let check = |own: &mut OwnPrefix, line: &str, text: &str| {
            assert_eq!(own.without(line), text, "{line:?}");
        };
        let head = "Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1";
        check(
            &mut own,
            &format!("12:00:01 ORT>  {head}"),
            &format!(" {head}"),
        );
        check(
            &mut own,
            "12:00:02 ORT>   TopK (/head/TopK)",
            "  TopK (/head/TopK)",
        );
        check(&mut own, "12:00:02 app> hello", "12:00:02 app> hello");
        check(&mut own, head, head);
        check(&mut own, "\tREASON : é", "\tREASON : é");
        let mut none = OwnPrefix::default();
        check(&mut none, "xREASON :", "xREASON :");
    }
}
