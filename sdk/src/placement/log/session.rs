//! What a log tells of one session.

use std::collections::{HashMap, HashSet, VecDeque};

use epwatch_proto::{
    ReasonCode,
    chipset::{Fp16, SOCS, Soc},
    clipped,
    fingerprint::is_edge_quantization,
    placement::{CPU_EP, MAX_NODE_NAME_BYTES, QNN_EP},
};

use super::{
    super::{AssignedNode, Assignment, Subgraph},
    reason::refusal_reason,
};

/// One session's lines, summed up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionLog {
    /// ORT's own list, in its order. Nodes of one partition are one fused node here.
    pub placed: Vec<PlacedEp>,
    /// How many such lists there are: the bodies of If and Loop have their own.
    pub n_lists: u32,
    /// Nodes that QNN's validator saw in its last pass, in its order.
    pub validated: Vec<ValidatedNode>,
    /// QNN's own sums of its last pass, where its version says them.
    pub capability: Option<Capability>,
    /// What went wrong with the back end or the graph as a whole, each once.
    pub reasons: Vec<ReasonCode>,
    /// First message behind `reasons`, as it was logged.
    pub reason_text: String,
    /// QNN's `soc_model` as the log says it was given.
    pub soc_model: String,
    /// Whether there was more than is kept: then there is no assignment.
    pub is_truncated: bool,
}

/// One EP's part of ORT's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedEp {
    /// For example `QNNExecutionProvider`.
    pub ep: String,
    /// How many nodes ORT says there are.
    pub n_nodes: u32,
    /// Those that it names: none where all nodes are on one EP.
    pub nodes: Vec<PlacedNode>,
}

/// A node of ORT's list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacedNode {
    /// Op type; of a fused node its made-up name.
    pub op_type: String,
    /// Name; may be empty.
    pub name: String,
}

/// A node that QNN's validator looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedNode {
    /// Op type.
    pub op_type: String,
    /// Name; may be empty.
    pub name: String,
    /// Why it was refused, `None` if it was taken.
    pub refusal: Option<Refusal>,
}

/// Why the validator refused a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The validator's own sentence.
    pub text: String,
    /// Whether the back end's op check refused it (error 3110), not the EP.
    pub by_backend: bool,
    /// Whether one of its inputs is a float tensor, as far as the log shows.
    pub has_float_input: bool,
}

/// QNN's own sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Partitions.
    pub n_partitions: u32,
    /// Nodes of the graph, and those of them that are in a partition. Not said where there is no
    /// partition.
    pub nodes: Option<(u32, u32)>,
}

impl Refusal {
    /// The code for it on this chipset; where the chipset is not known, FP16 is not blamed.
    pub fn reason(&self, soc: Option<&Soc>) -> ReasonCode {
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
    /// The chipset that the log names.
    pub fn soc(&self) -> Option<&'static Soc> {
        soc_of(&self.soc_model)
    }

    /// Whether the log says anything about placement.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Who got which node, as the assignment API would have told it; `None` where the log does not
    /// say it all.
    ///
    /// Which of several partitions holds a node is not in a log: all of an EP's nodes are in its
    /// first one. Domains are not, either.
    pub fn assignment(&self) -> Option<Assignment> {
        let is_plain = self.n_lists <= 1 && !self.validator_saw_partitions();
        if self.is_truncated || self.placed.is_empty() || !is_plain {
            return None;
        }
        let on_qnn = self.placed.iter().find(|p| p.ep == QNN_EP);
        let n_partitions = on_qnn.map_or(0, |p| p.n_nodes);
        let mut subgraphs = Vec::new();
        // Without a partition all that the validator took went back.
        let taken = match n_partitions {
            0 => Vec::new(),
            _ => self.taken(),
        };
        if n_partitions > 0 {
            if taken.is_empty() || self.contradicts(taken.len()) {
                return None;
            }
            let nodes = taken.iter().map(|n| node(&n.op_type, &n.name));
            subgraphs.push(subgraph(QNN_EP, nodes.collect()));
            let more = (1..n_partitions.min(MAX_PARTITIONS)).map(|_| subgraph(QNN_EP, Vec::new()));
            subgraphs.extend(more);
        }
        for placed in self.placed.iter().filter(|p| p.ep != QNN_EP) {
            if placed.ep == CPU_EP && self.validator_saw_all() {
                continue;
            }
            // Fused nodes of another EP hide what they hold.
            if placed.nodes.len() as u64 != u64::from(placed.n_nodes) || placed.ep != CPU_EP {
                return None;
            }
            let each = placed.nodes.iter().map(|n| node(&n.op_type, &n.name));
            subgraphs.extend(each.map(|n| subgraph(CPU_EP, vec![n])));
        }
        if self.validator_saw_all() {
            let taken: HashSet<_> = taken.iter().map(|n| std::ptr::from_ref(*n)).collect();
            let left = self
                .validated
                .iter()
                .filter(|n| !taken.contains(&std::ptr::from_ref(*n)));
            subgraphs.extend(left.map(|n| subgraph(CPU_EP, vec![node(&n.op_type, &n.name)])));
        }
        Some(Assignment { subgraphs })
    }

