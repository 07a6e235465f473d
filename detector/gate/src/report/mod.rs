//! Reports of a verdict, each as one text. Names of nodes come from a stranger's model, so each report escapes them.

pub mod annotations;
pub mod comment;
mod escape;
pub mod junit;
pub mod markdown;
pub mod sarif;
pub mod table;

use epwatch_proto::visible;

use crate::{
    run::Unit,
    verdict::{NotChecked, Target, Verdict},
};

/// Maximum number of nodes of a check in a report for people; the JSON has all.
const SHOWN_NODES: usize = 10;

/// Returns the text on one line, with each invisible character written as its code point.
fn clean(text: &str) -> String {
    visible(&text.replace(['\n', '\r', '\t'], " "))
}

/// For example `latency (an emulator's run times mean nothing)`.
fn not_checked(verdict: &Verdict) -> String {
    let each = verdict.not_checked.iter();
    let each = each.map(|NotChecked { id, why }| format!("{id} ({why})"));
    // Some of these ids are rows of a stranger's table, so they are cleaned.
    clean(&each.collect::<Vec<_>>().join(", "))
}

/// Number of nodes of a profile that a report for people names; the JSON has more.
const SHOWN_SHARES: usize = 3;

/// What launches show and no limit judges: what they asked for, how a compiled graph starts, and which nodes take longest.
fn facts(target: &Target) -> Vec<(&'static str, String)> {
    let mut facts = vec![("asked for", target.asked_for.join("; "))];
    let is_off_npu = target.mistakes.iter().any(|one| one.id == "cpu_latency");
    let load = target.load.filter(|_| !is_off_npu).unwrap_or_default();
    if let (Some(cold), Some(warm)) = (load.cold_ms, load.warm_ms) {
        let text =
            format!("{cold:.1} ms with nothing cached, {warm:.1} ms from the compiled graph");
        facts.push(("starts", text));
    }
    if let Some(profile) = &target.profile {
        let nodes = profile.nodes.iter().take(SHOWN_SHARES);
        let nodes = nodes.map(|node| {
            let share = 100.0 * node.share;
            match Unit::of_ep(&node.ep) {
                // Its name is a number.
                Unit::Npu => format!("a partition on the NPU {share:.1} %"),
                _ => format!("{} {} {share:.1} %", node.op_type, node.name),
            }
        });
        let (nodes, files) = (nodes.collect::<Vec<_>>(), &profile.files);
        let parts = [nodes.join(", "), files.join(", ")];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        facts.push(("profile", parts.collect::<Vec<_>>().join("; ")));
    }
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Check, CheckResult, FailingNode, GatedModel};

    fn node(name: &str, fix: &str, alternative: Option<&str>) -> FailingNode {
        FailingNode {
            name: name.to_owned(),
            op_type: "LayerNormalization".to_owned(),
            types: vec!["uint8".to_owned()],
            reason: "op_config_rejected".to_owned(),
            reason_text: Some("only the last axis".to_owned()),
            macs_share: None,
            time: None,
            fix: Some(fix.to_owned()),
            alternative: alternative.map(ToOwned::to_owned),
        }
    }

    /// A verdict on two chipsets. The two checks of the first name the same nodes.
    fn verdict() -> Verdict {
        let target = |chipset: &str, session: bool| {
            let nodes = || {
                vec![
                    node(
                        "ln 1",
                        "read the sentence",
                        Some("Reshape to one last axis"),
                    ),
                    node("ln 2", "split the graph", None),
                ]
            };
            let check = |id, result| {
                let mut check = Check::new(id, result, "3 nodes are on the CPU");
                check.nodes = nodes();
                check
            };
            let checks = match session {
                true => vec![
                    check("partitions", CheckResult::Fail),
                    check("cpu_ops", CheckResult::Warn),
                ],
                false => vec![check("session", CheckResult::Fail)],
            };
            Target {
                chipset: chipset.to_owned(),
                model: Some(GatedModel {
                    path: "m.onnx".to_owned(),
                    sha256: String::new(),
                    data: Vec::new(),
                }),
                source: "emulator",
                checks,
                ..Target::default()
            }
        };
        let targets = vec![target("SM8650", true), target("SM8635", false)];
        Verdict::new("1", None, Vec::new(), targets)
    }

    /// A reader of a single report must find the fix in it.
    #[test]
    fn each_report_carries_each_fix() {
        let verdict = verdict();
        let reports = [
            ("table", table::table(&verdict, None)),
            ("markdown", markdown::markdown(&verdict)),
            ("junit", junit::junit(&verdict)),
            ("sarif", sarif::sarif(&verdict).to_string()),
            ("annotations", annotations::annotations(&verdict)),
            ("json", serde_json::to_string(&verdict).unwrap()),
        ];
        for (name, report) in reports {
            for words in ["split the graph", "Reshape to one last axis"] {
                // The fix is there for both chipsets, although one has no session.
                let n = report.matches(words).count();
                assert!(n >= 2, "{name} has {words:?} {n} times: {report}");
            }
            // A measured form replaces the general advice, except in JSON.
            let has_both = report.contains("read the sentence");
            assert_eq!(has_both, name == "json", "{name}: {report}");
            assert!(
                report.contains("LayerNormalization ln 1") || name == "json",
                "{report}"
            );
        }
    }

    #[test]
    fn reports_for_people_say_what_launches_asked_for() {
        let mut verdict = verdict();
        let words = "PREFER_NPU (QNN); QNN";
        assert!(!table::table(&verdict, None).contains("asked for"));
        verdict.targets[0].asked_for = words.split("; ").map(ToOwned::to_owned).collect();
        let table = table::table(&verdict, None);
        assert!(table.contains(&format!("asked for {words}")), "{table}");
        let markdown = markdown::markdown(&verdict);
        assert!(markdown.contains("asked for: PREFER"), "{markdown}");
    }

    #[test]
    fn a_sentence_that_is_the_nodes_before_is_not_repeated() {
        let table = table::table(&verdict(), None);
        let lines = table.matches("LayerNormalization ln 2 (uint8): as above\n");
        assert_eq!(lines.count(), 3, "{table}");
        assert_eq!(table.matches("only the last axis").count(), 3, "{table}");
    }

    #[test]
    fn sarif_names_a_node_once_a_target_and_its_rules_have_texts() {
        let sarif = sarif::sarif(&verdict());
        let run = &sarif["runs"][0];
        let results = run["results"].as_array().unwrap();
        let places: Vec<&str> = results
            .iter()
            .map(|one| {
                one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
                    .as_str()
                    .unwrap()
            })
            .collect();
        assert_eq!(
            places,
            ["SM8650/ln 1", "SM8650/ln 2", "SM8635/ln 1", "SM8635/ln 2"]
        );
        let prints: std::collections::BTreeSet<&str> = results
            .iter()
            .map(|one| {
                one["partialFingerprints"]["epwatchNode/v1"]
                    .as_str()
                    .unwrap()
            })
            .collect();
        assert_eq!(prints.len(), results.len());
        assert!(results.iter().all(|one| one["level"] == "error"));
        assert_eq!(
            results[0]["locations"][0]["physicalLocation"]["region"]["startLine"],
            1
        );
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        let ids: Vec<&str> = rules
            .iter()
            .map(|rule| rule["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["cpu_ops", "partitions", "session"]);
        for rule in rules {
            for text in ["shortDescription", "fullDescription", "help"] {
                assert!(
                    rule[text]["text"].as_str().unwrap().ends_with('.'),
                    "{rule}"
                );
            }
        }
    }

    #[test]
    fn a_name_of_a_node_hides_nothing_and_stays_on_its_line() {
        let name = "a\nb\u{200b}\u{2060}\u{feff}\u{e0041}\u{202e}\u{1b}c";
        assert_eq!(
            clean(name),
            "a b[U+200B][U+2060][U+FEFF][U+E0041][U+202E][U+001B]c"
        );
    }
}
