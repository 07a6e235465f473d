//! TCP connections that count the bytes they send.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tonic::transport::Uri;
use tower_service::Service;

/// Bytes sent by all connections of a transport.
#[derive(Debug, Clone, Default)]
pub(super) struct SentBytes(Arc<AtomicU64>);

impl SentBytes {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Connects as `hyper` does: tries every address of a host, of both families.
#[derive(Debug, Clone)]
pub(super) struct CountingConnector {
    inner: HttpConnector,
    sent: SentBytes,
}

impl CountingConnector {
    /// Connecting to all addresses takes at most `deadline` in total.
    pub(super) fn new(sent: SentBytes, deadline: Duration) -> Self {
        let mut inner = HttpConnector::new();
        // The connector must also accept `https`, because TLS runs on top of it.
        inner.enforce_http(false);
        inner.set_nodelay(true);
        inner.set_connect_timeout(Some(deadline));
        Self { inner, sent }
    }
}

impl Service<Uri> for CountingConnector {
    type Response = TokioIo<Counted>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Counted>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(cx).map_err(io::Error::other)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let sent = self.sent.clone();
        let connecting = self.inner.call(address);
        Box::pin(async move {
            let stream = connecting.await.map_err(io::Error::other)?.into_inner();
            Ok(TokioIo::new(Counted { stream, sent }))
        })
    }
}

#[derive(Debug)]
pub(super) struct Counted {
    stream: TcpStream,
    sent: SentBytes,
}

impl Counted {
    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = &written {
            self.sent.0.fetch_add(*n as u64, Relaxed);
        }
        written
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
