//! The chance of a number of hit devices, given how often healthy devices are hit.
//!
//! Each of n devices is hit with a chance that itself varies between cohorts and days as Beta(alpha, beta). So the
//! count is beta-binomial (J. G. Skellam, 1948), P(X = k) = C(n, k) B(k + alpha, n - k + beta) / B(alpha, beta). The
//! plain binomial would call a cohort's usual bad day a discovery.
//!
//! Precision: differences of log-gammas lose nine digits at n = 10^6. The count is negative hypergeometric, hence a
//! quotient of three negative binomials with one success chance of our choice. Each of these is computed to full
//! precision from the deviance (C. Loader, *Fast and accurate computation of binomial probabilities*, 2000).

use std::f64::consts::PI;

/// The prior Beta(alpha, beta) of the share of devices hit, with the weight of alpha + beta devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BetaPrior {
    alpha: f64,
    beta: f64,
}

impl BetaPrior {
    /// `None` unless both are positive and finite.
    pub fn new(alpha: f64, beta: f64) -> Option<Self> {
        let usable = |value: f64| value.is_finite() && value > 0.0;
        (usable(alpha) && usable(beta)).then_some(Self { alpha, beta })
    }

    /// Makes a prior of a fleet-wide rate, with the weight of `strength` devices (about 100).
    ///
    /// `None` unless the rate lies strictly between 0 and 1 and the strength is positive.
    pub fn from_rate(rate: f64, strength: f64) -> Option<Self> {
        Self::new(rate * strength, (1.0 - rate) * strength)
    }

    /// Returns the prior after `hits` of `devices` in the cohort's own healthy past: Beta(alpha + hits, beta + devices
    /// - hits). With little past it stays near the fleet's rate; with much past it becomes the cohort's own rate.
    ///
    /// `None` with more hits than devices.
    pub fn updated(&self, hits: u64, devices: u64) -> Option<Self> {
        let misses = devices.checked_sub(hits)?;
        Self::new(self.alpha + hits as f64, self.beta + misses as f64)
    }

    /// Expected share of devices hit, alpha / (alpha + beta).
    pub fn rate(&self) -> f64 {
        self.alpha / (self.alpha + self.beta)
    }

    fn mirrored(&self) -> Self {
        Self {
            alpha: self.beta,
            beta: self.alpha,
        }
    }
}

/// Natural logarithm of P(X = k); minus infinity for k > n.
///
/// Exact to about 1e-12 in relative terms of the probability for n up to 10^6.
pub fn ln_pmf(k: u64, n: u64, prior: BetaPrior) -> f64 {
    if k > n {
        return f64::NEG_INFINITY;
    }
    if n == 0 {
        return 0.0;
    }
    let BetaPrior { alpha, beta } = prior;
    let (hit, missed, all) = (k as f64, (n - k) as f64, n as f64);
    let strength = alpha + beta;
    // Any chance gives the same quotient; this one puts the denominator at its mode.
    let (p, q) = (strength / (strength + all), all / (strength + all));
    ln_negative_binomial(hit, alpha, p, q) + ln_negative_binomial(missed, beta, p, q)
        - ln_negative_binomial(all, strength, p, q)
}

/// P(X >= k): the chance that at least k of n healthy devices are hit. 1 for k = 0, 0 for k > n.
///
/// Underflows to 0 below 1e-308; [`ln_upper_tail`] does not.
pub fn upper_tail(k: u64, n: u64, prior: BetaPrior) -> f64 {
    ln_upper_tail(k, n, prior).exp()
}

/// Natural logarithm of P(X >= k); 0 for k = 0, minus infinity for k > n.
///
/// Sums the probabilities on the smaller side of k, so that tiny tails keep all their digits. Time
/// grows with the width of that tail in devices: microseconds at some hundred devices, some
/// milliseconds at worst at 10^6.
pub fn ln_upper_tail(k: u64, n: u64, prior: BetaPrior) -> f64 {
    if k == 0 {
        return 0.0;
    }
    if k > n {
        return f64::NEG_INFINITY;
    }
    if (k as f64) <= n as f64 * prior.rate() {
        // P(X <= k - 1) is the upper tail of the devices not hit.
        let below = ln_sum_upwards(n - k + 1, n, prior.mirrored()).exp();
        if below < 0.5 {
            return (-below).ln_1p();
        }
    }
    ln_sum_upwards(k, n, prior).min(0.0)
}

