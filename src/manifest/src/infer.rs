//! Shapes of a node's outputs from the shapes of its inputs, for the ops between the ops that compute.
//!
//! An op that is not here leaves its outputs to the shapes declared in the model. A size beyond 2^40 gives no shape.

use crate::{
    einsum::Equation,
    graph::Node,
    tensor::{Tensor, element, product},
};

type Dims = Vec<u64>;

/// Largest size of a dimension, a stride or a padding.
const MOST: i64 = 1 << 40;

/// The input at a place; an empty tensor where there is none.
pub(crate) struct Inputs<'a>(pub(crate) Vec<&'a Tensor>);

impl<'a> Inputs<'a> {
    pub(crate) fn get(&self, at: usize) -> Option<&'a Tensor> {
        self.0.get(at).copied()
    }

    pub(crate) fn shape(&self, at: usize) -> Option<&'a [u64]> {
        self.get(at)?.shape.as_deref()
    }

    fn ints(&self, at: usize) -> Option<&'a [i64]> {
        self.get(at)?.ints.as_deref()
    }

    fn element(&self, at: usize) -> u64 {
        self.get(at).map_or(0, |tensor| tensor.element)
    }
}

/// Tensors of the outputs, as many as are known to differ; more outputs of a node have no shape from here.
pub(crate) fn outputs(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let first = inputs.shape(0);
    let like_first = inputs.element(0);
    let of = |shape: Option<Dims>| vec![Tensor::of(shape, like_first)];
    match node.op_type.as_str() {
        "Identity" => inputs.get(0).cloned().into_iter().collect(),
        "Cast" => {
            let mut tensor = inputs.get(0).cloned().unwrap_or_default();
            tensor.element = node.int("to", 0).unsigned_abs();
            vec![tensor]
        }
        "CastLike" => vec![Tensor::of(first.map(Into::into), inputs.element(1))],
        "QuantizeLinear" => {
            let kind = match (inputs.element(2), node.int("output_dtype", 0)) {
                (0, 0) => element::U8,
                (0, kind) => kind.unsigned_abs(),
                (kind, _) => kind,
            };
            vec![Tensor::of(first.map(Into::into), kind)]
        }
        "DequantizeLinear" => vec![Tensor::of(first.map(Into::into), inputs.element(1))],
        "DynamicQuantizeLinear" => vec![
            Tensor::of(first.map(Into::into), element::U8),
            Tensor::of(Some(Vec::new()), element::F32),
            Tensor::of(Some(Vec::new()), element::U8),
        ],
        "Relu"
        | "LeakyRelu"
        | "PRelu"
        | "Elu"
        | "Selu"
        | "Celu"
        | "ThresholdedRelu"
        | "Sigmoid"
        | "HardSigmoid"
        | "HardSwish"
        | "Swish"
        | "Tanh"
        | "Gelu"
        | "FastGelu"
        | "QuickGelu"
        | "BiasGelu"
        | "Mish"
        | "Softplus"
        | "Softsign"
        | "Erf"
        | "Exp"
        | "Log"
        | "Sqrt"
        | "Reciprocal"
        | "Neg"
        | "Abs"
        | "Floor"
        | "Ceil"
        | "Round"
        | "Sign"
        | "Sin"
        | "Cos"
        | "Atan"
        | "Not"
        | "Dropout"
        | "Softmax"
        | "LogSoftmax"
        | "Hardmax"
        | "LayerNormalization"
        | "SkipLayerNormalization"
        | "RMSNormalization"
        | "SimplifiedLayerNormalization"
        | "InstanceNormalization"
        | "BatchNormalization"
        | "GroupNormalization"
        | "LpNormalization"
        | "MeanVarianceNormalization"
        | "LRN"
        | "Clip"
        | "CumSum"
        | "Trilu"
        | "ScatterND"
        | "ScatterElements"
        | "ReverseSequence"
        | "RotaryEmbedding"
        | "QLinearLeakyRelu"
        | "QLinearSigmoid"
        | "QLinearSoftmax" => of(first.map(Into::into)),
        "IsNaN" | "IsInf" => vec![Tensor::of(first.map(Into::into), element::BOOL)],
        "Add" | "Sub" | "Mul" | "Div" => {
            let mut out = Tensor::of(broadcast(inputs, &[0, 1]), like_first);
            out.ints = arithmetic(node, inputs);
            vec![out]
        }
        "Pow" | "Mod" | "Min" | "Max" | "Mean" | "Sum" | "BitShift" => {
            let all: Vec<usize> = (0..inputs.0.len()).collect();
            of(broadcast(inputs, &all))
        }
        "And" | "Or" | "Xor" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
            vec![Tensor::of(broadcast(inputs, &[0, 1]), element::BOOL)]
        }
        "Where" => vec![Tensor::of(broadcast(inputs, &[0, 1, 2]), inputs.element(1))],
        "QLinearAdd" | "QLinearMul" => of(broadcast(inputs, &[0, 3])),
        "Conv" | "FusedConv" => of(conv(node, first, inputs.shape(1))),
        "ConvInteger" => vec![Tensor::of(conv(node, first, inputs.shape(1)), element::I32)],
        "QLinearConv" => vec![Tensor::of(
            conv(node, first, inputs.shape(3)),
            inputs.element(7),
        )],
        "ConvTranspose" => of(conv_transpose(node, first, inputs.shape(1))),
        "MaxPool" | "AveragePool" | "LpPool" | "QLinearAveragePool" => of(pool(node, first)),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" | "QLinearGlobalAveragePool"
            if node.int("channels_last", 0) == 0 =>
        {
            let dims = first.filter(|dims| dims.len() >= 2).map(|dims| {
                let kept = |(at, dim): (usize, &u64)| if at < 2 { *dim } else { 1 };
                dims.iter().enumerate().map(kept).collect()
            });
            of(dims)
        }
        "Gemm" | "FusedGemm" => of(gemm(node, first, inputs.shape(1))),
        "QGemm" => vec![Tensor::of(
            gemm(node, first, inputs.shape(3)),
            inputs.element(8),
        )],
        "MatMul" | "FusedMatMul" | "TransposeMatMul" => of(matmul(node, first, inputs.shape(1))),
        "MatMulInteger" => vec![Tensor::of(
            matmul(node, first, inputs.shape(1)),
            element::I32,
        )],
        "MatMulIntegerToFloat" | "DynamicQuantizeMatMul" => {
            vec![Tensor::of(
                matmul(node, first, inputs.shape(1)),
                element::F32,
            )]
        }
        "QLinearMatMul" => vec![Tensor::of(
            matmul(node, first, inputs.shape(3)),
            inputs.element(7),
        )],
        "MatMulNBits" | "MatMulBnb4" => of(with_last(first, size(node.int("N", -1)))),
        "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM" => recurrent(node, inputs),
        "Einsum" => of(einsum(node, inputs)),
        "Attention" | "QAttention" | "MultiHeadAttention" => of(attention(node, inputs)),
        "GroupQueryAttention" => of(grouped_attention(node, first, inputs.shape(1))),
        "Flatten" => of(flatten(node, first)),
        "Reshape" => {
            let mut out = Tensor::of(reshape(node, first, inputs.ints(1)), like_first);
            out.ints = inputs.ints(0).map(Into::into);
            vec![out]
        }
        "Transpose" => of(transpose(node, first)),
        "Concat" => vec![concat(node, inputs)],
        "Split" => split(node, inputs),
        "Slice" => vec![slice(node, inputs)],
        "Squeeze" | "Unsqueeze" => {
            let mut out = Tensor::of(squeeze(node, inputs), like_first);
            out.ints = inputs.ints(0).map(Into::into);
            vec![out]
        }
        "Gather" => vec![gather(node, inputs)],
        "GatherElements" => of(inputs.shape(1).map(Into::into)),
        "Shape" => vec![shape_of(node, first)],
        "Size" => {
            let n = first.and_then(product).and_then(|n| i64::try_from(n).ok());
            let mut out = Tensor::of(Some(Vec::new()), element::I64);
            out.ints = n.map(|n| vec![n]);
            vec![out]
        }
        "Constant" => vec![constant(node)],
        "ConstantOfShape" => {
            let value = node
                .attribute("value")
                .and_then(|value| value.tensor.as_ref());
            let kind = value.map_or(element::F32, |value| value.element);
            let shape = inputs.ints(0).and_then(sizes);
            let mut out = Tensor::of(shape, kind);
            if let (Some([n @ 0..=16]), Some([fill])) = (
                out.shape.as_deref(),
                value.and_then(|value| value.ints.as_deref()),
            ) {
                out.ints = usize::try_from(*n).ok().map(|n| vec![*fill; n]);
            }
            vec![out]
        }
        "Range" => {
            let whole = |at| inputs.ints(at)?.first().copied();
            let n = || {
                let (start, limit, step) = (whole(0)?, whole(1)?, whole(2).filter(|s| *s != 0)?);
                let span = i128::from(limit) - i128::from(start);
                let step = i128::from(step);
                let n = span / step + i128::from(span % step != 0 && (span > 0) == (step > 0));
                u64::try_from(n.max(0)).ok()
            };
            of(n().map(|n| vec![n]))
        }
        "Expand" => {
            let other = inputs.ints(1).and_then(sizes);
            let other = Tensor::of(other, 0);
            let both = Inputs(inputs.get(0).into_iter().chain([&other]).collect());
            of(broadcast(&both, &[0, 1]))
        }
        "Tile" => of(zipped(first, inputs.ints(1), |dim, times| {
            dim.checked_mul(u64::try_from(times).ok()?)
        })),
        "Pad" => of(pad(node, inputs)),
        "Resize" | "Upsample" => of(resize(node, inputs)),
        "DepthToSpace" => of(blocks(node, first, true)),
        "SpaceToDepth" => of(blocks(node, first, false)),
        "ArgMax" | "ArgMin" => {
            let axes = [node.int("axis", 0)];
            let dims = reduced(first, Some(&axes), node.int("keepdims", 1) != 0);
            vec![Tensor::of(dims, element::I64)]
        }
        "TopK" => {
            let k = inputs.ints(1).and_then(|k| k.first().copied());
            let k = size(k.unwrap_or_else(|| node.int("k", -1)));
            let dims = || {
                let mut dims: Dims = first?.into();
                *dims.get_mut(axis(node.int("axis", -1), first?.len())?)? = k?;
                Some(dims)
            };
            vec![
                Tensor::of(dims(), like_first),
                Tensor::of(dims(), element::I64),
            ]
        }
        op if op.starts_with("Reduce") => {
            let axes = node
                .ints("axes")
                .or(inputs.ints(1))
                .filter(|axes| !axes.is_empty());
            let has_unknown = axes.is_none()
                && inputs
                    .get(1)
                    .is_some_and(|axes| axes.ints.is_none() && axes.element != 0);
            let is_noop = axes.is_none() && node.int("noop_with_empty_axes", 0) != 0;
            match (has_unknown, is_noop) {
                (true, _) => Vec::new(),
                (_, true) => of(first.map(Into::into)),
                _ => of(reduced(first, axes, node.int("keepdims", 1) != 0)),
            }
        }
        _ => Vec::new(),
    }
}

