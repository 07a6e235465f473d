//! The ops before and after each node. They match nodes of two versions of a model, because exporters may change names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{GraphFacts, facts::Wiring, graph::TensorId};

/// At most this many QuantizeLinear and DequantizeLinear in a row are skipped.
const MOST_STEPS: usize = 8;

/// A node, described by the ops around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// For example `LayerNormalization`.
    pub op_type: String,
    /// Ops that make its inputs and read its outputs, without quantisation: `Conv>Add,Mul`.
    pub between: String,
}

impl GraphFacts {
    /// Returns the surroundings of each node with a name.
    pub fn surroundings(&self) -> BTreeMap<String, Surroundings> {
        let ends = Ends::of(&self.nodes);
        let named = self.nodes.iter().filter(|node| !node.name.is_empty());
        let each = named.map(|node| {
            let mut before = BTreeSet::new();
            for input in &node.inputs {
                before.extend(ends.maker(*input));
            }
            let mut behind = BTreeSet::new();
            for output in &node.outputs {
                ends.readers(*output, MOST_STEPS, &mut behind);
            }
            let list = |ops: BTreeSet<&str>| ops.into_iter().collect::<Vec<_>>().join(",");
            let around = Surroundings {
                op_type: node.op_type.clone(),
                between: format!("{}>{}", list(before), list(behind)),
            };
            (node.name.clone(), around)
        });
        each.collect()
    }
}

/// The maker and the readers of each tensor.
struct Ends<'a> {
    makers: HashMap<TensorId, &'a Wiring>,
    readers: HashMap<TensorId, Vec<&'a Wiring>>,
}

impl<'a> Ends<'a> {
    fn of(nodes: &'a [Wiring]) -> Self {
        let mut ends = Self {
            makers: HashMap::new(),
            readers: HashMap::new(),
        };
        // Weights and their quantisation are skipped, because they do not identify a place in the graph.
        for node in nodes.iter().filter(|node| !node.is_constant) {
            for output in node.outputs.iter().filter(|id| **id > 0) {
                ends.makers.insert(*output, node);
            }
            for input in node.inputs.iter().filter(|id| **id > 0) {
                ends.readers.entry(*input).or_default().push(node);
            }
        }
        ends
    }

    fn maker(&self, tensor: TensorId) -> Option<&'a str> {
        let mut tensor = tensor;
        for _ in 0..MOST_STEPS {
            let maker = self.makers.get(&tensor)?;
            if !is_quantisation(maker) {
                return Some(&maker.op_type);
            }
            tensor = *maker.inputs.first()?;
        }
        None
    }

    fn readers(&self, tensor: TensorId, steps: usize, found: &mut BTreeSet<&'a str>) {
        for reader in self.readers.get(&tensor).into_iter().flatten() {
            match (is_quantisation(reader), steps) {
                (false, _) => {
                    found.insert(&reader.op_type);
                }
                (true, 0) => {}
                (true, _) => {
                    for output in &reader.outputs {
                        self.readers(*output, steps - 1, found);
                    }
                }
            }
        }
    }
}

fn is_quantisation(node: &Wiring) -> bool {
    matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::graph_facts;

    #[test]
    fn quantisation_is_looked_through() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        let between = |model: &str, node: &str| {
            let facts = graph_facts(&Path::new(fixtures).join(model), &[]).unwrap();
            facts.surroundings().remove(node).unwrap().between
        };
        for (model, node, ops) in [
            (
                "models/e_mixed.qu8.onnx",
                "head_fc1",
                "Flatten>LayerNormalization",
            ),
            ("models/e_mixed.q8head32.onnx", "head_fc2", "Relu>Softmax"),
            (
                "gate/yolo_layernorm.qu8.onnx",
                "layernormalization_5",
                "Conv>Conv",
            ),
        ] {
            assert_eq!(between(model, node), ops, "{model}");
        }
    }
}
