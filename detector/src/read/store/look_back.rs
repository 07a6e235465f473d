//! Keeps [`Presence`] what the store would answer: reads the buckets that are new, and those that
//! changed since they were read.
//!
//! A copy never changes, so a bucket is what it was while the same copies count in it. Which do is
//! asked before each evaluation, as one sum a bucket; the sum of what was read tells whether it still
//! holds. Late reports, named copies, deletions and retention all show in it, in open and in closed
//! buckets alike.

use std::sync::Arc;

use clickhouse::Row;
use clickhouse::query::Query;
use epwatch_store::native::decode::Blocks;
use serde::Deserialize;

use crate::hash::{HashMap, HashSet};

use super::deduplicated::Counted;
use super::places::Places;
use super::queries::{COUNTED_COPIES, SEEN, SESSIONLESS};
use crate::read::Span;
use crate::read::error::{SourceError, failed};
use crate::read::presence::{Bucket, Presence, buckets_of};
use crate::read::rows::SessionlessRow;

/// A look-back that takes more memory is not held: then the store is asked each time. About
/// 30,000,000 devices in buckets.
pub(in crate::read) const MAX_HELD_BYTES: usize = 256 << 20;

/// Reports that are read at once, so that a query that fails loses little.
const MAX_READ: u64 = 1_000_000;

/// What is asked, when it is not answered.
const WHAT: &str = "who was there before";

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
    places: Places,
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

impl LookBack {
    pub(super) fn of_at_most(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            presence: Arc::default(),
            places: Places::default(),
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
        let buckets: Vec<Bucket> = wanted.iter().map(|row| row.bucket).collect();
        let presence = Arc::make_mut(&mut self.presence);
        add_seen(store, &buckets, presence, &mut self.places).await?;
        let is_short = |row: &&BucketRow| presence.reports(row.bucket) != row.reports;
        let short: Vec<Bucket> = wanted.iter().filter(is_short).map(|r| r.bucket).collect();
        add_sessionless(store, &short, presence).await?;
        presence.end(&buckets);
        self.buckets_read += wanted.len() as u64;
        Ok(())
    }
}

async fn add_seen(
    store: &Counted,
    buckets: &[Bucket],
    presence: &mut Presence,
    places: &mut Places,
) -> Result<(), SourceError> {
    let query = of_buckets(store.query(SEEN), buckets);
    let mut blocks = Blocks::of(query).map_err(failed(WHAT))?;
    while let Some(block) = blocks.next().await.map_err(failed(WHAT))? {
        places.add(&block, presence).map_err(failed(WHAT))?;
    }
    Ok(())
}

/// Adds the reports that are in no other answer, of buckets that have more than was read.
async fn add_sessionless(
    store: &Counted,
    short: &[Bucket],
    presence: &mut Presence,
) -> Result<(), SourceError> {
    if short.is_empty() {
        return Ok(());
    }
    let query = of_buckets(store.plain_query(SESSIONLESS), short);
    let mut rows = query.fetch::<SessionlessRow<'_>>().map_err(failed(WHAT))?;
    while let Some(row) = rows.next().await.map_err(failed(WHAT))? {
        presence.add_sessionless(&row);
    }
    Ok(())
}

fn of_buckets(query: Query, buckets: &[Bucket]) -> Query {
    query.bind(buckets).bind(buckets.first())
}

async fn counted_copies(store: &Counted, span: &Span) -> Result<Vec<BucketRow>, SourceError> {
    let range = buckets_of(span);
    let query = store.query(COUNTED_COPIES).bind(range.start);
    query
        .bind(range.end)
        .fetch_all()
        .await
        .map_err(failed("buckets"))
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
