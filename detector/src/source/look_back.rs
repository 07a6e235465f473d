//! Keeps [`Presence`] what the store would answer: reads the buckets that are new, and those that
//! changed since they were read.
//!
//! A copy never changes, so a bucket is what it was while the same copies count in it. Which do is
//! asked before each evaluation, as one sum a bucket; the sum of what was read tells whether it still
//! holds. Late reports, named copies, deletions and retention all show in it, in open and in closed
//! buckets alike.

use std::sync::Arc;

use clickhouse::Row;
use serde::Deserialize;

use crate::hash::{HashMap, HashSet};

use super::presence::{Bucket, Presence, buckets_of};
use super::queries::{COUNTED_COPIES, PRESENCE};
use super::rows::PresenceRow;
use super::{Counted, SourceError, Span, failed};

/// A look-back that takes more memory is not held: then the store is asked each time. About
/// 30,000,000 devices in buckets.
const MAX_HELD_BYTES: usize = 256 << 20;

/// Reports that are read at once, so that the store adds up a part at a time.
const MAX_READ: u64 = 1_000_000;

/// What is held of the look-back between evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLookBack {
    /// Buckets read so far, by all evaluations: after the first those that are new or changed.
    pub buckets_read: u64,
    /// About how many bytes it takes.
    pub bytes: usize,
}

/// What was read of the look-back so far.
#[derive(Debug)]
pub(super) struct LookBack {
    max_bytes: usize,
    presence: Arc<Presence>,
    /// The last bucket of those that were read first. When it is gone all is read anew: devices and
    /// placements that nothing names any more go with it.
    first_read_until: Bucket,
    /// A look-back of so many reports was too large.
    too_large: Option<u64>,
    buckets_read: u64,
}

#[derive(Debug, Row, Deserialize)]
struct BucketRow {
    bucket: Bucket,
    reports: u64,
    copies: u64,
}

impl Default for LookBack {
    fn default() -> Self {
        Self::of_at_most(MAX_HELD_BYTES)
    }
}

impl LookBack {
    pub(super) fn of_at_most(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            presence: Arc::default(),
            first_read_until: 0,
            too_large: None,
            buckets_read: 0,
        }
    }

    /// Returns what the look-back has; `None` where it is too large to be held.
    pub(super) async fn read(
        &mut self,
        store: &Counted,
        span: &Span,
    ) -> Result<Option<Arc<Presence>>, SourceError> {
        let counted = counted_copies(store, span).await?;
        let reports: u64 = counted.iter().map(|row| row.reports).sum();
        if self.too_large.is_some_and(|known| reports >= known) {
            return Ok(None);
        }
        self.too_large = None;

        self.forget(&counted, span);
        let known: HashSet<Bucket> = self.presence.buckets().map(|(at, _)| at).collect();
        let is_new = |row: &BucketRow| !known.contains(&row.bucket);
        let mut wanted: Vec<BucketRow> = counted.into_iter().filter(is_new).collect();
        wanted.sort_unstable_by_key(|row| row.bucket);
        if known.is_empty() {
            self.first_read_until = wanted.last().map_or(0, |row| row.bucket);
        }
        for some in portions(&wanted) {
            // Where this ends half-way, what is there has another sum and goes the next time.
            self.read_buckets(store, some).await?;
            if self.presence.bytes() > self.max_bytes {
                self.presence = Arc::default();
                self.too_large = Some(reports);
                return Ok(None);
            }
        }
        Ok(Some(self.presence.clone()))
    }

    pub(super) fn held(&self) -> HeldLookBack {
        HeldLookBack {
            buckets_read: self.buckets_read,
            bytes: self.presence.bytes(),
        }
    }

    /// Drops what is not what it was, and what is no part of the look-back any more.
    fn forget(&mut self, counted: &[BucketRow], span: &Span) {
        if self.first_read_until < buckets_of(span).start {
            self.presence = Arc::default();
        }
        let counted: HashMap<Bucket, u64> =
            counted.iter().map(|row| (row.bucket, row.copies)).collect();
        let held = self.presence.buckets();
        let gone: Vec<Bucket> = held
            .filter(|(at, copies)| counted.get(at) != Some(copies))
            .map(|(at, _)| at)
            .collect();
        if !gone.is_empty() {
            let presence = Arc::make_mut(&mut self.presence);
            gone.into_iter().for_each(|at| presence.forget(at));
        }
    }

    async fn read_buckets(
        &mut self,
        store: &Counted,
        wanted: &[BucketRow],
    ) -> Result<(), SourceError> {
        let what = "who was there before";
        let buckets: Vec<Bucket> = wanted.iter().map(|row| row.bucket).collect();
        let presence = Arc::make_mut(&mut self.presence);
        let Some(first) = buckets.first() else {
            return Ok(());
        };
        let query = store.plain_query(PRESENCE).bind(&buckets).bind(first);
        let query = query.bind(&buckets).bind(first);
        let mut rows = query.fetch::<PresenceRow<'_>>().map_err(failed(what))?;
        while let Some(row) = rows.next().await.map_err(failed(what))? {
            presence.add(row);
        }
        presence.end(&buckets);
        self.buckets_read += wanted.len() as u64;
        Ok(())
    }
}

async fn counted_copies(store: &Counted, span: &Span) -> Result<Vec<BucketRow>, SourceError> {
    let range = buckets_of(span);
    let query = store.query(COUNTED_COPIES).bind(range.start);
    let query = query.bind(range.end).bind(range.start);
    query.fetch_all().await.map_err(failed("buckets"))
}

/// Cuts buckets into what is read at once: neighbours, and at least one of them.
fn portions(wanted: &[BucketRow]) -> Vec<&[BucketRow]> {
    let mut portions = Vec::new();
    let (mut from, mut reports) = (0, 0);
    for (at, row) in wanted.iter().enumerate() {
        if at > from && reports + row.reports > MAX_READ {
            portions.push(&wanted[from..at]);
            (from, reports) = (at, 0);
        }
        reports += row.reports;
    }
    if from < wanted.len() {
        portions.push(&wanted[from..]);
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_read_in_portions_and_a_large_one_alone() {
        let of = |bucket, reports| BucketRow {
            bucket,
            reports,
            copies: 0,
        };
        let wanted = [
            of(1, MAX_READ / 2),
            of(2, MAX_READ / 2),
            of(3, 3 * MAX_READ),
            of(4, 1),
            of(5, 1),
        ];
        let portions: Vec<Vec<Bucket>> = portions(&wanted)
            .into_iter()
            .map(|some| some.iter().map(|row| row.bucket).collect())
            .collect();
        assert_eq!(portions, [vec![1, 2], vec![3], vec![4, 5]]);
    }
}
