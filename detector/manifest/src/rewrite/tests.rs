//! Tests rewrites of small models. `tests/it/gate_fix.rs` compares their outputs and placements with real runtimes.

use std::path::PathBuf;

use super::*;
use crate::{graph_facts, manifest_of};

fn fixture(name: &str) -> PathBuf {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
    Path::new(models).join(name)
}

/// Returns the rewritten model in a temporary folder.
#[track_caller]
fn rewritten(name: &str) -> (Rewritten, tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.onnx");
    let found = rewrite(&fixture(name), &copy, &[], |_| true).unwrap();
    (found, folder, copy)
}

fn rules(found: &Rewritten) -> Vec<&'static str> {
    found.rewrites.iter().map(|rewrite| rewrite.from).collect()
}

const ALL: [&str; 4] = [
    "LayerNormalization, axis 1",
    "Gelu as Div, Erf, Add, Mul, Mul",
    "Einsum",
    "CumSum, reverse",
];

#[test]
fn each_form_is_rewritten_in_float_and_quantised() {
    for (name, is_quantised) in [("forms.fp32.onnx", false), ("forms.qu8.onnx", true)] {
        let (found, _folder, copy) = rewritten(name);
        assert_eq!(rules(&found), ALL, "{name}: {found:?}");
        assert!(found.kept.is_empty(), "{found:?}");
        let facts = graph_facts(&copy, &[]).unwrap();
        let ops: Vec<(&str, &str)> = facts.forms().map(|(name, op, _)| (name, op)).collect();
        for gone in ["Erf", "Einsum", "CumSum", "Div"] {
            assert!(ops.iter().all(|(_, op)| *op != gone), "{ops:?}");
        }
        for (node, op) in [
            ("/ln", "LayerNormalization"),
            ("/gelu/Erf", "Gelu"),
            ("/einsum", "MatMul"),
            ("/cumsum", "MatMul"),
        ] {
            assert!(ops.contains(&(node, op)), "{ops:?}");
            let form = facts.form(node).unwrap();
            assert_eq!(form.is_quantised, is_quantised, "{node}: {form:?}");
        }
        assert_eq!(
            facts.form("/ln").unwrap().titles,
            ["LayerNormalization, last axis"]
        );
        // Nothing is left to rewrite, and the copy's shapes can still be computed.
        let again = copy.with_extension("again.onnx");
        let second = rewrite(&copy, &again, &[], |_| true).unwrap();
        assert!(second.rewrites.is_empty() && !again.exists(), "{second:?}");
        let macs = |path: &Path| manifest_of(path, &[]).unwrap().side_car.total_macs;
        // A CumSum has no MACs, but the MatMul that replaces it has.
        assert!(macs(&copy) >= macs(&fixture(name)), "{name}");
    }
}

#[test]
fn only_wanted_nodes_are_rewritten_and_a_gelu_by_its_erf() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.onnx");
    let model = fixture("forms.qu8.onnx");
    let found = rewrite(&model, &copy, &[], |name| name == "/ln").unwrap();
    assert_eq!(rules(&found), ["LayerNormalization, axis 1"]);
    let [ln] = &found.rewrites[..] else { panic!() };
    assert!(ln.is_exact);
    assert_eq!(ln.removed, ["LayerNormalization /ln"]);
    let ops: Vec<&str> = ln
        .added
        .iter()
        .map(|node| node.split(' ').next().unwrap())
        .collect();
    let pair = ["QuantizeLinear", "DequantizeLinear"];
    let expected = [
        &["Reshape"][..],
        &pair,
        &["LayerNormalization"],
        &pair,
        &["Reshape"],
    ]
    .concat();
    assert_eq!(ops, expected);
    let found = rewrite(&model, &copy, &[], |name| name == "/gelu/Add").unwrap();
    assert!(found.rewrites.is_empty());
}

/// The copy has the same weights and data as the model.
#[test]
fn weights_are_kept_byte_by_byte() {
    let (_, _folder, copy) = rewritten("forms.fp32.onnx");
    let (before, after) = (
        std::fs::read(fixture("forms.fp32.onnx")).unwrap(),
        std::fs::read(&copy).unwrap(),
    );
    // The LayerNormalization's scale is the longest weight; its 8 KiB must be in both files.
    let chunk = before
        .windows(8)
        .position(|w| w == b"ln_w\x4a\x80\x40" || w.starts_with(b"ln_w\x4a\x80\x40"));
    let at = chunk.expect("the weight's data follows its name") + 7;
    let data = &before[at..at + 8 * 16 * 16 * 4];
    assert!(after.windows(data.len()).any(|window| window == data));
}

