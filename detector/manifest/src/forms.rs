//! The form of each node, with the names of docs/ops.md. A form is an op with its attributes, or a pattern of several
//! nodes. It also says whether the node computes in 8 bits. Advice for a node is looked up by its form.

use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

use crate::{
    graph::{Node, TensorId},
    tensor::Tensor,
    view::GraphView,
};

/// Titles of patterns in docs/ops.md.
const GELU: &str = "Gelu as Div, Erf, Add, Mul, Mul";
pub(crate) const LAYER_NORM: &str =
    "LayerNormalization as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add";
pub(crate) const CHANNEL_NORM: &str =
    "LayerNormalization over the channels as ReduceMean, Sub, Pow, Sqrt, Div, Mul, Add";

/// The title of a node whose op docs/ops.md has only with other attributes. No measured case has this title, so no
/// advice is given.
const NOT_MEASURED: &str = "not measured";

/// The form of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeForm {
    /// Titles in docs/ops.md that the node belongs to; empty if none is known.
    pub titles: Vec<&'static str>,
    /// Whether the node is between DequantizeLinear and QuantizeLinear.
    pub is_quantised: bool,
    /// Whether the node is quantised in part: it also computes with floats, or other nodes of its pattern are
    /// quantised.
    pub is_partly_quantised: bool,
}

/// A Gelu in several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GeluByErf {
    /// The first node's input.
    pub(crate) x: TensorId,
    /// The nodes in the order of computation; the last one computes the result.
    pub(crate) nodes: Vec<usize>,
}

/// A LayerNormalization in several nodes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerNormByParts {
    /// The first node's input.
    pub(crate) x: TensorId,
    /// The axes of its means.
    pub(crate) axes: Vec<i64>,
    /// The constant that is added to the variance.
    pub(crate) epsilon: f32,
    /// The nodes in the order of computation; the last one divides.
    pub(crate) nodes: Vec<usize>,
    /// The Mul after these nodes, and its other input.
    pub(crate) scale: Option<(usize, TensorId)>,
    /// The Add after these nodes and the Mul.
    pub(crate) bias: Option<usize>,
}

/// The forms of all nodes, in the order of the graph. `tensors` has the shapes by number.
pub(crate) fn forms(view: &GraphView<'_>, tensors: &[Tensor]) -> Vec<NodeForm> {
    let nodes = view.graph.nodes.iter().enumerate();
    let mut forms: Vec<NodeForm> = nodes
        .map(|(at, node)| NodeForm {
            titles: single(node, tensors).into_iter().collect(),
            is_quantised: view.is_quantised(at),
            is_partly_quantised: view.is_partly_quantised(at),
        })
        .collect();
    for at in 0..forms.len() {
        let (title, nodes) = match view.node(at).op_type.as_str() {
            "Erf" => (GELU, gelu(view, at).map(|found| found.nodes)),
            "Div" => {
                let found = layer_norm(view, at);
                let title = match found.as_ref().map(|found| one_axis(found, tensors)) {
                    Some(Some((axis, rank))) if axis + 1 == rank => LAYER_NORM,
                    Some(Some((1, _))) => CHANNEL_NORM,
                    // Other axes were not measured.
                    _ => continue,
                };
                (title, found.map(|found| found.all()))
            }
            _ => continue,
        };
        let nodes = nodes.unwrap_or_default();
        let is_mixed = nodes.iter().any(|part| forms[*part].is_quantised);
        for part in nodes {
            let form = &mut forms[part];
            form.titles = vec![title];
            form.is_partly_quantised |= is_mixed && !form.is_quantised;
        }
    }
    forms
}

