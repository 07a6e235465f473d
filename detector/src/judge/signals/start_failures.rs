//! `Start`: devices where the NPU does not start. A session that requested it could not be created, or was created
//! with nothing on the NPU and a reason code of its back end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::{Installation, Origin, PlacementReference, Signal, SignalId};
use epwatch_proto::ReasonCode;

use crate::judge::baseline::Baseline;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::{Tally, surprise};
use crate::judge::window::{CohortWindow, DeviceVote, count_devices, different};

use super::limits::{Limits, MIN_HITS, counted_signal, is_enough};
use super::placement_change::{self, BACKEND_CODES};

/// Share of healthy devices whose NPU never starts. They are among the devices that always fell back.
pub(crate) const FLEET_RATE: f64 = placement_change::FLEET_RATE;

/// Codes that mean a failed start if nothing is on the NPU: there was no NPU to set up.
const ABSENT_CODES: [ReasonCode; 4] = [
    ReasonCode::EpNotAvailable,
    ReasonCode::NoEpDevice,
    ReasonCode::NativeLibraryNotDeclared,
    ReasonCode::EpcontextWithoutEp,
];

/// The result of `Start`.
#[derive(Debug, Clone, PartialEq)]
pub struct StartFailures {
    /// Value: share of the devices hit. Fires if the cohort's history does not explain it.
    pub signal: Signal,
    /// Whether the count is surprising enough for a page, and the NPU is known to start on this chipset.
    pub is_page: bool,
    /// Whether no device shows that the NPU ever starts on this chipset. Emulators and chips of other makers
    /// have none, and apps may request it everywhere.
    pub is_unheard_of: bool,
    pub hit_devices: HashSet<Installation>,
    /// Devices counted, without those that a directive took off the NPU.
    pub n_counted: u64,
    /// Devices hit on which a session could not be created at all.
    pub failed_devices: u64,
    /// Reason codes, each with its number of devices, commonest first.
    pub codes: Vec<(String, u64)>,
}

