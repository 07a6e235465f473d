//! Finds a model that is slow in some runs, or in some launches, while its median stays the same.

use epwatch_stats::{Bucket, RangeHistogram, SLOW_RUN, order_stat::median, valley};

use crate::{Judged, Launch, bounds, launch::LEAST_RUNS};

/// Share of slow runs from which on a launch counts. Spikes of a healthy phone stay below it.
const SLOW_SHARE: f64 = 0.08;
/// Minimum number of launches with slow runs, and minimum number by which they must exceed the baseline.
const LEAST_LAUNCHES: usize = 3;
/// Minimum number of launches that are slow as a whole, and minimum number by which they must exceed the baseline. A
/// phone's governor or heat may slow down a single launch.
pub(crate) const LEAST_WHOLE: usize = 2;
/// Launches with slow runs fail up to this chance of as many on the candidate's side, if both sides are alike. On a
/// phone with many spikes, four of twelve launches have slow runs by chance in 1 of 600 comparisons.
const SURELY_MORE: f64 = 0.02;
/// The largest chance for launches that are slow as a whole. On a busy machine, other programs slow two of twelve
/// launches of one side alone. That happens in 1 of 25 comparisons of a model with itself (`calibration.rs`).
const SURELY_MORE_WHOLE: f64 = 0.05;
/// Width of the buckets that are searched for two modes.
const BUCKET: f64 = 1.03;

/// Slow runs and slow launches of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowPhases {
    /// Launches in which at least 8 % of the runs are beyond 1.7 x the launch's own p10.
    pub launches: usize,
    /// The same, of the baseline.
    pub launches_of_baseline: usize,
    /// Launches whose median lies beyond 1.7 x the median of the baseline's launches. Without a baseline, all launches
    /// are the reference.
    pub whole: usize,
    /// The same, of the baseline.
    pub whole_of_baseline: usize,
    /// The two latencies of a candidate that has two, if a launch is slow in part or as a whole. They only explain, and
    /// decide nothing.
    pub modes: Option<TwoLatencies>,
    /// The result: slow runs in three launches and in a third of all, or two slow launches, more than the baseline's. Undecided
    /// if that may be chance.
    pub judged: Judged,
}

/// The two latencies of a candidate that has two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TwoLatencies {
    /// Median of the runs in the faster mode, in microseconds.
    pub fast_us: f64,
    /// Median of the runs in the slower mode, in microseconds.
    pub slow_us: f64,
    /// Share of the runs in the slower mode, in [0, 1].
    pub slow_share: f64,
}

impl SlowPhases {
    /// Judges launches of both arms, which have equal numbers, or launches of the candidate alone.
    pub fn of(baseline: &[&Launch], candidate: &[&Launch]) -> Self {
        let judged = Self::without_modes(baseline, candidate);
        let Self {
            launches, whole, ..
        } = judged;
        // Launches that are all slow as a whole have one latency.
        let has_two = launches > 0 || (judged.judged == Judged::Fail && whole < candidate.len());
        Self {
            modes: has_two.then(|| modes(candidate)).flatten(),
            ..judged
        }
    }

