//! An output of a session.

use super::{
    element::ElementType,
    tensor::{GoldenError, element_type, wrong},
};

/// Maximum number of bytes of a model's outputs. Two copies are held at once, and a phone lacks the memory for larger
/// ones.
pub(super) const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// One output of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub(crate) name: String,
    pub(crate) element_type: ElementType,
    pub(crate) dims: Vec<i64>,
    pub(crate) data: Vec<u8>,
}

impl Output {
    /// Copies an output of a session that the host has run. See [`GoldenTensor::of_bytes`](super::GoldenTensor::of_bytes)
    /// for `onnx_type`.
    ///
    /// # Errors
    /// Fails if elements of this type are not numbers, or if the dimensions do not match the number of bytes.
    pub fn new(name: &str, onnx_type: i32, dims: &[i64], data: &[u8]) -> Result<Self, GoldenError> {
        let element_type = element_type(onnx_type)?;
        let expected = dims.iter().try_fold(element_type.size(), |bytes, dim| {
            bytes.checked_mul(usize::try_from(*dim).ok()?)
        });
        if expected != Some(data.len()) {
            let expected = format!("as many bytes as {dims:?} needs");
            return Err(wrong("output", expected, data.len()));
        }
        Ok(Self {
            name: name.to_owned(),
            element_type,
            dims: dims.to_vec(),
            data: data.to_vec(),
        })
    }
}

/// An output of a run that is not finite everywhere.
#[cfg(feature = "ort")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotFinite {
    /// Its name.
    pub output: String,
    /// Number of its elements that are a NaN or an infinity.
    pub elements: u64,
    /// Number of all its elements.
    pub of: u64,
}
