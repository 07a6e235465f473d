//! Finds the firmware, or the runtime, whose devices are hit far more often than the others of the chipset.

use std::collections::BTreeMap;

use epwatch_model::{Installation, Reason, VerdictClass};

use crate::judge::hash::HashSet;
use crate::judge::signals::{MIN_ELIGIBLE, MIN_HITS, SignalEvidence};
use crate::judge::tally::{BaseRate, Tally, surprise};
use crate::judge::window::CohortWindow;

use super::finding::Finding;

/// Chance below which the hits of one firmware are not a coincidence.
const CHANCE: f64 = 1e-3;

/// Minimum ratio of the firmware's share of devices hit to the others' share.
const AT_LEAST: f64 = 3.0;

/// Minimum number of devices without the firmware. For golden outputs few are enough, because the same bytes give the
/// same output: the firmware explains all devices or none.
const OTHERS: u64 = MIN_ELIGIBLE;
const OTHERS_OF_OUTPUTS: u64 = MIN_HITS;

/// Prior for the others' share of devices hit, which counts if there are few of them.
const OTHERS_RATE: BaseRate = BaseRate {
    rate: 0.05,
    strength: 5.0,
};

/// Chance below which a firmware or a runtime is the cause although other models of the devices are slower too. Heat
/// and load are on all firmwares, so this must not be a coincidence in any of the many vetoed windows.
const SURE: f64 = 1e-6;

/// Minimum share of the devices with the firmware or runtime that must be hit in that case.
const MOST_OF_ITS_DEVICES: f64 = 0.5;

/// A group of devices that is hit far more often than the others of the chipset.
struct StandsOut<'a> {
    name: &'a str,
    own: Tally,
    others: Tally,
    /// The chance of its hits, corrected for testing each group.
    chance: f64,
}

/// Returns the reason that names the firmware; `None` if no firmware stands out.
pub(super) fn of_those_hit(
    window: &CohortWindow,
    evidence: &SignalEvidence,
    found: &Finding,
) -> Option<Reason> {
    let is_named = |reason: &Reason| {
        matches!(
            reason,
            Reason::Firmware { .. } | Reason::CommonRuntime { .. }
        )
    };
    if found.reasons.iter().any(is_named) {
        return None;
    }
    let hit = hit_devices(evidence, found)?;
    let firmware = match found.class.is_of_outputs() {
        true => standing_out(&by_firmware_of_tests(window), hit, OTHERS_OF_OUTPUTS),
        false => standing_out(&by_firmware(window), hit, OTHERS),
    };
    firmware.map(named_firmware)
}

/// Returns the reason that names the firmware, or the runtime, that nearly all of the slower devices have and the
/// others do not. Load does not explain such a slow-down.
pub(super) fn of_slower_devices(
    window: &CohortWindow,
    evidence: &SignalEvidence,
) -> Option<Reason> {
    let hit = &evidence.firing_shift()?.hit_devices;
    let is_sure =
        |found: &StandsOut<'_>| found.chance <= SURE && found.own.share() >= MOST_OF_ITS_DEVICES;
    // A device without a self baseline cannot be called slower.
    let compared = window.votes.iter().filter(|vote| {
        let latency = vote.latency.as_ref();
        latency.is_some_and(|latency| latency.p10_ratio().is_some())
    });
    let firmwares = compared.clone();
    let firmwares = grouped(firmwares.map(|vote| (&*vote.firmware, vote.installation)));
    if let Some(firmware) = standing_out(&firmwares, hit, OTHERS).filter(is_sure) {
        return Some(named_firmware(firmware));
    }
    let runtimes = grouped(compared.map(|vote| (&*vote.placement.runtime, vote.installation)));
    let runtime = standing_out(&runtimes, hit, OTHERS).filter(is_sure);
    runtime.map(named_runtime)
}

