//! `epwatch inspect` with real sessions, compared with the answers of ONNX Runtime's own Python API
//! (`tests/fixtures/placements`, recorded by `tests/fixtures/scripts/record_placements.py`).

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::support::{check_ends, check_fails, check_succeeds, epwatch, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn inspect(model: &str, words: &str) -> Command {
    epwatch(&format!("inspect {FIXTURES}/models/{model}.onnx {words}"))
}

fn chipsets(model: &str, soc: &str) -> Vec<Value> {
    let document = json(&mut inspect(model, &format!("--soc {soc}")));
    document["chipsets"].as_array().unwrap().clone()
}

/// Sorts names and op types of nodes, so that lists of the same nodes are equal.
fn sorted(nodes: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort();
    nodes
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}

#[test]
fn nodes_are_where_the_python_api_says() {
    for (model, recorded) in [
        ("mixed_v2.head32", "mixed_v2"),
        ("a_cnn.qu8", "a_cnn.qu8"),
        ("d_mlp.fp32", "d_mlp.fp32"),
        ("e_topk.qu8", "e_topk.qu8"),
        ("a_cnn_dynbatch.fp32", "a_cnn_dynbatch.fp32"),
        ("odd_names.fp32", "odd_names.fp32"),
        ("if_branches.fp32", "if_branches.fp32"),
        ("no_nodes.fp32", "no_nodes.fp32"),
    ] {
        let chipsets = chipsets(model, "SM8650,68");
        assert_eq!(chipsets[0]["soc_model"], "SM8650");
        assert_eq!(chipsets[1]["soc_model"], "68");
        for (on, chipset) in chipsets.iter().zip(["SM8650", "SM8635"]) {
            let path = format!("{FIXTURES}/placements/{recorded}.{chipset}.json");
            let oracle: Value =
                serde_json::from_slice(&std::fs::read(Path::new(&path)).unwrap()).unwrap();
            assert_eq!(on["chipset"], chipset);
            assert_eq!(on["session"], "ok", "{on:#}");
            assert_eq!(on["source"], "assignment_api");
            assert_eq!(on["requested"], json!(["QNNExecutionProvider"]));
            let eps = oracle["eps"].as_object().unwrap();
            assert_eq!(on["eps"].as_object().unwrap().len(), eps.len());
            for (ep, share) in eps {
                let ours = &on["eps"][ep];
                assert_eq!(ours["nodes"], share["nodes"], "{model} {chipset} {ep}");
                if ep != "CPUExecutionProvider" {
                    assert_eq!(ours["partitions"], share["partitions"], "{model} {chipset}");
                }
            }
            let on_cpu = oracle["nodes"].as_array().unwrap().iter();
            let on_cpu = on_cpu.filter(|node| node["ep"] == "CPUExecutionProvider");
            let named = |node: &Value| (text(node, "name"), text(node, "op_type"));
            let expected = sorted(on_cpu.map(named));
            let ours = sorted(on["cpu_nodes"].as_array().unwrap().iter().map(named));
            assert_eq!(ours, expected, "{model} {chipset}");
        }
    }
}

/// Nodes have reasons and shares of the MACs, and equal placements have equal fingerprints in each run.
#[test]
fn a_fallback_is_explained() {
    let first = chipsets("mixed_v2.head32", "SM8635,SM8650");
    assert_eq!(first, chipsets("mixed_v2.head32", "SM8635,SM8650"));
    let on = &first[0];
    let share = on["eps"]["QNNExecutionProvider"]["macs_share"]
        .as_f64()
        .unwrap();
    assert!((0.73..0.75).contains(&share), "{on:#}");
    let nodes = on["cpu_nodes"].as_array().unwrap();
    let gemm = nodes.iter().find(|node| node["op_type"] == "Gemm").unwrap();
    assert_eq!(gemm["reason"], "fp16_not_supported", "{gemm:#}");
    assert_eq!(gemm["benign"], false);
    let edges = nodes.iter().filter(|node| node["benign"] == true);
    assert!(edges.clone().count() > 0);
    assert!(
        edges
            .into_iter()
            .all(|node| node["reason"] == "edge_quantization")
    );
    assert_ne!(on["fingerprint"], first[1]["fingerprint"]);

    let table = check_succeeds(&mut inspect("mixed_v2.head32", "--soc SM8635,SM8650"));
    assert!(
        table.contains("on the CPU: Gemm head_fc1, 25.4 % of the MACs"),
        "{table}"
    );
    assert!(!table.contains('\u{1b}'), "{table}");
}

#[test]
fn a_session_that_cannot_be_made_is_an_answer() {
    let chipsets = chipsets("c_cnn_hardmax.fp32", "SM8650,SM8635,9999");
    assert_eq!(chipsets[0]["session"], "ok");
    let failed = &chipsets[1];
    assert_eq!(failed["session"], "failed", "{failed:#}");
    assert!(
        failed["error"].as_str().unwrap().contains("NHWC"),
        "{failed:#}"
    );
    // ONNX Runtime's own message names the node.
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("'conv"), "{error}");
    assert_eq!(failed["eps"], json!({}));
    let why = &failed["reasons"][0];
    assert_eq!(why["code"], "layout_not_selected", "{failed:#}");
    assert!(!why["fix"].as_str().unwrap().is_empty());
    // With a number unknown to QNN, the session is made wholly on the CPU.
    let unknown = &chipsets[2];
    assert_eq!(
        (&unknown["chipset"], &unknown["soc_model"]),
        (&json!("unknown"), &json!("9999"))
    );
    assert!(
        unknown["eps"].get("QNNExecutionProvider").is_none(),
        "{unknown:#}"
    );
}

