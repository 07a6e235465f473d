//! Limits of open connections: their number, their idle time, and which one is closed for a new one. The device server
//! registers each connection and each call; nothing here reads a socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::metrics::Metrics;

/// All open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    idle_timeout: Duration,
    began: Instant,
    next_id: AtomicU64,
    /// Connections that are not closing. At the last search, they were ordered by idle time, the longest first. The end
    /// of a call does not move its entry, because that would take the lock. So an entry may be too far in front, and
    /// never too far behind.
    open: Mutex<BTreeMap<IdleRank, Arc<ConnectionState>>>,
    metrics: Arc<Metrics>,
}

/// Start of the idle time, in milliseconds since the port was opened, and the connection's id.
type IdleRank = (u64, u64);

#[derive(Debug)]
struct ConnectionState {
    id: u64,
    n_calls: AtomicU32,
    /// End of the last call; milliseconds since the port was opened.
    idle_since_ms: AtomicU64,
    /// The first part of its key in the map; changed only under the map's lock.
    placed_ms: AtomicU64,
    close: CancellationToken,
}

/// One open connection; closed when dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    state: Arc<ConnectionState>,
    all: Arc<Connections>,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct CallGuard {
    state: Arc<ConnectionState>,
    all: Arc<Connections>,
}

impl Connections {
    pub(crate) fn new(max: usize, idle_timeout: Duration, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            max,
            idle_timeout,
            began: Instant::now(),
            next_id: AtomicU64::new(0),
            open: Mutex::default(),
            metrics,
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds a connection. At the limit, the one that has been idle longest is closed, or the new one if none is idle.
    pub(crate) fn open(self: &Arc<Self>) -> Connection {
        let now_ms = self.now_ms();
        let state = Arc::new(ConnectionState {
            id: self.next_id.fetch_add(1, Relaxed),
            n_calls: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(now_ms),
            placed_ms: AtomicU64::new(now_ms),
            close: CancellationToken::new(),
        });
        let mut open = self.open.lock();
        if open.len() >= self.max {
            // The new connection is not in the map yet. Ids break ties in favour of the newer one.
            match idlest(&mut open).and_then(|place| open.remove(&place)) {
                Some(idlest) => idlest.close.cancel(),
                None => state.close.cancel(),
            }
            self.metrics.note_closed("too_many");
        }
        if !state.close.is_cancelled() {
            open.insert(state.place(), state.clone());
        }
        self.metrics.connections.inc();
        Connection {
            state,
            all: self.clone(),
        }
    }

    /// Closes connections that have been idle for too long, until `stop` is cancelled.
    pub(crate) async fn sweep(self: Arc<Self>, stop: CancellationToken) {
        let period =
            (self.idle_timeout / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = stop.cancelled() => return,
            }
            self.close_idle(self.now_ms());
        }
    }

    fn close_idle(&self, now_ms: u64) {
        let limit = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        self.open.lock().retain(|_, state| {
            let is_too_old = now_ms.saturating_sub(state.idle_since_ms.load(Relaxed)) >= limit;
            let closes = state.is_idle() && is_too_old;
            if closes {
                state.close.cancel();
                self.metrics.note_closed("idle");
            }
            !closes
        });
    }
}

/// Finds the connection that has been idle longest. Entries in front of it that were used since then are moved to their
/// new positions. Each call causes at most one such move.
fn idlest(open: &mut BTreeMap<IdleRank, Arc<ConnectionState>>) -> Option<IdleRank> {
    let mut idlest = None;
    let mut moved = Vec::new();
    for (&place, state) in open.iter() {
        if idlest.is_some_and(|idlest| idlest < place) {
            break;
        }
        if state.is_idle() {
            // Two calls that end at once may store their times in either order.
            let since_ms = state.idle_since_ms.load(Relaxed).max(place.0);
            let belongs = (since_ms, state.id);
            if belongs != place {
                moved.push((place, belongs));
            }
            idlest = Some(idlest.map_or(belongs, |idlest: IdleRank| idlest.min(belongs)));
        }
    }
    for (from, to) in moved {
        if let Some(state) = open.remove(&from) {
            state.placed_ms.store(to.0, Relaxed);
            open.insert(to, state);
        }
    }
    idlest
}

impl ConnectionState {
    fn place(&self) -> IdleRank {
        (self.placed_ms.load(Relaxed), self.id)
    }

    fn is_idle(&self) -> bool {
        self.n_calls.load(Relaxed) == 0
    }
}

impl Connection {
    /// Resolves when the connection is to close.
    pub(crate) fn closing(&self) -> WaitForCancellationFuture<'_> {
        self.state.close.cancelled()
    }

    /// Marks a call as under way until the guard is dropped.
    pub(crate) fn begin_call(&self) -> CallGuard {
        self.state.n_calls.fetch_add(1, Relaxed);
        CallGuard {
            state: self.state.clone(),
            all: self.all.clone(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.all.open.lock();
        open.remove(&self.state.place());
        self.all.metrics.connections.dec();
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        // Stores the time first, so that a sweep in between finds a call under way or a fresh time.
        self.state.idle_since_ms.store(self.all.now_ms(), Relaxed);
        self.state.n_calls.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize) -> Arc<Connections> {
        Connections::new(max, Duration::from_secs(60), Arc::new(Metrics::new()))
    }

    fn closes(connection: &Connection) -> bool {
        connection.state.close.is_cancelled()
    }

    #[test]
    fn the_connection_idle_longest_is_closed_and_calls_go_on() {
        let all = connections(3);
        let (busy, old, young) = (all.open(), all.open(), all.open());
        let call = busy.begin_call();
        let new = all.open();
        assert!(closes(&old) && !closes(&busy) && !closes(&young) && !closes(&new));
        let (_one, _two) = (young.begin_call(), new.begin_call());
        let refused = all.open();
        assert!(closes(&refused), "all others work");
        drop(call);
        let admitted = all.open();
        assert!(closes(&busy) && !closes(&admitted));
        assert_eq!(all.open.lock().len(), 3);
        drop((old, young, new, refused, admitted, busy));
        assert_eq!(all.open.lock().len(), 0);
        assert_eq!(all.metrics.connections.get(), 0);
    }

    /// A connection that was used since the last search is not closed before an unused one.
    #[test]
    fn a_connection_used_since_the_last_search_is_not_the_idlest() {
        let all = connections(3);
        let used = |connection: &Connection, at_ms| {
            drop(connection.begin_call());
            connection.state.idle_since_ms.store(at_ms, Relaxed);
        };
        let (first, second, third) = (all.open(), all.open(), all.open());
        used(&first, 1_000_000);
        used(&second, 3_000_000);
        used(&third, 2_000_000);
        let fourth = all.open();
        assert!(closes(&first) && !closes(&second) && !closes(&third) && !closes(&fourth));
        used(&fourth, 4_000_000);
        let fifth = all.open();
        assert!(closes(&third) && !closes(&second) && !closes(&fourth) && !closes(&fifth));
        drop((first, second, third, fourth, fifth));
        assert_eq!(all.open.lock().len(), 0);
    }

    #[test]
    fn only_idle_connections_grow_too_old() {
        let all = connections(3);
        let (idle, busy) = (all.open(), all.open());
        let call = busy.begin_call();
        all.close_idle(59_000);
        assert!(!closes(&idle));
        all.close_idle(61_000);
        assert!(closes(&idle) && !closes(&busy));
        drop(call);
        all.close_idle(all.now_ms() + 1_000);
        assert!(!closes(&busy));
    }
}
