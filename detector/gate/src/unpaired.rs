//! Launches of a device farm: one job is one launch, on some phone of the kind, so that nothing pairs up.

use epwatch_stats::order_stat::median;

use crate::Judged;

/// Ratio that fails. Jobs of two releases at equal layer counts differ by 1.47 at the 95th percentile.
const RED: f64 = 1.5;
/// Ratio below which one job a side passes.
const GREEN: f64 = 1.2;
/// Most jobs a side.
const MOST_JOBS: usize = 3;

/// Judges medians of jobs, one a job, against those of the baseline.
///
/// Between 1.2 and 1.5 up to three jobs a side are needed. Three that are still between stay undecided.
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
