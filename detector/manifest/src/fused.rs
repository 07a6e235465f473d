//! Names under which a runtime may show a node that computes, since it fuses the nodes after it into it.

use std::collections::HashMap;

use crate::graph::{Graph, Names, TensorId};

/// At most this many following nodes are fused into a node.
const MOST_FUSED: usize = 4;

/// Ops that runtimes fuse into the op before them.
const FUSABLE: [&str; 14] = [
    "Add",
    "BatchNormalization",
    "Clip",
    "Div",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mul",
    "QuantizeLinear",
    "Relu",
    "Sigmoid",
    "Sub",
    "Tanh",
];

/// For each node that computes, its tensor and the names and tensors of its only followers.
pub(crate) fn aliases(graph: &Graph, macs: &[u64], names: &Names) -> Vec<Vec<String>> {
    let mut readers: HashMap<TensorId, Vec<usize>> = HashMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            readers.entry(*input).or_default().push(at);
        }
    }
    // The caller of a graph also reads its outputs.
    for output in &graph.outputs {
        readers.entry(*output).or_default().push(usize::MAX);
    }
    let each = graph.nodes.iter().zip(macs).map(|(node, macs)| {
        let mut found = Vec::new();
        let mut last = node;
        for _ in 0..=MOST_FUSED {
            let Some(output) = last.outputs.first().filter(|_| *macs > 0) else {
                break;
            };
            found.push(names.text(*output).to_owned());
            let Some([only]) = readers.get(output).map(Vec::as_slice) else {
                break;
            };
            let Some(next) = graph.nodes.get(*only) else {
                break;
            };
            if !FUSABLE.contains(&next.op_type.as_str()) {
                break;
            }
            if !next.name.is_empty() {
                found.push(next.name.clone());
            }
            last = next;
        }
        found
    });
    each.collect()
}
