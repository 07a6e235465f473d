//! The report for a pull request's summary.

use super::{
    SHOWN_NODES, comment,
    escape::{escaped, with_code},
    facts, not_checked,
};
use crate::verdict::{Check, CheckResult, Verdict};

/// Maximum number of bytes of a summary; GitHub refuses one of 1 MiB or more.
const MOST_BYTES: usize = 1_000_000;

/// Beginning of the summary.
pub const BEGINS: &str = "## epwatch gate: ";

/// Returns the verdict in GitHub's Markdown: the numbers, what failed, then a table of all checks.
pub fn markdown(verdict: &Verdict) -> String {
    let mut text = format!(
        "{BEGINS}{}\n\nNot checked: {}\n",
        verdict.result.as_str(),
        escaped(&not_checked(verdict))
    );
    text.push_str(&comment::numbers(verdict, MOST_BYTES / 4));
    for outcome in [CheckResult::Fail, CheckResult::Undecided, CheckResult::Warn] {
        for (target, check) in verdict.with(outcome) {
            let section = section(&verdict.name_of(target), check);
            if text.len() + section.len() > MOST_BYTES / 2 {
                text.push_str("\nMore is in the JSON document.\n");
                break;
            }
            text.push_str(&section);
        }
    }
    for target in &verdict.targets {
        for (what, fact) in facts(target) {
            let on = escaped(&verdict.name_of(target));
            let line = format!("\n{on}: {what}: {}\n", with_code(&fact));
            if text.len() + line.len() <= MOST_BYTES / 2 {
                text.push_str(&line);
            }
        }
        for mistake in &target.mistakes {
            let note = format!(
                "\nNote on {}: {}. Fix: {}.\n",
                escaped(&verdict.name_of(target)),
                with_code(&mistake.why),
                with_code(&mistake.fix)
            );
            if text.len() + note.len() <= MOST_BYTES / 2 {
                text.push_str(&note);
            }
        }
    }
    text.push_str("\n| chipset | model | check | result | |\n|---|---|---|---|---|\n");
    for target in &verdict.targets {
        for check in &target.checks {
            let row = format!(
                "| {} | {} | {} | {} | {} |\n",
                escaped(&verdict.chipset_of(target)),
                escaped(target.file()),
                check.id,
                check.result.as_str(),
                escaped(&check.why)
            );
            if text.len() + row.len() > MOST_BYTES {
                return text;
            }
            text.push_str(&row);
        }
    }
    text
}

fn section(on: &str, check: &Check) -> String {
    let mut text = format!(
        "\n### {} {}: {}\n\n{}\n\n",
        escaped(on),
        check.id,
        check.result.as_str(),
        with_code(&check.why)
    );
    for (at, node) in check.nodes.iter().enumerate() {
        if at == SHOWN_NODES {
            let more = check.nodes.len() - SHOWN_NODES;
            text.push_str(&format!("\n<details><summary>{more} more</summary>\n\n"));
        }
        text.push_str(&format!("- {}\n", with_code(&node.line())));
    }
    if check.nodes.len() > SHOWN_NODES {
        text.push_str("\n</details>\n");
    }
    for fix in check.fixes() {
        text.push_str(&format!("\nFix: {}\n", with_code(fix)));
    }
    text
}