    /// Judges without the explanation (`modes` stays `None`).
    pub(crate) fn without_modes(baseline: &[&Launch], candidate: &[&Launch]) -> Self {
        let reference = if baseline.is_empty() {
            candidate
        } else {
            baseline
        };
        let medians: Vec<f64> = reference.iter().map(|l| l.median_us()).collect();
        let reference = median(&medians).unwrap_or(f64::INFINITY);
        let with_slow_runs = |launches: &[&Launch]| {
            let slow = launches.iter().filter(|l| l.slow_share() >= SLOW_SHARE);
            slow.count()
        };
        let (launches, launches_of_baseline) =
            (with_slow_runs(candidate), with_slow_runs(baseline));
        let slow_as_a_whole = |launches: &[&Launch]| {
            let whole = launches
                .iter()
                .filter(|l| l.median_us() > SLOW_RUN * reference);
            whole.count()
        };
        let (whole, whole_of_baseline) = (slow_as_a_whole(candidate), slow_as_a_whole(baseline));
        let n = candidate.len();
        let least = LEAST_LAUNCHES.max(n.div_ceil(3));
        let in_phases = launches >= least && launches >= launches_of_baseline + LEAST_LAUNCHES;
        let as_a_whole = whole >= whole_of_baseline + LEAST_WHOLE;
        let sides = [
            (in_phases, launches, launches_of_baseline, SURELY_MORE),
            (as_a_whole, whole, whole_of_baseline, SURELY_MORE_WHOLE),
        ];
        let may_be_chance = |(_, here, there, most): &(bool, usize, usize, f64)| {
            !baseline.is_empty() && bounds::more_on_one_side(*here, *there, n) > *most
        };
        let found: Vec<_> = sides.into_iter().filter(|(is_more, ..)| *is_more).collect();
        let judged = if n < bounds::LEAST {
            Judged::Undecided(Some(bounds::LEAST))
        } else if found.iter().any(|side| !may_be_chance(side)) {
            Judged::Fail
        } else if let Some((_, here, there, most)) = found.first() {
            Judged::Undecided(deciding(*here, *there, n, *most))
        } else {
            Judged::Pass
        };
        Self {
            launches,
            launches_of_baseline,
            whole,
            whole_of_baseline,
            modes: None,
            judged,
        }
    }
}

impl TwoLatencies {
    /// For example `; two latencies, 8.51 ms and 24.93 ms`.
    pub(crate) fn in_words(self) -> String {
        let [fast, slow] = [self.fast_us, self.slow_us].map(|us| us / 1_000.0);
        format!("; two latencies, {fast:.2} ms and {slow:.2} ms")
    }
}

/// Total number of pairs after which the chance of so many launches is at most `most`, if both sides keep their shares.
fn deciding(launches: usize, of_baseline: usize, n: usize, most: f64) -> Option<usize> {
    bounds::more_launches(n).find(|pairs| {
        let (found, others) = (launches * pairs / n, (of_baseline * pairs).div_ceil(n));
        bounds::more_on_one_side(found, others, *pairs) <= most
    })
}

