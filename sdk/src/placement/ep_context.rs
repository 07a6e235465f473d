//! Compatibility information of a precompiled model.

use epwatch_proto::{clipped, placement::QNN_EP};
use ort::session::Session;

use super::compiled_model::{EP_COMPATIBILITY, MAX_EP_COMPATIBILITY_BYTES};

/// The runtime and chipset for which the QNN EP compiled the model, in its own words. Empty if the model has none.
pub(crate) fn ep_compatibility(session: &Session) -> String {
    let metadata = session.metadata().ok();
    let text = metadata.and_then(|m| m.custom(&format!("{EP_COMPATIBILITY}{QNN_EP}")));
    clipped(&text.unwrap_or_default(), MAX_EP_COMPATIBILITY_BYTES)
}
