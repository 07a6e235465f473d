//! A small network in 8 bits, computed as NPUs do, with the rounding mode of each. A range may be too wide for one layer, or
//! one layer may have a defect.
//!
//! It has up to 32 layers with a residual connection, or up to 8 without. Deeper networks without residual connections
//! are left out. Noise grows in them from layer to layer, so they are not shipped in 8 bits.

use epwatch_fleet::chance::{Chance, whole};

const WIDTH: usize = 32;
const CALIBRATION_INPUTS: usize = 16;
/// Largest value of a signed 8-bit number.
const LARGEST: f64 = 127.0;
/// With [`Rounding::Floor`], one layer in this many rounds downwards.
const FLOORS_EVERY: usize = 4;
/// Slope below 0.
const LEAK: f64 = 0.25;
/// A residual layer's output is this share of its input, plus the share `ADDED` of its own result.
const KEPT: f64 = 0.9;
const ADDED: f64 = 0.5;
/// With [`Rounding::LastBit`], the last bit of this share of the elements is off by one.
const WOBBLING: f64 = 0.1;

/// The rounding of a layer's output to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest number, and a half to the even number, as ONNX defines it.
    NearestEven,
    /// A half upwards.
    HalfUp,
    /// Downwards in one layer of four, as a shift does in one kind of op; the others to the nearest number.
    Floor,
    /// To the nearest number, with random changes of the last bit of some elements on each device.
    LastBit,
}

impl Rounding {
    /// All of them.
    pub const ALL: [Rounding; 4] = [
        Rounding::NearestEven,
        Rounding::HalfUp,
        Rounding::Floor,
        Rounding::LastBit,
    ];

    fn of(self, layer: usize, value: f64, of_device: &mut Chance) -> f64 {
        match self {
            Rounding::NearestEven => value.round_ties_even(),
            Rounding::HalfUp => (value + 0.5).floor(),
            Rounding::Floor if layer % FLOORS_EVERY == 1 => value.floor(),
            Rounding::LastBit if of_device.happens(WOBBLING) => {
                value.round_ties_even() + if of_device.happens(0.5) { 1.0 } else { -1.0 }
            }
            Rounding::Floor | Rounding::LastBit => value.round_ties_even(),
        }
    }
}

/// The wrong arithmetic of an NPU in one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Defect {
    pub(super) layer: usize,
    pub(super) kind: DefectKind,
}

/// The kinds of defects, each with a number that sets its strength.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DefectKind {
    /// Sums of products end at this fraction of the range.
    Saturates(f64),
    /// One channel in this many is 0.
    DropsChannels(usize),
    /// This is added to each number, as if a zero point were left out.
    Offset(f64),
}

#[derive(Debug)]
struct Layer {
    weights: Vec<f64>,
    bias: Vec<f64>,
}

/// A network, its calibration, and a golden input.
#[derive(Debug)]
pub(super) struct Network {
    layers: Vec<Layer>,
    is_residual: bool,
    /// Step of the input, and of each layer's output.
    steps: Vec<f64>,
    input: Vec<f64>,
}

impl Network {
    pub(super) fn drawn(chance: &mut Chance) -> Self {
        let is_residual = chance.happens(0.5);
        let most = if is_residual { 28.0 } else { 4.0 };
        let depth = 4 + whole(chance.unit() * (most + 1.0)) as usize;
        let gain = (2.0 / WIDTH as f64).sqrt();
        let layers = (0..depth).map(|_| Layer {
            weights: (0..WIDTH * WIDTH).map(|_| gain * chance.normal()).collect(),
            bias: (0..WIDTH).map(|_| 0.05 * chance.normal()).collect(),
        });
        let mut network = Network {
            layers: layers.collect(),
            is_residual,
            steps: vec![0.0; depth + 1],
            input: Vec::new(),
        };
        for at in 0..CALIBRATION_INPUTS {
            let input: Vec<f64> = (0..WIDTH).map(|_| chance.normal()).collect();
            let outputs = network.in_float(&input);
            for (step, values) in network
                .steps
                .iter_mut()
                .zip([std::slice::from_ref(&input), &*outputs].concat())
            {
                let largest = values
                    .iter()
                    .fold(0.0_f64, |most, value| most.max(value.abs()));
                *step = step.max(largest / LARGEST);
            }
            if at == 0 {
                network.input = input;
            }
        }
        network
    }

