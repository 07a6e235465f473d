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

/// The log alone gives the same data as ONNX Runtime's own interface.
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

    // The inputs are empty, or bytes that are not text, and a very long line.
    let mut noise = vec![0xff_u8; 3 << 20];
    noise.extend(b"\n\x1b[31mhello\n");
    for text in [Vec::new(), noise] {
        let mut command = epwatch("logs -");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(&text);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(3));
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("log at VERBOSE"), "{said}");
    }
    check_fails(&mut logs("gone.txt", ""), 2, "gone.txt");
    check_ends(&mut epwatch("logs"), 2);
}

/// A log of `fixtures/logs/cases`: the expected text of each session, and words that no session may have.
struct Case {
    log: &'static str,
    sessions: &'static [&'static [&'static str]],
    never: &'static [&'static str],
}

const CASES: [Case; 22] = [
    Case {
        log: "skel4000.logcat",
        sessions: &[&[
            "Failed to load skel, error: 4000",
            "device_creation_failed: The NPU's device could not be opened",
            "1. skel_library_missing (seen here):",
            "2. native_library_not_declared:",
            "3. qnn_versions_differ:",
        ]],
        never: &[
            "soc_model_unknown: The",
            "Leave soc_model out, or ship a QNN version that knows the chipset. S",
        ],
    },
    Case {
        log: "fastrpc.logcat",
        sessions: &[&[
            "1. skel_library_missing (seen here):",
            "2. native_library_not_declared (seen here):",
            "<uses-native-library",
        ]],
        never: &["soc_model_unknown: The"],
    },
    Case {
        log: "retry_cpu.txt",
        sessions: &[
            &[
                "device_creation_failed:",
                "cpu_fallback_forbidden: The session forbids the CPU",
            ],
            &["CPUExecutionProvider: nodes 55"],
        ],
        never: &["ep_not_requested", "soc_model_unknown: The"],
    },
    Case {
        log: "all_qnn.txt",
        sessions: &[&["233 of 233 nodes on the NPU in 1 partition, none on the CPU"]],
        never: &["missing or not whole", "total fallback"],
    },
    Case {
        log: "capability_only.txt",
        sessions: &[&["190 of 233 nodes on the NPU in 4 partitions, 43 on the CPU"]],
        never: &["missing or not whole", "total fallback"],
    },
    Case {
        log: "capability_zero.txt",
        sessions: &[&["0 of 233 nodes on the NPU in 0 partitions, 233 on the CPU: total fallback"]],
        never: &["missing or not whole"],
    },
    Case {
        log: "run6031.txt",
        sessions: &[&[
            "failed when it ran: QNN_77121_4, QNN error 6031",
            "run_failed: Create the session again; if it fails again, keep this model off the NPU",
        ]],
        never: &["missing or not whole"],
    },
    Case {
        log: "run1100.txt",
        sessions: &[&["failed when it ran: QNN_77121_4, QNN error 1100"]],
        never: &["missing or not whole"],
    },
    Case {
        log: "ssr.txt",
        sessions: &[&["QNN error 1007", "dsp_restarted: Create the session again"]],
        never: &["run_failed"],
    },
    Case {
        log: "strict_unsupported.txt",
        sessions: &[&[
            "on the CPU: BatchNormalization seg/dec2/bn_41/FusedBN",
            "on the CPU: BatchNormalization seg/dec1/bn_40/FusedBN",
            "on the CPU: ArgMax seg/head/argmax",
            "cpu_fallback_forbidden:",
        ]],
        never: &[],
    },
    Case {
        log: "strict_only.txt",
        sessions: &[&["cpu_fallback_forbidden:"]],
        never: &[],
    },
    Case {
        log: "three_cpu.txt",
        sessions: &[
            &["CPUExecutionProvider: nodes 120"],
            &["CPUExecutionProvider: nodes 30"],
            &["CPUExecutionProvider: nodes 4"],
        ],
        never: &["ep_not_requested"],
    },
    Case {
        log: "two_processes.logcat",
        sessions: &[
            &["30 of 30 nodes on the NPU in 1 partition, none on the CPU"],
            &["0 of 12 nodes on the NPU"],
        ],
        never: &[],
    },
    Case {
        log: "utf16.logcat",
        sessions: &[&["on the CPU: TopK /head/TopK"]],
        never: &[],
    },
    Case {
        log: "list_only.txt",
        sessions: &[&[
            "2 partitions on the NPU, 1 on the CPU (by ONNX Runtime's list",
            "on the CPU: LayerNormalization /model.5/LayerNormalization",
        ]],
        never: &["missing or not whole"],
    },
    Case {
        log: "validator_warning.txt",
        sessions: &[&["on the CPU: Hardmax /head/Hardmax: op_not_supported:"]],
        never: &[],
    },
    Case {
        log: "own_tag.logcat",
        sessions: &[&[
            "QNNExecutionProvider: nodes 1, partitions 1",
            "on the CPU: TopK /head/TopK: op_config_rejected: Failed to add node.",
        ]],
        never: &["missing or not whole"],
    },
    Case {
        log: "plugin_without_qnn.txt",
        sessions: &[&["ep_not_available:"]],
        never: &[],
    },
    Case {
        log: "own_warning.txt",
        sessions: &[&[
            "some nodes are on the CPU, says ONNX Runtime; log at VERBOSE (severity 0) while the session is made to see which",
        ]],
        never: &["of unknown origin"],
    },
    Case {
        log: "pasted.txt",
        sessions: &[&[
            "23 of 30 nodes on the NPU, 7 on the CPU (by a pasted line of unknown origin)",
            "of unknown origin (fallback): Fallback to CPU: GridSample_12",
            "of unknown origin (fusing): Fusing operation Conv + Relu",
            "of unknown origin (quantization): Quantization params:",
        ]],
        never: &["missing or not whole"],
    },
    Case {
        log: "pasted_parts.txt",
        sessions: &[&[
            "23 of 30 nodes on the NPU, 7 on the CPU (by a pasted line of unknown origin)",
            "of unknown origin (summary): QNN: 76.7 %, CPU: 23.3 %",
        ]],
        never: &["missing or not whole", "usage"],
    },
    Case {
        log: "pasted_percent.txt",
        sessions: &[&["of unknown origin (summary): NPU 76.7 percent, CPU 23.3 percent"]],
        never: &["missing or not whole", "nodes on the NPU"],
    },
];