/// Returns the group that stands out most, among groups of all devices.
fn standing_out<'a>(
    groups: &BTreeMap<&'a str, HashSet<Installation>>,
    hit: &HashSet<Installation>,
    least_others: u64,
) -> Option<StandsOut<'a>> {
    let all: HashSet<Installation> = groups.values().flatten().copied().collect();
    let candidates = groups.iter().filter_map(|(name, having)| {
        let is_hit = |device: &Installation| hit.contains(device);
        let own = Tally::of(having, is_hit);
        // A device that was updated within the window is in both groups, and counts only for this one.
        let others = Tally::of(all.difference(having), is_hit);
        if name.is_empty() || own.hits < MIN_HITS || others.devices < least_others {
            return None;
        }
        let chance = surprise(own, OTHERS_RATE, others) * groups.len() as f64;
        let stands_out = own.share() >= AT_LEAST * others.share() && chance <= CHANCE;
        stands_out.then_some(StandsOut {
            name,
            own,
            others,
            chance,
        })
    });
    candidates.max_by(|a, b| {
        let by_share = a.own.share().total_cmp(&b.own.share());
        a.own.hits.cmp(&b.own.hits).then(by_share)
    })
}

fn named_firmware(found: StandsOut<'_>) -> Reason {
    Reason::Firmware {
        firmware: found.name.to_owned(),
        hits: found.own.hits,
        devices: found.own.devices,
        other_hits: found.others.hits,
        other_devices: found.others.devices,
    }
}

fn named_runtime(found: StandsOut<'_>) -> Reason {
    Reason::CommonRuntime {
        runtime: found.name.to_owned(),
        hits: found.own.hits,
        devices: found.own.devices,
        other_hits: found.others.hits,
        other_devices: found.others.devices,
    }
}

/// Returns devices by firmware. A device has a session or a failed start, because an update that prevents the NPU from
/// starting leaves no session.
fn by_firmware(window: &CohortWindow) -> BTreeMap<&str, HashSet<Installation>> {
    let votes = window.votes.iter();
    let votes = votes.map(|vote| (&*vote.firmware, vote.installation));
    let starts = window.device_events.failed_starts.iter();
    let starts = starts.map(|start| (&*start.firmware, start.installation));
    grouped(votes.chain(starts))
}

/// Returns the devices with a golden test by the firmware that was tested.
fn by_firmware_of_tests(window: &CohortWindow) -> BTreeMap<&str, HashSet<Installation>> {
    let tests = window.device_events.tests.iter();
    let tests = tests.filter(|test| test.has_run);
    grouped(tests.map(|test| (&*test.firmware, test.installation)))
}

fn grouped<'a>(
    devices: impl Iterator<Item = (&'a str, Installation)>,
) -> BTreeMap<&'a str, HashSet<Installation>> {
    let mut groups: BTreeMap<&str, HashSet<Installation>> = BTreeMap::new();
    for (name, device) in devices {
        groups.entry(name).or_default().insert(device);
    }
    groups
}

