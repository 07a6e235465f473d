//! Ops that slide a window over the spatial axes: convolutions and poolings.

use crate::graph::Node;

use super::inputs::{Dims, Inputs, MOST, size, sizes};

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

pub(super) fn conv(node: &Node, inputs: &Inputs<'_>, weight: usize) -> Option<Dims> {
    let (input, weight) = (inputs.shape(0)?, inputs.shape(weight)?);
    let ([batch, _, spatial @ ..], [channels, _, kernel @ ..]) = (input, weight) else {
        return None;
    };
    let mut out = vec![*batch, *channels];
    out.extend(slid(node, spatial, kernel)?);
    Some(out)
}

pub(super) fn pool(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let [batch, channels, spatial @ ..] = inputs.shape(0)? else {
        return None;
    };
    let mut out = vec![*batch, *channels];
    out.extend(slid(node, spatial, &sizes(node.ints("kernel_shape")?)?)?);
    Some(out)
}

pub(super) fn conv_transpose(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let (input, weight) = (inputs.shape(0)?, inputs.shape(1)?);
    let ([batch, _, spatial @ ..], [_, per_group, kernel @ ..]) = (input, weight) else {
        return None;
    };
    let groups = size(node.int("group", 1))?;
    let mut out = vec![*batch, per_group.checked_mul(groups)?];
    if let Some(shape) = node.ints("output_shape").filter(|shape| !shape.is_empty()) {
        // Some exporters also write batch and channels into `output_shape`.
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

/// One value for each channel. If channels come last, no shape is computed, and the model's declared shape counts.
pub(super) fn global_pool(node: &Node, inputs: &Inputs<'_>) -> Option<Dims> {
    let dims = inputs.shape(0).filter(|dims| dims.len() >= 2)?;
    let kept = |(at, dim): (usize, &u64)| if at < 2 { *dim } else { 1 };
    (node.int("channels_last", 0) == 0).then(|| dims.iter().enumerate().map(kept).collect())
}
