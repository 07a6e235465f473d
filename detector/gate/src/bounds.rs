//! Bounds of medians and chances of counts, as the rules use them.

use epwatch_stats::order_stat::{median_bound_rank, median_lower_bound};
use statrs::distribution::{Binomial, DiscreteCDF};

/// Width of the bounds in standard deviations, one-sided.
const Z: f64 = 2.0;
/// Fewest values that have bounds at this width: all of them lie on one side with a chance of 1/64.
pub(crate) const LEAST: usize = 6;
/// Most launches or pairs that are reported as a way to decide.
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

/// Number of launches, more than `n`, whose bound leaves out those against, if they keep their share of n, and whose
/// chance of so many on one side is `most` at most.
pub(crate) fn deciding(against: usize, n: usize, most: f64) -> Option<usize> {
    (n + 1..=MOST_LAUNCHES).find(|launches| {
        let expected = (against * launches).div_ceil(n);
        let is_bound = median_bound_rank(*launches, Z).is_some_and(|rank| rank > expected);
        is_bound && at_least((launches - expected) as u64, *launches, 0.5) <= most
    })
}

/// Chance that at least `least` of n independent launches are so, each with this chance.
pub(crate) fn at_least(least: u64, n: usize, chance: f64) -> f64 {
    if least == 0 {
        return 1.0;
    }
    let law = Binomial::new(chance.clamp(0.0, 1.0), n as u64).expect("a chance in [0, 1]");
    law.sf(least - 1)
}
