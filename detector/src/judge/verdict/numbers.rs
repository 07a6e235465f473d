//! The numbers of a verdict, and the op types on the CPU of the devices hit.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::{Reason, VerdictNumbers, WorkUnit};

use crate::judge::signals::{PlacementChange, SignalEvidence, SlowerAndMoved};
use crate::judge::window::CohortWindow;

use super::CpuNodes;
use super::finding::Finding;

pub(super) fn numbers(
    window: &CohortWindow,
    evidence: &SignalEvidence,
    found: &Finding,
    change: Option<&PlacementChange>,
    joined: Option<&SlowerAndMoved>,
) -> VerdictNumbers {
    let mut numbers = VerdictNumbers {
        devices_seen: window.n_devices().max(found.eligible),
        devices_on_chipset: window.n_devices() + window.n_only_directed(),
        devices_eligible: found.eligible,
        devices_hit: found.hits,
        runs: window.n_runs(),
        npu_share: change.and_then(|change| change.hit_npu_share),
        reference_npu_share: change.and_then(|change| change.reference_npu_share),
        ..VerdictNumbers::default()
    };
    let is_at_times = |reason: &Reason| matches!(reason, Reason::Intermittent { .. });
    let is_at_times = found.reasons.iter().any(is_at_times);
    let shift = evidence.firing_shift().filter(|_| !is_at_times);
    let joined =
        joined.filter(|joined| change.is_some() && (joined.signal.fires || shift.is_none()));
    if let Some(joined) = joined {
        numbers.latency_ratio = Some(joined.p50_ratio);
        numbers.hit_p50_us = Some(joined.hit_p50_us);
        numbers.reference_p50_us = Some(joined.reference_p50_us);
    } else if let Some(shift) = shift {
        numbers.latency_ratio = shift.p50_ratio;
        numbers.hit_p50_us = shift.p50_us.map(|(now, _)| now);
        numbers.reference_p50_us = shift.p50_us.map(|(_, before)| before);
    } else if let Some(make) = evidence.slower_group.as_ref().filter(|_| is_of_make(found)) {
        numbers.latency_ratio = Some(make.ratio);
        numbers.hit_p50_us = make.p50_us.map(|(own, _)| own);
        numbers.reference_p50_us = make.p50_us.map(|(_, others)| others);
    } else {
        let votes = window.votes.iter().filter_map(|vote| vote.latency.as_ref());
        let ratios: Vec<f64> = votes.filter_map(|latency| latency.p50_ratio()).collect();
        numbers.latency_ratio = epwatch_stats::order_stat::median(&ratios);
    }
    if numbers.npu_share.is_none() {
        numbers.npu_share = typical_npu_share(window);
    }
    numbers
}

fn is_of_make(found: &Finding) -> bool {
    let is_it = |reason: &Reason| matches!(reason, Reason::SlowerMake { .. });
    found.reasons.first().is_some_and(is_it)
}

fn typical_npu_share(window: &CohortWindow) -> Option<f64> {
    let votes = window.votes.iter();
    let shares = votes.filter_map(|vote| Some(vote.placement.npu_share()?.0));
    let shares: Vec<f64> = shares.collect();
    epwatch_stats::order_stat::median(&shares)
}

/// Minimum share of the devices hit that must have an op type on the CPU. Rarer op types come from single devices that
/// run everything there, and would mislead the person on call.
const MIN_SHARE_OF_DEVICES: f64 = 0.1;

/// One op type on the CPU of the devices hit.
#[derive(Debug, Default)]
struct CpuOp {
    macs_share: f64,
    n_nodes: usize,
    devices: u64,
}

/// Returns the op types on the CPU of the devices hit, by MACs then by number, and their share of the MACs.
pub(super) fn on_the_cpu(change: &PlacementChange, nodes: &CpuNodes) -> (Vec<String>, Option<f64>) {
    let mut ops: BTreeMap<&str, CpuOp> = BTreeMap::new();
    let mut commonest_share = None;
    for hit in &change.hit_placements {
        let method = &hit.placement.method;
        let id = (method.fingerprint_algorithm, hit.placement.fingerprint);
        let Some(nodes) = nodes.get(&id) else {
            continue;
        };
        let kinds: BTreeSet<&str> = nodes.iter().map(|node| node.op_type.as_str()).collect();
        for kind in kinds {
            ops.entry(kind).or_default().devices += hit.devices;
        }
        for node in nodes {
            let op = ops.entry(&node.op_type).or_default();
            op.macs_share += node.macs_share.unwrap_or(0.0);
            op.n_nodes += 1;
        }
        let shares: Vec<f64> = nodes.iter().filter_map(|node| node.macs_share).collect();
        if commonest_share.is_none() && !shares.is_empty() {
            commonest_share = Some(shares.iter().sum());
        }
    }
    let n_hit: u64 = change.hit_placements.iter().map(|hit| hit.devices).sum();
    ops.retain(|_, op| op.devices as f64 >= MIN_SHARE_OF_DEVICES * n_hit as f64);
    let mut ops: Vec<(&str, CpuOp)> = ops.into_iter().collect();
    ops.sort_by(|(a_name, a), (b_name, b)| {
        let by_macs = b.macs_share.total_cmp(&a.macs_share);
        by_macs
            .then(b.n_nodes.cmp(&a.n_nodes))
            .then(a_name.cmp(b_name))
    });
    let by_macs = change
        .hit_npu_share
        .filter(|_| change.unit == WorkUnit::Macs);
    let share = by_macs.map(|npu| 1.0 - npu).or(commonest_share);
    let ops = ops.into_iter().map(|(op, _)| op.to_owned());
    (ops.collect(), share)
}
