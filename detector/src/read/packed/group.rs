//! The placement of a session, by a number in its rows.

use epwatch_model::Installation;

use crate::judge::placement::NodeCounts;
use crate::read::assemble::{CohortPlacement, ModelId, PlacedSession, SessionRow};
use crate::read::census::SessionGroup;
use crate::read::interner::TextId;

use super::rows::RecordedSession;

/// A placement as a session reports it. There are few different ones.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
pub(in crate::read) struct ReportedPlacement {
    pub(in crate::read) ran: CohortPlacement,
    pub(in crate::read) runtime: TextId,
    pub(in crate::read) exact: u64,
    /// Numbers of all nodes, nodes on the NPU, nodes on the CPU, and benign nodes on the CPU.
    pub(in crate::read) nodes: [u32; 4],
    /// Shares of MACs on the NPU, and attributed to nodes, each as the bits of the store's `f32`.
    pub(in crate::read) macs: [Option<u32>; 2],
    pub(in crate::read) reasons: Vec<TextId>,
    pub(in crate::read) requests_npu: bool,
    pub(in crate::read) is_directed: bool,
}

impl ReportedPlacement {
    /// Returns the group of a session that takes part.
    pub(in crate::read) fn of(row: &SessionRow) -> Self {
        let PlacedSession {
            runtime,
            fingerprint_exact,
            counts,
            reasons,
        } = &row.placed;
        Self {
            ran: row.ran,
            runtime: *runtime,
            exact: *fingerprint_exact,
            nodes: [
                counts.n_nodes,
                counts.npu_nodes,
                counts.cpu_nodes,
                counts.cpu_benign_nodes,
            ],
            macs: [counts.npu_macs_share, counts.macs_attributed].map(|s| s.map(f32::to_bits)),
            reasons: reasons.clone(),
            requests_npu: !row.is_directed,
            is_directed: row.is_directed,
        }
    }

    /// Whether the session requested an NPU, or would have without a directive.
    pub(super) fn takes_part(&self) -> bool {
        self.requests_npu || self.is_directed
    }

    pub(super) fn session_row(
        &self,
        installation: Installation,
        created_s: i64,
        seen: &RecordedSession,
    ) -> SessionRow {
        SessionRow {
            installation,
            ran: self.ran,
            placed: PlacedSession {
                runtime: self.runtime,
                fingerprint_exact: self.exact,
                counts: self.counts(),
                reasons: self.reasons.clone(),
            },
            created_s,
            is_late: seen.is_late,
            is_unproven: seen.is_unproven,
            is_directed: self.is_directed,
        }
    }

    /// Returns the census's entry for a session.
    pub(in crate::read) fn in_census(
        &self,
        model: ModelId,
        seen: &RecordedSession,
    ) -> SessionGroup {
        SessionGroup {
            model,
            ran: self.ran,
            runtime: self.runtime,
            fingerprint_exact: self.exact,
            votes: !(seen.is_late || seen.is_unproven) && self.requests_npu && !self.is_directed,
            is_unproven: seen.is_unproven,
            is_own: seen.is_own,
        }
    }

    pub(in crate::read) fn counts(&self) -> NodeCounts {
        let [n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes] = self.nodes;
        let [npu_macs_share, macs_attributed] = self.macs.map(|bits| bits.map(f32::from_bits));
        NodeCounts {
            n_nodes,
            npu_nodes,
            cpu_nodes,
            cpu_benign_nodes,
            npu_macs_share,
            macs_attributed,
        }
    }
}
