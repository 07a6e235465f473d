//! The distance between the outputs of two models on the CPU, on random inputs.

use std::path::Path;

use anyhow::{Context, bail};
use ort::{
    environment::Environment,
    session::{Session, SessionInputValue, builder::GraphOptimizationLevel},
    value::{DynValue, Tensor, TensorElementType, ValueType},
};
use serde::Serialize;

/// Number of inputs that both models get.
const INPUTS: u64 = 3;
/// Maximum number of elements of an input.
const MOST_ELEMENTS: i64 = 1 << 26;

/// The largest difference over all outputs and inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Distance {
    /// Number of inputs that were run.
    pub(super) inputs: u64,
    /// Largest difference of an element.
    pub(super) max_abs: f64,
    /// That difference divided by the largest element of its output; it may exceed 1.
    pub(super) share: f64,
}

/// Runs both models on the CPU EP, without optimisations of the graph: optimisations would compute a different graph
/// from the file's.
pub(super) fn distance(ort_library: &Path, models: [&Path; 2]) -> anyhow::Result<Distance> {
    let environment = ort::init_from(ort_library)?.build()?;
    let mut sessions = Vec::new();
    for model in models {
        let session = session(&environment, model);
        sessions.push(session.with_context(|| format!("failed to run {}", model.display()))?);
    }
    let (mut found, mut compared) = (Distance::default(), Vec::new());
    for seed in 0..INPUTS {
        let mut outputs = Vec::new();
        for session in &mut sessions {
            outputs.push(run(session, seed)?);
        }
        let [before, after] = outputs.as_slice() else {
            bail!("two models are compared");
        };
        if before.len() != after.len() {
            bail!("the models have different outputs");
        }
        compared.resize(before.len(), false);
        for ((before, after), is_compared) in before.iter().zip(after).zip(&mut compared) {
            if before.len() != after.len() {
                bail!("an output has another size");
            }
            *is_compared |= is_comparable(before);
            let largest = before.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            let apart = before.iter().zip(after);
            let apart = apart.fold(0.0_f64, |most, (a, b)| match (a - b).abs() {
                gap if gap.is_nan() && !(a.is_nan() && b.is_nan()) => f64::INFINITY,
                gap => most.max(gap),
            });
            found.max_abs = found.max_abs.max(apart);
            if apart > 0.0 {
                found.share = found.share.max(apart / largest.max(f64::MIN_POSITIVE));
            }
        }
        found.inputs += 1;
    }
    if compared.contains(&false) {
        bail!(
            "cannot compare: all outputs of one name are NaN, for each of {INPUTS} random inputs"
        );
    }
    Ok(found)
}

/// Whether an output has a number to compare. An output without elements is comparable too.
fn is_comparable(output: &[f64]) -> bool {
    output.is_empty() || output.iter().any(|x| !x.is_nan())
}

fn session(environment: &Environment, model: &Path) -> anyhow::Result<Session> {
    let builder = Session::builder(environment)?;
    let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable);
    let mut builder = builder.map_err(|error| -> ort::Error { error.into() })?;
    Ok(builder.commit_from_file(model)?)
}

/// Runs the session, and returns every output as numbers.
fn run(session: &mut Session, seed: u64) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut inputs: Vec<(String, SessionInputValue<'_>)> = Vec::new();
    let mut random = Random::new(seed);
    for input in session.inputs() {
        let ValueType::Tensor { ty, shape, .. } = input.dtype() else {
            bail!("input {} is not a tensor", input.name());
        };
        // A dimension that is not fixed counts as 1, as in the count of MACs.
        let dims: Vec<i64> = shape.iter().map(|dim| (*dim).max(1)).collect();
        let value = value(*ty, &dims, &mut random, seed)
            .with_context(|| format!("failed to make the input {}", input.name()))?;
        inputs.push((input.name().to_owned(), value.into()));
    }
    let outputs = session.run(inputs)?;
    let mut found = Vec::new();
    for (name, value) in &outputs {
        found.push(numbers(&value).with_context(|| format!("failed to read the output {name}"))?);
    }
    Ok(found)
}

