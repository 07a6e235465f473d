//! Turns an assignment into a placement: shares, CPU nodes and their reasons, fingerprints.
//!
//! Pure, and without guesses: a node whose reason the assignment does not contain gets `unknown`.

use std::collections::BTreeMap;

use epwatch_proto::{
    Accelerator, Asked, Attribution, CpuNode, DeviceType, EpShare, GraphKind, ModelManifest,
    Placement, PlacementSource, ReasonCode, clipped,
    fingerprint::{fingerprint_exact, fingerprint_normalised, is_edge_quantization},
    placement::{
        CPU_EP, MAX_CPU_NODES, MAX_EP_NAME_BYTES, MAX_EPS, MAX_NODE_NAME_BYTES, MAX_OP_TYPES,
        MAX_REASONS,
    },
};
#[cfg(feature = "ort")]
use serde::{Deserialize, Serialize};

use super::{Assignment, chosen::chosen};

/// Data about a session that is known before it is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlacementInput<'a> {
    /// EPs in effect, without the CPU EP.
    pub requested_eps: &'a [String],
    /// Chipset given to the QNN EP, by number or name, or empty. Explains refusals in a log.
    pub soc_model: &'a str,
    /// MACs per node of the model, if known.
    pub manifest: Option<&'a ModelManifest>,
    /// Known reasons why the NPU will not be used.
    pub known_reasons: &'a [ReasonCode],
}

#[cfg(feature = "ort")]
/// A partition on the NPU or another accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartitionSize {
    /// Number of nodes.
    pub nodes: u32,
    /// Share of the model's MACs, 0 to 1. Needs a manifest.
    pub macs_share: Option<f64>,
}

/// Summarises an assignment.
pub fn summarise(assignment: &Assignment, input: PlacementInput<'_>) -> Placement {
    let with_nodes = assignment.subgraphs.iter().map(|subgraph| &subgraph.ep);
    let requested_eps = chosen(input.requested_eps, with_nodes);
    let input = PlacementInput {
        requested_eps: &requested_eps,
        ..input
    };
    let nodes = nodes_of(assignment);
    let attribution = attribution_of(&nodes, input.manifest);

    let mut eps: Vec<EpShare> = Vec::new();
    for subgraph in &assignment.subgraphs {
        add_subgraph(&mut eps, &subgraph.ep, &subgraph.nodes);
    }
    // Nodes of further EPs would be missing, but no session with more EPs than a placement can name has been seen.
    eps.truncate(MAX_EPS);
    for ep in &mut eps {
        let share = attribution.as_ref().map(|a| a.by_ep.get(&ep.ep));
        ep.macs_share = share.map(|s| s.copied().unwrap_or(0.0).clamp(0.0, 1.0));
    }

    let all_cpu = cpu_nodes_of(&nodes, attribution.as_ref());
    let n_cpu = all_cpu.len();
    let mut named: Vec<_> = all_cpu
        .into_iter()
        .map(|(node, _)| node)
        .enumerate()
        .collect();
    if n_cpu > MAX_CPU_NODES {
        // Nodes that compute are kept first, because edge nodes are expected on the CPU.
        named.sort_by_key(|(index, n)| (is_edge_quantization(&n.op_type), *index));
        named.truncate(MAX_CPU_NODES);
        named.sort_by_key(|(index, _)| *index);
    }
    let cpu_nodes: Vec<_> = named.into_iter().map(|(_, node)| node).collect();

    let graph_kind = match nodes.iter().any(|n| n.op_type == "EPContext") {
        true => GraphKind::EpContext,
        false => GraphKind::Jit,
    };
    Placement {
        requested_eps: requested(input.requested_eps),
        n_nodes: eps.iter().map(|e| e.n_nodes).sum(),
        cpu_nodes_truncated: cpu_nodes.len() < n_cpu,
        macs_attributed: attribution.as_ref().map(|a| a.attributed),
        manifest_sha256: input.manifest.map(ModelManifest::sha256),
        graph_kind,
        source: PlacementSource::AssignmentApi,
        exact: Some(fingerprint_exact(nodes.iter().map(|n| (n.name, n.ep)))),
        normalised: Some(fingerprint_normalised(
            nodes.iter().map(|n| (n.name, n.op_type, n.ep)),
        )),
        reasons: reasons(&input, &eps, &cpu_nodes),
        eps,
        cpu_nodes,
    }
}

