//! What a model computes: ready-made inputs for any model, or a folder of ONNX's test data.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail};
use epwatch_sdk::self_test::{GoldenElement, GoldenInput, GoldenTensor};
use ort::{
    session::Session,
    value::{TensorElementType, ValueType},
};
use serde::{Deserialize, Serialize};

/// Most elements of an input, as many as the SDK's self-test takes of 8 bytes.
const MOST_ELEMENTS: usize = 8 << 20;

/// Where inputs come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputKind {
    /// Numbers from 0 to 1, the same in each launch.
    Noise,
    Zeros,
    Ones,
    /// From 0 to 1 over the tensor.
    Ramp,
    Folder(PathBuf),
}

impl FromStr for InputKind {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "noise" => Self::Noise,
            "zeros" => Self::Zeros,
            "ones" => Self::Ones,
            "ramp" => Self::Ramp,
            folder => Self::Folder(folder.into()),
        })
    }
}

impl InputKind {
    /// The same, for a process with another working folder.
    pub(crate) fn absolute(&self) -> anyhow::Result<Self> {
        let Self::Folder(folder) = self else {
            return Ok(self.clone());
        };
        let shown = folder.display();
        let found = folder.canonicalize().with_context(|| {
            format!(
                "--inputs {shown}: expected noise, zeros, ones, ramp or a folder with input_0.pb"
            )
        })?;
        Ok(Self::Folder(found))
    }

    /// Makes the inputs that this session takes. A dimension that is open is 1.
    pub(crate) fn of(&self, session: &Session) -> anyhow::Result<GoldenInput> {
        let sample: fn(usize, usize) -> f64 = match self {
            Self::Folder(folder) => return of_folder(folder, session),
            Self::Noise => |at, _| noise(at),
            Self::Zeros => |_, _| 0.0,
            Self::Ones => |_, _| 1.0,
            Self::Ramp => |at, of| at as f64 / (of.max(2) - 1) as f64,
        };
        let mut golden = GoldenInput::new("ready-made")?;
        for input in session.inputs() {
            let name = input.name();
            let ValueType::Tensor { ty, shape, .. } = input.dtype() else {
                bail!(
                    "input {name} is no tensor; give --inputs a folder of a model without such an input"
                );
            };
            let dims = shape
                .iter()
                .map(|dim| u64::try_from(*dim).unwrap_or(1).max(1));
            let dims: Vec<u64> = dims.collect();
            let tensor = tensor(*ty, &dims, sample);
            let tensor = tensor.with_context(|| format!("failed to make the input {name}"))?;
            golden = golden.with_input(name, tensor)?;
        }
        Ok(golden)
    }
}

fn of_folder(folder: &Path, session: &Session) -> anyhow::Result<GoldenInput> {
    let golden = GoldenInput::load(folder)?;
    for input in session.inputs() {
        let name = input.name();
        if !golden.inputs().any(|(known, _)| known == name) {
            let folder = folder.display();
            bail!("{folder} has no tensor of the name {name}, which the model has an input of");
        }
    }
    Ok(golden)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "samples are from 0 to 1"
)]
fn tensor(
    ty: TensorElementType,
    dims: &[u64],
    sample: fn(usize, usize) -> f64,
) -> anyhow::Result<GoldenTensor> {
    let n = dims
        .iter()
        .try_fold(1_usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?));
    let n = n
        .filter(|n| *n <= MOST_ELEMENTS)
        .context("it has more than 8,388,608 elements")?;
    macro_rules! of {
        ($to:expr) => {
            made(dims, n, |at| $to(sample(at, n)))
        };
    }
    // Integers are often places in a table, of which each has a first and a second.
    let whole = |x: f64| x.round();
    match ty {
        TensorElementType::Float32 => of!(|x| x as f32),
        TensorElementType::Float64 => of!(|x: f64| x),
        TensorElementType::Float16 => of!(half::f16::from_f64),
        TensorElementType::Int8 => of!(|x| whole(x) as i8),
        TensorElementType::Int16 => of!(|x| whole(x) as i16),
        TensorElementType::Int32 => of!(|x| whole(x) as i32),
        TensorElementType::Int64 => of!(|x| whole(x) as i64),
        // Quantised images.
        TensorElementType::Uint8 => of!(|x| (255.0 * x) as u8),
        TensorElementType::Uint16 => of!(|x| (65_535.0 * x) as u16),
        TensorElementType::Uint32 => of!(|x| whole(x) as u32),
        TensorElementType::Uint64 => of!(|x| whole(x) as u64),
        TensorElementType::Bool => of!(|x: f64| x >= 0.5),
        other => bail!("its type is {other}; give --inputs a folder"),
    }
}

fn made<T: GoldenElement>(
    dims: &[u64],
    n: usize,
    element: impl FnMut(usize) -> T,
) -> anyhow::Result<GoldenTensor> {
    let elements: Vec<T> = (0..n).map(element).collect();
    Ok(GoldenTensor::new(dims, &elements)?)
}

/// A number from 0 to 1, by SplitMix64 of its place.
fn noise(at: usize) -> f64 {
    let mut z = (at as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_spread_over_its_range_and_repeats() {
        let found: Vec<f64> = (0..1000).map(noise).collect();
        assert!(found.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = found.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert_eq!(found[7], noise(7));
    }

    #[test]
    fn a_tensor_of_each_kind_has_its_numbers() {
        let floats = |kind: &str| -> Vec<f32> {
            let kind: InputKind = kind.parse().unwrap();
            let sample: fn(usize, usize) -> f64 = match kind {
                InputKind::Ones => |_, _| 1.0,
                _ => |at, of| at as f64 / (of - 1) as f64,
            };
            let tensor = tensor(TensorElementType::Float32, &[3], sample).unwrap();
            let (chunks, _) = tensor.data().as_chunks::<4>();
            chunks
                .iter()
                .map(|chunk| f32::from_le_bytes(*chunk))
                .collect()
        };
        assert_eq!(floats("ones"), [1.0, 1.0, 1.0]);
        assert_eq!(floats("ramp"), [0.0, 0.5, 1.0]);
        let too_large = tensor(TensorElementType::Uint8, &[1 << 20, 1 << 20], |_, _| 0.0);
        assert!(too_large.unwrap_err().to_string().contains("8,388,608"));
    }
}
