//! SARIF 2.1.0, for code scanning: a result for each op on the CPU that a check failed for.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::not_checked;
use crate::verdict::{CheckResult, Verdict};

/// Maximum number of results that GitHub accepts in a run.
const MOST_RESULTS: usize = 5_000;

/// Name of the tool in the document, by which an earlier report is recognised.
pub const TOOL: &str = "epwatch gate";
/// JSON pointer to this name in the document.
pub const TOOL_AT: &str = "/runs/0/tool/driver/name";

/// Returns the verdict's nodes as one SARIF document. A check without nodes is a result on the model. If several checks
/// of a target name a node, it is one result, under the gravest check.
pub fn sarif(verdict: &Verdict) -> Value {
    let mut results = Vec::new();
    let mut told = BTreeSet::new();
    for (level, outcome) in [
        ("error", CheckResult::Fail),
        ("error", CheckResult::Undecided),
        ("warning", CheckResult::Warn),
    ] {
        for (target, check) in verdict.with(outcome) {
            // A model file has no lines, but readers of SARIF need a region.
            let artifact = json!({
                "artifactLocation": {"uri": uri(target.file())},
                "region": {"startLine": 1},
            });
            let result = |message: String, print: String, logical: Vec<Value>| {
                json!({
                    "partialFingerprints": {"epwatchNode/v1": print},
                    "ruleId": check.id,
                    "level": level,
                    "message": {"text": message},
                    "locations": [{"physicalLocation": artifact, "logicalLocations": logical}],
                })
            };
            let on = verdict.name_of(target);
            let why = format!("{on}: {}", check.why);
            if check.nodes.is_empty() {
                let print = format!("{on}/{}", check.id);
                results.push(result(why.clone(), print, Vec::new()));
            }
            for node in &check.nodes {
                if !told.insert((&target.chipset, target.file(), &node.op_type, &node.name)) {
                    continue;
                }
                let name = match node.name.as_str() {
                    "" => &node.op_type,
                    name => name,
                };
                let full = format!("{on}/{name}");
                let logical = json!({"name": name, "kind": "element", "fullyQualifiedName": full});
                let fix = node.way_out().map(|fix| format!(" Fix: {fix}"));
                let message = format!("{why}. {}{}", node.line(), fix.unwrap_or_default());
                let print = format!("{full}/{}", node.op_type);
                results.push(result(message, print, vec![logical]));
            }
        }
    }
    results.truncate(MOST_RESULTS);
    let not_checked = format!("not checked: {}", not_checked(verdict));
    let notes = [json!({"level": "note", "message": {"text": not_checked}})];
    let checks = verdict.targets.iter().flat_map(|target| &target.checks);
    let rules: BTreeSet<&str> = checks.map(|check| check.id).collect();
    let rules: Vec<Value> = rules.into_iter().map(rule).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": TOOL,
                "semanticVersion": verdict.tool.version,
                "rules": rules,
            }},
            "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notes}],
            "results": results,
        }],
    })
}

/// A check as a rule, with its text and help.
fn rule(id: &str) -> Value {
    let (short, help) = match id {
        "session" => (
            "A session can be made on the chipset.",
            "Read the node and its reason: the message has the way out.",
        ),
        "npu_macs" => (
            "The NPU has nearly all of the model's work.",
            "Quantise or replace the nodes that the message names.",
        ),
        "partitions" => (
            "The NPU has the model in one piece.",
            "Replace the node between two partitions: each crossing costs time in every run.",
        ),
        "cpu_ops" => (
            "No op computes on the CPU that the policy does not allow there.",
            "Replace the op, or allow it in allowed_cpu_ops on purpose.",
        ),
        "crossings" => (
            "Few bytes go between NPU and CPU.",
            "Replace the node at the crossing, or cross where tensors are small.",
        ),
        "placement_change" => (
            "The model keeps on the NPU what its predecessor had there.",
            "Look for the op that is new on the CPU.",
        ),
        "layers" => (
            "No more layers are off the NPU than before.",
            "Look for the layer that is new there.",
        ),
        "regression" => (
            "The model is not slower than its predecessor.",
            "Compare the placements first, then the launches one by one.",
        ),
        "slow_phases" => (
            "Runs do not fall into a fast and a slow group.",
            "Look for heat, the governor, and sessions that are made again.",
        ),
        "npu_used" => (
            "A node ran on the NPU.",
            "Check that the session asks for the EP, and that it starts (`epwatch logs`).",
        ),
        "median" | "p95" | "late" | "cv" | "load" => (
            "Run and load times keep the policy's limits.",
            "Measure more launches on a cool device, or change the model or the limit.",
        ),
        "outputs" => (
            "The outputs are near those that the model is meant to have.",
            "Run with inner outputs exposed to find the first op that differs.",
        ),
        _ => ("A check of the gate.", "docs/gate.md has what it looks at."),
    };
    let id_and_help = format!("{help} docs/gate.md describes the check {id}.");
    json!({
        "id": id,
        "name": id,
        "shortDescription": {"text": short},
        "fullDescription": {"text": short},
        "help": {"text": id_and_help},
    })
}

/// A path as a relative reference: bytes outside the unreserved ones are percent-encoded.
fn uri(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
