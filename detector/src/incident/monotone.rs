//! Tests that more evidence of the same fault never lowers the severity. Evidence is the ratio, the share of devices,
//! their number, the share of their runs, and days.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::{CohortVerdict, Incident, IncidentKey, Severity};

use super::advance;
use crate::judge::baseline::Baseline;
use crate::judge::placement::tests::placed;
use crate::judge::signals::{Controls, PeerRatios};
use crate::judge::window::CohortWindow;
use crate::testing::{
    Fleet, at, compiled_for_another, failed_starts, golden_tests, judged, judged_with_controls,
    reference,
};

/// Seeds of the fleets' noise.
const SEEDS: [u64; 3] = [7, 8, 9];

/// The sizes of a fault that are judged: all combinations.
#[derive(Debug)]
struct Grid {
    ratios: &'static [f64],
    /// Shares of the devices that are hit.
    shares: &'static [f64],
    devices: &'static [u32],
    /// Shares of the runs of a device hit that are slow.
    run_shares: &'static [f64],
}

/// Faults of all runs.
const ALL_RUNS: Grid = Grid {
    ratios: &[1.0, 1.2, 1.35, 1.5, 1.8, 2.2, 2.6, 3.4, 6.0],
    shares: &[0.0, 0.1, 0.2, 0.4, 0.6, 0.85, 1.0],
    devices: &[5, 8, 14, 30, 60],
    run_shares: &[1.0],
};

/// Faults that show in placements, without 1.35x, where noise decides. A device is slower from 1.25 times the p10 of
/// devices that kept their placement. The silicon of a few devices may differ by the rest.
const PLACED: Grid = Grid {
    ratios: &[1.0, 1.2, 1.5, 1.8, 2.2, 2.6, 3.4, 6.0],
    ..ALL_RUNS
};

/// Intermittent faults on fewer than half of the runs. At a half, noise decides whether a device's median moved, in the
/// controls too. Then more slow runs may be told a window later, as load.
const SOME_RUNS: Grid = Grid {
    ratios: &[1.5, 1.8, 2.6, 3.4, 6.0],
    shares: &[0.1, 0.4, 0.85, 1.0],
    devices: &[8, 14, 30, 60],
    run_shares: &[0.05, 0.15, 0.3],
};

const DAYS: [i64; 3] = [1, 2, 3];

/// CV within a device in the cohort's earlier windows.
const USUAL_CV: f64 = 0.15;

/// A finding that counts devices, whatever their latency is.
#[derive(Debug, Clone, Copy)]
enum Counted {
    FailedStarts,
    CompiledForAnother,
    WrongOutputs,
}

/// Another thing that ran in the window.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// The version before, which did not slow down.
    SteadyVersion,
    /// The version before, which slowed down as much.
    SlowVersion,
    /// Another model on the same devices, which did not slow down.
    SteadyModel,
    /// Another model on the same devices, which slowed down as much.
    SlowModel,
    /// Another model that slowed down as much, where the devices hit have a firmware of their own.
    SlowModelByFirmware,
}

const BESIDE: [Beside; 6] = [
    Beside::Nothing,
    Beside::SteadyVersion,
    Beside::SlowVersion,
    Beside::SteadyModel,
    Beside::SlowModel,
    Beside::SlowModelByFirmware,
];

/// One fault: positions in the lists of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    ratio: usize,
    share: usize,
    devices: usize,
    run_share: usize,
}

impl Grid {
    fn sizes(&self) -> Vec<Size> {
        let mut sizes = Vec::new();
        for ratio in 0..self.ratios.len() {
            for share in 0..self.shares.len() {
                for devices in 0..self.devices.len() {
                    for run_share in 0..self.run_shares.len() {
                        sizes.push(Size {
                            ratio,
                            share,
                            devices,
                            run_share,
                        });
                    }
                }
            }
        }
        sizes
    }

    fn fleet(&self, size: Size, is_placed: bool, seed: u64) -> Fleet {
        let healthy = Fleet::default();
        Fleet {
            seed,
            devices: self.devices[size.devices],
            hit_share: self.shares[size.share],
            slow_factor: self.ratios[size.ratio],
            slow_run_share: self.run_shares[size.run_share],
            hit_placement: match is_placed {
                true => placed(21, 20, 5, Some(0.74)),
                false => healthy.placement.clone(),
            },
            ..healthy
        }
    }

    fn in_words(&self, size: Size) -> String {
        format!(
            "{}x on {} of {} devices, {} of the runs",
            self.ratios[size.ratio],
            self.shares[size.share],
            self.devices[size.devices],
            self.run_shares[size.run_share]
        )
    }

