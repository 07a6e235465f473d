//! From the list of nodes that ONNX Runtime gives to a `Placement`.

use std::collections::BTreeMap;

use epwatch_proto::fingerprint::{fingerprint_exact, fingerprint_normalised, is_edge_quantization};
use epwatch_proto::placement::{CPU_EP, MAX_CPU_NODES, QNN_EP};
use epwatch_proto::{
    Attribution, CpuNode, EpShare, GraphKind, ModelManifest, Placement, PlacementSource, ReasonCode,
};
use serde::Deserialize;

/// One node of a recorded assignment.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) domain: String,
    pub(crate) ep: String,
}

/// The placement of these nodes, weighed with the model's MACs; `n_partitions` counts those on the
/// NPU.
pub(crate) fn placement(nodes: &[Node], n_partitions: u32, manifest: &ModelManifest) -> Placement {
    let pairs = || {
        nodes
            .iter()
            .map(|node| (node.name.as_str(), node.ep.as_str()))
    };
    let named = nodes
        .iter()
        .map(|node| (node.name.as_str(), node.op_type.as_str(), node.ep.as_str()));
    let macs = manifest.attribute(pairs());
    let (cpu_nodes, n_cpu) = cpu_nodes(nodes, &macs);
    Placement {
        requested_eps: vec![QNN_EP.to_owned()],
        eps: ep_shares(nodes, n_partitions, &macs),
        n_nodes: count(nodes.len()),
        cpu_nodes_truncated: cpu_nodes.len() < n_cpu,
        cpu_nodes,
        macs_attributed: Some(macs.attributed),
        manifest_sha256: Some(manifest.sha256()),
        graph_kind: GraphKind::Jit,
        source: PlacementSource::AssignmentApi,
        exact: Some(fingerprint_exact(pairs())),
        normalised: Some(fingerprint_normalised(named)),
        reasons: Vec::new(),
    }
}

fn ep_shares(nodes: &[Node], n_partitions: u32, macs: &Attribution) -> Vec<EpShare> {
    let mut shares: Vec<EpShare> = Vec::new();
    for node in nodes {
        let position = shares.iter().position(|share| share.ep == node.ep);
        let at = position.unwrap_or_else(|| {
            shares.push(EpShare {
                ep: node.ep.clone(),
                n_nodes: 0,
                n_partitions: (node.ep != CPU_EP).then_some(n_partitions),
                op_types: BTreeMap::new(),
                macs_share: macs.by_ep.get(&node.ep).copied(),
            });
            shares.len() - 1
        });
        shares[at].n_nodes += 1;
        *shares[at].op_types.entry(node.op_type.clone()).or_default() += 1;
    }
    shares
}

/// CPU nodes as far as they fit, and how many there are.
fn cpu_nodes(nodes: &[Node], macs: &Attribution) -> (Vec<CpuNode>, usize) {
    let on_cpu = nodes
        .iter()
        .zip(&macs.by_node)
        .filter(|(node, _)| node.ep == CPU_EP);
    let n_cpu = on_cpu.clone().count();
    let named = on_cpu
        .take(MAX_CPU_NODES)
        .map(|(node, share)| {
            let benign = is_edge_quantization(&node.op_type);
            CpuNode {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                domain: node.domain.clone(),
                benign,
                reason: if benign {
                    ReasonCode::EdgeQuantization
                } else {
                    ReasonCode::Unknown
                },
                reason_text: String::new(),
                macs_share: Some(*share),
            }
        })
        .collect();
    (named, n_cpu)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
