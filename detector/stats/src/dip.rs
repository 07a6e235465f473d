//! Hartigan's dip: how far a distribution is from the nearest unimodal one.
//!
//! J. A. Hartigan and P. M. Hartigan, *The dip test of unimodality*, Annals of Statistics 13(1),
//! 1985. The dip of F is the least d such that some G stays within d of F. G is convex up to a mode and concave after
//!       it. Their algorithm narrows the modal interval. It takes the greatest convex minorant and the least concave
//!       majorant of F on the interval, and finds where they are furthest apart. There lies the new interval. Left of
//!       it the distance of F from the minorant counts, and right of it the distance from the majorant.
//!
//! One routine serves two kinds of F. A sample's F jumps at every value. A histogram's F, under the even spread of
//! [`RangeHistogram`], is continuous and linear in ln(us) between bucket edges. So its dip is exact from the edges
//! alone, in time linear in the buckets. Feeding bucket midpoints to the sample's dip instead is wrong: the ties reject
//! nearly every unimodal histogram.

use crate::RangeHistogram;
use crate::dip_table::{P, ROWS};

/// Dip of a sample, in [1 / (2n), 1/4]. No smaller value can occur with n values, so 1 / (2n) also stands for samples
/// whose values are all equal.
///
/// `None` without values or if one is not finite. Sorts a copy.
pub fn of_sample(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);

    let mut knots: Vec<Knot> = Vec::new();
    let mut below = 0.0;
    for group in sorted.chunk_by(|a, b| a == b) {
        let upto = below + group.len() as f64;
        knots.push(Knot {
            x: group[0],
            before: below,
            upto,
        });
        below = upto;
    }
    Some(largest_gap(&knots).max(1.0) / (2.0 * below))
}

/// Dip of a histogram's distribution function over ln(us), in [0, 1/4].
///
/// `None` without runs.
pub fn of_histogram(histogram: &RangeHistogram) -> Option<f64> {
    let mut knots: Vec<Knot> = Vec::with_capacity(2 * histogram.buckets().len());
    let mut below = 0.0;
    for bucket in histogram.buckets() {
        let (low, high) = bucket.ln_edges();
        // A gap before this bucket: F stays level from the last upper edge to this lower one.
        if knots.last().is_none_or(|knot| knot.x < low) {
            knots.push(Knot {
                x: low,
                before: below,
                upto: below,
            });
        }
        below += bucket.count as f64;
        knots.push(Knot {
            x: high,
            before: below,
            upto: below,
        });
    }
    (below > 0.0).then(|| largest_gap(&knots) / (2.0 * below))
}

/// Chance of a dip at least this large among `n` independent values of a uniform distribution, the
/// least favourable unimodal one.
///
/// The chance is interpolated in a Monte Carlo table of sqrt(n) x dip. Beyond the last row (n = 40,000) that row is
/// used, because sqrt(n) x dip converges. The answer is never below 0.0002, the table's last column, which means "at
/// most this". For a histogram give the number of devices, or at most the number of runs, because runs of one device
/// are not independent. `None` below 4 values or for a dip outside [0, 1/4].
pub fn p_value(dip: f64, n: u64) -> Option<f64> {
    if n < 4 || !(0.0..=0.25 + 1e-12).contains(&dip) {
        return None;
    }
    let n = n as f64;
    let x = n.sqrt() * dip;
    // Smallest dip of any sample of n values; a histogram's dip can be smaller.
    let mut left = (n.sqrt() / (2.0 * n), 1.0);
    if x <= left.0 {
        return Some(1.0);
    }
    let above = ROWS
        .partition_point(|(size, _)| *size < n)
        .min(ROWS.len() - 1);
    let (upper_n, upper) = &ROWS[above];
    let (lower_n, lower) = &ROWS[above.saturating_sub(1)];
    let share = if n >= *upper_n {
        1.0
    } else {
        (n / lower_n).ln() / (upper_n / lower_n).ln()
    };
    for (column, p) in P.iter().enumerate() {
        let right = (lower[column] + share * (upper[column] - lower[column]), *p);
        if x < right.0 {
            let inside = (x - left.0) / (right.0 - left.0);
            return Some(left.1 + inside * (right.1 - left.1));
        }
        // Small samples have atoms: several columns share one value, and the last of them counts.
        left = (right.0.max(left.0), *p);
    }
    Some(left.1)
}

/// A distribution function at one point, as counts: its limit from the left and its value. Between knots it is level (a
/// sample) or linear (a histogram, where both are equal).
struct Knot {
    x: f64,
    before: f64,
    upto: f64,
}

/// Twice the dip, as a count.
fn largest_gap(knots: &[Knot]) -> f64 {
    let mut gap: f64 = 0.0;
    let (mut first, mut last) = (0, knots.len() - 1);
    let (mut minorant, mut majorant) = (Vec::new(), Vec::new());
    loop {
        let modal = &knots[first..=last];
        hull(modal, &mut minorant, |knot| knot.before, 1.0);
        hull(modal, &mut majorant, |knot| knot.upto, -1.0);

        let (apart, left, right) = furthest_apart(modal, &minorant, &majorant);
        if apart <= gap {
            return gap;
        }
        // The knots at `left` and `right` themselves may hold the mode, which is free to jump.
        let mut at = Along::new(modal, &minorant, |knot| knot.before);
        for knot in &modal[..left] {
            gap = gap.max(knot.upto - at.height(knot.x));
        }
        let mut at = Along::new(modal, &majorant, |knot| knot.upto);
        for knot in &modal[right + 1..] {
            gap = gap.max(at.height(knot.x) - knot.before);
        }
        if left == 0 && right == modal.len() - 1 {
            return gap;
        }
        (first, last) = (first + left, first + right);
    }
}

