use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::VerdictClass::*;
use epwatch_model::{
    Cause, CohortVerdict, Incident, IncidentKey, ModelKey, Order, OrderKind, Reason, Severity,
    SignalId, State, TakenOver, VerdictClass,
};

use super::*;
use crate::judge::window::CohortWindow;
use crate::notify::{Audience, Notification, Occasion, summary};
use crate::testing::{Fleet, at, judged, reference};

const WINDOW: i64 = 3600;
const FORGET: Duration = Duration::from_secs(14 * 24 * 3600);

fn verdict(fleet: &Fleet, second: i64) -> CohortVerdict {
    let window = CohortWindow {
        end: at(second),
        ..fleet.window()
    };
    judged(&window, None, &reference())
}

fn on(chipset: &str, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.key.chipset = chipset.into();
    verdict
}

/// The clear case: 60 devices, all hit.
fn sick(second: i64) -> CohortVerdict {
    verdict(&Fleet::with_fallback(1.0), second)
}

/// Enough devices to decide, too few to fire at once.
fn doubtful(second: i64) -> CohortVerdict {
    let few = Fleet {
        devices: 6,
        ..Fleet::with_fallback(1.0)
    };
    verdict(&few, second)
}

/// A worse placement that costs nothing: a ticket.
fn harmless(second: i64) -> CohortVerdict {
    let as_fast = Fleet {
        slow_factor: 1.0,
        ..Fleet::with_fallback(1.0)
    };
    verdict(&as_fast, second)
}

fn of_firmware(firmware: &str, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.key.firmware = Some(firmware.into());
    verdict
}

/// A life whose incident fires.
fn firing() -> Life {
    let mut life = Life::default();
    life.window(&[sick(0)]);
    life
}

fn healthy(second: i64) -> CohortVerdict {
    verdict(&Fleet::default(), second)
}

#[derive(Default)]
struct Life {
    open: BTreeMap<IncidentKey, Incident>,
    sent: Vec<Incident>,
}

impl Life {
    fn window(&mut self, verdicts: &[CohortVerdict]) -> Vec<State> {
        let now = verdicts[0].window_end;
        let changed = advance(&mut self.open, verdicts, FORGET, now);
        self.open.retain(|_, incident| incident.state.is_open());
        for incident in &changed {
            let known = self
                .sent
                .iter()
                .any(|sent| sent.id == incident.id && sent.news == incident.news);
            if incident.news > 0 && !known {
                self.sent.push(incident.clone());
            }
        }
        changed.into_iter().map(|incident| incident.state).collect()
    }

    fn only(&self) -> &Incident {
        assert_eq!(self.open.len(), 1, "{:?}", self.open.keys());
        self.open.values().next().unwrap()
    }
}

#[test]
fn overwhelming_evidence_fires_at_once_and_is_sent_once() {
    let mut life = Life::default();
    assert_eq!(life.window(&[sick(0)]), [State::Firing]);
    for step in 1..6 {
        life.window(&[sick(step * 600)]);
    }
    assert_eq!(life.sent.len(), 1);
    let incident = life.only();
    assert_eq!(incident.severity(), Severity::Page);
    assert_eq!(incident.chipsets(), ["SM8635"]);
    assert_eq!(incident.devices(), (60, 60));
    assert_eq!(incident.key.cause, Cause::Slower);
}

/// A page without devices would look like a mistake.
#[test]
fn devices_of_single_firmwares_count_where_the_chipset_as_a_whole_does_not_show_it() {
    let mut life = Life::default();
    life.window(&[of_firmware("f1", sick(0)), of_firmware("f2", sick(0))]);
    assert_eq!(life.only().devices(), (120, 120));
    let mut life = Life::default();
    life.window(&[sick(0), of_firmware("f1", sick(0))]);
    assert_eq!(life.only().devices(), (60, 60));
}

