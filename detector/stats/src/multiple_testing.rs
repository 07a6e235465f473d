//! Many tests at once: the false discovery rate of Benjamini and Hochberg.
//!
//! Y. Benjamini and Y. Hochberg, *Controlling the false discovery rate*, JRSS B 57(1), 1995. Holds
//! for tests that are independent or positively dependent.

/// Adjusted p-values in the order given: the least rate at which each test is a discovery,
/// min over j >= i of p(j) m / j, j being the rank from below.
///
/// `None` if a p lies outside [0, 1].
pub fn benjamini_hochberg(p: &[f64]) -> Option<Vec<f64>> {
    if p.iter().any(|p| !(0.0..=1.0).contains(p)) {
        return None;
    }
    let mut by_p: Vec<usize> = (0..p.len()).collect();
    by_p.sort_by(|a, b| p[*a].total_cmp(&p[*b]));

    let mut adjusted = vec![0.0; p.len()];
    let mut least: f64 = 1.0;
    for (below, &test) in by_p.iter().enumerate().rev() {
        // The quotient first: it is at least 1, so rounding cannot take the result below p.
        least = least.min(p[test] * (p.len() as f64 / (below + 1) as f64));
        adjusted[test] = least;
    }
    Some(adjusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_probability_is_refused() {
        assert_eq!(benjamini_hochberg(&[0.1, 1.1]), None);
        assert_eq!(benjamini_hochberg(&[f64::NAN]), None);
        assert_eq!(benjamini_hochberg(&[]), Some(vec![]));
    }
}
