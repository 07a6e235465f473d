//! One tensor of a golden input, within bounds.

use std::io;

use super::element::{ElementType, GoldenElement, bytes_of};

/// Largest tensor file, and the most bytes of all tensors of a golden input.
pub(super) const MAX_GOLDEN_BYTES: usize = 64 << 20;
const MAX_RANK: usize = 8;

/// Why a golden input cannot be made or read, and which values would be accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// A file cannot be read, or holds no usable tensor.
    #[error("failed to read golden input {path}")]
    Io {
        /// Path of the file.
        path: String,
        /// The cause: the system's error, or a [`GoldenError`].
        #[source]
        source: io::Error,
    },
    /// The bytes are not a usable `TensorProto`.
    #[error("failed to read a tensor of a golden input: expected {expected}; make the file again")]
    Damaged {
        /// The expected content.
        expected: &'static str,
    },
    /// A field is out of bounds.
    #[error("failed to accept {field} of a golden input: expected {expected}, got {got}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The accepted values.
        expected: String,
        /// The refused value, as text.
        got: String,
    },
}

pub(super) fn wrong(
    field: &'static str,
    expected: impl ToString,
    got: impl ToString,
) -> GoldenError {
    GoldenError::Field {
        field,
        expected: expected.to_string(),
        got: epwatch_proto::clipped(&got.to_string(), 64),
    }
}

/// One input: type, shape and elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoldenTensor {
    pub(super) element_type: ElementType,
    dims: Vec<u64>,
    data: Vec<u8>,
}

impl GoldenTensor {
    /// Makes a tensor of at most eight dimensions, each 1 or more. Without dimensions it is a scalar.
    ///
    /// # Errors
    /// Fails if the dimensions are out of bounds or do not match the number of elements.
    pub fn new<T: GoldenElement>(dims: &[u64], elements: &[T]) -> Result<Self, GoldenError> {
        Self::from_le_bytes(T::TYPE, dims, bytes_of(elements))
    }

    /// Makes the same tensor as [`Self::new`] from little-endian bytes. `onnx_type` is a number of ONNX's
    /// `TensorProto.DataType`, which ONNX Runtime's C API uses too (`ONNXTensorElementDataType`).
    ///
    /// # Errors
    /// Fails as [`Self::new`] does, and if elements of this type are not numbers.
    pub fn of_bytes(onnx_type: i32, dims: &[i64], data: &[u8]) -> Result<Self, GoldenError> {
        let element_type = element_type(onnx_type)?;
        // A dimension below 0 is refused in the same way as 0.
        let dims: Vec<u64> = dims
            .iter()
            .map(|dim| u64::try_from(*dim).unwrap_or(0))
            .collect();
        Self::from_le_bytes(element_type, &dims, data.to_vec())
    }

    /// Fails as [`Self::new`] does, and if a byte of a bool is neither 0 nor 1.
    pub(super) fn from_le_bytes(
        element_type: ElementType,
        dims: &[u64],
        data: Vec<u8>,
    ) -> Result<Self, GoldenError> {
        let expected = byte_length(element_type, dims)?;
        if data.len() != expected {
            let expected = format!("{expected} bytes for these dimensions");
            return Err(wrong("data", expected, data.len()));
        }
        if element_type == ElementType::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(wrong("data", "0 or 1 in each byte of a bool", "another"));
        }
        Ok(Self {
            element_type,
            dims: dims.to_vec(),
            data,
        })
    }

    /// Returns the dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Returns the elements, little-endian.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Makes the tensor for ONNX Runtime.
    ///
    /// # Errors
    /// Returns ONNX Runtime's error, for example if memory is short.
    #[cfg(feature = "ort")]
    pub fn to_value(&self) -> ort::Result<ort::value::DynValue> {
        let dims = self.dims.iter().map(|d| i64::try_from(*d));
        let dims: Vec<i64> = dims
            .collect::<Result<_, _>>()
            .map_err(|_| ort::Error::new("a dimension is too large"))?;
        self.element_type.tensor(&dims, &self.data)
    }
}

/// # Errors
/// Fails if elements of this ONNX type are not numbers.
pub(super) fn element_type(onnx_type: i32) -> Result<ElementType, GoldenError> {
    let element_type = u64::try_from(onnx_type)
        .ok()
        .and_then(ElementType::from_onnx);
    element_type.ok_or_else(|| {
        wrong(
            "element type",
            "a type of numbers, as 1 for float",
            onnx_type,
        )
    })
}

/// Returns the bytes that a tensor takes.
fn byte_length(element_type: ElementType, dims: &[u64]) -> Result<usize, GoldenError> {
    if dims.len() > MAX_RANK {
        return Err(wrong("rank", format!("at most {MAX_RANK}"), dims.len()));
    }
    let mut bytes = element_type.size();
    for dim in dims {
        let dim = usize::try_from(*dim).unwrap_or(usize::MAX);
        bytes = bytes.saturating_mul(dim);
        if dim == 0 || bytes > MAX_GOLDEN_BYTES {
            let expected = format!("1 or more each, together at most {MAX_GOLDEN_BYTES} bytes");
            return Err(wrong("dims", expected, format!("{dims:?}")));
        }
    }
    Ok(bytes)
}
