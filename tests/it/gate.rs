//! `epwatch gate` with real sessions on the emulator.

use std::{fs, path::Path, process::Command};

use epwatch_runtimes::{is_nightly, junitparser};
use serde_json::Value;

use crate::support::{EPWATCH, check_ends, check_fails, check_succeeds, epwatch, json};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn gate(model: &str, words: &str) -> Command {
    epwatch(&format!("gate {MODELS}/{model}.onnx {words}"))
}

/// Runs a gate that must end with this code, and returns its document.
fn document(model: &str, words: &str, code: i32) -> Value {
    let (stdout, _) = check_ends(&mut gate(model, &format!("{words} --json")), code);
    serde_json::from_str(&stdout).unwrap()
}

pub(crate) fn check<'a>(target: &'a Value, id: &str) -> &'a Value {
    let checks = target["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap()
}

/// Makes files of launches with 30 runs around this many microseconds. The last `slow` runs take three times as long.
pub(crate) fn launches(dir: &Path, arm: &str, median_us: u64, slow: usize, n: usize) -> String {
    let mut files = String::new();
    for launch in 0..n {
        let run = |i: usize| {
            let us = median_us + 10 * (i as u64 % 7) + launch as u64;
            if i >= 30 - slow { 3 * us } else { us }
        };
        let path = dir.join(format!("{arm}{launch}.json"));
        let runs: Vec<u64> = (0..30).map(run).collect();
        fs::write(&path, serde_json::to_string(&runs).unwrap()).unwrap();
        files.push_str(&format!(" {}", path.display()));
    }
    files
}

#[test]
fn a_model_that_leaves_the_npu_on_one_chipset_fails_there() {
    let found = document("e_mixed.q8head32", "--soc SM8650,SM8635", 1);
    assert_eq!(found["schema"], "epwatch.gate/1");
    assert_eq!(found["result"], "fail");
    assert_eq!(found["not_checked"][0]["id"], "latency");
    let [healthy, ill] = &found["targets"].as_array().unwrap()[..] else {
        panic!("{found:#}");
    };
    assert_eq!(
        (&healthy["chipset"], &ill["chipset"]),
        (&"SM8650".into(), &"SM8635".into())
    );
    assert_eq!(check(healthy, "npu_macs")["result"], "pass");
    // The versions of ONNX Runtime and of the plugin.
    assert_eq!(healthy["runtime"].as_str().unwrap().split('/').count(), 2);
    let macs = check(ill, "npu_macs");
    assert_eq!(macs["result"], "fail");
    assert!(
        (macs["value"].as_f64().unwrap() - 0.7257).abs() < 1e-4,
        "{macs:#}"
    );
    let worst = &macs["nodes"][0];
    assert_eq!(
        (&worst["name"], &worst["op_type"]),
        (&"head_fc1".into(), &"Gemm".into())
    );
    assert_eq!(worst["reason"], "fp16_not_supported");
    assert!(worst["fix"].as_str().unwrap().contains("Quantise"));
    assert_eq!(
        document("e_mixed.qu8", "--soc SM8650,SM8635", 0)["result"],
        "pass"
    );
}

#[test]
fn whole_graphs_on_the_cpu_and_failed_sessions_fail() {
    let whole = "the whole graph is on the CPU";
    check_fails(&mut gate("d_mlp.fp32", "--soc SM8635"), 1, whole);
    // Neither check needs MACs, which a dynamic batch leaves open.
    let found = document("a_cnn_dynbatch.fp32", "--soc SM8650,SM8635", 1);
    for target in found["targets"].as_array().unwrap() {
        let macs = check(target, "npu_macs");
        assert!(macs["why"].as_str().unwrap().contains(whole), "{macs:#}");
        assert_eq!(macs["nodes"][0]["reason"], "dynamic_shape");
    }
    let found = document("c_cnn_hardmax.fp32", "--soc SM8635", 1);
    assert_eq!(found["targets"][0]["checks"].as_array().unwrap().len(), 1);
    assert!(found["targets"][0]["placement"].is_null());
}

