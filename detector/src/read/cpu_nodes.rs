//! Nodes on the CPU behind fingerprints.

use clickhouse::Row;
use serde::Deserialize;

use crate::judge::verdict::{CpuNode, CpuNodes};

/// The nodes of one placement, as lists of the same length.
#[derive(Debug, Clone, Row, Deserialize)]
pub(super) struct NodesRow {
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) op_type: Vec<String>,
    pub(super) benign: Vec<bool>,
    pub(super) reason: Vec<String>,
    pub(super) macs_share: Vec<Option<f32>>,
}

/// Returns the nodes that should not be there, by algorithm and fingerprint; the first row of each counts.
pub(super) fn unexpected(rows: impl IntoIterator<Item = NodesRow>) -> CpuNodes {
    let mut nodes = CpuNodes::new();
    for row in rows {
        let id = (row.fingerprint_algorithm, row.fingerprint_normalised);
        nodes.entry(id).or_insert_with(|| row.unexpected_nodes());
    }
    nodes
}

impl NodesRow {
    fn unexpected_nodes(self) -> Vec<CpuNode> {
        let rest = self
            .benign
            .into_iter()
            .zip(self.reason)
            .zip(self.macs_share);
        let all = self.op_type.into_iter().zip(rest);
        all.filter(|(_, ((benign, _), _))| !benign)
            .map(|(op_type, ((_, reason), macs_share))| CpuNode {
                op_type,
                reason,
                macs_share: macs_share.map(f64::from),
            })
            .collect()
    }
}
