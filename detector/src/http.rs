//! The operator's side door of a detector that runs alone: `/metrics`, `/healthz`, `/readyz`.
//!
//! Alive means that it answers. Ready means that it has judged a window: the store answers, and
//! what it remembers of incidents has been read back.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} (detector.http_listen) for metrics")]
pub struct PageError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Pages that are served until a token is cancelled.
#[derive(Debug)]
pub struct Pages {
    /// Where they are.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Pages {
    /// Serves a detector's pages.
    ///
    /// # Errors
    /// The address is taken or not one of this machine.
    pub fn start(
        listen: SocketAddr,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Self, PageError>> {
        Box::pin(async move {
            let failed = |source| PageError {
                address: listen,
                source,
            };
            let listener = TcpListener::bind(listen).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            let router = Router::new()
                .route("/metrics", get(show))
                .route("/healthz", get(|| async { "ok\n" }))
                .route("/readyz", get(ready))
                .with_state(metrics);
            let task = tokio::spawn(async move {
                let served = axum::serve(listener, router)
                    .with_graceful_shutdown(async move { stop.cancelled().await })
                    .await;
                if let Err(error) = served {
                    tracing::error!(%error, "the operator's pages ended");
                }
            });
            Ok(Self { address, task })
        })
    }

    /// Waits until they have ended, after their token was cancelled.
    pub fn stopped(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _ = self.task.await;
        })
    }
}

async fn show(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a string cannot fail, and a metric that encodes wrongly fails its test.
    let encoded = prometheus_client::encoding::text::encode(&mut text, &metrics.registry());
    debug_assert!(encoded.is_ok(), "metrics do not encode");
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text)
}

async fn ready(State(metrics): State<Arc<Metrics>>) -> (StatusCode, &'static str) {
    if metrics.has_judged() {
        (StatusCode::OK, "ready\n")
    } else {
        let reason =
            "no window was judged yet: the store does not answer, or nothing is complete\n";
        (StatusCode::SERVICE_UNAVAILABLE, reason)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: epwatch\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn ready_once_a_window_was_judged() {
        let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let pages = Pages::start(any, metrics.clone(), stop.clone())
            .await
            .unwrap();
        assert_eq!(get(pages.address, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(get(pages.address, "/readyz").await.0, 503);
        metrics.evaluated(0.1, 1_800_000_000.0);
        assert_eq!(get(pages.address, "/readyz").await.0, 200);
        let (status, text) = get(pages.address, "/metrics").await;
        assert_eq!(status, 200);
        assert!(
            text.contains("detector_evaluation_seconds_count 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));

        let taken = Pages::start(pages.address, metrics, stop.clone())
            .await
            .unwrap_err();
        assert!(
            taken.to_string().contains("detector.http_listen"),
            "{taken}"
        );
        stop.cancel();
        pages.stopped().await;
    }
}
