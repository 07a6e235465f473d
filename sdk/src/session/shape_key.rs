//! Shape key of a run's inputs, written without allocating.

#[cfg(feature = "ort")]
use ort::{
    session::{Session, SessionInputs},
    value::{Outlet, Value},
};

use crate::recorder::interner::STATIC;

/// Longest shape key of a stratum.
const MAX_BYTES: usize = 128;

/// Whether every input is a tensor of fixed shape.
#[cfg(feature = "ort")]
pub(crate) fn has_one_shape(inputs: &[Outlet]) -> bool {
    inputs.iter().all(|input| {
        let shape = input.dtype().tensor_shape();
        shape.is_some_and(|dims| dims.iter().all(|dim| *dim >= 0))
    })
}

/// `static`, or for example `ids:1x77,mask:1x77`. Cut at 128 bytes; empty if an input is not a tensor.
#[derive(Debug)]
pub(crate) enum ShapeKey {
    /// The model has a fixed input shape.
    Static,
    /// Shapes of this run.
    Of(ShapeText),
}

#[cfg(feature = "ort")]
impl ShapeKey {
    #[inline]
    pub(crate) fn of<const N: usize>(
        has_one_shape: bool,
        session: &Session,
        inputs: &SessionInputs<'_, '_, N>,
    ) -> Self {
        if has_one_shape {
            return Self::Static;
        }
        Self::of_inputs(session, inputs)
    }

    fn of_inputs<const N: usize>(session: &Session, inputs: &SessionInputs<'_, '_, N>) -> Self {
        let named = session.inputs().iter().map(Outlet::name);
        match inputs {
            SessionInputs::ValueSlice(values) => {
                Self::of_values(named.zip(values.iter().map(|v| &**v)))
            }
            SessionInputs::ValueArray(values) => {
                Self::of_values(named.zip(values.iter().map(|v| &**v)))
            }
            SessionInputs::ValueMap(values) => {
                Self::of_values(values.iter().map(|(name, v)| (name.as_ref(), &**v)))
            }
        }
    }

    fn of_values<'a>(inputs: impl Iterator<Item = (&'a str, &'a Value)>) -> Self {
        let dims = inputs.map(|(name, value)| {
            let dims = value.dtype().tensor_shape();
            (name, dims.map(|dims| &dims[..]))
        });
        Self::of_dims(dims)
    }
}

impl ShapeKey {
    /// The key if nothing is known about the inputs.
    pub(crate) fn unknown() -> Self {
        Self::given("")
    }

    /// The host's own key, cut to the same length as every key.
    pub(crate) fn given(key: &str) -> Self {
        let mut writer = ShapeText {
            text: [0; MAX_BYTES],
            len: 0,
        };
        writer.text(key);
        Self::Of(writer)
    }

    /// Key of inputs by name. An input without dimensions (`None`) is not a tensor.
    pub(crate) fn of_dims<'a>(inputs: impl Iterator<Item = (&'a str, Option<&'a [i64]>)>) -> Self {
        let mut writer = ShapeText {
            text: [0; MAX_BYTES],
            len: 0,
        };
        for (at, (name, dims)) in inputs.enumerate() {
            let Some(dims) = dims else {
                writer.len = 0;
                break;
            };
            // Shapes that differ only after the cut share a key.
            if !writer.input(at > 0, name, dims) {
                break;
            }
        }
        Self::Of(writer)
    }

    #[inline]
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static => STATIC,
            Self::Of(shape) => std::str::from_utf8(&shape.text[..shape.len]).unwrap_or_default(),
        }
    }
}

/// The text of a key. It is written without `fmt`, which would cost a run of a dynamic model ten times as much.
#[derive(Debug)]
pub(crate) struct ShapeText {
    text: [u8; MAX_BYTES],
    len: usize,
}

impl ShapeText {
    /// Appends an input; returns whether it fitted completely.
    fn input(&mut self, follows: bool, name: &str, dims: &[i64]) -> bool {
        let is_begun = (!follows || self.text(",")) && self.text(name) && self.text(":");
        let mut all = is_begun;
        for (at, dim) in dims.iter().enumerate() {
            all = all && (at == 0 || self.text("x")) && self.number(*dim);
        }
        all
    }

    fn text(&mut self, text: &str) -> bool {
        let room = MAX_BYTES - self.len;
        let fits = text.floor_char_boundary(room);
        self.text[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        fits == text.len()
    }

    fn number(&mut self, number: i64) -> bool {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let digits = std::str::from_utf8(&digits[at..]).unwrap_or_default();
        (number >= 0 || self.text("-")) && self.text(digits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(inputs: &[(&str, Option<&[i64]>)]) -> String {
        ShapeKey::of_dims(inputs.iter().copied())
            .as_str()
            .to_owned()
    }

    #[test]
    fn a_key_names_inputs_and_their_dims() {
        assert_eq!(ShapeKey::Static.as_str(), "static");
        assert_eq!(key(&[("x", Some(&[1, 3, 224, 224]))]), "x:1x3x224x224");
        let two: [(&str, Option<&[i64]>); 2] = [("ids", Some(&[1, 77])), ("n", Some(&[]))];
        assert_eq!(key(&two), "ids:1x77,n:");
        assert_eq!(
            key(&[("x", Some(&[i64::MIN, 0]))]),
            "x:-9223372036854775808x0"
        );
        // A sequence or a map has no shape.
        assert_eq!(key(&[("x", Some(&[1])), ("map", None)]), "");
    }

    #[test]
    fn a_long_key_is_cut_at_a_character() {
        assert_eq!(key(&[(&"é".repeat(100), Some(&[1]))]), "é".repeat(64));
        // Nothing is written after a cut.
        let names = ["a".repeat(126), "b".to_owned()];
        let inputs: Vec<(&str, Option<&[i64]>)> = names
            .iter()
            .map(|n| (&**n, Some(&[12_i64, 3][..])))
            .collect();
        assert_eq!(key(&inputs), format!("{}:1", "a".repeat(126)));
    }

    proptest! {
        #[test]
        fn a_key_equals_the_formatted_shape(
            inputs in prop::collection::vec(("[a-zé]{1,9}", prop::collection::vec(any::<i64>(), 0..5)), 0..6),
        ) {
            let all: Vec<_> = inputs.iter().map(|(name, dims)| {
                let dims: Vec<_> = dims.iter().map(i64::to_string).collect();
                format!("{name}:{}", dims.join("x"))
            }).collect();
            let mut expected = all.join(",");
            expected.truncate(expected.floor_char_boundary(MAX_BYTES));
            let given: Vec<_> = inputs.iter().map(|(n, d)| (&**n, Some(&d[..]))).collect();
            // The key is always a prefix of the full text, even if the cut is within a number.
            prop_assert_eq!(key(&given), expected);
        }
    }
}
