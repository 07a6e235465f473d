//! Exceptions, and the guard that keeps panics out of Python.

use std::{
    error::Error,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
};

use epwatch_sdk::FlushError;
use pyo3::{
    PyErr, PyResult, create_exception,
    exceptions::{PyRuntimeError, PyValueError},
};

create_exception!(
    epwatch,
    ConfigError,
    PyValueError,
    "The configuration is refused; the text names the setting and the way out."
);
create_exception!(
    epwatch,
    UploadError,
    PyRuntimeError,
    "Reports did not reach the collector, or it refused them; they wait in the folder unless it refused them."
);

create_exception!(
    epwatch,
    FolderError,
    UploadError,
    "Recorded runs could not be stored in the folder; they are lost at the latest with the process."
);

/// The exception of a flush, seal or stop.
pub(crate) fn flush_error(error: &FlushError) -> PyErr {
    match error {
        FlushError::Spool(_) => FolderError::new_err(chain(error)),
        _ => UploadError::new_err(chain(error)),
    }
}

/// Makes a call of the SDK. A panic, which is a bug of epwatch, becomes a `RuntimeError`.
pub(crate) fn guarded<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_panic| {
        let text = "internal error of epwatch; standard error has the details";
        Err(PyRuntimeError::new_err(text))
    })
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

pub(crate) fn config_error(error: &dyn Error) -> PyErr {
    ConfigError::new_err(chain(error))
}
