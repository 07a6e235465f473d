//! A tensor, reduced to the data that shapes and counts need.

/// Maximum number of dimensions of a tensor. Also the maximum number of elements of a tensor whose values are kept, because they may
/// be a shape.
pub(crate) const MOST_DIMS: usize = 16;

/// Largest dimension.
pub(crate) const MOST_SIZE: u64 = 1 << 40;

/// Kinds of elements, as in `onnx.proto`.
pub(crate) mod element {
    pub(crate) const F32: u64 = 1;
    pub(crate) const U8: u64 = 2;
    pub(crate) const I8: u64 = 3;
    pub(crate) const I32: u64 = 6;
    pub(crate) const I64: u64 = 7;
    pub(crate) const BOOL: u64 = 9;
}

/// A tensor's shape and kind, and its values if they may be a shape.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tensor {
    /// The shape; `None` if it is not fixed.
    pub(crate) shape: Option<Vec<u64>>,
    /// The kind of elements; 0 if it is not known.
    pub(crate) element: u64,
    pub(crate) ints: Option<Vec<i64>>,
    pub(crate) floats: Option<Vec<f32>>,
}

impl Tensor {
    pub(crate) fn of(shape: Option<Vec<u64>>, element: u64) -> Self {
        let shape = shape
            .filter(|dims| dims.len() <= MOST_DIMS && dims.iter().all(|dim| *dim <= MOST_SIZE));
        Self {
            shape,
            element,
            ..Self::default()
        }
    }

    pub(crate) fn of_ints(ints: Vec<i64>, shape: Vec<u64>) -> Self {
        Self {
            ints: (ints.len() <= MOST_DIMS).then_some(ints),
            ..Self::of(Some(shape), element::I64)
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let values =
            self.ints.as_ref().map_or(0, Vec::len) + self.floats.as_ref().map_or(0, Vec::len);
        size_of::<Self>() + 8 * (values + self.shape.as_ref().map_or(0, Vec::len))
    }

    /// Returns the size in memory; `None` if shape or kind is not known, and for texts.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let bits = match self.element {
            21..=23 => 4,
            2 | 3 | 9 | 17..=20 | 24 => 8,
            4 | 5 | 10 | 16 => 16,
            1 | 6 | 12 => 32,
            7 | 11 | 13 | 14 => 64,
            15 => 128,
            _ => return None,
        };
        Some(
            product(self.shape.as_ref()?)?
                .checked_mul(bits)?
                .div_ceil(8),
        )
    }
}

pub(crate) fn product(dims: &[u64]) -> Option<u64> {
    dims.iter()
        .try_fold(1_u64, |product, dim| product.checked_mul(*dim))
}
