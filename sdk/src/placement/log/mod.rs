//! What ONNX Runtime's and the QNN EP's log says of placement: pure text in, facts out.
//!
//! Two tellers: ORT's list at VERBOSE of which EP has which node (`Node placements`), in which a
//! QNN partition is one fused node and CPU nodes have been fused further; and QNN's validator, node
//! by node, with its reason for each refusal, in the plugin's form and in the two forms of the EP
//! that was built into older ORT. Together they give what the assignment API gives: see
//! [`SessionLog::assignment`]. Lines come bare, with ORT's own header, with colours, or out of
//! logcat. Other text is passed over; nothing here panics, and memory is bounded.

mod line;
mod reader;
mod reason;
mod session;

pub use self::reader::{LogReader, read_log};
pub use self::session::{Capability, PlacedEp, PlacedNode, Refusal, SessionLog, ValidatedNode};

pub(crate) use self::{
    reason::setup_reason,
    session::{Refusals, soc_of},
};

/// Most nodes kept of one session; with more, there is no placement to be had from its log.
pub const MAX_LOG_NODES: usize = 100_000;
/// Most sessions kept of one log.
pub const MAX_LOG_SESSIONS: usize = 256;

#[cfg(test)]
mod tests;
