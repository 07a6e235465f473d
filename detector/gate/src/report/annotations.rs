//! Workflow commands of GitHub Actions, which mark a pull request.

use super::{clean, not_checked};
use crate::verdict::{CheckResult, Verdict};

/// Maximum number of annotations that GitHub shows of a step.
const MOST: usize = 10;

/// Returns what was not checked as a `::notice`, then at most ten lines, `::error` before `::warning`.
pub fn annotations(verdict: &Verdict) -> String {
    let commands = [
        ("error", CheckResult::Fail),
        ("error", CheckResult::Undecided),
        ("warning", CheckResult::Warn),
    ];
    let mut lines = Vec::new();
    for (command, outcome) in commands {
        for (target, check) in verdict.with(outcome) {
            let worst = check.nodes.first().map(|node| format!("; {}", node.line()));
            let fixes = check.fixes();
            let fixes: String = fixes.iter().map(|fix| format!(" Fix: {fix}")).collect();
            lines.push(format!(
                "::{command} file={},title={}::{}",
                property(target.file()),
                property(&format!("{} {}", verdict.name_of(target), check.id)),
                data(&format!(
                    "{}{}{fixes}",
                    check.why,
                    worst.unwrap_or_default()
                ))
            ));
        }
    }
    lines.truncate(MOST);
    let not_checked = data(&not_checked(verdict));
    lines.insert(0, format!("::notice title=not checked::{not_checked}"));
    lines.join("\n")
}

/// The line of a gate that judged nothing, because its arguments were wrong.
pub fn wrong_use(why: &str) -> String {
    format!("::error title=epwatch gate::{}", data(why))
}

fn data(text: &str) -> String {
    clean(text).replace('%', "%25")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