/// Returns the title of a single node, if the op's name is not enough to find its row in the table.
fn single(node: &Node, tensors: &[Tensor]) -> Option<&'static str> {
    let rank = || {
        let tensor = tensors.get(node.input(0))?;
        Some(i64::try_from(tensor.shape.as_ref()?.len()).unwrap_or(i64::MAX))
    };
    let is_last = |axis: i64| axis == -1 || rank().is_some_and(|rank| axis == rank - 1);
    Some(match node.op_type.as_str() {
        "LayerNormalization" if is_last(node.int("axis", -1)) => "LayerNormalization, last axis",
        "LayerNormalization" => "LayerNormalization, axis 1",
        "InstanceNormalization" => "InstanceNormalization",
        "GroupNormalization" => "GroupNormalization",
        "CumSum" if node.int("exclusive", 0) != 0 => NOT_MEASURED,
        "CumSum" if node.int("reverse", 0) != 0 => "CumSum, reverse",
        "CumSum" => "CumSum",
        "Einsum" if einsum_as_matmul(node.text("equation")).is_some() => "Einsum",
        "Einsum" => NOT_MEASURED,
        "Hardmax" if is_last(node.int("axis", -1)) => "Hardmax",
        "Hardmax" if node.int("axis", -1) == 1 && rank() == Some(4) => "Hardmax, axis 1 of 4",
        "Hardmax" => NOT_MEASURED,
        "Mish" => "Mish",
        "Selu" => "Selu",
        "ReduceL2" => "ReduceL2",
        "LpNormalization" if node.int("p", 2) == 2 => "LpNormalization",
        "LpNormalization" => NOT_MEASURED,
        "Gelu" => "Gelu, one node (opset 20)",
        "FastGelu" if node.input(1) > 0 => "FastGelu with a bias (fused)",
        "FastGelu" => "FastGelu (fused)",
        "SkipLayerNormalization" if node.input(4) > 0 => {
            "SkipLayerNormalization with a bias (fused)"
        }
        "SkipLayerNormalization" => "SkipLayerNormalization (fused)",
        "SkipSimplifiedLayerNormalization" if node.input(3) > 0 => {
            "SkipSimplifiedLayerNormalization with a bias (fused)"
        }
        "SkipSimplifiedLayerNormalization" => "SkipSimplifiedLayerNormalization (fused)",
        "GridSample" => "GridSample",
        _ => return None,
    })
}

/// If an equation is a product of matrices with the same leading letters, returns whether the second operand is
/// transposed.
pub(crate) fn einsum_as_matmul(equation: &str) -> Option<bool> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = equation.split_once("->")?;
    let (left, right) = inputs.split_once(',')?;
    let letters = |text: &str| -> Option<Vec<char>> {
        let letters: Vec<char> = text.chars().collect();
        let mut known = std::collections::HashSet::new();
        let is_plain = letters
            .iter()
            .all(|c| c.is_ascii_alphabetic() && known.insert(*c));
        (is_plain && letters.len() >= 2).then_some(letters)
    };
    let (left, right, output) = (letters(left)?, letters(right)?, letters(output)?);
    let (summed, rows) = (*left.last()?, left.get(..left.len() - 1)?);
    let lead = rows.get(..rows.len() - 1)?;
    let own: Vec<char> = right.get(..right.len() - 2)?.to_vec();
    if !own.is_empty() && own != lead {
        return None;
    }
    let [a, b] = right.get(right.len() - 2..)? else {
        return None;
    };
    let (column, is_transposed) = match (*a == summed, *b == summed) {
        (true, false) => (*b, false),
        (false, true) => (*a, true),
        _ => return None,
    };
    let expected: Vec<char> = rows.iter().copied().chain([column]).collect();
    (output == expected && !left.contains(&column)).then_some(is_transposed)
}