#[test]
fn wrong_use_is_said_before_anything_runs() {
    let (stdout, stderr) = check_ends(&mut inspect("nothing", "--json"), 2);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("MODEL") && stderr.contains("nothing.onnx"),
        "{stderr}"
    );
    for soc in ["SM9999", "SM8650,", "57.0", "-1"] {
        let words = format!("--json --soc {soc}");
        let (stdout, stderr) = check_ends(&mut inspect("a_cnn.qu8", &words), 2);
        assert_eq!(stdout, "", "{soc}");
        assert!(
            stderr.contains("SM8650") || stderr.contains("--help"),
            "{stderr}"
        );
    }
    let broken = format!("--manifest {FIXTURES}/models/a_cnn.qu8.onnx");
    check_fails(&mut inspect("a_cnn.qu8", &broken), 2, "--manifest");
    let other = format!("--manifest {FIXTURES}/models/cnn.qu8.macs.json");
    check_fails(
        &mut inspect("a_cnn.qu8", &other),
        2,
        "it is of another model, with the SHA-256 ",
    );
}

/// Shares come from the model itself, and equal the shares of its own side-car.
#[test]
fn macs_are_counted_from_the_model() {
    let side_car = format!("--soc SM8635 --manifest {FIXTURES}/models/mixed_v2.head32.macs.json");
    let given = json(&mut inspect("mixed_v2.head32", &side_car));
    let counted = chipsets("mixed_v2.head32", "SM8635");
    assert_eq!(counted[0]["eps"], given["chipsets"][0]["eps"]);
    let share =
        &chipsets("e_mixed.q8head32", "SM8635")[0]["eps"]["CPUExecutionProvider"]["macs_share"];
    assert!((share.as_f64().unwrap() - 0.2743).abs() < 1e-4, "{share}");

    let none_on_npu = check_succeeds(&mut inspect("d_mlp.fp32", "--soc SM8635"));
    assert!(none_on_npu.contains(" 0.0 % "), "{none_on_npu}");

    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.json");
    let words = format!(
        "manifest {FIXTURES}/models/a_cnn_dynbatch.fp32.onnx --out {}",
        out.display()
    );
    check_fails(&mut epwatch(&words), 2, "--shape x=1,3,32,32");
    assert!(!out.exists());
    let counted = json(&mut epwatch(&format!("{words} --shape x=2,3,32,32")));
    assert_eq!(counted["total_macs"], 2 * (442_368 + 2 * 1_179_648 + 640));
    let written: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(written, counted);
    let text = check_succeeds(&mut epwatch(&format!("{words} --shape x=1,3,32,32")));
    assert!(text.contains("42.1 %  conv1"), "{text}");
    let readme = format!("manifest {FIXTURES}/README.md --out {}", out.display());
    check_fails(&mut epwatch(&readme), 2, "not a whole ONNX model");
}

