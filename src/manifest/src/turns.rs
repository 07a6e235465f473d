//! Turns of a Loop or a Scan, and what the model says of the inputs of its body.

use crate::{
    graph::{Graph, Node, TensorId},
    tensor::Tensor,
};

/// How often a body runs in a run of the model.
pub(crate) enum Turns {
    /// It is not a loop.
    One,
    Fixed(u64),
    /// With the reason.
    Unknown(&'static str),
}

pub(crate) fn of(node: &Node, tensors: &[Tensor]) -> Turns {
    match node.op_type.as_str() {
        "Loop" => of_loop(node, tensors),
        "Scan" => of_scan(node, tensors),
        _ => Turns::One,
    }
}

fn of_loop(node: &Node, tensors: &[Tensor]) -> Turns {
    let most = tensors.get(node.input(0)).filter(|_| node.input(0) > 0);
    let most = most.and_then(|most| most.ints.as_deref());
    let Some(&[most]) = most else {
        return Turns::Unknown("the number of its turns is no constant of the model");
    };
    let bodies = node
        .attributes
        .iter()
        .flat_map(|attribute| &attribute.graphs);
    match bodies.into_iter().all(never_ends_early) {
        true => Turns::Fixed(u64::try_from(most).unwrap_or(0)),
        false => Turns::Unknown("a condition may end it before its last turn"),
    }
}

/// Whether a body hands on the condition that it was given, or a constant.
fn never_ends_early(body: &Graph) -> bool {
    let Some(condition) = body.outputs.first() else {
        return false;
    };
    let given = body.inputs.get(1).map(|input| input.id);
    let is_constant = |id: &TensorId| {
        Some(*id) == given || body.initializers.iter().any(|(weight, _)| weight == id)
    };
    let maker = body
        .nodes
        .iter()
        .find(|node| node.outputs.contains(condition));
    match maker {
        None => is_constant(condition),
        Some(node) => match node.op_type.as_str() {
            "Constant" => true,
            "Identity" | "Cast" => node.inputs.first().is_some_and(is_constant),
            _ => false,
        },
    }
}

fn of_scan(node: &Node, tensors: &[Tensor]) -> Turns {
    let unknown = Turns::Unknown("the length of what it scans has no fixed shape");
    let Some((first, axis)) = scanned(node).next() else {
        return unknown;
    };
    let shape = tensors
        .get(first)
        .and_then(|tensor| tensor.shape.as_deref());
    let turns = shape.and_then(|shape| shape.get(axis_of(axis, shape.len())?));
    turns.map_or(unknown, |turns| Turns::Fixed(*turns))
}

/// The inputs that a Scan goes through, each with its axis.
fn scanned(node: &Node) -> impl Iterator<Item = (TensorId, i64)> {
    let n = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(0);
    let first = node.inputs.len().saturating_sub(n);
    let axes = node.ints("scan_input_axes").unwrap_or_default();
    let each = node.inputs[first..].iter().enumerate();
    each.map(move |(at, id)| (*id, axes.get(at).copied().unwrap_or(0)))
}

fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    usize::try_from(at).ok().filter(|_| at < rank)
}

/// Tensors of a body's inputs as the node gives them: states as they are, and a slice of what is scanned.
pub(crate) fn inputs_of(node: &Node, body: &Graph, tensors: &[Tensor]) -> Vec<(TensorId, Tensor)> {
    let given = |id: TensorId| tensors.get(id).filter(|_| id > 0);
    let inputs = body.inputs.iter().map(|input| input.id);
    let shape_alone = |tensor: &Tensor| Tensor::of(tensor.shape.clone(), tensor.element);
    match node.op_type.as_str() {
        "Loop" => {
            let states = inputs.skip(2).zip(node.inputs.iter().skip(2));
            let each = states.filter_map(|(id, outer)| Some((id, shape_alone(given(*outer)?))));
            each.collect()
        }
        "Scan" => {
            let n_states = node.inputs.len() - scanned(node).count();
            let axes: Vec<(TensorId, i64)> = scanned(node).collect();
            let each = inputs.zip(&node.inputs).enumerate();
            let each = each.filter_map(|(at, (id, outer))| {
                let mut tensor = shape_alone(given(*outer)?);
                if let Some((_, axis)) = at.checked_sub(n_states).and_then(|at| axes.get(at)) {
                    let shape = tensor.shape.as_mut()?;
                    shape.remove(axis_of(*axis, shape.len())?);
                }
                Some((id, tensor))
            });
            each.collect()
        }
        _ => Vec::new(),
    }
}
