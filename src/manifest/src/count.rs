//! MACs of each node, while the shapes of a graph are followed from its inputs to its outputs.

use std::collections::HashMap;

use crate::{
    ManifestError,
    graph::{Declared, Graph, Node, OnnxModel, TensorId},
    infer::{self, Inputs},
    shapes::fixed,
    tensor::{Tensor, product},
};

/// Counts of a graph.
pub(crate) struct CountedGraph {
    /// MACs of each node, in the order of the graph.
    pub(crate) macs: Vec<u64>,
    /// Tensors by number, as far as their shapes are known.
    pub(crate) tensors: Vec<Tensor>,
}

/// A count that fails: the place of the input without a shape (`None` for the output), or a reason.
enum Missing {
    Input(usize),
    Output,
    Rule(&'static str),
}

const TOO_MANY: Missing = Missing::Rule("they exceed 64 bits");

pub(crate) fn counted(model: &mut OnnxModel) -> Result<CountedGraph, ManifestError> {
    let graph = std::mem::take(&mut model.graph);
    let mut tensors = Vec::new();
    let macs = count_graph(model, &graph, &mut tensors);
    model.graph = graph;
    Ok(CountedGraph {
        macs: macs?,
        tensors,
    })
}

fn count_graph(
    model: &mut OnnxModel,
    graph: &Graph,
    tensors: &mut Vec<Tensor>,
) -> Result<Vec<u64>, ManifestError> {
    for input in &graph.inputs {
        let tensor = Tensor::of(fixed(input, model), input.element);
        put(model, tensors, input.id, tensor)?;
    }
    for (id, weight) in &graph.initializers {
        put(model, tensors, *id, weight.clone())?;
    }
    let declared: HashMap<TensorId, &Declared> = graph
        .declared
        .iter()
        .map(|declared| (declared.id, declared))
        .collect();
    let mut all = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let mut macs = 0_u64;
        for body in node
            .attributes
            .iter()
            .flat_map(|attribute| &attribute.graphs)
        {
            // Of an If one body runs; of a Loop or a Scan this is one iteration.
            let of_body = count_graph(model, body, tensors)?;
            let sum = of_body.into_iter().fold(0, u64::saturating_add);
            macs = macs.max(sum);
        }
        let empty = Tensor::default();
        let get = |id: &TensorId| tensors.get(*id).unwrap_or(&empty);
        let inputs = Inputs(node.inputs.iter().map(get).collect());
        let mut made = infer::outputs(node, &inputs);
        made.resize_with(node.outputs.len(), Tensor::default);
        for (id, tensor) in node.outputs.iter().zip(&mut made) {
            if let Some(declared) = declared.get(id) {
                let shape = tensor.shape.take();
                tensor.shape = shape.or_else(|| fixed(declared, model));
                tensor.element = declared.element;
            }
        }
        let own = macs_of(
            node,
            &inputs,
            made.first().and_then(|out| out.shape.as_deref()),
        );
        // An output without a shape has an input without one, which is nearer to the cause.
        let open = node
            .inputs
            .iter()
            .position(|id| *id > 0 && get(id).shape.is_none());
        let own = own.map_err(|missing| match (missing, open) {
            (Missing::Output, Some(at)) => failure(model, node, &Missing::Input(at)),
            (missing, _) => failure(model, node, &missing),
        })?;
        for (id, tensor) in node.outputs.iter().zip(made) {
            put(model, tensors, *id, tensor)?;
        }
        all.push(macs.saturating_add(own));
    }
    Ok(all)
}

fn put(
    model: &mut OnnxModel,
    tensors: &mut Vec<Tensor>,
    id: TensorId,
    tensor: Tensor,
) -> Result<(), ManifestError> {
    model.budget.spend(tensor.memory())?;
    if id >= tensors.len() {
        tensors.resize_with(id + 1, Tensor::default);
    }
    // Number 0 is the tensor that is left out.
    if id > 0 {
        tensors[id] = tensor;
    }
    Ok(())
}

fn failure(model: &OnnxModel, node: &Node, missing: &Missing) -> ManifestError {
    let (name, op_type) = (node.shown(&model.names), node.op_type.clone());
    let tensor = match missing {
        Missing::Rule(why) => {
            return ManifestError::Uncountable {
                node: name,
                op_type,
                why,
            };
        }
        Missing::Input(at) => node.input(*at),
        Missing::Output => node.outputs.first().copied().unwrap_or(0),
    };
    ManifestError::NoShape {
        node: name,
        op_type,
        tensor: model.names.text(tensor).to_owned(),
    }
}

