//! Reads the EP of each node from ONNX Runtime once, when the session is made. The result is summarised as
//! a [`Placement`].

mod assignment;
mod chosen;
mod compiled_model;
mod devices;
#[cfg(feature = "ort")]
mod ep_context;
mod failure;
mod from_log;
#[expect(unsafe_code, reason = "ORT's assignment API is C")]
mod host_runtime;
#[cfg(feature = "ort")]
mod inspect;
pub mod log;
#[cfg(feature = "ort")]
mod log_capture;
#[cfg(feature = "qnn")]
mod names;
mod of_session;
#[cfg(feature = "ort")]
#[expect(
    unsafe_code,
    reason = "ORT's assignment API is C, and `ort` has no safe wrapper for it"
)]
mod ort;
mod summary;
mod view;

pub use self::assignment::{AssignedDevice, AssignedNode, Assignment, Subgraph};
pub use self::compiled_model::Compatibility;
pub use self::host_runtime::{HostRuntime, HostSession, LoggingFunction, PrepareError};
#[cfg(feature = "ort")]
#[doc(hidden)]
pub use self::inspect::{Inspection, inspect_bytes, inspect_file};
#[cfg(feature = "ort")]
#[doc(hidden)]
pub use self::ort::read;
#[cfg(feature = "ort")]
pub use self::ort::{ort_version, record_assignment, with_built_in_ep};
#[cfg(feature = "ort")]
#[doc(hidden)]
pub use self::summary::PartitionSize;
#[doc(hidden)]
pub use self::summary::{PlacementInput, summarise};
pub use self::view::Placement;

pub(crate) use self::chosen::chosen;
pub(crate) use self::compiled_model::{CompiledModel, Here, MAX_EP_COMPATIBILITY_BYTES};
pub(crate) use self::devices::reported as reported_devices;
pub(crate) use self::failure::{DEVICE_RESET, scrubbed, start_failure_reason};
pub(crate) use self::host_runtime::{FIRST_MINOR, minor_of};
pub(crate) use self::of_session::{of_logged, recorded};
pub(crate) use self::summary::requested;
#[cfg(feature = "ort")]
pub(crate) use self::{
    ep_context::ep_compatibility, failure::status_code, log_capture::capture_log,
    ort::session_devices,
};
#[cfg(feature = "qnn")]
pub(crate) use self::{
    names::RuntimeNames,
    ort::{compatibility, ep_devices},
};