#[test]
fn weaker_evidence_needs_two_windows_that_share_no_data() {
    let mut life = Life::default();
    assert_eq!(life.window(&[doubtful(0)]), [State::Pending]);
    assert_eq!(life.window(&[doubtful(WINDOW / 2)]), [State::Pending]);
    assert_eq!(life.window(&[doubtful(WINDOW)]), [State::Firing]);

    let mut life = Life::default();
    life.window(&[doubtful(0)]);
    life.window(&[healthy(WINDOW)]);
    assert_eq!(life.window(&[doubtful(2 * WINDOW)]), [State::Firing]);
}

#[test]
fn a_single_doubtful_window_comes_to_nothing() {
    let mut life = Life::default();
    life.window(&[doubtful(0)]);
    life.window(&[healthy(WINDOW)]);
    life.window(&[healthy(2 * WINDOW)]);
    assert_eq!(life.window(&[healthy(3 * WINDOW)]), [State::Inactive]);
    assert!(life.open.is_empty() && life.sent.is_empty());
}

#[test]
fn three_clean_windows_resolve_and_a_relapse_is_a_new_incident() {
    let mut life = firing();
    life.window(&[healthy(WINDOW)]);
    life.window(&[healthy(2 * WINDOW)]);
    // The fault is back once, so counting starts again.
    life.window(&[sick(3 * WINDOW)]);
    for window in 4..6 {
        assert_eq!(life.window(&[healthy(window * WINDOW)]), [State::Firing]);
    }
    assert_eq!(life.window(&[healthy(6 * WINDOW)]), [State::Resolved]);
    assert_eq!(life.sent.len(), 2);
    life.window(&[sick(7 * WINDOW)]);
    assert_ne!(life.only().id, life.sent[0].id);
    assert_eq!(
        life.only().key.fingerprint(),
        life.sent[0].key.fingerprint()
    );
}

/// Few devices of the firmware are left, and they are judged with their chipset.
#[test]
fn a_firmware_that_is_not_judged_any_more_is_cleared_with_its_chipset() {
    let mut life = Life::default();
    life.window(&[sick(0), of_firmware("f1", sick(0))]);
    for window in 1..3 {
        assert_eq!(life.window(&[healthy(window * WINDOW)]), [State::Firing]);
    }
    assert_eq!(life.window(&[healthy(3 * WINDOW)]), [State::Resolved]);

    // A firmware that is judged apart is cleared by its own verdicts only.
    let mut life = Life::default();
    life.window(&[sick(0), of_firmware("f1", sick(0))]);
    for window in 1..5 {
        let at = window * WINDOW;
        life.window(&[healthy(at), of_firmware("f1", sick(at))]);
    }
    assert_eq!(life.only().state, State::Firing);
}

/// Overlapping clean windows are not independent.
#[test]
fn clean_windows_that_share_data_count_once() {
    let mut life = firing();
    for step in 1..=17 {
        life.window(&[healthy(step * 600)]);
    }
    assert_eq!(life.only().state, State::Firing);
    assert_eq!(life.window(&[healthy(18 * 600)]), [State::Resolved]);
}

/// In a small cohort, a fault that lasts is below the limit of a finding in some windows.
#[test]
fn a_window_with_most_of_the_hits_is_not_clean() {
    let with_hits = |second: i64, hits: u64, p: f64| {
        let mut verdict = healthy(second);
        let mut signals = verdict.signals.iter_mut();
        let shift = signals.find(|signal| signal.id == SignalId::Shift).unwrap();
        (shift.hits, shift.p) = (hits, p);
        verdict
    };
    let open_after = |hits: u64, p: f64| {
        let mut life = firing();
        for window in 1..=3 {
            life.window(&[with_hits(window * WINDOW, hits, p)]);
        }
        life.open.len()
    };
    assert_eq!(open_after(45, 1e-3), 1);
    assert_eq!(open_after(45, 0.2), 0, "usual in a healthy cohort");
    assert_eq!(open_after(20, 1e-3), 0, "far fewer than before");
}

