//! Findings from failed starts, compiled models, outputs and the coefficient of variation.

use epwatch_model::{DropPlace, Reason, Severity, VerdictClass};

use crate::judge::reason;
use crate::judge::signals::{Control, SignalEvidence};

use super::finding::{Finding, MIN_PAGE_SHARE};

/// Returns a ticket if too few devices are hit for a page, so that it does not hide another page.
fn severity(is_page: bool, share: f64) -> Severity {
    if is_page && share >= MIN_PAGE_SHARE {
        Severity::Page
    } else {
        Severity::Ticket
    }
}

/// The NPU does not start.
pub(super) fn start_failure(evidence: &SignalEvidence) -> Option<Finding> {
    let starts = evidence.firing_starts()?;
    let severity = severity(starts.is_page, starts.signal.value);
    let (class, reasons) = (VerdictClass::NpuStartFailure, vec![reason::starts(starts)]);
    Some(Finding {
        eligible: starts.n_counted,
        ..Finding::of(&starts.signal, class, severity, reasons)
    })
}

/// A compiled model of other devices. Never a page: it runs on the NPU, and where it is slower or refused, that pages.
pub(super) fn compiled_for_another(evidence: &SignalEvidence) -> Option<Finding> {
    let found = evidence.compiled_for_another.as_ref()?;
    let (class, severity) = (VerdictClass::CompiledForAnother, Severity::Ticket);
    Some(Finding {
        hits: found.tally.hits,
        eligible: found.tally.devices,
        p: found.p,
        ..Finding::nothing(class, severity, vec![reason::compiled_for_another(found)])
    })
}

/// Outputs beyond the owner's tolerance. Without a tolerance, outputs beyond rounding, which is a ticket. The distances
/// on other chipsets show whether the quantisation or the NPU is the cause.
pub(super) fn wrong_outputs(evidence: &SignalEvidence) -> Option<Finding> {
    let dropped = evidence.firing_drop();
    let class = match dropped.map(|dropped| dropped.drop.place) {
        Some(DropPlace::Everywhere) => VerdictClass::QuantisationLoss,
        _ => VerdictClass::WrongOutputs,
    };
    let place = dropped.map(|dropped| Reason::OutputDrop {
        drop: dropped.drop.clone(),
    });
    let Some(beyond) = evidence.firing_outputs() else {
        let reasons = Vec::from_iter(place);
        return Some(Finding::of(
            &dropped?.signal,
            class,
            Severity::Ticket,
            reasons,
        ));
    };
    let severity = severity(beyond.is_page, beyond.signal.value);
    let mut reasons = vec![reason::wrong_outputs(beyond)];
    reasons.extend(place);
    Some(Finding::of(&beyond.signal, class, severity, reasons))
}

/// Outputs that differ between devices, within the tolerance, by more than rounding.
pub(super) fn different_outputs(evidence: &SignalEvidence) -> Option<Finding> {
    let minority = evidence.outputs.as_ref()?.minority.as_ref()?;
    let minority = Some(minority).filter(|minority| !minority.is_rounding)?;
    let (class, reasons) = (
        VerdictClass::WrongOutputs,
        vec![reason::different_outputs(minority)],
    );
    let found = Finding::of(&minority.signal, class, Severity::Ticket, reasons);
    minority.signal.fires.then_some(found)
}

/// Runs vary more than before. This is never a page, because contention and governors have the same effect in healthy
/// fleets. A fault worth a page fires an intermittent signal as well.
pub(super) fn cv_spike(evidence: &SignalEvidence) -> Option<Finding> {
    let spread = evidence
        .cv_increase
        .as_ref()
        .filter(|spread| spread.signal.fires)?;
    let mut reasons = vec![reason::varies(spread)];
    let (class, severity) = match spread.control {
        Control::PreviousSlowed(share) => {
            reasons.insert(0, Reason::PreviousVaries { share });
            (VerdictClass::ThermalOrLoad, Severity::Info)
        }
        _ => (VerdictClass::CvSpike, Severity::Ticket),
    };
    Some(Finding::of(&spread.signal, class, severity, reasons))
}

/// Adds that outputs differ by rounding alone. That does not count as a finding.
fn mention_rounding(found: &mut Finding, evidence: &SignalEvidence) {
    let minority = evidence
        .outputs
        .as_ref()
        .and_then(|outputs| outputs.minority.as_ref());
    let rounding = minority.filter(|minority| minority.signal.fires && minority.is_rounding);
    let rounding = rounding.map(reason::different_outputs);
    found
        .reasons
        .extend(rounding.filter(|_| found.class == VerdictClass::Healthy));
}

