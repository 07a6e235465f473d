//! Deleted installations in memory, read from the store and added by this collector.
//!
//! An exact set of bounded size refuses late reports at once. A filter over all tombstones finds the installations of a
//! batch that may be deleted, before the writer inserts the batch's rows. Views leave out the few installations of
//! `hidden_installations`, so their cost does not depend on the number of tombstones.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clickhouse::Row;
use epwatch_proto::InstallationId;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::log::Tombstone;
use crate::store::{Sink, SinkError};

/// About 60 MB. When the set is full, late reports of further deleted installations are stored, and the views hide
/// them.
const MAX_IN_MEMORY: usize = 1 << 20;
/// Hidden installations are read again from this long before the newest one, because stores' clocks differ.
const OVERLAP_MS: i64 = 3_600_000;
/// Number of tombstones read at once for the filter.
const PAGE: usize = 1 << 20;
/// The number of installations in one query, so that its text stays below the store's limit.
pub(super) const IDS_AT_ONCE: usize = 2_000;

/// A row of `hidden_installations`. The store sets `hidden_at`.
#[derive(Debug, Row, Serialize, Deserialize)]
pub(super) struct HiddenRow {
    pub(super) installation: [u8; 16],
    pub(super) tombstoned_at: i64,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct IdRow {
    pub(super) installation: [u8; 16],
}

#[derive(Debug, Row, Deserialize)]
struct HiddenSince {
    installation: [u8; 16],
    tombstoned_at: i64,
    hidden_at: i64,
}

#[derive(Debug, Default)]
pub(crate) struct KnownDeletions {
    /// Time of each installation's tombstone, in milliseconds since 1970.
    exact: RwLock<HashMap<InstallationId, i64>>,
    filter: RwLock<TombstoneFilter>,
    /// False while there are no deletions, so that look-ups then take no lock.
    has_any: AtomicBool,
    read: Mutex<Option<LastRead>>,
}

#[derive(Debug, Clone, Copy)]
struct LastRead {
    at: Instant,
    newest_hidden_ms: i64,
}

impl KnownDeletions {
    /// Time of the installation's tombstone, in milliseconds since 1970.
    pub(super) fn tombstoned_at(&self, installation: &InstallationId) -> Option<i64> {
        if !self.has_any.load(Relaxed) {
            return None;
        }
        self.exact.read().get(installation).copied()
    }

    /// Adds tombstones made by this collector or by others.
    pub(super) fn add(&self, tombstones: &[Tombstone]) {
        if tombstones.is_empty() {
            return;
        }
        let mut exact = self.exact.write();
        let mut filter = self.filter.write();
        for Tombstone {
            installation,
            at_ms,
        } in tombstones
        {
            filter.insert(installation.as_bytes());
            if exact.len() < MAX_IN_MEMORY {
                exact.entry(*installation).or_insert(*at_ms);
            }
        }
        self.has_any.store(true, Relaxed);
    }

    pub(super) fn forget(&self, tombstones: &[Tombstone]) {
        let mut exact = self.exact.write();
        for tombstone in tombstones {
            exact.remove(&tombstone.installation);
        }
    }

    /// Reads the tombstones that other collectors added since the last read, unless that read was less than `at_most`
    /// ago. The first call reads all tombstones.
    pub(super) async fn catch_up(&self, sink: &Sink, at_most: Duration) -> Result<(), SinkError> {
        let last = *self.read.lock();
        if last.is_some_and(|last| last.at.elapsed() < at_most) {
            return Ok(());
        }
        let at = Instant::now();
        let newest_hidden_ms = match last {
            Some(last) => self.read_hidden(sink, last.newest_hidden_ms).await?,
            None => {
                self.read_all(sink).await?;
                // Reads the tombstones that were inserted meanwhile.
                self.read_hidden(sink, 0).await?
            }
        };
        *self.read.lock() = Some(LastRead {
            at,
            newest_hidden_ms,
        });
        Ok(())
    }

    async fn read_all(&self, sink: &Sink) -> Result<(), SinkError> {
        let sql = "SELECT count() AS n FROM tombstones";
        let n_rows = sink.first::<u64>("tombstones", sql).await?.unwrap_or(0);
        let mut filter = TombstoneFilter::for_rows(n_rows);
        let mut after = [0; 16];
        loop {
            let sql = format!(
                "SELECT installation FROM tombstones WHERE installation > unhex('{}') \
                 ORDER BY installation LIMIT {PAGE}",
                InstallationId::from_bytes(after).to_hex()
            );
            let page = sink.fetch::<IdRow>("tombstones", &sql).await?;
            page.iter().for_each(|row| filter.insert(&row.installation));
            let Some(last) = page.last().filter(|_| page.len() == PAGE) else {
                break;
            };
            after = last.installation;
        }
        {
            let exact = self.exact.read();
            exact.keys().for_each(|id| filter.insert(id.as_bytes()));
            *self.filter.write() = filter;
            self.has_any.store(n_rows > 0 || !exact.is_empty(), Relaxed);
        }
        let newest = format!(
            "SELECT installation, tombstoned_at FROM tombstones \
             ORDER BY tombstoned_at DESC LIMIT {MAX_IN_MEMORY}"
        );
        let rows = sink.fetch::<HiddenRow>("tombstones", &newest).await?;
        self.add(&rows.iter().map(Tombstone::from).collect::<Vec<_>>());
        Ok(())
    }