#[test]
fn silence_is_not_recovery() {
    let mut life = firing();
    let two = Fleet {
        devices: 2,
        ..Fleet::default()
    };
    let nothing = verdict(&two, 0);
    assert_eq!(nothing.class, NotEnoughData);
    for window in 1..10 {
        let mut silent = nothing.clone();
        silent.window_end = at(window * WINDOW);
        life.window(&[silent]);
    }
    assert_eq!(life.only().state, State::Firing);
    // The incident ends once the cohort is gone for good.
    let mut much_later = on("SM8650", healthy(15 * 24 * 3600));
    much_later.key.model.model_id = "another".into();
    assert_eq!(life.window(&[much_later]), [State::Resolved]);
}

/// Without references, the cohort's own latency decides.
#[test]
fn a_fault_that_outlasts_its_reference_lasts_until_it_is_as_fast_as_before() {
    let silent = |window: i64, p50_us: f64| {
        let mut verdict = sick(window * WINDOW);
        (verdict.class, verdict.severity) = (NotEnoughData, Severity::Info);
        verdict.reasons.clear();
        verdict.statistics.p50_us = Some(p50_us);
        verdict
    };
    let mut life = firing();
    for window in 1..40 {
        assert_eq!(life.window(&[silent(window, 22_000.0)]), [State::Firing]);
    }
    for window in 40..42 {
        assert_eq!(life.window(&[silent(window, 8_500.0)]), [State::Firing]);
    }
    assert_eq!(life.window(&[silent(42, 8_500.0)]), [State::Resolved]);
}

#[test]
fn another_chipset_grows_the_same_incident_and_is_sent() {
    let mut life = Life::default();
    life.window(&[sick(0), on("SM7550", healthy(0))]);
    life.window(&[sick(600), on("SM7550", sick(600))]);
    assert_eq!(life.sent.len(), 2);
    let incident = life.only();
    assert_eq!(incident.chipsets(), ["SM7550", "SM8635"]);
    assert_eq!(incident.devices(), (120, 120));
    assert_eq!(incident.superseded.as_ref().unwrap().chipsets.len(), 1);
}

#[test]
fn a_ticket_that_worsens_becomes_a_page() {
    let mut life = Life::default();
    life.window(&[harmless(0)]);
    assert_eq!(life.only().severity(), Severity::Ticket);
    life.window(&[sick(600)]);
    assert_eq!(life.only().severity(), Severity::Page);
    let severities: Vec<Severity> = life.sent.iter().map(Incident::severity).collect();
    assert_eq!(severities, [Severity::Ticket, Severity::Page]);
}

/// A chipset with only a ticket is not in a page's list of chipsets.
#[test]
fn a_page_names_the_chipsets_that_page() {
    let mut life = Life::default();
    life.window(&[sick(0), on("SM8550", harmless(0))]);
    assert_eq!(life.only().chipsets(), ["SM8635"]);
    assert_eq!(life.sent.len(), 1);
}

fn of_class(class: VerdictClass, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.class = class;
    verdict
}

/// One fault may show first in latency, in some runs, or in one firmware; it is one page.
#[test]
fn a_fault_that_shows_in_several_ways_is_one_incident() {
    let of_firmware = of_firmware("f1", of_class(IntermittentFallback, sick(0)));
    let slow = |second| of_class(SlowWithoutPlacement, sick(second));
    let mut life = Life::default();
    life.window(&[of_firmware]);
    life.window(&[slow(WINDOW)]);
    assert_eq!(life.sent.len(), 1);
    // Now the op types on the CPU are known.
    life.window(&[sick(2 * WINDOW)]);
    let sent: Vec<(u64, VerdictClass)> = life
        .sent
        .iter()
        .map(|incident| (incident.news, incident.headline.as_ref().unwrap().class))
        .collect();
    let grown = [(1, IntermittentFallback), (2, sick(0).class)];
    assert_eq!(sent, grown);
    // Devices without a placement, or the few left after a repair, are weaker evidence.
    life.window(&[slow(3 * WINDOW)]);
    life.window(&[of_class(IntermittentFallback, sick(4 * WINDOW))]);
    assert_eq!(life.sent.len(), 2);
    assert_eq!(life.only().lead().unwrap().class, sick(0).class);
    assert_eq!(life.only().key.cause, Cause::Slower);
    life.window(&[on("SM8750", slow(5 * WINDOW))]);
    assert_eq!(life.only().chipsets(), ["SM8635", "SM8750"]);
}

