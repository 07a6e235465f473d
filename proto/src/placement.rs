//! Which execution provider (EP) got which node: requested and actual, always apart.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    bounds::{
        at_most, bytes_or_empty, each_once, list, optional_bytes, positive, required_text, share,
        text, texts, within,
    },
    error::{Inside, ParseError},
    fingerprint::Fingerprint,
    ids::ModelHash,
    reason::ReasonCode,
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// How the graph came to its partitions.
    pub enum GraphKind: GraphKind {
        /// Not known.
        Unknown = Unknown "unknown",
        /// Partitioned and compiled when the session was created.
        Jit = Jit "jit",
        /// Precompiled: a partition is one node, so node counts mean nothing.
        EpContext = Epcontext "epcontext",
    }
}

wire_enum! {
    /// Where a placement was read.
    pub enum PlacementSource: PlacementSource {
        /// ORT's EP graph assignment (1.24 and later).
        AssignmentApi = AssignmentApi "assignment_api",
        /// The session's log.
        Log = Log "log",
        /// This runtime gives no answer.
        Unavailable = Unavailable "unavailable",
    }
}

/// ORT's name of the QNN EP, built in or plugin.
pub const QNN_EP: &str = "QNNExecutionProvider";
/// ORT's name of the CPU EP.
pub const CPU_EP: &str = "CPUExecutionProvider";

/// Most EPs of one placement or request.
pub const MAX_EPS: usize = 8;
/// Longest EP name, op type or domain, in bytes.
pub const MAX_EP_NAME_BYTES: usize = 64;
/// Most nodes of all EPs.
pub const MAX_NODES: u32 = 1_000_000;
/// Most CPU nodes that are named one by one.
pub const MAX_CPU_NODES: usize = 256;
/// Longest node name and reason text, in bytes.
pub const MAX_NODE_NAME_BYTES: usize = 256;
/// Most kinds of ops per EP.
pub const MAX_OP_TYPES: usize = 256;
/// Most reason codes.
pub const MAX_REASONS: usize = 16;

/// Whether an EP of this name puts nodes on the NPU. With a GPU or CPU back end it does not:
/// that is in the runtime's `backend`.
pub fn is_npu_ep(name: &str) -> bool {
    name == QNN_EP
}

/// A share of MACs as the store holds it, with some six digits.
#[expect(clippy::cast_possible_truncation, reason = "a share, 0 to 1")]
pub fn stored_share(share: f64) -> f32 {
    share as f32
}

/// Where a session's graph really runs, read when it was created.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// EPs asked for in effect, in order. Not what the session got.
    pub requested_eps: Vec<String>,
    /// What each EP got; names exactly as ORT gives them.
    pub eps: Vec<EpShare>,
    /// Nodes of all EPs.
    pub n_nodes: u32,
    /// Nodes on the CPU, in ORT's order, at most [`MAX_CPU_NODES`].
    pub cpu_nodes: Vec<CpuNode>,
    /// Whether there are more CPU nodes than those.
    pub cpu_nodes_truncated: bool,
    /// How much of the model's MACs could be attributed to nodes, 0 to 1.
    pub macs_attributed: Option<f64>,
    /// The manifest that the shares come from.
    pub manifest_sha256: Option<ModelHash>,
    /// How the graph came to its partitions.
    pub graph_kind: GraphKind,
    /// Where this was read.
    pub source: PlacementSource,
    /// Fingerprint of the nodes as they are.
    pub exact: Option<Fingerprint>,
    /// Fingerprint of the computing nodes, names normalised.
    pub normalised: Option<Fingerprint>,
    /// Why the NPU did not get (all of) the graph, as far as it is known.
    pub reasons: Vec<ReasonCode>,
}

/// What one EP got.
#[derive(Debug, Clone, PartialEq)]
pub struct EpShare {
    /// For example [`QNN_EP`].
    pub ep: String,
    /// Nodes.
    pub n_nodes: u32,
    /// Partitions; `None` for the CPU EP, where the count says nothing.
    pub n_partitions: Option<u32>,
    /// Nodes by op type.
    pub op_types: BTreeMap<String, u32>,
    /// Share of the model's MACs, 0 to 1; `None` without a manifest.
    pub macs_share: Option<f64>,
}

/// A node that the NPU did not get.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuNode {
    /// As ORT gives it.
    pub name: String,
    /// Op type.
    pub op_type: String,
    /// Domain; empty for ONNX's own.
    pub domain: String,
    /// Expected on the CPU: edge QuantizeLinear and DequantizeLinear of a quantised graph.
    pub benign: bool,
    /// Why it is there.
    pub reason: ReasonCode,
    /// The validator's own sentence, if it was captured.
    pub reason_text: String,
    /// Share of the model's MACs, 0 to 1.
    pub macs_share: Option<f64>,
}

