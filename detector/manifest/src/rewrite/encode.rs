//! New nodes and tensors of a model, as protobuf.

use epwatch_proto::wire::push_varint;

/// A node to add.
#[derive(Debug, Clone, Default)]
pub(super) struct NewNode {
    pub(super) op_type: &'static str,
    /// Domain of the op; empty for ONNX's own ops.
    pub(super) domain: &'static str,
    pub(super) name: String,
    pub(super) inputs: Vec<String>,
    pub(super) output: String,
    pub(super) attributes: Vec<(&'static str, NewValue)>,
}

/// The value of an attribute.
#[derive(Debug, Clone)]
pub(super) enum NewValue {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
}

/// A weight to add.
#[derive(Debug, Clone)]
pub(super) struct NewTensor {
    pub(super) name: String,
    /// The number in `onnx.proto`.
    pub(super) element: u64,
    pub(super) dims: Vec<u64>,
    /// Little-endian.
    pub(super) raw: Vec<u8>,
}

impl NewNode {
    /// Encodes it as a field of `GraphProto`.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut node = Vec::new();
        for input in &self.inputs {
            push_bytes(&mut node, 1, input.as_bytes());
        }
        push_bytes(&mut node, 2, self.output.as_bytes());
        push_bytes(&mut node, 3, self.name.as_bytes());
        push_bytes(&mut node, 4, self.op_type.as_bytes());
        for (name, value) in &self.attributes {
            push_bytes(&mut node, 5, &attribute(name, value));
        }
        if !self.domain.is_empty() {
            push_bytes(&mut node, 7, self.domain.as_bytes());
        }
        let mut field = Vec::new();
        push_bytes(&mut field, 1, &node);
        field
    }
}

impl NewTensor {
    pub(super) fn of_ints(name: String, ints: &[i64]) -> Self {
        Self {
            name,
            element: 7,
            dims: vec![ints.len() as u64],
            raw: ints.iter().flat_map(|int| int.to_le_bytes()).collect(),
        }
    }

    pub(super) fn of_floats(name: String, dims: Vec<u64>, floats: &[f32]) -> Self {
        Self {
            name,
            element: 1,
            dims,
            raw: floats.iter().flat_map(|f| f.to_le_bytes()).collect(),
        }
    }

    /// Encodes it as a field of `GraphProto`.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut tensor = dims_field(&self.dims);
        push_number(&mut tensor, 2, self.element);
        push_bytes(&mut tensor, 8, self.name.as_bytes());
        push_bytes(&mut tensor, 9, &self.raw);
        let mut field = Vec::new();
        push_bytes(&mut field, 5, &tensor);
        field
    }
}

/// The dimensions of a `TensorProto`.
pub(super) fn dims_field(dims: &[u64]) -> Vec<u8> {
    let mut field = Vec::new();
    for dim in dims {
        push_number(&mut field, 1, *dim);
    }
    field
}

/// An entry of `opset_import`.
pub(super) fn opset_field(domain: &str, version: u64) -> Vec<u8> {
    let mut opset = Vec::new();
    push_bytes(&mut opset, 1, domain.as_bytes());
    push_number(&mut opset, 2, version);
    let mut field = Vec::new();
    push_bytes(&mut field, 8, &opset);
    field
}

fn attribute(name: &str, value: &NewValue) -> Vec<u8> {
    let mut out = Vec::new();
    push_bytes(&mut out, 1, name.as_bytes());
    let kind = match value {
        NewValue::Float(float) => {
            out.push(2 << 3 | 5);
            out.extend(float.to_le_bytes());
            1
        }
        NewValue::Int(int) => {
            push_number(&mut out, 3, int.cast_unsigned());
            2
        }
        NewValue::Ints(ints) => {
            for int in ints {
                push_number(&mut out, 8, int.cast_unsigned());
            }
            7
        }
    };
    push_number(&mut out, 20, kind);
    out
}

pub(super) fn push_key(out: &mut Vec<u8>, number: u64, kind: u64) {
    push_varint(out, number << 3 | kind);
}

pub(super) fn push_number(out: &mut Vec<u8>, number: u64, value: u64) {
    push_key(out, number, 0);
    push_varint(out, value);
}

pub(super) fn push_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    push_key(out, number, 2);
    push_varint(out, bytes.len() as u64);
    out.extend(bytes);
}
