//! Deadlines of models, from the config: the share of a cohort's clean runs that take longer. `evaluate` adds it to each
//! verdict on a model with a deadline. It explains a verdict and never decides one, because load makes runs late too.

use std::collections::HashSet;

use epwatch_model::{CohortVerdict, LateRuns, Reason};
use epwatch_server::Problems;
use epwatch_stats::RangeHistogram;
use serde::{Deserialize, Serialize};

use crate::judge::signals::MIN_ELIGIBLE;
use crate::judge::window::CohortWindow;

/// The longest deadline: the highest latency that histograms track.
const MAX_MS: f64 = 60_000.0;

/// The time within which a run of a model must end, for example the time of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deadline {
    /// The app id.
    pub app: String,
    /// The model id.
    pub model: String,
    /// In milliseconds, for example 33.3 for 30 frames a second.
    pub deadline_ms: f64,
}

/// Counts the runs of a window beyond the deadline, of all firmwares or of one; `None` without clean runs.
pub(crate) fn late_runs(
    deadline_ms: f64,
    window: &CohortWindow,
    firmware: Option<&str>,
    previous: Option<&CohortWindow>,
    others: &[&CohortWindow],
) -> Option<LateRuns> {
    let limit_us = 1_000.0 * deadline_ms;
    let share = share_beyond(runs_of(window, firmware), limit_us)?;
    let previous = previous.filter(|previous| previous.n_devices() >= MIN_ELIGIBLE);
    let previous = previous.and_then(|previous| {
        let share = share_beyond(runs_of(previous, None), limit_us)?;
        Some((previous.key.model_version.clone(), share))
    });
    let elsewhere: u64 = others.iter().map(|other| other.n_devices()).sum();
    let others = others.iter().filter(|_| elsewhere >= MIN_ELIGIBLE);
    let others = others.flat_map(|other| runs_of(other, None));
    let (previous_version, previous_share) = previous.unzip();
    Some(LateRuns {
        deadline_ms,
        share,
        previous_version,
        previous_share,
        other_chipsets: share_beyond(others, limit_us),
    })
}

/// Clean runs with all input shapes, on a chipset or on one of its firmwares.
fn runs_of<'a>(
    window: &'a CohortWindow,
    firmware: Option<&'a str>,
) -> impl Iterator<Item = &'a RangeHistogram> {
    let of_firmware = window
        .histograms
        .iter()
        .filter(move |((of, _), _)| firmware.is_none_or(|firmware| **of == *firmware));
    of_firmware.map(|(_, histogram)| histogram)
}

fn share_beyond<'a>(
    histograms: impl Iterator<Item = &'a RangeHistogram>,
    limit_us: f64,
) -> Option<f64> {
    let (mut late, mut all) = (0.0, 0.0);
    for histogram in histograms {
        let n = histogram.n() as f64;
        late += n * histogram.share_above(limit_us).unwrap_or(0.0);
        all += n;
    }
    (all > 0.0).then(|| late / all)
}

/// Adds the share of runs beyond the deadline to a verdict, as a number and as its last reason.
pub(crate) fn add_to_verdict(late: Option<LateRuns>, verdict: &mut CohortVerdict) {
    let Some(late) = late else {
        return;
    };
    let key = &verdict.key;
    let place = match &key.firmware {
        Some(firmware) => format!("firmware {firmware} of {}", key.chipset),
        None => key.chipset.clone(),
    };
    verdict.numbers.late_runs = Some(late.clone());
    verdict.reasons.push(Reason::Late { place, late });
}

