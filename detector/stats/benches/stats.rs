//! Measures the cost of one cohort window: every statistic on a histogram of 60 buckets, tails at fleet sizes.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use epwatch_stats::beta_binomial::{BetaPrior, ln_upper_tail};
use epwatch_stats::{Bucket, Moments, RangeHistogram, VarianceSplit, Weighting};
use epwatch_stats::{dip, mixture, order_stat, valley};

/// Two humps in buckets of 2 %, as a fallback on a third of the devices leaves them.
fn sixty_buckets() -> RangeHistogram {
    let hump =
        |i: i32, at: i32, height: u32| height / (1 + u32::try_from((i - at).pow(2)).unwrap_or(0));
    let buckets = (0..60).map(|i| Bucket {
        low_us: 8000.0 * 1.02f64.powi(i),
        high_us: 8000.0 * 1.02f64.powi(i + 1),
        count: u64::from(1 + hump(i, 12, 9000) + hump(i, 45, 4000)),
    });
    RangeHistogram::from_buckets(buckets).expect("the buckets touch")
}

fn main() -> io::Result<()> {
    let histogram = sixty_buckets();
    let prior = BetaPrior::from_rate(0.01, 100.0).expect("a rate and a strength");
    let ratios: Vec<f64> = (0..400)
        .map(|i| 1.0 + f64::from(i * 7919 % 400) / 400.0)
        .collect();
    let device: Moments = ratios.iter().copied().collect();
    let devices = vec![device; 400];

    time("dip, 60 buckets", || {
        dip::of_histogram(black_box(&histogram))
    })?;
    time("dip, 400 values", || dip::of_sample(black_box(&ratios)))?;
    time("mixture, 60 buckets", || {
        mixture::fit(black_box(&histogram), 400)
    })?;
    time("valley, 60 buckets", || {
        valley::deepest(black_box(&histogram), 400)
    })?;
    time("quantile, 60 buckets", || {
        black_box(&histogram).quantile(0.95)
    })?;
    for n in [400, 1_000_000] {
        time(&format!("tail, n = {n}"), || {
            ln_upper_tail(black_box(n / 20), n, prior)
        })?;
    }
    time("median bound, 400 values", || {
        order_stat::median_lower_bound(black_box(&ratios), 3.0)
    })?;
    time("variance split, 400 devices", || {
        VarianceSplit::over_devices(black_box(&devices), Weighting::Devices)
    })
}

/// Time of the calls before the measurement. They warm the caches, and show how many calls a batch needs.
const WARM_UP: Duration = Duration::from_millis(200);
const BATCHES: usize = 31;

/// Prints the nanoseconds of a call: the median of some batches, and the least and the most.
fn time<T>(name: &str, mut call: impl FnMut() -> T) -> io::Result<()> {
    let began = Instant::now();
    let mut n_calls = 0_u32;
    while began.elapsed() < WARM_UP {
        black_box(call());
        n_calls += 1;
    }
    let per_batch = n_calls / 10 + 1;
    let mut ns: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..per_batch {
                black_box(call());
            }
            began.elapsed().as_secs_f64() * 1e9 / f64::from(per_batch)
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    let (least, median, most) = (ns[0], ns[BATCHES / 2], ns[BATCHES - 1]);
    writeln!(
        io::stdout(),
        "{name:<28} {median:>11.0} ns  ({least:.0} to {most:.0})"
    )
}
