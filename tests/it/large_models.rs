//! A model of more than 64 MiB: its weights stay in its file, and the session has the same graph.

use std::fs;

use crate::{
    onnx_writer::{self, floats, node, square, text},
    support::{check_ends, epwatch, json},
};

/// Rows and columns of the weight, which takes 64 MiB.
const SIZE: u64 = 4096;

/// MatMul and Relu.
fn model() -> Vec<u8> {
    onnx_writer::model(&[
        &node("MatMul", &["x", "w"], "h"),
        &node("Relu", &["h"], "y"),
        &text(2, "large"),
        &square("w", SIZE, 0.01),
        &floats(11, "x", [1, SIZE]),
        &floats(12, "y", [1, SIZE]),
    ])
}

#[test]
fn a_large_model_is_placed_as_a_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.onnx");
    let bytes = model();
    assert!(bytes.len() > 64 << 20);
    fs::write(&path, &bytes).unwrap();
    let shown = path.display();
    let document = json(&mut epwatch(&format!("inspect {shown} --soc SM8650")));
    let on = &document["chipsets"][0];
    assert_eq!(on["session"], "ok", "{on:#}");
    let npu = &on["eps"]["QNNExecutionProvider"];
    assert_eq!(
        (&npu["nodes"], &npu["partitions"]),
        (&2.into(), &1.into()),
        "{on:#}"
    );
    assert_eq!(npu["macs_share"], 1.0);
    // A file that is cut in its weight is not a model, with or without its weights in memory.
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    check_ends(&mut epwatch(&format!("inspect {shown} --soc SM8650")), 2);
}