    /// Whether something else is slow too, and too few devices are not hit to rule out load. Then the last control is
    /// gone, so the page of a smaller share may become a ticket.
    fn is_without_others(&self, beside: Beside, size: Size) -> bool {
        use Beside::{SlowModel, SlowModelByFirmware, SlowVersion};
        let spared = f64::from(self.devices[size.devices]) * (1.0 - self.shares[size.share]);
        matches!(beside, SlowVersion | SlowModel | SlowModelByFirmware) && spared < 5.0
    }

    /// Returns the faults that tell less than a smaller one.
    fn wrong(&self, is_placed: bool, seed: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        for beside in BESIDE {
            let mut told_at: BTreeMap<Size, [Severity; 3]> = BTreeMap::new();
            for size in self.sizes() {
                let found = severities(&self.fleet(size, is_placed, seed), beside);
                let words = self.in_words(size);
                if !found.is_sorted() {
                    wrong.push(format!("{beside:?} {words}: over days {found:?}"));
                }
                let less_ratio = size.ratio.checked_sub(1);
                let less_share = size.share.checked_sub(1);
                let less_share = less_share.filter(|_| !self.is_without_others(beside, size));
                let less_devices = size.devices.checked_sub(1);
                let less_runs = size.run_share.checked_sub(1);
                let less = [
                    less_ratio.map(|ratio| Size { ratio, ..size }),
                    less_share.map(|share| Size { share, ..size }),
                    less_devices.map(|devices| Size { devices, ..size }),
                    less_runs.map(|run_share| Size { run_share, ..size }),
                ];
                for less in less.into_iter().flatten() {
                    let before = told_at[&less];
                    if before.iter().zip(&found).any(|(before, now)| now < before) {
                        let less = self.in_words(less);
                        wrong.push(format!(
                            "{beside:?} seed {seed}: {less} tells {before:?}, {words} tells {found:?}"
                        ));
                    }
                }
                told_at.insert(size, found);
            }
        }
        wrong
    }

    #[track_caller]
    fn check(&self, is_placed: bool) {
        let wrong = SEEDS.map(|seed| self.wrong(is_placed, seed)).concat();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
    }
}

fn verdict(fleet: &Fleet, beside: Beside) -> CohortVerdict {
    let seed = fleet.seed;
    let mut window = fleet.window();
    let other = |slow_factor: f64| Fleet {
        seed: seed + 100,
        version: "1.0.0",
        before: Some("0.9.0"),
        slow_factor,
        hit_placement: fleet.placement.clone(),
        ..fleet.clone()
    };
    let mut previous: Option<CohortWindow> = None;
    let mut peers = PeerRatios::default();
    match beside {
        Beside::Nothing => {}
        Beside::SteadyVersion => previous = Some(other(1.0).window()),
        Beside::SlowVersion => previous = Some(other(fleet.slow_factor).window()),
        Beside::SteadyModel | Beside::SlowModel | Beside::SlowModelByFirmware => {
            let is_slow = beside != Beside::SteadyModel;
            let mut model = other(if is_slow { fleet.slow_factor } else { 1.0 }).window();
            model.key.model.model_id = "ranker".into();
            peers.add(&model.key, &model.votes);
        }
    }
    if beside == Beside::SlowModelByFirmware {
        let n_hit = (f64::from(fleet.devices) * fleet.hit_share).round();
        for (vote, at) in window.votes.iter_mut().zip(0_u32..) {
            if f64::from(at) < n_hit {
                vote.firmware = "f2".into();
            }
        }
    }
    let controls = Controls {
        previous: previous.as_ref(),
        peers: &peers,
        chipsets: &[],
    };
    // The only control of a larger CV is the version before. Load of another model would be a ticket for its CV where few
    // runs are slow, and load where many are.
    let is_load = matches!(beside, Beside::SlowModel | Beside::SlowModelByFirmware);
    let baseline = if is_load {
        reference()
    } else {
        with_usual_cv()
    };
    judged_with_controls(&window, controls, &baseline)
}

/// Returns the baseline of a cohort whose runs varied little in earlier windows, so that a larger CV counts.
fn with_usual_cv() -> Baseline {
    Baseline {
        cv_within: Some(USUAL_CV),
        ..reference()
    }
}

/// Returns the highest severity that was notified after one-day windows with these verdicts, one window each.
fn told(days: &[CohortVerdict]) -> Severity {
    let mut open: BTreeMap<IncidentKey, Incident> = BTreeMap::new();
    for (verdict, day) in days.iter().zip(0_i64..) {
        let end = at(day * 86_400);
        let verdict = CohortVerdict {
            window_end: end,
            window: Duration::from_secs(86_400),
            ..verdict.clone()
        };
        let forget = Duration::from_secs(14 * 86_400);
        advance(&mut open, &[verdict], forget, end);
    }
    let notified = open.values().filter(|one| one.state.is_notified());
    notified
        .map(Incident::severity)
        .max()
        .unwrap_or(Severity::None)
}

