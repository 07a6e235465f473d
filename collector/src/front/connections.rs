//! The connections that are open: how many, how long idle, and which one makes room.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::metrics::Metrics;
use crate::wal::lock;

/// Connections that were told to go and still have their socket. With more of them newcomers wait in the
/// system's queue: each is an open file beyond `max`, and the log needs some, too.
const MAX_LEAVING: usize = 128;

/// All of them.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    /// Those that have a socket.
    n_sockets: AtomicUsize,
    idle_timeout: Duration,
    began: Instant,
    next_id: AtomicU64,
    open: Mutex<HashMap<u64, Arc<State>>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    n_calls: AtomicU32,
    /// Since when there is no call; milliseconds since the port was opened.
    idle_since_ms: AtomicU64,
    go: CancellationToken,
}

/// One of them; closed when dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    id: u64,
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
            n_sockets: AtomicUsize::new(0),
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

    /// True while not too many of those that were told to go linger.
    pub(crate) fn takes_newcomers(&self) -> bool {
        self.n_sockets.load(Relaxed) < self.max + MAX_LEAVING
    }

    /// Takes a connection in. If there are too many now, the one that has been idle longest is told
    /// to go; if none is idle, the newcomer is.
    pub(crate) fn open(self: &Arc<Self>) -> Connection {
        let id = self.next_id.fetch_add(1, Relaxed);
        let state = Arc::new(State {
            n_calls: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(self.now_ms()),
            go: CancellationToken::new(),
        });
        let mut open = lock(&self.open);
        if open.len() >= self.max {
            // The newcomer is not among them; ids break ties in favour of the newer.
            let idlest = open
                .iter()
                .filter(|(_, state)| state.is_idle())
                .min_by_key(|(id, state)| (state.idle_since_ms.load(Relaxed), **id))
                .map(|(id, _)| *id);
            match idlest.and_then(|id| open.remove(&id)) {
                Some(idlest) => idlest.go.cancel(),
                None => state.go.cancel(),
            }
            self.metrics.note_closed("too_many");
        }
        if !state.go.is_cancelled() {
            open.insert(id, state.clone());
        }
        self.metrics.connections.inc();
        self.n_sockets.fetch_add(1, Relaxed);
        Connection {
            id,
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
        lock(&self.open).retain(|_, state| {
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

impl State {
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
        lock(&self.all.open).remove(&self.id);
        self.all.metrics.connections.dec();
        self.all.n_sockets.fetch_sub(1, Relaxed);
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
        assert_eq!(lock(&all.open).len(), 3);
        drop((old, young, new, refused, admitted, busy));
        assert_eq!(lock(&all.open).len(), 0);
        assert_eq!(all.metrics.connections.get(), 0);
    }

    #[test]
    fn newcomers_wait_while_many_linger_that_were_told_to_go() {
        let all = connections(2);
        let mut open: Vec<Connection> = (0..2 + MAX_LEAVING).map(|_| all.open()).collect();
        assert!(!all.takes_newcomers());
        open.remove(0);
        assert!(all.takes_newcomers());
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
