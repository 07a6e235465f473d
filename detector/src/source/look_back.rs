//! Keeps [`Presence`] what the store would answer: reads the buckets that are new, and those that
//! changed since they were read.
//!
//! A closed bucket changes only when copies are added or erased, when one of them is named as
//! surplus, or when an installation in it is deleted; all three are looked at before each evaluation.
//! Open buckets are read each time.

use std::sync::Arc;

use clickhouse::Row;
use serde::Deserialize;

use crate::hash::{HashMap, HashSet};
use crate::window::Installation;

use super::presence::{Bucket, Contents, Presence, buckets_of};
use super::queries::{BUCKET_COPIES, BUCKET_SURPLUS, CLOSED_UNTIL, DELETED, PRESENCE};
use super::rows::PresenceRow;
use super::{Counted, SourceError, Span, failed};

/// Copies of a look-back that is held, and devices in its buckets; of a larger one the store is asked
/// each time. Eight bytes each.
const MAX_HELD: u64 = 32_000_000;

/// Copies that are read at once, so that the store adds up a part at a time.
const MAX_READ: u64 = 1_000_000;

/// What was read of the look-back so far.
#[derive(Debug, Default)]
pub(super) struct LookBack {
    presence: Arc<Presence>,
    deleted: HashSet<Installation>,
    /// The last bucket of those that were read first. When it is gone all is read anew: devices and
    /// placements that nothing names any more go with it.
    first_read_until: Bucket,
    /// A look-back of so many copies was too large.
    too_large: Option<u64>,
}

#[derive(Debug, Row, Deserialize)]
struct BucketRow {
    bucket: u32,
    copies: u64,
}

#[derive(Debug, Row, Deserialize)]
struct DeletedRow {
    installation: Installation,
}

impl LookBack {
    /// Returns what the look-back has; `None` where it is too large to be held.
    pub(super) async fn read(
        &mut self,
        store: &Counted,
        span: &Span,
    ) -> Result<Option<Arc<Presence>>, SourceError> {
        // Before the rows: what changes in between is seen the next time.
        let closed_until = closed_until(store).await?;
        let deleted = deleted(store).await?;
        let contents = contents(store, span).await?;
        let copies: u64 = contents.values().map(|one| one.copies).sum();
        if copies > self.too_large.map_or(MAX_HELD, |known| known - 1) {
            *self = LookBack {
                too_large: self.too_large,
                ..LookBack::default()
            };
            return Ok(None);
        }

        self.forget(closed_until, deleted, &contents, span);
        let known: HashSet<Bucket> = self.presence.known().map(|(at, _)| at).collect();
        let mut wanted: Vec<(Bucket, Contents)> = contents
            .into_iter()
            .filter(|(at, _)| !known.contains(at))
            .collect();
        wanted.sort_unstable_by_key(|(at, _)| *at);
        if known.is_empty() {
            self.first_read_until = wanted.last().map_or(0, |(at, _)| *at);
        }
        for some in portions(&wanted) {
            if let Err(error) = self.read_buckets(store, some).await {
                // Half of them may be there.
                *self = LookBack::default();
                return Err(error);
            }
            if self.presence.len() as u64 > MAX_HELD {
                *self = LookBack {
                    too_large: Some(copies),
                    ..LookBack::default()
                };
                return Ok(None);
            }
        }
        Ok(Some(self.presence.clone()))
    }

