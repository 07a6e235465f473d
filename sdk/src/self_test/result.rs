//! Makes the result of a test from the outputs of both sides.

use epwatch_proto::{SelfTest, SessionUid};

use super::{
    code, compare,
    golden::GoldenInput,
    output::{MAX_OUTPUT_BYTES, Output},
};

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

/// Fills a result. The CPU runs only if the NPU has returned outputs.
///
/// # Errors
/// Returns the error code of the side that failed, or an error code if the outputs cannot be compared.
pub(super) fn fill(
    test: &mut SelfTest,
    on_npu: Result<Vec<Output>, i32>,
    on_cpu: impl FnOnce() -> Result<Vec<Output>, i32>,
) -> Result<(), i32> {
    let on_npu = within_bounds(on_npu?)?;
    test.npu_output_hash = Some(compare::hash(&on_npu));
    let on_cpu = within_bounds(on_cpu()?)?;
    test.cpu_output_hash = Some(compare::hash(&on_cpu));
    let distances = compare::distances(&on_npu, &on_cpu)?;
    test.max_abs = Some(distances.max_abs);
    test.cosine = Some(distances.cosine);
    test.top1_equal = Some(distances.top1_equal);
    test.first_off_output = distances.first_off_output;
    Ok(())
}

fn within_bounds(outputs: Vec<Output>) -> Result<Vec<Output>, i32> {
    let sizes = outputs.iter().map(|output| output.data.len());
    match sizes.fold(0, usize::saturating_add) > MAX_OUTPUT_BYTES {
        true => Err(code::OUTPUT_TOO_LARGE),
        false => Ok(outputs),
    }
}
