//! The report on a terminal.

use super::{SHOWN_NODES, clean, facts, not_checked};
use crate::{
    mistakes::Mistake,
    verdict::{CheckResult, Verdict},
};

/// Nothing is wrapped below this number of columns, because so narrow a terminal would show one word per line.
const LEAST_COLUMNS: usize = 40;
/// Column at which nodes, fixes and the further lines of a check begin.
const INDENT: usize = 12;

/// Returns the verdict as lines of text, without colours. On a terminal they end at a word before its last column.
pub fn table(verdict: &Verdict, columns: Option<usize>) -> String {
    let columns = columns.filter(|columns| *columns >= LEAST_COLUMNS);
    let mut text = Lines {
        text: String::new(),
        columns: columns.unwrap_or(usize::MAX),
    };
    text.line("", &format!("not checked: {}", not_checked(verdict)), 2);
    for target in &verdict.targets {
        text.line("", "", 0);
        let head = clean(&format!(
            "{}  {}",
            verdict.chipset_of(target),
            target.file()
        ));
        text.line("", &head, 2);
        for check in &target.checks {
            let word = match check.result {
                CheckResult::Fail => "FAIL",
                other => other.as_str(),
            };
            let head = format!("  {word:<9} {:<10} ", check.id);
            text.line(&head, &clean(&check.why), INDENT);
            let indent = " ".repeat(INDENT);
            let mut before = String::new();
            for node in check.nodes.iter().take(SHOWN_NODES) {
                let why = node.why();
                let line = match why.is_empty() || why != before {
                    true => node.line(),
                    false => format!("{}: as above", node.head()),
                };
                text.line(&indent, &clean(&line), INDENT + 2);
                before = why;
            }
            if let Some(more @ 1..) = check.nodes.len().checked_sub(SHOWN_NODES) {
                let line = format!("and {more} more; --json has all");
                text.line(&indent, &line, INDENT);
            }
            for fix in check.fixes() {
                text.line(&indent, &format!("fix: {}", clean(fix)), INDENT + 5);
            }
        }
        for (what, text_of) in facts(target) {
            text.line(&format!("  {what:<9} "), &clean(&text_of), INDENT);
        }
        for Mistake { id, why, fix } in &target.mistakes {
            text.line("  note      ", &format!("{id}: {}", clean(why)), INDENT);
            let indent = " ".repeat(INDENT);
            text.line(&indent, &format!("fix: {}", clean(fix)), INDENT + 5);
        }
    }
    text.line("", "", 0);
    text.text
        .push_str(&format!("result: {}", verdict.result.as_str()));
    text.text
}

/// Writes lines of at most `columns` columns. A longer word stays whole, so that it can be copied.
struct Lines {
    text: String,
    columns: usize,
}

impl Lines {
    /// Adds the words after `head`; further lines begin at the column `indent`.
    fn line(&mut self, head: &str, words: &str, indent: usize) {
        self.text.push_str(head);
        let mut at = head.chars().count();
        let mut is_first = true;
        // Two spaces in a row are a part of the text, so both are kept.
        for word in words.split(' ') {
            let width = word.chars().count();
            if !is_first && at + 1 + width > self.columns {
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', indent));
                at = indent;
            } else if !is_first {
                self.text.push(' ');
                at += 1;
            }
            self.text.push_str(word);
            at += width;
            is_first = false;
        }
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_a_word_before_the_last_column() {
        let mut lines = Lines {
            text: String::new(),
            columns: 30,
        };
        lines.line("  FAIL      cpu_ops    ", "3 nodes compute on the CPU", 12);
        lines.line("", "a/very/long/path/that/is/longer/than/the/screen x", 2);
        let expected = "  FAIL      cpu_ops    3 nodes\n            compute on the CPU\n\
            a/very/long/path/that/is/longer/than/the/screen\n  x\n";
        assert_eq!(lines.text, expected);
    }
}
