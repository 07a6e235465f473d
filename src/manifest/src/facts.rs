//! What a report says of a placed graph: kinds of elements at each node, and tensors that cross between NPU and CPU.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    path::Path,
};

use crate::{
    ManifestError, count,
    forms::{NodeForm, forms},
    graph::TensorId,
    read, shapes,
    shapes::InputShape,
    tensor::Tensor,
    view::GraphView,
};

/// Tensors that go from one side to the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crossing {
    /// Tensors; one that several nodes read counts once.
    pub tensors: u64,
    /// Their size, where it is known.
    pub bytes: u64,
    /// Tensors without a size.
    pub unsized_tensors: u64,
}

/// A node's names and tensors.
#[derive(Debug)]
struct Wiring {
    name: String,
    inputs: Vec<TensorId>,
    outputs: Vec<TensorId>,
    /// It has no input that changes from run to run, so that a runtime computes it once.
    is_constant: bool,
}

/// A graph's edges with their sizes.
#[derive(Debug)]
pub struct GraphFacts {
    nodes: Vec<Wiring>,
    bytes: HashMap<TensorId, u64>,
    types: BTreeMap<String, Vec<&'static str>>,
    forms: BTreeMap<String, (String, NodeForm)>,
}

/// Reads the edges of a model file.
///
/// # Errors
/// As [`crate::manifest_of`].
pub fn graph_facts(model: &Path, given: &[InputShape]) -> Result<GraphFacts, ManifestError> {
    let mut model = read::model(File::open(model)?)?;
    shapes::fix_inputs(&mut model, given)?;
    let counted = count::counted(&mut model)?;
    let graph = &model.graph;
    let mut constants: HashSet<TensorId> = graph.initializers.iter().map(|(id, _)| *id).collect();
    constants.insert(0);
    let (mut nodes, mut bytes, mut types) = (Vec::new(), HashMap::new(), BTreeMap::new());
    let tensor = |id: &TensorId| counted.tensors.get(*id);
    let view = GraphView::new(graph);
    let all_forms = forms(&view, &counted.tensors);
    let mut named_forms = BTreeMap::new();
    for (node, form) in graph.nodes.iter().zip(&all_forms) {
        let is_constant = node.inputs.iter().all(|input| constants.contains(input));
        if is_constant {
            constants.extend(&node.outputs);
        }
        for output in node.outputs.iter().filter(|output| **output > 0) {
            if let Some(size) = tensor(output).and_then(Tensor::bytes) {
                bytes.insert(*output, size);
            }
        }
        let mut of_node: Vec<&'static str> = Vec::new();
        for id in node.inputs.iter().chain(&node.outputs) {
            // A quantised node computes with what is around its DequantizeLinear and QuantizeLinear.
            let id = &match form.is_quantised {
                true => beyond_quantisation(&view, *id),
                false => *id,
            };
            let name = tensor(id).and_then(|tensor| type_name(tensor.element));
            of_node.extend(name.filter(|name| !of_node.contains(name)));
        }
        if !node.name.is_empty() {
            types.insert(node.name.clone(), of_node);
            let of = (node.op_type.clone(), form.clone());
            named_forms.insert(node.name.clone(), of);
        }
        nodes.push(Wiring {
            name: node.name.clone(),
            inputs: node.inputs.clone(),
            outputs: node.outputs.clone(),
            is_constant,
        });
    }
    Ok(GraphFacts {
        nodes,
        bytes,
        types,
        forms: named_forms,
    })
}

/// The integer tensor on the other side of a DequantizeLinear before, or a QuantizeLinear behind.
fn beyond_quantisation(view: &GraphView<'_>, id: TensorId) -> TensorId {
    if view.made_by(id) == "DequantizeLinear" {
        return view.maker(id).map_or(id, |at| view.node(at).input(0));
    }
    let quantise = view.readers(id).iter().map(|at| view.node(*at));
    let quantised = quantise
        .filter(|node| node.op_type == "QuantizeLinear")
        .find_map(|node| node.outputs.first().copied());
    quantised.unwrap_or(id)
}

