//! What of `ort`'s sessions needs ONNX Runtime's own functions: their placement, the runtime's version, its devices.

use std::{ffi::CStr, ptr, sync::OnceLock};

use epwatch_proto::ReasonCode;
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
    sys,
};

use super::{
    assignment::Assignment,
    host_runtime::{HostRuntime, RECORD_ASSIGNMENT, entries},
};

/// The runtime of `ort`. Its handle of the library is not exposed, so the library is found by a function of it.
fn of_ort() -> Option<HostRuntime> {
    static BASE: OnceLock<Option<HostRuntime>> = OnceLock::new();
    *BASE.get_or_init(|| {
        let api: *const sys::OrtApi = ort::api();
        // SAFETY: `ort` holds a table of functions of a library that it never unloads.
        unsafe { HostRuntime::from_api(api.cast()) }
    })
}

/// Makes ORT keep the EP of each node.
pub(crate) fn record_assignment(builder: SessionBuilder) -> SessionBuilder {
    let key = RECORD_ASSIGNMENT.to_str().unwrap_or_default();
    let recording = builder.with_config_entry(key, "1");
    // An unobserved session is better than none.
    recording.unwrap_or_else(ort::Error::recover)
}

/// Returns the version of the loaded ONNX Runtime, for example `1.31.1`; `None` if it is not known.
///
/// # Panics
/// As [`ort::api`], if no library can be loaded. Call it once a session builder exists.
pub fn ort_version() -> Option<String> {
    Some(of_ort()?.version())
}

/// Whether a registered plugin offers a device of this EP. Call it once a session builder exists.
#[cfg(feature = "qnn")]
pub(crate) fn has_ep_device(ep: &str) -> bool {
    // ORT 1.22 lists devices on Windows only.
    let minor = of_ort().and_then(HostRuntime::minor);
    if minor.is_none_or(|minor| minor < 23) {
        return false;
    }
    let (api, mut environment) = (ort::api(), ptr::null_mut());
    let level = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING;
    // SAFETY: ORT has one environment and counts its users; as one exists, this returns it. The place is ours.
    let made = unsafe { (api.CreateEnv)(level, c"epwatch".as_ptr(), &mut environment) };
    // SAFETY: it is ORT's own status, and ownership passes to `ort`.
    if unsafe { ort::Error::result_from_status(made) }.is_err() {
        return false;
    }
    let (mut array, mut len) = (ptr::null(), 0);
    // SAFETY: the environment is alive until it is released below, and both places are ours.
    let listed = unsafe {
        ort::Error::result_from_status((api.GetEpDevices)(environment, &mut array, &mut len))
    };
    // SAFETY: ORT reported success, so `array` holds `len` devices of the environment, each with a NUL-terminated name.
    let has_one = listed.is_ok()
        && unsafe {
            entries(array.cast(), len).iter().any(|device| {
                CStr::from_ptr((api.EpDevice_EpName)(device.cast())).to_bytes() == ep.as_bytes()
            })
        };
    // SAFETY: it ends the use that began above, once.
    unsafe { (api.ReleaseEnv)(environment) };
    has_one
}

/// Reads the assignment of a session made with `session.record_ep_graph_assignment_info=1`, node by node.
///
/// # Errors
/// [`ReasonCode::AssignmentApiUnavailable`] if ORT is older than 1.24, [`ReasonCode::RuntimeNotKnown`] if it cannot be
/// found in the process,
/// [`ReasonCode::AssignmentNotRecorded`] if the session did not record.
pub fn read(session: &Session) -> Result<Assignment, ReasonCode> {
    let runtime = of_ort().ok_or(ReasonCode::RuntimeNotKnown)?;
    // SAFETY: it is a session of that library, and alive while it is borrowed.
    let session = unsafe { runtime.session(session.ptr().cast()) };
    session.map_or(Err(ReasonCode::Unknown), |session| session.assignment())
}