/// All nodes on the CPU in ORT's order, with ORT's own names.
#[cfg(feature = "ort")]
pub(super) fn all_cpu_nodes<'a>(
    assignment: &'a Assignment,
    manifest: Option<&ModelManifest>,
) -> Vec<(CpuNode, &'a str)> {
    let nodes = nodes_of(assignment);
    cpu_nodes_of(&nodes, attribution_of(&nodes, manifest).as_ref())
}

/// Sizes of the accelerator's partitions, in ORT's order.
#[cfg(feature = "ort")]
pub(super) fn npu_partitions(
    assignment: &Assignment,
    manifest: Option<&ModelManifest>,
) -> Vec<PartitionSize> {
    let attribution = attribution_of(&nodes_of(assignment), manifest);
    let (mut sizes, mut at) = (Vec::new(), 0);
    for subgraph in &assignment.subgraphs {
        let of_nodes = at..at + subgraph.nodes.len();
        at = of_nodes.end;
        if Accelerator::of_ep(&subgraph.ep).is_known() {
            let share = |of: &Attribution| of.by_node[of_nodes.clone()].iter().sum::<f64>();
            sizes.push(PartitionSize {
                nodes: u32::try_from(of_nodes.len()).unwrap_or(u32::MAX),
                macs_share: attribution.as_ref().map(|of| share(of).clamp(0.0, 1.0)),
            });
        }
    }
    sizes
}

/// Names of the nodes on an accelerator, in ORT's order.
#[cfg(feature = "ort")]
pub(super) fn npu_nodes(assignment: &Assignment) -> Vec<String> {
    let subgraphs = assignment.subgraphs.iter();
    let on_npu = subgraphs.filter(|of| Accelerator::of_ep(&of.ep).is_known());
    let nodes = on_npu.flat_map(|subgraph| &subgraph.nodes);
    nodes.map(|node| node.name.clone()).collect()
}

fn attribution_of(nodes: &[Node<'_>], manifest: Option<&ModelManifest>) -> Option<Attribution> {
    Some(manifest?.attribute(nodes.iter().map(|n| (n.name, n.ep))))
}

fn cpu_nodes_of<'a>(
    nodes: &[Node<'a>],
    attribution: Option<&Attribution>,
) -> Vec<(CpuNode, &'a str)> {
    let is_npu = |node: &Node<'_>| Accelerator::of_ep(node.ep).device() == DeviceType::Npu;
    let has_edges = nodes.iter().any(is_npu);
    let on_cpu = nodes.iter().enumerate().filter(|(_, n)| n.ep == CPU_EP);
    on_cpu
        .map(|(index, node)| {
            let share = attribution.map(|a| a.by_node[index].clamp(0.0, 1.0));
            (cpu_node(node, has_edges, share), node.name)
        })
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct Node<'a> {
    name: &'a str,
    op_type: &'a str,
    domain: &'a str,
    ep: &'a str,
}

fn nodes_of(assignment: &Assignment) -> Vec<Node<'_>> {
    let nodes = assignment.subgraphs.iter().flat_map(|subgraph| {
        subgraph.nodes.iter().map(|node| Node {
            name: &node.name,
            op_type: &node.op_type,
            domain: &node.domain,
            ep: &subgraph.ep,
        })
    });
    nodes.collect()
}

fn add_subgraph(eps: &mut Vec<EpShare>, ep: &str, nodes: &[super::AssignedNode]) {
    let at = match eps.iter().position(|e| e.ep == ep) {
        Some(at) => at,
        None => {
            eps.push(EpShare {
                ep: clipped(ep, MAX_EP_NAME_BYTES),
                n_nodes: 0,
                n_partitions: (ep != CPU_EP).then_some(0),
                op_types: BTreeMap::new(),
                macs_share: None,
            });
            eps.len() - 1
        }
    };
    let share = &mut eps[at];
    share.n_nodes += u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    if let Some(partitions) = &mut share.n_partitions {
        *partitions += 1;
    }
    for node in nodes {
        let op_type = clipped(op_type_of(&node.op_type), MAX_EP_NAME_BYTES);
        let is_known = share.op_types.contains_key(&op_type);
        if is_known || share.op_types.len() < MAX_OP_TYPES {
            *share.op_types.entry(op_type).or_default() += 1;
        }
    }
}

