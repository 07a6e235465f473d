//! The MACs of a model, by the side-car that `epwatch manifest` writes.

use epwatch_sdk::{read_side_car, types::ModelManifest};
use pyo3::{PyResult, Python, exceptions::PyValueError, pyclass, pymethods};

use crate::{
    failure::{chain, guarded},
    session::is_on_npu,
};

/// A model's side-car, read once for all its sessions.
#[pyclass(frozen, module = "epwatch._native")]
#[derive(Debug)]
pub(crate) struct SideCar(ModelManifest);

impl SideCar {
    pub(crate) fn manifest(&self) -> &ModelManifest {
        &self.0
    }
}

#[pymethods]
impl SideCar {
    #[new]
    fn new(py: Python<'_>, json: &[u8]) -> PyResult<Self> {
        guarded(|| {
            let read = py.detach(|| read_side_car(json));
            read.map(Self)
                .map_err(|error| PyValueError::new_err(chain(&error)))
        })
    }

    /// Returns the MACs of the model.
    #[getter]
    fn total_macs(&self) -> u64 {
        self.0.total_macs()
    }

    /// Returns two shares of the model's MACs: the share that the NPU runs, and the share that was found on any node. The
    /// nodes are name and EP.
    fn macs(&self, py: Python<'_>, nodes: Vec<(String, String)>) -> PyResult<(f64, f64)> {
        guarded(|| {
            py.detach(|| {
                let nodes = nodes.iter().map(|(name, ep)| (&**name, &**ep));
                let found = self.0.wire().attribute(nodes);
                let of_npu = found.by_ep.iter().filter(|(ep, _)| is_on_npu(ep));
                Ok((of_npu.map(|(_, share)| share).sum(), found.attributed))
            })
        })
    }
}
