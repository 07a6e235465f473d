//! Placements: which execution provider (EP) got which node, with the request separate from the result.

use std::collections::BTreeMap;

use crate::{
    accelerator::{Accelerator, Asked},
    error::ParseError,
    fingerprint::Fingerprint,
    ids::ModelHash,
    message::{
        AtMost32, Bool, Checked, CheckedMessage, Enum, Enums, Few, Fields, Kind, List, Maybe,
        MaybeBytes, MaybeInner, Name, Names, Positive32, Share, Text, U32, each_once, message,
    },
    reason::ReasonCode,
    v1,
    wire::{Value, each_field},
    wire_enum::{WireEnum, wire_enum},
};

wire_enum! {
    /// When the graph was partitioned: in the session, or before.
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum GraphKind: GraphKind {
        Unknown = Unknown "unknown",
        Jit = Jit "jit",
        EpContext = Epcontext "epcontext",
    }
}

wire_enum! {
    /// Source of a placement.
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum PlacementSource: PlacementSource {
        AssignmentApi = AssignmentApi "assignment_api",
        Log = Log "log",
        Unavailable = Unavailable "unavailable",
        Host = Host "host",
    }
}

pub use crate::accelerator::{CPU_EP, QNN_EP};
pub use crate::ep_device::MAX_EP_NAME_BYTES;

/// Maximum number of EPs of one placement or request.
pub const MAX_EPS: usize = 8;
/// Maximum number of nodes of all EPs.
pub const MAX_NODES: u32 = 1_000_000;
/// Maximum number of CPU nodes that are named one by one.
pub const MAX_CPU_NODES: usize = 256;
/// Longest node name and reason text, in bytes.
pub const MAX_NODE_NAME_BYTES: usize = 256;
/// Maximum number of kinds of ops per EP.
pub const MAX_OP_TYPES: usize = 256;
/// Op types of one EP that the fast validator keeps track of.
const MOST_OP_TYPES: usize = 32;
/// Maximum number of reason codes.
pub const MAX_REASONS: usize = 16;

/// Returns a share of MACs as the store holds it, with about six digits.
#[expect(clippy::cast_possible_truncation, reason = "a share, 0 to 1")]
pub fn stored_share(share: f64) -> f32 {
    share as f32
}

/// EPs of a session's nodes, read when the session was created.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Placement {
    pub requested_eps: Vec<String>,
    pub eps: Vec<EpShare>,
    pub n_nodes: u32,
    /// Nodes on the CPU, in ORT's order, at most [`MAX_CPU_NODES`].
    pub cpu_nodes: Vec<CpuNode>,
    pub cpu_nodes_truncated: bool,
    pub macs_attributed: Option<f64>,
    pub manifest_sha256: Option<ModelHash>,
    pub graph_kind: GraphKind,
    pub source: PlacementSource,
    pub exact: Option<Fingerprint>,
    pub normalised: Option<Fingerprint>,
    pub reasons: Vec<ReasonCode>,
}

/// Share of one EP in a session.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct EpShare {
    /// For example [`QNN_EP`].
    pub ep: String,
    pub n_nodes: u32,
    pub n_partitions: Option<u32>,
    pub op_types: BTreeMap<String, u32>,
    pub macs_share: Option<f64>,
}

/// A node that the NPU did not get.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct CpuNode {
    pub name: String,
    pub op_type: String,
    pub domain: String,
    pub benign: bool,
    pub reason: ReasonCode,
    pub reason_text: String,
    pub macs_share: Option<f64>,
}

impl Placement {
    /// Returns a placement of which only the request is known.
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

    /// Returns the share of an EP.
    pub fn ep(&self, name: &str) -> Option<&EpShare> {
        self.eps.iter().find(|e| e.ep == name)
    }

