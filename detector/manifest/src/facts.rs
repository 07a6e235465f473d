//! A graph's edges: the kinds of elements at each node, and the size of each tensor.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{Read, Seek},
    path::Path,
};

use epwatch_proto::fingerprint::normalised_node_name;

use crate::{
    ManifestError, count,
    forms::{NodeForm, forms},
    graph::{Names, TensorId},
    read, shapes,
    shapes::InputShape,
    tensor::Tensor,
    view::GraphView,
};

/// A node's names and tensors.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    /// Whether no input changes from run to run, so that a runtime may compute the node once.
    pub(crate) is_constant: bool,
}

/// The size of a node's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeSize {
    /// Multiplications with an addition.
    pub macs: u64,
    /// Bytes of its inputs and outputs.
    pub bytes: u64,
}

/// A graph's edges with their sizes.
#[derive(Debug)]
pub struct GraphFacts {
    pub(crate) nodes: Vec<Wiring>,
    names: Names,
    bytes: HashMap<TensorId, u64>,
    types: BTreeMap<String, Vec<&'static str>>,
    work: BTreeMap<String, NodeSize>,
    forms: BTreeMap<String, (String, NodeForm)>,
}

/// Reads the edges of a model file. Sizes that cannot be computed from its shapes are left out.
///
/// # Errors
/// The file cannot be read, is not an ONNX model or is too large.
pub fn graph_facts(model: &Path, given: &[InputShape]) -> Result<GraphFacts, ManifestError> {
    graph_facts_of(File::open(model)?, given)
}

/// Reads the edges of a model, as [`graph_facts`] does.
///
/// # Errors
/// The model cannot be read, is not an ONNX model or is too large.
pub fn graph_facts_of(
    model: impl Read + Seek,
    given: &[InputShape],
) -> Result<GraphFacts, ManifestError> {
    let mut model = read::model(model)?;
    let counted = shapes::fix_inputs(&mut model, given).and_then(|()| count::counted(&mut model));
    let (macs, tensors, uncounted) = counted.map_or_else(
        |_| Default::default(),
        |counted| (counted.macs, counted.tensors, counted.uncounted),
    );
    let endless = uncounted.iter().filter(|work| work.has_unknown_turns);
    let endless: HashSet<usize> = endless.map(|work| work.node).collect();
    let graph = &model.graph;
    let mut constants: HashSet<TensorId> = graph.initializers.iter().map(|(id, _)| *id).collect();
    constants.insert(0);
    let (mut nodes, mut bytes, mut types) = (Vec::new(), HashMap::new(), BTreeMap::new());
    let tensor = |id: &TensorId| tensors.get(*id);
    let view = GraphView::new(graph);
    let all_forms = forms(&view, &tensors);
    let (mut named_forms, mut work) = (BTreeMap::new(), BTreeMap::new());
    for (at, (node, form)) in graph.nodes.iter().zip(&all_forms).enumerate() {
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
            // A quantised node computes with the kinds of elements outside its DequantizeLinear and QuantizeLinear.
            let id = &match form.is_quantised || form.is_partly_quantised {
                true => beyond_quantisation(&view, *id),
                false => *id,
            };
            let name = tensor(id).and_then(|tensor| type_name(tensor.element));
            of_node.extend(name.filter(|name| !of_node.contains(name)));
        }
        let used = node.inputs.iter().chain(&node.outputs);
        let mut sizes = used.filter(|id| **id > 0).map(|id| tensor(id)?.bytes());
        let sizes = sizes.try_fold(0_u64, |sum, size| Some(sum.saturating_add(size?)));
        let macs = macs.get(at).copied().filter(|_| !endless.contains(&at));
        if let (Some(bytes), Some(macs)) = (sizes, macs) {
            work.insert(node.name.clone(), NodeSize { macs, bytes });
        }
        if !node.name.is_empty() {
            types.insert(node.name.clone(), of_node);
            let of = (node.op_type.clone(), form.clone());
            named_forms.insert(node.name.clone(), of);
        }
        nodes.push(Wiring {
            name: node.name.clone(),
            op_type: node.op_type.clone(),
            inputs: node.inputs.clone(),
            outputs: node.outputs.clone(),
            is_constant,
        });
    }
    Ok(GraphFacts {
        nodes,
        names: model.names,
        bytes,
        types,
        work,
        forms: named_forms,
    })
}