/// A ticket about a harmless placement must not hide a page.
#[test]
fn a_ticket_hides_no_page() {
    let mut life = Life::default();
    life.window(&[harmless(0)]);
    assert_eq!(life.only().severity(), Severity::Ticket);
    life.window(&[of_class(SlowWithoutPlacement, sick(WINDOW))]);
    assert_eq!(life.only().severity(), Severity::Page);

    let mut life = Life::default();
    let mut ticket = of_class(NpuStartFailure, sick(0));
    ticket.severity = Severity::Ticket;
    life.window(&[ticket]);
    life.window(&[sick(WINDOW)]);
    assert_eq!(life.open.len(), 2);
}

/// The failed start explains slow devices, on the chipset and on one of its firmwares.
#[test]
fn failed_starts_explain_slowness_of_the_same_chipset() {
    let mut life = Life::default();
    life.window(&[of_class(NpuStartFailure, sick(0))]);
    life.window(&[sick(WINDOW), of_firmware("f1", sick(WINDOW))]);
    assert_eq!(life.only().key.cause, Cause::NpuStartFailure);
    life.window(&[on("SM8750", sick(2 * WINDOW))]);
    assert_eq!(life.open.len(), 2);
}

/// All devices are 2.2x slower, and so are the devices on the previous version.
fn load(second: i64) -> CohortVerdict {
    let hot = Fleet {
        heat: 2.2,
        ..Fleet::default()
    };
    let before = Fleet {
        seed: 2,
        version: "1.0.0",
        before: Some("0.9.0"),
        ..hot.clone()
    };
    let window = CohortWindow {
        end: at(second),
        ..hot.window()
    };
    let verdict = judged(&window, Some(&before.window()), &reference());
    assert_eq!(
        (verdict.class, verdict.severity),
        (ThermalOrLoad, Severity::Info)
    );
    verdict
}

#[test]
fn load_that_lasts_for_three_windows_is_a_ticket() {
    let mut life = Life::default();
    for step in 0..12 {
        assert_eq!(
            life.window(&[load(step * WINDOW / 6)]),
            [State::Pending],
            "{step}"
        );
    }
    assert_eq!(life.window(&[load(2 * WINDOW)]), [State::Firing]);
    let incident = life.only();
    assert_eq!(incident.severity(), Severity::Ticket);
    let lead = incident.lead().unwrap();
    let lasts = Reason::LoadLasts { windows: 3 };
    assert_eq!(lead.reasons.first(), Some(&lasts));
    assert!(lead.next_step.contains("firmware"), "{}", lead.next_step);
    // A further window repeats neither the reason nor the notification.
    life.window(&[load(3 * WINDOW)]);
    let reasons = &life.only().lead().unwrap().reasons;
    assert_eq!(reasons.iter().filter(|one| **one == lasts).count(), 1);
    assert_eq!(life.sent.len(), 1);
    for window in 4..6 {
        assert_eq!(life.window(&[healthy(window * WINDOW)]), [State::Firing]);
    }
    assert_eq!(life.window(&[healthy(6 * WINDOW)]), [State::Resolved]);
}