    /// Nodes on the CPU EP by ORT's list alone, where it has nothing else: a count without names.
    pub fn cpu_only_count(&self) -> Option<u32> {
        match &self.placed[..] {
            [only] if only.ep == CPU_EP && !self.is_truncated => Some(only.n_nodes),
            _ => None,
        }
    }

    /// The refusals by (name, op type); of nodes alike in both, one after the other.
    pub(crate) fn refusals(&self) -> Refusals<'_> {
        let mut by_node = HashMap::new();
        for n in &self.validated {
            if let Some(refusal) = &n.refusal {
                let refusals: &mut VecDeque<_> =
                    by_node.entry(key(&n.name, &n.op_type)).or_default();
                refusals.push_back(refusal);
            }
        }
        Refusals { by_node }
    }

    /// A partition of a single QuantizeLinear or DequantizeLinear is dropped again: the validator
    /// took the node, ORT's list has it on the CPU.
    fn taken(&self) -> Vec<&ValidatedNode> {
        let mut back: HashMap<(&str, &str), usize> = HashMap::new();
        let on_cpu = self
            .placed
            .iter()
            .filter(|p| p.ep == CPU_EP)
            .flat_map(|p| &p.nodes);
        for n in on_cpu.filter(|n| is_edge_quantization(&n.op_type)) {
            *back.entry((&n.name, &n.op_type)).or_default() += 1;
        }
        for n in self.validated.iter().filter(|n| n.refusal.is_some()) {
            if let Some(left) = back.get_mut(&(&*n.name, &*n.op_type)) {
                *left = left.saturating_sub(1);
            }
        }
        let mut taken = Vec::new();
        for n in self.validated.iter().filter(|n| n.refusal.is_none()) {
            match back.get_mut(&(&*n.name, &*n.op_type)) {
                Some(left) if *left > 0 => *left -= 1,
                _ => taken.push(n),
            }
        }
        taken
    }

    /// The validator looks at every node, but in a precompiled graph, and in the oldest form it
    /// names one node of a group only: what QNN says of its sums tells.
    fn validator_saw_all(&self) -> bool {
        let is_precompiled = self.validated.iter().any(|n| n.op_type == "EPContext");
        let n_graph = self
            .capability
            .and_then(|c| c.nodes)
            .map(|(all, _)| all as usize);
        !self.validated.is_empty()
            && !is_precompiled
            && n_graph.is_none_or(|n| n == self.validated.len())
    }

    /// Where a function's body is put in after partitioning, the validator is asked again about a
    /// graph in which partitions are nodes already.
    fn validator_saw_partitions(&self) -> bool {
        let fused = self.placed.iter().filter(|p| p.ep == QNN_EP);
        let fused: HashSet<_> = fused.flat_map(|p| &p.nodes).map(|n| &n.op_type).collect();
        self.validated.iter().any(|n| fused.contains(&n.op_type))
    }

    fn contradicts(&self, n_taken: usize) -> bool {
        let said = self
            .capability
            .and_then(|c| c.nodes)
            .map(|(_, taken)| taken as usize);
        said.is_some_and(|said| said != n_taken)
    }
}

/// No graph has more partitions than this; a log's number is only a text.
const MAX_PARTITIONS: u32 = 100_000;

fn node(op_type: &str, name: &str) -> AssignedNode {
    AssignedNode {
        name: name.to_owned(),
        op_type: op_type.to_owned(),
        domain: String::new(),
    }
}

fn subgraph(ep: &str, nodes: Vec<AssignedNode>) -> Subgraph {
    Subgraph {
        ep: ep.to_owned(),
        nodes,
    }
}

/// A chipset by QNN's number or by its code.
pub(crate) fn soc_of(soc_model: &str) -> Option<&'static Soc> {
    let id = soc_model.trim().parse::<u32>().ok();
    let is_it =
        |soc: &&Soc| Some(soc.qnn_id) == id || soc_model.trim().eq_ignore_ascii_case(soc.soc);
    SOCS.iter().find(is_it)
}

/// Refusals by node.
#[derive(Debug)]
pub(crate) struct Refusals<'a> {
    by_node: HashMap<(String, String), VecDeque<&'a Refusal>>,
}

impl<'a> Refusals<'a> {
    /// The next refusal of a node of this name and op type; the last one stays.
    pub(crate) fn next(&mut self, name: &str, op_type: &str) -> Option<&'a Refusal> {
        let refusals = self.by_node.get_mut(&key(name, op_type))?;
        match refusals.len() {
            1 => refusals.front().copied(),
            _ => refusals.pop_front(),
        }
    }
}

/// As a placement has them, clipped and never without an op type.
fn key(name: &str, op_type: &str) -> (String, String) {
    (clipped(name, MAX_NODE_NAME_BYTES), op_type.to_owned())
}