/// A size from a model: 0 to 2^40.
fn size(value: i64) -> Option<u64> {
    (0..=MOST).contains(&value).then(|| value.unsigned_abs())
}

fn sizes(values: &[i64]) -> Option<Dims> {
    values.iter().copied().map(size).collect()
}

/// An axis, which may count from the end.
fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|_| axis < rank)
}

fn zipped(
    dims: Option<&[u64]>,
    ints: Option<&[i64]>,
    f: impl Fn(u64, i64) -> Option<u64>,
) -> Option<Dims> {
    let (dims, ints) = (dims?, ints?);
    let pairs = dims.iter().zip(ints);
    pairs
        .map(|(dim, int)| f(*dim, *int))
        .collect::<Option<Dims>>()
        .filter(|out| out.len() == dims.len())
}

fn broadcast(inputs: &Inputs<'_>, which: &[usize]) -> Option<Dims> {
    let mut out: Dims = Vec::new();
    for at in which {
        let dims = inputs.shape(*at)?;
        let missing = dims.len().saturating_sub(out.len());
        out.splice(0..0, std::iter::repeat_n(1, missing));
        let from = out.len() - dims.len();
        for (ours, theirs) in out[from..].iter_mut().zip(dims) {
            match (*ours, *theirs) {
                (1, theirs) => *ours = theirs,
                (ours, theirs) if theirs == 1 || theirs == ours => {}
                _ => return None,
            }
        }
    }
    Some(out)
}