    /// Returns the accelerator that the effective request asks for; `None` for the CPU.
    pub fn asked(&self) -> Option<Asked<'_>> {
        Asked::by_names(&self.requested_eps)
    }

    /// Returns whether the effective request names an accelerator, known or not. Only such sessions vote.
    pub fn requests_npu(&self) -> bool {
        self.asked().is_some()
    }

    /// Returns the accelerator whose nodes count as placed well: the one that was asked for. If none was, it is the first
    /// one that has nodes.
    pub fn accelerator(&self) -> Option<Accelerator> {
        let of_eps = || {
            let eps = self.eps.iter().map(|share| Accelerator::of_ep(&share.ep));
            eps.into_iter().find(|accelerator| accelerator.is_known())
        };
        let asked = self.asked().map(|asked| asked.accelerator);
        asked.or_else(of_eps)
    }

    /// Counts the nodes on the accelerator, which is the NPU for QNN.
    pub fn n_npu_nodes(&self) -> u32 {
        self.npu_shares().map(|e| e.n_nodes).sum()
    }

    /// Counts the partitions on the accelerator.
    pub fn n_npu_partitions(&self) -> u32 {
        self.npu_shares().filter_map(|e| e.n_partitions).sum()
    }

    /// Counts the nodes of the CPU EP, named or not.
    pub fn n_cpu_nodes(&self) -> u32 {
        self.ep(CPU_EP).map_or(0, |e| e.n_nodes)
    }

    /// Counts the named CPU nodes that are expected there.
    pub fn n_benign_cpu_nodes(&self) -> u32 {
        let n_benign = self.cpu_nodes.iter().filter(|node| node.benign).count();
        u32::try_from(n_benign).unwrap_or(u32::MAX)
    }

    /// Returns the version of the rules of both fingerprints; 0 without a fingerprint.
    pub fn fingerprint_algorithm(&self) -> u32 {
        let print = self.normalised.or(self.exact);
        print.map_or(0, |print| print.algorithm)
    }

    /// Returns the share of the model's MACs on the accelerator, 0 to 1. `None` without a manifest.
    pub fn npu_macs_share(&self) -> Option<f64> {
        self.macs_attributed?;
        Some(self.npu_shares().filter_map(|e| e.macs_share).sum())
    }

    /// Returns the share of the model's MACs on the CPU EP, 0 to 1. `None` without a manifest.
    pub fn cpu_macs_share(&self) -> Option<f64> {
        self.macs_attributed?;
        Some(self.ep(CPU_EP).and_then(|e| e.macs_share).unwrap_or(0.0))
    }

    /// Lists the op types of CPU nodes that are not benign, each once, in the order of their first node.
    pub fn cpu_ops(&self) -> Vec<&str> {
        let mut ops = Vec::new();
        for node in self.cpu_nodes.iter().filter(|n| !n.benign) {
            if !ops.contains(&node.op_type.as_str()) {
                ops.push(&node.op_type);
            }
        }
        ops
    }

    fn npu_shares(&self) -> impl Iterator<Item = &EpShare> {
        let accelerator = self.accelerator();
        let is_its = move |share: &&EpShare| {
            let of_share = Accelerator::of_ep(&share.ep);
            accelerator.is_some_and(|accelerator| accelerator.is_same(of_share))
        };
        self.eps.iter().filter(is_its)
    }
}

/// Counts of a placement's nodes, which must not contradict each other.
#[derive(Debug, Clone, Copy)]
struct NodeCounts {
    source: PlacementSource,
    n_eps: usize,
    n_nodes: u32,
    /// Nodes of all EPs.
    of_eps: u64,
    /// Nodes of the CPU EP.
    on_cpu: usize,
    /// Named nodes of the CPU EP.
    named: usize,
    /// Whether the sender left some nodes of the CPU EP unnamed.
    is_truncated: bool,
}

impl NodeCounts {
    fn check(&self) -> Result<(), ParseError> {
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
        // A log may name fewer nodes; the other sources name all nodes that fit.
        let complete = matches!(
            self.source,
            PlacementSource::AssignmentApi | PlacementSource::Host
        );
        if complete && self.is_truncated != (named < on_cpu) {
            let expected = format!("{}: {named} of {on_cpu} are named", named < on_cpu);
            let got = self.is_truncated;
            return Err(ParseError::malformed("cpu_nodes_truncated", expected, got));
        }
        Ok(())
    }
}

/// The EPs' shares of MACs cannot add up to more than the attributed share.
fn check_macs(attributed: Option<f64>, of_eps: f64) -> Result<(), ParseError> {
    let attributed = attributed.unwrap_or(0.0);
    // Each share is rounded on its own.
    if of_eps > attributed + 1e-9 {
        let expected = format!("at least {of_eps}, the sum over eps");
        return Err(ParseError::malformed(
            "macs_attributed",
            expected,
            attributed,
        ));
    }
    Ok(())
}

/// A list of EP names.
pub(crate) type EpNames = Names<MAX_EPS, MAX_EP_NAME_BYTES>;

message! {
    mod placement_fields: Placement = v1::Placement {
        1 requested_eps: EpNames,
        2 eps: List<EpShare, MAX_EPS>,
        3 n_nodes: AtMost32<MAX_NODES>,
        4 cpu_nodes: List<CpuNode, MAX_CPU_NODES>,
        5 cpu_nodes_truncated: Bool,
        6 macs_attributed: Maybe<Share>,
        7 manifest_sha256: MaybeBytes<ModelHash, 32>,
        8 graph_kind: Enum<GraphKind>,
        9 source: Enum<PlacementSource>,
        10 exact: MaybeInner<Fingerprint>,
        11 normalised: MaybeInner<Fingerprint>,
        12 reasons: Enums<ReasonCode, MAX_REASONS>,
    }
    rule Placement::with_possible_counts;
    checked by hand;
}

impl Placement {
    fn with_possible_counts(self) -> Result<Self, ParseError> {
        each_once("eps", &self.eps, |e| &e.ep)?;
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
        let of_eps = self.eps.iter().filter_map(|e| e.macs_share).sum();
        check_macs(self.macs_attributed, of_eps)?;
        Ok(self)
    }
}