/// The Gelu that an Erf is a part of: `x * 0.5 * (1 + erf(x / sqrt(2)))`, its factors in any order.
pub(crate) fn gelu(view: &GraphView<'_>, erf: usize) -> Option<GeluByErf> {
    let output = |at: usize| view.node(at).outputs.first().copied();
    let is_op = |at: &usize, op: &str| view.node(*at).op_type == op;
    let first = view.source(view.node(erf).input(0))?;
    let x = match view.node(first).op_type.as_str() {
        "Div" => {
            let divisor = view.scalar(view.node(first).input(1))?;
            ((divisor - SQRT_2).abs() < 0.02).then(|| view.node(first).input(0))?
        }
        "Mul" => view.other_than(first, FRAC_1_SQRT_2)?,
        _ => return None,
    };
    let root = view.before(x);
    let add = view.next(output(erf)?).filter(|at| is_op(at, "Add"))?;
    view.other_than(add, 1.0)?;
    let one = view.next(output(add)?).filter(|at| is_op(at, "Mul"))?;
    let mut nodes = vec![first, erf, add];
    if view.other_than(one, 0.5).is_some() {
        let two = view.next(output(one)?).filter(|at| is_op(at, "Mul"))?;
        let inputs = &view.node(two).inputs;
        inputs
            .iter()
            .any(|id| view.before(*id) == root)
            .then_some(())?;
        nodes.extend([one, two]);
        return Some(GeluByErf { x, nodes });
    }
    let sum = view.before(output(add)?);
    let inputs = view.node(one).inputs.iter();
    let factor = inputs.copied().find(|id| view.before(*id) != sum)?;
    if view.before(factor) == root {
        let two = view.next(output(one)?).filter(|at| is_op(at, "Mul"))?;
        view.other_than(two, 0.5)?;
        nodes.extend([one, two]);
        return Some(GeluByErf { x, nodes });
    }
    let half = view.source(factor).filter(|at| is_op(at, "Mul"))?;
    let of = view.other_than(half, 0.5)?;
    (view.before(of) == root).then_some(())?;
    nodes.extend([half, one]);
    Some(GeluByErf { x, nodes })
}

/// Returns the LayerNormalization whose Div divides by the root of a mean of squares.
pub(crate) fn layer_norm(view: &GraphView<'_>, div: usize) -> Option<LayerNormByParts> {
    let is_op = |at: &usize, op: &str| view.node(*at).op_type == op;
    let source = |id: TensorId, op: &str| view.source(id).filter(|at| is_op(at, op));
    let sub = source(view.node(div).input(0), "Sub")?;
    let sqrt = source(view.node(div).input(1), "Sqrt")?;
    let add = source(view.node(sqrt).input(0), "Add")?;
    let (variance, epsilon) = [(0, 1), (1, 0)].into_iter().find_map(|(of, other)| {
        let variance = source(view.node(add).input(of), "ReduceMean")?;
        Some((variance, view.scalar(view.node(add).input(other))?))
    })?;
    let square = view.source(view.node(variance).input(0))?;
    let (of, by) = (view.node(square).input(0), view.node(square).input(1));
    let is_square = match view.node(square).op_type.as_str() {
        "Pow" => is_two(view, by),
        "Mul" => view.before(of) == view.before(by),
        _ => false,
    };
    (is_square && view.source(of) == Some(sub)).then_some(())?;
    let mean = source(view.node(sub).input(1), "ReduceMean")?;
    let x = view.node(sub).input(0);
    (view.before(view.node(mean).input(0)) == view.before(x)).then_some(())?;
    let axes = axes_of(view, mean)?;
    (axes_of(view, variance)? == axes).then_some(())?;
    let behind = |at: usize, op: &str| {
        let output = *view.node(at).outputs.first()?;
        view.next(output).filter(|at| is_op(at, op))
    };
    let scale = behind(div, "Mul").and_then(|mul| {
        let normal = view.node(div).outputs.first().copied()?;
        let inputs = [view.node(mul).input(0), view.node(mul).input(1)];
        let other = inputs.into_iter().find(|id| view.before(*id) != normal)?;
        Some((mul, other))
    });
    Some(LayerNormByParts {
        x,
        axes,
        epsilon,
        nodes: vec![mean, sub, square, variance, add, sqrt, div],
        scale,
        bias: scale.and_then(|(mul, _)| behind(mul, "Add")),
    })
}

impl LayerNormByParts {
    /// Returns all nodes, including the nodes that scale and shift.
    fn all(&self) -> Vec<usize> {
        let mut all = self.nodes.clone();
        all.extend(self.scale.map(|(mul, _)| mul));
        all.extend(self.bias);
        all
    }
}

/// The one axis of a LayerNormalization in several nodes, and the rank of its input.
pub(crate) fn one_axis(norm: &LayerNormByParts, tensors: &[Tensor]) -> Option<(usize, usize)> {
    let rank = tensors.get(norm.x)?.shape.as_ref()?.len();
    let &[axis] = norm.axes.as_slice() else {
        return None;
    };
    let axis = match axis < 0 {
        true => axis.checked_add(i64::try_from(rank).ok()?)?,
        false => axis,
    };
    let axis = usize::try_from(axis).ok().filter(|axis| *axis < rank)?;
    Some((axis, rank))
}

