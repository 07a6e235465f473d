//! Cached pages by address. However many requests ask for a page, it is read once, and again when the store's progress
//! moves on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::read::progress::Progress;

/// Maximum number of bytes of all pages, by the length of their JSON.
const MAX_BYTES: usize = 64 << 20;

/// Maximum number of addresses in the cache, including addresses without a page.
const MAX_ENTRIES: usize = 2_000;

/// A page is also read again at this age, because the ledger and open buckets change without progress.
const MAX_AGE: Duration = Duration::from_secs(30);

/// A page with parts left out is read again at this age.
const INCOMPLETE_MAX_AGE: Duration = Duration::from_secs(2);

/// A page as it was read from the store, with the time of that.
#[derive(Debug)]
pub(crate) struct CachedPage<P> {
    pub(crate) page: P,
    pub(crate) read_at: jiff::Timestamp,
    /// Bytes that the page counts for.
    pub(crate) bytes: usize,
    /// Whether no part was left out.
    pub(crate) is_whole: bool,
}

/// A page that was read.
#[derive(Debug)]
pub(crate) struct Cached<P> {
    pub(crate) page: P,
    pub(crate) progress: Progress,
    pub(crate) read_at: jiff::Timestamp,
    read: Instant,
    is_whole: bool,
}

type CacheSlot<P> = Arc<AsyncMutex<Option<Arc<Cached<P>>>>>;

/// A requested address.
#[derive(Debug)]
struct Entry<P> {
    slot: CacheSlot<P>,
    used: Instant,
    bytes: usize,
}

/// The pages by address.
#[derive(Debug)]
pub(crate) struct Cache<P> {
    entries: Mutex<HashMap<String, Entry<P>>>,
}

impl<P> Default for Cache<P> {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
        }
    }
}

impl<P> Cache<P> {
    /// Returns the cached page of this progress, or reads it. Requests for the same page wait for one read.
    ///
    /// # Errors
    /// The error of `read`, with the last page that was read before it, if there is one.
    pub(crate) async fn page<E>(
        &self,
        address: &str,
        progress: Progress,
        read: impl Future<Output = Result<CachedPage<P>, E>>,
    ) -> Result<Arc<Cached<P>>, (E, Option<Arc<Cached<P>>>)> {
        let slot = self.slot(address);
        let mut held = slot.lock().await;
        let is_current = |cached: &&Arc<Cached<P>>| {
            let max_age = if cached.is_whole {
                MAX_AGE
            } else {
                INCOMPLETE_MAX_AGE
            };
            cached.progress == progress && cached.read.elapsed() < max_age
        };
        if let Some(cached) = held.as_ref().filter(is_current) {
            return Ok(cached.clone());
        }
        match read.await {
            Ok(reading) => {
                let cached = Arc::new(Cached {
                    page: reading.page,
                    progress,
                    read_at: reading.read_at,
                    read: Instant::now(),
                    is_whole: reading.is_whole,
                });
                *held = Some(cached.clone());
                self.note(address, Some(reading.bytes));
                Ok(cached)
            }
            Err(error) => {
                // An unknown name must not fill the memory.
                self.note(address, None);
                Err((error, held.clone()))
            }
        }
    }

    /// Returns the last page that was read, whatever its progress.
    pub(crate) async fn last(&self, address: &str) -> Option<Arc<Cached<P>>> {
        let slot = self
            .entries
            .lock()
            .get(address)
            .map(|entry| entry.slot.clone());
        match slot {
            Some(slot) => slot.lock().await.clone(),
            None => None,
        }
    }

    fn slot(&self, address: &str) -> CacheSlot<P> {
        let mut entries = self.entries.lock();
        let entry = entries.entry(address.to_owned()).or_insert_with(|| Entry {
            slot: CacheSlot::default(),
            used: Instant::now(),
            bytes: address.len(),
        });
        entry.used = Instant::now();
        entry.slot.clone()
    }

    /// Notes the size of a page that was read, and drops the least recently requested pages until the others fit.
    fn note(&self, address: &str, bytes: Option<usize>) {
        let mut entries = self.entries.lock();
        if let (Some(entry), Some(bytes)) = (entries.get_mut(address), bytes) {
            entry.bytes = bytes + 2 * address.len();
        }
        let mut total: usize = entries.values().map(|entry| entry.bytes).sum();
        while total > MAX_BYTES || entries.len() > MAX_ENTRIES {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(address, _)| address.clone()) else {
                return;
            };
            total -= entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn at(second: i64) -> Progress {
        Progress {
            judged_at: jiff::Timestamp::from_second(second).ok(),
            ..Progress::default()
        }
    }

    fn whole(page: u32, bytes: usize) -> CachedPage<u32> {
        CachedPage {
            page,
            read_at: jiff::Timestamp::UNIX_EPOCH,
            bytes,
            is_whole: true,
        }
    }

    #[tokio::test]
    async fn a_page_is_read_once_for_each_progress() {
        let (cache, reads) = (Cache::<u32>::default(), AtomicU32::new(0));
        let read = || async {
            tokio::task::yield_now().await;
            Ok::<_, &str>(whole(reads.fetch_add(1, Ordering::SeqCst), 10))
        };
        let ask = || async { cache.page("/fleet", at(1), read()).await.unwrap().page };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (0, 0, 0));
        assert_eq!(cache.page("/fleet", at(2), read()).await.unwrap().page, 1);
        assert_eq!(cache.page("/ledger", at(2), read()).await.unwrap().page, 2);
    }

    #[tokio::test]
    async fn an_error_comes_with_the_page_before() {
        let cache = Cache::<u32>::default();
        let failed = cache
            .page("/", at(1), async { Err::<CachedPage<u32>, _>("away") })
            .await;
        assert!(matches!(failed, Err(("away", None))));
        cache
            .page("/", at(1), async { Ok::<_, &str>(whole(7, 1)) })
            .await
            .unwrap();
        let failed = cache.page("/", at(2), async { Err("away") }).await;
        assert!(matches!(failed, Err(("away", Some(page))) if page.page == 7));
    }

    #[tokio::test]
    async fn the_pages_asked_for_longest_ago_are_dropped() {
        let cache = Cache::<u32>::default();
        for n in 0..4_u32 {
            let read = async { Ok::<_, &str>(whole(n, MAX_BYTES / 3)) };
            cache.page(&n.to_string(), at(1), read).await.unwrap();
        }
        assert!(cache.last("0").await.is_none());
        assert!(cache.last("3").await.is_some());
    }
}