    /// Drops what is not what it was.
    fn forget(
        &mut self,
        closed_until: Bucket,
        deleted: HashSet<Installation>,
        contents: &HashMap<Bucket, Contents>,
        span: &Span,
    ) {
        let range = buckets_of(span);
        if self.first_read_until < range.start || !self.deleted.is_subset(&deleted) {
            // All that was read first is gone; or the store is another one.
            self.presence = Arc::default();
        }
        let new: HashSet<Installation> = deleted.difference(&self.deleted).copied().collect();
        self.deleted = deleted;
        let of_deleted = self.presence.buckets_with(&new);
        let changed = |at: &Bucket, was: &Contents| {
            // A later window was judged before; it may be again.
            let is_there = !range.contains(at) || contents.get(at) == Some(was);
            *at < range.start || *at >= closed_until || !is_there
        };
        let known = self.presence.known();
        let mut gone: Vec<Bucket> = known
            .filter(|(at, was)| changed(at, was))
            .map(|(at, _)| at)
            .collect();
        gone.extend(of_deleted);
        if !gone.is_empty() {
            let presence = Arc::make_mut(&mut self.presence);
            gone.into_iter().for_each(|at| presence.forget(at));
        }
    }

    async fn read_buckets(
        &mut self,
        store: &Counted,
        wanted: &[(Bucket, Contents)],
    ) -> Result<(), SourceError> {
        let what = "who was there before";
        let buckets: Vec<Bucket> = wanted.iter().map(|(at, _)| *at).collect();
        let presence = Arc::make_mut(&mut self.presence);
        for (at, contents) in wanted {
            presence.begin(*at, *contents);
        }
        let query = store.plain_query(PRESENCE).bind(&buckets);
        let first = buckets.first().copied().unwrap_or(0);
        let query = query.bind(first);
        let mut rows = query.fetch::<PresenceRow<'_>>().map_err(failed(what))?;
        while let Some(row) = rows.next().await.map_err(failed(what))? {
            presence.add(row);
        }
        presence.end(&buckets);
        Ok(())
    }
}

async fn closed_until(store: &Counted) -> Result<Bucket, SourceError> {
    let closed = store.query(CLOSED_UNTIL).fetch_one::<u32>().await;
    closed.map_err(failed("closed buckets"))
}

async fn deleted(store: &Counted) -> Result<HashSet<Installation>, SourceError> {
    let deleted = store.query(DELETED).fetch_all::<DeletedRow>().await;
    let deleted = deleted.map_err(failed("deleted installations"))?;
    Ok(deleted.into_iter().map(|row| row.installation).collect())
}

async fn contents(store: &Counted, span: &Span) -> Result<HashMap<Bucket, Contents>, SourceError> {
    let what = "buckets";
    let (from, to) = (span.earliest_s(), span.end_s());
    let query = store.query(BUCKET_COPIES).bind(from).bind(to).bind(from);
    let copies = query.fetch_all::<BucketRow>().await.map_err(failed(what))?;
    let mut contents: HashMap<Bucket, Contents> = HashMap::default();
    for row in copies {
        contents.entry(row.bucket).or_default().copies = row.copies;
    }
    let query = store.query(BUCKET_SURPLUS).bind(from).bind(to);
    let surplus = query.fetch_all::<BucketRow>().await.map_err(failed(what))?;
    for row in surplus {
        if let Some(slot) = contents.get_mut(&row.bucket) {
            slot.surplus = row.copies;
        }
    }
    Ok(contents)
}

/// Cuts buckets into what is read at once: neighbours, and at least one of them.
fn portions(wanted: &[(Bucket, Contents)]) -> Vec<&[(Bucket, Contents)]> {
    let mut portions = Vec::new();
    let (mut from, mut copies) = (0, 0);
    for (at, (_, contents)) in wanted.iter().enumerate() {
        if at > from && copies + contents.copies > MAX_READ {
            portions.push(&wanted[from..at]);
            (from, copies) = (at, 0);
        }
        copies += contents.copies;
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
        let of = |copies| Contents { copies, surplus: 0 };
        let wanted = [
            (1, of(MAX_READ / 2)),
            (2, of(MAX_READ / 2)),
            (3, of(3 * MAX_READ)),
            (4, of(1)),
            (5, of(1)),
        ];
        let portions: Vec<Vec<Bucket>> = portions(&wanted)
            .into_iter()
            .map(|some| some.iter().map(|(at, _)| *at).collect())
            .collect();
        assert_eq!(portions, [vec![1, 2], vec![3], vec![4, 5]]);
    }
}
