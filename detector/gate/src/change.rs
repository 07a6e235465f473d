//! Compares the placements of a model and of the earlier model, chipset by chipset. It finds nodes that are new on the
//! CPU, whatever the limits are.
//!
//! Nodes with the same name and op in both models are the same node. Exporters number names anew, so the other nodes
//! are paired by op. Nodes between the same ops pair up first, the rest in the order of the graph. A node without a
//! partner is new on the CPU.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    placement::{InspectedChipset, InspectedNode, percent},
    policy::PlacementLimits,
    verdict::{Check, CheckResult, PlacementNumbers},
};

/// Name of the check.
pub(crate) const ID: &str = "placement_change";
/// Share of the MACs that a new model may lose.
const MOST_LOST: f64 = 0.02;
/// Maximum number of nodes in a sentence.
const SHOWN_NODES: usize = 3;

/// A node's op, and the ops around it in its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// For example `Gemm`.
    pub op_type: String,
    /// The ops before and after it, in one text.
    pub between: String,
}

/// A model on a chipset.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Its placement.
    pub on: &'a InspectedChipset,
    /// Its nodes by name.
    pub nodes: &'a BTreeMap<String, Neighbours>,
}

/// Compares a placement with the placement of the earlier model. Nodes that compute on the CPU, partitions and bytes
/// that cross may not be more, unless the policy allows it. `None` without a session now, which another check fails
/// for.
pub fn judge(now: Side<'_>, before: Side<'_>, limits: &PlacementLimits) -> Option<Check> {
    let numbers = now.on.numbers()?;
    let Some(was) = before.on.numbers() else {
        let (result, why) = match before.on.session.as_str() {
            "failed" => (CheckResult::Pass, "the model before has no session here"),
            _ => (
                CheckResult::Undecided,
                "the model before gave no answer; --timeout gives it more time",
            ),
        };
        return Some(Check::new(ID, result, why));
    };
    let paired = Paired::of(now, before);
    let is_allowed = |node: &&InspectedNode| limits.allows(&node.op_type);
    let (allowed, new): (Vec<&InspectedNode>, Vec<&InspectedNode>) =
        paired.new.iter().copied().partition(is_allowed);
    let (mut red, mut said) = (Vec::new(), Vec::new());
    if !new.is_empty() {
        red.push(in_words(&new, now, before, "new on the CPU"));
    }
    if !allowed.is_empty() {
        let text = "new on the CPU, as the policy allows";
        said.push(in_words(&allowed, now, before, text));
    }
    // A model that was wholly on the CPU had neither partitions nor crossings.
    if was.partitions > 0 {
        let (partitions, before) = (numbers.partitions, was.partitions);
        if partitions > before {
            let text = format!("{partitions} partitions on the NPU, {before} before");
            let is_allowed = limits.max_partitions.is_some_and(|most| partitions <= most);
            (if is_allowed { &mut said } else { &mut red }).push(text);
        }
        if let (Some(bytes), Some(before)) = (numbers.crossing_bytes(), was.crossing_bytes())
            && bytes > before
        {
            let text = format!("{bytes} bytes cross between NPU and CPU in a run, {before} before");
            let is_allowed = limits.max_crossing_bytes.is_some_and(|most| bytes <= most);
            (if is_allowed { &mut said } else { &mut red }).push(text);
        }
    }
    if let Some((node, other)) = paired.elsewhere.first() {
        let more = match paired.elsewhere.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        said.push(format!(
            "{} {}{more} between other ops than {} before",
            node.op_type,
            shown(&node.name),
            shown(&other.name)
        ));
    }
    let unlisted = now.on.unlisted() + before.on.unlisted();
    let (result, why) = if !red.is_empty() {
        red.append(&mut said);
        (CheckResult::Fail, red.join("; "))
    } else if unlisted > 0 {
        let why = format!("{unlisted} nodes off the NPU are not listed with their ops");
        (CheckResult::Undecided, why)
    } else if !said.is_empty() {
        (CheckResult::Warn, said.join("; "))
    } else {
        (CheckResult::Pass, unchanged(paired.kept, paired.gone))
    };
    let mut check = Check::new(ID, result, why).with(Some(new.len() as f64), Some(0.0));
    check.unit = Some("nodes");
    now.on.put_in_words(&mut check);
    check.nodes = now
        .on
        .nodes(|node| new.iter().any(|new| std::ptr::eq(*new, node)));
    Some(check)
}

/// Judges a placement whose nodes are not known against the placement of the earlier model. Files of launches have such
/// placements. The NPU may not lose more than two percentage points of the MACs.
pub(crate) fn judge_numbers(now: &PlacementNumbers, before: &PlacementNumbers) -> Check {
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
            CheckResult::Fail,
            format!(
                "{} of the MACs on the NPU, {} before",
                percent(share),
                percent(was)
            ),
        ),
        _ if now.partitions > before.partitions => (
            CheckResult::Warn,
            format!(
                "{} partitions on the NPU, {} before",
                now.partitions, before.partitions
            ),
        ),
        _ if moved => (
            CheckResult::Warn,
            "as many nodes on each EP as before, but other ones".to_owned(),
        ),
        None => (
            CheckResult::Skip,
            "the MACs of one side are not known".to_owned(),
        ),
        Some(_) => (CheckResult::Pass, "nothing left the NPU".to_owned()),
    };
    Check::new(ID, result, why).with(now.npu_macs, before.npu_macs.map(|was| was - MOST_LOST))
}

