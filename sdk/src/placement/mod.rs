//! Where a session's nodes really run: read from ONNX Runtime once, when the session is made, and
//! summed up as an [`epwatch_proto::Placement`].

mod by_log;
mod compiled;
mod failure;
mod inspect;
mod listen;
pub mod log;
#[expect(
    unsafe_code,
    reason = "ORT's assignment API is C, and `ort` has no safe wrapper for it"
)]
mod ort;
mod summary;

pub use self::inspect::{InspectInput, Inspection, inspect_file};
pub use self::ort::{AssignedNode, Assignment, Subgraph, ort_version, read};
pub use self::summary::{SummaryInput, summarise};

pub(crate) use self::compiled::ep_compatibility;
pub(crate) use self::failure::{scrubbed, start_failure_reason, status_code};
pub(crate) use self::listen::listen;
pub(crate) use self::ort::record_assignment;
pub(crate) use self::summary::requested;