#[test]
fn load_that_ends_is_never_told() {
    let mut life = Life::default();
    life.window(&[load(0)]);
    life.window(&[load(WINDOW)]);
    life.window(&[healthy(2 * WINDOW)]);
    life.window(&[load(3 * WINDOW)]);
    life.window(&[load(4 * WINDOW)]);
    for window in 5..8 {
        life.window(&[healthy(window * WINDOW)]);
    }
    assert!(life.open.is_empty() && life.sent.is_empty());
}

/// A page is separate news, and load adds nothing while people know of a fault.
#[test]
fn load_and_a_fault_are_one_incident() {
    let mut life = Life::default();
    for window in 0..3 {
        life.window(&[load(window * WINDOW)]);
    }
    life.window(&[sick(3 * WINDOW)]);
    assert_eq!(life.only().severity(), Severity::Page);
    assert_eq!(life.sent.len(), 2);
    let before = life.only().clone();
    assert_eq!(life.window(&[on("SM8750", load(4 * WINDOW))]), []);
    assert_eq!(*life.only(), before);
}

/// A version with load stays a reference and a control. Load of the next version is not its fault.
#[test]
fn load_pins_nothing() {
    let mut life = Life::default();
    for window in 0..3 {
        life.window(&[load(window * WINDOW)]);
    }
    let pinned = crate::judge::pinned_references::PinnedReferences::of(life.open.values());
    let key = load(0).key;
    assert_eq!(pinned.began(&key), None);
    assert_eq!(pinned.versions_at_fault(&key), ["2.0.0"]);
}

/// Without a control, a count pages only in the second window. Load would be over by then.
#[test]
fn a_slowdown_without_a_control_is_a_ticket_first() {
    let slower = |factor: f64, second: i64| {
        let fleet = Fleet {
            hit_share: 0.6,
            slow_factor: factor,
            ..Fleet::default()
        };
        verdict(&fleet, second)
    };
    let mut life = Life::default();
    assert_eq!(life.window(&[slower(1.8, 0)]), [State::Firing]);
    assert_eq!(life.only().severity(), Severity::Ticket);
    life.window(&[slower(1.8, WINDOW / 2)]);
    assert_eq!(life.only().severity(), Severity::Ticket);
    life.window(&[slower(1.8, WINDOW)]);
    assert_eq!(life.only().severity(), Severity::Page);
    // Load does not slow devices down this much, so the page comes at once.
    let mut life = Life::default();
    life.window(&[slower(2.4, 0)]);
    assert_eq!(life.only().severity(), Severity::Page);
}

#[test]
fn info_opens_nothing() {
    let mut life = Life::default();
    let mut vague = sick(0);
    (vague.class, vague.severity) = (NotEnoughData, Severity::Info);
    assert_eq!(life.window(&[vague]), []);
}

#[test]
fn a_clock_that_went_back_repeats_nothing() {
    let mut life = Life::default();
    life.window(&[doubtful(WINDOW)]);
    life.window(&[doubtful(0)]);
    assert_eq!(life.only().state, State::Pending);
}

#[test]
fn the_document_is_the_whole_state() {
    let mut life = firing();
    let stored = serde_json::to_string(life.only()).unwrap();
    let mut back: Incident = serde_json::from_str(&stored).unwrap();
    // JSON may lose the last bit of a float, so numbers that follow from the verdict are compared instead.
    let verdict = back.cohorts[0].verdict.clone();
    assert_eq!(verdict.numbers.devices_hit, 60);
    back.cohorts[0].verdict = life.only().cohorts[0].verdict.clone();
    assert_eq!(&back, life.only());
    life.open.insert(back.key.clone(), back);
    assert_eq!(life.window(&[sick(600)]), [State::Firing]);
    assert_eq!(life.sent.len(), 1);
}

