//! The document of `epwatch manifest`, which is the side-car file of a model.

use std::collections::BTreeMap;

use epwatch_proto::{SideCar, manifest::MANIFEST_ALGORITHM};
use serde::{Deserialize, Serialize};

use crate::{
    count::CountedGraph,
    fused,
    graph::{Dim, OnnxModel},
};

/// Name and version of the document.
pub const SCHEMA: &str = "epwatch.manifest/1";

/// A model's graph in numbers. The side-car's fields come first, as the SDK reads them; others are for tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestDocument {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// MACs by node name.
    #[serde(flatten)]
    pub side_car: SideCar,
    /// MACs of nodes without a name; a placement cannot attribute them.
    pub unnamed_macs: u64,
    /// Input shapes that the count is based on.
    pub inputs: BTreeMap<String, Vec<u64>>,
    /// Number of nodes by op.
    pub ops: BTreeMap<String, u64>,
    /// Further names of each node with MACs: its tensor, and the names and tensors of nodes that a runtime may fuse
    /// into it.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Size of each tensor between nodes, where its shape is known.
    pub tensor_bytes: BTreeMap<String, u64>,
    /// Nodes whose MACs are unknown, or only known in part.
    pub uncounted: Vec<Uncounted>,
}

/// A node whose MACs are unknown, or only known in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncounted {
    /// The node's name, or the name of its output if it has none.
    pub name: String,
    /// Op of the node.
    pub op_type: String,
    /// Reason and way out. For a node in a body, the text starts with its op and name.
    pub why: String,
    /// The node has at least this many MACs in addition to its counted ones.
    pub at_least_macs: u64,
    /// Whether no share of the MACs has a bound: its own are beyond the limit, or a loop has an unknown number of
    /// turns.
    pub unknown_turns: bool,
}

impl ManifestDocument {
    /// Whether no share of the MACs is known or has a bound.
    pub fn has_unknown_turns(&self) -> bool {
        self.uncounted.iter().any(|work| work.unknown_turns)
    }

    /// Returns a sentence about uncounted nodes; `None` if all are counted.
    pub fn not_counted(&self) -> Option<String> {
        if let Some(work) = self.uncounted.iter().find(|work| work.unknown_turns) {
            let Uncounted {
                name, op_type, why, ..
            } = work;
            return Some(format!(
                "the MACs of {op_type} {name} are not known, so that there are no shares: {why}"
            ));
        }
        let first = self.uncounted.first()?;
        let missing = self.uncounted.iter().map(|work| work.at_least_macs);
        let missing = missing.fold(0, u64::saturating_add);
        let total = self.side_car.total_macs;
        let share = missing as f64 / total.saturating_add(missing).max(1) as f64;
        let missing = match () {
            () if total == 0 => "no MACs are counted".to_owned(),
            () if share < 0.0005 => "an unknown number of MACs is not counted".to_owned(),
            () if share >= 0.9995 => "nearly all MACs are not counted".to_owned(),
            () => format!(
                "at least {:.1} % of the MACs are not counted",
                100.0 * share
            ),
        };
        let n = self.uncounted.len();
        let more = match n {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        Some(format!(
            "{missing}: {} {}{more}: {}",
            first.op_type, first.name, first.why
        ))
    }
}

pub(crate) fn document(
    model: &OnnxModel,
    counted: CountedGraph,
    sha256: String,
) -> ManifestDocument {
    let (graph, names) = (&model.graph, &model.names);
    let mut total_macs = 0_u64;
    let mut unnamed_macs = 0_u64;
    let mut nodes: BTreeMap<String, u64> = BTreeMap::new();
    let mut ops: BTreeMap<String, u64> = BTreeMap::new();
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut tensor_bytes = BTreeMap::new();
    let found = fused::aliases(graph, &counted.macs, names);
    for ((node, macs), found) in graph.nodes.iter().zip(&counted.macs).zip(found) {
        *ops.entry(node.op_type.clone()).or_default() += 1;
        total_macs = total_macs.saturating_add(*macs);
        if *macs > 0 {
            if node.name.is_empty() {
                unnamed_macs = unnamed_macs.saturating_add(*macs);
            } else {
                let sum = nodes.entry(node.name.clone()).or_default();
                *sum = sum.saturating_add(*macs);
                aliases.entry(node.name.clone()).or_default().extend(found);
            }
        }
        for output in node.outputs.iter().filter(|output| **output > 0) {
            let tensor = counted.tensors.get(*output);
            if let Some(bytes) = tensor.and_then(crate::tensor::Tensor::bytes) {
                tensor_bytes.insert(names.text(*output).to_owned(), bytes);
            }
        }
    }
    let uncounted = counted.uncounted.into_iter().map(|work| Uncounted {
        name: graph.nodes[work.node].shown(names),
        op_type: graph.nodes[work.node].op_type.clone(),
        why: work.why,
        at_least_macs: work.at_least,
        unknown_turns: work.has_unknown_turns,
    });
    let inputs = graph.inputs.iter().filter_map(|input| {
        let dims = input.dims.as_ref()?.iter().map(|dim| match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Symbolic(_) => None,
        });
        Some((
            names.text(input.id).to_owned(),
            dims.collect::<Option<_>>()?,
        ))
    });
    ManifestDocument {
        schema: SCHEMA,
        side_car: SideCar {
            algorithm: MANIFEST_ALGORITHM,
            model_sha256: sha256,
            total_macs,
            nodes,
        },
        unnamed_macs,
        inputs: inputs.collect(),
        ops,
        aliases,
        tensor_bytes,
        uncounted: uncounted.collect(),
    }
}
