//! Fingerprints of placements: hashes over the names of nodes and their EPs.
//!
//! Algorithm 1. Both fingerprints are the first 8 bytes, big-endian, of SHA-256 over sorted
//! (name, EP) pairs. Each text follows its length (u32, big-endian).
//!  - *exact*: every node by ORT's name, duplicates included.
//!  - *normalised*: computing nodes only, each pair once. Names are from [`normalised_node_name`]; a node without a
//!    name has its op type in angle brackets. QuantizeLinear and DequantizeLinear are left out, because they come and
//!    go at the edges with the runtime's version. The Transposes that the layout transform inserts (`..._token_N`) are
//!    left out too.

use std::fmt;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::message::{Fixed64, Positive32, message};
use crate::v1;

/// Version of the rules above.
pub const FINGERPRINT_ALGORITHM: u32 = 1;

/// A hash and the version of its rules. Fingerprints compare only if their algorithms are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    /// Version of the rules, 1 or more.
    pub algorithm: u32,
    /// The first 8 bytes of the SHA-256.
    pub value: u64,
}

/// `1:0123456789abcdef`: algorithm, hash.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", self.algorithm, self.value)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Returns a node's name as the model file probably has it. It removes the `_token_N` of the layout transform, then
/// the trailing `/XxxFusion` of a level-1 fusion.
pub fn normalised_node_name(name: &str) -> &str {
    without_fusion(without_token(name))
}

/// Cuts a trailing `_token_N`.
pub fn without_token(name: &str) -> &str {
    match name.rsplit_once("_token_") {
        Some((head, digits))
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) =>
        {
            head
        }
        _ => name,
    }
}

/// Cuts a trailing `/XxxFusion` or `/XxxFusion/`.
fn without_fusion(name: &str) -> &str {
    let open = name.strip_suffix('/').unwrap_or(name);
    match open.rsplit_once('/') {
        Some((head, fusion)) if fusion.ends_with("Fusion") => head,
        _ => name,
    }
}

/// Returns whether the QNN EP leaves nodes of this type at the graph's edge to the CPU on purpose.
pub fn is_edge_quantization(op_type: &str) -> bool {
    matches!(op_type, "QuantizeLinear" | "DequantizeLinear")
}

/// Returns the exact fingerprint of nodes, given as (node name, EP).
pub fn fingerprint_exact<'a>(nodes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Fingerprint {
    let mut pairs: Vec<_> = nodes.into_iter().collect();
    pairs.sort_unstable();
    hash(&pairs)
}

/// Returns the normalised fingerprint of nodes, given as (node name, op type, EP).
pub fn fingerprint_normalised<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
) -> Fingerprint {
    let named: Vec<_> = nodes
        .into_iter()
        .filter(|(name, op_type, _)| is_computing(name, op_type))
        .map(|(name, op_type, ep)| match normalised_node_name(name) {
            "" => (format!("<{op_type}>"), ep),
            name => (name.to_owned(), ep),
        })
        .collect();
    let mut pairs: Vec<_> = named
        .iter()
        .map(|(name, ep)| (name.as_str(), *ep))
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    hash(&pairs)
}

fn is_computing(name: &str, op_type: &str) -> bool {
    let inserted = op_type == "Transpose" && without_token(name) != name;
    !is_edge_quantization(op_type) && !inserted
}

fn hash(sorted_pairs: &[(&str, &str)]) -> Fingerprint {
    let mut sha = Sha256::new();
    for (name, ep) in sorted_pairs {
        for text in [name, ep] {
            let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
            sha.update(len.to_be_bytes());
            sha.update(text.as_bytes());
        }
    }
    let mut first = [0; 8];
    first.copy_from_slice(&sha.finalize()[..8]);
    Fingerprint {
        algorithm: FINGERPRINT_ALGORITHM,
        value: u64::from_be_bytes(first),
    }
}

message! {
    mod fingerprint_fields: Fingerprint = v1::Fingerprint {
        1 algorithm: Positive32,
        2 value: Fixed64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QNN: &str = "QNNExecutionProvider";
    const CPU: &str = "CPUExecutionProvider";

    #[test]
    fn names_lose_what_the_runtime_added() {
        let check = |given, expected| assert_eq!(normalised_node_name(given), expected);
        check("conv1", "conv1");
        check("conv1_token_17", "conv1");
        check("a_token_x", "a_token_x");
        check("a_token_", "a_token_");
        check("/enc/norm/LayerNormFusion", "/enc/norm");
        check("/enc/norm/LayerNormFusion/", "/enc/norm");
        check("/enc/GeluFusion_token_4", "/enc");
        check("/enc/Fusionist", "/enc/Fusionist");
        check("", "");
    }

    #[test]
    fn renamed_nodes_and_edges_leave_the_normalised_fingerprint() {
        let before = [("a", "Conv", QNN), ("b", "Gemm", CPU)];
        let after = [
            ("q", "QuantizeLinear", CPU),
            ("b_token_9", "Gemm", CPU),
            ("Transpose_token_3", "Transpose", QNN),
            ("a/ConvActFusion", "Conv", QNN),
        ];
        assert_eq!(
            fingerprint_normalised(before),
            fingerprint_normalised(after)
        );
        let pairs = |nodes: &[(&'static str, &str, &'static str)]| {
            fingerprint_exact(nodes.iter().map(|n| (n.0, n.2)))
        };
        assert_ne!(pairs(&before), pairs(&after));
    }

    #[test]
    fn a_node_that_moves_changes_both() {
        let on_npu = [("a", "Conv", QNN), ("b", "Gemm", QNN)];
        let moved = [("a", "Conv", QNN), ("b", "Gemm", CPU)];
        assert_ne!(
            fingerprint_normalised(on_npu),
            fingerprint_normalised(moved)
        );
    }

    /// Pinned: fingerprints of different releases are compared for as long as baselines live.
    /// `printf '\0\0\0\1a\0\0\0\3EP1\0\0\0\1b\0\0\0\3EP2' | sha256sum`
    #[test]
    fn order_does_not_matter_and_the_value_is_fixed() {
        let one = fingerprint_exact([("b", "EP2"), ("a", "EP1")]);
        assert_eq!(one, fingerprint_exact([("a", "EP1"), ("b", "EP2")]));
        assert_eq!(one.to_string(), "1:6f73a0fd11a1380d");
    }
}
