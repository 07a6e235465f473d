//! The rules: each finds what it needs around a node, and adds the change to the edit. A node that misses something is
//! kept, with the reason.

use std::path::Path;

use super::{
    data::{self, Data},
    edit::{Edit, MICROSOFT},
    encode::{NewNode, NewTensor, NewValue},
    rewritten::{Rewrite, Rewritten},
};
use crate::{
    forms::{CHANNEL_NORM, LAYER_NORM, NodeForm, einsum_as_matmul, gelu},
    graph::{Names, Node, TensorId},
    tensor::{Tensor, element, product},
    view::{GraphView, is_quantisation},
};

/// Longest axis of a CumSum: a triangle has its square.
const MOST_TRIANGLE: u64 = 4096;

/// Plans rewrites of a graph.
pub(super) struct Planner<'a> {
    pub(super) model: &'a Path,
    pub(super) view: &'a GraphView<'a>,
    pub(super) names: &'a Names,
    pub(super) tensors: &'a [Tensor],
    pub(super) edit: Edit,
    pub(super) rewritten: Rewritten,
}

/// A rule's result: the nodes that go, the nodes that come, and whether the numbers stay the same.
pub(super) struct Plan {
    pub(super) to: &'static str,
    pub(super) removed: Vec<usize>,
    pub(super) added: Vec<NewNode>,
    /// The place of the new nodes.
    pub(super) at: usize,
    pub(super) is_exact: bool,
}

/// A weight that is made flat.
pub(super) enum Flat {
    /// The same bytes with other dimensions.
    Same {
        weight: TensorId,
        /// Tensors whose declared shape is no longer true.
        declared: Vec<TensorId>,
    },
    /// Other bytes, since a scale for each channel has no place in one dimension.
    New {
        element: u64,
        bytes: Vec<u8>,
        scale: f32,
        zero: u8,
        /// The node that goes with it.
        dequantize: usize,
    },
}

pub(super) type Planned = Result<Plan, &'static str>;

/// The scale and zero point of a tensor.
#[derive(Clone)]
pub(super) struct Steps {
    scale: String,
    zero: Option<String>,
}

