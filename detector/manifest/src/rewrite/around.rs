//! Helpers of all rules: they read the surroundings of a node, and make nodes and constants.

use super::{
    encode::{NewNode, NewTensor},
    rules::Planner,
};
use crate::{
    graph::{Node, TensorId},
    tensor::product,
    view::is_quantisation,
};

/// The scale and zero point of a tensor.
#[derive(Clone)]
pub(super) struct Steps {
    scale: String,
    zero: Option<String>,
}

impl Planner<'_> {
    pub(super) fn text(&self, id: TensorId) -> String {
        self.names.text(id).to_owned()
    }

    pub(super) fn shape(&self, id: TensorId) -> Option<&[u64]> {
        self.tensors.get(id)?.shape.as_deref()
    }

    pub(super) fn output(&self, at: usize) -> TensorId {
        self.view.node(at).outputs.first().copied().unwrap_or(0)
    }

    /// Scale and zero point of the DequantizeLinear that makes a tensor, if it has one of each.
    pub(super) fn steps_before(&self, id: TensorId) -> Option<Steps> {
        let node = self.view.node(self.view.maker(id)?);
        (node.op_type == "DequantizeLinear").then_some(())?;
        self.steps(node)
    }

    /// Scale and zero point of the QuantizeLinear that reads a tensor, if it has one of each.
    pub(super) fn steps_behind(&self, id: TensorId) -> Option<Steps> {
        let mut readers = self.view.readers(id).iter().map(|at| self.view.node(*at));
        self.steps(readers.find(|node| node.op_type == "QuantizeLinear")?)
    }

    fn steps(&self, node: &Node) -> Option<Steps> {
        let scale = node.input(1);
        let one = self.shape(scale).and_then(product);
        (one == Some(1)).then_some(())?;
        let zero = Some(node.input(2)).filter(|id| *id > 0);
        Some(Steps {
            scale: self.text(scale),
            zero: zero.map(|id| self.text(id)),
        })
    }

    /// Adds a QuantizeLinear and a DequantizeLinear after a tensor. Returns the tensor after them.
    pub(super) fn pair(&mut self, from: &str, steps: &Steps, nodes: &mut Vec<NewNode>) -> String {
        let mut last = from.to_owned();
        for op_type in ["QuantizeLinear", "DequantizeLinear"] {
            let name = self.edit.name(&format!("{from}_{op_type}"));
            let output = self.edit.name(&format!("{name}_Output"));
            let inputs = [Some(last), Some(steps.scale.clone()), steps.zero.clone()];
            nodes.push(NewNode {
                op_type,
                name,
                inputs: inputs.into_iter().flatten().collect(),
                output: output.clone(),
                ..NewNode::default()
            });
            last = output;
        }
        last
    }

    /// Adds a constant of integers. Returns its name.
    pub(super) fn ints(&mut self, base: &str, ints: &[i64]) -> String {
        let name = self.edit.name(base);
        self.edit
            .tensors
            .push(NewTensor::of_ints(name.clone(), ints));
        name
    }

    pub(super) fn reshape(
        &mut self,
        base: &str,
        input: String,
        dims: &[u64],
        output: String,
    ) -> NewNode {
        let dims: Vec<i64> = dims.iter().map(|dim| dim.cast_signed()).collect();
        let shape = self.ints(&format!("{base}_shape"), &dims);
        NewNode {
            op_type: "Reshape",
            name: self.edit.name(base),
            inputs: vec![input, shape],
            output,
            ..NewNode::default()
        }
    }

    /// Adds a weight of 8 bits and its DequantizeLinear. Returns the dequantised tensor.
    pub(super) fn dequantised(
        &mut self,
        base: &str,
        (element, dims, raw): (u64, Vec<u64>, Vec<u8>),
        (scale, zero): (f32, u8),
        nodes: &mut Vec<NewNode>,
    ) -> String {
        let scale_name = self.edit.name(&format!("{base}_scale"));
        let zero_name = self.edit.name(&format!("{base}_zero_point"));
        let output = self.edit.name(&format!("{base}_dequantized"));
        let scale = NewTensor::of_floats(scale_name.clone(), Vec::new(), &[scale]);
        let tensor = |name: &str, dims, raw| NewTensor {
            name: name.to_owned(),
            element,
            dims,
            raw,
        };
        let zero = tensor(&zero_name, Vec::new(), vec![zero]);
        self.edit
            .tensors
            .extend([tensor(base, dims, raw), scale, zero]);
        nodes.push(NewNode {
            op_type: "DequantizeLinear",
            name: self.edit.name(&format!("{base}_DequantizeLinear")),
            inputs: vec![base.to_owned(), scale_name, zero_name],
            output: output.clone(),
            ..NewNode::default()
        });
        output
    }

    /// Returns the nodes that one node replaces, including the quantisation between them, and whether there was none.
    /// Other nodes may read only the last node's result and the kept tensors, which the new node reads.
    pub(super) fn with_quantisation(
        &self,
        nodes: &[usize],
        last: usize,
        kept: &[TensorId],
    ) -> Result<(Vec<usize>, bool), &'static str> {
        let (mut removed, mut is_exact) = (nodes.to_vec(), true);
        loop {
            let reads_removed_only = |at: usize| {
                let outputs = &self.view.node(at).outputs;
                outputs.iter().all(|id| {
                    !self.view.is_kept(*id)
                        && self
                            .view
                            .readers(*id)
                            .iter()
                            .all(|reader| removed.contains(reader))
                })
            };
            let inputs = removed.iter().flat_map(|at| &self.view.node(*at).inputs);
            let makers = inputs
                .filter(|id| !kept.contains(id))
                .filter_map(|id| self.view.maker(*id));
            let new: Vec<usize> = makers
                .filter(|at| !removed.contains(at) && is_quantisation(self.view.node(*at)))
                .filter(|at| !kept.contains(&self.output(*at)) && reads_removed_only(*at))
                .collect();
            if new.is_empty() {
                break;
            }
            is_exact = false;
            removed.extend(new);
            removed.sort_unstable();
            removed.dedup();
        }
        let is_read_elsewhere = removed.iter().filter(|at| **at != last).any(|at| {
            let outputs = &self.view.node(*at).outputs;
            outputs.iter().any(|id| {
                self.view.is_kept(*id)
                    || self
                        .view
                        .readers(*id)
                        .iter()
                        .any(|reader| !removed.contains(reader))
            })
        });
        // Copies of x that only these nodes read may be removed, but the maker of x itself stays.
        if is_read_elsewhere {
            return Err("a tensor between its nodes is read elsewhere too");
        }
        if removed.iter().any(|at| self.edit.removed.contains(at)) {
            return Err("another rewrite takes one of its nodes");
        }
        Ok((removed, is_exact))
    }
}

/// The axis of a DequantizeLinear's scales.
pub(super) fn axis_of(node: &Node, rank: usize) -> Option<usize> {
    let axis = node.int("axis", 1);
    let axis = match axis < 0 {
        true => axis.checked_add(i64::try_from(rank).ok()?)?,
        false => axis,
    };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}
