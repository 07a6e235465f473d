//! Bounds of medians and chances of counts, as the rules use them.

use epwatch_stats::order_stat::{median_bound_rank, median_lower_bound};
use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF, Hypergeometric};

/// Width of the bounds in standard deviations, one-sided.
const Z: f64 = 2.0;
/// Minimum number of values that have bounds at this width: all of them lie on one side with a chance of 1/64.
pub(crate) const LEAST: usize = 6;
const CONFIDENCE: f64 = 0.95;
/// Largest number of launches or pairs that a report may ask for.
const MOST_LAUNCHES: usize = 200;

/// Lower bound of the true median; `None` below six values.
pub(crate) fn lower(values: &[f64]) -> Option<f64> {
    median_lower_bound(values, Z)
}

/// Upper bound of the true median; `None` below six values.
pub(crate) fn upper(values: &[f64]) -> Option<f64> {
    let negated: Vec<f64> = values.iter().map(|value| -value).collect();
    lower(&negated).map(|bound| -bound)
}

/// Rank, from 1, of the value that is the lower bound; `None` below six values.
pub(crate) fn rank(n: usize) -> Option<usize> {
    median_bound_rank(n, Z)
}

/// Largest share that `found` of n launches do not exclude with a confidence of 95 % (C. J. Clopper and E. S. Pearson,
/// *Biometrika* 26, 1934, one-sided).
pub(crate) fn most_share(found: u64, n: usize) -> f64 {
    if found >= n as u64 {
        return 1.0;
    }
    let law = Beta::new(found as f64 + 1.0, (n as u64 - found) as f64).expect("positive numbers");
    law.inverse_cdf(CONFIDENCE)
}

/// Smallest number of launches above `n` that decides, if the launches against keep their share of n. A number decides
/// if the bound of the median leaves out the launches against. The chance of so many launches on one side must be at
/// most `most`.
pub(crate) fn deciding(against: usize, n: usize, most: f64) -> Option<usize> {
    more_launches(n).find(|launches| {
        let expected = (against * launches).div_ceil(n);
        let is_bound = median_bound_rank(*launches, Z).is_some_and(|rank| rank > expected);
        is_bound && at_least((launches - expected) as u64, *launches, 0.5) <= most
    })
}

/// Numbers of launches, more than `n`, that a report may name as a way to decide.
pub(crate) fn more_launches(n: usize) -> impl Iterator<Item = usize> {
    n + 1..=MOST_LAUNCHES
}

/// Chance that at least `here` of the `here + there` launches in question are on this side, if any launch of either side
/// may be one. Both sides have n (R. A. Fisher's exact test, one-sided).
pub(crate) fn more_on_one_side(here: usize, there: usize, n: usize) -> f64 {
    let Some(fewer) = here.checked_sub(1) else {
        return 1.0;
    };
    let (n, all) = (n as u64, (here + there) as u64);
    let law = Hypergeometric::new(2 * n, n, all).expect("at most all launches are so");
    law.sf(fewer as u64)
}

/// Chance that at least `least` of n independent launches show an event that each shows with this chance.
pub(crate) fn at_least(least: u64, n: usize, chance: f64) -> f64 {
    if least == 0 {
        return 1.0;
    }
    let law = Binomial::new(chance.clamp(0.0, 1.0), n as u64).expect("a chance in [0, 1]");
    law.sf(least - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.fisher_exact(alternative="greater")`.
    #[test]
    fn chances_are_those_of_fishers_exact_test() {
        for (here, there, n, expected) in [
            (3, 0, 6, 0.090_909),
            (5, 0, 6, 0.007_576),
            (4, 0, 12, 0.046_584),
            (5, 0, 12, 0.018_634),
            (8, 2, 12, 0.018_037),
            (12, 12, 12, 1.0),
            (0, 3, 12, 1.0),
        ] {
            let chance = more_on_one_side(here, there, n);
            assert!(
                (chance - expected).abs() < 1e-6,
                "{here} {there} {n}: {chance}"
            );
        }
    }
}
