//! The admin endpoint of a server: `/metrics`, `/healthz` and `/readyz`, for Prometheus and load balancers; `/` links to
//! them.
//!
//! `/healthz` answers while the process lives. `/readyz` answers the component's reasons for not being ready, and its notes.
//! Nothing can be changed through it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::page::plain_text;
use crate::port_holder::port_holder;
use crate::small_http_server::serve_few_clients;
use crate::tasks::TaskSet;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The error of an address on which a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} ({key}){way_out}")]
pub struct BindError {
    /// The address as configured.
    pub address: SocketAddr,
    /// The config key that names it.
    pub key: &'static str,
    /// The process that has the port, or how to find it; empty for other errors.
    way_out: String,
    #[source]
    source: std::io::Error,
}

/// Returns the process that occupies a port, or a hint on how to find it.
fn way_out(error: &std::io::Error, port: u16) -> String {
    if error.kind() != std::io::ErrorKind::AddrInUse {
        return String::new();
    }
    match port_holder(port) {
        Some(process) => {
            format!("; {process} has this port: stop that one, or choose another port")
        }
        None => "; another process has this port, `sudo ss -ltnp` names it".to_owned(),
    }
}

/// Listens on the address that the config key `key` names. Returns the address with the port that
/// the system chose for port 0.
///
/// # Errors
/// The address is already in use, or does not belong to this machine.
pub async fn bind(
    address: SocketAddr,
    key: &'static str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError {
        address,
        key,
        way_out: way_out(&source, address.port()),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The component's part of the admin endpoint.
pub struct AdminPages {
    /// Returns the body of `/metrics`, mostly made by [`open_metrics`](crate::open_metrics).
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Returns why the component is not ready; nothing if it is.
    pub not_ready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl fmt::Debug for AdminPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminPages").finish_non_exhaustive()
    }
}

/// An admin endpoint that serves until its token is cancelled.
#[derive(Debug)]
pub struct AdminServer {
    task: JoinHandle<()>,
}

impl AdminServer {
    /// Serves the pages on a listener that [`bind`] returned. `/readyz` also lists the reasons that `tasks` returns.
    pub fn start(
        listener: TcpListener,
        pages: AdminPages,
        stop: CancellationToken,
        tasks: &TaskSet,
    ) -> Self {
        let pages = Shown {
            pages,
            tasks: tasks.clone(),
        };
        let router = Router::new()
            .route("/", get(|| async { Html(LINKS) }))
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state(Arc::new(pages));
        let (listener, stopped) = (Arc::new(listener), stop.clone());
        let serve = move || serve_few_clients(listener.clone(), router.clone(), stopped.clone());
        Self {
            task: tokio::spawn(
                tasks
                    .clone()
                    .restarted("admin-port".to_owned(), stop, serve),
            ),
        }
    }

    /// Waits for the end after the token was cancelled. A slow reader of a page delays a stop by a second at most.
    pub async fn stopped(mut self) {
        if timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// The data that the endpoint's handlers share.
struct Shown {
    pages: AdminPages,
    tasks: TaskSet,
}

/// Answers in the OpenMetrics format if the request names it, as Prometheus does. Otherwise answers in the older
/// format, which other programs expect.
async fn metrics(State(shown): State<Arc<Shown>>, headers: HeaderMap) -> impl IntoResponse {
    let page = (shown.pages.metrics)();
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    let (format, page) = match accepted.any(|value| value.contains("application/openmetrics-text"))
    {
        true => (OPEN_METRICS, page),
        false => (PLAIN_TEXT, plain_text(&page)),
    };
    ([(header::CONTENT_TYPE, format)], page)
}

const LINKS: &str = concat!(
    "<!doctype html><title>epwatch</title><h1>epwatch ",
    env!("CARGO_PKG_VERSION"),
    "</h1><ul><li><a href=/metrics>/metrics</a><li><a href=/healthz>/healthz</a><li><a href=/readyz>/readyz</a></ul>\n"
);

async fn ready(State(shown): State<Arc<Shown>>) -> (StatusCode, String) {
    let mut reasons = shown.tasks.not_ready();
    reasons.extend((shown.pages.not_ready)());
    let status = match reasons.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    if reasons.is_empty() {
        reasons.push("ready".to_owned());
    }
    reasons.extend(shown.tasks.notes());
    (status, reasons.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::small_http_server::MAX_CONNECTIONS;

    async fn get(address: SocketAddr, path: &str) -> (u16, String) {
        get_as(address, path, "*/*").await
    }

    async fn get_as(address: SocketAddr, path: &str, accept: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: h\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn pages_show_what_the_component_says() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let is_ready = Arc::new(AtomicBool::new(false));
        let ready = is_ready.clone();
        let pages = AdminPages {
            metrics: Box::new(|| "# TYPE events counter\nevents_total 0\n# EOF\n".to_owned()),
            not_ready: Box::new(move || {
                let reasons = if ready.load(Ordering::SeqCst) { 0 } else { 2 };
                vec!["the WAL is full".to_owned(); reasons]
            }),
        };
        let stop = CancellationToken::new();
        let (listener, address) = bind(any, "http_listen").await.unwrap();
        let admin = AdminServer::start(listener, pages, stop.clone(), &TaskSet::default());

        assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()));
        let (status, text) = get(address, "/readyz").await;
        assert_eq!(
            (status, text.as_str()),
            (503, "the WAL is full\nthe WAL is full\n")
        );
        is_ready.store(true, Ordering::SeqCst);
        assert_eq!(get(address, "/readyz").await, (200, "ready\n".to_owned()));

        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4,*/*;q=0.1";
        let (_, open) = get_as(address, "/metrics", prometheus).await;
        assert_eq!(open, "# TYPE events counter\nevents_total 0\n# EOF\n");
        let (_, plain) = get(address, "/metrics").await;
        assert_eq!(plain, "# TYPE events_total counter\nevents_total 0\n");
        let (status, links) = get(address, "/").await;
        assert!(status == 200 && links.contains("href=/metrics"), "{links}");

        // As many silent clients as a machine has ports.
        let mut silent = Vec::new();
        for _ in 0..3 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()));
        let mut closed = 0;
        for stream in &mut silent {
            let mut byte = [0];
            let ends = timeout(Duration::from_millis(20), stream.read(&mut byte));
            closed += usize::from(ends.await.is_ok());
        }
        assert!(closed > MAX_CONNECTIONS, "{closed} of {}", silent.len());

        let taken = bind(address, "http_listen").await.unwrap_err();
        assert!(taken.to_string().contains("(http_listen)"), "{taken}");
        stop.cancel();
        admin.stopped().await;
    }
}
