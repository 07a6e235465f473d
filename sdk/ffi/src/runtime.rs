//! The host's ONNX Runtime.

use epwatch_sdk::{HostRuntime, PrepareError};

use crate::{
    status::{EpwStatus, Failure},
    text::Foreign,
};

/// The host's runtime: the given one, or else the loaded one.
///
/// # Safety
/// `base` must be null or an `OrtApiBase`.
pub(crate) unsafe fn runtime_of(base: Foreign) -> Option<HostRuntime> {
    // SAFETY: guaranteed by the caller.
    unsafe { HostRuntime::from_base(base) }.or_else(HostRuntime::loaded)
}

/// Returns what [`runtime_of`] returns, and fails without a runtime, for calls that need one.
///
/// # Safety
/// Same as for [`runtime_of`].
pub(crate) unsafe fn runtime_given(base: Foreign) -> Result<HostRuntime, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { runtime_of(base) }.ok_or_else(|| {
        let text = "no ONNX Runtime is loaded; load it first, or give its OrtApiBase";
        Failure::new(EpwStatus::OrtNotFound, text)
    })
}

pub(crate) fn prepare_failed(error: &PrepareError) -> Failure {
    let status = match error {
        PrepareError::TooOld { .. } => EpwStatus::OrtTooOld,
        _ => EpwStatus::OrtRefused,
    };
    Failure::new(status, error.to_string())
}