impl Placement {
    /// A placement of which nothing but the request is known.
    pub fn unavailable(requested_eps: Vec<String>, reason: ReasonCode) -> Self {
        Self {
            requested_eps,
            eps: Vec::new(),
            n_nodes: 0,
            cpu_nodes: Vec::new(),
            cpu_nodes_truncated: false,
            macs_attributed: None,
            manifest_sha256: None,
            graph_kind: GraphKind::Unknown,
            source: PlacementSource::Unavailable,
            exact: None,
            normalised: None,
            reasons: vec![reason],
        }
    }

    /// What an EP of this name got.
    pub fn ep(&self, name: &str) -> Option<&EpShare> {
        self.eps.iter().find(|e| e.ep == name)
    }

    /// Whether the effective request names an NPU: only such sessions vote.
    pub fn requests_npu(&self) -> bool {
        self.requested_eps.iter().any(|ep| is_npu_ep(ep))
    }

    /// Nodes on the NPU.
    pub fn n_npu_nodes(&self) -> u32 {
        self.npu_shares().map(|e| e.n_nodes).sum()
    }

    /// Partitions on the NPU.
    pub fn n_npu_partitions(&self) -> u32 {
        self.npu_shares().filter_map(|e| e.n_partitions).sum()
    }

    /// Nodes of the CPU EP, named or not.
    pub fn n_cpu_nodes(&self) -> u32 {
        self.ep(CPU_EP).map_or(0, |e| e.n_nodes)
    }

    /// Named CPU nodes that are expected there.
    pub fn n_benign_cpu_nodes(&self) -> u32 {
        let n_benign = self.cpu_nodes.iter().filter(|node| node.benign).count();
        u32::try_from(n_benign).unwrap_or(u32::MAX)
    }

    /// Version of the fingerprints' rules, which both share; 0 without a fingerprint.
    pub fn fingerprint_algorithm(&self) -> u32 {
        let print = self.normalised.or(self.exact);
        print.map_or(0, |print| print.algorithm)
    }

    /// Share of the nodes on the NPU, 0 to 1. `None` where node counts say nothing: the placement
    /// is unavailable, the graph empty or precompiled.
    pub fn npu_node_share(&self) -> Option<f64> {
        if self.n_nodes == 0 || self.graph_kind == GraphKind::EpContext {
            return None;
        }
        Some(f64::from(self.n_npu_nodes()) / f64::from(self.n_nodes))
    }

    /// Share of the model's MACs on the NPU, 0 to 1. `None` without a manifest.
    pub fn npu_macs_share(&self) -> Option<f64> {
        self.macs_attributed?;
        Some(self.npu_shares().filter_map(|e| e.macs_share).sum())
    }

    /// Share of the model's MACs on the CPU EP, 0 to 1. `None` without a manifest.
    pub fn cpu_macs_share(&self) -> Option<f64> {
        self.macs_attributed?;
        Some(self.ep(CPU_EP).and_then(|e| e.macs_share).unwrap_or(0.0))
    }

    /// Op types on the CPU that are not benign, in the order of their first node, each once.
    pub fn cpu_ops(&self) -> Vec<&str> {
        let mut ops = Vec::new();
        for node in self.cpu_nodes.iter().filter(|n| !n.benign) {
            if !ops.contains(&node.op_type.as_str()) {
                ops.push(&node.op_type);
            }
        }
        ops
    }

    /// Whether two placements may be compared at all: equal graph kind, source and fingerprint
    /// algorithm, and node names known.
    pub fn is_comparable(&self, other: &Self) -> bool {
        let algorithm = |p: &Self| p.normalised.map(|f| f.algorithm);
        self.graph_kind == other.graph_kind
            && self.source == other.source
            && self.normalised.is_some()
            && algorithm(self) == algorithm(other)
    }

    fn npu_shares(&self) -> impl Iterator<Item = &EpShare> {
        self.eps.iter().filter(|e| is_npu_ep(&e.ep))
    }

    /// The counts must be possible together.
    fn check(&self) -> Result<(), ParseError> {
        let counts = NodeCounts {
            source: self.source,
            n_eps: self.eps.len(),
            n_nodes: self.n_nodes,
            of_eps: self.eps.iter().map(|e| u64::from(e.n_nodes)).sum(),
            on_cpu: self.n_cpu_nodes() as usize,
            named: self.cpu_nodes.len(),
            is_truncated: self.cpu_nodes_truncated,
        };
        counts.check()?;
        let mut macs = MacsSum::default();
        for ep in &self.eps {
            macs.add(ep.macs_share);
        }
        macs.check(self.macs_attributed)
    }
}

