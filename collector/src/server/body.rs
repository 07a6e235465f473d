//! Request bodies: the time limit of each, the memory limit of all together, and the drain of a body that a call did
//! not read. [`super::dispatch`] wraps every request in them. Nothing here decodes a message.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, timeout};
use tonic::{Code, Status};

use super::decompress::{Encoding, InflateError, inflate};
use super::reject_reason::RejectReason;
use super::retry;
use crate::join_task::join_task;

/// Retry delay while bodies use the whole budget. It is short because calls last milliseconds.
const BUSY: Duration = Duration::from_secs(1);

/// Compressed bodies up to this size are inflated on the async worker that received them. The limit of the ratio keeps
/// this below a millisecond, and for most bodies a change of threads would cost more.
const INLINE_BYTES: usize = 4 << 10;

/// Bytes of bodies, over all connections.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    used: AtomicU64,
    max: u64,
    /// Permits for larger bodies, which are inflated on threads for blocking work. There are half as many permits as
    /// processors, at least one, so that the async workers have the other processors.
    inflating: Arc<Semaphore>,
}

impl BodyBudget {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        let n_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            used: AtomicU64::new(0),
            max,
            inflating: Arc::new(Semaphore::new((n_cpus / 2).max(1))),
        })
    }
}

/// One call's part of the budget; given back on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<BodyBudget>,
    taken: AtomicU64,
    /// The client disconnected before the body was complete.
    is_cut: AtomicBool,
    /// The answer was made before the body was read, and the rest is discarded.
    is_rest_left: AtomicBool,
}

impl Charge {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> Arc<Self> {
        Arc::new(Self {
            budget,
            taken: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            is_rest_left: AtomicBool::new(false),
        })
    }

    /// True if the call's body was cut, whatever the answer's status is, because tonic takes a cut body for one without
    /// a message.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    /// True if the rest of the body is discarded; the connection ends after it.
    pub(crate) fn is_rest_left(&self) -> bool {
        self.is_rest_left.load(Relaxed)
    }

    /// Takes another `n` bytes from the budget.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` with a delay.
    pub(crate) fn take(&self, n: usize) -> Result<(), Status> {
        let n = n as u64;
        let used = self.budget.used.fetch_add(n, Relaxed) + n;
        if used > self.budget.max {
            self.budget.used.fetch_sub(n, Relaxed);
            let text = "too many request bytes in flight";
            let status = retry::later(Code::ResourceExhausted, text, BUSY);
            return Err(RejectReason::BodyBudget.mark(status));
        }
        self.taken.fetch_add(n, Relaxed);
        Ok(())
    }

    /// Inflates a body and takes the difference in size from the budget. Reports are slices of the inflated body, so it
    /// stays in memory until the call ends. A body that takes long is inflated outside the async workers.
    ///
    /// # Errors
    /// The errors of [`Self::take`], and `INVALID_ARGUMENT` for an invalid stream or a bomb.
    pub(crate) async fn inflate(
        self: Arc<Self>,
        encoding: Encoding,
        compressed: Bytes,
        max_bytes: usize,
    ) -> Result<Bytes, Status> {
        let n_compressed = compressed.len();
        let inflated = match n_compressed <= INLINE_BYTES {
            true => inflate(encoding, &compressed, max_bytes),
            false => {
                let inflating = self.budget.inflating.clone().acquire_owned().await;
                let inflating = inflating.expect("nobody closes it");
                // The body stays charged and the permit taken until the thread is done, whether the call goes on or not.
                let charge = self.clone();
                let mut running = tokio::task::spawn_blocking(move || {
                    let inflated = inflate(encoding, &compressed, max_bytes);
                    drop((compressed, charge, inflating));
                    inflated
                });
                join_task(&mut running).await
            }
        };
        let inflated = inflated.map_err(|error| {
            let refusal = match error {
                InflateError::Size { .. } => RejectReason::TooLarge,
                InflateError::Ratio { .. } | InflateError::Members(_) => RejectReason::Bomb,
                InflateError::Corrupt(_) => RejectReason::Malformed,
            };
            refusal.mark(Status::invalid_argument(error.to_string()))
        })?;
        self.take(inflated.len().saturating_sub(n_compressed))?;
        Ok(inflated)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.taken.get_mut(), Relaxed);
    }
}