#[test]
fn a_second_partition_fails_or_is_by_choice() {
    let found = document("e_topk.qu8", "--soc SM8635 --preset macs-only", 0);
    assert_eq!(check(&found["targets"][0], "partitions")["result"], "warn");
    let found = document("e_topk.qu8", "--soc SM8635", 1);
    assert_eq!(check(&found["targets"][0], "partitions")["result"], "fail");
    assert_eq!(
        check(&found["targets"][0], "cpu_ops")["nodes"][0]["op_type"],
        "TopK"
    );
    let placement = &found["targets"][0]["placement"];
    let sizes = placement["partition_sizes"].as_array().unwrap();
    let sum = |key: &str| {
        sizes
            .iter()
            .map(|size| size[key].as_f64().unwrap())
            .sum::<f64>()
    };
    assert_eq!(
        (sizes.len(), placement["partitions"].as_u64()),
        (2, Some(2))
    );
    let npu = &placement["eps"]["QNNExecutionProvider"];
    assert_eq!(Some(sum("nodes")), npu["nodes"].as_f64());
    assert!((sum("macs_share") - placement["npu_macs"].as_f64().unwrap()).abs() < 1e-9);
    let found = document("e_topk.qu8", "--soc SM8635 --max-partitions 2", 0);
    assert_eq!(check(&found["targets"][0], "cpu_ops")["result"], "warn");
    let found = document("e_topk.qu8", "--soc SM8650,SM8635 --max-partitions 1", 1);
    assert_eq!(check(&found["targets"][0], "partitions")["result"], "pass");
    assert_eq!(check(&found["targets"][1], "partitions")["result"], "fail");
    check_succeeds(&mut gate(
        "e_mixed.q8head32",
        "--soc SM8635 --max-cpu-macs 30%",
    ));
}

/// ONNX Runtime's profile alone shows the same of a session as `inspect` reads.
#[test]
fn profiles_have_the_shares_of_the_same_sessions() {
    let profiles = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/detector/gate/tests/fixtures/profiles"
    );
    for (model, chipset, code) in [
        ("e_mixed.q8head32", "SM8650", 0),
        ("e_mixed.q8head32", "SM8635", 1),
        ("e_mixed.qu8", "SM8650", 0),
        ("e_mixed.qu8", "SM8635", 0),
        ("e_topk.qu8", "SM8650", 0),
        ("e_topk.qu8", "SM8635", 1),
        ("d_mlp.fp32", "SM8635", 1),
        ("d_mlp.fp32", "SM8650", 0),
        ("a_cnn_dynbatch.fp32", "SM8650", 1),
        ("a_cnn_dynbatch.fp32", "SM8635", 1),
    ] {
        let share = |words: &str| {
            let found = document(model, words, code);
            check(&found["targets"][0], "npu_macs")["value"]
                .as_f64()
                .unwrap()
        };
        let inspected = share(&format!("--soc {chipset}"));
        let profiled = share(&format!("--runs {profiles}/{model}.{chipset}.json"));
        assert!(
            (inspected - profiled).abs() < 1e-3,
            "{model} {chipset}: {inspected} {profiled}"
        );
    }
    let other = format!("--runs {profiles}/e_mixed.q8head32.SM8635.json");
    check_fails(&mut gate("d_mlp.fp32", &other), 2, "another model");
}

