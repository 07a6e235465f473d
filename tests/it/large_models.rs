//! A model of more than 64 MiB: its weights stay in its file, and the session has the same graph.

use std::fs;

use crate::support::{check_ends, epwatch, json};

/// Rows and columns of the weight, which takes 64 MiB.
const SIZE: u64 = 4096;

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, field << 3);
    varint(&mut out, value);
    out
}

fn message(field: u64, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, field << 3 | 2);
    varint(&mut out, parts.iter().map(|part| part.len() as u64).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

fn text(field: u64, text: &str) -> Vec<u8> {
    message(field, &[text.as_bytes()])
}

/// `ValueInfoProto` of floats `[1, SIZE]`.
fn row(field: u64, name: &str) -> Vec<u8> {
    let dims = [1, SIZE].map(|dim| message(1, &[&number(1, dim)]));
    let shape = message(2, &[&dims[0], &dims[1]]);
    let tensor = message(1, &[&number(1, 1), &shape]);
    message(field, &[&text(1, name), &message(2, &[&tensor])])
}

fn node(op_type: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| text(1, name)).collect();
    message(
        1,
        &[
            &inputs,
            &text(2, output),
            &text(3, op_type),
            &text(4, op_type),
        ],
    )
}

/// MatMul and Relu, as `ModelProto`.
fn model() -> Vec<u8> {
    let floats = usize::try_from(SIZE * SIZE).unwrap();
    let data: Vec<u8> = 0.01_f32.to_le_bytes().repeat(floats);
    let dims = [number(1, SIZE), number(1, SIZE)].concat();
    let weight = message(
        5,
        &[&dims, &number(2, 1), &text(8, "w"), &message(9, &[&data])],
    );
    let graph = message(
        7,
        &[
            &node("MatMul", &["x", "w"], "h"),
            &node("Relu", &["h"], "y"),
            &text(2, "large"),
            &weight,
            &row(11, "x"),
            &row(12, "y"),
        ],
    );
    let opset = message(8, &[&number(2, 17)]);
    [number(1, 8), graph, opset].concat()
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
