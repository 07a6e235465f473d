//! A placement as `epwatch inspect --json` reports it, its numbers, and the refusal of numbers that contradict each other.

use std::collections::BTreeMap;

use epwatch_proto::{Accelerator, Asked, EpBackend};
use serde::Deserialize;

use crate::{
    time::TimeRange,
    verdict::{CrossingWay, Crossings, EpNumbers, PartitionSize, PlacementNumbers, Uncounted},
};

/// EP of Qualcomm's NPU, as ONNX Runtime names it. A document that does not name the requested EP counts as one for it.
pub(crate) const NPU: &str = "QNNExecutionProvider";
/// Rounding error that sums of shares may have.
const ROUNDING: f64 = 1e-6;

/// The document of `inspect --json`, reduced to the fields that are judged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct Inspected {
    pub macs_error: Option<String>,
    #[serde(flatten)]
    pub counted: Counted,
    pub chipsets: Vec<InspectedChipset>,
}

/// The MACs of a model that were counted, and the nodes that were not.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct Counted {
    #[serde(default)]
    pub total_macs: Option<u64>,
    #[serde(default)]
    pub uncounted: Vec<Uncounted>,
}

/// The result for one chipset in `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct InspectedChipset {
    pub chipset: String,
    pub soc_model: String,
    pub session: String,
    pub error: Option<String>,
    /// EPs that the session asked for; if empty, the EP of QNN.
    #[serde(default)]
    pub requested: Vec<String>,
    /// QNN's back end; only recorded reports have it.
    #[serde(skip)]
    pub backend: EpBackend,
    pub eps: BTreeMap<String, EpNumbers>,
    pub cpu_nodes: Vec<InspectedNode>,
    pub fingerprint_normalised: Option<String>,
    pub reasons: Vec<InspectedReason>,
    #[serde(default)]
    pub npu_partitions: Vec<PartitionSize>,
    #[serde(default)]
    pub crossings: Option<CrossingTensors>,
    /// Further fields if the session failed.
    #[serde(default)]
    pub no_session: NoSession,
    /// The message `Placement` in base64, for launches; otherwise empty.
    #[serde(default)]
    pub encoded: String,
    /// Of the model.
    #[serde(skip)]
    pub counted: Counted,
}

/// Fields of a failed session in `inspect --json`, in addition to its error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct NoSession {
    pub node: Option<NamedNode>,
    pub way_out: Option<String>,
}

/// A node by name and op.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct NamedNode {
    pub name: String,
    pub op_type: String,
}

/// A CPU node of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct InspectedNode {
    pub name: String,
    pub op_type: String,
    pub reason: String,
    pub reason_text: Option<String>,
    pub macs_share: Option<f64>,
    pub benign: bool,
    #[serde(default)]
    pub place: Option<Place>,
    #[serde(default)]
    pub time: Option<TimeRange>,
}

/// Position of a CPU node in the graph, as `inspect --json` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "docs/gate.md has them")]
pub enum Place {
    Edge,
    Companion,
    Input,
    Output,
    Middle,
    Weight,
}

/// Tensors between NPU and CPU of `inspect --json`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct CrossingTensors {
    pub to_npu: Vec<CrossingTensor>,
    pub to_cpu: Vec<CrossingTensor>,
}

/// A tensor of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct CrossingTensor {
    pub tensor: String,
    pub bytes: Option<u64>,
}

/// A reason of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "each is a field of `inspect --json`")]
pub struct InspectedReason {
    pub code: String,
    pub fix: String,
}

impl Inspected {
    /// Refuses numbers that contradict each other.
    pub(crate) fn checked(self) -> Result<Self, String> {
        self.chipsets.iter().try_for_each(InspectedChipset::check)?;
        Ok(self)
    }
}

