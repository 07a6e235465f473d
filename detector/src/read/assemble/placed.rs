//! Where a device ran, as its sessions tell it.

use std::sync::Arc;

use crate::placement::{Placement, PlacementMethod};
use crate::read::rows::PlacementRow;

/// Where a device ran.
pub(super) struct Placed {
    pub(super) placement: Arc<Placement>,
    /// Of sessions that differ in what the normalised fingerprint leaves out, the first by runtime
    /// and exact fingerprint speaks.
    pub(super) fingerprint_exact: u64,
    /// Whether a vote with latency has it too.
    pub(super) has_latency: bool,
}

impl Placed {
    /// Whether a session tells nothing new: most only repeat what their device told before.
    pub(super) fn says(&self, row: &PlacementRow<'_>) -> bool {
        let known = &self.placement;
        let is_known = |reason: &&str| known.reasons.iter().any(|known| known == reason);
        self.fingerprint_exact == row.fingerprint_exact
            && known.runtime == row.runtime
            && row.reasons.iter().all(is_known)
    }

    /// Makes `placement`, told by another session of the same device, what both say; returns the
    /// exact fingerprint that spoke.
    pub(super) fn joined(&self, placement: &mut Placement, fingerprint_exact: u64) -> u64 {
        let mut reasons = std::mem::take(&mut placement.reasons);
        reasons.extend(self.placement.reasons.iter().cloned());
        reasons.sort_unstable();
        reasons.dedup();
        let known = (&self.placement.runtime, self.fingerprint_exact);
        let is_first = (&placement.runtime, fingerprint_exact) < known;
        let speaks = if is_first {
            fingerprint_exact
        } else {
            *placement = Placement::clone(&self.placement);
            self.fingerprint_exact
        };
        placement.reasons = reasons;
        speaks
    }
}

/// The placement of a vote whose session nobody told of.
pub(super) fn unknown_placement(method: PlacementMethod, fingerprint: u64) -> Placement {
    Placement {
        method,
        fingerprint,
        runtime: String::new(),
        n_nodes: 0,
        npu_nodes: 0,
        cpu_nodes: 0,
        npu_macs_share: None,
        reasons: Vec::new(),
    }
}
