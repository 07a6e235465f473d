//! The report for a comment on a pull or merge request: each chipset before and now, then what failed.
//!
//! It is short, since people read it next to their change. The summary and the JSON document have the rest.

use std::collections::BTreeSet;

use super::{
    escape::{escaped, with_code},
    not_checked,
};
use crate::change;
use crate::verdict::{Check, CheckResult, PlacementNumbers, Target, Verdict};

/// Hidden line by which a pipeline finds its comment again.
pub const MARK: &str = "<!-- epwatch gate -->";

/// Maximum number of bytes of a comment; GitHub refuses one of more than 65,536 characters.
const MOST_BYTES: usize = 60_000;
/// Bytes for the tables of numbers.
const MOST_OF_NUMBERS: usize = 30_000;
/// Keeps a cell on one line.
const NO_BREAK: &str = "\u{a0}";
/// Hexadecimal digits of a file's SHA-256.
const HASH_DIGITS: usize = 12;
/// Maximum number of nodes of a problem.
const SHOWN_NODES: usize = 5;

/// Returns the verdict in Markdown, with [`MARK`] as its first line.
pub fn comment(verdict: &Verdict) -> String {
    let mut text = format!("{MARK}\n### epwatch gate: {}\n", verdict.result.as_str());
    text.push_str(&numbers(verdict, MOST_OF_NUMBERS));
    let problems = problems(verdict);
    if !problems.is_empty() {
        text.push('\n');
    }
    for problem in problems {
        let problem = problem.markdown();
        if text.len() + problem.len() > MOST_BYTES {
            text.push_str("\nMore is in the reports of the pipeline.\n");
            break;
        }
        text.push_str(&problem);
    }
    text.push_str(&ending(verdict));
    text
}

/// Returns a table for each model, with its share on the NPU of each chipset, before and now. A table beyond `most`
/// bytes ends early.
pub(super) fn numbers(verdict: &Verdict, most: usize) -> String {
    let mut files: Vec<&str> = Vec::new();
    for target in &verdict.targets {
        if !files.contains(&target.file()) {
            files.push(target.file());
        }
    }
    let has_times = verdict.targets.iter().any(|on| on.latency.is_some());
    let mut text = String::new();
    for file in &files {
        if files.len() > 1 {
            text.push_str(&format!("\n#### {}\n", escaped(file)));
        }
        let of_file = || verdict.targets.iter().filter(|on| on.file() == *file);
        let mut befores = of_file().filter_map(|on| on.before.as_ref());
        if let Some(before) = befores.next() {
            // Only the file name is shown, because a pipeline keeps the file in a temporary folder.
            let name = before.model.path.rsplit('/').next().unwrap_or_default();
            let digits = before.model.sha256.get(..HASH_DIGITS);
            text.push_str(&format!(
                "\nBefore → now. Before is {} with the SHA-256 {}..\n",
                escaped(name),
                escaped(digits.unwrap_or_default())
            ));
        }
        let times = if has_times { " median |" } else { "" };
        let line = if has_times { "---:|" } else { "" };
        text.push_str(&format!(
            "\n| chipset | result | MACs on the NPU | partitions | CPU ops | bytes crossing |{times}\n\
             |---|---|---:|---:|---:|---:|{line}\n"
        ));
        for target in of_file() {
            if text.len() > most {
                text.push_str("| .. | | | | | |\n");
                break;
            }
            text.push_str(&row(verdict, target, has_times));
        }
    }
    text
}

fn row(verdict: &Verdict, target: &Target, has_times: bool) -> String {
    let result = match target.result() {
        result @ (CheckResult::Fail | CheckResult::Undecided) => format!("**{}**", result.as_str()),
        result => result.as_str().to_owned(),
    };
    let now = target.placement.as_ref();
    let before = target
        .before
        .as_ref()
        .map(|before| before.placement.as_ref());
    let cell = |of: &dyn Fn(&PlacementNumbers) -> Option<String>| {
        let shown = |side: Option<&PlacementNumbers>| match side {
            // The session of this side could not be made.
            None => "no session".to_owned(),
            Some(numbers) => of(numbers).unwrap_or("?".to_owned()),
        };
        let is_measured = now.is_none() && !matches!(target.source, "emulator" | "session");
        match (before.map(shown), shown(now)) {
            _ if is_measured => String::new(),
            (Some(was), is) if was != is => format!("{was} → {is}").replace(' ', NO_BREAK),
            (_, is) => is.replace(' ', NO_BREAK),
        }
    };
    let mut text = format!(
        "| {} | {result} | {} | {} | {} | {} |",
        escaped(&verdict.chipset_of(target)),
        cell(&|of| Some(format!("{:.1} %", 100.0 * of.npu_macs?))),
        cell(&|of| Some(of.partitions.to_string())),
        cell(&|of| Some(of.cpu_nodes.to_string())),
        cell(&|of| Some(grouped(of.crossing_bytes()?))),
    );
    if has_times {
        let median = target.latency.as_ref().and_then(|found| found.median_ms);
        let median = median.map(|ms| format!("{ms:.2} ms"));
        let ratio = target
            .against
            .map(|against| format!(" ({:.2} x)", against.ratio));
        text.push_str(&format!(
            " {}{} |",
            median.unwrap_or_default(),
            ratio.unwrap_or_default()
        ));
    }
    text.push('\n');
    text
}

