//! `OutputDrop`: golden outputs that are off, and whether the cause is the quantisation or an NPU.
//!
//! A device's output is off if it is beyond the tolerance of the model's owner. Without a tolerance it is off if the
//! cosine with the output of its own CPU is below [`ROUNDING_COSINE`]. For small noise that is independent of the
//! output, 1 - cosine is half of its power over the power of the output. A rounding step of q adds q^2 / 12, and q^2 /
//! 3 if it is a floor (B. Widrow and I. Kollar, *Quantization Noise*, 2008). With 8 bits and many layers the cosine
//! stays above that limit, as docs/detection.md has measured.
//!
//! All chipsets run one version on one input. If the others are off as well, the cause is in the model: its
//! quantisation. If they are not, the cause is the NPU here. A chipset that is further off does not rule out a common
//! loss, because a small network can multiply it. Without another chipset there is no answer.

use std::collections::BTreeMap;

use epwatch_model::{DropPlace, Installation, OutputDrop, Signal, SignalId};
use epwatch_proto::ROUNDING_COSINE;
use epwatch_stats::order_stat::median;

use crate::judge::baseline::Baseline;
use crate::judge::device_events::GoldenTest;
use crate::judge::hash::HashSet;
use crate::judge::tally::{Tally, surprise};
use crate::judge::window::CohortWindow;

use super::cross_chipset::with_rest;
use super::limits::{Limits, counted_signal, is_enough};
use super::outputs::{BEYOND_RATE, MIN_SHARE};

/// Another chipset shows the same loss if its share of devices off is at least this fraction of the share in the
/// cohort. The distance does not matter. Rounding one step down has four times the noise of rounding to nearest, and
/// its bias adds up over layers (docs/detection.md).
const AS_MANY: f64 = 0.5;

/// One chipset in this many may differ. It may have the layer in question on its CPU, or its rounding may lose less.
const MAY_DIFFER_OF: usize = 3;

/// A loss of the version before counts as the same loss if it is at least this fraction as large.
const AS_BEFORE: f64 = 0.5;

/// The result of `OutputDrop`.
#[derive(Debug, Clone, PartialEq)]
pub struct DroppedOutputs {
    /// Value: share of the tested devices hit.
    pub signal: Signal,
    /// The distances, here and on other chipsets.
    pub drop: OutputDrop,
    pub(crate) hit_devices: HashSet<Installation>,
}

/// One device's distance from its CPU, on one input.
#[derive(Debug, Clone, Copy)]
struct Distance<'a> {
    test: &'a GoldenTest,
    is_off: bool,
}

/// The unit in which distances are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WorkUnit {
    /// 1 - cosine, which averages over all elements.
    Cosine,
    /// The largest difference, if the cosine shows nothing.
    Largest,
}

impl WorkUnit {
    fn of(self, test: &GoldenTest) -> Option<f64> {
        match self {
            WorkUnit::Cosine => Some(1.0 - test.cosine?),
            WorkUnit::Largest => test.max_abs,
        }
    }
}