    pub(super) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Widens the range of a layer, as one outlier in the calibration does.
    pub(super) fn widen(&mut self, layer: usize, factor: f64) {
        self.steps[layer + 1] *= factor;
    }

    /// The output of each layer for the golden input, without quantisation.
    pub(super) fn float(&self) -> Vec<Vec<f64>> {
        self.in_float(&self.input)
    }

    fn in_float(&self, input: &[f64]) -> Vec<Vec<f64>> {
        let mut outputs: Vec<Vec<f64>> = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let before = outputs.last().map_or(input, Vec::as_slice);
            let sums = (0..WIDTH).map(|to| {
                let row = &layer.weights[to * WIDTH..(to + 1) * WIDTH];
                let products = row.iter().zip(before).map(|(weight, value)| weight * value);
                self.activated(at, products.sum::<f64>() + layer.bias[to], before[to])
            });
            outputs.push(sums.collect());
        }
        outputs
    }

    fn activated(&self, layer: usize, sum: f64, before: f64) -> f64 {
        let is_last = layer + 1 == self.layers.len();
        let leaky = if sum > 0.0 { sum } else { LEAK * sum };
        match (is_last, self.is_residual) {
            (true, _) => sum,
            (false, false) => leaky,
            (false, true) => KEPT * before + ADDED * leaky,
        }
    }

    /// Returns the output of each layer in 8 bits. Each layer's weights have their own step, sums are exact, and each
    /// output is rounded.
    pub(super) fn in_8_bits(
        &self,
        rounding: Rounding,
        defect: Option<Defect>,
        of_device: &mut Chance,
    ) -> Vec<Vec<f64>> {
        let clamped = |value: f64| value.clamp(-LARGEST - 1.0, LARGEST);
        let input = self.input.iter();
        let mut now: Vec<f64> = input
            .map(|value| clamped((value / self.steps[0]).round_ties_even()))
            .collect();
        let mut outputs = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let largest = layer
                .weights
                .iter()
                .fold(0.0_f64, |most, one| most.max(one.abs()));
            let (of_weights, before, after) =
                (largest / LARGEST, self.steps[at], self.steps[at + 1]);
            let kind = defect
                .filter(|defect| defect.layer == at)
                .map(|defect| defect.kind);
            let next = (0..WIDTH).map(|to| {
                let row = &layer.weights[to * WIDTH..(to + 1) * WIDTH];
                let products = row.iter().zip(&now);
                let products =
                    products.map(|(weight, value)| (weight / of_weights).round_ties_even() * value);
                let bias = (layer.bias[to] / (of_weights * before)).round_ties_even();
                let mut sum = (products.sum::<f64>() + bias) * of_weights * before;
                if let Some(DefectKind::Saturates(fraction)) = kind {
                    let most = fraction * after * LARGEST;
                    sum = sum.clamp(-most, most);
                }
                let value = self.activated(at, sum, now[to] * before) / after;
                let value = match kind {
                    Some(DefectKind::DropsChannels(every)) if to % every == 0 => 0.0,
                    Some(DefectKind::Offset(offset)) => value + offset,
                    _ => value,
                };
                clamped(rounding.of(at, value, of_device))
            });
            now = next.collect();
            outputs.push(now.iter().map(|value| value * after).collect());
        }
        outputs
    }
}

/// Returns the cosine of two vectors; 1 if both are zero, 0 if only one is.
pub(super) fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths > 0.0 {
        true => (dot(a, b) / lengths).clamp(-1.0, 1.0),
        false => f64::from(u8::from(a == b)),
    }
}
