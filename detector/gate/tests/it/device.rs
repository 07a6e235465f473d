//! Simulated phones. Their noise is assumed, not measured on one.

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

/// Spread of run times. The defaults come from the power table.
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

/// A phone with noise from calm to bad. Another reader of the rules assumed this range.
pub(crate) struct AnyPhone {
    offset: f64,
    governor: f64,
    correlation: f64,
    run: f64,
    drift: f64,
    outliers: f64,
    runs: usize,
    base_us: f64,
}

impl AnyPhone {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self {
            offset: between(rng, 0.02, 0.08),
            governor: [0.0, 0.05, 0.1][rng.usize(..3)],
            correlation: between(rng, 0.2, 0.8),
            run: between(rng, 0.02, 0.1),
            drift: between(rng, 0.0, 0.25),
            outliers: between(rng, 0.002, 0.03),
            runs: [25, 30, 50, 100][rng.usize(..4)],
            base_us: between(rng, 2_000.0, 40_000.0),
        }
    }

    fn launch(&self, rng: &mut Rng, times: f64) -> Launch {
        let mut level = times * self.base_us * (self.offset * normal(rng)).exp();
        if rng.f64() < self.governor {
            level *= between(rng, 1.2, 1.5);
        }
        let drift = match rng.f64() < self.drift {
            true => between(rng, 0.05, 0.3) / (self.runs - 1) as f64,
            false => 0.0,
        };
        let rest = (1.0 - self.correlation.powi(2)).sqrt();
        let mut error = 0.0;
        let mut runs = Vec::with_capacity(self.runs);
        for at in 0..self.runs {
            error = self.correlation * error + rest * normal(rng);
            let mut us = level * (self.run * error).exp() * (1.0 + drift * at as f64);
            if rng.f64() < self.outliers {
                us *= between(rng, 1.4, 5.0);
            }
            us *= [3.0, 1.4, 1.1].get(at).unwrap_or(&1.0);
            #[expect(clippy::cast_possible_truncation, reason = "below a second")]
            #[expect(clippy::cast_sign_loss, reason = "a product of positive numbers")]
            runs.push(us as u64);
        }
        Launch::new(&runs, WARMUP).unwrap()
    }

    /// Pairs of launches in which the model takes `times` as long as the baseline.
    pub(crate) fn pairs(&self, rng: &mut Rng, times: f64, n: usize) -> Vec<Pair> {
        let mut pair = |_| Pair {
            baseline: self.launch(rng, 1.0),
            candidate: self.launch(rng, times),
        };
        (0..n).map(&mut pair).collect()
    }
}
