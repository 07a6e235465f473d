//! Writes small ONNX models as protobuf, field by field, for tests that choose their size.

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, field << 3);
    varint(&mut out, value);
    out
}

pub(crate) fn message(field: u64, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, field << 3 | 2);
    varint(&mut out, parts.iter().map(|part| part.len() as u64).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

pub(crate) fn text(field: u64, text: &str) -> Vec<u8> {
    message(field, &[text.as_bytes()])
}

/// `ValueInfoProto` of floats with two dimensions.
pub(crate) fn floats(field: u64, name: &str, dims: [u64; 2]) -> Vec<u8> {
    let dims = dims.map(|dim| message(1, &[&number(1, dim)]));
    let shape = message(2, &[&dims[0], &dims[1]]);
    let tensor = message(1, &[&number(1, 1), &shape]);
    message(field, &[&text(1, name), &message(2, &[&tensor])])
}

/// `NodeProto` with one output, whose name is the node's too.
pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| text(1, name)).collect();
    message(
        1,
        &[
            &inputs,
            &text(2, output),
            &text(3, output),
            &text(4, op_type),
        ],
    )
}

/// `TensorProto` of a square of one float.
pub(crate) fn square(name: &str, size: u64, float: f32) -> Vec<u8> {
    let n = usize::try_from(size * size).unwrap();
    let data = float.to_le_bytes().repeat(n);
    let dims = [number(1, size), number(1, size)].concat();
    message(
        5,
        &[&dims, &number(2, 1), &text(8, name), &message(9, &[&data])],
    )
}

/// `ModelProto` of a graph with these fields.
pub(crate) fn model(graph: &[&[u8]]) -> Vec<u8> {
    let opset = message(8, &[&number(2, 17)]);
    [number(1, 8), message(7, graph), opset].concat()
}