/// Scales by channel follow the rows of a transposed weight. They become a single scale if the weight has no channels
/// any more.
#[test]
fn weights_with_a_scale_for_each_channel_are_rewritten() {
    let (found, _folder, copy) = rewritten("forms_channels.qs8.onnx");
    assert_eq!(rules(&found), ALL, "{found:?}");
    assert!(found.kept.is_empty(), "{found:?}");
    let exact: Vec<bool> = found.rewrites.iter().map(|one| one.is_exact).collect();
    assert_eq!(exact, [false, false, true, true]);
    let weight = |path: &Path, name| data::weight(path, name).unwrap().unwrap();
    let before = weight(&fixture("forms_channels.qs8.onnx"), "einsum_w_quantized");
    let after = weight(&copy, "einsum_w_quantized_transposed");
    assert_eq!(
        (&before.dims[..], &after.dims[..]),
        (&[32, 256][..], &[256, 32][..])
    );
    assert_eq!(after.bytes[1], before.bytes[256]);
    let mut gone = found.rewrites[0].removed.iter();
    assert!(
        gone.any(|node| node == "DequantizeLinear ln_w_DequantizeLinear"),
        "{found:?}"
    );
    let facts = graph_facts(&copy, &[]).unwrap();
    let dequantizes = facts.forms().filter(|(_, op, _)| *op == "DequantizeLinear");
    let names: Vec<&str> = dequantizes.map(|(name, ..)| name).collect();
    assert!(
        names.contains(&"einsum_w_quantized_transposed_DequantizeLinear"),
        "{names:?}"
    );
}

/// External weights stay in their file, where the copy finds them.
#[test]
fn external_data_stays_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, copy) = (
        folder.path().join("m.onnx"),
        folder.path().join("copy.onnx"),
    );
    std::fs::copy(fixture("forms_outside.fp32.onnx"), &model).unwrap();
    let weights = folder.path().join("forms_outside.fp32.data");
    std::fs::copy(fixture("forms_outside.fp32.data"), &weights).unwrap();
    let found = rewrite(&model, &copy, &[], |_| true).unwrap();
    assert_eq!(rules(&found), ALL, "{found:?}");
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert!(size(&copy) < size(&weights) / 4, "{}", size(&copy));
    let text = std::fs::read(&copy).unwrap();
    assert!(
        text.windows(23)
            .any(|part| part == b"forms_outside.fp32.data")
    );
    // A copy in another folder would not find them.
    let elsewhere = tempfile::tempdir().unwrap().path().join("copy.onnx");
    let error = rewrite(&model, &elsewhere, &[], |_| true).unwrap_err();
    assert!(matches!(error, ManifestError::ExternalData), "{error}");
}

#[path = "../../../../tests/fuzz/seeds.rs"]
mod seeds;

#[test]
fn no_model_of_a_stranger_breaks_a_rewrite() {
    seeds::check("onnx_rewrite", 60, crate::fuzz::rewrite);
}

#[test]
fn an_instance_normalization_is_rewritten_in_float() {
    let (found, _folder, copy) = rewritten("image_norm.fp32.onnx");
    assert_eq!(rules(&found), ["InstanceNormalization"]);
    let facts = graph_facts(&copy, &[]).unwrap();
    assert_eq!(
        facts.form("/norm").unwrap().titles,
        ["LayerNormalization, last axis"]
    );
}

/// Seven of nine nodes are in float. The bias stays an Add, and the weight of a channel becomes flat.
#[test]
fn a_layer_normalization_in_parts_becomes_one_node() {
    const LAST: &str = "LayerNormalization as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add";
    const CHANNELS: &str =
        "LayerNormalization over the channels as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add";
    for (name, from, to) in [
        ("partly_norm", LAST, "LayerNormalization, one node"),
        (
            "partly_channel_norm",
            CHANNELS,
            "Transpose, LayerNormalization over the last axis, Transpose",
        ),
        (
            "partly_plain_norm",
            CHANNELS,
            "Transpose, LayerNormalization over the last axis, Transpose",
        ),
    ] {
        let (found, _folder, copy) = rewritten(&format!("../gate/{name}.qu8.onnx"));
        assert_eq!(rules(&found), [from], "{name}: {found:?}");
        assert_eq!(
            (found.rewrites[0].to, found.rewrites[0].is_exact),
            (to, false)
        );
        let facts = graph_facts(&copy, &[]).unwrap();
        let form = facts.form("/norm/Div_6").unwrap();
        assert_eq!(form.titles, ["LayerNormalization, last axis"]);
        assert!(form.is_quantised, "{name}: {form:?}");
        let ops: Vec<&str> = facts.forms().map(|(_, op, _)| op).collect();
        for gone in ["ReduceMean", "Sub", "Pow", "Sqrt", "Div", "Mul"] {
            assert!(!ops.contains(&gone), "{name}: {gone}");
        }
        assert_eq!(ops.contains(&"Add"), name != "partly_plain_norm");
        let again = rewrite(&copy, &copy.with_extension("again.onnx"), &[], |_| true).unwrap();
        assert!(again.rewrites.is_empty(), "{again:?}");
    }
}

#[test]
fn a_healthy_model_is_not_copied() {
    let (found, _folder, copy) = rewritten("a_cnn.qu8.onnx");
    assert_eq!(found, Rewritten::default());
    assert!(!copy.exists());
}
