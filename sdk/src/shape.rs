//! The input-shape key of a run, written without allocating.

use std::fmt::{self, Write};

use ort::session::{Session, SessionInputs};
use ort::value::{Outlet, Value};

use crate::names::STATIC;

/// Longest key: what a stratum holds.
const MAX_BYTES: usize = 128;

/// Whether every input is a tensor of fixed shape.
pub(crate) fn has_one_shape(inputs: &[Outlet]) -> bool {
    inputs.iter().all(|input| {
        let shape = input.dtype().tensor_shape();
        shape.is_some_and(|dims| dims.iter().all(|dim| *dim >= 0))
    })
}

/// `static`, or for example `ids:1x77,mask:1x77`; cut at 128 bytes, empty where an input is no
/// tensor.
pub(crate) struct ShapeKey {
    text: [u8; MAX_BYTES],
    len: usize,
}

impl ShapeKey {
    pub(crate) fn of<const N: usize>(
        has_one_shape: bool,
        session: &Session,
        inputs: &SessionInputs<'_, '_, N>,
    ) -> Self {
        let mut key = Self {
            text: [0; MAX_BYTES],
            len: 0,
        };
        if has_one_shape {
            // It fits.
            let _ = key.write_str(STATIC);
            return key;
        }
        let named = session.inputs().iter().map(Outlet::name);
        let written = match inputs {
            SessionInputs::ValueSlice(values) => {
                key.write_all(named.zip(values.iter().map(|v| &**v)))
            }
            SessionInputs::ValueArray(values) => {
                key.write_all(named.zip(values.iter().map(|v| &**v)))
            }
            SessionInputs::ValueMap(values) => {
                key.write_all(values.iter().map(|(name, v)| (name.as_ref(), &**v)))
            }
        };
        if written.is_none() {
            key.len = 0;
        }
        key
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }

    fn write_all<'a>(&mut self, inputs: impl Iterator<Item = (&'a str, &'a Value)>) -> Option<()> {
        for (at, (name, value)) in inputs.enumerate() {
            let separator = if at == 0 { "" } else { "," };
            // What is cut off cannot be told apart, which is what the cap on keys says anyway.
            let _ = write!(self, "{separator}{name}:");
            for (at, dim) in value.dtype().tensor_shape()?.iter().enumerate() {
                let separator = if at == 0 { "" } else { "x" };
                let _ = write!(self, "{separator}{dim}");
            }
        }
        Some(())
    }
}

impl Write for ShapeKey {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let end = self.len + c.len_utf8();
            if end > MAX_BYTES {
                return Err(fmt::Error);
            }
            c.encode_utf8(&mut self.text[self.len..end]);
            self.len = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_cut_at_a_character() {
        let mut key = ShapeKey {
            text: [0; MAX_BYTES],
            len: 0,
        };
        assert!(key.write_str(&"é".repeat(100)).is_err());
        assert_eq!(key.as_str(), "é".repeat(64));
    }
}
