//! The other chipsets: whether the same version shows the same effect there, in the same window.
//!
//! A CPU fallback belongs to a chipset: to its driver, and to the abilities of its NPU. Load of the app itself, larger
//! inputs and a heavier model reach all chipsets at once. On one device these look the same as a fallback. So if
//! latency alone decides, the cohort is compared with the other chipsets. Placements need no such control.

use std::ops::AddAssign;

use epwatch_model::Installation;
use epwatch_stats::order_stat::median;

use crate::judge::tally::Tally;
use crate::judge::window::{CohortWindow, DeviceVote};

use super::control::{self, Controls};
use super::intermittent_runs::{self, Intermittent};
use super::limits::{MIN_ELIGIBLE, MIN_HITS};
use super::median_ratio::{HEAVIER, SLOWER};
use super::slow_devices::{self, Shift};

/// One chipset in four may differ although the effect is on all of them. A chipset with few devices may differ by
/// chance, another because the app does something else there. A fault on three of four chipsets is still a fault of
/// chipsets.
const MAY_DIFFER: f64 = 0.25;

/// Share of the chipsets that must show the effect at all.
const MUST_SHOW: f64 = 0.5;

/// Another chipset shows the effect if its excess share of devices hit is at least this fraction of the share in the
/// cohort. The fraction is low, because among ten chipsets under the same load, the one hit hardest fires first.
const AS_MUCH: f64 = 0.25;

/// The whole cohort moved if at least this share of its devices did. Then medians are compared: if all devices are
/// close to a ratio, shares beyond it are noise.
const MOST_DEVICES: f64 = 0.8;

/// Median ratio from which a chipset moved as well.
const MOVED: f64 = HEAVIER;

/// Chipsets moved alike if each lies within this factor of the others' median. A heavier model costs more on one
/// chipset than on another. `Median` needs the same factor for a chipset alone. The ratio of CPU to NPU differs more
/// than that between chipsets.
const ALIKE: f64 = SLOWER;

/// Slow-down above which a heavier model does not explain all chipsets together. A version rarely computes more than
/// twice as much as the one before. A whole model on the CPU is 3 to 80 times slower.
const HEAVIEST: f64 = 2.5;

/// The limit if input shapes are not known: an image with sides two and a half times as long has six times the pixels.
const LARGEST_INPUT: f64 = 6.25;

/// The effect on the other chipsets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossChipset {
    /// Chipsets compared; those with few devices count as one.
    pub chipsets: u64,
    /// Share of their devices that are hit in the same way as the cohort's, in [0, 1].
    pub share: f64,
    /// Median over the chipsets of the median ratio of p10, if the cohort is compared by it.
    pub ratio: Option<f64>,
    /// Whether the effect is on all chipsets, so that its cause may be something other than a fallback.
    pub explains: bool,
    /// Whether the chipsets surely have less than half of the effect. Then nothing that comes with the app, such as
    /// inputs, is the cause.
    pub spared: bool,
}

/// Returns the votes of installations known before the window, so that forged newcomers cannot prevent a page.
fn proven(window: &CohortWindow) -> impl Iterator<Item = &DeviceVote> {
    window.votes.iter().filter(|vote| vote.is_proven)
}

/// Compares devices that are slow in some runs. `usual` is the share of healthy devices that are slow in this way. If
/// the devices' other models, or the version before, have significantly less than half of the effect, this version is
/// the cause on every chipset.
#[must_use]
pub(super) fn in_some_runs(
    window: &CohortWindow,
    controls: Controls<'_>,
    found: &Intermittent,
    usual: f64,
) -> Option<CrossChipset> {
    let tally_of =
        |other: &&CohortWindow| intermittent_runs::tally_of(&found.signal, proven(other));
    let tallies = controls.chipsets.iter().map(tally_of).collect();
    let tallies = with_rest(tallies, |tally| tally.devices, Tally::add_assign);
    let own = found.signal.value;
    let (share, same) = same_share(own, usual, &tallies)?;
    let peers = control::peers_hit(window, controls.peers, found);
    let previous = controls.previous;
    let previous = previous.map(|window| intermittent_runs::tally_of(&found.signal, &window.votes));
    let mut controls = previous.into_iter().chain([peers]);
    let is_this_version = controls.any(|tally| tally.is_surely_below(own / 2.0));
    Some(CrossChipset {
        chipsets: tallies.len() as u64,
        share,
        ratio: None,
        explains: same && !is_this_version,
        spared: are_spared(own, &tallies),
    })
}