/// Judges the input with the most devices off; `None` without a test.
#[must_use]
pub(super) fn dropped(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    chipsets: &[&CohortWindow],
    baseline: &Baseline,
    limits: &Limits,
) -> Option<DroppedOutputs> {
    let all = by_input(window, |_| true);
    let n_off = |distances: &[Distance<'_>]| distances.iter().filter(|one| one.is_off).count();
    // Among equal ones the first by name.
    let worst = all.into_iter().rev();
    let (input, tested) = worst.max_by_key(|(_, distances)| n_off(distances))?;
    let off: Vec<Distance<'_>> = tested.iter().filter(|one| one.is_off).copied().collect();
    let cosine = median_of(&off, |test| test.cosine);
    let unit = match cosine.is_some_and(|cosine| cosine < ROUNDING_COSINE) {
        true => WorkUnit::Cosine,
        false => WorkUnit::Largest,
    };
    let tally = Tally::of(&tested, |one| one.is_off);
    let here = median_of(&off, |test| unit.of(test));
    let is_as_large = |one: &Distance<'_>| {
        let values = here.zip(unit.of(one.test));
        one.is_off && values.is_some_and(|(here, value)| value >= AS_BEFORE * here)
    };
    let before = previous.and_then(|previous| by_input(previous, |_| true).remove(input));
    let before = before.map(|before| Tally::of(&before, is_as_large));

    let others = chipsets
        .iter()
        .filter_map(|other| by_input(other, |test| test.is_proven).remove(input));
    let others = with_rest(others.collect(), |one| one.len() as u64, Vec::extend);
    let alike = others.iter().filter(|other| {
        Tally::of(other.iter(), |one| one.is_off).share() >= AS_MANY * tally.share()
    });
    let (alike, n) = (alike.count(), others.len());
    let place = match n {
        0 => DropPlace::Unknown,
        // This chipset counts as well.
        n if MAY_DIFFER_OF * (n - alike) <= n + 1 => DropPlace::Everywhere,
        _ => DropPlace::Here,
    };
    let others: Vec<Distance<'_>> = others.into_iter().flatten().collect();

    let id = SignalId::OutputDrop;
    let rate = baseline.rates.of(id, BEYOND_RATE);
    let p = surprise(tally, rate, baseline.past(id, before));
    let fires = is_enough(tally, MIN_SHARE) && p <= limits.p_placement;
    Some(DroppedOutputs {
        signal: counted_signal(id, tally, p, MIN_SHARE, fires),
        drop: OutputDrop {
            hits: tally.hits,
            devices: tally.devices,
            input: input.to_owned(),
            place,
            cosine,
            max_abs: median_of(&off, |test| test.max_abs),
            other_chipsets: n as u64,
            alike: alike as u64,
            other_cosine: median_of(&others, |test| test.cosine),
            other_max_abs: median_of(&others, |test| test.max_abs),
            first_off: first_off(&off),
            p,
        },
        hit_devices: off.iter().map(|one| one.test.installation).collect(),
    })
}

/// Returns the distances of each input, each device once.
fn by_input<'a>(
    window: &'a CohortWindow,
    counts: impl Fn(&GoldenTest) -> bool,
) -> BTreeMap<&'a str, Vec<Distance<'a>>> {
    let mut inputs: BTreeMap<&str, Vec<Distance<'_>>> = BTreeMap::new();
    let tests = window.device_events.tests.iter();
    for test in tests.filter(|test| test.has_run && counts(test)) {
        if let Some(is_off) = is_off(test) {
            let of_input = inputs.entry(&test.input_id).or_default();
            of_input.push(Distance { test, is_off });
        }
    }
    inputs
}

/// Whether an output is off: by the owner's tolerance if there is one, else by more than rounding.
fn is_off(test: &GoldenTest) -> Option<bool> {
    match (test.tolerance, test.max_abs, test.cosine) {
        (Some(tolerance), Some(max_abs), _) => Some(max_abs > tolerance),
        (_, _, Some(cosine)) => Some(cosine < ROUNDING_COSINE),
        _ => None,
    }
}