/// Adds the problems of the deadlines, by key.
pub(crate) fn check(deadlines: &[Deadline], problems: &mut Problems) {
    let mut known = HashSet::new();
    for (at, one) in deadlines.iter().enumerate() {
        let mut check = |key: &str, is_right: bool, text: &str| {
            let key = format!("deadlines[{at}].{key}");
            problems.check(&key, is_right, || text.to_owned());
        };
        check("app", !one.app.is_empty(), "must not be empty");
        check("model", !one.model.is_empty(), "must not be empty");
        check(
            "deadline_ms",
            one.deadline_ms > 0.0 && one.deadline_ms <= MAX_MS,
            "must be above 0 and at most 60000, for example 33.3 for 30 frames a second",
        );
        check(
            "model",
            known.insert((&one.app, &one.model)),
            "has a deadline already: leave one of the two",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, judged, reference};

    fn late(fleet: &Fleet, deadline_ms: f64, previous: Option<&CohortWindow>) -> LateRuns {
        late_runs(deadline_ms, &fleet.window(), None, previous, &[]).unwrap()
    }

    /// Healthy devices take 8.2 ms, and those hit 23.8 ms.
    #[test]
    fn runs_beyond_the_deadline_are_counted_with_those_of_the_version_before() {
        let (healthy, sick) = (Fleet::default(), Fleet::with_fallback(0.4));
        let previous = healthy.window();
        let found = late(&sick, 16.0, Some(&previous));
        assert!((0.38..0.43).contains(&found.share), "{found:?}");
        assert!(found.previous_share.unwrap() < 0.02, "{found:?}");
        assert_eq!(
            found.previous_version.as_deref(),
            Some(&*previous.key.model_version)
        );
        assert_eq!(found.other_chipsets, None);
        assert_eq!(late(&sick, 1.0, None).share, 1.0);
        assert_eq!(late(&sick, 50_000.0, None).share, 0.0);
    }

    /// A share of four devices says nothing about a version.
    #[test]
    fn a_version_of_few_devices_is_no_comparison() {
        let few = Fleet {
            devices: 4,
            ..Fleet::default()
        };
        let found = late(&Fleet::default(), 16.0, Some(&few.window()));
        assert_eq!((found.previous_version, found.previous_share), (None, None));
    }

    #[test]
    fn a_firmware_has_its_own_share_and_no_devices_have_none() {
        let window = Fleet::with_fallback(0.4).window();
        let of = |firmware| late_runs(16.0, &window, Some(firmware), None, &[]);
        assert!(of("f1").unwrap().share > 0.35);
        assert_eq!(of("f2"), None);
    }

    #[test]
    fn a_verdict_says_how_many_runs_are_late_and_stays_as_it_is() {
        let window = Fleet::with_fallback(0.4).window();
        let verdict = judged(&window, None, &reference());
        let others = Fleet::default().window();
        let found = late_runs(16.0, &window, None, Some(&others), &[&others]);
        let mut told = verdict.clone();
        add_to_verdict(found, &mut told);
        assert_eq!(
            (told.class, told.severity),
            (verdict.class, verdict.severity)
        );
        let says = told.reasons.last().unwrap().to_string();
        let begins = "4 of 10 runs are later than 16 ms on SM8635; in the same window ";
        assert!(says.starts_with(begins), "{says}");
        assert!(says.contains("with version 2.0.0"), "{says}");
        assert!(says.ends_with("on the other chipsets"), "{says}");
    }

    #[test]
    fn deadlines_that_cannot_be_are_refused() {
        let one = |model: &str, deadline_ms| Deadline {
            app: "camera".into(),
            model: model.into(),
            deadline_ms,
        };
        let keys = |deadlines: &[Deadline]| {
            let mut problems = Problems::default();
            check(deadlines, &mut problems);
            let keys = problems.0.into_iter().map(|problem| problem.key);
            keys.collect::<Vec<String>>()
        };
        assert!(keys(&[one("a", 33.3), one("b", 33.3)]).is_empty());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 60_001.0] {
            assert_eq!(keys(&[one("a", wrong)]), ["deadlines[0].deadline_ms"]);
        }
        assert_eq!(keys(&[one("", 1.0)]), ["deadlines[0].model"]);
        let twice = [one("a", 1.0), one("a", 2.0)];
        assert_eq!(keys(&twice), ["deadlines[1].model"]);
    }
}
