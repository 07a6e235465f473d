//! The maker and the readers of each tensor of a graph, and the tensor's form without QuantizeLinear and
//! DequantizeLinear.

use std::collections::{HashMap, HashSet};

use crate::{
    graph::{Graph, Node, TensorId},
    tensor::{Tensor, element},
};

/// Maximum number of pairs of QuantizeLinear and DequantizeLinear in a row.
const MOST_PAIRS: usize = 4;

/// A graph, indexed by its tensors.
#[derive(Debug)]
pub(crate) struct GraphView<'a> {
    pub(crate) graph: &'a Graph,
    makers: HashMap<TensorId, usize>,
    readers: HashMap<TensorId, Vec<usize>>,
    constants: HashMap<TensorId, &'a Tensor>,
    kept: HashSet<TensorId>,
}

impl<'a> GraphView<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        let mut view = Self {
            graph,
            makers: HashMap::new(),
            readers: HashMap::new(),
            constants: HashMap::new(),
            kept: graph.outputs.iter().copied().collect(),
        };
        for (id, tensor) in &graph.initializers {
            view.constants.insert(*id, tensor);
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|id| **id > 0) {
                view.makers.insert(*output, at);
                if node.op_type == "Constant"
                    && let Some(tensor) = node.attribute("value").and_then(|a| a.tensor.as_ref())
                {
                    view.constants.insert(*output, tensor);
                }
            }
            for input in node.inputs.iter().filter(|id| **id > 0) {
                view.readers.entry(*input).or_default().push(at);
            }
            // A body reads tensors of the graph around it.
            let bodies = node.attributes.iter().flat_map(|a| &a.graphs);
            for id in bodies.flat_map(read_in) {
                view.kept.insert(id);
            }
        }
        view
    }

    pub(crate) fn node(&self, at: usize) -> &'a Node {
        &self.graph.nodes[at]
    }

    pub(crate) fn maker(&self, id: TensorId) -> Option<usize> {
        self.makers.get(&id).copied()
    }

    pub(crate) fn made_by(&self, id: TensorId) -> &'a str {
        self.maker(id)
            .map_or("", |at| self.node(at).op_type.as_str())
    }

    pub(crate) fn readers(&self, id: TensorId) -> &[usize] {
        self.readers.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Whether the graph's caller or a body also reads the tensor.
    pub(crate) fn is_kept(&self, id: TensorId) -> bool {
        self.kept.contains(&id)
    }

    pub(crate) fn constant(&self, id: TensorId) -> Option<&'a Tensor> {
        self.constants.get(&id).copied()
    }

    /// Returns the tensor before pairs of QuantizeLinear and DequantizeLinear, which is the same for all copies of a
    /// tensor.
    pub(crate) fn before(&self, mut id: TensorId) -> TensorId {
        for _ in 0..MOST_PAIRS {
            let Some(dequantize) = self
                .maker(id)
                .filter(|at| self.node(*at).op_type == "DequantizeLinear")
            else {
                break;
            };
            let quantised = self.node(dequantize).input(0);
            match self.maker(quantised) {
                Some(at) if self.node(at).op_type == "QuantizeLinear" => {
                    id = self.node(at).input(0);
                }
                _ => return quantised,
            }
        }
        id
    }

    /// The node that computes a tensor.
    pub(crate) fn source(&self, id: TensorId) -> Option<usize> {
        self.maker(self.before(id))
    }

    /// Returns the only node that computes with a tensor; `None` if there are several.
    pub(crate) fn next(&self, id: TensorId) -> Option<usize> {
        let mut found = Vec::new();
        self.computing(id, 0, &mut found);
        found.dedup();
        match found.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    fn computing(&self, id: TensorId, depth: usize, found: &mut Vec<usize>) {
        for at in self.readers(id) {
            let node = self.node(*at);
            if is_quantisation(node) && depth < 2 * MOST_PAIRS {
                self.computing(node.outputs.first().copied().unwrap_or(0), depth + 1, found);
            } else {
                found.push(*at);
            }
        }
    }

    /// Returns the value of a constant scalar, which may be quantised.
    pub(crate) fn scalar(&self, id: TensorId) -> Option<f32> {
        let one = |tensor: &Tensor| match tensor.floats.as_deref()? {
            [one] => Some(*one),
            _ => None,
        };
        let whole = |tensor: &Tensor| match tensor.ints.as_deref()? {
            [one] => Some(*one),
            _ => None,
        };
        if let Some(tensor) = self.constant(id) {
            return one(tensor);
        }
        let node = self.node(self.maker(id)?);
        if node.op_type == "Constant" {
            return node.attribute("value_float").map(|a| a.float);
        }
        if node.op_type != "DequantizeLinear" {
            return None;
        }
        let scale = one(self.constant(node.input(1))?)?;
        let zero = match node.input(2) {
            0 => 0,
            id => whole(self.constant(id)?)?,
        };
        if let Some(quantised) = self.constant(node.input(0)) {
            return Some((whole(quantised)? - zero) as f32 * scale);
        }
        // The graph itself may quantise the constant.
        let before = self.before(id);
        self.constant(before).and_then(one)
    }

    /// If one of a node's two inputs is a scalar near this value, returns the other input.
    pub(crate) fn other_than(&self, at: usize, value: f32) -> Option<TensorId> {
        let node = self.node(at);
        let is_it = |id| {
            self.scalar(id)
                .is_some_and(|found| (found - value).abs() <= 0.01 * value.abs())
        };
        match (is_it(node.input(0)), is_it(node.input(1))) {
            (false, true) => Some(node.input(0)),
            (true, false) => Some(node.input(1)),
            _ => None,
        }
    }

    /// Whether a node is between DequantizeLinear and QuantizeLinear, and so computes in 8 bits.
    pub(crate) fn is_quantised(&self, at: usize) -> bool {
        let node = self.node(at);
        let mut data = node.inputs.iter().filter(|id| **id > 0);
        let is_dequantised = |id: &TensorId| self.made_by(*id) == "DequantizeLinear";
        let mut reads = node.outputs.iter().take(1);
        data.clone().any(is_dequantised)
            && data.all(|id| {
                is_dequantised(id) || (self.constant(*id).is_some() && !self.is_float_data(*id))
            })
            && reads.all(|id| self.is_quantised_next(*id, true))
    }

    /// Whether a node with a quantised input and a quantised output also reads floats to compute with.
    pub(crate) fn is_partly_quantised(&self, at: usize) -> bool {
        let node = self.node(at);
        let mut data = node.inputs.iter().filter(|id| **id > 0);
        let mut results = node.outputs.iter().take(1);
        !is_quantisation(node)
            && !self.is_quantised(at)
            && data.any(|id| self.made_by(*id) == "DequantizeLinear")
            && results.all(|id| self.is_quantised_next(*id, true))
    }

    /// Whether a constant holds floats to compute with, such as the grid of a GridSample. Scales, ranges and padding have
    /// one dimension at most.
    fn is_float_data(&self, id: TensorId) -> bool {
        self.constant(id).is_some_and(|tensor| {
            let is_large = tensor.shape.as_ref().is_some_and(|dims| dims.len() > 1);
            is_large && tensor.element == element::F32
        })
    }

    fn is_quantised_next(&self, id: TensorId, may_clip: bool) -> bool {
        let mut readers = self.readers(id).iter().map(|at| self.node(*at));
        readers.len() > 0
            && readers.all(|node| match node.op_type.as_str() {
                "QuantizeLinear" => true,
                "Relu" | "Clip" if may_clip => {
                    self.is_quantised_next(node.outputs.first().copied().unwrap_or(0), false)
                }
                _ => false,
            })
    }
}

pub(crate) fn is_quantisation(node: &Node) -> bool {
    matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear")
}

/// All tensors that a body reads.
fn read_in(body: &Graph) -> Vec<TensorId> {
    let mut found: Vec<TensorId> = body.outputs.clone();
    for node in &body.nodes {
        found.extend(&node.inputs);
        for inner in node.attributes.iter().flat_map(|a| &a.graphs) {
            found.extend(read_in(inner));
        }
    }
    found
}