/// The median latencies on either side of the deepest valley, with the share of the slower side.
fn modes(launches: &[&Launch]) -> Option<TwoLatencies> {
    let runs = launches.iter().flat_map(|launch| launch.ascending_us());
    let mut runs: Vec<f64> = runs.copied().collect();
    runs.sort_by(f64::total_cmp);
    let buckets = runs.iter().map(|us| {
        let at = (us.ln() / BUCKET.ln()).floor();
        Bucket {
            low_us: BUCKET.powf(at),
            high_us: BUCKET.powf(at + 1.0),
            count: 1,
        }
    });
    let histogram = RangeHistogram::from_buckets(buckets).ok()?;
    let valley = valley::deepest(&histogram, (launches.len() * LEAST_RUNS) as u64)?;
    // A mode of the smoothed density may lie beyond all runs, so the numbers come from the runs themselves.
    let (fast, slow) = runs.split_at(runs.partition_point(|us| *us < valley.at_us));
    Some(TwoLatencies {
        fast_us: median(fast)?,
        slow_us: median(slow)?,
        slow_share: slow.len() as f64 / runs.len() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch of 30 runs around 1 ms, of which the last ones take 3 ms.
    fn launch(slow: usize) -> Launch {
        let run = |i: usize| 1_000 + 5 * (i as u64 % 7) + if i >= 30 - slow { 2_000 } else { 0 };
        Launch::new(&(0..30).map(run).collect::<Vec<_>>(), 0).unwrap()
    }

    fn judged(baseline: &[usize], candidate: &[usize]) -> SlowPhases {
        let of = |slow: &[usize]| slow.iter().map(|slow| launch(*slow)).collect::<Vec<_>>();
        let (baseline, candidate) = (of(baseline), of(candidate));
        SlowPhases::of(
            &baseline.iter().collect::<Vec<_>>(),
            &candidate.iter().collect::<Vec<_>>(),
        )
    }

    #[test]
    fn slow_phases_in_a_third_of_the_launches_fail() {
        let found = judged(&[0; 6], &[3, 3, 3, 3, 3, 0]);
        assert_eq!((found.judged, found.launches), (Judged::Fail, 5));
        let modes = found.modes.unwrap();
        assert!((modes.fast_us / 1_010.0 - 1.0).abs() < 0.05, "{modes:?}");
        assert!((modes.slow_us / 3_010.0 - 1.0).abs() < 0.05, "{modes:?}");
        assert!((modes.slow_share - 0.083).abs() < 0.02, "{modes:?}");
        // Two runs of thirty are below 8 %; three launches of twelve are below a third.
        assert_eq!(judged(&[0; 6], &[2; 6]).judged, Judged::Pass);
        let mut twelve = [0; 12];
        twelve[..3].fill(9);
        assert_eq!(judged(&[0; 12], &twelve).judged, Judged::Pass);
        twelve[..5].fill(9);
        assert_eq!(judged(&[0; 12], &twelve).judged, Judged::Fail);
    }

    /// A bucket is up to 3 % wide, and the smoothed density may be highest at its edge.
    #[test]
    fn both_latencies_are_of_runs() {
        for fast in [1_000, 1_007, 1_013, 1_019, 1_027, 5_003, 12_345] {
            let slow = fast * 3;
            let run = |i: usize| if i < 27 { fast } else { slow };
            let launch = Launch::new(&(0..30).map(run).collect::<Vec<_>>(), 0).unwrap();
            let modes = modes(&[&launch; 6]).unwrap();
            let told = (modes.fast_us, modes.slow_us, modes.slow_share);
            assert_eq!(told, (fast as f64, slow as f64, 0.1));
        }
    }

    /// For models that are alike, 1 of 21 comparisons has slow runs in four of twelve launches and in none of the
    /// baseline's.
    #[test]
    fn slow_phases_that_may_be_chance_name_the_pairs_that_decide() {
        let undecided = |pairs| Judged::Undecided(Some(pairs));
        assert_eq!(judged(&[0; 6], &[3, 3, 3, 0, 0, 0]).judged, undecided(10));
        let mut twelve = [0; 12];
        twelve[..4].fill(9);
        assert_eq!(judged(&[0; 12], &twelve).judged, undecided(18));
        assert_eq!(judged(&[], &twelve).judged, Judged::Fail);
    }

    #[test]
    fn a_phone_that_is_slow_with_both_models_is_no_fault_of_one() {
        assert_eq!(judged(&[3; 6], &[3; 6]).judged, Judged::Pass);
        assert_eq!(judged(&[3, 0, 0, 0, 0, 0], &[3; 6]).judged, Judged::Fail);
    }

    #[test]
    fn slow_launches_fail_unless_they_may_be_chance() {
        // Two slow launches of six may be the device's fault. Four of twelve are not.
        let found = judged(&[0; 6], &[30, 30, 0, 0, 0, 0]);
        let more = Judged::Undecided(Some(12));
        assert_eq!((found.judged, found.whole), (more, 2));
        let mut twelve = [0; 12];
        twelve[..4].fill(30);
        assert_eq!(judged(&[0; 12], &twelve).judged, Judged::Fail);
        assert_eq!(
            judged(&[0; 6], &[30, 30, 30, 30, 0, 0]).judged,
            Judged::Fail
        );
        // Without a baseline, slow launches count as the model's.
        assert_eq!(judged(&[], &[30, 30, 0, 0, 0, 0]).judged, Judged::Fail);
        assert_eq!(judged(&[0; 6], &[30, 0, 0, 0, 0, 0]).judged, Judged::Pass);
        // A phone that slows down one launch in six does so with both models.
        let both = judged(&[30, 0, 0, 0, 0, 0], &[30, 30, 0, 0, 0, 0]);
        assert_eq!((both.judged, both.whole_of_baseline), (Judged::Pass, 1));
        let few = judged(&[0; 5], &[30; 5]);
        assert_eq!(few.judged, Judged::Undecided(Some(6)));
    }
}
