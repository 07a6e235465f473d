//! A bounded queue between two threads: commands to the SDK's thread, and its answers.
//!
//! The standard library's channel does the same, but adds 40 kB of code to the library in an app.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::lock::lock;

/// Makes a queue that holds at most this many items.
pub(crate) fn queue<T>(capacity: usize) -> (QueueSender<T>, QueueReceiver<T>) {
    let shared = Arc::new(SharedQueue {
        state: Mutex::new(QueueState {
            items: VecDeque::new(),
            has_sender: true,
            has_receiver: true,
        }),
        changed: Condvar::new(),
        capacity,
    });
    (QueueSender(Arc::clone(&shared)), QueueReceiver(shared))
}

#[derive(Debug)]
struct SharedQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    has_sender: bool,
    has_receiver: bool,
}

/// The end that sends.
#[derive(Debug)]
pub(crate) struct QueueSender<T>(Arc<SharedQueue<T>>);

/// The receiving end. When it is dropped, the items in the queue are dropped too.
#[derive(Debug)]
pub(crate) struct QueueReceiver<T>(Arc<SharedQueue<T>>);

/// Why the queue did not take an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendRefusal {
    Full,
    /// The other end is gone.
    Closed,
}

/// No item came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveEnd {
    Timeout,
    /// The other end is gone, and the queue is empty.
    Closed,
}

impl<T> QueueSender<T> {
    /// Never waits.
    pub(crate) fn try_send(&self, item: T) -> Result<(), SendRefusal> {
        let mut state = lock(&self.0.state);
        if !state.has_receiver {
            return Err(SendRefusal::Closed);
        }
        if state.items.len() >= self.0.capacity {
            return Err(SendRefusal::Full);
        }
        state.items.push_back(item);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> QueueReceiver<T> {
    /// Waits at most this long for the next item.
    pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<T, ReceiveEnd> {
        let until = Instant::now().checked_add(timeout);
        let mut state = lock(&self.0.state);
        loop {
            if let Some(item) = state.items.pop_front() {
                return Ok(item);
            }
            if !state.has_sender {
                return Err(ReceiveEnd::Closed);
            }
            // If the deadline is beyond the clock's range, this waits for ever, a day at a time.
            let left = until.map_or(Duration::from_secs(86_400), |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Err(ReceiveEnd::Timeout);
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Drop for QueueSender<T> {
    fn drop(&mut self) {
        lock(&self.0.state).has_sender = false;
        self.0.changed.notify_one();
    }
}

impl<T> Drop for QueueReceiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.has_receiver = false;
        let left = std::mem::take(&mut state.items);
        drop(state);
        // Items are dropped after the lock is released, because an item may hold the end of another queue.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn items_come_in_order_and_a_full_queue_refuses() {
        let (sender, receiver) = queue(2);
        assert_eq!(receiver.recv_timeout(NOW), Err(ReceiveEnd::Timeout));
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(SendRefusal::Full));
        drop(sender);
        assert_eq!(receiver.recv_timeout(NOW), Ok(1));
        assert_eq!(receiver.recv_timeout(Duration::MAX), Ok(2));
        assert_eq!(receiver.recv_timeout(TIMEOUT), Err(ReceiveEnd::Closed));
    }

    #[test]
    fn a_receiver_that_goes_takes_what_waits_with_it() {
        let (sender, receiver) = queue(2);
        let (answer, answered) = queue::<()>(1);
        assert_eq!(sender.try_send(answer), Ok(()));
        drop(receiver);
        assert_eq!(answered.recv_timeout(TIMEOUT), Err(ReceiveEnd::Closed));
        assert_eq!(sender.try_send(queue(1).0), Err(SendRefusal::Closed));
    }

    #[test]
    fn a_waiting_receiver_is_woken() {
        let (sender, receiver) = queue(1);
        let waiting = std::thread::spawn(move || {
            let first = receiver.recv_timeout(TIMEOUT);
            (first, receiver.recv_timeout(Duration::MAX))
        });
        while sender.try_send(7).is_err() {}
        drop(sender);
        assert_eq!(waiting.join().unwrap(), (Ok(7), Err(ReceiveEnd::Closed)));
    }
}
