//! Self-tests: the package runs a golden input on both sessions, and the SDK compares the outputs.

use epwatch_sdk::{
    AttachedSession, Watch,
    self_test::{
        GoldenError, GoldenInput, GoldenTensor, Output, SelfTestSkip, StartedSelfTest, code,
    },
};
use pyo3::{
    FromPyObject, IntoPyObject, PyErr, PyResult, Python, exceptions::PyValueError,
    pybacked::PyBackedBytes, pyclass, pymethods,
};

use crate::failure::{chain, guarded};

/// A tensor: its name, its element type's number in ONNX, its dimensions, its elements in little-endian order.
pub(crate) type Tensor = (String, i32, Vec<i64>, PyBackedBytes);

/// The outputs of one session, or the error code that it has instead.
#[derive(FromPyObject)]
pub(crate) enum Side {
    Failed(i32),
    Ran(Vec<Tensor>),
}

/// A self-test that has begun, or the reason why it does not run.
#[derive(IntoPyObject)]
pub(crate) enum Begun {
    Started(SelfTest),
    Skipped(&'static str),
}

/// Largest difference, lowest cosine, whether the largest elements are the same ones, and the error code.
type Tested = (Option<f64>, Option<f64>, Option<bool>, i32);

/// A self-test between the begin and the end. If it is dropped before the end, it counts as one that killed the process.
#[pyclass(frozen, module = "epwatch._native")]
#[derive(Debug)]
pub(crate) struct SelfTest(StartedSelfTest);

fn refused(error: &GoldenError) -> PyErr {
    PyValueError::new_err(chain(error))
}

fn golden_input(
    id: &str,
    tolerance: Option<f64>,
    inputs: &[Tensor],
) -> Result<GoldenInput, GoldenError> {
    let mut golden = GoldenInput::new(id)?;
    if let Some(tolerance) = tolerance {
        golden = golden.with_tolerance(tolerance)?;
    }
    for (name, element_type, dims, elements) in inputs {
        let tensor = GoldenTensor::of_bytes(*element_type, dims, elements)?;
        golden = golden.with_input(name, tensor)?;
    }
    Ok(golden)
}

/// Begins a test. Touches the disk.
pub(crate) fn begin(
    py: Python<'_>,
    watch: &Watch,
    session: &AttachedSession,
    id: &str,
    tolerance: Option<f64>,
    inputs: &[Tensor],
) -> PyResult<Begun> {
    let golden = golden_input(id, tolerance, inputs).map_err(|error| refused(&error))?;
    Ok(
        match py.detach(|| watch.begin_self_test(session, &golden)) {
            Ok(started) => Begun::Started(SelfTest(started)),
            Err(skip) => Begun::Skipped(reason(&skip)),
        },
    )
}

fn reason(skip: &SelfTestSkip) -> &'static str {
    match skip {
        SelfTestSkip::Done => "it ran before with this model, firmware and runtime",
        SelfTestSkip::Running => "another thread runs it",
        SelfTestSkip::GivenUp => "it began three times without an end",
        SelfTestSkip::NotOnNpu => "the session has no node on the NPU",
        SelfTestSkip::EnoughRepeats => "this process has repeated enough tests after failed runs",
        SelfTestSkip::NotReady => "consent is missing, or the folder is not open yet",
        _ => "the SDK refuses it",
    }
}

/// Reads a side's outputs. An output other than a tensor of numbers is a result of the test, and not an error.
fn outputs(side: Side) -> Result<Vec<Output>, i32> {
    let tensors = match side {
        Side::Failed(code) => return Err(code),
        Side::Ran(tensors) => tensors,
    };
    let output = |(name, element_type, dims, elements): &Tensor| {
        Output::new(name, *element_type, dims, elements).map_err(|_| code::UNSUPPORTED_OUTPUT)
    };
    tensors.iter().map(output).collect()
}

#[pymethods]
impl SelfTest {
    /// Compares the outputs, and keeps the result for the next report.
    fn end(&self, py: Python<'_>, npu: Side, cpu: Side) -> PyResult<Tested> {
        guarded(|| {
            let tested = py.detach(|| self.0.end(outputs(npu), outputs(cpu)));
            Ok((
                tested.max_abs,
                tested.cosine,
                tested.top1_equal,
                tested.error_code,
            ))
        })
    }
}
