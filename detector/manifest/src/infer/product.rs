//! Ops that multiply matrices: products, recurrent cells, attention.

use crate::{einsum::Equation, graph::Node, tensor::Tensor};

use super::inputs::{Dims, Inputs, broadcast, size};

pub(super) fn gemm(node: &Node, inputs: &Inputs<'_>, right: usize) -> Option<Dims> {
    let (&[a0, a1], &[b0, b1]) = (inputs.shape(0)?, inputs.shape(right)?) else {
        return None;
    };
    let rows = if node.int("transA", 0) != 0 { a1 } else { a0 };
    Some(vec![rows, if node.int("transB", 0) != 0 { b0 } else { b1 }])
}

pub(super) fn matmul(node: &Node, inputs: &Inputs<'_>, right: usize) -> Option<Dims> {
    let (a, b) = (inputs.shape(0)?, inputs.shape(right)?);
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
    let mut out = broadcast(&Inputs(vec![&batch_a, &batch_b]), [0, 1])?;
    out.extend(rows.into_iter().chain(columns));
    Some(out)
}

/// A product with weights of a few bits, which are packed in blocks.
pub(super) fn blocks_of_bits(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let mut dims: Dims = inputs.shape(0)?.into();
    *dims.last_mut()? = size(node.int("N", -1))?;
    Some(dims)
}

/// Y is [steps, directions, batch, hidden]; Y_h and Y_c have no steps.
pub(super) fn recurrent(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
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

pub(super) fn einsum(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    equation(node, inputs)?.dims()
}

pub(super) fn attention(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    match (node.op_type.as_str(), inputs.shape(0)?, inputs.shape(2)) {
        // Microsoft's op: input [batch, steps, in], weights [in, 3 x out].
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

/// Returns the shape of the query, without the keys and values that may be packed into it.
pub(super) fn grouped_attention(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let &[batch, steps, width] = inputs.shape(0)? else {
        return None;
    };
    if inputs.shape(1).is_some() {
        return Some(vec![batch, steps, width]);
    }
    let heads = |name| size(node.int(name, 0)).filter(|n| *n > 0);
    let (query_heads, key_heads) = (heads("num_heads")?, heads("kv_num_heads")?);
    let all = query_heads.checked_add(key_heads.checked_mul(2)?)?;
    Some(vec![batch, steps, (width / all).checked_mul(query_heads)?])
}
