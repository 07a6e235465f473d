//! Writes a connection's answers together.
//!
//! A group of reports becomes durable at once, and the calls that waited for it end one after another. The
//! runtime polls a connection right after the first of its calls has ended, so each answer would be a
//! packet and a call to the kernel of its own. Here a write waits once until what is ready to run has
//! run; by then the connection's other answers lie beside the first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes let others go first.
#[derive(Debug)]
pub(crate) struct CoalescedWrites<S> {
    stream: S,
    turn: Turn,
}

/// Where the stream stands between two flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nothing was written since the last flush.
    Idle,
    /// The others have had their turn.
    Taken,
}

impl<S> CoalescedWrites<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            turn: Turn::Idle,
        }
    }

    /// The first time since a flush, lets what is ready run first: a task that wakes itself comes behind
    /// the others.
    fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.turn == Turn::Taken {
            return Poll::Ready(());
        }
        self.turn = Turn::Taken;
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
        self.turn = Turn::Idle;
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

    /// Says when it is written to.
    #[derive(Debug)]
    struct Told(Rc<RefCell<Vec<String>>>);

    impl AsyncWrite for Told {
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
    async fn a_write_comes_after_what_is_ready_and_later_ones_of_a_flush_at_once() {
        let happened = Rc::new(RefCell::new(Vec::new()));
        let (told, others) = (happened.clone(), happened.clone());
        LocalSet::new()
            .run_until(async move {
                let writing = spawn_local(async move {
                    let mut stream = CoalescedWrites::new(Told(told));
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
