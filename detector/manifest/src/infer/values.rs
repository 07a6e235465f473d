//! Ops that keep or compute values, since these may be a shape, and ops that change the kind of elements.

use crate::{
    graph::Node,
    tensor::{Tensor, element, product},
};

use super::inputs::{Dims, Inputs, broadcast, sizes};

pub(super) fn identity(_: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    inputs.get(0).cloned().into_iter().collect()
}

pub(super) fn cast(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let mut tensor = inputs.get(0).cloned().unwrap_or_default();
    tensor.element = node.int("to", 0).unsigned_abs();
    vec![tensor]
}

pub(super) fn quantize(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let kind = match (inputs.element(2), node.int("output_dtype", 0)) {
        (0, 0) => element::U8,
        (0, kind) => kind.unsigned_abs(),
        (kind, _) => kind,
    };
    vec![Tensor::of(inputs.shape(0).map(Into::into), kind)]
}

pub(super) fn dynamic_quantize(_: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    vec![
        Tensor::of(inputs.shape(0).map(Into::into), element::U8),
        Tensor::of(Some(Vec::new()), element::F32),
        Tensor::of(Some(Vec::new()), element::U8),
    ]
}

pub(super) fn arithmetic(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let mut out = Tensor::of(broadcast(inputs, [0, 1]), inputs.element(0));
    out.ints = computed(node, inputs);
    vec![out]
}

/// Computes the values of a shape calculation.
fn computed(node: &Node, inputs: &Inputs<'_>) -> Option<Vec<i64>> {
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

pub(super) fn shape_of(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let all = || {
        let dims = inputs.shape(0);
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
            vec![Tensor::of_ints(ints, vec![n])]
        }
        None => vec![Tensor::of(None, element::I64)],
    }
}

pub(super) fn size_of(_: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let n = inputs.shape(0).and_then(product);
    let mut out = Tensor::of(Some(Vec::new()), element::I64);
    out.ints = n.and_then(|n| i64::try_from(n).ok()).map(|n| vec![n]);
    vec![out]
}

pub(super) fn constant(node: &Node, _: &Inputs<'_>) -> Vec<Tensor> {
    vec![constant_tensor(node)]
}

fn constant_tensor(node: &Node) -> Tensor {
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

pub(super) fn constant_of_shape(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
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

pub(super) fn range(_: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let whole = |at| inputs.ints(at)?.first().copied();
    let (start, limit, step) = (whole(0)?, whole(1)?, whole(2).filter(|s| *s != 0)?);
    let span = i128::from(limit) - i128::from(start);
    let step = i128::from(step);
    let n = span / step + i128::from(span % step != 0 && (span > 0) == (step > 0));
    Some(vec![u64::try_from(n.max(0)).ok()?])
}
