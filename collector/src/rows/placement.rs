//! The nodes behind a fingerprint, written once for each placement that this process sees.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use epwatch_proto::Session;

use super::table::PlacementRow;
use super::{Stored, share};

/// A fleet has hundreds. Beyond this the memory begins anew: a row more, which the table merges.
const MAX_KNOWN: usize = 100_000;

/// Placements that were written, by hash.
#[derive(Debug, Default)]
pub(crate) struct KnownPlacements {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl KnownPlacements {
    /// Returns whether it is new, and remembers it.
    fn insert(&mut self, stored: &Stored, session: &Session) -> bool {
        if self.hashes.len() >= MAX_KNOWN {
            self.hashes.clear();
        }
        let placement = &session.placement;
        let fingerprint = placement.exact.map(|exact| (exact.algorithm, exact.value));
        let model = (&session.model.id, &session.model.version);
        let hash = self
            .hasher
            .hash_one((&stored.app_id, &stored.environment, model, fingerprint));
        self.hashes.insert(hash)
    }
}

pub(super) fn new_rows<'a>(
    stored: &'a Stored,
    known: &mut KnownPlacements,
) -> Vec<PlacementRow<'a>> {
    let sessions = stored.report.sessions.iter();
    sessions
        .filter(|session| session.placement.exact.is_some())
        .filter(|session| known.insert(stored, session))
        .map(|session| row(stored, session))
        .collect()
}

fn row<'a>(stored: &'a Stored, session: &'a Session) -> PlacementRow<'a> {
    let placement = &session.placement;
    let (eps, nodes) = (placement.eps.iter(), placement.cpu_nodes.iter());
    PlacementRow {
        app_id: &stored.app_id,
        environment: &stored.environment,
        model_id: &session.model.id,
        model_version: &session.model.version,
        fingerprint_algorithm: placement.exact.map_or(0, |exact| exact.algorithm),
        fingerprint_exact: placement.exact.map_or(0, |exact| exact.value),
        fingerprint_normalised: placement
            .normalised
            .map_or(0, |normalised| normalised.value),
        first_seen: stored.received_ms,
        ep: eps.clone().map(|ep| ep.ep.as_str()).collect(),
        ep_nodes: eps.clone().map(|ep| ep.n_nodes).collect(),
        ep_partitions: eps.clone().map(|ep| ep.n_partitions.unwrap_or(0)).collect(),
        ep_macs_share: eps.map(|ep| share(ep.macs_share)).collect(),
        cpu_node_name: nodes.clone().map(|node| node.name.as_str()).collect(),
        cpu_node_op_type: nodes.clone().map(|node| node.op_type.as_str()).collect(),
        cpu_node_benign: nodes.clone().map(|node| node.benign).collect(),
        cpu_node_reason: nodes.clone().map(|node| node.reason.as_str()).collect(),
        cpu_node_macs_share: nodes.map(|node| share(node.macs_share)).collect(),
        cpu_nodes_truncated: placement.cpu_nodes_truncated,
    }
}
