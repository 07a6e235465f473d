//! `epwatch gate fix`: the rewritten model is on the NPU, and computes the same on the CPU.

use std::{fs, path::Path, process::Command};

use crate::support::{check_ends, check_fails, check_succeeds, epwatch, json};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

fn fix(model: &str, out: &Path, words: &str) -> Command {
    let out = out.display();
    epwatch(&format!("gate fix {MODELS}/{model} --out {out} {words}"))
}

/// Tests all four rules on a quantised model, on chipsets with FP16 and without.
#[test]
fn a_quantised_model_leaves_the_cpu_by_a_rewrite() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let socs = "--soc SM8350,SM8635,SM8650";
    let document = json(&mut fix("forms.qu8.onnx", &out, socs));
    assert_eq!(document["schema"], "epwatch.fix/1");
    let rules: Vec<&str> = document["rewrites"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rewrite| rewrite["from"].as_str().unwrap())
        .collect();
    assert_eq!(
        rules,
        [
            "LayerNormalization, axis 1",
            "Gelu as Div, Erf, Add, Mul, Mul",
            "Einsum",
            "CumSum, reverse",
        ]
    );
    for on in document["chipsets"].as_array().unwrap() {
        assert_eq!(on["before"]["cpu_nodes"], 4, "{on}");
        assert_eq!(on["after"]["cpu_nodes"], 0, "{on}");
        assert_eq!(on["after"]["partitions"], 1, "{on}");
    }
    let share = document["distance"]["share"].as_f64().unwrap();
    assert!(share < 0.05, "{document:#}");
    assert_eq!(document["distance"]["inputs"], 3);
    // The written model is the judged one, and the gate passes it.
    let gate = format!("gate {} {socs}", out.display());
    check_succeeds(&mut epwatch(&gate));
    check_fails(
        &mut fix("forms.qu8.onnx", &out, &format!("{socs} --max-distance 0%")),
        1,
        "--max-distance",
    );
}

/// The weights have a scale for each channel. The LayerNormalization's weights get a single scale, and the transposed
/// Einsum's weights keep theirs.
#[test]
fn weights_with_a_scale_for_each_channel_are_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let document = json(&mut fix(
        "forms_channels.qs8.onnx",
        &out,
        "--soc SM8635,SM8650",
    ));
    assert_eq!(document["rewrites"].as_array().unwrap().len(), 4);
    assert_eq!(document["kept"], serde_json::json!([]));
    for on in document["chipsets"].as_array().unwrap() {
        assert_eq!(on["before"]["cpu_nodes"], 4, "{on}");
        assert_eq!(on["after"]["cpu_nodes"], 0, "{on}");
    }
    assert!(document["distance"]["share"].as_f64().unwrap() < 0.05);
}

/// A model whose weights are in a file next to it keeps them there.
#[test]
fn external_data_stays_outside() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let elsewhere = &mut fix("forms_outside.fp32.onnx", &out, "--soc SM8650");
    check_fails(elsewhere, 2, "write the copy into the folder of the model");
    assert!(!out.exists());
    for name in ["forms_outside.fp32.onnx", "forms_outside.fp32.data"] {
        fs::copy(format!("{MODELS}/{name}"), dir.path().join(name)).unwrap();
    }
    let model = dir.path().join("forms_outside.fp32.onnx");
    let words = format!(
        "gate fix {} --soc SM8650 --max-distance 0.01%",
        model.display()
    );
    let text = check_succeeds(&mut epwatch(&words));
    assert!(text.contains("0 on the CPU, 1 partition"), "{text}");
    let size = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
    let weights = size("forms_outside.fp32.data");
    assert!(size("forms_outside.fp32.npu.onnx") < weights / 4);
}

