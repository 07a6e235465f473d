//! The MACs of a model, by the side-car that `epwatch manifest` writes.

use epwatch_proto::ModelManifest;
use epwatch_sdk::read_side_car;
use pyo3::{PyResult, exceptions::PyValueError, pyfunction};

use crate::{
    failure::{chain, guarded},
    session::is_on_npu,
};

pub(crate) fn manifest_of(side_car: &[u8]) -> PyResult<ModelManifest> {
    read_side_car(side_car).map_err(|error| PyValueError::new_err(chain(&error)))
}

/// Returns two shares of a model's MACs: the share that the NPU runs, and the share that was found on any node. The model is
/// its side-car, the nodes are name and EP.
#[pyfunction]
pub(crate) fn macs(side_car: Vec<u8>, nodes: Vec<(String, String)>) -> PyResult<(f64, f64)> {
    guarded(|| {
        let manifest = manifest_of(&side_car)?;
        let nodes = nodes.iter().map(|(name, ep)| (&**name, &**ep));
        let found = manifest.attribute(nodes);
        let of_npu = found.by_ep.iter().filter(|(ep, _)| is_on_npu(ep));
        Ok((of_npu.map(|(_, share)| share).sum(), found.attributed))
    })
}
