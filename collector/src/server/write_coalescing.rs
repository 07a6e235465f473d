//! Coalesces the answers of a connection into one write.
//!
//! A WAL group completes many calls at once. The runtime polls a connection right after its first call ends, so each
//! answer would be a packet and a system call of its own. So the first write after a flush yields once to all tasks
//! that are ready. By then the connection's other answers are ready and go into the same write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose first write after a flush yields once.
#[derive(Debug)]
pub(crate) struct CoalescedWrites<S> {
    stream: S,
    /// True if a write has yielded since the last flush.
    has_yielded: bool,
}

impl<S> CoalescedWrites<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            has_yielded: false,
        }
    }

    /// Yields the first time after a flush. A task that wakes itself is queued behind the tasks that are ready.
    fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_turn(cx));
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_turn(cx));
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_yielded = false;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::io::AsyncWriteExt;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    /// Records each write.
    #[derive(Debug)]
    struct RecordedWrites(Rc<RefCell<Vec<String>>>);

    impl AsyncWrite for RecordedWrites {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.borrow_mut().push(text);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_first_write_after_a_flush_follows_ready_tasks_and_later_ones_do_not_wait() {
        let happened = Rc::new(RefCell::new(Vec::new()));
        let (writes, others) = (happened.clone(), happened.clone());
        LocalSet::new()
            .run_until(async move {
                let writing = spawn_local(async move {
                    let mut stream = CoalescedWrites::new(RecordedWrites(writes));
                    for word in ["one", "two"] {
                        stream.write_all(word.as_bytes()).await.unwrap();
                    }
                    stream.flush().await.unwrap();
                });
                let other = spawn_local(async move { others.borrow_mut().push("ready".into()) });
                let (writing, other) = (writing.await, other.await);
                writing.and(other).unwrap();
            })
            .await;
        assert_eq!(*happened.borrow(), ["ready", "one", "two"]);
    }
}
