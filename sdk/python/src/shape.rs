//! The input shapes of a run as one text, for example `ids:1x77,mask:1x77`: the key of its series.
//!
//! It is made for each run of a model with free dimensions, so it reads the shapes without a call of Python code.

use std::fmt::Write as _;

use pyo3::{
    Bound, Py, PyAny, PyResult, intern,
    types::{
        PyAnyMethods, PyDict, PyDictMethods, PyList, PyListMethods, PyString, PyStringMethods,
        PyTuple, PyTupleMethods,
    },
};

/// The SDK reads this many bytes of a key.
const MAX_BYTES: usize = 128;

/// Returns the key of the inputs in `feed`, by the names of the model's inputs. Empty if one is not a tensor.
pub(crate) fn key(names: &[Py<PyString>], feed: &Bound<'_, PyAny>) -> String {
    // An error of an app's own class counts as an input that is not a tensor.
    made(names, feed).unwrap_or_default()
}

fn made(names: &[Py<PyString>], feed: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = feed.py();
    let dict = feed.cast::<PyDict>();
    let mut key = String::with_capacity(MAX_BYTES);
    for name in names {
        let value = match &dict {
            Ok(dict) => dict.get_item(name)?,
            Err(_) => Some(feed.call_method1(intern!(py, "get"), (name,))?),
        };
        // An input with a default may be left out.
        let Some(value) = value.filter(|value| !value.is_none()) else {
            continue;
        };
        if key.len() >= MAX_BYTES {
            break;
        }
        if !key.is_empty() {
            key.push(',');
        }
        key.push_str(&name.bind(py).to_cow()?);
        let mut separator = ':';
        let mut push = |dim: Bound<'_, PyAny>| -> PyResult<()> {
            let dim: i64 = dim.extract()?;
            let _ = write!(key, "{separator}{dim}");
            separator = 'x';
            Ok(())
        };
        let shape = value.getattr(intern!(py, "shape"))?;
        match shape.cast::<PyTuple>() {
            Ok(dims) => dims.iter().try_for_each(&mut push)?,
            // An OrtValue's shape is a method.
            Err(_) => shape
                .call0()?
                .cast::<PyList>()?
                .iter()
                .try_for_each(&mut push)?,
        }
    }
    Ok(key)
}