/// Tests the exit codes that a pipeline acts on. The document is printed in all cases.
#[test]
fn a_pipeline_fails_on_what_it_names() {
    let model = "mixed_v2.head32";
    let on = |soc: &str, rule: &str| inspect(model, &format!("--soc {soc} --fail-on {rule}"));
    check_succeeds(&mut on("SM8650", "cpu,failed,macs=2%"));
    check_succeeds(&mut on("SM8635", "failed,macs=30%"));
    for (rule, words) in [
        ("cpu", "SM8635: 5 nodes that compute are on the CPU"),
        (
            "failed,macs=2.5%",
            "SM8635: 26.1 % of the MACs are on the CPU",
        ),
    ] {
        let (stdout, stderr) = check_ends(&mut on("SM8650,SM8635", rule), 1);
        assert!(stderr.contains(words), "{stderr}");
        assert!(stdout.contains("SM8635"), "{stdout}");
    }
    let mut failing = inspect("c_cnn_hardmax.fp32", "--soc SM8635 --fail-on cpu");
    check_fails(&mut failing, 1, "SM8635: the session cannot be made");

    for rule in ["", "gpu", "macs=2", "macs=101%", "macs=-1%"] {
        check_ends(&mut on("SM8635", &format!("={rule}")), 2);
    }
    check_succeeds(&mut inspect("a_cnn.qu8", "--soc SM8650 --fail-on macs=2%"));
    let mut symbolic = inspect("a_cnn_dynbatch.fp32", "--fail-on macs=2%");
    check_fails(&mut symbolic, 2, "--shape x=1,3,32,32");
    let mut readme = epwatch(&format!("inspect {FIXTURES}/../../README.md"));
    check_fails(&mut readme, 2, "is not an ONNX model");
    let late = check_ends(&mut inspect(model, "--soc SM8635 --timeout 1ms"), 3);
    assert!(late.1.contains("no session after 1ms"), "{late:?}");
}

/// If the column of shares is empty, the text names the way to fill it.
#[test]
fn a_model_without_its_macs_says_how_they_are_counted() {
    let hint = "--shape x=1,3,32,32";
    let dynamic = "a_cnn_dynbatch.fp32";
    let shown = |model: &str, words: &str| check_succeeds(&mut inspect(model, words));
    assert!(shown(dynamic, "--soc SM8650").contains(hint));
    assert!(!shown("cnn.qu8", "--soc SM8650").contains("NPU MACs:"));
    let counted = shown(dynamic, &format!("--soc SM8650 {hint}"));
    assert!(
        counted.contains("Conv conv1, 42.1 % of the MACs"),
        "{counted}"
    );
    let document = json(&mut inspect(dynamic, "--soc SM8650"));
    assert!(text(&document, "macs_error").contains(hint));
}

