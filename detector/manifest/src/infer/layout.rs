//! Ops that move, cut or join values, and ops that reduce an axis.

use crate::{
    graph::Node,
    tensor::{Tensor, element, product},
};

use super::inputs::{Dims, Inputs, MOST, axis, broadcast, size, sizes};

pub(super) fn flatten(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0)?;
    let at = match node.int("axis", 1) {
        end if usize::try_from(end) == Ok(dims.len()) => dims.len(),
        at => axis(at, dims.len())?,
    };
    let (left, right) = dims.split_at(at);
    Some(vec![product(left)?, product(right)?])
}

pub(super) fn reshape(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    with_ints(reshaped(node, inputs), inputs)
}

/// Returns a tensor of this shape with the known values of the first input.
fn with_ints(shape: Option<Dims>, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let mut out = Tensor::of(shape, inputs.element(0));
    out.ints = inputs.ints(0).map(Into::into);
    vec![out]
}

fn reshaped(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0)?;
    let to = inputs.ints(1).or(node.ints("shape"))?;
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

pub(super) fn transpose(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0)?;
    match node.ints("perm") {
        None => Some(dims.iter().rev().copied().collect()),
        Some(perm) if perm.len() == dims.len() => perm
            .iter()
            .map(|at| Some(dims[axis(*at, dims.len())?]))
            .collect(),
        Some(_) => None,
    }
}

pub(super) fn concat(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
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
        (Some(shape), Some(ints)) if shape.len() == 1 => {
            vec![Tensor::of_ints(ints.concat(), shape)]
        }
        (shape, _) => vec![Tensor::of(shape, inputs.element(0))],
    }
}

pub(super) fn split(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
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

pub(super) fn slice(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let of = |at: usize, name: &str| inputs.ints(at).or(node.ints(name));
    let cut = || {
        let (starts, ends) = (of(1, "starts")?, of(2, "ends")?);
        let mut out: Dims = inputs.shape(0)?.into();
        let mut ints = inputs
            .ints(0)
            .filter(|_| out.len() == 1)
            .map(<[i64]>::to_vec);
        if starts.len() != ends.len() || inputs.is_unknown(3) || inputs.is_unknown(4) {
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
        Some((shape, Some(ints))) => vec![Tensor::of_ints(ints, shape)],
        Some((shape, None)) => vec![Tensor::of(Some(shape), inputs.element(0))],
        None => vec![Tensor::of(None, inputs.element(0))],
    }
}

pub(super) fn squeeze(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    with_ints(squeezed(node, inputs), inputs)
}

fn squeezed(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
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

pub(super) fn gather(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
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
        (Some(shape), Some(ints)) => vec![Tensor::of_ints(ints, shape)],
        (shape, _) => vec![Tensor::of(shape, inputs.element(0))],
    }
}

pub(super) fn pad(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let mut out: Dims = inputs.shape(0)?.into();
    let pads = inputs.ints(1).or(node.ints("pads"))?;
    if inputs.is_unknown(3) {
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

pub(super) fn resize(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
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

pub(super) fn blocks(node: &Node, inputs: &Inputs<'_>, to_space: bool) -> Option<Dims> {
    let &[batch, channels, height, width] = inputs.shape(0)? else {
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

/// Reduces the listed axes; without a list, all axes.
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

pub(super) fn reduce(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let axes = node
        .ints("axes")
        .or(inputs.ints(1))
        .filter(|axes| !axes.is_empty());
    if axes.is_none() && inputs.is_unknown(1) {
        return None;
    }
    if axes.is_none() && node.int("noop_with_empty_axes", 0) != 0 {
        return inputs.shape(0).map(Into::into);
    }
    reduced(inputs.shape(0), axes, node.int("keepdims", 1) != 0)
}

pub(super) fn arg(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let axes = [node.int("axis", 0)];
    reduced(inputs.shape(0), Some(&axes), node.int("keepdims", 1) != 0)
}

pub(super) fn top_k(node: &Node, inputs: &Inputs<'_>) -> Vec<Tensor> {
    let k = inputs.ints(1).and_then(|k| k.first().copied());
    let k = size(k.unwrap_or_else(|| node.int("k", -1)));
    let dims = || {
        let mut dims: Dims = inputs.shape(0)?.into();
        let at = axis(node.int("axis", -1), dims.len())?;
        dims[at] = k?;
        Some(dims)
    };
    vec![
        Tensor::of(dims(), inputs.element(0)),
        Tensor::of(dims(), element::I64),
    ]
}

pub(super) fn expand(_: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let other = Tensor::of(inputs.ints(1).and_then(sizes), 0);
    let both = Inputs(inputs.get(0).into_iter().chain([&other]).collect());
    broadcast(&both, [0, 1])
}

pub(super) fn tile(_: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let (dims, times) = (inputs.shape(0)?, inputs.ints(1)?);
    if times.len() < dims.len() {
        return None;
    }
    let tiled = dims.iter().zip(times);
    tiled
        .map(|(dim, times)| dim.checked_mul(u64::try_from(*times).ok()?))
        .collect()
}
