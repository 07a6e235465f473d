//! Judges a placement as `epwatch inspect --json` reports it. Needs no statistics: a placement has one answer for a
//! model, a chipset and a runtime.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    advice::node_of_error,
    ops::OpForm,
    policy::{DEFAULT_MIN_NPU_MACS, PlacementLimits},
    verdict::{Check, Crossings, EpNumbers, FailingNode, Outcome, PartitionSize, PlacementNumbers},
};

pub(crate) const NPU: &str = "QNNExecutionProvider";
/// Share of the MACs that a new model may lose.
const MOST_LOST: f64 = 0.02;
/// Error of sums of shares.
const ROUNDING: f64 = 1e-6;
/// Partitions in a sentence.
const SHOWN_PARTITIONS: usize = 4;

/// The document of `inspect --json`, as far as it is judged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct Inspected {
    pub macs_error: Option<String>,
    pub chipsets: Vec<InspectedChipset>,
}

/// A chipset of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct InspectedChipset {
    pub chipset: String,
    pub soc_model: String,
    pub session: String,
    pub error: Option<String>,
    pub eps: BTreeMap<String, EpNumbers>,
    pub cpu_nodes: Vec<InspectedNode>,
    pub fingerprint_normalised: Option<String>,
    pub reasons: Vec<InspectedReason>,
    #[serde(default)]
    pub npu_partitions: Vec<PartitionSize>,
}

/// A CPU node of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct InspectedNode {
    pub name: String,
    pub op_type: String,
    pub reason: String,
    pub reason_text: Option<String>,
    pub macs_share: Option<f64>,
    pub benign: bool,
}

/// A reason of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct InspectedReason {
    pub code: String,
    pub fix: String,
}

/// Judges the bytes between NPU and CPU; `None` if there is no limit.
pub fn judge_crossings(crossings: Option<Crossings>, limits: &PlacementLimits) -> Option<Check> {
    let most = limits.max_crossing_bytes?;
    let ways = crossings.map(|found| [found.to_npu, found.to_cpu]);
    let bytes = ways.and_then(|[a, b]| Some(a.bytes?.saturating_add(b.bytes?)));
    let (result, why) = match (bytes, ways) {
        (Some(bytes), Some([to_npu, to_cpu])) => (
            match bytes <= most {
                true => Outcome::Pass,
                false => Outcome::Fail,
            },
            format!(
                "{bytes} bytes a run: {} tensors to the NPU, {} to the CPU; at most {most}",
                to_npu.count, to_cpu.count
            ),
        ),
        _ => (
            Outcome::Undecided,
            "a tensor between NPU and CPU has no fixed size, or a node has no name; give --shape, or name the nodes \
             (epwatch manifest --stamp-names)"
                .to_owned(),
        ),
    };
    let bytes = bytes.map(|bytes| bytes as f64);
    Some(Check::new("crossings", result, why).with(bytes, Some(most as f64)))
}

impl Inspected {
    /// Refuses numbers that contradict each other.
    pub(crate) fn checked(self) -> Result<Self, String> {
        self.chipsets.iter().try_for_each(InspectedChipset::check)?;
        Ok(self)
    }
}