impl InspectedChipset {
    /// The accelerator that the session asked for, with its EP.
    pub(crate) fn asked(&self) -> Asked<'_> {
        let qnn = Asked {
            accelerator: Accelerator::QnnHtp,
            ep: NPU,
        };
        let asked = Asked::by_names(&self.requested).unwrap_or(qnn);
        asked.with_backend(self.backend)
    }

    /// Whether nodes on this EP are on the accelerator that was asked for.
    pub(crate) fn is_asked(&self, ep: &str) -> bool {
        let asked = self.asked();
        let of_ep = Accelerator::of_ep(ep).with_backend(self.backend);
        match asked.accelerator {
            Accelerator::Unknown => asked.ep == ep,
            known => known.is_same(of_ep),
        }
    }

    /// The numbers of the accelerator's EP.
    pub(super) fn npu(&self) -> Option<&EpNumbers> {
        let mut eps = self.eps.iter();
        eps.find_map(|(ep, found)| self.is_asked(ep).then_some(found))
    }

    /// The numbers of the other EPs.
    pub(super) fn off_npu(&self) -> impl Iterator<Item = &EpNumbers> {
        let others = self.eps.iter().filter(|(ep, _)| !self.is_asked(ep));
        others.map(|(_, found)| found)
    }

    /// For example `SM8650`, or `QNN 113` for a number without a name.
    pub fn shown(&self) -> String {
        match self.chipset.as_str() {
            "unknown" => format!("QNN {}", self.soc_model),
            chipset => chipset.to_owned(),
        }
    }

    /// Refuses numbers that contradict each other: a share beyond the whole would keep any limit.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{}: {what}", self.shown()));
        let of_eps = self.eps.iter().map(|(ep, found)| (ep, found.macs_share));
        let of_nodes = self.cpu_nodes.iter();
        let of_nodes = of_nodes.map(|node| (&node.name, node.macs_share));
        for (name, share) in of_eps.chain(of_nodes) {
            if let Some(share) = share.filter(|share| !(0.0..=1.0 + ROUNDING).contains(share)) {
                return wrong(format!("macs_share of {name} is {share}"));
            }
        }
        let all: f64 = self.eps.values().filter_map(|ep| ep.macs_share).sum();
        let off = self.off_npu().filter_map(|ep| ep.macs_share);
        let off = off.reduce(|sum, share| sum + share);
        let named = self.cpu_nodes.iter().filter_map(|node| node.macs_share);
        let named: f64 = named.sum();
        if all > 1.0 + ROUNDING || named > off.unwrap_or(1.0) + ROUNDING {
            return wrong(format!(
                "macs_share adds up to {all} of the EPs and to {named} of the CPU's nodes"
            ));
        }
        let npu = self.npu().filter(|npu| npu.nodes > 0);
        if npu.is_some_and(|npu| npu.partitions == Some(0)) {
            return wrong(format!("{} has nodes and no partition", self.asked().ep));
        }
        Ok(())
    }

    /// The placement in numbers; `None` without a session.
    pub fn numbers(&self) -> Option<PlacementNumbers> {
        let npu = self.npu();
        let shares: Vec<f64> = self.eps.values().filter_map(|ep| ep.macs_share).collect();
        (self.session == "ok").then(|| PlacementNumbers {
            npu_macs: self.npu_macs(),
            macs_attributed: (!shares.is_empty()).then(|| shares.iter().sum::<f64>().min(1.0)),
            eps: self.eps.clone(),
            partitions: npu.and_then(|npu| npu.partitions).unwrap_or(0),
            partition_sizes: self.npu_partitions.clone(),
            cpu_nodes: self.computing().count(),
            cpu_time: self.cpu_time(|node| !node.benign),
            uncounted: self.counted.uncounted.clone(),
            crossings: self
                .crossings
                .as_ref()
                .map(|found| found.numbers(self.further_calls())),
            fingerprint_normalised: self.fingerprint_normalised.clone(),
        })
    }

    /// Total time of these nodes on the CPU; `None` if there are none, or one has no estimate.
    pub(super) fn cpu_time(&self, keep: impl Fn(&InspectedNode) -> bool) -> Option<TimeRange> {
        let mut kept = self.cpu_nodes.iter().filter(|node| keep(node)).peekable();
        kept.peek()?;
        kept.try_fold(TimeRange::default(), |sum, node| Some(sum + node.time?))
    }

    /// Calls of the NPU in one run, without the first call.
    pub(super) fn further_calls(&self) -> u32 {
        let partitions = self.npu().and_then(|npu| npu.partitions);
        partitions.unwrap_or(0).saturating_sub(1)
    }

    pub(crate) fn computing(&self) -> impl Iterator<Item = &InspectedNode> {
        self.cpu_nodes.iter().filter(|node| !node.benign)
    }

    /// Number of nodes off the NPU that are missing from the list of CPU nodes. The list may be cut, and other EPs have
    /// no list.
    pub(crate) fn unlisted(&self) -> u64 {
        let off: u64 = self.off_npu().map(|ep| u64::from(ep.nodes)).sum();
        off.saturating_sub(self.cpu_nodes.len() as u64)
    }

    /// The share of MACs on the NPU. It is also known without MACs, if one side has every node that computes.
    pub(super) fn npu_macs(&self) -> Option<f64> {
        let npu = self.npu().filter(|npu| npu.nodes > 0);
        match (npu, self.computing().next()) {
            (Some(_), None) if self.unlisted() == 0 && self.error.is_none() => Some(1.0),
            (None, Some(_)) => Some(0.0),
            (None, None) => None,
            (Some(npu), _) => {
                if self.counted.unknown_turns().is_some() {
                    return None;
                }
                let of_all = self.eps.values().filter_map(|ep| ep.macs_share);
                npu.macs_share.filter(|_| of_all.sum::<f64>() > 0.0)
            }
        }
    }
}

impl CrossingTensors {
    /// Bytes in both directions; `None` if a tensor has no fixed size.
    pub(super) fn bytes(&self) -> Option<u64> {
        let mut all = self.to_npu.iter().chain(&self.to_cpu);
        all.try_fold(0_u64, |sum, tensor| Some(sum.saturating_add(tensor.bytes?)))
    }

    /// Time for both directions; `None` if a tensor has no fixed size.
    pub(super) fn time(&self, further_calls: u32) -> Option<TimeRange> {
        let is_empty = self.to_npu.is_empty() && self.to_cpu.is_empty();
        let calls = if is_empty { 0 } else { further_calls };
        Some(TimeRange::of_crossings(self.bytes()?, calls))
    }

    pub(super) fn numbers(&self, further_calls: u32) -> Crossings {
        let way = |tensors: &[CrossingTensor]| CrossingWay {
            count: tensors.len() as u64,
            bytes: tensors
                .iter()
                .try_fold(0_u64, |sum, tensor| Some(sum.saturating_add(tensor.bytes?))),
        };
        Crossings {
            to_npu: way(&self.to_npu),
            to_cpu: way(&self.to_cpu),
            time: self.time(further_calls),
        }
    }
}
