//! Joins a placement with its graph: finds the place of each CPU node, and the tensors that cross between NPU and CPU.
//!
//! A runtime removes nodes before it places the rest, and inserts others. If the placement does not name a node of the
//! model, that node is on the side of the node before it. So it adds no crossing by itself.

use std::collections::{HashMap, HashSet};

use epwatch_proto::fingerprint::{is_edge_quantization, normalised_node_name};
use serde::{Deserialize, Serialize};

use crate::{
    facts::{GraphFacts, Wiring},
    graph::TensorId,
};

/// The place of a CPU node in the graph, relative to the NPU's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// QuantizeLinear or DequantizeLinear of the graph's own inputs or outputs.
    Edge,
    /// QuantizeLinear or DequantizeLinear next to another node on the CPU, which it belongs to.
    Companion,
    /// The node is before all NPU nodes that depend on it.
    Input,
    /// The node is after all NPU nodes that it depends on, or is not connected to any.
    Output,
    /// The node is between nodes of the NPU.
    Middle,
    /// The node reads only weights, and the NPU reads its result in each run.
    Weight,
}

impl Place {
    /// Whether a node at this place is only quantisation, and so no work in itself.
    pub fn is_benign(self) -> bool {
        matches!(self, Self::Edge | Self::Companion)
    }
}

/// A tensor that goes from one side to the other in each run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossingTensor {
    /// Name in the model.
    pub tensor: String,
    /// Its size; `None` if it is not fixed.
    pub bytes: Option<u64>,
}

/// Tensors between NPU and CPU, without the graph's own inputs and outputs and their quantisation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CrossingTensors {
    pub to_npu: Vec<CrossingTensor>,
    pub to_cpu: Vec<CrossingTensor>,
}

/// A placement, joined with its graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacedGraph {
    /// Place of each CPU node, in the given order; `None` for a node that the model does not have.
    pub places: Vec<Option<Place>>,
    /// `None` if a node of the model has no name, so that its side is not known.
    pub crossings: Option<CrossingTensors>,
}

/// Nodes of a session by side, with the runtime's names.
#[derive(Debug, Clone, Copy)]
pub struct SidesOfNodes<'a> {
    /// Name and op.
    pub cpu: &'a [(&'a str, &'a str)],
    /// Nodes on the NPU. `None` if they are not known; then all nodes that are not on the CPU count as theirs.
    pub npu: Option<&'a [String]>,
    /// Number of partitions on the NPU. No CPU node is between the nodes of one partition.
    pub partitions: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Cpu,
    Npu,
}

impl GraphFacts {
    /// Finds the place of each node of the CPU, and the tensors that cross.
    pub fn placed(&self, nodes: SidesOfNodes<'_>) -> PlacedGraph {
        let of_name = self.by_name();
        let find = |name: &str| {
            let found = of_name.get(name);
            let found = found.or_else(|| of_name.get(normalised_node_name(name)));
            found.copied()
        };
        let on_cpu: Vec<Option<usize>> = nodes.cpu.iter().map(|(name, _)| find(name)).collect();
        let mut sides: Vec<Option<Side>> = vec![None; self.nodes.len()];
        match nodes.npu {
            Some(npu) => {
                for at in npu.iter().filter_map(|name| find(name)) {
                    sides[at] = Some(Side::Npu);
                }
            }
            None => sides.fill(Some(Side::Npu)),
        }
        for at in on_cpu.iter().flatten() {
            sides[*at] = Some(Side::Cpu);
        }
        let flow = Flow::of(self, sides);
        let places = nodes.cpu.iter().zip(&on_cpu).map(|((_, op), at)| {
            let place = at.map(|at| flow.place(at, nodes.partitions));
            // The layout transform inserts such nodes around CPU nodes and at the edges.
            let is_inserted = is_edge_quantization(op) && nodes.partitions > 1;
            place.or(is_inserted.then_some(Place::Companion))
        });
        let places: Vec<Option<Place>> = places.collect();
        let edges = on_cpu.iter().zip(&places);
        let edges = edges.filter(|(_, place)| **place == Some(Place::Edge));
        let edges: HashSet<usize> = edges.filter_map(|(at, _)| *at).collect();
        PlacedGraph {
            crossings: flow.crossings(&edges),
            places,
        }
    }

    /// Returns nodes by name. A name that two nodes share is left out.
    fn by_name(&self) -> HashMap<&str, usize> {
        let mut found: HashMap<&str, usize> = HashMap::new();
        let mut twice: HashSet<&str> = HashSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let name = node.name.as_str();
            if name.is_empty() || found.insert(name, at).is_some() {
                twice.insert(name);
            }
        }
        found.retain(|name, _| !twice.contains(name));
        found
    }
}

