//! What one cohort window costs: every statistic on a histogram of 60 buckets, tails at fleet sizes.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use epwatch_stats::beta_binomial::{BetaPrior, ln_upper_tail};
use epwatch_stats::{Bucket, Moments, SparseHistogram, VarianceSplit, Weighting};
use epwatch_stats::{dip, mixture, order_stat, valley};

/// Two humps in buckets of 2 %, as a fallback on a third of the devices leaves them.
fn sixty_buckets() -> SparseHistogram {
    let hump =
        |i: i32, at: i32, height: u32| height / (1 + u32::try_from((i - at).pow(2)).unwrap_or(0));
    let buckets = (0..60).map(|i| Bucket {
        low_us: 8000.0 * 1.02f64.powi(i),
        high_us: 8000.0 * 1.02f64.powi(i + 1),
        count: u64::from(1 + hump(i, 12, 9000) + hump(i, 45, 4000)),
    });
    SparseHistogram::from_buckets(buckets).expect("the buckets touch")
}

fn statistics(c: &mut Criterion) {
    let histogram = sixty_buckets();
    let prior = BetaPrior::from_rate(0.01, 100.0).expect("a rate and a strength");
    let ratios: Vec<f64> = (0..400)
        .map(|i| 1.0 + f64::from(i * 7919 % 400) / 400.0)
        .collect();
    let device: Moments = ratios.iter().copied().collect();
    let devices = vec![device; 400];

    c.bench_function("dip, 60 buckets", |b| {
        b.iter(|| dip::of_histogram(black_box(&histogram)))
    });
    c.bench_function("dip, 400 values", |b| {
        b.iter(|| dip::of_sample(black_box(&ratios)))
    });
    c.bench_function("mixture, 60 buckets", |b| {
        b.iter(|| mixture::fit(black_box(&histogram), 400))
    });
    c.bench_function("valley, 60 buckets", |b| {
        b.iter(|| valley::deepest(black_box(&histogram), 400))
    });
    c.bench_function("quantile, 60 buckets", |b| {
        b.iter(|| black_box(&histogram).quantile(0.95))
    });
    for n in [400, 1_000_000] {
        c.bench_function(&format!("tail, n = {n}"), |b| {
            b.iter(|| ln_upper_tail(black_box(n / 20), n, prior));
        });
    }
    c.bench_function("median bound, 400 values", |b| {
        b.iter(|| order_stat::median_lower_bound(black_box(&ratios), 3.0));
    });
    c.bench_function("variance split, 400 devices", |b| {
        b.iter(|| VarianceSplit::over_devices(black_box(&devices), Weighting::Devices));
    });
}

criterion_group!(benches, statistics);
criterion_main!(benches);
