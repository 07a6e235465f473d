//! What a precompiled model says of itself.

use epwatch_proto::{clipped, placement::QNN_EP};
use ort::session::Session;

/// Longest text that a report carries, in bytes.
const MAX_BYTES: usize = 512;

/// For which runtime and chipset the QNN EP compiled it, in its own words; empty if it does not say.
pub(crate) fn ep_compatibility(session: &Session) -> String {
    let metadata = session.metadata().ok();
    let text = metadata.and_then(|m| m.custom(&format!("ep_compatibility_info.{QNN_EP}")));
    clipped(&text.unwrap_or_default(), MAX_BYTES)
}
