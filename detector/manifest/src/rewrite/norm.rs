//! Rules of normalisations: a normalisation over several axes becomes one over a single last axis.

use super::{
    around::axis_of,
    data,
    encode::{NewNode, NewTensor, NewValue},
    rules::{Plan, Planned, Planner},
};
use crate::{
    graph::TensorId,
    tensor::{element, product},
};

/// A weight that is reshaped to one dimension.
pub(super) enum Flat {
    /// The same bytes with other dimensions.
    Same {
        weight: TensorId,
        /// Tensors whose declared shape became wrong.
        declared: Vec<TensorId>,
    },
    /// New bytes, because one dimension has no channels for a scale each.
    New {
        element: u64,
        bytes: Vec<u8>,
        scale: f32,
        zero: u8,
        /// The weight's DequantizeLinear, which is removed with it.
        dequantize: usize,
    },
}

impl Planner<'_> {
    /// Normalising over the last axes is normalising over one last axis of as many elements.
    pub(super) fn layer_norm(&mut self, at: usize, is_quantised: bool) -> Planned {
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

    /// Converts a weight of 8 bits with a scale for each channel into one with a single scale, because a flat weight
    /// has no channels.
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

    /// Returns the weight of an input that is reshaped to one dimension, and the tensors whose declared shape becomes
    /// invalid.
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
                    return Err("its scale or bias is not a weight of its own");
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
            return Err("its scale or bias is not a weight of the file");
        }
        if self.view.maker(input).is_none() && !only(weight, at) {
            return Err("its scale or bias is shared with another node");
        }
        match self.shape(weight) == Some(normalised) {
            true => Ok(Flat::Same { weight, declared }),
            false => Err("its scale or bias has another shape than the normalised axes"),
        }
    }

    /// Each channel is normalised over its elements, then scaled.
    pub(super) fn instance_norm(&mut self, at: usize, is_quantised: bool) -> Planned {
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