/// The graph with the side of each node, and its paths to and from nodes of the NPU.
struct Flow<'a> {
    facts: &'a GraphFacts,
    sides: Vec<Option<Side>>,
    /// For each node, whether a node of the NPU is before it; `before_npu` says the same for after it.
    after_npu: Vec<bool>,
    before_npu: Vec<bool>,
    makers: HashMap<TensorId, usize>,
    readers: HashMap<TensorId, Vec<usize>>,
}

impl<'a> Flow<'a> {
    fn of(facts: &'a GraphFacts, sides: Vec<Option<Side>>) -> Self {
        let n = facts.nodes.len();
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<TensorId, Vec<usize>>::new());
        for (at, node) in facts.nodes.iter().enumerate() {
            makers.extend(
                node.outputs
                    .iter()
                    .filter(|id| **id > 0)
                    .map(|id| (*id, at)),
            );
            for input in node.inputs.iter().filter(|id| **id > 0) {
                readers.entry(*input).or_default().push(at);
            }
        }
        let mut flow = Self {
            facts,
            sides,
            after_npu: vec![false; n],
            before_npu: vec![false; n],
            makers,
            readers,
        };
        flow.follow();
        flow
    }

    /// Assigns a side to nodes without one, and finds the nodes before and after nodes of the NPU. A model's nodes are
    /// in the order of their data.
    fn follow(&mut self) {
        // A DequantizeLinear is on the side of its readers, so these nodes are assigned first, from the end.
        for at in (0..self.sides.len()).rev() {
            let node = &self.facts.nodes[at];
            if self.sides[at].is_none() && node.op_type == "DequantizeLinear" {
                let sides = self.readers_of(node).map(|reader| self.sides[reader]);
                let sides: HashSet<Option<Side>> = sides.collect();
                if sides.len() == 1 {
                    self.sides[at] = sides.into_iter().next().flatten();
                }
            }
        }
        for at in 0..self.sides.len() {
            let makers: Vec<usize> = self.makers_of(&self.facts.nodes[at]).collect();
            if self.sides[at].is_none() {
                let of_makers = || makers.iter().filter_map(|maker| self.sides[*maker]);
                self.sides[at] = of_makers()
                    .find(|side| *side == Side::Npu)
                    .or(of_makers().next());
            }
            self.after_npu[at] = makers
                .iter()
                .any(|maker| self.after_npu[*maker] || self.is_npu(*maker));
        }
        for at in (0..self.sides.len()).rev() {
            let node = &self.facts.nodes[at];
            let is_before = |reader| self.before_npu[reader] || self.is_npu(reader);
            let found = self.readers_of(node).any(is_before);
            self.before_npu[at] = found;
        }
    }

    fn is_npu(&self, at: usize) -> bool {
        self.sides[at] == Some(Side::Npu)
    }

    fn makers_of<'b>(&'b self, node: &'b Wiring) -> impl Iterator<Item = usize> + 'b {
        let makers = node.inputs.iter().filter_map(|id| self.makers.get(id));
        makers.copied()
    }

    fn readers_of<'b>(&'b self, node: &'b Wiring) -> impl Iterator<Item = usize> + 'b {
        let readers = node.outputs.iter().filter_map(|id| self.readers.get(id));
        readers.flatten().copied()
    }

    fn place(&self, at: usize, partitions: usize) -> Place {
        let node = &self.facts.nodes[at];
        let is_quantisation = is_edge_quantization(&node.op_type);
        let is_between = self.after_npu[at] && self.before_npu[at] && partitions > 1;
        if is_quantisation {
            let is_other = |other: usize| {
                self.sides[other] == Some(Side::Cpu)
                    && !is_edge_quantization(&self.facts.nodes[other].op_type)
            };
            if self
                .makers_of(node)
                .chain(self.readers_of(node))
                .any(is_other)
            {
                return Place::Companion;
            }
            if !node.is_constant && !is_between {
                return Place::Edge;
            }
        }
        match (self.after_npu[at], self.before_npu[at]) {
            _ if is_between => Place::Middle,
            (_, true) if node.is_constant => Place::Weight,
            (false, true) => Place::Input,
            _ => Place::Output,
        }
    }

    /// Tensors whose maker and reader are on different sides.
    fn crossings(&self, edges: &HashSet<usize>) -> Option<CrossingTensors> {
        let runs = |at: usize| {
            // A constant node that the session did not fold runs each time.
            !self.facts.nodes[at].is_constant || self.sides[at] == Some(Side::Cpu)
        };
        let mut found = CrossingTensors::default();
        let mut crossed: HashSet<(TensorId, Side)> = HashSet::new();
        for (at, node) in self.facts.nodes.iter().enumerate() {
            if node.name.is_empty() && runs(at) {
                return None;
            }
            let Some(side) = self.sides[at].filter(|_| !edges.contains(&at)) else {
                continue;
            };
            for input in &node.inputs {
                let Some(maker) = self.makers.get(input).copied() else {
                    continue;
                };
                let from = self.sides[maker].filter(|from| *from != side);
                let is_moved = from.is_some() && runs(maker) && !edges.contains(&maker);
                if !is_moved || !crossed.insert((*input, side)) {
                    continue;
                }
                let tensor = CrossingTensor {
                    tensor: self.facts.name_of(*input).to_owned(),
                    bytes: self.facts.bytes_of(*input),
                };
                match side {
                    Side::Npu => found.to_npu.push(tensor),
                    Side::Cpu => found.to_cpu.push(tensor),
                }
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::graph_facts;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");

    /// Places nodes of the CPU, by names of ONNX Runtime; all others are on the NPU.
    fn placed(model: &str, cpu: &[(&str, &str)], partitions: usize) -> PlacedGraph {
        let facts = graph_facts(&Path::new(FIXTURES).join(model), &[]).unwrap();
        facts.placed(SidesOfNodes {
            cpu,
            npu: None,
            partitions,
        })
    }

    fn bytes(tensors: &[CrossingTensor]) -> Vec<Option<u64>> {
        tensors.iter().map(|tensor| tensor.bytes).collect()
    }

    /// SM8635 runs the head of `e_mixed.q8head32` on the CPU. Its input comes from the NPU as 1,024 floats.
    #[test]
    fn a_head_on_the_cpu_is_after_the_npu_and_the_image_is_an_edge() {
        let cpu = [
            ("x_QuantizeLinear", "QuantizeLinear"),
            ("head_fc1", "Gemm"),
            ("head_ln", "LayerNormalization"),
            ("head_relu", "Relu"),
            ("head_fc2", "Gemm"),
            ("head_softmax", "Softmax"),
        ];
        let found = placed("models/e_mixed.q8head32.onnx", &cpu, 1);
        assert_eq!(found.places[0], Some(Place::Edge));
        assert!(
            found.places[1..]
                .iter()
                .all(|place| *place == Some(Place::Output))
        );
        let crossings = found.crossings.unwrap();
        assert!(crossings.to_npu.is_empty(), "{crossings:?}");
        assert_eq!(bytes(&crossings.to_cpu), [Some(4 * 1_024)]);
    }

    /// The names come from a session on SM8650, with the nodes that the layout transform inserted.
    #[test]
    fn nodes_between_partitions_take_their_quantisation_with_them() {
        let (q, dq, norm) = ("QuantizeLinear", "DequantizeLinear", "LayerNormalization");
        let table = [
            ("w11_DequantizeLinear", dq, Place::Companion),
            ("w4_DequantizeLinear", dq, Place::Companion),
            ("x_QuantizeLinear", q, Place::Edge),
            ("layernormalization_5", norm, Place::Middle),
            (
                "layernormalization_5_out0_QuantizeLinear",
                q,
                Place::Companion,
            ),
            ("layernormalization_10", norm, Place::Middle),
            ("layernormalization_15", norm, Place::Middle),
            ("concat_18_out0_DequantizeLinear", dq, Place::Edge),
            ("DequantizeLinear_token_68", dq, Place::Companion),
        ];
        let cpu: Vec<(&str, &str)> = table.iter().map(|(name, op, _)| (*name, *op)).collect();
        let found = placed("gate/yolo_layernorm.qu8.onnx", &cpu, 4);
        let expected: Vec<Option<Place>> = table.iter().map(|row| Some(row.2)).collect();
        assert_eq!(found.places, expected);
        let crossings = found.crossings.unwrap();
        assert_eq!((crossings.to_npu.len(), crossings.to_cpu.len()), (3, 3));
        // With a single partition, no CPU node is between NPU nodes.
        let found = placed("gate/yolo_layernorm.qu8.onnx", &cpu[3..4], 1);
        assert_eq!(found.places, [Some(Place::Output)]);
    }

    /// No runtime folds this node, so it runs each time, and 64 x 48 floats cross.
    #[test]
    fn weights_that_the_cpu_unpacks_cross_in_each_run() {
        let cpu = [("dqw", "DequantizeLinear")];
        let found = placed("gate/block_int4.onnx", &cpu, 1);
        assert_eq!(found.places, [Some(Place::Weight)]);
        let crossings = found.crossings.unwrap();
        assert_eq!(bytes(&crossings.to_npu), [Some(64 * 48 * 4)]);
        assert!(crossings.to_cpu.is_empty(), "{crossings:?}");
    }

    #[test]
    fn nodes_that_the_model_does_not_have_and_nodes_without_names_have_no_place() {
        let found = placed("models/e_mixed.q8head32.onnx", &[("gone", "Conv")], 2);
        assert_eq!(found.places, [None]);
        let unnamed = placed("models/odd_names.fp32.onnx", &[("", "Erf")], 1);
        assert_eq!((unnamed.places, unnamed.crossings), (vec![None], None));
    }
}