/// Returns the devices that the finding counts as hit; `None` if it is about all devices, or names a firmware itself.
fn hit_devices<'a>(
    evidence: &'a SignalEvidence,
    found: &Finding,
) -> Option<&'a HashSet<Installation>> {
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
        VerdictClass::CompiledForAnother => {
            Some(&evidence.compiled_for_another.as_ref()?.hit_devices)
        }
        VerdictClass::WrongOutputs => Some(&evidence.firing_drop()?.hit_devices),
        VerdictClass::QuantisationLoss
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

    use crate::judge::describe::describe;
    use crate::judge::signals::{Controls, Limits, PeerRatios, SignalEvidence};
    use crate::judge::verdict::{CpuNodes, judge};
    use crate::judge::window::CohortWindow;
    use crate::testing::{Fleet, failed_starts, golden_tests, judged, reference, tested};
    use epwatch_model::{Severity, VerdictClass};

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

    fn told(window: &CohortWindow, peers: &PeerRatios) -> (VerdictClass, Severity, Vec<String>) {
        let controls = Controls {
            previous: None,
            peers,
            chipsets: &[],
        };
        let (limits, baseline) = (Limits::for_windows_a_day(1_000.0), reference());
        let evidence = SignalEvidence::gather(window, controls, &baseline, &limits);
        let statistics = describe(window).unwrap();
        let verdict = judge(window, &baseline, &evidence, statistics, &CpuNodes::new());
        let reasons = verdict.reasons.iter().map(ToString::to_string).collect();
        (verdict.class, verdict.severity, reasons)
    }

    /// Devices of a firmware that slows down all of their models, and the other models' ratios.
    fn all_models_slower(
        factor: f64,
        is_updated: impl Fn(u32) -> bool,
    ) -> (CohortWindow, PeerRatios) {
        let fleet = Fleet {
            hit_share: 0.4,
            slow_factor: factor,
            ..Fleet::default()
        };
        let window = on_f2(fleet.window(), is_updated);
        let mut other = window.clone();
        other.key.model.model_id = "ranker".into();
        let mut peers = PeerRatios::default();
        peers.add(&other.key, &other.votes);
        (window, peers)
    }

    /// A larger slow-down never lowers the severity: 1.5x is a ticket at most, 1.7x and more a page.
    #[test]
    fn a_firmware_that_slows_all_models_down_is_no_load_at_any_ratio() {
        let mut before = Severity::None;
        for factor in [1.0, 1.2, 1.5, 1.8, 2.2, 2.6, 2.9, 3.5, 6.0] {
            let (window, peers) = all_models_slower(factor, |device| device < 24);
            let (class, severity, reasons) = told(&window, &peers);
            assert!(severity >= before, "{factor}: {class:?} {reasons:#?}");
            before = severity;
            let names = reasons
                .iter()
                .any(|reason| reason.contains("devices on f2"));
            assert_eq!(names, severity == Severity::Page, "{factor}: {reasons:#?}");
        }
        assert_eq!(before, Severity::Page);
    }

    #[test]
    fn load_on_all_firmwares_is_no_page() {
        let (window, peers) = all_models_slower(2.2, |device| device % 2 == 0);
        let (class, severity, _) = told(&window, &peers);
        assert_eq!(
            (class, severity),
            (VerdictClass::ThermalOrLoad, Severity::Info)
        );
    }

    /// Only makes whose devices report no thermal state have the firmware.
    #[test]
    fn heat_that_a_firmware_does_not_report_is_no_page() {
        let (mut window, peers) = all_models_slower(2.2, |device| device < 26);
        for vote in &mut window.votes {
            vote.reports_heat = &*vote.firmware != "f2";
        }
        let (class, _, _) = told(&window, &peers);
        assert_eq!(class, VerdictClass::ThermalOrLoad);
    }

    /// Another firmware of the chipset computes the same outputs as its CPU.
    #[test]
    fn the_firmware_that_all_wrong_outputs_have_is_named() {
        let window = tested(Fleet::default().window(), 0..20, "bb", "f2", 0.4);
        check(&window, Some("20 of 20 devices on f2 are hit, and 0 of 40"));
        let next = judged(&window, None, &reference()).next_step;
        assert!(next.contains("It comes with firmware f2"), "{next}");
    }

    /// Outputs are wrong on some devices, others of another firmware fell back.
    #[test]
    fn a_firmware_of_wrong_outputs_is_named_with_few_devices_without_it() {
        let mut window = Fleet::default().window();
        let (off, well) = (
            golden_tests(0..12, "bb", "f2", 0.4),
            golden_tests(12..15, "aa", "f1", 0.01),
        );
        window.device_events.tests = off.into_iter().chain(well).collect();
        check(&window, Some("12 of 12 devices on f2 are hit, and 0 of 3"));
    }

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
