//! The port towards devices: connections, TLS, and two protocols for the same calls.
//!
//! Whoever connects may be slow, silent, or hostile. Each connection has a time for its handshake,
//! for the head of a request, for a body, and for doing nothing; there are so many of them and no
//! more, and the one that has been idle longest makes room for a new one. What all bodies together
//! hold is bounded. Nothing here looks into a message.

mod body;
mod connect_protocol;
mod connections;
mod decompress;
mod dispatch;
pub(crate) mod reject_reason;
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
use self::dispatch::Dispatch;
use self::tls::Tls;
use self::write_coalescing::Gathering;
use crate::config::CollectorConfig;
use crate::ingest::auth::AppKeys;
use crate::metrics::Metrics;
use crate::standing::{Origins, Peer};

/// A request's head; HTTP/1.1 and HTTP/2 alike.
const MAX_HEADER_BYTES: u32 = 16 << 10;
const MAX_HEADERS: usize = 64;
/// What one HTTP/2 connection may send ahead of our reading.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Pings a client that is silent, so that half-open connections end.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams that a client opened and reset before we looked, and that we had to reset (rapid reset,
/// CVE-2023-44487 and its kin).
const MAX_RESETS: usize = 64;
/// For a connection that is told to go; a call that began just then ends sooner.
const GOODBYE: Duration = Duration::from_secs(1);
/// Connections that were told to go and take their time for it, at most half as many as may be open: each is an
/// open file beyond `connections.max`, which [`crate::open_files`] leaves room for. Further ones are told and
/// closed at once.
const MAX_LEAVING: usize = 128;
/// Pause when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The port, ready to be served.
#[derive(Debug)]
pub(crate) struct Front<S> {
    dispatch: Arc<Dispatch<S>>,
    connections: Arc<Connections>,
    /// One for each connection until its file is closed, those that leave included; and one for who comes.
    sockets: Arc<Semaphore>,
    /// One for each connection that takes its time to leave.
    leaving: Semaphore,
    goodbye: Duration,
    tls: Option<Arc<Tls>>,
    builder: Builder<TokioExecutor>,
    header_timeout: Duration,
    metrics: Arc<Metrics>,
    origins: Origins,
}

impl<S: CollectorService> Front<S> {
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
        let max_leaving = (limits.max / 2).min(MAX_LEAVING);
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
            sockets: Arc::new(Semaphore::new(limits.max + max_leaving + 1)),
            leaving: Semaphore::new(max_leaving),
            goodbye: GOODBYE,
            tls,
            builder: builder(header_timeout, limits.max_calls),
            header_timeout,
            metrics,
            origins: Origins::new(&config.new_installations),
        }
    }

    /// Serves until `stop` is cancelled and the calls under way have ended. Dropping this ends the connections.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let front = Arc::new(self);
        let mut attended = JoinSet::new();
        let sweeping = tokio::spawn(front.connections.clone().sweep(stop.clone()));
        loop {
            // Who makes room closes its file at once or is one of the few that leave: nobody waits for
            // another's client here.
            let accepting = async {
                let socket = front.sockets.clone().acquire_owned().await;
                let socket = socket.expect("nobody closes it");
                (socket, listener.accept().await)
            };
            let (socket, accepted) = tokio::select! {
                accepted = accepting => accepted,
                Some(_) = attended.join_next() => continue,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    let connection = front.connections.open();
                    let (front, stop) = (front.clone(), stop.clone());
                    let from = from.ip();
                    attended.spawn(async move {
                        front.attend(stream, from, connection, stop).await;
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
        while attended.join_next().await.is_some() {}
        let _ = sweeping.await;
    }

    /// Serves one connection.
    async fn attend(
        &self,
        stream: TcpStream,
        from: IpAddr,
        connection: Connection,
        stop: CancellationToken,
    ) {
        let peer = self.origins.peer(from);
        // Acks are small and someone waits for them.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.serve_http(stream, peer, &connection, stop).await;
        };
        let handshake = TlsAcceptor::from(tls.config.clone()).accept(stream);
        tokio::select! {
            shaken = timeout(self.header_timeout, handshake) => match shaken {
                Ok(Ok(stream)) => self.serve_http(stream, peer, &connection, stop).await,
                Ok(Err(_)) | Err(_) => self.metrics.note_closed("handshake"),
            },
            () = connection.told_to_go() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Serves one connection that is none of a socket.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        let connection = self.connections.open();
        let never = CancellationToken::new();
        self.serve_http(stream, Peer::Unknown, &connection, never)
            .await;
    }

    async fn serve_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        connection: &Connection,
        stop: CancellationToken,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            let network = self.origins.of_request(peer, request.headers());
            let call = connection.begin_call();
            let dispatch = self.dispatch.clone();
            async move {
                let answer = dispatch.answer(request, network).await;
                drop(call);
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = self
            .builder
            .serve_connection(TokioIo::new(Gathering::new(stream)), service);
        let mut serving = pin!(serving);
        tokio::select! {
            // What a connection died of is its client's affair.
            _ = serving.as_mut() => return,
            () = connection.told_to_go() => {}
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                // The collector's own time for closing bounds this.
                tokio::select! {
                    _ = serving.as_mut() => return,
                    () = connection.told_to_go() => {}
                }
            }
        }
        serving.as_mut().graceful_shutdown();
        if let Ok(_leaving) = self.leaving.try_acquire() {
            let _ = timeout(self.goodbye, serving).await;
        } else if serving.as_mut().now_or_never().is_none() {
            // The first time its farewell let others go first (see `gather`); now it is written.
            let _ = serving.now_or_never();
        }
    }
}

fn builder(header_timeout: Duration, max_calls: u32) -> Builder<TokioExecutor> {
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
        .max_concurrent_streams(max_calls)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS);
    builder
}

/// The client went away between its connecting and our accepting.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
