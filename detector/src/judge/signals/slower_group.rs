//! Devices of one model or firmware that are slower than the chipset's others, in the same window and input shape. The
//! comparison needs no past, because a make that never had the NPU was never faster.
//!
//! Devices are compared by their p10 with devices of the fastest groups. The finding is a ticket at most: makes of one
//! chipset differ in clocks and memory, though never as much as the limit.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::Installation;
use epwatch_stats::order_stat::median;

use crate::judge::hash::HashMap;
use crate::judge::tally::{BaseRate, Tally, surprise};
use crate::judge::window::{CohortWindow, DeviceVote};

use super::limits::MIN_ELIGIBLE;

/// Ratio of a group's median to the others' median, from which the group is slower by more than makes usually differ.
const SLOWER: f64 = 3.0;

/// Ratio to the others' median from which a device of the group is hit, and the share of its devices that must be hit.
const DEVICE_SLOWER: f64 = 2.0;
const NEARLY_ALL: f64 = 0.8;

/// Groups whose medians lie within this factor of the fastest are "the others", if they have this share of the devices.
const AS_FAST: f64 = 1.6;
const MIN_SHARE_OF_OTHERS: f64 = 0.2;

/// Prior for the share of devices that are so much slower in the other groups.
const OTHERS_RATE: BaseRate = BaseRate {
    rate: 0.03,
    strength: 20.0,
};

/// Chance below which so many slow devices of a group are not a coincidence.
const CHANCE: f64 = 1e-4;

/// Devices of some models, or of a firmware, that are slower than the others of their chipset.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowerGroup {
    /// Device models, in order; empty if only a firmware stands out.
    pub device_models: Vec<String>,
    /// The firmware that all of these devices have.
    pub firmware: Option<String>,
    /// Devices of the group, and how many of them are slower.
    pub own: Tally,
    /// Devices of the other groups.
    pub others: u64,
    /// Ratio of the medians of p10.
    pub ratio: f64,
    /// Medians of p50, in microseconds, of the group and of the others.
    pub p50_us: Option<(f64, f64)>,
    /// Chance of so many in a healthy cohort.
    pub p: f64,
}

/// A device with the input shape that most have.
struct GroupMember<'a> {
    device: Installation,
    device_model: &'a str,
    firmware: &'a str,
    p10_us: f64,
    p50_us: f64,
}

/// Finds such devices; `None` if there are none, or too few to compare.
#[must_use]
pub(super) fn slower_group(window: &CohortWindow) -> Option<SlowerGroup> {
    let devices = of_commonest_shape(&window.votes);
    let found = slower(&devices, true).or_else(|| slower(&devices, false))?;
    let is_own = |device: &&GroupMember<'_>| found.own.contains(&device.device);
    let own: Vec<&GroupMember<'_>> = devices.iter().filter(is_own).collect();
    let others: Vec<&GroupMember<'_>> = devices
        .iter()
        .filter(|device| found.others.contains(&device.device))
        .collect();
    let p50 =
        |of: &[&GroupMember<'_>]| median(&of.iter().map(|one| one.p50_us).collect::<Vec<_>>());
    let mut firmwares: Vec<&str> = own.iter().map(|device| device.firmware).collect();
    firmwares.sort_unstable();
    firmwares.dedup();
    let is_theirs = |firmware: &&str| others.iter().all(|other| other.firmware != *firmware);
    let firmware = match firmwares[..] {
        [one] => Some(one).filter(is_theirs).filter(|name| !name.is_empty()),
        _ => None,
    };
    let names = match found.by_model {
        true => found.names,
        false => Vec::new(),
    };
    Some(SlowerGroup {
        device_models: names,
        firmware: firmware.map(str::to_owned),
        own: found.tally,
        others: others.len() as u64,
        ratio: found.ratio,
        p50_us: p50(&own).zip(p50(&others)),
        p: found.p,
    })
}

/// Groups that stand out by device model or by firmware.
struct Found {
    names: Vec<String>,
    by_model: bool,
    own: BTreeSet<Installation>,
    others: BTreeSet<Installation>,
    tally: Tally,
    ratio: f64,
    p: f64,
}

fn slower<'a>(devices: &'a [GroupMember<'a>], by_model: bool) -> Option<Found> {
    let name = |device: &GroupMember<'a>| match by_model {
        true => device.device_model,
        false => device.firmware,
    };
    let mut groups: BTreeMap<&str, Vec<&GroupMember<'_>>> = BTreeMap::new();
    for device in devices.iter().filter(|device| !name(device).is_empty()) {
        groups.entry(name(device)).or_default().push(device);
    }
    groups.retain(|_, of| of.len() as u64 >= MIN_ELIGIBLE);
    let median_of = |of: &[&GroupMember<'_>]| {
        let p10s: Vec<f64> = of.iter().map(|device| device.p10_us).collect();
        median(&p10s)
    };
    let medians: BTreeMap<&str, f64> = groups
        .iter()
        .filter_map(|(name, of)| Some((*name, median_of(of)?)))
        .collect();
    let fastest = medians.values().copied().min_by(f64::total_cmp)?;
    let of_groups = |is_wanted: &dyn Fn(f64) -> bool| -> Vec<&GroupMember<'_>> {
        let wanted = medians.iter().filter(|(_, median)| is_wanted(**median));
        wanted
            .flat_map(|(name, _)| groups[name].iter().copied())
            .collect()
    };
    let others = of_groups(&|median| median <= AS_FAST * fastest);
    let reference = median_of(&others)?;
    let own = of_groups(&|median| median >= SLOWER * reference);
    if own.is_empty() || (others.len() as f64) < MIN_SHARE_OF_OTHERS * devices.len() as f64 {
        return None;
    }
    let is_hit = |device: &&GroupMember<'_>| device.p10_us >= DEVICE_SLOWER * reference;
    let tally = Tally::of(own.iter().copied(), |device| is_hit(&device));
    let of_others = Tally::of(others.iter().copied(), |device| is_hit(&device));
    let p = (surprise(tally, OTHERS_RATE, of_others) * medians.len() as f64).min(1.0);
    if tally.share() < NEARLY_ALL || p > CHANCE {
        return None;
    }
    let names = medians
        .iter()
        .filter(|(_, median)| **median >= SLOWER * reference);
    let all = |of: &[&GroupMember<'_>]| of.iter().map(|device| device.device).collect();
    Some(Found {
        names: names.map(|(name, _)| (*name).to_owned()).collect(),
        by_model,
        ratio: median_of(&own)? / reference,
        own: all(&own),
        others: all(&others),
        tally,
        p,
    })
}

