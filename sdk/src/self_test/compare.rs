//! Compares the outputs of NPU and CPU: two hashes and three distances, never the outputs themselves.
//!
//! The distances are over all outputs of a model. If an app exposes inner layers as outputs, it also gets the first
//! output that is off by more than rounding. The first distance is the greatest absolute difference of two elements.
//! The second is the lowest cosine of an output (as a flat vector, in f64). The third is whether the largest element is
//! the same in every output (the first of several). Two NaNs, or two equal infinities, at one position are equal and
//! left out. Any other pair that is not finite makes the result [`code::NOT_FINITE`]. Two outputs of zeros have cosine
//! 1; an output of zeros and a different output have cosine 0.

use epwatch_proto::ROUNDING_COSINE;
use sha2::{Digest, Sha256};

#[cfg(feature = "ort")]
use super::output::NotFinite;
use super::{code, element::Number, output::Output};

/// Distances of two sets of outputs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Distances {
    pub(crate) max_abs: f64,
    pub(crate) cosine: f64,
    pub(crate) top1_equal: bool,
    /// Name of the first of several outputs that is off by more than rounding; empty if there is none.
    pub(crate) first_off_output: String,
}

/// First 16 bytes of the SHA-256 over type, shape and elements of every output in order.
pub(crate) fn hash(outputs: &[Output]) -> [u8; 16] {
    let mut sha = Sha256::new();
    for output in outputs {
        let rank = u64::try_from(output.dims.len()).unwrap_or(u64::MAX);
        sha.update([output.element_type.code()]);
        sha.update(rank.to_le_bytes());
        for dim in &output.dims {
            sha.update(dim.to_le_bytes());
        }
        sha.update(&output.data);
    }
    let digest: [u8; 32] = sha.finalize().into();
    let (cut, _) = digest.split_first_chunk().expect("16 of 32 bytes");
    *cut
}

/// # Errors
/// Returns an error code if the outputs cannot be compared.
pub(crate) fn distances(npu: &[Output], cpu: &[Output]) -> Result<Distances, i32> {
    if npu.len() != cpu.len() || npu.is_empty() {
        return Err(code::OUTPUTS_DIFFER);
    }
    let mut all = Distances {
        max_abs: 0.0,
        cosine: 1.0,
        top1_equal: true,
        first_off_output: String::new(),
    };
    for (a, b) in npu.iter().zip(cpu) {
        let is_alike = a.name == b.name
            && a.element_type == b.element_type
            && a.dims == b.dims
            && a.data.len() == b.data.len();
        if !is_alike {
            return Err(code::OUTPUTS_DIFFER);
        }
        let one = distances_of_one(a, b)?;
        let is_first = all.first_off_output.is_empty() && npu.len() > 1;
        if is_first && one.cosine < ROUNDING_COSINE {
            all.first_off_output.clone_from(&a.name);
        }
        all.max_abs = all.max_abs.max(one.max_abs);
        all.cosine = all.cosine.min(one.cosine);
        all.top1_equal &= one.top1_equal;
    }
    Ok(all)
}

fn distances_of_one(npu: &Output, cpu: &Output) -> Result<Distances, i32> {
    let pairs = || {
        let a = npu.element_type.numbers(&npu.data);
        a.zip(cpu.element_type.numbers(&cpu.data))
            .filter(|(a, b)| !is_same_without_being_finite(*a, *b))
    };
    let mut max_abs = 0.0_f64;
    let mut scale = (0.0_f64, 0.0_f64);
    let mut top = (Top::default(), Top::default());
    for (at, (a, b)) in pairs().enumerate() {
        let (x, y) = (a.as_f64(), b.as_f64());
        let difference = difference(a, b);
        if !x.is_finite() || !y.is_finite() || !difference.is_finite() {
            return Err(code::NOT_FINITE);
        }
        max_abs = max_abs.max(difference);
        scale = (scale.0.max(x.abs()), scale.1.max(y.abs()));
        top.0.see(at, a);
        top.1.see(at, b);
    }
    Ok(Distances {
        max_abs,
        cosine: cosine(pairs().map(|(a, b)| (a.as_f64(), b.as_f64())), scale),
        top1_equal: top.0.at == top.1.at,
        first_off_output: String::new(),
    })
}

/// Counts the elements that are a NaN or an infinity; `None` if there is none.
#[cfg(feature = "ort")]
pub(super) fn not_finite(output: &Output) -> Option<NotFinite> {
    let (mut elements, mut of) = (0, 0);
    for number in output.element_type.numbers(&output.data) {
        of += 1;
        elements += u64::from(!number.as_f64().is_finite());
    }
    (elements > 0).then(|| NotFinite {
        output: output.name.clone(),
        elements,
        of,
    })
}

fn is_same_without_being_finite(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => {
            (a.is_nan() && b.is_nan()) || (a.is_infinite() && a == b)
        }
        _ => false,
    }
}

/// Integers are subtracted as integers: beyond 2^53 a float loses small differences.
#[expect(
    clippy::cast_precision_loss,
    reason = "the difference, not the numbers"
)]
fn difference(a: Number, b: Number) -> f64 {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => (a - b).unsigned_abs() as f64,
        _ => (a.as_f64() - b.as_f64()).abs(),
    }
}

/// Cosine of two vectors, each scaled by its largest element, so that squares neither overflow nor vanish.
fn cosine(pairs: impl Iterator<Item = (f64, f64)>, scale: (f64, f64)) -> f64 {
    match scale {
        (0.0, 0.0) => return 1.0,
        (0.0, _) | (_, 0.0) => return 0.0,
        _ => {}
    }
    let (mut product, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in pairs {
        let (a, b) = (a / scale.0, b / scale.1);
        product += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    (product / (of_a.sqrt() * of_b.sqrt())).clamp(-1.0, 1.0)
}

/// Position of the largest element, the first of several.
#[derive(Debug, Default)]
struct Top {
    at: usize,
    largest: Option<Number>,
}

impl Top {
    fn see(&mut self, at: usize, number: Number) {
        let is_larger = match (number, self.largest) {
            (_, None) => true,
            (Number::Int(new), Some(Number::Int(old))) => new > old,
            (new, Some(old)) => new.as_f64() > old.as_f64(),
        };
        if is_larger {
            (self.at, self.largest) = (at, Some(number));
        }
    }
}
