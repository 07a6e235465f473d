//! Judges a placement as `epwatch inspect --json` reports it. Needs no statistics: a placement has one answer for a
//! model, a chipset and a runtime.

mod inspected;

use std::{cmp::Reverse, collections::HashSet};

use epwatch_proto::Accelerator;

use crate::{
    advice::node_of_error,
    ops::{OpForm, Precision, QnnAge},
    policy::PlacementLimits,
    time::TimeRange,
    verdict::{Check, CheckResult, FailingNode, PartitionSize, Uncounted},
};

pub(crate) use inspected::NPU;
pub use inspected::{
    Counted, CrossingTensor, CrossingTensors, Inspected, InspectedChipset, InspectedNode,
    InspectedReason, NamedNode, NoSession, Place,
};

/// Maximum number of partitions that a sentence lists.
const SHOWN_PARTITIONS: usize = 4;
/// Maximum number of nodes without a counting rule that a sentence lists.
const SHOWN_UNCOUNTED: usize = 3;
/// Maximum number of tensors of each direction that a sentence lists.
const SHOWN_TENSORS: usize = 4;

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

impl InspectedChipset {
    /// Judges the placement. Without a session this is the only check.
    pub fn judge(&self, limits: &PlacementLimits, macs_error: Option<&str>) -> Vec<Check> {
        let session = self.session_check();
        if session.result != CheckResult::Pass {
            return vec![session];
        }
        let asked = self.asked();
        if asked.accelerator == Accelerator::Unknown {
            let why = format!(
                "the EP {} is not one that epwatch knows, so that its nodes are neither on an accelerator nor on the CPU; \
                 docs/accelerators.md has the names",
                asked.ep
            );
            return vec![session, Check::new("npu_macs", CheckResult::Undecided, why)];
        }
        let mut checks = vec![
            session,
            self.macs_check(limits, macs_error),
            self.partitions_check(limits),
            self.ops_check(limits),
        ];
        checks.extend(self.crossings_check(limits));
        list_once(&mut checks);
        for check in &mut checks {
            self.put_in_words(check);
        }
        checks
    }

    /// Replaces the NPU in a check's sentence by the accelerator that was asked for.
    pub(crate) fn put_in_words(&self, check: &mut Check) {
        let accelerator = self.asked().accelerator;
        check.why = accelerator.in_words(&check.why).into_owned();
    }

    fn session_check(&self) -> Check {
        let error = self.error.as_deref().unwrap_or("no reason is given");
        match self.session.as_str() {
            "ok" => Check::new("session", CheckResult::Pass, "the session was made"),
            "failed" => self.no_session(error),
            _ => Check::new(
                "session",
                CheckResult::Undecided,
                format!("no answer: {error}"),
            ),
        }
    }

