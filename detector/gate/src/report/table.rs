//! The report on a terminal.

use super::{SHOWN_NODES, clean, not_checked};
use crate::{
    mistakes::Mistake,
    verdict::{Outcome, Verdict},
};

/// Returns the verdict as lines of text, without colours.
pub fn table(verdict: &Verdict) -> String {
    let mut text = format!("not checked: {}\n", not_checked(verdict));
    for target in &verdict.targets {
        let head = clean(&format!("{}  {}", target.chipset, target.file()));
        text.push_str(&format!("\n{head}\n"));
        for check in &target.checks {
            let word = match check.result {
                Outcome::Fail => "FAIL",
                other => other.as_str(),
            };
            text.push_str(&format!(
                "  {word:<9} {:<10} {}\n",
                check.id,
                clean(&check.why)
            ));
            for node in check.nodes.iter().take(SHOWN_NODES) {
                text.push_str(&format!("            {}\n", clean(&node.line())));
            }
            if let Some(more @ 1..) = check.nodes.len().checked_sub(SHOWN_NODES) {
                text.push_str(&format!("            and {more} more; --json has all\n"));
            }
            for fix in check.fixes() {
                text.push_str(&format!("            fix: {}\n", clean(fix)));
            }
        }
        for Mistake { id, why, fix } in &target.mistakes {
            text.push_str(&format!("  note      {id}: {}\n", clean(why)));
            text.push_str(&format!("            fix: {}\n", clean(fix)));
        }
    }
    text.push_str(&format!("\nresult: {}", verdict.result.as_str()));
    text
}
