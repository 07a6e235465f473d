//! Self-tests whose sessions the host runs: they take a golden input, and compare the outputs of NPU and CPU.

use epwatch_sdk::{
    self_test::{GoldenError, GoldenInput, GoldenTensor, Output, StartedSelfTest, code},
    types::SelfTest,
};

use crate::{
    handle::Table,
    session::{EpwSession, SESSIONS},
    status::{EpwStatus, Failure, guarded},
    text::{self, EpwText, ResultPlace, SizedPlace, array},
};

static TESTS: Table<StartedSelfTest> = Table::new(6);

/// Maximum number of tensors of an input or an output.
const MAX_TENSORS: usize = 64;
/// Maximum number of dimensions of a tensor that are read; ONNX Runtime's own tensors have far fewer.
const MAX_RANK: usize = 64;
/// Longest data of a tensor that is read.
const MAX_TENSOR_BYTES: usize = 64 << 20;

/// A tensor of the host: an input, or a copy of an output.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwTensor {
    /// The tensor's name in the model.
    pub name: EpwText,
    /// ONNXTensorElementDataType of ONNX Runtime, for example 1 for float. Elements must be numbers.
    pub element_type: i64,
    /// Dimensions; NULL for a scalar.
    pub dims: *const i64,
    /// Length of dims.
    pub n_dims: usize,
    /// The elements, little-endian.
    pub data: *const u8,
    /// Bytes of data.
    pub n_bytes: usize,
}

/// A golden input: random or public data, never the data of a user.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwGolden {
    /// sizeof(EpwGolden)
    pub size: usize,
    /// The name of this input in reports: 1 to 64 bytes.
    pub id: EpwText,
    /// The model's inputs: at most 64, and 64 MiB together.
    pub inputs: *const EpwTensor,
    /// Length of inputs.
    pub n_inputs: usize,
    /// The greatest absolute difference between two outputs that is accepted; 0 means none is given.
    pub tolerance: f64,
}

/// A self-test that has begun.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwSelfTest {
    /// 0 is none.
    pub id: u64,
}

/// The outputs of both sessions for the golden input, in one order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwOutputs {
    /// sizeof(EpwOutputs)
    pub size: usize,
    /// Outputs of the observed session: at most 64, and 64 MiB together.
    pub npu: *const EpwTensor,
    /// Length of npu.
    pub n_npu: usize,
    /// Outputs of a session of the same model on the CPU.
    pub cpu: *const EpwTensor,
    /// Length of cpu.
    pub n_cpu: usize,
    /// OrtErrorCode if the run failed on the NPU; 0 if not.
    pub npu_error: i32,
    /// OrtErrorCode if the run failed on the CPU, or its session could not be made, or -2 without a code; 0 if not.
    pub cpu_error: i32,
}

/// The result of a self-test.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwTested {
    /// sizeof(EpwTested), as the caller sets it
    pub size: usize,
    /// The greatest absolute difference of two elements; -1 if the outputs were not compared.
    pub max_abs: f64,
    /// The lowest cosine of an output; -2 if the outputs were not compared.
    pub cosine: f64,
    /// Whether the largest element of every output is the same one: 1 yes, 0 no, -1 not compared.
    pub top1_equal: i32,
    /// 0, or OrtErrorCode of a failure. -1 means a bug of epwatch, -2 that the CPU session could not be made, -3 that
    /// names, types or shapes of the outputs differ. -4 means a NaN or an infinity on one side only, -5 an output other than
    /// a tensor of numbers, -6 more than 64 MiB.
    pub error_code: i32,
}

// SAFETY: all fields are numbers, pointers, or texts made of both.
unsafe impl text::Versioned for EpwGolden {
    const NAME: &'static str = "EpwGolden";
}

// SAFETY: all fields are numbers or pointers.
unsafe impl text::Versioned for EpwOutputs {
    const NAME: &'static str = "EpwOutputs";
}

// SAFETY: numbers.
unsafe impl text::Versioned for EpwTested {
    const NAME: &'static str = "EpwTested";
}

/// A tensor as read from the host, within the bounds above.
struct Read<'a> {
    name: &'a str,
    element_type: i32,
    dims: &'a [i64],
    data: &'a [u8],
}

/// # Safety
/// The array, its texts and its data must be valid.
unsafe fn tensors<'a>(data: *const EpwTensor, length: usize) -> Result<Vec<Read<'a>>, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let tensors = array(data, length, MAX_TENSORS)?.iter();
        let read = |tensor: &EpwTensor| {
            Ok(Read {
                name: tensor.name.get()?,
                // A type that does not fit is refused like every unknown type.
                element_type: i32::try_from(tensor.element_type).unwrap_or(0),
                dims: array(tensor.dims, tensor.n_dims, MAX_RANK)?,
                data: array(tensor.data, tensor.n_bytes, MAX_TENSOR_BYTES)?,
            })
        };
        tensors.map(read).collect()
    }
}

/// # Safety
/// Same as for [`tensors`].
unsafe fn outputs(data: *const EpwTensor, length: usize) -> Result<Vec<Output>, Failure> {
    // SAFETY: guaranteed by the caller.
    let read = unsafe { tensors(data, length)? };
    let output = |of: &Read<'_>| Output::new(of.name, of.element_type, of.dims, of.data);
    read.iter()
        .map(|of| output(of).map_err(|error| refused(&error)))
        .collect()
}

pub(crate) fn refused(error: &GoldenError) -> Failure {
    Failure::invalid(error.to_string())
}

