//! The question before a compiled model is loaded. No session is made.

use std::path::Path;

use crate::environment::{crate_file, model, run};

/// A graph of QNN 2.51 for SM8650, asked about on that chipset (57) and on another (68).
#[test]
fn a_compiled_model_is_told_before_it_is_loaded() {
    let compiled = crate_file("../../tests/fixtures/gate/context_sm8650.onnx");
    let plain = model("d_mlp.fp32.onnx");
    let told = |qnn_sdk: &str| {
        let args = [&*compiled, Path::new(qnn_sdk), &plain];
        run("compiled_model.py", &args).0
    };
    let same = "None\nprefer_recompilation\nNone\nNone\n";
    assert_eq!(told("2.51.0"), same);
    let newer = "unsupported\nunsupported\nNone\nNone\n";
    assert_eq!(told("2.47.0"), newer);
}