#[test]
fn fingerprints_depend_on_every_part_and_on_nothing_else() {
    let key = |app: &str, model: &str| IncidentKey {
        model: ModelKey {
            app_id: app.into(),
            environment: "p".into(),
            model_id: model.into(),
        },
        model_version: "1".into(),
        cause: Cause::Slower,
    };
    assert_eq!(key("ab", "c").fingerprint(), key("ab", "c").fingerprint());
    assert_ne!(key("ab", "c").fingerprint(), key("a", "bc").fingerprint());
    assert_eq!(key("ab", "c").fingerprint().len(), 16);
}

/// Returns the verdict on the rest of a cohort after a directive took devices off the NPU.
fn under_directive(left: CohortVerdict, devices: u64) -> CohortVerdict {
    CohortVerdict {
        devices_directed: devices,
        ..left
    }
}

/// No device has a vote any more.
fn nobody_left(second: i64, devices: u64) -> CohortVerdict {
    let fleet = Fleet {
        devices: 0,
        ..Fleet::default()
    };
    under_directive(verdict(&fleet, second), devices)
}

fn of_version(version: &str, follows: &str, mut verdict: CohortVerdict) -> CohortVerdict {
    verdict.key.model_version = version.into();
    verdict.follows = Some(follows.into());
    verdict
}

#[test]
fn devices_that_a_directive_took_away_do_not_resolve_an_incident() {
    let mut life = firing();
    let id = life.only().id.clone();
    // No device is left, or the rest looks clean: neither means that the fault is repaired.
    assert_eq!(life.window(&[nobody_left(WINDOW, 60)]), [State::Mitigated]);
    for hour in 2..6 {
        let left = under_directive(healthy(hour * WINDOW), 40);
        assert_eq!(life.window(&[left]), [State::Mitigated], "{hour}");
    }
    assert_eq!(life.sent.len(), 2, "that it fires, that it is mitigated");
    // The directive is revoked and the fault is gone.
    for hour in 6..8 {
        let left = under_directive(healthy(hour * WINDOW), 3);
        assert_eq!(life.window(&[left]), [State::Mitigated], "{hour}");
    }
    assert_eq!(life.window(&[healthy(8 * WINDOW)]), [State::Resolved]);
    assert_eq!(life.sent.last().unwrap().id, id);
    assert_eq!(life.sent.len(), 3);
}

#[test]
fn a_fault_that_is_still_there_when_the_directive_ends_is_sent_again() {
    let mut life = firing();
    life.window(&[nobody_left(WINDOW, 60)]);
    let id = life.only().id.clone();
    assert_eq!(life.window(&[sick(2 * WINDOW)]), [State::Firing]);
    assert_eq!(life.only().id, id, "the same incident");
    assert_eq!(life.sent.len(), 3);
    assert!(life.only().returned_at.is_some() && life.only().mitigated_at.is_none());
}

#[test]
fn a_clean_version_after_it_resolves_a_mitigated_incident() {
    let mut life = firing();
    life.window(&[nobody_left(WINDOW, 60)]);
    for hour in 2..4 {
        let next = of_version("3.0.0", "2.0.0", healthy(hour * WINDOW));
        // A version whose predecessor is another version does not count.
        let other = of_version("1.9.1", "1.9.0", healthy(hour * WINDOW));
        let held = nobody_left(hour * WINDOW, 20 * 60);
        assert_eq!(life.window(&[held, next, other]), [State::Mitigated]);
    }
    let next = of_version("3.0.0", "2.0.0", healthy(4 * WINDOW));
    let held = nobody_left(4 * WINDOW, 60);
    assert_eq!(life.window(&[held, next]), [State::Resolved]);
}