/// Judges a placement by the one of the model before: the NPU may not lose more than two points of the MACs.
pub fn judge_change(now: &PlacementNumbers, before: &PlacementNumbers) -> Check {
    let shares = now.npu_macs.zip(before.npu_macs);
    let nodes = |of: &PlacementNumbers| {
        of.eps
            .iter()
            .map(|(ep, found)| (ep.clone(), found.nodes))
            .collect::<Vec<_>>()
    };
    let prints = now
        .fingerprint_normalised
        .as_ref()
        .zip(before.fingerprint_normalised.as_ref());
    let moved = prints.is_some_and(|(now, before)| now != before) && nodes(now) == nodes(before);
    let (result, why) = match shares {
        Some((share, was)) if was - share > MOST_LOST => (
            Outcome::Fail,
            format!(
                "{} of the MACs on the NPU, {} before",
                percent(share),
                percent(was)
            ),
        ),
        _ if now.partitions > before.partitions => (
            Outcome::Warn,
            format!(
                "{} partitions on the NPU, {} before",
                now.partitions, before.partitions
            ),
        ),
        _ if moved => (
            Outcome::Warn,
            "as many nodes on each EP as before, but other ones".to_owned(),
        ),
        None => (
            Outcome::Skip,
            "the MACs of one side are not known".to_owned(),
        ),
        Some(_) => (Outcome::Pass, "nothing left the NPU".to_owned()),
    };
    Check::new("placement_change", result, why)
        .with(now.npu_macs, before.npu_macs.map(|was| was - MOST_LOST))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

impl InspectedChipset {
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
        let (mut all, mut off) = (0.0, None::<f64>);
        for (ep, found) in &self.eps {
            let share = found.macs_share;
            all += share.unwrap_or(0.0);
            off = match (off, share.filter(|_| ep != NPU)) {
                (Some(sum), Some(share)) => Some(sum + share),
                (sum, share) => sum.or(share),
            };
        }
        let named = self.cpu_nodes.iter().filter_map(|node| node.macs_share);
        let named: f64 = named.sum();
        if all > 1.0 + ROUNDING || named > off.unwrap_or(1.0) + ROUNDING {
            return wrong(format!(
                "macs_share adds up to {all} of the EPs and to {named} of the CPU's nodes"
            ));
        }
        let npu = self.eps.get(NPU).filter(|npu| npu.nodes > 0);
        if npu.is_some_and(|npu| npu.partitions == Some(0)) {
            return wrong(format!("{NPU} has nodes and no partition"));
        }
        Ok(())
    }

    /// The placement in numbers; `None` without a session.
    pub fn numbers(&self) -> Option<PlacementNumbers> {
        let npu = self.eps.get(NPU);
        let shares: Vec<f64> = self.eps.values().filter_map(|ep| ep.macs_share).collect();
        (self.session == "ok").then(|| PlacementNumbers {
            npu_macs: self.npu_macs(),
            macs_attributed: (!shares.is_empty()).then(|| shares.iter().sum::<f64>().min(1.0)),
            eps: self.eps.clone(),
            partitions: npu.and_then(|npu| npu.partitions).unwrap_or(0),
            partition_sizes: self.npu_partitions.clone(),
            cpu_nodes: self.computing().count(),
            crossings: None,
            fingerprint_normalised: self.fingerprint_normalised.clone(),
        })
    }

    /// Judges the placement. Without a session this is the only check.
    pub fn judge(&self, limits: &PlacementLimits, macs_error: Option<&str>) -> Vec<Check> {
        let session = self.session_check();
        if session.result != Outcome::Pass {
            return vec![session];
        }
        vec![
            session,
            self.macs_check(limits, macs_error),
            self.partitions_check(limits),
            self.ops_check(limits),
        ]
    }

    fn computing(&self) -> impl Iterator<Item = &InspectedNode> {
        self.cpu_nodes.iter().filter(|node| !node.benign)
    }

    fn session_check(&self) -> Check {
        let error = self.error.as_deref().unwrap_or("no reason is given");
        match self.session.as_str() {
            "ok" => Check::new("session", Outcome::Pass, "the session was made"),
            "failed" => self.no_session(error),
            _ => Check::new("session", Outcome::Undecided, format!("no answer: {error}")),
        }
    }

    /// The node that the error names comes first, with the way out; ONNX Runtime's paragraph is last.
    fn no_session(&self, error: &str) -> Check {
        let mut known = self.reasons.iter().filter(|why| why.code != "unknown");
        let reason = known.next();
        let node = node_of_error(error).map(|(op_type, name)| FailingNode {
            name,
            op_type,
            types: Vec::new(),
            reason: reason.map_or("unknown", |why| &why.code).to_owned(),
            reason_text: Some(error.to_owned()),
            macs_share: None,
            fix: reason.map(|why| why.fix.clone()),
            alternative: None,
        });
        let fixes: Vec<&str> = self
            .reasons
            .iter()
            .filter(|why| why.code != "unknown")
            .map(|why| why.fix.as_str())
            .collect();
        let why = match &node {
            Some(node) => format!("no session: {} {} was not taken", node.op_type, node.name),
            None => format!("no session: {error} {}", fixes.join(" ")),
        };
        let mut check = Check::new("session", Outcome::Fail, why.trim_end());
        check.nodes.extend(node);
        check
    }

    /// Nodes off the NPU that the list of the CPU's nodes lacks: it may be cut, and other EPs have none.
    fn unlisted(&self) -> u64 {
        let off = self.eps.iter().filter(|(ep, _)| *ep != NPU);
        let off: u64 = off.map(|(_, found)| u64::from(found.nodes)).sum();
        off.saturating_sub(self.cpu_nodes.len() as u64)
    }

    /// The share on the NPU, also where no MACs are known but one side has every node that computes.
    fn npu_macs(&self) -> Option<f64> {
        let npu = self.eps.get(NPU).filter(|npu| npu.nodes > 0);
        match (npu, self.computing().next()) {
            (Some(_), None) if self.unlisted() == 0 && self.error.is_none() => Some(1.0),
            (None, Some(_)) => Some(0.0),
            (None, None) => None,
            (Some(npu), _) => {
                let of_all = self.eps.values().filter_map(|ep| ep.macs_share);
                npu.macs_share.filter(|_| of_all.sum::<f64>() > 0.0)
            }
        }
    }

    fn macs_check(&self, limits: &PlacementLimits, macs_error: Option<&str>) -> Check {
        let limit = limits.min_npu_macs.unwrap_or(DEFAULT_MIN_NPU_MACS);
        let share = self.npu_macs();
        let off = self.eps.iter().filter(|(ep, _)| *ep != NPU);
        let off: f64 = off.filter_map(|(_, ep)| ep.macs_share).sum();
        let has_npu = self.eps.get(NPU).is_some_and(|npu| npu.nodes > 0);
        let (result, why) = match share {
            Some(npu) if npu >= limit => (
                Outcome::Pass,
                format!("{} of the MACs on the NPU", percent(npu)),
            ),
            Some(_) if !has_npu => (
                Outcome::Fail,
                "the whole graph is on the CPU, and the session reports success".to_owned(),
            ),
            Some(npu) if 1.0 - off < limit => (
                Outcome::Fail,
                format!(
                    "{} of the MACs on the NPU; at least {}",
                    percent(npu),
                    percent(limit)
                ),
            ),
            Some(npu) => (
                Outcome::Undecided,
                format!(
                    "{} of the MACs are on the NPU and {} have no node; name the model's nodes",
                    percent(npu),
                    percent(1.0 - npu - off)
                ),
            ),
            None if limit == 0.0 => (Outcome::Skip, "min_npu_macs is 0".to_owned()),
            None if self.eps.values().all(|ep| ep.nodes == 0) => {
                (Outcome::Undecided, "no EP has a node".to_owned())
            }
            None => {
                let why = macs_error.unwrap_or("the model has none, or its nodes have no names");
                (Outcome::Undecided, format!("the MACs are not known: {why}"))
            }
        };
        let check = Check::new("npu_macs", result, why).with(share, Some(limit));
        self.with_nodes(check)
    }

    /// Adds the nodes that compute on the CPU to a check that did not pass.
    fn with_nodes(&self, mut check: Check) -> Check {
        if check.result != Outcome::Pass {
            check.nodes = self.nodes(|node| !node.benign);
        }
        check
    }

    fn partitions_check(&self, limits: &PlacementLimits) -> Check {
        let npu = self.eps.get(NPU);
        let known = npu.map_or(Some(0), |npu| npu.partitions);
        let found = known.unwrap_or(0);
        let sizes = self.sizes();
        let (result, why) = match limits.max_partitions {
            limit if known.is_none() => (
                match limit {
                    Some(_) => Outcome::Undecided,
                    None => Outcome::Skip,
                },
                "the number of partitions is not known".to_owned(),
            ),
            Some(most) if found > most => (
                Outcome::Fail,
                format!("{found} partitions on the NPU{sizes}; at most {most}"),
            ),
            None if found > 1 => (
                Outcome::Warn,
                format!("{found} partitions on the NPU{sizes}; max_partitions makes this a limit"),
            ),
            _ => (Outcome::Pass, format!("{found} on the NPU")),
        };
        let limit = limits.max_partitions.map(f64::from);
        self.with_nodes(Check::new("partitions", result, why).with(known.map(f64::from), limit))
    }

    /// The largest partitions in words, for example ` (12 nodes with 99.7 % of the MACs, 1 node)`; empty if their sizes are
    /// not known.
    fn sizes(&self) -> String {
        let mut largest: Vec<&PartitionSize> = self.npu_partitions.iter().collect();
        largest.sort_by_key(|size| std::cmp::Reverse(size.nodes));
        let words = |size: &&PartitionSize| {
            let nodes = if size.nodes == 1 { "node" } else { "nodes" };
            let macs = size.macs_share.filter(|share| *share > 0.0);
            let macs = macs.map(|share| format!(" with {:.1} % of the MACs", 100.0 * share));
            format!("{} {nodes}{}", size.nodes, macs.unwrap_or_default())
        };
        let shown: Vec<String> = largest.iter().take(SHOWN_PARTITIONS).map(words).collect();
        match shown.as_slice() {
            [] => String::new(),
            _ if largest.len() > shown.len() => format!(" ({}, ..)", shown.join(", ")),
            _ => format!(" ({})", shown.join(", ")),
        }
    }

    fn ops_check(&self, limits: &PlacementLimits) -> Check {
        let has = |ops: &Option<Vec<String>>, op: &String| {
            ops.as_ref().is_some_and(|ops| ops.contains(op))
        };
        let forbidden = |node: &&InspectedNode| has(&limits.forbidden_cpu_ops, &node.op_type);
        let strange = |node: &&InspectedNode| {
            limits.allowed_cpu_ops.is_some()
                && !node.benign
                && !has(&limits.allowed_cpu_ops, &node.op_type)
        };
        let broken = |node: &&InspectedNode| forbidden(node) || strange(node);
        let is_limited = limits.allowed_cpu_ops.is_some() || limits.forbidden_cpu_ops.is_some();
        let (n, all) = (
            self.cpu_nodes.iter().filter(broken).count(),
            self.computing().count(),
        );
        let (result, why) = match (n, all) {
            (1.., _) => (
                Outcome::Fail,
                format!("{n} nodes on the CPU that the policy does not allow there"),
            ),
            (0, _) if self.unlisted() > 0 && is_limited => (
                Outcome::Undecided,
                format!(
                    "{} nodes off the NPU are not listed with their ops",
                    self.unlisted()
                ),
            ),
            (0, 1..) if limits.allowed_cpu_ops.is_none() => (
                Outcome::Warn,
                format!("{all} nodes compute on the CPU; allowed_cpu_ops makes this a limit"),
            ),
            _ => (
                Outcome::Pass,
                format!("{all} nodes compute on the CPU, all of them allowed"),
            ),
        };
        let value = if n > 0 { n } else { all } as f64;
        let mut check = self.with_nodes(Check::new("cpu_ops", result, why).with(Some(value), None));
        if n > 0 {
            check.nodes = self.nodes(|node| broken(&node));
        }
        check
    }

    /// These CPU nodes, the largest share of the MACs first.
    fn nodes(&self, keep: impl Fn(&InspectedNode) -> bool) -> Vec<FailingNode> {
        let kept = self.cpu_nodes.iter().filter(|node| keep(node));
        let fix_of = |code: &str| {
            let named = self.reasons.iter().filter(|why| why.code != "unknown");
            named.into_iter().find(|why| why.code == code)
        };
        let mut nodes: Vec<FailingNode> = kept
            .map(|node| FailingNode {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                types: Vec::new(),
                reason: node.reason.clone(),
                reason_text: node.reason_text.clone(),
                macs_share: node.macs_share,
                fix: fix_of(&node.reason).map(|why| why.fix.clone()),
                alternative: OpForm {
                    op_type: &node.op_type,
                    titles: &[],
                    is_quantised: None,
                }
                .alternative(&self.chipset),
            })
            .collect();
        let share = |node: &FailingNode| node.macs_share.unwrap_or(0.0);
        nodes.sort_by(|a, b| share(b).total_cmp(&share(a)));
        nodes
    }
}