#[test]
fn bytes_between_npu_and_cpu_are_counted_and_nodes_have_types() {
    let found = document("e_mixed.q8head32", "--soc SM8635", 1);
    let target = &found["targets"][0];
    let crossings = &target["placement"]["crossings"];
    // The image does not count, because it is the graph's own input.
    assert_eq!(crossings["to_npu"]["bytes"], 0, "{crossings:#}");
    assert_eq!(crossings["to_cpu"]["bytes"], 4 * 1_024, "{crossings:#}");
    assert_eq!(check(target, "npu_macs")["nodes"][0]["types"][0], "float");
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    let with = |most: u64| {
        fs::write(
            &policy,
            format!("[placement]\nmin_npu_macs = 0.7\nmax_crossing_bytes = {most}"),
        )
        .unwrap();
        gate(
            "e_mixed.q8head32",
            &format!("--soc SM8635 --policy {}", policy.display()),
        )
    };
    check_succeeds(&mut with(4_096));
    check_fails(&mut with(4_095), 1, "4096 bytes a run");
}

/// With this option QNN also accepts quantisation at the graph's edges.
#[test]
fn options_of_the_ep_are_those_of_the_app() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    fs::write(
        &policy,
        "[placement]\nforbidden_cpu_ops = ['QuantizeLinear']",
    )
    .unwrap();
    let words = format!("--soc SM8650 --policy {}", policy.display());
    check_fails(&mut gate("e_mixed.qu8", &words), 1, "cpu_ops");
    let words = format!("{words} --ep-option offload_graph_io_quantization=0");
    check_succeeds(&mut gate("e_mixed.qu8", &words));
    for wrong in ["soc_model=57", "=1", "a"] {
        check_ends(
            &mut gate("e_mixed.qu8", &format!("--soc SM8650 --ep-option {wrong}")),
            2,
        );
    }
}

/// The report names another form of the op that this chipset accepted in a measurement, if there was one.
#[test]
fn a_refused_op_has_a_measured_way_out() {
    let instead = |soc: &str| {
        let (text, _) = check_ends(&mut gate("c_cnn_hardmax.fp32", &format!("--soc {soc}")), 1);
        text.contains(&format!(
            "Taken by {soc} instead of Hardmax, axis 1 of 4 (float): ReduceMax, Equal, Cast."
        ))
    };
    assert!(instead("SM8650"));
    assert!(!instead("SM8475"));
}

/// `quantize_static` leaves the grid of a GridSample in float, and the first nodes of a Gelu.
#[test]
fn what_a_quantiser_left_in_part_in_float_is_to_be_quantised() {
    let model = |name: &str| format!("gate {FIXTURES}/gate/partly_{name}.qu8.onnx");
    let judged = |name: &str, soc: &str| {
        check_ends(&mut epwatch(&format!("{} --soc {soc}", model(name))), 1).0
    };
    let grid = judged("grid", "SM8635,SM8350");
    for words in [
        "GridSample /grid (uint8, float): layout_not_selected",
        "Taken by SM8635 instead of GridSample (quantised in part): its 8-bit form, as get_qnn_qdq_config",
        "likely by GridSample",
        "Taken by SM8350 instead of GridSample (quantised in part): its 8-bit form",
    ] {
        assert!(grid.contains(words), "{words} is not in {grid}");
    }
    assert!(!grid.contains("quantised already"), "{grid}");
    let gelu = judged("gelu", "SM8650,SM8635");
    for words in [
        "instead of Gelu as Div, Erf, Add, Mul, Mul (quantised in part): Gelu, one node (opset 20). `epwatch gate fix MODEL --soc SM8650`",
        "(quantised in part): Gelu, one node (opset 20) in 8 bits, as get_qnn_qdq_config of ONNX Runtime quantises it. `epwatch gate fix MODEL --soc SM8635`",
    ] {
        assert!(gelu.contains(words), "{words} is not in {gelu}");
    }
    // The command that the report names rewrites the node.
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("fixed.onnx");
    let fix = model("gelu").replace("gate ", "gate fix ");
    let fixed = check_succeeds(&mut epwatch(&format!(
        "{fix} --soc SM8650,SM8635 --out {}",
        out.display()
    )));
    assert!(fixed.contains("0 on the CPU, 1 partition\n"), "{fixed}");
    let green = format!("gate {} --soc SM8650,SM8635", out.display());
    check_ends(&mut epwatch(&green), 0);
}