/// Values that are computed of a shape.
fn arithmetic(node: &Node, inputs: &Inputs<'_>) -> Option<Vec<i64>> {
    let (a, b) = (inputs.ints(0)?, inputs.ints(1)?);
    let n = if a.is_empty() || b.is_empty() {
        0
    } else {
        a.len().max(b.len())
    };
    if (a.len() != n && a.len() != 1) || (b.len() != n && b.len() != 1) {
        return None;
    }
    let each = (0..n).map(|at| {
        let (a, b) = (a[at % a.len()], b[at % b.len()]);
        match node.op_type.as_str() {
            "Add" => a.checked_add(b),
            "Sub" => a.checked_sub(b),
            "Mul" => a.checked_mul(b),
            _ => a.checked_div(b),
        }
    });
    each.collect()
}

/// The sliding window of a convolution or a pooling along one axis.
struct Sliding {
    kernel: i64,
    stride: i64,
    dilation: i64,
    pads: (i64, i64),
}

/// The windows of the spatial axes, each number between 0 and 2^40.
fn windows(node: &Node, kernel: &[u64]) -> Option<Vec<Sliding>> {
    let n = kernel.len();
    let at = |name: &str, i: usize, default: i64| match node.ints(name) {
        None | Some([]) => Some(default),
        Some(values) => values.get(i).copied().filter(|v| (0..=MOST).contains(v)),
    };
    let each = kernel.iter().enumerate().map(|(i, kernel)| {
        Some(Sliding {
            kernel: i64::try_from(*kernel)
                .ok()
                .filter(|k| (1..=MOST).contains(k))?,
            stride: at("strides", i, 1).filter(|stride| *stride > 0)?,
            dilation: at("dilations", i, 1)?,
            pads: (at("pads", i, 0)?, at("pads", i + n, 0)?),
        })
    });
    each.collect()
}

