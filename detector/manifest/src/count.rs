//! Counts the MACs of each node while it propagates shapes from a graph's inputs to its outputs.

use std::collections::HashMap;

use epwatch_proto::manifest::MAX_TOTAL_MACS;

use crate::{
    ManifestError,
    graph::{Declared, Graph, Node, OnnxModel, TensorId},
    infer::{self, Inputs},
    shapes::fixed,
    tensor::{Tensor, product},
    turns::{self, Turns},
};

/// Counts of a graph.
pub(crate) struct CountedGraph {
    /// MACs of each node, in the order of the graph. For a node in `uncounted` this is a lower bound.
    pub(crate) macs: Vec<u64>,
    /// Tensors by number, with their shapes as far as they are known.
    pub(crate) tensors: Vec<Tensor>,
    /// Work that no rule counts, in the order of the graph.
    pub(crate) uncounted: Vec<UncountedWork>,
}

/// A node, or one in its bodies, whose MACs are not known.
#[derive(Debug)]
pub(crate) struct UncountedWork {
    /// Index of the outer node in the graph.
    pub(crate) node: usize,
    /// Reason and way out. For a node in a body, the text starts with its op and name.
    pub(crate) why: String,
    /// Lower bound of the MACs: one for each element of the node's largest tensor.
    pub(crate) at_least: u64,
    /// Whether no share has a bound: its MACs are beyond the limit, or a loop around it has an unknown number of turns.
    pub(crate) has_unknown_turns: bool,
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
    let mut found = Found::default();
    let macs = count_graph(model, &graph, &mut found, None);
    model.graph = graph;
    let mut macs = macs?;
    limit(&mut macs, &mut found.uncounted);
    Ok(CountedGraph {
        macs,
        tensors: found.tensors,
        uncounted: found.uncounted,
    })
}

/// Leaves out MACs beyond the largest sum that a side-car may have.
fn limit(macs: &mut [u64], uncounted: &mut Vec<UncountedWork>) {
    let mut total = 0_u64;
    for (node, macs) in macs.iter_mut().enumerate() {
        let sum = total.saturating_add(*macs);
        if sum <= MAX_TOTAL_MACS {
            total = sum;
            continue;
        }
        *macs = 0;
        uncounted.push(UncountedWork {
            node,
            why: format!(
                "with it there are more than {MAX_TOTAL_MACS} MACs, the most that are counted; check its shapes, and the \
                 number of its turns if it is a loop"
            ),
            at_least: 0,
            has_unknown_turns: true,
        });
    }
    uncounted.sort_by_key(|work| work.node);
}

/// Results so far, while a graph is counted.
#[derive(Default)]
struct Found {
    tensors: Vec<Tensor>,
    uncounted: Vec<UncountedWork>,
}

/// Counts the nodes of a graph; `outer` is the node of the model that it is a body of.
fn count_graph(
    model: &mut OnnxModel,
    graph: &Graph,
    found: &mut Found,
    outer: Option<usize>,
) -> Result<Vec<u64>, ManifestError> {
    for input in &graph.inputs {
        let declared = fixed(input, model);
        // A body's input without a declared shape may get its shape from the outer node.
        let known = found.tensors.get(input.id).filter(|_| outer.is_some());
        let shape = declared.or_else(|| known?.shape.clone());
        let tensor = Tensor::of(shape, input.element);
        put(model, &mut found.tensors, input.id, tensor)?;
    }
    let has_defaults = outer.is_none() && model.has_defaults;
    let inputs: HashMap<TensorId, &Declared> = match has_defaults {
        true => graph.inputs.iter().map(|input| (input.id, input)).collect(),
        false => HashMap::new(),
    };
    for (id, weight) in &graph.initializers {
        let tensor = match inputs.get(id) {
            // The app may pass another value, so the input's declared shape counts.
            Some(input) => Tensor::of(fixed(input, model), weight.element),
            None => weight.clone(),
        };
        put(model, &mut found.tensors, *id, tensor)?;
    }
    let declared: HashMap<TensorId, &Declared> = graph
        .declared
        .iter()
        .map(|declared| (declared.id, declared))
        .collect();
    let mut all = Vec::with_capacity(graph.nodes.len());
    for (at, node) in graph.nodes.iter().enumerate() {
        let place = NodePlace {
            node: outer.unwrap_or(at),
            is_in_body: outer.is_some(),
        };
        let in_bodies = count_bodies(model, node, found, &place)?;
        let empty = Tensor::default();
        let get = |id: &TensorId| found.tensors.get(*id).unwrap_or(&empty);
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
        let shape_of = |at: usize| made.get(at).and_then(|out: &Tensor| out.shape.as_deref());
        let own = macs_of(node, &inputs, [shape_of(0), shape_of(1)]);
        // If an output has no shape, an input without a shape is nearer to the cause.
        let open = node
            .inputs
            .iter()
            .position(|id| *id > 0 && get(id).shape.is_none());
        let own = own.unwrap_or_else(|missing| {
            let missing = match (missing, open) {
                (Missing::Output, Some(at)) => Missing::Input(at),
                (missing, _) => missing,
            };
            let tensors = inputs.0.iter().copied().chain(&made);
            let sizes = tensors.filter_map(|tensor| product(tensor.shape.as_ref()?));
            found.uncounted.push(UncountedWork {
                node: place.node,
                why: place.why(model, node, &reason(model, node, &missing)),
                at_least: sizes.max().unwrap_or(0),
                has_unknown_turns: false,
            });
            0
        });
        for (id, tensor) in node.outputs.iter().zip(made) {
            put(model, &mut found.tensors, *id, tensor)?;
        }
        all.push(in_bodies.saturating_add(own));
    }
    Ok(all)
}

