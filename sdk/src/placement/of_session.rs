//! Placement of a session that exists.

use epwatch_proto::{Placement, chipset::soc_by_soc_model, placement::MAX_REASONS};
use ort::session::Session;

use super::{PlacementInput, log::SessionLog, read, summarise};

/// Reads a placement from ORT's assignment API, or else from a captured log. Never guesses.
pub(crate) fn of_session(
    session: &Session,
    captured: Option<&SessionLog>,
    input: PlacementInput<'_>,
) -> Placement {
    match (read(session), captured) {
        (Ok(assignment), captured) => {
            let mut placement = summarise(&assignment, input);
            if let Some(captured) = captured {
                let soc = soc_by_soc_model(input.soc_model).or_else(|| captured.soc());
                captured.explain(&mut placement, soc);
            }
            placement
        }
        (Err(_), Some(captured)) => captured.placement(input),
        (Err(reason), None) => {
            let mut placement = Placement::unavailable(input.requested_eps.to_vec(), reason);
            placement.reasons.extend(input.known_reasons);
            placement.reasons.truncate(MAX_REASONS);
            placement
        }
    }
}