/// Returns the integer tensor on the other side of a DequantizeLinear before this tensor, or of a QuantizeLinear after
/// it.
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
    /// Returns the form of a node; `None` if the model does not have the node.
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

    /// MACs and bytes of a node, by its name in the model or in a session. `None` if a tensor has no fixed size, or the
    /// number of a loop's turns is not known.
    pub fn size_of(&self, node: &str) -> Option<NodeSize> {
        let found = self.work.get(node);
        let found = found.or_else(|| self.work.get(normalised_node_name(node)));
        found.copied().filter(|_| !node.is_empty())
    }

    /// Whether a node computes in 8 bits. Its kinds of elements are the kinds around its quantisation.
    pub fn is_8bit(&self, node: &str) -> bool {
        let types = self.types(node);
        let has = |wanted: [&str; 2]| types.iter().any(|name| wanted.contains(name));
        let is_partly = self.form(node).is_some_and(|form| form.is_partly_quantised);
        !is_partly && has(["uint8", "int8"]) && !has(["uint16", "int16"])
    }

    pub(crate) fn name_of(&self, tensor: TensorId) -> &str {
        self.names.text(tensor)
    }

    pub(crate) fn bytes_of(&self, tensor: TensorId) -> Option<u64> {
        self.bytes.get(&tensor).copied()
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

    #[test]
    fn nodes_have_the_kinds_of_their_elements() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
        let model = Path::new(models).join("e_mixed.q8head32.onnx");
        let facts = graph_facts(&model, &[]).unwrap();
        assert_eq!(facts.types("head_fc1"), ["float"]);
        assert_eq!(facts.types("x_QuantizeLinear"), ["float", "uint8"]);
        // 1,024 floats in and 256 out, and the weight between them.
        let size = facts.size_of("head_fc1").unwrap();
        assert_eq!(size.macs, 1_024 * 256);
        assert!(size.bytes >= 4 * (1_024 + 256 + 1_024 * 256), "{size:?}");
        assert_eq!(facts.size_of("head_fc1_token_3"), Some(size));
        assert!(!facts.is_8bit("head_fc1") && facts.is_8bit("conv1"));
        assert_eq!(facts.size_of(""), None);
    }

    /// `quantize_static` leaves the grid of a GridSample and the first nodes of a Gelu in float. A float head is not
    /// such a case.
    #[test]
    fn what_is_quantised_in_part_is_told_from_float_and_8_bits() {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures"));
        for (model, node, is_quantised, is_partly) in [
            ("gate/partly_grid.qu8.onnx", "/grid", false, true),
            ("gate/partly_grid.qu8.onnx", "c2", true, false),
            ("gate/partly_gelu.qu8.onnx", "/gelu/Div_0", false, true),
            ("gate/partly_gelu.qu8.onnx", "/gelu/Erf_1", false, true),
            ("gate/partly_gelu.qu8.onnx", "/gelu/Mul_3", true, false),
            ("gate/partly_norm.qu8.onnx", "/norm/Div_6", false, true),
            (
                "gate/partly_channel_norm.qu8.onnx",
                "/norm/Pow_2",
                false,
                true,
            ),
            (
                "gate/partly_channel_norm.qu8.onnx",
                "/norm/Mul_7",
                true,
                false,
            ),
            ("models/e_mixed.q8head32.onnx", "head_fc1", false, false),
        ] {
            let facts = graph_facts(&fixtures.join(model), &[]).unwrap();
            let form = facts.form(node).unwrap();
            let found = (form.is_quantised, form.is_partly_quantised);
            assert_eq!(found, (is_quantised, is_partly), "{node}: {form:?}");
        }
        let grid = graph_facts(&fixtures.join("gate/partly_grid.qu8.onnx"), &[]).unwrap();
        assert_eq!(grid.types("/grid"), ["uint8", "float"]);
        assert!(!grid.is_8bit("/grid") && grid.is_8bit("c2"));
    }
}
