//! `Certificate`: devices whose placement is worse than the placement that was certified for their version and chipset.
//!
//! `Placement` compares with the version before first, so it is silent if that version had the same fault. A
//! certificate counts for its own runtime and method only: another runtime may count nodes differently. Of several
//! certificates, a device is compared with the certificate of its own firmware. Next comes one that names no firmware,
//! and last the latest of another firmware.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use epwatch_model::{CertifiedFirmware, Origin, Placement, SignalId, WorkUnit};

use crate::judge::baseline::{Baseline, Certificate};
use crate::judge::placement::rise_over;
use crate::judge::window::{CohortWindow, DeviceVote};

use super::limits::{Limits, MIN_ELIGIBLE};
use super::placement_change::{self, Compared, PlacementChange};
use super::slower_with_placement_change::{self, SlowerAndMoved, SpeedBefore};

/// The result of `Certificate`.
#[derive(Debug, Clone, PartialEq)]
pub struct CertificateDrift {
    /// Devices that differ from the certificate; the signal's id is `Certificate`.
    pub change: PlacementChange,
    /// `SlowerAndMoved` for these devices; `None` if their speed has no reference.
    pub slower: Option<SlowerAndMoved>,
    /// Name of the pipeline key or run that certified.
    pub certified_by: String,
    /// The firmware that it was measured on; `None` if the certificate names none.
    pub firmware: Option<CertifiedFirmware>,
}

/// Devices that no certificate can be compared with, because of their runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncertifiedRuntime {
    /// The certifier of the latest certificate.
    pub certified_by: String,
    /// The certificate's runtime.
    pub certified: String,
    /// Runtimes of the devices, the commonest first.
    pub runtimes: Vec<String>,
    /// Devices with one of these runtimes.
    pub devices: u64,
}

