//! Chooses the runs that are recorded if a directive asks for one in N, or for none.
//!
//! The choice hashes a counter. If every second run of an app is slow, taking every N-th run would show only slow runs,
//! or none. The first runs of a session are always recorded: they are few, and each is reported by itself. Skipped runs
//! are counted. While all runs are recorded the check costs one load.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::random_u64;

/// The current sampling rate.
#[derive(Debug)]
pub(crate) struct Sampling {
    one_in: AtomicU32,
    is_off: AtomicBool,
    /// Grows by one with each draw, from a random start.
    draws: AtomicU64,
    /// Skipped runs that found no free shard.
    pub(super) passed_over: AtomicU64,
}

impl Sampling {
    pub(crate) fn all() -> Self {
        Self {
            one_in: AtomicU32::new(1),
            is_off: AtomicBool::new(false),
            draws: AtomicU64::new(random_u64()),
            passed_over: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, one_in: u32) {
        self.one_in.store(one_in.max(1), Relaxed);
    }

    #[inline]
    pub(crate) fn one_in(&self) -> u32 {
        self.one_in.load(Relaxed)
    }

    pub(crate) fn turn_off(&self, is_off: bool) {
        self.is_off.store(is_off, Relaxed);
    }

    /// Whether no run is recorded, not even the first ones.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    /// Whether to record this run, which is not one of the first runs.
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        let one_in = self.one_in();
        one_in <= 1 || self.draw(one_in)
    }

    #[cold]
    fn draw(&self, one_in: u32) -> bool {
        // The upper half of a 64-bit mix, scaled to 0..one_in.
        let draw = mixed(self.draws.fetch_add(1, Relaxed)) >> 32;
        (draw * u64::from(one_in)) >> 32 == 0
    }
}

/// Finaliser of SplitMix64: every bit of the input changes half the bits of the output.
fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_run_in_n_is_taken_at_any_rhythm() {
        for one_in in [1, 2, 10, 1000] {
            let sampling = Sampling {
                draws: AtomicU64::new(42),
                ..Sampling::all()
            };
            sampling.set(one_in);
            let n = 1_000_000_u64;
            let taken: Vec<u64> = (0..n).filter(|_| sampling.takes()).collect();
            let even = taken.iter().filter(|run| *run % 2 == 0).count();
            let expected = n as f64 / f64::from(one_in);
            // Five standard deviations, which is safe because the test's start value is fixed.
            let slack = 5.0 * expected.sqrt();
            let check = |got: usize, expected: f64| {
                let off = (got as f64 - expected).abs();
                assert!(off <= slack, "one in {one_in}: {got}, not {expected}");
            };
            check(taken.len(), expected);
            check(even, expected / 2.0);
        }
    }
}
