//! The stories that are told, and the families that tell them.

use epwatch_fleet::labelled::{Benign, FamilySpec, Fault, FaultKind, PlacementView, Story};

/// A named kind of family.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    tell: Tell,
}

#[derive(Debug, Clone, Copy)]
enum Tell {
    Benign(Benign),
    Total,
    SomeDevices,
    Runs,
    StrongRuns,
    Sessions,
    Drift,
    TheIncident(PlacementView),
    WithoutPasts,
}

pub(crate) fn all() -> Vec<Named> {
    let mut all: Vec<Named> = Benign::ALL
        .iter()
        .map(|benign| Named {
            name: format!("{benign:?}"),
            tell: Tell::Benign(*benign),
        })
        .collect();
    let faults = [
        ("total", Tell::Total),
        ("some devices", Tell::SomeDevices),
        ("intermittent runs", Tell::Runs),
        ("intermittent runs, strong", Tell::StrongRuns),
        ("intermittent sessions", Tell::Sessions),
        ("drift", Tell::Drift),
        ("the incident, full", Tell::TheIncident(PlacementView::Full)),
        (
            "the incident, missing",
            Tell::TheIncident(PlacementView::Missing),
        ),
        (
            "the incident, lying",
            Tell::TheIncident(PlacementView::Lying),
        ),
    ];
    let others = [("the incident, devices without a past", Tell::WithoutPasts)];
    let faults = faults.into_iter().chain(others);
    all.extend(faults.map(|(name, tell)| Named {
        name: name.to_owned(),
        tell,
    }));
    all
}

/// A draw in [0, 1) from a seed and a purpose.
fn unit(seed: u64, purpose: u64) -> f64 {
    let mut z =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose.wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn log_between(unit: f64, low: f64, high: f64) -> f64 {
    (low.ln() + unit * (high / low).ln()).exp()
}

impl Named {
    pub(crate) fn is_benign(&self) -> bool {
        matches!(self.tell, Tell::Benign(_))
    }

    pub(crate) fn families(&self, first_seed: u64, n: u64) -> Vec<FamilySpec> {
        (first_seed..first_seed + n)
            .map(|seed| self.family(seed))
            .collect()
    }

    fn family(&self, seed: u64) -> FamilySpec {
        let at = |purpose| unit(seed, purpose);
        let moved = log_between(at(1), 0.05, 1.0);
        let factor = log_between(at(2), 2.0, 8.0);
        let kind = match self.tell {
            Tell::Benign(benign) => return FamilySpec::drawn(seed, Story::Benign(benign)),
            Tell::TheIncident(view) => return the_incident(seed, view),
            Tell::WithoutPasts => {
                return FamilySpec {
                    without_baseline: 1.0,
                    ..the_incident(seed, PlacementView::Missing)
                };
            }
            Tell::Total => FaultKind::Total,
            Tell::Drift => FaultKind::Drift,
            Tell::SomeDevices => FaultKind::SomeDevices(log_between(at(3), 0.1, 0.75)),
            Tell::Runs => FaultKind::IntermittentRuns(log_between(at(3), 0.05, 0.6)),
            Tell::StrongRuns => FaultKind::IntermittentRuns(log_between(at(3), 0.15, 0.6)),
            Tell::Sessions => FaultKind::IntermittentSessions(log_between(at(3), 0.1, 0.6)),
        };
        let strong = matches!(self.tell, Tell::StrongRuns);
        let factor = if strong { factor.max(3.0) } else { factor };
        let mut spec = FamilySpec::drawn(
            seed,
            Story::Fault(Fault {
                kind,
                factor,
                moved,
            }),
        );
        if strong {
            spec.shape_known = true;
            spec.devices = spec.devices.max(30);
        }
        spec
    }
}

/// 400 devices, a new model version, on one chipset one activation moves to the CPU: 18 % of the
/// FLOPs, p50 there 8.2 -> 24 ms; four chipsets, 50 runs a device, seven earlier windows.
fn the_incident(seed: u64, view: PlacementView) -> FamilySpec {
    let fault = Fault {
        kind: FaultKind::Total,
        factor: 24.0 / 8.2,
        moved: 0.18,
    };
    FamilySpec {
        view,
        chipsets: 4,
        devices: 100,
        windows: (7, 2),
        rollout: vec![1.0],
        runs: 50.0,
        reports: 1,
        shape_known: true,
        peers: 0.0,
        base_us: 8_200.0,
        ..FamilySpec::drawn(seed, Story::Fault(fault))
    }
}
