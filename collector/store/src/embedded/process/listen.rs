//! The engine's listeners: the owner's Unix socket, and a loopback port for readers.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::embedded::protocol::http::Service;

/// Longest URL with headers. The URL holds the text of an INSERT.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// Longest time for the head of a reader's request, so that slow bytes cannot keep a connection. An idle connection is
/// closed after this time, and clients open another one. Connections of the owner stay open.
const READER_HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Binds with mode 0600. The folder is 0700, so there is no moment of wider access.
pub(super) fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    // This process has the folder's lock. So an existing socket belongs to an engine that has ended, unless two engines
    // were given the same path.
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::other(format!(
                "failed to bind {}: something else than a socket is there; remove it",
                path.display()
            )));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::other(format!(
                "failed to bind {}: another process answers on it",
                path.display()
            )));
        }
        std::fs::remove_file(path)?;
    }
    let bound = UnixListener::bind(path).and_then(|bound| {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(bound)
    });
    bound.map_err(|error| io::Error::other(format!("failed to bind {}: {error}", path.display())))
}

/// Binds the port for readers.
pub(super) async fn bind_port(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| {
        io::Error::other(format!(
            "failed to bind {address} for readers: {error}; choose another store.reader.listen"
        ))
    })
}

/// The open connections of the process, bounded and closed together.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    free: Arc<Semaphore>,
    open: TaskTracker,
    stop: watch::Sender<()>,
}

impl Connections {
    pub(super) fn new(limit: usize) -> Connections {
        Connections {
            free: Arc::new(Semaphore::new(limit)),
            open: TaskTracker::new(),
            stop: watch::channel(()).0,
        }
    }

    /// Returns a set with another limit, whose connections are closed together with these.
    pub(super) fn limited_to(&self, limit: usize) -> Connections {
        Connections {
            free: Arc::new(Semaphore::new(limit)),
            ..self.clone()
        }
    }

    /// Waits for running requests, but no longer than `max_wait`.
    pub(super) async fn drain(self, max_wait: Duration) {
        self.stop.send_replace(());
        self.open.close();
        let _ = tokio::time::timeout(max_wait, self.open.wait()).await;
    }
}

/// A service and the connections to it.
#[derive(Clone)]
pub(super) struct Acceptor {
    service: Arc<Service>,
    connections: Connections,
}

impl Acceptor {
    pub(super) fn new(service: Service, connections: Connections) -> Acceptor {
        Acceptor {
            service: Arc::new(service),
            connections,
        }
    }

    /// Accepts until the caller drops the future.
    pub(super) async fn accept<S>(self, mut listener: impl Stream<Item = io::Result<S>> + Unpin)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            let free = self.connections.free.clone().acquire_owned().await;
            let permit = free.expect("it is never closed");
            match listener
                .next()
                .await
                .unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
            {
                Ok(stream) => self.serve(stream, permit),
                // File descriptors may have run out. Others will close, so wait instead of spinning.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        permit: OwnedSemaphorePermit,
    ) {
        let service = self.service.clone();
        let head_timeout = service.readers.is_some().then_some(READER_HEAD_TIMEOUT);
        let mut stop = self.connections.stop.subscribe();
        self.connections.open.spawn(async move {
            let answer = service_fn(move |request| service.clone().handle(request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_timeout)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), answer);
            tokio::pin!(connection);
            // An error here means that the client left. Its guard kills its statement.
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = stop.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(permit);
        });
    }
}
