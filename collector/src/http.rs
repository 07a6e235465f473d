//! The operator's side door: `/metrics`, `/healthz`, `/readyz`.
//!
//! Alive means that it answers. Ready means that reports can be taken *and* stored soon: the log
//! takes writes and the store takes what the writer sends. A load balancer may send devices elsewhere then; those that
//! come anyway are served from the log.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::metrics::Metrics;
use crate::wal::WeakWal;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the pages show.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) metrics: Arc<Metrics>,
    /// A page that somebody is slow to ask for does not keep the log open.
    pub(crate) wal: WeakWal,
}

pub(crate) fn router(page: Page) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(page)
}

async fn metrics(State(page): State<Page>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        page.metrics.encode(),
    )
}

async fn ready(State(page): State<Page>) -> (StatusCode, String) {
    let mut reasons = String::new();
    if !page.wal.stats().is_some_and(|(_, is_writable)| is_writable) {
        reasons.push_str("wal is full or cannot be written\n");
    }
    if page.metrics.store_up.get() != 1 {
        reasons.push_str("store does not answer\n");
    }
    if reasons.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons)
    }
}