/// A body that is still arriving, or a complete body.
pub(crate) type RequestBody = Either<Arriving, Full<Bytes>>;

/// A body that must be complete within its time limit.
pub(crate) struct Arriving {
    /// `None` once the body has ended or its rest is discarded.
    inner: Option<Incoming>,
    charge: Arc<Charge>,
    limit: Duration,
    /// Set at the first wait: most bodies arrive with their head.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Unread bytes that are received and discarded on drop.
    drain_bytes: u64,
}

impl Arriving {
    pub(crate) fn new(inner: Incoming, charge: Arc<Charge>, limit: Duration) -> Self {
        Self {
            inner: Some(inner),
            charge,
            limit,
            deadline: None,
            drain_bytes: 0,
        }
    }

    /// Receives and discards up to `max_bytes` of an unread body once the call has its answer. This is for HTTP/1.1,
    /// where many clients send everything before they read. An earlier close would reset the connection and lose the
    /// answer.
    pub(crate) fn drained(mut self, max_bytes: usize) -> Self {
        self.drain_bytes = max_bytes as u64;
        self
    }

    pub(crate) fn charge(&self) -> Arc<Charge> {
        self.charge.clone()
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        match Pin::new(inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.charge.take(data.len())?;
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(Some(Err(error))) => {
                this.charge.is_cut.store(true, Relaxed);
                let text = format!("failed to receive the request: {error}");
                return Poll::Ready(Some(Err(Status::cancelled(text))));
            }
            Poll::Ready(None) => {
                this.inner = None;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        let limit = this.limit;
        let deadline = this
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                // A body that exceeded its time limit is not drained.
                this.drain_bytes = 0;
                let text = "the request's body took too long to arrive";
                Poll::Ready(Some(Err(Status::deadline_exceeded(text))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = || SizeHint::with_exact(0);
        self.inner.as_ref().map_or_else(ended, Body::size_hint)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if self.drain_bytes == 0 || self.is_end_stream() {
            return;
        }
        self.charge.is_rest_left.store(true, Relaxed);
        // Outside a runtime no connection exists, so nothing has to be drained.
        if let (Some(rest), Ok(runtime)) = (self.inner.take(), Handle::try_current()) {
            runtime.spawn(timeout(self.limit, discard(rest, self.drain_bytes)));
        }
    }
}

/// Receives a body to its end, at most `max_bytes`.
async fn discard(mut body: Incoming, max_bytes: u64) {
    let mut left = max_bytes;
    while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let n = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(n) else {
            return;
        };
        left = rest;
    }
}

/// The reason why a body was not collected.
#[derive(Debug)]
pub(crate) enum CollectError {
    TooLarge,
    /// The body did not arrive in full.
    Failed(Status),
}

/// Collects a body of at most `max_bytes`.
pub(crate) async fn collect(mut body: Arriving, max_bytes: usize) -> Result<Bytes, CollectError> {
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(CollectError::TooLarge);
    }
    let mut first = Bytes::new();
    let mut rest = bytes::BytesMut::new();
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let data = match frame {
            None => break,
            Some(Err(status)) => return Err(CollectError::Failed(status)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(_trailers) => continue,
            },
        };
        if first.len() + rest.len() + data.len() > max_bytes {
            return Err(CollectError::TooLarge);
        }
        // Most bodies are one frame, which needs no copy.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_given_back_when_a_call_ends() {
        let budget = BodyBudget::new(100);
        let one = Charge::new(budget.clone());
        one.take(60).unwrap();
        let two = Charge::new(budget.clone());
        let refused = two.take(41).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(retry::delay_of(&refused), Some(BUSY));
        two.take(40).unwrap();
        drop(one);
        assert_eq!(budget.used.load(Relaxed), 40);
        drop(two);
        assert_eq!(budget.used.load(Relaxed), 0);
    }
}
