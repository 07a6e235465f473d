//! Keeps the [`Census`] equal to the store: reads new buckets, and buckets that changed since they were read.
//!
//! A copy never changes, so a bucket stays the same while the same copies count in it. Before each evaluation, one sum
//! per bucket over its stored and surplus copies shows where these may have changed. There, the sum of the copies that
//! count is compared with the sum of the copies that were read. Late reports, named copies, deletions and retention all
//! change the sum, in open and in closed buckets alike. A part of the store's table never changes, so each part is
//! added up once.

use std::collections::BTreeMap;
use std::sync::Arc;

use clickhouse::Row;
use epwatch_store::native::decode::Blocks;
use serde::Deserialize;

use crate::judge::hash::HashMap;

use super::buckets::{of_buckets, portions};
use super::deduplicated::Counted;
use super::events;
use super::groups::{self, Copies};
use super::queries::{BUCKET_STATES, COUNTED_COPIES, PART_STATES, PARTS, SEEN, SESSIONLESS};
use crate::read::census::Census;
use crate::read::error::{SourceError, failed};
use crate::read::reader::HeldLookBack;
use crate::read::span::{Bucket, Span};

/// A look-back that takes more memory is not held, and is read each time. About 120,000,000 devices in buckets.
pub(in crate::read) const MAX_HELD_BYTES: usize = 256 << 20;

/// Maximum number of attempts to list the store's parts until all listed parts have rows.
const MAX_TRIES: usize = 5;

/// The name of the query in errors.
const WHAT: &str = "who was there before";

/// The census read so far.
#[derive(Debug)]
pub(super) struct CensusCache {
    max_bytes: usize,
    held: ReadBuckets,
    /// State of a part's buckets, by the name of the part and its number of rows.
    parts: HashMap<(String, u64), Vec<(Bucket, u64)>>,
    buckets_read: u64,
}

/// Buckets that were read.
#[derive(Debug, Default)]
struct ReadBuckets {
    census: Arc<Census>,
    copies: BTreeMap<Bucket, Copies>,
    /// Buckets whose reading failed or was stopped in the middle.
    half_read: Vec<Bucket>,
    states: States,
    /// The last bucket of the first reading. When it leaves the look-back, all buckets are read again, which drops
    /// devices and placements that no bucket names any more.
    first_read_until: Bucket,
}

/// The store's state of each bucket, in one number, and the state that decides which copies of any bucket count.
#[derive(Debug, Default)]
struct States {
    /// State of the deleted installations. `buckets` holds only while it is unchanged.
    tombstones: u64,
    /// Surplus copies of later buckets are not named yet.
    closed_until: Bucket,
    buckets: HashMap<Bucket, u64>,
}

/// One part of the state of a bucket, or of all buckets.
#[derive(Debug, Row, Deserialize)]
struct StateRow {
    kind: u8,
    bucket: Bucket,
    state: u64,
}

#[derive(Debug, Row, Deserialize)]
struct PartRow {
    part: String,
    n: u64,
}

#[derive(Debug, Row, Deserialize)]
struct PartStateRow {
    part: String,
    bucket: Bucket,
    state: u64,
}

/// A bucket with the copies that count in it.
#[derive(Debug, Row, Deserialize)]
struct BucketRow {
    bucket: Bucket,
    reports: u64,
    /// One number that identifies these copies.
    copies: u64,
    /// Number of these copies with self-tests; the next field counts failed starts. Most buckets have none, and are not
    /// searched.
    with_tests: u64,
    with_failed_starts: u64,
}

/// A report without a session.
#[derive(Debug, Row, Deserialize)]
struct SessionlessRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    device: u128,
    at_s: Bucket,
    copy: u64,
    is_unproven: bool,
    is_own: bool,
}

