//! Placement from a session's log, alone or in addition to the assignment API.

use std::collections::BTreeMap;

use epwatch_proto::{
    Asked, EpShare, GraphKind, ModelManifest, Placement, PlacementSource, ReasonCode,
    chipset::Soc,
    placement::{CPU_EP, MAX_REASONS},
};

use super::{PlacementInput, chosen::chosen, log::SessionLog, requested, summarise};

impl SessionLog {
    /// Returns the placement from the log alone. If the log is incomplete, the placement is `unavailable`, with the
    /// log's reasons.
    #[doc(hidden)]
    pub fn placement(&self, input: PlacementInput<'_>) -> Placement {
        let (requested_eps, known_reasons) = (input.requested_eps, input.known_reasons);
        let mut placement = if let Some(assignment) = self.assignment() {
            Placement {
                source: PlacementSource::Log,
                ..summarise(&assignment, input)
            }
        } else if let Some((ep, n_nodes)) = self.only_count() {
            counted(ep, n_nodes, input)
        } else {
            let reason = ReasonCode::AssignmentApiUnavailable;
            let mut placement = Placement::unavailable(requested(requested_eps), reason);
            placement.reasons.extend(known_reasons);
            placement
        };
        self.explain(&mut placement, self.soc());
        placement
    }

    /// Adds the log's reasons: the validator's sentence and code to each CPU node, and failures of the whole graph or
    /// back end to the placement. `soc` is the chipset if it is known. Only then is missing FP16 a reason.
    #[doc(hidden)]
    pub fn explain(&self, placement: &mut Placement, soc: Option<&Soc>) {
        let mut refusals = self.refusals();
        for node in &mut placement.cpu_nodes {
            if let Some(refusal) = refusals.next(&node.name, &node.op_type) {
                node.reason = refusal.reason(soc);
                node.reason_text.clone_from(&refusal.text);
            }
        }
        let mut reasons: Vec<ReasonCode> = Vec::new();
        let mut add = |reason: ReasonCode| {
            if reason != ReasonCode::Unknown && !reasons.contains(&reason) {
                reasons.push(reason);
            }
        };
        self.reasons.iter().copied().for_each(&mut add);
        placement.reasons.iter().copied().for_each(&mut add);
        for node in &placement.cpu_nodes {
            // If no node is on the NPU, a node at the graph's edge has the same reasons as the other nodes.
            if node.benign || node.reason != ReasonCode::EdgeQuantization {
                add(node.reason);
            }
        }
        let is_unexplained = placement.requests_npu()
            && placement
                .cpu_nodes
                .iter()
                .any(|n| n.reason == ReasonCode::Unknown);
        // A failure of the whole graph or back end explains every node.
        let is_whole = !self.reasons.is_empty() || reasons.iter().any(|r| r.is_setup_failure());
        let was_unknown = placement.reasons.contains(&ReasonCode::Unknown);
        if (reasons.is_empty() && was_unknown) || (is_unexplained && !is_whole) {
            reasons.push(ReasonCode::Unknown);
        }
        reasons.truncate(MAX_REASONS);
        placement.reasons = reasons;
    }
}

/// If all nodes are on one EP, ORT lists no names, only their number.
fn counted(ep: &str, n_nodes: u32, input: PlacementInput<'_>) -> Placement {
    let requested_eps = requested(&chosen(input.requested_eps, [ep].iter()));
    let asks_for_npu = Asked::by_names(&requested_eps).is_some();
    let mut reasons = input.known_reasons.to_vec();
    if !asks_for_npu {
        reasons.push(ReasonCode::EpNotRequested);
    }
    // The whole model is there.
    let manifest = input.manifest.filter(|_| ep != CPU_EP);
    let share = EpShare {
        ep: ep.to_owned(),
        n_nodes,
        n_partitions: (ep != CPU_EP).then_some(1),
        op_types: BTreeMap::new(),
        macs_share: manifest.map(|_| 1.0),
    };
    Placement {
        macs_attributed: manifest.map(|_| 1.0),
        manifest_sha256: manifest.map(ModelManifest::sha256),
        eps: vec![share],
        n_nodes,
        cpu_nodes_truncated: ep == CPU_EP && n_nodes > 0,
        graph_kind: GraphKind::Jit,
        source: PlacementSource::Log,
        reasons,
        ..Placement::unavailable(requested_eps, ReasonCode::Unknown)
    }
}
