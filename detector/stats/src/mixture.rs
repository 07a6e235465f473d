//! Two lognormal components fitted to a histogram by expectation maximisation.
//!
//! A. P. Dempster, N. M. Laird and D. B. Rubin, *Maximum likelihood from incomplete data via the EM algorithm*, JRSS B
//! 39(1), 1977. In ln(us) the components are normal. A bucket's runs are spread evenly over its width w in ln(us). So a
//! normal's mean log density over a bucket with middle x is its log density at x with w^2 / 12 added to (x - mean)^2.
//! With it every step has a closed form, the likelihood never falls, and no component can collapse onto a bucket.

use std::f64::consts::PI;

use crate::{RangeHistogram, elementary};

/// EM converges slowly if the components overlap, which is when its result matters least.
const MAX_STEPS: u32 = 200;
/// Gain in log-likelihood per run below which a step makes no visible difference.
const TOLERANCE: f64 = 1e-9;

/// One lognormal component.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Component {
    /// Share of the runs, in [0, 1].
    pub weight: f64,
    /// Mean of ln(latency in us).
    pub mean_ln: f64,
    /// Standard deviation of ln(latency in us), unitless; close to the CV if it is small.
    pub sd_ln: f64,
}

impl Component {
    /// Median latency of the component in microseconds, exp(mean_ln).
    pub fn median_us(&self) -> f64 {
        self.mean_ln.exp()
    }
}

/// The two components that fit best, and their gain over a single component.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixture {
    /// The component with the smaller mean.
    pub fast: Component,
    /// The component with the larger mean.
    pub slow: Component,
    /// Log-likelihood of two components minus the log-likelihood of one, for `n` independent observations.
    pub log_likelihood_ratio: f64,
    /// BIC of one component minus the BIC of two, 2 LLR - 3 ln n (three parameters more): positive if two components
    /// are worth it. G. Schwarz, *Estimating the dimension of a model*, 1978.
    pub bic_gain: f64,
    /// EM steps taken.
    pub steps: u32,
    /// Whether the fit converged before the steps ran out.
    pub converged: bool,
}

impl Mixture {
    /// Ashman's D, sqrt(2) |difference of means| / sqrt(sum of variances), in ln(us): above 2 the
    /// components are apart. K. M. Ashman, C. M. Bird and S. E. Zepf, 1994.
    pub fn separation(&self) -> f64 {
        let variances = self.fast.sd_ln.powi(2) + self.slow.sd_ln.powi(2);
        (self.slow.mean_ln - self.fast.mean_ln) * (2.0 / variances).sqrt()
    }
}

/// Fits two components, starting from the best cut of the histogram in two.
///
/// `n` is the number of independent observations in the histogram, devices rather than runs; it
/// scales the likelihood ratio and nothing else. Deterministic, at most 200 steps. `None` with
/// fewer than two buckets that hold runs, where nothing can be split, or with `n` = 0.
pub fn fit(histogram: &RangeHistogram, n: u64) -> Option<Mixture> {
    let cells: Vec<Cell> = histogram.buckets().iter().map(Cell::of).collect();
    let (mean_ln, variance) = histogram.ln_moments()?;
    if cells.len() < 2 || n == 0 {
        return None;
    }
    let one = Component {
        weight: 1.0,
        mean_ln,
        sd_ln: variance.sqrt(),
    };
    let law = Law::of(&one);
    let likelihood_of_one: f64 = cells
        .iter()
        .map(|cell| cell.count * law.ln_density(cell.mid, cell.variance))
        .sum();

    let runs: f64 = cells.iter().map(|cell| cell.count).sum();
    let (mut fast, mut slow) = best_cut(&cells);
    let mut columns = Columns::of(&cells);
    let mut likelihood = f64::NEG_INFINITY;
    let (mut steps, mut converged) = (0, false);
    while steps < MAX_STEPS && !converged {
        steps += 1;
        columns.deal(&fast, &slow);
        let (reached, left, right) = columns.sums(fast.mean_ln, slow.mean_ln);
        converged = reached - likelihood <= TOLERANCE * runs;
        likelihood = reached;
        match (left.component(runs), right.component(runs)) {
            (Some(new_fast), Some(new_slow)) => (fast, slow) = (new_fast, new_slow),
            // One of the two died out, so only one component is left.
            _ => break,
        }
    }
    if fast.mean_ln > slow.mean_ln {
        (fast, slow) = (slow, fast);
    }
    let observations = n as f64;
    let log_likelihood_ratio = (likelihood - likelihood_of_one) * (observations / runs);
    Some(Mixture {
        fast,
        slow,
        log_likelihood_ratio,
        bic_gain: 2.0 * log_likelihood_ratio - 3.0 * observations.ln(),
        steps,
        converged,
    })
}