/// MACs of a node by itself, without its bodies; 0 for ops that do not multiply and add.
fn macs_of(node: &Node, inputs: &Inputs<'_>, output: Option<&[u64]>) -> Result<u64, Missing> {
    let out = || product(output.ok_or(Missing::Output)?).ok_or(TOO_MANY);
    let shape = |at: usize| inputs.shape(at).ok_or(Missing::Input(at));
    let all = |at: usize| product(shape(at)?).ok_or(TOO_MANY);
    match node.op_type.as_str() {
        // Weights are [out, in / group, kernel..]; transposed [in, out / group, kernel..].
        "Conv" | "FusedConv" | "ConvInteger" => times(out()?, per_output(shape(1)?)?),
        "QLinearConv" => times(out()?, per_output(shape(3)?)?),
        "ConvTranspose" => times(all(0)?, per_output(shape(1)?)?),
        "Gemm" | "FusedGemm" | "QGemm" => {
            let a = shape(0)?;
            let inner = if node.int("transA", 0) != 0 {
                a.first()
            } else {
                a.last()
            };
            times(out()?, *inner.ok_or(Missing::Input(0))?)
        }
        "MatMul"
        | "MatMulInteger"
        | "MatMulIntegerToFloat"
        | "DynamicQuantizeMatMul"
        | "QLinearMatMul" => times(out()?, *shape(0)?.last().ok_or(Missing::Input(0))?),
        "FusedMatMul" | "TransposeMatMul" => {
            let inner = match (shape(0)?, node.int("transA", 0) != 0) {
                ([.., inner, _], true) | ([.., inner], _) => *inner,
                ([], _) => return Err(Missing::Input(0)),
            };
            times(out()?, inner)
        }
        "MatMulNBits" | "MatMulBnb4" => {
            let columns = u64::try_from(node.int("N", -1));
            times(
                all(0)?,
                columns.map_err(|_| Missing::Rule("it has no attribute N"))?,
            )
        }
        // Weights are [directions, gates x hidden, in], recurrent ones [directions, gates x hidden, hidden].
        "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM" => {
            let &[steps, batch, _] = shape(0)? else {
                return Err(Missing::Input(0));
            };
            let weights = all(1)?.checked_add(all(2)?).ok_or(TOO_MANY)?;
            times(times(steps, batch)?, weights)
        }
        "Einsum" => einsum(node, inputs),
        "Attention" | "QAttention" | "MultiHeadAttention" => attention(node, inputs),
        "DeformConv"
        | "GroupQueryAttention"
        | "PackedAttention"
        | "PackedMultiHeadAttention"
        | "DecoderAttention"
        | "DecoderMaskedMultiHeadAttention"
        | "DecoderMaskedSelfAttention"
        | "SparseAttention"
        | "PagedAttention"
        | "LongformerAttention"
        | "MoE"
        | "QMoE"
        | "GemmFloat8"
        | "QOrderedMatMul"
        | "QOrderedAttention"
        | "NhwcConv"
        | "NhwcFusedConv" => Err(Missing::Rule("there is no rule for this op")),
        _ => Ok(0),
    }
}

fn times(a: u64, b: u64) -> Result<u64, Missing> {
    a.checked_mul(b).ok_or(TOO_MANY)
}

/// MACs for each element of the output, or for each of the input of a transposed convolution.
fn per_output(weight: &[u64]) -> Result<u64, Missing> {
    product(weight.get(1..).unwrap_or_default()).ok_or(TOO_MANY)
}

/// One multiplication for each combination of labels and each operand after the first.
fn einsum(node: &Node, inputs: &Inputs<'_>) -> Result<u64, Missing> {
    let Some((operands, _)) = infer::equation(node.text("equation")) else {
        return Err(Missing::Rule(
            "its equation has an ellipsis or no arrow; write all labels",
        ));
    };
    let labels = infer::labels(node, inputs).ok_or_else(|| {
        let open = (0..operands.len()).find(|at| inputs.shape(*at).is_none());
        Missing::Input(open.unwrap_or(0))
    })?;
    let sizes: Vec<u64> = labels.iter().map(|(_, size)| *size).collect();
    times(product(&sizes).ok_or(TOO_MANY)?, operands.len() as u64 - 1)
}

/// The products of query with key and of the result with value; and the projections where it does them itself.
fn attention(node: &Node, inputs: &Inputs<'_>) -> Result<u64, Missing> {
    let shape = |at: usize| inputs.shape(at).ok_or(Missing::Input(at));
    let sum = |a: u64, b: u64| a.checked_add(b).ok_or(TOO_MANY);
    if infer::is_projecting(node) {
        let (&[batch, steps, _], &[_, projected]) = (shape(0)?, shape(1)?) else {
            return Err(Missing::Rule(
                "input and weights are not [batch, steps, in] and [in, out]",
            ));
        };
        let input = product(shape(0)?).ok_or(TOO_MANY)?;
        let sizes = node.ints("qkv_hidden_sizes").unwrap_or_default();
        let (query, value) = match *sizes {
            [] => (projected / 3, projected / 3),
            [query, _, value] => (query.unsigned_abs(), value.unsigned_abs()),
            _ => return Err(Missing::Rule("qkv_hidden_sizes are not three")),
        };
        let scores = times(times(batch, steps)?, times(steps, sum(query, value)?)?)?;
        return sum(times(input, projected)?, scores);
    }
    match (shape(0)?, shape(1)?, shape(2)?) {
        (&[batch, steps, query], &[_, keys, _], &[_, _, value]) => {
            // With fewer heads of key and value, each is used by several heads of the query.
            let heads = |name| u64::try_from(node.int(name, 1)).unwrap_or(1).max(1);
            let value = times(value, heads("q_num_heads"))? / heads("kv_num_heads");
            times(times(batch, steps)?, times(keys, sum(query, value)?)?)
        }
        (&[batch, heads, steps, query], &[_, _, keys, _], &[_, _, _, value]) => {
            let pairs = times(times(batch, heads)?, times(steps, keys)?)?;
            times(pairs, sum(query, value)?)
        }
        // Microsoft's, with key and value by head.
        (&[batch, steps, query], &[_, heads, keys, _], &[_, _, _, value]) => {
            let value = times(heads, value)?;
            times(times(batch, steps)?, times(keys, sum(query, value)?)?)
        }
        _ => Err(Missing::Rule("query, key and value are packed")),
    }
}
