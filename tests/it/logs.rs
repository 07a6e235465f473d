//! `epwatch logs` over recorded logs, compared with the sessions that wrote them.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::{check_ends, check_fails, check_succeeds, epwatch, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn logs(name: &str, words: &str) -> Command {
    epwatch(&format!("logs {FIXTURES}/logs/{name} {words}"))
}

/// Name, op and reason of each node on the CPU.
fn cpu_nodes(of: &Value) -> BTreeSet<(String, String, String)> {
    let nodes = of["cpu_nodes"].as_array().unwrap().iter();
    let text = |node: &Value, key: &str| node[key].as_str().unwrap().to_owned();
    nodes
        .map(|node| {
            (
                text(node, "name"),
                text(node, "op_type"),
                text(node, "reason"),
            )
        })
        .collect()
}

/// The log alone tells what ONNX Runtime's own interface tells.
#[test]
fn a_log_tells_the_placement_of_its_session() {
    for (log, model, soc) in [
        ("e_topk.qu8.68.verbose.txt", "e_topk.qu8.onnx", "SM8635"),
        ("d_mlp.fp32.68.verbose.txt", "d_mlp.fp32.onnx", "SM8635"),
    ] {
        let document = json(&mut logs(log, ""));
        assert_eq!(document["schema"], "epwatch.logs/1");
        let by_log = &document["sessions"][0];
        let inspect = format!("inspect {FIXTURES}/models/{model} --soc {soc}");
        let inspected = json(&mut epwatch(&inspect));
        let by_session = &inspected["chipsets"][0];
        let found = cpu_nodes(by_log);
        assert!(!found.is_empty(), "{log}: {by_log}");
        assert_eq!(found, cpu_nodes(by_session), "{log}");
        for ep in by_session["eps"].as_object().unwrap().keys() {
            let nodes = |of: &Value| of["eps"][ep]["nodes"].clone();
            assert_eq!(nodes(by_log), nodes(by_session), "{log} {ep}");
        }
        assert_eq!(by_log["chipset"], soc, "{log}");
    }
    let text = check_succeeds(&mut logs("e_topk.qu8.68.verbose.txt", ""));
    assert!(text.starts_with("by text alone"), "{text}");
    assert!(text.contains("on the CPU: TopK"), "{text}");
}

#[test]
fn pasted_lines_tell_what_they_have() {
    let text = check_succeeds(&mut logs("built_in_1_20.logcat.txt", ""));
    assert!(
        text.contains("BatchNormalization") && text.contains("doesn't support dynamic scale"),
        "{text}"
    );
    let text = check_succeeds(&mut logs("built_in_errors.txt", ""));
    assert!(text.contains("is missing or not whole"), "{text}");
    assert!(!text.contains("assignment_api_unavailable"), "{text}");
    assert!(
        text.contains("QNN_DEVICE_ERROR_INVALID_CONFIG") || text.contains("Conv"),
        "{text}"
    );

    // Nothing, bytes that are no text, and a line without an end.
    let mut noise = vec![0xff_u8; 3 << 20];
    noise.extend(b"\n\x1b[31mhello\n");
    for text in [Vec::new(), noise] {
        let mut command = epwatch("logs -");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may have ended before it has read all.
        let _ = child.stdin.take().unwrap().write_all(&text);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(3));
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("log at VERBOSE"), "{said}");
    }
    check_fails(&mut logs("gone.txt", ""), 2, "gone.txt");
    check_ends(&mut epwatch("logs"), 2);
}
