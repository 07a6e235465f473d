//! The connections that are open: how many, how long idle, and which one makes room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::metrics::Metrics;

/// All of them.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    idle_timeout: Duration,
    began: Instant,
    next_id: AtomicU64,
    /// Those that nobody told to go, the idlest first as far as was looked: a call that ends moves nobody,
    /// which would be a lock for each, so that a place may be too far in front, and never too far behind.
    open: Mutex<BTreeMap<Place, Arc<State>>>,
    metrics: Arc<Metrics>,
}

/// Idle since when, in milliseconds since the port was opened, and whose.
type Place = (u64, u64);

#[derive(Debug)]
struct State {
    id: u64,
    n_calls: AtomicU32,
    /// Since when there is no call; milliseconds since the port was opened.
    idle_since_ms: AtomicU64,
    /// Of its place among those that are open; changes under their lock.
    placed_ms: AtomicU64,
    go: CancellationToken,
}

/// One of them; closed when dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    state: Arc<State>,
    all: Arc<Connections>,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Call {
    state: Arc<State>,
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

    /// Takes a connection in. If there are too many now, the one that has been idle longest is told
    /// to go; if none is idle, the newcomer is.
    pub(crate) fn open(self: &Arc<Self>) -> Connection {
        let now_ms = self.now_ms();
        let state = Arc::new(State {
            id: self.next_id.fetch_add(1, Relaxed),
            n_calls: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(now_ms),
            placed_ms: AtomicU64::new(now_ms),
            go: CancellationToken::new(),
        });
        let mut open = self.open.lock();
        if open.len() >= self.max {
            // The newcomer is not among them; ids break ties in favour of the newer.
            match idlest(&mut open).and_then(|place| open.remove(&place)) {
                Some(idlest) => idlest.go.cancel(),
                None => state.go.cancel(),
            }
            self.metrics.note_closed("too_many");
        }
        if !state.go.is_cancelled() {
            open.insert(state.place(), state.clone());
        }
        self.metrics.connections.inc();
        Connection {
            state,
            all: self.clone(),
        }
    }

    /// Closes what has been idle for too long, until `stop` is cancelled.
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
            let goes = state.is_idle() && is_too_old;
            if goes {
                state.go.cancel();
                self.metrics.note_closed("idle");
            }
            !goes
        });
    }
}

/// Finds the one that has been idle longest, and puts those in front of it that were used meanwhile where they
/// belong: each call costs one such move at most, however often somebody looks.
fn idlest(open: &mut BTreeMap<Place, Arc<State>>) -> Option<Place> {
    let mut idlest = None;
    let mut moved = Vec::new();
    for (&place, state) in open.iter() {
        if idlest.is_some_and(|idlest| idlest < place) {
            break;
        }
        if state.is_idle() {
            // Calls that end together may write their times in either order.
            let since_ms = state.idle_since_ms.load(Relaxed).max(place.0);
            let belongs = (since_ms, state.id);
            if belongs != place {
                moved.push((place, belongs));
            }
            idlest = Some(idlest.map_or(belongs, |idlest: Place| idlest.min(belongs)));
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

impl State {
    fn place(&self) -> Place {
        (self.placed_ms.load(Relaxed), self.id)
    }

    fn is_idle(&self) -> bool {
        self.n_calls.load(Relaxed) == 0
    }
}

impl Connection {
    /// Resolves when the connection has to make room.
    pub(crate) fn told_to_go(&self) -> WaitForCancellationFuture<'_> {
        self.state.go.cancelled()
    }

    /// Says that a call is under way for as long as the answer lives.
    pub(crate) fn begin_call(&self) -> Call {
        self.state.n_calls.fetch_add(1, Relaxed);
        Call {
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

impl Drop for Call {
    fn drop(&mut self) {
        // The time first: a sweep in between finds a call, or a fresh time.
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

    fn goes(connection: &Connection) -> bool {
        connection.state.go.is_cancelled()
    }

    #[test]
    fn the_one_idle_longest_makes_room_and_calls_go_on() {
        let all = connections(3);
        let (busy, old, young) = (all.open(), all.open(), all.open());
        let call = busy.begin_call();
        let new = all.open();
        assert!(goes(&old) && !goes(&busy) && !goes(&young) && !goes(&new));
        let (_one, _two) = (young.begin_call(), new.begin_call());
        let refused = all.open();
        assert!(goes(&refused), "all others work");
        drop(call);
        let admitted = all.open();
        assert!(goes(&busy) && !goes(&admitted));
        assert_eq!(all.open.lock().len(), 3);
        drop((old, young, new, refused, admitted, busy));
        assert_eq!(all.open.lock().len(), 0);
        assert_eq!(all.metrics.connections.get(), 0);
    }

    /// Those that were used since they were looked at last make no room before those that were not.
    #[test]
    fn whoever_was_used_since_is_not_the_idlest() {
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
        assert!(goes(&first) && !goes(&second) && !goes(&third) && !goes(&fourth));
        used(&fourth, 4_000_000);
        let fifth = all.open();
        assert!(goes(&third) && !goes(&second) && !goes(&fourth) && !goes(&fifth));
        drop((first, second, third, fourth, fifth));
        assert_eq!(all.open.lock().len(), 0);
    }

    #[test]
    fn only_idle_connections_grow_too_old() {
        let all = connections(3);
        let (idle, busy) = (all.open(), all.open());
        let call = busy.begin_call();
        all.close_idle(59_000);
        assert!(!goes(&idle));
        all.close_idle(61_000);
        assert!(goes(&idle) && !goes(&busy));
        drop(call);
        all.close_idle(all.now_ms() + 1_000);
        assert!(!goes(&busy));
    }
}