/// The roll-out and the roll-back end the incident after the same windows, although their verdicts come in another order.
#[test]
fn a_window_of_the_next_version_counts_once_no_device_shows_the_fault() {
    for version in ["3.0.0", "1.0.0"] {
        let mut life = firing();
        let next = |hour: i64| CohortVerdict {
            takes_over: vec![TakenOver {
                version: "2.0.0".into(),
                devices: 60,
                here: 60,
                left: 0,
            }],
            ..of_version(version, "2.0.0", healthy(hour * WINDOW))
        };
        // The devices changed their version within this window.
        let mut both = vec![sick(WINDOW), next(1)];
        both.sort_by(|a, b| a.key.model_version.cmp(&b.key.model_version));
        life.window(&both);
        let promised = |life: &Life| {
            let first = of(life, "segmenter", "2.0.0").0;
            (first.clean_windows(), first.cohorts[0].earliest_end())
        };
        assert_eq!(promised(&life), (0, at(4 * WINDOW)), "{version}");
        for hour in 2..4 {
            life.window(&[next(hour)]);
            let n = u32::try_from(hour).unwrap() - 1;
            assert_eq!(promised(&life), (n, at(4 * WINDOW)), "{version}");
        }
        assert_eq!(life.window(&[next(4)]), [State::Resolved], "{version}");
    }
}

/// Returns the incident of a version, and whether channels receive it.
fn of(life: &Life, model: &str, version: &str) -> (Incident, bool) {
    let mut all = life.open.values();
    let is_it = |incident: &&Incident| {
        (&*incident.key.model.model_id, &*incident.key.model_version) == (model, version)
    };
    let incident = all.find(is_it).unwrap().clone();
    let is_sent = Audience::default().takes(&incident);
    (incident, is_sent)
}

#[test]
fn a_fault_that_lives_on_in_the_next_version_is_a_part_of_it() {
    let mut life = firing();
    let next = |hour: i64| of_version("3.0.0", "2.0.0", sick(hour * WINDOW));
    life.window(&[sick(WINDOW), next(1)]);
    let (first, is_sent) = of(&life, "segmenter", "2.0.0");
    assert!(is_sent && first.parts.contains("segmenter 3.0.0"));
    let (second, is_sent) = of(&life, "segmenter", "3.0.0");
    assert_eq!((second.part_of, is_sent), (Some(first.id), false));
    // The version after the next one, whose predecessor is already a part.
    let last = |hour: i64| of_version("4.0.0", "3.0.0", sick(hour * WINDOW));
    life.window(&[sick(2 * WINDOW), next(2), last(2)]);
    assert!(!of(&life, "segmenter", "4.0.0").1);
    // The fault of 4.0.0 reaches another chipset, and 3.0.0's outlasts the first one's.
    life.window(&[on("SM7550", last(3)), next(3)]);
    assert!(of(&life, "segmenter", "4.0.0").1);
    for hour in 4..7 {
        life.window(&[healthy(hour * WINDOW), next(hour)]);
    }
    let (outlasts, is_sent) = of(&life, "segmenter", "3.0.0");
    assert!(is_sent && outlasts.superseded.is_none());
}

/// A next version with the same fault is sent, although somebody acknowledged the page that it is a part of.
#[test]
fn a_fix_that_is_none_is_sent_although_the_fault_was_acknowledged() {
    let mut life = firing();
    let ack = Order {
        n: 1,
        kind: OrderKind::Ack,
        who: "Ada".into(),
        at: life.only().started_at,
        until: None,
        why: String::new(),
    };
    life.open.values_mut().next().unwrap().orders.ack = Some(ack);
    let next = |hour: i64| CohortVerdict {
        next_step: "On call: stop the roll-out of 2.0.1.".into(),
        ..of_version("2.0.1", "2.0.0", sick(hour * WINDOW))
    };
    life.window(&[sick(WINDOW), next(1)]);
    let (first, is_sent) = of(&life, "segmenter", "2.0.0");
    assert!(is_sent && first.orders.ack.is_none());
    // It names both versions, and the steps are about the version that devices have by now.
    let told = summary(&first);
    assert!(told.starts_with("segmenter 2.0.0 and 2.0.1 run "), "{told}");
    assert_eq!(first.lead().unwrap().next_step, next(1).next_step);
    assert!(first.news == 2 && life.sent.contains(&first));
    assert_eq!(Notification::news(first).occasion, Occasion::Grown);
    // Once.
    life.window(&[sick(2 * WINDOW), next(2)]);
    assert_eq!(of(&life, "segmenter", "2.0.0").0.news, 2);
}

