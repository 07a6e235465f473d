//! The inputs of a node, and calculations on their shapes that several kinds of ops share.

use crate::tensor::Tensor;

pub(super) type Dims = Vec<u64>;

/// Largest size of a dimension, a stride or a padding.
pub(super) const MOST: i64 = 1 << 40;

/// The inputs of a node by position; a missing input is an empty tensor.
pub(crate) struct Inputs<'a>(pub(crate) Vec<&'a Tensor>);

impl<'a> Inputs<'a> {
    pub(crate) fn get(&self, at: usize) -> Option<&'a Tensor> {
        self.0.get(at).copied()
    }

    pub(crate) fn shape(&self, at: usize) -> Option<&'a [u64]> {
        self.get(at)?.shape.as_deref()
    }

    pub(super) fn ints(&self, at: usize) -> Option<&'a [i64]> {
        self.get(at)?.ints.as_deref()
    }

    pub(super) fn element(&self, at: usize) -> u64 {
        self.get(at).map_or(0, |tensor| tensor.element)
    }

    /// Whether the input is there, but its values are not known.
    pub(super) fn is_unknown(&self, at: usize) -> bool {
        self.get(at)
            .is_some_and(|tensor| tensor.ints.is_none() && tensor.element != 0)
    }
}

/// Returns a size from a model, if it is between 0 and 2^40.
pub(super) fn size(value: i64) -> Option<u64> {
    (0..=MOST).contains(&value).then(|| value.unsigned_abs())
}

pub(super) fn sizes(values: &[i64]) -> Option<Dims> {
    values.iter().copied().map(size).collect()
}

/// An axis, which may count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|_| axis < rank)
}

pub(super) fn broadcast(
    inputs: &Inputs<'_>,
    which: impl IntoIterator<Item = usize>,
) -> Option<Dims> {
    let mut out: Dims = Vec::new();
    for at in which {
        let dims = inputs.shape(at)?;
        let missing = dims.len().saturating_sub(out.len());
        out.splice(0..0, std::iter::repeat_n(1, missing));
        let from = out.len() - dims.len();
        for (ours, theirs) in out[from..].iter_mut().zip(dims) {
            match (*ours, *theirs) {
                (1, theirs) => *ours = theirs,
                (ours, theirs) if theirs == 1 || theirs == ours => {}
                _ => return None,
            }
        }
    }
    Some(out)
}