fn slid(node: &Node, spatial: &[u64], kernel: &[u64]) -> Option<Dims> {
    if spatial.len() != kernel.len() {
        return None;
    }
    let ceil = i128::from(node.int("ceil_mode", 0) != 0);
    let out = spatial
        .iter()
        .zip(windows(node, kernel)?)
        .map(|(dim, window)| {
            let (dim, stride) = (i128::from(*dim), i128::from(window.stride));
            let reach = i128::from(window.kernel - 1) * i128::from(window.dilation) + 1;
            let pads = i128::from(window.pads.0) + i128::from(window.pads.1);
            let out = match node.text("auto_pad") {
                "SAME_UPPER" | "SAME_LOWER" => (dim + stride - 1) / stride,
                "VALID" => (dim - reach).div_euclid(stride) + 1,
                _ => {
                    let span = dim + pads - reach;
                    let mut out = (span + ceil * (stride - 1)).div_euclid(stride) + 1;
                    // The last window starts within the input or its padding at the start.
                    if ceil == 1 && (out - 1) * stride >= dim + i128::from(window.pads.0) {
                        out -= 1;
                    }
                    out
                }
            };
            u64::try_from(out).ok()
        });
    out.collect()
}

fn conv(node: &Node, input: Option<&[u64]>, weight: Option<&[u64]>) -> Option<Dims> {
    let ([batch, _, spatial @ ..], [channels, _, kernel @ ..]) = (input?, weight?) else {
        return None;
    };
    let mut out = vec![*batch, *channels];
    out.extend(slid(node, spatial, kernel)?);
    Some(out)
}

fn pool(node: &Node, input: Option<&[u64]>) -> Option<Dims> {
    let [batch, channels, spatial @ ..] = input? else {
        return None;
    };
    let mut out = vec![*batch, *channels];
    out.extend(slid(node, spatial, &sizes(node.ints("kernel_shape")?)?)?);
    Some(out)
}

fn conv_transpose(node: &Node, input: Option<&[u64]>, weight: Option<&[u64]>) -> Option<Dims> {
    let ([batch, _, spatial @ ..], [_, per_group, kernel @ ..]) = (input?, weight?) else {
        return None;
    };
    let groups = size(node.int("group", 1))?;
    let mut out = vec![*batch, per_group.checked_mul(groups)?];
    if let Some(shape) = node.ints("output_shape").filter(|shape| !shape.is_empty()) {
        // Some exporters write batch and channels too.
        let spatial_only = shape.get(shape.len().checked_sub(spatial.len())?..)?;
        out.extend(sizes(spatial_only)?);
        return Some(out);
    }
    if spatial.len() != kernel.len() {
        return None;
    }
    for (i, (dim, window)) in spatial.iter().zip(windows(node, kernel)?).enumerate() {
        let (dim, stride) = (i128::from(*dim), i128::from(window.stride));
        let reach = i128::from(window.kernel - 1) * i128::from(window.dilation) + 1;
        let extra = node
            .ints("output_padding")
            .and_then(|p| p.get(i).copied())
            .unwrap_or(0);
        let made = stride * (dim - 1) + reach + i128::from(size(extra)?);
        let pads = i128::from(window.pads.0) + i128::from(window.pads.1);
        out.push(
            u64::try_from(match node.text("auto_pad") {
                "SAME_UPPER" | "SAME_LOWER" => dim * stride,
                _ => made - pads,
            })
            .ok()?,
        );
    }
    Some(out)
}