/// Adds the reasons of failed starts, compiled models and wrong outputs to a finding of another class.
pub(super) fn mention(found: &mut Finding, evidence: &SignalEvidence) {
    mention_rounding(found, evidence);
    if found.severity < Severity::Ticket {
        return;
    }
    if let Some(starts) = evidence
        .firing_starts()
        .filter(|_| found.class != VerdictClass::NpuStartFailure)
    {
        found.reasons.push(reason::starts(starts));
    }
    if let Some(compiled) = evidence
        .compiled_for_another
        .as_ref()
        .filter(|_| found.class != VerdictClass::CompiledForAnother)
    {
        found.reasons.push(reason::compiled_for_another(compiled));
    }
    if let Some(wrong) = wrong_outputs(evidence).filter(|_| !found.class.is_of_outputs()) {
        found.reasons.extend(wrong.reasons);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::judge::baseline::Baseline;
    use crate::judge::placement::tests::placed;
    use crate::judge::signals::{Controls, Limits, PeerRatios};
    use crate::judge::window::CohortWindow;
    use crate::testing::{
        Fleet, compiled_for_another as saying, failed_starts, judged, noisy, reference, tested,
    };
    use epwatch_model::CohortVerdict;

    #[track_caller]
    fn check(verdict: &CohortVerdict, class: VerdictClass, severity: Severity) {
        let found = (verdict.class, verdict.severity);
        assert_eq!(found, (class, severity), "{:#?}", verdict.reasons);
    }

    fn failing(n: u32) -> CohortWindow {
        let mut window = Fleet::default().window();
        window.device_events.failed_starts = failed_starts(0..n, "f1", "backend_setup_failed");
        window
    }

    fn without_sessions(window: CohortWindow) -> CohortWindow {
        CohortWindow {
            votes: Vec::new(),
            histograms: BTreeMap::new(),
            ..window
        }
    }

    #[test]
    fn a_version_that_starts_nowhere_pages_without_a_single_session() {
        let window = without_sessions(failing(20));
        let verdict = judged(&window, None, &reference());
        check(&verdict, VerdictClass::NpuStartFailure, Severity::Page);
        let numbers = &verdict.numbers;
        assert_eq!((numbers.devices_hit, numbers.devices_seen), (20, 20));
        let why = verdict.reasons[0].to_string();
        assert!(why.contains("backend_setup_failed on 20"), "{why}");
    }

    /// Emulators, and other makers' chips: an app that requests the NPU everywhere always fails there.
    #[test]
    fn a_chipset_that_never_started_is_a_ticket() {
        let window = without_sessions(failing(20));
        let verdict = judged(&window, None, &Baseline::default());
        check(&verdict, VerdictClass::NpuStartFailure, Severity::Ticket);
        let why = verdict.reasons[0].to_string();
        assert!(why.contains("nothing shows that it ever starts"), "{why}");
    }

    #[test]
    fn a_few_failed_starts_among_many_devices_are_no_page() {
        let verdict = judged(&failing(2), None, &reference());
        check(&verdict, VerdictClass::Healthy, Severity::None);
    }

    /// The app fell back to the CPU after the failed start.
    #[test]
    fn a_fallback_of_devices_that_failed_to_start_is_a_start_failure() {
        let fallen = Fleet::with_fallback(1.0).window();
        let window = CohortWindow {
            device_events: failing(40).device_events,
            ..fallen
        };
        let verdict = judged(&window, None, &reference());
        check(&verdict, VerdictClass::NpuStartFailure, Severity::Page);
        assert!(verdict.numbers.latency_ratio.unwrap() > 2.0);
    }

    #[test]
    fn outputs_beyond_the_tolerance_page_with_their_numbers() {
        let window = tested(Fleet::default().window(), 0..25, "bb", "f1", 0.4);
        let verdict = judged(&window, None, &reference());
        check(&verdict, VerdictClass::WrongOutputs, Severity::Page);
        assert_eq!(verdict.numbers.devices_hit, 25);
        assert!(verdict.next_step.contains("directive"));
    }

    #[test]
    fn outputs_that_only_differ_between_phones_are_a_ticket() {
        let window = tested(Fleet::default().window(), 0..25, "bb", "f2", 0.01);
        let verdict = judged(&window, None, &reference());
        check(&verdict, VerdictClass::WrongOutputs, Severity::Ticket);
        assert!(verdict.reasons[0].to_string().contains("firmware f2"));
    }

    /// A compiled model of another chipset, on devices that are as fast as before.
    #[test]
    fn a_compiled_model_of_other_devices_is_a_ticket_with_its_firmware() {
        let class = VerdictClass::CompiledForAnother;
        let healthy = || Fleet::default().window();
        let all = judged(&saying(healthy(), 0..60, "f1"), None, &reference());
        check(&all, class, Severity::Ticket);
        let numbers = &all.numbers;
        assert_eq!((numbers.devices_hit, numbers.devices_seen), (60, 60));
        let next = &all.next_step;
        let says = "not for the chipset or the runtime of these devices. Compile it again";
        assert!(next.contains(says), "{next}");
        let some = judged(&saying(healthy(), 0..24, "f2"), None, &reference());
        check(&some, class, Severity::Ticket);
        let why: Vec<String> = some.reason_texts().collect();
        assert!(
            why[1].contains("24 of 24 devices on f2 are hit, and 0 of 36"),
            "{why:#?}"
        );
        let next = &some.next_step;
        assert!(next.contains("not for firmware f2."), "{next}");
        let few = judged(&saying(healthy(), 0..2, "f2"), None, &reference());
        check(&few, VerdictClass::Healthy, Severity::None);
        // The first version has nothing to be compared with.
        let first = judged(&saying(healthy(), 0..60, "f1"), None, &Baseline::default());
        check(&first, class, Severity::Ticket);
    }

    /// The fault that costs users leads, and the compiled model is a reason of it. A refused model is a failed start.
    #[test]
    fn a_compiled_model_that_is_slower_or_refused_pages_as_that() {
        let class = VerdictClass::SomeDevicesFallback;
        let slower = saying(Fleet::with_fallback(0.5).window(), 0..30, "f1");
        let slower = judged(&slower, None, &reference());
        check(&slower, class, Severity::Page);
        let says = "on 30 of 60 devices the compiled model was made for another chipset";
        let mut why = slower.reason_texts();
        assert!(why.any(|text| text.starts_with(says)), "{slower:#?}");
        let mut refused = Fleet::default().window();
        refused.device_events.failed_starts = failed_starts(0..20, "f1", "epcontext_incompatible");
        let refused = judged(&refused, None, &reference());
        check(&refused, VerdictClass::NpuStartFailure, Severity::Page);
        assert!(refused.next_step.contains("Compile it again"));
    }

    /// A phone on the CPU returns the CPU's output, so the finding is the fallback.
    #[test]
    fn a_fallback_leads_over_outputs_that_differ_for_it() {
        let window = tested(Fleet::with_fallback(0.5).window(), 0..30, "cpu", "f1", 0.0);
        let verdict = judged(&window, None, &reference());
        check(&verdict, VerdictClass::SomeDevicesFallback, Severity::Page);
    }

    #[test]
    fn devices_that_vary_more_are_a_ticket_and_with_a_control_nothing_to_do() {
        let noisy = noisy(0.5);
        let baseline = Baseline {
            cv_within: Some(0.17),
            ..reference()
        };
        // If half of the runs are four times as slow, `Tail` fires as well, and comes first if the shape is known.
        let verdict = judged(&noisy, None, &baseline);
        assert!(verdict.severity >= Severity::Ticket, "{:?}", verdict.class);
        let limits = Limits::for_windows_a_day(1_000.0);
        let peers = PeerRatios::default();
        let gather = |previous| {
            let controls = Controls {
                previous,
                peers: &peers,
                chipsets: &[],
            };
            SignalEvidence::gather(&noisy, controls, &baseline, &limits)
        };
        let alone = cv_spike(&gather(None)).unwrap();
        assert_eq!(
            (alone.class, alone.severity),
            (VerdictClass::CvSpike, Severity::Ticket)
        );
        let with_control = cv_spike(&gather(Some(&noisy))).unwrap();
        assert_eq!(with_control.class, VerdictClass::ThermalOrLoad);
    }

    /// Nothing is on the NPU and there are no references, but there is a reason code: it is worth a ticket.
    #[test]
    fn a_back_end_code_needs_no_reference() {
        let mut dead = placed(5, 0, 25, None);
        dead.reasons = vec!["soc_model_unknown".into()];
        let fleet = Fleet {
            placement: dead,
            before: None,
            ..Fleet::default()
        };
        let verdict = judged(&fleet.window(), None, &Baseline::default());
        check(&verdict, VerdictClass::NpuStartFailure, Severity::Ticket);
        assert!(verdict.next_step.contains("soc_model"));
    }
}