impl CensusCache {
    pub(super) fn of_at_most(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            held: ReadBuckets::default(),
            parts: HashMap::default(),
            buckets_read: 0,
        }
    }

    /// Returns the census of the look-back.
    pub(super) async fn read(
        &mut self,
        store: &Counted,
        span: &Span,
    ) -> Result<Arc<Census>, SourceError> {
        let mut tries = 0;
        while tries < MAX_TRIES && !self.add_parts(store, span).await? {
            tries += 1;
        }
        let states = States::read(store, span, self.parts.values()).await?;
        let held = &mut self.held;
        if held.first_read_until < span.buckets().start {
            *held = ReadBuckets::default();
        }
        let doubtful = held.doubtful(&states, span);
        let counted = counted_copies(store, &doubtful).await?;
        held.forget(&counted, &doubtful, &states);
        let is_new = |row: &BucketRow| !held.copies.contains_key(&row.bucket);
        let mut wanted: Vec<BucketRow> = counted.into_iter().filter(is_new).collect();
        wanted.sort_unstable_by_key(|row| row.bucket);
        if held.copies.is_empty() {
            held.first_read_until = wanted.last().map_or(0, |row| row.bucket);
        }
        for some in portions(&wanted, |row| row.reports) {
            held.read_buckets(store, some).await?;
            self.buckets_read += some.len() as u64;
        }
        held.states = states;
        let census = held.census.clone();
        if census.bytes() > self.max_bytes {
            self.held = ReadBuckets::default();
        }
        Ok(census)
    }

    /// Reads the states of new parts, and drops the states of parts that are gone. Returns false if a part had no rows,
    /// because it was merged in the meantime, or a replica lags.
    async fn add_parts(&mut self, store: &Counted, span: &Span) -> Result<bool, SourceError> {
        let query = store.plain_query(PARTS).bind(span.buckets().start);
        let stored = query.fetch_all::<PartRow>().await.map_err(failed(WHAT))?;
        let stored: HashMap<String, u64> = stored.into_iter().map(|r| (r.part, r.n)).collect();
        let parts = &mut self.parts;
        parts.retain(|(part, n), _| stored.get(part) == Some(n));
        let is_new = |part: &(&String, &u64)| !parts.contains_key(&(part.0.clone(), *part.1));
        let new: Vec<&String> = stored.iter().filter(is_new).map(|(part, _)| part).collect();
        if new.is_empty() {
            return Ok(true);
        }
        let query = store.plain_query(PART_STATES).bind(&new);
        let rows = query.fetch_all::<PartStateRow>().await;
        for row in rows.map_err(failed("buckets"))? {
            let n = stored.get(&row.part).copied().unwrap_or_default();
            let states = parts.entry((row.part, n)).or_default();
            states.push((row.bucket, row.state));
        }
        let parts = &self.parts;
        Ok(stored.into_iter().all(|part| parts.contains_key(&part)))
    }

    /// Returns the copies that count in each bucket of the look-back that was read last; `None` if it is not held.
    pub(super) fn copies(&self) -> Option<&BTreeMap<Bucket, Copies>> {
        Some(&self.held.copies).filter(|copies| !copies.is_empty())
    }

    pub(super) fn held(&self) -> HeldLookBack {
        HeldLookBack {
            buckets_read: self.buckets_read,
            window_buckets_read: 0,
            bytes: self.held.census.bytes(),
        }
    }
}

impl States {
    async fn read(
        store: &Counted,
        span: &Span,
        parts: impl Iterator<Item = &Vec<(Bucket, u64)>>,
    ) -> Result<Self, SourceError> {
        let range = span.buckets();
        let query = store.plain_query(BUCKET_STATES);
        let query = query.bind(range.start).bind(range.end);
        let rows = query.fetch_all::<StateRow>().await;
        let mut states = States::default();
        for (bucket, state) in parts.flatten().filter(|(at, _)| range.contains(at)) {
            states.add(*bucket, *state);
        }
        for row in rows.map_err(failed("buckets"))? {
            match row.kind {
                0 => states.add(row.bucket, row.state),
                1 => states.tombstones = row.state,
                _ => states.closed_until = row.bucket,
            }
        }
        Ok(states)
    }

