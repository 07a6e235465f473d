//! A median, and the lower bound of one from its order statistics.
//!
//! The bound of the true median of device ratios needs no assumption about their distribution. The number of devices
//! below the median is binomial(n, 1/2) (H. A. David and H. N. Nagaraja, *Order Statistics*, 3rd ed., section 7.1). The
//! r-th smallest of n lies above the median with the chance P(Bin(n, 1/2) <= r - 1).

/// Up to here the binomial is summed; beyond it the normal approximation is right to one rank.
const EXACT_UP_TO: u64 = 1000;

/// Lower confidence bound of the median, one-sided. It is the largest value that lies above the true median with a
/// chance of at most P(N > z) (z = 3: 0.00135). Unit of the values.
///
/// `None` if there are too few values (z = 3 needs 10), one is NaN, or z is not a positive number.
pub fn median_lower_bound(values: &[f64], z: f64) -> Option<f64> {
    let rank = median_bound_rank(values.len(), z)?;
    let mut sorted = without_nan(values)?;
    sorted.sort_by(f64::total_cmp);
    Some(sorted[rank - 1])
}

/// The median: the middle value, or the mean of the two middle ones. `None` without values or with
/// a NaN among them.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = without_nan(values)?;
    if values.is_empty() {
        return None;
    }
    let (middle, is_odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if is_odd {
        return Some(*upper);
    }
    let lower = *below.iter().max_by(|a, b| a.total_cmp(b))?;
    Some(f64::midpoint(lower, *upper))
}

/// Rank, from 1, of the order statistic that bounds the median of n values from below at z.
///
/// Up to n = 1,000 exact: the largest r with P(Bin(n, 1/2) <= r - 1) <= P(N > z). Beyond that the normal approximation
/// with continuity correction, floor((n + 1) / 2 - z sqrt(n) / 2). `None` if not even the smallest value is a bound, or
/// z is not a positive number.
pub fn median_bound_rank(n: usize, z: f64) -> Option<usize> {
    if n == 0 || !z.is_finite() || z <= 0.0 {
        return None;
    }
    let devices = n as f64;
    if n as u64 > EXACT_UP_TO {
        let rank = ((devices + 1.0) / 2.0 - z * devices.sqrt() / 2.0).floor();
        #[expect(clippy::cast_possible_truncation, reason = "between 1 and n / 2 + 1")]
        #[expect(clippy::cast_sign_loss, reason = "checked on this line")]
        return (rank >= 1.0).then_some(rank as usize);
    }
    let chance = statrs::function::erf::erfc(z / std::f64::consts::SQRT_2) / 2.0;
    // P(Bin = 0) = 2^-n is at least 9e-302 here.
    let mut term = 0.5f64.powf(devices);
    let mut below = term;
    let mut rank = 0;
    while below <= chance && rank < n {
        rank += 1;
        term *= (n - rank + 1) as f64 / rank as f64;
        below += term;
    }
    (rank > 0).then_some(rank)
}

fn without_nan(values: &[f64]) -> Option<Vec<f64>> {
    let is_sound = !values.iter().any(|value| value.is_nan());
    is_sound.then(|| values.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_values_are_the_fewest_that_bound_a_median_at_three_sigma() {
        assert_eq!(median_bound_rank(9, 3.0), None);
        assert_eq!(median_bound_rank(10, 3.0), Some(1));
        let ratios: Vec<f64> = (0..10).map(|i| 2.0 + f64::from(i) / 10.0).collect();
        assert_eq!(median_lower_bound(&ratios, 3.0), Some(2.0));
        assert_eq!(median_lower_bound(&ratios[..9], 3.0), None);
    }

    #[test]
    fn medians_of_even_and_odd_sets() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median(&[]), median(&[f64::NAN])), (None, None));
    }
}
