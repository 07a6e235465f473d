//! Tests that more evidence of the same fault never lowers the severity. Evidence is the ratio, the share of devices,
//! their number, and days.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::{CohortVerdict, Incident, IncidentKey, Severity};

use super::advance;
use crate::judge::placement::tests::placed;
use crate::judge::signals::{Controls, PeerRatios};
use crate::judge::window::CohortWindow;
use crate::testing::{Fleet, at, judged_with_controls, reference};

const RATIOS: [f64; 9] = [1.0, 1.2, 1.35, 1.5, 1.8, 2.2, 2.6, 3.4, 6.0];
const SHARES: [f64; 7] = [0.0, 0.1, 0.2, 0.4, 0.6, 0.85, 1.0];
const DEVICES: [u32; 5] = [5, 8, 14, 30, 60];
const DAYS: [i64; 3] = [1, 2, 3];

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

/// One fault: positions in the lists above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    ratio: usize,
    share: usize,
    devices: usize,
}

fn fleet(size: Size, is_placed: bool, seed: u64) -> Fleet {
    let healthy = Fleet::default();
    let ratio = RATIOS[size.ratio];
    Fleet {
        seed,
        devices: DEVICES[size.devices],
        hit_share: SHARES[size.share],
        slow_factor: ratio,
        hit_placement: match is_placed {
            true => placed(21, 20, 5, Some(0.74)),
            false => healthy.placement.clone(),
        },
        ..healthy
    }
}

fn verdict(size: Size, beside: Beside, is_placed: bool, seed: u64) -> CohortVerdict {
    let fleet = fleet(size, is_placed, seed);
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
    judged_with_controls(&window, controls, &reference())
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
fn severities(size: Size, beside: Beside, is_placed: bool, seed: u64) -> [Severity; 3] {
    let verdict = verdict(size, beside, is_placed, seed);
    DAYS.map(|days| told(&vec![verdict.clone(); usize::try_from(days).unwrap()]))
}

/// Whether something else is slow too, and too few devices are not hit to rule out load. Then the last control is gone,
/// so the page of a smaller share may become a ticket.
fn is_without_others(beside: Beside, size: Size) -> bool {
    use Beside::{SlowModel, SlowModelByFirmware, SlowVersion};
    let spared = f64::from(DEVICES[size.devices]) * (1.0 - SHARES[size.share]);
    matches!(beside, SlowVersion | SlowModel | SlowModelByFirmware) && spared < 5.0
}

#[test]
fn more_of_a_fault_never_tells_less() {
    let mut wrong = Vec::new();
    let mut told_at: BTreeMap<(usize, bool, Size), [Severity; 3]> = BTreeMap::new();
    let sizes = (0..RATIOS.len()).flat_map(|ratio| {
        (0..SHARES.len()).flat_map(move |share| {
            (0..DEVICES.len()).map(move |devices| Size {
                ratio,
                share,
                devices,
            })
        })
    });
    let sizes: Vec<Size> = sizes.collect();
    for (at, beside) in BESIDE.into_iter().enumerate() {
        for is_placed in [false, true] {
            for size in &sizes {
                let found = severities(*size, beside, is_placed, 7);
                if found.is_sorted() {
                    told_at.insert((at, is_placed, *size), found);
                } else {
                    wrong.push(format!(
                        "{beside:?} {is_placed} {size:?} over days: {found:?}"
                    ));
                }
            }
        }
    }
    for ((at, is_placed, size), found) in &told_at {
        let less_ratio = size.ratio.checked_sub(1);
        let less_share = size.share.checked_sub(1);
        let less_share = less_share.filter(|_| !is_without_others(BESIDE[*at], *size));
        let less_devices = size.devices.checked_sub(1);
        let less = [
            less_ratio.map(|ratio| Size { ratio, ..*size }),
            less_share.map(|share| Size { share, ..*size }),
            less_devices.map(|devices| Size { devices, ..*size }),
        ];
        for less in less.into_iter().flatten() {
            let Some(before) = told_at.get(&(*at, *is_placed, less)) else {
                continue;
            };
            if before.iter().zip(found).any(|(before, now)| now < before) {
                let of = |size: Size| {
                    (
                        RATIOS[size.ratio],
                        SHARES[size.share],
                        DEVICES[size.devices],
                    )
                };
                let (beside, less, size) = (BESIDE[*at], of(less), of(*size));
                wrong.push(format!(
                    "{beside:?} placed {is_placed}: {less:?} tells {before:?}, {size:?} tells {found:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        told_at.len()
    );
}

/// A fault that grows from day to day is notified at least as severely as one that keeps the size of its first day.
#[test]
fn a_fault_that_grows_tells_no_less_than_one_that_stays() {
    for beside in BESIDE {
        for is_placed in [false, true] {
            let of = |ratio: usize| {
                let size = Size {
                    ratio,
                    share: SHARES.len() - 1,
                    devices: DEVICES.len() - 2,
                };
                verdict(size, beside, is_placed, 7)
            };
            let all: Vec<CohortVerdict> = (0..RATIOS.len()).map(of).collect();
            for (first, first_ratio) in RATIOS.iter().enumerate() {
                for (then, then_ratio) in RATIOS.iter().enumerate().skip(first) {
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
