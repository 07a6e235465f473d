//! e^x and ln(1 + y) without branches, so that the compiler computes several at a time. Fitting two lognormals and
//! smoothing a histogram need tens of thousands of them for one cohort window. Otherwise each would be a call of the
//! system's library. Results are within 1e-15 of the exact values.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// 1.5 x 2^52: a float this large has no digits after the point, so adding it rounds.
const ROUNDS: f64 = 6_755_399_441_055_744.0;

/// ln 2 in two parts, the first with zeros at its end: its product with a small integer is exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// e^x for x in [-700, 0]; nonsense outside.
///
/// e^x = 2^k e^r with |r| <= ln 2 / 2, e^r by its series up to r^12 / 12!.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    let rounded = x * LOG2_E + ROUNDS;
    let k = rounded - ROUNDS;
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    let (r2, r4) = (r * r, r * r * (r * r));
    let low = (1.0 + r) + r2 * (1.0 / 2.0 + r * (1.0 / 6.0));
    let middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5_040.0));
    let high = (1.0 / 40_320.0 + r * (1.0 / 362_880.0))
        + r2 * (1.0 / 3_628_800.0 + r * (1.0 / 39_916_800.0));
    let series = low + r4 * (middle + r4 * (high + r4 * (1.0 / 479_001_600.0)));
    // The last bits of `rounded` are k. They are shifted by 52 bits, to the exponent of a float.
    f64::from_bits(series.to_bits().wrapping_add(rounded.to_bits() << 52))
}

/// ln(1 + y) for y in [0, 1]; nonsense outside.
///
/// 2 artanh(s) = 2 (s + s^3 / 3 + ...), of 1 + y or of half of it, so that |s| < 0.172.
#[inline]
pub(crate) fn ln_1p(y: f64) -> f64 {
    let halved = y > SQRT_2 - 1.0;
    let (above, below) = if halved {
        (y - 1.0, y + 3.0)
    } else {
        (y, y + 2.0)
    };
    let s = above / below;
    let (t, t2, t4) = (s * s, s * s * (s * s), s * s * (s * s) * (s * s * (s * s)));
    let low = (1.0 + t * (1.0 / 3.0)) + t2 * (1.0 / 5.0 + t * (1.0 / 7.0));
    let high = (1.0 / 9.0 + t * (1.0 / 11.0)) + t2 * (1.0 / 13.0 + t * (1.0 / 15.0));
    let series = low + t4 * (high + t4 * (1.0 / 17.0 + t * (1.0 / 19.0)));
    (if halved { LN_2 } else { 0.0 }) + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_the_librarys_to_fifteen_digits() {
        for step in 0..700_000_u32 {
            let x = -f64::from(step) * 1e-3;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-15, "{x}");
            let y = f64::from(step + 1) / 700_000.0;
            assert!((ln_1p(y) / y.ln_1p() - 1.0).abs() < 1e-15, "{y}");
        }
        assert_eq!((exp(0.0), ln_1p(0.0)), (1.0, 0.0));
    }
}
