//! Where a session's nodes really run: read from ONNX Runtime once, when the session is made, and
//! summed up as an [`epwatch_proto::Placement`].

#[expect(
    unsafe_code,
    reason = "ORT's assignment API is C, and `ort` has no safe wrapper for it"
)]
mod ort;
mod summary;

pub use self::ort::{AssignedNode, Assignment, Subgraph, ort_version};
pub use self::summary::{SummaryInput, summarise};

pub(crate) use self::ort::read;