/// A share of the MACs needs a model with MACs, all of them counted.
#[test]
fn what_has_no_share_of_the_macs_is_told_so_with_a_way_out() {
    let of = |model: &str, code: i32| {
        check_ends(
            &mut epwatch(&format!("gate {FIXTURES}/{model} --soc SM8650")),
            code,
        )
        .0
    };
    let compiled = of("gate/context_sm8650.onnx", 0);
    assert!(
        compiled.contains("no MACs are counted: EPContext"),
        "{compiled}"
    );
    assert!(!compiled.contains("100.0 %"), "{compiled}");
}

/// Op and node are from the model. If the error names none, the ops that the chipset refuses in isolation are suspects.
#[test]
fn a_session_that_is_not_made_names_its_node() {
    let (text, _) = check_ends(&mut gate("forms.fp32", "--soc SM8635,SM8350 --json"), 1);
    let document: Value = serde_json::from_str(&text).unwrap();
    let session = |at: usize| {
        let check = document["targets"][at]["checks"][0].clone();
        assert_eq!(check["id"], "session");
        check
    };
    let named = session(0);
    assert_eq!(named["why"], "no session: Conv /conv was not taken");
    let node = &named["nodes"][0];
    assert_eq!(
        (&node["name"], &node["op_type"]),
        (&"/conv".into(), &"Conv".into())
    );
    assert_eq!(node["reason"], "layout_not_selected");
    assert!(node["fix"].as_str().unwrap().contains("Quantise"), "{node}");
    assert!(
        node["reason_text"]
            .as_str()
            .unwrap()
            .ends_with("was not selected by that EP."),
        "{node}"
    );
    let suspected = session(1);
    assert!(
        suspected["why"].as_str().unwrap().contains("likely by"),
        "{suspected}"
    );
    let nodes = suspected["nodes"].as_array().unwrap();
    let norm = nodes.iter().find(|node| node["name"] == "/ln").unwrap();
    let alternative = norm["alternative"].as_str().unwrap();
    assert!(
        alternative.contains("epwatch gate fix MODEL --soc SM8350"),
        "{norm}"
    );
}

#[test]
fn a_policy_has_limits_and_models_by_chipset() {
    let dir = tempfile::tempdir().unwrap();
    for model in ["e_mixed.q8head32", "e_mixed.qu8"] {
        let file = format!("{model}.onnx");
        fs::copy(Path::new(MODELS).join(&file), dir.path().join(&file)).unwrap();
    }
    let policy = dir.path().join("gate.toml");
    let with = |text: &str| {
        fs::write(&policy, text).unwrap();
        format!("gate --soc SM8650,SM8635 --policy {}", policy.display())
    };
    let variants = "[variants]\nSM8635 = 'e_mixed.qu8.onnx'\ndefault = 'e_mixed.q8head32.onnx'\n";
    let (table, _) = check_ends(&mut epwatch(&with(variants)), 0);
    assert!(table.starts_with("not checked: latency"), "{table}");
    let own = "[chipset.SM8635.placement]\nmin_npu_macs = 0.7\nallowed_cpu_ops = ['Gemm', 'Relu', 'Softmax']\n\
               [variants]\ndefault = 'e_mixed.q8head32.onnx'\n";
    check_fails(
        &mut epwatch(&with(own)),
        1,
        "SM8635: cpu_ops: 1 node on the CPU",
    );
    let allowed = own.replace("'Relu'", "'Relu', 'LayerNormalization'");
    check_succeeds(&mut epwatch(&with(&allowed)));
    let forbidden = format!("[placement]\nforbidden_cpu_ops = ['QuantizeLinear']\n{variants}");
    check_fails(&mut epwatch(&with(&forbidden)), 1, "cpu_ops");

    for (mistake, says) in [
        ("[placement]\nmin_npu_mac = 1", "min_npu_mac"),
        ("[placement]\nmin_npu_macs = 98", "gate.toml"),
        ("[variants]\nSM8653 = 'a.onnx'", "SM8653"),
        ("[chipset.sm8635.placement]", "expected SM8635"),
        (
            "[variants]\nSM8635 = 'e_mixed.qu8.onnx'",
            "no model for SM8650",
        ),
        ("[variants]\ndefault = 'gone.onnx'", "gone.onnx"),
    ] {
        check_fails(&mut epwatch(&with(mistake)), 2, says);
    }
}