/// ln of the sum of P(X = j) over j = k..=n, from P(X = k) and the quotients of neighbours. These are P(j + 1) / P(j) =
/// (n - j) (alpha + j) / ((j + 1) (beta + n - j - 1)).
fn ln_sum_upwards(k: u64, n: u64, prior: BetaPrior) -> f64 {
    /// Rounding of the quotients adds up, so the probability is computed afresh after so many of them.
    const FRESH_EVERY: u64 = 1024;

    let BetaPrior { alpha, beta } = prior;
    let start = ln_pmf(k, n, prior);
    let (mut total, mut term) = (1.0, 1.0);
    for j in k..n {
        let (hit, missed) = (j as f64, (n - j) as f64);
        if (j - k + 1).is_multiple_of(FRESH_EVERY) {
            term = (ln_pmf(j + 1, n, prior) - start).exp();
        } else {
            term *= missed * (alpha + hit) / ((hit + 1.0) * (beta + missed - 1.0));
        }
        total += term;

        // From here on no quotient exceeds this bound if beta >= 1: both its factors fall with j,
        // or the second rises towards 1. (With beta < 1 the probabilities rise again at n.)
        let bound = missed / (missed - 1.0 + beta) * ((alpha + hit) / (hit + 1.0)).max(1.0);
        if beta >= 1.0 && bound < 1.0 && term * bound / (1.0 - bound) < total * 1e-17 {
            break;
        }
    }
    start + total.ln()
}

/// ln of Gamma(size + k) / (Gamma(size) k!) p^size q^k, with q = 1 - p.
fn ln_negative_binomial(k: f64, size: f64, p: f64, q: f64) -> f64 {
    if k == 0.0 {
        // Uses p or 1 - q, whichever has kept its digits.
        return size * if p < 0.5 { p.ln() } else { (-q).ln_1p() };
    }
    let n = size + k;
    let deviance = deviance_part(size, n * p) + deviance_part(k, n * q);
    // ln(size / n) from the quotient of the two laws joins the root of n / (2 pi size k).
    stirling_error(n) - stirling_error(size) - stirling_error(k) - deviance
        + 0.5 * (size / (2.0 * PI * k * n)).ln()
}

/// ln Gamma(x + 1) minus Stirling's formula for it, for x > 0.
fn stirling_error(x: f64) -> f64 {
    /// ln sqrt(2 pi)
    const HALF_LN_2PI: f64 = 0.918_938_533_204_672_8;
    if x < 16.0 {
        let stirling = (x + 0.5) * x.ln() - x + HALF_LN_2PI;
        return statrs::function::gamma::ln_gamma(x + 1.0) - stirling;
    }
    // Abramowitz and Stegun 6.1.41; the first term left out is below 1e-16 from x = 16 on.
    let x2 = x * x;
    let tail = (1.0 / 1680.0 - (1.0 / 1188.0 - 691.0 / 360_360.0 / x2) / x2) / x2;
    (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - tail) / x2) / x2) / x
}

/// Loader's bd0: x ln(x / mean) + mean - x, without cancellation where x is close to the mean.
fn deviance_part(x: f64, mean: f64) -> f64 {
    if (x - mean).abs() >= 0.1 * (x + mean) {
        return x * (x / mean).ln() + mean - x;
    }
    let v = (x - mean) / (x + mean);
    let mut sum = (x - mean) * v;
    let mut power = 2.0 * x * v;
    // v < 0.1, so every term is a hundredth of the one before.
    for j in 1..16 {
        power *= v * v;
        let next = sum + power / f64::from(2 * j + 1);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_prior_makes_every_count_equally_likely() {
        let flat = BetaPrior::new(1.0, 1.0).unwrap();
        for k in 0..=9 {
            assert!((ln_pmf(k, 9, flat).exp() - 0.1).abs() < 1e-14);
            assert!((upper_tail(k, 9, flat) - (10 - k) as f64 / 10.0).abs() < 1e-13);
        }
    }

    #[test]
    fn the_ends_are_certain_and_impossible() {
        let prior = BetaPrior::from_rate(0.01, 100.0).unwrap();
        assert_eq!(upper_tail(0, 10, prior), 1.0);
        assert_eq!(upper_tail(11, 10, prior), 0.0);
        assert_eq!((upper_tail(0, 0, prior), ln_pmf(0, 0, prior)), (1.0, 0.0));
    }

    #[test]
    fn little_history_stays_near_the_fleet_and_much_becomes_its_own() {
        let fleet = BetaPrior::from_rate(0.01, 100.0).unwrap();
        assert!((fleet.updated(1, 10).unwrap().rate() - 0.0182).abs() < 1e-3);
        assert!((fleet.updated(1_000, 10_000).unwrap().rate() - 0.1).abs() < 1e-2);
    }

    #[test]
    fn a_prior_without_a_rate_or_with_more_hits_than_devices_is_none() {
        assert_eq!(BetaPrior::from_rate(0.0, 100.0), None);
        assert_eq!(BetaPrior::from_rate(0.5, 1.0).unwrap().updated(2, 1), None);
    }
}
