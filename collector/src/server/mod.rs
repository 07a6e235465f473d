//! The device port: connections, TLS, and two protocols for the same calls. `collector.rs` starts it.
//!
//! A client may be slow, silent, or hostile. Each connection has a limit for its handshake, for the head of a request,
//! for a body, and for being idle. The number of connections is bounded; at the bound a new connection replaces the one
//! that has been idle longest. The bytes of all bodies together are bounded too. Nothing here reads a message.

mod body;
mod certificate_expiry;
mod connect_protocol;
mod connections;
mod decompress;
mod dispatch;
pub(crate) mod open_files;
pub(crate) mod reject_reason;
pub(crate) mod reload;
pub(crate) mod retry;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
mod write_coalescing;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::v1::collector_service_server::CollectorService;
use futures::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::body::BodyBudget;
use self::connections::{Connection, Connections};
use self::dispatch::{Dispatch, RequestOrigin};
use self::tls::Tls;
use self::write_coalescing::CoalescedWrites;
use crate::admission::{Origins, Peer};
use crate::config::CollectorConfig;
use crate::ingest::auth::AppKeys;
use crate::metrics::Metrics;

/// The largest head of a request, in HTTP/1.1 and HTTP/2.
const MAX_HEADER_BYTES: u32 = 16 << 10;
const MAX_HEADERS: usize = 64;
/// Number of calls under way on one connection.
const MAX_CALLS: u32 = 256;
/// Bytes that an HTTP/2 connection may send before they are read.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Silent clients are pinged, so that half-open connections end.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most streams that a client opened and reset before they were accepted. Also the most streams that the server had
/// to reset (rapid reset, CVE-2023-44487 and similar).
const MAX_RESETS: usize = 64;
/// The time in which a connection must close gracefully; a call that just began takes less.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of connections that close gracefully at the same time, at most half as many as may be open. Each is an open
/// file beyond `connections.max`, for which [`crate::server::open_files`] keeps a reserve. Further connections are
/// closed at once.
const MAX_DRAINING: usize = 128;
/// Pause when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The port, ready to be served.
#[derive(Debug)]
pub(crate) struct DeviceServer<S> {
    dispatch: Arc<Dispatch<S>>,
    connections: Arc<Connections>,
    /// One permit per open socket, draining ones included, and one for the socket being accepted.
    sockets: Arc<Semaphore>,
    /// One permit per connection that closes gracefully.
    draining: Semaphore,
    drain_timeout: Duration,
    tls: Option<Arc<Tls>>,
    builder: Builder<TokioExecutor>,
    header_timeout: Duration,
    metrics: Arc<Metrics>,
    origins: Origins,
}

impl<S: CollectorService> DeviceServer<S> {
    pub(crate) fn new(
        config: &CollectorConfig,
        calls: S,
        keys: Arc<AppKeys>,
        tls: Option<Arc<Tls>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let limits = &config.connections;
        let max_bytes = usize::try_from(config.max_request_bytes.0).unwrap_or(usize::MAX);
        let budget = BodyBudget::new(limits.max_body_bytes.0);
        let connections = Connections::new(limits.max, limits.idle_timeout.0, metrics.clone());
        let header_timeout = limits.header_timeout.0;
        let max_draining = (limits.max / 2).min(MAX_DRAINING);
        Self {
            dispatch: Arc::new(Dispatch::new(
                calls,
                keys,
                metrics.clone(),
                max_bytes,
                limits.body_timeout.0,
                budget,
            )),
            connections,
            sockets: Arc::new(Semaphore::new(limits.max + max_draining + 1)),
            draining: Semaphore::new(max_draining),
            drain_timeout: DRAIN_TIMEOUT,
            tls,
            builder: builder(header_timeout),
            header_timeout,
            metrics,
            origins: Origins::new(&config.new_installations),
        }
    }

    /// Serves until `stop` is cancelled and the calls under way have ended. Dropping this ends the connections.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let server = Arc::new(self);
        let mut handlers = JoinSet::new();
        // The sweep is part of this task, so that connections are never served without it.
        let sweeping = server.connections.clone().sweep(stop.clone());
        tokio::pin!(sweeping);
        loop {
            // An evicted connection closes at once or takes one of the few draining permits, so accepting
            // never waits for another client.
            let accepting = async {
                let socket = server.sockets.clone().acquire_owned().await;
                let socket = socket.expect("nobody closes it");
                (socket, listener.accept().await)
            };
            let (socket, accepted) = tokio::select! {
                accepted = accepting => accepted,
                Some(_) = handlers.join_next() => continue,
                () = &mut sweeping => break,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    let connection = server.connections.open();
                    let (server, stop) = (server.clone(), stop.clone());
                    let from = from.ip();
                    handlers.spawn(async move {
                        server
                            .handle_connection(stream, from, connection, stop)
                            .await;
                        drop(socket);
                    });
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "failed to accept connections, trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        while handlers.join_next().await.is_some() {}
    }

    /// Serves one connection.
    async fn handle_connection(
        &self,
        stream: TcpStream,
        from: IpAddr,
        connection: Connection,
        stop: CancellationToken,
    ) {
        let peer = self.origins.peer(from);
        // Acks are small, and the device waits for them.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self
                .serve_http(stream, peer, false, &connection, stop)
                .await;
        };
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        tokio::select! {
            shaken = timeout(self.header_timeout, handshake) => match shaken {
                Ok(Ok(stream)) => {
                    let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                    self.serve_http(stream, peer, has_certificate, &connection, stop).await
                }
                Ok(Err(_)) | Err(_) => self.metrics.note_closed("handshake"),
            },
            () = connection.closing() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Serves one connection without a socket.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        let connection = self.connections.open();
        let never = CancellationToken::new();
        self.serve_http(stream, Peer::Unknown, false, &connection, never)
            .await;
    }

    async fn serve_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        has_certificate: bool,
        connection: &Connection,
        stop: CancellationToken,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            let origin = RequestOrigin {
                network: self.origins.of_request(peer, request.headers()),
                private_peer: peer.private(),
                has_certificate,
            };
            let call = connection.begin_call();
            let dispatch = self.dispatch.clone();
            async move {
                let answer = dispatch.answer(request, origin).await;
                drop(call);
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = self
            .builder
            .serve_connection(TokioIo::new(CoalescedWrites::new(stream)), service);
        let mut serving = pin!(serving);
        tokio::select! {
            // A failed connection needs no log line: its client sees the failure.
            _ = serving.as_mut() => return,
            () = connection.closing() => {}
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                // The collector's own close timeout bounds this wait.
                tokio::select! {
                    _ = serving.as_mut() => return,
                    () = connection.closing() => {}
                }
            }
        }
        serving.as_mut().graceful_shutdown();
        if let Ok(_permit) = self.draining.try_acquire() {
            let _ = timeout(self.drain_timeout, serving).await;
        } else if serving.as_mut().now_or_never().is_none() {
            // The first poll yields before its last write (see `write_coalescing`); this second poll writes it.
            let _ = serving.now_or_never();
        }
    }
}

fn builder(header_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(MAX_HEADER_BYTES as usize)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS);
    builder
}

/// Whether an error of accept concerns one connection only: its client disconnected before.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