/// For example `1,505,600`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// One sentence of a check, with the chipsets that it is true of.
struct Problem<'a> {
    on: Vec<String>,
    check: &'a Check,
    nodes: Vec<String>,
    fixes: Vec<Fix>,
}

/// A fix, with the chipsets that it is for.
struct Fix {
    /// [`CHIPSET`] stands for the chipset.
    text: String,
    on: Vec<String>,
}

/// Placeholder of the chipset: a character that no text has.
const CHIPSET: &str = "\u{0}";

/// Checks that failed, then checks that are undecided. Chipsets with the same sentence share one problem.
fn problems(verdict: &Verdict) -> Vec<Problem<'_>> {
    let mut found: Vec<Problem<'_>> = Vec::new();
    for outcome in [CheckResult::Fail, CheckResult::Undecided] {
        for (target, check) in verdict.with(outcome) {
            let nodes: Vec<String> = check.nodes.iter().map(|node| node.line()).collect();
            let at = found.iter().position(|known| {
                (known.check.id, &known.check.why, &known.nodes) == (check.id, &check.why, &nodes)
            });
            let at = at.unwrap_or_else(|| {
                found.push(Problem {
                    on: Vec::new(),
                    check,
                    nodes,
                    fixes: Vec::new(),
                });
                found.len() - 1
            });
            let problem = &mut found[at];
            problem.on.push(verdict.name_of(target));
            for fix in check.fixes() {
                problem.add_fix(fix, &target.chipset);
            }
        }
    }
    // Problems that the change caused come first.
    found.sort_by_key(|problem| problem.check.id != change::ID);
    found
}

impl Problem<'_> {
    /// Adds a fix. Fixes that differ only in the chipset become one.
    fn add_fix(&mut self, fix: &str, chipset: &str) {
        let text = match chipset {
            "" => fix.to_owned(),
            chipset => fix.replace(chipset, CHIPSET),
        };
        let at = self.fixes.iter().position(|known| known.text == text);
        let at = at.unwrap_or_else(|| {
            let on = Vec::new();
            self.fixes.push(Fix { text, on });
            self.fixes.len() - 1
        });
        let on = &mut self.fixes[at].on;
        if on.iter().all(|known| known != chipset) {
            on.push(chipset.to_owned());
        }
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "- **{}** {}: {}\n",
            escaped(&self.on.join(", ")),
            escaped(self.check.id),
            with_code(&self.check.why)
        );
        for node in self.nodes.iter().take(SHOWN_NODES) {
            text.push_str(&format!("  - {}\n", with_code(node)));
        }
        if let Some(more @ 1..) = self.nodes.len().checked_sub(SHOWN_NODES) {
            text.push_str(&format!("  - and {more} more\n"));
        }
        for Fix { text: fix, on } in &self.fixes {
            // --soc takes a list without spaces.
            let fix = fix.replace(
                &format!("--soc {CHIPSET}"),
                &format!("--soc {}", on.join(",")),
            );
            let fix = fix.replace(CHIPSET, &on.join(", "));
            text.push_str(&format!("  - Fix: {}\n", with_code(&fix)));
        }
        text
    }
}

fn ending(verdict: &Verdict) -> String {
    let warnings = verdict.with(CheckResult::Warn).count();
    let warnings = match warnings {
        0 => String::new(),
        1 => " One warning is in the reports of the pipeline.".to_owned(),
        n => format!(" {n} warnings are in the reports of the pipeline."),
    };
    let runtimes: BTreeSet<&str> = verdict
        .targets
        .iter()
        .filter_map(|on| on.runtime.as_deref())
        .collect();
    let runtimes: Vec<&str> = runtimes.into_iter().collect();
    let runtimes = match runtimes.as_slice() {
        [] => String::new(),
        all => format!(" Runtime: {}.", escaped(&all.join(", "))),
    };
    format!(
        "\nNot checked: {}.{warnings}{runtimes}\n",
        escaped(&not_checked(verdict))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_out_of_several_chipsets_are_one_line() {
        let check = Check::new("cpu_ops", CheckResult::Fail, "3 nodes");
        let mut problem = Problem {
            on: Vec::new(),
            check: &check,
            nodes: Vec::new(),
            fixes: Vec::new(),
        };
        for chipset in ["SM8650", "SM8635", "SM8635"] {
            problem.add_fix(&format!("Taken by {chipset}: fix --soc {chipset}"), chipset);
            problem.add_fix("Split it.", chipset);
        }
        problem.add_fix("Split it.", "");
        let text = problem.markdown();
        let fixes: Vec<&str> = text.lines().filter(|line| line.contains("Fix")).collect();
        let expected = [
            "  - Fix: Taken by SM8650, SM8635: fix --soc SM8650,SM8635",
            "  - Fix: Split it.",
        ];
        assert_eq!(fixes, expected);
    }

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_505_600, "1,505,600"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
