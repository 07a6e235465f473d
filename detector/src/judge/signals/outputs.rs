//! `Outputs` and `OutputHash`: golden self-tests whose outputs differ.
//!
//! `Outputs` counts devices whose NPU differs from their own CPU by more than the tolerance of the model's owner: the
//! outputs are wrong. `OutputHash` counts devices whose NPU gives another output than most of their cohort. Within the
//! tolerance the model only behaves differently from phone to phone. If the outputs of all these devices differ from
//! their CPU only by rounding, only rounding modes differ. That does not count as a fault.

use std::collections::BTreeMap;

use epwatch_model::{Installation, Signal, SignalId};
use epwatch_proto::ROUNDING_COSINE;
use epwatch_stats::order_stat::median;

use crate::judge::baseline::Baseline;
use crate::judge::device_events::GoldenTest;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::{BaseRate, Tally, surprise};
use crate::judge::window::CohortWindow;

use super::limits::{Limits, MIN_HITS, counted_signal, is_enough};

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
    /// Whether the count is surprising enough for a page.
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

/// Devices whose NPU gives another output than most devices of their cohort.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputMinority {
    /// Value: share of the tested devices hit.
    pub signal: Signal,
    /// Number of different outputs, for the input with the most.
    pub outputs: u64,
    /// The firmware of all devices hit, if no other device has it.
    pub firmware: Option<String>,
    /// Whether rounding modes explain it.
    pub is_rounding: bool,
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

/// A difference of elements up to this multiple of the cohort's commonest output's is the same kind of rounding.
const AS_NEAR: f64 = 4.0;

/// A cosine from this on does not show elements that differ: the output has one element, or is too large by a factor.
const BLIND_COSINE: f64 = 1.0 - 1e-9;

/// Whether an output differs from the CPU's by rounding alone. `usual` is the largest difference of the commonest output.
fn is_rounding(test: &GoldenTest, usual: f64) -> bool {
    let (Some(cosine), Some(max_abs)) = (test.cosine, test.max_abs) else {
        return false;
    };
    let is_accepted = test.tolerance.map(|tolerance| max_abs <= tolerance);
    let is_seen = cosine < BLIND_COSINE || max_abs <= AS_NEAR * usual;
    cosine >= ROUNDING_COSINE && is_accepted.unwrap_or(is_seen)
}

/// Counts the devices whose outputs differ from the commonest ones by more than rounding.
fn n_beyond_rounding(window: &CohortWindow) -> u64 {
    let mut beyond: HashSet<Installation> = HashSet::default();
    for outputs in tests_by_output(window).into_values() {
        let commonest = commonest(&outputs);
        let usual = commonest.and_then(|hash| outputs.get(hash));
        let usual = usual.into_iter().flatten().filter_map(|test| test.max_abs);
        let usual = usual.fold(0.0, f64::max);
        let others = outputs.iter().filter(|(hash, _)| Some(**hash) != commonest);
        let others = others.flat_map(|(_, tests)| tests);
        let others = others.filter(|test| !is_rounding(test, usual));
        beyond.extend(others.map(|test| test.installation));
    }
    beyond.len() as u64
}

/// Tests by input and hash of the output.
type TestsByOutput<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a GoldenTest>>>;

fn tests_by_output(window: &CohortWindow) -> TestsByOutput<'_> {
    let mut by_input = TestsByOutput::new();
    for test in run_tests(window).filter(|test| !test.npu_hash.is_empty()) {
        let outputs = by_input.entry(&test.input_id).or_default();
        outputs.entry(&test.npu_hash).or_default().push(test);
    }
    by_input
}

/// Returns the commonest output. Among equally common ones, it returns the first by hash, so that the result does not
/// depend on the order.
fn commonest<'a>(outputs: &BTreeMap<&'a str, Vec<&'a GoldenTest>>) -> Option<&'a str> {
    let most = outputs
        .iter()
        .max_by(|a, b| a.1.len().cmp(&b.1.len()).then(b.0.cmp(a.0)));
    most.map(|(hash, _)| *hash)
}

/// Returns for each device whether any of its outputs differs from the commonest one of that input, with its firmware.
/// Also returns the largest number of different outputs.
fn minority_by_device(window: &CohortWindow) -> (BTreeMap<Installation, (bool, &str)>, u64) {
    let mut devices: BTreeMap<Installation, (bool, &str)> = BTreeMap::new();
    let mut most_outputs = 0;
    for outputs in tests_by_output(window).into_values() {
        most_outputs = most_outputs.max(outputs.len() as u64);
        let commonest = commonest(&outputs);
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
        is_rounding: n_beyond_rounding(window) < MIN_HITS,
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
    use crate::testing::{Fleet, cosine_tests, golden_tests as tested};

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

    /// One firmware rounds down, and the last bit varies, so each device has an output of its own.
    #[test]
    fn outputs_as_near_as_rounding_leaves_them_are_rounding() {
        let mut tests = cosine_tests(0..40, 0.999_9);
        tests.extend(cosine_tests(40..60, 0.995));
        for (at, test) in (0..).zip(&mut tests) {
            test.npu_hash = format!("{:02x}", at / 40 * 16 + at % 3).into();
        }
        let minority = found(tests.clone()).minority.unwrap();
        assert!(minority.signal.fires && minority.is_rounding);
        for test in &mut tests[40..] {
            test.cosine = Some(0.97);
        }
        assert!(!found(tests.clone()).minority.unwrap().is_rounding);
        // With one element the cosine shows nothing, and the output is 1,000 times as far off as the others.
        for (at, test) in (0..).zip(&mut tests) {
            let max_abs = if at < 40 { 1e-6 } else { 1e-3 };
            (test.cosine, test.max_abs) = (Some(1.0), Some(max_abs));
        }
        assert!(!found(tests.clone()).minority.unwrap().is_rounding);
        for test in &mut tests {
            test.max_abs = Some(1e-6);
        }
        assert!(found(tests).minority.unwrap().is_rounding);
    }

    #[test]
    fn one_output_on_every_device_is_no_finding() {
        let outputs = found(tested(0..60, "aa", "f1", 0.01));
        assert!(!outputs.beyond.unwrap().signal.fires);
        assert!(!outputs.minority.unwrap().signal.fires);
    }

    /// If no device ever met a tolerance, the tolerance is wrong, not this version.
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