/// The place of a node in the model.
struct NodePlace {
    /// Index of the outer node, in the graph.
    node: usize,
    is_in_body: bool,
}

impl NodePlace {
    /// Returns the reason. In a body it starts with the node's op and name.
    fn why(&self, model: &OnnxModel, node: &Node, why: &str) -> String {
        match self.is_in_body {
            true => format!("{} {} in it: {why}", node.op_type, node.shown(&model.names)),
            false => why.to_owned(),
        }
    }
}

/// Counts the MACs of a node's bodies. An If counts the branch that it takes, or the larger branch if that is unknown.
/// A Loop or a Scan counts its body once for each turn. The number of turns may be unknown; it may then be 0, and no
/// MACs count.
fn count_bodies(
    model: &mut OnnxModel,
    node: &Node,
    found: &mut Found,
    place: &NodePlace,
) -> Result<u64, ManifestError> {
    let (mut macs, first) = (0_u64, found.uncounted.len());
    let bodies: Vec<&Graph> = turns::bodies_of(node, &found.tensors).collect();
    for body in bodies {
        for (id, tensor) in turns::inputs_of(node, body, &found.tensors) {
            put(model, &mut found.tensors, id, tensor)?;
        }
        let of_body = count_graph(model, body, found, Some(place.node))?;
        let sum = of_body.into_iter().fold(0, u64::saturating_add);
        macs = macs.max(sum);
    }
    let has_work = macs > 0 || found.uncounted.len() > first;
    match turns::of(node, &found.tensors) {
        Turns::One => {}
        Turns::Fixed(0) => {
            macs = 0;
            found.uncounted.truncate(first);
        }
        Turns::Fixed(turns) => {
            macs = macs.saturating_mul(turns);
            for work in &mut found.uncounted[first..] {
                work.at_least = work.at_least.saturating_mul(turns);
            }
        }
        Turns::Unknown(why) if has_work => {
            for work in &mut found.uncounted[first..] {
                (work.at_least, work.has_unknown_turns) = (0, true);
            }
            let why = match macs {
                0 => why.to_owned(),
                macs => format!("{why}; one turn has {macs} MACs"),
            };
            let work = UncountedWork {
                node: place.node,
                why: place.why(model, node, &why),
                at_least: 0,
                has_unknown_turns: true,
            };
            // The loop's entry is listed before the entries of its body, which it explains.
            found.uncounted.insert(first, work);
            macs = 0;
        }
        Turns::Unknown(_) => {}
    }
    Ok(macs)
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
    // Number 0 stands for an omitted tensor, which has no value.
    if id > 0 {
        tensors[id] = tensor;
    }
    Ok(())
}

fn reason(model: &OnnxModel, node: &Node, missing: &Missing) -> String {
    let tensor = match missing {
        Missing::Rule(why) => return (*why).to_owned(),
        Missing::Input(at) => node.input(*at),
        Missing::Output => node.outputs.first().copied().unwrap_or(0),
    };
    let tensor = model.names.text(tensor);
    format!(
        "tensor {tensor} has no fixed shape; write shapes into the model with onnx.shape_inference or onnxsim"
    )
}

/// MACs of a node by itself, without its bodies; 0 for ops that do not multiply and add.
fn macs_of(node: &Node, inputs: &Inputs<'_>, outputs: [Option<&[u64]>; 2]) -> Result<u64, Missing> {
    let out = || product(outputs[0].ok_or(Missing::Output)?).ok_or(TOO_MANY);
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
        "GroupQueryAttention" => grouped_attention(node, inputs, outputs[1]),
        "EPContext" => Err(Missing::Rule(
            "it is a precompiled graph; judge the model that it was compiled from",
        )),
        "DeformConv"
        | "DFT"
        | "STFT"
        | "LinearAttention"
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
        _ if !has_known_ops(node) => Err(Missing::Rule("there is no rule for this op")),
        _ => Ok(0),
    }
}