/// The promised end counts from the last window with the fault, also if only the next version shows it there.
#[test]
fn a_next_version_with_the_fault_delays_the_earliest_end() {
    let mut life = firing();
    let next = |hour: i64| of_version("2.0.1", "2.0.0", sick(hour * WINDOW));
    let earliest = |life: &Life| of(life, "segmenter", "2.0.0").0.cohorts[0].earliest_end();
    assert_eq!(earliest(&life), at(3 * WINDOW));
    life.window(&[next(1)]);
    assert_eq!(earliest(&life), at(4 * WINDOW));
    life.window(&[next(2)]);
    assert_eq!(earliest(&life), at(5 * WINDOW));
}

#[test]
fn one_driver_that_slows_two_models_is_one_page() {
    let other_model = |mut verdict: CohortVerdict| {
        verdict.key.model.model_id = "detector".into();
        verdict
    };
    let both_slowed = |mut verdict: CohortVerdict| {
        let reason = Reason::PeerControl {
            share: 1.0,
            slowed: true,
        };
        verdict.reasons.push(reason);
        verdict
    };
    let mut life = Life::default();
    life.window(&[both_slowed(sick(0)), other_model(sick(0))]);
    let sent = [
        of(&life, "detector", "2.0.0").1,
        of(&life, "segmenter", "2.0.0").1,
    ];
    assert_eq!(sent, [true, false]);
    // Two faults that nothing connects are two incidents.
    let mut life = Life::default();
    life.window(&[sick(0), other_model(sick(0))]);
    let sent = [
        of(&life, "detector", "2.0.0").1,
        of(&life, "segmenter", "2.0.0").1,
    ];
    assert_eq!(sent, [true, true]);
    // A page does not become a part of a ticket.
    let mut life = Life::default();
    life.window(&[both_slowed(harmless(0)), other_model(sick(0))]);
    let sent = [
        of(&life, "detector", "2.0.0").1,
        of(&life, "segmenter", "2.0.0").1,
    ];
    assert_eq!(sent, [true, false]);
}

/// No notification was sent, so there is nothing to hold.
#[test]
fn a_directive_ends_what_was_only_pending() {
    let mut life = Life::default();
    life.window(&[doubtful(0)]);
    for hour in 1..3 {
        let left = under_directive(healthy(hour * WINDOW), 60);
        life.window(&[left]);
    }
    let left = under_directive(healthy(3 * WINDOW), 60);
    assert_eq!(life.window(&[left]), [State::Inactive]);
}

#[test]
fn whoever_judges_a_window_gives_its_incident_the_same_name() {
    let mut open = BTreeMap::new();
    let early = advance(&mut open, &[sick(0)], FORGET, at(5));
    let mut open = BTreeMap::new();
    let late = advance(&mut open, &[sick(0)], FORGET, at(90));
    assert_eq!(early[0].id, late[0].id);
}

/// The window is judged two minutes after its end, and a window that was missed is judged later.
#[test]
fn an_incident_is_since_the_start_of_the_first_window_that_shows_it() {
    let mut open = BTreeMap::new();
    advance(&mut open, &[sick(7_200)], FORGET, at(7_320));
    let incident = open.values().next().unwrap().clone();
    assert_eq!(incident.started_at, at(7_200 - WINDOW));
    assert_eq!(incident.detected_at, Some(at(7_320)));
    assert_eq!(incident.fired_at, Some(at(7_320)));
    advance(&mut open, &[sick(3_600)], FORGET, at(7_330));
    let incident = open.values().next().unwrap();
    assert_eq!(incident.started_at, at(3_600 - WINDOW));
}