/// A bucket in ln(us): its middle, the variance of an even spread over it, its runs.
struct Cell {
    mid: f64,
    variance: f64,
    count: f64,
}

impl Cell {
    fn of(bucket: &crate::Bucket) -> Self {
        let (low, high) = bucket.ln_edges();
        let variance = (high - low).powi(2) / 12.0;
        Self {
            mid: f64::midpoint(low, high),
            variance,
            count: bucket.count as f64,
        }
    }
}

/// A component, prepared for evaluation at many cells.
struct Law {
    top: f64,
    mean: f64,
    /// 1 / (2 sd^2).
    steepness: f64,
}

impl Law {
    fn of(component: &Component) -> Self {
        let Component { weight, sd_ln, .. } = *component;
        Self {
            top: weight.ln() - sd_ln.ln() - 0.5 * (2.0 * PI).ln(),
            mean: component.mean_ln,
            steepness: 1.0 / (2.0 * sd_ln * sd_ln),
        }
    }

    /// ln of weight x normal density, averaged over a cell.
    #[inline]
    fn ln_density(&self, mid: f64, variance: f64) -> f64 {
        let away = mid - self.mean;
        self.top - (away * away + variance) * self.steepness
    }
}

/// The cells column by column, so that the compiler can process several at once.
struct Columns {
    mids: Vec<f64>,
    variances: Vec<f64>,
    counts: Vec<f64>,
    /// Runs of each cell that are expected to belong to the slow component.
    slow: Vec<f64>,
    /// Contribution of each cell to the log-likelihood.
    gains: Vec<f64>,
}

/// From this x on, e^-x is negligible next to 1. It is well within the range of [`elementary::exp`].
const FAR_APART: f64 = 700.0;

impl Columns {
    fn of(cells: &[Cell]) -> Self {
        let column = |field: fn(&Cell) -> f64| cells.iter().map(field).collect();
        Self {
            mids: column(|cell| cell.mid),
            variances: column(|cell| cell.variance),
            counts: column(|cell| cell.count),
            slow: vec![0.0; cells.len()],
            gains: vec![0.0; cells.len()],
        }
    }

    /// Divides the runs of each cell between two components.
    fn deal(&mut self, fast: &Component, slow: &Component) {
        let (fast, slow) = (Law::of(fast), Law::of(slow));
        let n = self.mids.len();
        let (mids, variances) = (&self.mids[..n], &self.variances[..n]);
        let (counts, shares) = (&self.counts[..n], &mut self.slow[..n]);
        let gains = &mut self.gains[..n];
        for at in 0..n {
            let a = fast.ln_density(mids[at], variances[at]);
            let b = slow.ln_density(mids[at], variances[at]);
            let apart = (a - b).abs();
            let apart = if apart < FAR_APART { apart } else { FAR_APART };
            let apart = elementary::exp(-apart);
            let less = apart / (1.0 + apart);
            let (top, share) = if b > a { (b, 1.0 - less) } else { (a, less) };
            gains[at] = counts[at] * (top + elementary::ln_1p(apart));
            shares[at] = counts[at] * share;
        }
    }

    /// The log-likelihood, and the moments of each component's runs about its last mean.
    fn sums(&self, fast_mean: f64, slow_mean: f64) -> (f64, Sums, Sums) {
        let (mut reached, mut fast, mut slow) = (0.0, [0.0; 3], [0.0; 3]);
        let cells = self.mids.iter().zip(&self.variances);
        let dealt = self.counts.iter().zip(&self.slow).zip(&self.gains);
        for ((mid, variance), ((count, share), gain)) in cells.zip(dealt) {
            reached += gain;
            for (sums, mean, share) in [
                (&mut fast, fast_mean, count - share),
                (&mut slow, slow_mean, *share),
            ] {
                let away = mid - mean;
                sums[0] += share;
                sums[1] += share * away;
                sums[2] += share * (away * away + variance);
            }
        }
        (
            reached,
            Sums::about(fast_mean, fast),
            Sums::about(slow_mean, slow),
        )
    }
}

/// Weighted moments of cells.
#[derive(Clone, Copy, Default)]
struct Sums {
    weight: f64,
    mean: f64,
    m2: f64,
}

impl Sums {
    fn add(&mut self, cell: &Cell, weight: f64) {
        if weight <= 0.0 {
            return;
        }
        self.weight += weight;
        let delta = cell.mid - self.mean;
        self.mean += delta * weight / self.weight;
        self.m2 += weight * (delta * (cell.mid - self.mean) + cell.variance);
    }