/// WebGPU compiles no partition: its nodes run by ONNX Runtime's kernels. ONNX Runtime's API leaves most of them out, so that
/// the log counts. The GPU is a software one.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn an_ep_that_does_not_compile_is_inspected_on_this_machine() {
    let library = epwatch_runtimes::onnxruntime_webgpu();
    let on = |command: &str, model: &str, words: &str| {
        let ort = library.display();
        let model = format!(
            "{}/{model}.onnx",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models")
        );
        let mut command = epwatch(&format!(
            "{command} {model} --ep webgpu --ort {ort} {words}"
        ));
        command.envs(epwatch_runtimes::software_gpu());
        command
    };
    let split = json(&mut on("inspect", "c_cnn_hardmax.fp32", ""))["chipsets"][0].take();
    assert_eq!(split["chipset"], "this machine [WebGPU]");
    let nodes = |ep: &str| &split["eps"][ep]["nodes"];
    let found = (
        nodes("WebGpuExecutionProvider"),
        nodes("CPUExecutionProvider"),
    );
    assert_eq!(found, (&json!(9), &json!(3)), "{split:#}");
    let whole = json(&mut on("inspect", "d_mlp.fp32", ""))["chipsets"][0].take();
    let eps = whole["eps"].as_object().unwrap();
    assert_eq!(eps.len(), 1, "{whole:#}");
    assert_eq!(eps["WebGpuExecutionProvider"]["nodes"], 6);
    check_succeeds(&mut on("inspect", "d_mlp.fp32", "--fail-on cpu"));
    let mut failing = on("inspect", "c_cnn_hardmax.fp32", "--fail-on cpu");
    check_fails(&mut failing, 1, "this machine [WebGPU]: 3 nodes");

    // The gate names the op, and never an NPU. The other model is whole on the GPU.
    let gated = on("gate", "c_cnn_hardmax.fp32", "").output().unwrap();
    let said = String::from_utf8(gated.stdout).unwrap();
    assert!(said.contains("Hardmax hardmax1"), "{said}");
    assert!(
        said.contains("on the GPU") && !said.contains("NPU"),
        "{said}"
    );
    check_succeeds(&mut on("gate", "d_mlp.fp32", ""));
}

/// Intel's EP compiles partitions, like QNN's EP; ONNX Runtime's own kernels have none.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn another_ep_is_inspected_on_this_machine() {
    let model = "c_cnn_hardmax.fp32";
    let on = |words: &str| {
        let mut chipsets = json(&mut inspect(model, words))["chipsets"].take();
        assert_eq!(chipsets.as_array().unwrap().len(), 1);
        chipsets[0].take()
    };
    let openvino = on("--ep openvino --ep-option device_type=CPU");
    assert_eq!(openvino["chipset"], "this machine [OpenVINO]");
    assert_eq!(openvino["requested"], json!(["OpenVINOExecutionProvider"]));
    let npu = &openvino["eps"]["OpenVINOExecutionProvider"];
    assert_eq!((&npu["nodes"], &npu["partitions"]), (&json!(4), &json!(1)));
    assert_eq!(openvino["eps"]["CPUExecutionProvider"]["nodes"], 6);
    let table = check_succeeds(&mut inspect(model, "--ep openvino"));
    assert!(table.contains("OpenVINO nodes"), "{table}");
    assert!(table.contains("on the CPU: Hardmax"), "{table}");
    assert!(!table.contains("NPU") && !table.contains("QNN"), "{table}");
    let mut failing = inspect(model, "--ep openvino --fail-on cpu");
    check_fails(&mut failing, 1, "this machine [OpenVINO]: 6 nodes");

    let cpu = on("--ep cpu");
    assert_eq!(cpu["requested"], json!([]));
    assert_eq!(cpu["eps"].as_object().unwrap().len(), 1, "{cpu:#}");
    assert_eq!(cpu["npu_partitions"], json!([]));
    // The command asks for the CPU, so it gets no advice to ask for QNN's EP.
    assert_eq!(cpu["reasons"], json!([]));

    for (words, expected) in [
        ("--ep openvino --soc SM8650", "--soc names chipsets"),
        ("--ort lib.so", "--ort is for the other EPs"),
        ("--ep openvino --ort no/such.so", "--ort no/such.so"),
        ("--ep xnnpack", "has this EP built in (--ort)"),
    ] {
        check_fails(&mut inspect(model, words), 2, expected);
    }
}