/// Returns each device once, with its fastest vote, for the input shape that most devices have.
fn of_commonest_shape(votes: &[DeviceVote]) -> Vec<GroupMember<'_>> {
    let mut shapes: BTreeMap<&str, HashMap<Installation, GroupMember<'_>>> = BTreeMap::new();
    for vote in votes {
        let Some(low) = vote.latency.as_ref().and_then(|latency| latency.low) else {
            continue;
        };
        let compared = GroupMember {
            device: vote.installation,
            device_model: &vote.device_model,
            firmware: &vote.firmware,
            p10_us: low.p10_us,
            p50_us: low.p50_us,
        };
        let of_shape = shapes.entry(&vote.shape_key).or_default();
        let is_faster = |known: &GroupMember<'_>| low.p10_us < known.p10_us;
        if of_shape.get(&vote.installation).is_none_or(is_faster) {
            of_shape.insert(vote.installation, compared);
        }
    }
    let most = shapes.into_values().max_by_key(|devices| devices.len());
    let mut devices: Vec<GroupMember<'_>> = most.unwrap_or_default().into_values().collect();
    devices.sort_unstable_by_key(|device| device.device);
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fleet;

    /// A window of 60 devices. The first `devices` are of another make, which is this much slower.
    fn with_new_make(devices: usize, factor: f64) -> CohortWindow {
        let slow = Fleet {
            hit_share: devices as f64 / 60.0,
            slow_factor: factor,
            before: None,
            ..Fleet::default()
        };
        let mut window = slow.window();
        for vote in &mut window.votes[..devices] {
            vote.device_model = "P00N".into();
        }
        window
    }

    #[test]
    fn a_make_that_is_three_times_as_slow_from_five_devices_on_is_found() {
        for (devices, factor, is_found) in [
            (15, 6.0, true),
            (40, 4.0, true),
            (5, 4.0, true),
            (4, 6.0, false),
            (15, 2.5, false),
            (15, 1.0, false),
        ] {
            let found = slower_group(&with_new_make(devices, factor));
            assert_eq!(found.is_some(), is_found, "{devices} {factor} {found:?}");
            let Some(found) = found else { continue };
            assert_eq!(found.device_models, ["P00N"]);
            assert_eq!(found.own.devices, devices as u64);
            assert!((found.ratio / factor - 1.0).abs() < 0.2, "{found:?}");
        }
    }

    #[test]
    fn a_firmware_is_found_where_models_are_not_known() {
        let mut window = with_new_make(15, 6.0);
        for (at, vote) in window.votes.iter_mut().enumerate() {
            vote.device_model = "".into();
            vote.firmware = if at < 15 { "f9" } else { "f1" }.into();
        }
        let found = slower_group(&window).unwrap();
        assert_eq!(found.firmware.as_deref(), Some("f9"));
        assert!(found.device_models.is_empty());
    }

    /// Half of the devices of every make fell back: no make is the cause.
    #[test]
    fn devices_of_all_makes_are_no_group() {
        let mut window = with_new_make(30, 6.0);
        for (at, vote) in window.votes.iter_mut().enumerate() {
            vote.device_model = ["P00", "P01", "P02"][at % 3].into();
        }
        assert_eq!(slower_group(&window), None);
    }
}
