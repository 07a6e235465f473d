//! `epwatch collector`: the collector alone, on a ClickHouse server that several may share.

mod key;

use std::process::ExitCode;

use clap::Subcommand;

use epwatch_collector::Collector;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{
    output,
    server_config::{Runs, ServerArgs},
    shutdown::Shutdown,
    store::Store,
    telemetry, version,
};

/// Takes reports from devices and writes them to a ClickHouse server.
///
/// Several may write to one server; each keeps its WAL in --data-dir.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<CollectorCommand>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the addresses it listens on as one JSON document once it runs.
    #[arg(long)]
    json: bool,
}

/// Tasks other than running it.
#[derive(Debug, Subcommand)]
pub(crate) enum CollectorCommand {
    Key(key::Args),
}

impl CollectorCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Key(args) => key::run(&args),
        }
    }
}

/// Addresses of a running collector.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Addresses {
    /// Devices send here.
    pub(crate) collector: std::net::SocketAddr,
    /// `/metrics`, `/healthz`, `/readyz`.
    pub(crate) http: std::net::SocketAddr,
    /// The embedded store, for `--clickhouse` of other commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
}

impl Addresses {
    pub(crate) fn of(collector: &Collector, store: &Store) -> Self {
        let embedded = store.embedded.as_ref();
        Self {
            collector: collector.listen(),
            http: collector.http_listen(),
            store: embedded.map(|engine| format!("unix:{}", engine.socket().display())),
        }
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.server.load(Runs::Collector)?;
    if config.store.clickhouse.is_none() {
        anyhow::bail!(output::no_server_is_named());
    }
    let mut shutdown = Shutdown::listen(config.at_hangup())?;
    let drain = config.collector.batch.drain_timeout.0;
    version::log("collector");
    let starting = async {
        let store = Store::open_or_wait(&config.store, &config.data_dir).await?;
        config.collector.raw_retention = store.raw_retention();
        let stop = CancellationToken::new();
        let collector = Collector::start(config.collector, store.client(), stop).await?;
        anyhow::Ok((store, collector))
    };
    let Ok(started) = shutdown.unless_requested(starting).await else {
        return Ok(ExitCode::SUCCESS);
    };
    let (store, collector) = started?;
    collector.metrics().show_also(telemetry::metrics());
    let addresses = Addresses::of(&collector, &store);
    if args.json {
        output::json(&addresses)?;
    } else {
        output::notice(format_args!(
            "devices send to http://{}",
            addresses.collector
        ));
        output::notice(format_args!(
            "metrics and health on http://{}",
            addresses.http
        ));
    }
    tokio::select! {
        () = shutdown.requested() => {}
        error = store.refused() => return Err(error),
        () = collector.stopped() => anyhow::bail!("the collector ended by itself; its log says why"),
    }
    let stopping = async {
        collector.stop().await;
        store.stop().await;
    };
    shutdown.stop(stopping, drain).await;
    Ok(ExitCode::SUCCESS)
}
