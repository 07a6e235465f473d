//! MACs per node of a model file, and their attribution to the nodes of a placement.
//!
//! The side-car file is JSON: `{"algorithm": n, "model_sha256": hex, "total_macs": n, "nodes": {name: macs}}`. It may
//! have more fields. A file without `algorithm` was counted by algorithm 1. The runtime may extend the names of nodes.
//! So names are matched exactly, then without `_token_N`, then also without the trailing `/XxxFusion`.

use std::collections::{BTreeMap, HashMap};

use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::{
    error::ParseError,
    fingerprint::{normalised_node_name, without_token},
    ids::ModelHash,
    message::{AtMost64, Kind, List, Positive32, Text, U64, at_most, message},
    v1,
};

pub use crate::manifest_wire::MAX_MANIFEST_NODES;

/// The counting rules of this version. Version 1 counted Conv, ConvTranspose, Gemm and MatMul. Version 2 also counts
/// their quantised and fused forms, MatMulNBits, attention, recurrent ops and Einsum.
pub const MANIFEST_ALGORITHM: u32 = 2;
/// Maximum number of MACs of a model: ten times any model of today. Such numbers are exact in JSON and in `Float64`,
/// also in sums.
pub const MAX_TOTAL_MACS: u64 = 1 << 53;
/// Longest node name in a manifest, in bytes.
pub const MAX_MANIFEST_NAME_BYTES: usize = 512;

/// MACs per node of one model file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct ModelManifest {
    pub algorithm: u32,
    pub total_macs: u64,
    pub nodes: Vec<NodeMacs>,
}

/// MACs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct NodeMacs {
    pub name: String,
    pub op_type: String,
    pub macs: u64,
}

/// The side-car file next to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideCar {
    /// Version of the counting rules.
    #[serde(default = "first_algorithm")]
    pub algorithm: u32,
    /// SHA-256 of the model file, hexadecimal.
    pub model_sha256: String,
    /// Sum over all nodes, named or not.
    pub total_macs: u64,
    /// MACs by node name; nodes that are not listed have none.
    pub nodes: BTreeMap<String, u64>,
}

fn first_algorithm() -> u32 {
    1
}

/// Shares of a model's MACs on a placement's nodes, as fractions of `total_macs`, 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribution {
    /// Share that could be attributed to any node. Placements are compared by shares only if this is at least 0.95.
    pub attributed: f64,
    /// Share of each EP that holds a node.
    pub by_ep: BTreeMap<String, f64>,
    /// Share of each node, in the order given.
    pub by_node: Vec<f64>,
}

impl ModelManifest {
    /// Returns the manifest's id: SHA-256 of its encoded bytes.
    pub fn sha256(&self) -> ModelHash {
        ModelHash::of(&v1::ModelManifest::from(self).encode_to_vec())
    }

    /// Attributes MACs to nodes of a placement, given as (name, EP) in any order.
    ///
    /// Each entry of the manifest goes to at most one node, the one with the nearest name. So shares never add up
    /// to more than 1. Without any MACs all shares are 0.
    #[expect(clippy::cast_precision_loss, reason = "shares of a sum")]
    pub fn attribute<'a>(
        &self,
        placement: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Attribution {
        let nodes: Vec<_> = placement.into_iter().collect();
        let mut open: HashMap<&str, u64> = HashMap::new();
        for node in self.nodes.iter().filter(|n| !n.name.is_empty()) {
            let macs = open.entry(&node.name).or_default();
            *macs = macs.saturating_add(node.macs);
        }
        let mut found = vec![0_u64; nodes.len()];
        let rules: [fn(&str) -> &str; 3] = [as_it_is, without_token, normalised_node_name];
        for rule in rules {
            for ((name, _), macs) in nodes.iter().zip(&mut found) {
                if let Some(open) = open.remove(rule(name)) {
                    *macs = macs.saturating_add(open);
                }
            }
        }
        let total = self.total_macs.max(1) as f64;
        let by_node: Vec<f64> = found.iter().map(|macs| *macs as f64 / total).collect();
        let mut by_ep = BTreeMap::new();
        for ((_, ep), share) in nodes.iter().zip(&by_node) {
            *by_ep.entry((*ep).to_owned()).or_insert(0.0) += share;
        }
        let attributed = found
            .iter()
            .fold(0_u64, |sum, macs| sum.saturating_add(*macs));
        Attribution {
            attributed: (attributed as f64 / total).min(1.0),
            by_ep,
            by_node,
        }
    }
}

fn as_it_is(name: &str) -> &str {
    name
}

impl SideCar {
    /// Reads the hash of the model file.
    ///
    /// # Errors
    /// Fails if the hash is not 64 hexadecimal digits.
    pub fn model_hash(&self) -> Result<ModelHash, ParseError> {
        ModelHash::from_hex(&self.model_sha256).ok_or_else(|| {
            let expected = "64 hexadecimal digits";
            ParseError::malformed("model_sha256", expected, &self.model_sha256)
        })
    }
}

impl TryFrom<SideCar> for ModelManifest {
    type Error = ParseError;

    fn try_from(side_car: SideCar) -> Result<Self, ParseError> {
        side_car.model_hash()?;
        at_most("nodes", side_car.nodes.len(), MAX_MANIFEST_NODES)?;
        let mut nodes = Vec::with_capacity(side_car.nodes.len());
        for (name, macs) in side_car.nodes {
            nodes.push(NodeMacs {
                name: Text::<MAX_MANIFEST_NAME_BYTES>::parse("nodes", name)?,
                op_type: String::new(),
                macs,
            });
        }
        let manifest = Self {
            algorithm: Algorithm::parse("algorithm", side_car.algorithm)?,
            total_macs: AtMost64::<MAX_TOTAL_MACS>::parse("total_macs", side_car.total_macs)?,
            nodes,
        };
        manifest.with_possible_sum()
    }
}

/// A known version of the counting rules.
struct Algorithm;

impl Kind for Algorithm {
    type Wire = u32;
    type Parsed = u32;

    fn parse(field: &str, algorithm: u32) -> Result<u32, ParseError> {
        if algorithm > MANIFEST_ALGORITHM {
            return Err(ParseError::unsupported(field, "1 or 2", algorithm));
        }
        Positive32::parse(field, algorithm)
    }

    fn encode(algorithm: &u32) -> u32 {
        *algorithm
    }
}

message! {
    ModelManifest = v1::ModelManifest {
        algorithm: Algorithm,
        total_macs: AtMost64<MAX_TOTAL_MACS>,
        nodes: List<NodeMacs, MAX_MANIFEST_NODES>,
    }
    rule ModelManifest::with_possible_sum;
}

impl ModelManifest {
    fn with_possible_sum(self) -> Result<Self, ParseError> {
        let macs = self.nodes.iter().map(|n| n.macs);
        let sum = macs.fold(0_u64, u64::saturating_add);
        if sum > self.total_macs {
            let expected = format!("at least {sum}, the sum over nodes");
            return Err(ParseError::malformed(
                "total_macs",
                expected,
                self.total_macs,
            ));
        }
        Ok(self)
    }
}

message! {
    NodeMacs = v1::NodeMacs {
        name: Text<MAX_MANIFEST_NAME_BYTES>,
        op_type: Text<64>,
        macs: U64,
    }
}
