//! `Outputs` and `OutputHash`: golden self-tests whose outputs differ.
//!
//! `Outputs` counts devices whose NPU differs from their own CPU by more than the tolerance of the model's owner:
//! the outputs are wrong. `OutputHash` counts devices whose NPU gives another output than most of their cohort. Within
//! the tolerance the model only behaves differently from phone to phone.

use std::collections::BTreeMap;

use epwatch_model::{Installation, Signal, SignalId};
use epwatch_stats::order_stat::median;

use crate::baseline::Baseline;
use crate::device_events::GoldenTest;
use crate::hash::{HashMap, HashSet};
use crate::tally::{BaseRate, Tally, surprise};
use crate::window::CohortWindow;

use super::limits::{Limits, counted_signal, is_enough};

/// Share of healthy devices beyond the tolerance. The same bytes give the same output, so the rate is far below the
/// rates of latency.
pub(crate) const BEYOND_RATE: f64 = 0.005;

/// Share of healthy devices with another output: firmware differs within a cohort.
pub(crate) const MINORITY_RATE: f64 = 0.03;

/// Share of the devices that must be hit.
pub(crate) const MIN_SHARE: f64 = 0.02;

/// The results of `Outputs` and `OutputHash`.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// `Outputs`; `None` if no test has both the difference and the tolerance.
    pub beyond: Option<OutputsBeyond>,
    /// `OutputHash`; `None` if no test has a hash.
    pub minority: Option<OutputMinority>,
}

/// Devices whose outputs are beyond the tolerance.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputsBeyond {
    /// Value: share of the tested devices hit.
    pub signal: Signal,
    /// Whether it is surprising enough for a page.
    pub is_page: bool,
    /// Median of the largest absolute differences on the devices hit.
    pub max_abs: f64,
    /// The accepted difference.
    pub tolerance: f64,
    /// Median cosine of NPU and CPU on the devices hit.
    pub cosine: Option<f64>,
    /// Share of the devices hit whose largest element is still the same, in [0, 1].
    pub top1_share: Option<f64>,
}

/// Devices whose NPU gives another output than most of their cohort's.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputMinority {
    /// Value: share of the tested devices hit.
    pub signal: Signal,
    /// Number of different outputs, for the input with the most.
    pub outputs: u64,
    /// The firmware of all devices hit, if no other device has it.
    pub firmware: Option<String>,
}