impl CheckedMessage for Placement {
    type Kept<'a> = ();

    fn check(bytes: &[u8]) -> Option<()> {
        let mut fields = placement_fields::Seen::default();
        let mut eps = Few::<&[u8], MAX_EPS>::default();
        let (mut of_eps, mut on_cpu, mut macs_of_eps) = (0, 0, 0.0);
        each_field(bytes, |number, value| match number {
            placement_fields::field::eps => {
                let share = EpShare::check(value.bytes()?)?;
                eps.add(share.ep)?;
                of_eps += u64::from(share.n_nodes);
                if share.ep == CPU_EP.as_bytes() {
                    on_cpu = share.n_nodes as usize;
                }
                macs_of_eps += share.macs_share.unwrap_or(0.0);
                Some(())
            }
            _ => fields.see(number, value),
        })?;
        let counts = NodeCounts {
            source: PlacementSource::from_number(fields.source)?,
            n_eps: eps.entries().len(),
            n_nodes: fields.n_nodes,
            of_eps,
            on_cpu,
            named: fields.cpu_nodes,
            is_truncated: fields.cpu_nodes_truncated,
        };
        counts.check().ok()?;
        check_macs(fields.macs_attributed, macs_of_eps).ok()?;
        fields.is_whole().then_some(())
    }
}

message! {
    mod share_fields: EpShare = v1::EpShare {
        1 ep: Name<MAX_EP_NAME_BYTES>,
        2 n_nodes: AtMost32<MAX_NODES>,
        3 n_partitions: Maybe<U32>,
        4 op_types: OpTypes,
        5 macs_share: Maybe<Share>,
    }
    rule EpShare::with_possible_sum;
    keeps ShareCounts<'a> = |seen| {
        let is_possible = seen.op_types.n_nodes <= u64::from(seen.n_nodes);
        is_possible.then_some(ShareCounts {
            ep: seen.ep,
            n_nodes: seen.n_nodes,
            macs_share: seen.macs_share,
        })
    };
}

impl EpShare {
    fn with_possible_sum(self) -> Result<Self, ParseError> {
        let counted: u64 = self.op_types.values().map(|n| u64::from(*n)).sum();
        if counted > u64::from(self.n_nodes) {
            let expected = format!("at least {counted}, the sum over op_types");
            return Err(ParseError::malformed("n_nodes", expected, self.n_nodes));
        }
        Ok(self)
    }
}

/// The part of an EP's share that the placement adds up.
pub(crate) struct ShareCounts<'a> {
    ep: &'a [u8],
    n_nodes: u32,
    macs_share: Option<f64>,
}

/// Nodes by op type, each type once.
pub(crate) struct OpTypes;

impl Kind for OpTypes {
    type Wire = Vec<v1::OpCount>;
    type Parsed = BTreeMap<String, u32>;

    fn parse(field: &str, counts: Vec<v1::OpCount>) -> Result<Self::Parsed, ParseError> {
        let counts = List::<OpCount, MAX_OP_TYPES>::parse(field, counts)?;
        each_once(field, &counts, |count| &count.op_type)?;
        Ok(counts.into_iter().map(|c| (c.op_type, c.n_nodes)).collect())
    }

    fn encode(counts: &Self::Parsed) -> Vec<v1::OpCount> {
        let count = |(op_type, n_nodes): (&String, &u32)| v1::OpCount {
            op_type: op_type.clone(),
            n_nodes: *n_nodes,
        };
        counts.iter().map(count).collect()
    }
}

#[derive(Default)]
pub(crate) struct SeenOpTypes<'a> {
    names: Few<&'a [u8], MOST_OP_TYPES>,
    n_nodes: u64,
}

impl Checked for OpTypes {
    type Seen<'a> = SeenOpTypes<'a>;

    #[inline]
    fn see<'a>(seen: &mut SeenOpTypes<'a>, value: Value<'a>) -> Option<()> {
        let count = OpCount::check(value.bytes()?)?;
        seen.n_nodes += u64::from(count.n_nodes);
        seen.names.add(count.op_type)
    }
}

struct OpCount {
    op_type: String,
    n_nodes: u32,
}

message! {
    mod op_fields: OpCount = v1::OpCount {
        1 op_type: Name<MAX_EP_NAME_BYTES>,
        2 n_nodes: Positive32,
    }
    keeps op_fields::Seen<'a> = Some;
}

message! {
    mod node_fields: CpuNode = v1::CpuNode {
        1 name: Text<MAX_NODE_NAME_BYTES>,
        2 op_type: Name<MAX_EP_NAME_BYTES>,
        3 domain: Text<MAX_EP_NAME_BYTES>,
        4 benign: Bool,
        5 reason: Enum<ReasonCode>,
        6 reason_text: Text<MAX_NODE_NAME_BYTES>,
        7 macs_share: Maybe<Share>,
    }
}
