//! One session, as its log describes it.

use std::collections::{HashMap, HashSet, VecDeque};

use epwatch_proto::{
    Accelerator, CpuNode, ReasonCode,
    chipset::{Fp16, Soc, soc_by_soc_model},
    clipped,
    fingerprint::is_edge_quantization,
    placement::{CPU_EP, MAX_NODE_NAME_BYTES, QNN_EP},
};

use super::{
    super::{AssignedNode, Assignment, Subgraph},
    pasted::Pasted,
    reason::refusal_reason,
    run_error::RunError,
};

/// The data that the log lines of one session contain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionLog {
    /// ORT's own list in its order. A partition is one fused node here.
    pub(crate) placed: Vec<PlacedEp>,
    /// Number of lists of ORT: the bodies of If and Loop have lists of their own.
    pub(crate) n_lists: u32,
    /// Nodes in the validator's last pass, in its order.
    pub(crate) validated: Vec<ValidatedNode>,
    /// QNN's own counts in its last pass, if its version has them.
    pub(crate) capability: Option<Capability>,
    /// Failures of the back end or of the whole graph, each once.
    pub(crate) reasons: Vec<ReasonCode>,
    /// The first message behind `reasons`.
    pub(crate) reason_text: String,
    /// Nodes in the error of a session that forbids the CPU.
    pub(crate) unsupported: Vec<AssignedNode>,
    /// Runs that failed, by node and number.
    pub(crate) run_errors: Vec<RunError>,
    /// Lines of unknown origin.
    pub(crate) pasted: Pasted,
    /// QNN's `soc_model`, as the log has it.
    pub(crate) soc_model: String,
    /// Whether the log had more nodes than are kept; then the session has no assignment.
    pub(crate) is_truncated: bool,
}

/// An EP in ORT's list, for logs that are too incomplete for a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEp {
    /// The EP's name.
    pub ep: String,
    /// ORT's count. A partition of the NPU counts as one node.
    pub n_nodes: u32,
    /// Nodes with names, as op type and name; none if all nodes are on one EP.
    pub nodes: Vec<(String, String)>,
}

/// One EP's part of ORT's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedEp {
    pub(crate) ep: String,
    /// ORT's count.
    pub(crate) n_nodes: u32,
    /// Nodes with names: none if all nodes are on one EP.
    /// A fused node has a made-up op type.
    pub(crate) nodes: Vec<AssignedNode>,
}

/// A node in the validator's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidatedNode {
    pub(crate) node: AssignedNode,
    /// `None` if it was accepted.
    pub(crate) refusal: Option<NodeRefusal>,
}

/// Refusal of a node by the validator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRefusal {
    /// The validator's sentence.
    pub(crate) text: String,
    /// Refused by the back end's op check (error 3110), not by the EP.
    pub(crate) by_backend: bool,
    /// Whether one of its inputs is a float tensor, as far as the log shows.
    pub(crate) has_float_input: bool,
}

/// QNN's own counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) n_partitions: u32,
    /// Number of nodes in the graph, and of nodes in partitions. `None` if there is no partition.
    pub(crate) nodes: Option<(u32, u32)>,
}

impl NodeRefusal {
    /// Returns the reason code on this chipset. If the chipset is not known, FP16 cannot be the reason.
    pub(crate) fn reason(&self, soc: Option<&Soc>) -> ReasonCode {
        let lacks_fp16 = soc.is_some_and(|soc| soc.fp16 == Fp16::No);
        if self.by_backend && self.has_float_input && lacks_fp16 {
            return ReasonCode::Fp16NotSupported;
        }
        match refusal_reason(&self.text) {
            ReasonCode::Unknown if self.by_backend => ReasonCode::OpConfigRejected,
            reason => reason,
        }
    }
}