    /// Writes the check of a failed session. The node that the error names comes first, with the fix; ONNX Runtime's
    /// paragraph is last.
    fn no_session(&self, error: &str) -> Check {
        // QNN ends its sentence before its number: `Memory allocation related error., Code: 1002`.
        let error = error.replace("., Code:", ", code");
        let error = error.as_str();
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
            // The rest of ONNX Runtime's paragraph guesses at its own bugs, and is left out.
            reason_text: (!is_told).then(|| {
                match error.split_once(" This means the graph is now invalid") {
                    Some((said, _)) => said.to_owned(),
                    None => error.to_owned(),
                }
            }),
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
            None if fixes.is_empty() => format!("no session: {error}"),
            None => {
                let error = error.trim_end().trim_end_matches('.');
                format!("no session: {error}. {}", fixes.join(" "))
            }
        };
        let mut check = Check::new("session", CheckResult::Fail, why.trim_end());
        check.nodes.extend(node);
        check
    }

    fn macs_check(&self, limits: &PlacementLimits, macs_error: Option<&str>) -> Check {
        let limit = limits.least_npu_macs();
        let share = self.npu_macs();
        let off: f64 = self.off_npu().filter_map(|ep| ep.macs_share).sum();
        let has_npu = self.npu().is_some_and(|npu| npu.nodes > 0);
        let (result, why) = match share {
            Some(_) if !has_npu => (
                if limit > 0.0 {
                    CheckResult::Fail
                } else {
                    CheckResult::Pass
                },
                "the whole graph is on the CPU, and the session reports success".to_owned(),
            ),
            Some(_)
                if self.computing().next().is_none()
                    && self.unlisted() == 0
                    && self.error.is_none() =>
            {
                (CheckResult::Pass, self.all_on_npu())
            }
            Some(npu) if !self.counted.uncounted.is_empty() => self.bounded(npu, limit),
            Some(npu) if npu >= limit => (
                CheckResult::Pass,
                format!("{} of the MACs on the NPU", percent(npu)),
            ),
            Some(npu) if 1.0 - off < limit => (
                CheckResult::Fail,
                format!(
                    "{} of the MACs on the NPU; at least {}",
                    percent(npu),
                    percent(limit)
                ),
            ),
            Some(npu) => (
                CheckResult::Undecided,
                format!(
                    "{} of the MACs are on the NPU and {} have no node; name the model's nodes",
                    percent(npu),
                    percent(1.0 - npu - off)
                ),
            ),
            None if limit == 0.0 => (CheckResult::Skip, "min_npu_macs is 0".to_owned()),
            None if self.counted.unknown_turns().is_some() => {
                let why = self.counted.sentence().unwrap_or_default();
                let way_out = "make the number a constant, or judge the model by its ops: allowed_cpu_ops, with min_npu_macs = 0";
                (CheckResult::Undecided, format!("{why}; {way_out}"))
            }
            None if self.eps.values().all(|ep| ep.nodes == 0) => {
                (CheckResult::Undecided, "no EP has a node".to_owned())
            }
            None => {
                let why = self.counted.sentence();
                let why = macs_error.map(str::to_owned).or(why);
                let why = why.map(|why| format!("the MACs are not known: {why}"));
                (
                    CheckResult::Undecided,
                    why.unwrap_or_else(|| self.no_share()),
                )
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

    /// The reason why a placement with nodes on the CPU has no share of MACs, and what to do about it.
    fn no_share(&self) -> String {
        match self.counted.total_macs {
            Some(0) => "the model has no MACs, so that it has no share of them; judge it by its ops: allowed_cpu_ops, with \
                        min_npu_macs = 0",
            _ => "the nodes' shares of the MACs are not known; give MODEL, or name its nodes (epwatch manifest --stamp-names)",
        }
        .to_owned()
    }

    /// Judges a share of the counted MACs if other MACs could not be counted. On the NPU the uncounted MACs can only
    /// raise the share, on the CPU only lower it.
    fn bounded(&self, share: f64, limit: f64) -> (CheckResult, String) {
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
                CheckResult::Undecided,
                format!("{} of the counted MACs on the NPU; {why}", percent(share)),
            ),
            (_, true) if share >= limit => (
                CheckResult::Pass,
                format!("at least {} of the MACs on the NPU; {why}", percent(share)),
            ),
            (true, _) if most < limit => (
                CheckResult::Fail,
                format!(
                    "at most {} of the MACs on the NPU; at least {}; {why}",
                    percent(most),
                    percent(limit)
                ),
            ),
            _ => (
                CheckResult::Undecided,
                format!("{} of the counted MACs on the NPU; {why}", percent(share)),
            ),
        }
    }

    /// Adds the nodes that compute on the CPU to a check that did not pass.
    fn with_nodes(&self, mut check: Check) -> Check {
        if check.result != CheckResult::Pass {
            check.nodes = self.nodes(|node| !node.benign);
        }
        check
    }

    /// Whether several partitions are the policy's choice: it allows every op on the CPU that splits them.
    fn is_split_by_choice(&self, limits: &PlacementLimits) -> bool {
        let mut computing = self.computing();
        limits.max_partitions.is_none()
            && self.unlisted() == 0
            && self.computing().next().is_some()
            && computing.all(|node| limits.allows(&node.op_type))
    }

    fn partitions_check(&self, limits: &PlacementLimits) -> Check {
        let npu = self.npu();
        let known = npu.map_or(Some(0), |npu| npu.partitions);
        let found = known.unwrap_or(0);
        let sizes = sizes(&self.npu_partitions);
        let most = limits.most_partitions();
        let (result, why) = match most {
            _ if known.is_none() => (
                match limits.max_partitions {
                    Some(_) => CheckResult::Undecided,
                    None => CheckResult::Skip,
                },
                "the number of partitions is not known".to_owned(),
            ),
            _ if found == 0 => (CheckResult::Skip, "nothing is on the NPU".to_owned()),
            Some(most) if found > most && self.is_split_by_choice(limits) => (
                CheckResult::Warn,
                format!("{found} partitions on the NPU{sizes}, split by ops of allowed_cpu_ops"),
            ),
            Some(most) if found > most => (
                CheckResult::Fail,
                format!("{found} partitions on the NPU{sizes}; at most {most}"),
            ),
            None if found > 1 => (
                CheckResult::Warn,
                format!("{found} partitions on the NPU{sizes}; max_partitions makes this a limit"),
            ),
            _ => (CheckResult::Pass, format!("{found} on the NPU")),
        };
        let limit = most.map(f64::from);
        self.with_nodes(Check::new("partitions", result, why).with(known.map(f64::from), limit))
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
                CheckResult::Fail,
                format!(
                    "{} on the CPU between parts of the graph on the NPU",
                    compute(n)
                ),
            ),
            (1.., _) => (
                CheckResult::Fail,
                format!(
                    "{} on the CPU that the policy does not allow there",
                    nodes_in_words(n)
                ),
            ),
            (0, _) if self.unlisted() > 0 && is_limited => (
                CheckResult::Undecided,
                format!(
                    "{} off the NPU are not listed with their ops",
                    nodes_in_words(usize::try_from(self.unlisted()).unwrap_or(usize::MAX))
                ),
            ),
            (0, 1..) if !limits.lists_ops() => (
                CheckResult::Warn,
                format!(
                    "{} on the CPU{}; allowed_cpu_ops makes this a limit",
                    compute(all),
                    self.places()
                ),
            ),
            (0, 0) => (CheckResult::Pass, "no node computes on the CPU".to_owned()),
            _ => (
                CheckResult::Pass,
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
            let check = Check::new("crossings", CheckResult::Undecided, why);
            return limit.map(|limit| check.with(None, Some(limit)));
        };
        let is_inner = |node: &InspectedNode| {
            !node.benign && matches!(node.place, Some(Place::Middle | Place::Weight))
        };
        let result = match most {
            Some(most) if bytes > most => CheckResult::Fail,
            None if bytes > 0 && self.cpu_nodes.iter().any(is_inner) => CheckResult::Warn,
            _ => CheckResult::Pass,
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
        let chipset = match self.chipset.as_str() {
            "" | "unknown" => "LIST",
            other if other.starts_with("other:") => "LIST",
            chipset => chipset,
        };
        let accelerator = self.asked().accelerator;
        let no_reasons = match accelerator.is_plain_npu() {
            true => format!(
                "The files say where nodes ran, and not why: `epwatch gate MODEL --soc {chipset}` has the reasons."
            ),
            false => format!(
                "ONNX Runtime says where a node runs, and not why {} did not take it: its own log may.",
                accelerator.label()
            ),
        };
        let fix_of = |node: &InspectedNode| match node.reason.as_str() {
            "unknown" => self.soc_model.is_empty().then(|| no_reasons.clone()),
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
                    precision: Precision::Unknown,
                    // Files of launches do not say which one refused it.
                    qnn: QnnAge::Between,
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
    /// A loop whose number of turns is not known, so that no share of the MACs has a bound.
    fn unknown_turns(&self) -> Option<&Uncounted> {
        self.uncounted.iter().find(|work| work.unknown_turns)
    }

    /// Names the work that is not counted, the largest first; `None` if all is counted.
    fn sentence(&self) -> Option<String> {
        if let Some(work) = self.unknown_turns() {
            let Uncounted {
                name, op_type, why, ..
            } = work;
            return Some(format!("the MACs of {op_type} {name} are not known: {why}"));
        }
        let mut largest: Vec<&Uncounted> = self.uncounted.iter().collect();
        largest.sort_by_key(|work| Reverse(work.at_least_macs));
        let first = largest.first()?;
        let missing = largest.iter().map(|work| work.at_least_macs);
        let missing = missing.fold(0, u64::saturating_add);
        let sized = |work: &&Uncounted| {
            let Uncounted {
                name,
                op_type,
                at_least_macs,
                ..
            } = work;
            match at_least_macs {
                0 => format!("{op_type} {name}"),
                some => format!("{op_type} {name} ({some} or more)"),
            }
        };
        let shown: Vec<String> = largest.iter().take(SHOWN_UNCOUNTED).map(sized).collect();
        let more = match largest.len() - shown.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        Some(format!(
            "{}: {}{more}: {}",
            not_counted(missing, self.total_macs.unwrap_or(0)),
            shown.join(", "),
            first.why
        ))
    }
}

impl CrossingTensors {
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

/// How many MACs are not counted, next to the total of those that are.
fn not_counted(missing: u64, total: u64) -> String {
    let share = missing as f64 / total.saturating_add(missing).max(1) as f64;
    match () {
        () if total == 0 => "no MACs are counted".to_owned(),
        () if share < 0.0005 => "an unknown number is not counted".to_owned(),
        () if share >= 0.9995 => "nearly all MACs are not counted".to_owned(),
        () => format!("at least {} are not counted", percent(share)),
    }
}

fn nodes_in_words(n: usize) -> String {
    format!("{n} {}", if n == 1 { "node" } else { "nodes" })
}

fn compute(n: usize) -> String {
    let verb = if n == 1 { "computes" } else { "compute" };
    format!("{} {verb}", nodes_in_words(n))
}

/// Leaves each node in one check: the check with the worst result, and among equals the first in `ORDER`.
fn list_once(checks: &mut [Check]) {
    const ORDER: [&str; 3] = ["npu_macs", "cpu_ops", "partitions"];
    let mut listed: HashSet<(String, String)> = HashSet::new();
    for result in [
        CheckResult::Fail,
        CheckResult::Undecided,
        CheckResult::Warn,
        CheckResult::Skip,
    ] {
        for id in ORDER {
            let is_it = |check: &&mut Check| check.id == id && check.result == result;
            for check in checks.iter_mut().filter(is_it) {
                // Nodes without a name cannot be told apart, so all of them stay.
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

/// The largest partitions in words, for example ` (12 nodes with 97.7 % of the MACs, 4 with 2.3 %, 1)`; empty if their
/// sizes are not known.
fn sizes(partitions: &[PartitionSize]) -> String {
    let mut largest: Vec<&PartitionSize> = partitions.iter().collect();
    largest.sort_by_key(|size| Reverse(size.nodes));
    let mut shown: Vec<String> = Vec::new();
    let mut is_told = false;
    for size in largest.iter().take(SHOWN_PARTITIONS) {
        let mut words = match (shown.len(), size.nodes) {
            (0, 1) => "1 node".to_owned(),
            (0, nodes) => format!("{nodes} nodes"),
            (_, nodes) => nodes.to_string(),
        };
        if let Some(share) = size.macs_share.filter(|share| *share > 0.0) {
            words.push_str(&format!(" with {:.1} %", 100.0 * share));
            if !is_told {
                words.push_str(" of the MACs");
                is_told = true;
            }
        }
        shown.push(words);
    }
    match shown.as_slice() {
        [] => String::new(),
        _ if largest.len() > shown.len() => format!(" ({}, ..)", shown.join(", ")),
        _ => format!(" ({})", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_work_has_a_share_only_where_there_is_one() {
        for (missing, total, expected) in [
            (32_768, 0, "no MACs are counted"),
            (0, 4_096, "an unknown number is not counted"),
            (60, 940, "at least 6.0 % are not counted"),
            (1 << 40, 1, "nearly all MACs are not counted"),
        ] {
            assert_eq!(not_counted(missing, total), expected);
        }
    }

    #[test]
    fn sizes_of_partitions_name_their_units_once() {
        let of = |sizes: &[(usize, Option<f64>)]| {
            let each = sizes.iter().map(|&(nodes, macs_share)| PartitionSize {
                nodes: nodes.try_into().unwrap(),
                macs_share,
            });
            super::sizes(&each.collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), "");
        let yolo = of(&[(25, Some(0.258)), (193, Some(0.178)), (1, Some(0.0))]);
        assert_eq!(
            yolo,
            " (193 nodes with 17.8 % of the MACs, 25 with 25.8 %, 1)"
        );
        let first_without = of(&[(40, None), (3, Some(0.99)), (1, Some(0.01))]);
        assert_eq!(
            first_without,
            " (40 nodes, 3 with 99.0 % of the MACs, 1 with 1.0 %)"
        );
        assert_eq!(of(&[(1, None)]), " (1 node)");
    }
}
