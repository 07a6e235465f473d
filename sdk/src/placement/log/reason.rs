//! Reason codes by the words of the validator and of the back end, from `epwatch_proto`'s table.
//!
//! A sentence without an entry in the table keeps its words and gets no code.

use epwatch_proto::{ReasonCode, node_sign, whole_sign};

/// Finds the reason by the validator's words; `Unknown` without a match.
pub(super) fn refusal_reason(words: &str) -> ReasonCode {
    node_sign(words).map_or(ReasonCode::Unknown, |sign| sign.reason)
}

/// The failure of the back end, of the whole graph or of a run that a message reports, if any.
pub(crate) fn setup_reason(message: &str) -> Option<ReasonCode> {
    whole_sign(message).map(|sign| sign.reason)
}