fn is_two(view: &GraphView<'_>, id: TensorId) -> bool {
    let ints = view.constant(id).and_then(|tensor| tensor.ints.as_deref());
    ints == Some(&[2]) || view.scalar(id).is_some_and(|two| (two - 2.0).abs() < 0.02)
}

/// The axes of a ReduceMean that keeps its dimensions.
fn axes_of(view: &GraphView<'_>, mean: usize) -> Option<Vec<i64>> {
    let node = view.node(mean);
    let given = view
        .constant(node.input(1))
        .and_then(|axes| axes.ints.clone());
    let axes = node.ints("axes").map(|axes| axes.to_vec()).or(given);
    axes.filter(|_| node.int("keepdims", 1) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Attribute;

    fn node(op_type: &str, n_inputs: usize, attribute: (&str, i64, &str)) -> Node {
        let (name, int, text) = attribute;
        Node {
            op_type: op_type.to_owned(),
            inputs: (1..=n_inputs).collect(),
            attributes: vec![Attribute {
                name: name.to_owned(),
                int,
                text: text.to_owned(),
                ..Attribute::default()
            }],
            ..Node::default()
        }
    }

    /// A bias needs one more Add, and the measured form of another equation or norm computes something else.
    #[test]
    fn a_title_is_of_the_inputs_and_attributes_that_were_measured() {
        let none = ("", 0, "");
        for (op_type, n_inputs, attribute, title) in [
            ("FastGelu", 1, none, "FastGelu (fused)"),
            ("FastGelu", 2, none, "FastGelu with a bias (fused)"),
            (
                "SkipLayerNormalization",
                4,
                none,
                "SkipLayerNormalization (fused)",
            ),
            (
                "SkipLayerNormalization",
                5,
                none,
                "SkipLayerNormalization with a bias (fused)",
            ),
            (
                "SkipSimplifiedLayerNormalization",
                3,
                none,
                "SkipSimplifiedLayerNormalization (fused)",
            ),
            (
                "SkipSimplifiedLayerNormalization",
                4,
                none,
                "SkipSimplifiedLayerNormalization with a bias (fused)",
            ),
            ("Einsum", 2, ("equation", 0, "bij,jk->bik"), "Einsum"),
            ("Einsum", 2, ("equation", 0, "bij,ik->bjk"), NOT_MEASURED),
            ("LpNormalization", 1, ("p", 2, ""), "LpNormalization"),
            ("LpNormalization", 1, ("p", 1, ""), NOT_MEASURED),
            ("Hardmax", 1, ("axis", -1, ""), "Hardmax"),
            // Axis 1 was measured for an image only; without an input shape it may be any axis.
            ("Hardmax", 1, ("axis", 1, ""), NOT_MEASURED),
            ("CumSum", 2, ("exclusive", 1, ""), NOT_MEASURED),
        ] {
            let node = node(op_type, n_inputs, attribute);
            assert_eq!(single(&node, &[]), Some(title), "{op_type} {attribute:?}");
        }
        // The optional bias is omitted.
        let mut node = node("FastGelu", 2, none);
        node.inputs[1] = 0;
        assert_eq!(single(&node, &[]), Some("FastGelu (fused)"));
    }

    #[test]
    fn products_of_matrices_are_found_in_equations() {
        for (equation, expected) in [
            ("bij,jk->bik", Some(false)),
            ("ij, jk -> ik", Some(false)),
            ("bhid,bhjd->bhij", Some(true)),
            ("bhij,bhjd->bhid", Some(false)),
            ("bij,kj->bik", Some(true)),
            ("bij,jk->bki", None),
            ("bij,cjk->bik", None),
            ("ii,ij->ij", None),
            ("i,j->ij", None),
            ("...ij,jk->...ik", None),
            ("bij->bji", None),
            ("", None),
        ] {
            assert_eq!(einsum_as_matmul(equation), expected, "{equation}");
        }
    }
}
