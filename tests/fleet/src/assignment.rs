//! Recorded assignments, in the form in which the SDK takes one from ONNX Runtime.

use epwatch_proto::placement::{CPU_EP, QNN_EP};
use epwatch_proto::{ModelManifest, Placement};
use epwatch_sdk::placement::{AssignedNode, Assignment, PlacementInput, Subgraph, summarise};
use serde::Deserialize;

/// A recorded assignment, with the fields of the fixture's file.
#[derive(Debug, Deserialize)]
pub(crate) struct Recorded {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
    op_type: String,
    domain: String,
    ep: String,
}

impl Recorded {
    /// Returns the placement of a session, which the SDK makes as it does for a live session.
    pub(crate) fn placement(&self, manifest: &ModelManifest) -> Placement {
        sum_up(self.subgraphs(|node| &node.ep), manifest)
    }

    /// Returns the placement of the same graph with every node on the CPU.
    pub(crate) fn on_cpu(&self, manifest: &ModelManifest) -> Placement {
        sum_up(self.subgraphs(|_| CPU_EP), manifest)
    }

    /// The NPU's nodes are one partition, as in every recorded assignment; each CPU node is its own.
    fn subgraphs<'a>(&'a self, ep_of: impl Fn(&'a Node) -> &'a str) -> Vec<Subgraph> {
        let mut subgraphs: Vec<Subgraph> = Vec::new();
        for node in &self.nodes {
            let ep = ep_of(node);
            let assigned = AssignedNode {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                domain: node.domain.clone(),
            };
            match subgraphs.iter_mut().find(|s| s.ep == ep && ep != CPU_EP) {
                Some(partition) => partition.nodes.push(assigned),
                None => subgraphs.push(Subgraph {
                    ep: ep.to_owned(),
                    nodes: vec![assigned],
                }),
            }
        }
        subgraphs
    }
}

fn sum_up(subgraphs: Vec<Subgraph>, manifest: &ModelManifest) -> Placement {
    summarise(
        &Assignment { subgraphs },
        PlacementInput {
            requested_eps: &[QNN_EP.to_owned()],
            manifest: Some(manifest),
            known_reasons: &[],
            ..PlacementInput::default()
        },
    )
}