fn gemm(node: &Node, a: Option<&[u64]>, b: Option<&[u64]>) -> Option<Dims> {
    let (&[a0, a1], &[b0, b1]) = (a?, b?) else {
        return None;
    };
    let rows = if node.int("transA", 0) != 0 { a1 } else { a0 };
    Some(vec![rows, if node.int("transB", 0) != 0 { b0 } else { b1 }])
}

fn matmul(node: &Node, a: Option<&[u64]>, b: Option<&[u64]>) -> Option<Dims> {
    let (a, b) = (a?, b?);
    if node.int("transBatchA", 0) != 0 || node.int("transBatchB", 0) != 0 {
        return None;
    }
    let flip = |dims: &[u64], name: &str| {
        let mut dims: Dims = dims.into();
        if let (true, [.., x, y]) = (node.int(name, 0) != 0, &mut dims[..]) {
            std::mem::swap(x, y);
        }
        dims
    };
    let (a, b) = (flip(a, "transA"), flip(b, "transB"));
    let (batch_a, rows) = match &a[..] {
        [] => return None,
        [_] => (&[][..], None),
        [batch @ .., rows, _] => (batch, Some(*rows)),
    };
    let (batch_b, columns) = match &b[..] {
        [] => return None,
        [_] => (&[][..], None),
        [batch @ .., _, columns] => (batch, Some(*columns)),
    };
    let (batch_a, batch_b) = (
        Tensor::of(Some(batch_a.into()), 0),
        Tensor::of(Some(batch_b.into()), 0),
    );
    let mut out = broadcast(&Inputs(vec![&batch_a, &batch_b]), &[0, 1])?;
    out.extend(rows.into_iter().chain(columns));
    Some(out)
}

fn with_last(dims: Option<&[u64]>, last: Option<u64>) -> Option<Dims> {
    let mut dims: Dims = dims?.into();
    *dims.last_mut()? = last?;
    Some(dims)
}

/// Y is [steps, directions, batch, hidden]; Y_h and Y_c have no steps.
fn recurrent(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let dims = || {
        let &[first, second, _] = inputs.shape(0)? else {
            return None;
        };
        let directions = *inputs.shape(1)?.first()?;
        let hidden = size(node.int("hidden_size", -1))?;
        let state = vec![directions, second, hidden];
        Some((vec![first, directions, second, hidden], state))
    };
    let Some((all, state)) = dims().filter(|_| node.int("layout", 0) == 0) else {
        return Vec::new();
    };
    let of = |dims| Tensor::of(Some(dims), inputs.element(0));
    vec![of(all), of(state.clone()), of(state)]
}

/// The equation of an Einsum; `None` if an operand has no fixed shape, or they do not fit.
pub(crate) fn equation(node: &Node, inputs: &Inputs<'_>) -> Option<Equation> {
    let shapes: Option<Vec<&[u64]>> = (0..inputs.0.len()).map(|at| inputs.shape(at)).collect();
    Equation::of(node.text("equation"), &shapes?)
}

fn einsum(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    equation(node, inputs)?.dims()
}

fn attention(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    match (node.op_type.as_str(), inputs.shape(0)?, inputs.shape(2)) {
        // Microsoft's: input [batch, steps, in], weights [in, 3 x out].
        (_, &[batch, steps, _], _) if is_projecting(node) => {
            let out = match node.ints("qkv_hidden_sizes") {
                Some(sizes) => size(*sizes.get(2)?)?,
                None => inputs.shape(1)?.get(1)? / 3,
            };
            Some(vec![batch, steps, out])
        }
        ("MultiHeadAttention", &[batch, steps, _], Some(&[_, _, out])) => {
            Some(vec![batch, steps, out])
        }
        ("Attention", &[batch, heads, steps, _], Some(&[_, _, _, out])) => {
            Some(vec![batch, heads, steps, out])
        }
        ("Attention", &[batch, steps, _], Some(&[_, _, out])) => {
            let (query, value) = (
                size(node.int("q_num_heads", 1))?,
                size(node.int("kv_num_heads", 1))?,
            );
            Some(vec![
                batch,
                steps,
                out.checked_mul(query)?.checked_div(value)?,
            ])
        }
        _ => None,
    }
}