fn op_type_of(op_type: &str) -> &str {
    match op_type {
        "" => "unknown",
        op_type => op_type,
    }
}

/// QuantizeLinear and DequantizeLinear next to an NPU partition are the QNN plugin's default
/// (`offload_graph_io_quantization=1`). Without nodes on the NPU there is no edge.
fn cpu_node(node: &Node<'_>, has_edges: bool, macs_share: Option<f64>) -> CpuNode {
    let benign = has_edges && is_edge_quantization(node.op_type);
    CpuNode {
        name: clipped(node.name, MAX_NODE_NAME_BYTES),
        op_type: clipped(op_type_of(node.op_type), MAX_EP_NAME_BYTES),
        domain: clipped(node.domain, MAX_EP_NAME_BYTES),
        benign,
        reason: match benign {
            true => ReasonCode::EdgeQuantization,
            false => ReasonCode::Unknown,
        },
        reason_text: String::new(),
        macs_share,
    }
}

pub(crate) fn requested(eps: &[String]) -> Vec<String> {
    eps.iter()
        .filter(|ep| !ep.is_empty() && ep.as_str() != CPU_EP)
        .take(MAX_EPS)
        .map(|ep| clipped(ep, MAX_EP_NAME_BYTES))
        .collect()
}

/// Reasons for nodes that the NPU did not get, as far as an assignment shows.
fn reasons(input: &PlacementInput<'_>, eps: &[EpShare], cpu_nodes: &[CpuNode]) -> Vec<ReasonCode> {
    let mut reasons = input.known_reasons.to_vec();
    let asked = Asked::by_names(input.requested_eps);
    let asks_for_npu = asked.is_some();
    let is_its = |share: &EpShare| {
        let of_share = Accelerator::of_ep(&share.ep);
        let asked = asked.map_or(of_share, |asked| asked.accelerator);
        share.ep != CPU_EP && asked.is_same(of_share)
    };
    let has_npu_nodes = eps.iter().any(|share| is_its(share) && share.n_nodes > 0);
    let is_off = reasons.contains(&ReasonCode::NpuOffByDirective);
    if !asks_for_npu && !is_off {
        reasons.push(ReasonCode::EpNotRequested);
    } else if asks_for_npu && !has_npu_nodes && !eps.is_empty() && reasons.is_empty() {
        // The EP was requested but got no node. Only a log could show why.
        reasons.push(ReasonCode::Unknown);
    }
    for node in cpu_nodes {
        let is_new = !reasons.contains(&node.reason);
        if is_new && (has_npu_nodes || node.benign) {
            reasons.push(node.reason);
        }
    }
    reasons.dedup();
    reasons.truncate(MAX_REASONS);
    reasons
}

#[cfg(test)]
mod tests {
    use super::super::{AssignedNode, Subgraph};
    use super::*;
    use epwatch_proto::placement::QNN_EP;

    fn node(name: &str, op_type: &str) -> AssignedNode {
        AssignedNode {
            name: name.to_owned(),
            op_type: op_type.to_owned(),
            domain: String::new(),
        }
    }

    fn subgraph(ep: &str, nodes: &[(&str, &str)]) -> Subgraph {
        Subgraph {
            ep: ep.to_owned(),
            nodes: nodes.iter().map(|(name, op)| node(name, op)).collect(),
        }
    }

    fn summary(subgraphs: Vec<Subgraph>, requested: &[&str], known: &[ReasonCode]) -> Placement {
        let requested: Vec<_> = requested.iter().map(|ep| (*ep).to_owned()).collect();
        let placement = summarise(
            &Assignment { subgraphs },
            PlacementInput {
                requested_eps: &requested,
                known_reasons: known,
                ..PlacementInput::default()
            },
        );
        // A collector must accept what a device sends.
        let wire = epwatch_proto::v1::Placement::from(&placement);
        assert_eq!(Placement::try_from(wire).unwrap(), placement);
        placement
    }

