//! Reports of a verdict, each as one text. Names of nodes come from a model of a stranger, so each report escapes them.

pub mod annotations;
pub mod junit;
pub mod markdown;
pub mod sarif;
pub mod table;

use epwatch_proto::visible;

use crate::verdict::{NotChecked, Verdict};

/// Most nodes of a check in a report for people; the JSON has all.
const SHOWN_NODES: usize = 10;

/// Returns the text on one line, with what nobody sees as its code point.
fn clean(text: &str) -> String {
    visible(&text.replace(['\n', '\r', '\t'], " "))
}

/// For example `latency (an emulator's run times mean nothing)`.
fn not_checked(verdict: &Verdict) -> String {
    let each = verdict.not_checked.iter();
    let each = each.map(|NotChecked { id, why }| format!("{id} ({why})"));
    // Rows of a stranger's table are among them.
    clean(&each.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_node_hides_nothing_and_stays_on_its_line() {
        let name = "a\nb\u{200b}\u{2060}\u{feff}\u{e0041}\u{202e}\u{1b}c";
        assert_eq!(
            clean(name),
            "a b[U+200B][U+2060][U+FEFF][U+E0041][U+202E][U+001B]c"
        );
    }
}