/// Compares the outputs of every device's latest tests; `None` without tests.
#[must_use]
pub(crate) fn differ(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<Outputs> {
    let found = Outputs {
        beyond: beyond(window, previous, baseline, limits),
        minority: minority(window, previous, baseline, limits),
    };
    (found.beyond.is_some() || found.minority.is_some()).then_some(found)
}

fn run_tests(window: &CohortWindow) -> impl Iterator<Item = &GoldenTest> {
    window
        .device_events
        .tests
        .iter()
        .filter(|test| test.has_run)
}

fn is_beyond(test: &GoldenTest) -> Option<bool> {
    Some(test.max_abs? > test.tolerance?)
}

/// Returns each device's test with the largest excess over its tolerance.
fn beyond_by_device(window: &CohortWindow) -> BTreeMap<Installation, (bool, &GoldenTest)> {
    let mut devices: BTreeMap<Installation, (bool, &GoldenTest)> = BTreeMap::new();
    for test in run_tests(window) {
        let Some(is_beyond) = is_beyond(test) else {
            continue;
        };
        let excess = |test: &GoldenTest| {
            test.max_abs.unwrap_or(0.0) / test.tolerance.unwrap_or(0.0).max(f64::MIN_POSITIVE)
        };
        let slot = devices
            .entry(test.installation)
            .or_insert((is_beyond, test));
        if excess(test) > excess(slot.1) {
            *slot = (is_beyond, test);
        }
    }
    devices
}

fn tally_of<T>(devices: &BTreeMap<Installation, (bool, T)>) -> Tally {
    Tally::of(devices.values(), |(is_hit, _)| *is_hit)
}

fn beyond(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<OutputsBeyond> {
    let devices = beyond_by_device(window);
    let tally = tally_of(&devices);
    let before = previous.map(|window| tally_of(&beyond_by_device(window)));
    let id = SignalId::Outputs;
    let rate = baseline.rates.of(id, BEYOND_RATE);
    let (signal, enough) = signal(id, tally, baseline.past(id, before), rate, limits)?;
    let is_page = enough && signal.p <= limits.p_latency;
    let hit = || devices.values().filter(|(is_hit, _)| *is_hit);
    let of = |field: fn(&GoldenTest) -> Option<f64>| {
        let values: Vec<f64> = hit().filter_map(|(_, test)| field(test)).collect();
        median(&values)
    };
    let same: Vec<bool> = hit().filter_map(|(_, test)| test.top1_equal).collect();
    let n_same = same.iter().filter(|same| **same).count();
    let tolerances: Vec<f64> = devices.values().filter_map(|(_, t)| t.tolerance).collect();
    Some(OutputsBeyond {
        is_page,
        max_abs: of(|test| test.max_abs).unwrap_or(0.0),
        tolerance: of(|test| test.tolerance).or(median(&tolerances))?,
        cosine: of(|test| test.cosine),
        top1_share: (!same.is_empty()).then(|| n_same as f64 / same.len() as f64),
        signal,
    })
}

/// Returns for each device whether any of its outputs differs from the commonest one of that input, with its firmware.
/// Also returns the largest number of different outputs.
fn minority_by_device(window: &CohortWindow) -> (BTreeMap<Installation, (bool, &str)>, u64) {
    let mut by_input: BTreeMap<&str, BTreeMap<&str, Vec<&GoldenTest>>> = BTreeMap::new();
    for test in run_tests(window).filter(|test| !test.npu_hash.is_empty()) {
        let outputs = by_input.entry(&test.input_id).or_default();
        outputs.entry(&test.npu_hash).or_default().push(test);
    }
    let mut devices: BTreeMap<Installation, (bool, &str)> = BTreeMap::new();
    let mut most_outputs = 0;
    for outputs in by_input.into_values() {
        most_outputs = most_outputs.max(outputs.len() as u64);
        // Among equally common outputs the first by hash, so that the result does not depend on the order.
        let commonest = outputs
            .iter()
            .max_by(|a, b| a.1.len().cmp(&b.1.len()).then(b.0.cmp(a.0)))
            .map(|(hash, _)| *hash);
        for (hash, tests) in &outputs {
            for test in tests {
                let slot = devices
                    .entry(test.installation)
                    .or_insert((false, &test.firmware));
                slot.0 |= Some(*hash) != commonest;
            }
        }
    }
    (devices, most_outputs)
}

fn minority(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<OutputMinority> {
    let (devices, outputs) = minority_by_device(window);
    let tally = tally_of(&devices);
    let before = previous.map(|window| tally_of(&minority_by_device(window).0));
    let id = SignalId::OutputHash;
    let rate = baseline.rates.of(id, MINORITY_RATE);
    let (signal, _) = signal(id, tally, baseline.past(id, before), rate, limits)?;
    Some(OutputMinority {
        signal,
        outputs,
        firmware: firmware_of_hits(&devices),
    })
}

fn firmware_of_hits(devices: &BTreeMap<Installation, (bool, &str)>) -> Option<String> {
    let mut sides: HashMap<bool, HashSet<&str>> = HashMap::default();
    for (is_hit, firmware) in devices.values() {
        sides.entry(*is_hit).or_default().insert(firmware);
    }
    let (hit, others) = (sides.get(&true)?, sides.get(&false)?);
    let mut only = hit.iter().filter(|firmware| !others.contains(*firmware));
    let firmware = only.next().filter(|firmware| !firmware.is_empty())?;
    (hit.len() == 1).then(|| (*firmware).to_owned())
}

fn signal(
    id: SignalId,
    tally: Tally,
    past: Tally,
    rate: BaseRate,
    limits: &Limits,
) -> Option<(Signal, bool)> {
    if tally.devices == 0 {
        return None;
    }
    let p = surprise(tally, rate, past);
    let enough = is_enough(tally, MIN_SHARE);
    let fires = enough && p <= limits.p_placement;
    Some((counted_signal(id, tally, p, MIN_SHARE, fires), enough))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, golden_tests as tested};

    #[track_caller]
    fn found(tests: Vec<GoldenTest>) -> Outputs {
        let mut window = Fleet::default().window();
        window.device_events.tests = tests;
        let limits = Limits::for_windows_a_day(1_000.0);
        differ(&window, None, &Baseline::default(), &limits).unwrap()
    }

    #[test]
    fn devices_beyond_the_tolerance_are_counted_with_their_distances() {
        let mut tests = tested(0..40, "aa", "f1", 0.01);
        tests.extend(tested(40..60, "bb", "f1", 0.4));
        let beyond = found(tests).beyond.unwrap();
        assert_eq!((beyond.signal.hits, beyond.signal.devices), (20, 60));
        assert!(beyond.is_page);
        assert_eq!((beyond.max_abs, beyond.tolerance), (0.4, 0.05));
        assert_eq!((beyond.cosine, beyond.top1_share), (Some(0.9), Some(0.5)));
    }

    #[test]
    fn a_test_that_failed_or_has_no_tolerance_says_nothing() {
        let mut tests = tested(0..60, "aa", "f1", 0.4);
        for test in &mut tests[..30] {
            test.has_run = false;
        }
        for test in &mut tests[30..] {
            test.tolerance = None;
        }
        let outputs = found(tests);
        assert_eq!(outputs.beyond, None);
        assert_eq!(outputs.minority.unwrap().signal.devices, 30);
    }

    #[test]
    fn the_commonest_output_is_the_reference_and_a_firmware_is_named() {
        let mut tests = tested(0..40, "zz", "f1", 0.01);
        tests.extend(tested(40..60, "aa", "f2", 0.01));
        let minority = found(tests).minority.unwrap();
        assert_eq!((minority.signal.hits, minority.outputs), (20, 2));
        assert!(minority.signal.fires);
        assert_eq!(minority.firmware.as_deref(), Some("f2"));
    }

    #[test]
    fn one_output_on_every_device_is_no_finding() {
        let outputs = found(tested(0..60, "aa", "f1", 0.01));
        assert!(!outputs.beyond.unwrap().signal.fires);
        assert!(!outputs.minority.unwrap().signal.fires);
    }

    /// A tolerance that no device ever kept is a matter of the tolerance, not of this version.
    #[test]
    fn a_previous_version_that_was_as_far_off_makes_it_no_surprise() {
        let mut window = Fleet::default().window();
        window.device_events.tests = tested(0..60, "aa", "f1", 0.4);
        let limits = Limits::for_windows_a_day(1_000.0);
        let before = window.clone();
        let judge = |previous| {
            let found = differ(&window, previous, &Baseline::default(), &limits).unwrap();
            found.beyond.unwrap()
        };
        assert!(judge(None).is_page);
        let mut many = before.clone();
        many.device_events.tests = tested(0..600, "aa", "f1", 0.4);
        assert!(!judge(Some(&many)).is_page);
    }
}