/// Counts devices where the NPU does not start; `None` without devices. The previous version in the same
/// window is part of the history, so devices that never started do not fire again with a new version.
#[must_use]
pub(crate) fn start_failures(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<StartFailures> {
    let (hit, mut tally) = counted(window);
    let n_counted = tally.devices;
    // Devices that a directive took off the NPU had started on it, so they count as not hit.
    tally.devices += window.n_only_directed();
    if tally.devices == 0 {
        return None;
    }
    let before = previous.map(|previous| counted(previous).1);
    let past = baseline.past(SignalId::Start, before);
    let is_unheard_of = !starts_somewhere(window, previous, baseline, past);
    let rate = baseline.rates.of(SignalId::Start, FLEET_RATE);
    let p = surprise(tally, rate, past);
    let enough = is_enough(tally, 0.0);
    let fires = enough && p <= limits.p_placement;
    let mut by_code: BTreeMap<&str, u64> = BTreeMap::new();
    for code in hit.values().flatten() {
        *by_code.entry(code).or_default() += 1;
    }
    let codes = by_code.into_iter();
    let mut codes: Vec<(String, u64)> = codes.map(|(code, n)| (code.to_owned(), n)).collect();
    // The sort is stable, and the codes were in order, so equal counts stay sorted by code.
    codes.sort_by_key(|(_, devices)| Reverse(*devices));
    Some(StartFailures {
        signal: counted_signal(SignalId::Start, tally, p, 0.0, fires),
        is_page: enough && p <= limits.p_latency && !is_unheard_of,
        is_unheard_of,
        hit_devices: hit.into_keys().collect(),
        n_counted,
        failed_devices: different(failed(window)),
        codes,
    })
}

/// Whether the NPU is known to start on this chipset. A few devices with work on it in the window prove it. A reference
/// placement proves it, too, or a history in which most devices were not hit.
fn starts_somewhere(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    past: Tally,
) -> bool {
    let votes = window.votes.iter();
    let votes = votes.chain(previous.iter().flat_map(|window| &window.votes));
    let on_npu = votes.filter(|vote| vote.placement.npu_nodes > 0);
    let is_proof = |reference: &PlacementReference| {
        matches!(reference, PlacementReference::Placement { origin, placement }
            if *origin != Origin::OtherChipsets && placement.npu_nodes > 0)
    };
    baseline.placements.iter().any(is_proof)
        || 2 * past.hits < past.devices
        || count_devices(on_npu) >= MIN_HITS
}

/// Returns the devices hit with their codes, and the tally of all devices.
fn counted(window: &CohortWindow) -> (HashMap<Installation, BTreeSet<&str>>, Tally) {
    let mut hit: HashMap<Installation, BTreeSet<&str>> = HashMap::default();
    for start in &window.device_events.failed_starts {
        let codes = hit.entry(start.installation).or_default();
        codes.insert(&start.reason);
    }
    for vote in &window.votes {
        if let Some(code) = code_of(vote) {
            hit.entry(vote.installation).or_default().insert(code);
        }
    }
    let votes = window.votes.iter().map(|vote| vote.installation);
    let tally = Tally {
        hits: hit.len() as u64,
        devices: different(votes.chain(failed(window))),
    };
    (hit, tally)
}

/// Returns the devices where a session could not be created.
fn failed(window: &CohortWindow) -> impl Iterator<Item = Installation> {
    let starts = window.device_events.failed_starts.iter();
    starts.map(|start| start.installation)
}

/// Returns the code of a session without work on the NPU; `None` if anything runs there, because then the NPU was set
/// up.
fn code_of(vote: &DeviceVote) -> Option<&'static str> {
    let placement = &vote.placement;
    if placement.npu_nodes > 0 {
        return None;
    }
    let said = |code: &ReasonCode| placement.reasons.iter().any(|r| r == code.as_str());
    let codes = BACKEND_CODES.into_iter().chain(ABSENT_CODES);
    codes.into_iter().find(said).map(|code| code.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::device_events::FailedStart;
    use crate::judge::placement::tests::placed;
    use crate::testing::{Fleet, failed_starts, reference};

    fn limits() -> Limits {
        Limits::for_windows_a_day(1_000.0)
    }

    fn failing(devices: std::ops::Range<u32>) -> Vec<FailedStart> {
        failed_starts(devices, "f1", "backend_setup_failed")
    }

    #[track_caller]
    fn found(window: &CohortWindow, previous: Option<&CohortWindow>) -> StartFailures {
        start_failures(window, previous, &Baseline::default(), &limits()).unwrap()
    }

    /// A version that starts nowhere has failures and no session.
    #[test]
    fn devices_without_a_session_are_counted() {
        let mut window = Fleet::default().window();
        window.votes.clear();
        window.device_events.failed_starts = failing(0..12);
        let starts = start_failures(&window, None, &reference(), &limits()).unwrap();
        assert_eq!((starts.signal.hits, starts.signal.devices), (12, 12));
        assert!(starts.is_page);
        assert_eq!(starts.codes, [("backend_setup_failed".to_owned(), 12)]);
    }

    /// Three things show that the NPU can start: devices where it does, the version before, and the history.
    #[test]
    fn a_page_needs_to_know_that_the_npu_starts_on_the_chipset() {
        let mut window = Fleet::default().window();
        let sound = window.clone();
        window.votes.clear();
        window.device_events.failed_starts = failing(0..12);
        let nothing_known = found(&window, None);
        assert!(nothing_known.signal.fires && !nothing_known.is_page);
        assert!(nothing_known.is_unheard_of);
        assert!(found(&window, Some(&sound)).is_page);
        let past = |hits| {
            let mut baseline = Baseline::default();
            let tally = Tally { hits, devices: 50 };
            baseline.history.0.insert(SignalId::Start, tally);
            start_failures(&window, None, &baseline, &limits()).unwrap()
        };
        assert!(past(1).is_page);
        assert!(past(48).is_unheard_of);
    }

    /// After a retry that worked, a device has a failure and a session, but counts as one device.
    #[test]
    fn a_device_that_failed_and_ran_is_one_device() {
        let mut window = Fleet::default().window();
        window.device_events.failed_starts = failing(0..2);
        let starts = found(&window, None);
        assert_eq!((starts.signal.hits, starts.signal.devices), (2, 60));
        assert!(!starts.signal.fires);
    }

    #[test]
    fn codes_of_sessions_count_only_with_nothing_on_the_npu() {
        let mut dead = placed(5, 0, 25, None);
        dead.reasons = vec!["backend_setup_failed".into()];
        let mut alive = placed(6, 20, 5, None);
        alive.reasons = dead.reasons.clone();
        let with = |hit_placement| {
            let fleet = Fleet {
                hit_share: 0.5,
                hit_placement,
                ..Fleet::default()
            };
            found(&fleet.window(), None)
        };
        assert!(with(dead).is_page);
        assert_eq!(with(alive).signal.hits, 0);
    }

    /// Phones whose NPU never started must not fire again with each new version.
    #[test]
    fn devices_that_never_started_before_do_not_page() {
        let mut window = Fleet::default().window();
        window.device_events.failed_starts = failing(0..20);
        assert!(found(&window, None).is_page);
        let before = window.clone();
        assert!(!found(&window, Some(&before)).is_page);
    }
}
