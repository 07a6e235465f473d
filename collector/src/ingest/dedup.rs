//! A bounded set of report keys, which answers repeated reports without the store. It holds only durable reports, since
//! `duplicate` is an ack. A forgotten key costs one more row in the store, where the table of copies decides which one
//! counts.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use epwatch_proto::ReportKey;
use parking_lot::Mutex;

/// Relation of a report to an earlier report with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLookup {
    /// Unknown, or forgotten.
    New,
    /// A report with the same bytes is durable on this collector.
    Duplicate,
    /// A report with other bytes is durable on this collector.
    Conflict,
}

/// Hashes of a report's key and bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReportHashes {
    key: KeyHashes,
    /// Hash of its bytes.
    content: u64,
}

/// Two hashes of a key: with a million keys in the set, one in 2^108 collides. They take half the space of the key, so
/// more fit the processor's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyHashes {
    hash: u64,
    check: u64,
}

impl Hash for KeyHashes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The hasher of values that are hashes already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole hashes are written")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Marks = HashMap<KeyHashes, u64, BuildHasherDefault<AsIs>>;

/// Hashes of the latest reports' keys and bytes.
#[derive(Debug)]
pub(crate) struct SeenKeys {
    generations: Mutex<Generations>,
    /// Keyed by random bits of this process, so that no sender can make two keys collide.
    hasher: RandomState,
    /// A faster hasher, for hashes whose collision harms only the sender.
    quick: foldhash::quality::RandomState,
    capacity: usize,
}

/// Two halves of the set. When the young half is full it becomes the old one, and the old one is cleared.
#[derive(Debug, Default)]
struct Generations {
    young: Marks,
    old: Marks,
}

impl SeenKeys {
    /// Returns an empty memory for at most `capacity` keys.
    #[must_use]
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            generations: Mutex::default(),
            hasher: RandomState::new(),
            quick: foldhash::quality::RandomState::default(),
            capacity,
        }
    }

    /// Keys are hashed with their app, so a sender who knows the key of another app's report cannot interfere with it.
    #[must_use]
    pub(crate) fn mark(&self, app_id: &str, key: ReportKey, bytes: &[u8]) -> ReportHashes {
        ReportHashes {
            key: KeyHashes {
                hash: self.hasher.hash_one((app_id, key)),
                check: self.quick.hash_one((app_id, key)),
            },
            content: self.quick.hash_one(bytes),
        }
    }

    /// Looks up all reports in one pass: each look-up waits for memory, and the waits overlap.
    #[must_use]
    pub(crate) fn look_up_all<'a>(
        &self,
        marks: impl Iterator<Item = &'a ReportHashes>,
    ) -> Vec<KeyLookup> {
        let Generations { young, old } = &*self.generations.lock();
        let known = |mark: &ReportHashes| young.get(&mark.key).or_else(|| old.get(&mark.key));
        marks.map(|mark| seen_as(known(mark), mark)).collect()
    }

    /// Remembers durable reports.
    pub(crate) fn remember(&self, reports: impl IntoIterator<Item = ReportHashes>) {
        if self.capacity < 2 {
            return;
        }
        let mut generations = self.generations.lock();
        for mark in reports {
            // Of two concurrent copies the first durable one stays.
            if generations.old.contains_key(&mark.key) {
                continue;
            }
            if generations.young.len() >= self.capacity / 2 {
                // Reuses the old half's memory: freeing and growing tens of megabytes would delay acks.
                let Generations { young, old } = &mut *generations;
                std::mem::swap(young, old);
                young.clear();
            }
            generations.young.entry(mark.key).or_insert(mark.content);
        }
    }
}

/// Marks of one call's reports that go into the WAL.
#[derive(Debug, Default)]
pub(crate) struct CallHashes(Marks);

impl CallHashes {
    pub(crate) fn with_capacity(n_reports: usize) -> Self {
        Self(Marks::with_capacity_and_hasher(
            n_reports,
            BuildHasherDefault::default(),
        ))
    }

    /// Compares with earlier reports of the same call.
    #[must_use]
    pub(crate) fn look_up(&self, mark: &ReportHashes) -> KeyLookup {
        seen_as(self.0.get(&mark.key), mark)
    }

    pub(crate) fn insert(&mut self, mark: ReportHashes) {
        self.0.insert(mark.key, mark.content);
    }
}

fn seen_as(known: Option<&u64>, mark: &ReportHashes) -> KeyLookup {
    match known {
        None => KeyLookup::New,
        Some(content) if *content == mark.content => KeyLookup::Duplicate,
        Some(_) => KeyLookup::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::{InstallationId, Sequence, StreamId};

    use super::*;

    fn key(sequence: u64) -> ReportKey {
        ReportKey {
            installation: InstallationId::from_bytes([1; 16]),
            stream: StreamId(2),
            sequence: Sequence::new(sequence).unwrap(),
        }
    }

    fn look_up(seen: &SeenKeys, mark: &ReportHashes) -> KeyLookup {
        seen.look_up_all([mark].into_iter())[0]
    }

    #[test]
    fn same_bytes_are_a_duplicate_and_others_conflict() {
        let seen = SeenKeys::new(100);
        let (one, two) = (
            seen.mark("app", key(1), b"one"),
            seen.mark("app", key(1), b"two"),
        );
        assert_eq!(look_up(&seen, &one), KeyLookup::New);
        seen.remember([one, two]);
        assert_eq!(look_up(&seen, &one), KeyLookup::Duplicate);
        assert_eq!(look_up(&seen, &two), KeyLookup::Conflict);
        assert_eq!(
            look_up(&seen, &seen.mark("app", key(2), b"one")),
            KeyLookup::New
        );
        assert_eq!(
            look_up(&seen, &seen.mark("other", key(1), b"two")),
            KeyLookup::New
        );
    }

    #[test]
    fn the_oldest_are_forgotten_and_the_latest_half_never() {
        let seen = SeenKeys::new(100);
        for sequence in 1..=1000 {
            seen.remember([seen.mark("app", key(sequence), b"7")]);
            for recent in sequence.saturating_sub(49).max(1)..=sequence {
                assert_eq!(
                    look_up(&seen, &seen.mark("app", key(recent), b"7")),
                    KeyLookup::Duplicate
                );
            }
        }
        let known = (1..=1000)
            .filter(|&n| look_up(&seen, &seen.mark("app", key(n), b"7")) != KeyLookup::New)
            .count();
        assert!(known <= 100, "{known}");
        let none = SeenKeys::new(0);
        let one = none.mark("app", key(1), b"7");
        none.remember([one]);
        assert_eq!(look_up(&none, &one), KeyLookup::New);
    }

    /// Freeing and growing tens of megabytes would delay acks.
    #[test]
    fn halves_that_have_grown_are_used_again() {
        let seen = SeenKeys::new(2_000);
        let rooms = || {
            let generations = seen.generations.lock();
            let mut rooms = [generations.young.capacity(), generations.old.capacity()];
            rooms.sort_unstable();
            rooms
        };
        let mut sequences = 1..;
        let mut remember = |n| {
            let marks = sequences.by_ref().take(n);
            seen.remember(marks.map(|sequence| seen.mark("app", key(sequence), b"7")));
        };
        remember(2_000);
        let grown = rooms();
        assert!(grown[0] >= 1_000, "{grown:?}");
        for _ in 0..50 {
            remember(100);
            assert_eq!(rooms(), grown);
        }
    }
}
