//! Runs a golden input on two sessions.

use std::error::Error;

use epwatch_proto::{SelfTest, SessionUid};
use ort::{
    session::{Session, SessionInputValue, SessionOutputs},
    value::ValueType,
};

use super::{
    code,
    compare::{self, Output},
    element::ElementType,
    golden::GoldenInput,
};
use crate::placement::status_code;

/// Two copies of a model's outputs are held at once. A phone has no memory for larger ones.
const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// The result of a test that failed.
pub(super) fn failed(session_uid: SessionUid, golden: &GoldenInput, error_code: i32) -> SelfTest {
    SelfTest {
        session_uid,
        input_id: golden.id().to_owned(),
        tolerance: golden.tolerance(),
        npu_output_hash: None,
        cpu_output_hash: None,
        max_abs: None,
        cosine: None,
        top1_equal: None,
        error_code,
        first_off_output: String::new(),
    }
}

/// Runs the NPU first: if it fails, the CPU session need not be made.
pub(super) fn compared<E: Into<Box<dyn Error + Send + Sync>>>(
    session_uid: SessionUid,
    npu: &mut Session,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> Result<Session, E>,
) -> SelfTest {
    let mut test = failed(session_uid, golden, 0);
    if let Err(error_code) = fill(&mut test, npu, golden, cpu_session) {
        test.error_code = error_code;
    }
    test
}

fn fill<E: Into<Box<dyn Error + Send + Sync>>>(
    test: &mut SelfTest,
    npu: &mut Session,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> Result<Session, E>,
) -> Result<(), i32> {
    let on_npu = outputs(npu, golden)?;
    test.npu_output_hash = Some(compare::hash(&on_npu));
    let mut cpu = cpu_session().map_err(|error| code_of(&*error.into()))?;
    let on_cpu = outputs(&mut cpu, golden)?;
    test.cpu_output_hash = Some(compare::hash(&on_cpu));
    let distances = compare::distances(&on_npu, &on_cpu)?;
    test.max_abs = Some(distances.max_abs);
    test.cosine = Some(distances.cosine);
    test.top1_equal = Some(distances.top1_equal);
    test.first_off_output = distances.first_off_output;
    Ok(())
}

/// ORT's status code, if ORT's error is among the causes.
fn code_of(error: &(dyn Error + 'static)) -> i32 {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<ort::Error>() {
            return ort_code(error);
        }
        cause = error.source();
    }
    code::CPU_SESSION
}

/// Never 0, which would mean success.
fn ort_code(error: &ort::Error) -> i32 {
    match status_code(error.code()) {
        0 => code::INTERNAL,
        code => code,
    }
}

fn outputs(session: &mut Session, golden: &GoldenInput) -> Result<Vec<Output>, i32> {
    let mut inputs = Vec::new();
    for (name, tensor) in golden.inputs() {
        let value = tensor.to_value().map_err(|error| ort_code(&error))?;
        inputs.push((name, SessionInputValue::from(value)));
    }
    let outputs = session.run(inputs).map_err(|error| ort_code(&error))?;
    copied(&outputs)
}

fn copied(outputs: &SessionOutputs<'_>) -> Result<Vec<Output>, i32> {
    let mut copies = Vec::new();
    let mut bytes = 0_usize;
    for (name, value) in outputs.iter() {
        let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
            return Err(code::UNSUPPORTED_OUTPUT);
        };
        let element_type = ElementType::from_ort(*ty).ok_or(code::UNSUPPORTED_OUTPUT)?;
        bytes = bytes.saturating_add(shape.num_elements().saturating_mul(element_type.size()));
        if bytes > MAX_OUTPUT_BYTES {
            return Err(code::OUTPUT_TOO_LARGE);
        }
        let data = element_type
            .bytes_of(&value)
            .map_err(|error| ort_code(&error))?;
        copies.push(Output {
            name: name.to_owned(),
            element_type,
            dims: shape.to_vec(),
            data,
        });
    }
    Ok(copies)
}
