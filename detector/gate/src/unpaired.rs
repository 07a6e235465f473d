//! Launches of a device farm: one job is one launch, on some phone of the kind, so launches do not pair up.

use epwatch_stats::{SLOW_RUN, order_stat::median};

use crate::{
    Judged,
    layers::Layers,
    verdict::{Against, Check, CheckResult},
};

/// Ratio that fails. Jobs of two releases at equal layer counts differ by 1.47 at the 95th percentile.
const RED: f64 = 1.5;
/// Ratio below which one job per side passes.
const GREEN: f64 = 1.2;
/// Maximum number of jobs per side.
const MOST_JOBS: usize = 3;

/// Judges the medians of the candidate's jobs, one per job, against the medians of the baseline's jobs.
///
/// Between 1.2 and 1.5, up to three jobs per side are needed. If three are still between, the result stays undecided.
pub fn judge_jobs(baseline_us: &[f64], candidate_us: &[f64]) -> Judged {
    let jobs = baseline_us.len().min(candidate_us.len());
    let ratio = match (median(baseline_us), median(candidate_us)) {
        (Some(baseline), Some(candidate)) if baseline > 0.0 => candidate / baseline,
        _ => return Judged::Undecided(Some(1)),
    };
    match ratio {
        RED.. => Judged::Fail,
        ..GREEN => Judged::Pass,
        _ => Judged::Undecided((jobs < MOST_JOBS).then_some(MOST_JOBS)),
    }
}

/// The verdict on jobs as a check, and its numbers. Files of a table have one job a side.
pub(crate) fn regression(baseline_us: &[f64], candidate_us: &[f64]) -> (Check, Option<Against>) {
    let judged = judge_jobs(baseline_us, candidate_us);
    let medians = median(candidate_us).zip(median(baseline_us));
    let ratio = medians.map(|(now, before)| now / before);
    let (n, n_before) = (candidate_us.len(), baseline_us.len());
    let pairs = n.min(n_before);
    let mut why = format!(
        "{:.2} times the baseline by the medians of {n} jobs and {n_before} of the baseline, each on some phone of the kind{}",
        ratio.unwrap_or(1.0),
        judged.hint("jobs a side")
    );
    // The median of three jobs does not show a single slow one.
    let far = median(baseline_us).unwrap_or(f64::INFINITY) * SLOW_RUN;
    let n_far = candidate_us.iter().filter(|us| **us > far).count();
    let mut result = judged.outcome();
    if n_far > 0 && result == CheckResult::Pass {
        result = CheckResult::Warn;
        why.push_str(&format!("; {n_far} of them above 1.7 times"));
    }
    let against = ratio.map(|ratio| Against {
        origin: "jobs",
        pairs,
        ratio,
        low: None,
        high: None,
        chance: None,
    });
    let check = Check::new("regression", result, why).with(ratio, Some(RED));
    (check, against)
}

/// Ratio from which layers that left the NPU cost something. None of a farm's 3,676 harmless changes both loses layers
/// and exceeds it.
const SLOWER: f64 = 1.25;

/// Judges layers by unit, against the baseline's layers if there is one; `ratio` is the ratio of the latencies.
pub(crate) fn judge_layers(now: Layers, before: Option<Layers>, ratio: Option<f64>) -> Check {
    let share = format!("{} of {} layers on the NPU", now.npu, now.all());
    let is_worse = before.is_some_and(|before| now.is_worse_than(&before));
    let slower = ratio.filter(|ratio| *ratio > SLOWER);
    let (result, why) = match (before, slower) {
        (_, _) if now.npu == 0 => (CheckResult::Fail, format!("{share}: it was never there")),
        (Some(before), Some(ratio)) if is_worse => (
            CheckResult::Fail,
            format!(
                "{share}, {} of {} before, and {ratio:.2} times as long",
                before.npu,
                before.all()
            ),
        ),
        (Some(before), _) if is_worse => (
            CheckResult::Warn,
            format!("{share}, {} of {} before", before.npu, before.all()),
        ),
        (None, _) if now.npu < now.all() => (
            CheckResult::Warn,
            format!("{share}; without MACs or a baseline that may be any share of the work"),
        ),
        _ => (CheckResult::Pass, share),
    };
    Check::new("layers", result, why).with(now.npu_share(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_between_the_limits_ask_for_three() {
        for (candidate, expected) in [
            (1.19, Judged::Pass),
            (1.2, Judged::Undecided(Some(3))),
            (1.49, Judged::Undecided(Some(3))),
            (1.5, Judged::Fail),
        ] {
            assert_eq!(judge_jobs(&[1.0], &[candidate]), expected, "{candidate}");
        }
        assert_eq!(judge_jobs(&[1.0; 3], &[1.3; 3]), Judged::Undecided(None));
        assert_eq!(judge_jobs(&[1.0; 3], &[9.0, 1.1, 1.0]), Judged::Pass);
        for nothing in [&[][..], &[0.0], &[f64::NAN]] {
            assert_eq!(judge_jobs(nothing, &[1.0]), Judged::Undecided(Some(1)));
        }
    }
}