    fn add(&mut self, bucket: Bucket, state: u64) {
        let sum = self.buckets.entry(bucket).or_default();
        *sum = sum.wrapping_add(state);
    }
}

impl ReadBuckets {
    /// Returns the buckets in which other copies may count than were read, and forgets their states until they are
    /// read. They always include the window's buckets, because a replica may lag behind the one that returned the
    /// states. They also include buckets that are not closed.
    fn doubtful(&mut self, now: &States, span: &Span) -> Vec<Bucket> {
        if self.states.tombstones != now.tombstones {
            self.states = States::default();
        }
        let open = now.closed_until.min(span.window_buckets().start);
        let known = &mut self.states.buckets;
        let buckets = now.buckets.iter();
        let doubtful = buckets.filter(|(at, state)| **at >= open || known.get(at) != Some(state));
        let mut doubtful: Vec<Bucket> = doubtful.map(|(at, _)| *at).collect();
        doubtful.sort_unstable();
        for at in &doubtful {
            known.remove(at);
        }
        doubtful
    }

    /// Drops buckets that changed, that left the look-back, or that were only partly read.
    fn forget(&mut self, counted: &[BucketRow], doubtful: &[Bucket], states: &States) {
        let counted: HashMap<Bucket, u64> =
            counted.iter().map(|row| (row.bucket, row.copies)).collect();
        let is_gone = |(at, copies): &(&Bucket, &Copies)| {
            let is_doubtful = doubtful.binary_search(at).is_ok();
            !states.buckets.contains_key(*at)
                || is_doubtful && counted.get(*at) != Some(&copies.sum)
        };
        let mut gone = std::mem::take(&mut self.half_read);
        gone.extend(self.copies.iter().filter(is_gone).map(|(at, _)| *at));
        if !gone.is_empty() {
            Arc::make_mut(&mut self.census).forget(&gone);
            self.copies.retain(|at, _| !gone.contains(at));
        }
    }

    async fn read_buckets(
        &mut self,
        store: &Counted,
        wanted: &[BucketRow],
    ) -> Result<(), SourceError> {
        let buckets: Vec<Bucket> = wanted.iter().map(|row| row.bucket).collect();
        self.half_read.clone_from(&buckets);
        self.add_sessions(store, &buckets).await?;
        let n_read = |row: &BucketRow| self.copies.get(&row.bucket).map_or(0, |c| c.reports);
        let is_short = |row: &&BucketRow| n_read(row) != row.reports;
        let short: Vec<Bucket> = wanted.iter().filter(is_short).map(|r| r.bucket).collect();
        self.add_sessionless(store, &short).await?;
        let census = Arc::make_mut(&mut self.census);
        let of = |has_some: fn(&BucketRow) -> bool| -> Vec<Bucket> {
            let some = wanted.iter().filter(|row| has_some(row));
            some.map(|row| row.bucket).collect()
        };
        let with_tests = of(|row| row.with_tests > 0);
        events::read_tests(store, &with_tests, census).await?;
        let with_failed_starts = of(|row| row.with_failed_starts > 0);
        events::read_starts(store, &with_failed_starts, census).await?;
        census.close(&buckets);
        self.half_read.clear();
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
            groups::add(&block, census, &mut self.copies).map_err(failed(WHAT))?;
        }
        Ok(())
    }

    /// Adds reports without a session, for buckets with more reports than were read.
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
            let texts = &mut census.texts;
            let app = (texts.id(row.app_id), texts.id(row.environment));
            let device = row.device.to_le_bytes();
            census.add_sessionless(row.at_s, app, device, (row.is_unproven, row.is_own));
        }
        Ok(())
    }
}

async fn counted_copies(
    store: &Counted,
    buckets: &[Bucket],
) -> Result<Vec<BucketRow>, SourceError> {
    if buckets.is_empty() {
        return Ok(Vec::new());
    }
    let query = of_buckets(store.query(COUNTED_COPIES), buckets);
    query.fetch_all().await.map_err(failed("buckets"))
}