/// A policy may be meant for a phone, or for more chipsets than the command line names.
#[test]
fn what_a_policy_asks_for_and_nothing_shows_is_not_green() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    let with = |text: &str, words: &str| {
        fs::write(&policy, text).unwrap();
        gate(
            "e_mixed.qu8",
            &format!("{words} --policy {}", policy.display()),
        )
    };
    for (limit, check) in [
        ("[latency]\nmedian_ms = 10", "median"),
        ("[load]\ncold_ms = 900", "load"),
        ("[outputs]\nmin_cosine = 0.9", "outputs"),
    ] {
        let says = format!("SM8650: {check}: the policy sets");
        check_fails(&mut with(limit, "--soc SM8650"), 3, &says);
    }
    let other = "[chipset.SM8635.placement]\nmin_npu_macs = 0.7";
    let (table, _) = check_ends(&mut with(other, "--soc SM8650"), 0);
    let says = "SM8635 (the policy has limits or a model for it, and nothing here is of it)";
    assert!(table.lines().next().unwrap().contains(says), "{table}");
    let (table, _) = check_ends(&mut with(other, "--soc SM8635"), 0);
    assert!(!table.contains("nothing here is of it"), "{table}");
    // These are launches of a model for which the policy has another file.
    let runs = launches(dir.path(), "any", 8_000, 0, 1);
    let variants = "[latency]\nmedian_ms = 10\n[variants]\nSM8635 = 'other.onnx'";
    let measured = format!("--runs{runs}");
    check_fails(&mut with(variants, &measured), 2, "with --soc");
    let measured = format!("--soc SM8635 --runs{runs}");
    check_fails(&mut with(variants, &measured), 2, "other.onnx");
}

#[test]
fn bad_input_is_never_green() {
    let readme = format!("gate {MODELS}/../README.md --soc SM8650");
    check_fails(&mut epwatch(&readme), 2, "not an ONNX model");
    for words in ["", "--soc SM9999", "--soc SM8650 --max-cpu-macs 2"] {
        check_ends(&mut gate("e_mixed.qu8", words), 2);
    }
    let all_on_cpu = "--soc SM8650 --max-cpu-macs 100%";
    check_succeeds(&mut gate("odd_names.fp32", all_on_cpu));
    for (model, words, says) in [
        ("no_nodes.fp32", "", "no EP has a node"),
        // This model has nodes on both sides, but no MACs to compute a share from.
        ("odd_names.fp32", "", "the model has no MACs"),
        ("e_mixed.qu8", "--timeout 1ms", "no session after 1ms"),
    ] {
        let words = format!("--soc SM8650 {words}");
        check_fails(&mut gate(model, &words), 3, says);
    }
    check_fails(
        &mut gate("e_mixed.qu8", "--soc SM8650 --junit /nonexistent/gate.xml"),
        2,
        "--junit /nonexistent/gate.xml: its folder does not exist; make it first",
    );
}