/// Whether the attention multiplies with the weights of query, key and value itself.
pub(crate) fn is_projecting(node: &Node) -> bool {
    node.op_type == "QAttention" || node.op_type == "Attention" && node.domain == "com.microsoft"
}

/// As the query, without the keys and values that may be packed into it.
fn grouped_attention(node: &Node, query: Option<&[u64]>, key: Option<&[u64]>) -> Option<Dims> {
    let &[batch, steps, width] = query? else {
        return None;
    };
    if key.is_some() {
        return Some(vec![batch, steps, width]);
    }
    let heads = |name| size(node.int(name, 0)).filter(|n| *n > 0);
    let (query_heads, key_heads) = (heads("num_heads")?, heads("kv_num_heads")?);
    let all = query_heads.checked_add(key_heads.checked_mul(2)?)?;
    Some(vec![batch, steps, (width / all).checked_mul(query_heads)?])
}

fn flatten(node: &Node, dims: Option<&[u64]>) -> Option<Dims> {
    let dims = dims?;
    let at = match node.int("axis", 1) {
        end if usize::try_from(end) == Ok(dims.len()) => dims.len(),
        at => axis(at, dims.len())?,
    };
    let (left, right) = dims.split_at(at);
    Some(vec![product(left)?, product(right)?])
}

fn reshape(node: &Node, dims: Option<&[u64]>, to: Option<&[i64]>) -> Option<Dims> {
    let dims = dims?;
    let to = to.or(node.ints("shape"))?;
    let keeps_zero = node.int("allowzero", 0) != 0;
    let mut out: Dims = Vec::with_capacity(to.len());
    let mut open = None;
    for (at, to) in to.iter().enumerate() {
        out.push(match *to {
            -1 if open.is_none() => {
                open = Some(at);
                1
            }
            0 if !keeps_zero => *dims.get(at)?,
            to => size(to)?,
        });
    }
    if let Some(at) = open {
        let (all, known) = (product(dims)?, product(&out)?);
        out[at] = all.checked_div(known)?;
    }
    (product(&out) == product(dims)).then_some(out)
}

fn transpose(node: &Node, dims: Option<&[u64]>) -> Option<Dims> {
    let dims = dims?;
    match node.ints("perm") {
        None => Some(dims.iter().rev().copied().collect()),
        Some(perm) if perm.len() == dims.len() => perm
            .iter()
            .map(|at| Some(dims[axis(*at, dims.len())?]))
            .collect(),
        Some(_) => None,
    }
}

fn concat(node: &Node, inputs: &Inputs<'_>) -> Tensor {
    let shape = || {
        let mut out: Dims = inputs.shape(0)?.into();
        let at = axis(node.int("axis", 1), out.len())?;
        for more in 1..inputs.0.len() {
            let dims = inputs.shape(more).filter(|dims| dims.len() == out.len())?;
            out[at] = out[at].checked_add(dims[at])?;
        }
        Some(out)
    };
    let ints: Option<Vec<&[i64]>> = (0..inputs.0.len()).map(|at| inputs.ints(at)).collect();
    match (shape(), ints) {
        (Some(shape), Some(ints)) if shape.len() == 1 => Tensor::of_ints(ints.concat(), shape),
        (shape, _) => Tensor::of(shape, inputs.element(0)),
    }
}

fn split(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let parts = node.outputs.len();
    let each = || {
        let dims = inputs.shape(0)?;
        let at = axis(node.int("axis", 0), dims.len())?;
        let sizes = match node.ints("split").or(inputs.ints(1)) {
            Some(given) if given.len() == parts => sizes(given)?,
            Some(_) => return None,
            None if inputs.get(1).is_some_and(|split| split.element != 0) => return None,
            None => {
                let part = dims[at].div_ceil(parts.max(1) as u64);
                let full = parts.saturating_sub(1) as u64;
                let last = dims[at].checked_sub(part.checked_mul(full)?)?;
                let mut sizes = vec![part; parts];
                *sizes.last_mut()? = last;
                sizes
            }
        };
        let tensors = sizes.into_iter().map(|size| {
            let mut dims: Dims = dims.into();
            dims[at] = size;
            Tensor::of(Some(dims), inputs.element(0))
        });
        Some(tensors.collect())
    };
    each().unwrap_or_default()
}

