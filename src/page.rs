//! Starts the built-in page, for `serve` and `demo`, and for a store elsewhere in `epwatch page`.

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use epwatch_collector::Client;
use epwatch_page::{PageConfig, PageServer, ReadPartStatus};
use epwatch_server::{SystemClock, TaskSet};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    output,
    part_status::fine,
    server_config::Runs,
    shutdown::{Hangup, Shutdown},
    store_args::StoreArgs,
};

/// Shows a fleet in a browser: what is open, each model by chipset, incidents, losses, health.
///
/// `serve` and `demo` have the same page; this one reads a store elsewhere. It listens on loopback; `[page]` of the
/// config file has another address, which needs a token.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Where browsers connect to [default: 127.0.0.1:4720].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Print the address as one JSON document once it runs.
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct PageAddress {
    page: SocketAddr,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = args.store.target().await?;
    let (config, sources) = args.store.read_page(args.listen)?;
    config.check(Runs::Page, &sources)?;
    let mut shutdown = Shutdown::listen(Hangup::Ends)?;
    let shown = target.to_string();
    let facts = move || vec![fine("Store", format!("{shown}, read by `epwatch page`."))];
    let client = epwatch_store::client(&target);
    let page =
        RunningPage::start(TaskSet::default(), &config.page, client, Box::new(facts)).await?;
    if args.json {
        output::json(&PageAddress {
            page: page.address(),
        })?;
    } else {
        output::notice(format_args!("page  {}", page.url()));
        output::notice("Ctrl-C ends it");
    }
    shutdown.requested().await;
    page.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// The page that this process serves.
#[derive(Debug)]
pub(crate) struct RunningPage {
    server: PageServer,
    stop: CancellationToken,
}

impl RunningPage {
    pub(crate) async fn start(
        tasks: TaskSet,
        config: &PageConfig,
        store: Client,
        facts: ReadPartStatus,
    ) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let server = PageServer::start_in(
            tasks,
            config,
            store,
            facts,
            Arc::new(SystemClock),
            stop.clone(),
        )
        .await?;
        Ok(Self { server, stop })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.server.stopped().await;
    }
}
