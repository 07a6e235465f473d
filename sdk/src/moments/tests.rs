use proptest::prelude::*;

use super::*;
use nist::certified;

pub(crate) fn sums(values: impl IntoIterator<Item = u64>) -> Sums {
    let mut sums = Sums::default();
    for value in values {
        sums.add(value);
    }
    sums
}

#[track_caller]
pub(crate) fn check_certified(set: &nist::Certified, moments: &Moments, tolerance: f64) {
    assert_eq!(moments.n, set.values.len() as u64, "{}", set.name);
    let pairs = [
        ("mean", moments.mean(), set.mean),
        ("sd", moments.standard_deviation(), set.sd),
    ];
    for (what, got, expected) in pairs {
        let error = (got / expected - 1.0).abs();
        assert!(error <= tolerance, "{} {what}: {got}, {expected}", set.name);
    }
}

#[test]
fn certified_means_and_deviations_come_out_to_all_digits() {
    for set in certified() {
        let moments = sums(set.values.iter().copied()).in_units_of(set.unit);
        check_certified(&set, &moments, 3e-15);
    }
}

#[test]
fn certified_deviations_survive_merging_by_chans_formula() {
    for set in certified() {
        for parts in [2, 3, 7] {
            let of_part = |part: usize| {
                let values = set.values.iter().copied().skip(part).step_by(parts);
                sums(values).in_units_of(set.unit)
            };
            let mut merged = Moments::default();
            for part in 0..parts {
                merged.merge(&of_part(part));
            }
            // NumAcc4: means of 10^7 have 9 decimals, and the deviation is a tenth.
            check_certified(&set, &merged, 1e-8);
        }
    }
}

/// Checks sums at the limits of a recorder's values.
#[test]
fn sums_do_not_overflow_where_latencies_end() {
    let highest = 60_000_000_000;
    let mut sums = sums([highest, 0]);
    for _ in 0..30 {
        let same = sums;
        sums.merge(&same);
    }
    let moments = sums.in_units_of(1000.0);
    assert_eq!(moments.n, 2 << 30);
    assert_eq!(moments.coefficient_of_variation(), 1.0 + 2.0_f64.powi(-32));
    let m2 = 2.0_f64.powi(31) * 3e7 * 3e7;
    assert!((moments.m2 / m2 - 1.0).abs() < 1e-15);
    assert_eq!(Sums::default().in_units_of(1000.0), Moments::default());
}

proptest! {
    #[test]
    fn merging_in_any_order_is_adding_everything(
        a in prop::collection::vec(0..60_000_000_000_u64, 0..50),
        b in prop::collection::vec(0..60_000_000_000_u64, 0..50),
    ) {
        let whole = sums(a.iter().chain(&b).copied());
        let (mut ab, mut ba) = (sums(a.clone()), sums(b.clone()));
        ab.merge(&sums(b));
        ba.merge(&sums(a));
        prop_assert_eq!(ab, whole);
        prop_assert_eq!(ba, whole);
    }

    #[test]
    fn chans_formula_agrees(
        a in prop::collection::vec(0..60_000_000_000_u64, 0..50),
        b in prop::collection::vec(0..60_000_000_000_u64, 0..50),
    ) {
        let whole = sums(a.iter().chain(&b).copied()).in_units_of(1000.0);
        let mut merged = sums(a).in_units_of(1000.0);
        merged.merge(&sums(b).in_units_of(1000.0));
        prop_assert_eq!(merged.n, whole.n);
        prop_assert!((merged.m2 - whole.m2).abs() <= 1e-9 * (whole.m2 + 1.0));
        prop_assert_eq!(merged.min.to_bits(), whole.min.to_bits());
        prop_assert_eq!(merged.max.to_bits(), whole.max.to_bits());
    }
}
