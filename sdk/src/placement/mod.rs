//! EPs of a session's nodes: read from ONNX Runtime once, when the session is made, and summarised as an
//! [`epwatch_proto::Placement`].

mod ep_context;
mod failure;
mod from_log;
mod inspect;
pub mod log;
mod log_capture;
mod of_session;
#[expect(
    unsafe_code,
    reason = "ORT's assignment API is C, and `ort` has no safe wrapper for it"
)]
mod ort;
mod summary;

pub use self::inspect::{Inspection, inspect_bytes, inspect_file};
pub use self::ort::{
    AssignedNode, Assignment, HostRuntime, HostSession, PrepareError, Subgraph, ort_version, read,
};
pub use self::summary::{PartitionSize, PlacementInput, summarise};

pub(crate) use self::ep_context::ep_compatibility;
pub(crate) use self::failure::{DEVICE_RESET, scrubbed, start_failure_reason, status_code};
pub(crate) use self::log_capture::capture_log;
pub(crate) use self::of_session::{of_assignment, of_captured};
#[cfg(feature = "qnn")]
pub(crate) use self::ort::has_ep_device;
pub(crate) use self::ort::{FIRST_MINOR, MAX_EP_COMPATIBILITY_BYTES, minor_of, record_assignment};
pub(crate) use self::summary::requested;
