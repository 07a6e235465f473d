//! A bounded memory of report keys, so that a repeated report is answered at once. It only ever
//! holds reports that are durable, since `duplicate` is an ack; forgetting one costs a row more
//! in the store, where the key table decides.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use epwatch_proto::ReportKey;

use crate::wal::lock;

/// How a report relates to one of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Not seen, or forgotten.
    New,
    /// The same bytes are durable here.
    Duplicate,
    /// Other bytes are durable here.
    Conflict,
}

/// Keys of the latest reports, with a hash of each one's bytes.
#[derive(Debug)]
pub(crate) struct SeenKeys {
    generations: Mutex<Generations>,
    /// Keyed by random bits of this process, so that nobody can make two reports collide.
    hasher: RandomState,
    capacity: usize,
}

/// When the young half is full it becomes the old one, and the old one is forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<ReportKey, u64>,
    old: HashMap<ReportKey, u64>,
}

impl SeenKeys {
    /// Returns an empty memory for at most `capacity` keys.
    #[must_use]
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            generations: Mutex::default(),
            hasher: RandomState::new(),
            capacity,
        }
    }

    /// Returns the hash under which `bytes` are remembered.
    #[must_use]
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash_one(bytes)
    }

    /// Looks a key up.
    #[must_use]
    pub(crate) fn look_up(&self, key: &ReportKey, hash: u64) -> Seen {
        let generations = lock(&self.generations);
        match generations
            .young
            .get(key)
            .or_else(|| generations.old.get(key))
        {
            None => Seen::New,
            Some(known) if *known == hash => Seen::Duplicate,
            Some(_) => Seen::Conflict,
        }
    }

    /// Remembers durable reports.
    pub(crate) fn remember(&self, reports: impl IntoIterator<Item = (ReportKey, u64)>) {
        let mut generations = lock(&self.generations);
        for (key, hash) in reports {
            // Two copies under way at once: the first durable one decides what conflicts.
            if generations.old.contains_key(&key) {
                continue;
            }
            if generations.young.len() >= self.capacity / 2 {
                generations.old = std::mem::take(&mut generations.young);
            }
            if self.capacity >= 2 {
                generations.young.entry(key).or_insert(hash);
            }
        }
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

    #[test]
    fn same_bytes_are_a_duplicate_and_others_conflict() {
        let seen = SeenKeys::new(100);
        let (one, two) = (seen.hash(b"one"), seen.hash(b"two"));
        assert_eq!(seen.look_up(&key(1), one), Seen::New);
        seen.remember([(key(1), one), (key(1), two)]);
        assert_eq!(seen.look_up(&key(1), one), Seen::Duplicate);
        assert_eq!(seen.look_up(&key(1), two), Seen::Conflict);
        assert_eq!(seen.look_up(&key(2), one), Seen::New);
    }

    #[test]
    fn the_oldest_are_forgotten_and_the_latest_half_never() {
        let seen = SeenKeys::new(100);
        for sequence in 1..=1000 {
            seen.remember([(key(sequence), 7)]);
            for recent in sequence.saturating_sub(49).max(1)..=sequence {
                assert_eq!(seen.look_up(&key(recent), 7), Seen::Duplicate);
            }
        }
        let known = (1..=1000)
            .filter(|&n| seen.look_up(&key(n), 7) != Seen::New)
            .count();
        assert!(known <= 100, "{known}");
        let none = SeenKeys::new(0);
        none.remember([(key(1), 7)]);
        assert_eq!(none.look_up(&key(1), 7), Seen::New);
    }
}