fn median_of(
    distances: &[Distance<'_>],
    field: impl Fn(&GoldenTest) -> Option<f64>,
) -> Option<f64> {
    let values: Vec<f64> = distances.iter().filter_map(|one| field(one.test)).collect();
    median(&values)
}

/// Returns the first inner output that is off on most of the devices.
fn first_off(off: &[Distance<'_>]) -> Option<String> {
    let mut devices: BTreeMap<&str, usize> = BTreeMap::new();
    for one in off.iter().filter(|one| !one.test.first_off.is_empty()) {
        *devices.entry(&one.test.first_off).or_default() += 1;
    }
    let (name, devices) = devices.into_iter().rev().max_by_key(|(_, n)| *n)?;
    (2 * devices > off.len()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, cosine_tests};

    /// A chipset whose devices have these cosines with their CPU, on 12 devices each.
    fn chipset(cosines: &[f64]) -> CohortWindow {
        let mut window = Fleet::default().window();
        for (at, cosine) in (0..).zip(cosines) {
            let devices = 12 * at..12 * (at + 1);
            window
                .device_events
                .tests
                .extend(cosine_tests(devices, *cosine));
        }
        window
    }

    fn found(own: &CohortWindow, others: &[CohortWindow]) -> DroppedOutputs {
        let others: Vec<&CohortWindow> = others.iter().collect();
        let limits = Limits::for_windows_a_day(1_000.0);
        dropped(own, None, &others, &Baseline::default(), &limits).unwrap()
    }

    #[track_caller]
    fn check(own: &[f64], others: &[&[f64]], expected: Option<DropPlace>) {
        let others: Vec<CohortWindow> = others.iter().map(|of| chipset(of)).collect();
        let found = found(&chipset(own), &others);
        let place = found.signal.fires.then_some(found.drop.place);
        assert_eq!(place, expected, "{found:#?}");
    }

    #[test]
    fn the_same_drop_everywhere_is_the_quantisation() {
        let everywhere = Some(DropPlace::Everywhere);
        check(&[0.95], &[&[0.95]], everywhere);
        // Rounding modes differ between chipsets.
        check(&[0.95], &[&[0.96], &[0.94], &[0.955]], everywhere);
        check(&[0.75], &[&[0.96], &[0.955]], everywhere);
        // One chipset is far worse, and the loss of the others is still the quantisation.
        check(&[0.95], &[&[0.4], &[0.955]], everywhere);
        // One of three has the layer on its CPU.
        check(&[0.95], &[&[0.95], &[0.9999]], everywhere);
        check(&[0.95], &[&[0.95], &[0.95], &[0.9999]], everywhere);
        // The other chipsets lose less, but more than by rounding.
        check(&[0.5], &[&[0.96], &[0.96]], everywhere);
        check(&[0.95], &[&[0.95], &[0.95], &[0.95], &[0.9999]], everywhere);
    }

    #[test]
    fn a_drop_on_one_chipset_is_its_npu() {
        check(&[0.9], &[&[0.9995]], Some(DropPlace::Here));
        check(&[0.9], &[&[0.9995], &[0.9993]], Some(DropPlace::Here));
        // Only half of the chipsets are off.
        check(
            &[0.9],
            &[&[0.9], &[0.9995], &[0.9995]],
            Some(DropPlace::Here),
        );
        // Only one firmware of the chipset is off.
        check(
            &[0.9995, 0.9],
            &[&[0.9995], &[0.9995]],
            Some(DropPlace::Here),
        );
    }

    #[test]
    fn rounding_is_no_drop_and_one_chipset_gives_no_answer() {
        check(&[0.9992], &[&[0.99999]], None);
        check(&[0.991], &[&[0.9999], &[0.9999]], None);
        check(&[0.9], &[], Some(DropPlace::Unknown));
    }

    /// The owner has accepted the distance of this model.
    #[test]
    fn the_tolerance_of_the_owner_comes_first() {
        let mut window = chipset(&[0.9]);
        for test in &mut window.device_events.tests {
            (test.tolerance, test.max_abs) = (Some(0.5), Some(0.4));
        }
        assert_eq!(found(&window, &[]).signal.hits, 0);
        for test in &mut window.device_events.tests {
            (test.tolerance, test.cosine) = (Some(0.1), Some(0.999));
        }
        let off = found(&window, &[chipset(&[0.999])]);
        assert_eq!((off.signal.hits, off.drop.place), (12, DropPlace::Here));
        let text = off.drop.to_string();
        assert!(text.contains("tolerance may be stricter"), "{text}");
    }

    #[test]
    fn the_layer_is_named_if_most_devices_name_it() {
        let mut window = chipset(&[0.9]);
        for test in &mut window.device_events.tests[..7] {
            test.first_off = "softmax_3".into();
        }
        let named = found(&window, &[]).drop.first_off;
        assert_eq!(named.as_deref(), Some("softmax_3"));
        window.device_events.tests[0].first_off = "conv_1".into();
        assert_eq!(found(&window, &[]).drop.first_off, None);
    }

    /// A loss that the version before has too is not news, but a far larger loss is.
    #[test]
    fn a_version_before_with_the_same_loss_makes_it_no_surprise() {
        let limits = Limits::for_windows_a_day(1_000.0);
        let own = chipset(&[0.9]);
        let fires = |before: &[f64]| {
            let previous = chipset(&[before, before, before].concat());
            let found = dropped(&own, Some(&previous), &[], &Baseline::default(), &limits);
            found.unwrap().signal.fires
        };
        assert!(!fires(&[0.9, 0.9, 0.9, 0.9]));
        assert!(fires(&[0.98, 0.98, 0.98, 0.98]));
    }
}