/// Severities after one, two and three days.
fn severities(fleet: &Fleet, beside: Beside) -> [Severity; 3] {
    let verdict = verdict(fleet, beside);
    DAYS.map(|days| told(&vec![verdict.clone(); usize::try_from(days).unwrap()]))
}

#[test]
fn more_of_a_fault_without_placements_never_tells_less() {
    ALL_RUNS.check(false);
}

#[test]
fn more_of_a_fault_with_placements_never_tells_less() {
    PLACED.check(true);
}

#[test]
fn more_slow_runs_never_tell_less() {
    SOME_RUNS.check(false);
}

impl Counted {
    /// Returns a healthy window in which this counts the first devices.
    fn window(self, devices: u32, hit: u32) -> CohortWindow {
        let fleet = Fleet {
            devices,
            ..Fleet::default()
        };
        let mut window = fleet.window();
        match self {
            Counted::FailedStarts => {
                window.device_events.failed_starts =
                    failed_starts(0..hit, "f1", "backend_setup_failed");
                window
            }
            Counted::CompiledForAnother => compiled_for_another(window, 0..hit, "f1"),
            Counted::WrongOutputs => {
                let mut tests = golden_tests(0..hit, "bb", "f1", 0.5);
                tests.extend(golden_tests(hit..devices, "aa", "f1", 0.01));
                window.device_events.tests = tests;
                window
            }
        }
    }
}

#[test]
fn more_devices_with_a_finding_other_than_latency_never_tell_less() {
    let counted = [
        Counted::FailedStarts,
        Counted::CompiledForAnother,
        Counted::WrongOutputs,
    ];
    for counted in counted {
        let mut told_at: BTreeMap<(usize, usize), [Severity; 3]> = BTreeMap::new();
        for (share_at, share) in ALL_RUNS.shares.iter().enumerate() {
            for (devices_at, devices) in ALL_RUNS.devices.iter().enumerate() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a share of some devices"
                )]
                let hit = (f64::from(*devices) * share).round() as u32;
                let window = counted.window(*devices, hit);
                let verdict = judged(&window, None, &with_usual_cv());
                let of_days =
                    |days: i64| told(&vec![verdict.clone(); usize::try_from(days).unwrap()]);
                let found = DAYS.map(of_days);
                let what = (counted, *share, *devices);
                assert!(found.is_sorted(), "{what:?}: over days {found:?}");
                let less_share = share_at.checked_sub(1).map(|less| (less, devices_at));
                let less_devices = devices_at.checked_sub(1).map(|less| (share_at, less));
                for less in [less_share, less_devices].into_iter().flatten() {
                    let before = told_at[&less];
                    let is_less = before.iter().zip(&found).any(|(before, now)| now < before);
                    assert!(!is_less, "{what:?}: {found:?}, and {before:?} with less");
                }
                told_at.insert((share_at, devices_at), found);
            }
        }
        let all = (ALL_RUNS.shares.len() - 1, ALL_RUNS.devices.len() - 1);
        assert!(told_at[&all][2] >= Severity::Ticket, "{counted:?}");
    }
}

/// A fault that grows from day to day is notified at least as severely as one that keeps the size of its first day.
#[test]
fn a_fault_that_grows_tells_no_less_than_one_that_stays() {
    for beside in BESIDE {
        for is_placed in [false, true] {
            let of = |ratio: usize| {
                let size = Size {
                    ratio,
                    share: ALL_RUNS.shares.len() - 1,
                    devices: ALL_RUNS.devices.len() - 2,
                    run_share: 0,
                };
                verdict(&ALL_RUNS.fleet(size, is_placed, SEEDS[0]), beside)
            };
            let ratios = ALL_RUNS.ratios;
            let all: Vec<CohortVerdict> = (0..ratios.len()).map(of).collect();
            for (first, first_ratio) in ratios.iter().enumerate() {
                for (then, then_ratio) in ratios.iter().enumerate().skip(first) {
                    let stays = vec![all[first].clone(); 4];
                    let grows: Vec<CohortVerdict> =
                        [first, first, then, then].map(|at| all[at].clone()).into();
                    let (stays, grows) = (told(&stays), told(&grows));
                    let what = (beside, is_placed, *first_ratio, *then_ratio);
                    assert!(
                        grows >= stays,
                        "{what:?}: {stays:?}, and {grows:?} as it grows"
                    );
                }
            }
        }
    }
}