/// Each report has the failing op, and says first what was not checked. Names of nodes are untrusted text.
#[test]
fn reports_carry_the_failure_and_escape_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let files = format!(
        "--markdown {} --junit {} --sarif {} --annotations",
        path("a.md"),
        path("a.xml"),
        path("a.sarif")
    );
    let (table, _) = check_ends(
        &mut gate("e_mixed.q8head32", &format!("--soc SM8635 {files}")),
        1,
    );
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let annotation = table
        .lines()
        .find(|line| line.starts_with("::error "))
        .unwrap();
    assert!(
        annotation.contains("title=SM8635 npu_macs::72.6 %25"),
        "{annotation}"
    );
    assert!(annotation.contains("head_fc1"), "{annotation}");
    let markdown = read("a.md");
    let (not_checked, failure) = (markdown.find("latency"), markdown.find("head\\_fc1"));
    assert!(not_checked.is_some() && not_checked < failure, "{markdown}");
    let junit = read("a.xml");
    assert!(
        junit.contains("tests=\"7\" failures=\"1\" errors=\"0\" skipped=\"2\""),
        "{junit}"
    );
    // PyPI's junitparser reads the same results.
    const PYTHON: &str = r#"
import sys
sys.path.insert(0, sys.argv[1])
from junitparser import JUnitXml
for suite in JUnitXml.fromfile(sys.argv[2]):
    for case in suite:
        print(suite.name, case.name, *[type(result).__name__ for result in case.result])
"#;
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]).arg(junitparser());
    let parsed = check_succeeds(python.arg(path("a.xml")));
    let parsed: Vec<&str> = parsed.lines().collect();
    assert_eq!(parsed.len(), 7, "{parsed:?}");
    for case in ["latency Skipped", "outputs Skipped", "npu_macs Failure"] {
        assert!(
            parsed.contains(&format!("SM8635 {case}").as_str()),
            "{parsed:?}"
        );
    }
    let sarif: Value = serde_json::from_str(&read("a.sarif")).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let worst = results.iter().find(|r| r["ruleId"] == "npu_macs").unwrap();
    assert_eq!(worst["level"], "error");
    let place = &worst["locations"][0]["logicalLocations"][0];
    assert_eq!(place["fullyQualifiedName"], "SM8635/head_fc1");

    // This model has names of several lines, with markup.
    let (table, _) = check_ends(
        &mut gate("odd_names.fp32", &format!("--soc SM8650 {files}")),
        3,
    );
    assert!(table.contains("Erf /a b\\c'd [U+2028]e (float)"), "{table}");
    assert!(!read("a.md").contains('\u{2028}'));
    assert!(
        table.lines().any(|line| line.starts_with("::error ")),
        "{table}"
    );
}

/// A model with names for all nodes makes the same session.
#[test]
fn a_stamped_copy_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.onnx");
    let model = format!("{MODELS}/odd_names.fp32.onnx");
    let words = format!("manifest {model} --stamp-names {}", copy.display());
    let text = check_succeeds(&mut epwatch(&words));
    assert!(text.contains("nodes named"), "{text}");
    let nodes = |model: &str| {
        let found = json(&mut epwatch(&format!("inspect {model} --soc SM8650")));
        let on = found["chipsets"][0].clone();
        let names: Vec<String> = on["cpu_nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["name"].to_string())
            .collect();
        (on["eps"].clone(), names)
    };
    let (before, after) = (nodes(&model), nodes(&copy.display().to_string()));
    assert_eq!(before.0, after.0);
    assert!(before.1.contains(&"\"\"".to_owned()), "{:?}", before.1);
    assert!(!after.1.contains(&"\"\"".to_owned()), "{:?}", after.1);
    let same = format!("manifest {model} --stamp-names {model}");
    check_fails(&mut epwatch(&same), 2, "another path");
}

