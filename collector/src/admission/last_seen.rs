//! Who is known: a table of marks in fixed memory, read and written without a lock, since every
//! report asks it. A row is one line of the processor's cache; where a row is full, whoever has
//! been silent longest makes room, and is new again when it comes back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 8;
/// A mark is the upper 48 bits of a hash and the day of the last report, in days since 1970.
const DAY_BITS: u32 = 16;
const DAY_MASK: u64 = (1 << DAY_BITS) - 1;

/// Eight marks; 0 is a free place.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row([AtomicU64; WAYS]);

/// Marks of hashes that somebody chose whom nobody can foresee.
#[derive(Debug)]
pub(super) struct Known {
    rows: Box<[Row]>,
}

impl Known {
    /// Returns an empty table with room for about `capacity` marks: twice as many places, so that
    /// few rows are full before.
    pub(super) fn new(capacity: usize) -> Self {
        let n_rows = capacity.saturating_mul(2).div_ceil(WAYS).max(1);
        let rows = (0..n_rows.next_power_of_two()).map(|_| Row::default());
        Self {
            rows: rows.collect(),
        }
    }

    /// The lower bits choose the row, the upper ones are the mark.
    fn row(&self, hash: u64) -> &Row {
        let mask = self.rows.len() as u64 - 1;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of rows")]
        let at = (hash & mask) as usize;
        &self.rows[at]
    }

    /// True if the hash is known; notes that it was heard of on this day.
    pub(super) fn contains(&self, hash: u64, day: u16) -> bool {
        for place in &self.row(hash).0 {
            let mark = place.load(Relaxed);
            if is_of(mark, hash) {
                if mark & DAY_MASK < u64::from(day) {
                    // If somebody else was here first, that is as good.
                    let _ = place.compare_exchange(mark, marked(hash, day), Relaxed, Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Makes a hash known; false if it was. One caller at a time.
    pub(super) fn insert(&self, hash: u64, day: u16) -> bool {
        if self.contains(hash, day) {
            return false;
        }
        let places = &self.row(hash).0;
        let since = |place: &&AtomicU64| place.load(Relaxed) & DAY_MASK;
        if let Some(place) = places.iter().min_by_key(since) {
            place.store(marked(hash, day), Relaxed);
        }
        true
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        let places = self.rows.iter().flat_map(|row| &row.0);
        places.for_each(|place| place.store(0, Relaxed));
    }
}

fn is_of(mark: u64, hash: u64) -> bool {
    mark != 0 && mark >> DAY_BITS == hash >> DAY_BITS
}

/// Never 0, the free place.
fn marked(hash: u64, day: u16) -> u64 {
    (hash & !DAY_MASK) | u64::from(day.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::DefaultHasher;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    /// The same in every run: what falls together in a row is found out once.
    type Hashes = BuildHasherDefault<DefaultHasher>;

    #[test]
    fn what_was_put_in_is_known_and_nothing_else() {
        let (known, hasher) = (Known::new(1_000), Hashes::default());
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
    fn whoever_is_silent_longest_makes_room_and_memory_stays() {
        let (known, hasher) = (Known::new(1), Hashes::default());
        assert_eq!(known.rows.len(), 1);
        let hash = |n: u16| hasher.hash_one(n);
        for n in 0..8 {
            known.insert(hash(n), 100 + n);
        }
        // The oldest is heard of again, so the next one goes.
        assert!(known.contains(hash(0), 200));
        known.insert(hash(8), 200);
        assert!(known.contains(hash(0), 200) && known.contains(hash(8), 200));
        assert!(!known.contains(hash(1), 200));
        assert!((2..8).all(|n| known.contains(hash(n), 200)));
    }
}
