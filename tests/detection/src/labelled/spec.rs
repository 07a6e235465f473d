//! The parameters of a family, and their spread over fleets.

use super::measured;
use super::{Benign, Circumstance, Fault, FaultKind, PlacementView, Truth};
use epwatch_fleet::chance::{Chance, whole};

/// The parameters of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilySpec {
    /// The seed that everything follows from.
    pub seed: u64,
    /// The family's fault or confounder.
    pub truth: Truth,
    /// The placements that devices report.
    pub view: PlacementView,
    /// Number of chipsets. The fault is on the first, and weather is on all.
    pub chipsets: usize,
    /// Devices of each chipset.
    pub devices: usize,
    /// Windows before the roll-out, and from it on.
    pub windows: (u32, u32),
    /// Share of the devices on the new version in each window of the roll-out; the last share stays.
    pub rollout: Vec<f64>,
    /// Whether another version begins to roll out three windows before.
    pub rolls_out_twice: bool,
    /// Runs of the median device in a window.
    pub runs: f64,
    /// Reports that each device's window is split into.
    pub reports: u32,
    /// Whether input shapes are sent.
    pub shape_known: bool,
    /// Share of the devices that also run a second model.
    pub peers: f64,
    /// Median of the model on the NPU, in microseconds.
    pub base_us: f64,
    /// Share of the devices without a self baseline.
    pub without_baseline: f64,
    /// Share of the windows in which a device reports. Also the share of the devices that exist from the start.
    pub presence: f64,
    /// Spread of devices and runs relative to a usual fleet: 2 is twice the spread.
    pub wildness: f64,
    /// The permanent behaviour of the whole family.
    pub circumstance: Option<Circumstance>,
}

/// Devices of a chipset: lognormal, so that many cohorts are small and few are large.
const MEDIAN_DEVICES: f64 = 45.0;
const DEVICES_SIGMA: f64 = 1.1;
const DEVICES: (f64, f64) = (3.0, 1_500.0);

impl FamilySpec {
    /// 100 devices on each of four chipsets, with 50 runs each. After seven windows all of them get the new version.
    #[must_use]
    pub fn at_once(seed: u64, truth: Truth, view: PlacementView) -> Self {
        Self {
            view,
            chipsets: 4,
            devices: 100,
            windows: (7, 2),
            rollout: vec![1.0],
            rolls_out_twice: false,
            runs: 50.0,
            reports: 1,
            shape_known: true,
            peers: 0.0,
            base_us: 8_200.0,
            ..Self::drawn(seed, truth)
        }
    }

    /// Draws a family with this truth, with the variety of real fleets.
    #[must_use]
    pub fn drawn(seed: u64, truth: Truth) -> Self {
        let mut chance = Chance::split(seed, "family", 0);
        let few = truth == Truth::Benign(Benign::FewDevices);
        let devices = if few {
            3 + whole(chance.unit() * 10.0)
        } else {
            let drawn = MEDIAN_DEVICES * (DEVICES_SIGMA * chance.normal()).exp();
            whole(drawn.clamp(DEVICES.0, DEVICES.1))
        };
        let drifts = matches!(
            truth,
            Truth::Fault(Fault {
                kind: FaultKind::Drift,
                ..
            })
        );
        let rollout = if drifts {
            vec![0.05, 0.15, 0.3, 0.5, 0.8, 1.0]
        } else {
            let plans = [vec![0.3, 0.7, 1.0], vec![1.0], vec![0.5, 0.9, 0.9]];
            plans[whole(chance.unit() * 3.0) as usize].clone()
        };
        let views = [
            PlacementView::Full,
            PlacementView::Full,
            PlacementView::NodesOnly,
            PlacementView::Missing,
        ];
        Self {
            seed,
            truth,
            view: views[whole(chance.unit() * 4.0) as usize],
            chipsets: 1 + whole(chance.unit() * 3.0) as usize,
            devices: devices as usize,
            windows: (7, 8),
            rollout,
            rolls_out_twice: chance.happens(0.1) || truth == Truth::Benign(Benign::TwoRollouts),
            runs: [15.0, 50.0, 50.0, 120.0][whole(chance.unit() * 4.0) as usize],
            reports: 1,
            shape_known: chance.happens(0.8),
            peers: [0.0, 0.5][whole(chance.unit() * 2.0) as usize],
            base_us: measured::base_us(&mut chance),
            without_baseline: chance.between((0.05, 0.25)),
            presence: 0.9,
            wildness: 1.0,
            circumstance: None,
        }
    }

    /// The same family under a circumstance.
    #[must_use]
    pub fn under(self, circumstance: Circumstance) -> Self {
        let spec = Self {
            circumstance: Some(circumstance),
            ..self
        };
        match circumstance {
            Circumstance::SlowRollout => Self {
                rollout: vec![0.01, 0.03, 0.08, 0.2, 0.45, 0.75, 1.0],
                rolls_out_twice: false,
                ..spec
            },
            Circumstance::AbHalves | Circumstance::FrequentVersions => Self {
                rollout: vec![1.0],
                rolls_out_twice: false,
                ..spec
            },
            Circumstance::SharedNpu => Self { peers: 1.0, ..spec },
            Circumstance::FewOfEach => Self {
                devices: 3 + (spec.seed % 10) as usize,
                ..spec
            },
            Circumstance::FirstDay => Self {
                windows: (0, spec.windows.1),
                rollout: vec![1.0],
                rolls_out_twice: false,
                without_baseline: 1.0,
                ..spec
            },
            _ => spec,
        }
    }

    /// Whether the family is under this circumstance.
    #[must_use]
    pub fn is_under(&self, circumstance: Circumstance) -> bool {
        self.circumstance == Some(circumstance)
    }

    /// The fault, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match self.truth {
            Truth::Fault(fault) => Some(fault),
            Truth::Benign(_) => None,
        }
    }
}
