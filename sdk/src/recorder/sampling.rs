//! Which runs of a session are recorded when an operator asked for one in so many.
//!
//! Chosen by a hash of the run's number, not every n-th one: an app whose every second run is a
//! slow one would otherwise show only those, or none. The first runs of a session are always
//! recorded: there are only a few, and each is told apart. What is passed over is still counted.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{policy, random_u64};

/// The share of runs that is recorded now.
#[derive(Debug)]
pub(crate) struct Sampling {
    one_in: AtomicU32,
    seed: u64,
    /// Runs left out that did not even find their series free.
    passed_over: AtomicU64,
}

impl Sampling {
    pub(crate) fn all() -> Self {
        Self {
            one_in: AtomicU32::new(1),
            seed: random_u64(),
            passed_over: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, one_in: u32) {
        self.one_in.store(one_in.max(1), Relaxed);
    }

    pub(crate) fn one_in(&self) -> u32 {
        self.one_in.load(Relaxed)
    }

    pub(crate) fn pass_over(&self) {
        self.passed_over.fetch_add(1, Relaxed);
    }

    pub(crate) fn take_passed_over(&self) -> u64 {
        self.passed_over.swap(0, Relaxed)
    }

    /// Whether this run is recorded: one atomic load and a few multiplications.
    pub(crate) fn takes(&self, run: u64) -> bool {
        let one_in = self.one_in();
        if one_in <= 1 || run < policy::COLD_RUNS {
            return true;
        }
        // The upper half of a 64-bit mix, scaled to 0..one_in.
        let draw = mixed(run ^ self.seed) >> 32;
        (draw * u64::from(one_in)) >> 32 == 0
    }
}

/// The finaliser of SplitMix64: every bit of the input moves half the bits of the output.
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
    fn about_one_in_so_many_is_taken_and_all_first_runs() {
        for one_in in [1, 2, 10, 1000] {
            let sampling = Sampling {
                one_in: AtomicU32::new(one_in),
                seed: 42,
                passed_over: AtomicU64::new(0),
            };
            assert!((0..policy::COLD_RUNS).all(|run| sampling.takes(run)));
            let n = 1_000_000_u64;
            let taken = (1000..1000 + n).filter(|run| sampling.takes(*run)).count();
            let expected = n as f64 / f64::from(one_in);
            // Five standard deviations; the seed is fixed.
            let slack = 5.0 * expected.sqrt();
            assert!(
                (taken as f64 - expected).abs() <= slack,
                "{one_in}: {taken}"
            );
        }
    }
}
