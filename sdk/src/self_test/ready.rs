//! Golden inputs for any model, so that an app needs no data: zeros, ones, a ramp, and noise from a seed.
//!
//! They show how far NPU and CPU differ, not how good the answers are. The elements suit the model's inputs. Floats are
//! from -1 to 1, and images of 8 or 16 bits have their whole range. Other integers are small, so that they are valid as
//! tokens and indices.

use ort::{session::Session, value::ValueType};

use super::{
    element::{ElementType, bytes_of},
    golden::GoldenInput,
    tensor::{GoldenError, GoldenTensor, MAX_GOLDEN_BYTES, wrong},
};

/// Integers of 32 bits or more stay below this, because they are often indices of a table.
const SMALL: u32 = 8;

/// The elements of a ready golden input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadyInput {
    /// All elements are 0.
    Zeros,
    /// All elements are 1.
    Ones,
    /// Elements that rise from the least to the largest.
    Ramp,
    /// Uniform noise; a seed gives the same noise on every device.
    Noise(u64),
}

impl ReadyInput {
    /// One of each kind.
    pub const ALL: [ReadyInput; 4] = [Self::Zeros, Self::Ones, Self::Ramp, Self::Noise(1)];

    /// Returns the id that names this input in reports.
    fn id(self) -> String {
        match self {
            Self::Zeros => "ready-zeros".to_owned(),
            Self::Ones => "ready-ones".to_owned(),
            Self::Ramp => "ready-ramp".to_owned(),
            Self::Noise(seed) => format!("ready-noise-{seed}"),
        }
    }
}

impl GoldenInput {
    /// Makes a golden input for a session's model. A dimension without a fixed size is 1.
    ///
    /// ```no_run
    /// # fn example(session: &epwatch_sdk::ObservedSession) -> Result<(), epwatch_sdk::self_test::GoldenError> {
    /// use epwatch_sdk::self_test::{GoldenInput, ReadyInput};
    ///
    /// for ready in ReadyInput::ALL {
    ///     let golden = GoldenInput::ready(ready, session.session())?;
    ///     println!("{} has {} inputs", golden.id(), golden.inputs().count());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Fails if an input of the model is not a tensor of numbers, or the inputs are larger than 64 MiB together.
    pub fn ready(ready: ReadyInput, session: &Session) -> Result<Self, GoldenError> {
        let mut golden = Self::new(ready.id())?;
        for (at, input) in (0..).zip(session.inputs()) {
            let numbers = "a tensor of numbers";
            let other = || {
                wrong(
                    "input",
                    numbers,
                    format!("{}: {}", input.name(), input.dtype()),
                )
            };
            let ValueType::Tensor { ty, shape, .. } = input.dtype() else {
                return Err(other());
            };
            let element_type = ElementType::from_ort(*ty).ok_or_else(other)?;
            let dims: Vec<u64> = shape
                .iter()
                .map(|dim| u64::try_from(*dim).unwrap_or(1).max(1))
                .collect();
            let tensor = tensor(ready, at, element_type, &dims)?;
            golden = golden.with_input(input.name(), tensor)?;
        }
        Ok(golden)
    }
}

fn tensor(
    ready: ReadyInput,
    input: u64,
    element_type: ElementType,
    dims: &[u64],
) -> Result<GoldenTensor, GoldenError> {
    let n = dims.iter().try_fold(1_u64, |n, dim| n.checked_mul(*dim));
    let n = n.and_then(|n| usize::try_from(n).ok());
    let n = n.filter(|n| *n <= MAX_GOLDEN_BYTES / element_type.size());
    let Some(n) = n else {
        let expected = format!("together at most {MAX_GOLDEN_BYTES} bytes");
        return Err(wrong("dims", expected, format!("{dims:?}")));
    };
    let mut noise = Noise::new(ready, input);
    let mut data = Vec::with_capacity(n * element_type.size());
    for at in 0..n {
        let part = match ready {
            ReadyInput::Zeros => Part::Zero,
            ReadyInput::Ones => Part::One,
            ReadyInput::Ramp => Part::Share(share(at, n)),
            ReadyInput::Noise(_) => Part::Share(noise.share()),
        };
        data.extend(part.bytes(element_type));
    }
    GoldenTensor::from_le_bytes(element_type, dims, data)
}

/// Returns the relative position of an element among all elements, in [0, 1).
#[expect(
    clippy::cast_precision_loss,
    reason = "a ramp needs no more than 53 bits"
)]
fn share(at: usize, n: usize) -> f64 {
    at as f64 / n as f64
}

/// One element.
#[derive(Debug, Clone, Copy)]
enum Part {
    Zero,
    One,
    /// A relative position in the range of its type, in [0, 1).
    Share(f64),
}

impl Part {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the type's range"
    )]
    fn bytes(self, element_type: ElementType) -> Vec<u8> {
        let int = |low: i64, values: f64| match self {
            Part::Zero => 0,
            Part::One => 1,
            Part::Share(share) => low + (share * values).floor() as i64,
        };
        let small = || int(0, f64::from(SMALL));
        let float = match self {
            Part::Zero => 0.0,
            Part::One => 1.0,
            Part::Share(share) => 2.0 * share - 1.0,
        };
        match element_type {
            ElementType::F16 => bytes_of(&[half::f16::from_f64(float)]),
            ElementType::F32 => bytes_of(&[float as f32]),
            ElementType::F64 => bytes_of(&[float]),
            ElementType::I8 => bytes_of(&[int(-128, 256.0) as i8]),
            ElementType::U8 => bytes_of(&[int(0, 256.0) as u8]),
            ElementType::I16 => bytes_of(&[int(-32_768, 65_536.0) as i16]),
            ElementType::U16 => bytes_of(&[int(0, 65_536.0) as u16]),
            ElementType::I32 => bytes_of(&[small() as i32]),
            ElementType::U32 => bytes_of(&[small() as u32]),
            ElementType::I64 => bytes_of(&[small()]),
            ElementType::U64 => bytes_of(&[small() as u64]),
            ElementType::Bool => bytes_of(&[int(0, 2.0) == 1]),
        }
    }
}

/// splitmix64, whose numbers are the same on every device.
#[derive(Debug)]
struct Noise(u64);

impl Noise {
    fn new(ready: ReadyInput, input: u64) -> Self {
        let seed = match ready {
            ReadyInput::Noise(seed) => seed,
            _ => 0,
        };
        Self(seed.rotate_left(32) ^ input)
    }

    /// Returns a number in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
