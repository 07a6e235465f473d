//! Reports of a verdict, each as one text. Names of nodes come from a model of a stranger, so each report escapes them.

pub mod annotations;
pub mod junit;
pub mod markdown;
pub mod sarif;
pub mod table;

use crate::verdict::{NotChecked, Verdict};

/// Most nodes of a check in a report for people; the JSON has all.
const SHOWN_NODES: usize = 10;

/// Returns the text on one line, without characters that move a cursor or change the direction of text.
fn clean(text: &str) -> String {
    let moves =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| if moves(c) { ' ' } else { c })
        .collect()
}

/// For example `latency (an emulator's run times mean nothing)`.
fn not_checked(verdict: &Verdict) -> String {
    let each = verdict.not_checked.iter();
    let each = each.map(|NotChecked { id, why }| format!("{id} ({why})"));
    each.collect::<Vec<_>>().join(", ")
}
