//! Keeps the [`Census`] what the store would answer: reads the buckets that are new, and those that
//! changed since they were read.
//!
//! A copy never changes, so a bucket is what it was while the same copies count in it. Which do is
//! asked before each evaluation, as one sum a bucket; the sum of what was read tells whether it still
//! holds. Late reports, named copies, deletions and retention all show in it, in open and in closed
//! buckets alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use clickhouse::Row;
use clickhouse::query::Query;
use epwatch_store::native::decode::Blocks;
use serde::Deserialize;

use crate::hash::HashMap;

use super::deduplicated::Counted;
use super::places::Places;
use super::queries::{COUNTED_COPIES, SEEN, SESSIONLESS};
use crate::read::Span;
use crate::read::census::{Bucket, Census, buckets_of};
use crate::read::error::{SourceError, failed};

/// A look-back that takes more memory is not held: then it is read each time. About 120,000,000 devices in
/// buckets.
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
    held: Held,
    buckets_read: u64,
}

/// Buckets that were read.
#[derive(Debug, Default)]
struct Held {
    census: Arc<Census>,
    places: Places,
    copies: BTreeMap<Bucket, Copies>,
    /// The last bucket of those that were read first. When it is gone all is read anew: devices and
    /// placements that nothing names any more go with it.
    first_read_until: Bucket,
}

/// The copies that were read of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// Which they are, in one number.
    sum: u64,
    reports: u64,
}

impl Copies {
    /// Adds a copy by its hash; 0 names one that was added.
    pub(super) fn add(&mut self, copy: u64) {
        self.sum = self.sum.wrapping_add(copy);
        self.reports += u64::from(copy != 0);
    }
}

/// A report without a session.
#[derive(Debug, Row, Deserialize)]
struct SessionlessRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    device: u128,
    at_s: Bucket,
    copy: u64,
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
            held: Held::default(),
            buckets_read: 0,
        }
    }

    /// Returns what the look-back has.
    pub(super) async fn read(
        &mut self,
        store: &Counted,
        span: &Span,
    ) -> Result<Arc<Census>, SourceError> {
        let counted = counted_copies(store, span).await?;
        self.held.forget(&counted, span);
        let is_new = |row: &BucketRow| !self.held.copies.contains_key(&row.bucket);
        let mut wanted: Vec<BucketRow> = counted.into_iter().filter(is_new).collect();
        wanted.sort_unstable_by_key(|row| row.bucket);
        if self.held.copies.is_empty() {
            self.held.first_read_until = wanted.last().map_or(0, |row| row.bucket);
        }
        for some in portions(&wanted) {
            // Where this ends half-way, what is there has another sum and goes the next time.
            self.held.read_buckets(store, some).await?;
            self.buckets_read += some.len() as u64;
        }
        let census = self.held.census.clone();
        if census.bytes() > self.max_bytes {
            self.held = Held::default();
        }
        Ok(census)
    }

    pub(super) fn held(&self) -> HeldLookBack {
        HeldLookBack {
            buckets_read: self.buckets_read,
            bytes: self.held.census.bytes(),
        }
    }
}

impl Held {
    /// Drops what is not what it was, and what is no part of the look-back any more.
    fn forget(&mut self, counted: &[BucketRow], span: &Span) {
        if self.first_read_until < buckets_of(span).start {
            *self = Self::default();
        }
        let counted: HashMap<Bucket, u64> =
            counted.iter().map(|row| (row.bucket, row.copies)).collect();
        let is_gone = |(at, copies): &(&Bucket, &Copies)| counted.get(*at) != Some(&copies.sum);
        let gone: Vec<Bucket> = self
            .copies
            .iter()
            .filter(is_gone)
            .map(|(at, _)| *at)
            .collect();
        if !gone.is_empty() {
            let census = Arc::make_mut(&mut self.census);
            for bucket in gone {
                census.forget(bucket);
                self.copies.remove(&bucket);
            }
        }
    }

    async fn read_buckets(
        &mut self,
        store: &Counted,
        wanted: &[BucketRow],
    ) -> Result<(), SourceError> {
        let buckets: Vec<Bucket> = wanted.iter().map(|row| row.bucket).collect();
        self.add_sessions(store, &buckets).await?;
        let n_read = |row: &BucketRow| self.copies.get(&row.bucket).map_or(0, |c| c.reports);
        let is_short = |row: &&BucketRow| n_read(row) != row.reports;
        let short: Vec<Bucket> = wanted.iter().filter(is_short).map(|r| r.bucket).collect();
        self.add_sessionless(store, &short).await?;
        Arc::make_mut(&mut self.census).close(&buckets);
        Ok(())
    }

    async fn add_sessions(
        &mut self,
        store: &Counted,
        buckets: &[Bucket],
    ) -> Result<(), SourceError> {
        let census = Arc::make_mut(&mut self.census);
        let query = of_buckets(store.query(SEEN), buckets);
        let mut blocks = Blocks::of(query).map_err(failed(WHAT))?;
        while let Some(block) = blocks.next().await.map_err(failed(WHAT))? {
            let added = self.places.add(&block, census, &mut self.copies);
            added.map_err(failed(WHAT))?;
        }
        Ok(())
    }

    /// Adds the reports that are in no other answer, of buckets that have more than was read.
    async fn add_sessionless(
        &mut self,
        store: &Counted,
        short: &[Bucket],
    ) -> Result<(), SourceError> {
        if short.is_empty() {
            return Ok(());
        }
        let census = Arc::make_mut(&mut self.census);
        let query = of_buckets(store.plain_query(SESSIONLESS), short);
        let mut rows = query.fetch::<SessionlessRow<'_>>().map_err(failed(WHAT))?;
        while let Some(row) = rows.next().await.map_err(failed(WHAT))? {
            self.copies.entry(row.at_s).or_default().add(row.copy);
            let app = census.number_of(row.app_id, row.environment);
            let device = row.device.to_le_bytes();
            census.app_mut(app).add_sessionless(row.at_s, device);
        }
        Ok(())
    }
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