impl SessionLog {
    /// Returns the chipset named in the log.
    #[doc(hidden)]
    pub fn soc(&self) -> Option<&'static Soc> {
        soc_by_soc_model(&self.soc_model)
    }

    pub(crate) fn first_reason(&self) -> Option<ReasonCode> {
        self.reasons.first().copied()
    }

    /// Whether the log has no information about placement.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the EP of each node, as the assignment API would; `None` if the log is incomplete.
    ///
    /// A log contains neither domains nor the partition of a node: all of an EP's nodes are in its
    /// first partition here.
    pub fn assignment(&self) -> Option<Assignment> {
        let is_plain = self.n_lists <= 1 && !self.validator_saw_partitions();
        if self.is_truncated || self.placed.is_empty() || !is_plain {
            return None;
        }
        let on_qnn = self.placed.iter().find(|p| p.ep == QNN_EP);
        let n_partitions = on_qnn.map_or(0, |p| p.n_nodes);
        let mut subgraphs = Vec::new();
        // If there is no partition, all accepted nodes went back to the CPU.
        let taken = match n_partitions {
            0 => Vec::new(),
            _ => self.taken(),
        };
        if n_partitions > 0 {
            if taken.is_empty() || self.contradicts(taken.len()) {
                return None;
            }
            let nodes = taken.iter().map(|n| n.node.clone());
            subgraphs.push(subgraph(QNN_EP, nodes.collect()));
            let more = (1..n_partitions.min(MAX_PARTITIONS)).map(|_| subgraph(QNN_EP, Vec::new()));
            subgraphs.extend(more);
        }
        for placed in self.placed.iter().filter(|p| p.ep != QNN_EP) {
            if placed.ep == CPU_EP && self.validator_saw_all() {
                continue;
            }
            // Fused nodes of another EP hide their content.
            let is_whole = placed.nodes.len() as u64 == u64::from(placed.n_nodes);
            if !is_whole || !runs_kernels(&placed.ep) {
                return None;
            }
            let each = placed.nodes.iter().cloned();
            match placed.ep == CPU_EP {
                true => subgraphs.extend(each.map(|n| subgraph(CPU_EP, vec![n]))),
                false => {
                    let own = each.filter(|n| !is_copy(n)).map(as_in_model);
                    subgraphs.push(subgraph(&placed.ep, own.collect()));
                }
            }
        }
        if self.validator_saw_all() {
            let taken: HashSet<_> = taken.iter().map(|n| std::ptr::from_ref(*n)).collect();
            let left = self
                .validated
                .iter()
                .filter(|n| !taken.contains(&std::ptr::from_ref(*n)));
            subgraphs.extend(left.map(|n| subgraph(CPU_EP, vec![n.node.clone()])));
        }
        Some(Assignment { subgraphs })
    }

    /// Returns the number of nodes if ORT's list has only the CPU EP. Such a list has no names.
    pub fn cpu_only_count(&self) -> Option<u32> {
        let (ep, n_nodes) = self.only_count()?;
        (ep == CPU_EP).then_some(n_nodes)
    }

    /// Returns the same for any EP that runs kernels: its name and the number of its nodes.
    pub(crate) fn only_count(&self) -> Option<(&str, u32)> {
        match &self.placed[..] {
            [only] if runs_kernels(&only.ep) && !self.is_truncated => {
                Some((&only.ep, only.n_nodes))
            }
            _ => None,
        }
    }

    /// Returns QNN's own counts: nodes on the NPU, nodes of the graph, and partitions. They are in the log at INFO.
    pub fn qnn_counts(&self) -> Option<(u32, u32, u32)> {
        let Capability {
            n_partitions,
            nodes,
        } = self.capability?;
        let (all, taken) = nodes?;
        (taken <= all).then_some((taken, all, n_partitions))
    }

    /// Returns ORT's own list by EP, even if the log has no line of the validator.
    pub fn listed(&self) -> Vec<ListedEp> {
        let each = self.placed.iter().map(|placed| ListedEp {
            ep: placed.ep.clone(),
            n_nodes: placed.n_nodes,
            nodes: placed
                .nodes
                .iter()
                .map(|n| (n.op_type.clone(), n.name.clone()))
                .collect(),
        });
        each.collect()
    }

    /// Returns failed runs, by node and QNN's number.
    pub fn run_errors(&self) -> &[RunError] {
        &self.run_errors
    }

    /// Returns the reasons of failures of the back end, the whole graph or a run, a cause before its effect.
    #[doc(hidden)]
    pub fn reasons(&self) -> &[ReasonCode] {
        &self.reasons
    }

    /// Returns the data from lines of unknown origin.
    pub fn pasted(&self) -> &Pasted {
        &self.pasted
    }

    pub(super) fn add_run_error(&mut self, error: RunError) {
        let same = |known: &&mut RunError| known.node == error.node && known.code == error.code;
        let has_room = self.run_errors.len() < MAX_RUN_ERRORS;
        match self.run_errors.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(1),
            None if has_room => self.run_errors.push(error),
            None => {}
        }
    }

    /// Returns the nodes that the validator refused, even if the log is too incomplete for a placement.
    #[doc(hidden)]
    pub fn refused(&self) -> Vec<CpuNode> {
        if self.validated.is_empty() {
            let each = self.unsupported.iter().map(|node| CpuNode {
                name: clipped(&node.name, MAX_NODE_NAME_BYTES),
                op_type: node.op_type.clone(),
                domain: String::new(),
                reason: ReasonCode::Unknown,
                reason_text: String::new(),
                macs_share: None,
                benign: false,
            });
            return each.collect();
        }
        let refused = self.validated.iter().filter_map(|validated| {
            let (node, refusal) = (&validated.node, validated.refusal.as_ref()?);
            Some(CpuNode {
                name: clipped(&node.name, MAX_NODE_NAME_BYTES),
                op_type: node.op_type.clone(),
                domain: node.domain.clone(),
                reason: refusal.reason(self.soc()),
                reason_text: refusal.text.clone(),
                macs_share: None,
                benign: false,
            })
        });
        refused.collect()
    }

    /// Returns the first message of a failure of the back end or the whole graph.
    pub fn problem(&self) -> Option<&str> {
        Some(&*self.reason_text).filter(|text| !text.is_empty())
    }

    /// Refusals by name and op type. Nodes with the same name and type follow in order.
    pub(crate) fn refusals(&self) -> Refusals<'_> {
        let mut by_node = HashMap::new();
        for n in &self.validated {
            if let Some(refusal) = &n.refusal {
                let key = key(&n.node.name, &n.node.op_type);
                let refusals: &mut VecDeque<_> = by_node.entry(key).or_default();
                refusals.push_back(refusal);
            }
        }
        Refusals { by_node }
    }

    /// Nodes in QNN's partitions. A partition of a single QuantizeLinear or DequantizeLinear is dropped again: the
    /// validator accepted the node, but ORT's list has it on the CPU.
    fn taken(&self) -> Vec<&ValidatedNode> {
        let mut back: HashMap<&AssignedNode, usize> = HashMap::new();
        let on_cpu = self
            .placed
            .iter()
            .filter(|p| p.ep == CPU_EP)
            .flat_map(|p| &p.nodes);
        for n in on_cpu.filter(|n| is_edge_quantization(&n.op_type)) {
            *back.entry(n).or_default() += 1;
        }
        for n in self.validated.iter().filter(|n| n.refusal.is_some()) {
            if let Some(left) = back.get_mut(&n.node) {
                *left = left.saturating_sub(1);
            }
        }
        let mut taken = Vec::new();
        for n in self.validated.iter().filter(|n| n.refusal.is_none()) {
            match back.get_mut(&n.node) {
                Some(left) if *left > 0 => *left -= 1,
                _ => taken.push(n),
            }
        }
        taken
    }

    /// Whether the validator reported every node. For a precompiled graph it reports none, and its oldest form names
    /// one node per group; QNN's own counts show the difference.
    fn validator_saw_all(&self) -> bool {
        let is_precompiled = self.validated.iter().any(|n| n.node.op_type == "EPContext");
        let n_graph = self
            .capability
            .and_then(|c| c.nodes)
            .map(|(all, _)| all as usize);
        !self.validated.is_empty()
            && !is_precompiled
            && n_graph.is_none_or(|n| n == self.validated.len())
    }

    /// Whether the validator saw partitions as nodes. The validator runs again if a function's body is inlined after
    /// partitioning.
    fn validator_saw_partitions(&self) -> bool {
        let fused = self.placed.iter().filter(|p| p.ep == QNN_EP);
        let fused: HashSet<_> = fused.flat_map(|p| &p.nodes).map(|n| &n.op_type).collect();
        let mut validated = self.validated.iter();
        validated.any(|n| fused.contains(&n.node.op_type))
    }

    fn contradicts(&self, n_taken: usize) -> bool {
        let said = self
            .capability
            .and_then(|c| c.nodes)
            .map(|(_, taken)| taken as usize);
        said.is_some_and(|said| said != n_taken)
    }
}