/// Compares devices that are slower than their own past. `usual` is the share of healthy devices beyond the
/// ratio that was found.
#[must_use]
pub(super) fn in_all_runs(
    window: &CohortWindow,
    chipsets: &[&CohortWindow],
    found: &Shift,
    usual: f64,
) -> Option<CrossChipset> {
    let ratios_of = |other: &&CohortWindow| -> Vec<f64> {
        slow_devices::worst_ratios(proven(other))
            .into_values()
            .collect()
    };
    let others = chipsets.iter().map(ratios_of).collect();
    let others = with_rest(others, |ratios| ratios.len() as u64, Vec::extend);
    let beyond = |ratio: &f64| *ratio >= found.signal.threshold;
    let tally = |ratios: &Vec<f64>| Tally::of(ratios, beyond);
    let tallies: Vec<Tally> = others.iter().map(tally).collect();
    let (share, same_share) = same_share(found.signal.value, usual, &tallies)?;
    let ratios: Vec<f64> = others.iter().filter_map(|ratios| median(ratios)).collect();
    let stayed = ratios.iter().filter(|ratio| **ratio < MOVED).count();
    let usual_ratio = median(&ratios)?;
    let moved_alike = |ratio: f64| {
        (MOVED..ALIKE * usual_ratio).contains(&ratio) && may_differ(stayed, ratios.len())
    };
    let whole = found.signal.value >= MOST_DEVICES;
    let (factor, alike) = if whole {
        (found.cohort_ratio, moved_alike(found.cohort_ratio))
    } else {
        // The median of all devices would hide a few that are far slower than a heavier model makes them.
        let ratio = hit_ratio(window, found)?;
        (ratio, same_share || moved_alike(ratio))
    };
    let most = if shape_is_known(window, found) {
        HEAVIEST
    } else {
        LARGEST_INPUT
    };
    Some(CrossChipset {
        chipsets: others.len() as u64,
        share,
        ratio: Some(usual_ratio).filter(|_| whole || !same_share),
        explains: alike && factor < most,
        spared: are_spared(found.signal.value, &tallies),
    })
}

/// Merges chipsets with too few devices into one; drops it if it still has too few.
pub(super) fn with_rest<T: Default>(
    all: Vec<T>,
    devices: impl Fn(&T) -> u64,
    add: impl Fn(&mut T, T),
) -> Vec<T> {
    let (mut large, small): (Vec<T>, Vec<T>) = all
        .into_iter()
        .partition(|one| devices(one) >= MIN_ELIGIBLE);
    let mut rest = T::default();
    for one in small {
        add(&mut rest, one);
    }
    if devices(&rest) >= MIN_ELIGIBLE {
        large.push(rest);
    }
    large
}

fn may_differ(differ: usize, of: usize) -> bool {
    differ as f64 <= MAY_DIFFER * of as f64
}

/// Returns the share of devices hit from which another chipset shows the same effect.
fn as_much(own: f64, usual: f64) -> f64 {
    usual + (own - usual).max(0.0) * AS_MUCH
}

