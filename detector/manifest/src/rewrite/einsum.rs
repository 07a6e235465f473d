//! The rule of an Einsum that is a product of matrices.

use super::{
    around::axis_of,
    data::{self, Data},
    encode::{NewNode, NewTensor, NewValue},
    rules::{Plan, Planned, Planner},
};
use crate::{forms::einsum_as_matmul, graph::TensorId, tensor::product};

impl Planner<'_> {
    pub(super) fn einsum(&mut self, at: usize) -> Planned {
        let node = self.view.node(at);
        let is_transposed =
            einsum_as_matmul(node.text("equation")).ok_or("it is not a product of matrices")?;
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
                return Err("its second input is not a matrix");
            }
            let dequantize = self.view.maker(right).filter(|_| {
                self.view.made_by(right) == "DequantizeLinear"
                    && self.view.maker(self.view.before(right)).is_none()
            });
            second = match dequantize {
                Some(dequantize) => {
                    // A DequantizeLinear that nothing reads would be left on the CPU, so it is removed.
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

    /// Adds a Transpose after a tensor that the model computes, followed by the same quantisation.
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

    /// Adds a quantised weight with transposed bytes and a DequantizeLinear with the same scales, also for scales by
    /// channel.
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
}