/// Counts of a placement's nodes, which must be possible together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeCounts {
    pub(crate) source: PlacementSource,
    pub(crate) n_eps: usize,
    pub(crate) n_nodes: u32,
    /// Nodes of all EPs.
    pub(crate) of_eps: u64,
    /// Nodes of the CPU EP.
    pub(crate) on_cpu: usize,
    /// Those of them that are named.
    pub(crate) named: usize,
    /// Whether the sender says that not all are.
    pub(crate) is_truncated: bool,
}

impl NodeCounts {
    pub(crate) fn check(&self) -> Result<(), ParseError> {
        let (of_eps, named, on_cpu) = (self.of_eps, self.named, self.on_cpu);
        if u64::from(self.n_nodes) != of_eps {
            let expected = format!("{of_eps}, the sum over eps");
            return Err(ParseError::malformed("n_nodes", expected, self.n_nodes));
        }
        if self.source == PlacementSource::Unavailable && self.n_eps > 0 {
            let expected = "nothing where source is UNAVAILABLE";
            return Err(ParseError::malformed("eps", expected, self.n_eps));
        }
        if named > on_cpu {
            let expected = format!("at most {on_cpu}, the CPU EP's nodes");
            return Err(ParseError::malformed("cpu_nodes", expected, named));
        }
        // A log may name fewer; the assignment names all that fit.
        let complete = self.source == PlacementSource::AssignmentApi;
        if complete && self.is_truncated != (named < on_cpu) {
            let expected = format!("{}: {named} of {on_cpu} are named", named < on_cpu);
            let got = self.is_truncated;
            return Err(ParseError::malformed("cpu_nodes_truncated", expected, got));
        }
        Ok(())
    }
}

/// Shares of MACs over EPs, which cannot exceed what was attributed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MacsSum(f64);

impl MacsSum {
    pub(crate) fn add(&mut self, share: Option<f64>) {
        self.0 += share.unwrap_or(0.0);
    }

    pub(crate) fn check(&self, attributed: Option<f64>) -> Result<(), ParseError> {
        let attributed = attributed.unwrap_or(0.0);
        // Each share is rounded on its own.
        if self.0 > attributed + 1e-9 {
            let expected = format!("at least {}, the sum over eps", self.0);
            return Err(ParseError::malformed(
                "macs_attributed",
                expected,
                attributed,
            ));
        }
        Ok(())
    }
}

impl TryFrom<v1::Placement> for Placement {
    type Error = ParseError;

    fn try_from(p: v1::Placement) -> Result<Self, ParseError> {
        let fingerprint = |field: &str, f: Option<v1::Fingerprint>| {
            f.map(Fingerprint::try_from).transpose().inside(field)
        };
        let eps = list("eps", p.eps, MAX_EPS, EpShare::try_from)?;
        each_once("eps", &eps, |e| &e.ep)?;
        let reason = |code| ReasonCode::parse("", code);
        let manifest = optional_bytes("manifest_sha256", &p.manifest_sha256)?;
        let placement = Self {
            requested_eps: parse_eps("requested_eps", p.requested_eps)?,
            eps,
            n_nodes: within("n_nodes", p.n_nodes, 0, MAX_NODES)?,
            cpu_nodes: list("cpu_nodes", p.cpu_nodes, MAX_CPU_NODES, CpuNode::try_from)?,
            cpu_nodes_truncated: p.cpu_nodes_truncated,
            macs_attributed: share("macs_attributed", p.macs_attributed)?,
            manifest_sha256: manifest.map(ModelHash::from_bytes),
            graph_kind: GraphKind::parse("graph_kind", p.graph_kind)?,
            source: PlacementSource::parse("source", p.source)?,
            exact: fingerprint("exact", p.exact)?,
            normalised: fingerprint("normalised", p.normalised)?,
            reasons: list("reasons", p.reasons, MAX_REASONS, reason)?,
        };
        placement.check()?;
        Ok(placement)
    }
}

/// A list of EP names.
pub(crate) fn parse_eps(field: &str, eps: Vec<String>) -> Result<Vec<String>, ParseError> {
    texts(field, eps, MAX_EPS, MAX_EP_NAME_BYTES)
}

impl TryFrom<v1::EpShare> for EpShare {
    type Error = ParseError;

    fn try_from(e: v1::EpShare) -> Result<Self, ParseError> {
        at_most("op_types", e.op_types.len(), MAX_OP_TYPES)?;
        let mut op_types = BTreeMap::new();
        let mut counted: u64 = 0;
        for (index, op) in e.op_types.into_iter().enumerate() {
            let at = || format!("op_types[{index}]");
            let name = required_text("op_type", op.op_type, MAX_EP_NAME_BYTES);
            let name = name.map_err(|error| error.inside(&at()))?;
            let n_nodes = positive("n_nodes", op.n_nodes);
            let n_nodes = n_nodes.map_err(|error| error.inside(&at()))?;
            counted += u64::from(n_nodes);
            if let Some(_twice) = op_types.insert(name, n_nodes) {
                return Err(ParseError::malformed(
                    &at(),
                    "each op type once",
                    "a second one",
                ));
            }
        }
        if counted > u64::from(e.n_nodes) {
            let expected = format!("at least {counted}, the sum over op_types");
            return Err(ParseError::malformed("n_nodes", expected, e.n_nodes));
        }
        Ok(Self {
            ep: required_text("ep", e.ep, MAX_EP_NAME_BYTES)?,
            n_nodes: within("n_nodes", e.n_nodes, 0, MAX_NODES)?,
            n_partitions: e.n_partitions,
            op_types,
            macs_share: share("macs_share", e.macs_share)?,
        })
    }
}