fn value(
    ty: TensorElementType,
    dims: &[i64],
    random: &mut Random,
    seed: u64,
) -> anyhow::Result<DynValue> {
    let n = dims.iter().try_fold(1_i64, |n, dim| n.checked_mul(*dim));
    let n = n
        .filter(|n| *n <= MOST_ELEMENTS)
        .context("it is too large")?;
    let dims = dims.to_vec();
    // Integers are small, so that they are also valid as indices.
    Ok(match ty {
        TensorElementType::Float32 => {
            // One input has values in [0, 1], like pixels.
            let floats = (0..n).map(|_| {
                if seed == 1 {
                    random.share()
                } else {
                    random.normal()
                }
            });
            Tensor::from_array((dims, floats.collect::<Vec<f32>>()))?.into_dyn()
        }
        TensorElementType::Int64 => {
            let ints = (0..n).map(|_| i64::from(random.bit()));
            Tensor::from_array((dims, ints.collect::<Vec<i64>>()))?.into_dyn()
        }
        TensorElementType::Int32 => {
            let ints = (0..n).map(|_| i32::from(random.bit()));
            Tensor::from_array((dims, ints.collect::<Vec<i32>>()))?.into_dyn()
        }
        TensorElementType::Uint8 => {
            let bytes = (0..n).map(|_| random.byte());
            Tensor::from_array((dims, bytes.collect::<Vec<u8>>()))?.into_dyn()
        }
        TensorElementType::Int8 => {
            let bytes = (0..n).map(|_| random.byte().cast_signed());
            Tensor::from_array((dims, bytes.collect::<Vec<i8>>()))?.into_dyn()
        }
        TensorElementType::Bool => {
            let bits = (0..n).map(|_| random.bit() == 1);
            Tensor::from_array((dims, bits.collect::<Vec<bool>>()))?.into_dyn()
        }
        other => bail!("no input of the kind {other:?} is made"),
    })
}

fn numbers(value: &DynValue) -> anyhow::Result<Vec<f64>> {
    let ValueType::Tensor { ty, .. } = value.dtype() else {
        bail!("it is not a tensor");
    };
    Ok(match ty {
        TensorElementType::Float32 => each(value.try_extract_tensor::<f32>()?.1, f64::from),
        TensorElementType::Float64 => value.try_extract_tensor::<f64>()?.1.to_vec(),
        TensorElementType::Int64 => each(value.try_extract_tensor::<i64>()?.1, |x| x as f64),
        TensorElementType::Int32 => each(value.try_extract_tensor::<i32>()?.1, f64::from),
        TensorElementType::Uint8 => each(value.try_extract_tensor::<u8>()?.1, f64::from),
        TensorElementType::Int8 => each(value.try_extract_tensor::<i8>()?.1, f64::from),
        TensorElementType::Bool => each(value.try_extract_tensor::<bool>()?.1, |x| {
            f64::from(u8::from(x))
        }),
        other => bail!("no output of the kind {other:?} is compared"),
    })
}

fn each<T: Copy>(values: &[T], number: impl Fn(T) -> f64) -> Vec<f64> {
    values.iter().map(|value| number(*value)).collect()
}

/// Random numbers that are the same for both models.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn bit(&mut self) -> u8 {
        self.byte() & 1
    }

    fn share(&mut self) -> f32 {
        let [a, b, ..] = self.next().to_le_bytes();
        f32::from(u16::from_le_bytes([a, b])) / f32::from(u16::MAX)
    }

    /// A sum of twelve uniform numbers is near enough to a normal distribution.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.share()).sum::<f32>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_of_nan_alone_is_not_compared() {
        let nan = f64::NAN;
        for (output, expected) in [
            (&[nan, nan][..], false),
            (&[nan, 1.0], true),
            (&[f64::INFINITY], true),
            (&[], true),
        ] {
            assert_eq!(is_comparable(output), expected, "{output:?}");
        }
    }
}