fn slice(node: &Node, inputs: &Inputs<'_>) -> Tensor {
    let of = |at: usize, name: &str| inputs.ints(at).or(node.ints(name));
    let cut = || {
        let (starts, ends) = (of(1, "starts")?, of(2, "ends")?);
        let mut out: Dims = inputs.shape(0)?.into();
        let mut ints = inputs
            .ints(0)
            .filter(|_| out.len() == 1)
            .map(<[i64]>::to_vec);
        let is_open = |at: usize| {
            inputs
                .get(at)
                .is_some_and(|t| t.ints.is_none() && t.element != 0)
        };
        if starts.len() != ends.len() || is_open(3) || is_open(4) {
            return None;
        }
        for (i, (start, end)) in starts.iter().zip(ends).enumerate() {
            let at = match of(3, "axes") {
                Some(axes) => axis(*axes.get(i)?, out.len())?,
                None => i,
            };
            let step = inputs
                .ints(4)
                .map_or(Some(1), |steps| steps.get(i).copied())?;
            let dim = i64::try_from(*out.get(at)?).ok()?;
            let place = |value: i64, low: i64, high: i64| {
                let value = if value < 0 {
                    value.saturating_add(dim)
                } else {
                    value
                };
                value.clamp(low, high)
            };
            let (from, to) = match step {
                1.. => (place(*start, 0, dim), place(*end, 0, dim)),
                ..0 => (place(*start, 0, dim - 1), place(*end, -1, dim - 1)),
                0 => return None,
            };
            let span = if step > 0 { to - from } else { from - to };
            let stride = step.unsigned_abs();
            out[at] = u64::try_from(span).unwrap_or(0).div_ceil(stride);
            let kept = ints.take().map(|ints| {
                let each = (0..out[at]).map(|i| {
                    let place = i128::from(from) + i128::from(step) * i128::from(i);
                    ints.get(usize::try_from(place).ok()?).copied()
                });
                each.collect::<Option<Vec<i64>>>()
            });
            ints = kept.flatten();
        }
        Some((out, ints))
    };
    match cut() {
        Some((shape, Some(ints))) => Tensor::of_ints(ints, shape),
        Some((shape, None)) => Tensor::of(Some(shape), inputs.element(0)),
        None => Tensor::of(None, inputs.element(0)),
    }
}

fn squeeze(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0)?;
    let axes = node.ints("axes").or(inputs.ints(1));
    let is_squeeze = node.op_type == "Squeeze";
    let rank = match (axes, is_squeeze) {
        (None, true) if inputs.get(1).is_none_or(|axes| axes.element == 0) => {
            return Some(dims.iter().copied().filter(|dim| *dim != 1).collect());
        }
        (None, _) => return None,
        (Some(_), true) => dims.len(),
        (Some(axes), false) => dims.len() + axes.len(),
    };
    let axes: Option<Vec<usize>> = axes?.iter().map(|at| axis(*at, rank)).collect();
    let axes = axes?;
    if is_squeeze {
        let kept = dims.iter().enumerate().filter(|(at, _)| !axes.contains(at));
        return Some(kept.map(|(_, dim)| *dim).collect());
    }
    let mut rest = dims.iter().copied();
    (0..rank)
        .map(|at| {
            if axes.contains(&at) {
                Some(1)
            } else {
                rest.next()
            }
        })
        .collect()
}

fn gather(node: &Node, inputs: &Inputs<'_>) -> Tensor {
    let shape = || {
        let (dims, indices) = (inputs.shape(0)?, inputs.shape(1)?);
        let at = axis(node.int("axis", 0), dims.len())?;
        Some([&dims[..at], indices, &dims[at + 1..]].concat())
    };
    let ints = || {
        let values = inputs
            .ints(0)
            .filter(|_| inputs.shape(0).is_some_and(|dims| dims.len() == 1))?;
        let picked = inputs
            .ints(1)?
            .iter()
            .map(|at| Some(values[axis(*at, values.len())?]));
        picked.collect::<Option<Vec<i64>>>()
    };
    match (shape(), ints()) {
        (Some(shape), Some(ints)) => Tensor::of_ints(ints, shape),
        (shape, _) => Tensor::of(shape, inputs.element(0)),
    }
}