impl TryFrom<v1::CpuNode> for CpuNode {
    type Error = ParseError;

    fn try_from(n: v1::CpuNode) -> Result<Self, ParseError> {
        Ok(Self {
            name: text("name", n.name, MAX_NODE_NAME_BYTES)?,
            op_type: required_text("op_type", n.op_type, MAX_EP_NAME_BYTES)?,
            domain: text("domain", n.domain, MAX_EP_NAME_BYTES)?,
            benign: n.benign,
            reason: ReasonCode::parse("reason", n.reason)?,
            reason_text: text("reason_text", n.reason_text, MAX_NODE_NAME_BYTES)?,
            macs_share: share("macs_share", n.macs_share)?,
        })
    }
}

impl From<&Placement> for v1::Placement {
    fn from(p: &Placement) -> Self {
        let manifest = p.manifest_sha256.as_ref();
        Self {
            requested_eps: p.requested_eps.clone(),
            eps: p.eps.iter().map(Into::into).collect(),
            n_nodes: p.n_nodes,
            cpu_nodes: p.cpu_nodes.iter().map(Into::into).collect(),
            cpu_nodes_truncated: p.cpu_nodes_truncated,
            macs_attributed: p.macs_attributed,
            manifest_sha256: bytes_or_empty(manifest.map(|m| m.as_bytes().as_slice())),
            graph_kind: p.graph_kind.to_wire(),
            source: p.source.to_wire(),
            exact: p.exact.as_ref().map(Into::into),
            normalised: p.normalised.as_ref().map(Into::into),
            reasons: p.reasons.iter().map(|r| r.to_wire()).collect(),
        }
    }
}

impl From<&EpShare> for v1::EpShare {
    fn from(e: &EpShare) -> Self {
        let op = |(op_type, n_nodes): (&String, &u32)| v1::OpCount {
            op_type: op_type.clone(),
            n_nodes: *n_nodes,
        };
        Self {
            ep: e.ep.clone(),
            n_nodes: e.n_nodes,
            n_partitions: e.n_partitions,
            op_types: e.op_types.iter().map(op).collect(),
            macs_share: e.macs_share,
        }
    }
}

impl From<&CpuNode> for v1::CpuNode {
    fn from(n: &CpuNode) -> Self {
        Self {
            name: n.name.clone(),
            op_type: n.op_type.clone(),
            domain: n.domain.clone(),
            benign: n.benign,
            reason: n.reason.to_wire(),
            reason_text: n.reason_text.clone(),
            macs_share: n.macs_share,
        }
    }
}

/// `{EP: {nodes, partitions, macs_share}}`, in the order of the EPs.
struct EpMap<'a>(&'a [EpShare]);

#[derive(Serialize)]
struct EpEntry {
    nodes: u32,
    partitions: Option<u32>,
    macs_share: Option<f64>,
}

impl Serialize for EpMap<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for e in self.0 {
            let entry = EpEntry {
                nodes: e.n_nodes,
                partitions: e.n_partitions,
                macs_share: e.macs_share,
            };
            map.serialize_entry(&e.ep, &entry)?;
        }
        map.end()
    }
}

/// The JSON form that `inspect` and `demo` print; `fingerprint` is the normalised one.
impl Serialize for Placement {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("requested", &self.requested_eps)?;
        map.serialize_entry("source", &self.source)?;
        map.serialize_entry("graph_kind", &self.graph_kind)?;
        map.serialize_entry("n_nodes", &self.n_nodes)?;
        map.serialize_entry("eps", &EpMap(&self.eps))?;
        map.serialize_entry("cpu_nodes", &self.cpu_nodes)?;
        map.serialize_entry("cpu_nodes_truncated", &self.cpu_nodes_truncated)?;
        map.serialize_entry("macs_attributed", &self.macs_attributed)?;
        map.serialize_entry("manifest_sha256", &self.manifest_sha256)?;
        map.serialize_entry("fingerprint", &self.normalised)?;
        map.serialize_entry("fingerprint_exact", &self.exact)?;
        map.serialize_entry("reasons", &self.reasons)?;
        map.end()
    }
}
