//! Runs a golden input on two sessions.

use std::error::Error;

use epwatch_proto::{SelfTest, SessionUid};
use ort::{
    session::{Session, SessionInputValue, SessionOutputs},
    value::ValueType,
};

use super::{
    code,
    element::ElementType,
    golden::GoldenInput,
    output::{MAX_OUTPUT_BYTES, Output},
    result::{failed, fill},
};
use crate::placement::status_code;

/// Runs the NPU first: if it fails, the CPU session need not be made.
pub(super) fn compared<E: Into<Box<dyn Error + Send + Sync>>>(
    session_uid: SessionUid,
    npu: &mut Session,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> Result<Session, E>,
) -> SelfTest {
    let mut test = failed(session_uid, golden, 0);
    let on_cpu = || {
        let mut cpu = cpu_session().map_err(|error| code_of(&*error.into()))?;
        outputs(&mut cpu, golden)
    };
    if let Err(error_code) = fill(&mut test, outputs(npu, golden), on_cpu) {
        test.error_code = error_code;
    }
    test
}

/// Returns ORT's status code, if an error of ORT is among the causes.
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

/// The code is never 0, which would mean success.
fn ort_code(error: &ort::Error) -> i32 {
    match status_code(error.code()) {
        0 => code::INTERNAL,
        code => code,
    }
}

pub(super) fn outputs(session: &mut Session, golden: &GoldenInput) -> Result<Vec<Output>, i32> {
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
