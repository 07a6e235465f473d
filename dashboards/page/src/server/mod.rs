//! The page's own HTTP server: access, cache, and one answer for each address.

pub(crate) mod access;
pub(crate) mod answer;
pub(crate) mod cache;
pub(crate) mod login_throttle;
mod order;
pub(crate) mod tokens;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::Method;
use axum::response::Response;
use clickhouse::Client;
use epwatch_server::{BindError, Clock, TaskSet, bind, serve_few_clients};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::PageConfig;
use crate::read::health::ReadPartStatus;
use access::Access;
use answer::Pages;
use tokens::TokenError;

/// The reasons for which the page cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address is in use, or is not an address of this machine.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The token cannot be used.
    #[error("failed to use {}", .0.key())]
    Token(#[from] TokenError),
}

/// A page that is served until its token is cancelled.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct Shared {
    access: Access,
    pages: Pages,
    /// Client that writes orders.
    store: Client,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl PageServer {
    /// Listens on the address of `config`, and reads through `store`, whose database has the migrations. It takes the
    /// current time from `clock`.
    ///
    /// # Errors
    /// The address is in use, or the token file cannot be read or has too short a token.
    pub async fn start(
        config: &PageConfig,
        store: Client,
        facts: ReadPartStatus,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<Self, PageError> {
        Self::start_in(TaskSet::default(), config, store, facts, clock, stop).await
    }

    /// Starts like [`PageServer::start`], with the server's task in the process's task set.
    ///
    /// # Errors
    /// Fails as [`PageServer::start`] does.
    pub async fn start_in(
        tasks: TaskSet,
        config: &PageConfig,
        store: Client,
        facts: ReadPartStatus,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<Self, PageError> {
        let access = Access::of(config)?;
        let (listener, address) = bind(config.listen, "page.listen").await?;
        let shared = Arc::new(Shared {
            access,
            pages: Pages::new(store.clone(), facts, clock, config.timeout_factor)
                .with_grafana(config.grafana.clone()),
            store,
        });
        let router = Router::new().fallback(answer).with_state(shared);
        let (listener, stopped) = (Arc::new(listener), stop.clone());
        let serve = move || serve_few_clients(listener.clone(), router.clone(), stopped.clone());
        let task = tokio::spawn(tasks.restarted("page".to_owned(), stop, serve));
        Ok(Self { address, task })
    }

    /// Returns the first problem with the files of `config`, as config key and text; `None` without one.
    #[must_use]
    pub fn check_files(config: &PageConfig) -> Option<(&'static str, String)> {
        let error = Access::of(config).err()?;
        Some((error.key(), epwatch_proto::error_chain(&error)))
    }

    /// Returns the address with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits, for at most a second, until the server has ended. Call it after cancelling the token.
    pub async fn stopped(mut self) {
        let stopped = tokio::time::timeout(std::time::Duration::from_secs(1), &mut self.task);
        if stopped.await.is_err() {
            self.task.abort();
        }
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let (request, admitted) = match shared.access.admit(peer.ip(), request).await {
        Ok(admitted) => admitted,
        Err(refusal) => return access::secured(*refusal),
    };
    // A body is not `Sync`, so it is read before anything else is awaited.
    let (head, body) = request.into_parts();
    if head.method == Method::POST {
        let answer = order::answer(&shared.store, &shared.pages, &head, body, admitted).await;
        return access::secured(answer);
    }
    let pages = &shared.pages;
    access::secured(pages.answer(&head.uri, &head.headers, admitted).await)
}
