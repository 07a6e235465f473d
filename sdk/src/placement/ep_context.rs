//! Compatibility information of a precompiled model.

use epwatch_proto::{clipped, placement::QNN_EP};
use ort::session::Session;

/// Longest text that a report holds, in bytes.
const MAX_BYTES: usize = 512;

/// The runtime and chipset for which the QNN EP compiled the model, in its own words. Empty if the model has none.
pub(crate) fn ep_compatibility(session: &Session) -> String {
    let metadata = session.metadata().ok();
    let text = metadata.and_then(|m| m.custom(&format!("ep_compatibility_info.{QNN_EP}")));
    clipped(&text.unwrap_or_default(), MAX_BYTES)
}