/// Indices of the knots on the lower (sign 1) or upper (sign -1) convex hull.
fn hull(knots: &[Knot], into: &mut Vec<usize>, y: impl Fn(&Knot) -> f64, sign: f64) {
    into.clear();
    for (index, knot) in knots.iter().enumerate() {
        while let [.., a, b] = into[..] {
            let (a, b) = (&knots[a], &knots[b]);
            let turn = (b.x - a.x) * (y(knot) - y(b)) - (y(b) - y(a)) * (knot.x - b.x);
            if turn * sign > 0.0 {
                break;
            }
            into.pop();
        }
        into.push(index);
    }
}

/// Greatest vertical distance between the hulls, which lies at a corner of one of them, and the knots of the new modal
/// interval. These are that corner and the nearest corner of the other hull. The nearest corner is to the right of a
/// corner of the minorant, and to the left of a corner of the majorant.
fn furthest_apart(knots: &[Knot], minorant: &[usize], majorant: &[usize]) -> (f64, usize, usize) {
    let mut best = (f64::NEG_INFINITY, 0, knots.len() - 1);
    let mut over = Along::new(knots, majorant, |knot| knot.upto);
    for &corner in minorant {
        let apart = over.height(knots[corner].x) - knots[corner].before;
        if apart > best.0 {
            let right = majorant[majorant.partition_point(|other| *other < corner)];
            best = (apart, corner, right);
        }
    }
    let mut under = Along::new(knots, minorant, |knot| knot.before);
    for &corner in majorant {
        let apart = knots[corner].upto - under.height(knots[corner].x);
        if apart > best.0 {
            let left = minorant[minorant.partition_point(|other| *other <= corner) - 1];
            best = (apart, left, corner);
        }
    }
    best
}

/// Evaluates the height of a hull at points that go from left to right.
struct Along<'a, Y> {
    knots: &'a [Knot],
    corners: &'a [usize],
    y: Y,
}

impl<'a, Y: Fn(&Knot) -> f64> Along<'a, Y> {
    fn new(knots: &'a [Knot], corners: &'a [usize], y: Y) -> Self {
        Self { knots, corners, y }
    }

    /// Height at `x`, which must lie within the hull and not left of the `x` before.
    fn height(&mut self, x: f64) -> f64 {
        while let [_, next, _, ..] = self.corners
            && self.knots[*next].x < x
        {
            self.corners = &self.corners[1..];
        }
        match self.corners {
            [a, b, ..] => {
                let (a, b) = (&self.knots[*a], &self.knots[*b]);
                let (ya, yb) = ((self.y)(a), (self.y)(b));
                // Exact at both ends, where two hulls that touch must not seem to be apart.
                if x >= b.x {
                    yb
                } else {
                    ya + (yb - ya) * ((x - a.x) / (b.x - a.x))
                }
            }
            _ => self
                .corners
                .first()
                .map_or(0.0, |only| (self.y)(&self.knots[*only])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bucket;

    #[test]
    fn evenly_filled_buckets_have_no_dip() {
        let buckets = (0..20).map(|i| Bucket {
            low_us: 1.1f64.powi(i),
            high_us: 1.1f64.powi(i + 1),
            count: 7,
        });
        let dip = of_histogram(&RangeHistogram::from_buckets(buckets).unwrap()).unwrap();
        assert!(dip < 1e-12, "{dip}");
    }

    /// With half the runs in each of two narrow buckets, the best unimodal fit is 1/4 away.
    #[test]
    fn two_far_narrow_halves_reach_a_quarter() {
        let halves = [(1.0, 1.001, 50), (1e6, 1.001e6, 50)];
        let buckets = halves.map(|(low_us, high_us, count)| Bucket {
            low_us,
            high_us,
            count,
        });
        let dip = of_histogram(&RangeHistogram::from_buckets(buckets).unwrap()).unwrap();
        assert!((dip - 0.25).abs() < 1e-4, "{dip}");
        assert_eq!(of_sample(&[1.0, 1.0, 2.0, 2.0]), Some(0.25));
    }

    #[test]
    fn equal_values_and_lone_buckets_are_unimodal() {
        assert_eq!(of_sample(&[3.0; 10]), Some(0.05));
        let one = [Bucket {
            low_us: 10.0,
            high_us: 11.0,
            count: 9,
        }];
        assert_eq!(
            of_histogram(&RangeHistogram::from_buckets(one).unwrap()),
            Some(0.0)
        );
    }

    #[test]
    fn says_nothing_without_values_or_for_impossible_dips() {
        assert_eq!(of_sample(&[]), None);
        assert_eq!(of_sample(&[1.0, f64::NAN]), None);
        assert_eq!(of_histogram(&RangeHistogram::default()), None);
        assert_eq!(p_value(0.1, 3), None);
        assert_eq!(p_value(-0.1, 30), None);
        assert_eq!(p_value(f64::NAN, 30), None);
    }

    /// The rule of thumb beyond the table: the 99 % point is .628-.633 / sqrt(n) for n >= 10,000.
    #[test]
    fn the_99_percent_point_of_large_samples_is_known() {
        for n in [10_000u64, 100_000, 10_000_000] {
            let at = |x: f64| p_value(x / (n as f64).sqrt(), n).unwrap();
            assert!(
                at(0.615) > 0.01 && at(0.645) < 0.01,
                "{n}: {} {}",
                at(0.615),
                at(0.645)
            );
        }
    }
}
