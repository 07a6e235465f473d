//! The rule for a LayerNormalization in several nodes, which an exporter writes if it does not use the op.
//! `quantize_static` leaves some of them in float, which chipsets without FP16 refuse. The planner calls it for the
//! node that divides.

use super::{
    encode::{NewNode, NewTensor, NewValue},
    norm::Flat,
    rules::{Plan, Planned, Planner},
};
use crate::{
    forms::{layer_norm, one_axis},
    graph::TensorId,
    tensor::{element, product},
};

/// Longest axis of a normalisation without a scale, for which a scale of ones is added.
const MOST_ONES: usize = 1 << 20;

impl Planner<'_> {
    /// The nodes up to the scale become one LayerNormalization; over the channels, it is between two Transposes. The
    /// bias stays an Add, because the NPU refuses its 8 bits as an input of the op.
    pub(super) fn layer_norm_by_parts(&mut self, div: usize, is_quantised: bool) -> Planned {
        let found = layer_norm(self.view, div).ok_or("its nodes are not a LayerNormalization")?;
        let (axis, rank) = one_axis(&found, self.tensors)
            .ok_or("it normalises over several axes, or its input has no fixed shape")?;
        let n = self.shape(found.x).map_or(0, |dims| dims[axis]);
        let all = "its input or output has no quantisation, or a scale for each channel";
        let last = found.scale.map_or(div, |(mul, _)| mul);
        let steps = match is_quantised {
            true => Some((
                self.steps_before(found.x).ok_or(all)?,
                self.steps_behind(self.output(last)).ok_or(all)?,
            )),
            false => None,
        };
        let (mut nodes, mut kept) = (found.nodes.clone(), vec![found.x]);
        nodes.extend(found.scale.map(|(mul, _)| mul));
        kept.extend(found.scale.map(|(_, weight)| weight));
        let (removed, is_exact) = self.with_quantisation(&nodes, last, &kept)?;
        // This comes last, because it changes the weight and nothing may fail after it.
        if let Some((mul, weight)) = found.scale {
            self.check_weight(weight, mul, (axis, rank), n)?;
        }

        let base = self.view.node(div).name.clone();
        let mut added = Vec::new();
        let weight = match found.scale {
            Some((_, weight)) => self.text(weight),
            None => {
                let name = self.edit.name(&format!("{base}_ones"));
                let ones = usize::try_from(n).unwrap_or(usize::MAX);
                if ones > MOST_ONES {
                    return Err("its axis is too long");
                }
                if is_quantised {
                    let ones = (element::U8, vec![n], vec![1; ones]);
                    self.dequantised(&name, ones, (1.0, 0), &mut added)
                } else {
                    let ones = NewTensor::of_floats(name.clone(), vec![n], &vec![1.0; ones]);
                    self.edit.tensors.push(ones);
                    name
                }
            }
        };
        let (x, y) = (self.text(found.x), self.text(self.output(last)));
        let norm = |input: String, output: String| NewNode {
            op_type: "LayerNormalization",
            name: base.clone(),
            inputs: vec![input, weight],
            output,
            attributes: vec![
                ("axis", NewValue::Int(-1)),
                ("epsilon", NewValue::Float(found.epsilon)),
            ],
            ..NewNode::default()
        };
        if axis + 1 == rank {
            added.push(norm(x, y));
            return Ok(Plan {
                to: "LayerNormalization, one node",
                removed,
                added,
                at: last,
                is_exact,
            });
        }
        let order: Vec<usize> = (0..rank).filter(|at| *at != axis).chain([axis]).collect();
        let back: Vec<usize> = (0..rank)
            .map(|at| order.iter().position(|from| *from == at).unwrap_or(0))
            .collect();
        let [turned, normal] =
            ["turned", "normal"].map(|part| self.edit.name(&format!("{base}_{part}")));
        let first = self.transpose(&format!("{base}_transpose"), x, &order, turned.clone());
        added.push(first);
        let turned = match &steps {
            Some((before, _)) => self.pair(&turned, before, &mut added),
            None => turned,
        };
        added.push(norm(turned, normal.clone()));
        let normal = match &steps {
            Some((_, behind)) => self.pair(&normal, behind, &mut added),
            None => normal,
        };
        let second = self.transpose(&format!("{base}_transpose_back"), normal, &back, y);
        added.push(second);
        Ok(Plan {
            to: "Transpose, LayerNormalization over the last axis, Transpose",
            removed,
            added,
            at: last,
            is_exact,
        })
    }

    /// Checks that the scale is a weight of the file with one element for each index of the axis, and reshapes it to
    /// one dimension.
    fn check_weight(
        &mut self,
        input: TensorId,
        mul: usize,
        (axis, rank): (usize, usize),
        n: u64,
    ) -> Result<(), &'static str> {
        let other = "it is multiplied by more than a weight for each element of its axis";
        let dims = self.shape(input).ok_or(other)?.to_vec();
        let place = (axis + dims.len()).checked_sub(rank);
        let is_of_axis = place.and_then(|at| dims.get(at)) == Some(&n) && product(&dims) == Some(n);
        if !is_of_axis {
            return Err(other);
        }
        if self.channels_of(input).is_some() {
            return Err("its scale has a scale for each channel");
        }
        match self.flattened(input, mul, &dims)? {
            Flat::Same { weight, declared } if dims.len() > 1 => {
                self.edit.dims.insert(self.text(weight), vec![n]);
                let declared: Vec<String> = declared.into_iter().map(|id| self.text(id)).collect();
                self.edit.undeclared.extend(declared);
                Ok(())
            }
            Flat::Same { .. } => Ok(()),
            Flat::New { .. } => Err(other),
        }
    }

    fn transpose(&mut self, base: &str, input: String, order: &[usize], output: String) -> NewNode {
        let order = order.iter().map(|at| i64::try_from(*at).unwrap_or(0));
        NewNode {
            op_type: "Transpose",
            name: self.edit.name(base),
            inputs: vec![input],
            output,
            attributes: vec![("perm", NewValue::Ints(order.collect()))],
            ..NewNode::default()
        }
    }
}