/// Whether every op of the node's domain that multiplies and adds has a rule, or is refused by name.
fn has_known_ops(node: &Node) -> bool {
    const WITHOUT_MACS: [&str; 31] = [
        "BiasAdd",
        "BiasDropout",
        "BiasGelu",
        "BiasSoftmax",
        "BiasSplitGelu",
        "DequantizeLinear",
        "EmbedLayerNormalization",
        "FastGelu",
        "Gelu",
        "GroupNorm",
        "Inverse",
        "NGramRepeatBlock",
        "Pad",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "QuantizeLinear",
        "QuickGelu",
        "RelativePositionBias",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipGroupNorm",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "Trilu",
    ];
    match node.domain.as_str() {
        "" | "ai.onnx" => true,
        "com.microsoft" => WITHOUT_MACS.contains(&node.op_type.as_str()),
        _ => false,
    }
}

fn times(a: u64, b: u64) -> Result<u64, Missing> {
    a.checked_mul(b).ok_or(TOO_MANY)
}

/// Returns the MACs for each element of the output; for a transposed convolution, for each element of the input.
fn per_output(weight: &[u64]) -> Result<u64, Missing> {
    product(weight.get(1..).unwrap_or_default()).ok_or(TOO_MANY)
}

fn einsum(node: &Node, inputs: &Inputs<'_>) -> Result<u64, Missing> {
    let Some(equation) = infer::equation(node, inputs) else {
        let open = (0..inputs.0.len()).find(|at| inputs.shape(*at).is_none());
        let rule = Missing::Rule("its equation does not fit its operands");
        return Err(open.map_or(rule, Missing::Input));
    };
    equation.macs().ok_or(TOO_MANY)
}

/// Counts the products of query with key, and of the result with value. Also counts the projections, if the op computes
/// them itself.
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
    // Keys and values of earlier steps: [batch, heads, steps, size].
    let past = if node.op_type == "MultiHeadAttention" {
        6
    } else {
        4
    };
    let cached = match node.inputs.get(past).is_some_and(|id| *id > 0) {
        true => *shape(past)?.get(2).ok_or(Missing::Input(past))?,
        false => 0,
    };
    let and_cached = |keys: u64| sum(keys, cached);
    match (shape(0)?, shape(1)?, shape(2)?) {
        (&[batch, steps, query], &[_, keys, _], &[_, _, value]) => {
            // If key and value have fewer heads, several heads of the query share each of them.
            let heads = |name| u64::try_from(node.int(name, 1)).unwrap_or(1).max(1);
            let value = times(value, heads("q_num_heads"))? / heads("kv_num_heads");
            times(
                times(batch, steps)?,
                times(and_cached(keys)?, sum(query, value)?)?,
            )
        }
        (&[batch, heads, steps, query], &[_, _, keys, _], &[_, _, _, value]) => {
            let pairs = times(times(batch, heads)?, times(steps, and_cached(keys)?)?)?;
            times(pairs, sum(query, value)?)
        }
        // Microsoft's op, with key and value split by head.
        (&[batch, steps, query], &[_, heads, keys, _], &[_, _, _, value]) => {
            let value = times(heads, value)?;
            times(
                times(batch, steps)?,
                times(and_cached(keys)?, sum(query, value)?)?,
            )
        }
        _ => Err(Missing::Rule("query, key and value are packed")),
    }
}

/// Attention whose heads share keys and values. The present keys are an output. Without that output's shape, their
/// number is the past keys plus the steps of this run.
fn grouped_attention(
    node: &Node,
    inputs: &Inputs<'_>,
    present: Option<&[u64]>,
) -> Result<u64, Missing> {
    let shape = |at: usize| inputs.shape(at).ok_or(Missing::Input(at));
    let heads = |name| u64::try_from(node.int(name, 0)).ok().filter(|n| *n > 0);
    let (Some(query_heads), Some(key_heads)) = (heads("num_heads"), heads("kv_num_heads")) else {
        return Err(Missing::Rule("it has no num_heads or kv_num_heads"));
    };
    let &[batch, steps, width] = shape(0)? else {
        return Err(Missing::Input(0));
    };
    let is_packed = node.inputs.get(1).is_none_or(|id| *id == 0);
    let all_heads = match is_packed {
        true => query_heads
            .checked_add(key_heads.checked_mul(2).ok_or(TOO_MANY)?)
            .ok_or(TOO_MANY)?,
        false => query_heads,
    };
    let size = width / all_heads;
    let keys = match (present, inputs.shape(3)) {
        (Some(&[_, _, keys, _]), _) => keys,
        (_, Some(&[_, _, past, _])) => past.checked_add(steps).ok_or(TOO_MANY)?,
        _ if node.inputs.get(3).is_none_or(|id| *id == 0) => steps,
        _ => return Err(Missing::Input(3)),
    };
    let pairs = times(times(batch, query_heads)?, times(steps, keys)?)?;
    times(pairs, times(2, size)?)
}
