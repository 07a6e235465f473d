//! Counts the distinct keys that overflowed in an interval, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Capacity; more keys count as this many.
const PLACES: usize = 64;

/// A set of numbers that is emptied at the end of an interval.
#[derive(Debug)]
pub(crate) struct DistinctKeys([AtomicU64; PLACES]);

impl DistinctKeys {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; PLACES])
    }

    pub(crate) fn add(&self, key: u64) {
        // 0 marks an empty slot.
        let key = key.max(1);
        for place in &self.0 {
            match place.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(known) if known == key => return,
                Err(_) => {}
            }
        }
    }

    /// Adds a text by its FNV-1a hash. Two of 2^64 texts may count as one.
    pub(crate) fn add_text(&self, text: &str) {
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self.add(hash);
    }

    /// Empties the set and returns its size.
    pub(crate) fn take(&self) -> u64 {
        let taken = self.0.iter().map(|place| place.swap(0, Relaxed));
        taken.map(|key| u64::from(key != 0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_once_until_it_is_taken() {
        let keys = DistinctKeys::new();
        for _ in 0..3 {
            keys.add(7);
            keys.add(0);
            keys.add_text("x:1x3");
        }
        assert_eq!(keys.take(), 3);
        assert_eq!(keys.take(), 0);
        for key in 0..1000 {
            keys.add(key);
        }
        assert_eq!(keys.take(), PLACES as u64);
    }
}
