//! The parts of labelled fleets: measured latencies, and comparisons against other implementations.

use epwatch_detection::labelled::{base_us, ks_p_value, sarle, wasserstein_log};
use epwatch_fleet::chance::Chance;
use epwatch_proto::SparseHistogram;

fn of(values: impl IntoIterator<Item = u64>) -> SparseHistogram {
    let mut histogram = SparseHistogram::default();
    for value in values {
        histogram.record_n(value, 1);
    }
    histogram
}

/// Two equal points, like a fair coin, have skewness 0 and kurtosis 1.
#[test]
fn two_equal_points_are_as_bimodal_as_can_be() {
    let coin = of([10, 20, 10, 20]);
    assert!((sarle(&coin).unwrap() - 1.0).abs() < 1e-9);
    let uniform = sarle(&of(0..200)).unwrap();
    assert!((uniform - 0.555).abs() < 0.01, "{uniform}");
}

/// scipy.stats.kstwobign.sf(1.0) = 0.26999967168
#[test]
fn the_ks_p_value_is_kolmogorovs() {
    let a = of((0..100).chain(0..100));
    let b = of((20..120).chain(20..120));
    // D = 0.2, sqrt(200 * 200 / 400) = 10: scaled 2.0; kstwobign.sf(2.0) = 0.00067092525578.
    let p = ks_p_value(&a, &b).unwrap();
    assert!((p - 0.000_670_925_255_78).abs() < 1e-9, "{p}");
}

#[test]
fn a_factor_of_e_is_a_distance_of_one() {
    let a = of(1_000..1_100);
    let b = of((1_000..1_100).map(|us| us * 271_828 / 100_000));
    assert!((wasserstein_log(&a, &b).unwrap() - 1.0).abs() < 0.02);
}

#[test]
fn half_of_the_models_are_faster_than_the_median() {
    let mut chance = Chance::split(1, "base", 0);
    let drawn: Vec<f64> = (0..4_000).map(|_| base_us(&mut chance)).collect();
    let faster = drawn.iter().filter(|us| **us < 3_421.0).count();
    assert!((1_850..2_150).contains(&faster), "{faster}");
    assert!(drawn.iter().all(|us| (674.0..=32_400.0).contains(us)));
}