impl GraphFacts {
    /// The form of a node; `None` of a node that the model does not have.
    pub fn form(&self, node: &str) -> Option<&NodeForm> {
        self.forms.get(node).map(|(_, form)| form)
    }

    /// Name, op and form of each node with a name.
    pub fn forms(&self) -> impl Iterator<Item = (&str, &str, &NodeForm)> {
        let each = self.forms.iter();
        each.map(|(name, (op_type, form))| (name.as_str(), op_type.as_str(), form))
    }

    /// Kinds of elements of a node's inputs and outputs, for example `float`; empty if they are not known.
    pub fn types(&self, node: &str) -> &[&'static str] {
        self.types.get(node).map_or(&[], Vec::as_slice)
    }

    /// Tensors from the CPU to the NPU, and from the NPU to the CPU. `None` if a node has no name, so that its side is not
    /// known. The graph's own inputs and outputs are not counted: the app holds them in any case.
    pub fn crossings(&self, is_on_cpu: impl Fn(&str) -> bool) -> Option<[Crossing; 2]> {
        let moving = || self.nodes.iter().filter(|node| !node.is_constant);
        if moving().any(|node| node.name.is_empty()) {
            return None;
        }
        let mut makers: HashMap<TensorId, bool> = HashMap::new();
        for node in moving() {
            let side = is_on_cpu(&node.name);
            makers.extend(node.outputs.iter().map(|output| (*output, side)));
        }
        let mut crossed: HashSet<(TensorId, bool)> = HashSet::new();
        let mut found = [Crossing::default(); 2];
        for node in moving() {
            let side = is_on_cpu(&node.name);
            for input in &node.inputs {
                let from = makers.get(input).filter(|from| **from != side);
                if from.is_none() || !crossed.insert((*input, side)) {
                    continue;
                }
                let crossing = &mut found[usize::from(side)];
                crossing.tensors += 1;
                match self.bytes.get(input) {
                    Some(bytes) => crossing.bytes = crossing.bytes.saturating_add(*bytes),
                    None => crossing.unsized_tensors += 1,
                }
            }
        }
        Some(found)
    }
}

/// The names of `TensorProto.DataType`.
fn type_name(element: u64) -> Option<&'static str> {
    Some(match element {
        1 => "float",
        2 => "uint8",
        3 => "int8",
        4 => "uint16",
        5 => "int16",
        6 => "int32",
        7 => "int64",
        8 => "string",
        9 => "bool",
        10 => "float16",
        11 => "double",
        12 => "uint32",
        13 => "uint64",
        16 => "bfloat16",
        21 => "uint4",
        22 => "int4",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> GraphFacts {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
        graph_facts(&Path::new(models).join(name), &[]).unwrap()
    }

    /// The head of `e_mixed.q8head32` on the CPU, as SM8635 has it: its input comes from the NPU as 1,024 floats; the
    /// image goes there as 3 x 32 x 32 bytes.
    #[test]
    fn tensors_between_the_sides_are_counted_once_with_their_bytes() {
        let facts = model("e_mixed.q8head32.onnx");
        let on_cpu = |name: &str| name.starts_with("head_") || name == "x_QuantizeLinear";
        let [to_npu, to_cpu] = facts.crossings(on_cpu).unwrap();
        assert_eq!((to_npu.tensors, to_npu.bytes), (1, 3 * 32 * 32));
        assert_eq!((to_cpu.tensors, to_cpu.bytes), (1, 4 * 1_024));
        assert_eq!(to_npu.unsized_tensors + to_cpu.unsized_tensors, 0);
        assert_eq!(facts.crossings(|_| true), Some([Crossing::default(); 2]));
        assert_eq!(facts.types("head_fc1"), ["float"]);
        assert_eq!(facts.types("x_QuantizeLinear"), ["float", "uint8"]);
    }

    #[test]
    fn a_node_without_a_name_has_no_side() {
        assert_eq!(model("odd_names.fp32.onnx").crossings(|_| true), None);
    }
}