/// A check for a file that is the same as before.
pub fn same_file() -> Check {
    Check::new(ID, CheckResult::Pass, "the model before is the same file")
}

/// A check for a model that has none before.
pub fn no_file() -> Check {
    Check::new(
        ID,
        CheckResult::Skip,
        "no file of --baseline is of this model",
    )
}

fn unchanged(kept: usize, gone: usize) -> String {
    let kept = match kept {
        0 => "no node computes there".to_owned(),
        1 => "1 node computes there, as before".to_owned(),
        n => format!("{n} nodes compute there, as before"),
    };
    let gone = match gone {
        0 => String::new(),
        1 => "; 1 node has left it".to_owned(),
        n => format!("; {n} nodes have left it"),
    };
    format!("nothing is new on the CPU: {kept}{gone}")
}

fn shown(name: &str) -> &str {
    match name {
        "" => "(unnamed)",
        name => name,
    }
}

/// For example `2 nodes are new on the CPU: TopK pick, not in the model before; Erf e, on the NPU before`.
fn in_words(nodes: &[&InspectedNode], now: Side<'_>, before: Side<'_>, what: &str) -> String {
    let each = nodes.iter().take(SHOWN_NODES).map(|node| {
        let was = match (before.nodes.get(&node.name), now.nodes.get(&node.name)) {
            (None, Some(_)) => " (no node of this name before)",
            (Some(was), Some(is)) if was == is => " (on the NPU before)",
            _ => "",
        };
        format!("{} {}{was}", node.op_type, shown(&node.name))
    });
    let each: Vec<String> = each.collect();
    let more = match nodes.len().checked_sub(SHOWN_NODES) {
        Some(more @ 1..) => format!(" and {more} more"),
        _ => String::new(),
    };
    let n = nodes.len();
    let are = if n == 1 { "node is" } else { "nodes are" };
    format!("{n} {are} {what}: {}{more}", each.join(", "))
}

/// Nodes that compute on the CPU, now and before.
struct Paired<'a> {
    new: Vec<&'a InspectedNode>,
    /// Pairs of nodes of one op whose neighbours are other ops than before.
    elsewhere: Vec<(&'a InspectedNode, &'a InspectedNode)>,
    kept: usize,
    gone: usize,
}

impl<'a> Paired<'a> {
    fn of(now: Side<'a>, before: Side<'a>) -> Self {
        let mut left: Vec<&InspectedNode> = now.on.computing().collect();
        let mut old: Vec<&InspectedNode> = before.on.computing().collect();
        let all = left.len();
        let between = |side: Side<'a>, node: &InspectedNode| {
            let found = side.nodes.get(&node.name);
            found.map(|around| around.between.as_str())
        };
        let by_name = |node: &'a InspectedNode| {
            (!node.name.is_empty()).then_some((&*node.op_type, &*node.name))
        };
        pair_by(&mut left, &mut old, by_name, by_name);
        let by_place = |side: Side<'a>| {
            move |node: &'a InspectedNode| Some((&*node.op_type, between(side, node)?))
        };
        pair_by(&mut left, &mut old, by_place(now), by_place(before));
        let mut elsewhere = Vec::new();
        let by_op = |node: &'a InspectedNode| Some(&*node.op_type);
        for (node, other) in pair_by(&mut left, &mut old, by_op, by_op) {
            let is_known = between(now, node).is_some() && between(before, other).is_some();
            elsewhere.extend(is_known.then_some((node, other)));
        }
        Self {
            kept: all - left.len(),
            gone: old.len(),
            new: left,
            elsewhere,
        }
    }
}

/// Takes pairs of one key out of both lists, each in its order, and returns them.
fn pair_by<'a, K: Ord>(
    now: &mut Vec<&'a InspectedNode>,
    before: &mut Vec<&'a InspectedNode>,
    key_now: impl Fn(&'a InspectedNode) -> Option<K>,
    key_before: impl Fn(&'a InspectedNode) -> Option<K>,
) -> Vec<(&'a InspectedNode, &'a InspectedNode)> {
    let mut old: BTreeMap<K, VecDeque<usize>> = BTreeMap::new();
    for (at, node) in before.iter().enumerate() {
        if let Some(key) = key_before(node) {
            old.entry(key).or_default().push_back(at);
        }
    }
    let (mut pairs, mut taken) = (Vec::new(), vec![false; before.len()]);
    now.retain(|node| {
        let found = key_now(node).and_then(|key| old.get_mut(&key)?.pop_front());
        if let Some(at) = found {
            taken[at] = true;
            pairs.push((*node, before[at]));
        }
        found.is_none()
    });
    let mut taken = taken.into_iter();
    before.retain(|_| taken.next() == Some(false));
    pairs
}