/// # Safety
/// The array, its texts and its data must be valid.
unsafe fn golden_input(given: &EpwGolden) -> Result<GoldenInput, Failure> {
    // SAFETY: guaranteed by the caller.
    let (id, inputs) = unsafe { (given.id.get()?, tensors(given.inputs, given.n_inputs)?) };
    let made = || -> Result<GoldenInput, GoldenError> {
        let mut golden = GoldenInput::new(id)?;
        if given.tolerance != 0.0 {
            golden = golden.with_tolerance(given.tolerance)?;
        }
        for input in &inputs {
            let tensor = GoldenTensor::of_bytes(input.element_type, input.dims, input.data)?;
            golden = golden.with_input(input.name, tensor)?;
        }
        Ok(golden)
    };
    made().map_err(|error| refused(&error))
}

fn tested(test: &SelfTest) -> EpwTested {
    EpwTested {
        size: size_of::<EpwTested>(),
        max_abs: test.max_abs.unwrap_or(-1.0),
        cosine: test.cosine.unwrap_or(-2.0),
        top1_equal: test.top1_equal.map_or(-1, i32::from),
        error_code: test.error_code,
    }
}

/// Begins a self-test: does the NPU compute what the CPU computes? Returns EPW_STATUS_NONE if there is nothing to do.
/// That is: the test ran before with this model, firmware and runtime, or another thread runs it. Or no node is on
/// the NPU, or the folder is not open. Otherwise run the golden input on this session and on a session for the CPU,
/// without recording, and call epw_self_test_end. A test that never ends, because the NPU takes the process down, is
/// tried in three processes at most. Touches the disk: call it from a background thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_self_test_begin(
    session: EpwSession,
    golden: *const EpwGolden,
    test: *mut EpwSelfTest,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let test = ResultPlace::of(test)?;
        let golden = golden_input(&text::read(golden)?)?;
        let begun = begin(session.id, &golden)?;
        Ok(begun.map_or(EpwStatus::None, |id| test.write(EpwSelfTest { id })))
    })
}

/// Begins a test; `None` if there is nothing to do.
pub(crate) fn begin(session: u64, golden: &GoldenInput) -> Result<Option<u64>, Failure> {
    let begun = SESSIONS.with(session, |observed| {
        observed.watch.begin_self_test(&observed.session, golden)
    })?;
    begun.ok().map(|started| TESTS.insert(started)).transpose()
}

/// The outputs of a side, or the code of its failure.
pub(crate) type Side = Result<Vec<Output>, i32>;

pub(crate) fn end(test: u64, on_npu: Side, on_cpu: Side) -> Result<EpwTested, Failure> {
    TESTS.close(test, |started| tested(&started.end(on_npu, on_cpu)))
}

/// # Safety
/// Same as for [`tensors`].
unsafe fn side(error: i32, data: *const EpwTensor, length: usize) -> Result<Side, Failure> {
    if error != 0 {
        return Ok(Err(error));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let sizes = array(data, length, MAX_TENSORS)?
            .iter()
            .map(|of| of.n_bytes);
        match sizes.fold(0, usize::saturating_add) > MAX_TENSOR_BYTES {
            // A result of the test, so that it ends.
            true => Ok(Err(code::OUTPUT_TOO_LARGE)),
            false => outputs(data, length).map(Ok),
        }
    }
}

/// Closes a test without a result. It counts as an attempt that took the process down: three processes try at most.
#[unsafe(no_mangle)]
pub extern "C" fn epw_self_test_close(test: EpwSelfTest) -> EpwStatus {
    guarded(|| TESTS.close(test.id, |_| EpwStatus::Ok))
}

/// Compares the outputs, keeps the result for the next report, and closes the test. Reports have hashes and distances,
/// no outputs. `tested` may be NULL; otherwise its size must be set. If an argument cannot be read, the test stays open:
/// call this again, or epw_self_test_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_self_test_end(
    test: EpwSelfTest,
    outputs: *const EpwOutputs,
    tested: *mut EpwTested,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties.
    guarded(|| unsafe {
        let given = text::read(outputs)?;
        let npu = side(given.npu_error, given.npu, given.n_npu)?;
        let cpu = side(given.cpu_error, given.cpu, given.n_cpu)?;
        let tested = SizedPlace::of(tested)?;
        let found = end(test.id, npu, cpu)?;
        Ok(tested.map_or(EpwStatus::Ok, |tested| tested.write(&found)))
    })
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Regression test: one output beyond the bound was refused, and the test stayed open.
    #[test]
    fn outputs_that_are_too_large_are_a_result() {
        let elements = [0_u8; 4];
        let output = |n_bytes| EpwTensor {
            name: EpwText::of(b"y"),
            element_type: 1,
            dims: ptr::null(),
            n_dims: 0,
            data: elements.as_ptr(),
            n_bytes,
        };
        // SAFETY: more than four bytes are never read.
        let side = |error, of: &[EpwTensor]| unsafe { side(error, of.as_ptr(), of.len()) };
        assert_eq!(side(0, &[output(4)]).unwrap().unwrap().len(), 1);
        let too_large = MAX_TENSOR_BYTES + 1;
        for outputs in [
            &[output(too_large)][..],
            &[output(usize::MAX), output(usize::MAX)],
            &[output(4), output(MAX_TENSOR_BYTES)],
        ] {
            assert_eq!(
                side(0, outputs).unwrap().unwrap_err(),
                code::OUTPUT_TOO_LARGE
            );
        }
        assert_eq!(side(15, &[output(too_large)]).unwrap().unwrap_err(), 15);
        assert!(side(0, &[output(3)]).is_err());
    }
}
