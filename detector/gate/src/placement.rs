//! Judges a placement as `epwatch inspect --json` reports it. Needs no statistics: a placement has one answer for a
//! model, a chipset and a runtime.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use serde::Deserialize;

use crate::{
    advice::node_of_error,
    ops::OpForm,
    policy::PlacementLimits,
    time::TimeRange,
    verdict::{
        Check, CrossingWay, Crossings, EpNumbers, FailingNode, Outcome, PartitionSize,
        PlacementNumbers, Uncounted,
    },
};

pub(crate) const NPU: &str = "QNNExecutionProvider";
/// Share of the MACs that a new model may lose.
const MOST_LOST: f64 = 0.02;
/// Error of sums of shares.
const ROUNDING: f64 = 1e-6;
/// Partitions in a sentence.
const SHOWN_PARTITIONS: usize = 4;
/// Nodes without a rule in a sentence.
const SHOWN_UNCOUNTED: usize = 3;
/// Tensors of each way in a sentence.
const SHOWN_TENSORS: usize = 4;

/// The document of `inspect --json`, as far as it is judged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct Inspected {
    pub macs_error: Option<String>,
    #[serde(flatten)]
    pub counted: Counted,
    pub chipsets: Vec<InspectedChipset>,
}

/// What was counted of a model's MACs, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct Counted {
    #[serde(default)]
    pub total_macs: Option<u64>,
    #[serde(default)]
    pub uncounted: Vec<Uncounted>,
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
    #[serde(default)]
    pub crossings: Option<CrossingTensors>,
    /// Of a session that failed.
    #[serde(default)]
    pub no_session: NoSession,
    /// Of the model.
    #[serde(skip)]
    pub counted: Counted,
}

/// What `inspect --json` says of a failed session next to its error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct NoSession {
    pub node: Option<NamedNode>,
    pub way_out: Option<String>,
}

/// A node by name and op.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct NamedNode {
    pub name: String,
    pub op_type: String,
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
    #[serde(default)]
    pub place: Option<Place>,
    #[serde(default)]
    pub time: Option<TimeRange>,
}

/// Where a node of the CPU stands in the graph, as `inspect --json` names it.
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
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct CrossingTensors {
    pub to_npu: Vec<CrossingTensor>,
    pub to_cpu: Vec<CrossingTensor>,
}

/// A tensor of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
pub struct CrossingTensor {
    pub tensor: String,
    pub bytes: Option<u64>,
}

