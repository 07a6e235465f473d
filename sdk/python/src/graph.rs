//! The gate's rule for quantisation outside of the NPU. It needs the model's graph.

use std::{fs::File, io::Cursor, path::PathBuf};

use epwatch_manifest::{ManifestError, Place, SidesOfNodes, graph_facts_of};
use epwatch_proto::fingerprint::is_edge_quantization;
use pyo3::{
    FromPyObject, PyErr, PyResult, Python, exceptions::PyValueError, pybacked::PyBackedBytes,
    pyfunction,
};

use crate::failure::{chain, guarded};

/// A session's model, as onnxruntime was given it.
#[derive(FromPyObject)]
pub(crate) enum Model {
    Content(PyBackedBytes),
    File(PathBuf),
}

fn refused(error: ManifestError) -> PyErr {
    match error {
        ManifestError::Io(error) => error.into(),
        other => PyValueError::new_err(chain(&other)),
    }
}

/// Returns whether each node outside of the NPU, by name and op type, is quantisation that belongs there. It does at the
/// graph's own inputs and outputs, and next to another node there. Quantisation that the model does not name belongs there, too.
///
/// Raises `OSError` if the file cannot be read, and `ValueError` if it has no ONNX graph.
#[pyfunction]
pub(crate) fn are_in_place(
    py: Python<'_>,
    model: Model,
    elsewhere: Vec<(String, String)>,
    on_npu: Vec<String>,
    partitions: usize,
) -> PyResult<Vec<bool>> {
    guarded(|| {
        py.detach(|| {
            let read = match &model {
                Model::Content(bytes) => graph_facts_of(Cursor::new(&**bytes), &[]),
                Model::File(path) => graph_facts_of(File::open(path)?, &[]),
            };
            let facts = read.map_err(refused)?;
            let nodes = elsewhere.iter().map(|(name, op)| (&**name, &**op));
            let nodes: Vec<(&str, &str)> = nodes.collect();
            let placed = facts.placed(SidesOfNodes {
                cpu: &nodes,
                npu: Some(&on_npu),
                partitions,
            });
            let in_place = |((_, op), place): (&(&str, &str), Option<Place>)| {
                is_edge_quantization(op) && place.is_none_or(Place::is_benign)
            };
            Ok(nodes.iter().zip(placed.places).map(in_place).collect())
        })
    })
}
