//! Random draws, the same for the same seed on every machine.
//!
//! Each purpose has its own stream (`split`), so that additional draws for one device or effect do not change others.
//! So fleets stay comparable while the simulation grows.

use std::time::Duration;

/// A seeded source of the distributions that the physics needs.
#[derive(Debug, Clone)]
pub struct Chance {
    rng: fastrand::Rng,
    spare_normal: Option<f64>,
}

impl Chance {
    /// The stream for one purpose: equal (seed, label, index) give equal draws.
    pub fn split(seed: u64, label: &str, index: u64) -> Self {
        let mut mixed = mix(seed);
        for byte in label.bytes() {
            mixed = mix(mixed ^ u64::from(byte));
        }
        Self {
            rng: fastrand::Rng::with_seed(mix(mixed ^ index)),
            spare_normal: None,
        }
    }

    /// 64 uniform bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// 32 uniform bytes.
    pub(crate) fn bytes32(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.rng.fill(&mut bytes);
        bytes
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.rng.f64()
    }

    /// Uniform in `[low, high)`.
    pub fn between(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Standard normal (polar Box-Muller, two at a time).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        loop {
            let (u, v) = (self.between((-1.0, 1.0)), self.between((-1.0, 1.0)));
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                let scale = (-2.0 * s.ln() / s).sqrt();
                self.spare_normal = Some(v * scale);
                return u * scale;
            }
        }
    }

    /// Lognormal with median 1 and this coefficient of variation.
    pub(crate) fn factor(&mut self, cv: f64) -> f64 {
        (cv.mul_add(cv, 1.0).ln().sqrt() * self.normal()).exp()
    }

    /// Pareto with lowest value 1: the smaller `alpha`, the heavier the tail.
    pub(crate) fn pareto(&mut self, alpha: f64) -> f64 {
        (1.0 - self.unit()).powf(-1.0 / alpha)
    }

    /// Returns the wait before the next try after `n_failures` failed ones. It doubles from the first to the longest,
    /// with full jitter over the upper half. So clients that failed together do not come back together.
    pub(crate) fn backoff(
        &mut self,
        (first, longest): (Duration, Duration),
        n_failures: u32,
    ) -> Duration {
        let wait = first * 2_u32.saturating_pow(n_failures.min(16));
        wait.min(longest).mul_f64(self.between((0.5, 1.0)))
    }

    /// Exponential waiting time.
    pub(crate) fn wait(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

/// Cuts off the fraction of a small number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small and positive"
)]
pub fn whole(value: f64) -> u32 {
    value as u32
}

/// SplitMix64's finaliser: neighbouring seeds give unrelated streams.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_cv(draws: &[f64]) -> (f64, f64) {
        let n = draws.len() as f64;
        let mean = draws.iter().sum::<f64>() / n;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn equal_seeds_draw_alike_and_others_do_not() {
        let draw = |seed, label: &str, index| {
            let mut chance = Chance::split(seed, label, index);
            [chance.bits(), chance.bits()]
        };
        assert_eq!(draw(7, "runs", 3), draw(7, "runs", 3));
        assert_ne!(draw(7, "runs", 3), draw(7, "runs", 4));
        assert_ne!(draw(7, "runs", 3), draw(7, "heat", 3));
        assert_ne!(draw(7, "runs", 3), draw(8, "runs", 3));
    }

    #[test]
    fn factors_have_the_cv_asked_for() {
        let mut chance = Chance::split(1, "factor", 0);
        for cv in [0.03, 0.1, 0.3] {
            let draws: Vec<f64> = (0..40_000).map(|_| chance.factor(cv)).collect();
            let (mean, measured) = mean_and_cv(&draws);
            assert!(
                (measured / cv - 1.0).abs() < 0.05,
                "asked {cv}, drew {measured}"
            );
            assert!((mean / (1.0 + cv * cv).sqrt() - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn waits_have_the_mean_asked_for() {
        let mut chance = Chance::split(1, "wait", 0);
        let total: Duration = (0..40_000)
            .map(|_| chance.wait(Duration::from_secs(10)))
            .sum();
        assert!((total.as_secs_f64() / 400_000.0 - 1.0).abs() < 0.03);
    }
}
