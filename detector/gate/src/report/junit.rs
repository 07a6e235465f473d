//! The report as JUnit XML, which CI servers show as tests: a suite is a model on a chipset, a case is a check.

use epwatch_proto::push_visible;

use crate::verdict::{Check, CheckResult, Verdict};

/// Beginning of the document.
pub const BEGINS: &str =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"epwatch gate\">";

/// Returns the verdict as one XML document. Each suite has a skipped case for each part that was not checked.
pub fn junit(verdict: &Verdict) -> String {
    let mut text = format!("{BEGINS}\n");
    for target in &verdict.targets {
        let count = |outcome| target.checks.iter().filter(|c| c.result == outcome).count();
        let name = escaped(&verdict.name_of(target));
        text.push_str(&format!(
            "<testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n",
            target.checks.len() + verdict.not_checked.len(),
            count(CheckResult::Fail),
            count(CheckResult::Undecided),
            count(CheckResult::Skip) + verdict.not_checked.len(),
        ));
        let mut case = |id: &str, inner: String| {
            text.push_str(&format!(
                "<testcase classname=\"epwatch.gate.{name}\" name=\"{}\">{inner}</testcase>\n",
                escaped(id)
            ));
        };
        for not in &verdict.not_checked {
            let why = escaped(not.why);
            case(&not.id, format!("<skipped message=\"{why}\"/>"));
        }
        for check in &target.checks {
            case(check.id, inner(check));
        }
        let notes = target
            .mistakes
            .iter()
            .map(|mistake| format!("{}: {}; {}\n", mistake.id, mistake.why, mistake.fix));
        let notes: String = notes.collect();
        if !notes.is_empty() {
            text.push_str(&format!("<system-out>{}</system-out>\n", escaped(&notes)));
        }
        text.push_str("</testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

fn inner(check: &Check) -> String {
    let why = escaped(&check.why);
    let nodes = check.nodes.iter().map(|node| escaped(&node.line()));
    let fixes = check.fixes();
    let fixes = fixes.iter().map(|fix| escaped(&format!("fix: {fix}")));
    let lines: Vec<String> = nodes.chain(fixes).collect();
    let lines = lines.join("\n");
    match check.result {
        CheckResult::Pass => String::new(),
        CheckResult::Warn => format!("<system-out>{why}\n{lines}</system-out>"),
        CheckResult::Skip => format!("<skipped message=\"{why}\"/>"),
        CheckResult::Undecided => format!("<error message=\"{why}\">{lines}</error>"),
        CheckResult::Fail => format!("<failure message=\"{why}\">{lines}</failure>"),
    }
}

/// Escapes markup and invisible characters, and drops characters that XML 1.0 does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            '\n' | '\r' | '\t' => out.push(' '),
            c => push_visible(&mut out, c),
        }
    }
    out
}
