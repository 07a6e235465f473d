//! An HTTP port for few clients: Prometheus servers, load balancers, people. The memory and the files that it uses for
//! them are bounded.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Number of connections at once. A further one replaces the oldest, so that silent ones take no files of the process.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// The time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a request and its answer; a connection carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The page's links hold names, each of up to 12 KiB once it is percent-encoded.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is cancelled and the requests under way are answered. It allows 64 connections at once, each
/// with one request that may take 30 s. A further connection closes the oldest. Handlers get the client's address as
/// [`ConnectInfo`]. The listener is shared, so that the port stays open if the task is started again.
pub async fn serve_few_clients(
    listener: Arc<TcpListener>,
    router: Router,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => {
                oldest.retain(|connection| !connection.is_finished());
                continue;
            }
            () = stop.cancelled() => break,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if oldest.len() >= MAX_CONNECTIONS
            && let Some(first) = oldest.pop_front()
        {
            first.abort();
        }
        oldest.push_back(connections.spawn(serve_connection(stream, peer, router.clone())));
    }
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, router: Router) {
    let router = router.layer(Extension(ConnectInfo(peer)));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // The client sees a failure, so the error is not handled here.
    let _ = timeout(CONNECTION_TIMEOUT, serving).await;
}