/// Exact rules change no number, in float and between QuantizeLinear and DequantizeLinear.
#[test]
fn a_float_model_keeps_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let text = check_succeeds(&mut fix(
        "forms.fp32.onnx",
        &out,
        "--soc SM8650 --max-distance 0.01%",
    ));
    for line in [
        "- LayerNormalization /ln",
        "+ Reshape /ln_reshape",
        "+ MatMul /einsum",
        "SM8650    3 on the CPU, 3 partitions  ->  0 on the CPU, 1 partition",
        "written: ",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(out.exists());
}

/// `quantize_static` leaves a LayerNormalization partly in float. SM8350 cannot make a session of it, SM8635 runs it on
/// the CPU, and SM8650 accepts it.
#[test]
fn a_layer_normalization_in_parts_is_rewritten_where_it_is_refused() {
    const GATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gate");
    let socs = "SM8350,SM8635,SM8650";
    for name in ["partly_norm", "partly_channel_norm", "partly_plain_norm"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("fixed.onnx");
        let model = format!("{GATE}/{name}.qu8.onnx");
        let fixed = format!("gate fix {model} --out {} --soc", out.display());
        let taken = &mut epwatch(&format!("{fixed} SM8650"));
        check_fails(taken, 1, "no node computes on the CPU");
        let document = json(&mut epwatch(&format!("{fixed} {socs}")));
        let rewrites = document["rewrites"].as_array().unwrap();
        assert_eq!(rewrites.len(), 1, "{document:#}");
        assert_eq!(rewrites[0]["exact"], false);
        let sides = document["chipsets"].as_array().unwrap();
        let before = sides.iter().map(|on| on["before"]["cpu_nodes"].as_u64());
        assert_eq!(before.collect::<Vec<_>>()[0], None, "{document:#}");
        assert!(sides[1]["before"]["cpu_nodes"].as_u64() > Some(0));
        assert_eq!(sides[2]["before"]["cpu_nodes"], 0);
        for on in sides {
            assert_eq!(on["after"]["cpu_nodes"], 0, "{on}");
            assert_eq!(on["after"]["partitions"], 1, "{on}");
        }
        let share = document["distance"]["share"].as_f64().unwrap();
        assert!(share < 0.05, "{document:#}");
        let gate = format!("gate {} --soc {socs}", out.display());
        check_succeeds(&mut epwatch(&gate));
        // The failed result names the way out.
        let (text, _) = check_ends(&mut epwatch(&format!("gate {model} --soc SM8635")), 1);
        for words in [
            "(quantised in part): ",
            "`epwatch gate fix MODEL --soc SM8635` rewrites it.",
        ] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }
}

#[test]
fn a_session_that_is_not_made_can_be_rewritten_too() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    let words = "--soc SM8350,SM8650 --max-distance 0.01% --json";
    let (text, _) = check_ends(&mut fix("image_norm.fp32.onnx", &out, words), 0);
    assert!(text.contains("\"session\": \"failed\""), "{text}");
    assert!(out.exists());
}

#[test]
fn what_cannot_be_rewritten_says_why_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fixed.onnx");
    for (model, words, code, says) in [
        (
            "a_cnn.qu8.onnx",
            "--soc SM8650",
            1,
            "no node computes on the CPU",
        ),
        (
            "c_cnn_hardmax.fp32.onnx",
            "--soc SM8650",
            1,
            "no rule is about",
        ),
        ("gone.onnx", "--soc SM8650", 2, "gone.onnx"),
        ("a_cnn.qu8.onnx", "--soc SM9999", 2, "SM8650"),
    ] {
        check_fails(&mut fix(model, &out, words), code, says);
        assert!(!out.exists(), "{model}");
    }
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 0, "a temporary file is left");
    let model = dir.path().join("own.onnx");
    fs::copy(format!("{MODELS}/forms.fp32.onnx"), &model).unwrap();
    let own = model.display();
    let same = format!("gate fix {own} --soc SM8650 --out {own}");
    check_fails(&mut epwatch(&same), 2, "another path");
}