fn shape_of(node: &Node, dims: Option<&[u64]>) -> Tensor {
    let all = || {
        let ints: Option<Vec<i64>> = dims?.iter().map(|dim| i64::try_from(*dim).ok()).collect();
        let (ints, rank) = (ints?, i64::try_from(dims?.len()).ok()?);
        let place = |value: i64| {
            let value = if value < 0 {
                value.saturating_add(rank)
            } else {
                value
            };
            usize::try_from(value.clamp(0, rank)).unwrap_or(0)
        };
        let (from, to) = (place(node.int("start", 0)), place(node.int("end", rank)));
        Some(ints[from.min(to)..to].to_vec())
    };
    match all() {
        Some(ints) => {
            let n = ints.len() as u64;
            Tensor::of_ints(ints, vec![n])
        }
        None => Tensor::of(None, element::I64),
    }
}

fn constant(node: &Node) -> Tensor {
    if let Some(tensor) = node
        .attribute("value")
        .and_then(|value| value.tensor.clone())
    {
        return tensor;
    }
    if let Some(int) = node.attribute("value_int") {
        return Tensor::of_ints(vec![int.int], Vec::new());
    }
    if let Some(ints) = node.ints("value_ints") {
        return Tensor::of_ints(ints.to_vec(), vec![ints.len() as u64]);
    }
    match node.attribute("value_float") {
        Some(_) => Tensor::of(Some(Vec::new()), element::F32),
        None => Tensor::default(),
    }
}

fn pad(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let mut out: Dims = inputs.shape(0)?.into();
    let pads = inputs.ints(1).or(node.ints("pads"))?;
    if inputs
        .get(3)
        .is_some_and(|axes| axes.ints.is_none() && axes.element != 0)
    {
        return None;
    }
    let axes: Vec<i64> = match inputs.ints(3) {
        Some(axes) => axes.into(),
        None => (0..out.len())
            .filter_map(|at| i64::try_from(at).ok())
            .collect(),
    };
    if pads.len() != 2 * axes.len() {
        return None;
    }
    for (i, at) in axes.iter().enumerate() {
        let at = axis(*at, out.len())?;
        let more = pads[i].checked_add(pads[i + axes.len()])?;
        out[at] = out[at].checked_add_signed(more)?;
    }
    Some(out)
}

fn resize(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0)?;
    if let Some(sizes) = inputs
        .ints(3)
        .and_then(sizes)
        .filter(|s| s.len() == dims.len())
    {
        return Some(sizes);
    }
    let floats = |at: usize| inputs.get(at).and_then(|scales| scales.floats.as_deref());
    let attribute = node.attribute("scales").map(|scales| &*scales.floats);
    let scales = floats(2).or(floats(1)).or(attribute)?;
    if scales.len() != dims.len() || node.attribute("axes").is_some() {
        return None;
    }
    let scaled = dims.iter().zip(scales).map(|(dim, scale)| {
        let size = (*dim as f64 * f64::from(*scale)).floor();
        #[expect(clippy::cast_possible_truncation, reason = "0 to 2^40")]
        #[expect(clippy::cast_sign_loss, reason = "0 to 2^40")]
        (0.0..=MOST as f64).contains(&size).then_some(size as u64)
    });
    scaled.collect()
}

fn blocks(node: &Node, dims: Option<&[u64]>, to_space: bool) -> Option<Dims> {
    let &[batch, channels, height, width] = dims? else {
        return None;
    };
    let block = size(node.int("blocksize", 0)).filter(|block| *block > 0)?;
    let square = block.checked_mul(block)?;
    Some(match to_space {
        true => vec![
            batch,
            channels / square,
            height.checked_mul(block)?,
            width.checked_mul(block)?,
        ],
        false => vec![
            batch,
            channels.checked_mul(square)?,
            height / block,
            width / block,
        ],
    })
}

/// All axes without a list of them.
fn reduced(dims: Option<&[u64]>, axes: Option<&[i64]>, keeps: bool) -> Option<Dims> {
    let dims = dims?;
    let axes: Option<Vec<usize>> = match axes {
        Some(axes) => axes.iter().map(|at| axis(*at, dims.len())).collect(),
        None => Some((0..dims.len()).collect()),
    };
    let axes = axes?;
    let each = dims
        .iter()
        .enumerate()
        .filter_map(|(at, dim)| match axes.contains(&at) {
            false => Some(*dim),
            true => keeps.then_some(1),
        });
    Some(each.collect())
}
