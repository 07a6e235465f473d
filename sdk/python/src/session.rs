//! An observed session, on the path of each run.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use epwatch_proto::{
    Accelerator, DeviceType,
    accelerator::{self, RuntimesWord},
};
use epwatch_sdk::{AttachedSession, Watch};
use pyo3::{
    Bound, Py, PyAny, PyResult, Python, exceptions::PyValueError, pyclass, pyfunction, pymethods,
    types::PyString,
};

use crate::{
    failure::guarded,
    self_test::{self, Begun, Tensor},
    shape,
};

/// A session whose runs the package measures. Closed when it is dropped.
#[pyclass(frozen, module = "epwatch._native")]
#[derive(Debug)]
pub(crate) struct Session {
    /// `None` once `drop` has taken it.
    attached: Option<AttachedSession>,
    watch: Option<Watch>,
    /// The model's inputs, if dimensions are free; `None` if all runs have one shape.
    inputs: Option<Vec<Py<PyString>>>,
    pid: u32,
}

impl Session {
    pub(crate) fn new(
        attached: AttachedSession,
        watch: Watch,
        inputs: Option<Vec<Py<PyString>>>,
    ) -> Self {
        Self {
            attached: Some(attached),
            watch: Some(watch),
            inputs,
            pid: std::process::id(),
        }
    }

    /// A panic loses a sample, and is not an error for the app.
    #[inline]
    fn with(&self, record: impl FnOnce(&AttachedSession)) {
        if let Some(attached) = &self.attached {
            let _ = catch_unwind(AssertUnwindSafe(|| record(attached)));
        }
    }

    #[inline]
    fn keep(&self, began: Duration, latency: Duration, feed: &Bound<'_, PyAny>) {
        self.with(|session| match &self.inputs {
            None => session.record(began, latency),
            Some(inputs) => session.record_shape(began, latency, &shape::key(inputs, feed)),
        });
    }
}

/// A child of a fork inherits locks that a thread of its parent may hold, so it does not end the parent's SDK.
impl Drop for Session {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            mem::forget(self.attached.take());
            mem::forget(self.watch.take());
        }
    }
}

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

#[inline]
fn elapsed(began: Duration) -> Duration {
    AttachedSession::now().saturating_sub(began)
}

#[pymethods]
impl Session {
    /// Records a run that began at `began_ns` and ends now. `feed` has its inputs by name, or is None.
    fn record(&self, began_ns: u64, feed: &Bound<'_, PyAny>) {
        let began = ns(began_ns);
        self.keep(began, elapsed(began), feed);
    }

    /// Records a run that ended.
    fn record_latency(&self, began_ns: u64, latency_ns: u64, feed: &Bound<'_, PyAny>) {
        self.keep(ns(began_ns), ns(latency_ns), feed);
    }

    /// Counts a run that failed with this code of ONNX Runtime.
    fn record_error(&self, ort_error_code: i32) {
        self.with(|session| session.record_error(ort_error_code));
    }

    /// Begins a self-test by a golden input.
    fn begin_self_test(
        &self,
        py: Python<'_>,
        id: &str,
        tolerance: Option<f64>,
        inputs: Vec<Tensor>,
    ) -> PyResult<Begun> {
        guarded(|| {
            let (Some(attached), Some(watch)) = (&self.attached, &self.watch) else {
                return Err(PyValueError::new_err("the session is closed"));
            };
            self_test::begin(py, watch, attached, id, tolerance, &inputs)
        })
    }

    /// Returns the session's part of `Watch.explain`, as JSON and as text.
    fn explain(&self) -> PyResult<Option<(String, String)>> {
        guarded(|| {
            let (Some(attached), Some(watch)) = (&self.attached, &self.watch) else {
                return Ok(None);
            };
            let explained = watch.explain_session(attached.uid());
            Ok(explained.map(|session| (session.to_json(), session.to_string())))
        })
    }
}

/// Returns the time by which runs are recorded, in nanoseconds.
#[pyfunction]
pub(crate) fn now() -> u64 {
    u64::try_from(AttachedSession::now().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the name that reports give an EP, by the vendor and the type of its devices. The type is `NPU`, `GPU` or `CPU`, or
/// empty if they have several.
#[pyfunction]
pub(crate) fn own_name(ep: &str, vendor: &str, device: &str) -> String {
    let device = match device {
        "NPU" => DeviceType::Npu,
        "GPU" => DeviceType::Gpu,
        "CPU" => DeviceType::Cpu,
        _ => DeviceType::Unknown,
    };
    accelerator::own_name(ep, RuntimesWord { vendor, device }).to_owned()
}

/// Returns whether an EP of this name puts nodes on the NPU.
#[pyfunction]
pub(crate) fn is_on_npu(name: &str) -> bool {
    Accelerator::of_ep(name).device() == DeviceType::Npu
}

/// Returns whether an EP of this name is an accelerator that a directive may forbid.
#[pyfunction]
pub(crate) fn is_off_cpu(name: &str) -> bool {
    Accelerator::of_ep(name).is_off_cpu()
}
