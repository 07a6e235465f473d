//! Hashes with the day they were last seen, in a table of fixed memory. Admission keeps known installations in one, and
//! apps whose quota is used up in another.
//!
//! Every report is looked up here, so reads and writes take no lock. A row is one cache line of the processor. In a
//! full row the entry that was not seen for the longest time is replaced. Its installation counts as new when it comes
//! back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 8;
/// A mark is the upper 48 bits of a hash and the day of the last report, in days since 1970.
const DAY_BITS: u32 = 16;
const DAY_MASK: u64 = (1 << DAY_BITS) - 1;

/// Eight marks; 0 is a free slot.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row([AtomicU64; WAYS]);

/// A set of hashes. Callers hash with random bits of the process, so that no sender can choose a row.
#[derive(Debug)]
pub(super) struct LastSeenTable {
    rows: Box<[Row]>,
}

impl LastSeenTable {
    /// Returns an empty table for about `capacity` hashes: twice as many slots, so that few rows fill up before.
    pub(super) fn new(capacity: usize) -> Self {
        let n_rows = capacity.saturating_mul(2).div_ceil(WAYS).max(1);
        let rows = (0..n_rows.next_power_of_two()).map(|_| Row::default());
        Self {
            rows: rows.collect(),
        }
    }

    /// The lower bits choose the row, the upper ones are part of the mark.
    fn row(&self, hash: u64) -> &Row {
        let mask = self.rows.len() as u64 - 1;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of rows")]
        let at = (hash & mask) as usize;
        &self.rows[at]
    }

    /// True if the hash is in the table. Its day then becomes `day`, if `day` is later.
    pub(super) fn contains(&self, hash: u64, day: u16) -> bool {
        for slot in &self.row(hash).0 {
            let mark = slot.load(Relaxed);
            if is_of(mark, hash) {
                if mark & DAY_MASK < u64::from(day) {
                    // If another thread was first, the day that it wrote will do.
                    let _ = slot.compare_exchange(mark, marked(hash, day), Relaxed, Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Adds a hash; false if the table already had it. Only one caller at a time.
    pub(super) fn insert(&self, hash: u64, day: u16) -> bool {
        if self.contains(hash, day) {
            return false;
        }
        let slots = &self.row(hash).0;
        let since = |slot: &&AtomicU64| slot.load(Relaxed) & DAY_MASK;
        if let Some(slot) = slots.iter().min_by_key(since) {
            slot.store(marked(hash, day), Relaxed);
        }
        true
    }

    pub(super) fn clear(&self) {
        let slots = self.rows.iter().flat_map(|row| &row.0);
        slots.for_each(|slot| slot.store(0, Relaxed));
    }
}

fn is_of(mark: u64, hash: u64) -> bool {
    mark != 0 && mark >> DAY_BITS == hash >> DAY_BITS
}

/// Never 0, which is a free slot.
fn marked(hash: u64, day: u16) -> u64 {
    (hash & !DAY_MASK) | u64::from(day.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::DefaultHasher;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    /// Fixed, so that the same hashes share a row in every run.
    type Hashes = BuildHasherDefault<DefaultHasher>;

    #[test]
    fn inserted_hashes_are_found_and_no_others() {
        let (known, hasher) = (LastSeenTable::new(1_000), Hashes::default());
        let mut n_new = 0;
        for n in 0..500_u32 {
            n_new += u32::from(known.insert(hasher.hash_one(n), 20_000));
            assert!(!known.insert(hasher.hash_one(n), 20_001));
        }
        assert_eq!(n_new, 500);
        assert!((0..500_u32).all(|n| known.contains(hasher.hash_one(n), 20_001)));
        assert!(!(500..5_000_u32).any(|n| known.contains(hasher.hash_one(n), 20_001)));
        known.clear();
        assert!(!(0..500_u32).any(|n| known.contains(hasher.hash_one(n), 20_001)));
    }

    #[test]
    fn a_full_row_replaces_the_entry_silent_longest() {
        let (known, hasher) = (LastSeenTable::new(1), Hashes::default());
        assert_eq!(known.rows.len(), 1);
        let hash = |n: u16| hasher.hash_one(n);
        for n in 0..8 {
            known.insert(hash(n), 100 + n);
        }
        // The oldest entry is seen again, so the next oldest is replaced.
        assert!(known.contains(hash(0), 200));
        known.insert(hash(8), 200);
        assert!(known.contains(hash(0), 200) && known.contains(hash(8), 200));
        assert!(!known.contains(hash(1), 200));
        assert!((2..8).all(|n| known.contains(hash(n), 200)));
    }
}
