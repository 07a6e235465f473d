//! Properties for any input: merging equals concatenating, quantiles and tails are monotone, dips stay in their bounds.

use epwatch_stats::beta_binomial::{BetaPrior, ln_pmf, upper_tail};
use epwatch_stats::{Bucket, Moments, RangeHistogram, VarianceSplit, Weighting};
use epwatch_stats::{dip, mixture, order_stat, valley};
use proptest::collection::vec;
use proptest::prelude::*;

/// A bucket of a fixed scheme of 5 % steps from 1 us, with its runs.
fn bucket() -> impl Strategy<Value = Bucket> {
    (0..200i32, 0..500u64).prop_map(|(index, count)| Bucket {
        low_us: 1.05f64.powi(index),
        high_us: 1.05f64.powi(index + 1),
        count,
    })
}

fn histogram() -> impl Strategy<Value = RangeHistogram> {
    vec(bucket(), 0..40)
        .prop_map(|buckets| RangeHistogram::from_buckets(buckets).expect("one scheme"))
}

fn prior() -> impl Strategy<Value = BetaPrior> {
    (0.02..200.0f64, 0.02..500.0f64)
        .prop_map(|(alpha, beta)| BetaPrior::new(alpha, beta).expect("both positive"))
}

proptest! {
    #[test]
    fn merged_moments_are_those_of_all_values(
        values in vec(1.0..1e7f64, 0..200),
        cut in 0.0..1.0f64,
    ) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 200")]
        let cut = (cut * values.len() as f64) as usize;
        let all: Moments = values.iter().copied().collect();
        let [left, right]: [Moments; 2] =
            [&values[..cut], &values[cut..]].map(|part| part.iter().copied().collect());
        for merged in [left.merged(&right), right.merged(&left)] {
            prop_assert_eq!(merged.n(), all.n());
            prop_assert!((merged.sum() - all.sum()).abs() <= 1e-12 * all.sum());
            prop_assert!((merged.m2() - all.m2()).abs() <= 1e-10 * all.m2() + 1e-9);
        }
    }

    /// With the weight of runs, the parts add up to the variance of all values together.
    #[test]
    fn parts_of_the_variance_add_up(devices in vec(vec(1.0..1e6f64, 0..20), 1..20)) {
        let devices: Vec<Moments> =
            devices.iter().map(|values| values.iter().copied().collect()).collect();
        let all = devices.iter().fold(Moments::default(), |sum, device| sum.merged(device));
        let split = VarianceSplit::over_devices(&devices, Weighting::Runs);
        prop_assert_eq!(split.is_none(), all.n() == 0);
        if let Some(split) = split {
            let total = all.population_variance().unwrap();
            prop_assert!((split.within + split.between - total).abs() <= 1e-9 * total + 1e-9);
            prop_assert!((split.mean / all.mean().unwrap() - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn merged_histograms_hold_all_buckets(a in histogram(), b in histogram(), c in histogram()) {
        let left = a.merged(&b).unwrap().merged(&c).unwrap();
        let right = c.merged(&b.merged(&a).unwrap()).unwrap();
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(left.n(), a.n() + b.n() + c.n());
    }

    #[test]
    fn quantiles_rise_and_share_above_inverts_them(
        histogram in histogram(),
        qs in vec(0.0..=1.0f64, 2..10),
    ) {
        prop_assume!(!histogram.is_empty());
        let mut qs = qs;
        qs.sort_by(f64::total_cmp);
        let quantiles: Vec<f64> = qs.iter().map(|q| histogram.quantile(*q).unwrap()).collect();
        prop_assert!(quantiles.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", quantiles);
        for (q, quantile) in qs.iter().zip(&quantiles) {
            let above = histogram.share_above(*quantile).unwrap();
            prop_assert!((above - (1.0 - q)).abs() < 1e-9, "q {} above {}", q, above);
        }
    }

    #[test]
    fn dips_stay_in_their_bounds_and_p_falls_with_them(
        values in vec((0..1000u32).prop_map(f64::from), 1..80),
        histogram in histogram(),
        n in 4..100_000u64,
    ) {
        let of_values = dip::of_sample(&values).unwrap();
        let least = 1.0 / (2.0 * values.len() as f64);
        prop_assert!(of_values >= least - 1e-15 && of_values <= least.max(0.25) + 1e-12);
        if let Some(of_buckets) = dip::of_histogram(&histogram) {
            prop_assert!((0.0..=0.25 + 1e-12).contains(&of_buckets), "{}", of_buckets);
        }
        let mut before = 1.0;
        for step in 0..=100 {
            let p = dip::p_value(f64::from(step) / 400.0, n).unwrap();
            prop_assert!(p <= before && p > 0.0, "n {} step {}: {} after {}", n, step, p, before);
            before = p;
        }
    }

    /// A dip does not change when latency is read in another unit, or backwards.
    #[test]
    fn dips_do_not_depend_on_unit_or_direction(values in vec(0.0..100.0f64, 1..60)) {
        let dip = dip::of_sample(&values).unwrap();
        let turned: Vec<f64> = values.iter().map(|value| 7.0 - 1000.0 * value).collect();
        prop_assert!((dip::of_sample(&turned).unwrap() - dip).abs() < 1e-9);
    }

    #[test]
    fn probabilities_add_up_to_one_and_tails_fall(prior in prior(), n in 0..300u64) {
        let mut sum = 0.0;
        let mut before = 1.0;
        for k in 0..=n {
            let tail = upper_tail(k, n, prior);
            prop_assert!((tail - (1.0 - sum)).abs() < 1e-10, "k {} n {}", k, n);
            prop_assert!(tail <= before * (1.0 + 1e-12), "k {} n {}", k, n);
            before = tail;
            sum += ln_pmf(k, n, prior).exp();
        }
        prop_assert!((sum - 1.0).abs() < 1e-11, "{}", sum);
    }

    /// Ties are as frequent here as equal latencies in a bucket are.
    #[test]
    fn the_median_is_the_middle_of_the_sorted_values(values in vec((0..40u32).prop_map(f64::from), 1..60)) {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        prop_assert_eq!(order_stat::median(&values), Some(middle));
    }

    /// A larger z can only move the bound outwards, and the median lies above it.
    #[test]
    fn a_lower_bound_is_below_the_median(values in vec(0.1..10.0f64, 10..1500)) {
        let median = order_stat::median(&values).unwrap();
        let mut inner = median;
        for z in [0.5, 1.0, 2.0, 3.0] {
            let lower = order_stat::median_lower_bound(&values, z).unwrap();
            prop_assert!(lower <= inner);
            inner = lower;
        }
    }

    #[test]
    fn mixtures_and_valleys_are_finite_and_in_order(histogram in histogram(), n in 1..5000u64) {
        if let Some(fit) = mixture::fit(&histogram, n) {
            prop_assert!((fit.fast.weight + fit.slow.weight - 1.0).abs() < 1e-9);
            prop_assert!(fit.fast.mean_ln <= fit.slow.mean_ln);
            prop_assert!(fit.fast.sd_ln > 0.0 && fit.slow.sd_ln > 0.0);
            prop_assert!(fit.log_likelihood_ratio.is_finite() && fit.separation() >= 0.0);
            prop_assert!(fit.log_likelihood_ratio > -1e-6 * n as f64, "{:?}", fit);
        }
        if let Some(valley) = valley::deepest(&histogram, n) {
            prop_assert!(valley.fast_mode_us < valley.at_us && valley.at_us < valley.slow_mode_us);
            prop_assert!(valley.depth > 0.0 && valley.depth <= 1.0);
            prop_assert!(valley.prominence > 0.0 && valley.prominence <= 1.0);
        }
    }
}
