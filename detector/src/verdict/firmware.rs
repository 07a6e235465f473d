//! Finds the firmware whose devices are hit far more often than the others of the chipset.

use std::collections::BTreeMap;

use crate::hash::HashSet;
use crate::reason::Reason;
use crate::signals::{Evidence, MIN_ELIGIBLE, MIN_HITS};
use crate::tally::{BaseRate, Tally, surprise};
use crate::window::{CohortWindow, Installation};

use super::VerdictClass;
use super::finding::Finding;

/// Chance below which the hits of one firmware are no coincidence.
const CHANCE: f64 = 1e-3;

/// Least ratio of its share of devices hit to that of the others.
const AT_LEAST: f64 = 3.0;

/// Prior for the others' share of devices hit, which counts if there are few of them.
const OTHERS_RATE: BaseRate = BaseRate {
    rate: 0.05,
    strength: 5.0,
};

/// Returns the reason that names the firmware; `None` if no firmware stands out.
pub(super) fn of_those_hit(
    window: &CohortWindow,
    evidence: &Evidence,
    found: &Finding,
) -> Option<Reason> {
    let hit = hit_devices(evidence, found)?;
    let devices = by_firmware(window);
    let all: HashSet<Installation> = devices.values().flatten().copied().collect();
    let candidates = devices.iter().filter_map(|(firmware, having)| {
        let is_hit = |device: &Installation| hit.contains(device);
        let own = Tally::of(having, is_hit);
        // A device that was updated within the window has both firmwares; it counts for this firmware only.
        let others = Tally::of(all.difference(having), is_hit);
        if firmware.is_empty() || own.hits < MIN_HITS || others.devices < MIN_ELIGIBLE {
            return None;
        }
        // Corrected for testing each firmware.
        let chance = surprise(own, OTHERS_RATE, others) * devices.len() as f64;
        let stands_out = own.share() >= AT_LEAST * others.share() && chance <= CHANCE;
        stands_out.then_some((*firmware, own, others))
    });
    let (firmware, own, others) = candidates.max_by(|(_, a, _), (_, b, _)| {
        let by_share = a.share().total_cmp(&b.share());
        a.hits.cmp(&b.hits).then(by_share)
    })?;
    Some(Reason::Firmware {
        firmware: firmware.to_owned(),
        hits: own.hits,
        devices: own.devices,
        other_hits: others.hits,
        other_devices: others.devices,
    })
}

/// Returns devices by firmware: those with a session, and those with a failed start, since an update that
/// prevents the NPU from starting leaves no session.
fn by_firmware(window: &CohortWindow) -> BTreeMap<&str, HashSet<Installation>> {
    let votes = window.votes.iter();
    let votes = votes.map(|vote| (&*vote.firmware, vote.installation));
    let starts = window.device_events.failed_starts.iter();
    let starts = starts.map(|start| (&*start.firmware, start.installation));
    let mut devices: BTreeMap<&str, HashSet<Installation>> = BTreeMap::new();
    for (firmware, device) in votes.chain(starts) {
        devices.entry(firmware).or_default().insert(device);
    }
    devices
}

/// Returns the devices that the finding counts as hit; `None` if it is about all devices, or names a firmware itself.
fn hit_devices<'a>(evidence: &'a Evidence, found: &Finding) -> Option<&'a HashSet<Installation>> {
    let has_reason = |is_it: fn(&Reason) -> bool| found.reasons.iter().any(is_it);
    let is_certificate = |reason: &Reason| matches!(reason, Reason::Certificate { .. });
    let placed = || {
        let drift = evidence.certificate.as_ref();
        let by_certificate = drift.filter(|_| found.reasons.first().is_some_and(is_certificate));
        let change = by_certificate.map(|drift| &drift.change);
        Some(&change.or(evidence.placement.as_ref())?.hit_devices)
    };
    let by_past = || {
        let is_it =
            |reason: &Reason| matches!(reason, Reason::Shift { .. } | Reason::MedianSlower { .. });
        let shift = evidence.shift.as_ref().filter(|_| has_reason(is_it));
        shift.map(|found| &found.hit_devices)
    };
    match found.class {
        VerdictClass::NpuStartFailure if has_reason(|r| matches!(r, Reason::NpuStart { .. })) => {
            Some(&evidence.start_failures.as_ref()?.hit_devices)
        }
        VerdictClass::NpuStartFailure
        | VerdictClass::TotalFallback
        | VerdictClass::PartialFallback
        | VerdictClass::SomeDevicesFallback => by_past().or_else(placed),
        VerdictClass::SlowWithoutPlacement => by_past(),
        VerdictClass::IntermittentFallback => Some(&evidence.firing_intermittent()?.hit_devices),
        VerdictClass::WrongOutputs
        | VerdictClass::CvSpike
        | VerdictClass::ThermalOrLoad
        | VerdictClass::DataQuality
        | VerdictClass::NotEnoughData
        | VerdictClass::Healthy => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::testing::{Fleet, failed_starts, golden_tests, judged, reference};
    use crate::verdict::VerdictClass;
    use crate::window::CohortWindow;

    fn on_f2(mut window: CohortWindow, is_updated: impl Fn(u32) -> bool) -> CohortWindow {
        let new: Arc<str> = "f2".into();
        for (at, vote) in (0..).zip(&mut window.votes) {
            if is_updated(at) {
                vote.firmware = new.clone();
            }
        }
        window
    }

    #[track_caller]
    fn check(window: &CohortWindow, expected: Option<&str>) {
        let reasons = judged(window, None, &reference()).reasons;
        let told: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        let told: Vec<&String> = told.iter().filter(|r| r.contains("comes with")).collect();
        let expected = expected
            .map(|counts| format!("it comes with a firmware: {counts} on others of this chipset"));
        assert_eq!(told, expected.iter().collect::<Vec<_>>(), "{reasons:#?}");
    }

    #[test]
    fn the_firmware_that_all_hit_devices_have_is_named() {
        let window = on_f2(Fleet::with_fallback(0.4).window(), |device| device < 26);
        check(&window, Some("24 of 26 devices on f2 are hit, and 0 of 34"));
    }

    #[test]
    fn a_firmware_that_half_of_all_have_is_not_named() {
        let window = on_f2(Fleet::with_fallback(0.4).window(), |device| device % 2 == 0);
        check(&window, None);
    }

    /// Sessions from before the update are in the window, too.
    #[test]
    fn devices_that_updated_within_the_window_count_with_what_they_have_now() {
        let mut window = Fleet::with_fallback(0.4).window();
        let before = window.votes[..24].to_vec();
        window = on_f2(window, |device| device < 24);
        window.votes.extend(before);
        check(&window, Some("24 of 24 devices on f2 are hit, and 0 of 36"));
    }

    #[test]
    fn devices_without_a_session_have_a_firmware() {
        let mut window = Fleet::default().window();
        window.device_events.failed_starts = failed_starts(60..80, "f2", "backend_setup_failed");
        check(&window, Some("20 of 20 devices on f2 are hit, and 0 of 60"));
    }

    /// Outputs are wrong on some devices, others of another firmware fell back.
    #[test]
    fn what_leads_is_what_the_firmware_is_said_of() {
        let mut window = on_f2(Fleet::with_fallback(0.4).window(), |device| device < 26);
        window.device_events.tests = golden_tests(30..50, "bb", "f1", 0.4);
        window
            .device_events
            .tests
            .extend(golden_tests(0..30, "aa", "f1", 0.01));
        let verdict = judged(&window, None, &reference());
        assert_eq!(verdict.class, VerdictClass::WrongOutputs);
        check(&window, None);
    }
}