/// Compares every device's placements with the certificate of their runtime; `None` if none is comparable.
#[must_use]
pub(crate) fn drifted(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<CertificateDrift> {
    let certificates = &baseline.certificates;
    let id = SignalId::Certificate;
    let compared = |vote: &DeviceVote| compare(vote, certificates);
    let change = placement_change::changed_by(window, id, baseline, limits, compared)?;
    let is_hit = |vote: &&DeviceVote| change.hit_devices.contains(&vote.installation);
    let hit = commonest(window.votes.iter().filter(is_hit), certificates);
    let (certificate, is_theirs) = hit.or_else(|| commonest(&window.votes, certificates))?;
    let slower = slower_with_placement_change::slower(
        window,
        previous,
        &change,
        SpeedBefore {
            is_worse: &|vote| compare(vote, certificates).is_some_and(|c| c.worse),
            latency: &BTreeMap::new(),
            certified: certificate.latency.as_ref(),
        },
        limits,
    );
    Some(CertificateDrift {
        change,
        slower,
        certified_by: certificate.certified_by.clone(),
        firmware: (!certificate.firmware.is_empty()).then(|| CertifiedFirmware {
            firmware: certificate.firmware.clone(),
            is_theirs,
        }),
    })
}

/// The certificate that most of these votes are compared with, and whether it is for their firmware.
fn commonest<'a, 'v>(
    votes: impl IntoIterator<Item = &'v DeviceVote>,
    certificates: &'a [Certificate],
) -> Option<(&'a Certificate, bool)> {
    let mut counts: BTreeMap<(usize, bool), u64> = BTreeMap::new();
    for vote in votes {
        let found = Certificate::nearest(certificates, vote);
        let at =
            found.and_then(|found| certificates.iter().position(|one| std::ptr::eq(one, found)));
        if let Some(at) = at {
            let is_theirs = certificates[at].firmware == *vote.firmware;
            *counts.entry((at, is_theirs)).or_default() += 1;
        }
    }
    let most = counts
        .into_iter()
        .max_by_key(|((at, _), n)| (*n, Reverse(*at)));
    most.map(|((at, is_theirs), _)| (&certificates[at], is_theirs))
}

/// Returns the runtimes of most devices if no certificate is for them; `None` if there is one.
#[must_use]
pub(crate) fn uncertified(
    window: &CohortWindow,
    baseline: &Baseline,
) -> Option<UncertifiedRuntime> {
    let latest = baseline.certificates.first()?;
    let readable = |placement: &Placement| placement.method == latest.placement.method;
    let votes = window.votes.iter().filter(|v| readable(&v.placement));
    let mut by_runtime: BTreeMap<&str, u64> = BTreeMap::new();
    let mut certified = 0_u64;
    for vote in votes {
        match Certificate::nearest(&baseline.certificates, vote) {
            Some(_) => certified += 1,
            None => *by_runtime.entry(&vote.placement.runtime).or_default() += 1,
        }
    }
    let devices: u64 = by_runtime.values().sum();
    let mut runtimes: Vec<(&str, u64)> = by_runtime.into_iter().collect();
    runtimes.sort_by_key(|(_, devices)| std::cmp::Reverse(*devices));
    (devices >= MIN_ELIGIBLE && devices > certified).then(|| UncertifiedRuntime {
        certified_by: latest.certified_by.clone(),
        certified: latest.placement.runtime.clone(),
        runtimes: runtimes
            .into_iter()
            .map(|(name, _)| name.to_owned())
            .collect(),
        devices,
    })
}

/// A device differs if its fingerprint differs and the NPU has less of the work. If neither MACs nor nodes can be
/// counted, as in a precompiled graph, the fingerprint alone decides.
fn compare(vote: &DeviceVote, certificates: &[Certificate]) -> Option<Compared> {
    let (placement, before) = (
        &*vote.placement,
        &Certificate::nearest(certificates, vote)?.placement,
    );
    let differs = placement.fingerprint != before.fingerprint;
    let rise = rise_over(placement, before);
    Some(Compared {
        origin: Origin::Certified,
        unit: rise.map_or(WorkUnit::Nodes, |rise| rise.unit),
        rise: rise.map_or(0.0, |rise| rise.by),
        worse: rise.map_or(differs, |rise| rise.is_worse()),
        reference_share: before.npu_share().map(|(share, _)| share),
        reference_runtime: Some(before.runtime.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::baseline::BaselineLatency;
    use crate::judge::placement::tests::placed;
    use crate::testing::{Fleet, reference};
    use epwatch_model::SpeedReference;
    use std::sync::Arc;

    fn certificate() -> Certificate {
        Certificate {
            certified_by: "CI run 812".into(),
            firmware: String::new(),
            placement: placed(20, 25, 0, Some(1.0)),
            latency: None,
        }
    }

    fn with(certificate: Certificate) -> Baseline {
        Baseline {
            certificates: vec![certificate],
            ..reference()
        }
    }

    fn found(fleet: &Fleet, baseline: &Baseline) -> Option<CertificateDrift> {
        let limits = Limits::for_windows_a_day(1_000.0);
        drifted(&fleet.window(), None, baseline, &limits)
    }

    #[test]
    fn devices_with_less_on_the_npu_than_certified_are_hit() {
        let drift = found(&Fleet::with_fallback(0.5), &with(certificate())).unwrap();
        let signal = &drift.change.signal;
        assert_eq!((signal.id, signal.hits), (SignalId::Certificate, 30));
        assert!(signal.fires);
        assert_eq!(drift.change.reference_npu_share, Some(1.0));
        assert_eq!(drift.certified_by, "CI run 812");
        let slower = drift.slower.unwrap();
        assert!(slower.signal.fires);
        assert_eq!(slower.reference, SpeedReference::SameVersion);
        let healthy = found(&Fleet::default(), &with(certificate())).unwrap();
        assert_eq!(healthy.change.signal.hits, 0);
    }

    #[test]
    fn another_runtime_or_method_is_not_compared_and_the_runtime_is_named() {
        let mut other = certificate();
        other.placement.runtime = "1.27.0/2.7.0".into();
        assert_eq!(
            found(&Fleet::with_fallback(1.0), &with(other.clone())),
            None
        );
        let window = Fleet::default().window();
        let named = uncertified(&window, &with(other.clone())).unwrap();
        assert_eq!((named.devices, &*named.certified), (60, "1.27.0/2.7.0"));
        assert_eq!(named.runtimes, ["1.31.1/2.7.0"]);
        assert_eq!(uncertified(&window, &with(certificate())), None);
        other.placement.method.source = "log".into();
        assert_eq!(uncertified(&window, &with(other)), None);
        assert_eq!(uncertified(&window, &reference()), None);
    }

    /// A precompiled graph has no nodes to count.
    #[test]
    fn without_a_share_the_fingerprint_decides() {
        let precompiled = |fingerprint| {
            let mut placement = placed(fingerprint, 1, 1, None);
            placement.method.graph_kind = "epcontext".into();
            placement
        };
        let certificates = [Certificate {
            placement: precompiled(7),
            ..certificate()
        }];
        let mut vote = Fleet::default().window().votes.remove(0);
        let mut worse = |placement| {
            vote.placement = Arc::new(placement);
            compare(&vote, &certificates).unwrap().worse
        };
        assert!(!worse(precompiled(7)));
        assert!(worse(precompiled(8)));
    }

    /// Firmware f1 was certified with all work on the NPU, and f2 with less.
    #[test]
    fn devices_are_compared_with_the_certificate_of_the_nearest_firmware() {
        let of_firmware = |firmware: &str, npu_nodes: u32, share: f64| Certificate {
            firmware: firmware.to_owned(),
            placement: placed(u64::from(npu_nodes), npu_nodes, 25 - npu_nodes, Some(share)),
            ..certificate()
        };
        let f1 = of_firmware("f1", 25, 1.0);
        let f2 = of_firmware("f2", 20, 0.7);
        let fallen = Fleet::with_fallback(0.5);
        let drift = |certificates: &[&Certificate]| {
            let baseline = Baseline {
                certificates: certificates.iter().map(|one| (*one).clone()).collect(),
                ..reference()
            };
            found(&fallen, &baseline).unwrap()
        };
        let named = |firmware: &str, is_theirs| {
            let firmware = firmware.to_owned();
            Some(CertifiedFirmware {
                firmware,
                is_theirs,
            })
        };
        // The devices of the window have f1, so its certificate counts, whichever was stored last.
        for certificates in [[&f1, &f2], [&f2, &f1]] {
            let drift = drift(&certificates);
            assert_eq!(drift.change.signal.hits, 30);
            assert_eq!(drift.change.reference_npu_share, Some(1.0));
            assert_eq!(drift.firmware, named("f1", true));
        }
        let any = of_firmware("", 25, 1.0);
        assert_eq!(drift(&[&f2, &any]).firmware, None);
        assert_eq!(drift(&[&f2]).firmware, named("f2", false));
        let text = crate::judge::reason::certificate(&drift(&[&f2])).to_string();
        assert!(text.contains("with firmware f2"), "{text}");
    }

    /// All devices fell back, as on the version before. So only the certified latency shows the cost.
    #[test]
    fn certified_latency_is_the_reference_of_a_fault_that_was_always_there() {
        let fallen = Fleet {
            before: None,
            ..Fleet::with_fallback(1.0)
        };
        assert_eq!(found(&fallen, &with(certificate())).unwrap().slower, None);
        let latency = |p50_us: f64| BaselineLatency {
            n: 180,
            p50_us,
            p95_us: 1.3 * p50_us,
        };
        let timed = |p50_us| Certificate {
            latency: Some(latency(p50_us)),
            ..certificate()
        };
        let slower = found(&fallen, &with(timed(8_200.0)))
            .unwrap()
            .slower
            .unwrap();
        assert!(slower.signal.fires);
        assert_eq!(slower.reference, SpeedReference::Certified);
        // The certified latency is as slow as the devices.
        let slower = found(&fallen, &with(timed(20_000.0)))
            .unwrap()
            .slower
            .unwrap();
        assert!(!slower.signal.fires);
    }
}
