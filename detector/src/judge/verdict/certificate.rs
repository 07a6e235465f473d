//! Findings from `Certificate`, which compares devices with the certified placement.

use epwatch_model::{Origin, Reason, Severity, VerdictClass};

use crate::judge::reason;
use crate::judge::signals::SignalEvidence;

use super::finding::{FASTER_THAN_CPU, Finding};

/// Less work is on the NPU than certified, and devices are slower because of it.
pub(super) fn drifted_and_slower(evidence: &SignalEvidence) -> Option<Finding> {
    let drift = evidence.certificate.as_ref()?;
    let joined = drift.slower.as_ref().filter(|slower| slower.signal.fires)?;
    let is_concurrent = joined.reference.is_concurrent();
    if !is_concurrent && evidence.control.vetoes_fallback() && joined.p50_ratio < FASTER_THAN_CPU {
        return None;
    }
    let mut reasons = vec![
        reason::certificate(drift),
        reason::slower(&drift.change, joined),
    ];
    reasons
        .extend(reason::control(evidence.control).filter(|_| evidence.control.vetoes_fallback()));
    reasons.extend(reason::backend(&drift.change));
    Some(Finding {
        p: joined.signal.p,
        ..Finding::by_placement(&drift.change, Severity::Page, reasons)
    })
}

/// Less work is on the NPU than certified, and devices are not slower.
pub(super) fn drifted(evidence: &SignalEvidence) -> Option<Finding> {
    let drift = evidence.firing_certificate()?;
    let mut reasons = vec![reason::certificate(drift)];
    reasons.extend(drift.slower.as_ref().map(reason::not_slower));
    reasons.extend(reason::backend(&drift.change));
    Some(Finding::by_placement(
        &drift.change,
        Severity::Ticket,
        reasons,
    ))
}

/// Adds the certificate to a finding of `Placement`. Without a finding, names the runtime that has no certificate.
pub(super) fn mention(found: &mut Finding, evidence: &SignalEvidence) {
    let uncertified = evidence.uncertified_runtime.as_ref();
    let is_about_placement = |reason: &Reason| matches!(reason, Reason::Placement { .. });
    if found.reasons.iter().any(is_about_placement) {
        let drift = evidence.firing_certificate();
        found.reasons.extend(drift.map(reason::certificate));
        found.reasons.extend(uncertified.map(reason::uncertified));
        return;
    }
    // `Placement` compared with another runtime's certificate, and no work moved.
    let by_certificate = |origin| origin == Origin::Certified;
    let is_compared = evidence.placement.as_ref().map(|change| change.origin);
    if found.class != VerdictClass::Healthy || is_compared.is_some_and(by_certificate) {
        return;
    }
    if let Some(uncertified) = uncertified {
        found.class = VerdictClass::DataQuality;
        found.severity = Severity::Info;
        found.reasons.push(reason::uncertified(uncertified));
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::baseline::{Baseline, Certificate};
    use crate::judge::placement::tests::placed;
    use crate::testing::{Fleet, judged, reference};
    use epwatch_model::{CohortVerdict, Severity, VerdictClass};

    /// Version 1.0.0 had the same fault, so `Placement` is silent.
    fn certified(runtime: &str) -> Baseline {
        let mut reference = reference();
        reference.placements = vec![epwatch_model::PlacementReference::Placement {
            origin: epwatch_model::Origin::PreviousVersion,
            placement: placed(21, 20, 5, Some(0.74)),
        }];
        let mut placement = placed(20, 25, 0, Some(1.0));
        placement.runtime = runtime.to_owned();
        Baseline {
            certificates: vec![Certificate {
                certified_by: "CI run 812".into(),
                firmware: String::new(),
                placement,
                latency: None,
            }],
            ..reference
        }
    }

    #[track_caller]
    fn check(verdict: &CohortVerdict, class: VerdictClass, severity: Severity, says: &str) {
        let found = (verdict.class, verdict.severity);
        assert_eq!(found, (class, severity), "{:#?}", verdict.reasons);
        let texts: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|text| text.contains(says)), "{texts:#?}");
    }

    /// The text is on the page and in notifications.
    #[test]
    fn the_firmware_of_the_certificate_is_named() {
        let of_firmware = |firmware: &str| {
            let mut baseline = certified("1.31.1/2.7.0");
            baseline.certificates[0].firmware = firmware.to_owned();
            let fallen = Fleet::with_fallback(0.5).window();
            judged(&fallen, None, &baseline)
        };
        let (class, page) = (VerdictClass::SomeDevicesFallback, Severity::Page);
        let own = "on the NPU of this chipset with firmware f1; 30 of 60 devices";
        check(&of_firmware("f1"), class, page, own);
        let other = "with firmware f7, the nearest to theirs that has a certificate; 30 of 60";
        check(&of_firmware("f7"), class, page, other);
    }

    const SAYS: &str = "certified by CI run 812 with 100 % of the MACs on the NPU of this chipset";

    #[test]
    fn a_fault_that_the_version_before_had_too_is_a_ticket_by_the_certificate() {
        let fallen = Fleet {
            slow_factor: 1.0,
            ..Fleet::with_fallback(1.0)
        };
        let verdict = judged(&fallen.window(), None, &certified("1.31.1/2.7.0"));
        let (class, ticket) = (VerdictClass::PartialFallback, Severity::Ticket);
        check(&verdict, class, ticket, SAYS);
        assert_eq!(verdict.cpu_ops, ["Gemm", "LayerNormalization"]);
        assert_eq!(verdict.numbers.reference_npu_share, Some(1.0));
        // The version before has the same fault.
        assert!(
            !verdict.next_step.contains("keep version"),
            "{}",
            verdict.next_step
        );
    }

    #[test]
    fn with_latency_it_is_a_page() {
        let fallen = Fleet::with_fallback(0.5).window();
        let verdict = judged(&fallen, None, &certified("1.31.1/2.7.0"));
        let class = VerdictClass::SomeDevicesFallback;
        check(&verdict, class, Severity::Page, SAYS);
        assert!(verdict.numbers.latency_ratio.unwrap() > 2.0);
    }

    #[test]
    fn a_finding_of_the_version_before_names_the_certificate_too() {
        let baseline = Baseline {
            certificates: certified("1.31.1/2.7.0").certificates,
            ..reference()
        };
        let verdict = judged(&Fleet::with_fallback(1.0).window(), None, &baseline);
        check(
            &verdict,
            VerdictClass::PartialFallback,
            Severity::Page,
            SAYS,
        );
        assert!(verdict.next_step.contains("keep version 1.0.0"));
    }

    #[test]
    fn another_runtime_is_data_quality() {
        let verdict = judged(&Fleet::default().window(), None, &certified("1.27.0/2.7.0"));
        let says = "CI run 812 certified it with the runtime 1.27.0/2.7.0";
        check(&verdict, VerdictClass::DataQuality, Severity::Info, says);
        assert!(
            verdict.next_step.contains("Certify"),
            "{}",
            verdict.next_step
        );
        let same = judged(&Fleet::default().window(), None, &certified("1.31.1/2.7.0"));
        assert_eq!(same.class, VerdictClass::Healthy);
    }
}
