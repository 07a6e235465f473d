//! Whether those hit have one firmware, and others of the chipset are not hit.

use std::collections::BTreeMap;

use crate::baseline::Tally;
use crate::hash::HashSet;
use crate::rates::Rate;
use crate::reason::Reason;
use crate::signals::{Evidence, MIN_ELIGIBLE, MIN_HITS, surprise};
use crate::window::{CohortWindow, Installation};

/// Chance below which it is no coincidence that one firmware has the hits.
const CHANCE: f64 = 1e-3;

/// Its share of devices hit over that of the others.
const AT_LEAST: f64 = 3.0;

/// What others' share is taken for where there are few of them.
const OTHERS_RATE: Rate = Rate {
    rate: 0.05,
    strength: 5.0,
};

/// Names the firmware of those hit; `None` where it says nothing.
pub(super) fn of_those_hit(
    window: &CohortWindow,
    evidence: &Evidence,
    by_placement: bool,
) -> Option<Reason> {
    let hit = hit_devices(evidence, by_placement)?;
    let mut devices: BTreeMap<&str, HashSet<Installation>> = BTreeMap::new();
    for vote in &window.votes {
        let slot = devices.entry(&vote.firmware).or_default();
        slot.insert(vote.installation);
    }
    let tally = |devices: &HashSet<Installation>| Tally {
        hits: devices.intersection(hit).count() as u64,
        devices: devices.len() as u64,
    };
    let tallies: Vec<(&str, Tally)> = devices
        .iter()
        .map(|(name, of)| (*name, tally(of)))
        .collect();
    let (firmware, own) = tallies.iter().max_by_key(|(_, tally)| tally.hits)?;
    let others = tallies.iter().filter(|(name, _)| name != firmware);
    let others = others.fold(Tally::default(), |sum, (_, tally)| Tally {
        hits: sum.hits + tally.hits,
        devices: sum.devices + tally.devices,
    });
    let share = |tally: &Tally| tally.hits as f64 / tally.devices as f64;
    let tells = !firmware.is_empty()
        && own.hits >= MIN_HITS
        && others.devices >= MIN_ELIGIBLE
        && share(own) >= AT_LEAST * share(&others)
        && surprise(*own, OTHERS_RATE, others) <= CHANCE;
    tells.then(|| Reason::Firmware {
        firmware: (*firmware).to_owned(),
        hits: own.hits,
        devices: own.devices,
        other_hits: others.hits,
        other_devices: others.devices,
    })
}

/// Those that the leading signal found.
fn hit_devices(evidence: &Evidence, by_placement: bool) -> Option<&HashSet<Installation>> {
    let change = evidence.placement.as_ref().filter(|_| by_placement);
    let starts = evidence.starts.as_ref().filter(|found| found.signal.fires);
    let shift = evidence.shift.as_ref().filter(|found| found.signal.fires);
    let tail = evidence.tail.as_ref().filter(|found| found.signal.fires);
    let moved = evidence.moved.as_ref().filter(|found| found.signal.fires);
    let placed = change.map(|change| &change.hit_devices);
    placed
        .or(starts.map(|found| &found.hit_devices))
        .or(shift.map(|found| &found.hit_devices))
        .or(tail.or(moved).map(|found| &found.hit_devices))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::testing::{Fleet, judged, reference};

    fn told(with_new_firmware: impl Fn(u32) -> bool) -> Vec<String> {
        let mut window = Fleet::with_fallback(0.4).window();
        let new: Arc<str> = "f2".into();
        for (at, vote) in (0..).zip(&mut window.votes) {
            if with_new_firmware(at) {
                vote.firmware = new.clone();
            }
        }
        let reasons = judged(&window, None, &reference()).reasons;
        reasons.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_firmware_that_all_hit_devices_have_is_named() {
        let expected = "it comes with a firmware: 24 of 26 devices on f2 are hit, and 0 of 34 on others \
                        of this chipset";
        let reasons = told(|device| device < 26);
        assert!(
            reasons.iter().any(|reason| reason == expected),
            "{reasons:#?}"
        );
    }

    #[test]
    fn a_firmware_that_half_of_all_have_is_not_named() {
        let reasons = told(|device| device % 2 == 0);
        assert!(
            reasons.iter().all(|reason| !reason.contains("firmware")),
            "{reasons:#?}"
        );
    }
}