/// Files of any size are read event by event, or line by line.
#[test]
fn large_files_take_little_memory() {
    const PYTHON: &str = r#"
import resource, subprocess, sys
command, kind, megabytes, policy = sys.argv[1:]
fill = "x" * 420
if kind == "profile":
    head, row, tail = "[", '{"cat": "Node", "ph": "X", "dur": 9, "name": "%d_kernel_time", "args": {"provider": "CPUExecutionProvider", "fill": "%s"}},\n', '{}]'
    runs = '{"cat": "Session", "ph": "X", "dur": 8210, "name": "model_run", "args": {}},\n' * 40
    rows = lambda at: row % (at % 1000, fill)
else:
    head, tail = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n", ""
    runs = "0,EXECUTE,8210,US,BACKEND,ROOT,QNN (execute) time\n" * 40
    rows = lambda at: "0,BACKEND,8210,US,BACKEND,ROOT,%d%s\n" % (at, fill)
child = subprocess.Popen([command, "gate", "--policy", policy, "--runs", "/dev/stdin"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
child.stdin.write((head + runs).encode())
written, at = 0, 0
while written < int(megabytes) << 20:
    chunk = "".join(rows(at + i) for i in range(1000)).encode()
    at += 1000
    written += len(chunk)
    child.stdin.write(chunk)
child.stdin.write(tail.encode())
child.stdin.close()
code = child.wait()
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"#;
    let megabytes = match is_nightly("profiles and CSVs of 500 MB under `gate --runs`") {
        true => 500,
        false => 16,
    };
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("gate.toml");
    fs::write(&policy, "[latency]\nmedian_ms = 10").unwrap();
    for (kind, code) in [("profile", 1), ("csv", 0)] {
        let mut python = Command::new("python3");
        python
            .args(["-c", PYTHON, EPWATCH, kind, &megabytes.to_string()])
            .arg(&policy);
        let said = check_succeeds(&mut python);
        let mut numbers = said
            .split_whitespace()
            .map(|number| number.parse::<u64>().unwrap());
        // The profile has no node on the NPU, which decides the exit code.
        assert_eq!(numbers.next(), Some(code), "{kind}: {said}");
        let kib = numbers.next().unwrap();
        println!("{kind} of {megabytes} MB: {} MiB of memory", kib >> 10);
        assert!(kib < 64 << 10, "{kind}: {kib} KiB");
    }
}

/// Prints the duration for docs/gate.md. It is not checked, because the machine also does other work.
#[test]
fn seconds_of_a_gate_on_two_chipsets() {
    let began = std::time::Instant::now();
    check_succeeds(&mut gate("e_mixed.qu8", "--soc SM8650,SM8635"));
    println!(
        "gate --soc of two chipsets: {:.1} s",
        began.elapsed().as_secs_f64()
    );
}

/// The texts of a result say OpenVINO, and the rules are the same as for an NPU.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn another_ep_is_judged_in_its_own_words() {
    let found = document("c_cnn_hardmax.fp32", "--ep openvino", 1);
    let target = &found["targets"][0];
    assert_eq!(target["chipset"], "this machine [OpenVINO]");
    assert_eq!(target["runtime"], "ONNX Runtime 1.24.1, OpenVINO");
    let macs = check(target, "npu_macs");
    assert_eq!(macs["result"], "fail", "{macs:#}");
    let why = macs["why"].as_str().unwrap();
    assert!(why.contains("of the MACs on OpenVINO"), "{why}");
    assert_eq!(check(target, "partitions")["result"], "pass");
    assert_eq!(check(target, "cpu_ops")["result"], "warn");
    let text = found.to_string();
    assert!(!text.contains("NPU"), "{found:#}");

    let whole = document("d_mlp.fp32", "--ep openvino", 0);
    let macs = check(&whole["targets"][0], "npu_macs");
    assert_eq!(macs["value"], 1.0, "{macs:#}");
    let before = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/models/d_mlp.fp32.onnx"
    );
    let words = format!("--ep openvino --baseline {before} --max-cpu-macs 100%");
    let found = document("c_cnn_hardmax.fp32", &words, 1);
    let change = check(&found["targets"][0], "placement_change");
    assert_eq!(change["result"], "fail", "{change:#}");

    for (words, expected) in [
        ("--ep cpu", "no accelerator"),
        ("--ep openvino --soc SM8650", "--soc names chipsets"),
        ("--ep qnn", "give --soc"),
        ("--ep xnnpack", "has this EP built in (--ort)"),
    ] {
        check_fails(&mut gate("d_mlp.fp32", words), 2, expected);
    }
}
