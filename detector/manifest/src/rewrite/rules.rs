//! The rules: each checks a node and its neighbours, and adds the change to the edit. A node that does not meet a
//! rule's conditions is kept, with the reason.

use std::path::Path;

use super::{
    edit::{Edit, MICROSOFT},
    encode::{NewNode, NewTensor},
    rewritten::{Rewrite, Rewritten},
};
use crate::{
    forms::{CHANNEL_NORM, LAYER_NORM, NodeForm, gelu},
    graph::{Names, Node},
    tensor::{Tensor, element},
    view::GraphView,
};

/// Longest axis of a CumSum, because the triangle has the square of this number of elements.
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

/// A rule's result: the removed nodes, the new nodes, and whether the numbers stay the same.
pub(super) struct Plan {
    pub(super) to: &'static str,
    pub(super) removed: Vec<usize>,
    pub(super) added: Vec<NewNode>,
    /// Index at which the new nodes are inserted.
    pub(super) at: usize,
    pub(super) is_exact: bool,
}

pub(super) type Planned = Result<Plan, &'static str>;

impl Planner<'_> {
    /// Rewrites a node if a rule matches its form.
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
            // Every chipset accepts all these nodes in 8 bits, and in float the normalisations over the last axis.
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

    /// Five nodes become one. If they are quantised, the quantisation between them is removed.
    fn gelu(&mut self, erf: usize) -> Planned {
        let found = gelu(self.view, erf).ok_or("its nodes are not a Gelu")?;
        let last = *found.nodes.last().ok_or("its nodes are not a Gelu")?;
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
}