    async fn read_hidden(&self, sink: &Sink, newest_ms: i64) -> Result<i64, SinkError> {
        let sql = format!(
            "SELECT installation, tombstoned_at, hidden_at FROM hidden_installations \
             WHERE hidden_at >= fromUnixTimestamp64Milli(toInt64({}), 'UTC') \
             ORDER BY hidden_at DESC LIMIT {MAX_IN_MEMORY}",
            newest_ms.saturating_sub(OVERLAP_MS).max(0),
        );
        let rows = sink
            .fetch::<HiddenSince>("hidden_installations", &sql)
            .await?;
        let tombstones: Vec<Tombstone> = rows
            .iter()
            .map(|row| Tombstone {
                installation: InstallationId::from_bytes(row.installation),
                at_ms: row.tombstoned_at,
            })
            .collect();
        self.add(&tombstones);
        Ok(rows.first().map_or(newest_ms, |newest| newest.hidden_at))
    }

    /// Of these installations, hides the deleted ones again before their rows are inserted. Their earlier rows may be
    /// erased already, so the views may no longer hide them.
    pub(super) async fn hide_again(
        &self,
        sink: &Sink,
        installations: &[InstallationId],
    ) -> Result<(), SinkError> {
        if !self.has_any.load(Relaxed) {
            return Ok(());
        }
        let maybe: Vec<[u8; 16]> = {
            let filter = self.filter.read();
            let ids = installations.iter().map(|id| *id.as_bytes());
            ids.filter(|id| filter.may_contain(id)).collect()
        };
        for some in maybe.chunks(IDS_AT_ONCE) {
            let sql = format!(
                "SELECT installation, min(tombstones.tombstoned_at) AS tombstoned_at FROM tombstones \
                 WHERE installation IN ({}) GROUP BY installation",
                id_list(some.iter())
            );
            let deleted = sink.fetch::<HiddenRow>("tombstones", &sql).await?;
            sink.insert::<HiddenRow>("hidden_installations", &deleted, None)
                .await?;
        }
        Ok(())
    }
}

impl From<&HiddenRow> for Tombstone {
    fn from(row: &HiddenRow) -> Self {
        Self {
            installation: InstallationId::from_bytes(row.installation),
            at_ms: row.tombstoned_at,
        }
    }
}

impl From<&Tombstone> for HiddenRow {
    fn from(tombstone: &Tombstone) -> Self {
        Self {
            installation: *tombstone.installation.as_bytes(),
            tombstoned_at: tombstone.at_ms,
        }
    }
}

/// Returns the installations of `some` from which the store has reports.
pub(super) async fn received(
    sink: &Sink,
    some: &[Tombstone],
) -> Result<HashSet<[u8; 16]>, SinkError> {
    let mut found = HashSet::new();
    for some in some.chunks(IDS_AT_ONCE) {
        let list = id_list(some.iter().map(|one| one.installation.as_bytes()));
        let sql = format!(
            "SELECT DISTINCT installation FROM report_copies WHERE installation IN ({list})"
        );
        let rows = sink.fetch::<IdRow>("report_copies", &sql).await?;
        found.extend(rows.into_iter().map(|row| row.installation));
    }
    Ok(found)
}

/// Writes ids as a list in SQL.
pub(super) fn id_list<'a>(ids: impl Iterator<Item = &'a [u8; 16]>) -> String {
    let quoted = ids.map(|id| {
        let hex = InstallationId::from_bytes(*id).to_hex();
        format!("toFixedString(unhex('{hex}'), 16)")
    });
    quoted.collect::<Vec<_>>().join(", ")
}

/// A Bloom filter of installations, at two bytes each. A tombstone's installation is a hash already, so its halves are
/// the two hashes of Kirsch and Mitzenmacher, "Less Hashing, Same Performance" (2006). With 10 million rows, one in
/// some 3,000 installations that are not deleted matches. With more rows, more of them match, and each match costs a
/// look-up in the store.
#[derive(Debug)]
struct TombstoneFilter {
    /// The bits of the filter; the number of words is a power of two.
    words: Vec<u64>,
}

impl TombstoneFilter {
    const HASHES: u64 = 4;
    /// 1 MiB and 64 MiB.
    const WORDS: std::ops::RangeInclusive<u64> = 1 << 17..=1 << 23;

    fn for_rows(n_rows: u64) -> Self {
        let words = (n_rows / 4).next_power_of_two();
        let words = words.clamp(*Self::WORDS.start(), *Self::WORDS.end());
        let words = usize::try_from(words).expect("at most 2^23");
        Self {
            words: vec![0; words],
        }
    }

    /// Returns the word and the bit for each hash.
    fn places(&self, id: &[u8; 16]) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (first, second) = id.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (first, second) = (half(first), half(second) | 1);
        let mask = self.words.len() as u64 - 1;
        (0..Self::HASHES).map(move |n| {
            let hash = first.wrapping_add(second.wrapping_mul(n));
            let word = usize::try_from((hash >> 6) & mask).expect("below the number of words");
            (word, 1 << (hash & 63))
        })
    }

    fn insert(&mut self, id: &[u8; 16]) {
        for (word, bit) in self.places(id) {
            self.words[word] |= bit;
        }
    }

    fn may_contain(&self, id: &[u8; 16]) -> bool {
        self.places(id)
            .all(|(word, bit)| self.words[word] & bit != 0)
    }
}

impl Default for TombstoneFilter {
    fn default() -> Self {
        Self::for_rows(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_knows_each_tombstone_and_few_others() {
        let id = |n: u32| *InstallationId::from_secret(&n.to_le_bytes()).as_bytes();
        let mut filter = TombstoneFilter::for_rows(0);
        (0..500_000).for_each(|n| filter.insert(&id(n)));
        assert!((0..500_000).all(|n| filter.may_contain(&id(n))));
        let others = (500_000..600_000).filter(|n| filter.may_contain(&id(*n)));
        let n_others = others.count();
        assert!(n_others < 400, "{n_others} of 100,000");
    }
}