impl Planner<'_> {
    /// Rewrites a node, if a rule is about its form.
    pub(super) fn plan(&mut self, at: usize, form: &NodeForm) {
        if self.edit.removed.contains(&at) {
            return;
        }
        let Some(from) = form.titles.first().copied() else {
            return;
        };
        let planned = match from {
            "LayerNormalization, axis 1" => self.layer_norm(at, form.is_quantised),
            "Gelu as Div, Erf, Add, Mul, Mul" if self.view.node(at).op_type == "Erf" => {
                self.gelu(at)
            }
            "Einsum" => self.einsum(at),
            "CumSum" | "CumSum, reverse" => self.cumsum(at, form.is_quantised),
            // In 8 bits every chipset takes all nodes, and in float those over the last axis.
            LAYER_NORM | CHANNEL_NORM
                if self.view.node(at).op_type == "Div"
                    && (form.is_partly_quantised
                        || (from == CHANNEL_NORM && !form.is_quantised)) =>
            {
                self.layer_norm_by_parts(at, form.is_partly_quantised)
            }
            "InstanceNormalization" => self.instance_norm(at, form.is_quantised),
            _ => return,
        };
        match planned {
            Ok(plan) => self.take(from, plan),
            Err(why) => {
                let node = self.view.node(at);
                let name = format!("{} {}", node.op_type, node.name);
                self.rewritten.kept.push((name, why.to_owned()));
            }
        }
    }

    fn take(&mut self, from: &'static str, plan: Plan) {
        let shown = |node: &Node| format!("{} {}", node.op_type, node.name);
        let mut removed = plan.removed.clone();
        removed.sort_unstable();
        self.rewritten.rewrites.push(Rewrite {
            from,
            to: plan.to,
            removed: removed
                .iter()
                .map(|at| shown(self.view.node(*at)))
                .collect(),
            added: plan
                .added
                .iter()
                .map(|node| format!("{} {}", node.op_type, node.name))
                .collect(),
            is_exact: plan.is_exact,
        });
        self.edit.removed.extend(plan.removed);
        self.edit.added.insert(plan.at, plan.added);
    }

    // What is around a node.

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

    /// A QuantizeLinear and a DequantizeLinear behind a tensor. Returns the tensor after them.
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

    /// A constant of integers. Returns its name.
    fn ints(&mut self, base: &str, ints: &[i64]) -> String {
        let name = self.edit.name(base);
        self.edit
            .tensors
            .push(NewTensor::of_ints(name.clone(), ints));
        name
    }

    fn reshape(&mut self, base: &str, input: String, dims: &[u64], output: String) -> NewNode {
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

    // The rules.

    /// Normalising over the last axes is normalising over one last axis of as many elements.
    fn layer_norm(&mut self, at: usize, is_quantised: bool) -> Planned {
        let node = self.view.node(at);
        let x = node.input(0);
        let dims = self
            .shape(x)
            .ok_or("its input has no fixed shape")?
            .to_vec();
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let axis = node.int("axis", -1);
        let axis = if axis < 0 { axis + rank } else { axis };
        let axis = usize::try_from(axis).ok().filter(|axis| *axis < dims.len());
        let axis = axis.ok_or("its axis is not one of its input")?;
        let (lead, normalised) = dims.split_at(axis);
        let n = product(normalised).ok_or("its input is too large")?;
        if node.outputs.len() > 1 && node.outputs.iter().skip(1).any(|id| *id > 0) {
            return Err("its mean is read too");
        }
        let mut flattened = Vec::new();
        for input in node.inputs.iter().skip(1).filter(|id| **id > 0) {
            let found = match self.channels_of(*input) {
                Some(dequantize) => self.with_one_scale(*input, dequantize, at, normalised)?,
                None => self.flattened(*input, at, normalised)?,
            };
            flattened.push(found);
        }
        let (before, behind) = match is_quantised {
            false => (None, None),
            true => {
                let all = "its input or output has a scale for each channel";
                let before = self.steps_before(x).ok_or(all)?;
                let behind = self.steps_behind(self.output(at)).ok_or(all)?;
                (Some(before), Some(behind))
            }
        };
        let (mut added, mut removed, mut weights) = (Vec::new(), vec![at], Vec::new());
        let is_exact = flattened
            .iter()
            .all(|weight| matches!(weight, Flat::Same { .. }));
        for (flat, input) in flattened.into_iter().zip(node.inputs.iter().skip(1)) {
            match flat {
                Flat::Same { weight, declared } => {
                    self.edit.dims.insert(self.text(weight), vec![n]);
                    let declared = declared.into_iter().map(|id| self.text(id));
                    let declared: Vec<String> = declared.collect();
                    self.edit.undeclared.extend(declared);
                    weights.push(self.text(*input));
                }
                Flat::New {
                    element,
                    bytes,
                    scale,
                    zero,
                    dequantize,
                } => {
                    let base = self.edit.name(&format!("{}_flat", self.text(*input)));
                    let output = self.dequantised(
                        &base,
                        (element, vec![n], bytes),
                        (scale, zero),
                        &mut added,
                    );
                    weights.push(output);
                    removed.push(dequantize);
                }
            }
        }
        let flat: Vec<u64> = lead.iter().copied().chain([n]).collect();
        let base = node.name.clone();
        let mut last = self.edit.name(&format!("{base}_flat"));
        let first = self.reshape(
            &format!("{base}_reshape"),
            self.text(x),
            &flat,
            last.clone(),
        );
        added.push(first);
        if let Some(steps) = &before {
            last = self.pair(&last, steps, &mut added);
        }
        let normal = self.edit.name(&format!("{base}_normal"));
        let mut attributes = vec![("axis", NewValue::Int(-1))];
        if let Some(epsilon) = node.attribute("epsilon") {
            attributes.push(("epsilon", NewValue::Float(epsilon.float)));
        }
        if let Some(stash) = node.attribute("stash_type") {
            attributes.push(("stash_type", NewValue::Int(stash.int)));
        }
        added.push(NewNode {
            op_type: "LayerNormalization",
            name: base.clone(),
            inputs: [last].into_iter().chain(weights).collect(),
            output: normal.clone(),
            attributes,
            ..NewNode::default()
        });
        let mut last = normal;
        if let Some(steps) = &behind {
            last = self.pair(&last, steps, &mut added);
        }
        let output = self.text(self.output(at));
        let back = self.reshape(&format!("{base}_reshape_back"), last, &dims, output);
        added.push(back);
        Ok(Plan {
            to: "Reshape to one last axis, LayerNormalization over it, Reshape back",
            removed,
            added,
            at,
            is_exact,
        })
    }

    /// The DequantizeLinear that makes an input from a weight with several scales.
    pub(super) fn channels_of(&self, input: TensorId) -> Option<usize> {
        let maker = self.view.maker(input)?;
        let node = self.view.node(maker);
        let several = self.shape(node.input(1)).and_then(product) != Some(1);
        (node.op_type == "DequantizeLinear" && several).then_some(maker)
    }

    /// A weight of 8 bits with a scale for each channel, as one with a single scale: flat, it has no channels.
    fn with_one_scale(
        &self,
        input: TensorId,
        dequantize: usize,
        at: usize,
        normalised: &[u64],
    ) -> Result<Flat, &'static str> {
        let node = self.view.node(dequantize);
        let is_own = self.view.readers(input) == [at] && !self.view.is_kept(input);
        if !is_own || node.int("block_size", 0) != 0 {
            return Err("its scale or bias is shared with another node, or quantised in blocks");
        }
        let read = |id: TensorId| data::weight(self.model, self.names.text(id)).ok().flatten();
        let unread =
            "its scale or bias has a scale for each channel, and its values are not in the file";
        let weight = read(node.input(0)).ok_or(unread)?;
        let scales = read(node.input(1)).ok_or(unread)?;
        let zeros = match node.input(2) {
            0 => None,
            zero => Some(read(zero).ok_or(unread)?),
        };
        if !matches!(weight.element, element::U8 | element::I8) || weight.dims != normalised {
            return Err("its scale or bias has a scale for each channel, and is not of 8 bits");
        }
        let axis = axis_of(node, weight.dims.len()).ok_or("its scales have no axis")?;
        let one = data::with_one_scale(&weight, &scales, zeros.as_ref(), axis);
        let (bytes, scale, zero) = one.ok_or("its scales do not fit its channels")?;
        Ok(Flat::New {
            element: element::U8,
            bytes,
            scale,
            zero,
            dequantize,
        })
    }

    /// A new weight of 8 bits behind a DequantizeLinear of its own. Returns the tensor after it.
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

    /// The weight behind an input that is made flat, and tensors whose declared shape goes with it.
    pub(super) fn flattened(
        &self,
        input: TensorId,
        at: usize,
        normalised: &[u64],
    ) -> Result<Flat, &'static str> {
        let only = |id: TensorId, reader: usize| {
            self.view.readers(id) == [reader] && !self.view.is_kept(id)
        };
        let (weight, declared) = match self.view.maker(input) {
            None => (input, vec![input]),
            Some(maker) => {
                let node = self.view.node(maker);
                let one = self.shape(node.input(1)).and_then(product) == Some(1);
                if node.op_type != "DequantizeLinear" || !one || !only(input, at) {
                    return Err("its scale or bias is no weight of its own");
                }
                if !only(node.input(0), maker) {
                    return Err("its scale or bias is shared with another node");
                }
                (node.input(0), vec![input, node.input(0)])
            }
        };
        let is_input = self
            .view
            .graph
            .inputs
            .iter()
            .any(|given| given.id == weight);
        let is_weight = self
            .view
            .graph
            .initializers
            .iter()
            .any(|(id, _)| *id == weight);
        if !is_weight || is_input {
            return Err("its scale or bias is no weight of the file");
        }
        if self.view.maker(input).is_none() && !only(weight, at) {
            return Err("its scale or bias is shared with another node");
        }
        match self.shape(weight) == Some(normalised) {
            true => Ok(Flat::Same { weight, declared }),
            false => Err("its scale or bias has another shape than the normalised axes"),
        }
    }

    /// Five nodes are one; of quantised ones the steps between them go.
    fn gelu(&mut self, erf: usize) -> Planned {
        let found = gelu(self.view, erf).ok_or("its nodes are no Gelu")?;
        let last = *found.nodes.last().ok_or("its nodes are no Gelu")?;
        let (removed, is_exact) = self.with_quantisation(&found.nodes, last, &[found.x])?;
        let node = NewNode {
            op_type: "Gelu",
            domain: MICROSOFT,
            name: self.view.node(erf).name.clone(),
            inputs: vec![self.text(found.x)],
            output: self.text(self.output(last)),
            attributes: Vec::new(),
        };
        Ok(Plan {
            to: "Gelu, one node (opset 20)",
            removed,
            added: vec![node],
            at: last,
            is_exact,
        })
    }

    /// Nodes that become one, with the quantisation between them, and whether there is none. Only the last one's result and
    /// the kept tensors, which the new node reads, may be read elsewhere.
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
        // The copies of x that only these nodes read may be gone, but what made x itself stays.
        if is_read_elsewhere {
            return Err("a tensor between its nodes is read elsewhere too");
        }
        if removed.iter().any(|at| self.edit.removed.contains(at)) {
            return Err("another rewrite takes one of its nodes");
        }
        Ok((removed, is_exact))
    }

    fn einsum(&mut self, at: usize) -> Planned {
        let node = self.view.node(at);
        let is_transposed =
            einsum_as_matmul(node.text("equation")).ok_or("it is no product of matrices")?;
        let (left, right) = (node.input(0), node.input(1));
        let base = node.name.clone();
        let (mut added, mut removed) = (Vec::new(), vec![at]);
        let mut second = self.text(right);
        if is_transposed {
            let rank = self
                .shape(right)
                .map(<[u64]>::len)
                .ok_or("its second input has no fixed shape")?;
            if rank < 2 {
                return Err("its second input is no matrix");
            }
            let dequantize = self.view.maker(right).filter(|_| {
                self.view.made_by(right) == "DequantizeLinear"
                    && self.view.maker(self.view.before(right)).is_none()
            });
            second = match dequantize {
                Some(dequantize) => {
                    // Without a reader it would be left to the CPU.
                    if self.view.readers(right) == [at] && !self.view.is_kept(right) {
                        removed.push(dequantize);
                    }
                    self.transposed_weight(dequantize, &mut added)?
                }
                None => self.transposed(right, rank, &base, &mut added)?,
            };
        }
        added.push(NewNode {
            op_type: "MatMul",
            name: base,
            inputs: vec![self.text(left), second],
            output: self.text(self.output(at)),
            ..NewNode::default()
        });
        Ok(Plan {
            to: "MatMul",
            removed,
            added,
            at,
            is_exact: true,
        })
    }

    /// A Transpose behind a tensor that the model computes, with the same quantisation after it.
    fn transposed(
        &mut self,
        right: TensorId,
        rank: usize,
        base: &str,
        added: &mut Vec<NewNode>,
    ) -> Result<String, &'static str> {
        let mut order: Vec<i64> = (0..i64::try_from(rank).unwrap_or(0)).collect();
        order.swap(rank - 1, rank - 2);
        let steps = match self.view.made_by(right) == "DequantizeLinear" {
            true => Some(
                self.steps_before(right)
                    .ok_or("its second input has a scale for each channel")?,
            ),
            false => None,
        };
        let output = self.edit.name(&format!("{base}_transposed"));
        added.push(NewNode {
            op_type: "Transpose",
            name: self.edit.name(&format!("{base}_transpose")),
            inputs: vec![self.text(right)],
            output: output.clone(),
            attributes: vec![("perm", NewValue::Ints(order))],
            ..NewNode::default()
        });
        Ok(match &steps {
            Some(steps) => self.pair(&output, steps, added),
            None => output,
        })
    }

    /// A quantised weight whose bytes are transposed, behind a DequantizeLinear with the same scales: of channels too.
    fn transposed_weight(
        &mut self,
        dequantize: usize,
        added: &mut Vec<NewNode>,
    ) -> Result<String, &'static str> {
        let node = self.view.node(dequantize);
        let name = self.text(node.input(0));
        let read = data::weight(self.model, &name).ok().flatten();
        let weight = read.ok_or("its second input is a weight whose values are not in the file")?;
        let Data {
            element,
            dims,
            bytes,
        } = weight
            .transposed()
            .filter(|_| node.int("block_size", 0) == 0)
            .ok_or("its second input is a weight of half bytes, or quantised in blocks")?;
        let mut attributes = Vec::new();
        if self.shape(node.input(1)).and_then(product) != Some(1) {
            let rank = dims.len();
            let axis = axis_of(node, rank).ok_or("its scales have no axis")?;
            let moved = match axis {
                axis if axis + 1 == rank => rank - 2,
                axis if axis + 2 == rank => rank - 1,
                axis => axis,
            };
            let moved = i64::try_from(moved).unwrap_or(0);
            attributes.push(("axis", NewValue::Int(moved)));
        }
        let base = self.edit.name(&format!("{name}_transposed"));
        self.edit.tensors.push(NewTensor {
            name: base.clone(),
            element,
            dims,
            raw: bytes,
        });
        let output = self.edit.name(&format!("{base}_dequantized"));
        let steps = node.inputs.iter().skip(1).map(|id| self.text(*id));
        added.push(NewNode {
            op_type: "DequantizeLinear",
            inputs: [base.clone()].into_iter().chain(steps).collect(),
            name: self.edit.name(&format!("{base}_DequantizeLinear")),
            output: output.clone(),
            attributes,
            ..NewNode::default()
        });
        Ok(output)
    }

    /// A sum of all elements up to each one is a product with a triangle of ones.
    fn cumsum(&mut self, at: usize, is_quantised: bool) -> Planned {
        let node = self.view.node(at);
        let dims = self
            .shape(node.input(0))
            .ok_or("its input has no fixed shape")?;
        let rank = i64::try_from(dims.len()).unwrap_or(0);
        let n = dims.last().copied().unwrap_or(0);
        let axis = self
            .view
            .constant(node.input(1))
            .and_then(|axis| axis.ints.as_deref());
        let is_last = matches!(axis, Some([axis]) if *axis == -1 || *axis == rank - 1);
        if !is_last || rank < 2 {
            return Err("it does not sum over the last axis of two or more; transpose before");
        }
        if n > MOST_TRIANGLE {
            return Err("its axis is longer than 4096, so that a triangle of ones is too large");
        }
        if self
            .tensors
            .get(node.input(0))
            .is_none_or(|x| x.element != element::F32)
        {
            return Err("it does not sum floats");
        }
        let is_reverse = node.int("reverse", 0) != 0;
        // Element [i, j] is whether input i is a part of output j.
        let ones =
            (0..n).flat_map(|i| (0..n).map(move |j| if is_reverse { i >= j } else { i <= j }));
        let base = node.name.clone();
        let name = self.edit.name(&format!("{base}_triangle"));
        let mut added = Vec::new();
        let second = if is_quantised {
            let bytes = ones.map(u8::from).collect();
            self.dequantised(
                &name,
                (element::U8, vec![n, n], bytes),
                (1.0, 0),
                &mut added,
            )
        } else {
            let floats: Vec<f32> = ones.map(|is_one| f32::from(u8::from(is_one))).collect();
            self.edit
                .tensors
                .push(NewTensor::of_floats(name.clone(), vec![n, n], &floats));
            name
        };
        added.push(NewNode {
            op_type: "MatMul",
            name: base,
            inputs: vec![self.text(node.input(0)), second],
            output: self.text(self.output(at)),
            ..NewNode::default()
        });
        Ok(Plan {
            to: "MatMul with a triangle of ones",
            removed: vec![at],
            added,
            at,
            is_exact: true,
        })
    }

    /// Each channel is normalised over its elements, then scaled.
    fn instance_norm(&mut self, at: usize, is_quantised: bool) -> Planned {
        if is_quantised {
            return Err(
                "its normalised values would need a scale of their own: rewrite the float model, then quantise",
            );
        }
        let node = self.view.node(at);
        let dims = self
            .shape(node.input(0))
            .ok_or("its input has no fixed shape")?
            .to_vec();
        let [batch, channels, spatial @ ..] = dims.as_slice() else {
            return Err("its input has no channels");
        };
        let n = product(spatial).ok_or("its input is too large")?;
        let mut wide = vec![1; spatial.len() + 1];
        wide[0] = *channels;
        let base = node.name.clone();
        let (x, y) = (self.text(node.input(0)), self.text(self.output(at)));
        let count = usize::try_from(n).unwrap_or(usize::MAX).min(1 << 24);
        let ones = self.edit.name(&format!("{base}_ones"));
        self.edit.tensors.push(NewTensor::of_floats(
            ones.clone(),
            vec![n],
            &vec![1.0; count],
        ));
        if count as u64 != n {
            return Err("its channels are too large");
        }
        let [flat, normal, image, scaled] = ["flat", "normal", "image", "scaled"]
            .map(|part| self.edit.name(&format!("{base}_{part}")));
        let epsilon = node
            .attribute("epsilon")
            .map_or(1e-5, |epsilon| epsilon.float);
        let mut added = vec![self.reshape(
            &format!("{base}_reshape"),
            x,
            &[*batch, *channels, n],
            flat.clone(),
        )];
        added.push(NewNode {
            op_type: "LayerNormalization",
            name: base.clone(),
            inputs: vec![flat, ones],
            output: normal.clone(),
            attributes: vec![
                ("axis", NewValue::Int(-1)),
                ("epsilon", NewValue::Float(epsilon)),
            ],
            ..NewNode::default()
        });
        added.push(self.reshape(
            &format!("{base}_reshape_back"),
            normal,
            &dims,
            image.clone(),
        ));
        let mut last = image;
        for (op_type, input, output) in [("Mul", 1, scaled), ("Add", 2, y)] {
            let weight = self.text(node.input(input));
            let spread = self.edit.name(&format!("{base}_{op_type}_weight"));
            let name = format!("{base}_{op_type}_reshape");
            added.push(self.reshape(&name, weight, &wide, spread.clone()));
            added.push(NewNode {
                op_type,
                name: self.edit.name(&format!("{base}_{op_type}")),
                inputs: vec![last, spread],
                output: output.clone(),
                ..NewNode::default()
            });
            last = output;
        }
        Ok(Plan {
            to: "Reshape to one last axis, LayerNormalization over it, Reshape back, Mul, Add",
            removed: vec![at],
            added,
            at,
            is_exact: true,
        })
    }
}

/// The axis of a DequantizeLinear's scales.
fn axis_of(node: &Node, rank: usize) -> Option<usize> {
    let axis = node.int("axis", 1);
    let axis = match axis < 0 {
        true => axis.checked_add(i64::try_from(rank).ok()?)?,
        false => axis,
    };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}