    #[test]
    fn edges_of_an_npu_graph_are_benign_and_the_rest_is_not() {
        let placement = summary(
            vec![
                subgraph(CPU_EP, &[("q", "QuantizeLinear")]),
                subgraph(QNN_EP, &[("c1", "Conv"), ("c2", "Conv")]),
                subgraph(CPU_EP, &[("g", "Gemm")]),
                subgraph(CPU_EP, &[("dq", "DequantizeLinear")]),
            ],
            &[QNN_EP],
            &[],
        );
        assert_eq!(placement.cpu_ops(), ["Gemm"]);
        assert_eq!(placement.cpu_nodes.len(), 3);
        assert_eq!(placement.n_nodes, 5);
        let qnn = placement.ep(QNN_EP).unwrap();
        assert_eq!((qnn.n_nodes, qnn.n_partitions), (2, Some(1)));
        assert_eq!(placement.ep(CPU_EP).unwrap().n_partitions, None);
        let expected = [ReasonCode::EdgeQuantization, ReasonCode::Unknown];
        assert_eq!(placement.reasons, expected);
    }

    #[test]
    fn partitions_have_the_macs_of_their_own_nodes() {
        let macs = |name: &str, macs| epwatch_proto::NodeMacs {
            name: name.to_owned(),
            op_type: "Conv".to_owned(),
            macs,
        };
        let manifest = ModelManifest {
            algorithm: 1,
            total_macs: 100,
            nodes: vec![macs("c1", 60), macs("g", 10), macs("c3", 30)],
        };
        let subgraphs = vec![
            subgraph(QNN_EP, &[("c1", "Conv"), ("c2", "Relu")]),
            subgraph(CPU_EP, &[("g", "Gemm")]),
            subgraph(QNN_EP, &[("c3", "Conv")]),
        ];
        let sizes = |manifest| {
            let subgraphs = subgraphs.clone();
            let sizes = npu_partitions(&Assignment { subgraphs }, manifest);
            let each = sizes.into_iter().map(|size| (size.nodes, size.macs_share));
            each.collect::<Vec<_>>()
        };
        assert_eq!(sizes(Some(&manifest)), [(2, Some(0.6)), (1, Some(0.3))]);
        assert_eq!(sizes(None), [(2, None), (1, None)]);
    }

    #[test]
    fn total_fallback_has_no_edges_and_a_reason() {
        let nodes = [("q", "QuantizeLinear"), ("g", "Gemm")];
        let placement = summary(vec![subgraph(CPU_EP, &nodes)], &[QNN_EP], &[]);
        assert!(placement.cpu_nodes.iter().all(|n| !n.benign));
        assert_eq!(placement.reasons, [ReasonCode::Unknown]);
        assert_eq!(placement.requested_eps, [QNN_EP]);

        let known = [ReasonCode::NoEpDevice];
        let placement = summary(vec![subgraph(CPU_EP, &nodes)], &[QNN_EP], &known);
        assert_eq!(placement.reasons, known);

        let placement = summary(vec![subgraph(CPU_EP, &nodes)], &[], &[]);
        assert_eq!(placement.reasons, [ReasonCode::EpNotRequested]);
    }

    #[test]
    fn a_long_list_loses_its_least_useful_nodes() {
        let mut subgraphs = vec![subgraph(QNN_EP, &[("c", "Conv")])];
        subgraphs.extend((0..300).map(|_| subgraph(CPU_EP, &[("q", "QuantizeLinear")])));
        subgraphs.push(subgraph(CPU_EP, &[("last", "Gemm")]));
        let placement = summary(subgraphs, &[QNN_EP], &[]);
        assert!(placement.cpu_nodes_truncated);
        assert_eq!(placement.cpu_nodes.len(), MAX_CPU_NODES);
        assert_eq!(placement.cpu_ops(), ["Gemm"]);
        assert_eq!(placement.ep(CPU_EP).unwrap().n_nodes, 301);
    }

    #[test]
    fn hostile_names_are_clipped_and_nothing_panics() {
        let long = "x\n".repeat(4_000);
        let placement = summary(
            vec![subgraph(&long, &[(&long, &long), ("", "")])],
            &[&long],
            &[],
        );
        assert_eq!(placement.n_nodes, 2);
    }

    #[test]
    fn a_precompiled_graph_has_its_own_kind() {
        let placement = summary(
            vec![subgraph(QNN_EP, &[("ctx", "EPContext")])],
            &[QNN_EP],
            &[],
        );
        assert_eq!(placement.graph_kind, GraphKind::EpContext);
    }
}
