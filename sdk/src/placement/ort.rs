//! Calls ONNX Runtime's own functions for sessions of `ort`: for their placement, the runtime's version and its
//! devices.

use std::{
    ffi::{CString, NulError},
    sync::OnceLock,
};

use epwatch_proto::{EpDevice, ReasonCode};
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
    sys,
};
#[cfg(feature = "qnn")]
use {
    super::compiled_model::Compatibility,
    epwatch_proto::DeviceType,
    std::{ffi::c_void, ptr},
};

#[cfg(feature = "qnn")]
use super::host_runtime::{copied, entries};
use super::{
    assignment::Assignment,
    host_runtime::{HostRuntime, RECORD_ASSIGNMENT},
};

/// The runtime of `ort`. `ort` does not expose its handle of the library, so the library is found by one of its
/// functions.
fn of_ort() -> Option<HostRuntime> {
    static BASE: OnceLock<Option<HostRuntime>> = OnceLock::new();
    *BASE.get_or_init(|| {
        let api: *const sys::OrtApi = ort::api();
        // SAFETY: `ort` holds a table of functions of a library that it never unloads.
        unsafe { HostRuntime::from_api(api.cast()) }
    })
}

/// Makes ORT keep the EP of each node, which [`read`] returns.
pub fn record_assignment(builder: SessionBuilder) -> SessionBuilder {
    let key = RECORD_ASSIGNMENT.to_str().unwrap_or_default();
    let recording = builder.with_config_entry(key, "1");
    // An unobserved session is better than none.
    recording.unwrap_or_else(ort::Error::recover)
}

/// Returns the version of the loaded ONNX Runtime, for example `1.31.1`; `None` if it is not known.
///
/// # Panics
/// Panics as [`ort::api`] does, if no library can be loaded. Call it once a session builder exists.
pub fn ort_version() -> Option<String> {
    Some(of_ort()?.version())
}

/// Adds an EP that is built into the loaded library to the options of a session. `name` is the name in ONNX Runtime's
/// call, for example `OpenVINO` or `XNNPACK`. The EP works without the feature that `ort` may have for it.
///
/// # Errors
/// Returns ORT's error if the library lacks the EP or refuses an option. Fails if a text contains a NUL.
pub fn with_built_in_ep(
    mut builder: SessionBuilder,
    name: &str,
    options: &[(String, String)],
) -> ort::Result<SessionBuilder> {
    let text = |text: &str| {
        CString::new(text).map_err(|error: NulError| ort::Error::new(error.to_string()))
    };
    let name = text(name)?;
    let keys: Vec<CString> = options
        .iter()
        .map(|(key, _)| text(key))
        .collect::<ort::Result<_>>()?;
    let values: Vec<CString> = options
        .iter()
        .map(|(_, value)| text(value))
        .collect::<ort::Result<_>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let (key_pointers, value_pointers) = (pointers(&keys), pointers(&values));
    // SAFETY: the builder's options are alive, both arrays have `options.len()` texts that end in NUL and outlive the
    // call, which copies them. The status is ORT's own, and ownership passes to `ort`.
    unsafe {
        ort::Error::result_from_status((ort::api().SessionOptionsAppendExecutionProvider)(
            builder.ptr_mut(),
            name.as_ptr(),
            key_pointers.as_ptr(),
            value_pointers.as_ptr(),
            options.len(),
        ))?;
    }
    Ok(builder)
}

/// A device of an EP that this process can use, as the runtime describes it.
#[cfg(feature = "qnn")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedDevice {
    /// The EP's name. A plugin may take the name that the app registered it under.
    pub(crate) ep: String,
    /// Vendor of the EP.
    pub(crate) vendor: String,
    /// Type of the device.
    pub(crate) device: DeviceType,
}

/// Calls a function with the runtime's devices of EPs, if ORT is new enough and lists them. Call it once a session builder
/// exists.
#[cfg(feature = "qnn")]
fn with_ep_devices<T>(read: impl FnOnce(&sys::OrtApi, &[*const c_void]) -> T) -> Option<T> {
    // ORT 1.22 lists devices on Windows only.
    let minor = of_ort().and_then(HostRuntime::minor);
    if minor.is_none_or(|minor| minor < 23) {
        return None;
    }
    let (api, mut environment) = (ort::api(), ptr::null_mut());
    let level = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING;
    // SAFETY: ORT has one environment and counts its users; as one exists, this returns it. `environment` is ours.
    let made = unsafe { (api.CreateEnv)(level, c"epwatch".as_ptr(), &mut environment) };
    // SAFETY: this is ORT's own status, and ownership passes to `ort`.
    unsafe { ort::Error::result_from_status(made) }.ok()?;
    let (mut array, mut len) = (ptr::null(), 0);
    // SAFETY: the environment is alive until it is released below, and both destinations are ours.
    let listed = unsafe {
        ort::Error::result_from_status((api.GetEpDevices)(environment, &mut array, &mut len))
    };
    // SAFETY: ORT reported success, so `array` holds `len` devices of the environment.
    let read = listed.map(|()| read(api, unsafe { entries(array.cast(), len) }));
    // SAFETY: this call ends, once, the use that began above.
    unsafe { (api.ReleaseEnv)(environment) };
    read.ok()
}

/// Lists the devices of EPs; none if ORT is too old. Call it once a session builder exists.
#[cfg(feature = "qnn")]
pub(crate) fn ep_devices() -> Vec<ListedDevice> {
    let listed = with_ep_devices(|api, devices| {
        let each = devices.iter().map(|&device| {
            let device = device.cast();
            // SAFETY: each device has two NUL-terminated texts, which are copied, and a hardware device.
            unsafe {
                let hardware = (api.EpDevice_Device)(device);
                ListedDevice {
                    ep: copied((api.EpDevice_EpName)(device)),
                    vendor: copied((api.EpDevice_EpVendor)(device)),
                    device: match (api.HardwareDevice_Type)(hardware) {
                        sys::OrtHardwareDeviceType::OrtHardwareDeviceType_CPU => DeviceType::Cpu,
                        sys::OrtHardwareDeviceType::OrtHardwareDeviceType_GPU => DeviceType::Gpu,
                        sys::OrtHardwareDeviceType::OrtHardwareDeviceType_NPU => DeviceType::Npu,
                    },
                }
            }
        });
        each.collect()
    });
    listed.unwrap_or_default()
}

/// Passes the text of a compiled model to an EP, which the app's own name identifies. `None` if the EP has no device or
/// does not answer. Call it once a session builder exists.
#[cfg(feature = "qnn")]
pub(crate) fn compatibility(ep: &str, text: &str) -> Option<Compatibility> {
    let text = CString::new(text).ok()?;
    let answer = with_ep_devices(|api, devices| {
        // SAFETY: as in `ep_devices`.
        let name = |device: *const c_void| unsafe { copied((api.EpDevice_EpName)(device.cast())) };
        let its = devices.iter().copied().filter(|&device| name(device) == ep);
        let its: Vec<*const c_void> = its.collect();
        // SAFETY: the devices belong to a living environment of that runtime.
        unsafe { of_ort()?.compatibility(&its, &text) }
    });
    answer.flatten()
}

/// Reads the devices of a session's inputs and outputs, without the CPU EP's.
pub(crate) fn session_devices(session: &Session) -> Vec<EpDevice> {
    let devices = of_ort().and_then(|runtime| {
        // SAFETY: it is a session of that library, and alive while it is borrowed.
        unsafe { runtime.session(session.ptr().cast()) }.map(|session| session.devices())
    });
    devices.unwrap_or_default()
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