/// Maximum number of failed runs with different nodes or numbers that are kept.
const MAX_RUN_ERRORS: usize = 32;

/// Maximum number of partitions that are believed, because a log's number is untrusted. No graph has more.
const MAX_PARTITIONS: u32 = 100_000;

/// Whether ORT's list has each node of an EP. This is so for the CPU EP, and for EPs whose nodes only the log has.
fn runs_kernels(ep: &str) -> bool {
    ep == CPU_EP || !Accelerator::of_ep(ep).is_recorded()
}

/// Whether ORT added a node that copies between processors.
fn is_copy(node: &AssignedNode) -> bool {
    ["MemcpyFromHost", "MemcpyToHost"].contains(&&*node.op_type)
}

/// Gives a node its name in the model: ORT adds `_token_7` when it changes the layout.
fn as_in_model(mut node: AssignedNode) -> AssignedNode {
    if let Some((name, number)) = node.name.rsplit_once("_token_") {
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !name.is_empty() {
            node.name = name.to_owned();
        }
    }
    node
}

fn subgraph(ep: &str, nodes: Vec<AssignedNode>) -> Subgraph {
    Subgraph {
        ep: ep.to_owned(),
        nodes,
    }
}

/// Refusals by node.
#[derive(Debug)]
pub(crate) struct Refusals<'a> {
    by_node: HashMap<(String, String), VecDeque<&'a NodeRefusal>>,
}

impl<'a> Refusals<'a> {
    /// Returns the next refusal of a node with this name and op type; the last refusal is returned again.
    pub(crate) fn next(&mut self, name: &str, op_type: &str) -> Option<&'a NodeRefusal> {
        let refusals = self.by_node.get_mut(&key(name, op_type))?;
        match refusals.len() {
            1 => refusals.front().copied(),
            _ => refusals.pop_front(),
        }
    }
}

/// Name and op type, clipped as in a placement.
fn key(name: &str, op_type: &str) -> (String, String) {
    (clipped(name, MAX_NODE_NAME_BYTES), op_type.to_owned())
}
