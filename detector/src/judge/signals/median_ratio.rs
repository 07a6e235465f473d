//! `Median`: the median device is slower than its own past.
//!
//! Half of the devices do not move by chance, whatever the distribution of their ratios. The lower
//! order-statistic bound of the median (z = 3) is compared with 1.6 x. From 1.15 x to 1.6 x the whole cohort
//! moved a little: a heavier model, or a mild fallback.

use epwatch_model::{Signal, SignalId};
use epwatch_stats::order_stat::{median, median_lower_bound};

use crate::judge::tally::Tally;

use super::limits::{MIN_ELIGIBLE, counted_signal};
use super::slow_devices::WorstRatios;

/// Bound from which the slow-down is certain and worth a page.
pub(crate) const SLOWER: f64 = 1.6;

/// Bound from which the whole cohort moved.
pub(crate) const HEAVIER: f64 = 1.15;

const Z: f64 = 3.0;

/// One-sided chance beyond z = 3.
pub(crate) const MEDIAN_CHANCE: f64 = 0.00135;

/// The result of `Median`.
#[derive(Debug, Clone, PartialEq)]
pub struct Median {
    /// Value: the lower bound of the median ratio of p10. Threshold: 1.6.
    pub signal: Signal,
    /// The median ratio itself.
    pub ratio: f64,
    /// Whether the whole cohort moved, but less than 1.6 x.
    pub is_heavier: bool,
    /// Median ratio of the previous version in the same window, if that moved as well.
    pub control_ratio: Option<f64>,
    /// Median ratio of the devices' other models in the same window, if that moved half as much or more.
    pub peer_ratio: Option<f64>,
}

/// Bounds the median ratio; `None` with fewer than 10 devices that have a baseline of their own.
pub(super) fn moved(
    ratios: &WorstRatios,
    previous: Option<&WorstRatios>,
    peers: Option<f64>,
) -> Option<Median> {
    let ratios: Vec<f64> = ratios.values().copied().collect();
    let bound = median_lower_bound(&ratios, Z)?;
    let fires = bound >= SLOWER;
    let p = if fires { MEDIAN_CHANCE } else { 1.0 };
    let slower = Tally::of(&ratios, |ratio| *ratio >= SLOWER);
    let ratio = median(&ratios)?;
    let as_much = |peers: &f64| *peers >= HEAVIER && *peers - 1.0 >= (ratio - 1.0) / 2.0;
    Some(Median {
        signal: Signal {
            value: bound,
            ..counted_signal(SignalId::Median, slower, p, SLOWER, fires)
        },
        ratio,
        is_heavier: (HEAVIER..SLOWER).contains(&bound),
        control_ratio: previous.and_then(moved_too),
        peer_ratio: peers.filter(as_much),
    })
}

fn moved_too(previous: &WorstRatios) -> Option<f64> {
    let ratios: Vec<f64> = previous.values().copied().collect();
    let enough = ratios.len() as u64 >= MIN_ELIGIBLE;
    median(&ratios).filter(|ratio| enough && *ratio >= HEAVIER)
}