#[test]
fn each_form_that_people_paste_is_read() {
    for Case {
        log,
        sessions,
        never,
    } in &CASES
    {
        let text = check_succeeds(&mut logs(&format!("cases/{log}"), ""));
        let found: Vec<&str> = text.split("\nsession ").skip(1).collect();
        assert_eq!(found.len(), sessions.len(), "{log}: {text}");
        for (said, expected) in found.iter().zip(*sessions) {
            for words in *expected {
                assert!(said.contains(words), "{log}: {words:?} is not in {said}");
            }
        }
        for words in *never {
            assert!(!text.contains(words), "{log}: {words:?} is in {text}");
        }
        let document = json(&mut logs(&format!("cases/{log}"), ""));
        let n = document["sessions"].as_array().unwrap().len();
        assert_eq!(n, sessions.len(), "{log}");
    }
    let counts = json(&mut logs("cases/pasted.txt", ""))["sessions"][0]["counts"].clone();
    assert_eq!(counts["source"], "pasted");
    assert_eq!(
        (&counts["npu_nodes"], &counts["cpu_nodes"]),
        (&23.into(), &7.into())
    );
    let run = json(&mut logs("cases/run6031.txt", ""))["sessions"][0]["run_errors"][0].clone();
    assert_eq!(
        (&run["code"], &run["reason"]),
        (&6031.into(), &"run_failed".into())
    );
}

/// A log without a row in the table would prove nothing.
#[test]
fn each_pasted_log_has_a_row() {
    let folder = std::fs::read_dir(format!("{FIXTURES}/logs/cases")).unwrap();
    let files = folder.map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files.filter(|name| name != "README.md").collect();
    let rows: BTreeSet<String> = CASES.iter().map(|case| case.log.to_owned()).collect();
    assert_eq!(files, rows);
    let readme = std::fs::read_to_string(format!("{FIXTURES}/logs/cases/README.md")).unwrap();
    for file in files {
        assert!(readme.contains(&format!("`{file}`")), "{file}");
    }
}