/// Returns the share of the others' devices that are hit, and whether they show the same effect. They do if three
/// things hold: all together show significantly more than usual, half of them as much as here, and few significantly
/// less. `None` without others.
fn same_share(own: f64, usual: f64, others: &[Tally]) -> Option<(f64, bool)> {
    let mut all = Tally::default();
    others.iter().for_each(|other| all += *other);
    if all.devices == 0 {
        return None;
    }
    let wanted = as_much(own, usual);
    let surely_more = all.hits >= MIN_HITS && all.is_surely_above(usual);
    let shows = |other: &&Tally| other.hits as f64 >= wanted * other.devices as f64;
    let show = others.iter().filter(shows).count();
    let differ = others.iter().filter(|other| other.is_surely_below(wanted));
    let same = surely_more
        && show as f64 >= MUST_SHOW * others.len() as f64
        && may_differ(differ.count(), others.len());
    Some((all.share(), same))
}

/// Whether the others together surely have less than half as large a share of devices hit.
fn are_spared(own: f64, others: &[Tally]) -> bool {
    let mut all = Tally::default();
    others.iter().for_each(|other| all += *other);
    all.is_surely_below(own / 2.0)
}

/// Median ratio of p10 of the devices hit.
fn hit_ratio(window: &CohortWindow, found: &Shift) -> Option<f64> {
    let ratios = slow_devices::worst_ratios(&window.votes);
    let is_hit = |device: &Installation| found.hit_devices.contains(device);
    let of_hit = ratios.iter().filter(|(device, _)| is_hit(device));
    median(&of_hit.map(|(_, ratio)| *ratio).collect::<Vec<f64>>())
}

fn shape_is_known(window: &CohortWindow, found: &Shift) -> bool {
    let hit = window.votes.iter();
    let hit = hit.filter(|vote| found.hit_devices.contains(&vote.installation));
    let votes = Tally::of(hit, |vote| intermittent_runs::is_known(&vote.shape_key));
    2 * votes.hits >= votes.devices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(of: &[(u64, u64)]) -> Vec<Tally> {
        let tally = |(hits, devices): &(u64, u64)| Tally {
            hits: *hits,
            devices: *devices,
        };
        of.iter().map(tally).collect()
    }

    #[track_caller]
    fn check(own: f64, others: &[(u64, u64)], expected: bool) {
        let found = same_share(own, 0.05, &tallies(others));
        assert_eq!(found.map(|(_, same)| same), Some(expected), "{found:?}");
    }

    #[test]
    fn what_comes_to_all_chipsets_is_the_same_there() {
        check(0.4, &[(20, 60), (35, 80), (9, 30)], true);
        // A chipset with few devices shows no effect by chance.
        check(0.4, &[(20, 60), (35, 80), (0, 5)], true);
        // One of four chipsets does something else.
        check(0.4, &[(20, 60), (35, 80), (30, 70), (1, 60)], true);
    }

    #[test]
    fn what_came_to_some_chipsets_is_not() {
        check(0.4, &[(3, 60), (4, 80), (1, 30)], false);
        check(0.4, &[(40, 60), (3, 60)], false);
        check(0.4, &[(40, 60), (40, 60), (3, 60)], false);
        check(0.1, &[(3, 60), (4, 80)], false);
        check(0.2, &[(2, 15), (1, 15)], false);
        // Of four chipsets, only this one and another show the effect. The others are too small to be sure.
        check(0.4, &[(20, 60), (0, 5), (0, 5)], false);
        // Two devices are not a sign.
        check(0.4, &[(2, 5)], false);
    }

    #[test]
    fn chipsets_with_few_devices_answer_together() {
        let add = Vec::extend;
        let asked = |all| with_rest(all, |one: &Vec<f64>| one.len() as u64, add);
        let of = |n: usize| vec![1.0; n];
        assert_eq!(asked(vec![of(9), of(3), of(4)]), [of(9), of(7)]);
        assert_eq!(asked(vec![of(9), of(4)]), [of(9)]);
        assert!(asked(Vec::new()).is_empty());
    }

    #[test]
    fn without_other_chipsets_there_is_no_answer() {
        assert_eq!(same_share(0.4, 0.05, &[]), None);
    }
}