/// A reason of `inspect --json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `inspect --json`")]
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
            cpu_time: self.cpu_time(|node| !node.benign),
            uncounted: self.counted.uncounted.clone(),
            crossings: self
                .crossings
                .as_ref()
                .map(|found| found.numbers(self.further_calls())),
            fingerprint_normalised: self.fingerprint_normalised.clone(),
        })
    }

    /// Judges the placement. Without a session this is the only check.
    pub fn judge(&self, limits: &PlacementLimits, macs_error: Option<&str>) -> Vec<Check> {
        let session = self.session_check();
        if session.result != Outcome::Pass {
            return vec![session];
        }
        let mut checks = vec![
            session,
            self.macs_check(limits, macs_error),
            self.partitions_check(limits),
            self.ops_check(limits),
        ];
        checks.extend(self.crossings_check(limits));
        list_once(&mut checks);
        checks
    }

    /// Time of these nodes on the CPU together; `None` if there are none, or one has no estimate.
    fn cpu_time(&self, keep: impl Fn(&InspectedNode) -> bool) -> Option<TimeRange> {
        let mut kept = self.cpu_nodes.iter().filter(|node| keep(node)).peekable();
        kept.peek()?;
        kept.try_fold(TimeRange::default(), |sum, node| Some(sum + node.time?))
    }

    /// Calls of the NPU in a run after the first.
    fn further_calls(&self) -> u32 {
        let partitions = self.eps.get(NPU).and_then(|npu| npu.partitions);
        partitions.unwrap_or(0).saturating_sub(1)
    }

    pub(crate) fn computing(&self) -> impl Iterator<Item = &InspectedNode> {
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
        let NoSession { node, way_out } = &self.no_session;
        let told = node
            .as_ref()
            .map(|node| (node.op_type.clone(), node.name.clone()));
        let is_told = told.is_some();
        let node = told.or_else(|| node_of_error(error));
        let node = node.map(|(op_type, name)| FailingNode {
            name,
            op_type,
            types: Vec::new(),
            reason: reason.map_or("unknown", |why| &why.code).to_owned(),
            reason_text: (!is_told).then(|| error.to_owned()),
            macs_share: None,
            time: None,
            fix: way_out.clone().or(reason.map(|why| why.fix.clone())),
            alternative: None,
        });
        let fixes = self.reasons.iter().filter(|why| why.code != "unknown");
        let fixes: Vec<&str> = fixes
            .map(|why| why.fix.as_str())
            .chain(way_out.as_deref())
            .collect();
        let why = match &node {
            Some(_) if is_told => format!("no session: {error}"),
            Some(node) => format!("no session: {} {} was not taken", node.op_type, node.name),
            None => format!("no session: {error} {}", fixes.join(" ")),
        };
        let mut check = Check::new("session", Outcome::Fail, why.trim_end());
        check.nodes.extend(node);
        check
    }

    /// Nodes off the NPU that the list of the CPU's nodes lacks: it may be cut, and other EPs have none.
    pub(crate) fn unlisted(&self) -> u64 {
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
        let limit = limits.least_npu_macs();
        let share = self.npu_macs();
        let off = self.eps.iter().filter(|(ep, _)| *ep != NPU);
        let off: f64 = off.filter_map(|(_, ep)| ep.macs_share).sum();
        let has_npu = self.eps.get(NPU).is_some_and(|npu| npu.nodes > 0);
        let (result, why) = match share {
            Some(_) if !has_npu => (
                if limit > 0.0 {
                    Outcome::Fail
                } else {
                    Outcome::Pass
                },
                "the whole graph is on the CPU, and the session reports success".to_owned(),
            ),
            Some(_)
                if self.computing().next().is_none()
                    && self.unlisted() == 0
                    && self.error.is_none() =>
            {
                (Outcome::Pass, self.all_on_npu())
            }
            Some(npu) if !self.counted.uncounted.is_empty() => self.bounded(npu, limit),
            Some(npu) if npu >= limit => (
                Outcome::Pass,
                format!("{} of the MACs on the NPU", percent(npu)),
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
                let why = self.counted.sentence();
                let why = macs_error.map(str::to_owned).or(why);
                let why =
                    why.unwrap_or("the model has none, or its nodes have no names".to_owned());
                (Outcome::Undecided, format!("the MACs are not known: {why}"))
            }
        };
        let check = Check::new("npu_macs", result, why).with(share, Some(limit));
        self.with_nodes(check)
    }

    /// The sentence of a placement in which no node computes on the CPU, with or without MACs.
    fn all_on_npu(&self) -> String {
        let has_macs = self
            .eps
            .values()
            .any(|ep| ep.macs_share.is_some_and(|share| share > 0.0));
        let all = "every node that computes is on the NPU";
        match (self.counted.sentence(), self.counted.total_macs) {
            (Some(why), _) => format!("{all}; {why}"),
            (None, Some(0)) => format!("{all}; none of them has MACs"),
            _ if has_macs => format!("{} of the MACs on the NPU", percent(1.0)),
            _ => all.to_owned(),
        }
    }

    /// Judges a share of the counted MACs where others are not counted: on the NPU they can only raise it, on the CPU only
    /// lower it.
    fn bounded(&self, share: f64, limit: f64) -> (Outcome, String) {
        let on_cpu: HashSet<&str> = self
            .cpu_nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        let is_named = |work: &&Uncounted| !work.name.starts_with("(unnamed");
        let (off, on): (Vec<&Uncounted>, Vec<&Uncounted>) = self
            .counted
            .uncounted
            .iter()
            .partition(|work| on_cpu.contains(work.name.as_str()));
        let all_named = self.counted.uncounted.iter().all(|work| is_named(&work));
        let missing = off.iter().map(|work| work.at_least_macs);
        let missing = missing.fold(0, u64::saturating_add) as f64;
        let total = self.counted.total_macs.unwrap_or(0) as f64;
        let most = share * total / (total + missing).max(1.0);
        let why = self.counted.sentence().unwrap_or_default();
        match (on.is_empty(), off.is_empty()) {
            _ if !all_named => (
                Outcome::Undecided,
                format!("{} of the counted MACs on the NPU; {why}", percent(share)),
            ),
            (_, true) if share >= limit => (
                Outcome::Pass,
                format!("at least {} of the MACs on the NPU; {why}", percent(share)),
            ),
            (true, _) if most < limit => (
                Outcome::Fail,
                format!(
                    "at most {} of the MACs on the NPU; at least {}; {why}",
                    percent(most),
                    percent(limit)
                ),
            ),
            _ => (
                Outcome::Undecided,
                format!("{} of the counted MACs on the NPU; {why}", percent(share)),
            ),
        }
    }

    /// Adds the nodes that compute on the CPU to a check that did not pass.
    fn with_nodes(&self, mut check: Check) -> Check {
        if check.result != Outcome::Pass {
            check.nodes = self.nodes(|node| !node.benign);
        }
        check
    }

    /// More partitions than one, each of which a policy allows by its ops, are by choice.
    fn is_split_by_choice(&self, limits: &PlacementLimits) -> bool {
        let mut computing = self.computing();
        limits.max_partitions.is_none()
            && self.unlisted() == 0
            && self.computing().next().is_some()
            && computing.all(|node| limits.allows(&node.op_type))
    }

    fn partitions_check(&self, limits: &PlacementLimits) -> Check {
        let npu = self.eps.get(NPU);
        let known = npu.map_or(Some(0), |npu| npu.partitions);
        let found = known.unwrap_or(0);
        let sizes = self.sizes();
        let most = limits.most_partitions();
        let (result, why) = match most {
            _ if known.is_none() => (
                match limits.max_partitions {
                    Some(_) => Outcome::Undecided,
                    None => Outcome::Skip,
                },
                "the number of partitions is not known".to_owned(),
            ),
            _ if found == 0 => (Outcome::Skip, "nothing is on the NPU".to_owned()),
            Some(most) if found > most && self.is_split_by_choice(limits) => (
                Outcome::Warn,
                format!("{found} partitions on the NPU{sizes}, split by ops of allowed_cpu_ops"),
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
        let limit = most.map(f64::from);
        self.with_nodes(Check::new("partitions", result, why).with(known.map(f64::from), limit))
    }

    /// The largest partitions in words, for example ` (12 nodes with 99.7 % of the MACs, 1 node)`; empty if their sizes are
    /// not known.
    fn sizes(&self) -> String {
        let mut largest: Vec<&PartitionSize> = self.npu_partitions.iter().collect();
        largest.sort_by_key(|size| Reverse(size.nodes));
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

    pub(crate) fn ops_check(&self, limits: &PlacementLimits) -> Check {
        let forbidden = |node: &InspectedNode| {
            let mut ops = limits.forbidden_cpu_ops.iter().flatten();
            ops.any(|op| *op == node.op_type)
        };
        let is_middle = |node: &InspectedNode| !node.benign && node.place == Some(Place::Middle);
        let refuses_middle = limits.refuses_middle();
        let broken = |node: &InspectedNode| {
            let is_strange = limits.lists_ops() && !node.benign;
            let is_refused = is_strange || (refuses_middle && is_middle(node));
            forbidden(node) || (is_refused && !limits.allows(&node.op_type))
        };
        let is_limited = limits.lists_ops() || limits.forbidden_cpu_ops.is_some();
        let count = |keep: &dyn Fn(&InspectedNode) -> bool| {
            self.cpu_nodes.iter().filter(|node| keep(node)).count()
        };
        let (n, all) = (count(&broken), self.computing().count());
        let (result, why) = match (n, all) {
            (1.., _) if count(&|node| broken(node) && !is_middle(node)) == 0 => (
                Outcome::Fail,
                format!(
                    "{} on the CPU between parts of the graph on the NPU",
                    compute(n)
                ),
            ),
            (1.., _) => (
                Outcome::Fail,
                format!(
                    "{} on the CPU that the policy does not allow there",
                    nodes_in_words(n)
                ),
            ),
            (0, _) if self.unlisted() > 0 && is_limited => (
                Outcome::Undecided,
                format!(
                    "{} off the NPU are not listed with their ops",
                    nodes_in_words(usize::try_from(self.unlisted()).unwrap_or(usize::MAX))
                ),
            ),
            (0, 1..) if !limits.lists_ops() => (
                Outcome::Warn,
                format!(
                    "{} on the CPU{}; allowed_cpu_ops makes this a limit",
                    compute(all),
                    self.places()
                ),
            ),
            (0, 0) => (Outcome::Pass, "no node computes on the CPU".to_owned()),
            _ => (
                Outcome::Pass,
                format!("{} on the CPU, all of them allowed", compute(all)),
            ),
        };
        let time = match n {
            0 => self.cpu_time(|node| !node.benign),
            _ => self.cpu_time(broken),
        };
        let time = time.and_then(TimeRange::in_words);
        let why = match time {
            Some(time) => format!("{why}; about {time} a run"),
            None => why,
        };
        let value = if n > 0 { n } else { all } as f64;
        let mut check = self.with_nodes(Check::new("cpu_ops", result, why).with(Some(value), None));
        if n > 0 {
            check.nodes = self.nodes(broken);
        }
        check
    }

    /// Where the nodes that compute on the CPU stand, if all are at one end of the graph.
    fn places(&self) -> &'static str {
        let all = |place| self.computing().all(|node| node.place == Some(place));
        match () {
            () if all(Place::Output) => ", after the last on the NPU",
            () if all(Place::Input) => ", before the first on the NPU",
            () if all(Place::Weight) => ", on weights in each run",
            () => "",
        }
    }

    /// Judges the bytes between NPU and CPU; `None` if they are not known and have no limit.
    fn crossings_check(&self, limits: &PlacementLimits) -> Option<Check> {
        let most = limits.max_crossing_bytes;
        let limit = most.map(|most| most as f64);
        let bytes = self.crossings.as_ref().and_then(CrossingTensors::bytes);
        let Some((found, bytes)) = self.crossings.as_ref().zip(bytes) else {
            let why = "a tensor between NPU and CPU has no fixed size, or a node has no name; give --shape, or name \
                       the nodes (epwatch manifest --stamp-names)";
            let check = Check::new("crossings", Outcome::Undecided, why);
            return limit.map(|limit| check.with(None, Some(limit)));
        };
        let is_inner = |node: &InspectedNode| {
            !node.benign && matches!(node.place, Some(Place::Middle | Place::Weight))
        };
        let result = match most {
            Some(most) if bytes > most => Outcome::Fail,
            None if bytes > 0 && self.cpu_nodes.iter().any(is_inner) => Outcome::Warn,
            _ => Outcome::Pass,
        };
        let mut why = found.in_words(bytes, self.further_calls());
        if let Some(most) = most {
            why.push_str(&format!("; at most {most}"));
        }
        Some(Check::new("crossings", result, why).with(Some(bytes as f64), limit))
    }

    /// These CPU nodes, the largest share of the MACs first.
    pub(crate) fn nodes(&self, keep: impl Fn(&InspectedNode) -> bool) -> Vec<FailingNode> {
        let kept = self.cpu_nodes.iter().filter(|node| keep(node));
        // Files of launches do not name the chipset as QNN does, and have no reasons.
        let no_reasons =
            "The files have no reasons: `epwatch gate MODEL --soc CHIPSET` names them.";
        let fix_of = |node: &InspectedNode| match node.reason.as_str() {
            "unknown" => self.soc_model.is_empty().then(|| no_reasons.to_owned()),
            code => {
                let known = self.reasons.iter().find(|why| why.code == code);
                known.map(|why| why.fix.clone())
            }
        };
        let mut nodes: Vec<FailingNode> = kept
            .map(|node| FailingNode {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                types: Vec::new(),
                reason: node.reason.clone(),
                reason_text: node.reason_text.clone(),
                macs_share: node.macs_share,
                time: node.time,
                fix: fix_of(node),
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

impl Counted {
    /// What is not counted, the largest first; `None` if all is.
    fn sentence(&self) -> Option<String> {
        let mut largest: Vec<&Uncounted> = self.uncounted.iter().collect();
        largest.sort_by_key(|work| Reverse(work.at_least_macs));
        let first = largest.first()?;
        let missing = largest.iter().map(|work| work.at_least_macs);
        let missing = missing.fold(0, u64::saturating_add) as f64;
        let total = self.total_macs.unwrap_or(0) as f64;
        let sized = |work: &&Uncounted| {
            let Uncounted {
                name,
                op_type,
                at_least_macs,
                ..
            } = work;
            format!("{op_type} {name} ({at_least_macs} or more)")
        };
        let shown: Vec<String> = largest.iter().take(SHOWN_UNCOUNTED).map(sized).collect();
        let more = match largest.len() - shown.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        Some(format!(
            "at least {} are not counted: {}{more}: {}",
            percent(missing / (total + missing).max(1.0)),
            shown.join(", "),
            first.why
        ))
    }
}

impl CrossingTensors {
    /// Bytes of both ways; `None` if a tensor has no fixed size.
    fn bytes(&self) -> Option<u64> {
        let mut all = self.to_npu.iter().chain(&self.to_cpu);
        all.try_fold(0_u64, |sum, tensor| Some(sum.saturating_add(tensor.bytes?)))
    }

    /// Time of both ways; `None` if a tensor has no fixed size.
    fn time(&self, further_calls: u32) -> Option<TimeRange> {
        let is_empty = self.to_npu.is_empty() && self.to_cpu.is_empty();
        let calls = if is_empty { 0 } else { further_calls };
        Some(TimeRange::of_crossings(self.bytes()?, calls))
    }

    fn numbers(&self, further_calls: u32) -> Crossings {
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

    /// For example `4096 bytes a run, about 0 to 0.004 ms: 1 tensor to the CPU (h 4096), 0 to the NPU`.
    fn in_words(&self, bytes: u64, further_calls: u32) -> String {
        if self.to_npu.is_empty() && self.to_cpu.is_empty() {
            return "no tensor within the graph crosses between NPU and CPU".to_owned();
        }
        let way = |tensors: &[CrossingTensor]| {
            let mut largest: Vec<&CrossingTensor> = tensors.iter().collect();
            largest.sort_by_key(|tensor| Reverse(tensor.bytes));
            let shown = largest.iter().take(SHOWN_TENSORS);
            let shown = shown.map(|t| format!("{} {}", t.tensor, t.bytes.unwrap_or(0)));
            let shown: Vec<String> = shown.collect();
            let more = if largest.len() > shown.len() {
                ", .."
            } else {
                ""
            };
            match shown.as_slice() {
                [] => String::new(),
                shown => format!(" ({}{more})", shown.join(", ")),
            }
        };
        let n = self.to_cpu.len();
        let time = self.time(further_calls).and_then(TimeRange::in_words);
        let time = time.map_or(String::new(), |time| format!(", about {time}"));
        format!(
            "{bytes} bytes a run{time}: {n} {} to the CPU{}, {} to the NPU{}",
            if n == 1 { "tensor" } else { "tensors" },
            way(&self.to_cpu),
            self.to_npu.len(),
            way(&self.to_npu)
        )
    }
}

fn nodes_in_words(n: usize) -> String {
    format!("{n} {}", if n == 1 { "node" } else { "nodes" })
}

fn compute(n: usize) -> String {
    let verb = if n == 1 { "computes" } else { "compute" };
    format!("{} {verb}", nodes_in_words(n))
}

/// Leaves each node in one check: the one with the worst result, then the one that says most of it.
fn list_once(checks: &mut [Check]) {
    const ORDER: [&str; 3] = ["npu_macs", "cpu_ops", "partitions"];
    let mut listed: HashSet<(String, String)> = HashSet::new();
    for result in [
        Outcome::Fail,
        Outcome::Undecided,
        Outcome::Warn,
        Outcome::Skip,
    ] {
        for id in ORDER {
            let is_it = |check: &&mut Check| check.id == id && check.result == result;
            for check in checks.iter_mut().filter(is_it) {
                // Nodes without a name are told apart by nothing.
                let is_new = |node: &FailingNode| (node.name.clone(), node.op_type.clone());
                let before = listed.clone();
                check
                    .nodes
                    .retain(|node| node.name.is_empty() || !before.contains(&is_new(node)));
                listed.extend(check.nodes.iter().map(is_new));
            }
        }
    }
}
