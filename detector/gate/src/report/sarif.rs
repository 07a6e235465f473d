//! SARIF 2.1.0, for code scanning: a result for each op on the CPU that a check failed for.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::not_checked;
use crate::verdict::{Outcome, Verdict};

/// Most results of a run that GitHub takes.
const MOST_RESULTS: usize = 5_000;

/// Returns the verdict's nodes as one SARIF document. A check without nodes is a result on the model.
pub fn sarif(verdict: &Verdict) -> Value {
    let mut results = Vec::new();
    for (level, outcome) in [
        ("error", Outcome::Fail),
        ("error", Outcome::Undecided),
        ("warning", Outcome::Warn),
    ] {
        for (target, check) in verdict.with(outcome) {
            let artifact = json!({"artifactLocation": {"uri": uri(target.file())}});
            let result = |message: String, logical: Vec<Value>| {
                json!({
                    "ruleId": check.id,
                    "level": level,
                    "message": {"text": message},
                    "locations": [{"physicalLocation": artifact, "logicalLocations": logical}],
                })
            };
            let why = format!("{}: {}", target.chipset, check.why);
            if check.nodes.is_empty() {
                results.push(result(why.clone(), Vec::new()));
            }
            for node in &check.nodes {
                let name = match node.name.as_str() {
                    "" => &node.op_type,
                    name => name,
                };
                let full = format!("{}/{name}", target.chipset);
                let logical = json!({"name": name, "kind": "element", "fullyQualifiedName": full});
                results.push(result(format!("{why}. {}", node.line()), vec![logical]));
            }
        }
    }
    results.truncate(MOST_RESULTS);
    let not_checked = format!("not checked: {}", not_checked(verdict));
    let notes = [json!({"level": "note", "message": {"text": not_checked}})];
    let checks = verdict.targets.iter().flat_map(|target| &target.checks);
    let rules: BTreeSet<&str> = checks.map(|check| check.id).collect();
    let rules: Vec<Value> = rules.into_iter().map(|id| json!({"id": id})).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "epwatch gate",
                "semanticVersion": verdict.tool.version,
                "rules": rules,
            }},
            "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notes}],
            "results": results,
        }],
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
