//! A simulated phone. Its noise is assumed, not measured on one.

use epwatch_gate::{Launch, comparison::Pair};
use fastrand::Rng;

pub(crate) const RUNS: usize = 30;
pub(crate) const WARMUP: usize = 3;
/// Median of a healthy launch, in microseconds.
pub(crate) const BASE_US: f64 = 8_200.0;

/// A change of the model.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    /// All runs take so many times as long.
    All(f64),
    /// 15 % of the runs take 3 x as long.
    SomeRuns,
    /// 30 % of the launches take 3 x as long.
    SomeLaunches,
}

/// Spread of run times. The defaults are those of the power table.
#[derive(Clone, Copy)]
pub(crate) struct Noise {
    /// Standard deviation of runs within a launch, AR(1) with 0.5.
    pub(crate) run: f64,
    /// Share of runs that take 1.5 to 5 x as long.
    pub(crate) spikes: f64,
}

pub(crate) const ASSUMED: Noise = Noise {
    run: 0.03,
    spikes: 0.015,
};

/// Run times of one launch, with its warm-up.
pub(crate) fn runs_us(rng: &mut Rng, noise: Noise, change: Change) -> Vec<u64> {
    let mut level = BASE_US * (0.05 * normal(rng)).exp();
    if rng.f64() < 0.08 {
        level *= between(rng, 1.25, 1.6);
    }
    let drift = if rng.f64() < 0.1 {
        between(rng, 0.1, 0.4)
    } else {
        0.0
    };
    match change {
        Change::All(times) => level *= times,
        Change::SomeLaunches if rng.f64() < 0.3 => level *= 3.0,
        Change::SomeLaunches | Change::SomeRuns => {}
    }
    let mut error = normal(rng);
    let mut runs = Vec::with_capacity(RUNS);
    for at in 0..RUNS {
        error = 0.5 * error + 0.75_f64.sqrt() * normal(rng);
        let mut us = level * (noise.run * error).exp() * (1.0 + drift * at as f64 / RUNS as f64);
        if at < WARMUP {
            us *= 1.5;
        }
        if rng.f64() < noise.spikes {
            us *= between(rng, 1.5, 5.0);
        }
        if matches!(change, Change::SomeRuns) && rng.f64() < 0.15 {
            us *= 3.0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "milliseconds in microseconds"
        )]
        #[expect(clippy::cast_sign_loss, reason = "a product of positive numbers")]
        runs.push(us.round() as u64);
    }
    runs
}

pub(crate) fn launch(rng: &mut Rng, noise: Noise, change: Change) -> Launch {
    Launch::new(&runs_us(rng, noise, change), WARMUP).unwrap()
}

pub(crate) fn pairs(rng: &mut Rng, change: Change, n: usize) -> Vec<Pair> {
    let mut pair = |_| Pair {
        baseline: launch(rng, ASSUMED, Change::All(1.0)),
        candidate: launch(rng, ASSUMED, change),
    };
    (0..n).map(&mut pair).collect()
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.f64()
}

/// Box and Muller, 1958.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