    /// From sums of weights, and of weighted distances and squared distances from `centre`, which is
    /// near the mean, so that nothing cancels.
    fn about(centre: f64, [weight, sum, squares]: [f64; 3]) -> Self {
        let away = sum / weight;
        Self {
            weight,
            mean: centre + away,
            m2: squares - sum * away,
        }
    }

    /// The component that these moments describe among `runs`; `None` if almost nothing is left of it.
    fn component(&self, runs: f64) -> Option<Component> {
        let weight = self.weight / runs;
        let variance = self.m2 / self.weight;
        (weight > 1e-12 && variance > 0.0).then(|| Component {
            weight,
            mean_ln: self.mean,
            sd_ln: variance.sqrt(),
        })
    }
}

/// The cut between two cells after which each side has the likeliest normal of its own: a global
/// optimum over cuts, hence no random starts.
fn best_cut(cells: &[Cell]) -> (Component, Component) {
    let left = running_sums(cells.iter());
    let mut right = running_sums(cells.iter().rev());
    right.reverse();
    let runs = left[cells.len() - 1].weight;

    let value =
        |component: &Component| component.weight * (component.weight.ln() - component.sd_ln.ln());
    let whole = Component {
        weight: 0.5,
        mean_ln: left[cells.len() - 1].mean,
        sd_ln: 1.0,
    };
    let mut best = (f64::NEG_INFINITY, whole, whole);
    for cut in 1..cells.len() {
        let sides = (left[cut - 1].component(runs), right[cut].component(runs));
        let (Some(fast), Some(slow)) = sides else {
            continue;
        };
        let reached = value(&fast) + value(&slow);
        if reached > best.0 {
            best = (reached, fast, slow);
        }
    }
    (best.1, best.2)
}

/// The moments of the first cell, of the first two, and so on.
fn running_sums<'a>(cells: impl Iterator<Item = &'a Cell>) -> Vec<Sums> {
    let mut sums = Sums::default();
    cells
        .map(|cell| {
            sums.add(cell, cell.count);
            sums
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bucket;

    /// Buckets of 1 % holding two lognormals, their masses by the midpoint rule.
    fn two(weight: f64, medians: [f64; 2], sd: f64, runs: f64) -> RangeHistogram {
        let density = |x: f64, median: f64| {
            (-(x - median.ln()).powi(2) / (2.0 * sd * sd)).exp() / (sd * (2.0 * PI).sqrt())
        };
        let buckets = (0..400).map(|i| {
            let (low_us, high_us) = (1e3 * 1.01f64.powi(i), 1e3 * 1.01f64.powi(i + 1));
            let x = f64::midpoint(low_us.ln(), high_us.ln());
            let mass = (1.0 - weight) * density(x, medians[0]) + weight * density(x, medians[1]);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small"
            )]
            let count = (runs * mass * 1.01f64.ln()).round() as u64;
            Bucket {
                low_us,
                high_us,
                count,
            }
        });
        RangeHistogram::from_buckets(buckets).unwrap()
    }

    #[test]
    fn both_components_are_found_again() {
        let fit = fit(&two(0.3, [8_200.0, 24_000.0], 0.12, 1e5), 400).unwrap();
        assert!((fit.slow.weight - 0.3).abs() < 2e-3, "{fit:?}");
        assert!(
            (fit.fast.median_us() / 8_200.0 - 1.0).abs() < 2e-3,
            "{fit:?}"
        );
        assert!(
            (fit.slow.median_us() / 24_000.0 - 1.0).abs() < 2e-3,
            "{fit:?}"
        );
        assert!((fit.fast.sd_ln - 0.12).abs() < 2e-3, "{fit:?}");
        assert!(
            fit.converged && fit.bic_gain > 100.0 && fit.separation() > 8.0,
            "{fit:?}"
        );
    }

    #[test]
    fn one_hump_is_not_worth_two_components() {
        let fit = fit(&two(0.0, [8_200.0, 24_000.0], 0.12, 1e5), 400).unwrap();
        assert!(fit.bic_gain < 0.0, "{fit:?}");
    }

    #[test]
    fn the_likelihood_ratio_scales_with_the_independent_observations() {
        let histogram = two(0.3, [8_200.0, 24_000.0], 0.12, 1e4);
        let [some, more] = [100, 400].map(|n| fit(&histogram, n).unwrap().log_likelihood_ratio);
        assert!((more / some - 4.0).abs() < 1e-12);
    }

    #[test]
    fn says_nothing_about_a_lone_bucket() {
        let one = [Bucket {
            low_us: 10.0,
            high_us: 11.0,
            count: 9,
        }];
        assert_eq!(fit(&RangeHistogram::from_buckets(one).unwrap(), 9), None);
        assert_eq!(fit(&RangeHistogram::default(), 9), None);
    }
}
