//! Shapes of a node's outputs from the shapes of its inputs, for the ops between the ops that compute.
//!
//! An op that is not in the table leaves its outputs to the shapes declared in the model. A size beyond 2^40 gives no shape.

mod inputs;
mod layout;
mod product;
mod values;
mod window;

use std::{collections::HashMap, sync::LazyLock};

use self::inputs::{Dims, broadcast};
use crate::{
    graph::Node,
    tensor::{Tensor, element},
};

pub(crate) use self::inputs::Inputs;
pub(crate) use product::{equation, is_projecting};

/// The way to compute the outputs of an op from its inputs.
enum Rule {
    /// One output: its shape, and the source of its element type.
    One(fn(&Node, &Inputs<'_>) -> Option<Dims>, Element),
    /// Several outputs, or values that later shapes need.
    All(fn(&Node, &Inputs<'_>) -> Vec<Tensor>),
}

/// The element type of an output.
#[derive(Clone, Copy)]
enum Element {
    /// The element type of the input at this position.
    Of(usize),
    /// This element type, whatever the inputs are.
    Is(u64),
}

use Element::{Is, Of};
use Rule::{All, One};

/// Ops, separated by spaces, with their rule.
const RULES: &[(&str, Rule)] = &[
    // Ops whose output has the shape of the first input.
    (
        "Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Tanh Gelu FastGelu QuickGelu \
         BiasGelu Mish Softplus Softsign Erf Exp Log Sqrt Reciprocal Neg Abs Floor Ceil Round Sign Sin Cos Atan Not Dropout \
         Softmax LogSoftmax Hardmax LayerNormalization SkipLayerNormalization RMSNormalization SimplifiedLayerNormalization \
         InstanceNormalization BatchNormalization GroupNormalization LpNormalization MeanVarianceNormalization LRN Clip CumSum \
         Trilu ScatterND ScatterElements ReverseSequence RotaryEmbedding QLinearLeakyRelu QLinearSigmoid QLinearSoftmax",
        One(like_first, Of(0)),
    ),
    ("IsNaN IsInf", One(like_first, Is(element::BOOL))),
    ("CastLike DequantizeLinear", One(like_first, Of(1))),
    ("Identity", All(values::identity)),
    ("Cast", All(values::cast)),
    ("QuantizeLinear", All(values::quantize)),
    ("DynamicQuantizeLinear", All(values::dynamic_quantize)),
    // Broadcasting.
    ("Add Sub Mul Div", All(values::arithmetic)),
    (
        "Pow Mod Min Max Mean Sum BitShift",
        One(|_, inputs| broadcast(inputs, 0..inputs.0.len()), Of(0)),
    ),
    (
        "And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual",
        One(|_, inputs| broadcast(inputs, [0, 1]), Is(element::BOOL)),
    ),
    (
        "Where",
        One(|_, inputs| broadcast(inputs, [0, 1, 2]), Of(1)),
    ),
    (
        "QLinearAdd QLinearMul",
        One(|_, inputs| broadcast(inputs, [0, 3]), Of(0)),
    ),
    ("Expand", One(layout::expand, Of(0))),
    // Windows.
    (
        "Conv FusedConv",
        One(|node, inputs| window::conv(node, inputs, 1), Of(0)),
    ),
    (
        "ConvInteger",
        One(
            |node, inputs| window::conv(node, inputs, 1),
            Is(element::I32),
        ),
    ),
    (
        "QLinearConv",
        One(|node, inputs| window::conv(node, inputs, 3), Of(7)),
    ),
    ("ConvTranspose", One(window::conv_transpose, Of(0))),
    (
        "MaxPool AveragePool LpPool QLinearAveragePool",
        One(window::pool, Of(0)),
    ),
    (
        "GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearGlobalAveragePool",
        One(window::global_pool, Of(0)),
    ),
    // Products.
    (
        "Gemm FusedGemm",
        One(|node, inputs| product::gemm(node, inputs, 1), Of(0)),
    ),
    (
        "QGemm",
        One(|node, inputs| product::gemm(node, inputs, 3), Of(8)),
    ),
    (
        "MatMul FusedMatMul TransposeMatMul",
        One(|node, inputs| product::matmul(node, inputs, 1), Of(0)),
    ),
    (
        "MatMulInteger",
        One(
            |node, inputs| product::matmul(node, inputs, 1),
            Is(element::I32),
        ),
    ),
    (
        "MatMulIntegerToFloat DynamicQuantizeMatMul",
        One(
            |node, inputs| product::matmul(node, inputs, 1),
            Is(element::F32),
        ),
    ),
    (
        "QLinearMatMul",
        One(|node, inputs| product::matmul(node, inputs, 3), Of(7)),
    ),
    (
        "MatMulNBits MatMulBnb4",
        One(product::blocks_of_bits, Of(0)),
    ),
    ("LSTM GRU RNN DynamicQuantizeLSTM", All(product::recurrent)),
    ("Einsum", One(product::einsum, Of(0))),
    (
        "Attention QAttention MultiHeadAttention",
        One(product::attention, Of(0)),
    ),
    (
        "GroupQueryAttention",
        One(product::grouped_attention, Of(0)),
    ),
    // Layout.
    ("Flatten", One(layout::flatten, Of(0))),
    ("Reshape", All(layout::reshape)),
    ("Transpose", One(layout::transpose, Of(0))),
    ("Concat", All(layout::concat)),
    ("Split", All(layout::split)),
    ("Slice", All(layout::slice)),
    ("Squeeze Unsqueeze", All(layout::squeeze)),
    ("Gather", All(layout::gather)),
    (
        "GatherElements",
        One(|_, inputs| inputs.shape(1).map(Into::into), Of(0)),
    ),
    ("Tile", One(layout::tile, Of(0))),
    ("Pad", One(layout::pad, Of(0))),
    ("Resize Upsample", One(layout::resize, Of(0))),
    (
        "DepthToSpace",
        One(|node, inputs| layout::blocks(node, inputs, true), Of(0)),
    ),
    (
        "SpaceToDepth",
        One(|node, inputs| layout::blocks(node, inputs, false), Of(0)),
    ),
    ("ArgMax ArgMin", One(layout::arg, Is(element::I64))),
    ("TopK", All(layout::top_k)),
    (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare \
         ReduceSumInteger",
        One(layout::reduce, Of(0)),
    ),
    // Ops whose values may be shapes.
    ("Shape", All(values::shape_of)),
    ("Size", All(values::size_of)),
    ("Constant", All(values::constant)),
    ("ConstantOfShape", All(values::constant_of_shape)),
    ("Range", One(values::range, Of(0))),
];

static RULE_OF: LazyLock<HashMap<&str, &Rule>> = LazyLock::new(|| {
    let ops = |row: &'static (&str, Rule)| row.0.split(' ').map(move |op| (op, &row.1));
    RULES.iter().flat_map(ops).collect()
});

/// Returns the tensors of a node's first outputs. Outputs beyond these get no shape here.
pub(crate) fn outputs(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    match RULE_OF.get(node.op_type.as_str()) {
        Some(One(shape, element)) => {
            let element = match *element {
                Of(at) => inputs.element(at),
                Is(element) => element,
            };
            vec![Tensor::of(shape(node, inputs), element)]
        }
        Some(All(outputs)) => outputs(node, inputs),
        None => Vec::new(),
    }
}

fn like_first(_: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    inputs.shape(0).map(Into::into)
}
